"""Matrix instructions of a warp, the same on all architectures."""

from __future__ import annotations

from itertools import product

from .spec import MMA_SYNC, MmaForm

FP8 = tuple(product(("e4m3", "e5m2"), repeat=2))
INT8 = tuple(product(("s8", "u8"), repeat=2))


def _mma(a: str, b: str, accumulator: str, k: int, version: str = "8.0") -> MmaForm:
    source = f"PTX ISA 9.7.14.5.14, mma: .m16n8k{k}"
    return MmaForm(MMA_SYNC, a, b, accumulator, 16, (8,), k, source, version=version)


# mma.sync has smaller K too (m16n8k8 of 16 bits, m16n8k4 of tf32, m16n8k16 of bytes): register
# tiles are never narrower than the deepest form, and it takes half the instructions. What it
# multiplies besides (f64, s4, u4, b1) has no tiles. FP8 of mma.sync: two of f16 in SASS.
WARP_FORMS = (
    _mma("bf16", "bf16", "f32", 16),
    _mma("f16", "f16", "f32", 16),
    _mma("f16", "f16", "f16", 16),
    _mma("tf32", "tf32", "f32", 8),
    *(_mma(a, b, "f32", 32, "8.4") for a, b in FP8),
    *(_mma(a, b, "f16", 32, "8.7") for a, b in FP8),
    *(_mma(a, b, "s32", 32) for a, b in INT8),
)
