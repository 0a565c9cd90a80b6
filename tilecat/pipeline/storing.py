"""Who stores: a thread beside the producer that moves outputs on to global memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..builder import add, current
from ..errors import SyncError
from ..ir import Block, Op, ScalarArg, Scope, TensorArg
from ..language.control import range_
from ..language.scalars import Var, var
from ..ops.copies import CopyByThreads
from ..ops.inline import Inline
from ..ops.sync import NamedBarrier
from ..ops.tma import BulkStore, BulkWait, TmaStore
from .holes import Holes
from .ring import WARPGROUP_THREADS, Party, Ring, Visit, visiting

if TYPE_CHECKING:
    from .pipeline import Pipeline


class Storing(Party):
    """Stores the outputs of roles: one thread by TMA, or a warpgroup where TMA cannot reach.

    It waits until an output's stage is full, starts its stores, and gives back the stage before,
    whose stores have been read by then: stores of one step run while the next is computed.

    Holes:
        store(task, step): outputs of a step, `tc.store_async(C[...], output)`.
        finish_store(task): outputs filled in finish.
    """

    def __init__(self, pipe: Pipeline):
        super().__init__("store", 1)
        self.pipe = pipe
        self.holes = Holes(pipe.template, "pipe")
        self._before: dict[Ring, Var] = {}
        self._count: dict[Ring, Var] = {}
        self._passing: set[Ring] = set()  # rings with several stages a step
        self._bulk = False  # some of its stores are asynchronous

    @property
    def wanted(self) -> bool:
        """Whether the kernel stores anything this way."""
        return bool(self.holes.filled)

    def reaches(self, args: Iterable[TensorArg | ScalarArg]) -> bool:
        """Whether TMA can store all tensors that may be an output: of such a dtype, of two axes."""
        maybe = (
            arg for arg in args if isinstance(arg, TensorArg)
            and any(k.dtype == arg.type.dtype for k in self.pipe.kinds_written)
            and arg.type.rank >= 2
        )  # fmt: skip
        return all([arg.ends_whole for arg in maybe])

    def trace(self, scope: Scope) -> None:
        """Its code, where it runs."""
        pipe = self.pipe
        rings = [ring for ring in pipe.rings if ring.writer is not None]
        outer = current().block
        for ring in rings:
            ring.begin(self)
            self._before[ring] = var(0, name=f"{ring.name}_before")
            self._count[ring] = var(0, name=f"{ring.name}_stored")
        for task in pipe.tasks_of_cta(self):
            if "store" in self.holes:
                for step in range_(pipe.steps_of(task)):
                    self._visit(rings, scope, "step", task, step)
            self._visit(rings, scope, "task", task)
        if self._bulk:
            add(BulkWait(0))
        for ring in rings:
            ring.forget_unused()
        alone = [r for r in rings if self not in r.readers or r.depth == 1]
        unused = [*alone, *self._passing.difference(alone)]
        dead = [some[ring].value.op for ring in unused for some in (self._before, self._count)]
        outer.ops[:] = [op for op in outer.ops if not any(op is one for one in dead)]

    def _visit(self, rings: list[Ring], scope: Scope, rate: str, *args: Any) -> None:
        block = current().block
        visit = Visit(self, block, scope, rate)
        start = len(block.ops)
        with visiting(rings, visit):
            self.holes.call("store" if rate == "step" else "finish_store", *args)
        groups, by_threads = _stores(block.ops[start:])
        self._bulk = self._bulk or groups != 0
        if not visit.rings:
            return
        if by_threads:
            add(NamedBarrier(self.pipe.store_warpgroup + 1, WARPGROUP_THREADS))
        for ring in visit.rings:
            self._give_back(ring, groups)

    def pass_stage(self, ring: Ring, visit: Visit) -> None:
        """Gives a stage back within a step, once it has been read, and goes on to the next."""
        add(BulkWait(0))
        self._passing.add(ring)
        ring.release()

    def _give_back(self, ring: Ring, groups: int | None) -> None:
        """The stage before, once all but this visit's stores have been read; or this one."""
        if ring.depth == 1 or not groups or ring in self._passing:
            if groups != 0:
                add(BulkWait(0))
            ring.release()
            return
        before, count = self._before[ring], self._count[ring]
        add(BulkWait(groups))
        ring.give_back(before.get(), count.get() > 0)
        before.set(ring.stage)
        count.set(1)
        ring.advance()


def check_stores(pipe: Pipeline) -> None:
    """Refuses a pipeline whose results nobody sees.

    Raises:
        SyncError: a declared output is not stored, or nothing is.
    """
    for output in [some for role in pipe.roles for some in role.outputs]:
        output.require_stored()
    if not any(op.stores or isinstance(op, Inline) for op in pipe.builder.kernel.body.walk()):
        raise SyncError(
            f"{pipe.template}: results are stored to a tensor, got holes that store nothing",
            loc=pipe.loc, hint="tc.store(C[row, col], x) in finish",
        )  # fmt: skip


def _stores(ops: list[Op]) -> tuple[int | None, bool]:
    """Groups of bulk stores of a hole (None: branches decide), and whether threads copy too."""
    hole = Block()
    hole.ops = ops
    every = [op for op in hole.walk() if isinstance(op, TmaStore | BulkStore)]
    known = all(any(op is top for top in ops) for op in every)
    by_threads = any(isinstance(op, CopyByThreads) for op in hole.walk())
    return (len(every) if known else None), by_threads
