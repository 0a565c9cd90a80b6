"""Moves of a register tile's elements between lanes: another order, another fragment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, Value, attribute, operand
from ..layouts import LaneFunction, LayoutChange, layout_change
from ..layouts.registers import LANES
from ..layouts.shuffle import Packing
from ..ptx import instructions as ptx
from ..tiles import RegTileType, TileType
from .elements import require_numbers


@dataclass(eq=False)
class ChangeLayout(Op):
    """The same tile in another register layout: `movmatrix`, or shuffles between lanes.

    Args:
        tile: a register tile.
        name: what users called.
        order: "row" or "col"; the fragment becomes the dtype's own.
    """

    verb: ClassVar[str] = "{name}"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    any_fragment: ClassVar[bool] = True
    tile: Value = operand()
    name: str = attribute()
    order: str = attribute()

    def infer(self) -> tuple[TileType, ...]:
        """The tile's type in the new layout."""
        kind = self.tile.type
        assert isinstance(kind, RegTileType), "the function took a register tile"
        require_numbers(self.name, kind.dtype)
        result = RegTileType(kind.dtype, kind.rows, kind.cols, kind.warps, self.order)
        try:
            layout_change(kind.layout, result.layout)
        except LayoutError as error:
            raise LayoutError(
                f"{self.name}: {error.message.partition(': ')[2]}",
                hint="s = tc.shared(tc.st[...]); tc.store(s, x); tc.sync(); "
                f'tc.load(s, order="{self.order}")',
            ) from None
        return (result,)

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile, writes the result."""
        return (Effect(Access.READ, self.tile), Effect(Access.WRITE, self.result))

    def emit(self, w: Any) -> None:
        """Block by block; see `layouts.LayoutChange`."""
        kind, result = self.tile.type, self.result.type
        assert isinstance(kind, RegTileType) and isinstance(result, RegTileType), "inferred"
        change = layout_change(kind.layout, result.layout)
        register = "f32" if kind.dtype.name == "f32" else "b32"
        source, target = w.regs(self.tile), w.regs(self.result)
        for taken, made in change.blocks:
            old, new = [source[i] for i in taken], [target[i] for i in made]
            if change.kind == "none":
                for d, s in zip(new, old, strict=True):
                    w.line(ptx.alu(f"mov.{register}", d, s))
            elif change.kind == "movmatrix":
                w.line(ptx.movmatrix(new[0], old[0]))
            else:
                _shuffle(w, change, old, new, register)


def _shuffle(
    w: Any, change: LayoutChange, old: Sequence[str], new: Sequence[str], register: str
) -> None:
    """One `shfl` a register; which is sent and where it goes depends on the lane.

    In round k a lane sends register k ^ s(lane) and stores what it gets at c(k) ^ p(lane): an
    exchange of registers by lane before and after, one stage for each bit of s and p.
    """
    sent = _exchanged(w, _gathered(w, change.before, old), change.rounds[0].send, register)
    got = [w.new(register, "got") for _ in sent]
    for turn in change.rounds:
        slot, lane = turn.place.const, _lane_value(w, turn.read)
        first = turn.send.const
        w.line(ptx.shfl_idx(got[slot], sent[first], lane))
    received = _exchanged(w, got, change.rounds[0].place, register)
    for d, s in zip(new, _gathered(w, change.after, received), strict=True):
        w.line(ptx.alu(f"mov.{register}", d, s))


def _lane_bits(function: LaneFunction) -> dict[int, int]:
    """For each bit of the function's value that the lane decides, the lane's bit."""
    found = {}
    for lane_bit in range(LANES.bit_length() - 1):
        value = function(1 << lane_bit) ^ function.const
        for bit in range(value.bit_length()):
            if value >> bit & 1:
                assert bit not in found, "one lane bit decides each"
                found[bit] = lane_bit
    return found


def _exchanged(
    w: Any, registers: Sequence[str], function: LaneFunction, register: str
) -> list[str]:
    """Registers in the order i ^ f(lane), f without its constant."""
    held = list(registers)
    for bit, lane_bit in _lane_bits(function).items():
        swap, after = lane_test(w, lane_bit), list(held)
        for low in range(len(held)):
            high = low | 1 << bit
            if low == high:
                continue
            for index, other in ((low, high), (high, low)):
                after[index] = w.new(register, "moved")
                w.line(ptx.alu(f"selp.{register}", after[index], held[other], held[index], swap))
        held = after
    return held


def lane_test(w: Any, bit: int) -> str:
    """Predicate: this bit of the lane's number is set."""

    def build(test: str) -> None:
        part = w.new("b32", "part")
        w.line(ptx.alu("and.b32", part, w.tid(), 1 << bit))
        w.line(ptx.alu("setp.ne.u32", test, part, 0))

    return str(w.local(("lane bit", bit), "pred", "odd", build))


def _lane_value(w: Any, function: LaneFunction) -> str:
    """A function of the lane in a register."""
    lane = w.lane()

    def parts(total: str) -> None:
        w.line(ptx.alu("mov.b32", total, 0))
        for term in function.terms:
            part = w.new("b32", "part")
            w.line(ptx.alu("shr.u32", part, lane, term.shift))
            w.line(ptx.alu("and.b32", part, part, term.mask))
            w.line(ptx.alu("mul.lo.u32", part, part, term.scale))
            w.line(ptx.alu("xor.b32", total, total, part))

    base = w.local(("lane terms", function.terms), "b32", "peer", parts)
    if not function.const:
        return str(base)
    return str(
        w.local(
            ("lane function", function), "b32", "peer",
            lambda r: w.line(ptx.alu("xor.b32", r, base, function.const)),
        )
    )  # fmt: skip


def _gathered(w: Any, packing: Packing, registers: Sequence[str]) -> list[str]:
    """Registers whose elements come from several: one `prmt` for each source after the first."""
    if not packing:
        return list(registers)
    return [_pack(w, elements, registers) for elements in packing]


def _pack(w: Any, elements: Sequence[tuple[int, int]], registers: Sequence[str]) -> str:
    size = 4 // len(elements)
    wanted = [(reg, size * element + byte) for reg, element in elements for byte in range(size)]
    sources = list(dict.fromkeys(reg for reg, _ in wanted))
    held = registers[sources[0]]
    for source in sources[1:] or sources:
        raw, selector = held == registers[sources[0]], 0
        for place, (reg, byte) in enumerate(wanted):
            # A byte of a source still to come is whatever stands there.
            mine = byte if raw else place
            selector |= (4 + byte if reg == source else mine) << 4 * place
        packed = w.new("b32", "packed")
        w.line(ptx.prmt(packed, held, registers[source], selector))
        held = packed
    return str(held)
