"""Synchronisation by hand: mbarriers, named barriers, fences, one thread of several.

A pipeline derives its barriers; who does not fit one writes them, with tiles still.

    full = tc.barriers(2)                       # before tc.warpgroup
    with tc.warpgroup():
        full[0].expect(a, b)                    # one arrival, and the bytes of both tiles
        tc.load_async(a, A[i, k], full[0])
        tc.load_async(b, B[k, j], full[0])
        full[0].wait(0)                         # until phase 0 has completed

An mbarrier completes a phase when its arrivals have come and the bytes it expects have landed, and
begins the next; `wait(parity)` returns once the phase of that parity has completed. Phase 0 comes
first, so that a wait for parity 1 on a fresh barrier returns at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..builder import add, assigned_name, current
from ..errors import DTypeError, LayoutError, ResourceError, ScopeError, SyncError
from ..ir import Scope, Value
from ..ops.control import Elected
from ..ops.copies import CopyArrive
from ..ops.scalar import require_s32
from ..ops.sync import (
    MAX_ARRIVALS,
    MAX_NAMED_BARRIERS,
    AllocBarriers,
    Arrive,
    ArriveExpect,
    Fence,
    FenceAsync,
    InitBarriers,
    NamedBarrier,
    TestBarrier,
    WaitBarrier,
)
from .control import Entry
from .meeting import after_meeting, has_tensor_memory
from .scalars import Scalar, operand_of
from .values import SharedTile, SharedVec

FIRST_NAMED_BARRIER = 9  # 0 is for starting, 1 to 8 for each warpgroup by itself
_FENCES = ("cta", "cluster", "gpu", "sys")
_SPACES = {"shared": "shared::cta", "cluster": "shared::cluster", "global": "global"}


class Barrier:
    """One mbarrier in shared memory.

    Attributes:
        of_pair: whether it is the even CTA's of a pair, as bytes of both CTAs complete there.
    """

    __slots__ = ("op", "index", "of_pair")

    def __init__(self, op: AllocBarriers, index: Any, of_pair: bool = False):
        self.op = op
        self.index = index
        self.of_pair = of_pair

    @property
    def of_even(self) -> Barrier:
        """That of the even CTA of a pair (`tc.cluster(2, pairs=True)`), for loads of both.

        The even CTA expects the bytes of both, and waits for them, on its own.

        Raises:
            ScopeError: the kernel's CTAs are no pairs.
        """
        if current().kernel.facts.get("cta_group") != 2:
            raise ScopeError(
                f"of_even: {self.op.name} is of a kernel whose CTAs are no pairs",
                hint="tc.cluster(2, pairs=True), before anything else in the kernel",
            )
        return Barrier(self.op, self.index, of_pair=True)

    def __repr__(self) -> str:
        """Its name."""
        return f"mbarrier {self.op.name}"

    def arrive(self, *, each: bool = False, when: Any = None, rank: Any = None) -> None:
        """One arrival of the scope, after what its first thread did.

        Args:
            each: every thread of the scope arrives: 128 arrivals of a warpgroup, 32 of a warp;
                orders what each of them did.
            when: a condition; no arrival where it is false.
            rank: arrive at the same mbarrier of this CTA of the cluster. It says that this CTA
                has read; what it wrote to the other's memory is not ordered by it.

        Scope: any. PTX: `mbarrier.arrive`; `mbarrier.arrive.shared::cluster` with a rank.
        """
        if when is False:
            return
        condition = None if when is None or when is True else operand_of(when, "arrive: when")
        assert condition is None or isinstance(condition, Value), "a predicate"
        target = None if rank is None else rank_of(rank, "arrive")
        self.op.tensor = self.op.tensor or has_tensor_memory()
        add(Arrive(self.op.result, self.index, condition, each, target))

    def expect(self, *tiles: Any) -> None:
        """One arrival, which announces the bytes of tiles that TMA will load.

        Args:
            tiles: shared tiles or vectors, one for each load of the phase; or bytes, as ints.

        Scope: any; one thread arrives. PTX: `mbarrier.arrive.expect_tx`.
        """
        total = sum(_bytes_of(tile) for tile in tiles)
        if not total:
            raise SyncError(
                f"expect: {self.op.name} expects the bytes of a phase's loads, got {total}",
                hint="barrier.expect(tile), or barrier.arrive() for a phase without loads",
            )
        self.op.expected_bytes = max(self.op.expected_bytes, total)
        add(ArriveExpect(self.op.result, self.index, total))

    def wait(self, parity: Any) -> None:
        """Waits until the phase with this parity (0 or 1) has completed.

        What was done before the arrivals, and the bytes that were expected, are there after.

        Scope: any; every thread waits. PTX: `mbarrier.try_wait.parity` in a loop.
        """
        add(WaitBarrier(self.op.result, self.index, self._parity(parity, "wait")))

    def try_wait(self, parity: Any, *, suspend: bool = True) -> Scalar:
        """Whether the phase with this parity has completed: a condition.

        Args:
            parity: 0 or 1.
            suspend: the thread may be suspended for a while before it answers no.

        Scope: any. PTX: `mbarrier.try_wait.parity`; `mbarrier.test_wait.parity` without `suspend`.
        """
        found = self._parity(parity, "try_wait")
        return Scalar(add(TestBarrier(self.op.result, self.index, found, suspend)).result)

    def arrive_after_copies(self) -> None:
        """Each thread of the scope arrives once its `tc.copy_async` so far are done.

        Scope: warpgroup (128 arrivals), warp (32). PTX: `cp.async.mbarrier.arrive.noinc`.
        """
        add(CopyArrive(self.op.result, self.index))

    @staticmethod
    def _parity(parity: Any, name: str) -> Any:
        value = operand_of(parity, name)
        if isinstance(value, bool) or isinstance(value, int) and value not in (0, 1):
            raise SyncError(f"{name}: a parity is 0 or 1, got {parity!r}", hint="phase & 1")
        require_s32(name, value)
        return value


class Barriers:
    """An array of mbarriers: `barriers[i]`, with a run-time index too."""

    __slots__ = ("op",)

    def __init__(self, op: AllocBarriers):
        self.op = op

    def __len__(self) -> int:
        """How many."""
        return self.op.count

    def __getitem__(self, index: Any) -> Barrier:
        """Mbarrier `index`."""
        place = operand_of(index, self.op.name)
        require_s32(self.op.name, place)
        if isinstance(place, int) and not 0 <= place < self.op.count:
            raise LayoutError(f"barriers: {self.op.count} of them, got index={place}")
        return Barrier(self.op, place)


def barriers(count: int, arrivals: int = 1) -> Barriers:
    """`count` mbarriers, each for `arrivals` arrivals a phase, ready for all threads.

    Before the kernel's `tc.warpgroup` block or pipeline; after `tc.cluster`, if there is one.

    Raises:
        ResourceError: counts that an mbarrier cannot have.
        ScopeError: inside a block.

    Scope: CTA. PTX: `mbarrier.init.shared::cta.b64`, and a barrier of all threads.
    """
    for name, value, most in (("count", count, 4096), ("arrivals", arrivals, MAX_ARRIVALS)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ResourceError(
                f"barriers: {name} is a compile-time int from 1 to {most}, got {name}={value!r}"
            )
    builder = current()
    if builder.scope is not Scope.CTA:
        raise ScopeError(
            f"barriers: made by the whole CTA, got scope={builder.scope.value}",
            hint="make them before the tc.warpgroup block or the pipeline",
        )
    op = AllocBarriers(assigned_name(builder.loc()) or "barrier", count, arrivals)
    builder.add(op)
    builder.add(InitBarriers((op.result,)))
    return Barriers(op)


def barrier(arrivals: int = 1) -> Barrier:
    """One mbarrier; see `tc.barriers`.

    Scope: CTA. PTX: `mbarrier.init.shared::cta.b64`.
    """
    return barriers(1, arrivals)[0]


def one_barrier(value: Any, name: str, example: str = "tile, A[row, col]") -> Barrier:
    """Checks that an argument is one mbarrier; the example has the call's other arguments.

    Raises:
        SyncError: anything else.
    """
    if not isinstance(value, Barrier):
        raise SyncError(
            f"{name}: its bytes complete on an mbarrier, got {value!r}",
            hint=f"full = tc.barrier() before tc.warpgroup, tc.{name}({example}, full)",
        )
    return value


def _bytes_of(tile: Any) -> int:
    if isinstance(tile, SharedTile | SharedVec):
        return tile.type.tx_bytes
    if isinstance(tile, int) and not isinstance(tile, bool) and tile >= 0:
        return tile
    raise LayoutError(f"expect: wanted shared tiles or bytes, got {tile!r}")


def rank_of(rank: Any, name: str) -> Any:
    """The operand of a rank in the cluster.

    Raises:
        ScopeError: no cluster, or a rank beyond it.
    """
    value, size = operand_of(rank, name), current().kernel.cluster
    require_s32(name, value)
    if size == 1 or isinstance(value, int) and not 0 <= value < size:
        raise ScopeError(
            f"{name}: a rank is 0 to {size - 1}, the CTAs of the cluster, got rank={rank!r}",
            hint="tc.cluster(2), before anything else in the kernel",
        )
    return value


# ---- named barriers


def _named(number: Any, threads: int, name: str) -> Any:
    value, most = operand_of(number, name), MAX_NAMED_BARRIERS - 1
    require_s32(name, value)
    if isinstance(value, int) and not FIRST_NAMED_BARRIER <= value <= most:
        raise ResourceError(
            f"{name}: named barriers {FIRST_NAMED_BARRIER} to {most} are free to use, "
            f"got number={value}"
        )
    if isinstance(threads, bool) or not isinstance(threads, int) or threads % 32 or threads < 32:
        raise SyncError(
            f"{name}: a named barrier is for a multiple of 32 threads, got threads={threads!r}"
        )
    return value


def barrier_sync(number: Any, threads: int) -> None:
    """Arrives at named barrier `number` and waits until `threads` threads have come.

    What they did before is there after. Scope: warp, warpgroup. PTX: `bar.sync`.
    """
    add(NamedBarrier(_named(number, threads, "barrier_sync"), threads))
    after_meeting()


def barrier_arrive(number: Any, threads: int) -> None:
    """Arrives at named barrier `number` of `threads` threads, and goes on. PTX: `bar.arrive`.

    Args as `barrier_sync`. Scope: warp, warpgroup.
    """
    add(NamedBarrier(_named(number, threads, "barrier_arrive"), threads, wait=False))


# ---- fences and single threads


def fence(among: str) -> None:
    """Orders this thread's accesses for threads `among` cta, cluster, gpu or sys.

    PTX: `fence.acq_rel`.

    Scope: any.
    """
    if among not in _FENCES:
        raise DTypeError(f"fence: among {', '.join(_FENCES)}, got {among!r}")
    add(Fence(among))


def fence_async(space: str = "shared") -> None:
    """Orders this thread's accesses to a space before those of TMA and the tensor cores.

    Args:
        space: "shared", "cluster" (shared memory of the whole cluster) or "global".

    PTX: `fence.proxy.async`.

    Scope: any.
    """
    if space not in _SPACES:
        raise DTypeError(f"fence_async: a space is {', '.join(_SPACES)}, got {space!r}")
    add(FenceAsync(_SPACES[space]))


@contextmanager
def elected() -> Iterator[None]:
    """`with tc.elected():` a section executed by one thread of the warp or warpgroup.

    PTX: `elect.sync` in a warp; the first thread of a warpgroup.

    Scope: warpgroup, warp; the body is one thread's.
    """
    builder, entry = current(), Entry("tc.elected", 2)
    body = builder.child()
    builder.add(Elected(body))
    with builder.within(body, Scope.THREAD):
        yield
    entry.check_left_at_the_end()
