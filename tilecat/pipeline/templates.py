"""Pipeline templates: the user fills the holes, the template owns rings, roles and barriers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..builder import add
from ..errors import ResourceError, ScopeError
from ..language.control import when
from ..language.scalars import Scalar, select
from ..language.values import RegTile
from ..ops.sync import NamedBarrier
from ..tiles import SharedTileType, SharedVecType
from .between import Operand
from .controls import Controls, check_int
from .holes import Hole
from .output import Output
from .pipeline import Pipeline
from .ring import PRODUCER, WARPGROUP_THREADS
from .role import Role
from .scheduler import Schedule
from .scratch import Scratch
from .slots import Slots

MAX_CONSUMERS = 7  # 8 warpgroups of a CTA of 1024 threads, one of which loads
FIRST_TURN_BARRIER = 8  # named barriers 1 to 8 are the warpgroups' own; a producer uses none
MAX_TURNS = 3
TASKS = "tasks"  # of pingpong: consumers take whole tasks


class Consumers(Pipeline):
    """A pipeline with one role: consumer warpgroups that are all alike."""

    def __init__(
        self, template: str, *, consumers: int, pingpong: bool | str = False,
        registers: int | None = None, **options: Any,
    ):  # fmt: skip
        super().__init__(template, **options)
        check_int(f"{template}: consumers", consumers, 1, MAX_CONSUMERS, self.loc)
        if pingpong not in (False, True, TASKS):
            raise ScopeError(f"{template}: pingpong is False, True or {TASKS!r}, got {pingpong=}",
                             loc=self.loc)  # fmt: skip
        if pingpong and not 2 <= consumers <= MAX_TURNS:
            raise ResourceError(
                f"{template}: 2 or {MAX_TURNS} consumers take turns, got {consumers=}",
                loc=self.loc,
            )
        if pingpong == TASKS and template != "lcf":
            raise ScopeError(f"{template}: consumers of lcf take tasks in turn, got {pingpong=}",
                             loc=self.loc, hint="pingpong=True, or tc.lcf")  # fmt: skip
        self.consumers = consumers
        self.pingpong = pingpong is True
        self.role = Role(self, "consumer", consumers, registers, owner="pipe")
        self.role.take_turns(pingpong == TASKS)
        self.roles.append(self.role)
        self.builder.kernel.facts.update(consumers=consumers)

    def scratch(self, kind: SharedTileType) -> Scratch:
        """A tile for each consumer, loaded once a task by `@pipe.begin`.

        Scope: CTA, before the holes.
        """
        return self.role.scratch(kind)

    def accumulator(self, dtype: Any, rows: int, cols: int, *, rate: str = "task") -> RegTile:
        """A tile of sums that starts each task at zero: its first mma overwrites it.

        In registers of each consumer. On Blackwell and Rubin in tensor memory until `finish`, and
        `compute` is then all products: a warp of its own issues them (`tcgen05.mma`).

        Args:
            dtype: of the sums: f32, f16 or s32.
            rows: 64.
            cols: N of the products.
            rate: "step": sums of a step alone, of which `transform` makes operands.

        Scope: CTA, before the holes.
        """
        return self.role.accumulator(dtype, rows, cols, rate)

    def operand(self, dtype: Any, rows: int, cols: int) -> Operand:
        """An A of products that the consumers compute each step: `tc.store(p, x)` in `transform`.

        In registers on Hopper; on Blackwell and Rubin in tensor memory, from which the issuing
        warp's products take it.

        Args:
            dtype: bf16, f16, tf32, e4m3, e5m2, s8 or u8.
            rows: 64.
            cols: K of the products that take it.

        Scope: CTA, before the holes.
        """
        return self.role.operand(dtype, rows, cols)

    def transform(self, hole: Hole) -> Hole:
        """Decorator of the transform hole: operands of a step's products from sums of the step.

        Scope of the hole: a consumer warpgroup; `tc.store(operand, tile)`.
        """
        return self.role.transform(hole)

    @property
    def consumer(self) -> Scalar:
        """Number of the consumer warpgroup that executes the hole."""
        return self.role.consumer

    def start(self, hole: Hole) -> Hole:
        """Decorator of the start hole.

        Scope of the hole: a consumer warpgroup; `tc.fill(state, 0.0)`.
        """
        return self.role.start(hole)

    def compute(self, hole: Hole) -> Hole:
        """Decorator of the compute hole.

        Scope of the hole: a consumer warpgroup; waits and releases are around it.
        """
        return self.role.compute(hole)

    def consume(self, hole: Hole) -> Hole:
        """Decorator of the consume hole.

        Scope of the hole: a consumer warpgroup; waits and releases are the kernel's own.
        """
        return self.role.consume(hole)

    def finish(self, hole: Hole) -> Hole:
        """Decorator of the finish hole.

        Scope of the hole: a consumer warpgroup; `output.store`, `tc.store`.
        """
        return self.role.finish(hole)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Around the mma of a step, in `consume`: the place where ping-pong consumers alternate.

        One issues its mma while the others compute; every consumer must take the same turns. One
        named barrier a consumer, for it and the one before it. Nothing without `pingpong`.
        """
        if not self.pingpong:
            yield
            return
        self._take_turn()
        yield
        self._pass_turn()

    def _take_turn(self) -> None:
        add(NamedBarrier((self.consumer + FIRST_TURN_BARRIER).value, 2 * WARPGROUP_THREADS))

    def _pass_turn(self) -> None:
        following = select(self.consumer == self.consumers - 1, 0, self.consumer + 1)
        number = (following + FIRST_TURN_BARRIER).value
        add(NamedBarrier(number, 2 * WARPGROUP_THREADS, wait=False))

    def before_tasks(self, role: Role) -> None:
        """The first turn is the first consumer's."""
        super().before_tasks(role)
        if self.pingpong or role.alternate:
            with when(self.consumer == self.consumers - 1):
                add(NamedBarrier(FIRST_TURN_BARRIER, 2 * WARPGROUP_THREADS, wait=False))

    def before_steps(self, role: Role) -> None:
        """Consumers with tasks of their own take the steps of a task in turn.

        Besides the tensor cores this is about phases: who has skipped stages can tell a full one
        by its parity only if those before it were seen full.
        """
        if role.alternate:
            self._take_turn()

    def after_steps(self, role: Role) -> None:
        """All stages of the task were full: the next consumer's turn."""
        if role.alternate:
            self._pass_turn()


