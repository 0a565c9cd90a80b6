"""Tile and vector types: where a value lives, its dtype, shape and layout.

`gl[bf16, "M", "K"]`, `st[bf16, 64, 64]`, `rt[f32, 64, 256]` and `rv[f32, 64]` build the types of
global layouts, shared tiles, register tiles and register vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .dtypes import DType, DTypeVar
from .errors import DTypeError, LayoutError
from .layouts import RegisterLayout, SharedLayout


@dataclass(frozen=True, repr=False)
class ScalarType:
    """A run-time scalar: s32, u32, s64, u64, f32 or pred."""

    dtype: DType

    def __str__(self) -> str:
        """The dtype's name."""
        return self.dtype.name

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class SharedTileType:
    """A `rows x cols` tile in shared memory; the swizzle is the widest its contiguous axis allows.

    Args:
        dtype: element type.
        rows: logical rows.
        cols: logical columns.
        order: "row" (columns contiguous) or "col" (rows contiguous).
        swizzle_bytes: None for the widest; 128, 64, 32 or 0 to force one.
    """

    dtype: DType
    rows: int
    cols: int
    order: str = "row"
    swizzle_bytes: int | None = None

    @cached_property
    def layout(self) -> SharedLayout:
        """Which byte holds which element."""
        return SharedLayout.of(self.dtype, self.rows, self.cols, self.order, self.swizzle_bytes)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols)."""
        return (self.rows, self.cols)

    def __str__(self) -> str:
        """`st[bf16, 64, 64]`."""
        order = "" if self.order == "row" else ", col"
        return f"st[{self.dtype.name}, {self.rows}, {self.cols}{order}]"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class RegTileType:
    """A `rows x cols` tile in the registers of a warpgroup: the mma accumulator fragment.

    Args:
        dtype: element type; 16-bit elements pack in pairs.
        rows: 64 (16 a warp).
        cols: a multiple of 8 for 32-bit elements, of 16 for 16-bit ones.
    """

    dtype: DType
    rows: int
    cols: int

    @cached_property
    def layout(self) -> RegisterLayout:
        """Which lane and register hold which element."""
        return RegisterLayout(self.dtype, self.rows, self.cols, self.rows // 16)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols)."""
        return (self.rows, self.cols)

    @property
    def elements(self) -> int:
        """Elements a thread holds."""
        return self.rows * self.cols // (32 * self.rows // 16)

    @property
    def packed(self) -> bool:
        """Whether two elements share a 32-bit register."""
        return self.dtype.bits == 16

    @property
    def registers(self) -> int:
        """32-bit registers a thread."""
        return self.elements * self.dtype.bits // 32

    def __str__(self) -> str:
        """`rt[f32, 64, 256]`."""
        return f"rt[{self.dtype.name}, {self.rows}, {self.cols}]"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class RegVecType:
    """One value a row (axis "row") or a column (axis "col") of a warpgroup's register tile.

    Args:
        dtype: element type, 32 bits.
        length: rows or columns of the tile it goes with.
        axis: "row": 2 values a thread (rows r and r + 8), equal in the four lanes of a quad;
            "col": 2 values a thread for every 8 columns, equal in the lanes of a column.
        partial: each lane of the quad still holds its own share of a sum (`row_sum(partial=True)`).
    """

    dtype: DType
    length: int
    axis: str = "row"
    partial: bool = False

    @property
    def registers(self) -> int:
        """32-bit registers a thread."""
        return 2 if self.axis == "row" else self.length // 4

    def __str__(self) -> str:
        """`rv[f32, 64]`."""
        extra = "" if self.axis == "row" else ", col"
        return f"rv[{self.dtype.name}, {self.length}{extra}{', partial' if self.partial else ''}]"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class BarrierType:
    """An array of mbarriers in shared memory."""

    count: int

    def __str__(self) -> str:
        """`mbarrier[n]`."""
        return f"mbarrier[{self.count}]"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class GlobalType:
    """A global tensor: element type and named extents, outermost first.

    Args:
        dtype: a DType, or a DTypeVar that the call's arrays decide.
        dims: names; equal names must have equal extents, and a name that is also a compile-time
            parameter of the kernel is a compile-time extent. An int fixes the extent.
    """

    dtype: DType | DTypeVar
    dims: tuple[str | int, ...]

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.dims)

    def __str__(self) -> str:
        """`gl[bf16, M, K]`."""
        return f"gl[{self.dtype.name}, {', '.join(str(d) for d in self.dims)}]"

    __repr__ = __str__


TileType = (
    ScalarType | SharedTileType | RegTileType | RegVecType | BarrierType | GlobalType
)


