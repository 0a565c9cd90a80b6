"""Prints, assertions and waits with a limit: records in a buffer that the launch reads after it.

The buffer is an array of 32-bit words. Word 0 counts the words taken, word 1 says how many there
are, and records begin at word HEADER: number of the site plus one, CTA, thread, words of the
record, then its words. Lost records only count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import dtypes
from ..addresses import DebugSite
from ..errors import DTypeError, LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, Value, attribute, operand
from ..ptx import instructions as ptx
from ..ptx import transfers
from ..tiles import RegTileType, RegVecType, ScalarType, TileType
from .elements import require_unpacked

HEADER = 4  # words before the first record, and before each record's own
PRINTED = ("f32", "s32", "u32", "pred")


def new_site(w: Any, site: DebugSite) -> int:
    """Notes a site; its number."""
    w.sites.append(site)
    return len(w.sites)


def claim(w: Any, words: int) -> tuple[str, str]:
    """One thread takes room for a record: its address, and a predicate that it fits."""
    buffer = w.debug_buffer()
    first, last, room = w.new("b32", "first"), w.new("b32", "last"), w.new("b32", "room")
    w.line(transfers.atom_add("u32", first, buffer, words + HEADER))
    w.line(ptx.ld_global("u32", room, f"{buffer}+4"))
    w.line(ptx.alu("add.u32", last, first, words + 2 * HEADER))
    fits = w.new("pred", "fits")
    w.line(ptx.alu("setp.le.u32", fits, last, room))
    return str(first), str(fits)


def address_of(w: Any, first: str) -> str:
    """Address of a record."""
    address = w.new("b64", "record")
    w.line(ptx.alu("mul.wide.u32", address, first, 4))
    w.line(ptx.alu("add.s64", address, address, w.debug_buffer()))
    return str(address)


def write_header(w: Any, address: str, site: int, words: int, pred: str) -> None:
    """The four words at the start of a record, written by one thread."""
    cta, place = w.new("b32", "cta"), 4 * HEADER
    w.line(ptx.alu("mov.u32", cta, "%ctaid.x"))
    for index, word in enumerate((str(site), cta, w.tid(), str(words))):
        w.line(ptx.st_global("b32", f"{address}+{place + 4 * index}", word), pred=pred)


@dataclass(eq=False)
class Print(Op):
    """Prints a register tile, a vector or a scalar, by the launch after the kernel has run.

    Args:
        value: what.
        text: the user's label.
    """

    value: Value = operand()
    text: str = attribute()

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; something that can be shown."""
        kind = self.value.type
        if isinstance(kind, ScalarType):
            if kind.dtype.name not in PRINTED:
                raise DTypeError(f"print: shows scalars of {', '.join(PRINTED)}, got {kind}")
        elif not isinstance(kind, RegTileType | RegVecType):
            raise LayoutError(f"print: shows tiles, vectors and scalars, got {kind}")
        require_unpacked("print", kind)
        if not isinstance(kind, ScalarType) and self.scope not in TILE_SCOPES:
            raise LayoutError(f"print: a {kind} is printed by the scope that holds it")
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile."""
        tile = not isinstance(self.value.type, ScalarType)
        return (Effect(Access.READ, self.value),) if tile else ()

    def emit(self, w: Any) -> None:
        """A record of the warp's registers, or of the scalar."""
        kind = self.value.type
        site = new_site(w, DebugSite("print", self.text, kind, self.loc))
        if isinstance(kind, ScalarType):
            self._scalar(w, site, kind)
        else:
            self._registers(w, site)

    def _scalar(self, w: Any, site: int, kind: ScalarType) -> None:
        end, leader = w.label("printed"), w.elected(self.scope)
        if leader is not None:
            w.line(ptx.bra(end), pred=f"!{leader}")
        with w.nested():
            source = w.src(self.value)
            if kind.dtype == dtypes.pred:
                register = w.new("b32", "shown")
                w.line(ptx.alu("selp.b32", register, 1, 0, source))
                source = register
            first, fits = claim(w, 1)
            address = address_of(w, first)
            write_header(w, address, site, 1, fits)
            suffix = "f32" if kind.dtype.name == "f32" else "b32"
            w.line(ptx.st_global(suffix, f"{address}+{8 * HEADER}", source), pred=fits)
        w.mark(end)

    def _registers(self, w: Any, site: int) -> None:
        registers = w.regs(self.value)
        words = 32 * len(registers)
        first_lane = w.elected(Scope.WARP)
        start, fit = w.new("b32", "start"), w.new("b32", "fit")
        w.line(ptx.alu("mov.b32", start, 0))
        w.line(ptx.alu("mov.b32", fit, 0))
        skip = w.label("claimed")
        w.line(ptx.bra(skip), pred=f"!{first_lane}")
        with w.nested():
            first, fits = claim(w, words)
            w.line(ptx.alu("mov.b32", start, first))
            w.line(ptx.alu("selp.b32", fit, 1, 0, fits))
        w.mark(skip)
        w.line(ptx.shfl_idx(start, start, 0))
        w.line(ptx.shfl_idx(fit, fit, 0))
        mine, head, address = w.new("pred", "room"), w.new("pred", "head"), address_of(w, start)
        w.line(ptx.alu("setp.ne.u32", mine, fit, 0))
        w.line(ptx.alu("and.pred", head, mine, first_lane))
        write_header(w, address, site, words, head)
        lane = w.new("b64", "at")
        w.line(ptx.alu("mul.wide.u32", lane, w.lane(), 4))
        w.line(ptx.alu("add.s64", lane, lane, address))
        kind = self.value.type
        assert isinstance(kind, RegTileType | RegVecType), "checked in infer"
        suffix = "f32" if kind.dtype.name == "f32" else "b32"
        for index, register in enumerate(registers):
            place = f"{lane}+{8 * HEADER + 128 * index}"
            w.line(ptx.st_global(suffix, place, register), pred=mine)


def stop(w: Any, site: DebugSite) -> None:
    """Writes a record of this thread and ends the kernel with an error."""
    first, fits = claim(w, 0)
    address = address_of(w, first)
    write_header(w, address, new_site(w, site), 0, fits)
    w.line(transfers.fence("sys"))
    w.line(ptx.trap())


@dataclass(eq=False)
class DeviceAssert(Op):
    """Ends the kernel with an error where a condition is false.

    Args:
        condition: a predicate.
        text: the message.
    """

    verb: ClassVar[str] = "device_assert"
    condition: Value = operand()
    text: str = attribute()

    def emit(self, w: Any) -> None:
        """A branch over a record and a `trap`."""
        end = w.label("asserted")
        w.line(ptx.bra(end), pred=w.src(self.condition))
        with w.nested():
            stop(w, DebugSite("assert", self.text, None, self.loc))
        w.mark(end)


def limited_wait(w: Any, look: Any, name: str, limit: int, loc: Any) -> None:
    """Looks at a barrier until it answers, at most `limit` times; then stops and names it.

    Args:
        w: the writer.
        look: writes a look that gives a predicate.
        name: the barrier's.
        limit: looks.
        loc: the user's line.
    """
    count, loop, done = w.new("b32", "looks"), w.label("wait"), w.label("waited")
    w.line(ptx.alu("mov.b32", count, 0))
    w.mark(loop)
    w.line(ptx.bra(done), pred=look())
    more = w.new("pred", "more")
    w.line(ptx.alu("add.u32", count, count, 1))
    w.line(ptx.alu("setp.lt.u32", more, count, limit))
    w.line(ptx.bra(loop), pred=more)
    with w.nested():
        stop(w, DebugSite("wait", name, None, loc))
    w.mark(done)
