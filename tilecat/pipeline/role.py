"""Roles: consumer warpgroups that execute one body, and what runs around its holes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ..builder import add, assigned_name, current
from ..errors import LayoutError, ScopeError, SyncError
from ..ir import Block, Scope
from ..language.control import range_, when
from ..language.functions import empty, fill
from ..language.matrix import mma_wait
from ..language.scalars import Scalar, Var, named, select, var
from ..language.values import RegTile
from ..ops.mma import Mma, MmaWait
from ..ops.scalar import WarpgroupIndex
from ..ops.sync import NamedBarrier
from ..ops.tensor_moves import ROWS
from ..tiles import SharedTileType, rt, tt
from . import between
from .accesses import accesses
from .gather import leave
from .holes import Hole, Holes
from .issue import Issue
from .output import Output
from .ring import WARPGROUP_THREADS, Party, Ring, Visit, visiting
from .scratch import Scratch

if TYPE_CHECKING:
    from .pipeline import Pipeline


class Role(Party):
    """Consumer warpgroups of one pipeline that execute one body.

    A step of its `compute` waits for a ring at the first use of its tiles, and gives the stage
    back when what was read by products under way has been read. What it stores into an output of
    its own is published at the end of the hole.

    Holes:
        start(task): before the first step: what the task keeps in registers begins.
        compute(task, step): one step; or
        consume(task, steps): a whole task, with waits and releases by hand.
        finish(task): after the last step.

    Args:
        pipe: the pipeline.
        name: for reports.
        warpgroups: how many execute the body.
        registers: a thread, or None for a share.
        owner: what users call it, for errors.
        turns: whether each step is one warpgroup's, in turn: the others let it pass.
    """

    def __init__(
        self, pipe: Pipeline, name: str, warpgroups: int, registers: int | None = None,
        owner: str = "", turns: bool = False,
    ):  # fmt: skip
        super().__init__(name, warpgroups)
        self.turns = turns and warpgroups > 1
        self.fillers = 1 if self.turns else warpgroups
        self.turn: Var | None = None  # the warpgroup whose step is next, over all tasks
        self.pipe = pipe
        self.warpgroups = warpgroups
        self.registers = registers
        self.owner = owner or name
        self.first = sum(role.warpgroups for role in pipe.roles)  # its first warpgroup in the CTA
        self.holes = Holes(pipe.template, self.owner)
        self.scratches: list[Scratch] = []
        self.outputs: list[Output] = []
        self.accumulators: list[RegTile] = []
        self.step_sums: list[Any] = []  # accumulators of a step
        self.operands: list[between.Operand] = []
        self.transforming = False  # the hole is being traced
        self._at: tuple[Any, Any] | None = None  # task and step, until transform has been traced
        self.issue: Issue | None = None  # who issues its products, where sums are no registers
        self.number: Any = None
        self.alternate = False  # each of its warpgroups takes tasks of its own

    def take_turns(self, alternate: bool) -> None:
        """Whether each of its warpgroups has tasks of its own: then one frees a stage alone."""
        self.alternate = alternate
        self.arrivals = self.fillers = 1 if alternate else self.warpgroups

    def __repr__(self) -> str:
        """Its name and size."""
        return f"role {self.name} of {self.warpgroups} warpgroups"

    # ---- what the kernel declares

    def scratch(self, kind: SharedTileType) -> Scratch:
        """A tile for each of its warpgroups, loaded once a task by `@pipe.begin`.

        Scope: CTA, before the holes.
        """
        check_tile(f"{self.owner}.scratch", kind)
        if self.alternate:
            raise ScopeError(
                f"{self.owner}.scratch: consumers that take tasks in turn have none",
                loc=current().loc(), hint='an input, or pingpong=True in place of "tasks"',
            )  # fmt: skip
        scratch = Scratch(kind, self.warpgroups, name_of("scratch"))
        self.scratches.append(scratch)
        return scratch

    def output(self, kind: SharedTileType) -> Output:
        """Staging of each warpgroup's results: `out.store(C[row, col], acc)` in a hole.

        Scope: CTA, before the holes.
        """
        check_tile(f"{self.owner}.output", kind)
        output = Output(kind, self.warpgroups, name_of("output"), self.first)
        self.outputs.append(output)
        return output

    def accumulator(self, dtype: Any, rows: int, cols: int, rate: str = between.TASK) -> RegTile:
        """A tile of sums that starts each task at zero: its first mma overwrites it.

        In registers of each warpgroup; on chips with tcgen05.mma in tensor memory, until finish.

        Args:
            dtype: of the sums.
            rows: 64.
            cols: N of the products.
            rate: "step": sums of each step, which `transform` reads.

        Scope: CTA, before the holes.
        """
        if rate not in (between.STEP, between.TASK):
            raise ScopeError(f'{self.owner}.accumulator: rate is "step" or "task", got {rate=}')
        if "tcgen05" in current().arch.features:
            self.issue = self.issue or Issue(self)
            acc = self.issue.accumulator(dtype, rows, cols, name_of("sums"), rate)
            self.step_sums = list(self.issue.step_sums)
            return acc
        tile: RegTile = empty(rt[dtype, rows, cols])
        if rate == between.STEP:
            self.step_sums.append(between.StepSums(tile))
            return self.step_sums[-1]  # type: ignore[no-any-return]
        self.accumulators.append(tile)
        return tile

    def operand(self, dtype: Any, rows: int, cols: int) -> between.Operand:
        """An A of products that the consumers compute each step, in `transform`.

        Scope: CTA, before the holes.
        """
        kind, name = rt[dtype, rows, cols], name_of("operand")
        if rows != ROWS:
            raise LayoutError(
                f"{self.owner}.operand: a consumer's operand has {ROWS} rows, got {rows=}",
                hint=f"{ROWS} rows, and more consumers",
            )
        if "tcgen05" in current().arch.features:
            _ = tt[dtype, rows, cols]  # raises where tensor memory holds no such A
            self.issue = self.issue or Issue(self)
            self.operands.append(self.issue.operand(kind, name))
        else:
            self.operands.append(between.Operand(self, kind, name))
        return self.operands[-1]

    def transform_now(self) -> None:
        """On chips whose consumers multiply: operands of this step, where one is first used.

        Raises:
            ScopeError: elsewhere than in compute.
        """
        if self.transforming or self.number is None:
            raise ScopeError(
                f"{self.owner}: an operand is A of the products in compute, got a use elsewhere",
                hint="what transform stores in it is still in the registers it came from",
            )
        at, self._at = self._at, None
        if at is not None:
            between.transform_here(self, *at)

    @property
    def consumer(self) -> Scalar:
        """Number of the role's warpgroup that executes the hole, from 0."""
        if self.number is None:
            raise ScopeError(
                f"{self.owner}.consumer: known in the consumers' holes only "
                "(compute, consume, finish)",
                hint="the producer loads for all consumers: for i in range(consumers)",
            )
        return self.number

    def start(self, hole: Hole) -> Hole:
        """Decorator of the start hole.

        Scope of the hole: a consumer warpgroup; `tc.fill(state, 0.0)`.
        """
        return self.holes.fill("start", hole)

    def compute(self, hole: Hole) -> Hole:
        """Decorator of the compute hole.

        Scope of the hole: a consumer warpgroup; waits and releases are around it.
        """
        return self.holes.fill("compute", hole)

    def transform(self, hole: Hole) -> Hole:
        """Decorator of the transform hole: operands of a step's products from sums of the step.

        Scope of the hole: a consumer warpgroup; `tc.store(operand, tile)`.
        """
        return self.holes.fill("transform", hole)

    def consume(self, hole: Hole) -> Hole:
        """Decorator of the consume hole.

        Scope of the hole: a consumer warpgroup; waits and releases are the kernel's own.
        """
        return self.holes.fill("consume", hole)

    def finish(self, hole: Hole) -> Hole:
        """Decorator of the finish hole.

        Scope of the hole: a consumer warpgroup; `output.store`, `tc.store`.
        """
        return self.holes.fill("finish", hole)

    # ---- its section

    def trace(self) -> None:
        """Its code, in its section."""
        pipe = self.pipe
        number = Scalar(add(WarpgroupIndex()).result)
        self.number = named(number - self.first if self.first else number, self.name)
        parts: list[Scratch | Output] = [*self.scratches, *self.outputs]
        for part in parts:
            part.consumer = self.number
        rings = [*pipe.rings, *(s.ring for s in self.scratches)]
        if self.issue is not None:
            rings += self.issue.rings
        for ring in rings:
            ring.begin(self)
        self.turn = var(0, name="turn") if self.turns else None
        pipe.before_tasks(self)
        for task in self._tasks():
            self.holes.call("start", task)
            pipe.before_steps(self)
            if self.issue is not None:
                self.issue.steps(task)
                self.issue.load(pipe.steps_of(task))
            elif "consume" in self.holes:
                self.holes.call("consume", task, pipe.steps_of(task))
                pipe.after_steps(self)
            else:
                self._steps(task)
            self._finish(task)
            if self.issue is not None:
                self.issue.leave()
        for output in self.outputs:
            output.drain()
        if self.issue is not None:
            self.issue.end()
        for ring in pipe.rings:
            if ring.gathered and ring.writer is self:
                leave(ring, self.turn, self.consumer, self._next_turn)
            ring.forget_unused()
        self.number = None

    def _tasks(self) -> Iterator[Any]:
        """Its tasks; where its warpgroups alternate, each skips the stages of the others' tasks."""
        pipe = self.pipe
        if not self.alternate:
            yield from pipe.tasks_of_cta(self)
            return
        for ring in pipe.rings:
            ring.skip(self.consumer * pipe.steps)
        for task in pipe.tasks_of_cta(self, self.consumer, self.warpgroups):
            if "steps" in dict(task.coords):
                raise ScopeError(
                    f'{pipe.template}: tasks of pingpong="tasks" have equal steps, got '
                    f"{pipe.tasks.name}, whose tasks have their own", loc=pipe.loc,
                )  # fmt: skip
            yield task
            for ring in pipe.rings:
                ring.skip((self.warpgroups - 1) * pipe.steps)

    def _steps(self, task: Any) -> None:
        pipe, builder = self.pipe, current()
        of_task = [ring for ring in pipe.inputs.values() if ring.rate == "task"]
        rings = [r for r in pipe.rings if r.writer is not self and r not in of_task
                 and not self._in_turn(r)]  # fmt: skip
        for ring in of_task:
            ring.wait()
        outer = builder.block
        before = self._before(rings)
        held: list[Ring] = []
        steps = pipe.steps_of(task)
        for step in range_(steps):
            visit = Visit(self, builder.block, Scope.WARPGROUP, "step", ends=True)
            start = len(builder.block.ops)
            with visiting(rings, visit):
                for ring in pipe.inputs.values() if len(pipe.roles) == 1 else ():
                    if ring not in of_task:
                        ring.touch()
                for acc in self.accumulators:
                    acc.accumulate = step > 0
                for sums in self.step_sums:
                    sums.added = False
                self._at = (task, step) if self.operands else None
                self._step(task, step)
            held = self._end_step(visit, before, step, start)
        pipe.after_steps(self)
        if held:
            mma_wait(0)
            for ring in held:
                ring.give_back(before[ring].get(), steps > 0)
        elif of_task:
            mma_wait(0)
        for ring in of_task:
            ring.release()
        unused = [v.value.op for ring, v in before.items() if ring not in held]
        outer.ops[:] = [op for op in outer.ops if not any(op is dead for dead in unused)]
        with when(steps < 1):
            for acc in self.accumulators:
                fill(acc, 0.0 if acc.dtype.is_float else 0)
        for acc in self.accumulators:
            acc.accumulate = True

    def _in_turn(self, ring: Ring) -> bool:
        """Whether its warpgroups read a ring in turn."""
        return self.turns and ring.turns > 1

    def _step(self, task: Any, step: Scalar) -> None:
        """One step and its results; where steps are taken in turn, if it is this warpgroup's.

        All wait for what is read, and give it back. Stages that are filled are one warpgroup's.
        """
        own = [r for r in self.pipe.rings if r.writer is self or self._in_turn(r)]
        mine = None if self.turn is None else self.turn.get() == self.consumer
        with nullcontext() if mine is None else when(mine):
            visit = Visit(self, current().block, Scope.WARPGROUP, "step", ends=True)
            with visiting(own, visit):
                self.holes.call("compute", task, step)
            for ring in visit.left:
                self._leave(ring)
        for ring in visit.rings:
            if self.turns:
                ring.look()
            ring.advance()
        if self.turn is not None:
            self._next_turn()

    def stages(self, count: Any, *slots: Any) -> Iterator[Any]:
        """Several stages of rings in a step, as the kernel's loop: `for i in state.stages(2, k)`.

        Each time round waits for the rings' next stage at its first use, and ends its use; of
        stages that are read, what reads them has been waited for (`tc.mma_wait`).

        Args: count: of stages, as many as are filled a step. slots: inputs and rings that go on.
        Raises: SyncError: a ring in use before, as all inputs are of a pipeline's only role.
        Scope of the loop: a compute hole.
        """
        rings = list({slot.ring: None for slot in slots})
        for ring in rings:
            if ring.visit is not None and ring in ring.visit.left:
                raise SyncError(f"stages: has all uses of its rings in a step, got {ring.name} in "
                                "use before", hint="for i in range(2): ...; tile.next()")
        outer = [ring.visit for ring in rings]
        for number in range_(count):
            visit = Visit(self, current().block, Scope.WARPGROUP, "step", ends=True)
            with visiting(rings, visit):
                yield number
            read = [ring for ring in visit.left if ring.writer is not self]
            if accesses(visit.block, read, proxy="generic"):
                self.meet()
            for ring in visit.left:
                if ring.writer is self:
                    ring.publish()
                else:
                    ring.give_back(ring.stage)
            for ring in visit.rings:
                ring.advance()
        for ring, before in zip(rings, outer, strict=True):
            ring.visit = before

    def _leave(self, ring: Ring) -> None:
        """Publishes what it has filled; gives back what its warpgroups read in turn."""
        if ring.writer is self:
            ring.publish()
            return
        mma_wait()
        self.meet()
        ring.give_back(ring.stage)

    def _next_turn(self) -> None:
        assert self.turn is not None, "of a role that takes turns"
        following = self.turn.get() + 1
        self.turn.set(select(following == self.warpgroups, 0, following))

    @staticmethod
    def _before(rings: list[Ring]) -> dict[Ring, Var]:
        """The stages of the step before, which products under way may still be reading."""
        return {ring: var(0, name=f"{ring.name}_before") for ring in rings if ring.depth > 1}

    def _end_step(
        self, visit: Visit, before: dict[Ring, Var], step: Scalar, start: int
    ) -> list[Ring]:
        """Gives back what the step has read.

        At once, or a step later if its mma is in flight. Returns the rings with a stage still to
        be given back.
        """
        hole, read = _ops_from(visit.block, start), visit.left
        for ring in visit.done:
            ring.advance()
        pending = _mma_left(hole)
        if accesses(hole, read, proxy="generic"):
            self.meet()
        if not pending or any(ring.depth == 1 for ring in read):
            if pending:
                mma_wait(0)
            for ring in read:
                ring.release()
            return []
        mma_wait(pending)
        for ring in read:
            ring.give_back(before[ring].get(), step > 0)
            before[ring].set(ring.stage)
            ring.advance()
        return read

    def _finish(self, task: Any) -> None:
        builder = current()
        visit = Visit(self, builder.block, Scope.WARPGROUP, "task")
        start = len(builder.block.ops)
        laid = [output for output in self.outputs if output.over is not None]
        for output in laid:
            output.occupy()
        with visiting([r for r in self.pipe.rings if r.writer is not None], visit):
            self.holes.call("finish", task)
        hole = _ops_from(visit.block, start)
        for output in laid:
            output.vacate(hole)
        read = [ring for ring in visit.rings if ring.writer is not self]
        for ring in visit.rings:
            if ring.writer is self:
                ring.publish()
                ring.advance()
        if read and _mma_left(hole):
            mma_wait(0)
        if accesses(hole, read, proxy="generic"):
            self.meet()
        for ring in read:
            ring.release()

    def pass_stage(self, ring: Ring, visit: Visit) -> None:
        """Gives a stage back within a step, and goes on to the next."""
        if accesses(visit.block, [ring], proxy="generic"):
            self.meet()
        ring.release()

    def meet(self) -> None:
        """The threads of the warpgroup wait for each other."""
        number = self.consumer + (self.first + 1)
        add(NamedBarrier(number.value, WARPGROUP_THREADS))


def _ops_from(block: Block, start: int) -> Block:
    hole = Block(block)
    hole.ops = block.ops[start:]
    return hole


def _mma_left(hole: Block) -> int:
    """Groups of mma that a hole leaves under way."""
    pending = 0
    for op in hole.ops:
        if isinstance(op, Mma):
            pending += 1
        elif isinstance(op, MmaWait):
            pending = min(pending, op.pending)
        elif any(_mma_left(block) for block in op.blocks()):
            pending += 1
    return pending


def name_of(fallback: str) -> str:
    """The name that the user's line gives to what it declares."""
    return assigned_name(current().loc()) or fallback


def check_tile(what: str, kind: Any) -> None:
    """Refuses what is no shared tile's type.

    Raises:
        LayoutError: it is not.
    """
    if not isinstance(kind, SharedTileType):
        raise LayoutError(
            f"{what}: wanted a shared tile's type, got {kind!r} ({type(kind).__name__})",
            hint=f"{what}(tc.st[tc.bf16, 64, 64])",
        )
