"""Scans: running sums, products and extrema along an axis of a tile, or along a vector.

The elements of a line lie in groups: adjacent ones in a thread, then lanes, then steps of the
thread's registers, then warps, then blocks of rows. Each level gives its groups what comes before
them (their prefix), so that the last one is a plain loop over a thread's own elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .. import dtypes
from ..errors import DTypeError, LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, SharedRequest, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import RegTileType, RegVecType, TileType
from .conditions import as_dtype, check_condition
from .elements import pack, register_kind, require_numbers, unpack
from .elementwise import RegType, element_count, element_operands
from .reduce import exchange_requests


class ScanRow(NamedTuple):
    """An associative operation: its opcodes and what leaves the other operand as it is."""

    f32: str
    s32: str
    f32_identity: float
    s32_identity: int


SCANS = {
    "sum": ScanRow("add.rn.f32", "add.s32", 0.0, 0),
    "prod": ScanRow("mul.rn.f32", "mul.lo.s32", 1.0, 1),
    "max": ScanRow("max.f32", "max.s32", float("-inf"), -(2**31)),
    "min": ScanRow("min.f32", "min.s32", float("inf"), 2**31 - 1),
}


class Part(NamedTuple):
    """The combination of some elements, and whether a segment starts among them (b32, or none)."""

    value: str
    flag: str | None


@dataclass(frozen=True)
class _Emitter:
    """Instructions of one scan."""

    w: Any
    row: ScanRow
    floats: bool
    segmented: bool
    reverse: bool

    @property
    def kind(self) -> str:
        return "f32" if self.floats else "b32"

    @property
    def identity(self) -> str:
        return ptx.f32_literal(self.row.f32_identity) if self.floats else str(self.row.s32_identity)

    def none(self) -> Part:
        """No element."""
        return Part(self.identity, "0" if self.segmented else None)

    def select(self, test: str, part: Part) -> Part:
        """The part where a predicate holds, else no element."""
        w, value = self.w, self.w.new(self.kind, "part")
        w.line(ptx.alu(f"selp.{self.kind}", value, part.value, self.identity, test))
        if part.flag is None:
            return Part(value, None)
        flag = w.new("b32", "flag")
        w.line(ptx.alu("selp.b32", flag, part.flag, 0, test))
        return Part(value, flag)

    def combine(self, first: Part, second: Part) -> Part:
        """Both, in the order of the scan; a segment that starts in the second drops the first."""
        w = self.w
        if first == self.none():
            return second
        if second == self.none():
            return first
        value, flag = first.value, second.flag
        if second.flag not in (None, "0"):
            test, kept = w.new("pred", "starts"), w.new(self.kind, "kept")
            w.line(ptx.alu("setp.ne.u32", test, second.flag, 0))
            w.line(ptx.alu(f"selp.{self.kind}", kept, self.identity, first.value, test))
            value, flag = kept, w.new("b32", "flag")
            w.line(ptx.alu("or.b32", flag, first.flag, second.flag))
        elif self.segmented:
            flag = first.flag
        result = w.new(self.kind, "scan")
        w.line(ptx.alu(self.row.f32 if self.floats else self.row.s32, result, value, second.value))
        return Part(result, flag)

    def shuffled(self, part: Part, lane: str) -> Part:
        """The part of another lane."""
        got = []
        for register, kind in ((part.value, self.kind), (part.flag, "b32")):
            if register is None:
                continue
            got.append(self.w.new(kind, "other"))
            self.w.line(ptx.shfl_idx(got[-1], register, lane))
        return Part(got[0], got[1] if self.segmented else None)

    def lanes(self, part: Part, unit: int, count: int) -> tuple[Part, Part]:
        """What comes before this lane among `count` lanes `unit` apart, and all of them."""
        held, distance = part, unit
        while distance < unit * count:
            source, valid = self.neighbour(distance, unit, count)
            held = self.combine(self.select(valid, self.shuffled(held, source)), held)
            distance *= 2
        source, valid = self.neighbour(unit, unit, count)
        before = self.select(valid, self.shuffled(held, source))
        return before, self.shuffled(held, self.last(unit, count))

    def neighbour(self, distance: int, unit: int, count: int) -> tuple[str, str]:
        """The lane `distance` earlier in the scan, and whether it is in the same line."""
        w, lane = self.w, self.w.lane()
        opcode = "add.u32" if self.reverse else "sub.u32"
        source = w.local(
            ("scan lane", distance, self.reverse), "b32", "source",
            lambda r: w.line(ptx.alu(opcode, r, lane, distance)),
        )  # fmt: skip

        def test(valid: str) -> None:
            place, mask = w.new("b32", "place"), unit * (count - 1)
            w.line(ptx.alu("and.b32", place, lane, mask))
            if self.reverse:
                w.line(ptx.alu("setp.lt.u32", valid, place, unit * count - distance))
            else:
                w.line(ptx.alu("setp.ge.u32", valid, place, distance))

        key = ("scan valid", distance, unit, count, self.reverse)
        return str(source), str(w.local(key, "pred", "valid", test))

    def last(self, unit: int, count: int) -> str:
        """The lane that has everything of its line."""
        w, lane, mask = self.w, self.w.lane(), unit * (count - 1)
        opcode, constant = ("and.b32", 31 - mask) if self.reverse else ("or.b32", mask)
        return str(
            w.local(
                ("scan last", mask, self.reverse), "b32", "last",
                lambda r: w.line(ptx.alu(opcode, r, lane, constant)),
            )
        )  # fmt: skip

    def ordered(self, items: Sequence[Any]) -> list[Any]:
        """In the order of the scan."""
        return list(reversed(items)) if self.reverse else list(items)


@dataclass(eq=False)
class Scan(Op):
    """`out[.., i] = op over j <= i of x[.., j]` along an axis of a tile, or along a vector.

    Args:
        name: a row of SCANS.
        axis: the index that runs: "row" or "col" of a tile; a vector's own.
        x: a tile, or a row or column vector; of a warp also a plain one.
        starts: conditions where segments start, of the shape of x or a vector of the axis; the
            sum starts anew at them (with `reverse`, seen from the other end, after them).
        scratch: shared memory where the line crosses warps.
        exclusive: j < i instead.
        reverse: j >= i (or j > i) instead.
    """

    verb: ClassVar[str] = "cum{name}"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    name: str = attribute()
    axis: str = attribute()
    x: Value = operand()
    starts: Value | None = operand(default=None)
    scratch: Value | None = operand(default=None)
    exclusive: bool = attribute(default=False)
    reverse: bool = attribute(default=False)

    def infer(self) -> tuple[TileType, ...]:
        """The type of x."""
        kind = self.x.type
        plain = isinstance(kind, RegVecType) and kind.axis == "plain" and kind.warps > 1
        partial = isinstance(kind, RegVecType) and kind.partial
        if not isinstance(kind, RegTileType | RegVecType) or plain or partial:
            raise LayoutError(
                f"{self.label}: wanted a tile, or a whole row or column vector, got {kind}",
                hint="a plain vector is scanned by a warp: in a tc.warps block" if plain else None,
            )
        require_numbers(self.label, kind.dtype)
        if self.starts is not None:
            starts = self.starts.type
            if not isinstance(starts, RegTileType | RegVecType) or starts.dtype.kind != "pred":
                raise DTypeError(
                    f"{self.label}: starts are conditions, got {starts}", hint="starts=flags != 0"
                )
            check_condition(self.label, starts, kind)
        return (kind,)

    def effects(self) -> tuple[Effect, ...]:
        """Reads x and the starts, writes the result."""
        reads = [Effect(Access.READ, v) for v in (self.x, self.starts) if v is not None]
        return (*reads, Effect(Access.WRITE, self.result))

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """Each store and load of the exchange between warps."""
        if self.scratch is None:
            return ()
        store, load = exchange_requests(np.arange(4) * 8, np.arange(32) % 4 * 8)
        return (store, *(load,) * 4)

    def emit(self, w: Any) -> None:
        """Lines of lanes in a quad, or of lanes over the rows of the fragment."""
        kind, dst = self.x.type, w.regs(self.result)
        assert isinstance(kind, RegTileType | RegVecType), "checked in infer"
        segmented = self.starts is not None
        e = _Emitter(w, SCANS[self.name], kind.dtype.is_float, segmented, self.reverse)
        values = unpack(w, kind, w.regs(self.x))
        flags: list[str | None] = [None] * len(values)
        if segmented:
            flags = list(self._flags(w, kind))
        grid = _grid(kind)
        elements, shown = self._elements(e, values, flags)
        if crosses_lines(kind, self.axis):
            made = self._down(e, elements, shown, grid)
        else:
            made = {}
            for line in grid.reshape(-1, *grid.shape[2:]):
                made |= self._along(e, elements, shown, line)
        results = [made[i] for i in range(element_count(kind))]
        pack_all(w, kind, results, dst)

    def _elements(
        self, e: _Emitter, values: list[str], flags: list[str | None]
    ) -> tuple[list[Part], list[Part]]:
        """What each element leaves to those after it, and what it adds to its own result.

        Seen from the end, a segment ends after the element that starts it: that one leaves
        nothing.
        """
        plain = [Part(v, f) for v, f in zip(values, flags, strict=True)]
        if not e.segmented:
            return plain, [e.none()] * len(plain) if self.exclusive else plain
        if not self.reverse:
            return plain, [Part(e.identity, f) for f in flags] if self.exclusive else plain
        left = []
        for value, flag in plain:
            test, kept = e.w.new("pred", "starts"), e.w.new(e.kind, "kept")
            e.w.line(ptx.alu("setp.ne.u32", test, flag, 0))
            e.w.line(ptx.alu(f"selp.{e.kind}", kept, e.identity, value, test))
            left.append(Part(kept, flag))
        own = [e.none() if self.exclusive else Part(v, "0") for v in values]
        return left, own

    def _flags(self, w: Any, kind: RegType) -> list[str]:
        assert self.starts is not None, "the caller looked"
        (tests,) = element_operands(w, as_dtype(kind, dtypes.pred), (self.starts,))
        found: dict[str, str] = {}
        for test in tests:
            if test not in found:
                found[test] = w.new("b32", "flag")
                w.line(ptx.alu("selp.b32", found[test], 1, 0, test))
        return [found[test] for test in tests]

    def _along(
        self, e: _Emitter, elements: list[Part], shown: list[Part], line: np.ndarray
    ) -> dict[int, str]:
        """Steps of adjacent elements, over the four lanes of a quad; of a plain vector over all."""
        kind = self.x.type
        lanes = 32 if isinstance(kind, RegVecType) and kind.axis == "plain" else 4
        found: dict[int, str] = {}
        carry = e.none()
        for group in e.ordered(line.tolist()):
            group = e.ordered(group)
            own = elements[group[0]]
            for place in group[1:]:
                own = e.combine(own, elements[place])
            before, total = e.lanes(own, 1, lanes)
            held = e.combine(carry, before)
            for place in group:
                found[place] = e.combine(held, shown[place]).value
                held = e.combine(held, elements[place])
            carry = e.combine(carry, total)
        return found

    def _down(
        self, e: _Emitter, elements: list[Part], shown: list[Part], grid: np.ndarray
    ) -> dict[int, str]:
        """Blocks of 16 rows a warp: two halves of eight lanes each, then warps."""
        found: dict[int, str] = {}
        lines = grid.shape[2] * grid.shape[3]
        carries = [e.none()] * lines
        for block in e.ordered(range(grid.shape[0])):
            halves = e.ordered(range(2))
            columns = grid[block].reshape(2, lines)
            parts = [
                [e.lanes(elements[int(columns[half, line])], 4, 8) for half in halves]
                for line in range(lines)
            ]
            totals = [e.combine(first[1], second[1]) for first, second in parts]
            befores, alls = self._across_warps(e, totals)
            for line in range(lines):
                held = e.combine(carries[line], befores[line])
                for index, half in enumerate(halves):
                    before, total = parts[line][index]
                    place = int(columns[half, line])
                    found[place] = e.combine(e.combine(held, before), shown[place]).value
                    held = e.combine(held, total)
                carries[line] = e.combine(carries[line], alls[line])
        return found

    def _across_warps(self, e: _Emitter, totals: list[Part]) -> tuple[list[Part], list[Part]]:
        """For each line what earlier warps have, and what all have."""
        if self.scratch is None:
            return [e.none()] * len(totals), totals
        w, kind = e.w, self.x.type
        assert isinstance(kind, RegTileType | RegVecType), "checked in infer"
        warps = kind.warps
        base, lane = w.scratch(self.scratch), w.lane()
        first, mine, column = w.new("pred", "first"), w.new("b32", "mine"), base
        vector = isinstance(kind, RegVecType)
        if isinstance(kind, RegTileType):
            run = kind.layout.fragment.run
            column = w.new("b32", "column")
            w.line(ptx.alu("mad.lo.u32", column, w.lane_col(run), 4, base))
        stride, places = scan_columns(kind)
        w.line(ptx.alu("setp.lt.u32", first, lane, 1 if vector else 4))
        w.line(ptx.alu("mad.lo.u32", mine, w.warp(), 4 * stride, column))
        plane = 4 * stride * warps
        for place, part in zip(places, totals, strict=True):
            w.line(ptx.st_shared(e.kind, f"{mine}+{4 * place}", part.value), pred=first)
            if part.flag is not None:
                w.line(ptx.st_shared("b32", f"{mine}+{plane + 4 * place}", part.flag), pred=first)
        w.sync_warpgroup()
        befores, alls = [], []
        for place in places:
            before = every = e.none()
            for warp in e.ordered(range(warps)):
                at = f"{column}+{4 * (place + warp * stride)}"
                got = self._loaded(e, at, f"{column}+{plane + 4 * (place + warp * stride)}")
                before = e.combine(before, e.select(_earlier(e, warp), got))
                every = e.combine(every, got)
            befores.append(before)
            alls.append(every)
        w.sync_warpgroup()
        return befores, alls

    def _loaded(self, e: _Emitter, at: str, flag_at: str) -> Part:
        value = e.w.new(e.kind, "other")
        e.w.line(ptx.ld_shared(e.kind, value, at))
        if not e.segmented:
            return Part(value, None)
        flag = e.w.new("b32", "flag")
        e.w.line(ptx.ld_shared("b32", flag, flag_at))
        return Part(value, flag)


def _earlier(e: _Emitter, warp: int) -> str:
    """Predicate: a warp comes before this one."""
    w, mine = e.w, e.w.warp()
    test = "lt" if e.reverse else "gt"
    return str(
        w.local(
            ("scan warp", warp, e.reverse), "pred", "after",
            lambda r: w.line(ptx.alu(f"setp.{test}.u32", r, mine, warp)),
        )
    )  # fmt: skip


def pack_all(w: Any, kind: RegType, results: list[str], dst: Sequence[str]) -> None:
    """Elements into the registers of a tile, or of a vector, whose elements are registers."""
    if isinstance(kind, RegTileType):
        pack(w, kind.dtype, results, dst)
        return
    for register, result in zip(dst, results, strict=True):
        w.line(ptx.alu(f"mov.{register_kind(kind.dtype)}", register, result))


def crosses_lines(kind: RegType, axis: str) -> bool:
    """Whether the scan goes over the lanes of a column of the fragment, and over warps."""
    if isinstance(kind, RegVecType):
        return kind.axis == "row"
    return (axis == "row") == (kind.order == "row")


def scan_columns(kind: RegType) -> tuple[int, list[int]]:
    """Values of a warp that go to the others: how many, and where each register's first is."""
    if isinstance(kind, RegVecType):
        return 1, [0]
    run, across = kind.layout.fragment.run, kind.cols if kind.order == "row" else kind.rows
    count = across // 4
    return across, [4 * run * (i // run) + i % run for i in range(count)]


def scan_scratch_bytes(kind: RegType, axis: str, segmented: bool) -> int:
    """Shared bytes of a warpgroup for the exchange between its warps: 0 where there is none."""
    if kind.warps == 1 or not crosses_lines(kind, axis):
        return 0
    return 4 * kind.warps * scan_columns(kind)[0] * (2 if segmented else 1)


def _grid(kind: RegType) -> np.ndarray:
    """Element indices as [block of rows, half, step, adjacent]."""
    count = element_count(kind)
    if isinstance(kind, RegVecType):
        run = kind.layout.fragment.run if kind.axis == "col" else 1
        if kind.axis == "row":
            return np.arange(count).reshape(-1, 2, 1, 1)
        return np.arange(count).reshape(1, 1, -1, run)
    run, across = kind.layout.fragment.run, kind.cols if kind.order == "row" else kind.rows
    blocks = np.arange(count).reshape(-1, across // (4 * run), 2, run)
    return blocks.transpose(0, 2, 1, 3)
