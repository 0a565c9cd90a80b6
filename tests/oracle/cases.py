"""Which kernel is compiled with which constants, and the launch it is tested with."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Array:
    """An array argument.

    Args:
        name: the kernel's parameter.
        dtype: Triton's name of the element type; e2m1x2, ue8m0 and ue4m3 besides.
        shape: extents, outermost first.
        role: `in`, `out` (starts poisoned) or `sum` (starts with numbers, is added to).
        block: extents of a transfer, outermost first, where the array is passed as a tensor map.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: str = "in"
    block: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scalar:
    """A number; dtype is i32, i64 or fp32."""

    name: str
    value: int | float
    dtype: str = "i32"


@dataclass(frozen=True)
class Case:
    """One compiled text and its launch.

    Args:
        name: the text's file name.
        kernel: function in `kernels_gemm` or `kernels_plain`.
        constants: values of the kernel's constexpr parameters.
        args: its other parameters, in order.
        grid: programs an axis.
        reference: function in `references`.
        warps, stages, ctas: compile options.
        slow: left out of the short run.
        heavy: in the short run at the random schedule only.
        debug: keep the DWARF sections, with paths blotted out.
        aligned: promise that integers divisible by 16 are.
        target: compute capability times 10: 90, 100, 103 or 107.
        reports: kinds of reports that the text earns, for a reason given beside the case.
        language: of the kernel, where it is not Triton.
    """

    name: str
    kernel: str
    constants: dict[str, object]
    args: tuple[Array | Scalar, ...]
    grid: tuple[int, int, int]
    reference: str
    warps: int = 4
    stages: int = 3
    ctas: int = 1
    slow: bool = False
    heavy: bool = False
    debug: bool = False
    aligned: bool = True
    options: dict[str, object] = field(default_factory=dict)
    target: int = 90
    reports: tuple[str, ...] = ()
    language: str = ""

    @property
    def folder(self) -> str:
        """Where the text is kept."""
        return f"sm_{self.target}a" + (f"_{self.language}" if self.language else "")


