"""Turns of CTAs, counted in global memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import DTypeError
from ..ir import Op, Scope, TensorArg, attribute, operand
from ..ptx import instructions as ptx
from ..ptx import transfers
from ..tiles import TileType
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
        if getattr(self.arg.type.dtype, "name", "") != "s32":
            raise DTypeError(
                f"turn: counters are s32, got {self.arg.name} of {self.arg.type.dtype}"
            )
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
        """The scope's threads meet, and what they did is ordered with the counter."""
        if self.scope is Scope.WARP:
            w.line(ptx.bar_warp_sync())
        elif self.scope is Scope.WARPGROUP:
            w.sync_warpgroup()
