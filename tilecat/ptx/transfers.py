"""PTX text of data movement and synchronisation beyond one CTA, one function an instruction.

Sections are those of the PTX ISA (9.x). See `instructions` for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from .instructions import WAIT_HINT_NS, vector

# Named L2 eviction priorities of a cache policy (9.7.9.18).
CACHE_POLICIES = ("evict_first", "evict_last", "evict_normal")
_TX = ".mbarrier::complete_tx::bytes"


def _hint(policy: str | None) -> tuple[str, str]:
    """Modifier and trailing operand of a cache policy."""
    return (".L2::cache_hint", f", {policy}") if policy else ("", "")


def create_policy(dst: str, name: str) -> str:
    """An L2 cache policy for all accesses that carry it (9.7.9.18)."""
    return f"createpolicy.fractional.L2::{name}.b64 {dst}, 1.0;"


def tma_load(
    dst: str, tensor_map: str, coords: Sequence[str], barrier: str,
    *, mask: str | None = None, policy: str | None = None, pair: bool = False,
) -> str:  # fmt: skip
    """Tensor-map copy from global to shared memory of the CTAs in a mask (9.7.9.27.1.2).

    With `pair`, the mbarrier may be the other CTA's of a pair.
    """
    hint, last = _hint(policy)
    cast = (".multicast::cluster" if mask else "") + ".cta_group::2" * pair
    return (
        f"cp.async.bulk.tensor.{len(coords)}d.shared::cluster.global.tile{_TX}{cast}{hint} "
        f"[{dst}], [{tensor_map}, {vector(coords)}], [{barrier}]"
        f"{f', {mask}' if mask else ''}{last};"
    )


def tma_store(
    tensor_map: str, coords: Sequence[str], src: str,
    *, reduce: str = "", policy: str | None = None,
) -> str:  # fmt: skip
    """Tensor-map copy, or reduction, from shared to global memory (9.7.9.27.1.2, 9.7.9.27.1.3)."""
    hint, last = _hint(policy)
    name = "cp.reduce" if reduce else "cp"
    operation = f".{reduce}" if reduce else ""
    return (
        f"{name}.async.bulk.tensor.{len(coords)}d.global.shared::cta{operation}.tile"
        f".bulk_group{hint} [{tensor_map}, {vector(coords)}], [{src}]{last};"
    )


def tma_prefetch(tensor_map: str, coords: Sequence[str], *, policy: str | None = None) -> str:
    """Tensor-map copy from global memory into L2 (9.7.9.27.1.4)."""
    hint, last = _hint(policy)
    return (
        f"cp.async.bulk.prefetch.tensor.{len(coords)}d.L2.global.tile{hint} "
        f"[{tensor_map}, {vector(coords)}]{last};"
    )


def bulk_load(dst: str, src: str, num_bytes: object, barrier: str, *, policy: str | None) -> str:
    """Copy of adjacent bytes, global to shared memory (9.7.9.25.4.1)."""
    hint, last = _hint(policy)
    return (
        f"cp.async.bulk.shared::cluster.global{_TX}{hint} "
        f"[{dst}], [{src}], {num_bytes}, [{barrier}]{last};"
    )


def bulk_store(
    dst: str, src: str, num_bytes: object, *, reduce: str = "", policy: str | None
) -> str:
    """Copy, or reduction, of adjacent bytes, shared to global (9.7.9.25.4.1, 9.7.9.25.4.2)."""
    hint, last = _hint(policy)
    name = "cp.reduce" if reduce else "cp"
    operation = f".{reduce}" if reduce else ""
    return (
        f"{name}.async.bulk.global.shared::cta.bulk_group{hint}{operation} "
        f"[{dst}], [{src}], {num_bytes}{last};"
    )


def bulk_push(dst: str, src: str, num_bytes: object, barrier: str) -> str:
    """Copy of adjacent bytes to shared memory of another CTA of the cluster (9.7.9.25.4.1)."""
    return (
        f"cp.async.bulk.shared::cluster.shared::cta{_TX} "
        f"[{dst}], [{src}], {num_bytes}, [{barrier}];"
    )


def cp_async(dst: str, src: str, num_bytes: int, source_bytes: object) -> str:
    """Copy of 4, 8 or 16 bytes by a thread; bytes beyond `source_bytes` are zero (9.7.9.25.3.2)."""
    cache = "cg" if num_bytes == 16 else "ca"
    return f"cp.async.{cache}.shared.global [{dst}], [{src}], {num_bytes}, {source_bytes};"


def cp_async_commit() -> str:
    """Close the thread's group of cp.async (9.7.9.25.3.3)."""
    return "cp.async.commit_group;"


def cp_async_wait(pending: int) -> str:
    """Wait for all but `pending` groups of cp.async (9.7.9.25.3.4)."""
    return f"cp.async.wait_group {pending};"


def cp_async_arrive(address: str) -> str:
    """Arrive on an mbarrier once the thread's copies so far are done (9.7.13.15.15)."""
    return f"cp.async.mbarrier.arrive.noinc.shared::cta.b64 [{address}];"


