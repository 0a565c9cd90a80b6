"""Cases of views of tensors: what a kernel's author gets from them, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
from memory_cases import MemoryCase, numbers, put, window, zeros

import tilecat as tc
from tilecat import gl, rt, s32, st
from tilecat.dtypes import by_name

HOWS = ("registers", "copy", "copy_async", "tma")


def moved(how: str, kind: Any, order: str, source: Any, target: Any, full: Any) -> None:
    """Moves a 64 x 64 tile from one place to another."""
    if how == "registers":
        tc.store(target, tc.load(source, rt[kind, 64, 64]))
        return
    tile = tc.shared(st[kind, 64, 64, order])
    if how == "tma":
        full.expect(tile)
        tc.load_async(tile, source, full)
        full.wait(0)
        tc.store_async(target, tile)
        tc.store_wait(read=False)
        return
    if how == "copy":
        tc.copy(tile, source)
    else:
        tc.copy_async(tile, source)
        tc.copy_commit()
        tc.copy_wait()
    tc.sync()
    tc.copy(target, tile)


def barrier_for(how: str) -> Any:
    return tc.barrier() if how == "tma" else None


def transposed(dtype: str, how: str) -> MemoryCase:
    kind = by_name(dtype)

    def turns(X: gl[kind, "N", "M"], Y: gl[kind, "N", "M"], i: s32, j: s32):
        full = barrier_for(how)
        with tc.warpgroup():
            moved(how, kind, "col", X.T[i, j], Y.T[i, j], full)

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        return {"Y": put(a["Y"].T, 64, 0, window(a["X"].T, 64, 0, 64, 64)).T}

    return MemoryCase(
        f"view T {how} {dtype}", tc.kernel(turns),
        lambda: {"X": numbers((72, 112), dtype), "Y": zeros((72, 112), dtype, 1), "i": 1, "j": 0},
        expected,
    )  # fmt: skip


def permuted(how: str) -> MemoryCase:
    """[batch, seq, head, D], tiles over (seq, D)."""
    kind = by_name("bf16")

    def permutes(X: gl[kind, "B", "S", "H", "D"], Y: gl[kind, "B", "S", "H", "D"], head: s32):
        full = barrier_for(how)
        with tc.warpgroup():
            x, y = X.permute(0, 2, 1, 3), Y.permute(0, 2, 1, 3)
            moved(how, kind, "row", x[1, head, 1, 0], y[1, head, 1, 0], full)

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        y = a["Y"].copy()
        y[1, 64:, 2] = a["X"][1, 64:, 2]
        return {"Y": y}

    shape = (2, 100, 3, 64)
    return MemoryCase(
        f"view permute {how}", tc.kernel(permutes),
        lambda: {"X": numbers(shape, "bf16"), "Y": zeros(shape, "bf16", 1), "head": 2}, expected,
    )  # fmt: skip


def far_axes(how: str) -> MemoryCase:
    """Rank 5, tiles over the first and the last axis."""
    kind = by_name("f32")

    def reaches(X: gl[kind, "A", "B", "C", "D", "E"], Y: gl[kind, "A", "B", "C", "D", "E"]):
        full = barrier_for(how)
        with tc.warpgroup():
            x, y = X.permute(1, 2, 3, 0, 4), Y.permute(1, 2, 3, 0, 4)
            moved(how, kind, "row", x[1, 0, 1, 0, 0], y[1, 0, 1, 0, 0], full)

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        y = a["Y"].copy()
        y[:64, 1, 0, 1, :64] = a["X"][:64, 1, 0, 1, :64]
        return {"Y": y}

    shape = (70, 2, 2, 2, 68)
    return MemoryCase(
        f"view rank 5 {how}", tc.kernel(reaches),
        lambda: {"X": numbers(shape, "f32"), "Y": zeros(shape, "f32", 1)}, expected,
    )  # fmt: skip


def fixed(how: str) -> MemoryCase:
    kind = by_name("bf16")

    def fixes(X: gl[kind, "B", "M", "N"], Y: gl[kind, "M", "N"], b: s32):
        full = barrier_for(how)
        with tc.warpgroup():
            moved(how, kind, "row", X[b, :, :][1, 0], Y[1, 0], full)

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        return {"Y": put(a["Y"], 64, 0, a["X"][2, 64:100])}

    return MemoryCase(
        f"view fixed axis {how}", tc.kernel(fixes),
        lambda: {"X": numbers((3, 100, 64), "bf16"), "Y": zeros((100, 64), "bf16", 1), "b": 2},
        expected,
    )  # fmt: skip


def columns(how: str) -> MemoryCase:
    """Q of a packed QKV: a part known while tracing, which TMA reaches too."""
    kind = by_name("bf16")

    def splits(X: gl[kind, "M", 192], Y: gl[kind, "M", 64]):
        full = barrier_for(how)
        with tc.warpgroup():
            k = X[:, 64:128]
            moved(how, kind, "row", k[1, 0], Y[1, 0], full)

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        return {"Y": put(a["Y"], 64, 0, a["X"][64:, 64:128])}

    return MemoryCase(
        f"view columns {how}", tc.kernel(splits),
        lambda: {"X": numbers((100, 192), "bf16"), "Y": zeros((100, 64), "bf16", 1)}, expected,
    )  # fmt: skip


def shifted(how: str) -> MemoryCase:
    """An open slice only moves the origin: the rows before it are there too."""
    kind = by_name("f32")

    def shifts(X: gl[kind, "M", "N"], Y: gl[kind, "M", "N"], first: s32):
        full = barrier_for(how)
        with tc.warpgroup():
            moved(how, kind, "row", X[first:, :].at(-2, 0), Y.at(1, 0), full)

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        return {"Y": put(a["Y"], 1, 0, window(a["X"], 3, 0, 64, 64))}

    return MemoryCase(
        f"view shifted {how}", tc.kernel(shifts),
        lambda: {"X": numbers((70, 64), "f32"), "Y": zeros((70, 64), "f32", 1), "first": 5},
        expected,
    )  # fmt: skip


def ragged(dtype: str, how: str, length: int, tile: int) -> MemoryCase:
    """Sequence 1 of a packed batch, its neighbours untouched."""
    kind = by_name(dtype)

    def sequences(
        X: gl[kind, "T", "H", 64], Y: gl[kind, "T", "H", 64], starts: gl[s32, "B"], b: s32, i: s32
    ):
        with tc.warpgroup():
            first, last = tc.load(starts[b], s32), tc.load(starts[b + 1], s32)
            x, y = X[first:last, 1, :], Y[first:last, 1, :]
            moved(how, kind, "row", x[i, 0], y[i, 0], None)

    def arrays() -> dict[str, Any]:
        starts = np.array([0, 10, 10 + length, 30 + length], np.int32)
        shape = (30 + length, 2, 64)
        return {"X": numbers(shape, dtype), "Y": zeros(shape, dtype, 1), "starts": starts, "b": 1,
                "i": tile}  # fmt: skip

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        y = a["Y"].copy()
        first = 10 + tile * 64
        last = max(first, min(first + 64, 10 + length))
        y[first:last, 1] = a["X"][first:last, 1]
        return {"Y": y}

    return MemoryCase(
        f"view ragged {how} {dtype} {length} {tile}", tc.kernel(sequences), arrays, expected
    )


def ragged_zeros(how: str) -> MemoryCase:
    """Rows beyond a sequence load as zero, not as the neighbour's."""
    kind = by_name("f32")

    def pads(X: gl[kind, "T", 64], Y: gl[kind, "M", 64], first: s32, last: s32):
        with tc.warpgroup():
            moved(how, kind, "row", X[first:last, :][0, 0], Y[0, 0], None)

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        y = np.zeros((64, 64), np.float32)
        y[:20] = a["X"][10:30]
        return {"Y": y}

    return MemoryCase(
        f"view ragged zeros {how}", tc.kernel(pads),
        lambda: {"X": numbers((100, 64), "f32", 3), "Y": zeros((64, 64), "f32", 1), "first": 10,
                 "last": 30}, expected,
    )  # fmt: skip


