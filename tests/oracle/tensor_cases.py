"""Cases whose products lie in tensor memory: Blackwell and Rubin."""

from __future__ import annotations

from .cases import tma

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

TENSOR_CASES = DENSE
