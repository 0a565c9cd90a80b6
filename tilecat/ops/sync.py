"""Synchronisation: mbarriers, named barriers, fences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import dtypes
from ..ir import Access, Effect, Op, Scope, Value, attribute, operand
from ..ptx import instructions as ptx
from ..ptx import tensor as ptx_tensor
from ..ptx import transfers
from ..tiles import BarrierType, ScalarType, TileType
from .debug import limited_wait
from .scalar import Operand

BARRIER_BYTES = 8  # PTX ISA 9.7.13.15.1: an mbarrier is a 64-bit object
MAX_NAMED_BARRIERS = 16  # PTX ISA 9.7.13.1: barriers 0 to 15 a CTA
SHORT_HINT_NS = 1000  # of a look in a wait with a limit, so that looks measure time
MAX_ARRIVALS = (1 << 20) - 1  # PTX ISA 9.7.13.15.1: the pending count is at most 2^20 - 1


@dataclass(eq=False)
class AllocBarriers(Op):
    """`count` mbarriers in shared memory, each for `arrivals` arrivals a phase.

    `arrivals` and `expected_bytes` are set by the pipeline once it knows what its holes do;
    `tensor` where an arrival tells of products in tensor memory, or of its loads.
    """

    name: str = attribute()
    count: int = attribute()
    arrivals: int = attribute(default=1)
    expected_bytes: int = attribute(default=0)
    tensor: bool = attribute(default=False)

    def infer(self) -> tuple[TileType, ...]:
        """The array."""
        return (BarrierType(self.count),)

    @property
    def name_hint(self) -> str:
        """The name it has in reports."""
        return self.name.replace(" ", "_")

    def emit(self, w: Any) -> None:
        """Nothing: the address is static."""


def barrier_of(barriers: Value) -> AllocBarriers:
    """The allocation of mbarriers."""
    assert isinstance(barriers.op, AllocBarriers), "barriers come from AllocBarriers"
    return barriers.op


@dataclass(eq=False)
class InitBarriers(Op):
    """Initialises every mbarrier of the kernel: one thread, then all wait."""

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.CTA,)
    barriers: tuple[Value, ...] = operand()

    def emit(self, w: Any) -> None:
        """`mbarrier.init` each, the init fence, and a barrier of the CTA, or of its cluster."""
        end, other = w.label("init_end"), w.new("pred", "other")
        w.line(ptx.alu("setp.ne.s32", other, w.tid(), 0))
        w.line(ptx.bra(end), pred=other)
        for value in self.barriers:
            op = barrier_of(value)
            for index in range(op.count):
                w.line(ptx.mbarrier_init(w.barrier(value, index), op.arrivals))
        w.line(ptx.fence_mbarrier_init())
        w.mark(end)
        if w.kernel.cluster == 1:
            w.line(ptx.bar_sync(0, w.threads))
            return
        w.line(transfers.cluster_arrive())
        w.line(transfers.cluster_wait())


@dataclass(eq=False)
class Arrive(Op):
    """One arrival on `barriers[index]`; `when` limits it to the steps where it is due.

    At warpgroup and warp scope the first thread arrives for all, or with `each` every thread.

    Args:
        barriers: the mbarriers.
        index: which of them.
        when: a predicate, or None.
        each: whether every thread arrives.
        rank: the CTA of the cluster whose mbarrier it is; None for this one.
    """

    barriers: Value = operand()
    index: Operand = operand()
    when: Value | None = operand(default=None)
    each: bool = attribute(default=False)
    rank: Operand | None = operand(default=None)

    def effects(self) -> tuple[Effect, ...]:
        """Signals the barrier."""
        return (Effect(Access.WRITE, self.barriers),)

    def emit(self, w: Any) -> None:
        """`mbarrier.arrive`; a warp's lanes meet before the first arrives for them."""
        address = w.barrier(self.barriers, self.index)
        if self.scope is Scope.WARP and not self.each:
            w.line(ptx.bar_warp_sync())
        leader = None if self.each else w.elected(self.scope)
        pred = w.both(leader, None if self.when is None else w.src(self.when))
        if self.rank is None:
            w.line(ptx.mbarrier_arrive(address), pred=pred)
            return
        remote = peer_address(w, address, self.rank)
        w.line(transfers.mbarrier_arrive_remote(remote), pred=pred)


