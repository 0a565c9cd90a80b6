"""Rings of stages in shared memory, between those who fill them and those who use them.

A ring of depth D has D copies of its tiles and, a stage, two mbarriers: `full`, completed by the
bytes of the stage's loads, and `empty`, completed by one arrival of each reading warpgroup. The
producer waits on empty, announces the bytes, loads; a consumer waits on full, computes, arrives on
empty. Each side counts its own stage and phase. Who waits first on `empty` finds it complete: who
fills starts at parity 1.

    producer   wait empty[0] load 0 | wait empty[1] load 1 | wait empty[0] ...
    consumer           wait full[0] mma 0, arrive empty[0] | wait full[1] ...

A ring may also be filled by the threads of a role, for another role or for the thread that stores:
then every writing thread fences its writes for the async proxy and arrives on `full`.

In a cluster, a tile that all its CTAs need is loaded in shares: each CTA's producer loads one for
all of them, and each CTA's `full` counts the bytes of all shares. A stage is then empty when the
consumers of every CTA have read it: they arrive on the `empty` of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..builder import add, current
from ..errors import LayoutError, Loc, ScopeError, SyncError
from ..ir import Block, Op, Scope, Value
from ..language.regions import Region
from ..language.scalars import Var, binary, named, operand_of, select, var
from ..language.transfers import (
    check_meets,
    copy_element,
    moves_chunks,
    part_coords,
    regions_of,
)
from ..language.values import SharedElement, SharedTile, SharedVec
from ..language.views import GlobalTile
from ..ops.copies import CopyArrive, CopyAsync, CopyByThreads
from ..ops.sync import AllocBarriers, Arrive, ArriveExpect, FenceAsync, WaitBarrier
from ..ops.tma import TmaLoad
from . import pairs
from .accesses import accesses
from .gather import send
from .sharing import check_same, num_sharers, share_of, sharers

WARPGROUP_THREADS = 128
WORD_BITS = 32  # what cp.async copies at least
PRODUCER = "producer"


@dataclass(eq=False)
class Party:
    """Who fills or uses rings: the producer, a role of consumers, or who stores.

    Args:
        name: for reports.
        arrivals: that free a stage once it has read it: one a warpgroup.
        fillers: warpgroups that fill a stage.
    """

    name: str
    arrivals: int = 1
    fillers: int = 1

    def pass_stage(self, ring: Ring, visit: Visit) -> None:
        """Gives a stage back within a step, and goes on to the next."""
        raise NotImplementedError


@dataclass(eq=False)
class Visit:
    """One step (or one end of a task) of a party: the rings whose stage it uses.

    A ring is waited for at its first use, in the block of the whole step even where that use is
    inside a branch or a loop, so that every thread waits, once.

    Args:
        party: whose.
        block: the step's.
        scope: who executes the step.
        rate: "step" or "task": how often it happens.
        rings: used so far.
        ends: whether its hole may publish and release rings itself, before it ends.
        done: the rings that it has.
    """

    party: Party
    block: Block
    scope: Scope
    rate: str
    rings: list[Ring] = field(default_factory=list)
    ends: bool = False
    done: list[Ring] = field(default_factory=list)

    @property
    def left(self) -> list[Ring]:
        """Rings that are published or released where the hole ends."""
        return [ring for ring in self.rings if ring not in self.done]

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Ops go to the step's own block, before the branch or loop being traced there."""
        ops, nested = self.block.ops, current().block is not self.block
        count = len(ops)
        with current().within(self.block, self.scope):
            yield
        if nested:
            moved = ops[count:]
            del ops[count:]
            ops[count - 1 : count - 1] = moved


@contextmanager
def visiting(rings: list[Ring], visit: Visit) -> Iterator[Visit]:
    """Uses of these rings' tiles belong to the visit."""
    for ring in rings:
        ring.visit = visit
    yield visit
    for ring in rings:
        ring.visit = None


