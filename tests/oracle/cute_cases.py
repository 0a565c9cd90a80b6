"""Cases whose kernels are written in CuTe DSL: `kernels_cute`."""

from __future__ import annotations

from .cases import Array, Case

# Instructions by name; the module is given as CuTe is not at hand where the tests run.
OPS = {
    "bf16": lambda k: k.tcgen05.MmaF16BF16Op(
        k.cutlass.BFloat16, k.cutlass.Float32, (128, 128, 16), k.ONE, k.SHARED, k.K_MAJOR,
        k.K_MAJOR),
    "tf32_mn": lambda k: k.tcgen05.MmaTF32Op(
        (128, 128, 8), k.ONE, k.SHARED, k.OperandMajorMode.MN,
        k.OperandMajorMode.MN),
    "bf16_n24": lambda k: k.tcgen05.MmaF16BF16Op(
        k.cutlass.BFloat16, k.cutlass.Float32, (128, 24, 16), k.ONE, k.SHARED, k.K_MAJOR,
        k.K_MAJOR),
    "u8": lambda k: k.tcgen05.MmaI8Op(
        k.cutlass.Uint8, (128, 128, 32), k.ONE, k.SHARED, k.K_MAJOR, k.K_MAJOR),
    "no_swizzle": lambda k: k.tcgen05.SmemLayoutAtomKind.K_INTER,
    "e4m3_fill": lambda k: _rubin(k, "FILL"),
    "e4m3_last": lambda k: _rubin(k, "LASTUSE"),
    "mxfp8": lambda k: k.tcgen05.MmaMXF8Op(
        k.cutlass.Float8E4M3FN, (128, 128, 32), k.ONE, k.SHARED, k.K_MAJOR, k.K_MAJOR),
}  # fmt: skip


def _rubin(k, use: str):
    e4m3, e5m2 = k.cutlass.Float8E4M3FN, k.cutlass.Float8E5M2
    return k.tcgen05.SM107MmaFP8Op(
        e4m3, e5m2, k.cutlass.Float32, (128, 64, 64), k.ONE, k.SHARED, k.K_MAJOR, k.K_MAJOR,
        a_collector_op=use,
    )  # fmt: skip


def _product(name, op, dtypes, sizes, tiler, *, negate=None, lanes=None, atom=None, **options):
    (a, b, c), (m, n, k) = dtypes, sizes
    args = (Array("a", a, (m, k)), Array("b", b, (n, k)), Array("c", c, (m, n), "out"))
    constants = {"op": op, "tiler": tiler, "negate": negate, "lanes": lanes, "atom": atom}
    return Case(name, "product", constants, args, (1, 1, 1), "gemm_signed", language="cute",
                **options)  # fmt: skip


def _collected(name, dtypes, sizes, tiler, **options):
    (a, b, c), (m, n, k) = dtypes, sizes
    args = (Array("a", a, (m, k)), Array("b", b, (n, k)), Array("c", c, (m, n), "out"))
    constants = {"fill": "e4m3_fill", "last": "e4m3_last", "tiler": tiler}
    return Case(name, "collected", constants, args, (1, 1, 1), "gemm_kk", language="cute",
                **options)  # fmt: skip


def _released(name, op, dtypes, sizes, tiler, **options):
    (a, b, c), (m, n, k) = dtypes, sizes
    args = (Array("a", a, (m, k)), Array("b", b, (n, k)), Array("c", c, (m, n), "out"))
    return Case(name, "released", {"op": op, "tiler": tiler}, args, (1, 1, 1), "gemm_kk",
                language="cute", **options)  # fmt: skip


def _scaled(name, op, types, turn, **options):
    """128 x 128 x 128; one chunk of scales of each operand."""
    args = (
        Array("a", types[0], (128, 128)), Array("b", types[1], (128, 128)),
        Array("scale_a", "ue8m0", (512,)), Array("scale_b", "ue8m0", (512,)),
        Array("c", "fp32", (128, 128), "out"),
    )
    constants = {"op": op, "tiler": (128, 128, 128), "turn": turn}
    return Case(name, "scaled", constants, args, (1, 1, 1), "gemm_turned", language="cute",
                **options)  # fmt: skip


_BF16 = ("bf16", "bf16", "fp32")
_TF32 = ("fp32", "fp32", "fp32")

CUTE_CASES = (
    _product("negate_a", "bf16", _BF16, (128, 128, 128), (128, 128, 64), negate=(True, False),
             target=100),
    _product("negate_b", "bf16", _BF16, (128, 128, 64), (128, 128, 64), negate=(False, True),
             target=107),
    _product("lanes_off", "bf16", _BF16, (128, 128, 128), (128, 128, 64), target=103,
             lanes=(0x00FF00FF, 1, 0, 0x80000000)),
    _product("tf32_mn", "tf32_mn", _TF32, (128, 128, 64), (128, 128, 32), target=100),
    _product("gemm_u8", "u8", ("u8", "u8", "i32"), (128, 128, 256), (128, 128, 128), target=100),
    _product("no_swizzle", "bf16", _BF16, (128, 128, 64), (128, 128, 64), atom="no_swizzle",
             target=103),
    _product("bf16_n24", "bf16_n24", _BF16, (128, 24, 64), (128, 24, 64), target=100),
    _collected("collector_a", ("fp8e4nv", "fp8e5", "fp32"), (128, 128, 128), (128, 64, 128),
               target=107),
    _released("released_a", "bf16", _BF16, (128, 128, 192), (128, 128, 64), target=107),
    _scaled("unequal_scale_ids", "mxfp8", ("fp8e4nv", "fp8e4nv"), 1, target=100),
    Case(
        # CuTe's clc_response asks for the first CTA after a refusal too, and drops the answer.
        "taken_over", "taken_over", {},
        (Array("x", "fp32", (24, 128)), Array("y", "fp32", (24, 128), "out")), (24, 1, 1),
        "rows_by_number", language="cute", target=100, reports=("launch-control",),
    ),
)
