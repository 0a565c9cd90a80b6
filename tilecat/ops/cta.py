"""Values of all warpgroups, or of all warps, of a CTA combined into one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import DTypeError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, SharedRequest, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import ScalarType, SharedVecType, TileType
from .elements import register_kind
from .reduce import REDUCTIONS

CTA_BARRIER = 0  # the one of all threads of a CTA; 1 to 8 are the warpgroups' own


@dataclass(eq=False)
class ReduceCta(Op):
    """`op over the CTA's warpgroups (or warps) of value`, the same scalar in every thread.

    Args:
        name: a row of REDUCTIONS.
        value: f32, s32 or u32, one a warpgroup or a warp: the scope's.
        shared: a shared vector with a place for each.
    """

    verb: ClassVar[str] = "cta_reduce"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    name: str = attribute()
    value: Value = operand()
    shared: Value = operand()

    def infer(self) -> tuple[TileType, ...]:
        """A scalar of the value's dtype."""
        kind = self.value.type
        if not isinstance(kind, ScalarType) or kind.dtype.name not in ("f32", "s32"):
            raise DTypeError(
                f"cta_reduce: wanted an f32 or s32 scalar, got {kind}", hint="x.to(tc.f32)"
            )
        return (kind,)

    def effects(self) -> tuple[Effect, ...]:
        """Writes and reads the places."""
        return (Effect(Access.WRITE, self.shared), Effect(Access.READ, self.shared))

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """A store by one lane, loads of one word each."""
        return (
            SharedRequest("st.shared", 4, 1, 1),
            *(SharedRequest("ld.shared", 4, 1, 1) for _ in range(self._count)),
        )

    @property
    def _count(self) -> int:
        assert isinstance(self.shared.type, SharedVecType), "the function made it"
        return self.shared.type.length

    def emit(self, w: Any) -> None:
        """`st.shared` by one thread of each, `bar.sync`, loads by all, `bar.sync`."""
        assert isinstance(self.value.type, ScalarType), "inferred"
        dtype = self.value.type.dtype
        row, kind, result = REDUCTIONS[self.name], register_kind(dtype), w.define(self.result)
        opcode, source = row.opcode(dtype.is_float), w.src(self.value)
        if row.absolute:
            size = w.new(kind, "size")
            w.line(ptx.alu("abs.f32" if dtype.is_float else "abs.s32", size, source))
            source = size
        base, number = w.materialize(w.address(self.shared)), w.warpgroup()
        if self.scope is Scope.WARP:
            number = w.new("b32", "number")
            w.line(ptx.alu("shr.u32", number, w.tid(), 5))
        mine, other = w.new("b32", "mine"), w.new(kind, "other")
        w.line(ptx.alu("mad.lo.u32", mine, number, 4, base))
        w.line(ptx.st_shared(kind, mine, source), pred=self._first(w))
        w.line(ptx.bar_sync(CTA_BARRIER, w.threads))
        w.line(ptx.ld_shared(kind, result, base))
        for index in range(1, self._count):
            w.line(ptx.ld_shared(kind, other, f"{base}+{4 * index}"))
            w.line(ptx.alu(opcode, result, result, other))
        w.line(ptx.bar_sync(CTA_BARRIER, w.threads))

    def _first(self, w: Any) -> str:
        """Predicate: one thread of the scope."""
        first, bits = w.new("pred", "first"), 31 if self.scope is Scope.WARP else 127
        low = w.new("b32", "low")
        w.line(ptx.alu("and.b32", low, w.tid(), bits))
        w.line(ptx.alu("setp.eq.u32", first, low, 0))
        return str(first)
