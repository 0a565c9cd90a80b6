"""Vectors: changes between the three layouts."""

from __future__ import annotations

from typing import Any

from ..builder import add, current
from ..errors import LayoutError
from ..ir import Scope
from ..ops.vectors import ChangeVector
from ..tiles import RegVecType
from .reductions import scratch
from .values import RegVec, registers_of, wrap


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


