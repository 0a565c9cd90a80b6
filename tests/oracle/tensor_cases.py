"""Cases of Blackwell and Rubin."""

from __future__ import annotations

from dataclasses import replace

from .cases import PLAIN, Array, Case, Scalar, attention, pointer, tma

_BF16 = ("bf16", "bf16", "bf16")
_BF16_F32 = ("bf16", "bf16", "fp32")
_E4M3 = ("fp8e4nv", "fp8e4nv", "fp32")

_F16_F32 = ("fp16", "fp16", "fp32")
_TF32 = ("fp32", "fp32", "fp32")
_TILE, _SQUARE = (128, 128, 64), (128, 128, 128)

DENSE = (
    tma("gemm_bf16", _BF16, (128, 256, 320), _TILE, target=100),
    tma("gemm_bf16_odd", _BF16, (200, 264, 72), _TILE, stages=2, aligned=False, target=107),
    tma("gemm_f16_64x128", _F16_F32, (128, 256, 192), (64, 128, 64), stages=4, target=100),
    tma("gemm_bf16_256x128", _BF16, (256, 128, 192), (256, 128, 64), warps=8, target=107),
    tma("gemm_bf16_128x256", _BF16, (128, 512, 128), (128, 256, 64), warps=8, target=103),
    tma("gemm_bf16_n16", _BF16_F32, (128, 32, 128), (128, 16, 64), target=107),
    tma("gemm_bf16_k32", _BF16, (128, 128, 96), (128, 128, 32), target=100),
    tma("gemm_bf16_k16", _BF16, (128, 128, 80), (128, 128, 16), target=107),
    tma("gemm_bf16_ta", _BF16_F32, (192, 128, 128), _TILE, majors=("M", "K"), target=107),
    tma("gemm_bf16_tb", _BF16_F32, (128, 192, 320), _TILE, majors=("K", "N"), target=100),
    tma("gemm_f16_tab", ("fp16", "fp16", "fp16"), (128, 128, 128), _TILE, majors=("M", "N"),
        target=103),
    tma("gemm_bf16_tb_n32", _BF16_F32, (128, 64, 128), (128, 32, 64), majors=("K", "N"),
        target=100),
    tma("gemm_e4m3", _E4M3, (128, 128, 640), _SQUARE, target=100),
    tma("gemm_e4m3_wide", _E4M3, (128, 128, 640), _SQUARE, target=107),
    tma("gemm_e4m3_64x128", _E4M3, (64, 128, 256), (64, 128, 128), target=107),
    tma("gemm_e5m2_e4m3", ("fp8e5", "fp8e4nv", "fp32"), (128, 128, 256), _TILE, target=103),
    tma("gemm_e4m3_ta", _E4M3, (128, 128, 256), _SQUARE, majors=("M", "K"), target=107),
    tma("gemm_e4m3_tb", _E4M3, (128, 128, 256), _SQUARE, majors=("K", "N"), target=100),
    tma("gemm_tf32", _TF32, (128, 128, 96), (128, 128, 32), target=103),
    # Triton 3.9 transposes B through registers into one buffer, whatever the number of stages, and
    # step k + 1 writes it when the product of step k - 1 is done: that of step k may still read.
    tma("gemm_tf32_tb", _TF32, (128, 128, 128), (128, 128, 32), majors=("K", "N"), target=100,
        reports=("race",)),
    tma("gemm_tf32_tb_1", _TF32, (128, 128, 96), (128, 128, 32), majors=("K", "N"), stages=1,
        target=107),
    tma("gemm_s8", ("i8", "i8", "i32"), (128, 128, 640), _SQUARE, target=100),
    tma("gemm_specialized", _BF16, (128, 128, 256), _TILE, kernel="gemm_specialized", target=107),
    tma("gemm_persistent", _BF16, (256, 256, 128), _TILE, kernel="gemm_persistent", target=103),
    tma("gemm_cluster", _BF16, (256, 128, 128), _TILE, ctas=2, target=100),
    Case(
        # tcgen05.alloc leaves its address where TMA then writes a tile. That store is a weak one
        # of the generic proxy (9.7.17.7.1), and no fence.proxy.async comes between.
        "gemm_host", "gemm_host", {"BM": 128, "BN": 128, "BK": 64},
        (
            Array("a", "bf16", (128, 136), block=(128, 64)),
            Array("b", "bf16", (152, 136), block=(128, 64)),
            Array("c", "bf16", (128, 152), "out", block=(128, 128)), Scalar("K", 136),
        ),
        (1, 2, 1), "gemm_kk", target=107, reports=("fence",),
    ),
    Case(
        "batched_tma", "batched_tma", {"BM": 128, "BN": 64, "BK": 32},
        (
            Array("a", "bf16", (2, 100, 64)), Array("b", "bf16", (2, 64, 72)),
            Array("c", "fp32", (2, 100, 72), "sum"),
            Scalar("M", 100), Scalar("N", 72), Scalar("K", 64),
        ),
        (1, 2, 2), "gemm_batched", aligned=False, target=103,
    ),
    pointer("pointer_bf16_masked", ("bf16", "fp32"), (72, 136, 72), (64, 64, 32), aligned=False,
            target=107),
    Case(
        "gemm_int4", "gemm_int4", {"BM": 64, "BN": 64, "BK": 64},
        (
            Array("a", "u8", (64, 64)), Array("b", "bf16", (64, 128)),
            Array("scale", "fp32", (64,)), Array("c", "fp32", (64, 64), "out"),
            Scalar("M", 64), Scalar("N", 64), Scalar("K", 128),
        ),
        (1, 1, 1), "gemm_int4", target=100,
    ),
    attention("attention", "bf16", (1, 256, 64), (128, 64), causal=False, stages=2, target=100),
    attention("attention_causal", "fp16", (1, 200, 64), (64, 64), causal=True, stages=2,
              target=103),
    attention("attention_specialized", "bf16", (1, 256, 64), (128, 64), causal=False,
              kernel="attention_specialized", target=107),
)
_TYPES = {"e2m1": "e2m1x2", "e4m3": "fp8e4nv", "e5m2": "fp8e5"}


