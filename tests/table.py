"""A table of ops run over dtypes, scopes and shapes, for the PTX machine and the GPU.

A row is one op: a body of a line and a line of NumPy on float64. A case is a row with a dtype, a
scope, a shape and the order of the register tiles. At warpgroup scope the op sees the whole tile,
at warp scope each of the four warps a tile of its own: four blocks of rows of the same arrays, or
of columns for tiles in column order. At thread scope one thread takes element after element.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

import tilecat as tc
from tilecat import e4m3, e5m2, f32, gl, rt, s8, s32, tf32, u8
from tilecat.dtypes import DType, bf16, f16
from tilecat.ops.elements import computed_in
from tilecat.ops.elementwise import vector_of
from tilecat.tiles import RegTileType, RegVecType

FLOATS = (f32, bf16, f16, tf32, e4m3, e5m2)
INTEGERS = (s32, s8, u8)
EVERY = FLOATS + INTEGERS
# Rows a warpgroup; a warp has a quarter of them. Transposed for tiles in column order.
SHAPES = ((64, 32), (128, 32))
MORE_SHAPES = (*SHAPES, (64, 96))
SCOPES = ("warpgroup", "warp")
ORDERS = ("row", "col")
THREAD_SHAPE = (1, 32)
N, S = 5, 1.75
QUICK = 20  # one case in this many runs by default; every row has at least one


@dataclass(frozen=True)
class Row:
    """One op.

    Args:
        name: for the test's name.
        body: from operands `k` in a kernel (tiles x and y, row vector r, column vector c of f32 or
            s32, scalars n = 5 and s = 1.75) to a tile, a vector, conditions or a scalar.
        reference: the same on float64 arrays (r is a column, c a row; rows and cols are indices).
        dtypes: of x and y.
        ulps: error allowed before the result is rounded, in units of 2**-23 of its magnitude...
        floor: ...or of this, where that is larger: what cancels, or an absolute bound.
        out: dtype of the result: "same", "wide" (f32 or s32), or its own.
        data: how x and y are drawn: "normal", "positive", "special" (with NaN and infinities).
        shapes: those it runs on in row order; all but the last, transposed, in column order.
        scopes: those it runs at.
        orders: those of its tiles.
    """

    name: str
    body: Callable[[Any], Any]
    reference: Callable[[Any], Any]
    dtypes: tuple[DType, ...] = FLOATS
    ulps: float = 0.0
    floor: float | Callable[[Any], Any] = 0.0
    out: str | DType = "same"
    data: str = "normal"
    shapes: tuple[tuple[int, int], ...] = SHAPES
    scopes: tuple[str, ...] = SCOPES
    orders: tuple[str, ...] = ORDERS

    def places(self, dtype: DType, scope: str) -> Iterator[tuple[str, tuple[int, int]]]:
        """Orders and shapes at a scope; a scalar has 32 bits and no order."""
        if scope == "thread":
            yield from [("row", THREAD_SHAPE)] * (dtype in (f32, s32))
            return
        if "row" in self.orders:
            yield from (("row", shape) for shape in self.shapes)
        if "col" in self.orders:
            yield from (("col", shape[::-1]) for shape in self.shapes[:-1] or self.shapes)


@dataclass(frozen=True)
class Case:
    """A row on one dtype, at one scope, on one shape in one order."""

    row: Row
    dtype: DType
    scope: str
    shape: tuple[int, int]
    order: str = "row"

    def __str__(self) -> str:
        rows, cols = self.shape
        order = " col" * (self.order == "col")
        return f"{self.row.name} {self.dtype} {self.scope} {rows}x{cols}{order}"

    @property
    def axis(self) -> int:
        """The axis that is split between the warps."""
        return 0 if self.order == "row" else 1

    @property
    def held(self) -> RegTileType:
        """Type of a tile of its scope as it is loaded: tf32 is f32 in memory."""
        warp, shape = self.scope == "warp", list(self.shape)
        shape[self.axis] //= 4 if warp else 1
        return rt[_in_memory(self.dtype), *shape, self.order].held_by(1 if warp else 4)

    @property
    def form(self) -> tuple[str, ...]:
        """The op, the dtype of its result, the type of its tile (or element), the scope."""
        kind = self.dtype if self.scope == "thread" else self.held.cast(self.dtype)
        return (self.row.name, str(self.out), str(kind), self.scope)

    @property
    def out(self) -> DType:
        """Dtype of the result."""
        named = {"same": self.dtype, "wide": computed_in(self.dtype)}
        return self.row.out if isinstance(self.row.out, DType) else named[self.row.out]

    @property
    def quick(self) -> bool:
        """Whether it is in the reduced set."""
        return zlib.crc32(str(self).encode()) % QUICK == 0


def _in_memory(dtype: DType) -> DType:
    return f32 if dtype == tf32 else dtype


def cases_of(rows: Iterable[Row]) -> list[Case]:
    """Every case of some rows."""
    return [
        Case(row, dtype, scope, shape, order)
        for row in rows
        for dtype in row.dtypes
        for scope in row.scopes
        for order, shape in row.places(dtype, scope)
    ]


def quick_cases(cases: Iterable[Case]) -> set[Case]:
    """The reduced set: one in QUICK by a hash of its name, and the first of each row and order."""
    found, first = set(), set()
    for case in cases:
        key = (case.row.name, case.order)
        if case.quick or key not in first:
            found.add(case)
        first.add(key)
    return found


# ---- operands


def _draw(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], data: str) -> np.ndarray:
    if not dtype.is_float:
        low = 0 if dtype == u8 or data == "positive" else -9
        return rng.integers(low, 10, shape).astype(dtype.numpy)
    values = rng.standard_normal(shape)
    if data == "positive":
        values = np.abs(values) + 0.25
    if data == "special":
        flat = values.reshape(-1)
        for start, special in enumerate((np.nan, np.inf, -np.inf, 0.0, -0.0)):
            flat[start :: 37 + start] = special
    with np.errstate(invalid="ignore"):
        return dtype.round(values).astype(dtype.numpy)


def arrays_of(case: Case) -> SimpleNamespace:
    """X, Y (rows x cols), R (rows), C (cols)."""
    rng = np.random.default_rng(zlib.crc32(str(case).encode()))
    rows, cols = case.shape
    wide = computed_in(case.dtype)
    return SimpleNamespace(
        X=_draw(rng, case.dtype, (rows, cols), case.row.data),
        Y=_draw(rng, case.dtype, (rows, cols), case.row.data),
        R=_draw(rng, wide, (rows,), "normal"),
        C=_draw(rng, wide, (cols,), "normal"),
    )


def _units(case: Case) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of each warpgroup or warp."""
    extent = case.shape[case.axis] // (4 if case.scope == "warp" else 1)
    for first in range(0, case.shape[case.axis], extent):
        part = slice(first, first + extent)
        yield (part, slice(None)) if case.axis == 0 else (slice(None), part)