def mbarrier_arrive_remote(address: str) -> str:
    """Arrive at an mbarrier of the cluster (9.7.13.15.13).

    Without `.release.cluster`, for which ptxas adds fences of the whole GPU: it gives back what
    was read, and does not order this thread's writes.
    """
    return f"mbarrier.arrive.shared::cluster.b64 _, [{address}];"


def mbarrier_test(done: str, address: str, parity: str, *, suspend: bool) -> str:
    """Whether the phase of a parity has completed, at once or after a while (9.7.13.15.16)."""
    if suspend:
        operands = f"{done}, [{address}], {parity}, {WAIT_HINT_NS}"
        return f"mbarrier.try_wait.parity.shared::cta.b64 {operands};"
    return f"mbarrier.test_wait.parity.shared::cta.b64 {done}, [{address}], {parity};"


def cluster_arrive() -> str:
    """Arrive at the cluster's barrier; earlier accesses are ordered before it (9.7.13.2)."""
    return "barrier.cluster.arrive.release.aligned;"


def cluster_wait() -> str:
    """Wait for all threads of the cluster at its barrier (9.7.13.2)."""
    return "barrier.cluster.wait.acquire.aligned;"


def mapa(dst: str, address: str, rank: object) -> str:
    """The address of the same place in the shared memory of another CTA (9.7.9.23)."""
    return f"mapa.shared::cluster.u32 {dst}, {address}, {rank};"


def ld_cluster(kind: str, dst: str, address: str) -> str:
    """Load from shared memory of a CTA of the cluster (9.7.9.8)."""
    return f"ld.shared::cluster.{kind} {dst}, [{address}];"


def st_cluster(kind: str, address: str, src: str) -> str:
    """Store to shared memory of a CTA of the cluster (9.7.9.11)."""
    return f"st.shared::cluster.{kind} [{address}], {src};"


def st_async(kind: str, address: str, src: str, barrier: str) -> str:
    """Store to shared memory of a CTA of the cluster, in its own time (9.7.9.12)."""
    return f"st.async.shared::cluster{_TX}.{kind} [{address}], {src}, [{barrier}];"


def red_async(operation: str, kind: str, address: str, src: str, barrier: str) -> str:
    """Atomic update of shared memory of a CTA of the cluster, in its own time (9.7.13.7)."""
    return (
        f"red.async.relaxed.cluster.shared::cluster{_TX}.{operation}.{kind} "
        f"[{address}], {src}, [{barrier}];"
    )


def ld_acquire(kind: str, dst: str, address: str) -> str:
    """Load from global memory that other CTAs' releases order (9.7.9.8)."""
    return f"ld.acquire.gpu.global.{kind} {dst}, [{address}];"


def st_release(kind: str, address: str, src: str) -> str:
    """Store to global memory after all that this thread did, for the whole GPU (9.7.9.11)."""
    return f"st.release.gpu.global.{kind} [{address}], {src};"


def fence(scope: str) -> str:
    """Order this thread's accesses for others in a scope: cta, cluster, gpu, sys (9.7.13.4)."""
    return f"fence.acq_rel.{scope};"


def fence_proxy_async(space: str) -> str:
    """Order generic accesses before those of the async proxy (9.7.13.4)."""
    return f"fence.proxy.async.{space};"


def elect(leader: str) -> str:
    """A predicate that is true in one lane of the warp (9.7.13.14)."""
    return f"elect.sync _|{leader}, 0xffffffff;"


def grid_dependency(*, wait: bool) -> str:
    """Wait for the grids this one depends on, or let dependents start (9.7.13.13)."""
    return f"griddepcontrol.{'wait' if wait else 'launch_dependents'};"


def reduce_memory(space: str, operation: str, kind: str, address: str, src: str) -> str:
    """Atomic update without a result (9.7.13.6)."""
    return f"red.{space}.{operation}.{kind} [{address}], {src};"


def atom_add(kind: str, dst: str, address: str, src: object) -> str:
    """Atomic add in global memory, with the old value (9.7.13.5)."""
    return f"atom.global.add.{kind} {dst}, [{address}], {src};"


def atom_inc(dst: str, address: str, most: object) -> str:
    """Atomic increment in global memory, 0 after `most`, behind what came before (9.7.13.5)."""
    return f"atom.release.gpu.global.inc.u32 {dst}, [{address}], {most};"


def try_cancel(answer: str, barrier: str, *, everywhere: bool) -> str:
    """Ask for a cluster that has not begun; the answer may go to all of this one (9.7.14.18)."""
    cast = ".multicast::cluster::all" if everywhere else ""
    return (
        f"clusterlaunchcontrol.try_cancel.async.shared::cta{_TX}{cast}.b128 "
        f"[{answer}], [{barrier}];"
    )


def query_is_canceled(taken: str, answer: str) -> str:
    """Whether an answer names a cluster (9.7.14.19)."""
    return f"clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 {taken}, {answer};"


def query_first_cta(first: str, answer: str) -> str:
    """The x of the first CTA of the cluster that an answer names (9.7.14.19)."""
    return f"clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 {first}, {answer};"
