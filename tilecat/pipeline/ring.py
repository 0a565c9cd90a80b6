"""Rings of stages in shared memory, between a producer and its consumers.

A ring of depth D has D copies of its tiles and, a stage, two mbarriers: `full`, completed by the
bytes of the stage's loads, and `empty`, completed by one arrival of each consumer. The producer
waits on empty, announces the bytes, loads; a consumer waits on full, computes, arrives on empty.
Each side counts its own stage and phase. Who waits first on `empty` finds it complete: the
producer starts at parity 1.

    producer   wait empty[0] load 0 | wait empty[1] load 1 | wait empty[0] ...
    consumer           wait full[0] mma 0, arrive empty[0] | wait full[1] ...

In a cluster, a tile that all its CTAs need is loaded in shares: each CTA's producer loads one for
all of them, and each CTA's `full` counts the bytes of all shares. A stage is then empty when the
consumers of every CTA have read it: they arrive on the `empty` of each.
"""

from __future__ import annotations

from typing import Any

from ..builder import add, current
from ..errors import LayoutError, ScopeError, SyncError
from ..ir import Scope
from ..language.clusters import cluster_rank
from ..language.scalars import Var, binary, named, operand_of, select, var
from ..language.transfers import check_meets, moves_chunks, part_coords
from ..language.values import SharedTile
from ..language.views import GlobalTile
from ..ops.copies import CopyByThreads
from ..ops.memory import AllocShared, ViewShared
from ..ops.sync import AllocBarriers, Arrive, ArriveExpect, FenceAsync, WaitBarrier
from ..ops.tma import TmaLoad
from ..tiles import SharedTileType

PRODUCER_THREADS = 128


class Slots:
    """Tiles that travel through one ring: `count` of them a stage.

    Used as a tile, it is the one of the current stage; `slots[i]` is tile i of it.
    """

    def __init__(self, ring: Ring, kind: SharedTileType, count: int, name: str):
        self.ring = ring
        self.kind = kind
        self.count = count
        self.name = name
        self.alloc = add(AllocShared(kind, name, ring.depth * count, count))
        self.loads = 0

    def __repr__(self) -> str:
        """Its name and a tile's type."""
        return f"{self.name}: input of {self.count} {self.kind}"

    def __getitem__(self, index: Any) -> Slot:
        """Tile `index` of the current stage."""
        if isinstance(index, int) and not 0 <= index < self.count:
            raise LayoutError(f"{self.name}: {self.count} tiles a stage, got index={index}")
        return Slot(self, index)

    @property
    def tile(self) -> SharedTile:
        """The current stage's only tile."""
        return self[0].tile

    def load(self, source: GlobalTile, multicast: bool = False) -> None:
        """Loads the stage's only tile."""
        self[0].load(source, multicast)

    def wait(self) -> None:
        """Consumer: waits until the current stage is full.

        Scope: the consume hole. PTX: `mbarrier.try_wait.parity` on the stage's `full`.
        """
        self.ring.wait()

    def release(self) -> None:
        """Consumer: gives the current stage back, and goes to the next.

        Scope: the consume hole, after `tc.mma_wait` for what reads it. PTX: `mbarrier.arrive`.
        """
        self.ring.release()


class Slot:
    """One tile of the current stage of a ring."""

    def __init__(self, slots: Slots, index: Any):
        self.slots = slots
        self.index = index

    @property
    def tile(self) -> SharedTile:
        """Its shared tile."""
        alloc, ring = self.slots.alloc, self.slots.ring
        assert isinstance(alloc, AllocShared), "made in Slots"
        name = self.slots.name
        first = named(binary("mul", ring.stage, self.slots.count), f"{name}_first")
        position = named(binary("add", first, self.index), f"{name}_tile")
        view = ViewShared(alloc.result, operand_of(position), alloc.stride_bytes, alloc.tile)
        return SharedTile(add(view).result)

    def load(self, source: GlobalTile, multicast: bool = False) -> None:
        """Producer: fills it; the ring is acquired at the first load of a step."""
        self.slots.ring.acquire()
        self.slots.loads += 1
        self.slots.ring.fill(self.tile, source, multicast=multicast)


