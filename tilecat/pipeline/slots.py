"""Tiles and vectors of a ring: what loads, computes and stores name."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from ..builder import add, current
from ..errors import LayoutError, ScopeError, SyncError
from ..ir import Scope
from ..language.scalars import binary, named, operand_of
from ..language.tensor import TensorScales, copy_scales, view_of
from ..language.transfers import check_meets, moves_chunks
from ..language.values import SharedElement, SharedTile, SharedVec, wrap
from ..language.views import GlobalTile
from ..ops.copies import CopyByThreads
from ..ops.memory import AllocShared, ViewShared
from ..ops.tensor import AllocTensor
from ..ops.tma import TmaStore
from ..tiles import ScalesType, SharedTileType, SharedVecType
from .member import Member
from .pairs import halved
from .ring import Party, Ring


class Slots:
    """Tiles (or vectors) that travel through one ring: `count` of them a stage.

    Used as a tile, it is the one of the current stage; `slots[i]` is tile i of it.
    """

    def __init__(
        self, ring: Ring, kind: SharedTileType | SharedVecType, count: int, name: str
    ):  # fmt: skip
        self.ring = ring
        self.kind = kind
        self.count = count
        self.name = name
        alloc = AllocShared(kind, name, ring.copies * count, count)
        add(alloc)
        self.alloc = alloc
        ring.tiles.append(alloc.result)
        ring.slots.append(self)
        self.half: int | None = None  # the axis of which each CTA of a pair has one half
        self.loads = Fraction(0)  # tiles of this step loaded so far
        self.begun: set[Any] = set()  # vectors of which elements are loaded in this step
        self.tensor: AllocTensor | None = None  # of scales: where products take them
        self.copied: set[Any] = set()  # scales that this step has copied there

    def __repr__(self) -> str:
        """Its name and a tile's type."""
        what = "input" if self.ring.writer is None else f"output of the {self.ring.writer.name}"
        return f"{self.name}: {what} of {self.count} {self.kind}"

    def __getitem__(self, index: Any) -> Slot:
        """Tile `index` of the current stage."""
        last = index.last if isinstance(index, Member) else index
        if isinstance(index, int) and not 0 <= index <= last < self.count:
            raise LayoutError(f"{self.name}: {self.count} tiles a stage, got index={last}")
        return Slot(self, index)

    def halve(self, axis: int) -> None:
        """Leaves each CTA of a pair one half of the tiles, along an axis."""
        assert isinstance(self.kind, SharedTileType), "an operand of products"
        self.half = axis
        self.alloc.tile = self.alloc.result.type = halved(self.kind, axis)

    @property
    def _only(self) -> Slot:
        """The only one of a stage.

        Raises:
            LayoutError: there are several.
        """
        if self.count != 1:
            raise LayoutError(
                f"{self.name}: a stage has {self.count} tiles, and which is meant is not said",
                hint=f"{self.name}[pipe.consumer], or {self.name}[i] of i from 0 to "
                f"{self.count - 1}",
            )
        return self[0]

    @property
    def tile(self) -> SharedTile | SharedVec:
        """The current stage's only tile."""
        return self._only.tile

    def in_tensor_memory(self, name: str) -> TensorScales:
        """The current stage's only scales, where products take them."""
        return self._only.in_tensor_memory(name)

    def at(self, index: Any) -> SlotElement:
        """Element `index` of the current stage's only vector."""
        return self._only.at(index)

    def load(self, source: GlobalTile, multicast: bool | str = False, cache: str = "") -> None:
        """Loads the stage's only tile."""
        self._only.load(source, multicast, cache)

    def store_to(self, destination: GlobalTile, reduce: str, cache: str) -> None:
        """Stores the stage's only tile."""
        self._only.store_to(destination, reduce, cache)

    def wait(self) -> None:
        """Consumer: waits until the current stage is full.

        Scope: the consume hole. PTX: `mbarrier.try_wait.parity` on the stage's `full`.
        """
        self.ring.wait()

    def release(self) -> None:
        """Consumer: gives the current stage back, and goes to the next.

        In a compute hole: gives it back before the hole ends; the next comes next step.

        Scope: consume or compute, after `tc.mma_wait` for what reads it, and a barrier of the
        consumer's threads (`tc.barrier_sync(pipe.consumer + 1, 128)`) where they have read it.
        PTX: `mbarrier.arrive`.
        """
        if self.ring.visit is None or self.ring.kept:
            self.ring.release()
        else:
            self._end_visit("release")
            self.ring.give_back(self.ring.stage)

    def advance(self) -> None:
        """Consumer: goes to the next stage, and keeps this one until `release_before`.

        Raises:
            SyncError: a ring of one stage.

        Scope: the consume hole. PTX: none.
        """
        if self.ring.depth == 1:
            raise SyncError(
                f"advance: a stage is kept beside the next, got {self.name} in a ring of one",
                hint="stages=2",
            )
        self.ring.advance()

    def release_before(self, when: Any = True) -> None:
        """Consumer: gives back the stage before the current one, after `advance`.

        For products that go on over the next stage's beginning:

            for step in tc.range(steps):
                q.wait()
                tc.mma_ABt(s, k, q, accumulate=False)
                tc.mma_wait(1)                        # S, and what the step before left
                q.release_before(step > 0)
                ...
                tc.mma_AB(dk, ds, q)                  # left under way
                q.advance()
            tc.mma_wait()
            q.release_before()

        Args:
            when: a condition; nothing is given back where it is false.

        Scope: the consume hole. PTX: `mbarrier.arrive`.
        """
        self.ring.give_back_before(when)

    def next(self) -> None:
        """Goes on to the ring's next stage within a step: each party does so, as often.

        The producer has loaded a stage; who reads gives it back; who fills it publishes it.

            for part in range(2):            # two stages a step
                tc.load_async(k, K[2 * step + part, 0])
                if part == 0:
                    k.next()

        Scope: load, compute and store holes, not inside a branch or a loop; after `tc.mma_wait`
        for what reads the stage. PTX: as where a step ends.
        """
        ring, visit = self.ring, self.ring.visit
        if ring.loading:
            finish_step(ring, ring.slots)
            return
        wrong = (
            "in another hole" if visit is None
            else "before its first use" if ring not in visit.left
            else "inside of a branch or a loop" if current().block is not visit.block else ""
        )  # fmt: skip
        if visit is None or wrong:
            raise SyncError(f"next: ends the use of a stage in a hole itself, got {self.name} "
                            f"{wrong}", hint="after the last use of the stage's tiles")
        visit.rings.remove(ring)
        if visit.party is ring.writer:
            ring.publish()
            ring.advance()
        else:
            visit.party.pass_stage(ring, visit)

    def claim(self) -> None:
        """Who fills an output: waits until the current stage is empty.

        Scope: the consume hole. PTX: `mbarrier.try_wait.parity` on the stage's `empty`.
        """
        self._check_filled_here("claim")
        self.ring.claim()

    def publish(self) -> None:
        """Who fills an output: the current stage is written; goes to the next.

        In a compute hole: tells its readers before the hole ends; the next comes next step.

        Scope: consume or compute. PTX: `fence.proxy.async`, `mbarrier.arrive` of every thread.
        """
        self._check_filled_here("publish")
        if self.ring.visit is None:
            self.ring.publish()
            self.ring.advance()
        else:
            self._end_visit("publish")
            self.ring.publish()

    def _end_visit(self, name: str) -> None:
        """A compute hole is done with the current stage.

        Raises:
            SyncError: it has not used it yet, has ended it before, or is in a branch or a loop.
        """
        visit = self.ring.visit
        assert visit is not None, "of a compute hole"
        wrong = (
            "in another hole" if not visit.ends
            else "before its first use" if self.ring not in visit.rings
            else "for the second time" if self.ring in visit.done
            else "inside of a branch or a loop" if current().block is not visit.block else ""
        )  # fmt: skip
        if wrong:
            raise SyncError(
                f"{name}: ends the use of a stage once a step, in compute itself, got "
                f"{self.name} {wrong}", hint=f"once, after the last use of {self.name}'s tiles",
            )  # fmt: skip
        visit.done.append(self.ring)

    def _check_filled_here(self, name: str) -> None:
        if self.ring.writer is None:
            raise ScopeError(
                f"{name}: of an output; inputs are filled by the producer, got {self!r}",
                hint="input.wait() and input.release()",
            )


