"""Masks of register tiles by row and column: everything a linear condition of the two says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import DTypeError, LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import RegTileType, ScalarType, TileType
from .elements import computed_in, pack, register_kind, require_numbers, unpack
from .scalar import Operand, require_s32

# What is compared: coefficients of row and column.
POSITIONS = {"row": (1, 0), "col": (0, 1), "col - row": (-1, 1)}


@dataclass(eq=False)
class Mask(Op):
    """Elements whose position is `>= limit` (or `< limit`) become `value`, in place.

    Args:
        tile: a register tile.
        limit: any integer: masks that take nothing or everything are fine.
        value: what masked elements become, e.g. -inf before a softmax.
        of: the position compared: "row", "col" or "col - row".
        below: whether the elements below the limit are masked, not those from it on.
        name: what users called.
    """

    verb: ClassVar[str] = "{name}"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    any_fragment: ClassVar[bool] = True
    tile: Value = operand()
    limit: Operand = operand()
    value: Operand = operand()
    of: str = attribute(default="col")
    below: bool = attribute(default=False)
    name: str = attribute(default="mask")

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; the value must be one of the tile's."""
        kind = self.tile.type
        if not isinstance(kind, RegTileType):
            raise LayoutError(f"{self.name}: wanted a register tile, got {kind}")
        require_numbers(self.name, kind.dtype)
        wanted = computed_in(kind.dtype)
        if isinstance(self.value, Value):
            if self.value.type != ScalarType(wanted):
                raise DTypeError(
                    f"{self.name}: the value is a scalar of {wanted.name}, got {self.value.type}"
                )
        elif not kind.dtype.is_float and type(self.value) is not int:
            raise DTypeError(f"{self.name}: {kind} takes an int, got {self.value!r}")
        require_s32(self.name, self.limit)
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads and writes the tile."""
        return (Effect(Access.READ, self.tile), Effect(Access.WRITE, self.tile))

    def emit(self, w: Any) -> None:
        """One `setp` a position and one `selp` an element, against the lane's own limit."""
        kind = self.tile.type
        assert isinstance(kind, RegTileType), "checked in infer"
        mine = w.new("b32", "limit")
        places = kind.layout.row_col(0, np.arange(kind.elements))
        first = self._first(w, kind)
        w.line(ptx.alu("sub.s32", mine, w.src(self.limit, "s32"), first))
        fill = w.src(self.value, computed_in(kind.dtype).name)
        compute = register_kind(kind.dtype)
        keep: dict[int, str] = {}
        elements = unpack(w, kind, w.regs(self.tile))
        results = elements if not kind.packed else [w.new(compute, "x") for _ in elements]
        ours = sum(c * p for c, p in zip(POSITIONS[self.of], places, strict=True))
        for element, result, place in zip(elements, results, ours, strict=True):
            position = int(place)
            if position not in keep:
                keep[position] = w.new("pred", "keep")
                test = "le" if self.below else "gt"
                w.line(ptx.alu(f"setp.{test}.s32", keep[position], mine, position))
            w.line(ptx.alu(f"selp.{compute}", result, element, fill, keep[position]))
        pack(w, kind.dtype, results, w.regs(self.tile))

    def _first(self, w: Any, kind: RegTileType) -> str:
        """The position of this thread's first element."""
        if self.of != "col - row":
            return str(w.lane_position(kind, self.of))
        row, col = w.lane_position(kind, "row"), w.lane_position(kind, "col")
        return str(
            w.local(
                ("col - row", row, col), "b32", "diagonal",
                lambda r: w.line(ptx.alu("sub.s32", r, col, row)),
            )
        )  # fmt: skip
