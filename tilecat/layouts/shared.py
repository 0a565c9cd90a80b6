"""Shared-memory tiles: panels of the swizzle width, as TMA writes and the tensor cores read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import DTypeError, LayoutError
from .linear import LinearMap

# PTX ISA, Tensors: Swizzling Modes. Widths in bytes, widest first; 96 (sm_103a) is not used.
SWIZZLES = (128, 64, 32)
# A swizzle moves 16-byte chunks, by the address bits from 7 up (128-byte lines).
CHUNK_BYTES = 16
LINE_BYTES = 128
# 8 lines of a panel make one pattern: 1024, 512 or 256 bytes (PTX ISA, Swizzling Modes: starting
# address of the repeating pattern).
PATTERN_LINES = 8
# TMA without swizzle wants 128 bytes (PTX ISA, cp.async.bulk.tensor).
PLAIN_ALIGNMENT = 128


def _is_index(x: Any) -> bool:
    return isinstance(x, int | np.integer)


@dataclass(frozen=True)
class SharedVectorLayout:
    """Where a shared vector's bytes lie: in order, from a multiple of `alignment` bytes."""

    num_bytes: int
    alignment: int = PLAIN_ALIGNMENT
    swizzle_bytes: int = 0


@dataclass(frozen=True)
class SharedLayout:
    """Which byte of a shared tile holds element (row, col).

    The contiguous axis (columns for order "row", rows for "col") is cut in panels as wide as
    the swizzle; a panel is (other axis) lines of swizzle_bytes, and panels lie one after the
    other. Inside a panel, byte b moves to b ^ ((b >> 7 & (swizzle_bytes / 16 - 1)) << 4): the
    16-byte chunk's index is XORed with the number of its 128-byte line, which is what TMA does
    on absolute addresses; hence `alignment`. Without swizzle there is one panel, plain row-major.

    Example: `SharedLayout.of(bf16, 64, 128)` takes swizzle 128: 2 panels of 64 columns, 8192
    bytes each. Element (3, 70): panel 1, line 3, byte 3 * 128 + 6 * 2 = 396 = chunk 24, offset
    12; chunk ^= 3 gives byte 444; with the panel 8192 + 444 = 8636.

    Args:
        dtype: element type of 1, 2, 4 or 8 bytes.
        rows: a multiple of 16 (order "col": of the chunk rule below).
        cols: a multiple of 16, of 32 for 8-bit types; order "col": a multiple of 8, since the
            B operand of wgmma takes N in steps of 8.
        order: "row": columns are contiguous; "col": rows are, physically the transpose.
        swizzle_bytes: 128, 64, 32, or 0 for none.
    """

    dtype: DType
    rows: int
    cols: int
    order: str
    swizzle_bytes: int

    def __post_init__(self) -> None:
        """Check the shape, the order and the swizzle."""
        _check_shape(self)
        _check_swizzle(self)

    @classmethod
    def of(
        cls,
        dtype: DType,
        rows: int,
        cols: int,
        order: str = "row",
        swizzle_bytes: int | None = None,
    ) -> SharedLayout:
        """The layout with the widest swizzle that divides the contiguous axis, or the given one.

        Raises:
            LayoutError: the shape or the swizzle is illegal.
            DTypeError: the elements are narrower than a byte.
        """
        if swizzle_bytes is None:
            plain = cls(dtype, rows, cols, order, 0)
            swizzle_bytes = next(w for w in SWIZZLES if plain.line_bytes % w == 0)
        return cls(dtype, rows, cols, order, swizzle_bytes)

    @property
    def contiguous(self) -> int:
        """Elements of the contiguous axis."""
        return self.cols if self.order == "row" else self.rows

    @property
    def num_lines(self) -> int:
        """Elements of the other axis: lines of a panel."""
        return self.rows if self.order == "row" else self.cols

    @property
    def line_bytes(self) -> int:
        """Bytes of the whole contiguous axis."""
        return self.contiguous * self.dtype.nbytes

    @property
    def pitch_bytes(self) -> int:
        """Bytes from one line of a panel to the next."""
        return self.swizzle_bytes or self.line_bytes

    @property
    def panel_elems(self) -> int:
        """Elements of the contiguous axis in one panel."""
        return self.pitch_bytes // self.dtype.nbytes

    @property
    def num_panels(self) -> int:
        """Panels along the contiguous axis."""
        return self.contiguous // self.panel_elems

    @property
    def panel_bytes(self) -> int:
        """Bytes of one panel, and from one to the next."""
        return self.pitch_bytes * self.num_lines

    @property
    def num_bytes(self) -> int:
        """Bytes of the tile."""
        return self.panel_bytes * self.num_panels

    @property
    def alignment(self) -> int:
        """Bytes the tile's start must be a multiple of: one swizzle pattern."""
        return PATTERN_LINES * self.swizzle_bytes or PLAIN_ALIGNMENT

    @property
    def chunk_mask(self) -> int:
        """Which bits of a 16-byte chunk's index the swizzle can flip: 7, 3, 1, or 0."""
        return max(self.swizzle_bytes // CHUNK_BYTES - 1, 0)

    def swizzle(self, byte: Any) -> Any:
        """Where the swizzle puts a byte of a tile without it: its own inverse."""
        return byte ^ ((byte // LINE_BYTES & self.chunk_mask) * CHUNK_BYTES)

    def byte_offset(self, row: Any, col: Any) -> Any:
        """Byte of element (row, col) from the tile's start.

        Args:
            row: int or array, in [0, rows).
            col: int or array, in [0, cols).

        Raises:
            LayoutError: outside the tile.
        """
        if _is_index(row) and _is_index(col):
            row, col = int(row), int(col)
        else:
            row, col = np.asarray(row, np.int64), np.asarray(col, np.int64)
        _check_inside(self, row, col)
        line, elem = (row, col) if self.order == "row" else (col, row)
        byte = line * self.pitch_bytes + elem % self.panel_elems * self.dtype.nbytes
        return elem // self.panel_elems * self.panel_bytes + self.swizzle(byte)

    def row_col(self, byte: Any) -> tuple[Any, Any]:
        """The element (row, col) that holds a byte: the inverse of `byte_offset`."""
        panel, inside = byte // self.panel_bytes, byte % self.panel_bytes
        plain = self.swizzle(inside)
        line = plain // self.pitch_bytes
        elem = panel * self.panel_elems + plain % self.pitch_bytes // self.dtype.nbytes
        return (line, elem) if self.order == "row" else (elem, line)

    def part(self, row: int, rows: int, col: int, cols: int) -> tuple[SharedLayout, int]:
        """The layout of the part of `rows x cols` at (row, col), and its bytes from the start.

        Raises:
            LayoutError: the tile's bytes there are no tile of their own.
        """
        extent = cols if self.order == "row" else rows
        if extent % self.panel_elems == 0:
            part = SharedLayout(self.dtype, rows, cols, self.order, self.swizzle_bytes)
            at = np.indices((rows, cols))
            places = self.byte_offset(at[0] + row, at[1] + col)
            start = int(places[0, 0])
            apart = (places - part.byte_offset(at[0], at[1])) != start
            if start % part.alignment == 0 and not apart.any():
                return part, start
        lines, elems = ("rows", "columns") if self.order == "row" else ("columns", "rows")
        several = "" if self.num_panels == 1 else f", of one panel or with all {lines}"
        raise LayoutError(
            f"slice: a part of this shared tile has {lines} from a multiple of {PATTERN_LINES} and "
            f"{elems} from and to one of {self.panel_elems}{several}, got rows {row} to "
            f"{row + rows} and columns {col} to {col + cols} of {self.rows} x {self.cols}",
            hint="make it two tiles, or give it a narrower swizzle",
        )

    def share(self, parts: int) -> SharedLayout:
        """The layout of one of `parts` equal parts along the contiguous axis, one after another.

        Raises:
            LayoutError: parts that are no whole panels.
        """
        if isinstance(parts, bool) or not isinstance(parts, int) or (
            parts < 1 or self.num_panels % parts
        ):
            axis = "columns" if self.order == "row" else "rows"
            raise LayoutError(
                f"part: parts of a shared tile are equal, and whole panels of {self.panel_elems} "
                f"{axis}, got {parts!r} of {self.rows} x {self.cols}",
                hint=f"a number that divides {self.num_panels}",
            )
        rows, cols = self.rows, self.cols
        if self.order == "row":
            cols //= parts
        else:
            rows //= parts
        return SharedLayout(self.dtype, rows, cols, self.order, self.swizzle_bytes)

    @property
    def panel_map(self) -> LinearMap:
        """One panel's plain byte (line * pitch_bytes + byte) to its place in shared memory.

        The map covers the power of two at or above panel_bytes; a panel with another number
        of lines uses the part below panel_bytes, which the map keeps to itself.
        """
        bits = (self.panel_bytes - 1).bit_length()
        return LinearMap(bits, bits, tuple(self.swizzle(1 << bit) for bit in range(bits)))


def _check_shape(layout: SharedLayout) -> None:
    dtype, rows, cols, order = layout.dtype, layout.rows, layout.cols, layout.order
    if order not in ("row", "col"):
        raise LayoutError(
            f"shared tile: order must be row or col, got order={order!r} (str)",
            hint='order="row" keeps columns contiguous, order="col" rows',
        )
    if dtype.bits < 8:
        raise DTypeError(
            f"shared tile: elements must be whole bytes, got dtype={dtype} (DType) "
            f"of {dtype.bits} bits",
            hint="hold packed elements in a u8 tile",
        )
    base = 32 if dtype.bits == 8 else 16
    rules = (("cols", cols, base), ("rows", rows, 16))
    if order == "col":
        rules = (("rows", rows, base), ("cols", cols, 8))
    for axis, extent, unit in rules:
        if extent <= 0 or extent % unit:
            raise LayoutError(
                f"shared tile: {axis} must be a multiple of {unit} for {dtype} in {order} order, "
                f"got {axis}={extent} ({type(extent).__name__})",
                hint=f"the nearest legal {axis} is {nearest_multiple(extent, unit)}",
            )


def _check_swizzle(layout: SharedLayout) -> None:
    given, width = layout.swizzle_bytes, layout.line_bytes
    legal = tuple(w for w in SWIZZLES if width % w == 0)
    if given == 0 or given in legal:
        return
    axis = "cols" if layout.order == "row" else "rows"
    named = " or ".join(str(w) for w in (*legal, 0))
    raise LayoutError(
        f"shared tile: swizzle_bytes must be 128, 64, 32 or 0 and divide the {width} bytes of "
        f"{axis}={layout.contiguous} {layout.dtype}, got swizzle_bytes={given} "
        f"({type(given).__name__})",
        hint=f"take swizzle_bytes={named}",
    )


def _check_inside(layout: SharedLayout, row: Any, col: Any) -> None:
    for axis, index, extent in (("row", row, layout.rows), ("col", col, layout.cols)):
        if isinstance(index, int):
            low = high = index
        elif index.size:
            low, high = int(index.min()), int(index.max())
        else:
            continue
        if low < 0 or high >= extent:
            raise LayoutError(
                f"shared tile: {axis} must be in [0, {extent}), got {axis} from {low} to {high}"
            )


def nearest_multiple(value: int, unit: int) -> int:
    """The positive multiple of `unit` nearest to `value`, the larger of two."""
    return max(unit, (2 * value + unit) // (2 * unit) * unit)
