"""Views of register tiles: parts, transposes and vectors that share the tile's registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..ir import Op, Value, attribute, operand
from ..layouts import RegisterLayout
from ..tiles import RegTileType, RegVecType, TileType


@dataclass(eq=False)
class ViewRegisters(Op):
    """The registers `registers` of a tile, seen as `kind`; nothing moves."""

    pure: ClassVar[bool] = True
    any_fragment: ClassVar[bool] = True
    tile: Value = operand()
    registers: tuple[int, ...] = attribute()
    kind: RegTileType | RegVecType = attribute()

    def infer(self) -> tuple[TileType, ...]:
        """The view's type."""
        assert len(self.registers) == self.kind.registers, "one register each"
        return (self.kind,)

    def emit(self, w: Any) -> None:
        """Nothing: names stand for the tile's registers."""
        held = w.regs(self.tile)
        w.alias_tile(self.result, tuple(held[i] for i in self.registers))


def part_registers(
    whole: RegisterLayout, part: RegisterLayout, row: int, col: int, steps: tuple[int, int] = (1, 1)
) -> tuple[int, ...] | None:
    """Registers of a tile that hold its part at (row, col) in the part's own order.

    None where the part's threads or its packing are not the tile's: it starts inside a fragment.

    Args:
        whole: the tile.
        part: a part of it.
        row: the part's first row in the tile.
        col: its first column.
        steps: rows and columns of the tile from one of the part to the next.
    """
    thread, index = np.indices((part.threads, part.elements_per_thread))
    rows, cols = part.row_col(thread, index)
    owner, place = whole.index_of(rows * steps[0] + row, cols * steps[1] + col)
    per = whole.elements_per_register
    packed = place.reshape(part.threads, -1, per)
    first = packed[0, :, 0]
    wanted = first[:, None] + np.arange(per)
    if (owner != thread).any() or (packed != wanted).any() or (first % per).any():
        return None
    return tuple(int(i) // per for i in first)


def storage(value: Value) -> tuple[Value, tuple[int, ...]]:
    """The tile or vector that owns a value's registers, and which of them it is."""
    kind = value.type
    if not isinstance(kind, RegTileType | RegVecType):
        return value, ()
    registers = tuple(range(kind.registers))
    while isinstance(value.op, ViewRegisters):
        registers = tuple(value.op.registers[i] for i in registers)
        value = value.op.tile
    return value, registers


def overlap(a: Value, b: Value) -> bool:
    """Whether two values share a register, or are one."""
    if a is b:
        return True
    (mine, held), (other, taken) = storage(a), storage(b)
    return mine is other and bool(set(held) & set(taken))