class Slot:
    """One tile of the current stage of a ring."""

    def __init__(self, slots: Slots, index: Any):
        self.slots = slots
        self.index = index

    def __repr__(self) -> str:
        """Its ring's name and its number."""
        return f"{self.slots.name}[{self.index!r}]"

    def __getitem__(self, span: Any) -> SlotPart:
        """Part of the tile, to load or to store: `x[0][0:32, :]`."""
        return SlotPart(self, span)

    @property
    def tile(self) -> SharedTile | SharedVec:
        """Its shared tile, or vector."""
        self.slots.ring.touch()
        return self.place()

    def place(self) -> SharedTile | SharedVec:
        """Its shared tile, or vector, of a party that has waited for the stage, or claimed it."""
        alloc, ring = self.slots.alloc, self.slots.ring
        name = self.slots.name
        stage = ring.stage if ring.turns == 1 else 0
        first = named(binary("mul", stage, self.slots.count), f"{name}_first")
        position = named(binary("add", first, self.index), f"{name}_tile")
        kind = self.index.tile_of(alloc) if isinstance(self.index, Member) else alloc.tile
        view = ViewShared(alloc.result, operand_of(position), alloc.stride_bytes, kind)
        place: SharedTile | SharedVec = wrap(add(view).result)
        return place

    def in_tensor_memory(self, name: str) -> TensorScales:
        """Scales, where products take them: the first use in a step copies them.

        Raises:
            LayoutError: a tile or vector that is no scales.
            ArchError: products whose sums are in registers.
        """
        slots = self.slots
        if not isinstance(slots.kind, ScalesType):
            raise LayoutError(
                f"{name}: wanted scales, got {slots!r}", hint="pipe.input(tc.sc[e8m0, 128, 4])"
            )
        current().arch.require("tcgen05", name)
        assert slots.tensor is not None, "allocated before products are traced"
        place = TensorScales(view_of(slots.tensor, operand_of(self.index)))
        if self.index not in slots.copied:
            slots.copied.add(self.index)
            copy_scales(place, self.tile)
        return place

    def at(self, index: Any) -> SlotElement:
        """An element of the vector."""
        return SlotElement(self, index)

    def load(self, source: GlobalTile, multicast: bool | str = False, cache: str = "") -> None:
        """Producer: fills it; the ring is acquired at the first load of a step."""
        self.acquire()
        self.slots.loads += 1
        slots = self.slots
        slots.ring.fill(self.tile, source, multicast=multicast, cache=cache, half=slots.half)

    def load_part(self, part: SharedTile, source: GlobalTile, cache: str) -> None:
        """Producer: fills a part of it."""
        whole = self.slots.kind.shape
        self.slots.loads += Fraction(math.prod(part.type.shape), math.prod(whole))
        self.slots.ring.fill(part, source, cache=cache)

    def acquire(self) -> None:
        """Producer: the stage is empty, and this step's."""
        ring = self.slots.ring
        if ring.writer is not None:
            raise ScopeError(
                f"load_async: {self.slots.name} is filled by the {ring.writer.name}, not loaded",
                hint=f"tc.store({self.slots.name}, tile) in a hole of the {ring.writer.name}",
            )
        ring.acquire()

    def store_to(self, destination: GlobalTile, reduce: str, cache: str) -> None:
        """Who stores: moves it on to global memory, by TMA or by threads where TMA cannot."""
        self.check_stores()
        move_out(self.tile, destination, reduce, cache)

    def check_stores(self) -> None:
        """Refuses to store where nothing is stored.

        Raises:
            ScopeError: it is no output, or this no store hole.
        """
        ring = self.slots.ring
        if ring.writer is None or ring.visit is None or ring.visit.party is ring.writer:
            raise ScopeError(
                f"store_async: outputs are stored in the pipeline's store hole, got {self!r}",
                hint="@pipe.store; inputs are not stored",
            )


