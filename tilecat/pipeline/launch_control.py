"""Cluster launch control as the scheduler: `persistent="launch-control"`.

The grid has a cluster for each task. One that runs takes over the task of one that has not begun,
until none is left; so a cluster that starts late, or is slow, gets fewer tasks, and nobody has to
know how many run at once. At the start of a task the producer asks for the next, which is there by
the time it has loaded this one:

    producer   take task, wait empty[s], expect 16 bytes, ask -> full[s]; load ...
    everyone   ... end of the task: wait full[s], a thread of each warp reads, arrives on empty[s]

In a cluster the first CTA asks for all: the answer goes to each, and all their readers arrive at
its `empty`. Sources: PTX ISA 9.7.14.18 (try_cancel), 9.7.14.19 (query_cancel).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .. import dtypes
from ..builder import add, current
from ..errors import ArchError, ScopeError
from ..ir import Scope, Value
from ..language.clusters import cluster_id, cluster_rank
from ..language.control import when, while_less
from ..language.scalars import Scalar, binary, named, operand_of, select, var
from ..language.sections import cta_id, warps
from ..ops.launch_control import ANSWER_BYTES, CancelLaunch, TakeAnswer
from ..ops.memory import AllocShared, ViewShared
from ..ops.sync import AllocBarriers, ArriveExpect, WaitBarrier
from ..tiles import SharedVecType
from .ring import Party, Ring
from .scheduler import Task

if TYPE_CHECKING:
    from .pipeline import Pipeline

LAUNCH_CONTROL = "launch-control"
FEATURE = "cluster_launch_control"
# Answers under way: consumers may be two tasks behind the issuing warp (sums are kept twice), and
# that one a task behind the producer.
DEPTH = 4
WORDS = ANSWER_BYTES // 4
WARPS = 4  # of a warpgroup
FIRST = 0  # the CTA of a cluster that asks


class Launches(Ring):
    """Answers of the hardware, between who asks and all who take tasks.

    Args:
        pipe: the pipeline.

    Raises:
        ArchError: a target without cluster launch control.
    """

    def __init__(self, pipe: Pipeline):
        arch = current().arch
        if FEATURE not in arch.features:
            raise ArchError(
                f"{pipe.template}: persistent={LAUNCH_CONTROL!r} is cluster launch control, which "
                f"{arch.target} does not have",
                loc=pipe.loc,
                hint="persistent=True",
            )
        super().__init__("task", DEPTH, writer=Party(LAUNCH_CONTROL))
        self.pipe = pipe
        self.cluster = pipe.builder.kernel.cluster
        self.answers = AllocShared(SharedVecType(dtypes.s32, DEPTH * WORDS), "answers")
        add(self.answers)
        self.arrivals = 0

    def tasks(self, party: Party) -> Iterator[Task]:
        """The tasks that this cluster gets."""
        tasks, asks = self.pipe.tasks, party is self.pipe.producer
        self.begin(party)
        task = var(cta_id() if self.cluster == 1 else cluster_id(), name="task")
        for number in while_less(task, tasks.count):
            self.look()
            if asks:
                self._ask()
            yield tasks.task(number)
            task.set(self._take(party))
        if asks and self.cluster > 1:
            self._drain()

    def _when_first(self) -> Value | None:
        return None if self.cluster == 1 else (cluster_rank() == FIRST).value

    def _answer(self) -> Value:
        kind = SharedVecType(dtypes.s32, WORDS)
        place = operand_of(self.stage)
        return add(ViewShared(self.answers.result, place, ANSWER_BYTES, kind)).result

    def _wait_empty(self) -> None:
        """Until all of the cluster have read the answer before: what the asking CTA waits for."""
        first = self._when_first()
        with when(True if first is None else Scalar(first)):
            parity = operand_of(named(self.phase ^ 1, "turned"))
            add(WaitBarrier(self.empty.result, operand_of(self.stage), parity))

    def _ask(self) -> None:
        self._wait_empty()
        stage = operand_of(self.stage)
        add(ArriveExpect(self.full.result, stage, ANSWER_BYTES))
        add(CancelLaunch(self._answer(), self.full.result, stage, self._when_first()))

    def _take(self, party: Party) -> Any:
        """The number of the next task; where there is none, a number behind the last."""
        self.look()
        stage, readers = operand_of(self.stage), 1
        add(WaitBarrier(self.full.result, stage, operand_of(self.phase)))
        rank = None if self.cluster == 1 else FIRST
        op = TakeAnswer(self._answer(), self.empty.result, stage, rank)
        if current().scope is Scope.WARPGROUP:
            readers = WARPS * max(1, getattr(party, "warpgroups", 1))
            with warps():
                add(op)
        else:
            add(op)
        alone = self.pipe.pairs and party in self.pipe.issues
        self.arrivals += readers * (1 if alone else self.cluster)
        self.advance()
        following = named(binary("div", Scalar(op.result), self.cluster), "following")
        return select(Scalar(op.result) < 0, self.pipe.tasks.count, following)

    def _drain(self) -> None:
        """All have read the last answer: their arrivals come here, before this CTA leaves."""
        self.skip(DEPTH - 1)
        self.look()
        self._wait_empty()

    def seal(self) -> None:
        """The arrivals are those that were traced."""
        full, empty = self.full, self.empty
        assert isinstance(full, AllocBarriers) and isinstance(empty, AllocBarriers), "in __init__"
        full.arrivals, full.expected_bytes = 1, ANSWER_BYTES
        empty.arrivals = self.arrivals


def refuse_turns(pipe: Pipeline) -> None:
    """Consumers that take tasks in turn know the next ones.

    Raises:
        ScopeError: always.
    """
    raise ScopeError(
        f'{pipe.template}: consumers of pingpong="tasks" take every other task of an order that is '
        f"known, got persistent={LAUNCH_CONTROL!r}",
        loc=pipe.loc,
        hint="persistent=True",
    )
