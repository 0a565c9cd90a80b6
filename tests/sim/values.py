"""Operands of products by type, and what a tensor core sees of them."""

import ml_dtypes
import numpy as np

DTYPES = {
    "bf16": ml_dtypes.bfloat16, "f16": np.float16, "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8,
    "e2m1": ml_dtypes.float4_e2m1fn, "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
}  # fmt: skip


def random(rng, shape, kind: str) -> np.ndarray:
    """Values that every type holds well."""
    if kind in ("s8", "u8"):
        low = 0 if kind == "u8" else -128
        return rng.integers(low, low + 256, shape).astype(DTYPES[kind])
    return (rng.standard_normal(shape) * 2).astype(DTYPES[kind])


def seen(values: np.ndarray, kind: str) -> np.ndarray:
    """What the tensor core sees: of tf32 only 10 mantissa bits."""
    if kind == "tf32":
        values = (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return values.astype(np.float64)
