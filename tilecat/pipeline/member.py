"""Consumers as the thread that issues their products sees them: one by one, or two as one."""

from __future__ import annotations

from ..errors import LayoutError
from ..ops.memory import AllocShared
from ..tiles import SharedTileType, SharedVecType


class Member(int):
    """The number of a consumer whose products are traced; of a pair, the first's.

    A pair's tile of an input is both consumers' tiles, which lie one behind the other: one of 128
    rows, where its layout says so.
    """

    paired: bool = False

    @classmethod
    def of(cls, number: int, *, paired: bool) -> Member:
        """Consumer `number`, or the pair that begins with it."""
        member = cls(number)
        member.paired = paired
        return member

    def __add__(self, other: int) -> Member:  # type: ignore[override]
        """The number of a tile further on: of a pair, of two in a row."""
        return Member.of(int(self) + int(other), paired=self.paired)

    __radd__ = __add__  # type: ignore[assignment]

    @property
    def last(self) -> int:
        """The number of its last tile."""
        return int(self) + self.paired

    def tile_of(self, alloc: AllocShared) -> SharedTileType | SharedVecType:
        """The type of its tile of an input.

        Raises:
            LayoutError: the tiles of a pair are no tile together.
        """
        kind = alloc.tile
        if not self.paired or not isinstance(kind, SharedTileType):
            return kind
        both = SharedTileType(kind.dtype, 2 * kind.rows, kind.cols, kind.order)
        one, two = kind.layout, both.layout
        if one.swizzle_bytes != two.swizzle_bytes or two.byte_offset(kind.rows, 0) != (
            alloc.stride_bytes
        ):
            wide = "columns" if kind.order == "row" else "rows"
            raise LayoutError(
                f"input: two tiles {kind} in a row are no tile of twice the rows, as they are with "
                f"{wide} of one swizzle width, {one.swizzle_bytes} bytes",
                hint=f"{wide} of at most {one.panel_elems} elements, in more steps or several "
                "inputs",
            )
        alloc.together = 2
        return both
