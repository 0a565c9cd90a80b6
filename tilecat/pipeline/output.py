"""Output tiles: registers to global memory through a small ring of swizzled panels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..builder import add, current
from ..errors import LayoutError, ResourceError, SyncError
from ..ir import Block, Value
from ..language.control import otherwise, when
from ..language.regions import Region
from ..language.scalars import Scalar, binary, compare, named, operand_of
from ..language.transfers import check_cache, moves_chunks
from ..language.values import RegTile, SharedTile
from ..language.views import GlobalTile
from ..ops.copies import CopyByThreads
from ..ops.memory import AllocShared, StoreShared, ViewShared
from ..ops.scalar import Binary
from ..ops.sync import FenceAsync, NamedBarrier
from ..ops.tma import BulkWait, TmaStore
from ..tiles import SharedTileType
from .slots import Slots

CONSUMER_THREADS = 128
BUFFERS = 2  # panels of one consumer under way at a time


class Output:
    """Stages results of each consumer in shared memory, panel by panel, and stores them.

    A panel is one swizzle width of columns (64 for 16-bit types). While TMA reads one panel, the
    consumer writes the next.

    Where shared memory is short, an output lies in a stage of an input instead. The ring goes on by
    one stage between tasks, which the producer does not fill: it waits until the stage is empty and
    passes it on, consumers write and store it, and give it back. The other stages are safe: loads
    of the next task run meanwhile.

    Args:
        kind: a consumer's whole output tile.
        consumers: how many consumers.
        name: for reports.
        first: number of the first consumer's warpgroup in the CTA.
    """

    def __init__(self, kind: SharedTileType, consumers: int, name: str, first: int = 0):
        if kind.rows != 64 or kind.order != "row":
            raise LayoutError(f"output: a consumer's tile has 64 rows, row order, got {kind}")
        self.kind = kind
        layout = kind.layout
        self.panel = SharedTileType(kind.dtype, kind.rows, layout.panel_elems)
        self.num_panels = layout.num_panels
        self.consumers = consumers
        self.buffers = min(BUFFERS, self.num_panels)
        self.alloc = AllocShared(self.panel, name, consumers * self.buffers)
        add(self.alloc)
        self.first = first
        self.consumer: Any = None
        self.over: Slots | None = None  # the input in whose free stage it lies
        self.finishing = False  # the finish hole is being traced
        self.fresh = 0  # panels of that stage that nothing uses yet
        self.stored = False  # by some hole
        self.by_tma = False  # TMA reads its buffers, in some store
        self.waits: list[tuple[Block, BulkWait]] = []  # for TMA, before its buffers are written

    def __repr__(self) -> str:
        """Its name and type."""
        return f"{self.alloc.name}: output of {self.kind}"

    @property
    def _example(self) -> str:
        """How it is stored, for hints."""
        return f"{self.alloc.name}.store(C[row, col], x)"

    @property
    def tile(self) -> SharedTile:
        """An error: an output has no tile that a kernel could name."""
        raise LayoutError(
            f"{self.alloc.name}: an output is stored by its own method, got {self!r} as a tile",
            hint=self._example,
        )

    def store_to(self, *_place: Any) -> SharedTile:
        """An error, of `tc.store_async` and its like."""
        return self.tile

    def places_in(self, slots: Slots) -> int:
        """Panels that a stage of an input has room for."""
        if self.panel.layout.alignment > slots.kind.layout.alignment:
            return 0
        return slots.count * slots.alloc.stride_bytes // self.alloc.stride_bytes

    def lay_over(self, slots: Slots) -> None:
        """Takes a free stage of an input, once a task, instead of memory of its own."""
        self.over = slots
        self.buffers = min(self.num_panels, self.places_in(slots) // self.consumers)
        current().kernel.body.ops.remove(self.alloc)

    def grow(self, free_bytes: int) -> int:
        """Takes a buffer for every panel if they fit; what is left of the free shared bytes.

        With all of them a consumer writes its whole tile between two barriers, and waits for
        TMA once a task instead of once a panel.
        """
        more = (self.num_panels - self.buffers) * self.consumers * self.alloc.stride_bytes
        if more > free_bytes:
            return free_bytes
        self.buffers = self.num_panels
        self.alloc.copies = self.consumers * self.buffers
        return free_bytes - more

    def store(self, destination: GlobalTile, tile: RegTile, *, cache: str = "") -> None:
        """`destination = tile`, rounded to the tensor's dtype; asynchronous.

        Rows and columns outside the tensor are not written. Scope: a consumer's holes. PTX:
        `stmatrix`, then `cp.async.bulk.tensor`; where TMA cannot reach the tensor, and for a tile
        that lies across the end of a view, plain stores.
        """
        if not isinstance(destination, GlobalTile):
            raise LayoutError(
                f"output.store: wants C[row, col], got {destination!r}", hint=self._example
            )
        if not isinstance(tile, RegTile):
            raise LayoutError(
                f"output.store: stores a register tile, got {tile!r}", hint=self._example
            )
        if tile.type.shape != self.kind.shape:
            raise LayoutError(f"output.store: the output is {self.kind}, got {tile.type}")
        if destination.arg.type.dtype != self.kind.dtype:
            raise LayoutError(
                f"output.store: {destination.arg.name} holds {destination.arg.type.dtype}, "
                f"got an output of {self.kind}"
            )
        if self.over is not None and not self.finishing:
            raise ResourceError(
                "output.store: in finish alone where shared memory is short and the output lies "
                f"in a free stage of {self.over.name}, got a store in another hole",
                hint="fewer stages or smaller tiles",
            )
        check_cache("output.store", cache)
        self.stored = True
        region = destination.region(*self.kind.shape)
        step = self.buffers if self.buffers == self.num_panels else 1
        for first in range(0, self.num_panels, step):
            self._store_panels(region, tile, range(first, first + step), cache)

    def _store_panels(self, region: Region, tile: RegTile, panels: range, cache: str) -> None:
        """Between two barriers: into shared memory; after the second: on to global memory."""
        cols, along = self.panel.cols, region.axes[-1]
        whole = replace(region, bounds=())
        by_tma = whole.tma_stores and region.order == "row"
        number = operand_of(named(binary("add", self.consumer, self.first + 1), "barrier"))
        views = [self._buffer(index) for index in panels]
        self.by_tma = self.by_tma or by_tma
        if not self.fresh:
            self._wait_for_tma(self._pending(panels[0]) if by_tma and not region.bounds else 0)
        if self.fresh:
            self.fresh -= len(panels)
        else:
            add(NamedBarrier(number, CONSUMER_THREADS))
        for index, view in zip(panels, views, strict=True):
            add(StoreShared(view, tile.value, index * cols, rounds=True))
        if by_tma:
            add(FenceAsync())
        add(NamedBarrier(number, CONSUMER_THREADS))
        found = []
        for index, view in zip(panels, views, strict=True):
            place = list(region.coords)
            shift = -index * cols if along in region.reverse else index * cols
            place[along] = self._shift(place[along], shift)
            found.append((view, tuple(place)))
        if not by_tma:
            self._by_threads(region, found)
            return
        if not region.bounds:
            self._by_tma(region, found, cache)
            return
        with when(self._inside(region)):
            self._by_tma(region, found, cache)
        with otherwise():
            self._by_threads(region, found)

    def _wait_for_tma(self, pending: int) -> None:
        """Until TMA has read the buffers that are written next; `drain` drops idle waits."""
        wait = BulkWait(pending)
        add(wait)
        self.waits.append((current().block, wait))

    @staticmethod
    def _by_tma(region: Region, found: list[tuple[Value, tuple[Any, ...]]], cache: str) -> None:
        for view, coords in found:
            add(TmaStore(view, coords, region.arg, axes=region.axes, cache=cache))

    @staticmethod
    def _by_threads(region: Region, found: list[tuple[Value, tuple[Any, ...]]]) -> None:
        for view, coords in found:
            add(CopyByThreads(
                view, coords, region.arg, axes=region.axes, bounds=region.bounds,
                reverse=region.reverse, chunks=moves_chunks(SharedTile(view), region), store=True,
            ))  # fmt: skip

    def _inside(self, region: Region) -> Any:
        """Whether a tile lies inside its view's bounds, so that TMA stores nothing beyond them."""
        found: Any = True
        extents = dict(zip(region.axes, self.kind.shape, strict=True))
        scalars = [Scalar(x) if isinstance(x, Value) else x for x in region.bounds]
        for dim, coord in enumerate(region.coords):
            start = Scalar(coord) if isinstance(coord, Value) else coord
            low, high = scalars[2 * dim : 2 * dim + 2]
            if low is not None:
                found = compare("ge", start, low) & found
            if high is not None:
                found = compare("le", binary("add", start, extents.get(dim, 1)), high) & found
        return found

    def _buffer(self, index: int) -> Value:
        first = named(binary("mul", self.consumer, self.buffers), "buffer")
        position = operand_of(named(binary("add", first, index % self.buffers), "buffer"))
        if self.over is not None:
            stage = operand_of(self.over.ring.stage)
            bytes_of_stage = self.over.count * self.over.alloc.stride_bytes
            start = ViewShared(self.over.alloc.result, stage, bytes_of_stage, self.panel)
            view = ViewShared(add(start).result, position, self.alloc.stride_bytes, self.panel)
            return add(view).result
        view = ViewShared(self.alloc.result, position, self.alloc.stride_bytes, self.panel)
        return add(view).result

    def _pending(self, index: int) -> int:
        """Store groups that may be left when panel `index` takes its buffer.

        One group a panel; the buffer's last user must be done. In the first round that is a
        panel of the task before, and an odd number of panels shifts which. With a buffer for
        every panel, all of the task before must be done.
        """
        if self.buffers == self.num_panels:
            return 0
        if index >= self.buffers:
            return self.buffers - 1
        last = index + (self.num_panels - 1 - index) // self.buffers * self.buffers
        return self.num_panels - 1 - last + index

    @staticmethod
    def _shift(coord: Any, cols: int) -> Any:
        if isinstance(coord, int):
            return coord + cols
        return add(Binary("add", coord, cols)).result if cols else coord

    def occupy(self) -> None:
        """In a free stage: waits until it is this task's."""
        assert self.over is not None, "checked by the caller"
        self.over.ring.wait()
        self.finishing, self.fresh = True, self.buffers

    def vacate(self, finish: Block) -> None:
        """In a free stage: what finish has stored there has been read; gives it back."""
        assert self.over is not None, "checked by the caller"
        ops = list(finish.walk())
        if any(isinstance(op, TmaStore) for op in ops):
            add(BulkWait(0))
        if any(isinstance(op, CopyByThreads) for op in ops):
            number = operand_of(named(binary("add", self.consumer, self.first + 1), "barrier"))
            add(NamedBarrier(number, CONSUMER_THREADS))
        self.over.ring.release()

    def require_stored(self) -> None:
        """Refuses an output that no hole has stored.

        Raises:
            SyncError: its tensor would keep what it was.
        """
        if not self.stored:
            raise SyncError(
                f"{self.alloc.name}: an output is stored in a hole, got none that stores {self!r}",
                loc=self.alloc.loc,
                hint=f"{self._example} in finish",
            )

    def drain(self) -> None:
        """Before a consumer exits: all its stores have been read; in a free stage each task's were.

        What they write is in memory when the kernel ends. Without TMA, nothing waits for it.
        """
        for block, wait in [] if self.by_tma else self.waits:
            block.ops[:] = [op for op in block.ops if op is not wait]
        if self.over is None:
            add(BulkWait(0))