class Ring:
    """A ring of `depth` stages, its barriers, and the stage a role is at.

    Args:
        name: for reports.
        depth: stages.
        consumers: arrivals that free a stage.
        parts: independent copies of the barriers, e.g. one a consumer for tiles each loads alone.
    """

    def __init__(self, name: str, depth: int, consumers: int, parts: int = 1):
        self.name = name
        self.depth = depth
        self.slots: list[Slots] = []
        self.full = add(AllocBarriers(f"{name} full", depth * parts))
        self.empty = add(AllocBarriers(f"{name} empty", depth * parts, consumers))
        self.tx_bytes = 0
        self.by_threads = False
        self.acquired: ArriveExpect | None = None
        self.loading = False  # the load hole is being traced
        self.multicast = False  # its stages are filled by every CTA of the cluster
        self._stage: Var | None = None
        self._phase: Var | None = None
        self.stage: Any = 0
        self.phase: Any = 0

    def begin(self, parity: int) -> None:
        """A role starts: stage 0, waiting for `parity`."""
        self._stage = var(0, name=f"{self.name}_slot") if self.depth > 1 else None
        self._phase = var(parity, name=f"{self.name}_phase")
        self.look()

    def look(self) -> None:
        """Reads the stage and phase the role is at, once for all their uses in a step."""
        assert self._phase is not None, "begin comes first"
        self.stage = self._stage.get() if self._stage is not None else 0
        self.phase = self._phase.get()

    def advance(self) -> None:
        """On to the next stage; the phase turns after the last."""
        assert self._phase is not None, "begin comes first"
        if self._stage is None:
            self._phase.set(self.phase ^ 1)
            return
        following = named(self.stage + 1, "next")
        wrapped = named(following == self.depth, "wrapped")
        self._stage.set(named(select(wrapped, 0, following), "next"))
        turned = named(self.phase ^ 1, "turned")
        self._phase.set(named(select(wrapped, turned, self.phase), "turned"))

    # ---- consumer

    def wait(self) -> None:
        """Waits until the stage is full."""
        self.look()
        add(WaitBarrier(self.full.result, operand_of(self.stage), operand_of(self.phase)))

    def give_back(self, stage: Any, when: Any = None) -> None:
        """One arrival on the stage's empty barrier."""
        if when is False:
            return
        condition = None if when is None or when is True else operand_of(when)
        place = operand_of(stage)
        ranks = range(current().kernel.cluster) if self.multicast else (None,)
        for rank in ranks:
            add(Arrive(self.empty.result, place, condition, rank=rank))  # type: ignore[arg-type]

    def release(self) -> None:
        """Gives the stage back and goes on."""
        self.give_back(self.stage)
        self.advance()

    # ---- producer

    def acquire(self) -> None:
        """Waits for the stage to be empty and announces its bytes, once a step."""
        if not self.loading:
            raise ScopeError(
                "load_async: inputs are loaded in the pipeline's load hole",
                hint="@pipe.load; what a task needs once is pipe.scratch, loaded in @pipe.begin",
            )
        if self.acquired is not None:
            return
        self.look()
        add(WaitBarrier(self.empty.result, operand_of(self.stage), operand_of(self.phase)))
        self.acquired = self._announce(self.stage)

    def _announce(self, index: Any) -> ArriveExpect:
        op = add(ArriveExpect(self.full.result, operand_of(index)))
        assert isinstance(op, ArriveExpect), "not a duplicate: it has effects"
        self.tx_bytes = 0
        return op

    def drain(self) -> None:
        """Producer, at the end: waits until every stage is empty.

        In a cluster the other CTAs arrive here; this one must not leave before they have.
        """
        for _ in range(self.depth):
            self.look()
            add(WaitBarrier(self.empty.result, operand_of(self.stage), operand_of(self.phase)))
            self.advance()

    def _share(self) -> None:
        """The stages are filled by every CTA of the cluster: all consumers must free them."""
        if not self.multicast:
            self.multicast = True
            empty = self.empty
            assert isinstance(empty, AllocBarriers), "made in __init__"
            empty.arrivals *= current().kernel.cluster

    def fill(
        self, tile: SharedTile, source: GlobalTile, index: Any = None, *, multicast: bool = False
    ) -> None:
        """One tile's load: by TMA, or by all threads of the producer where TMA cannot reach."""
        kind = tile.type
        barrier = operand_of(self.stage if index is None else index)
        region = source.region(kind.rows, kind.cols)
        check_meets("load_async", kind, region)
        parts = current().kernel.cluster if multicast else 1
        if region.tma and parts > 1:
            self._share()
            rank = cluster_rank()
            op = TmaLoad(
                tile.value, part_coords(tile, region, rank, parts), region.arg,
                barriers=self.full.result, index=barrier, axes=region.axes,
                part=operand_of(rank), parts=parts, ranks=(1 << parts) - 1,
            )  # fmt: skip
            add(op)
            self.tx_bytes += op.num_bytes * parts
        elif region.tma:
            op = TmaLoad(
                tile.value, region.coords, region.arg, barriers=self.full.result, index=barrier,
                axes=region.axes,
            )  # fmt: skip
            add(op)
            self.tx_bytes += op.num_bytes
        else:
            self.by_threads = True
            add(CopyByThreads(
                tile.value, region.coords, region.arg, axes=region.axes, bounds=region.bounds,
                chunks=moves_chunks(tile, region),
            ))  # fmt: skip

    def finish_step(self) -> None:
        """After the load hole: bytes and arrivals are known; on to the next stage."""
        if self.acquired is None:
            raise SyncError(
                f"ring {self.name}: the load hole must load it every step, got no load_async",
                loc=self.slots[0].alloc.loc,
                hint="load every pipe.input in @pipe.load",
            )
        self.settle(self.acquired, self.stage)
        self.acquired = None
        for slots in self.slots:
            if slots.loads != slots.count:
                raise SyncError(
                    f"{slots.name}: each of its {slots.count} tiles is loaded once a step, "
                    f"got {slots.loads} loads",
                    loc=slots.alloc.loc,
                )
            slots.loads = 0
        self.advance()

    def settle(self, announced: ArriveExpect, index: Any) -> None:
        """Derives the bytes of the announcement and the arrivals of the full barrier."""
        full = self.full
        assert isinstance(full, AllocBarriers), "made in __init__"
        announced.num_bytes = self.tx_bytes
        full.expected_bytes = self.tx_bytes
        full.arrivals = 1
        if self.by_threads:
            add(FenceAsync())
            add(Arrive(full.result, operand_of(index), each=True))
            full.arrivals = PRODUCER_THREADS + (1 if self.tx_bytes else 0)


