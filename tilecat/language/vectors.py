"""Vectors: changes between the three layouts, and tiles as vectors of their registers."""

from __future__ import annotations

import math
from typing import Any

from ..builder import add, current
from ..dtypes import f32, s32, u32
from ..errors import LayoutError
from ..ir import Scope
from ..ops.vectors import ChangeVector
from ..ops.views import ViewRegisters
from ..tiles import RegTileType, RegVecType
from .functions import held_by_scope
from .reductions import scratch
from .values import RegTile, RegVec, registers_of, wrap


def to_row_vector(vector: RegVec) -> RegVec:
    """The same values as a vector with one value a row of a tile (`rv[f32, n]`).

    Scope: warpgroup, warp. PTX: a store and a load of shared memory between two barriers.
    """
    return _changed("to_row_vector", vector, "row")


def to_col_vector(vector: RegVec) -> RegVec:
    """The same values as a vector with one value a column (`rv[f32, n, "col"]`)."""
    return _changed("to_col_vector", vector, "col")


def to_plain(vector: RegVec) -> RegVec:
    """The same values without copies: value x in thread x mod threads (`rv[f32, n, "plain"]`)."""
    return _changed("to_plain", vector, "plain")


def register_order(tile: RegTile) -> RegVec:
    """A register tile as a plain vector of its registers, in the order that threads hold them.

    Four registers of a thread lie together, 16 bytes: 4 i + j of thread t is value
    `4 (i * threads + t) + j`, of tiles that have four. They are the same registers, so nothing
    moves. Stored to a shared vector or along an axis of a tensor, and loaded again, the tile comes
    back by `tc.from_register_order` without a layout, a swizzle or a bank conflict: for what only
    kernels read, and for sums of tiles by `tc.store_bulk(..., add_=True)` or `tc.atomic_add`.

    Elements of 16 and 8 bits stay packed: the vector is of u32.

    Scope: warpgroup, warp, that of the tile. PTX: none.

    Example: `tc.store(G[block, 0], tc.register_order(acc))` of `G: gl[f32, "blocks", 4096]`
    """
    value = registers_of(tile, "register_order")
    made = add(ViewRegisters(value, tuple(range(_held(value.type))), _ordered(value.type)))
    return RegVec(made.result)


def from_register_order(vector: RegVec, kind: RegTileType) -> RegTile:
    """A plain vector as the register tile that `tc.register_order` made it from.

    Args:
        vector: plain, of the tile's 32-bit dtype, or of u32 for packed elements; those of 16 bits
            also as a vector of their own dtype, packed in runs of 8.
        kind: the tile's type: `rt[f32, 64, 64]`.

    Raises:
        LayoutError: another dtype or length.

    Scope: warpgroup, warp. PTX: none.
    """
    value = registers_of(vector, "from_register_order")
    if not isinstance(kind, RegTileType):
        raise LayoutError(
            f"from_register_order: wanted a register tile's type, got {kind!r}",
            hint="tc.from_register_order(x, tc.rt[tc.f32, 64, 64])",
        )
    target = held_by_scope(kind, "from_register_order")
    assert isinstance(target, RegTileType), "a tile stays one"
    wanted = _ordered(target)
    packed = RegVecType(target.dtype, 2 * wanted.length, "plain", warps=wanted.warps,
                        run=2 * wanted.run)  # fmt: skip
    if value.type != wanted and (value.type != packed or target.dtype.bits != 16):
        raise LayoutError(
            f"from_register_order: {target} is made of {wanted}, got {value.type}",
            hint=f'tc.load(place, tc.rv[tc.{wanted.dtype.name}, {wanted.length}, "plain", '
            f"{wanted.run}])",
        )
    return RegTile(add(ViewRegisters(value, tuple(range(_held(target))), target)).result)


def _held(kind: Any) -> int:
    return int(kind.registers)


def _ordered(kind: Any) -> RegVecType:
    """The plain vector of a tile's registers."""
    if not isinstance(kind, RegTileType) or kind.dtype not in (f32, s32, u32) and not kind.packed:
        raise LayoutError(f"register_order: wanted a register tile of memory's dtypes, got {kind}")
    dtype = u32 if kind.packed else kind.dtype
    length, run = kind.registers * 32 * kind.warps, math.gcd(kind.registers, 4)
    return RegVecType(dtype, length, "plain", warps=kind.warps, run=run)


def _changed(name: str, vector: RegVec, axis: str) -> RegVec:
    source = registers_of(vector, name)
    kind = source.type
    if not isinstance(kind, RegVecType):
        raise LayoutError(f"{name}: wanted a register vector, got {kind}")
    if kind.axis == axis and kind.kept is None:
        return vector
    unit = {"row": 16 * kind.warps, "col": 8, "plain": 1}[axis]
    if kind.length % unit:
        low = kind.length // unit * unit
        raise LayoutError(
            f"{name}: the length is a multiple of {unit}, got {kind}",
            hint=f"nearest legal: {f'{low} and ' if low else ''}{low + unit}",
        )
    return change_vector(name, vector, RegVecType(kind.dtype, kind.length, axis, warps=kind.warps))


def change_vector(name: str, vector: RegVec, kind: RegVecType) -> RegVec:
    """A vector as another type of the same length."""
    alone = current().scope is Scope.WARP
    room = scratch(4 * kind.length, of_warps=alone)
    assert room is not None, "no vector is empty"
    made: Any = wrap(add(ChangeVector(registers_of(vector, name), room, kind, name)).result)
    return made  # type: ignore[no-any-return]
