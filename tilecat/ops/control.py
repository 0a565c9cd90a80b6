"""Run-time control flow: loops, branches, one-thread sections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import dtypes
from ..ir import Block, Op, Value, attribute, operand, region
from ..ptx import instructions as ptx
from ..tiles import ScalarType, TileType
from .scalar import Operand


@dataclass(eq=False)
class Range(Op):
    """`for i in range(start, stop, step)` at run time; step is a positive int or scalar."""

    start: Operand = operand()
    stop: Operand = operand()
    step: Operand = operand()
    body: Block = region()

    def infer(self) -> tuple[TileType, ...]:
        """The loop's index, s32."""
        return (ScalarType(dtypes.s32),)

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
class When(Op):
    """`if cond: ... else: ...` at run time."""

    condition: Value = operand()
    body: Block = region()
    orelse: Block | None = region(default=None)

    def emit(self, w: Any) -> None:
        """A branch over the body."""
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

    def emit(self, w: Any) -> None:
        """A branch over the body for all other threads."""
        end, other = w.label("one_thread_end"), w.new("pred", "other")
        w.line(ptx.alu("setp.ne.s32", other, w.tid(), w.src(self.first, "s32")))
        w.line(ptx.bra(end), pred=other)
        w.block(self.body)
        w.mark(end)


@dataclass(eq=False)
class RoleSection(Op):
    """Code of one role: the threads `first` .. `last` of the CTA; the others jump over it.

    Args:
        name: the role, for comments and reports.
        registers: what `setmaxnreg` gives each of its threads, or None to leave them.
        grow: whether that is more than the launch gives.
    """

    name: str = attribute()
    first: int = attribute()
    last: int = attribute()
    registers: int | None = attribute()
    grow: bool = attribute()
    body: Block = region()

    def emit(self, w: Any) -> None:
        """Branches on the warp's number, which is uniform in a warp."""
        end = w.label(f"{self.name}_end")
        w.comment(f"---- {self.name}: threads {self.first} to {self.last}")
        for test, bound in (("lt", self.first), ("gt", self.last)):
            if (test, bound) in (("lt", 0), ("gt", w.threads - 1)):
                continue
            outside = w.new("pred", "outside")
            w.line(ptx.alu(f"setp.{test}.s32", outside, w.tid(), bound))
            w.line(ptx.bra(end), pred=outside)
        if self.registers is not None:
            w.line(ptx.setmaxnreg("inc" if self.grow else "dec", self.registers))
        w.block(self.body)
        w.mark(end)