class Lcf(Consumers):
    """Load, compute, finish: one producer warpgroup feeds `consumers` warpgroups through rings.

    Holes:
        setup(): loads of inputs that the CTA keeps, `rate="cta"` (producer).
        begin(task): loads of a task's scratch tiles (producer).
        load(task, step): loads of one stage (producer).
        start(task): before the first step (consumers).
        compute(task, step): one step (consumers); or
        consume(task, steps): a whole task, with waits and releases by hand (consumers).
        transform(task, step): between the products of a step: operands from its sums (consumers).
        finish(task): after the last step (consumers).

    Args:
        consumers: consumer warpgroups, 1 to 7; what fits is less where they hold large tiles.
        stages: depth of the rings, 1 to 32.
        tasks: order of the tasks.
        steps: steps of a task, a scalar.
        cluster: CTAs of a cluster, 1, 2 or 4; they take neighbouring tasks, as the schedule says,
            and share tiles loaded with `multicast=True`.
        pingpong: True: consumers take turns where the kernel says `with pipe.turn():`; 2 or 3 of
            them. "tasks": each takes whole tasks in turn, and one's finish runs beside another's
            steps; they have as many steps, and no scratch.
        blocks_per_sm: CTAs that share an SM, its registers and its shared memory.
        persistent: False makes the grid as large as the tasks are many, and each CTA has one;
            "launch-control" does too, and CTAs that run take over tasks of those that have not
            begun (Blackwell, Rubin).
        pairs: the two CTAs of a cluster multiply together (Blackwell, Rubin): each has its own rows
            of A and one half of B's columns, which it loads with `multicast="col"`.
        wide_k: products of e4m3 and e5m2 read 64 bytes of K at a time, not 32 (sm_107a); their sums
            have 128 rows, of two consumers, and steps of K are multiples of 64.
        collectors: "a", "b" (sm_107a) or "ab": tiles that products of a step share, one after the
            other, are read once: the tile of B of two accumulators or of two pairs of consumers.
        early_a: a ring that has A alone is given back when A has been read, B and the sums later
            (sm_107a): `a = pipe.input(..., ring="a")`.
        exclusive: no other CTA of the SM has tensor memory, and this one up to 576 columns
            (sm_107a).
        oversized: shared memory up to 327 KiB a CTA (sm_107a), for deeper rings.
        registers: of a consumer's thread, a multiple of 8 from 24 to 240; None for all that a
            producer with 40 leaves.
    """

    def output(self, kind: SharedTileType) -> Output:
        """Staging of each consumer's results: `out.store(C[row, col], acc)` in a hole.

        Scope: CTA, before the holes.
        """
        return self.role.output(kind)


