"""Turns of CTAs, counted in global memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..dtypes import pred
from ..errors import DTypeError
from ..ir import Op, Scope, TensorArg, attribute, operand
from ..ptx import instructions as ptx
from ..ptx import transfers
from ..tiles import ScalarType, TileType
from .places import element_address, item_bytes, number
from .scalar import Operand, require_s32

_WARPS = {Scope.WARPGROUP: 4, Scope.WARP: 1}


@dataclass(eq=False)
class Turn(Op):
    """Waits until a counter holds `number`, or passes the turn on: the counter holds the next.

    Args:
        coords: the counter's, outermost first; inside the tensor.
        arg: a tensor of s32.
        number: whose turn it is.
        wait: wait for it, else pass it on.
        count: of counters, this one and those behind it along the last axis; a thread for each.
        step: from one to the next.
    """

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP, Scope.WARP, Scope.THREAD)
    coords: tuple[Operand, ...] = operand()
    arg: TensorArg = attribute()
    number: Operand = operand()
    wait: bool = attribute()
    count: Operand = operand(default=1)
    step: Operand = operand(default=1)

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; s32 throughout."""
        require_s32("turn", self.number, self.count, self.step, *self.coords)
        _check_counters("turn", self.arg)
        return ()

    @property
    def loads(self) -> TensorArg | None:
        """The counters, where it waits."""
        return self.arg if self.wait else None

    @property
    def stores(self) -> TensorArg | None:
        """The counters, where it passes on."""
        return None if self.wait else self.arg

    def emit(self, w: Any) -> None:
        """`ld.acquire.gpu` until it is time, or `st.release.gpu`, by one thread or one for each.

        All threads meet before they pass on, and after they waited.
        """
        if not self.wait:
            self._meet(w)
        end = w.label("turn")
        alone = isinstance(self.count, int) and self.count == 1
        leader = w.elected(self.scope) if alone else None
        if leader is not None:
            w.line(ptx.bra(end), pred=f"!{leader}")
        with w.nested():
            if alone:
                self._take(w, element_address(w, self.arg, self.coords))
            else:
                self._take_each(w, end)
        w.mark(end)
        if self.wait:
            self._meet(w)

    def _take(self, w: Any, address: str) -> None:
        """Waits for one counter, or passes it on."""
        if self.wait:
            loop, seen, other = w.label("early"), w.new("b32", "seen"), w.new("pred", "other")
            w.mark(loop)
            w.line(transfers.ld_acquire("b32", seen, address))
            w.line(ptx.alu("setp.ne.s32", other, seen, w.src(self.number, "s32")))
            w.line(ptx.bra(loop), pred=other)
        else:
            following = w.new("b32", "following")
            w.line(ptx.alu("add.s32", following, number(w, self.number), 1))
            w.line(transfers.st_release("b32", address, following))

    def _take_each(self, w: Any, end: str) -> None:
        """Thread t takes the counters t, t + threads, ..."""
        index, done, at = w.new("b32", "index"), w.new("pred", "done"), w.new("b64", "at")
        first, count = element_address(w, self.arg, self.coords), number(w, self.count)
        stride, loop = w.new("b64", "stride"), w.label("counters")
        w.line(ptx.alu("cvt.s64.s32", stride, number(w, self.step)))
        last = self.arg.type.rank - 1
        w.line(ptx.alu("mul.lo.s64", stride, stride, w.stride(self.arg, last)))
        rank = 0 if self.scope is Scope.THREAD else w.rank(_WARPS[self.scope])
        w.line(ptx.alu("mov.b32", index, rank))
        w.mark(loop)
        w.line(ptx.alu("setp.ge.s32", done, index, count))
        w.line(ptx.bra(end), pred=done)
        w.line(ptx.alu("cvt.s64.s32", at, index))
        w.line(ptx.alu("mul.lo.s64", at, at, stride))
        w.line(ptx.alu("mad.lo.s64", at, at, item_bytes(self.arg), first))
        self._take(w, at)
        w.line(ptx.alu("add.s32", index, index, 32 * _WARPS.get(self.scope, 0) or 1))
        w.line(ptx.bra(loop))

    def _meet(self, w: Any) -> None:
        _meet(w, self.scope)


@dataclass(eq=False)
class LastOf(Op):
    """Arrives at a counter; whether this was the last of `count` arrivals, which leaves 0.

    Args:
        coords: the counter's, outermost first; inside the tensor.
        arg: a tensor of s32.
        count: arrivals, from 1 up.
    """

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP, Scope.WARP, Scope.THREAD)
    coords: tuple[Operand, ...] = operand()
    arg: TensorArg = attribute()
    count: Operand = operand()

    def infer(self) -> tuple[TileType, ...]:
        """A condition; s32 throughout."""
        require_s32("last_of", self.count, *self.coords)
        _check_counters("last_of", self.arg)
        return (ScalarType(pred),)

    @property
    def loads(self) -> TensorArg:
        """The counters."""
        return self.arg

    @property
    def stores(self) -> TensorArg:
        """The counters."""
        return self.arg

    def emit(self, w: Any) -> None:
        """`atom.release.gpu.inc` by one thread, whose answer all threads of the scope get.

        What they did before is ordered before it; what the last ones do after it, behind all
        arrivals: a fence that the others need not wait for.
        """
        last, before, most = w.define(self.result), w.new("b32", "before"), w.new("b32", "most")
        w.line(ptx.alu("add.s32", most, number(w, self.count), -1))
        if self.scope is Scope.THREAD:
            w.line(self._arrive(w, before, most))
            w.line(ptx.alu("setp.eq.s32", last, before, most))
            w.line(transfers.fence("gpu"), pred=last)
            return
        _meet(w, self.scope)
        mine, leader = w.new("pred", "mine"), w.elected(self.scope)
        w.line(ptx.alu("mov.b32", before, -1))
        w.line(self._arrive(w, before, most), pred=leader)
        w.line(ptx.alu("setp.eq.s32", mine, before, most))
        w.line(transfers.fence("gpu"), pred=mine)
        if self.scope is Scope.WARP:
            w.line(ptx.vote_any(last, mine))
            return
        barrier = w.new("b32", "number")
        w.line(ptx.alu("add.u32", barrier, w.warpgroup(), 1))
        w.line(ptx.bar_any(last, barrier, 128, mine))

    def _arrive(self, w: Any, before: str, most: str) -> str:
        return transfers.atom_inc(before, element_address(w, self.arg, self.coords), most)


def _check_counters(name: str, arg: TensorArg) -> None:
    if getattr(arg.type.dtype, "name", "") != "s32":
        raise DTypeError(f"{name}: counters are s32, got {arg.name} of {arg.type.dtype}")


def _meet(w: Any, scope: Scope) -> None:
    """The scope's threads meet, and what they did is ordered with the counter."""
    if scope is Scope.WARP:
        w.line(ptx.bar_warp_sync())
    elif scope is Scope.WARPGROUP:
        w.sync_warpgroup()
