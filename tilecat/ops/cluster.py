"""Clusters: their barrier, dependent grids, and shared memory of the other CTAs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import DTypeError, LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, Value, attribute, operand
from ..layouts import AccessPlan, plan_access
from ..ptx import transfers
from ..tiles import PeerType, RegTileType, RegVecType, SharedTileType, SharedVecType, TileType
from .memory import plain_access, registers_of_access
from .places import held, owner
from .scalar import Operand
from .shared_vectors import VectorMove
from .sync import peer_address

_ALL = (Scope.CTA, Scope.WARPGROUP, Scope.WARP)


@dataclass(eq=False)
class ClusterBarrier(Op):
    """Arrives at the barrier of all threads of the cluster, or waits there, or both."""

    verb: ClassVar[str] = "cluster_sync"
    scopes: ClassVar[tuple[Scope, ...]] = _ALL
    arrive: bool = attribute(default=True)
    wait: bool = attribute(default=True)

    def emit(self, w: Any) -> None:
        """`barrier.cluster.arrive.release` and `barrier.cluster.wait.acquire`."""
        if self.arrive:
            w.line(transfers.cluster_arrive())
        if self.wait:
            w.line(transfers.cluster_wait())


@dataclass(eq=False)
class GridDependency(Op):
    """Waits for the kernels this one depends on, or lets its dependents start."""

    verb: ClassVar[str] = "grid_wait, grid_launch"
    wait: bool = attribute()

    def emit(self, w: Any) -> None:
        """`griddepcontrol`."""
        w.line(transfers.grid_dependency(wait=self.wait))


@dataclass(eq=False)
class PeerShared(Op):
    """The same shared tile or vector in the CTA `rank` of the cluster."""

    verb: ClassVar[str] = "peer"
    tile: Value = operand()
    rank: Operand = operand()

    def infer(self) -> tuple[TileType, ...]:
        """The type there."""
        if not isinstance(self.tile.type, SharedTileType | SharedVecType):
            raise LayoutError(f"peer: of a shared tile or vector, got {self.tile.type}")
        return (PeerType(self.tile.type),)

    def emit(self, w: Any) -> None:
        """`mapa`."""
        mine = w.materialize(w.address(self.tile))
        there = w.address(self.tile)._replace(base=peer_address(w, mine, self.rank), offset=0)
        w.place(self.result, there)


@dataclass(eq=False)
class CopyToPeer(Op):
    """Asynchronous copy of a shared tile or vector to a peer's; completes on a peer's mbarrier.

    Args:
        peer: the target.
        tile: the source, of the target's type.
        barriers: mbarriers; the peer's own of them counts the bytes.
        index: which of them.
        rank: the peer.
    """

    verb: ClassVar[str] = "copy_to_peer"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.THREAD, Scope.WARPGROUP, Scope.WARP)
    peer: Value = operand()
    tile: Value = operand()
    barriers: Value = operand()
    index: Operand = operand()
    rank: Operand = operand()

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; one type on both sides."""
        target = self.peer.type
        if not isinstance(target, PeerType) or target.kind != self.tile.type:
            raise LayoutError(
                f"copy_to_peer: both sides have one type, got {target} and {self.tile.type}"
            )
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile through the async proxy."""
        return (Effect(Access.ASYNC_READ, self.tile, "async"),)

    def emit(self, w: Any) -> None:
        """`cp.async.bulk`, shared to shared."""
        kind = self.tile.type
        assert isinstance(kind, SharedTileType | SharedVecType), "checked in infer"
        barrier = peer_address(w, w.barrier(self.barriers, self.index), self.rank)
        target, source = w.text(w.address(self.peer)), w.text(w.address(self.tile))
        text = transfers.bulk_push(target, source, kind.layout.num_bytes, barrier)
        w.line(text, pred=w.elected(self.scope))


ASYNC_VERSION = "8.1"  # of PTX, the first with st.async and red.async (ISA, release notes)
# operation -> dtypes that `red.async` combines (PTX ISA 9.7.13.7)
PEER_REDUCED = {"add": ("s32", "u32"), "min": ("s32", "u32"), "max": ("s32", "u32")}


@dataclass(eq=False)
class SendToPeer(VectorMove):
    """Registers to a peer's tile or vector, or combined with it, in their own time.

    The bytes complete on a peer's mbarrier.

    Args:
        shared: the peer's tile or vector.
        register: a register tile, or a whole vector, of its shape and dtype.
        barriers: mbarriers; the peer's own of them counts the bytes.
        index: which of them.
        rank: the peer.
        how: "store", or a row of PEER_REDUCED.
    """

    verb: ClassVar[str] = "{how}_to_peer"
    register: Value = operand()
    barriers: Value = operand()
    index: Operand = operand()
    rank: Operand = operand()
    how: str = attribute(default="store")

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; shapes and dtypes must agree, and elements fill 32-bit registers."""
        kind, peer, name = self.register.type, self.shared.type, f"{self.how}_to_peer"
        assert isinstance(peer, PeerType), "checked by the caller"
        if isinstance(peer.kind, SharedVecType):
            self.check(kind, exact=True)
        elif isinstance(kind, RegTileType):
            _plan(name, kind, peer)
        else:
            raise LayoutError(f"{name}: a peer's tile takes a register tile, got {kind}")
        known = PEER_REDUCED.get(self.how)
        if known and peer.dtype.name not in known:
            raise DTypeError(
                f"{name}: the hardware combines {', '.join(known)}, got {kind}",
                hint=f"tc.atomic_{self.how}(tc.peer(tile, rank), x), and a barrier of the cluster",
            )
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads the registers."""
        return (Effect(Access.READ, self.register),)

    def emit(self, w: Any) -> None:
        """`st.async`, or one `red.async` a register."""
        kind = self.register.type
        assert isinstance(kind, RegTileType | RegVecType), "checked in infer"
        w.need_version(ASYNC_VERSION)
        barrier = peer_address(w, w.barrier(self.barriers, self.index), self.rank)
        if isinstance(kind, RegTileType):
            for suffix, address, data in self._tile_parts(w, kind):
                w.line(self._text(suffix, address, data, barrier))
            return
        mine = owner(w, kind)
        places = zip(w.regs(self.register), self.addresses(w, kind), strict=True)
        for index, (register, address) in enumerate(places):
            text = self._text(kind.dtype.name, address, register, barrier)
            w.line(text, pred=w.both(mine, held(w, kind, index)))

    def _tile_parts(self, w: Any, kind: RegTileType) -> Iterator[tuple[str, str, str]]:
        assert isinstance(self.shared.type, PeerType), "checked in infer"
        plan = _plan(self.how, kind, self.shared.type)
        addresses = w.access_addresses(self.shared, plan)
        for access, address in zip(plan.accesses, addresses, strict=True):
            part = registers_of_access(w.regs(self.register), kind, access, plan)
            if self.how == "store":
                yield plain_access(kind, address, part)
                continue
            base, _, offset = address.partition("+")
            for number, register in enumerate(part):
                yield kind.dtype.name, f"{base}+{int(offset or 0) + 4 * number}", register

    def _text(self, suffix: str, address: str, data: str, barrier: str) -> str:
        if self.how == "store":
            return transfers.st_async(suffix, address, data, barrier)
        return transfers.red_async(self.how, suffix, address, data, barrier)


def _plan(name: str, register: RegTileType, peer: PeerType) -> AccessPlan:
    if not isinstance(peer.kind, SharedTileType):
        raise LayoutError(f"{name}: a register tile meets a shared tile, got {peer}")
    if register.shape != peer.shape or register.dtype != peer.dtype:
        raise LayoutError(
            f"{name}: shapes and dtypes must agree, got {register} and {peer}",
            hint="convert first: tc.cast(x, dtype)",
        )
    plan = plan_access(register.layout, peer.kind.layout, matrices=False)
    if plan.elements * register.dtype.bits < 32:
        raise LayoutError(f"{name}: no instruction moves halves of registers, got {peer}")
    return plan


@dataclass(eq=False)
class StorePeer(Op):
    """`peer = register`, by plain stores across the cluster."""

    verb: ClassVar[str] = "store"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    peer: Value = operand()
    register: Value = operand()

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; shapes and dtypes must agree."""
        self.plan()
        return ()

    def plan(self) -> AccessPlan:
        """Its instructions and their lane addresses."""
        source, target = self.register.type, self.peer.type
        assert isinstance(source, RegTileType) and isinstance(target, PeerType), "by the caller"
        return _plan("store", source, target)

    def effects(self) -> tuple[Effect, ...]:
        """Reads the registers."""
        return (Effect(Access.READ, self.register),)

    def emit(self, w: Any) -> None:
        """`st.shared::cluster`."""
        kind, plan = self.register.type, self.plan()
        assert isinstance(kind, RegTileType), "checked in infer"
        addresses = w.access_addresses(self.peer, plan)
        for access, address in zip(plan.accesses, addresses, strict=True):
            part = registers_of_access(w.regs(self.register), kind, access, plan)
            w.line(transfers.st_cluster(*plain_access(kind, address, part)))


@dataclass(eq=False)
class LoadPeer(Op):
    """`register = peer`, by plain loads across the cluster."""

    verb: ClassVar[str] = "load"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    peer: Value = operand()
    kind: RegTileType = attribute()

    def infer(self) -> tuple[TileType, ...]:
        """A register tile of the same shape and dtype."""
        self.plan()
        return (self.kind,)

    def plan(self) -> AccessPlan:
        """Its instructions and their lane addresses."""
        assert isinstance(self.peer.type, PeerType), "by the caller"
        return _plan("load", self.kind, self.peer.type)

    def effects(self) -> tuple[Effect, ...]:
        """Writes the registers."""
        return (Effect(Access.WRITE, self.result),)

    def emit(self, w: Any) -> None:
        """`ld.shared::cluster`."""
        plan = self.plan()
        addresses = w.access_addresses(self.peer, plan)
        for access, address in zip(plan.accesses, addresses, strict=True):
            part = registers_of_access(w.regs(self.result), self.kind, access, plan)
            suffix, place, target = plain_access(self.kind, address, part)
            w.line(transfers.ld_cluster(suffix, target, place))
