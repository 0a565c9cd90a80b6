"""What all templates with rings share: inputs, the producer, roles, and the order of sections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

from ..builder import Builder, add, current
from ..check.resources import shared_limit
from ..codegen.count import count_of
from ..errors import Loc, ResourceError, ScopeError
from ..ir import Role as Threads
from ..ir import Scope, TensorArg
from ..language.clusters import cluster_id, num_clusters
from ..language.control import range_
from ..language.packed import tensor_dtype
from ..language.scalars import operand_of
from ..language.sections import cta_id, num_ctas
from ..ops.control import RoleSection
from ..ops.memory import AllocShared
from ..ops.scalar import require_s32
from ..ops.sync import BARRIER_BYTES, AllocBarriers, InitBarriers
from ..ops.tensor import SLOT_BYTES, AllocTensorMemory
from ..tiles import SharedTileType, SharedVecType
from . import between
from .budgets import BESIDE_TILES, Budget, Demand, estimated, fit, give
from .controls import Controls, check_int
from .gather import gather
from .holes import Hole, Holes
from .inputs import RATES, check_inputs
from .issue import Issue
from .launch_control import LAUNCH_CONTROL, Launches, refuse_turns
from .output import Output
from .pairs import check_pair
from .producer import WARP_THREADS, move
from .ring import PRODUCER, WARPGROUP_THREADS, Party, Ring
from .role import Role, check_tile, name_of
from .scheduler import Schedule, Task
from .scratch import Scratch
from .slots import Slots, shared_ring
from .storing import Storing, check_stores

MAX_STAGES = 32
MAX_COUNT = 64  # tiles of one input a stage; shared memory ends far below


class Pipeline:
    """One producer feeds roles of consumer warpgroups through rings.

    Args:
        template: its name, for errors.
        stages: depth of the rings, 1 to 32.
        tasks: order of the tasks.
        steps: steps of a task, a scalar.
        cluster: CTAs of a cluster, 1, 2 or 4.
        blocks_per_sm: CTAs that share an SM, and its registers.
        persistent: whether as many CTAs as the device holds share the tasks, or each CTA has one;
            "launch-control": those that run take over tasks of those that have not begun.
        controls: what it asks of its chip beyond the template.
    """

    def __init__(
        self, template: str, *, stages: int, tasks: Schedule, steps: Any, cluster: int = 1,
        blocks_per_sm: int = 1, persistent: bool | str = True, controls: Controls | None = None,
    ):  # fmt: skip
        self.builder: Builder = current()
        self.loc: Loc | None = self.builder.loc()
        self.template = template
        check_int(f"{template}: stages", stages, 1, MAX_STAGES, self.loc)
        if not isinstance(tasks, Schedule):
            raise ScopeError(
                f"{template}: tasks is an order of tasks, "
                f"got tasks={tasks!r} ({type(tasks).__name__})",
                hint="tc.row_major(rows, cols), tc.grouped(rows, cols, rows=8)",
            )
        require_s32(f"{template}: steps", operand_of(steps, f"{template}: steps"))
        require_s32(f"{template}: tasks", operand_of(tasks.count, f"{template}: tasks"))
        facts = self.builder.kernel.facts
        if "template" in facts:
            raise ScopeError(f"{template}: a kernel has one pipeline, got another", loc=self.loc)
        if cluster not in (1, 2, 4) or tasks.cluster != cluster:
            raise ResourceError(
                f"{template}: a cluster has 1, 2 or 4 CTAs, and the schedule is for as many, got "
                f"{cluster=} and a schedule for {tasks.cluster}",
                loc=self.loc,
                hint=f"tc.grouped(..., cluster={cluster})",
            )
        check_int(f"{template}: blocks_per_sm", blocks_per_sm, 1, 8, self.loc)
        self.controls = controls or Controls()
        self.controls.require(template, self.builder.arch, blocks_per_sm, self.loc)
        if self.pairs:
            check_pair(template, cluster, tasks.cluster_cols, self.loc)
        facts["oversized"] = self.controls.oversized
        self.builder.kernel.cluster = cluster
        self._size_grid(tasks, persistent)
        facts["cluster_cols"] = tasks.cluster_cols
        self.stages = stages
        self.tasks = tasks
        self.steps = steps
        self.blocks_per_sm = blocks_per_sm
        self.holes = Holes(template, "pipe")
        self.producer = Party(PRODUCER)
        self.storing = Storing(self)
        self.roles: list[Role] = []
        self.inputs: dict[str, Ring] = {}
        self.written: list[Ring] = []
        self.kinds_written: list[SharedTileType] = []
        self.loads_by_threads = False  # some begin where TMA may not reach
        self.slots: dict[str, list[Slots]] = {}
        facts.update(template=template, stages=stages, blocks_per_sm=blocks_per_sm)
        self.builder.finalizers.append(self.build)

    def _size_grid(self, tasks: Schedule, persistent: bool | str) -> None:
        self.launches: Launches | None = None
        if not isinstance(persistent, bool) and persistent != LAUNCH_CONTROL:
            raise ResourceError(
                f"{self.template}: persistent is True, False or {LAUNCH_CONTROL!r}, got "
                f"{persistent=}", loc=self.loc,
            )  # fmt: skip
        if persistent is True:
            return
        facts, what = self.builder.kernel.facts, f"{self.template}: {persistent=}"
        facts["tasks"] = count_of(operand_of(tasks.count), what)
        if persistent == LAUNCH_CONTROL:
            self.launches, facts["launch_control"] = Launches(self), True

    # ---- what the kernel declares

    def input(
        self, kind: SharedTileType | SharedVecType, *, count: int = 1, ring: str = "stage",
        rate: str = "step", stages: int | None = None, ahead: bool = False, turns: int = 1,
    ) -> Slots:  # fmt: skip
        """`count` tiles, or vectors, loaded each step, through the ring of that name.

        Inputs of one ring fill and empty together; a ring of its own lets a tile be given back
        earlier.

        Args:
            kind: one tile, or vector.
            count: how many a stage.
            ring: the ring's name.
            rate: "step", or "task": loaded once a task, by `@pipe.begin`, for all consumers, which
                wait for it themselves in `consume`, and find it there in `compute`; or "cta":
                loaded once, by `@pipe.setup`, for all tasks of the CTA, likewise.
            stages: depth of its ring, said at its first input: None for the pipeline's, of a task
                one, which two spare the wait where a task ends. There is one of a CTA.
            ahead: loaded by `@pipe.load_ahead`, which the rings of `load` do not hold up.
            turns: warpgroups of a role that takes steps in turn and alone reads it: one stage, and
                no warpgroup waits for what another reads, or gives it back.

        Scope: CTA, before the holes.
        """
        if not isinstance(kind, SharedVecType):
            check_tile("pipe.input", kind)
        check_int(f"{self.template}: count", count, 1, MAX_COUNT, self.builder.loc())
        if rate not in RATES:
            raise ScopeError(f'pipe.input: rate is "step", "task" or "cta", got {rate=}')
        if ring not in self.inputs:
            depth = (self.stages if rate == "step" else 1) if stages is None else stages
            check_int("pipe.input: turns", turns, 1, MAX_STAGES, self.builder.loc())
            depth = depth if turns == 1 else turns
            most = 1 if rate == "cta" else MAX_STAGES
            check_int(f"{self.template}: stages", depth, 1, most, self.builder.loc())
            self.inputs[ring] = Ring(ring, depth, rate=rate, pair=self.pairs, turns=turns)
            self.inputs[ring].ahead = ahead
        if self.inputs[ring].rate != rate:
            raise ScopeError(
                f"pipe.input: the inputs of a ring are loaded at one rate, got {rate=} in {ring}, "
                f"which is loaded once a {self.inputs[ring].rate}", hint='ring="of_task"',
            )  # fmt: skip
        if self.inputs[ring].ahead != ahead:
            raise ScopeError(
                f"pipe.input: the inputs of a ring are loaded by one thread, got {ahead=} in "
                f"{ring}, which is{' not' if ahead else ''} loaded ahead", hint='ring="own"',
            )  # fmt: skip
        if stages not in (None, self.inputs[ring].depth):
            raise ResourceError(
                f"pipe.input: the ring {ring} has {self.inputs[ring].depth} stages, as its first "
                f"input says, got {stages=}", hint='ring="a": a ring of its own',
            )  # fmt: skip
        slots = Slots(self.inputs[ring], kind, count, name_of("input"))
        self.slots.setdefault(ring, []).append(slots)
        return slots

    def _filled_by(
        self, role: Role, kind: Any, count: int, stages: int, what: str,
        beside: Slots | None = None, gathered: bool = False,
    ) -> Slots:  # fmt: skip
        """Tiles that a role fills, in a ring of their own or in that of others."""
        if not isinstance(kind, SharedVecType):
            check_tile(f"pipe.{what}", kind)
            self.kinds_written.append(kind)
        check_int(f"{self.template}: count", count, 1, MAX_COUNT, self.builder.loc())
        check_int(f"{self.template}: stages", stages, 1, MAX_STAGES, self.builder.loc())
        name = name_of(what)
        if beside is not None:
            ring = shared_ring(beside, role, what)
        else:
            ring = Ring(name, stages, writer=role)
            self.written.append(ring)
        slots = Slots(ring, kind, count, name)
        if gathered:
            gather(slots, role)
        return slots

    def begin(self, hole: Hole) -> Hole:
        """Decorator of the begin hole.

        Scope of the hole: producer; `tc.load_async(scratch[i], ...)` for each consumer.
        """
        return self.holes.fill("begin", hole)

    def setup(self, hole: Hole) -> Hole:
        """Decorator of the setup hole.

        Scope of the hole: producer; `tc.load_async(input, ...)` of inputs of `rate="cta"`.
        """
        return self.holes.fill("setup", hole)

    def load(self, hole: Hole) -> Hole:
        """Decorator of the load hole.

        Scope of the hole: producer; `tc.load_async(input, ...)`.
        """
        return self.holes.fill("load", hole)

    def load_ahead(self, hole: Hole) -> Hole:
        """Decorator of the load_ahead hole: inputs with `ahead=True`, by a thread of its own.

        Scope of the hole: producer; `tc.load_async(input, ...)`.
        """
        return self.holes.fill("load_ahead", hole)

    # ---- building

    @property
    def pairs(self) -> bool:
        """Whether the two CTAs of a cluster multiply together."""
        return self.controls.pairs

    @property
    def rings(self) -> list[Ring]:
        """All rings but those of scratch tiles."""
        return [*self.inputs.values(), *self.written]

    def inputs_loaded(self, ahead: bool | None = None) -> dict[str, Ring]:
        """Rings of inputs: those loaded ahead, the others, or (None) all."""
        return {n: r for n, r in self.inputs.items() if ahead is None or r.ahead == ahead}

    @property
    def scratches(self) -> list[Scratch]:
        """Of all roles."""
        return [scratch for role in self.roles for scratch in role.scratches]

    @property
    def consumer_threads(self) -> int:
        """Threads of all roles."""
        return sum(role.warpgroups for role in self.roles) * WARPGROUP_THREADS

    @cached_property
    def by_one_thread(self) -> bool:
        """Whether TMA reaches all tensors, so that one thread loads, and another stores.

        Decided before the holes are traced: views that they make are theirs. Tensors of dtypes that
        no ring holds are the roles' own, whose threads load them.
        """
        kernel = self.builder.kernel
        slots = [some for ring in self.slots.values() for some in ring]
        kinds = (*(x.kind for x in slots), *self.kinds_written, *(x.kind for x in self.scratches))
        held = {dtype for kind in kinds for dtype in (kind.dtype, tensor_dtype(kind))}
        tensors = [arg for arg in kernel.args if isinstance(arg, TensorArg)]
        reached = all(arg.tma for arg in tensors if arg.type.dtype in held)
        stored = not self.storing.wanted or self.storing.reaches(kernel.args)
        ours = self.loads_by_threads or "views" in kernel.facts
        return reached and stored and not ours

    @property
    def issues(self) -> list[Issue]:
        """Who issues products, where threads of their own do."""
        return [role.issue for role in self.roles if role.issue is not None]

    @property
    def service(self) -> int:
        """Warpgroups that only move data, or issue products."""
        return 1 if self.by_one_thread else 1 + self.storing.wanted + len(self.issues)

    @property
    def movers(self) -> int:
        """Threads that only move data.

        A warpgroup at least, whose registers `setmaxnreg` moves to the consumers. Of CTAs that
        share an SM a warp: ptxas (13.5) takes no more registers for any instruction than the launch
        gives, and each thread of a warpgroup would take as many as a consumer's.
        """
        one_role = len(self.roles) == 1 and self.roles[0].registers is None
        alone = self.by_one_thread and not self.storing.wanted and not self.issues
        if self.blocks_per_sm > 1 and one_role and alone:
            return WARP_THREADS
        return self.service * WARPGROUP_THREADS

    @property
    def store_warpgroup(self) -> int:
        """Number of the warpgroup that stores, where a whole one does."""
        return self.consumer_threads // WARPGROUP_THREADS + 1

    def before_tasks(self, role: Role) -> None:
        """Code of a role before its first task: what its CTA keeps is there."""
        for ring in self.inputs.values():
            if ring.kept:
                ring.wait()

    def before_steps(self, role: Role) -> None:
        """Code of a role before the first step of a task."""

    def after_steps(self, role: Role) -> None:
        """Code of a role after the last step of a task; its products may be under way."""

    def tasks_of_cta(self, party: Party, first: Any = 0, of: int = 1) -> Iterator[Task]:
        """The tasks of this CTA, or of its cluster: all, or every `of`-th from `first` on.

        Args:
            party: who takes them.
            first: of the every `of`-th.
            of: how many take turns.
        """
        if self.launches is not None:
            if of > 1:
                refuse_turns(self)
            yield from self.launches.tasks(party)
            return
        if self.builder.kernel.cluster > 1:
            start, step = cluster_id(), num_clusters()
        else:
            start, step = cta_id(), num_ctas()
        if of > 1:
            start, step = start + first * step, step * of
        for number in range_(start, self.tasks.count, step):
            yield self.tasks.task(number)

    def steps_of(self, task: Task) -> Any:
        """Steps of a task: its own coordinate `steps` (`tc.split_k`), or those of all tasks."""
        return dict(task.coords).get("steps", self.steps)

    def build(self) -> None:
        """Emits the whole kernel around the holes; called when the trace ends."""
        with self.builder.located(self.loc):
            self._check_holes()
            for issue in self.issues:
                issue.plan()
            if not self.issues:
                self.controls.require_products(self.template, self.loc)
            self._place_threads()
            self._fit_outputs()
            rings = [*self.rings, *(s.ring for s in self.scratches)]
            rings += [ring for issue in self.issues for ring in issue.rings]
            rings += [] if self.launches is None else [self.launches]
            add(InitBarriers(tuple(b for ring in rings for b in ring.barriers)))
            self._sections()
            for ring in rings:
                ring.seal()
            check_stores(self)

    def _check_holes(self) -> None:
        self.holes.require("load", self.loc)
        for role in self.roles:
            role.holes.require("consume" if "consume" in role.holes else "compute", self.loc)
            between.check(role)
            if "consume" not in role.holes and (role.accumulators or role.issue is not None):
                role.holes.require("finish", self.loc)
        if self.scratches and "begin" not in self.holes:
            raise ScopeError(
                f"{self.template}: a scratch tile needs the hole `begin`", loc=self.loc,
                hint="@pipe.begin",
            )  # fmt: skip
        check_inputs(self)

    def _place_threads(self) -> None:
        kernel, arch = self.builder.kernel, self.builder.arch
        kernel.threads = self.consumer_threads + self.movers
        most = arch.limit("threads_per_cta")
        if kernel.threads > most:
            raise ResourceError(
                f"{self.template}: a CTA on {arch.target} has {most} threads, "
                f"{self.movers} of them move data, "
                f"got {self.consumer_threads} threads of consumers",
                loc=self.loc,
                hint=f"{most // WARPGROUP_THREADS - self.service} consumer warpgroups at most",
            )

    def _fit_outputs(self) -> None:
        """Gives outputs the shared memory that rings and scratch leave, or a free stage."""
        arch, kernel = self.builder.arch, self.builder.kernel
        free = shared_limit(kernel, arch) - arch.limit("shared_base_align")
        for op in kernel.body.walk():
            if isinstance(op, AllocShared):
                free -= op.copies * op.stride_bytes
            elif isinstance(op, AllocBarriers):
                free -= op.count * BARRIER_BYTES
            elif isinstance(op, AllocTensorMemory):
                free -= SLOT_BYTES
        outputs = [(role, output) for role in self.roles for output in role.outputs]
        alone = len(outputs) == 1 and len(self.roles) == 1 and not self.roles[0].alternate
        if free < 0 and alone and not self.issues:
            self._lay_over(*outputs[0])
            return
        for _, output in outputs:
            free = output.grow(free)

    def _lay_over(self, role: Role, output: Output) -> None:
        """Lays the output over the stage of the input with the most room, if one has enough."""
        slots = [some for ring in self.slots.values() for some in ring]
        widest = max(slots, key=output.places_in)
        if "finish" in role.holes and output.places_in(widest) >= output.consumers:
            output.lay_over(widest)
            safe = widest.ring.depth - 1
            self.builder.kernel.facts.update(output_over=widest.name, safe_stages=safe)

    @property
    def passed_on(self) -> list[Ring]:
        """Rings that go on by a stage between tasks, for an output that lies in it."""
        return [o.over.ring for role in self.roles for o in role.outputs if o.over is not None]

    def _sections(self) -> None:
        kernel, threads = self.builder.kernel, WARPGROUP_THREADS
        first = self.consumer_threads
        with self._section(PRODUCER, first, min(self.movers, threads)):
            move(self, first)
        if not self.by_one_thread and self.storing.wanted:
            first += threads
            with self._section("store", first, threads):
                self.storing.trace(Scope.WARPGROUP)
        for issue in [] if self.by_one_thread else self.issues:
            first += threads
            with self._section(issue.name, first, threads):
                issue.trace(first)
        for role in self.roles:
            rest = role is self.roles[-1]
            with self._section(role.name, role.first * threads, role.warpgroups * threads, rest):
                role.trace()
        demands = [Demand(r.name, r.warpgroups, r.registers) for r in self.roles]
        budget = Budget(self.builder.arch, tuple(demands), self.movers, self.blocks_per_sm)
        if budget.enough or self._even(budget.launch):
            return
        if len(demands) == 1:
            give(kernel, budget)
            return
        give(kernel, replace(budget, demands=estimated(kernel, demands)))
        kernel.facts["fit"] = lambda checked: fit(checked, budget)

    def _even(self, launch: int) -> bool:
        """Whether roles whose products others issue have enough in an even share of registers."""
        held = [issue.registers for issue in self.issues]
        return bool(held) and max(held) + BESIDE_TILES <= launch

    @contextmanager
    def _section(self, name: str, first: int, count: int, rest: bool = False) -> Iterator[None]:
        builder, body = self.builder, self.builder.child()
        end = first + count - 1
        builder.kernel.roles.append(Threads(first, end, name))
        add(RoleSection(name, first, end, None, False, body, rest=rest))
        with builder.within(body, Scope.WARPGROUP):
            yield
