"""Scans along an axis of a tile or along a vector, and what linear recurrences make of them."""

from __future__ import annotations

from typing import Any

from ..builder import add
from ..dtypes import f32
from ..errors import LayoutError
from ..ops.scan import Scan, scan_scratch_bytes
from ..tiles import RegTileType, RegVecType, rt
from .functions import full
from .maps import broadcast_col, exp
from .masks import tril, triu
from .reductions import scratch
from .values import RegTile, RegVec, registers_of, wrap
from .vectors import to_col_vector


def _scan(
    name: str, x: Any, axis: str | None, exclusive: bool, reverse: bool, starts: Any = None
) -> Any:
    verb = f"cum{name}"
    source = registers_of(x, verb)
    kind = source.type
    if not isinstance(exclusive, bool) or not isinstance(reverse, bool):
        raise LayoutError(f"{verb}: exclusive and reverse are True or False")
    if isinstance(kind, RegTileType) and axis not in ("row", "col"):
        raise LayoutError(
            f'{verb}: axis is the index that runs, "row" or "col", got {axis!r}',
            hint=f'tc.{verb}(x, "col") runs over the columns of each row',
        )
    if isinstance(kind, RegVecType) and axis is not None:
        raise LayoutError(f"{verb}: a vector has no axis to choose, got {axis!r} with {kind}")
    where = axis or "row"
    flags = None if starts is None else registers_of(starts, f"{verb}: starts")
    needs = 0
    if isinstance(kind, RegTileType | RegVecType):
        needs = scan_scratch_bytes(kind, where, flags is not None)
    op = Scan(name, where, source, flags, scratch(needs), exclusive, reverse)
    return wrap(add(op).result)


def cumsum(
    x: Any,
    axis: str | None = None,
    *,
    exclusive: bool = False,
    reverse: bool = False,
    starts: Any = None,
) -> Any:
    """Running sum: `out[.., i] = sum over j <= i of x[.., j]`, in f32 or s32.

    Args:
        x: a tile, or a row or column vector; in a `tc.warps` block also a plain one.
        axis: of a tile, the index that runs: "col" sums along each row, "row" down each column.
        exclusive: sum over j < i.
        reverse: sum over j >= i (exclusive: j > i).
        starts: conditions (of the tile's shape, or a vector of the axis): where one holds, a new
            segment starts, and no sum crosses it.

    Scope: warpgroup, warp. PTX: `shfl.sync.idx`, 4 a step of 8 columns, or 5 a value down the rows;
    down the rows of a warpgroup's tile also shared memory between two barriers a block of 64 rows.
    """
    return _scan("sum", x, axis, exclusive, reverse, starts)


def cumprod(
    x: Any, axis: str | None = None, *, exclusive: bool = False, reverse: bool = False
) -> Any:
    """Running product; see `cumsum`."""
    return _scan("prod", x, axis, exclusive, reverse)


def cummax(
    x: Any, axis: str | None = None, *, exclusive: bool = False, reverse: bool = False
) -> Any:
    """Running maximum, -inf (or the least s32) where nothing comes before; see `cumsum`."""
    return _scan("max", x, axis, exclusive, reverse)


def cummin(
    x: Any, axis: str | None = None, *, exclusive: bool = False, reverse: bool = False
) -> Any:
    """Running minimum, inf (or the largest s32) where nothing comes before; see `cumsum`."""
    return _scan("min", x, axis, exclusive, reverse)


def decay_tile(log_decays: RegVec, *, reverse: bool = False) -> RegTile:
    """`out[i, j] = e**(g[j+1] + ... + g[i])` for `i >= j`, else 0: decays between steps of a chunk.

    Each exponent is summed by itself, in f32, from the steps between j and i: no difference of
    running sums cancels, none is `-inf - -inf`, and with g <= 0 nothing overflows. A step of -inf
    forgets all before it.

    Args:
        log_decays: g, one value a step, usually <= 0: a row or column vector of f32.
        reverse: the decays of reversed time, `e**(g[i+1] + ... + g[j])` for `j >= i`, else 0: the
            transpose.

    Scope: warpgroup, warp. PTX: a scan along each row (see `cumsum`) and `ex2.approx.ftz.f32`; of a
    row vector also the exchange of `to_col_vector`.
    """
    kind = registers_of(log_decays, "decay_tile").type
    if not isinstance(kind, RegVecType) or kind.dtype != f32 or kind.axis == "plain":
        raise LayoutError(f"decay_tile: wanted a row or column vector of f32, got {kind}")
    if not isinstance(reverse, bool):
        raise LayoutError(f"decay_tile: reverse is True or False, got {reverse!r}")
    steps = full(rt[f32, kind.length, kind.length], 0.0)
    broadcast_col(steps, to_col_vector(log_decays))
    if reverse:
        triu(steps, 1)
        return triu(exp(cumsum(steps, "col")))
    tril(steps)
    return tril(exp(cumsum(steps, "col", exclusive=True, reverse=True)))
