"""Scratch: tiles loaded once a task, one for each consumer of a role."""

from __future__ import annotations

from typing import Any

from ..builder import add, current
from ..errors import LayoutError, ScopeError, SyncError
from ..ir import Scope
from ..language.scalars import operand_of
from ..language.values import SharedTile
from ..language.views import GlobalTile
from ..ops.memory import AllocShared, ViewShared
from ..ops.sync import WaitBarrier
from ..tiles import SharedTileType
from .ring import Ring


class Scratch:
    """Tiles loaded once a task, one for each consumer, each behind barriers of its own.

    The producer fills `scratch[i]` in `@pipe.begin`; consumer i waits, uses and releases its own.
    """

    def __init__(self, kind: SharedTileType, count: int, name: str):
        self.kind = kind
        self.count = count
        self.alloc = add(AllocShared(kind, name, count))
        self.ring = Ring(name, 1, parts=count)
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
        """Consumer: waits until its tile is loaded, once a task.

        Scope: the consume and finish holes. PTX: `mbarrier.try_wait.parity`.
        """
        self._in_consumer()
        self.ring.look()
        consumer = operand_of(self.consumer)
        add(WaitBarrier(self.ring.full.result, consumer, operand_of(self.ring.phase)))
        self.ring.advance()

    def release(self, when: Any = None) -> None:
        """Consumer: its tile may be loaded for the next task.

        Args:
            when: a condition; the tile is given back where it holds, which must be once a task.

        Scope: the consume and finish holes. PTX: `mbarrier.arrive`.
        """
        self._in_consumer()
        self.ring.give_back(self.consumer, when)

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

    def load(self, source: GlobalTile, multicast: bool | str = False, cache: str = "") -> None:
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
        announced = ring.announce(self.index)
        ring.fill(self.scratch.view(self.index), source, self.index, cache=cache)
        ring.settle(announced, self.index)
