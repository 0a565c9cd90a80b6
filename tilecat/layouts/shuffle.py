"""Layout changes in registers: which bytes to pack, which registers to shuffle between lanes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import xor
from typing import Any

import numpy as np

from ..errors import LayoutError
from .access import LaneTerm, xor_terms
from .registers import LANES, RegisterLayout

# A position bit of an element inside a block: ("row" or "col", bit).
Bit = tuple[str, int]
BLOCK_WIDTHS = (16, 32, 64, 8)


@dataclass(frozen=True)
class LaneFunction:
    """const XOR the terms of the lane: a register or a lane as a function of the lane."""

    const: int
    terms: tuple[LaneTerm, ...]

    def __call__(self, lane: Any) -> Any:
        """Its value for a lane, int or array."""
        return reduce(xor, (term(lane) for term in self.terms), lane * 0 + self.const)


@dataclass(frozen=True)
class Round:
    """One shfl.sync.idx: every lane sends one register and receives one.

    Args:
        send: the register a lane sends, of those `before` packed.
        read: the lane it reads.
        place: the register its value becomes, of those `after` unpacks.
    """

    send: LaneFunction
    read: LaneFunction
    place: LaneFunction


# For each register, the (register, element) its elements come from, lowest first.
Packing = tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True)
class LayoutChange:
    """How a warp changes the layout of a block of registers, for every block of the tile.

    Example: P of attention, `RegisterLayout(f32, 64, 128, 4).cast(e4m3)` (pairs of adjacent
    columns) to the A operand `RegisterLayout(e4m3, 64, 128, 4)` (quads): a block is 16 columns,
    2 registers, each with both row halves of 2 columns. `before` packs nothing; 2 rounds send
    one register each (lanes 0, 2 of four their first and lanes 1, 3 their second, then the other
    way round); `after` is one prmt a register, which puts the halves of one row together.

    Args:
        kind: "none" (every element is in its place), "movmatrix" (each register is an 8 x 8
            matrix of 16 bits to transpose) or "shuffle".
        blocks: for each block, its source registers and its destination registers.
        before: packing of a block's source registers into the registers sent.
        rounds: the shuffles of a block, one a register.
        after: packing of the registers received into a block's destination registers.
    """

    kind: str
    blocks: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    before: Packing = ()
    rounds: tuple[Round, ...] = ()
    after: Packing = ()


@lru_cache(maxsize=256)
def layout_change(source: RegisterLayout, target: RegisterLayout) -> LayoutChange:
    """The moves between lanes that turn one register layout of a tile into another.

    Raises:
        LayoutError: shape, warps or element width differ, or an element would leave its warp.
    """
    _check_pair(source, target)
    every = tuple(range(source.registers_per_thread))
    if source.same_places(target):
        return LayoutChange("none", ((every, every),))
    corner = np.indices((source.rows, source.cols))
    if (source.index_of(*corner)[0] // LANES != target.index_of(*corner)[0] // LANES).any():
        raise LayoutError(
            f"layout change: elements must stay in their warp, got order={source.order!r} to "
            f"{target.order!r} (str) over {source.warps} warps",
            hint="store the tile to shared memory and load it in the other layout",
        )
    if source.dtype.bits == 16 and source.order != target.order:
        return LayoutChange("movmatrix", _transposed_registers(source, target))
    for width in BLOCK_WIDTHS:
        change = _shuffle(source, target, width)
        if change is not None:
            return change
    raise LayoutError(
        f"layout change: no shuffle of 32-bit registers does it, got {source.dtype} in "
        f"{source.rows} x {source.cols}, order={source.order!r} to {target.order!r} (str)",
        hint="store the tile to shared memory and load it in the other layout",
    )


def _check_pair(source: RegisterLayout, target: RegisterLayout) -> None:
    mine = (source.rows, source.cols, source.warps, source.dtype.bits)
    if mine != (target.rows, target.cols, target.warps, target.dtype.bits):
        raise LayoutError(
            f"layout change: rows, cols, warps and element bits must agree, got {mine} and "
            f"{(target.rows, target.cols, target.warps, target.dtype.bits)}",
            hint="cast the tile first: source.cast(dtype)",
        )
    if source.dtype.bits > 32 or source.dtype.kind == "pred":
        raise LayoutError(
            f"layout change: elements of 8, 16 or 32 bits, got dtype={source.dtype} (DType)"
        )


def _transposed_registers(
    source: RegisterLayout, target: RegisterLayout
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Registers of each 8 x 8 matrix in both layouts."""
    pairs = {}
    for index in range(0, source.elements_per_thread, 2):
        row, col = source.row_col(0, index)
        pairs[index // 2] = target.index_of(row, col)[1] // 2
    return tuple(((src,), (dst,)) for src, dst in pairs.items())


def _log2(x: int) -> int:
    assert x > 0 and x & (x - 1) == 0, f"{x} is a power of two"
    return int(x).bit_length() - 1


@dataclass(frozen=True)
class _Roles:
    """Which position bit each element, register and lane bit of a block is.

    Every fragment is a permutation of bits, so sets of bits stand for subspaces.
    """

    elem: tuple[Bit, ...]
    reg: tuple[Bit, ...]
    lane: tuple[Bit, ...]


def _registers(layout: RegisterLayout, row: int, col: int, block: tuple[int, int]) -> np.ndarray:
    """Registers of a warp that hold a block."""
    rows, cols = np.indices(block)
    return np.unique(layout.index_of(rows + row, cols + col)[1] // layout.elements_per_register)


def _roles(layout: RegisterLayout, block: tuple[int, int]) -> _Roles | None:
    """Roles of a block's position bits, or None if its registers hold other elements too."""
    registers = _registers(layout, 0, 0, block).tolist()
    if len(registers) * layout.elements_per_register * LANES != block[0] * block[1]:
        return None
    elem, reg, lane = {}, {}, {}
    for axis, extent in zip(("row", "col"), block, strict=True):
        for bit in range(_log2(extent)):
            place = (1 << bit, 0) if axis == "row" else (0, 1 << bit)
            thread, index = layout.index_of(*place)
            register, element = divmod(index, layout.elements_per_register)
            if thread:
                lane[_log2(thread)] = (axis, bit)
            elif element:
                elem[_log2(element)] = (axis, bit)
            else:
                reg[_log2(registers.index(register))] = (axis, bit)
    ordered = (tuple(found[k] for k in sorted(found)) for found in (elem, reg, lane))
    return _Roles(*ordered)


def _shuffle(source: RegisterLayout, target: RegisterLayout, width: int) -> LayoutChange | None:
    """The change by blocks of 16 x width (the transpose, or a square, by the orders)."""
    shapes = {("row", "row"): (16, width), ("col", "col"): (width, 16)}
    block = shapes.get((source.order, target.order), (width, width))
    if source.rows % block[0] or source.cols % block[1]:
        return None
    old, new = _roles(source, block), _roles(target, block)
    if old is None or new is None:
        return None
    kept = _elements_kept(old, new)
    if kept is None:
        return None
    sent, before = _repack(old, kept)
    received, _ = _repack(new, kept)
    after = _gather(_Roles(kept, received, new.lane), _Roles(new.elem, new.reg, new.lane))
    blocks = tuple(
        (
            tuple(_registers(source, r, c, block).tolist()),
            tuple(_registers(target, r, c, block).tolist()),
        )
        for r in range(0, source.rows, block[0])
        for c in range(0, source.cols, block[1])
        if source.index_of(r, c)[0] < LANES
    )
    rounds = _rounds(_Roles(kept, sent, old.lane), _Roles(kept, received, new.lane))
    return LayoutChange("shuffle", blocks, before, rounds, after)


def _elements_kept(old: _Roles, new: _Roles) -> tuple[Bit, ...] | None:
    """Position bits that stay inside a register while it travels: local on both sides."""
    both = [bit for bit in (*old.elem, *old.reg) if bit in (*new.elem, *new.reg)]
    # Prefer element bits of both, then of either: they need no packing on that side.
    both.sort(key=lambda bit: -(bit in old.elem) - (bit in new.elem))
    chosen = both[: len(old.elem)]
    if len(chosen) < len(old.elem):
        return None
    # Leave those that are element bits of the source in their place.
    free = [bit for bit in chosen if bit not in old.elem]
    return tuple(bit if bit in chosen else free.pop(0) for bit in old.elem)


def _repack(roles: _Roles, kept: tuple[Bit, ...]) -> tuple[tuple[Bit, ...], Packing]:
    """Register bits once `kept` are the element bits, and how each such register is packed."""
    displaced = [bit for bit in roles.elem if bit not in kept]
    reg = tuple(displaced.pop(0) if bit in kept else bit for bit in roles.reg)
    return reg, _gather(roles, _Roles(kept, reg, roles.lane))


def _gather(old: _Roles, new: _Roles) -> Packing:
    """For each new register, the old (register, element) of its elements; nothing if the same."""
    if (old.elem, old.reg) == (new.elem, new.reg):
        return ()
    packing = []
    for register in range(1 << len(new.reg)):
        elements = []
        for element in range(1 << len(new.elem)):
            value = {bit: register >> k & 1 for k, bit in enumerate(new.reg)}
            value |= {bit: element >> k & 1 for k, bit in enumerate(new.elem)}
            at = [sum(value[b] << k for k, b in enumerate(bits)) for bits in (old.reg, old.elem)]
            elements.append((at[0], at[1]))
        packing.append(tuple(elements))
    return tuple(packing)


def _rounds(old: _Roles, new: _Roles) -> tuple[Round, ...]:
    """As many shuffles as registers: no lane sends or receives twice in one.

    Register bits a of the source that become lane bits are paired with lane bits b that become
    register bits. In round k a lane sends the register with a = b ^ k, and receives the one with
    b = a ^ k; since a is a lane bit of the receiver and b one of the sender, both know it.
    """
    leaving = [bit for bit in old.reg if bit not in new.reg]
    coming = [bit for bit in new.reg if bit not in old.reg]
    partner = dict(zip(leaving, coming, strict=True)) | dict(zip(coming, leaving, strict=True))
    rounds = []
    for number in range(1 << len(old.reg)):
        key = {bit: number >> k & 1 for k, bit in enumerate(old.reg)}
        key |= {bit: key[partner[bit]] for bit in coming}
        send = _lane_function(old.reg, old.lane, partner, key)
        read = _lane_function(old.lane, new.lane, partner, key)
        place = _lane_function(new.reg, new.lane, partner, key)
        rounds.append(Round(send, read, place))
    return tuple(rounds)


def _lane_function(
    wanted: tuple[Bit, ...], lane: tuple[Bit, ...], partner: dict[Bit, Bit], key: dict[Bit, int]
) -> LaneFunction:
    """The number whose bits are `wanted`, from a lane's bits, in the round with this key."""
    const = 0
    columns = [0] * len(lane)
    for k, bit in enumerate(wanted):
        if bit in lane:
            columns[lane.index(bit)] |= 1 << k
            continue
        const |= key[bit] << k
        if bit in partner:
            columns[lane.index(partner[bit])] |= 1 << k
    return LaneFunction(const, xor_terms(columns))