def reference_of(case: Case, arrays: SimpleNamespace) -> tuple[np.ndarray, np.ndarray]:
    """The reference and the error allowed before rounding, both float64."""
    values, errors = [], []
    for part in _units(case):
        x, y = (a[part].astype(np.float64) for a in (arrays.X, arrays.Y))
        r, c = (a[p].astype(np.float64) for a, p in zip((arrays.R, arrays.C), part, strict=True))
        k = SimpleNamespace(
            x=x, y=y, n=N, s=S, r=r[:, None], c=c[None, :],
            rows=np.arange(x.shape[0])[:, None], cols=np.arange(x.shape[1])[None, :],
        )  # fmt: skip
        with np.errstate(all="ignore"):
            value = np.broadcast_to(np.asarray(case.row.reference(k), np.float64), x.shape)
            floor = case.row.floor(k) if callable(case.row.floor) else case.row.floor
            error = case.row.ulps * 2.0**-23 * np.maximum(np.abs(value), floor)
            error = np.where(np.isinf(value), 0.0, error)
        values.append(value)
        errors.append(np.broadcast_to(error, x.shape))
    return np.concatenate(values, case.axis), np.concatenate(errors, case.axis)


# ---- the kernel


def _as_tile(result: Any, kind: RegTileType, out: DType) -> Any:
    """The result as a tile of the output's dtype."""
    have = getattr(getattr(result, "value", None), "type", None)
    if isinstance(have, RegTileType | RegVecType) and have.dtype.kind == "pred":
        result = tc.select(result, 1, 0)
        have = result.value.type
    if isinstance(have, RegVecType):
        side = "row" if have.axis == kind.vector("row").axis else "col"
        tile = tc.empty(kind.cast(have.dtype))
        return getattr(tc, f"broadcast_{side}")(tile, result)
    if not isinstance(have, RegTileType):
        return tc.full(kind.cast(out), result)
    return result if have.dtype == out else tc.cast(result, out)


