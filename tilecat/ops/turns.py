"""Turns of CTAs, counted in global memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import DTypeError
from ..ir import Op, Scope, TensorArg, attribute, operand
from ..ptx import instructions as ptx
from ..ptx import transfers
from ..tiles import TileType
from .places import element_address, number
from .scalar import Operand, require_s32


@dataclass(eq=False)
class Turn(Op):
    """Waits until a counter holds `number`, or passes the turn on: the counter holds the next.

    Args:
        coords: the counter's, outermost first; inside the tensor.
        arg: a tensor of s32.
        number: whose turn it is.
        wait: wait for it, else pass it on.
    """

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP, Scope.WARP, Scope.THREAD)
    coords: tuple[Operand, ...] = operand()
    arg: TensorArg = attribute()
    number: Operand = operand()
    wait: bool = attribute()

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; s32 throughout."""
        require_s32("turn", self.number, *self.coords)
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
        """One thread's `ld.acquire.gpu` until it is time, or `st.release.gpu`; all meet there."""
        if not self.wait:
            self._meet(w)
        end, leader = w.label("turn"), w.elected(self.scope)
        if leader is not None:
            w.line(ptx.bra(end), pred=f"!{leader}")
        with w.nested():
            address = element_address(w, self.arg, self.coords)
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
        w.mark(end)
        if self.wait:
            self._meet(w)

    def _meet(self, w: Any) -> None:
        """The scope's threads meet, and what they did is ordered with the counter."""
        if self.scope is Scope.WARP:
            w.line(ptx.bar_warp_sync())
        elif self.scope is Scope.WARPGROUP:
            w.sync_warpgroup()
