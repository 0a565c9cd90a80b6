"""Lane addresses of tile accesses, derived from the layouts' bits.

The byte of element (row, col) in a panel is linear over GF(2) in the bits of row and col. The
part that depends on lane and warp is one register, computed once; the part that depends on
which instruction of the tile it is, is a constant: added where its bits cannot meet the lane's,
XORed in where they can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ir import Value
from ..ptx import instructions as ptx
from ..tiles import SharedTileType

if TYPE_CHECKING:
    from .writer import Writer

# (register, bit, row, col): where each bit of lane and warp moves an address.
_Basis = tuple[tuple[str, int, int, int], ...]


def _matrix_basis(order: str) -> _Basis:
    """Lane l of ldmatrix/stmatrix gives row l mod 8 of matrix l // 8.

    Matrices 0..3 are rows 0-7, rows 8-15 of the first 8 columns, then of the next 8. With
    `.trans` (order "col") the lane gives a column instead.
    """
    inner = [("lane", bit, 1 << bit, 0) for bit in range(3)]
    if order == "col":
        inner = [("lane", bit, 0, 1 << bit) for bit in range(3)]
    outer = [("lane", 3, 8, 0), ("lane", 4, 0, 8), ("warp", 0, 16, 0), ("warp", 1, 32, 0)]
    return tuple(inner + outer)


_PAIR_BASIS: _Basis = (
    ("lane", 0, 0, 2), ("lane", 1, 0, 4), ("lane", 2, 1, 0), ("lane", 3, 2, 0),
    ("lane", 4, 4, 0), ("warp", 0, 16, 0), ("warp", 1, 32, 0),
)  # fmt: skip


def _lane_offset(w: Writer, tile: SharedTileType, basis: _Basis, key: str) -> tuple[str, int]:
    """Register with the lane's byte offset, and the bits it can have set."""
    shifts: dict[tuple[str, int], int] = {}
    mask = 0
    for register, bit, row, col in basis:
        image = tile.layout.byte_offset(row, col)
        mask |= image
        for out in range(image.bit_length()):
            if image >> out & 1:
                place = (register, out - bit)
                shifts[place] = shifts.get(place, 0) | 1 << bit
    sources = {"lane": w.lane(), "warp": w.warp()}

    def build(total: str) -> None:
        part = w.new("b32", "part")
        for index, ((register, shift), bits) in enumerate(sorted(shifts.items())):
            target = part if index else total
            w.line(ptx.alu("and.b32", target, sources[register], bits))
            if shift:
                opcode = "shl.b32" if shift > 0 else "shr.u32"
                w.line(ptx.alu(opcode, target, target, abs(shift)))
            if index:
                w.line(ptx.alu("xor.b32", total, total, part))

    layout = tile.layout
    cache = (key, tile.order, layout.swizzle_bytes, tuple(sorted(shifts.items())))
    return w.local(cache, "b32", "lane_byte", build), mask


def _addresses(w: Writer, value: Value, basis: _Basis, key: str, starts: list[tuple[int, int]]) -> list[str]:
    tile = value.type
    assert isinstance(tile, SharedTileType), "a shared tile"
    layout = tile.layout
    lane, mask = _lane_offset(w, tile, basis, key)
    base = w.address(value)
    sums: dict[int, str] = {}
    found = []
    for row, col in starts:
        panel, byte = divmod(layout.byte_offset(row, col), layout.panel_bytes)
        meets = byte & mask
        if meets not in sums:
            mixed = lane
            if meets:
                mixed = w.local(
                    (key, "xor", lane, meets), "b32", "lane_byte",
                    lambda r, m=meets: w.line(ptx.alu("xor.b32", r, lane, m)),  # type: ignore[misc]
                )  # fmt: skip
            sums[meets] = w.new("b32", "at")
            w.line(ptx.alu("add.u32", sums[meets], mixed, base.base))
        extra = base.offset + (byte ^ meets) + panel * layout.panel_bytes
        found.append(f"{sums[meets]}+{extra}" if extra else sums[meets])
    return found


def matrix_addresses(w: Writer, value: Value) -> list[str]:
    """One address text for each 16 columns of a 64-row tile of 16-bit elements."""
    tile = value.type
    assert isinstance(tile, SharedTileType), "a shared tile"
    starts = [(0, 16 * group) for group in range(tile.cols // 16)]
    return _addresses(w, value, _matrix_basis(tile.order), "matrix", starts)


def pair_addresses(w: Writer, value: Value) -> list[str]:
    """One address text for each (8 columns, row half) of a 64-row tile of 32-bit elements."""
    tile = value.type
    assert isinstance(tile, SharedTileType), "a shared tile"
    starts = [(8 * half, 8 * j) for j in range(tile.cols // 8) for half in range(2)]
    return _addresses(w, value, _PAIR_BASIS, "pair", starts)