def peer_address(w: Any, address: str, rank: Operand) -> str:
    """Register with the address of the same place in the CTA `rank` of the cluster."""
    register, peer = w.new("b32", "mine"), w.new("b32", "peer")
    base, _, offset = address.partition("+")
    w.line(ptx.alu("add.u32", register, base, offset or 0))
    w.line(transfers.mapa(peer, register, w.src(rank, "u32")))
    return str(peer)


@dataclass(eq=False)
class ArriveExpect(Op):
    """One arrival that also announces the bytes the async proxy will bring.

    `num_bytes` is derived from the loads of the hole, after it was traced; 0 emits nothing.

    Args:
        barriers: the mbarriers.
        index: which of them.
        num_bytes: that will come.
        when: a predicate, or None.
    """

    barriers: Value = operand()
    index: Operand = operand()
    num_bytes: int = attribute(default=0)
    when: Value | None = operand(default=None)

    def effects(self) -> tuple[Effect, ...]:
        """Signals the barrier."""
        return (Effect(Access.WRITE, self.barriers),)

    def emit(self, w: Any) -> None:
        """`mbarrier.arrive.expect_tx`."""
        if self.num_bytes:
            address = w.barrier(self.barriers, self.index)
            when = None if self.when is None else w.src(self.when)
            pred = w.both(w.elected(self.scope), when)
            w.line(ptx.mbarrier_arrive_expect_tx(address, self.num_bytes), pred=pred)


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
        """A `try_wait` loop; with TILECAT_DEBUG_WAITS, one that ends."""
        address = w.barrier(self.barriers, self.index)
        limit = w.kernel.facts.get("debug_waits")
        if limit:
            op = barrier_of(self.barriers)
            name = f"{op.name}[{self.index}]" if isinstance(self.index, int) else op.name
            limited_wait(w, lambda: self._look(w, address, SHORT_HINT_NS), name, limit, self.loc)
            self._follow(w)
            return
        loop = w.label("wait")
        w.mark(loop)
        done = self._look(w, address, ptx.WAIT_HINT_NS)
        w.line(ptx.bra(loop), pred=f"!{done}")
        self._follow(w)

    def _follow(self, w: Any) -> None:
        """What is done in tensor memory next comes behind what the arrivals tell of."""
        if barrier_of(self.barriers).tensor:
            w.line(ptx_tensor.fence_after())

    def _look(self, w: Any, address: str, hint_ns: int) -> str:
        done = w.new("pred", "done")
        parity = w.src(self.parity, "u32")
        w.line(ptx.mbarrier_try_wait_parity(done, address, parity, hint_ns))
        return str(done)


@dataclass(eq=False)
class TestBarrier(Op):
    """Whether the phase with parity `parity` of `barriers[index]` has completed.

    Args:
        barriers: the mbarriers.
        index: which of them.
        parity: of the phase.
        suspend: whether the thread may be suspended for a while first.
    """

    verb: ClassVar[str] = "try_wait"
    barriers: Value = operand()
    index: Operand = operand()
    parity: Operand = operand()
    suspend: bool = attribute(default=True)

    def infer(self) -> tuple[TileType, ...]:
        """A predicate."""
        return (ScalarType(dtypes.pred),)

    def effects(self) -> tuple[Effect, ...]:
        """Looks at the barrier."""
        return (Effect(Access.READ, self.barriers),)

    def emit(self, w: Any) -> None:
        """`mbarrier.try_wait` or `mbarrier.test_wait`, once."""
        address, parity = w.barrier(self.barriers, self.index), w.src(self.parity, "u32")
        done = w.define(self.result)
        w.line(transfers.mbarrier_test(done, address, parity, suspend=self.suspend))


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
    """Orders this thread's accesses before those of TMA and the tensor cores.

    Args:
        space: `shared::cta`, `shared::cluster` or `global`.
    """

    verb: ClassVar[str] = "fence_async"
    space: str = attribute(default="shared::cta")

    def emit(self, w: Any) -> None:
        """`fence.proxy.async`."""
        w.line(transfers.fence_proxy_async(self.space))


@dataclass(eq=False)
class Fence(Op):
    """Orders this thread's accesses for the threads of a scope: cta, cluster, gpu or sys."""

    among: str = attribute()

    def emit(self, w: Any) -> None:
        """`fence.acq_rel`."""
        w.line(transfers.fence(self.among))


@dataclass(eq=False)
class WarpSync(Op):
    """Waits for the lanes of the warp; orders their memory accesses."""

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARP,)

    def emit(self, w: Any) -> None:
        """`bar.warp.sync`."""
        w.line(ptx.bar_warp_sync())
