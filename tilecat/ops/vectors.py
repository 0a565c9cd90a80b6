"""Vectors in another layout: one value a row, one a column, or one a thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, SharedRequest, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import RegVecType, TileType
from .conditions import vector_places, vector_start
from .elements import register_kind, require_unpacked
from .reduce import exchange_requests


@dataclass(eq=False)
class ChangeVector(Op):
    """The same values in another vector layout, through shared memory.

    Args:
        vector: a whole vector.
        kind: its type in the other layout.
        scratch: 4 bytes a value, of each warpgroup or of each warp.
        name: what users called.
    """

    verb: ClassVar[str] = "{name}"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    vector: Value = operand()
    scratch: Value = operand()
    kind: RegVecType = attribute()
    name: str = attribute()

    def infer(self) -> tuple[TileType, ...]:
        """The type given."""
        source = self.vector.type
        assert isinstance(source, RegVecType), "the function looked"
        require_unpacked(self.name, source)
        if source.partial:
            raise LayoutError(
                f"{self.name}: wanted a whole vector, got {source}", hint="finish it: tc.total(v)"
            )
        return (self.kind,)

    def effects(self) -> tuple[Effect, ...]:
        """Reads the vector, writes the result."""
        return (Effect(Access.READ, self.vector), Effect(Access.WRITE, self.result))

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """A store for each register of the vector, a load for each of the result."""
        source = self.vector.type
        assert isinstance(source, RegVecType), "the function looked"
        lanes = np.arange(32)
        stored = source.layout.position(lanes, 0)
        loaded = self.kind.layout.position(lanes, 0)
        store, load = exchange_requests(4 * np.unique(stored), 4 * loaded)
        return (store,) * source.registers + (load,) * self.kind.registers

    def emit(self, w: Any) -> None:
        """One thread writes each value; after a barrier all read theirs."""
        source = self.vector.type
        assert isinstance(source, RegVecType), "the function looked"
        base = w.scratch(self.scratch)
        register = register_kind(source.dtype)
        at = _address(w, source, base)
        owner = _owner(w, source)
        for held, place in zip(w.regs(self.vector), vector_places(source), strict=True):
            inside = w.both(owner, _inside(w, source, place))
            w.line(ptx.st_shared(register, f"{at}+{4 * place}", held), pred=inside)
        _sync(w, source.warps)
        at = _address(w, self.kind, base)
        for target, place in zip(w.regs(self.result), vector_places(self.kind), strict=True):
            inside = _inside(w, self.kind, place)
            if inside:
                zero = "0f00000000" if register == "f32" else "0"
                w.line(ptx.alu(f"mov.{register}", target, zero))
            w.line(ptx.ld_shared(register, target, f"{at}+{4 * place}"), pred=inside)
        _sync(w, source.warps)


def _sync(w: Any, warps: int) -> None:
    """All threads of the warpgroup (4 warps) or of the warp (1) meet."""
    if warps == 1:
        w.line(ptx.bar_warp_sync())
    else:
        w.sync_warpgroup()


def _address(w: Any, kind: RegVecType, base: str) -> str:
    """Address of the first value this thread holds."""
    at = str(w.new("b32", "at"))
    w.line(ptx.alu("mad.lo.u32", at, vector_start(w, kind), 4, base))
    return at


def _owner(w: Any, kind: RegVecType) -> str | None:
    """Predicate: of the threads that hold a value, this is the one to write it."""
    if kind.axis == "plain":
        return None
    thread = w.rank(kind.warps)
    test = w.new("pred", "owner")
    if kind.axis == "row":
        part = w.new("b32", "part")
        w.line(ptx.alu("and.b32", part, thread, 3))
        w.line(ptx.alu("setp.eq.u32", test, part, 0))
    else:
        w.line(ptx.alu("setp.lt.u32", test, thread, 4))
    return str(test)


def _inside(w: Any, kind: RegVecType, place: int) -> str | None:
    """Predicate: a plain vector's value exists; None where all do."""
    threads = 32 * kind.warps
    if kind.axis != "plain" or kind.run > 1 or place + threads <= kind.length:
        return None
    test = w.new("pred", "inside")
    w.line(ptx.alu("setp.lt.u32", test, w.rank(kind.warps), kind.length - place))
    return str(test)
