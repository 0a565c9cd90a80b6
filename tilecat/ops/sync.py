"""Synchronisation: mbarriers, named barriers, fences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..ir import Access, Effect, Op, Scope, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import BarrierType, TileType
from .scalar import Operand

BARRIER_BYTES = 8  # PTX ISA 9.7.13.15.1: an mbarrier is a 64-bit object
MAX_NAMED_BARRIERS = 16  # PTX ISA 9.7.13.1: barriers 0 to 15 a CTA
MAX_ARRIVALS = (1 << 20) - 1  # PTX ISA 9.7.13.15.1: the pending count is at most 2^20 - 1


@dataclass(eq=False)
class AllocBarriers(Op):
    """`count` mbarriers in shared memory, each for `arrivals` arrivals a phase.

    `arrivals` and `expected_bytes` are set by the pipeline once it knows what its holes do.
    """

    name: str = attribute()
    count: int = attribute()
    arrivals: int = attribute(default=1)
    expected_bytes: int = attribute(default=0)

    def infer(self) -> tuple[TileType, ...]:
        """The array."""
        return (BarrierType(self.count),)

    @property
    def name_hint(self) -> str:
        """The name it has in reports."""
        return self.name.replace(" ", "_")

    def emit(self, w: Any) -> None:
        """Nothing: the address is static."""


@dataclass(eq=False)
class InitBarriers(Op):
    """Initialises every mbarrier of the kernel: one thread, then all wait."""

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.CTA,)
    barriers: tuple[Value, ...] = operand()

    def emit(self, w: Any) -> None:
        """`mbarrier.init` each, the init fence, and a CTA barrier."""
        end, other = w.label("init_end"), w.new("pred", "other")
        w.line(ptx.alu("setp.ne.s32", other, w.tid(), 0))
        w.line(ptx.bra(end), pred=other)
        for value in self.barriers:
            op = value.op
            assert isinstance(op, AllocBarriers), "barriers come from AllocBarriers"
            for index in range(op.count):
                w.line(ptx.mbarrier_init(w.barrier(value, index), op.arrivals))
        w.line(ptx.fence_mbarrier_init())
        w.mark(end)
        w.line(ptx.bar_sync(0, w.threads))


@dataclass(eq=False)
class Arrive(Op):
    """One arrival on `barriers[index]`; `when` limits it to the steps where it is due.

    At warpgroup scope the first thread arrives for the warpgroup, or with `each` every thread.
    """

    barriers: Value = operand()
    index: Operand = operand()
    when: Value | None = operand(default=None)
    each: bool = attribute(default=False)

    def effects(self) -> tuple[Effect, ...]:
        """Signals the barrier."""
        return (Effect(Access.WRITE, self.barriers),)

    def emit(self, w: Any) -> None:
        """`mbarrier.arrive`."""
        address = w.barrier(self.barriers, self.index)
        leader = None if self.each else w.elected(self.scope)
        pred = w.both(leader, None if self.when is None else w.src(self.when))
        w.line(ptx.mbarrier_arrive(address), pred=pred)


@dataclass(eq=False)
class ArriveExpect(Op):
    """One arrival that also announces the bytes the async proxy will bring.

    `num_bytes` is derived from the loads of the hole, after it was traced; 0 emits nothing.
    """

    barriers: Value = operand()
    index: Operand = operand()
    num_bytes: int = attribute(default=0)

    def effects(self) -> tuple[Effect, ...]:
        """Signals the barrier."""
        return (Effect(Access.WRITE, self.barriers),)

    def emit(self, w: Any) -> None:
        """`mbarrier.arrive.expect_tx`."""
        if self.num_bytes:
            address = w.barrier(self.barriers, self.index)
            w.line(
                ptx.mbarrier_arrive_expect_tx(address, self.num_bytes),
                pred=w.elected(self.scope),
            )


@dataclass(eq=False)
class WaitBarrier(Op):
    """Waits until the phase with parity `parity` of `barriers[index]` has completed."""

    barriers: Value = operand()
    index: Operand = operand()
    parity: Operand = operand()

    def effects(self) -> tuple[Effect, ...]:
        """Waits on the barrier."""
        return (Effect(Access.READ, self.barriers),)

    def emit(self, w: Any) -> None:
        """A `try_wait` loop."""
        address = w.barrier(self.barriers, self.index)
        loop, done = w.label("wait"), w.new("pred", "done")
        w.mark(loop)
        w.line(ptx.mbarrier_try_wait_parity(done, address, w.src(self.parity, "u32")))
        w.line(ptx.bra(loop), pred=f"!{done}")


@dataclass(eq=False)
class NamedBarrier(Op):
    """Named barrier `number` for `threads` threads; arrive only, or arrive and wait."""

    number: Operand = operand()
    threads: int = attribute()
    wait: bool = attribute(default=True)

    def emit(self, w: Any) -> None:
        """`bar.sync` or `bar.arrive`."""
        number = w.src(self.number, "s32")
        w.line((ptx.bar_sync if self.wait else ptx.bar_arrive)(number, self.threads))


@dataclass(eq=False)
class FenceAsync(Op):
    """Orders this thread's shared-memory accesses before those of TMA and the tensor cores."""

    def emit(self, w: Any) -> None:
        """`fence.proxy.async.shared::cta`."""
        w.line(ptx.fence_proxy_async_shared())


@dataclass(eq=False)
class WarpSync(Op):
    """Waits for the lanes of the warp; orders their memory accesses."""

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARP,)

    def emit(self, w: Any) -> None:
        """`bar.warp.sync`."""
        w.line(ptx.bar_warp_sync())