class Scratch:
    """Tiles loaded once a task, one for each consumer, each behind barriers of its own.

    The producer fills `scratch[i]` in `@pipe.begin`; consumer i waits, uses and releases its own.
    """

    def __init__(self, kind: SharedTileType, count: int, name: str):
        self.kind = kind
        self.count = count
        self.alloc = add(AllocShared(kind, name, count))
        self.ring = Ring(name, 1, 1, parts=count)
        self.loaded: set[int] = set()
        self.loading = False  # the begin hole is being traced
        self.consumer: Any = None

    def __getitem__(self, index: int) -> ScratchSlot:
        """Tile of consumer `index`, to load."""
        if not isinstance(index, int) or not 0 <= index < self.count:
            raise LayoutError(f"scratch: an int below {self.count}, got {index!r}")
        return ScratchSlot(self, index)

    def view(self, index: Any) -> SharedTile:
        """Tile of consumer `index`."""
        alloc = self.alloc
        assert isinstance(alloc, AllocShared), "made in __init__"
        view = ViewShared(alloc.result, operand_of(index), alloc.stride_bytes, alloc.tile)
        return SharedTile(add(view).result)

    @property
    def tile(self) -> SharedTile:
        """This consumer's tile."""
        self._in_consumer()
        return self.view(self.consumer)

    def _in_consumer(self) -> None:
        if self.consumer is None or current().scope is not Scope.WARPGROUP:
            raise ScopeError("scratch: used by consumers; the producer loads scratch[i]")

    def wait(self) -> None:
        """Consumer: waits until its tile is loaded.

        Scope: the consume and finish holes. PTX: `mbarrier.try_wait.parity`.
        """
        self._in_consumer()
        self.ring.look()
        consumer = operand_of(self.consumer)
        add(WaitBarrier(self.ring.full.result, consumer, operand_of(self.ring.phase)))

    def release(self) -> None:
        """Consumer: its tile may be loaded for the next task.

        Scope: the consume and finish holes. PTX: `mbarrier.arrive`.
        """
        self._in_consumer()
        self.ring.give_back(self.consumer)
        self.ring.advance()

    def finish_step(self) -> None:
        """After the begin hole: every tile was loaded; the phase turns."""
        if len(self.loaded) != self.count:
            raise SyncError(
                f"scratch: @pipe.begin loads each of its {self.count} tiles, "
                f"got {sorted(self.loaded)}"
            )
        self.loaded.clear()
        self.ring.advance()


class ScratchSlot:
    """One consumer's scratch tile, as the producer loads it."""

    def __init__(self, scratch: Scratch, index: int):
        self.scratch = scratch
        self.index = index

    def load(self, source: GlobalTile, multicast: bool = False) -> None:
        """Producer: waits until it is free, and fills it."""
        ring = self.scratch.ring
        if multicast:
            raise ScopeError("load_async: only inputs are multicast, got a scratch tile")
        if not self.scratch.loading:
            raise ScopeError("load_async: scratch tiles are loaded in the pipeline's begin hole")
        if self.index in self.scratch.loaded:
            raise SyncError(f"load_async: scratch[{self.index}] is loaded once a task, got another")
        if not self.scratch.loaded:
            ring.look()
        self.scratch.loaded.add(self.index)
        add(WaitBarrier(ring.empty.result, self.index, operand_of(ring.phase)))
        announced = ring._announce(self.index)
        ring.fill(self.scratch.view(self.index), source, self.index)
        ring.settle(announced, self.index)