def broadcast(how: str, axis: str) -> MemoryCase:
    """A vector as every row, or as every column, of a tile."""
    kind = by_name("f32")

    def spreads(X: gl[kind, "N"], Y: gl[kind, "M", "N"]):
        with tc.warpgroup():
            rows = X.broadcast(64)
            source = rows[0, 0] if axis == "rows" else rows.T[0, 0]
            if how == "registers":
                tc.store(Y[0, 0], tc.load(source, rt[kind, 64, 64]))
            else:
                tile = tc.shared(st[kind, 64, 64])
                tc.copy(tile, source)
                tc.sync()
                tc.store(Y[0, 0], tc.load(tile))

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        x = np.zeros(64, np.float32)
        x[:50] = a["X"]
        whole = np.broadcast_to(x if axis == "rows" else x[:, None], (64, 64))
        return {"Y": put(a["Y"], 0, 0, whole)}

    return MemoryCase(
        f"view broadcast {axis} {how}", tc.kernel(spreads),
        lambda: {"X": numbers((50,), "f32"), "Y": zeros((60, 50), "f32", 1)}, expected,
    )  # fmt: skip


def paged(dtype: str, how: str, page: int, length: int | None) -> MemoryCase:
    """Rows of sequence 1 through a page table; 64 rows a tile, tile 1."""
    kind = by_name(dtype)

    def pages(
        X: gl[kind, "P", page, "H", 64], table: gl[s32, "B", "I"], Y: gl[kind, "M", 64], n: s32
    ):
        full = barrier_for(how)
        with tc.warpgroup():
            rows = X[:, :, 1, :].paged(table[1, :])
            rows = rows[0:n, :] if length is not None else rows
            if how == "registers":
                tc.store(Y[0, 0], tc.load(rows[1, 0], rt[kind, 64, 64]))
                return
            tile = tc.shared(st[kind, 64, 64])
            if how == "tma":
                full.expect(tile)
                tc.load_async(tile, rows[1, 0], full)
                full.wait(0)
            else:
                tc.copy(tile, rows[1, 0])
                tc.sync()
            tc.store(Y[0, 0], tc.load(tile))

    held = -(-160 // page)

    def arrays() -> dict[str, Any]:
        table = np.zeros((2, held), np.int32)
        table[1] = np.random.default_rng(1).permutation(held + 3)[:held]
        return {"X": numbers((held + 3, page, 2, 64), dtype), "table": table,
                "Y": zeros((64, 64), dtype, 1), "n": length or 0}  # fmt: skip

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        rows = a["X"][a["table"][1], :, 1].reshape(-1, 64)
        return {"Y": window(rows[: length or len(rows)], 64, 0, 64, 64)}

    return MemoryCase(
        f"view paged {how} {dtype} {page}{' ended' if length else ''}", tc.kernel(pages), arrays,
        expected,
    )  # fmt: skip


def in_place() -> MemoryCase:
    """A declared in-place argument: the same array goes in and out."""

    def doubles(X: tc.inout[tc.f32, "M", "N"]):
        with tc.warpgroup():
            row = tc.cta_id()
            tc.store(X[row, 0], tc.load(X[row, 0], rt[tc.f32, 64, 64]) * 2.0)

    return MemoryCase(
        "view inout", tc.kernel(doubles), lambda: {"X": numbers((100, 50), "f32")},
        lambda a: {"X": a["X"] * 2}, grid=2,
    )  # fmt: skip


def same_array() -> MemoryCase:
    """An in-place argument may be the array that another argument is."""

    def adds(X: gl[tc.f32, "M", "N"], Y: tc.inout[tc.f32, "M", "N"]):
        with tc.warpgroup():
            tc.store(Y[0, 0], tc.load(X[0, 0], rt[tc.f32, 64, 64]) + 1.0)

    def arrays() -> dict[str, Any]:
        x = numbers((60, 50), "f32")
        return {"X": x, "Y": x}

    return MemoryCase(
        "view same array", tc.kernel(adds), arrays, lambda a: {k: a["X"] + 1 for k in a}
    )


CASES = (
    *(transposed(d, how) for d in ("bf16", "f32", "u8") for how in HOWS),
    *(permuted(how) for how in HOWS), *(far_axes(how) for how in HOWS),
    *(fixed(how) for how in HOWS), *(columns(how) for how in HOWS),
    *(shifted(how) for how in HOWS),
    *(ragged(d, how, n, t) for d in ("bf16", "f32") for how in HOWS[:3]
      for n, t in ((0, 0), (1, 0), (63, 0), (64, 0), (65, 1), (150, 1), (150, 2))),
    *(ragged_zeros(how) for how in HOWS[:3]),
    *(broadcast(how, axis) for how in HOWS[:2] for axis in ("rows", "columns")),
    *(paged(d, how, page, None) for d in ("bf16", "f32") for how in ("copy", "tma")
      for page in (16, 64, 128)),
    *(paged("bf16", "copy", page, 100) for page in (8, 16, 32, 128)),
    paged("f32", "registers", 64, None), paged("f32", "registers", 128, 70),
    in_place(), same_array(),
)  # fmt: skip
