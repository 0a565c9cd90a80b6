"""ALU table, short and dot products and packed pairs of integers. PTX ISA 9.7.1."""

from __future__ import annotations

from functools import partial

import numpy as np

from tilecat.sim.alu_types import INTEGERS, AluRow, choose


def _difference(a, b, c):
    """The sum c + |a - b|, wrapped to the type."""
    larger, smaller = np.maximum(a, b), np.minimum(a, b)
    return c + (larger - smaller).astype(c.dtype)


def _sad(base: str, mods: list[str]) -> AluRow | None:
    """sad: 9.7.1.7."""
    if len(mods) != 1 or mods[0] not in INTEGERS:
        return None
    return AluRow(mods[0], (mods[0],) * 3, _difference, "9.7.1.7")


def _short(a: np.ndarray) -> np.ndarray:
    """The low 24 bits, sign-extended if the type is signed, as 64 bits."""
    wide = a.astype(np.int64) & 0xFFFFFF
    return np.where((a.dtype.kind == "i") & (wide >> 23 != 0), wide - (1 << 24), wide)


def _multiply24(high: bool, a, b, c=None):
    product = _short(a) * _short(b)
    product = (product >> 16 if high else product) & 0xFFFFFFFF
    return product.astype(np.uint32).view(a.dtype) + (0 if c is None else c)


def _mul24(base: str, mods: list[str]) -> AluRow | None:
    """mul24, mad24: 9.7.1.5, 9.7.1.6."""
    if len(mods) != 2 or mods[0] not in ("lo", "hi") or mods[1] not in ("u32", "s32"):
        return None
    function = partial(_multiply24, mods[0] == "hi")
    return AluRow(mods[1], (mods[1],) * (3 if base == "mad24" else 2), function, "9.7.1.5")


def _parts(words: np.ndarray, kind: str, bits: int) -> np.ndarray:
    """[threads, parts] of packed signed or unsigned integers."""
    dtype = f"{'i' if kind == 's32' else 'u'}{bits // 8}"
    return np.ascontiguousarray(words).view(np.uint32).view(dtype).reshape(len(words), -1)


def _dot(kinds: tuple[str, str], half: slice | None, a, b, c):
    """The sum of c and products of bytes, or of halves of a and two bytes of b."""
    left = _parts(a, kinds[0], 8 if half is None else 16).astype(np.int64)
    right = _parts(b, kinds[1], 8).astype(np.int64)
    right = right if half is None else right[:, half]
    total = (left * right).sum(1) + c.astype(np.int64)
    return (total & 0xFFFFFFFF).astype(np.uint32)


def _dp(base: str, mods: list[str]) -> AluRow | None:
    """dp4a, dp2a: 9.7.1.23, 9.7.1.24."""
    half = None
    if base == "dp2a":
        if not mods or mods[0] not in ("lo", "hi"):
            return None
        half = slice(0, 2) if mods.pop(0) == "lo" else slice(2, 4)
    if len(mods) != 2 or any(kind not in ("u32", "s32") for kind in mods):
        return None
    result = "u32" if mods == ["u32", "u32"] else "s32"
    function = partial(_dot, tuple(mods), half)
    return AluRow(result, (*mods, result), function, "9.7.1.23")


def _pairwise(function, dtype: str, relu: bool, a, b):
    """A function of both 16-bit halves."""
    left, right = (np.ascontiguousarray(x).view(dtype) for x in np.broadcast_arrays(a, b))
    result = function(left, right)
    return (np.maximum(result, 0) if relu else result).view(np.uint32)


def _packed(base: str, mods: list[str]) -> AluRow | None:
    """add, min, max of u16x2 and s16x2: 9.7.1.1, 9.7.1.12, 9.7.1.13."""
    relu = bool(choose(mods, "relu"))
    if mods not in (["u16x2"], ["s16x2"]) or relu and (base == "add" or mods == ["u16x2"]):
        return None
    function = {"add": np.add, "min": np.minimum, "max": np.maximum}[base]
    dtype = "u2" if mods == ["u16x2"] else "i2"
    return AluRow("b32", ("b32",) * 2, partial(_pairwise, function, dtype, relu), "9.7.1.12")


PRODUCT_FAMILIES = {
    "sad": _sad, "mul24": _mul24, "mad24": _mul24, "dp4a": _dp, "dp2a": _dp,
    "add": _packed, "min": _packed, "max": _packed,
}  # fmt: skip