class _Stores(Pipeline):
    """A pipeline with store holes."""

    def store(self, hole: Hole) -> Hole:
        """Decorator of the store hole: outputs that compute has filled.

        Scope of the hole: one thread beside the producer; `tc.store_async(C[...], output)`.
        """
        return self.storing.holes.fill("store", hole)

    def finish_store(self, hole: Hole) -> Hole:
        """Decorator of the finish_store hole: outputs that finish has filled.

        Scope of the hole: one thread beside the producer; `tc.store_async(C[...], output)`.
        """
        return self.storing.holes.fill("finish_store", hole)


class Lcsf(Consumers, _Stores):
    """Load, compute, store, finish: as `Lcf`, and a thread of its own stores what consumers fill.

    Outputs travel through rings: a consumer waits for an empty stage, writes it and goes on; the
    storing thread waits until all have written it, and starts its store. So results of one step
    are stored while the next is computed, and a task's results during the next task.

    Holes:
        setup(): loads of inputs that the CTA keeps, `rate="cta"` (producer).
        begin(task): loads of a task's scratch tiles (producer).
        load(task, step): loads of one stage (producer).
        start(task): before the first step (consumers).
        compute(task, step): one step, `tc.store(output, tile)` (consumers); or
        consume(task, steps): a whole task, with waits and releases by hand (consumers).
        store(task, step): `tc.store_async(C[...], output)` of what compute filled.
        finish(task): after the last step (consumers).
        finish_store(task): stores of what finish filled.

    Args: those of `Lcf`.
    """

    def output(self, kind: SharedTileType, *, count: int = 1, stages: int = 2) -> Slots:
        """`count` tiles a stage that consumers fill, in compute or in finish, to be stored.

        With a tile a consumer (`count=consumers`) each fills `output[pipe.consumer]`.

        Args:
            kind: one tile.
            count: tiles a stage.
            stages: depth of its ring, 1 to 32.

        Scope: CTA, before the holes.
        """
        return self._filled_by(self.role, kind, count, stages, "output")


