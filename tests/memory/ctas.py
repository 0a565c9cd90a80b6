"""Cases of CTA scope: maps and reductions of shared tiles by all warpgroups together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from memory_cases import MemoryCase, numbers, zeros

import tilecat as tc
from tilecat import f32, gl, rt, s32, st
from tilecat.dtypes import by_name

Shape = tuple[int, int]
MAPS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "fma": (lambda a, b: a * b + a, lambda a, b: a * b + a),
    "select": (lambda a, b: tc.select(a < b, a, 3), lambda a, b: np.where(a < b, a, 3)),
    "copy": (lambda a, b: a, lambda a, b: a),
}
ALONG = {
    "row": (lambda a, b: a - tc.row_max(b) + tc.cast(tc.col_index(a), f32),
            lambda a, b: a - b.max(1, keepdims=True) + np.arange(a.shape[1])),
    "col": (lambda a, b: a - tc.col_max(b) + tc.cast(tc.row_index(a), f32),
            lambda a, b: a - b.max(0) + np.arange(a.shape[0])[:, None]),
}  # fmt: skip
FOLDS = {
    "max": np.max, "min": np.min, "sum": np.sum, "prod": np.prod,
    "absmax": lambda x, **axis: np.max(abs(x), **axis),
}  # fmt: skip


def filled(tile: Any, source: Any, warpgroup: Any) -> None:
    """A shared tile with an array, by the first warpgroup."""
    with tc.when(warpgroup == 0):
        rows, cols = tile.type.shape
        tc.store(tile, tc.load(source[0, 0], rt[tile.type.dtype, rows, cols]))


def mapped(dtype: str, shape: Shape, count: int, name: str, order: str = "row") -> MemoryCase:
    """A map of two shared tiles, in place of the second."""
    kind, (f, reference) = by_name(dtype), {**MAPS, **ALONG}[name]

    def maps(X: gl[kind, "M", "N"], Y: gl[kind, "M", "N"], Z: gl[kind, "M", "N"]):
        with tc.warpgroup(count) as warpgroup:
            a, b = tc.shared(st[kind, *shape, order]), tc.shared(st[kind, *shape, order])
            filled(a, X, warpgroup)
            filled(b, Y, warpgroup)
            tc.cta_map(f, b, a, b)
            with tc.when(warpgroup == count - 1):
                tc.store(Z[0, 0], tc.load(b))

    def arrays() -> dict[str, Any]:
        return {"X": numbers(shape, dtype), "Y": numbers(shape, dtype, 1), "Z": zeros(shape, dtype)}

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        return {"Z": reference(a["X"].astype(float), a["Y"].astype(float)).astype(a["Z"].dtype)}

    rows, cols = shape
    title = f"cta map {name} {dtype} {rows}x{cols} {order} by {count}"
    return MemoryCase(title, tc.kernel(maps), arrays, expected)


def reduced(dtype: str, shape: Shape, count: int, name: str, axis: str | None) -> MemoryCase:
    """A fold of a shared tile; every warpgroup has the result, twice in a row."""
    kind = by_name(dtype)
    wide, (rows, cols) = f32 if kind.is_float else s32, shape

    def folds(X: gl[kind, "M", "N"], Z: gl[wide, "B", "M", "N"]):
        with tc.warpgroup(count) as warpgroup:
            tile = tc.shared(st[kind, rows, cols])
            filled(tile, X, warpgroup)
            if name == "prod":
                tc.cta_map(lambda x: tc.clamp(x, 1, 1), tile, tile)
            for _ in tc.range(2):
                found = tc.cta_reduce(name, tile, axis)
                result = tc.cast(tc.load(tile), wide) * 0 + found
                tc.store(Z[warpgroup, 0, 0], result)

    def arrays() -> dict[str, Any]:
        return {"X": numbers(shape, dtype), "Z": zeros((count, *shape), wide, 7)}

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        x = np.ones(shape) if name == "prod" else a["X"].astype(float)
        along = {"axis": {"row": 1, "col": 0}[axis], "keepdims": True} if axis else {}
        return {"Z": np.broadcast_to(FOLDS[name](x, **along), (count, *shape))}

    title = f"cta {name} {axis or 'all'} {dtype} {rows}x{cols} by {count}"
    return MemoryCase(title, tc.kernel(folds), arrays, expected)


def of_values(scope: str, dtype: str, count: int, name: str) -> MemoryCase:
    """One value a warpgroup or a warp."""
    kind = by_name(dtype)
    values = count * (4 if scope == "warp" else 1)

    def combines(X: gl[kind, "N"], Z: gl[kind, "N"]):
        with tc.warpgroup(count) as warpgroup:
            if scope == "warp":
                with tc.warps():
                    mine = tc.load(X[tc.warp_id()], kind)
                    tc.store(Z[tc.warp_id()], tc.cta_reduce(name, mine))
            else:
                mine = tc.load(X[warpgroup], kind)
                tc.cta_sync()
                tc.store(Z[warpgroup], tc.cta_reduce(name, mine))

    def arrays() -> dict[str, Any]:
        return {"X": numbers((values,), dtype, 3), "Z": zeros((values,), dtype, 7)}

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        return {"Z": np.full(values, FOLDS[name](a["X"]))}

    title = f"cta {name} of each {scope} {dtype} by {count}"
    return MemoryCase(title, tc.kernel(combines), arrays, expected)


CASES = (
    *(mapped("f32", shape, count, name) for shape, count in (((128, 32), 2), ((128, 64), 2),
      ((64, 96), 3), ((64, 64), 1)) for name in ("fma", "select")),
    *(mapped(dtype, (128, 64), 2, "fma") for dtype in ("bf16", "f16", "s32")),
    mapped("e4m3", (128, 64), 2, "select"),
    mapped("bf16", (128, 128), 2, "copy"), mapped("bf16", (64, 128), 2, "copy", "col"),
    mapped("f32", (128, 32), 2, "row"), mapped("f32", (64, 64), 2, "col"),
    *(reduced("f32", shape, 2, name, axis) for shape in ((128, 32), (128, 64))
      for name in FOLDS for axis in (None, "row", "col")),
    *(reduced(dtype, (192, 64), 3, "sum", axis) for dtype in ("bf16", "s8")
      for axis in (None, "row", "col")),
    *(reduced("s32", (128, 32), 2, "max", axis) for axis in (None, "row", "col")),
    *(of_values(scope, dtype, count, name) for scope in ("warpgroup", "warp")
      for dtype in ("f32", "s32") for count in (1, 2) for name in ("sum", "absmax")),
)  # fmt: skip
