"""tcgen05.mma: its forms on Blackwell and Rubin, and limits of tensor memory that they share.

PTX ISA 9.7.16.2.1, table "Various combinations of .kind and shapes". N of M = 128 in one CTA goes
by 8 there; CUTLASS asserts steps of 16, and Triton uses no others: so do the rows. Forms that read
sparse matrices, and `.ws`, are not listed: nothing here emits them.
"""

from __future__ import annotations

from itertools import product

from .spec import Limit, TensorForm, TensorShape
from .warp import INT8

_TABLE = "PTX ISA 9.7.16.2.1, tcgen05.mma: table of kinds and shapes"
_BY_8, _BY_16, _BY_32 = (tuple(range(step, 257, step)) for step in (8, 16, 32))
_INTEGER_N = (8, 16, 24, *range(32, 257, 16))

_ONE = (TensorShape(1, 64, _BY_8), TensorShape(1, 128, _BY_16))
_PAIR = (TensorShape(2, 128, _BY_16), TensorShape(2, 256, _BY_16))
_DENSE = (*_ONE, *_PAIR)
_SCALED = (TensorShape(1, 128, _BY_16), *_PAIR)
_INTEGER = (
    TensorShape(1, 64, _INTEGER_N), TensorShape(1, 128, _BY_16),
    TensorShape(2, 128, _BY_32), TensorShape(2, 256, _BY_32),
)  # fmt: skip
# Rubin's wide step: M of all rows alone. The manual lists M = 256 alone for 4-bit types; CuTe and
# Triton take one CTA with M = 128 too.
_WIDE = (TensorShape(1, 128, _BY_16), TensorShape(2, 256, _BY_16))

NARROW = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
_FP8 = ("e4m3", "e5m2")


def _wide_bytes(wide: bool, *types: str) -> bool:
    return wide and all(t in _FP8 for t in types)


def _plain(wide: bool) -> tuple[TensorForm, ...]:
    half = [("bf16", "bf16", "f32"), ("f16", "f16", "f32"), ("f16", "f16", "f16")]
    found = [TensorForm("f16", *types, 16, _DENSE, _TABLE, mn_major=True) for types in half]
    found.append(TensorForm("tf32", "tf32", "tf32", "f32", 8, _DENSE, _TABLE))
    for a, b, sums in product(NARROW, NARROW, ("f32", "f16")):
        deep = _wide_bytes(wide, a, b)
        found.append(
            TensorForm(
                "f8f6f4", a, b, sums, 32, _DENSE, _TABLE, 64 * deep, _WIDE * deep,
                mn_major=a in _FP8 and b in _FP8,
            )
        )  # fmt: skip
    return tuple(found)


def _block_scaled(wide: bool) -> tuple[TensorForm, ...]:
    found = [
        TensorForm("mxf8f6f4", a, b, "f32", 32, _SCALED, _TABLE, 64 * wide, _WIDE * wide,
                   block=32, scale="ue8m0", mn_major=a in _FP8 and b in _FP8)
        for a, b in product(NARROW, NARROW)
    ]  # fmt: skip
    scales = [("mxf4", 32, "ue8m0"), ("mxf4nvf4", 16, "ue4m3"), ("mxf4nvf4", 16, "ue8m0"),
              ("mxf4nvf4", 32, "ue8m0")]  # fmt: skip
    found += [
        TensorForm(kind, "e2m1", "e2m1", "f32", 64, _SCALED, _TABLE, 128 * wide, _WIDE * wide,
                   block=block, scale=scale)
        for kind, block, scale in scales
    ]  # fmt: skip
    return tuple(found)


FORMS = (*_plain(False), *_block_scaled(False))
WIDE_FORMS = (*_plain(True), *_block_scaled(True))
INTEGER_FORMS = tuple(
    TensorForm("i8", a, b, "s32", 32, _INTEGER, _TABLE, mn_major=True, signs=False)
    for a, b in INT8
)  # fmt: skip

_MEMORY = "PTX ISA 9.7.16.1, tensor memory"
_ALLOC = "PTX ISA 9.7.16.7.1, tcgen05.alloc"
MEMORY_LIMITS = (
    ("tensor_lanes", Limit(128, "lanes a CTA", _MEMORY)),
    ("tensor_columns", Limit(512, "columns of 32 bits a CTA", _MEMORY)),
    ("tensor_columns_step", Limit(32, "columns, the least that is allocated", _ALLOC)),
)
