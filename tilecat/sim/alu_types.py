"""Rows of the ALU table, and the NumPy view of every PTX type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16
# Windows of the generic address space, PTX ISA 5.1: parameters, shared and local memory.
PARAM_WINDOW, SHARED_WINDOW, LOCAL_WINDOW = 1 << 45, 1 << 44, 1 << 43
NUMPY = {
    "pred": np.dtype(bool),
    **{f"u{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"b{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    "f16": np.dtype("f2"),
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
    "bf16": np.dtype(BF16),
    "f16x2": np.dtype("f2"),
    "bf16x2": np.dtype(BF16),
}
INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
HALVES = ("f16", "f16x2", "bf16", "bf16x2")


@dataclass(frozen=True)
class AluRow:
    """Meaning of one ALU opcode.

    Args:
        dst: type of the destination.
        srcs: types of the sources.
        apply: `apply(*sources)` gives the value, or `apply(*sources, out)` writes it if `into`.
        isa: section of the PTX ISA.
        into: whether `apply` takes the destination array.
        loose: registers may be wider than the types (cvt, PTX ISA 9.4.1).
        needs: feature of the target (`chips.CHIPS`) without which there is no such form.
        longer: the row of the same opcode with one more source.
    """

    dst: str
    srcs: tuple[str, ...]
    apply: Callable
    isa: str
    into: bool = False
    loose: bool = False
    needs: str = ""
    longer: AluRow | None = None

    def bind(self, dst: np.ndarray, srcs: list[np.ndarray]) -> Callable[[], object]:
        """A call without arguments that does the operation on these views."""
        if isinstance(self.apply, np.ufunc) and self.into:
            return partial(self.apply, *srcs, out=dst)
        if self.into:
            return partial(self.apply, *srcs, dst)
        return partial(_copy, dst, self.apply, srcs)


def _copy(dst: np.ndarray, apply: Callable, srcs: list[np.ndarray]) -> None:
    np.copyto(dst, apply(*srcs), casting="unsafe")


def choose(mods: list[str], *options: str) -> str | None:
    """Take the first modifier off the list if it is one of `options`."""
    if mods and mods[0] in options:
        return mods.pop(0)
    return None


def step(bits: np.ndarray, delta: int) -> np.ndarray:
    """Sign-magnitude bits moved by `delta` away from zero (or towards it)."""
    return (bits + np.array(delta).astype(bits.dtype)).astype(bits.dtype)


def round_to(value: np.ndarray, dtype: np.dtype, mode: str = "rn") -> np.ndarray:
    """Round wide floats once to `dtype`: rn (ties to even), rz, rm or rp. PTX ISA 9.4.2.

    From float64 to a 16-bit type NumPy rounds twice, so rounding goes through a float32
    rounded to odd, which keeps the sticky bit.
    """
    dtype = np.dtype(dtype)
    if mode == "rn":
        if value.dtype.itemsize == 8 and dtype.itemsize == 2:
            value = _round_odd(value)
        return value.astype(dtype)
    near = value.astype(dtype)
    bits = near.view(f"u{dtype.itemsize}")
    back = near.astype(np.float64)
    exact = value.astype(np.float64)
    if mode == "rz":
        over = np.abs(back) > np.abs(exact)
        return np.where(over, step(bits, -1), bits).view(dtype)
    wrong = back > exact if mode == "rm" else back < exact
    towards_zero = (exact > 0) if mode == "rm" else (exact < 0)
    moved = np.where(towards_zero, step(bits, -1), step(bits, 1))
    smallest = np.where(exact < 0, 1 << (8 * dtype.itemsize - 1) | 1, 1).astype(bits.dtype)
    moved = np.where((back == 0) & ~towards_zero, smallest, moved)
    return np.where(wrong, moved, bits).view(dtype)


def _round_odd(value: np.ndarray) -> np.ndarray:
    near = value.astype(np.float32)
    bits = near.view(np.uint32)
    over = np.abs(near.astype(np.float64)) > np.abs(value)
    odd = np.where(over, bits - np.uint32(1), bits) | np.uint32(1)
    inexact = (near.astype(np.float64) != value) & ~np.isnan(value) & ~np.isinf(value)
    return np.where(inexact, odd, bits).astype(np.uint32).view(np.float32)


def flush(value: np.ndarray) -> np.ndarray:
    """Subnormal float32 to zero of the same sign: `.ftz`, PTX ISA 9.7.3."""
    small = np.abs(value) < np.float32(2.0**-126)
    return np.where(small, np.copysign(np.float32(0), value), value)
