"""Global tensors inside a kernel, their views, and places in them. No view copies anything.

    A[row, col]                a place: tile coordinates on the axes that the tile covers
    A.at(row, col)             a place at element coordinates
    A.T, A.permute(2, 0, 1)    axes in another order; tiles cover the last two
    A[3, :, :]                 the axes left when one is fixed
    A[first:, :]               an axis that starts further on
    A[first:last, :]           a part: outside it loads give zero and stores write nothing
    A[::-1, :]                 an axis backwards: time reversed
    A.broadcast(n)             one more axis in front, along which all elements are equal
    A.paged(table)             two axes, pages and rows of a page, as one axis of rows
    A[index, col]              rows gathered (or scattered) by a vector of s32: in registers for
                               registers, in shared memory for a shared tile

Example: one sequence of a packed batch Q[total, heads, D], with `starts` its cu_seqlens:

    first, last = tc.load(starts[b], s32), tc.load(starts[b + 1], s32)
    q = Q[first:last, head, :]          # rank 2; q[i, 0] is its i-th block of rows
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..builder import add, current
from ..dtypes import DType
from ..errors import LayoutError, ScopeError
from ..ir import TensorArg
from ..ops.places import BROADCAST, Bounds, tma_reaches
from ..ops.scalar import Extent, require_s32
from .regions import Axis, Finder, Pages, Region, inner_axis, is_vector, order_of
from .scalars import Scalar, binary, divisor, operand_of


class GlobalTensor:
    """A tensor argument inside a kernel, or a view of one (see the module).

    Extents are run-time scalars, or ints where a compile-time parameter fixes them.
    """

    __slots__ = ("arg", "axes", "fixed")

    def __init__(
        self, arg: TensorArg, axes: tuple[Axis, ...] | None = None,
        fixed: tuple[tuple[int, Any], ...] = (),
    ):  # fmt: skip
        self.arg = arg
        self.axes = tuple(Axis(d) for d in range(arg.type.rank)) if axes is None else axes
        self.fixed = fixed
        if axes is not None and (fixed or not all(map(_is_whole, axes))):
            current().kernel.facts["views"] = True

    @property
    def dtype(self) -> DType:
        """Element type of this specialisation."""
        assert isinstance(self.arg.type.dtype, DType), "resolved before tracing"
        return self.arg.type.dtype

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.axes)

    @property
    def order(self) -> str:
        """"col" when the axis before the last is contiguous in memory, else "row"."""
        self.arg.asked = True
        return order_of(self.arg, tuple(inner_axis(axis) for axis in self.axes[-2:])) or "row"

    @property
    def tma(self) -> bool:
        """Whether TMA can move tiles of it, known while tracing: decides `load_async`."""
        self.arg.asked = True
        dims = tuple(inner_axis(axis) for axis in self.axes[-2:])
        ended = any(axis.stop is not None for axis in self.axes)
        ended |= any(axis.origin is not None for axis in self.axes[-2:])
        starts = (divisor(a.start) for a in self.axes if a.dim == self.arg.contiguous)
        whole = not ended and all(tma_reaches(self.arg, start) for start in starts)
        plain = BROADCAST not in dims and order_of(self.arg, dims)
        return bool(self.arg.tma and whole and plain)

    @property
    def tma_stores(self) -> bool:
        """Whether TMA can store tiles of it, known while tracing: decides `store_async`.

        As `tma`, and its contiguous axis is a whole number of 16 bytes.
        """
        return self.tma and self.arg.ends_whole

    def __repr__(self) -> str:
        """Its name and type."""
        return f"{self.arg.name}: {self.arg.type}"

    def size(self, dim: int) -> Any:
        """Extent of an axis, in elements; negative counts from the last."""
        if not isinstance(dim, int) or not -self.rank <= dim < self.rank:
            raise LayoutError(f"{self.arg.name}.size: an axis of {self}, got dim={dim!r}")
        axis = self.axes[dim]
        if axis.dim is None:
            return axis.extent
        if axis.origin is not None:
            return binary("sub", binary("add", axis.origin, 1), axis.start)
        if axis.stop is not None:
            return binary("sub", axis.stop, axis.start)
        whole = self._extent(axis.dim)
        if axis.pages is not None:
            whole = binary("mul", axis.pages.table.size(0), axis.pages.size)
        return binary("sub", whole, axis.start)

    def _extent(self, dim: int) -> Any:
        static = self.arg.static[dim] if self.arg.static else None
        return static if static is not None else Scalar(add(Extent(self.arg, dim)).result)

    @property
    def rows(self) -> Any:
        """Extent of the axis before the last."""
        return self.size(-2)

    @property
    def cols(self) -> Any:
        """Extent of the last axis."""
        return self.size(-1)

    @property
    def T(self) -> GlobalTensor:
        """Its transpose: the last two axes exchanged."""
        if self.rank < 2:
            raise LayoutError(f"{self.arg.name}.T: wants two axes, got {self}")
        *first, rows, cols = self.axes
        return GlobalTensor(self.arg, (*first, cols, rows), self.fixed)

    def permute(self, *order: int) -> GlobalTensor:
        """Its axes in another order; tiles cover the last two.

        Example: `Q.permute(0, 2, 1, 3)` of Q[batch, seq, head, D] is indexed
        `[batch, head, row, col]`, and its tiles are rows of `seq` and columns of `D`.
        """
        if sorted(order) != list(range(self.rank)):
            raise LayoutError(
                f"{self.arg.name}.permute: names each of {self.rank} axes once, got {order}"
            )
        return GlobalTensor(self.arg, tuple(self.axes[i] for i in order), self.fixed)

    def fetch(self, num_bytes: int) -> GlobalTensor:
        """The tensor, of whose TMA loads in this kernel a miss fetches 128 bytes into L2, not 256.

        For rows of 256 bytes that tiles take whole: what is fetched beside a box of 128 bytes is
        asked for anyway, and doing so twice takes 3 % (keys and values of 128 bf16, 256 MiB, H200).

        Args:
            num_bytes: 128 or 256.
        """
        if num_bytes not in (128, 256):
            raise LayoutError(f"{self.arg.name}.fetch: 128 or 256 bytes, got {num_bytes!r}")
        self.arg.fetch_bytes = num_bytes
        return self

    def broadcast(self, extent: Any) -> GlobalTensor:
        """One more axis in front, `extent` long, along which all elements are equal (stride 0).

        Example: `bias.broadcast(M)[i, j]` is a tile whose rows are all `bias`.
        """
        require_s32(f"{self.arg.name}.broadcast", operand_of(extent, "broadcast"))
        return GlobalTensor(self.arg, (Axis(None, extent=extent), *self.axes), self.fixed)

    def paged(
        self, table: GlobalTensor, dim: int = 0, *, size: int | None = None
    ) -> GlobalTensor:
        """Axes `dim` (pages) and `dim + 1` (rows of a page) as one axis of rows.

        Row r is row r % size of page `table[r // size]`; rows beyond the table are outside. The
        page's size is an int in the signature or a compile-time parameter. Tiles are whole pages
        or parts of one; registers hold at most one page.

        Args:
            table: pages in order, s32, one axis: `table[b, :]`.
            dim: the axis of pages.
            size: rows of a page where the signature leaves them open; nothing checks that they
                are so many.
        """
        if not isinstance(table, GlobalTensor) or table.rank != 1 or table.dtype.name != "s32":
            raise LayoutError(
                f"{self.arg.name}.paged: a page table is an s32 tensor of one axis, got {table!r}",
                hint=f"{self.arg.name}.paged(table[b, :])",
            )
        pages, rows = self.axes[dim : dim + 2]
        size = self.size(dim + 1) if size is None else size
        if not isinstance(size, int) or pages.dim is None or rows.dim is None:
            raise LayoutError(
                f"{self.arg.name}.paged: rows of a page are known at compile time, got {self}",
                hint=f'{self.arg.name}: gl[bf16, "pages", 64, "D"]',
            )
        axis = Axis(pages.dim, pages=Pages(table, rows.dim, size))
        return GlobalTensor(
            self.arg, (*self.axes[:dim], axis, *self.axes[dim + 2 :]), self.fixed
        )

    def at(self, *coords: Any) -> GlobalTile:
        """The place whose first element has these coordinates.

        TMA reaches a place at a multiple of 16 bytes along the contiguous axis, known while
        tracing: of bf16, `A.at(i, 8 * j)`; stores at none that is negative there.
        """
        self._check_count(coords)
        for coord in coords:
            if not is_vector(coord):
                require_s32(self.arg.name, operand_of(coord, self.arg.name))
        return GlobalTile(self, coords, in_tiles=False)

    def __getitem__(self, index: Any) -> Any:
        """A place at tile coordinates, or a view where an index is a slice (see the module)."""
        items = index if isinstance(index, tuple) else (index,)
        self._check_count(items)
        if any(isinstance(item, slice) for item in items):
            return self._sliced(items)
        for item in items:
            if not is_vector(item):
                require_s32(self.arg.name, operand_of(item, self.arg.name))
        return GlobalTile(self, items)

    def __setitem__(self, index: Any, new: Any) -> None:
        """An error: places are stored to by a function."""
        raise ScopeError(
            f"{self.arg.name}: a place is stored to, not assigned, got {new!r}",
            hint=f"tc.store({self.arg.name}[...], tile)",
        )

    def _check_count(self, items: tuple[Any, ...]) -> None:
        if len(items) != self.rank:
            dims = [str(d).lower() for d in self.arg.type.dims]
            names = dims if self.rank == len(dims) else [f"i{n}" for n in range(self.rank)]
            raise LayoutError(
                f"{self.arg.name}: one index an axis, got {len(items)} for {self.arg.type}"
                + ("" if self.rank == len(dims) else f", of which {self.rank} are left"),
                hint=f"{self.arg.name}[{', '.join(names)}]",
            )

    def _sliced(self, items: tuple[Any, ...]) -> GlobalTensor:
        axes: list[Axis] = []
        fixed = list(self.fixed)
        for axis, item in zip(self.axes, items, strict=True):
            if isinstance(item, slice):
                axes.append(self._slice(axis, item))
                continue
            require_s32(self.arg.name, operand_of(item, self.arg.name))
            if axis.pages is not None:
                raise LayoutError(f"{self.arg.name}: a paged axis cannot be fixed, got {item!r}")
            if axis.dim is not None:
                back = axis.origin is not None
                origin, step = (axis.origin, "sub") if back else (axis.start, "add")
                fixed.append((axis.dim, binary(step, origin, item)))
        return GlobalTensor(self.arg, tuple(axes), tuple(fixed))

    def _slice(self, axis: Axis, item: slice) -> Axis:
        if item.step == -1 and item.start is None and item.stop is None:
            return self._reversed(axis)
        if item.step not in (None, 1):
            raise LayoutError(
                f"{self.arg.name}: slices have no step but -1 of a whole axis, got {item.step!r}",
                hint=f"{self.arg.name}[first:last, :][::-1, :]" if item.step == -1
                else "a strided array can be an argument",
            )
        bounds = [b for b in (item.start, item.stop) if b is not None]
        for bound in bounds:
            require_s32(self.arg.name, operand_of(bound, self.arg.name))
            if isinstance(bound, int) and bound < 0:
                raise LayoutError(
                    f"{self.arg.name}: slices count from the first element, got {bound}",
                    hint=f"{self.arg.name}.rows - n",
                )
        start = 0 if item.start is None else item.start
        if axis.dim is None:
            extent = axis.extent if item.stop is None else item.stop
            return replace(axis, extent=binary("sub", extent, start))
        if axis.origin is not None:
            return _slice_backwards(axis, start, item.stop)
        stop = axis.stop if item.stop is None else binary("add", axis.start, item.stop)
        return replace(axis, start=binary("add", axis.start, start), stop=stop)

    def _reversed(self, axis: Axis) -> Axis:
        if axis.dim is None:
            return axis
        if axis.pages is not None:
            raise LayoutError(f"{self.arg.name}: a paged axis has no step, got -1")
        if axis.origin is not None:
            return replace(axis, stop=binary("add", axis.origin, 1), origin=None)
        end = self._extent(axis.dim) if axis.stop is None else axis.stop
        return replace(axis, origin=binary("sub", end, 1))


def _is_whole(axis: Axis) -> bool:
    """Whether it is an axis of the tensor, all of it: TMA reaches what it reaches of the tensor."""
    plain = axis.dim is not None and axis.stop is axis.pages is axis.origin is None
    return plain and isinstance(axis.start, int) and axis.start == 0


def _slice_backwards(axis: Axis, start: Any, stop: Any) -> Axis:
    """`axis[start:stop]` of an axis that runs backwards from its origin."""
    origin = binary("sub", axis.origin, start)
    if stop is None and axis.stop is None:
        return replace(axis, origin=origin)
    low = axis.start if stop is None else binary("sub", binary("add", axis.origin, 1), stop)
    return replace(axis, start=low, stop=binary("add", origin, 1), origin=origin)


class GlobalTile:
    """A place in a global tensor; the tile or vector it meets decides its extents."""

    __slots__ = ("tensor", "index", "in_tiles")

    def __init__(self, tensor: GlobalTensor, index: tuple[Any, ...], *, in_tiles: bool = True):
        self.tensor = tensor
        self.index = index
        self.in_tiles = in_tiles

    @property
    def arg(self) -> TensorArg:
        """The tensor argument."""
        return self.tensor.arg

    @property
    def order(self) -> str:
        """The view's order."""
        return self.tensor.order

    def __repr__(self) -> str:
        """Its tensor."""
        return f"a place in {self.tensor!r}"

    def element(self) -> tuple[tuple[Any, ...], Bounds]:
        """Coordinates of one element, and the view's bounds."""
        region = self.region()
        return region.coords, region.bounds

    def region(self, *extents: int) -> Region:
        """Where a tile (two extents), a vector (one) or an element (none) lies.

        Raises:
            LayoutError: more extents than axes, or rows on several pages.
        """
        whole = self.regions(*extents)
        if len(whole) > 1:
            size = next(a.pages.size for a in self.tensor.axes if a.pages is not None)
            raise LayoutError(
                f"{self.arg.name}: this moves rows of one page, of {size}, got {extents[0]} rows",
                hint="load it into a shared tile: tc.load_async, tc.copy",
            )
        return whole[0]

    def regions(self, *extents: int) -> list[Region]:
        """The regions, one after the other along the rows, that a tile lies in: one a page."""
        view = self.tensor
        if view.rank < len(extents):
            raise LayoutError(
                f"{self.arg.name}: a tile covers two axes, got {self.arg.name}: {self.arg.type}"
                + ("" if view.rank == self.arg.type.rank else f", of which {view.rank} is left")
            )
        first = view.rank - len(extents)
        cuts = 1
        if extents and (pages := view.axes[first].pages) is not None:
            cuts = self._cuts(pages, extents[0])
        return [Finder(self, extents, first, cut, cuts).region() for cut in range(cuts)]

    def _cuts(self, pages: Pages, rows: int) -> int:
        """Pages that `rows` rows lie in."""
        if rows <= pages.size and pages.size % rows == 0:
            return 1
        if rows % pages.size == 0:
            return rows // pages.size
        raise LayoutError(
            f"{self.arg.name}: a tile is whole pages or a whole part of one, "
            f"got {rows} rows and pages of {pages.size}"
        )
