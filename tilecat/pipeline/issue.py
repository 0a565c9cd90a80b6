"""Products with sums in tensor memory: one warp issues them, consumers load what they sum up to.

On chips with tcgen05.mma a role's `compute` is traced for that warp, once for each consumer. Two
consumers of 64 rows, whose tiles of A lie one behind the other, are multiplied as one of 128: at
half the rows the tensor core has half its rate. The warp gives input stages back and tells of
finished sums by commits; consumers load their sums into registers, which frees the tensor memory
for the next task but one, and go on as on other chips.

    producer   load 0 1 2 ...
    issue      wait empty[0], mma x steps, commit full[0] | wait empty[1], mma x steps ...
    consumers                  wait full[0], load, arrive empty[0], finish | wait full[1] ...
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..builder import add, current
from ..errors import ArchError, LayoutError, ScopeError, TileError
from ..ir import Block, Scope, Value
from ..language.control import otherwise, range_, when
from ..language.functions import empty, fill
from ..language.scalars import binary, named, operand_of
from ..language.sections import cta_id, warp_id, warps
from ..language.tensor import (
    TensorTile,
    allocate,
    columns_of,
    in_tensor_memory,
    memory,
    most_columns,
    settle,
    view_of,
)
from ..language.values import RegTile
from ..ops.mma_tensor import Commit, ElectIssuer, TensorMma
from ..ops.sync import barrier_of
from ..ops.tensor import AllocTensor, FreeTensorMemory
from ..ops.tensor_moves import ROWS, LoadTensor, StoreTensor
from ..tiles import RegTileType, ScalesType, TensorTileType, rt
from . import between, pairs
from .collectors import collect, reads_only_a
from .member import Member
from .ring import WARPGROUP_THREADS, Party, Ring, Visit, visiting
from .sharing import sharers
from .slots import Slots
from .sums import Accumulator, SumsRing, most_held

if TYPE_CHECKING:
    from .role import Role

NAME = "mma"


class Issue(Party):
    """The warp that issues a role's products.

    Args:
        role: the consumers.
    """

    def __init__(self, role: Role):
        super().__init__(NAME)
        self.role = role
        self.pipe = role.pipe
        self.accumulators: list[Accumulator] = []
        self.step_sums: list[Accumulator] = []
        self.operands: list[between.Operand] = []
        self.step_ring: SumsRing | None = None
        self.operand_ring: between.OperandRing | None = None
        self.paired = role.warpgroups % 2 == 0
        self.ring: SumsRing | None = None
        self.products: list[TensorMma] = []  # of a step
        self.obstacle: TileError | None = None  # why they cannot be traced
        self.registers = 0  # of a consumer's sums, as many as are in use at a time
        turns = role.alternate or getattr(self.pipe, "pingpong", False)
        if self.pipe.template != "lcf" or turns:
            raise ArchError(
                f"accumulator: on {current().arch.target} products of a pipeline are issued by a "
                f"warp of their own, which tc.lcf without pingpong has, got {self.pipe.template}"
                f"{' with pingpong' * bool(turns)}",
                hint="tc.lcf(consumers=..., stages=..., tasks=..., steps=...)",
            )

    def accumulator(
        self, dtype: Any, rows: int, cols: int, name: str, rate: str = between.TASK
    ) -> Accumulator:  # fmt: skip
        """A consumer's sums, of a task or of a step.

        Raises:
            LayoutError: not 64 rows.
            ResourceError: tensor memory has no room for those of all consumers.
        """
        tile = empty(rt[dtype, rows, cols])
        if rows != ROWS:
            raise LayoutError(
                f"accumulator: a consumer's sums have {ROWS} rows on {current().arch.target}, "
                f"got rows={rows}",
                hint=f"{ROWS} rows, and more consumers",
            )
        kind, copies = self._shape(TensorTileType.of_sums(dtype, rows, cols))
        exclusive = self.pipe.controls.exclusive
        of_step = rate == between.STEP
        acc = Accumulator(tile, allocate(kind, name, copies, exclusive=exclusive), of_step)
        (self.step_sums if of_step else self.accumulators).append(acc)
        return acc

    def operand(self, kind: RegTileType, name: str) -> between.Operand:
        """An A that consumers compute each step."""
        held, copies = self._shape(TensorTileType(kind.dtype, kind.rows, kind.cols))
        op = allocate(held, name, copies, exclusive=self.pipe.controls.exclusive)
        self.operands.append(between.Operand(self.role, kind, name, op))
        return self.operands[-1]

    @property
    def _tiles(self) -> list[AllocTensor]:
        """All that consumers have in tensor memory."""
        parts: list[Any] = [*self.accumulators, *self.step_sums, *self.operands]
        return [part.op for part in parts if part.op is not None]

    @property
    def rings(self) -> list[Ring]:
        """Between the issuing warp and the consumers."""
        return [ring for ring in (self.ring, self.step_ring, self.operand_ring) if ring is not None]

    def _shape(self, one: TensorTileType) -> tuple[TensorTileType, int]:
        """Type and number of the tiles for consumers whose own tile is `one`."""
        count = self.role.warpgroups
        if not self.paired:
            return replace(one, rows=ROWS), count
        return replace(one, rows=2 * ROWS), count // 2

    # ---- before the sections

    def plan(self) -> None:
        """Settles pairs and buffers; makes the ring.

        Raises:
            ScopeError: the kernel waits by hand.
            ResourceError: no room for the sums of consumers that are no pairs.
        """
        if "consume" in self.role.holes:
            raise ScopeError(
                f"{self.pipe.template}: on {current().arch.target} products are issued by a warp "
                "of their own, step by step, got a consume hole",
                loc=self.role.holes.filled["consume"][1],
                hint="fill compute with the products, and transform with what consumers do "
                "between them",
            )
        whole, facts = memory(), self.pipe.builder.kernel.facts
        assert whole is not None, "made with the first accumulator"
        beside = self._place_scales()
        self.paired = self.paired and self._attempt()
        for op in self._tiles:
            assert isinstance(op.tile, TensorTileType), "no scales"
            op.tile, op.copies = self._shape(op.tile)
            op.result.type = op.tile
        settle(whole)
        if self.pipe.pairs:
            if not self.paired and not self._attempt() and self.obstacle is not None:
                raise self.obstacle
            pairs.split(self.pipe, self.products, self.paired, self.obstacle)
            facts["cta_group"] = pairs.CTAS
        beside += sum(map(columns_of, self._tiles[len(self.accumulators) :]))
        buffers = self._buffers(most_columns(whole) - beside)
        settle(whole)
        count, pair = self.role.warpgroups, self.pipe.pairs
        self.ring = SumsRing(buffers, self, count, pair=pair)
        if self.step_sums:
            self.step_ring = SumsRing(1, self, count, pair=pair, name="step sums", answered=True)
            self.operand_ring = between.OperandRing(self.role, count, pair=pair)
        facts.update(tensor_columns=whole.columns, accumulator_buffers=buffers)
        facts["tensor_rows"] = 2 * ROWS if self.paired else ROWS
        if self.paired:
            facts["paired_threads"] = self.role.warpgroups * WARPGROUP_THREADS

    def _place_scales(self) -> int:
        """Tensor memory for scales of one stage, for all inputs that are some; their columns."""
        columns = 0
        for some in self._inputs():
            if isinstance(some.kind, ScalesType):
                some.tensor = allocate(in_tensor_memory(some.kind), some.name, some.count)
                columns += columns_of(some.tensor)
        return columns

    def _inputs(self) -> list[Slots]:
        return [slots for some in self.pipe.slots.values() for slots in some]

    def _buffers(self, most: int) -> int:
        """Makes room for two tasks' sums if there is any."""
        for acc in self.accumulators:
            acc.op.copies *= 2
        if sum(columns_of(acc.op) for acc in self.accumulators) <= most:
            return 2
        for acc in self.accumulators:
            acc.op.copies //= 2
        return 1

    def _attempt(self) -> bool:
        """Whether products can be traced, those of two consumers as one if `paired`.

        The trace is thrown away; what it has met stays in `products` or `obstacle`.

        Raises:
            TileError: that of the trace, where it has to be one product.
        """
        builder = self.pipe.builder
        block = Block(builder.block)
        with builder.within(block, Scope.WARP):
            number = cta_id()
            try:
                self._products(self.pipe.tasks.task(number), number, number > 0, 0)
            except TileError as error:
                if any(slots.tensor is not None for slots in self._inputs()):
                    raise  # with scales there are no products of 64 rows
                builder.broken, self.obstacle = None, error
                for slots in self._inputs():
                    slots.alloc.together = 1
                return False
            finally:
                self._stop()
        self.products = [op for op in block.walk() if isinstance(op, TensorMma)]
        return True

    # ---- its code

    @property
    def _sums(self) -> SumsRing:
        assert self.ring is not None, "planned before"
        return self.ring

    def trace(self, first: int) -> None:
        """Its code, by the warp that begins with thread `first`; one of its lanes issues."""
        mine = warp_id() == first // 32
        if self.pipe.pairs:
            mine = mine & pairs.leads()
        with when(mine), warps():
            add(ElectIssuer())
            self._tasks()

    def _tasks(self) -> None:
        pipe, ring, builder = self.pipe, self._sums, current()
        inputs = [some for some in pipe.inputs.values() if some.rate == "step"]
        held = [some for some in pipe.inputs.values() if some.rate == "task"]
        for some in (*inputs, *held, *self.rings):
            some.begin(self)
        for task in pipe.tasks_of_cta(self):
            ring.claim()
            for some in held:
                some.wait()
            for step in range_(pipe.steps_of(task)):
                visit = Visit(self, builder.block, Scope.WARP, "step")
                with visiting([some for some in pipe.rings if some not in held], visit):
                    for some in inputs:
                        some.touch()
                    if self.step_ring is not None:
                        self.step_ring.claim()
                    start = len(visit.block.ops)
                    self._products(task, step, step > 0, ring.stage)
                    gone = self._hand_over(visit, start)
                early = self._read_early(visit, start)
                if pipe.controls.collectors:
                    collect(visit.block, start, pipe.controls.collectors)
                for some in (some for some in visit.rings if some not in gone):
                    self._give_back(some, some in early)
            ring.publish()
            for some in held:
                self._give_back(some, False)
        self._stop()

    def _hand_over(self, visit: Visit, start: int) -> list[Ring]:
        """Between a step's products: its sums go to the consumers, operands come from them.

        Returns:
            Rings of which the first products alone read, and whose stage has been given back.
        """
        if self.step_ring is None or self.operand_ring is None:
            return []
        block = visit.block
        later = between.split(block, start, [acc.op for acc in self.step_sums])
        first = [ring for ring in visit.rings if not between.reads(later, ring)]
        last = [ring for ring in visit.rings if not between.reads(block.ops[start:], ring)]
        waits = between.take_waits(block, last)
        self.step_ring.publish()
        for ring in first:
            self._give_back(ring, False)
        self.operand_ring.wait()
        block.ops += [*waits, *later]
        self.operand_ring.advance()
        return first

    def _products(self, task: Any, step: Any, accumulate: Any, stage: Any) -> None:
        """The compute hole, for each consumer or pair."""
        for slots in self._inputs():
            slots.copied.clear()
        members = range(0, self.role.warpgroups, 2 if self.paired else 1)
        for place, number in enumerate(members):
            self.role.number = Member.of(number, paired=self.paired)
            for acc in self.accumulators:
                sums = self._tile(acc, stage, place, len(members))
                acc.issuing = TensorTile(sums, accumulate, self.pipe.controls.wide_k)
            for acc in self.step_sums:
                sums = self._tile(acc, 0, place, len(members))
                acc.issuing = TensorTile(sums, False, self.pipe.controls.wide_k)
            for operand in self.operands:
                operand.issuing = TensorTile(self._tile(operand, 0, place, len(members)))
            self.role.holes.call("compute", task, step)

    def _stop(self) -> None:
        self.role.number = None
        parts: list[Any] = [*self.accumulators, *self.step_sums, *self.operands]
        for part in parts:
            part.issuing = None

    @staticmethod
    def _tile(acc: Accumulator | between.Operand, stage: Any, place: Any, count: int) -> Any:
        """The tile of a member in a stage of the ring."""
        assert acc.op is not None, "in tensor memory"
        first = named(binary("mul", stage, count), "sums_first")
        return view_of(acc.op, operand_of(named(binary("add", first, place), "sums_tile")))

    def _read_early(self, visit: Visit, start: int) -> list[Ring]:
        """Rings that have A alone, where A goes back before its products are done.

        Raises:
            ScopeError: A has no ring of its own.
        """
        if not self.pipe.controls.early_a:
            return []
        found = [r for r in visit.rings if reads_only_a(visit.block, start, r.tiles)]
        if not found:
            raise ScopeError(
                "lcf: early_a=True gives A back before B, from a ring of its own, got "
                f"A and B in the ring {visit.rings[0].name}",
                loc=self.pipe.loc,
                hint='a = pipe.input(..., ring="a")',
            )
        return found

    def _give_back(self, ring: Ring, early: bool) -> None:
        """The stage of an input is empty when the products that read it are done, or have read."""
        if self not in ring.readers:
            ring.readers.append(self)
        ranks: Any = pairs.BOTH if ring.pair else None
        for rank in sharers(ring.shared):
            bit = binary("shl", 1, rank)
            ranks = bit if ranks is None else binary("or", ranks, bit)
        mask = None if ranks is None else operand_of(ranks)
        add(Commit(ring.empty.result, operand_of(ring.stage), mask, early))
        barrier_of(ring.empty.result).tensor = False  # who loads does nothing in tensor memory
        ring.advance()

    # ---- the consumers' side

    def load(self, steps: Any) -> None:
        """A consumer's sums into its registers; zeros where there were no steps.

        Of several, each but the first is loaded where `finish` first uses it, so that those used
        one after the other take the same registers.
        """
        self._sums.wait()
        visit = Visit(self, current().block, Scope.WARPGROUP, "task")

        def load(acc: Accumulator) -> None:
            with visit.ahead():
                self._load(acc, steps)

        for acc in self.accumulators[1:]:
            acc.waiting = load
        self._load(self.accumulators[0], steps)

    def _load(self, acc: Accumulator, steps: Any) -> None:
        """One of a consumer's sums; behind the last the tensor memory is free."""
        (place, count), stage = self._place(), self._sums.stage
        with when(steps > 0):
            tile = self._tile(acc, stage, place, count)
            add(LoadTensor(tile, acc.value, self.paired))
        with otherwise():
            fill(acc, 0.0 if acc.dtype.is_float else 0)
        if not any(other.waiting for other in self.accumulators):
            self._sums.release()

    def _place(self) -> tuple[Any, int]:
        """Which of a stage's tiles is this consumer's, that of its pair; and of how many."""
        count, place = self.role.warpgroups, self.role.consumer
        if self.paired:
            count, place = count // 2, named(binary("shr", place, 1), "pair")
        return (place if count > 1 else 0), count

    def _mine(self, part: Accumulator | between.Operand) -> Value:
        """This consumer's tile of what a step has."""
        tile: Value = self._tile(part, 0, *self._place())
        return tile

    def steps(self, task: Any) -> None:
        """A consumer's part of the steps: operands from the step's sums."""
        sums, operands = self.step_ring, self.operand_ring
        if sums is None or operands is None:
            return
        for step in range_(self.pipe.steps_of(task)):
            sums.wait()
            for acc in self.step_sums:
                add(LoadTensor(self._mine(acc), acc.value, self.paired))
            sums.release()
            between.transform(self.role, task, step)
            operands.publish()

    def store(self, operand: between.Operand, source: RegTile) -> None:
        """A consumer's share of an operand."""
        add(StoreTensor(self._mine(operand), source.value, self.paired))

    def leave(self) -> None:
        """A consumer, behind finish: tensor memory is free, used or not."""
        waiting = [acc for acc in self.accumulators if acc.waiting]
        for acc in waiting:
            acc.waiting = None
        if waiting:
            self._sums.release()
        mine = None if self.step_sums else [acc.value for acc in self.accumulators]
        self.registers = most_held(current().block, mine)

    def end(self) -> None:
        """Consumers, behind their last task: tensor memory goes back."""
        whole = memory()
        assert whole is not None, "made with the first accumulator"
        add(FreeTensorMemory(whole.result, self.role.warpgroups * WARPGROUP_THREADS))