def _require_dtype(kind: str, dtype: object) -> None:
    if not isinstance(dtype, DType):
        raise DTypeError(
            f"{kind}: the first item is a dtype, got {dtype!r} ({type(dtype).__name__})",
            hint=f"{kind}[tc.bf16, 64, 64]",
        )


def _require_extents(kind: str, extents: tuple[object, ...]) -> None:
    for extent in extents:
        if isinstance(extent, bool) or not isinstance(extent, int) or extent <= 0:
            raise LayoutError(
                f"{kind}: tile extents are compile-time positive ints, "
                f"got {extent!r} ({type(extent).__name__})",
                hint="take extents from the kernel's keyword parameters, which are compile-time",
            )


def _is_extent(value: object) -> bool:
    return isinstance(value, int) and value > 0


class _Global:
    """`gl[dtype, "M", "K"]`: the type of a global tensor argument, rank 1 to 5."""

    def __getitem__(self, items: tuple[object, ...]) -> GlobalType:
        if not isinstance(items, tuple):
            items = (items,)
        dtype, *dims = items
        if not isinstance(dtype, DType | DTypeVar):
            _require_dtype("gl", dtype)
        if not 1 <= len(dims) <= 5:
            raise LayoutError(f"gl: 1 to 5 dims, got {len(dims)}", hint='gl[tc.bf16, "M", "K"]')
        for dim in dims:
            if isinstance(dim, bool) or not (dim if isinstance(dim, str) else _is_extent(dim)):
                raise LayoutError(
                    f"gl: a dim is a name or a positive int, got {dim!r}",
                    hint='gl[tc.bf16, "M", 64]',
                )
        return GlobalType(dtype, tuple(dims))  # type: ignore[arg-type]


class _Shared:
    """`st[dtype, rows, cols]` or `st[dtype, rows, cols, order]`: the type of a shared tile."""

    def __getitem__(self, items: tuple[object, ...]) -> SharedTileType:
        if not isinstance(items, tuple) or len(items) not in (3, 4):
            raise LayoutError("st: wants st[dtype, rows, cols] or st[dtype, rows, cols, order]")
        dtype, rows, cols, *rest = items
        _require_dtype("st", dtype)
        _require_extents("st", (rows, cols))
        order = rest[0] if rest else "row"
        if order not in ("row", "col"):
            raise LayoutError(f'st: order is "row" or "col", got {order!r}')
        tile = SharedTileType(dtype, rows, cols, str(order))  # type: ignore[arg-type]
        _ = tile.layout  # raises where no layout exists, at the user's line
        return tile


class _Register:
    """`rt[dtype, 64, cols]`: the type of a warpgroup's register tile."""

    def __getitem__(self, items: tuple[object, ...]) -> RegTileType:
        if not isinstance(items, tuple) or len(items) != 3:
            raise LayoutError("rt: wants rt[dtype, rows, cols]")
        dtype, rows, cols = items
        _require_dtype("rt", dtype)
        _require_extents("rt", (rows, cols))
        if rows != 64:
            raise LayoutError(
                f"rt: a warpgroup's register tile has 64 rows (16 a warp), got rows={rows}",
                hint="use one 64-row tile a consumer",
            )
        assert isinstance(dtype, DType) and isinstance(cols, int), "checked above"
        step = 16 if dtype.bits == 16 else 8
        if cols % step:
            low = cols // step * step
            raise LayoutError(
                f"rt: columns of a {dtype.name} tile are a multiple of {step}, got cols={cols}",
                hint=f"nearest legal widths: {low or step} and {low + step}",
            )
        return RegTileType(dtype, rows, cols)


class _RegisterVector:
    """`rv[dtype, length]` or `rv[dtype, length, "col"]`: the type of a register vector."""

    def __getitem__(self, items: tuple[object, ...]) -> RegVecType:
        if not isinstance(items, tuple) or not 2 <= len(items) <= 4:
            raise LayoutError('rv: wants rv[dtype, length] or rv[dtype, length, "col"]')
        dtype, length, *rest = items
        _require_dtype("rv", dtype)
        _require_extents("rv", (length,))
        axis = rest[0] if rest else "row"
        partial = rest[1:] == ["partial"]
        if axis not in ("row", "col"):
            raise LayoutError(f'rv: axis is "row" or "col", got {axis!r}')
        if axis == "row" and length != 64:
            raise LayoutError(f"rv: a row vector of a warpgroup has 64 values, got {length}")
        return RegVecType(dtype, length, str(axis), partial)  # type: ignore[arg-type]


gl = _Global()
st = _Shared()
rt = _Register()
rv = _RegisterVector()