class Ring:
    """A ring of `depth` stages, its barriers, and the stage that the party being traced is at.

    Args:
        name: for reports.
        depth: stages.
        parts: copies of the barriers, each for one warpgroup that reads alone; 0: all read all.
        writer: the role whose threads fill it; None: the producer.
        rate: how often the producer fills it, once a "step", a "task" or a "cta".
        pair: whether the loads of a pair of CTAs complete together, in the even one.
        turns: warpgroups that read it in turn, a step each: its stages are one place in memory, and
            a `full` for each; a stage is empty when the one before it has been given back.
    """

    def __init__(
        self, name: str, depth: int, *, parts: int = 0, writer: Party | None = None,
        rate: str = "step", pair: bool = False, turns: int = 1,
    ):  # fmt: skip
        self.turns = turns
        self.name = name
        self.pair = pair
        self.depth = depth
        self.rate = rate
        self.writer = writer
        self.loc: Loc | None = current().loc()
        self.parts = parts
        self.full = add(AllocBarriers(f"{name} full", depth * max(parts, 1)))
        self.ahead = False  # loaded by a thread of its own
        self.kept = rate == "cta"  # nobody gives it back, so it has no `empty`
        self.empty = self.full
        if not self.kept:
            self.empty = add(AllocBarriers(f"{name} empty", self.copies * max(parts, 1)))
        self.tx_bytes = 0
        self.by_threads = False
        self.copiers = 0  # threads of the producer that copy vectors and elements: 0, 1, 128
        self.acquired: ArriveExpect | None = None
        self.loading = False  # the load hole is being traced
        self.shared: set[str] = set()  # its stages are filled by CTAs of one row, of one column
        self.visit: Visit | None = None
        self.tiles: list[Value] = []  # allocations of its tiles
        self.slots: list[Any] = []  # its tiles, as the kernel names them
        self.gathered: list[Any] = []  # tiles of which each CTA of the cluster fills its own
        self.readers: list[Party] = []
        self.published = False
        self._fences: list[tuple[Block, Op]] = []
        self._party: Party | None = None
        self._rate = ""
        self._begun: list[Op] = []
        self._used = False
        self._stage: Var | None = None
        self._phase: Var | None = None
        self.stage: Any = 0
        self.phase: Any = 0

    @property
    def copies(self) -> int:
        """Of its tiles, a stage each; of turns one."""
        return 1 if self.turns > 1 else self.depth

    @property
    def barriers(self) -> tuple[Value, ...]:
        """Its mbarriers: `full` and, where stages are given back, `empty`."""
        return (self.full.result, self.empty.result)[: 1 if self.empty is self.full else 2]

    def begin(self, party: Party) -> None:
        """A party starts: at stage 0; who fills finds it empty, who reads waits for it."""
        self._party = party
        fills = party is self.writer or (self.writer is None and party.name == PRODUCER)
        ops = current().block.ops
        count = len(ops)
        self._stage = var(0, name=f"{self.name}_slot") if self.depth > 1 else None
        self._phase = var(1 if fills else 0, name=f"{self.name}_phase")
        self.look()
        self._begun = ops[count:]
        self._used = False

    def forget_unused(self) -> None:
        """Where the party has not used it: drops what `begin` recorded."""
        if not self._used:
            ops = current().block.ops
            ops[:] = [op for op in ops if op not in self._begun]

    def look(self) -> None:
        """Reads the stage and phase the party is at, once for all their uses in a step."""
        self._used = True
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

    def skip(self, steps: Any) -> None:
        """On by that many stages, which others of the party read."""
        self.look()
        assert self._phase is not None, "begin comes first"
        after = named(self.stage + steps, "after")
        turns = named(after // self.depth, "turns")
        if self._stage is not None:
            self._stage.set(named(after - turns * self.depth, "next"))
        self._phase.set(named(self.phase ^ turns & 1, "turned"))

    def touch(self) -> None:
        """A tile of the current stage is used: the first use in a step waits for it."""
        visit = self.visit
        if visit is not None and self in visit.done:
            raise SyncError(
                f"ring {self.name}: its stage is used before it is published or released, got a "
                "use behind that", hint="publish and release behind the last use of a step",
            )  # fmt: skip
        if visit is None or self in visit.rings or self.kept:
            return
        if self.turns > 1 and (visit.party.fillers, visit.party.arrivals) != (1, self.turns):
            raise SyncError(
                f"ring {self.name}: is read by the {self.turns} warpgroups of a role that takes "
                f"steps in turn, got a use by {visit.party!r}", hint="leave out turns=",
            )  # fmt: skip
        if self._rate not in ("", visit.rate):
            raise SyncError(
                f"ring {self.name}: is filled and used once a {self._rate}, got a use once a "
                f"{visit.rate} by the {visit.party.name}",
                hint="fill it in compute and use it in compute or store, or fill it in finish "
                "and use it in finish or finish_store",
            )
        self._rate = visit.rate
        visit.rings.append(self)
        with visit.ahead():
            if visit.party is self.writer:
                self.claim()
            else:
                self.wait()

    # ---- who reads

    def wait(self) -> None:
        """Waits until the stage is full."""
        self.look()
        add(WaitBarrier(self.full.result, operand_of(self.stage), operand_of(self.phase)))

    def give_back(self, stage: Any, when: Any = None) -> None:
        """One arrival on the stage's empty barrier."""
        if when is False:
            return
        if self.kept:
            raise SyncError(f"release: ring {self.name} is the CTA's to the end, never given back",
                            hint='rate="task" is given back where a task ends')  # fmt: skip
        if self._party is not None and self._party not in self.readers:
            self.readers.append(self._party)
        condition = None if when is None or when is True else operand_of(when)
        place = operand_of(stage if self.turns == 1 else 0)
        for rank in sharers(self.shared) or (None,):
            there = None if rank is None else operand_of(rank)
            add(Arrive(self.empty.result, place, condition, rank=there))  # type: ignore[arg-type]

    def give_back_before(self, when: Any) -> None:
        """One arrival on the empty barrier of the stage before the one the party is at."""
        self.look()
        first = named(self.stage == 0, "first")
        last = named(self.stage - 1, "before")
        self.give_back(named(select(first, self.depth - 1, last), "before"), when)

    def release(self) -> None:
        """Gives the stage back and goes on."""
        self.give_back(self.stage)
        self.advance()

    # ---- who fills: a role

    def claim(self) -> None:
        """Waits until the stage is empty."""
        self.look()
        place, phase = self.stage, self.phase
        if self.turns > 1:  # the parity of all loads, not of this stage's
            odd = self.phase if self.turns % 2 else 1
            place, phase = 0, named(binary("and", self.stage, 1) ^ odd, "phase")
        add(WaitBarrier(self.empty.result, operand_of(place), operand_of(phase)))

    def publish(self) -> None:
        """Every thread that fills it has written its share of the stage; `advance` comes next."""
        self.published = True
        self._fences.append((current().block, add(FenceAsync())))
        if self.gathered:
            send(self, self.writer)  # type: ignore[arg-type]
        add(Arrive(self.full.result, operand_of(self.stage), each=True))

    # ---- who fills: the producer

    def acquire(self) -> None:
        """Waits for the stage to be empty and announces its bytes, once a step."""
        if not self.loading:
            hole = {"step": "load", "task": "begin", "cta": "setup"}[self.rate]
            raise ScopeError(
                f"load_async: inputs are loaded in the pipeline's {hole} hole",
                hint="@pipe.load; what a task needs once is pipe.scratch, or an input of "
                'rate="task", loaded in @pipe.begin',
            )
        if self.acquired is not None:
            return
        if self.kept:
            self.look()
        else:
            self.claim()
        self.acquired = self.announce(self.stage)

    def announce(self, index: Any) -> ArriveExpect:
        """The arrival that will say how many bytes come."""
        when = pairs.leads().value if self.pair else None
        op = add(ArriveExpect(self.full.result, operand_of(index), when=when))
        assert isinstance(op, ArriveExpect), "not a duplicate: it has effects"
        self.tx_bytes = 0
        return op

    def drain(self) -> None:
        """Producer, at the end: waits until every stage is empty.

        In a cluster the other CTAs arrive here; this one must not leave before they have.
        """
        for _ in range(self.depth):
            self.claim()
            self.advance()

    def fill(
        self, tile: SharedTile | SharedVec, source: GlobalTile, index: Any = None, *,
        multicast: bool | str = False, cache: str = "", half: int | None = None,
    ) -> None:
        """One tile's load: by TMA, or by all threads of the producer where TMA cannot reach."""
        kind = tile.type
        barrier = operand_of(self.stage if index is None else index)
        if self.pair:
            pairs.fill(self, tile, source, barrier, half=half, multicast=multicast, cache=cache)
            return
        regions = regions_of(tile, source, "load_async")
        region = regions[0]
        check_meets("load_async", kind, region)
        share = share_of(multicast)
        if len(regions) > 1:
            self._fill_by_pages(tile, regions, barrier, multicast, cache)
            return
        if region.tma and share.parts > 1:
            coords = part_coords(tile, region, share.part, share.parts)
            check_same(region.coords, multicast)
            self.shared |= share.among
            op = TmaLoad(
                tile.value, coords, region.arg,
                barriers=self.full.result, index=barrier, axes=region.axes,
                part=operand_of(share.part), parts=share.parts, ranks=operand_of(share.ranks),
                cache=cache,
            )  # fmt: skip
            add(op)
            self.tx_bytes += op.num_bytes * share.parts
        elif region.tma:
            op = TmaLoad(
                tile.value, region.coords, region.arg, barriers=self.full.result, index=barrier,
                axes=region.axes, cache=cache,
            )  # fmt: skip
            add(op)
            self.tx_bytes += op.num_bytes
        else:
            self._fill_by_threads(tile, region)

    def _fill_by_pages(
        self, tile: SharedTile | SharedVec, regions: list[Region], barrier: Any, multicast: Any,
        cache: str,
    ) -> None:  # fmt: skip
        """A tile whose rows lie in several pages: a load for each."""
        if multicast or not regions[0].tma:
            raise LayoutError(
                f"load_async: rows of several pages of {regions[0].arg.name} are loaded by TMA, "
                f"each CTA's own, got {multicast=}"
                + ("" if regions[0].tma else f": {regions[0].obstacle}"),
                hint="tiles of one page, or of a part of one",
            )
        for part, region in enumerate(regions):
            op = TmaLoad(
                tile.value, region.coords, region.arg, barriers=self.full.result, index=barrier,
                axes=region.axes, part=part, parts=len(regions), cache=cache,
            )  # fmt: skip
            add(op)
            self.tx_bytes += op.num_bytes

    def _fill_by_threads(self, tile: SharedTile | SharedVec, region: Region) -> None:
        """By the producer's threads: vectors later, tiles at once, for all who may read them."""
        if current().scope is Scope.THREAD:
            raise LayoutError(
                f"load_async: TMA cannot reach {region.arg.name} here, and one thread loads since "
                f"it reaches the tensors: {region.obstacle}",
                hint="an array whose contiguous axis is the tile's",
            )
        kind: type[CopyAsync | CopyByThreads] = CopyByThreads
        if isinstance(tile, SharedVec) and tile.type.dtype.bits == WORD_BITS:
            kind, self.copiers = CopyAsync, WARPGROUP_THREADS
        else:
            self.by_threads = True
        add(kind(
            tile.value, region.coords, region.arg, axes=region.axes, bounds=region.bounds,
            reverse=region.reverse, chunks=moves_chunks(tile, region),
        ))  # fmt: skip

    def fill_element(self, element: SharedElement, source: GlobalTile) -> None:
        """One element's load, by the thread that loads."""
        self.copiers = max(self.copiers, 1)
        copy_element(element, source)

    def pass_on(self) -> None:
        """Producer: an empty stage goes to the consumers as it is; they write and store it."""
        self.claim()
        full, stage = self.full, operand_of(self.stage)
        if self.by_threads:
            add(Arrive(full.result, stage, each=True))
        if self.tx_bytes or not (self.by_threads or self.copiers):
            add(Arrive(full.result, stage))
        if self.copiers:
            add(Arrive(full.result, stage, each=self.copiers > 1))
        self.advance()

    def settle(self, announced: ArriveExpect, index: Any) -> None:
        """Derives the bytes of the announcement and the arrivals of the full barrier."""
        full = self.full
        assert isinstance(full, AllocBarriers), "made in __init__"
        announced.num_bytes = self.tx_bytes
        full.expected_bytes = self.tx_bytes
        full.arrivals = self.copiers + (1 if self.tx_bytes else 0)
        if self.by_threads:
            add(FenceAsync())
            add(Arrive(full.result, operand_of(index), each=True))
            full.arrivals += WARPGROUP_THREADS
        if self.copiers:
            add(CopyArrive(full.result, operand_of(index), each=self.copiers > 1))

    # ---- at the end of the trace

    def seal(self) -> None:
        """Derives the arrivals that the parties traced make.

        Raises:
            SyncError: a ring that nobody fills or uses.
        """
        full, empty = self.full, self.empty
        if self.kept:
            return
        assert isinstance(full, AllocBarriers) and isinstance(empty, AllocBarriers), "in __init__"
        if self.writer is not None:
            full.arrivals = self.writer.fillers * WARPGROUP_THREADS + bool(self.gathered)
            self._check_sides()
            self._drop_fences()
        alone = self.parts or self.turns > 1
        readers = 1 if alone else sum(party.arrivals for party in self.readers)
        empty.arrivals = max(readers, 1) * num_sharers(self.shared)

    def _drop_fences(self) -> None:
        """Threads alone use what threads have written: no other proxy is to be told."""
        if not accesses(current().kernel.body, [self], proxy="async"):
            for block, fence in self._fences:
                block.ops.remove(fence)

    def _check_sides(self) -> None:
        assert self.writer is not None, "a role's"
        wrong = f"filled by the {self.writer.name} and used by nobody" if not self.readers else ""
        if not self.published:
            wrong = f"never filled by the {self.writer.name}"
        if wrong:
            raise SyncError(
                f"ring {self.name}: is {wrong}", loc=self.loc,
                hint="store to it in a hole of its role; use it in another role's, or store it",
            )  # fmt: skip