def move_out(tile: Any, destination: GlobalTile, reduce: str, cache: str) -> None:
    """Moves a shared tile to global memory, by TMA or by threads where TMA cannot."""
    region = destination.region(*tile.type.shape)
    check_meets("store_async", tile.type, region)
    if region.tma_stores:
        add(TmaStore(
            tile.value, region.coords, region.arg, axes=region.axes, reduce=reduce, cache=cache,
        ))  # fmt: skip
        return
    if reduce or current().scope is Scope.THREAD:
        raise LayoutError(
            f"store_async: TMA cannot reach {region.arg.name}: {region.obstacle}",
            hint="store a whole tensor, with rows and strides of multiples of 16 bytes",
        )
    add(CopyByThreads(
        tile.value, region.coords, region.arg, axes=region.axes, bounds=region.bounds,
        chunks=moves_chunks(tile, region), store=True,
    ))  # fmt: skip


class SlotPart:
    """Part of one tile of the current stage, which is loaded or stored by itself."""

    def __init__(self, slot: Slot, span: Any):
        self.slot = slot
        self.span = span

    def __repr__(self) -> str:
        """Its tile."""
        return f"a part of {self.slot!r}"

    @property
    def tile(self) -> SharedTile:
        """Its shared tile.

        Raises:
            LayoutError: a part that is no tile of its own, or one of a vector.
        """
        whole = self.slot.tile
        if not isinstance(whole, SharedTile):
            raise LayoutError(f"parts are those of tiles, got {whole} in {self.slot!r}")
        return whole[self.span]

    def load(self, source: GlobalTile, multicast: bool | str = False, cache: str = "") -> None:
        """Producer: fills it; the parts of a tile that a step loads are all of it together."""
        if multicast:
            raise ScopeError("load_async: only whole tiles are multicast, got a part of one",
                             hint="leave out multicast=")  # fmt: skip
        self.slot.acquire()
        self.slot.load_part(self.tile, source, cache)

    def store_to(self, destination: GlobalTile, reduce: str, cache: str) -> None:
        """Who stores: moves it on to global memory."""
        self.slot.check_stores()
        move_out(self.tile, destination, reduce, cache)


