"""Rows of the table: reductions, scans, vector layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
from table import EVERY, FLOATS, MORE_SHAPES, Row

import tilecat as tc
from tilecat import f32, s32, st
from tilecat.dtypes import bf16, f16

WIDE = (f32, s32)
FEW = ((64, 32), (128, 64))


def total(k: Any) -> Any:
    """What the partial sums of a tile may reach."""
    return abs(k.x).sum()


def of_tile(name: str, axis: int, function: Any, **more: Any) -> Row:
    """A reduction of a tile along one axis to a vector of f32 or s32."""
    fold = {"max": np.fmax.reduce, "min": np.fmin.reduce, "sum": np.sum, "prod": np.prod}
    kind = name.split("_")[1]
    given = (lambda x: abs(x)) if kind == "absmax" else (lambda x: x)
    reduce = fold[kind.replace("abs", "")]
    return Row(name, lambda k: function(k), lambda k: reduce(given(k.x), axis=axis, keepdims=True),
               EVERY, out="wide", **more)  # fmt: skip


def segmented(x: Any, starts: Any, reverse: bool = False, exclusive: bool = False) -> Any:
    """Sums along the last axis that start anew at `starts`."""
    x, starts = np.broadcast_arrays(x, starts)
    out = np.zeros(x.shape)
    for i in range(x.shape[-1]):
        for j in range(x.shape[-1]):
            first, last = (i, j) if reverse else (j, i)
            if first > last or (exclusive and i == j):
                continue
            inside = ~starts[..., first + 1 : last + 1].any(-1)
            out[..., i] += np.where(inside, x[..., j], 0)
    return out


def argument(function: Any, axis: int) -> Any:
    return lambda k: function(k.x, axis=axis, keepdims=True)


def after(x: Any, axis: int) -> Any:
    """Exclusive sums."""
    return np.cumsum(x, axis) - x


def from_end(x: Any, axis: int) -> Any:
    return np.flip(np.cumsum(np.flip(x, axis), axis), axis)


REDUCTIONS = (
    *(of_tile(f"{axis}_{name}", 1 if axis == "row" else 0,
              lambda k, f=f"{axis}_{name}": getattr(tc, f)(k.x), data="special",
              shapes=MORE_SHAPES)
      for axis in ("row", "col") for name in ("max", "min", "absmax")),
    *(of_tile(f"{axis}_sum", 1 if axis == "row" else 0,
              lambda k, f=f"{axis}_sum": getattr(tc, f)(k.x), ulps=8, floor=total,
              shapes=MORE_SHAPES)
      for axis in ("row", "col")),
    *(Row(f"{axis}_prod", lambda k, f=f"{axis}_prod": getattr(tc, f)(tc.clamp(k.x, 1, 2)),
          lambda k, a=a: np.prod(np.clip(k.x, 1, 2), axis=a, keepdims=True), (f32, bf16, f16),
          ulps=256, out="wide", shapes=((64, 32), (64, 64)))
      for axis, a in (("row", 1), ("col", 0))),
    Row("row_max initial", lambda k: tc.row_max(tc.cast(k.x, f32), k.r),
        lambda k: np.maximum(k.x.max(1, keepdims=True), k.r), (f32, bf16, f16), out=f32),
    Row("col_sum initial", lambda k: tc.col_sum(k.x, k.c),
        lambda k: k.x.sum(0, keepdims=True) + k.c, WIDE, ulps=8, floor=total),
    Row("tile_max", lambda k: tc.tile_max(k.x), lambda k: k.x.max(), EVERY, out="wide"),
    Row("tile_min", lambda k: tc.tile_min(k.x), lambda k: k.x.min(), EVERY, out="wide"),
    Row("tile_absmax", lambda k: tc.tile_absmax(k.x), lambda k: abs(k.x).max(), EVERY,
        out="wide"),
    Row("tile_sum", lambda k: tc.tile_sum(k.x), lambda k: k.x.sum(), EVERY, ulps=8, floor=total,
        out="wide"),
    Row("hasnan", lambda k: tc.select(tc.hasnan(k.x), 1, 0), lambda k: np.isnan(k.x).any(), FLOATS,
        out=s32, data="special"),
    Row("hasnan none", lambda k: tc.select(tc.hasnan(k.x), 1, 0), lambda k: 0, EVERY, out=s32),
    *(Row(f"{axis}_arg{name}", lambda k, f=f"{axis}_arg{name}": getattr(tc, f)(k.x),
          argument(getattr(np, f"arg{name}"), 1 if axis == "row" else 0), EVERY, out=s32)
      for axis in ("row", "col") for name in ("max", "min")),
    *(Row(f"reduce_vector {axis} {name}",
          lambda k, a=axis, n=name: tc.reduce_vector(n, getattr(k, a)),
          lambda k, a=axis, n=name: getattr(getattr(k, a), n)(), WIDE, ulps=8,
          floor=lambda k, a=axis: abs(getattr(k, a)).sum())
      for axis in "rc" for name in ("max", "min", "sum")),
)  # fmt: skip

SCANS = (
    Row("cumsum col", lambda k: tc.cumsum(k.x, "col"), lambda k: np.cumsum(k.x, 1), EVERY, ulps=8,
        floor=total, shapes=MORE_SHAPES),
    Row("cumsum row", lambda k: tc.cumsum(k.x, "row"), lambda k: np.cumsum(k.x, 0), EVERY, ulps=8,
        floor=total, shapes=MORE_SHAPES),
    Row("cumsum col exclusive", lambda k: tc.cumsum(k.x, "col", exclusive=True),
        lambda k: after(k.x, 1), WIDE, ulps=8, floor=total),
    Row("cumsum row exclusive", lambda k: tc.cumsum(k.x, "row", exclusive=True),
        lambda k: after(k.x, 0), WIDE, ulps=8, floor=total),
    Row("cumsum col reverse", lambda k: tc.cumsum(k.x, "col", reverse=True),
        lambda k: from_end(k.x, 1), WIDE, ulps=8, floor=total),
    Row("cumsum row reverse", lambda k: tc.cumsum(k.x, "row", reverse=True),
        lambda k: from_end(k.x, 0), WIDE, ulps=8, floor=total),
    Row("cumsum reverse exclusive", lambda k: tc.cumsum(k.x, "row", reverse=True, exclusive=True),
        lambda k: from_end(k.x, 0) - k.x, WIDE, ulps=8, floor=total),
    *(Row(f"cumsum {axis} starts{' reverse' * reverse}{' exclusive' * exclusive}",
          lambda k, a=axis, r=reverse, e=exclusive: tc.cumsum(
              k.x, a, starts=k.y > 1, reverse=r, exclusive=e),
          lambda k, a=axis, r=reverse, e=exclusive: segmented(k.x, k.y > 1, r, e) if a == "col"
          else segmented(k.x.T, k.y.T > 1, r, e).T, WIDE, ulps=8, floor=total,
          shapes=((64, 32), (64, 64)))
      for axis in ("col", "row") for reverse in (False, True) for exclusive in (False, True)),
    Row("cumsum starts vector", lambda k: tc.cumsum(k.x, "col", starts=k.c > 1),
        lambda k: segmented(k.x, k.c > 1), WIDE, ulps=8, floor=total, shapes=FEW),
    Row("cummax col", lambda k: tc.cummax(k.x, "col"), lambda k: np.maximum.accumulate(k.x, 1),
        EVERY),
    Row("cummin row", lambda k: tc.cummin(k.x, "row"), lambda k: np.minimum.accumulate(k.x, 0),
        EVERY),
    Row("cumprod col", lambda k: tc.cumprod(tc.clamp(k.x, 1, 2), "col"),
        lambda k: np.cumprod(np.clip(k.x, 1, 2), 1), (f32,), ulps=256, shapes=((64, 32),)),
    Row("cumsum row vector", lambda k: tc.cumsum(k.r), lambda k: np.cumsum(k.r, 0), WIDE, ulps=8,
        floor=lambda k: abs(k.r).sum()),
    Row("cumsum col vector", lambda k: tc.cumsum(k.c), lambda k: np.cumsum(k.c, 1), WIDE, ulps=8,
        floor=lambda k: abs(k.c).sum()),
    Row("cumsum row vector reverse", lambda k: tc.cumsum(k.r, reverse=True),
        lambda k: from_end(k.r, 0), WIDE, ulps=8, floor=lambda k: abs(k.r).sum()),
    Row("cumsum row vector starts", lambda k: tc.cumsum(k.r, starts=k.r > 1),
        lambda k: segmented(k.r.T, k.r.T > 1).T, WIDE, ulps=8, floor=lambda k: abs(k.r).sum()),
    Row("cumsum col vector starts", lambda k: tc.cumsum(k.c, starts=k.c > 1, exclusive=True),
        lambda k: segmented(k.c, k.c > 1, exclusive=True), WIDE, ulps=8,
        floor=lambda k: abs(k.c).sum()),
)  # fmt: skip


def decay(g: Any) -> Any:
    """e**(sum of g from j + 1 to i) on and below the diagonal, each sum by itself."""
    found = np.zeros((g.size, g.size))
    for j in range(g.size):
        found[j:, j] = np.exp(np.cumsum(np.where(np.arange(g.size) > j, g, 0.0))[j:])
    return found


SQUARE = ((64, 64),)


def in_shared(k: Any) -> Any:
    """A map of two shared tiles."""
    a, b = (tc.shared(st[k.x.dtype, *k.kind.shape]) for _ in range(2))
    tc.store(a, k.x)
    tc.store(b, k.y)
    tc.map_shared(lambda x, y: tc.maximum(x, y) - tc.row_max(x), b, a, b)
    return tc.load(b)


SHARED = (
    Row("map_shared", in_shared, lambda k: np.maximum(k.x, k.y) - k.x.max(1, keepdims=True),
        (f32, bf16, f16, s32), ulps=0.5, scopes=("warpgroup",), orders=("row",)),
)  # fmt: skip
VECTORS = (
    Row("to_plain", lambda k: tc.to_row_vector(tc.to_plain(k.r * 2)), lambda k: k.r * 2, WIDE,
        orders=("row",)),
    Row("to_plain col", lambda k: tc.to_col_vector(tc.to_plain(k.c) + 1), lambda k: k.c + 1, WIDE,
        ulps=0.5, orders=("row",)),
    Row("row to col", lambda k: k.x + tc.to_col_vector(k.r), lambda k: k.x + k.r.T, WIDE, ulps=0.5,
        shapes=SQUARE, scopes=("warpgroup",), orders=("row",)),
    Row("col to row", lambda k: k.x + tc.to_row_vector(k.c), lambda k: k.x + k.c.T, WIDE, ulps=0.5,
        shapes=SQUARE, scopes=("warpgroup",), orders=("row",)),
    Row("row to col of a warp", lambda k: k.x + tc.to_col_vector(k.r), lambda k: k.x + k.r.T, WIDE,
        ulps=0.5, shapes=((64, 16), (128, 32)), scopes=("warp",), orders=("row",)),
    Row("decay_tile", lambda k: tc.decay_tile(-tc.absolute(k.r)), lambda k: decay(-abs(k.r[:, 0])),
        (f32,), ulps=64, floor=1, shapes=SQUARE, scopes=("warpgroup",)),
    Row("decay_tile reverse", lambda k: tc.decay_tile(-tc.absolute(k.c), reverse=True),
        lambda k: decay(-abs(k.c[0])).T, (f32,), ulps=64, floor=1, shapes=SQUARE,
        scopes=("warpgroup",)),
    Row("vector maps", lambda k: tc.exp(tc.maximum(k.r, 0) * 0.5) + tc.absolute(k.r),
        lambda k: np.exp(np.maximum(k.r, 0) * 0.5) + abs(k.r), (f32,), ulps=16),
    Row("vector select", lambda k: tc.select(k.c > 0, k.c, 0), lambda k: np.where(k.c > 0, k.c, 0),
        WIDE),
)  # fmt: skip

ROWS = REDUCTIONS + SCANS + VECTORS + SHARED
