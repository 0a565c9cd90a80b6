"""Addresses of a register tile's moves to and from a shared tile, as registers and immediates.

`layouts.plan_access` says which bits of the thread's number move an address where. What depends on
the thread is one register a plan, and one more for each flip of the swizzle; what depends on the
instruction is its immediate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ir import Value
from ..layouts import AccessPlan, Fragment, LaneTerm
from ..layouts.access import xor_terms
from ..ops.memory import AllocScratch
from ..ptx import instructions as ptx

if TYPE_CHECKING:
    from .writer import Writer


def thread_number(w: Writer, register: str) -> None:
    """The thread's number in the CTA.

    Where pairs of warpgroups share tiles of tensor memory, warps of the first `paired_threads`
    threads are numbered so that warp w of the eight of a pair reaches lanes 16 w to 16 w + 15:
    hardware warp 4 h + q, which reaches lanes 32 q to 32 q + 31, is warp 2 q + h of its pair.
    """
    w.line(ptx.alu("mov.u32", register, "%tid.x"))
    paired = int(w.kernel.facts.get("paired_threads", 0))
    if not paired:
        return
    quarter, half, number = (w.new("b32", hint) for hint in ("quarter", "half", "number"))
    in_pair = w.new("pred", "in_pair")
    w.line(ptx.alu("shr.u32", quarter, register, 5))
    w.line(ptx.alu("shr.u32", half, register, 7))
    w.line(ptx.alu("bfi.b32", number, quarter, register, 6, 2))
    w.line(ptx.alu("bfi.b32", number, half, number, 5, 1))
    w.line(ptx.alu("setp.lt.u32", in_pair, register, paired))
    w.line(ptx.alu("selp.b32", register, number, register, in_pair))


def lane_place(w: Writer, held: Fragment, warps: int, *, of_row: bool) -> str:
    """First row, or column, of a fragment that this thread holds, from the bits of its number."""
    places = [row if of_row else runs * held.run for row, runs in held.lanes]
    warp = w.warp() if of_row and warps > 1 else None

    def build(total: str) -> None:
        terms = xor_terms(places)
        if not terms:
            w.line(ptx.alu("mov.b32", total, 0))
        for index, term in enumerate(terms):
            part = _term(w, term, total if index == 0 else None)
            if index:
                w.line(ptx.alu("add.u32", total, total, part))
        if warp is not None:
            w.line(ptx.alu("mad.lo.u32", total, warp, held.rows, total))

    hint = "lane_row" if of_row else "lane_col"
    return w.local((hint, held, warps), "b32", hint, build)


def access_addresses(w: Writer, tile: Value, plan: AccessPlan) -> list[str]:
    """Text of this thread's address in each access of a plan.

    Chunk and line offsets share no bit, so a flip may be XORed into their sum.
    """
    base, lane = w.address(tile), _lane_byte(w, plan)
    starts: dict[int, str] = {}
    found = []
    for access in plan.accesses:
        if access.flip not in starts:
            starts[access.flip] = w.new("b32", "at")
            moved = _flipped(w, lane, access.flip)
            w.line(ptx.alu("add.u32", starts[access.flip], moved, base.base))
        extra = base.offset + access.add
        found.append(f"{starts[access.flip]}+{extra}" if extra else starts[access.flip])
    return found


def scratch_address(w: Writer, op: AllocScratch, base: str, offset: int) -> str:
    """Address of this warpgroup's scratch, or of this warp's part of it."""
    owner = None if op.of_warps else w.warpgroup()

    def build(register: str) -> None:
        if owner is None:
            w.line(ptx.alu("shr.u32", register, w.tid(), 5))
            w.line(ptx.alu("mad.lo.u32", register, register, op.num_bytes // 4, base))
        else:
            w.line(ptx.alu("mad.lo.u32", register, owner, op.num_bytes, base))
        w.line(ptx.alu("add.u32", register, register, offset))

    return w.local(("scratch", op.of_warps), "b32", "scratch", build)


def _lane_byte(w: Writer, plan: AccessPlan) -> str:
    """The thread's byte offset without flip."""

    def build(total: str) -> None:
        terms = [(term, "xor.b32") for term in plan.chunk_terms]
        terms += [(term, "add.u32") for term in plan.line_terms]
        if not terms:
            w.line(ptx.alu("mov.b32", total, 0))
        for index, (term, combine) in enumerate(terms):
            part = _term(w, term, total if index == 0 else None)
            if index:
                w.line(ptx.alu(combine, total, total, part))

    key = ("lane byte", plan.chunk_terms, plan.line_terms)
    return w.local(key, "b32", "lane_byte", build)


def _term(w: Writer, term: LaneTerm, target: str | None) -> str:
    """`(thread >> shift & mask) * scale`, in a register."""
    result = target or w.new("b32", "part")
    thread = w.tid()
    if term.scale & (term.scale - 1):
        w.line(ptx.alu("shr.u32", result, thread, term.shift))
        w.line(ptx.alu("and.b32", result, result, term.mask))
        w.line(ptx.alu("mul.lo.u32", result, result, term.scale))
        return result
    w.line(ptx.alu("and.b32", result, thread, term.mask << term.shift))
    by = term.scale.bit_length() - 1 - term.shift
    if by:
        w.line(ptx.alu("shl.b32" if by > 0 else "shr.u32", result, result, abs(by)))
    return result


def _flipped(w: Writer, lane: str, flip: int) -> str:
    if not flip:
        return lane
    return w.local(
        ("flip", lane, flip), "b32", "lane_byte",
        lambda register: w.line(ptx.alu("xor.b32", register, lane, flip)),
    )  # fmt: skip
