"""Reductions of register tiles along their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import dtypes
from ..errors import LayoutError
from ..ir import Access, Effect, Op, Scope, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import RegTileType, RegVecType, TileType

OPCODES = {"max": "max.f32", "min": "min.f32", "sum": "add.rn.f32"}
CHAINS = 2  # independent chains a row: an f32 add or max has a latency of 4 cycles on Hopper


@dataclass(eq=False)
class RowReduce(Op):
    """`out[r] = op over c of tile[r, c]` (and `initial[r]`).

    Args:
        tile: an f32 register tile.
        initial: a row vector that takes part, or None.
        partial: leave each lane's own share, for `Total` to finish later (saves the exchanges
            inside a loop).
    """

    verb: ClassVar[str] = "row_{name}"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    name: str = attribute()
    tile: Value = operand()
    initial: Value | None = operand(default=None)
    partial: bool = attribute(default=False)

    def infer(self) -> tuple[TileType, ...]:
        """A row vector."""
        kind = self.tile.type
        if not isinstance(kind, RegTileType) or kind.dtype != dtypes.f32:
            raise LayoutError(f"row_{self.name}: wanted an f32 register tile, got {kind}")
        vector = RegVecType(dtypes.f32, kind.rows, "row", self.partial)
        if self.initial is not None and self.initial.type != vector:
            raise LayoutError(
                f"row_{self.name}: initial is {vector}, got {self.initial.type}",
                hint="a partial sum goes on with partial=True",
            )
        return (vector,)

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile and the initial values."""
        reads = [Effect(Access.READ, self.tile)]
        if self.initial is not None:
            reads.append(Effect(Access.READ, self.initial))
        return (*reads, Effect(Access.WRITE, self.result))

    def emit(self, w: Any) -> None:
        """Two chains over the thread's elements of a row, then exchanges in the quad."""
        opcode = OPCODES[self.name]
        elements, dst = w.regs(self.tile), w.regs(self.result)
        initial = w.regs(self.initial) if self.initial is not None else (None, None)
        for half in range(2):
            mine = [r for i, r in enumerate(elements) if (i >> 1 & 1) == half]
            chains = [w.new("f32", self.name) for _ in range(CHAINS)]
            for index, chain in enumerate(chains):
                w.line(ptx.alu(opcode, chain, mine[index], mine[index + CHAINS]))
            for index, register in enumerate(mine[2 * CHAINS :]):
                chain = chains[index % CHAINS]
                w.line(ptx.alu(opcode, chain, chain, register))
            w.line(ptx.alu(opcode, dst[half], *chains))
            if not self.partial:
                quad_reduce(w, opcode, dst[half])
            if initial[half] is not None:
                w.line(ptx.alu(opcode, dst[half], dst[half], initial[half]))


def quad_reduce(w: Any, opcode: str, register: str) -> None:
    """Combines a value over the four lanes that share its row."""
    for mask in (1, 2):
        other = w.new("f32", "other")
        w.line(ptx.shfl_bfly(other, register, mask))
        w.line(ptx.alu(opcode, register, register, other))


@dataclass(eq=False)
class Total(Op):
    """Finishes a partial row sum: adds the shares of the four lanes of a row."""

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    vector: Value = operand()

    def infer(self) -> tuple[TileType, ...]:
        """The whole row vector."""
        kind = self.vector.type
        if not isinstance(kind, RegVecType) or not kind.partial:
            raise LayoutError(f"total: wanted a partial row sum, got {kind}")
        return (RegVecType(kind.dtype, kind.length, kind.axis),)

    def effects(self) -> tuple[Effect, ...]:
        """Reads the shares."""
        return (Effect(Access.READ, self.vector), Effect(Access.WRITE, self.result))

    def emit(self, w: Any) -> None:
        """Two exchanges a value."""
        for dst, src in zip(w.regs(self.result), w.regs(self.vector), strict=True):
            w.line(ptx.alu("mov.f32", dst, src))
            quad_reduce(w, OPCODES["sum"], dst)