class Roles(_Stores):
    """Load, roles, store: consumers with different bodies, and rings between them.

    Holes:
        setup(): loads of inputs that the CTA keeps, `rate="cta"` (producer).
        begin(task): loads of a task's scratch tiles (producer).
        load(task, step): loads of one stage (producer).
        of each role: start(task), compute(task, step) or consume(task, steps), finish(task).
        store(task, step): `tc.store_async(C[...], ring)` of what a role's compute filled.
        finish_store(task): stores of what a role's finish filled.

    Args:
        stages: depth of the rings of inputs, 1 to 32.
        tasks: order of the tasks.
        steps: steps of a task, a scalar.
        cluster: CTAs of a cluster, 1, 2 or 4.
        blocks_per_sm: CTAs that share an SM, its registers and its shared memory.
        persistent: False makes the grid as large as the tasks are many, and each CTA has one;
            "launch-control" does too, and CTAs that run take over tasks of those that have not
            begun (Blackwell, Rubin).
    """

    def role(
        self, name: str, *, warpgroups: int = 1, registers: int | None = None, turns: bool = False
    ) -> Role:
        """Consumer warpgroups with a body of their own.

        Args:
            name: for reports.
            warpgroups: how many execute it.
            registers: a thread, a multiple of 8 from 24 to 256; None for an equal share of what
                the others leave.
            turns: each step is one warpgroup's, in turn: twice the time for a step where nothing
                passes from one to the next. Rings that it fills have a multiple of as many stages.

        Scope: CTA, before the holes.
        """
        taken = {PRODUCER, "store", *(role.name for role in self.roles)}
        if not isinstance(name, str) or not name.isidentifier() or name in taken:
            raise ScopeError(
                f"roles: a role has a name of its own, an identifier, got name={name!r}",
                hint=f"taken: {', '.join(sorted(taken))}",
            )
        check_int("roles: warpgroups", warpgroups, 1, MAX_CONSUMERS, self.builder.loc())
        if not isinstance(turns, bool):
            raise ScopeError(f"roles: turns is True or False, got {turns=}")
        role = Role(self, name, warpgroups, registers, turns=turns)
        self.roles.append(role)
        return role

    def ring(
        self, kind: SharedTileType | SharedVecType, *, writer: Role, count: int = 1,
        stages: int = 2, beside: Slots | None = None, gather: bool = False,
    ) -> Slots:  # fmt: skip
        """`count` tiles, or vectors, a stage that one role fills, for others, or to be stored.

        The role waits for an empty stage at its first store of a step, and publishes it at the
        end of its hole: writes are fenced for the tensor cores and TMA, every thread arrives.

        Args:
            kind: one tile, or vector.
            writer: the role.
            count: tiles a stage.
            stages: depth, 1 to 32; two let the writer be one step ahead.
            beside: tiles that the role fills at the same time: one ring has both, and `stages` is
                theirs.
            gather: the CTAs of the cluster have the stage together: CTA r fills tiles r n to
                r n + n - 1 of n times as many as there are CTAs, and all of them get all.

        Scope: CTA, before the holes.
        """
        if not isinstance(writer, Role) or writer not in self.roles:
            raise ScopeError(f"pipe.ring: the writer is a role of the pipeline, got {writer!r}",
                             hint='role = pipe.role("score"); pipe.ring(kind, writer=role)')
        if writer.turns and isinstance(stages, int) and stages % writer.warpgroups:
            raise ScopeError(
                f"pipe.ring: warpgroups that take steps in turn fill stages of their own, a "
                f"multiple of {writer.warpgroups}, got {stages=}",
                hint=f"stages={writer.warpgroups}",
            )
        return self._filled_by(writer, kind, count, stages, "ring", beside, gather)

    def _check_holes(self) -> None:
        if not self.roles:
            raise ScopeError("roles: needs at least one pipe.role", loc=self.loc)
        super()._check_holes()


def lcf(
    *, consumers: int, stages: int, tasks: Schedule, steps: Any, pingpong: bool | str = False,
    cluster: int = 1, blocks_per_sm: int = 1, persistent: bool | str = True, pairs: bool = False,
    wide_k: bool = False, collectors: str = "", early_a: bool = False, exclusive: bool = False,
    oversized: bool = False,
    registers: int | None = None,
) -> Lcf:  # fmt: skip
    """A load-compute-finish pipeline (see `Lcf`).

    Scope: CTA; one a kernel, in place of `tc.warpgroup`. PTX: `setmaxnreg`, `mbarrier.*`.
    """
    return Lcf(
        "lcf", consumers=consumers, stages=stages, tasks=tasks, steps=steps, pingpong=pingpong,
        cluster=cluster, blocks_per_sm=blocks_per_sm, persistent=persistent, registers=registers,
        controls=Controls(
            pairs=pairs, wide_k=wide_k, collectors=collectors, early_a=early_a,
            exclusive=exclusive, oversized=oversized,
        ),
    )  # fmt: skip


def lcsf(
    *, consumers: int, stages: int, tasks: Schedule, steps: Any, pingpong: bool | str = False,
    cluster: int = 1, blocks_per_sm: int = 1, persistent: bool | str = True,
) -> Lcsf:  # fmt: skip
    """A load-compute-store-finish pipeline (see `Lcsf`).

    Scope: CTA; one a kernel, in place of `tc.warpgroup`. PTX: `setmaxnreg`, `mbarrier.*`.
    """
    return Lcsf(
        "lcsf", consumers=consumers, stages=stages, tasks=tasks, steps=steps, pingpong=pingpong,
        cluster=cluster, blocks_per_sm=blocks_per_sm, persistent=persistent,
    )  # fmt: skip


def roles(
    *, stages: int, tasks: Schedule, steps: Any, cluster: int = 1, blocks_per_sm: int = 1,
    persistent: bool | str = True,
) -> Roles:  # fmt: skip
    """A pipeline of roles (see `Roles`).

    Scope: CTA; one a kernel, in place of `tc.warpgroup`. PTX: `setmaxnreg`, `mbarrier.*`.
    """
    return Roles(
        "roles", stages=stages, tasks=tasks, steps=steps, cluster=cluster,
        blocks_per_sm=blocks_per_sm, persistent=persistent,
    )  # fmt: skip
