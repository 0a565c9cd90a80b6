"""Random calls of tc.matmul: dtypes, orders, batches, scales, epilogues; results in float64.

A problem follows from its seed; the same ones run on the PTX machine and on a GPU. The reference
carries, with each value, a bound of the error that fp32 arithmetic may have made of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import reference
from mma_cases import FP8_ON_GPU

import tilecat as tc
from tilecat.dtypes import by_name

PAIRS = ("bf16", "f16", "f32", "s8", "e4m3", "e5m2", "e4m3 e5m2", "bf16", "f16")
OUTS = ("bf16", "f16", "f32", "e4m3", "e5m2")
F32 = 2.0**-20  # relative, of a few operations in fp32 and approximations of 2 ulp
TF32 = 2.0**-10  # f32 operands lose their 13 low bits, each
VIEWS = ("row", "col", "sliced", "skipped")
LONGEST = 300


@dataclass
class Problem:
    """A call: `tc.matmul(a, b, out, **options)` with the reference of its result.

    Args:
        seed: what it follows from.
        a, b, out: arrays; out is poisoned, or holds what beta scales.
        options: keyword arguments.
        expected: the result in float64, and a bound of its error before it is rounded.
        exact: whether sums are whole numbers, stored as such.
    """

    seed: int
    a: Any = None
    b: Any = None
    out: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    expected: reference.Reference | None = None
    exact: bool = False


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

    def through(self, function: Callable[[Any], Any], slope: float) -> None:
        """A function whose derivative is at most `slope`."""
        before = np.abs(self.value)
        self._now(function(self.value), slope * self.error, before)

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


def _steps(rng: np.random.Generator, shape: tuple[int, ...], chain: Chain) -> list[Any]:
    """Some steps, taken by the reference as well."""
    made: list[Any] = []
    m, n = shape[-2:]
    random = partial(numbers, rng, view="row")
    for kind in rng.choice(["bias", "gelu", "silu", "relu", "gate", "residual", "mine"], 3):
        if rng.random() < 0.4:
            continue
        if kind == "bias":
            made.append((tc.epilogues.bias, random((n,), str(rng.choice(["f32", "bf16"])))))
            chain.plus(made[-1][1].astype(np.float64))
        elif kind in ("gate", "residual"):
            lead = shape[:-2] if rng.random() < 0.5 else ()
            tensor = random((*lead, m, n), str(rng.choice(["f32", "bf16", "f16"])))
            made.append((getattr(tc.epilogues, kind), tensor))
            (chain.times if kind == "gate" else chain.plus)(tensor.astype(np.float64))
        elif kind == "mine":
            factor = float(rng.standard_normal())
            made.append((lambda x, at, f: x * f + at.scalar(f), factor))
            chain.times(factor)
            chain.plus(factor)
        else:
            functions = {"gelu": gelu, "silu": silu, "relu": lambda x: np.maximum(x, 0)}
            made.append(getattr(tc.epilogues, kind))
            chain.through(functions[kind], 1.2)
    return made


def _scales(rng: np.random.Generator, shape: tuple[int, ...], chain: Chain) -> dict[str, Any]:
    m, n = shape[-2:]
    found = {}
    for name, size, like in (("scale_a", m, (m, 1)), ("scale_b", n, (1, n))):
        scale = rng.uniform(0.5, 2, like).astype(np.float32)
        match rng.integers(4):
            case 0:
                found[name] = float(scale.flat[0])
                chain.times(found[name])
            case 1:
                found[name] = scale.reshape(-1)[:1]
                chain.times(float(scale.flat[0]))
            case 2 if len(shape) == 2:
                found[name] = scale if rng.random() < 0.5 else scale.reshape(size)
                chain.times(scale.astype(np.float64))
    return found


def problem(seed: int, longest: int = LONGEST, *, gpu: bool = False) -> Problem:
    """The problem of a seed; sizes spread evenly over their logarithms."""
    rng = np.random.default_rng(seed)
    left, _, right = str(rng.choice(PAIRS)).partition(" ")
    right = right or left
    m, n, k = (round(longest ** rng.random()) for _ in range(3))
    if rng.random() < 0.6:
        m, n, k = (-(-size // 16) * 16 for size in (m, n, k))
    batch = ((), (), (), (2,), (2, 3))[rng.integers(5)]
    lead = [tuple(1 if rng.random() < 0.3 else x for x in batch) for _ in range(2)]
    lead = [() if rng.random() < 0.2 else x for x in lead]
    a = numbers(rng, (*lead[0], m, k), left, str(rng.choice(VIEWS)))
    b = numbers(rng, (*lead[1], k, n), right, str(rng.choice(VIEWS)))
    shape = (*np.broadcast_shapes(*lead), m, n)
    chain, options = product(a, b, gpu=gpu), {}
    out = str(rng.choice(OUTS if left != "s8" else ("s32", "f32", "bf16")))
    if out == "s32":
        return Problem(seed, a, b, poisoned(shape, out), {}, _reference(chain), exact=True)
    if left == "s8":
        options["alpha"] = 1e-4
        chain.times(1e-4)
    options |= _scales(rng, shape, chain)
    if left != "s8" and rng.random() < 0.3:
        options["alpha"] = -0.25
        chain.times(-0.25)
    target = poisoned(shape, out)
    if rng.random() < 0.3:
        target = numbers(rng, shape, out, "row")
        options["beta"] = 1.0 if rng.random() < 0.5 else 0.5
        chain.plus(options["beta"] * target.astype(np.float64))
    options["epilogue"] = tuple(_steps(rng, shape, chain))
    if 0 in shape or out in ("e4m3", "e5m2", "f16"):
        _clip(chain, by_name(out).max_value)
    return Problem(seed, a, b, target, options, _reference(chain))


def _clip(chain: Chain, top: float) -> None:
    """Conversions to 8 bits saturate; products beyond f16 are not in these problems."""
    chain.value = np.clip(chain.value, -top, top)
    chain.error = np.minimum(chain.error, top - np.abs(chain.value))


def _reference(chain: Chain) -> reference.Reference:
    return reference.Reference(chain.value, chain.error)


def check(given: Problem, actual: np.ndarray) -> None:
    """The result is one that fp32 sums, rounded once, can give."""
    assert given.expected is not None
    if given.exact:
        np.testing.assert_array_equal(actual, given.expected.value)
        return
    reference.assert_close(actual, given.expected, given.out.dtype)
