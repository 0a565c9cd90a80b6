"""Complex tiles: pairs of real tiles, real and imaginary part, and their arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..builder import add
from ..dtypes import DType
from ..errors import LayoutError
from ..layouts.registers import PAIRS, fragment_of
from ..ops.views import ViewRegisters, part_registers
from ..tiles import RegTileType
from .functions import cast
from .maps import cos, exp, sin
from .values import RegTile, RegVec, SharedTile


@dataclass(frozen=True, eq=False, repr=False)
class ComplexTile:
    """`re + i im`, two tiles of one type: registers for arithmetic, shared as operands of mma.

    `+ - * /` take complex tiles, and real tiles, vectors and scalars; `conj()`, `T`, `abs2()`.
    mma_AB and its kin take complex operands with a complex accumulator.

    Args:
        re: the real parts.
        im: the imaginary parts.
        sum: `re + im` in shared memory, where a product of three mma wants it.
        conjugate: stands for `re - i im`: a shared tile's, which is not written anew.
    """

    re: Any
    im: Any
    sum: Any = None
    conjugate: bool = False

    def __repr__(self) -> str:
        """`complex rt[f32, 64, 64]`."""
        return f"complex {self.re!r}"

    @property
    def dtype(self) -> DType:
        """Element type of both parts."""
        return self.re.type.dtype  # type: ignore[no-any-return]

    @property
    def T(self) -> ComplexTile:
        """The transpose: the same registers or bytes."""
        return self.map(lambda part: part.T)

    def map(self, function: Callable[[Any], Any]) -> ComplexTile:
        """A linear function of both parts: `c.map(tc.swap_layout)`, `c.map(tc.load)`."""
        whole = None if self.sum is None else function(self.sum)
        return ComplexTile(function(self.re), function(self.im), whole, self.conjugate)

    def cast(self, dtype: DType) -> ComplexTile:
        """Both parts converted."""
        return ComplexTile(cast(self.re, dtype), cast(self.im, dtype))

    def conj(self) -> ComplexTile:
        """`re - i im`; of shared tiles it is a remark that mma heeds, and costs nothing."""
        if isinstance(self.re, SharedTile):
            return ComplexTile(self.re, self.im, None, not self.conjugate)
        return ComplexTile(self.re, -self.im)

    def abs2(self) -> Any:
        """`re**2 + im**2`, a real tile."""
        return self.re * self.re + self.im * self.im

    def exp(self, *, accurate: bool = False) -> ComplexTile:
        """`e**re (cos im + i sin im)`, with the errors of `tc.exp`, `tc.cos` and `tc.sin`.

        Args:
            accurate: as those functions take it.
        """
        size = exp(self.re, accurate=accurate)
        return ComplexTile(
            size * cos(self.im, accurate=accurate), size * sin(self.im, accurate=accurate)
        )

    def __neg__(self) -> ComplexTile:
        return ComplexTile(-self.re, -self.im)

    def __add__(self, other: Any) -> ComplexTile:
        if not isinstance(other, ComplexTile):
            return ComplexTile(self.re + other, self.im)
        return ComplexTile(self.re + other.re, self.im + other.im)

    __radd__ = __add__

    def __sub__(self, other: Any) -> ComplexTile:
        if not isinstance(other, ComplexTile):
            return ComplexTile(self.re - other, self.im)
        return ComplexTile(self.re - other.re, self.im - other.im)

    def __rsub__(self, other: Any) -> ComplexTile:
        return -self + other

    def __mul__(self, other: Any) -> ComplexTile:
        if not isinstance(other, ComplexTile):
            return ComplexTile(self.re * other, self.im * other)
        re = self.re * other.re - self.im * other.im
        return ComplexTile(re, self.re * other.im + self.im * other.re)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> ComplexTile:
        if not isinstance(other, ComplexTile):
            return ComplexTile(self.re / other, self.im / other)
        size, top = other.abs2(), self * other.conj()
        return ComplexTile(top.re / size, top.im / size)


def complex_tile(re: Any, im: Any, *, sum: Any = None) -> ComplexTile:
    """A complex tile of two real ones of one type, registers or shared.

    Args:
        re: the real parts.
        im: the imaginary parts.
        sum: of shared tiles, `re + im`, for `tc.complex_mma(..., products=3)`.

    Raises:
        LayoutError: the parts are not tiles of one type.

    Scope: any. PTX: none.
    """
    parts = [re, im] if sum is None else [re, im, sum]
    for part in parts:
        if not isinstance(part, RegTile | RegVec | SharedTile) or part.type != re.type:
            raise LayoutError(
                f"complex_tile: the parts are tiles of one type, got re={re!r}, im={im!r}"
                + ("" if sum is None else f", sum={sum!r}"),
                hint="tc.complex_tile(tc.load(re), tc.load(im))",
            )
    return ComplexTile(re, im, sum)


def complex_pairs(tile: RegTile) -> ComplexTile:
    """The complex tile that a register tile of interleaved parts is: nothing moves.

    Columns 2c and 2c + 1 of the tile (rows, in column order) are real and imaginary part of column
    c, as `complex64` has them in memory. Lanes hold both: whether a register is real or imaginary
    is the lowest bit of its number. The parts share the tile's registers, so what is written to
    them is written to the tile. Cast to tf32 they are operands of mma.

    Args:
        tile: f32 or s32, in the fragment of an accumulator (as loaded), or with longer runs:
            `rt[f32, 16, 64, "row", 8]`, whose parts have runs of 4.

    Raises:
        LayoutError: elements of fewer bits, which share registers, or another fragment.

    Scope: warpgroup, warp. PTX: none.
    """
    if not isinstance(tile, RegTile):
        raise LayoutError(
            f"complex_pairs: wanted a register tile, got {tile!r} ({type(tile).__name__})",
            hint="tc.load(tile) brings a shared tile into registers",
        )
    kind, steps = tile.type, (1, 2) if tile.type.order == "row" else (2, 1)
    held = kind.layout.fragment
    unit = 2 * max(8, held.step // 2)  # a part has whole steps of its fragment
    if held.run % 2 or kind.dtype.bits != 32 or kind.shape[steps[1] - 1] % unit:
        raise LayoutError(
            f"complex_pairs: wanted a 32-bit tile whose pairs are {unit // 2} or a multiple, two "
            f"adjacent elements a lane, got {kind}",
            hint="load the parts apart: tc.complex_tile(re, im)",
        )
    rows, cols = kind.rows // steps[0], kind.cols // steps[1]
    part = replace(held, run=held.run // 2)
    kept = None if part == fragment_of(kind.dtype) else part
    half = RegTileType(kind.dtype, rows, cols, kind.warps, kind.order, kept)
    views = []
    for place in (0, 1):
        row, col = (0, place) if kind.order == "row" else (place, 0)
        registers = part_registers(kind.layout, half.layout, row, col, steps)
        assert registers is not None, "a lane holds both of a pair"
        views.append(RegTile(add(ViewRegisters(tile.value, registers, half)).result))
    return ComplexTile(views[0], views[1])


def complex_rows(tile: RegTile) -> ComplexTile:
    """The complex tile that a tile with real and imaginary rows is: nothing moves.

    Of each 16 rows of a warp the first 8 are real parts, the other 8 imaginary ones, of 8 rows of
    two sequences side by side: the left half of the columns is one, the right half the other. The
    complex tile has, of each 16 rows, 8 of the one and 8 of the other sequence, and half as many
    columns. A lane holds rows r and r + 8, so all four are its own. The parts share the tile's
    registers, so what is written to them is written to the tile.

    Args:
        tile: of 16 or 32 bits, in row order, in the fragment of an accumulator; a multiple of 16
            columns.

    Raises:
        LayoutError: another order or fragment.

    Scope: warpgroup, warp. PTX: none.
    """
    if not isinstance(tile, RegTile):
        raise LayoutError(
            f"complex_rows: wanted a register tile, got {tile!r} ({type(tile).__name__})",
            hint="tc.load(tile) brings a shared tile into registers",
        )
    kind = tile.type
    if kind.order != "row" or kind.layout.fragment != PAIRS or kind.cols % 16:
        raise LayoutError(
            f"complex_rows: wanted a tile in row order, two adjacent elements a lane, of a "
            f"multiple of 16 columns, got {kind}",
            hint="tc.complex_tile(re, im) of parts that are tiles of their own",
        )
    half = RegTileType(kind.dtype, kind.rows, kind.cols // 2, kind.warps, "row", kind.kept)
    thread, index = np.indices((half.layout.threads, half.layout.elements_per_thread))
    row, col = half.layout.row_col(thread, index)
    parts, per = [], kind.layout.elements_per_register
    for part in (0, 1):
        there = row // 16 * 16 + 8 * part + row % 8, col + kind.cols // 2 * (row // 8 % 2)
        owner, place = kind.layout.index_of(*there)
        assert (owner == thread).all(), "a lane holds both parts of both sequences"
        registers = tuple(int(i) // per for i in place[0, ::per])
        parts.append(RegTile(add(ViewRegisters(tile.value, registers, half)).result))
    return ComplexTile(parts[0], parts[1])
