"""Raw PTX with tiles and scalars as operands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..errors import LayoutError
from ..ir import Access, Effect, Op, Value, attribute, operand
from ..tiles import RegTileType, RegVecType, ScalarType, SharedTileType, TileType
from .scalar import NewVar

_HOLE = re.compile(r"\$(\d+)")


@dataclass(eq=False)
class Inline(Op):
    """PTX text with `$0`, `$1`, ... for its operands, as the user wrote it.

    A scalar operand stands for its register, a shared tile for its address. Text that names a
    register tile or vector is repeated once a register, all tiles of one length in step.

    Args:
        text: one or more instructions.
        operands_: what the holes stand for.
        writes: which of the operands the text writes.
    """

    text: str = attribute()
    sources: tuple[Value | int | float, ...] = operand()
    writes: tuple[int, ...] = attribute(default=())

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; each hole must have an operand, each operand a hole."""
        holes = {int(n) for n in _HOLE.findall(self.text)}
        wanted = set(range(len(self.sources)))
        if holes != wanted:
            raise LayoutError(
                f"inline: holes $0..$n and operands must match, got holes {sorted(holes)} "
                f"for {len(self.sources)} operands"
            )
        if not all(i in wanted and _is_place(self.sources[i]) for i in self.writes):
            raise LayoutError(
                f"inline: writes names operands that are tiles, vectors or tc.var scalars, "
                f"got writes={self.writes} of {len(self.sources)} operands",
                hint="writes=(0,) for the first; v = tc.var(0) for a scalar that is written",
            )
        counts = {len_of(v) for v in self._tiles()}
        if len(counts) > 1:
            raise LayoutError(
                f"inline: tile operands have one number of registers, got {sorted(counts)}"
            )
        return ()

    def _tiles(self) -> list[Value]:
        kinds = (RegTileType, RegVecType)
        return [v for v in self.sources if isinstance(v, Value) and isinstance(v.type, kinds)]

    def effects(self) -> tuple[Effect, ...]:
        """Reads all its operands, writes those named."""
        places = [v for v in self.sources if isinstance(v, Value)]
        written = [self.sources[i] for i in self.writes]
        return (
            *(Effect(Access.READ, v) for v in places if not isinstance(v.type, ScalarType)),
            *(Effect(Access.WRITE, v) for v in written if isinstance(v, Value)),
        )

    def emit(self, w: Any) -> None:
        """The text, with registers in the holes."""
        tiles = self._tiles()
        for index in range(len_of(tiles[0]) if tiles else 1):
            for line in self.text.strip().splitlines():
                w.line(_HOLE.sub(lambda m: self._name(w, int(m[1]), index), line.strip()))  # noqa: B023

    def _name(self, w: Any, hole: int, index: int) -> str:
        value = self.sources[hole]
        if not isinstance(value, Value):
            return str(w.src(value, "f32" if isinstance(value, float) else "s32"))
        if isinstance(value.type, ScalarType):
            return str(w.src(value))
        if isinstance(value.type, SharedTileType):
            return str(w.materialize(w.address(value)))
        return str(w.regs(value)[index])


def _is_place(value: Value | int | float) -> bool:
    if not isinstance(value, Value):
        return False
    return not isinstance(value.type, ScalarType) or isinstance(value.op, NewVar)


def len_of(value: Value) -> int:
    """Registers of a tile or vector operand."""
    assert isinstance(value.type, RegTileType | RegVecType), "tiles and vectors only"
    return value.type.registers