def _scaled(name, formats, scale, sizes, tile, *, packed=False, kernel=None, more=None,
            **options) -> Case:  # fmt: skip
    """A product with scales; formats of A and B, block and type of the scales."""
    (m, n, k), (tile_m, tile_n, tile_k), (block, scale_type) = sizes, tile, scale

    def scales(arg: str, rows: int) -> Array:
        shape = (rows // 128, k // block // 4, 512) if packed else (rows, k // block)
        return Array(arg, scale_type, shape)

    def operand(arg: str, rows: int, fmt: str) -> Array:
        return Array(arg, _TYPES[fmt], (rows, k // 2 if fmt == "e2m1" else k))

    constants = {"BM": tile_m, "BN": tile_n, "BK": tile_k, "VEC": block}
    constants |= {"FA": formats[0], "FB": formats[1]}
    args = (
        operand("a", m, formats[0]), scales("scale_a", m), operand("b", n, formats[1]),
        scales("scale_b", n), Array("c", "fp32", (m, n), "out"),
        Scalar("M", m), Scalar("N", n), Scalar("K", k),
    )
    constants |= more or {}
    kernel = kernel or ("gemm_packed" if packed else "gemm_scaled")
    grid = (m // tile_m, n // tile_n, 1)
    return Case(name, kernel, constants, args, grid, "gemm_scaled", **options)


_MX, _NV = (32, "ue8m0"), (16, "ue4m3")
_FP8, _E5M2_E4M3, _FP4 = ("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e2m1", "e2m1")

SCALED = (
    _scaled("mxfp8", _FP8, _MX, (128, 256, 512), _SQUARE, target=100),
    _scaled("mxfp8_packed", _FP8, _MX, (256, 128, 512), _SQUARE, packed=True, target=103),
    _scaled("mxfp8_wide", _FP8, _MX, (128, 128, 512), _SQUARE, packed=True, target=107),
    _scaled("mxfp8_e5m2", _E5M2_E4M3, _MX, (128, 128, 256), _SQUARE, target=107),
    _scaled("mxfp4", _FP4, _MX, (128, 128, 512), (128, 128, 256), target=100),
    _scaled("mxfp4_wide", _FP4, _MX, (128, 128, 512), (128, 128, 256), packed=True, target=107),
    _scaled("nvfp4", _FP4, _NV, (128, 128, 512), (128, 128, 256), packed=True, target=103),
    _scaled("nvfp4_wide", _FP4, _NV, (128, 128, 512), (128, 128, 256), target=107),
    _scaled("nvfp4_256x256", _FP4, _NV, (256, 256, 256), (256, 256, 256), packed=True, target=107),
    _scaled("fp8_fp4", ("e4m3", "e2m1"), _MX, (128, 128, 256), _SQUARE, target=100),
    _scaled("fp8_fp4_wide", ("e4m3", "e2m1"), _MX, (128, 128, 256), _SQUARE, target=107),
    _scaled("fp4_fp8_n64", ("e2m1", "e5m2"), _MX, (128, 64, 256), (128, 64, 128), target=103),
)



def _pair(name, dtypes, sizes, tile, *, n_major=False, **options) -> Case:
    """A product by pairs of CTAs, A [M, K], B [N, K] or [K, N]."""
    (a, b, c), (m, n, k), (tile_m, tile_n, tile_k) = dtypes, sizes, tile
    constants = {"BM": tile_m, "BN": tile_n, "BK": tile_k, "NMAJOR": n_major}
    args = (
        Array("a", a, (m, k)), Array("b", b, (k, n) if n_major else (n, k)),
        Array("c", c, (m, n), "out"), Scalar("M", m), Scalar("N", n), Scalar("K", k),
    )
    grid = (m // tile_m, n // tile_n, 1)
    reference = "gemm_kn" if n_major else "gemm_kk"
    return Case(name, "pair", constants, args, grid, reference, ctas=2, **options)


def _single(name, kernel, dtypes, sizes, tile, *, extra=(), more=(), reference="gemm_kk",
            constants=None, **options) -> Case:  # fmt: skip
    """A product of single CTAs in Gluon, B stored [N, K]; extra and more: arrays after C."""
    (a, b, c), (m, n, k), (tile_m, tile_n, tile_k) = dtypes, sizes, tile
    constants = {"BM": tile_m, "BN": tile_n, "BK": tile_k} | (constants or {})
    args = (
        Array("a", a, (m, k)), Array("b", b, (n, k)), Array("c", c, (m, n), "out"), *extra,
        Scalar("M", m), Scalar("N", n), Scalar("K", k),
    )
    grid = (m // tile_m, n // tile_n, 1)
    return Case(name, kernel, constants, args, grid, reference, **options)


def _loads(variant: str, target: int, *, half=False, tile=(128, 128, 64), **options) -> Case:
    shape = "16x32bx2" if tile[0] == 64 and variant == "32x32b" else variant
    name = f"loads_{shape}" + ("_f16" if half else "")
    dtypes = ("fp16", "fp16", "fp16" if half else "fp32")
    (m, n, k) = tile
    reference = "gemm_half" if half else "gemm_kk"
    constants = {"VARIANT": variant, "HALF": half}
    return _single(name, "loads", dtypes, (m, n, k * (1 if half else 2)), tile, target=target,
                   reference=reference, constants=constants, **options)  # fmt: skip


def _tensor_scales(name, formats, scale, sizes, tile, *, pair=False, k_first=False, **options):
    return _scaled(name, formats, scale, sizes, tile, packed=True, kernel="scaled",
                   more={"PAIR": pair, "K_FIRST": k_first}, ctas=2 if pair else 1,
                   **options)  # fmt: skip


def _started(variant: str, target: int, *, half=False) -> Case:
    dtypes = ("fp16", "fp16", "fp16" if half else "fp32")
    start = Array("start", dtypes[2], (128, 64))
    return _single(f"started_{variant}" + ("_f16" if half else ""), "started", dtypes,
                   (128, 64, 64), (128, 64, 64), extra=(start,), target=target,
                   reference="gemm_started_half" if half else "gemm_started",
                   constants={"VARIANT": variant, "HALF": half})  # fmt: skip


GLUON = (
    _started("16x64b", 107), _started("16x128b", 100), _started("16x256b", 103),
    _started("32x32b", 103, half=True), _started("16x128b", 107, half=True),
    _loads("32x32b", 107), _loads("16x64b", 100), _loads("16x128b", 103), _loads("16x256b", 100),
    _loads("32x32b", 107, tile=(64, 64, 64)), _loads("32x32b", 100, half=True),
    _loads("16x256b", 107, half=True),
    _single("reduced", "reduced", _BF16_F32, (128, 64, 64), (128, 64, 64), target=103,
            extra=(Array("high", "fp32", (128,), "out"), Array("low", "fp32", (128,), "out")),
            reference="gemm_reduced"),
    _single("a_in_tensor_memory", "left_in_tensor_memory", ("fp16", "fp16", "fp32"), _TILE, _TILE,
            target=103),
    _single("a_in_tensor_memory_e4m3", "left_in_tensor_memory", _E4M3, (128, 64, 256),
            (128, 64, 128), target=107),
    _single("copied", "copied", _BF16_F32, _TILE, _TILE, target=100,
            extra=(Array("start", "fp32", (128, 128)),), reference="gemm_started"),
    _pair("pair_bf16", _BF16_F32, (256, 128, 192), (256, 128, 64), target=100),
    _pair("pair_bf16_n256", _BF16_F32, (256, 256, 128), (256, 256, 64), target=107),
    _pair("pair_bf16_m128", _BF16_F32, (256, 128, 128), (128, 128, 64), target=100),
    _pair("pair_bf16_tb", _BF16_F32, (256, 128, 128), (256, 128, 64), n_major=True, target=103),
    _tensor_scales("pair_mxfp8", _FP8, _MX, (256, 128, 256), (256, 128, 128), pair=True,
                   target=100),
    _tensor_scales("pair_mxfp8_wide", _FP8, _MX, (256, 256, 256), (256, 256, 128), pair=True,
                   target=107),
    _tensor_scales("pair_mxfp4_k96", _FP4, _MX, (256, 256, 512), (256, 256, 256), pair=True,
                   target=103),
    _tensor_scales("pair_nvfp4_k96", _FP4, _NV, (256, 128, 512), (256, 128, 256), pair=True,
                   target=103),
    _tensor_scales("pair_mxfp4", _FP4, _MX, (256, 128, 512), (256, 128, 256), pair=True,
                   target=100),
    _tensor_scales("pair_nvfp4_wide", _FP4, _NV, (256, 128, 512), (256, 128, 256), pair=True,
                   target=107),
    _tensor_scales("exclusive_576", _FP8, _MX, (256, 256, 256), (256, 256, 128), target=107),
    _tensor_scales("exclusive_nvfp4", _FP4, _NV, (256, 256, 256), (256, 256, 256), k_first=True,
                   target=107),
    _pair("pair_e4m3_wide", _E4M3, (256, 128, 256), (256, 128, 128), target=107),
)

SCHEDULES = (
    Case(
        "gathered", "gathered", {"N": 32, "W": 64},
        (
            Array("x", "bf16", (96, 128)), Array("index", "i32", (32,)),
            Array("y", "bf16", (96, 128), "sum"), Scalar("rows", 96), Scalar("cols", 128),
        ),
        (2, 1, 1), "gathered", target=100,
    ),
    _single("multicast", "multicast", _BF16_F32, (256, 256, 128), (256, 256, 64), ctas=4,
            target=107),
    _single("launch_control", "launch_control", _BF16_F32, (384, 256, 64), _TILE, target=103),
    _single("roles", "roles", _BF16_F32, (128, 256, 320), (128, 128, 64),
            constants={"STAGES": 3}, target=100),
)

_AGAIN = {"softmax": 100, "reductions": 103, "layernorm": 107}
AGAIN = tuple(
    replace(case, target=_AGAIN[case.name], debug=False) for case in PLAIN if case.name in _AGAIN
)

TENSOR_CASES = DENSE + SCALED + GLUON + SCHEDULES + AGAIN
