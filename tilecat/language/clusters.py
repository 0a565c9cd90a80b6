"""Clusters of CTAs, and kernels that depend on one another.

rank = tc.cluster(2)                        # first in the kernel: CTAs in pairs
full = tc.barrier()
with tc.warpgroup():
full.expect(b)                          # in each CTA, the whole tile
tc.load_async(b, B[k, j], full, part=rank, parts=2, multicast=(0, 1))
full.wait(0)                            # each has loaded one half, for both
...
tc.cluster_sync()                       # no CTA leaves while the other may still write
"""

from __future__ import annotations

from typing import Any

from ..builder import add, current
from ..errors import LayoutError, ResourceError, ScopeError
from ..ir import Scope
from ..ops.cluster import ClusterBarrier, CopyToPeer, GridDependency, PeerShared, SendToPeer
from ..ops.scalar import SpecialRegister
from .barriers import one_barrier, rank_of
from .scalars import Scalar
from .values import PeerTile, Registers, SharedTile, SharedVec

PAIR = 2  # CTAs of .cta_group::2 (PTX ISA 9.7.16.5)
MAX_CLUSTER = 16  # CTAs; above 8 not portable (CUDA programming guide, thread block clusters)


def cluster(size: int, *, pairs: bool = False) -> Scalar:
    """Makes the CTAs of the grid run in clusters of `size`; the rank of this one in its cluster.

    First in the kernel. CTAs of a cluster run at once, on neighbouring SMs, and reach each other's
    shared memory. CTA c of the grid is in cluster c // size.

    Args:
        size: CTAs, 2 to 16.
        pairs: of 2 CTAs, products are of both (Blackwell, Rubin): rank 0 issues them, M is twice
            the rows that each has of A and of the sums, and each has one half of B's columns.
            Loads complete on `full.of_even`, `tc.mma_commit(done, multicast=(0, 1))` tells both.

    Raises:
        ArchError: pairs on a target without tcgen05.mma.
        ResourceError: another size.

    PTX: `.reqnctapercluster`, `.explicitcluster`.

    Scope: CTA, first in the kernel.
    """
    builder = current()
    if isinstance(size, bool) or not isinstance(size, int) or not 2 <= size <= MAX_CLUSTER:
        raise ResourceError(f"cluster: 2 to {MAX_CLUSTER} CTAs, known while tracing, got {size!r}")
    if builder.scope is not Scope.CTA or any(not op.pure for op in builder.kernel.body.ops):
        raise ScopeError("cluster: stands first in a kernel, got ops before it")
    builder.arch.require("cluster", "cluster")
    if pairs:
        builder.arch.require("tcgen05", "cluster: pairs=True")
        if size != PAIR:
            raise ResourceError(f"cluster: a pair is a cluster of {PAIR} CTAs, got {size=}")
        builder.kernel.facts["cta_group"] = PAIR
    builder.kernel.cluster = size
    return cluster_rank()


def cluster_rank() -> Scalar:
    """Rank of this CTA in its cluster.

    Scope: any. PTX: `%cluster_ctarank`.
    """
    return Scalar(add(SpecialRegister("%cluster_ctarank")).result)


def cluster_id() -> Scalar:
    """Number of this cluster on the grid.

    Scope: any. PTX: `%clusterid.x`.
    """
    return Scalar(add(SpecialRegister("%clusterid.x")).result)


def num_clusters() -> Scalar:
    """Clusters on the grid.

    Scope: any. PTX: `%nclusterid.x`.
    """
    return Scalar(add(SpecialRegister("%nclusterid.x")).result)


def _barrier(arrive: bool, wait: bool, name: str) -> None:
    if current().kernel.cluster == 1:
        raise ScopeError(f"{name}: the kernel has no clusters", hint="tc.cluster(2), first")
    add(ClusterBarrier(arrive, wait))


def cluster_arrive() -> None:
    """Arrives at the barrier of all threads of the cluster, and goes on.

    Scope: warp, warpgroup, CTA. PTX: `barrier.cluster.arrive.release`.
    """
    _barrier(True, False, "cluster_arrive")


def cluster_wait() -> None:
    """Waits until all threads of the cluster have arrived; once for each arrival.

    Scope: warp, warpgroup, CTA. PTX: `barrier.cluster.wait.acquire`.
    """
    _barrier(False, True, "cluster_wait")


def cluster_sync() -> None:
    """Waits for all threads of the cluster; what they did before is there after.

    Every thread of every CTA takes part. Scope: warp, warpgroup, CTA. PTX:
    `barrier.cluster.arrive.release`, `barrier.cluster.wait.acquire`.
    """
    _barrier(True, True, "cluster_sync")


