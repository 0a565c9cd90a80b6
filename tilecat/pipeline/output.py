"""Output tiles: registers to global memory through a small ring of swizzled panels."""

from __future__ import annotations

from typing import Any

from ..builder import add
from ..errors import LayoutError
from ..language.scalars import binary, named, operand_of
from ..language.transfers import moves_chunks
from ..language.values import RegTile, SharedTile
from ..language.views import GlobalTile, Region
from ..ops.copies import CopyByThreads
from ..ops.memory import AllocShared, StoreShared, ViewShared
from ..ops.scalar import Binary
from ..ops.sync import FenceAsync, NamedBarrier
from ..ops.tma import BulkWait, TmaStore
from ..tiles import SharedTileType

CONSUMER_THREADS = 128
BUFFERS = 2  # panels of one consumer under way at a time


class Output:
    """Stages results of each consumer in shared memory, panel by panel, and stores them.

    A panel is one swizzle width of columns (64 for 16-bit types). While TMA reads one panel, the
    consumer writes the next.

    Args:
        kind: a consumer's whole output tile.
        consumers: how many consumers.
        name: for reports.
    """

    def __init__(self, kind: SharedTileType, consumers: int, name: str):
        if kind.rows != 64 or kind.order != "row":
            raise LayoutError(f"output: a consumer's tile has 64 rows, row order, got {kind}")
        self.kind = kind
        layout = kind.layout
        self.panel = SharedTileType(kind.dtype, kind.rows, layout.panel_elems)
        self.num_panels = layout.num_panels
        self.buffers = min(BUFFERS, self.num_panels)
        self.alloc = add(AllocShared(self.panel, name, consumers * self.buffers))
        self.consumer: Any = None

    def store(self, destination: GlobalTile, tile: RegTile) -> None:
        """`destination = tile`, rounded to the tensor's dtype; asynchronous.

        Rows and columns outside the tensor are not written. Scope: a consumer's holes. PTX:
        `stmatrix`, then `cp.async.bulk.tensor`; where TMA cannot reach the tensor, plain stores.
        """
        if not isinstance(destination, GlobalTile):
            raise LayoutError(f"output.store: wants C[row, col], got {destination!r}")
        if not isinstance(tile, RegTile):
            raise LayoutError(f"output.store: stores a register tile, got {tile!r}")
        if tile.type.shape != self.kind.shape:
            raise LayoutError(f"output.store: the output is {self.kind}, got {tile.type}")
        if destination.arg.type.dtype != self.kind.dtype:
            raise LayoutError(
                f"output.store: {destination.arg.name} holds {destination.arg.type.dtype}, "
                f"got an output of {self.kind}"
            )
        region = destination.region(*self.kind.shape)
        for index in range(self.num_panels):
            self._store_panel(region, tile, index)

    def _store_panel(self, region: Region, tile: RegTile, index: int) -> None:
        by_tma = region.tma and region.order == "row"
        number = operand_of(named(binary("add", self.consumer, 1), "barrier"))
        first = named(binary("mul", self.consumer, self.buffers), "buffer")
        position = named(binary("add", first, index % self.buffers), "buffer")
        alloc = self.alloc
        assert isinstance(alloc, AllocShared), "made in __init__"
        view = add(
            ViewShared(alloc.result, operand_of(position), alloc.stride_bytes, self.panel)
        ).result
        if by_tma:
            add(BulkWait(self._pending(index)))
        add(NamedBarrier(number, CONSUMER_THREADS))
        add(StoreShared(view, tile.value, index * self.panel.cols, rounds=True))
        place, along = list(region.coords), region.axes[-1]
        place[along] = self._shift(place[along], index * self.panel.cols)
        if by_tma:
            add(FenceAsync())
        add(NamedBarrier(number, CONSUMER_THREADS))
        if by_tma:
            add(TmaStore(view, tuple(place), region.arg, axes=region.axes))
        else:
            add(CopyByThreads(
                view, tuple(place), region.arg, axes=region.axes, bounds=region.bounds,
                chunks=moves_chunks(SharedTile(view), region), store=True,
            ))  # fmt: skip

    def _pending(self, index: int) -> int:
        """Store groups that may be left when panel `index` takes its buffer.

        One group a panel; the buffer's last user must be done. In the first round that is a
        panel of the task before, and an odd number of panels shifts which.
        """
        if index >= self.buffers:
            return self.buffers - 1
        last = index + (self.num_panels - 1 - index) // self.buffers * self.buffers
        return self.num_panels - 1 - last + index

    @staticmethod
    def _shift(coord: Any, cols: int) -> Any:
        if isinstance(coord, int):
            return coord + cols
        return add(Binary("add", coord, cols)).result if cols else coord

    def drain(self) -> None:
        """Before a consumer exits: all its stores are done."""
        add(BulkWait(0, read=False))
