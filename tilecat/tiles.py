"""Tile and vector types: where a value lives, its dtype, shape and layout.

`gl[bf16, "M", "K"]`, `st[bf16, 64, 64]`, `sv[f32, 64]`, `rt[f32, 64, 256]` and `rv[f32, 64]` build
the types of global layouts, shared tiles and vectors, register tiles and vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .dtypes import DType, DTypeVar, f32
from .errors import DTypeError, LayoutError
from .layouts import RegisterLayout, SharedLayout, SharedVectorLayout, VectorLayout
from .layouts.registers import Fragment, fragment_of


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
    """A `rows x cols` tile in the registers of a warpgroup or a warp: the mma fragment.

    Args:
        dtype: element type; elements of 16 and 8 bits share 32-bit registers.
        rows: a multiple of 16 a warp.
        cols: a multiple of 8 (32 for 8-bit types).
        warps: 4 (a warpgroup's tile) or 1 (a warp's).
        order: "row" (accumulator, A operand) or "col" (its transpose: B of a warp's mma).
        kept: the fragment of the type it was converted from, where that differs from its own.
    """

    dtype: DType
    rows: int
    cols: int
    warps: int = 4
    order: str = "row"
    kept: Fragment | None = None

    @cached_property
    def layout(self) -> RegisterLayout:
        """Which lane and register hold which element."""
        return RegisterLayout(
            self.dtype, self.rows, self.cols, self.warps, self.order, self.kept
        )

    @classmethod
    def of(cls, layout: RegisterLayout) -> RegTileType:
        """The type of a layout."""
        return cls(
            layout.dtype, layout.rows, layout.cols, layout.warps, layout.order, layout.kept
        )

    def cast(self, dtype: DType) -> RegTileType:
        """The type after converting every element where it is."""
        return RegTileType.of(self.layout.cast(dtype))

    def held_by(self, warps: int) -> RegTileType:
        """The same tile held by 1 or 4 warps."""
        return RegTileType(self.dtype, self.rows, self.cols, warps, self.order, self.kept)

    def vector(self, axis: str) -> RegVecType:
        """The type of a 32-bit vector with one value a row (axis "row") or column ("col")."""
        layout = self.layout.vector(f"{axis}s")
        dtype = self.dtype if self.dtype.bits == 32 else f32
        kept = None if layout.fragment == fragment_of(dtype) else layout.fragment
        side = "row" if layout.kind == "aligned" else "col"
        return RegVecType(dtype, layout.length, side, False, self.warps, kept)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols)."""
        return (self.rows, self.cols)

    @property
    def elements(self) -> int:
        """Elements a thread holds."""
        return self.layout.elements_per_thread

    @property
    def packed(self) -> bool:
        """Whether several elements share a 32-bit register."""
        return self.dtype.bits < 32

    @property
    def registers(self) -> int:
        """32-bit registers a thread."""
        return self.layout.registers_per_thread

    def __str__(self) -> str:
        """`rt[f32, 64, 256]`."""
        order = "" if self.order == "row" else ", col"
        warp = "" if self.warps == 4 else " of a warp"
        return f"rt[{self.dtype.name}, {self.rows}, {self.cols}{order}]{warp}"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class RegVecType:
    """A vector in registers: it goes with the rows or the columns of a register tile, or neither.

    Args:
        dtype: element type, 32 bits.
        length: number of values.
        axis: "row" (aligned): 2 values a thread for every 16 rows a warp, equal in the four lanes
            of a quad; "col" (orthogonal): 2 values a thread for every 8 columns, equal in the
            lanes of a column; "plain": no copies, value x in thread x mod threads. The names fit
            row-order tiles; a column-order tile exchanges them.
        partial: each lane of the quad still holds its own share of a sum (`row_sum(partial=True)`).
        warps: 4 or 1.
        kept: the fragment of the tile it goes with, where that differs from its dtype's.
    """

    dtype: DType
    length: int
    axis: str = "row"
    partial: bool = False
    warps: int = 4
    kept: Fragment | None = None

    @cached_property
    def layout(self) -> VectorLayout:
        """Which threads hold which value."""
        kinds = {"row": "aligned", "col": "orthogonal", "plain": "plain"}
        return VectorLayout(self.dtype, self.length, self.warps, kinds[self.axis], self.kept)

    def held_by(self, warps: int) -> RegVecType:
        """The same vector held by 1 or 4 warps."""
        return RegVecType(self.dtype, self.length, self.axis, self.partial, warps, self.kept)

    @property
    def whole(self) -> RegVecType:
        """The type of the finished sum."""
        return RegVecType(self.dtype, self.length, self.axis, False, self.warps, self.kept)

    @property
    def registers(self) -> int:
        """32-bit registers a thread."""
        return self.layout.registers_per_thread

    def __str__(self) -> str:
        """`rv[f32, 64]`."""
        extra = "" if self.axis == "row" else f", {self.axis}"
        warp = "" if self.warps == 4 else " of a warp"
        part = ", partial" if self.partial else ""
        return f"rv[{self.dtype.name}, {self.length}{extra}{part}]{warp}"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class SharedVecType:
    """A vector of `length` elements in shared memory."""

    dtype: DType
    length: int

    @property
    def layout(self) -> SharedVectorLayout:
        """Which bytes it takes."""
        return SharedVectorLayout(self.length * self.dtype.nbytes)

    @property
    def shape(self) -> tuple[int, ...]:
        """(length,)."""
        return (self.length,)

    @property
    def rows(self) -> int:
        """One, for reports."""
        return 1

    @property
    def cols(self) -> int:
        """Its length, for reports."""
        return self.length

    def __str__(self) -> str:
        """`sv[f32, 64]`."""
        return f"sv[{self.dtype.name}, {self.length}]"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class PeerType:
    """A shared tile or vector of another CTA of the cluster."""

    kind: SharedTileType | SharedVecType

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.kind.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        return self.kind.shape

    def __str__(self) -> str:
        """`st[bf16, 64, 64] of a peer`."""
        return f"{self.kind} of a peer"

    __repr__ = __str__


def place_type(kind: object) -> object:
    """The type of a shared tile or vector, of a peer's too."""
    return kind.kind if isinstance(kind, PeerType) else kind


@dataclass(frozen=True, repr=False)
class BarrierType:
    """An array of mbarriers in shared memory."""

    count: int

    def __str__(self) -> str:
        """`mbarrier[n]`."""
        return f"mbarrier[{self.count}]"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class BytesType:
    """Shared memory without elements: scratch of a warpgroup."""

    def __str__(self) -> str:
        """`bytes`."""
        return "bytes"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class GlobalType:
    """A global tensor: element type and named extents, outermost first.

    Args:
        dtype: a DType, or a DTypeVar that the call's arrays decide.
        dims: names; equal names must have equal extents, and a name that is also a compile-time
            parameter of the kernel is a compile-time extent. An int fixes the extent.
            `...` in front stands for any number of axes, as many as the call's array has.
        inout: read and written; may be the same array as another argument.
    """

    dtype: DType | DTypeVar
    dims: tuple[str | int, ...]
    inout: bool = False
    leading: bool = False

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.dims)

    def __str__(self) -> str:
        """`gl[bf16, M, K]`."""
        kind = "inout" if self.inout else "gl"
        dims = (*["..."] * self.leading, *map(str, self.dims))
        return f"{kind}[{self.dtype.name}, {', '.join(dims)}]"

    __repr__ = __str__


