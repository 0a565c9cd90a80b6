"""Cases whose products lie in tensor memory: Blackwell and Rubin."""

from __future__ import annotations

from .cases import Array, Case, Scalar, tma

_BF16 = ("bf16", "bf16", "bf16")
_BF16_F32 = ("bf16", "bf16", "fp32")
_E4M3 = ("fp8e4nv", "fp8e4nv", "fp32")

DENSE = (
    tma("gemm_bf16", _BF16, (128, 256, 320), (128, 128, 64), target=100),
    tma("gemm_bf16_odd", _BF16, (200, 264, 72), (128, 128, 64), stages=2,
        aligned=False, target=107),
    tma("gemm_e4m3", _E4M3, (128, 128, 640), (128, 128, 128), target=100),
    tma("gemm_e4m3_wide", _E4M3, (128, 128, 640), (128, 128, 128), target=107),
    tma("gemm_tf32", ("fp32", "fp32", "fp32"), (128, 128, 96), (128, 128, 32), target=103),
    tma("gemm_s8", ("i8", "i8", "i32"), (128, 128, 640), (128, 128, 128), target=100),
)

_TYPES = {"e2m1": "e2m1x2", "e4m3": "fp8e4nv", "e5m2": "fp8e5"}


def _scaled(name, formats, scale, sizes, tile, *, packed=False, **options) -> Case:
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
    kernel = "gemm_packed" if packed else "gemm_scaled"
    grid = (m // tile_m, n // tile_n, 1)
    return Case(name, kernel, constants, args, grid, "gemm_scaled", **options)


_MX, _NV = (32, "ue8m0"), (16, "ue4m3")
_FP8, _E5M2_E4M3, _FP4 = ("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e2m1", "e2m1")
_SQUARE = (128, 128, 128)

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


GLUON = (
    _pair("pair_bf16", _BF16_F32, (256, 128, 192), (256, 128, 64), target=100),
    _pair("pair_bf16_n256", _BF16_F32, (256, 256, 128), (256, 256, 64), target=107),
    _pair("pair_bf16_m128", _BF16_F32, (256, 128, 128), (128, 128, 64), target=100),
    _pair("pair_bf16_tb", _BF16_F32, (256, 128, 128), (256, 128, 64), n_major=True, target=103),
    _pair("pair_e4m3_wide", _E4M3, (256, 128, 256), (256, 128, 128), target=107),
)

TENSOR_CASES = DENSE + SCALED + GLUON
