"""Reductions as functions: along rows, along columns, of vectors and of whole tiles."""

from __future__ import annotations

from ..builder import add, current
from ..errors import LayoutError
from ..ir import Value
from ..ops.memory import AllocScratch
from ..ops.reduce import REDUCTIONS, Reduce, ReduceVector, Total, scratch_bytes
from ..tiles import RegTileType, RegVecType
from .maps import col_index, row_index, select
from .scalars import Scalar
from .values import RegTile, RegVec, registers_of, wrap


def scratch(num_bytes: int, *, of_warps: bool = False) -> Value | None:
    """The kernel's scratch, at least `num_bytes` a warpgroup (or warp); None for 0."""
    if not num_bytes:
        return None
    builder = current()
    body = builder.kernel.body
    known = (op for op in body.ops if isinstance(op, AllocScratch) and op.of_warps == of_warps)
    op = next(known, None)
    if op is None:
        with builder.within(body):
            op = AllocScratch(of_warps=of_warps)
            builder.add(op)
        body.ops.insert(0, body.ops.pop())  # ahead of the roles, which end the kernel
    op.num_bytes = max(op.num_bytes, num_bytes * (4 if of_warps else 1))
    return op.result


def _along(name: str, axis: str, tile: RegTile, initial: RegVec | None, partial: bool) -> RegVec:
    source = registers_of(tile, f"{axis}_{name}")
    kind = source.type
    needs = scratch_bytes(kind, axis) if isinstance(kind, RegTileType) else 0
    start = None if initial is None else registers_of(initial, f"{axis}_{name}: initial")
    op = Reduce(name, axis, source, start, scratch(needs), partial)
    return wrap(add(op).result)  # type: ignore[no-any-return]


def row_max(tile: RegTile, initial: RegVec | None = None, *, nan: bool = False) -> RegVec:
    """`max over c of tile[r, c]` (and `initial[r]`); NaN elements are ignored.

    With `nan=True` a NaN element is the result.

    Scope: warpgroup, warp. PTX: `max.f32` (or `.s32`), and two `shfl.sync.bfly` a row.
    """
    return _along("max_nan" if nan is True else "max", "row", tile, initial, False)


def row_min(tile: RegTile, initial: RegVec | None = None) -> RegVec:
    """`min over c of tile[r, c]` (and `initial[r]`); NaN elements are ignored."""
    return _along("min", "row", tile, initial, False)


def row_sum(tile: RegTile, initial: RegVec | None = None, *, partial: bool = False) -> RegVec:
    """`sum over c of tile[r, c]` (and `initial[r]`), in f32 or s32.

    Args:
        tile: register tile.
        initial: a row vector to add.
        partial: leave each lane's share; finish with `tc.total`. Saves exchanges in a loop.
    """
    return _along("sum", "row", tile, initial, partial)


def row_prod(tile: RegTile, initial: RegVec | None = None) -> RegVec:
    """`product over c of tile[r, c]` (and `initial[r]`)."""
    return _along("prod", "row", tile, initial, False)


def row_absmax(tile: RegTile, initial: RegVec | None = None) -> RegVec:
    """`max over c of |tile[r, c]|` (and `initial[r]`)."""
    return _along("absmax", "row", tile, initial, False)


def col_max(tile: RegTile, initial: RegVec | None = None, *, nan: bool = False) -> RegVec:
    """`max over r of tile[r, c]` (and `initial[c]`); NaN elements are ignored.

    With `nan=True` a NaN element is the result.

    Scope: warpgroup, warp. PTX: `max`, three `shfl.sync.bfly` a value, and for a warpgroup an
    exchange through shared memory between two `bar.sync`.
    """
    return _along("max_nan" if nan is True else "max", "col", tile, initial, False)


def col_min(tile: RegTile, initial: RegVec | None = None) -> RegVec:
    """`min over r of tile[r, c]` (and `initial[c]`); NaN elements are ignored."""
    return _along("min", "col", tile, initial, False)


def col_sum(tile: RegTile, initial: RegVec | None = None) -> RegVec:
    """`sum over r of tile[r, c]` (and `initial[c]`), in f32 or s32."""
    return _along("sum", "col", tile, initial, False)


def col_prod(tile: RegTile, initial: RegVec | None = None) -> RegVec:
    """`product over r of tile[r, c]` (and `initial[c]`)."""
    return _along("prod", "col", tile, initial, False)


def col_absmax(tile: RegTile, initial: RegVec | None = None) -> RegVec:
    """`max over r of |tile[r, c]|` (and `initial[c]`)."""
    return _along("absmax", "col", tile, initial, False)


def reduce_vector(name: str, vector: RegVec) -> Scalar:
    """max, min, sum, prod or absmax of a vector, one scalar for every thread of the scope."""
    if not isinstance(name, str) or name not in REDUCTIONS:
        raise LayoutError(
            f"reduce_vector: by {', '.join(REDUCTIONS)}, got {name!r}",
            hint='"sum"; a mean is the sum times 1 / length',
        )
    source = registers_of(vector, name)
    kind = source.type
    needs = scratch_bytes(kind, "row") if isinstance(kind, RegVecType) else 0
    return Scalar(add(ReduceVector(name, source, scratch(needs))).result)


def tile_max(tile: RegTile) -> Scalar:
    """The largest element of a tile; NaN elements are ignored."""
    return reduce_vector("max", row_max(tile))


def tile_min(tile: RegTile) -> Scalar:
    """The smallest element of a tile; NaN elements are ignored."""
    return reduce_vector("min", row_min(tile))


def tile_sum(tile: RegTile) -> Scalar:
    """The sum of a tile's elements, in f32 or s32."""
    return reduce_vector("sum", row_sum(tile))


def tile_prod(tile: RegTile) -> Scalar:
    """The product of a tile's elements."""
    return reduce_vector("prod", row_prod(tile))


def tile_absmax(tile: RegTile) -> Scalar:
    """The largest magnitude of a tile's elements."""
    return reduce_vector("max", row_absmax(tile))


def total(vector: RegVec) -> RegVec:
    """Finishes a partial row sum: adds the shares of the four lanes that hold a row."""
    return wrap(add(Total(registers_of(vector, "total"))).result)  # type: ignore[no-any-return]


def hasnan(tile: RegTile) -> Scalar:
    """Whether some element of a tile is NaN: a condition, the same in every thread."""
    widest = reduce_vector("max_nan", _along("max_nan", "row", tile, None, False))
    return ~(widest == widest)  # type: ignore[no-any-return]


def row_argmax(tile: RegTile) -> RegVec:
    """The column of each row's largest element, the first of equal ones, as an s32 vector.

    NaN elements are ignored; a row of nothing but NaN gives 2**31 - 1.
    """
    return _arg("row", "max", tile)


def row_argmin(tile: RegTile) -> RegVec:
    """The column of each row's smallest element; see `row_argmax`."""
    return _arg("row", "min", tile)


def col_argmax(tile: RegTile) -> RegVec:
    """The row of each column's largest element; see `row_argmax`."""
    return _arg("col", "max", tile)


def col_argmin(tile: RegTile) -> RegVec:
    """The row of each column's smallest element; see `row_argmax`."""
    return _arg("col", "min", tile)


def _arg(axis: str, name: str, tile: RegTile) -> RegVec:
    best = _along(name, axis, tile, None, False)
    index = col_index(tile) if axis == "row" else row_index(tile)
    return _along("min", axis, select(tile == best, index, 2**31 - 1), None, False)