class SlotElement:
    """One element of a vector of the current stage."""

    def __init__(self, slot: Slot, index: Any):
        self.slot = slot
        self.index = index

    def __repr__(self) -> str:
        """Its vector."""
        return f"an element of {self.slot!r}"

    @property
    def tile(self) -> SharedElement:
        """Its place in shared memory."""
        vector = self.slot.tile
        if not isinstance(vector, SharedVec):
            raise LayoutError(f"at: elements are those of vectors, got {vector} in {self.slot!r}")
        return vector.at(self.index)

    def load(self, source: GlobalTile, multicast: bool | str = False, cache: str = "") -> None:
        """Producer: loads it; other elements of its vector keep what the stage held."""
        if multicast or cache:
            raise ScopeError("load_async: tiles are multicast and have priorities in L2, got an "
                             "element of a vector", hint="leave out multicast= and cache=")
        slots, index = self.slot.slots, self.slot.index
        self.slot.acquire()
        slots.loads += index not in slots.begun
        slots.begun.add(index)
        slots.ring.fill_element(self.tile, source)


def finish_step(ring: Ring, slots: list[Slots]) -> None:
    """Producer, after the load hole: bytes and arrivals are known; on to the next stage."""
    if ring.acquired is None:
        raise SyncError(
            f"ring {ring.name}: the load hole must load it every step, got no load_async",
            loc=slots[0].alloc.loc,
            hint="load every pipe.input in @pipe.load",
        )
    ring.settle(ring.acquired, ring.stage)
    ring.acquired = None
    for some in slots:
        if some.loads != some.count:
            raise SyncError(
                f"{some.name}: each of its {some.count} tiles is loaded once a step, "
                f"got {some.loads} loads",
                loc=some.alloc.loc,
            )
        some.loads = Fraction(0)
        some.begun.clear()
    ring.advance()


def shared_ring(beside: Any, role: Party, what: str) -> Ring:
    """The ring of tiles that others share.

    Raises:
        ScopeError: no tiles that the role fills.
    """
    if not isinstance(beside, Slots) or beside.ring.writer is not role:
        raise ScopeError(
            f"pipe.{what}: beside is what the same role fills, got {beside!r} and the {role.name}",
            hint="p = pipe.ring(kind, writer=score); a = pipe.ring(other, writer=score, beside=p)",
        )
    return beside.ring
