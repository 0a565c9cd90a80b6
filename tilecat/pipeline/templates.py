"""Pipeline templates: the user fills the holes, the template owns rings, roles and barriers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FunctionType
from typing import Any

from ..builder import Builder, add, assigned_name, current
from ..errors import LayoutError, Loc, ResourceError, ScopeError
from ..ir import Access, Block, Role, Scope
from ..language.clusters import cluster_id, num_clusters
from ..language.control import one_thread, range_, when
from ..language.functions import empty, fill
from ..language.matrix import mma_wait
from ..language.scalars import Scalar, Var, named, operand_of, select, var
from ..language.sections import cta_id, num_ctas
from ..language.values import RegTile
from ..ops.control import RoleSection
from ..ops.memory import AllocShared
from ..ops.mma import Mma, MmaWait
from ..ops.scalar import WarpgroupIndex, require_s32
from ..ops.sync import BARRIER_BYTES, AllocBarriers, InitBarriers, NamedBarrier
from ..tiles import SharedTileType, rt
from .output import CONSUMER_THREADS, Output
from .ring import PRODUCER_THREADS, Ring, Scratch, Slots
from .scheduler import Schedule

Hole = Callable[..., None]
MAX_STAGES = 8
MAX_COUNT = 64  # tiles of one input a stage; shared memory ends far below
HOLE_ARGUMENTS = {
    "begin": ("task",), "load": ("task", "step"), "compute": ("task", "step"),
    "consume": ("task", "steps"), "finish": ("task",),
}  # fmt: skip
FIRST_TURN_BARRIER = 8  # named barriers 1 to 3 are the consumers' own, in Output


class Lcf:
    """Load, compute, finish: one producer warpgroup feeds `consumers` warpgroups through rings.

    Holes:
        begin(task): loads of a task's scratch tiles (producer).
        load(task, step): loads of one stage (producer).
        compute(task, step): one step (consumers); or
        consume(task, steps): a whole task, with waits and releases by hand (consumers).
        finish(task): after the last step (consumers).

    Args:
        consumers: consumer warpgroups, 1 to 3.
        stages: depth of the rings, 1 to 8.
        tasks: order of the tasks.
        steps: steps of a task, a scalar.
        cluster: CTAs of a cluster, 1, 2 or 4; they take neighbouring tasks, as the schedule says,
            and share tiles loaded with `multicast=True`.
        pingpong: consumers take turns where the kernel says `with pipe.turn():`; 2 or 3 of them.
    """

    def __init__(
        self, *, consumers: int, stages: int, tasks: Schedule, steps: Any, pingpong: bool = False,
        cluster: int = 1,
    ):  # fmt: skip
        self.builder: Builder = current()
        self.loc: Loc | None = self.builder.loc()
        _check_int("consumers", consumers, 1, 3, self.loc)
        _check_int("stages", stages, 1, MAX_STAGES, self.loc)
        if not isinstance(tasks, Schedule):
            raise ScopeError(
                f"lcf: tasks is an order of tasks, got tasks={tasks!r} ({type(tasks).__name__})",
                hint="tc.row_major(rows, cols), tc.grouped(rows, cols, rows=8)",
            )
        require_s32("lcf: steps", operand_of(steps, "lcf: steps"))
        require_s32("lcf: tasks", operand_of(tasks.count, "lcf: tasks"))
        if "template" in self.builder.kernel.facts:
            raise ScopeError("lcf: a kernel has one pipeline, got another", loc=self.loc)
        if pingpong and consumers < 2:
            raise ResourceError(
                f"lcf: consumers take turns when there are several, got {consumers=}", loc=self.loc
            )
        if cluster not in (1, 2, 4) or tasks.cluster != cluster:
            raise ResourceError(
                f"lcf: a cluster has 1, 2 or 4 CTAs, and the schedule is for as many, got "
                f"{cluster=} and a schedule for {tasks.cluster}",
                loc=self.loc,
                hint=f"tc.grouped(..., cluster={cluster})",
            )
        self.builder.kernel.cluster = cluster
        self.consumers = consumers
        self.stages = stages
        self.tasks = tasks
        self.steps = steps
        self.rings: dict[str, Ring] = {}
        self.scratches: list[Scratch] = []
        self.outputs: list[Output] = []
        self.accumulators: list[RegTile] = []
        self.holes: dict[str, tuple[Hole, Loc | None]] = {}
        self._consumer: Scalar | None = None
        self.pingpong = pingpong
        self.builder.kernel.threads = consumers * CONSUMER_THREADS + PRODUCER_THREADS
        self.builder.kernel.facts.update(template="lcf", stages=stages, consumers=consumers)
        self.builder.finalizers.append(self.build)

    # ---- what the kernel declares

    def input(self, kind: SharedTileType, *, count: int = 1, ring: str = "stage") -> Slots:
        """`count` tiles loaded each step, through the ring of that name.

        Inputs of one ring fill and empty together; a ring of its own lets a tile be given back
        earlier.

        Scope: CTA, before the holes.
        """
        self._check_tile("input", kind)
        _check_int("count", count, 1, MAX_COUNT, self.builder.loc())
        if ring not in self.rings:
            self.rings[ring] = Ring(ring, self.stages, self.consumers)
        slots = Slots(self.rings[ring], kind, count, self._name("input"))
        self.rings[ring].slots.append(slots)
        return slots

    def scratch(self, kind: SharedTileType) -> Scratch:
        """A tile for each consumer, loaded once a task by `@pipe.begin`.

        Scope: CTA, before the holes.
        """
        self._check_tile("scratch", kind)
        scratch = Scratch(kind, self.consumers, self._name("scratch"))
        self.scratches.append(scratch)
        return scratch

    def output(self, kind: SharedTileType) -> Output:
        """Staging of each consumer's results: `out.store(C[row, col], acc)` in a hole.

        Scope: CTA, before the holes.
        """
        self._check_tile("output", kind)
        output = Output(kind, self.consumers, self._name("output"))
        self.outputs.append(output)
        return output

    def accumulator(self, dtype: Any, rows: int, cols: int) -> RegTile:
        """A register tile that starts each task at zero: its first mma overwrites it.

        Scope: CTA, before the holes; registers of each consumer.
        """
        tile: RegTile = empty(rt[dtype, rows, cols])
        self.accumulators.append(tile)
        return tile

    @staticmethod
    def _check_tile(what: str, kind: Any) -> None:
        if not isinstance(kind, SharedTileType):
            raise LayoutError(
                f"pipe.{what}: wanted a shared tile's type, got {kind!r} ({type(kind).__name__})",
                hint=f"pipe.{what}(tc.st[tc.bf16, 64, 64])",
            )

    def _name(self, fallback: str) -> str:
        return assigned_name(self.builder.loc()) or fallback

    @property
    def consumer(self) -> Scalar:
        """Number of the consumer warpgroup that executes the hole."""
        if self._consumer is None:
            raise ScopeError(
                "pipe.consumer: known in the consumers' holes only (compute, consume, finish)",
                hint="the producer loads for all consumers: for i in range(consumers)",
            )
        return self._consumer

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Around the mma of a step, in `consume`: the place where ping-pong consumers alternate.

        One issues its mma while the others compute; every consumer must take the same turns. One
        named barrier a consumer, for it and the one before it. Nothing without `pingpong`.
        """
        if not self.pingpong:
            yield
            return
        following = select(self.consumer == self.consumers - 1, 0, self.consumer + 1)
        threads = 2 * CONSUMER_THREADS
        add(NamedBarrier((self.consumer + FIRST_TURN_BARRIER).value, threads))
        yield
        add(NamedBarrier((following + FIRST_TURN_BARRIER).value, threads, wait=False))

    def begin(self, hole: Hole) -> Hole:
        """Decorator of the begin hole.

        Scope of the hole: producer; `tc.load_async(scratch[i], ...)` for each consumer.
        """
        return self._fill("begin", hole)

    def load(self, hole: Hole) -> Hole:
        """Decorator of the load hole.

        Scope of the hole: producer; `tc.load_async(input, ...)`.
        """
        return self._fill("load", hole)

    def compute(self, hole: Hole) -> Hole:
        """Decorator of the compute hole.

        Scope of the hole: a consumer warpgroup; waits and releases are around it.
        """
        return self._fill("compute", hole)

    def consume(self, hole: Hole) -> Hole:
        """Decorator of the consume hole.

        Scope of the hole: a consumer warpgroup; waits and releases are the kernel's own.
        """
        return self._fill("consume", hole)

    def finish(self, hole: Hole) -> Hole:
        """Decorator of the finish hole.

        Scope of the hole: a consumer warpgroup; `output.store`, `tc.store`.
        """
        return self._fill("finish", hole)

    def _fill(self, name: str, hole: Hole) -> Hole:
        if not isinstance(hole, FunctionType):
            raise ScopeError(f"pipe.{name}: decorates a function, got {hole!r}")
        code = hole.__code__
        loc = Loc(code.co_filename, code.co_firstlineno)
        if code.co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR):
            raise ScopeError(f"pipe.{name}: a hole is a plain function, without yield", loc=loc)
        count = len(HOLE_ARGUMENTS[name])
        if code.co_argcount != count or code.co_kwonlyargcount:
            wanted = ", ".join(HOLE_ARGUMENTS[name])
            raise ScopeError(
                f"pipe.{name}: the hole takes {count} arguments ({wanted}), "
                f"got {code.co_argcount + code.co_kwonlyargcount}",
                loc=loc,
                hint=f"@pipe.{name} def _({wanted}):",
            )
        if name in self.holes:
            raise ScopeError(f"pipe.{name}: this hole is already filled", loc=loc)
        if {"compute", "consume"} <= {name, *self.holes}:
            raise ScopeError("lcf: fill compute (one step) or consume (a whole task)", loc=loc)
        self.holes[name] = (hole, loc)
        return hole

    def _call(self, name: str, *args: Any) -> None:
        if name in self.holes:
            hole, loc = self.holes[name]
            with self.builder.located(loc):
                hole(*args)

    # ---- building

    def build(self) -> None:
        """Emits the whole kernel around the holes; called when the trace ends."""
        with self.builder.located(self.loc):
            self._check_holes()
            self._fit_outputs()
            rings = [*self.rings.values(), *(s.ring for s in self.scratches)]
            barriers = [b.result for ring in rings for b in (ring.full, ring.empty)]
            add(InitBarriers(tuple(barriers)))
            consumers = self.consumers * CONSUMER_THREADS
            producer, consumer = self._budgets()
            with self._section("producer", consumers, PRODUCER_THREADS, producer):
                self._producer(consumers)
            with self._section("consumer", 0, consumers, consumer, last=True):
                self._consume()

    def _fit_outputs(self) -> None:
        """Gives outputs the shared memory that rings and scratch leave."""
        arch = self.builder.arch
        free = arch.limit("shared_bytes_per_cta") - arch.limit("shared_base_align")
        for op in self.builder.kernel.body.walk():
            if isinstance(op, AllocShared):
                free -= op.copies * op.stride_bytes
            elif isinstance(op, AllocBarriers):
                free -= op.count * BARRIER_BYTES
        for output in self.outputs:
            free = output.grow(free)

    @contextmanager
    def _section(
        self, name: str, first: int, count: int, registers: int | None, *, last: bool = False
    ) -> Iterator[None]:
        builder, body = self.builder, self.builder.child()
        end = first + count - 1
        builder.kernel.roles.append(Role(first, end, name))
        add(RoleSection(name, first, end, registers, last, body, rest=last))
        with builder.within(body, Scope.WARPGROUP):
            yield

    def _check_holes(self) -> None:
        for name in ("load", "compute" if "consume" not in self.holes else "consume"):
            if name not in self.holes:
                raise ScopeError(f"lcf: the hole `{name}` is not filled", loc=self.loc,
                                 hint=f"@pipe.{name}")
        if self.scratches and "begin" not in self.holes:
            raise ScopeError("lcf: a scratch tile needs the hole `begin`", loc=self.loc,
                             hint="@pipe.begin")
        if not self.rings:
            raise ScopeError("lcf: needs at least one pipe.input", loc=self.loc)

    def _budgets(self) -> tuple[int | None, int | None]:
        """Registers a thread of the producer and of a consumer: `setmaxnreg`'s two numbers.

        All warps of the CTA together have the SM's registers. The producer keeps 40 (32 with
        three consumers, whose share is a multiple of 8 then); with one consumer the launch
        gives each thread the most there is.
        """
        arch, threads = self.builder.arch, self.builder.kernel.threads
        total = arch.limit("registers_per_sm")
        if total // threads >= arch.limit("registers_per_thread"):
            return None, None
        producer = 40 if self.consumers < 3 else 32
        left = total - producer * PRODUCER_THREADS
        consumer = left // (self.consumers * CONSUMER_THREADS) // 8 * 8
        self.builder.kernel.facts.update(registers={"producer": producer, "consumer": consumer})
        return producer, min(consumer, arch.limit("setmaxnreg_max"))

    def _persistent(self) -> Any:
        if self.builder.kernel.cluster > 1:
            return range_(cluster_id(), self.tasks.count, num_clusters())
        return range_(cta_id(), self.tasks.count, num_ctas())

    def _producer(self, first_thread: int) -> None:
        kernel = self.builder.kernel
        if all(getattr(arg, "tma", True) for arg in kernel.args) and "views" not in kernel.facts:
            with one_thread(first_thread):
                self._produce()
        else:
            self._produce()

    def _produce(self) -> None:
        scratches, rings = self.scratches, list(self.rings.values())
        for ring in (*rings, *(s.ring for s in scratches)):
            ring.begin(parity=1)
        for number in self._persistent():
            task = self.tasks.task(number)
            for scratch in scratches:
                scratch.loading = True
            self._call("begin", task)
            for scratch in scratches:
                scratch.loading = False
                scratch.finish_step()
            for step in range_(self.steps):
                for ring in rings:
                    ring.loading = True
                self._call("load", task, step)
                for ring in rings:
                    ring.loading = False
                    ring.finish_step()
        for ring in rings:
            if ring.multicast:
                ring.drain()

    def _consume(self) -> None:
        self._consumer = named(Scalar(add(WarpgroupIndex()).result), "consumer")
        parts: list[Scratch | Output] = [*self.scratches, *self.outputs]
        for part in parts:
            part.consumer = self._consumer
        for ring in (*self.rings.values(), *(s.ring for s in self.scratches)):
            ring.begin(parity=0)
        if self.pingpong:
            with when(self._consumer == self.consumers - 1):
                add(NamedBarrier(FIRST_TURN_BARRIER, 2 * CONSUMER_THREADS, wait=False))
        for number in self._persistent():
            task = self.tasks.task(number)
            if "consume" in self.holes:
                self._call("consume", task, self.steps)
            else:
                self._steps(task)
            self._call("finish", task)
        for output in self.outputs:
            output.drain()

    def _steps(self, task: Any) -> None:
        rings = list(self.rings.values())
        lagging = self.stages > 1
        previous = {}
        if lagging:
            previous = {ring.name: var(0, name=f"{ring.name}_before") for ring in rings}
        for step in range_(self.steps):
            for ring in rings:
                ring.wait()
            for acc in self.accumulators:
                acc.accumulate = step > 0
            start = len(self.builder.block.ops)
            self._call("compute", task, step)
            hole = Block(self.builder.block)
            hole.ops = self.builder.block.ops[start:]
            lagging = self._end_step(rings, previous, step, hole)
        if lagging:
            mma_wait(0)
            for ring in rings:
                ring.give_back(previous[ring.name].get(), self.steps > 0)
        with when(self.steps < 1):
            for acc in self.accumulators:
                fill(acc, 0.0)
        for acc in self.accumulators:
            acc.accumulate = True

    def _end_step(
        self, rings: list[Ring], previous: dict[str, Var], step: Scalar, hole: Block
    ) -> bool:
        """Gives back what the step has read: at once, or a step later if its mma is in flight."""
        pending = _mma_left(hole)
        if _reads_by_threads(hole, rings):
            add(NamedBarrier((self.consumer + 1).value, CONSUMER_THREADS))
        if not pending or not previous:
            if pending:
                mma_wait(0)
            for ring in rings:
                ring.release()
            return False
        mma_wait(pending)
        for ring in rings:
            before = previous[ring.name]
            ring.give_back(before.get(), step > 0)
            before.set(ring.stage)
            ring.advance()
        return True