class Operands:
    """What a body takes, loaded where it is first asked for: a text has what its op needs.

    Args:
        case: the case.
        kind: type of its tiles in memory's dtype.
        at: place of the scope's tile.
        arrays: X, Y, R, C.
        n: an s32 scalar.
        s: an f32 scalar.
    """

    def __init__(
        self, case: Case, kind: RegTileType, at: list[Any], arrays: tuple[Any, ...], n: Any, s: Any
    ):
        self.case, self.held, self.at, self.arrays = case, kind, at, arrays
        self.n, self.s, self.kind = n, s, kind.cast(case.dtype)

    def _tile(self, index: int) -> Any:
        tile = tc.load(self.arrays[index][self.at[0], self.at[1]], self.held)
        return tc.cast(tile, self.case.dtype)

    def _vector(self, axis: int) -> Any:
        kind = vector_of(self.kind.vector(("row", "col")[axis]), computed_in(self.case.dtype))
        return tc.load(self.arrays[2 + axis][self.at[axis]], kind)

    x = cached_property(lambda self: self._tile(0))
    y = cached_property(lambda self: self._tile(1))
    r = cached_property(lambda self: self._vector(0))
    c = cached_property(lambda self: self._vector(1))


def kernel_of_thread(case: Case) -> tc.KernelFunction:
    """A kernel of one thread that runs a case, element after element."""
    dtype, out = case.dtype, case.out

    def table_case(
        X: gl[dtype, "M", "N"], Y: gl[dtype, "M", "N"], R: gl[dtype, "M"], C: gl[dtype, "N"],
        Z: gl[out, "M", "N"], n: s32, s: f32,
    ):  # fmt: skip
        with tc.warpgroup(), tc.elected():
            for i in tc.range(X.cols):
                x, y = (tc.load(source[0, i], dtype) for source in (X, Y))
                tc.store(Z[0, i], case.row.body(SimpleNamespace(x=x, y=y, n=n, s=s)))

    return tc.kernel(table_case)


def kernel_of(case: Case) -> tc.KernelFunction:
    """A kernel of one warpgroup that runs a case."""
    if case.scope == "thread":
        return kernel_of_thread(case)
    dtype, wide, out = case.dtype, computed_in(case.dtype), case.out
    warp = case.scope == "warp"
    given, made = _in_memory(dtype), _in_memory(out)

    def table_case(
        X: gl[given, *case.shape], Y: gl[given, *case.shape], R: gl[wide, case.shape[0]],
        C: gl[wide, case.shape[1]], Z: gl[made, *case.shape], n: s32, s: f32,
    ):  # fmt: skip
        with tc.warpgroup(), tc.warps() if warp else contextlib.nullcontext():
            at = [0, 0]
            at[case.axis] = tc.warp_id() if warp else 0
            k = Operands(case, case.held, at, (X, Y, R, C), n, s)
            tc.store(Z[at[0], at[1]], tc.cast(_as_tile(case.row.body(k), k.kind, out), made))

    return tc.kernel(table_case)


def run(case: Case, arrays: SimpleNamespace, call: Callable[..., None]) -> np.ndarray:
    """The result, by `call(kernel, *arguments)`; the output starts poisoned.

    Arrays lie in the order of the tiles, so that these move in runs, and the text is the op's.
    """
    order = "C" if case.order == "row" else "F"
    x, y = (np.asarray(a, order=order) for a in (arrays.X, arrays.Y))
    out = np.full(case.shape, 77, case.out.numpy, order)
    call(kernel_of(case), x, y, arrays.R, arrays.C, out, N, S)
    return out


def check(case: Case, actual: np.ndarray, arrays: SimpleNamespace) -> None:
    """The result is one rounding of a value within the error; NaN where the reference has it."""
    value, error = reference_of(case, arrays)
    out = case.out
    saturates = out.bits == 8 or not out.is_float
    slack = 1.0 if out == tf32 else 0.0  # ties away from zero
    with np.errstate(all="ignore"):
        error = error + np.where(np.isinf(value), 0.0, slack * 2.0**-11 * np.abs(value))
        low, high = (out.round(value + e, saturate=saturates) for e in (-error, error))
        got = actual.astype(np.float64)
        good = (got >= low) & (got <= high) | np.isnan(got) & np.isnan(value)
    if not good.all():
        at = tuple(int(i) for i in np.argwhere(~good)[0])
        raise AssertionError(
            f"{case}: {np.count_nonzero(~good)} of {good.size} elements are wrong; at {at} "
            f"got {got[at]!r}, wanted {value[at]!r} +- {error[at]:.3g}"
        )


def rounded(x: Any, dtype: Any = ml_dtypes.bfloat16) -> Any:
    """Float64 values rounded to a dtype."""
    return np.asarray(x).astype(np.float32).astype(dtype).astype(np.float64)