TileType = (
    ScalarType
    | SharedTileType
    | SharedVecType
    | PeerType
    | RegTileType
    | RegVecType
    | BarrierType
    | BytesType
    | GlobalType
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
    """`gl[dtype, "M", "K"]`: the type of a global tensor argument, rank 1 to 5.

    `inout[dtype, "M", "K"]` is one that the kernel reads and writes in place;
    `gl[dtype, ..., "M", "K"]` may have more axes in front.
    """

    def __init__(self, *, inout: bool = False):
        self.inout = inout

    def __getitem__(self, items: tuple[object, ...]) -> GlobalType:
        if not isinstance(items, tuple):
            items = (items,)
        dtype, *dims = items
        if not isinstance(dtype, DType | DTypeVar):
            _require_dtype("gl", dtype)
        leading = dims[:1] == [...]
        dims = dims[leading:]
        if not 1 <= len(dims) <= 5:
            raise LayoutError(f"gl: 1 to 5 dims, got {len(dims)}", hint='gl[tc.bf16, "M", "K"]')
        for dim in dims:
            if isinstance(dim, bool) or not (dim if isinstance(dim, str) else _is_extent(dim)):
                raise LayoutError(
                    f"gl: a dim is a name or a positive int, got {dim!r}",
                    hint='gl[tc.bf16, "M", 64]',
                )
        return GlobalType(dtype, tuple(dims), self.inout, leading)  # type: ignore[arg-type]


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


class _SharedVector:
    """`sv[dtype, length]`: the type of a shared vector, of whole 16-byte units."""

    def __getitem__(self, items: tuple[object, ...]) -> SharedVecType:
        if not isinstance(items, tuple) or len(items) != 2:
            raise LayoutError("sv: wants sv[dtype, length]")
        dtype, length = items
        _require_dtype("sv", dtype)
        _require_extents("sv", (length,))
        assert isinstance(dtype, DType) and isinstance(length, int), "checked above"
        if dtype.bits < 8:
            raise DTypeError(f"sv: elements are whole bytes, got {dtype.name}", hint="use u8")
        unit = 16 // dtype.nbytes
        if length % unit:
            low = length // unit * unit
            raise LayoutError(
                f"sv: a {dtype.name} vector has a multiple of {unit} elements (16 bytes), "
                f"got length={length}",
                hint=f"nearest legal: {low or unit} and {low + unit}",
            )
        return SharedVecType(dtype, length)


class _Register:
    """`rt[dtype, rows, cols]` or `rt[dtype, rows, cols, order]`: the type of a register tile.

    A warpgroup holds tiles of a multiple of 64 rows, a warp of 16 (of columns, for order "col").
    """

    def __getitem__(self, items: tuple[object, ...]) -> RegTileType:
        if not isinstance(items, tuple) or len(items) not in (3, 4):
            raise LayoutError("rt: wants rt[dtype, rows, cols] or rt[dtype, rows, cols, order]")
        dtype, rows, cols, *rest = items
        _require_dtype("rt", dtype)
        _require_extents("rt", (rows, cols))
        order = str(rest[0]) if rest else "row"
        if order not in ("row", "col"):
            raise LayoutError(f'rt: order is "row" or "col", got {rest[0]!r}')
        assert isinstance(dtype, DType), "checked above"
        assert isinstance(rows, int) and isinstance(cols, int), "checked above"
        along, across = (rows, cols) if order == "row" else (cols, rows)
        names = ("rows", "columns") if order == "row" else ("columns", "rows")
        if along % 16:
            raise LayoutError(
                f"rt: a register tile has a multiple of 16 {names[0]} (16 a warp; 64 for a "
                f"warpgroup), got {names[0]}={along}",
                hint=f"nearest legal: {along // 16 * 16 or 16} and {along // 16 * 16 + 16}",
            )
        step = 32 if dtype.bits == 8 else 8
        if across % step:
            low = across // step * step
            raise LayoutError(
                f"rt: {names[1]} of a {dtype.name} tile are a multiple of {step}, "
                f"got {names[1]}={across}",
                hint=f"nearest legal: {low or step} and {low + step}",
            )
        return RegTileType(dtype, rows, cols, 4 if along % 64 == 0 else 1, order)


class _RegisterVector:
    """`rv[dtype, length]` or `rv[dtype, length, axis]`: the type of a register vector."""

    def __getitem__(self, items: tuple[object, ...]) -> RegVecType:
        if not isinstance(items, tuple) or not 2 <= len(items) <= 4:
            raise LayoutError('rv: wants rv[dtype, length] or rv[dtype, length, "col"]')
        dtype, length, *rest = items
        _require_dtype("rv", dtype)
        _require_extents("rv", (length,))
        axis = rest[0] if rest else "row"
        partial = rest[1:] == ["partial"]
        if axis not in ("row", "col", "plain"):
            raise LayoutError(f'rv: axis is "row", "col" or "plain", got {axis!r}')
        assert isinstance(dtype, DType) and isinstance(length, int), "checked above"
        if dtype.bits != 32:
            raise DTypeError(
                f"rv: a register vector has 32-bit elements, got {dtype.name}",
                hint="use f32, and convert the tile it meets",
            )
        unit = {"row": 16, "col": 8, "plain": 1}[str(axis)]
        if length % unit:
            raise LayoutError(
                f"rv: the length of a {axis} vector is a multiple of {unit}, got {length}",
                hint=f"nearest legal: {length // unit * unit or unit} and "
                f"{length // unit * unit + unit}",
            )
        warps = 1 if axis == "row" and length % 64 else 4
        return RegVecType(dtype, length, str(axis), partial, warps)


gl = _Global()
inout = _Global(inout=True)
st = _Shared()
sv = _SharedVector()
rt = _Register()
rv = _RegisterVector()