def _mma_left(hole: Block) -> int:
    pending = 0
    for op in hole.ops:
        if isinstance(op, Mma):
            pending += 1
        elif isinstance(op, MmaWait):
            pending = min(pending, op.pending)
        elif any(isinstance(inner, Mma) for block in op.blocks() for inner in block.walk()):
            pending += 1
    return pending


def _reads_by_threads(hole: Block, rings: list[Ring]) -> bool:
    allocs = {id(s.alloc.result) for ring in rings for s in ring.slots}
    for op in hole.walk():
        for effect in op.effects():
            source = effect.value.op
            root = source.operands()[0] if source is not None and source.operands() else None
            if effect.access is Access.READ and root is not None and id(root) in allocs:
                return True
    return False


def _check_int(name: str, value: Any, low: int, high: int, loc: Loc | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ResourceError(
            f"lcf: {name} is a compile-time int from {low} to {high}, got {name}={value!r}", loc=loc
        )


def lcf(
    *, consumers: int, stages: int, tasks: Schedule, steps: Any, pingpong: bool = False,
    cluster: int = 1,
) -> Lcf:  # fmt: skip
    """A load-compute-finish pipeline (see `Lcf`), on a persistent grid.

    Scope: CTA; one a kernel, in place of `tc.warpgroup`. PTX: `setmaxnreg`, `mbarrier.*`.
    """
    return Lcf(
        consumers=consumers, stages=stages, tasks=tasks, steps=steps, pingpong=pingpong,
        cluster=cluster,
    )  # fmt: skip