def peer(tile: Any, rank: Any) -> PeerTile:
    """The same shared tile or vector in CTA `rank` of the cluster.

    `tc.load`, `tc.store`, `tc.atomic_add`, `tc.copy_to_peer` and `tc.store_to_peer` reach it. It
    must be there: `tc.cluster_sync` before the first access, and before a CTA leaves. PTX: `mapa`.

    Scope: any.
    """
    if not isinstance(tile, SharedTile | SharedVec):
        raise LayoutError(f"peer: of a shared tile or vector, got {tile!r}")
    place = rank_of(rank, "peer")
    return PeerTile(add(PeerShared(tile.value, place)).result, place)


def copy_to_peer(destination: PeerTile, source: Any, barrier: Any) -> None:
    """Copies a shared tile or vector to the peer's, asynchronously.

    The bytes complete on the peer's own mbarrier of that name, which the peer waits for. What
    threads wrote to the source must be fenced first: `tc.sync`.

    Scope: thread, warp, warpgroup. PTX: `cp.async.bulk.shared::cluster.shared::cta`.
    """
    if not isinstance(destination, PeerTile) or not isinstance(source, SharedTile | SharedVec):
        raise LayoutError(
            f"copy_to_peer: from a shared tile to a peer's, got {source!r} and {destination!r}",
            hint="tc.copy_to_peer(tc.peer(tile, rank), tile, barrier)",
        )
    signal = one_barrier(barrier, "copy_to_peer", "tc.peer(tile, rank), tile")
    add(CopyToPeer(
        destination.value, source.value, signal.op.result, signal.index, destination.rank
    ))  # fmt: skip


def store_to_peer(destination: PeerTile, source: Any, barrier: Any) -> None:
    """Stores registers to a peer's shared tile or vector, asynchronously.

    The bytes complete on the peer's own mbarrier of that name, which expects and waits for them:
    neither side waits for a barrier of the cluster. What the peer then reads by TMA or mma needs
    a fence first (`tc.sync`).

    Args:
        destination: `tc.peer(tile, rank)`.
        source: a register tile, or a whole vector, of its shape and dtype.
        barrier: the mbarrier.

    Scope: warpgroup, warp. PTX: `st.async` (ISA 9.7.9.12).
    """
    _send("store", destination, source, barrier)


def add_to_peer(destination: PeerTile, source: Any, barrier: Any) -> None:
    """`destination += source` in a peer's shared memory, atomic for each element; asynchronous.

    For s32 and u32, as the hardware has it; in no fixed order. Else as `store_to_peer`: several
    CTAs may add to one place in one phase, which expects the bytes of all
    (`full.expect(tile, tile)` of two).

    Scope: warpgroup, warp. PTX: `red.async.add` (ISA 9.7.13.7).
    """
    _send("add", destination, source, barrier)


def min_to_peer(destination: PeerTile, source: Any, barrier: Any) -> None:
    """`destination = min(destination, source)`; as `add_to_peer`.

    Scope: warpgroup, warp. PTX: `red.async.min`.
    """
    _send("min", destination, source, barrier)


def max_to_peer(destination: PeerTile, source: Any, barrier: Any) -> None:
    """`destination = max(destination, source)`; as `add_to_peer`.

    Scope: warpgroup, warp. PTX: `red.async.max`.
    """
    _send("max", destination, source, barrier)


def _send(how: str, destination: Any, source: Any, barrier: Any) -> None:
    name = f"{how}_to_peer"
    if not isinstance(destination, PeerTile) or not isinstance(source, Registers):
        raise LayoutError(
            f"{name}: from registers to a peer's tile, got {source!r} and {destination!r}",
            hint=f"tc.{name}(tc.peer(tile, rank), x, barrier)",
        )
    signal = one_barrier(barrier, name, "tc.peer(tile, rank), x")
    add(SendToPeer(
        destination.value, source.value, signal.op.result, signal.index, destination.rank, how
    ))  # fmt: skip


def grid_wait() -> None:
    """Waits until the kernels before this one on the stream are done, and their results there.

    A kernel with it may start while they end (programmatic dependent launch): what it does before
    must not depend on them. PTX: `griddepcontrol.wait`.

    Scope: any.
    """
    current().kernel.facts["dependent"] = True
    add(GridDependency(wait=True))


def grid_launch() -> None:
    """Lets the next kernel of the stream start, if it has a `tc.grid_wait`, while this one ends.

    PTX: `griddepcontrol.launch_dependents`.

    Scope: any.
    """
    add(GridDependency(wait=False))
