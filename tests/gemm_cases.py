"""Operands of products, and what must come of them: values in float64 with bounds of their errors.

A `Chain` carries, with each value, a bound of the error that fp32 arithmetic may have made of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import reference
from mma_cases import FP8_ON_GPU

from tilecat.dtypes import by_name

F32 = 2.0**-20  # relative, of a few operations in fp32 and approximations of 2 ulp
TF32 = 2.0**-10  # f32 operands lose their 13 low bits, each
VIEWS = ("row", "col", "sliced", "skipped")


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, view: str) -> np.ndarray:
    """Random numbers in one of VIEWS."""
    if dtype == "s8":
        made = rng.integers(-128, 128, shape).astype(np.int8)
    else:
        made = rng.standard_normal(shape).astype(np.float32).astype(by_name(dtype).numpy)
    if view == "col":
        return np.ascontiguousarray(made.swapaxes(-1, -2)).swapaxes(-1, -2)
    if view == "sliced":
        wide = np.zeros((*shape[:-2], shape[-2] + 3, shape[-1] + 16), made.dtype)
        wide[..., 2 : 2 + shape[-2], 16:] = made
        return wide[..., 2 : 2 + shape[-2], 16:]
    if view == "skipped":
        wide = np.zeros((*shape[:-2], 2 * shape[-2], shape[-1]), made.dtype)
        wide[..., ::2, :] = made
        return wide[..., ::2, :]
    return made


def poisoned(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An output that shows what was not written: NaN, or the least integer."""
    return np.full(shape, -(2**31) if dtype == "s32" else np.nan).astype(by_name(dtype).numpy)


class Chain:
    """A value and its error through the steps of an epilogue."""

    def __init__(self, value: np.ndarray, error: np.ndarray):
        self.value, self.error = value, error

    def times(self, factor: Any) -> None:
        """Multiplied."""
        self._now(self.value * factor, self.error * np.abs(factor))

    def plus(self, addend: Any) -> None:
        """Added."""
        self._now(self.value + addend, self.error, np.abs(self.value) + np.abs(addend))

    def through(self, function: Callable[[Any], Any], slope: float, own: float = 0.0) -> None:
        """A function whose derivative is at most `slope`, itself `own` off: relative, and / 128."""
        before, value = np.abs(self.value), function(self.value)
        self._now(value, slope * self.error + own * (np.abs(value) + 2.0**-7), before)

    def _now(self, value: Any, error: Any, size: Any = 0.0) -> None:
        self.value, self.error = value, error + F32 * (np.abs(value) + size)


def gelu(x: np.ndarray) -> np.ndarray:
    """`x (1 + erf(x / sqrt 2)) / 2`."""
    return x * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def silu(x: np.ndarray) -> np.ndarray:
    """`x / (1 + exp(-x))`."""
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def product(a: np.ndarray, b: np.ndarray, *, gpu: bool = False) -> Chain:
    """A @ B of any dtypes, in float64, and the error of its sums.

    Args:
        a, b: operands, leading axes broadcast.
        gpu: FP8 sums keep fewer bits there (see `mma_cases`).
    """
    x, y = a.astype(np.float64), b.astype(np.float64)
    k, size = x.shape[-1], np.abs(x) @ np.abs(y)
    error = reference.accumulation(k) * size
    if a.dtype == np.int8:
        error = 0 * size
    elif a.dtype == np.float32:
        error = error + 2 * TF32 * (1 + TF32) * size
    elif a.dtype.itemsize == 1 and gpu:
        largest = np.abs(x).max(-1)[..., None] * np.abs(y).max(-2)[..., None, :] if k else 0.0
        error = error + FP8_ON_GPU * (k + k // 32 + 1) * (largest + size)
    return Chain(x @ y, error)


def scaled_by_blocks(
    a: np.ndarray, b: np.ndarray, scale_a: np.ndarray, scale_b: np.ndarray, *, gpu: bool = False
) -> Chain:
    """The sum over blocks of 128 of K of their products, each times the scales of its block."""
    k, n = a.shape[-1], b.shape[-1]
    columns = np.repeat(scale_b.astype(np.float64), 128, -1)[..., :n]
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], n)
    whole = Chain(np.zeros(shape), np.zeros(shape))
    for block, first in enumerate(range(0, k, 128)):
        inner = slice(first, first + 128)
        part = product(a[..., inner], b[..., inner, :], gpu=gpu)
        part.times(scale_a[..., block, None].astype(np.float64))
        part.times(columns[..., block, None, :])
        whole.plus(part.value)
        whole.error = whole.error + part.error
    return whole


def gated(a: np.ndarray, b: np.ndarray, c: np.ndarray, *, gpu: bool = False) -> Chain:
    """silu(A @ B) * (A @ C)."""
    gate, found = product(a, b, gpu=gpu), product(a, c, gpu=gpu)
    gate.through(silu, 1.2)
    error = gate.error * np.abs(found.value) + found.error * np.abs(gate.value)
    error = error + gate.error * found.error
    found.times(gate.value)
    found.error = error + F32 * np.abs(found.value)
    return found