def _up(a: int, b: int) -> int:
    return -(-a // b)


def tma(name, dtypes, sizes, tile, *, majors=("K", "K"), kernel="gemm_tma", **options) -> Case:
    """A product through tensor maps; majors: the contiguous axis of A and of B."""
    (a, b, c), (m, n, k), (tile_m, tile_n, tile_k) = dtypes, sizes, tile
    constants = {"BM": tile_m, "BN": tile_n, "BK": tile_k}
    grid = (_up(m, tile_m), _up(n, tile_n), 1)
    if kernel == "gemm_tma":
        constants["ACC"] = "int32" if c == "i32" else "float32"
        constants |= {"A_MMAJOR": majors[0] == "M", "B_NMAJOR": majors[1] == "N"}
    if kernel == "gemm_persistent":
        constants["PROGRAMS"] = 3
        grid = (3, 1, 1)
    args = (
        Array("a", a, (k, m) if majors[0] == "M" else (m, k)),
        Array("b", b, (k, n) if majors[1] == "N" else (n, k)),
        Array("c", c, (m, n), "out"),
        Scalar("M", m), Scalar("N", n), Scalar("K", k),
    )
    return Case(name, kernel, constants, args, grid, "gemm_" + "".join(majors).lower(), **options)


def pointer(name, dtypes, sizes, tile, **options) -> Case:
    """A product through masked pointers, A [M, K] and B [K, N]."""
    (a, c), (m, n, k), (tile_m, tile_n, tile_k) = dtypes, sizes, tile
    accumulator = {"i32": "int32", "fp64": "float64"}.get(c, "float32")
    constants = {"BM": tile_m, "BN": tile_n, "BK": tile_k, "ACC": accumulator}
    args = (
        Array("a", a, (m, k)), Array("b", a, (k, n)), Array("c", c, (m, n), "out"),
        Scalar("M", m), Scalar("N", n), Scalar("K", k),
    )
    grid = (_up(m, tile_m), _up(n, tile_n), 1)
    return Case(name, "gemm_pointer", constants, args, grid, "gemm_kn", **options)


def attention(name, dtype, sizes, tile, *, causal, kernel="attention", **options) -> Case:
    (heads, n, d), (tile_m, tile_n) = sizes, tile
    shape = (heads, n, d)
    args = (
        Array("q", dtype, shape), Array("k", dtype, shape), Array("v", dtype, shape),
        Array("o", dtype, shape, "out"), Scalar("N", n),
        Scalar("scale", d ** -0.5 * 1.4426950408889634, "fp32"),
    )
    constants = {"D": d, "BM": tile_m, "BN": tile_n}
    if kernel == "attention":
        constants["CAUSAL"] = causal
    reference = "attention_causal" if causal else "attention"
    grid = (_up(n, tile_m), heads, 1)
    return Case(name, kernel, constants, args, grid, reference, **options)


_BF16 = ("bf16", "bf16", "bf16")
_BF16_F32 = ("bf16", "bf16", "fp32")
_E4M3 = ("fp8e4nv", "fp8e4nv", "fp32")
_E5M2_E4M3 = ("fp8e5", "fp8e4nv", "fp32")
_TF32 = ("fp32", "fp32", "fp32")

TMA = (
    tma("gemm_bf16", _BF16, (128, 256, 320), (128, 128, 64)),
    tma("gemm_bf16_odd", _BF16, (200, 264, 72), (128, 128, 64), stages=2, aligned=False,
         heavy=True),
    tma("gemm_f16_64x128", ("fp16", "fp16", "fp32"), (128, 256, 192), (64, 128, 64), stages=4,
         heavy=True),
    tma("gemm_bf16_128x256", _BF16, (128, 512, 192), (128, 256, 64), warps=8, slow=True),
    tma("gemm_bf16_k32", _BF16, (128, 128, 96), (128, 128, 32)),
    tma("gemm_bf16_k16", _BF16, (128, 128, 80), (128, 128, 16)),
    tma("gemm_bf16_ta", _BF16_F32, (192, 128, 128), (128, 128, 64), majors=("M", "K"), heavy=True),
    tma("gemm_bf16_tb", _BF16_F32, (128, 192, 320), (128, 128, 64), majors=("K", "N"), heavy=True),
    tma("gemm_f16_tab", ("fp16", "fp16", "fp16"), (128, 128, 128), (128, 128, 64),
         majors=("M", "N")),
    tma("gemm_bf16_tb_n32", _BF16_F32, (128, 64, 128), (128, 32, 64), majors=("K", "N")),
    tma("gemm_e4m3", _E4M3, (128, 128, 640), (128, 128, 128), heavy=True),
    tma("gemm_e5m2_e4m3", _E5M2_E4M3, (128, 128, 256), (128, 128, 64), heavy=True),
    tma("gemm_e4m3_tb", _E4M3, (128, 128, 256), (128, 128, 128), majors=("K", "N"), heavy=True),
    tma("gemm_tf32", _TF32, (128, 128, 96), (128, 128, 32)),
    tma("gemm_tf32_tb", _TF32, (128, 128, 128), (128, 128, 32), majors=("K", "N"), heavy=True),
    tma("gemm_s8", ("i8", "i8", "i32"), (128, 128, 640), (128, 128, 128)),
    tma("gemm_specialized", _BF16, (256, 128, 256), (128, 128, 64), kernel="gemm_specialized",
         heavy=True),
    tma("gemm_persistent", _BF16, (256, 384, 128), (128, 128, 64), kernel="gemm_persistent",
         slow=True),
    tma("gemm_cluster", _BF16, (256, 256, 192), (128, 128, 64), ctas=2, slow=True),
    Case(
        "gemm_host", "gemm_host", {"BM": 128, "BN": 128, "BK": 64},
        (
            Array("a", "bf16", (200, 136), block=(128, 64)),
            Array("b", "bf16", (152, 136), block=(128, 64)),
            Array("c", "bf16", (200, 152), "out", block=(128, 128)), Scalar("K", 136),
        ),
        (2, 2, 1), "gemm_kk", heavy=True,
    ),
    Case(
        "batched_tma", "batched_tma", {"BM": 64, "BN": 64, "BK": 32},
        (
            Array("a", "bf16", (2, 100, 96)), Array("b", "bf16", (2, 96, 72)),
            Array("c", "fp32", (2, 100, 72), "sum"),
            Scalar("M", 100), Scalar("N", 72), Scalar("K", 96),
        ),
        (2, 2, 2), "gemm_batched", aligned=False,
    ),
)

POINTER = (
    pointer("pointer_f16", ("fp16", "fp32"), (128, 128, 128), (64, 128, 32)),
    pointer("pointer_bf16_masked", ("bf16", "fp32"), (100, 136, 72), (64, 64, 32), aligned=False,
             heavy=True),
    pointer("mma_f16", ("fp16", "fp16"), (32, 32, 64), (32, 32, 32), warps=2),
    pointer("mma_tf32", ("fp32", "fp32"), (32, 64, 64), (32, 32, 32), warps=2),
    pointer("mma_s8", ("i8", "i32"), (32, 64, 128), (32, 32, 64), warps=2),
    pointer("mma_e4m3", ("fp8e4nv", "fp32"), (32, 64, 128), (32, 32, 64), warps=2),
    pointer("mma_f64", ("fp64", "fp64"), (32, 32, 32), (32, 32, 16), warps=2),
    Case(
        "gemm_split", "gemm_split", {"BM": 64, "BN": 64, "BK": 64},
        (
            Array("a", "bf16", (64, 256)), Array("b", "bf16", (64, 256)),
            Array("c", "fp32", (64, 64), "sum"),
            Scalar("M", 64), Scalar("N", 64), Scalar("K", 256),
        ),
        (1, 1, 2), "gemm_kk_sum",
    ),
    Case(
        "gemm_int4", "gemm_int4", {"BM": 64, "BN": 64, "BK": 64},
        (
            Array("a", "u8", (64, 64)), Array("b", "bf16", (64, 128)),
            Array("scale", "fp32", (64,)), Array("c", "fp32", (64, 64), "out"),
            Scalar("M", 64), Scalar("N", 64), Scalar("K", 128),
        ),
        (1, 1, 1), "gemm_int4", heavy=True,
    ),
)

ATTENTION = (
    attention("attention", "bf16", (2, 256, 64), (128, 64), causal=False, stages=2, heavy=True),
    attention("attention_causal", "fp16", (1, 200, 128), (64, 64), causal=True, stages=2,
               slow=True),
    attention("attention_specialized", "bf16", (1, 256, 64), (128, 64), causal=False,
               kernel="attention_specialized", slow=True),
)
_N = 1000

PLAIN = (
    Case(
        "vector_add", "vector_add", {"B": 512},
        (Array("x", "fp32", (_N,)), Array("y", "fp32", (_N,)), Array("z", "fp32", (_N,), "out"),
         Scalar("n", _N)),
        (2, 1, 1), "vector_add", debug=True,
    ),
    Case(
        "activations", "activations", {"B": 256},
        (Array("x", "bf16", (_N,)), Array("y", "fp32", (8, _N), "out"), Scalar("n", _N)),
        (4, 1, 1), "activations", aligned=False,
    ),
    Case(
        "softmax", "softmax", {"B": 1024},
        (Array("x", "fp32", (5, 777)), Array("y", "fp32", (5, 777), "out"), Scalar("cols", 777)),
        (5, 1, 1), "softmax", aligned=False, debug=True,
    ),
    Case(
        "layernorm", "layernorm", {"B": 256},
        (
            Array("x", "fp16", (6, 640)), Array("weight", "fp16", (640,)),
            Array("bias", "fp16", (640,)), Array("y", "fp16", (6, 640), "out"),
            Array("mean", "fp32", (6,), "out"), Array("scale", "fp32", (6,), "out"),
            Scalar("cols", 640), Scalar("eps", 1e-5, "fp32"),
        ),
        (6, 1, 1), "layernorm",
    ),
    Case(
        "reductions", "reductions", {"R": 32, "C": 64},
        (
            Array("x", "fp32", (32, 64)), Array("i", "i32", (32, 64)),
            Array("row_sum", "fp32", (32,), "out"), Array("col_max", "fp32", (64,), "out"),
            Array("where", "i32", (32,), "out"), Array("parity", "i32", (64,), "out"),
            Array("low", "i32", (32,), "out"),
        ),
        (1, 1, 1), "reductions",
    ),
    Case(
        "histogram", "histogram", {"BINS": 64, "B": 512},
        (Array("x", "i32", (_N,)), Array("bins", "i32", (64,), "sum"),
         Array("total", "fp32", (1,), "sum"), Array("top", "i32", (1,), "sum"), Scalar("n", _N)),
        (2, 1, 1), "histogram",
    ),
    Case(
        "scatter_add", "scatter_add", {"B": 256},
        (Array("x", "fp16", (_N,)), Array("index", "i32", (_N,)), Array("y", "fp16", (64,), "sum"),
         Array("count", "fp32", (64,), "sum"), Scalar("n", _N)),
        (4, 1, 1), "scatter_add",
    ),
    Case(
        "scans", "scans", {"R": 16, "C": 128},
        (
            Array("x", "fp32", (16, 128)), Array("decay", "fp32", (16, 128)),
            Array("i", "i32", (16, 128)), Array("state", "fp32", (16, 128), "out"),
            Array("sums", "i32", (2, 16, 128), "out"),
        ),
        (1, 1, 1), "scans",
    ),
    Case(
        "transpose_sort", "transpose_sort", {"R": 64, "C": 32},
        (Array("x", "fp16", (64, 32)), Array("y", "fp16", (32, 64), "out"),
         Array("z", "fp16", (64, 32), "out")),
        (1, 1, 1), "transpose_sort",
    ),
    Case(
        "random_bits", "random_bits", {"B": 256},
        (Array("y", "i32", (2, 300), "out"), Array("u", "fp32", (300,), "out"),
         Scalar("seed", 123456789), Scalar("n", 300)),
        (2, 1, 1), "random_bits", aligned=False,
    ),
    Case(
        "last_program", "last_program", {"PROGRAMS": 8, "B": 128},
        (
            Array("x", "fp32", (_N,)), Array("partial", "fp32", (8,), "out"),
            Array("ticket", "i32", (1,), "sum"), Array("y", "fp32", (1,), "out"), Scalar("n", _N),
        ),
        (8, 1, 1), "last_program",
    ),
    Case(
        "convert", "convert", {"B": 512},
        (
            Array("x", "fp32", (_N,)), Array("h", "fp16", (_N,), "out"),
            Array("b", "bf16", (_N,), "out"), Array("e", "fp8e4nv", (_N,), "out"),
            Array("f", "fp8e5", (_N,), "out"), Scalar("n", _N),
        ),
        (2, 1, 1), "convert",
    ),
    Case(
        "widen", "widen", {"B": 512},
        (
            Array("h", "fp16", (_N,)), Array("b", "bf16", (_N,)), Array("e", "fp8e4nv", (_N,)),
            Array("f", "fp8e5", (_N,)), Array("i", "i8", (_N,)),
            Array("y", "fp32", (5, _N), "out"), Scalar("n", _N),
        ),
        (2, 1, 1), "widen",
    ),
    Case(
        "integers", "integers", {"B": 256},
        (Array("x", "i32", (300,)), Array("y", "i32", (300,)), Array("z", "i64", (7, 300), "out"),
         Scalar("n", 300)),
        (2, 1, 1), "integers", aligned=False,
    ),
    Case(
        "trigonometry", "trigonometry", {"B": 256},
        (Array("x", "fp32", (500,)), Array("y", "fp32", (2, 500), "out"), Scalar("n", 500)),
        (2, 1, 1), "trigonometry", aligned=False, heavy=True,
    ),
    Case(
        "doubles", "doubles", {"B": 256},
        (Array("x", "fp64", (200,)), Array("y", "fp64", (200,), "out"), Scalar("n", 200)),
        (1, 1, 1), "doubles", aligned=False,
    ),
    Case(
        "pick", "pick", {"R": 16, "C": 64, "K": 8},
        (Array("x", "fp32", (16, 64)), Array("i", "i32", (16, 64)),
         Array("y", "fp32", (16, 64), "out"), Array("z", "fp32", (16, 8), "out")),
        (1, 1, 1), "pick",
    ),
    Case(
        "spin_lock", "spin_lock", {"B": 128},
        (Array("x", "fp32", (_N,)), Array("y", "fp32", (128,), "sum"),
         Array("flag", "i32", (1,), "sum"), Scalar("n", _N)),
        (8, 1, 1), "spin_lock", aligned=False,
    ),
    Case(
        "atomics", "atomics", {"B": 256},
        (Array("x", "fp32", (500,)), Array("y", "fp32", (4, 500), "sum"),
         Array("old", "fp32", (500,), "out"), Scalar("n", 500)),
        (2, 1, 1), "atomics", aligned=False,
    ),
)

CASES = TMA + POINTER + ATTENTION + PLAIN
