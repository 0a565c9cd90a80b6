"""Epilogues of the GEMM: functions of a tile of the product, fused into the end of its task.

An epilogue is `f(x, at, *args)`: x an f32 register tile of the product (a panel of columns of a
consumer's tile), `at` where it lies in the output, args the run-time arguments of its step, tensors
or numbers. It gives the tile that takes the place of x, and is written with tile ops:

    def leaky(x, at, slope):
        return tc.maximum(x, x * slope)

    tc.matmul(a, b, epilogue=((tc.epilogues.bias, bias), (leaky, 0.1)))

Steps run in order; those here are ready-made. Elements outside the output are computed too, from
zeros, and not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tilecat as tc
from tilecat import f32, rt, rv, sv

from ..language.scalars import minimum_of
from ..language.values import RegTile

PANEL = 64  # columns a step sees: 32 registers a thread
THREADS = 128  # of a consumer


class Columns:
    """Vectors along the columns of the consumers' tiles, in shared memory.

    A task reads each from memory once, not once a panel: memory is far, and nothing of it has to
    stand in registers. There is room for those of the ready-made steps.

    Args:
        steps: of the epilogue.
        consumers: how many there are.
        cols: of a tile.
    """

    def __init__(self, steps: tuple[Step, ...], consumers: int, cols: int):
        self.cols = cols
        self.count = sum(step.function in ALONG_COLUMNS for step in steps)
        self.room = tc.shared(sv[f32, cols], count=self.count * consumers) if self.count else None
        self.consumer: Any = None
        self._places: dict[int, int] = {}

    def begin(self, consumer: Any) -> Columns:
        """Of a consumer's next task."""
        self.consumer = consumer
        self._places = {}
        return self

    def takes(self, tensor: Any, cols: int) -> bool:
        """Whether a tensor [..., N] is read in panels of so many columns."""
        new = id(tensor) not in self._places
        fits = tensor.dtype == f32 and self.cols % cols == 0
        return fits and not (new and len(self._places) == self.count)

    def load(self, tensor: Any, lead: tuple[Any, ...], col: Any, first: int, cols: int) -> Any:
        """Columns from `first` on of the tile that begins in column `col` of a tensor [..., N].

        Args:
            tensor: f32.
            lead: coordinates on its leading axes.
            col: of the tile.
            first: of the panel, in the tile.
            cols: of the panel.
        """
        new = id(tensor) not in self._places
        place = self._places.setdefault(id(tensor), len(self._places))
        vector = self.room[self.consumer * self.count + place]
        if new:
            self._meet()  # all have read those of the task before
            tc.copy_async(vector, tensor.at(*lead, col))
            tc.copy_commit()
            tc.copy_wait()
            self._meet()
        return tc.load(vector.part(first // cols, self.cols // cols), rv[f32, cols, "col"])

    def _meet(self) -> None:
        tc.barrier_sync(self.consumer + 1, THREADS)


@dataclass(frozen=True, eq=False)
class Where:
    """Where an epilogue's tile lies in the output.

    Args:
        out: the output tensor.
        batch: coordinates of the tile's plane on the output's leading axes.
        row: of its first element, an s32 scalar.
        col: of its first element.
        rows: extent of the tile.
        cols: extent of the tile.
        last: the row behind those of the tile's group, or None: others write what follows.
        groups: a tensor with an axis of groups in front, where the output may have none.
        first: column of the consumer's tile where this one begins.
        columns: vectors along the tile's columns.
    """

    out: Any
    batch: tuple[Any, ...]
    row: Any
    col: Any
    rows: int
    cols: int
    last: Any = None
    groups: Any = None
    first: int = 0
    columns: Columns | None = None

    def _plane(self, tensor: Any, inner: str) -> tuple[Any, ...]:
        return plane(tensor, self.out, self.batch, inner, self.groups)

    def tile(self, tensor: Any) -> Any:
        """The elements of a tensor [..., M, N] at this place, as an f32 tile."""
        lead = self._plane(tensor, "MN")
        narrow = tensor.dtype.bits <= 32
        tc.require(narrow, f"epilogue: a tensor has elements of at most 32 bits, got {tensor!r}")
        if tensor is self.out and self.last is not None:
            tensor = tensor[*(slice(None) for _ in lead), : self.last, :]
        place = tensor.at(*lead, self.row, self.col)
        return tc.regroup(tc.cast(tc.load(place, rt[tensor.dtype, self.rows, self.cols]), f32))

    def row_vector(self, tensor: Any) -> Any:
        """The elements of a tensor [..., M] in these rows, one a row, f32."""
        place = tensor.at(*self._plane(tensor, "M"), self.row)
        return tc.load(place, rv[f32, self.rows])

    def col_vector(self, tensor: Any) -> Any:
        """The elements of a tensor [..., N] in these columns, one a column, f32."""
        lead, columns = self._plane(tensor, "N"), self.columns
        if columns is not None and columns.takes(tensor, self.cols):
            return columns.load(tensor, lead, self.col - self.first, self.first, self.cols)
        return tc.load(tensor.at(*lead, self.col), rv[f32, self.cols, "col"])

    def scalar(self, value: Any) -> Any:
        """A number, or the element of an f32 tensor [1]."""
        return tc.load(value[0], f32) if hasattr(value, "rank") else value


def plane(
    tensor: Any, out: Any, batch: tuple[Any, ...], inner: str, groups: Any = None
) -> tuple[Any, ...]:
    """Coordinates on a tensor's leading axes, those of extent 1 broadcast; extents must agree.

    Args:
        tensor: of the axes `inner`, and some of the output's leading ones in front.
        out: the output, [..., M, N].
        batch: coordinates on its leading axes.
        inner: "MN", "M" or "N", axes that are as long as the output's; or others.
        groups: a tensor with an axis of groups in front, where the output may have none.
    """
    rank = getattr(tensor, "rank", 0)  # a number has none
    count = rank - len(inner)
    tc.require(
        0 <= count <= len(batch),
        f"epilogue: a tensor has the axes {', '.join(inner)} behind at most those of the batch "
        f"({len(batch)}), got {tensor!r}",
    )
    for axis, name in enumerate(inner, count):
        if name in "MN":
            tc.require_extent(tensor, axis, out, out.rank - 2 + "MN".index(name))
    for axis in range(count):
        if out.rank == len(batch) + 2:
            tc.require_extent(tensor, axis, out, len(batch) - count + axis, or_one=True)
        elif groups is not None:
            tc.require_extent(tensor, axis, groups, axis, or_one=True)
    coords = batch[len(batch) - count :]
    return tuple(minimum_of(c, tensor.size(axis) - 1) for axis, c in enumerate(coords))


@dataclass(frozen=True)
class Step:
    """A function of an epilogue, and how many run-time arguments it takes."""

    function: Callable[..., Any]
    count: int = 0


def apply(
    steps: tuple[Step, ...], args: tuple[Any, ...], sums: tuple[Any, ...], out: Any,
    place: Callable[[], tuple[Any, ...]], columns: Columns, last: Any = None, groups: Any = None,
) -> Any:  # fmt: skip
    """The tile to store: the steps on a consumer's sums, panel by panel of columns.

    Args:
        steps: in order; the first takes all the sums.
        args: run-time arguments of all the steps.
        sums: accumulators of one shape: one, or two for a gated product.
        out: the output tensor.
        place: of the whole tile in it: coordinates of its plane, then of its first element.
        columns: vectors along the columns of this task.
        last: the row behind those of the tile's group, if it has one.
        groups: a tensor with an axis of groups in front, if there are groups.
    """
    acc, dtype = sums[0], out.dtype
    if not steps and (acc.dtype == dtype or acc.dtype == f32 and dtype.bits == 16):
        return acc
    rows, cols = acc.type.shape
    *batch, row, col = place()
    kind = dtype if dtype.bits == 16 and acc.dtype != f32 else f32
    result = acc if acc.dtype == f32 else tc.empty(rt[kind, rows, cols])
    width = max((n for n in range(16, PANEL + 1, 16) if cols % n == 0), default=PANEL)
    for first in range(0, cols, width):
        stop = min(first + width, cols)
        at = Where(out, tuple(batch), row, col + first, rows, stop - first, last, groups, first,
                   columns)  # fmt: skip
        values = tuple(tc.cast(x[:, first:stop], f32) for x in sums)
        used = 0
        for step in steps:
            x = step.function(*values, at, *args[used : used + step.count])
            shape = (rows, stop - first)
            tc.require(
                isinstance(x, RegTile) and x.type.shape == shape,
                f"epilogue: a step gives a register tile of {shape[0]} x {shape[1]}, got {x!r} "
                f"from {getattr(step.function, '__name__', step.function)}",
            )
            values, used = (tc.cast(x, f32),), used + step.count
        result[:, first:stop] = tc.cast(values[0], kind)
    return result if dtype == f32 or dtype.bits == 16 else tc.regroup(tc.cast(result, dtype))


def scale(x: Any, at: Where, factor: Any) -> Any:
    """`x * factor`: a number, or a tensor of one element."""
    return x * at.scalar(factor)


def row_scale(x: Any, at: Where, factors: Any) -> Any:
    """`x * factors[:, None]`: factors [..., M]."""
    return x * at.row_vector(factors)


def col_scale(x: Any, at: Where, factors: Any) -> Any:
    """`x * factors[None, :]`: factors [..., N]."""
    return x * at.col_vector(factors)


def bias(x: Any, at: Where, values: Any) -> Any:
    """`x + values[None, :]`: values [..., N]."""
    return x + at.col_vector(values)


ALONG_COLUMNS = (col_scale, bias)


def _digits(at: Where) -> str:
    return "half" if at.out.dtype.bits <= 16 else "none"


def gelu(x: Any, at: Where) -> Any:
    """`x (1 + erf(x / sqrt 2)) / 2`."""
    return tc.gelu(x, approximate=_digits(at))


def gelu_tanh(x: Any, at: Where) -> Any:
    """GELU by its approximation with tanh."""
    return tc.gelu(x, approximate="tanh")


def silu(x: Any, at: Where) -> Any:
    """`x / (1 + exp(-x))`."""
    return tc.silu(x)


def relu(x: Any, at: Where) -> Any:
    """`max(x, 0)`."""
    return tc.relu(x)


def gate(x: Any, at: Where, factors: Any) -> Any:
    """`x * factors`: factors [..., M, N]."""
    return x * at.tile(factors)


def residual(x: Any, at: Where, addend: Any) -> Any:
    """`x + addend`: addend [..., M, N]."""
    return x + at.tile(addend)


def add_out(x: Any, at: Where, beta: Any) -> Any:
    """`x + beta * out`: the output as it was."""
    return tc.fma(at.tile(at.out), at.scalar(beta), x)


def swiglu(x: Any, y: Any, at: Where) -> Any:
    """`silu(x) * y`, of a gated product."""
    return tc.silu(x) * y


def geglu(x: Any, y: Any, at: Where) -> Any:
    """`gelu(x) * y`, of a gated product."""
    return tc.gelu(x, approximate=_digits(at)) * y


@dataclass(frozen=True)
class Dropout:
    """`x / (1 - p)` with probability 1 - p, else 0: `(Dropout(0.1), seed)`; see `tc.dropout`.

    Args:
        p: probability of a zero, a compile-time number.
    """

    p: float

    def __call__(self, x: Any, at: Where, seed: Any) -> Any:
        """The step, with its seed, an int."""
        return tc.dropout(x, self.p, seed, row=at.row, col=at.col)
