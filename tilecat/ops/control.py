"""Run-time control flow: loops, branches, one-thread sections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import dtypes
from ..errors import ScopeError
from ..ir import Block, Op, Scope, Value, attribute, operand, region
from ..ptx import instructions as ptx
from ..ptx import transfers
from ..tiles import ScalarType, TileType
from .scalar import Operand, require_s32


@dataclass(eq=False)
class Range(Op):
    """`for i in range(start, stop, step)` at run time; step is a positive int or scalar."""

    start: Operand = operand()
    stop: Operand = operand()
    step: Operand = operand()
    body: Block = region()

    def infer(self) -> tuple[TileType, ...]:
        """The loop's index, s32."""
        require_s32("tc.range", self.start, self.stop, self.step)
        if isinstance(self.step, int) and self.step <= 0:
            raise ScopeError(f"tc.range: the step is positive, got step={self.step}")
        return (ScalarType(dtypes.s32),)

    @property
    def name_hint(self) -> str:
        """The usual one."""
        return "i"

    def emit(self, w: Any) -> None:
        """Test at the end of the body, guarded at the start."""
        index, done = w.define(self.result), w.new("pred", "done")
        loop, end = w.label("loop"), w.label("loop_end")
        stop = w.src(self.stop, "s32")
        w.line(ptx.alu("mov.b32", index, w.src(self.start, "s32")))
        w.line(ptx.alu("setp.ge.s32", done, index, stop))
        w.line(ptx.bra(end), pred=done)
        w.mark(loop)
        w.block(self.body)
        w.at(self.loc)
        w.line(ptx.alu("add.s32", index, index, w.src(self.step, "s32")))
        w.line(ptx.alu("setp.lt.s32", done, index, stop))
        w.line(ptx.bra(loop), pred=done)
        w.mark(end)


@dataclass(eq=False)
class WhileLess(Op):
    """`while place < stop` at run time, where the body writes the place."""

    place: Value = operand()
    stop: Operand = operand()
    body: Block = region()

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; both are s32."""
        require_s32("while", self.place, self.stop)
        return ()

    def emit(self, w: Any) -> None:
        """Test at the end of the body, guarded at the start."""
        more, loop, end = w.new("pred", "more"), w.label("loop"), w.label("loop_end")
        stop = w.src(self.stop, "s32")
        w.line(ptx.alu("setp.lt.s32", more, w.src(self.place), stop))
        w.line(ptx.bra(end), pred=f"!{more}")
        w.mark(loop)
        w.block(self.body)
        w.at(self.loc)
        w.line(ptx.alu("setp.lt.s32", more, w.src(self.place), stop))
        w.line(ptx.bra(loop), pred=more)
        w.mark(end)


@dataclass(eq=False)
class When(Op):
    """`if cond: ... else: ...` at run time."""

    condition: Value = operand()
    body: Block = region()
    orelse: Block | None = region(default=None)

    def emit(self, w: Any) -> None:
        """A branch over the body; nothing for an empty one."""
        if not self.body.ops and not self.orelse:
            return
        end = w.label("endif")
        other = w.label("else") if self.orelse else end
        w.line(ptx.bra(other), pred=f"!{w.src(self.condition)}")
        w.block(self.body)
        if self.orelse:
            w.line(ptx.bra(end))
            w.mark(other)
            w.block(self.orelse)
        w.mark(end)


@dataclass(eq=False)
class OneThread(Op):
    """A section executed by one thread of the current scope: thread `first` of the CTA."""

    first: Operand = operand()
    body: Block = region()

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; a thread's number is an integer."""
        require_s32("tc.one_thread", self.first)
        return ()

    def emit(self, w: Any) -> None:
        """A branch over the body for all other threads."""
        end, other = w.label("one_thread_end"), w.new("pred", "other")
        w.line(ptx.alu("setp.ne.s32", other, w.tid(), w.src(self.first, "s32")))
        w.line(ptx.bra(end), pred=other)
        w.block(self.body)
        w.mark(end)


@dataclass(eq=False)
class Elected(Op):
    """A section executed by one thread of the scope: an elected lane, or the first thread."""

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP, Scope.WARP)
    body: Block = region()

    def emit(self, w: Any) -> None:
        """`elect.sync` in a warp, and a branch over the body for the others."""
        end = w.label("elected_end")
        leader = w.elected(self.scope)
        if self.scope is Scope.WARP:
            leader = w.new("pred", "leader")
            w.line(transfers.elect(leader))
        w.line(ptx.bra(end), pred=f"!{leader}")
        w.block(self.body)
        w.mark(end)


@dataclass(eq=False)
class RoleSection(Op):
    """Code of one role: threads `first` .. `last` of the CTA run it and exit; the others jump over.

    The last section takes all threads left, without a test, and every section ends with an exit.
    Both matter: behind a second test, or where roles meet again, ptxas (13.5) no longer takes the
    stage and phase of a ring for uniform in a warp, and keeps them, and every matrix descriptor
    made from them, in per-thread registers (GEMM main loop: 16 R2UR instead of 8).

    Args:
        name: the role, for comments and reports.
        registers: what `setmaxnreg` gives each of its threads, or None to leave them.
        grow: whether that is more than the launch gives.
        rest: the last section: no other threads are left.
    """

    name: str = attribute()
    first: int = attribute()
    last: int = attribute()
    registers: int | None = attribute()
    grow: bool = attribute()
    body: Block = region()
    rest: bool = attribute(default=False)

    def emit(self, w: Any) -> None:
        """Branches on the warpgroup's number."""
        end = w.label(f"{self.name}_end")
        w.comment(f"---- {self.name}: threads {self.first} to {self.last}")
        for test, bound in (("lt", self.first // 128), ("gt", self.last // 128)):
            if self.rest or (test, bound) in (("lt", 0), ("gt", (w.threads - 1) // 128)):
                continue
            outside = w.new("pred", "outside")
            w.line(ptx.alu(f"setp.{test}.u32", outside, w.warpgroup(), bound))
            w.line(ptx.bra(end), pred=outside)
        if self.registers is not None:
            w.line(ptx.setmaxnreg("inc" if self.grow else "dec", self.registers))
        w.block(self.body)
        w.line(ptx.ret())
        w.mark(end)
