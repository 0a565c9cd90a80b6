"""Cluster launch control: clusters that run take over tasks of clusters that have not begun."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import dtypes
from ..ir import Access, Effect, Op, Scope, Value, operand
from ..ptx import instructions as ptx
from ..ptx import transfers
from ..tiles import ScalarType, TileType
from .scalar import Operand
from .sync import peer_address

ANSWER_BYTES = 16  # PTX ISA 9.7.14.18: the response of a request


@dataclass(eq=False)
class CancelLaunch(Op):
    """Asks for a cluster of the grid that has not begun, which then never will; asynchronous.

    Args:
        answer: 16 bytes of shared memory, in every CTA of the cluster.
        barriers: mbarriers; each CTA's own counts the bytes.
        index: which of them.
        when: a predicate, or None: one CTA of a cluster asks for all.
    """

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.THREAD, Scope.WARPGROUP)
    answer: Value = operand()
    barriers: Value = operand()
    index: Operand = operand()
    when: Value | None = operand(default=None)

    def effects(self) -> tuple[Effect, ...]:
        """Writes the answer through the async proxy."""
        return (Effect(Access.ASYNC_WRITE, self.answer, "async"),)

    def emit(self, w: Any) -> None:
        """`clusterlaunchcontrol.try_cancel`."""
        barrier, answer = w.barrier(self.barriers, self.index), w.text(w.address(self.answer))
        pred = w.both(w.elected(self.scope), None if self.when is None else w.src(self.when))
        w.need_version("8.6")
        w.line(transfers.try_cancel(answer, barrier, everywhere=w.kernel.cluster > 1), pred=pred)


@dataclass(eq=False)
class TakeAnswer(Op):
    """The first CTA of the cluster that was asked for, or -1 where none was left.

    One thread reads it for its warp, and arrives: the answer's place is free for the next one when
    all who take it have.

    Args:
        answer: as of `CancelLaunch`.
        barriers: mbarriers, whose arrivals free the place.
        index: which of them.
        rank: the CTA of the cluster whose mbarrier it is; None for this one.
    """

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.THREAD, Scope.WARP)
    answer: Value = operand()
    barriers: Value = operand()
    index: Operand = operand()
    rank: Operand | None = operand(default=None)

    def infer(self) -> tuple[TileType, ...]:
        """Its x on the grid."""
        return (ScalarType(dtypes.s32),)

    @property
    def name_hint(self) -> str:
        """As PTX has it."""
        return "first_ctaid"

    def effects(self) -> tuple[Effect, ...]:
        """Reads the answer, signals the barrier."""
        return (Effect(Access.READ, self.answer), Effect(Access.WRITE, self.barriers))

    def emit(self, w: Any) -> None:
        """`ld.shared.b128`, `clusterlaunchcontrol.query_cancel`, a fence, and the arrival."""
        held, taken, first = w.new("b128", "answer"), w.new("pred", "taken"), w.define(self.result)
        reader, freed = w.elected(self.scope), w.barrier(self.barriers, self.index)
        w.line(ptx.ld_shared("b128", held, w.text(w.address(self.answer))), pred=reader)
        w.line(transfers.query_is_canceled(taken, held), pred=reader)
        w.line(ptx.alu("mov.b32", first, -1))
        w.line(transfers.query_first_cta(first, held), pred=w.both(reader, taken))
        w.line(transfers.fence_proxy_async("shared::cta"), pred=reader)
        if self.rank is None:
            w.line(ptx.mbarrier_arrive(freed), pred=reader)
        else:
            there = peer_address(w, freed, self.rank)
            w.line(transfers.mbarrier_arrive_remote(there), pred=reader)
        if self.scope is Scope.WARP:
            w.line(ptx.shfl_idx(first, first, 0))
