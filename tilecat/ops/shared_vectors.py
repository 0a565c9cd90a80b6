"""Shared vectors and registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import DTypeError, LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import RegVecType, SharedVecType, TileType
from .places import held, lane_start, owner


@dataclass(eq=False)
class VectorMove(Op):
    """Base of moves between a shared vector and a register vector of one length and dtype."""

    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    shared: Value = operand()

    def check(self, kind: TileType) -> None:
        """One length and one 32-bit dtype.

        Raises:
            LayoutError: not two vectors, or lengths that differ.
            DTypeError: dtypes that differ.
        """
        mine = self.shared.type
        whole = isinstance(kind, RegVecType) and not kind.partial
        if not isinstance(mine, SharedVecType) or not whole or kind.length != mine.length:  # type: ignore[union-attr]
            raise LayoutError(
                f"{self.label}: a shared vector and a whole register vector of its length, "
                f"got {mine} and {kind}"
            )
        if mine.dtype != kind.dtype:  # type: ignore[union-attr]
            raise DTypeError(
                f"{self.label}: dtypes must agree, got {mine} and {kind}",
                hint="register vectors have 32-bit elements: use an f32 or s32 shared vector",
            )

    def addresses(self, w: Any, kind: RegVecType) -> list[str]:
        """Where each of this thread's values lies."""
        base, start = w.address(self.shared), lane_start(w, kind)
        first = w.new("b32", "first")
        w.line(ptx.alu("mad.lo.u32", first, start, 4, w.materialize(base)))
        places = kind.layout.position(0, np.arange(kind.registers))
        return [f"{first}+{4 * int(p)}" for p in places]


@dataclass(eq=False)
class LoadVector(VectorMove):
    """A new register vector with the contents of a shared one."""

    verb: ClassVar[str] = "load"
    kind: RegVecType = attribute()

    def infer(self) -> tuple[TileType, ...]:
        """The type given."""
        self.check(self.kind)
        return (self.kind,)

    def effects(self) -> tuple[Effect, ...]:
        """Reads the shared vector."""
        return (Effect(Access.READ, self.shared), Effect(Access.WRITE, self.result))

    def emit(self, w: Any) -> None:
        """`ld.shared`, one a value."""
        suffix = "f32" if self.kind.dtype.name == "f32" else "b32"
        places = self.addresses(w, self.kind)
        for index, (register, place) in enumerate(zip(w.regs(self.result), places, strict=True)):
            w.line(ptx.ld_shared(suffix, register, place), pred=held(w, self.kind, index))


@dataclass(eq=False)
class StoreVector(VectorMove):
    """`shared = vector`; copies of a value are stored once."""

    verb: ClassVar[str] = "store"
    vector: Value = operand()

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; lengths and dtypes must agree."""
        self.check(self.vector.type)
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads the registers, writes the shared vector."""
        return (Effect(Access.READ, self.vector), Effect(Access.WRITE, self.shared))

    def emit(self, w: Any) -> None:
        """`st.shared`, one a value."""
        kind = self.vector.type
        assert isinstance(kind, RegVecType), "checked in infer"
        suffix, mine = "f32" if kind.dtype.name == "f32" else "b32", owner(w, kind)
        places = self.addresses(w, kind)
        for index, (register, place) in enumerate(zip(w.regs(self.vector), places, strict=True)):
            there = w.both(mine, held(w, kind, index))
            w.line(ptx.st_shared(suffix, place, register), pred=there)
