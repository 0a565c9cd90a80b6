"""Where a tile meets a tensor: axes of views, and the regions of places."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any

from ..builder import add
from ..errors import DTypeError, LayoutError
from ..ir import TensorArg, Value
from ..ops.global_scalars import LoadScalar
from ..ops.places import BROADCAST, Bounds, tma_reaches
from ..tiles import ScalarType
from .scalars import Scalar, binary, divisor, named, operand_of

if TYPE_CHECKING:
    from .views import GlobalTensor, GlobalTile

_ANY = 1 << 12  # divides what is zero; no access is wider


@dataclass(frozen=True, eq=False)
class Pages:
    """Rows of a paged axis: logical row r is row r % size of page table[r // size]."""

    table: GlobalTensor
    dim: int
    size: int


@dataclass(frozen=True, eq=False)
class Axis:
    """One axis of a view.

    Args:
        dim: the tensor's axis (of pages, if paged); None for a broadcast axis.
        start: element of the tensor where it begins.
        stop: first element beyond it; None for the tensor's end.
        extent: of a broadcast axis.
        pages: how its rows lie in pages, or None.
        origin: element of the tensor where an axis that runs backwards begins; None: forwards.
    """

    dim: int | None
    start: Any = 0
    stop: Any = None
    extent: Any = None
    pages: Pages | None = None
    origin: Any = None


@dataclass(frozen=True, eq=False)
class Region:
    """Where a tile or vector of known extents meets a tensor.

    Args:
        arg: the tensor.
        coords: its first element, on every axis of the tensor.
        axes: the tensor's axes that the tile's rows and columns lie along; BROADCAST for none.
        bounds: narrower than the tensor, or empty.
        order: "row" or "col": which of them is contiguous in memory; "" for neither.
        together: the place on the contiguous axis is a multiple of this many elements.
        reverse: the tensor's axes along which the tile's elements lie backwards.
    """

    arg: TensorArg
    coords: tuple[Any, ...]
    axes: tuple[int, ...]
    bounds: Bounds
    order: str
    together: int
    reverse: tuple[int, ...] = ()

    @property
    def gathered(self) -> bool:
        """Whether a vector gives coordinates."""
        types = (c.type for c in self.coords if isinstance(c, Value))
        return any(not isinstance(kind, ScalarType) for kind in types)

    @property
    def tma(self) -> bool:
        """Whether TMA can load it."""
        plain = not (BROADCAST in self.axes or self.bounds or self.gathered or self.reverse)
        return self.arg.tma and plain and bool(self.order) and tma_reaches(self.arg, self.together)

    @property
    def tma_stores(self) -> bool:
        """Whether TMA can store it, and nothing else.

        An H200 stores no box that begins before the contiguous axis: known while tracing of a
        constant; the PTX machine tells of a scalar. Of a box that meets the end of that axis it
        writes whole units of 16 bytes, beyond the end too (tests/gpu/test_launch.py).
        """
        start = self.coords[self.arg.contiguous]
        return self.tma and (isinstance(start, Value) or start >= 0) and self.arg.ends_whole

    @property
    def obstacle(self) -> str:
        """Why TMA cannot load or store it."""
        if not self.arg.tma:
            return "its strides or its address are not multiples of 16 bytes"
        if self.gathered:
            return "rows that a vector gathers lie apart"
        if self.reverse:
            return "an axis that runs backwards has a negative stride"
        if self.bounds:
            return "a view with an end is narrower than the tensor that TMA knows"
        if BROADCAST in self.axes:
            return "a broadcast axis has no stride"
        if not tma_reaches(self.arg, self.together):
            return "it is not known to begin at a multiple of 16 bytes along the contiguous axis"
        if not self.order:
            return "the tile does not lie along its contiguous axis"
        start = self.coords[self.arg.contiguous]
        if not isinstance(start, Value) and start < 0:
            return "a store begins at a negative place along the contiguous axis"
        return (
            "its rows are no multiple of 16 bytes, and a store would also write what follows them"
            if self.arg.order == "row"
            else "its columns are no multiple of 16 bytes, and a store would also write what "
            "follows them"
        )


def is_vector(item: Any) -> bool:
    """Whether an index is a vector: a gather."""
    return getattr(item, "is_index_vector", False)


def inner_axis(axis: Axis) -> int:
    """The tensor's axis that a tile along an axis of a view lies along."""
    if axis.dim is None:
        return BROADCAST
    return axis.dim if axis.pages is None else axis.pages.dim


def order_of(arg: TensorArg, dims: tuple[int, ...]) -> str:
    """Which of a tile's axes is contiguous in memory."""
    if dims[-1] == arg.contiguous:
        return "row"
    return "col" if dims[0] == arg.contiguous else ""


class Finder:
    """Works out one region of a place, axis by axis."""

    def __init__(
        self, place: GlobalTile, extents: tuple[int, ...], first: int, cut: int, cuts: int
    ):
        self.place = place
        self.arg = place.arg
        self.extents = extents
        self.first = first
        self.cut = cut
        self.cuts = cuts
        self.coords: dict[int, Any] = dict(place.tensor.fixed)
        self.bounds: dict[int, tuple[Any, Any]] = {}
        self.together = 0
        self.reverse: list[int] = []

    def region(self) -> Region:
        """The region."""
        arg, view = self.arg, self.place.tensor
        for number in range(view.rank):
            self._axis(number)
        axes = tuple(inner_axis(axis) for axis in view.axes[self.first :])
        coords = tuple(self._operand(self.coords[d]) for d in range(arg.type.rank))
        bounds: list[Any] = []
        for dim in range(arg.type.rank):
            bounds += [
                None if b is None else operand_of(b) for b in self.bounds.get(dim, (None, None))
            ]
        found = tuple(bounds) if self.bounds else ()
        order = order_of(arg, axes) if axes else ""
        together, reverse = self.together or _ANY, tuple(self.reverse)
        return Region(arg, coords, axes, found, order, together, reverse)

    def _operand(self, value: Any) -> Any:
        return value.value if is_vector(value) else operand_of(value, self.arg.name)

    def _axis(self, number: int) -> None:
        view, item = self.place.tensor, self.place.index[number]
        axis = view.axes[number]
        extent = self.extents[number - self.first] if number >= self.first else 1
        if is_vector(item):
            self._gathered(axis, item)
            return
        step = extent if self.place.in_tiles else 1
        position = binary("mul", item, step) if step != 1 else item
        if number >= self.first and self.place.in_tiles and axis.dim is not None:
            dims = self.arg.type.dims
            position = named(position, f"{self.arg.name}_at_{dims[axis.dim]}")
        if axis.dim is None:
            return
        if axis.pages is not None:
            self._paged(axis, axis.pages, position, extent)
            return
        if axis.origin is not None:
            self._backwards(axis, position, number >= self.first)
            return
        start = axis.start
        self.coords[axis.dim] = binary("add", start, position)
        if axis.dim == self.arg.contiguous:
            self.together = gcd(divisor(item) * step, divisor(start))
        if axis.stop is not None and not _within(position, extent, start, axis.stop):
            self.bounds[axis.dim] = (start, axis.stop)

    def _backwards(self, axis: Axis, position: Any, along: bool) -> None:
        assert axis.dim is not None, "a broadcast axis has no direction"
        self.coords[axis.dim] = binary("sub", axis.origin, position)
        if along:
            self.reverse.append(axis.dim)
        if axis.dim == self.arg.contiguous:
            self.together = 1
        if axis.stop is not None:
            self.bounds[axis.dim] = (axis.start, axis.stop)

    def _gathered(self, axis: Axis, index: Any) -> None:
        if axis.dim is None or axis.pages is not None:
            raise LayoutError(f"{self.arg.name}: only a plain axis takes an index vector")
        if axis.start != 0 or axis.stop is not None or axis.origin is not None:
            raise LayoutError(
                f"{self.arg.name}: an axis with an index vector begins at its first element, "
                "got a slice",
                hint="add the slice's start to the index",
            )
        if index.value.type.dtype.name != "s32":
            raise DTypeError(f"{self.arg.name}: an index vector holds s32, got {index!r}")
        self.coords[axis.dim] = index

    def _paged(self, axis: Axis, pages: Pages, position: Any, extent: int) -> None:
        rows = extent // self.cuts
        at = binary("add", binary("add", axis.start, position), self.cut * rows)
        page, row = binary("div", at, pages.size), binary("rem", at, pages.size)
        if self.cuts > 1:
            row = 0
        table = pages.table.at(page)
        coords, bounds = table.element()
        found = add(LoadScalar(coords, table.arg, bounds, -1)).result
        assert axis.dim is not None, "pages lie along an axis"
        self.coords[axis.dim] = Scalar(found)
        self.coords[pages.dim] = row
        if self.arg.contiguous in (axis.dim, pages.dim):
            self.together = 1 if axis.dim == self.arg.contiguous else divisor(row)
        if axis.stop is not None or axis.start != 0:
            base = binary("sub", at, row)
            low = binary("sub", axis.start, base)
            high = pages.size if axis.stop is None else binary("sub", axis.stop, base)
            self.bounds[pages.dim] = (low, high)


def _within(position: Any, extent: int, start: Any, stop: Any) -> bool:
    """Whether a tile surely lies inside a slice."""
    known = all(isinstance(x, int) for x in (position, start, stop))
    return known and position >= 0 and start + position + extent <= stop
