"""Cases of transfers by hand: TMA, bulk copies, copies by threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from memory_cases import MemoryCase, numbers, put, window, zeros

import tilecat as tc
from tilecat import gl, st, sv
from tilecat.dtypes import by_name

TILES = (
    ("bf16", 64, 64), ("bf16", 64, 32), ("bf16", 16, 16), ("bf16", 64, 128), ("f16", 128, 64),
    ("f32", 64, 32), ("f32", 64, 64), ("s32", 16, 16), ("u8", 64, 128), ("e4m3", 64, 64),
    ("s8", 32, 32), ("e5m2", 16, 96),
)  # fmt: skip

ALIGNED = 16  # elements of any dtype that TMA can begin at a multiple of


def through(
    dtype: str, rows: int, cols: int, order: str = "row", *, at: bool = False, cache: str = "",
    how: str = "tma",
) -> Any:  # fmt: skip
    """A kernel that moves one tile of X to Y through shared memory."""
    kind = by_name(dtype)
    unit = ALIGNED if how == "tma" else 1

    def moves(X: gl[kind, "M", "N"], Y: gl[kind, "M", "N"], i: tc.s32, j: tc.s32):
        full = tc.barrier() if how == "tma" else None
        with tc.warpgroup():
            tile = tc.shared(st[kind, rows, cols, order])
            source = X.at(i, unit * j) if at else X[i, j]
            target = Y.at(i, unit * j) if at else Y[i, j]
            if how == "tma":
                tc.prefetch(source, st[kind, rows, cols, order])
                full.expect(tile)
                tc.load_async(tile, source, full, cache=cache)
                full.wait(0)
                if Y.tma_stores:
                    tc.store_async(target, tile, cache=cache)
                    tc.store_wait(read=False)
                else:  # ends beside a multiple of 16 bytes
                    tc.copy(target, tile)
            elif how == "copy":
                tc.copy(tile, source)
                tc.sync()
                tc.copy(target, tile)
            else:
                tc.copy_async(tile, source)
                tc.copy_commit()
                tc.copy_wait()
                tc.sync()
                tc.copy(target, tile)

    return tc.kernel(moves)


def move_case(
    name: str, kernel: Any, dtype: str, tile: tuple[int, int], shape: tuple[int, int], place: Any,
    *, at: bool = False, layout: Any = None,
) -> MemoryCase:  # fmt: skip
    """A case of `through`."""
    rows, cols = tile
    unit = ALIGNED if name.startswith("tma") else 1
    row, col = (place[0], place[1] * unit) if at else (place[0] * rows, place[1] * cols)

    def arrays() -> dict[str, Any]:
        x, y = numbers(shape, dtype), zeros(shape, dtype, 3)
        if layout is not None:
            x, y = layout(x), layout(y)
        return {"X": x, "Y": y, "i": place[0], "j": place[1]}

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        return {"Y": put(a["Y"], row, col, window(a["X"], row, col, rows, cols))}

    return MemoryCase(name, kernel, arrays, expected)


def transposed(array: np.ndarray) -> np.ndarray:
    """The same matrix, columns contiguous."""
    return np.ascontiguousarray(array.T).T


def strided(array: np.ndarray) -> np.ndarray:
    """The same matrix inside a larger one, with odd strides."""
    rows, cols = array.shape
    base = np.zeros((rows, cols + 3), array.dtype)
    base[:, 1 : cols + 1] = array
    return base[:, 1 : cols + 1]


def padded(array: np.ndarray) -> np.ndarray:
    """The same matrix inside a larger one that TMA can reach."""
    rows, cols = array.shape
    unit = 16 // array.itemsize
    base = np.zeros((rows, -(-cols // unit) * unit + unit), array.dtype)
    base[:, :cols] = array
    return base[:, :cols]


def tma_cases() -> list[MemoryCase]:
    cases = []
    for dtype, rows, cols in TILES:
        kernel = through(dtype, rows, cols)
        size = f"{dtype} {rows}x{cols}"
        inside = (rows * 2, cols * 2)
        cases.append(move_case(f"tma {size}", kernel, dtype, (rows, cols), inside, (1, 1)))
        odd = (rows * 2 - 5, cols * 2 - 7)
        cases.append(
            move_case(f"tma edge {size}", kernel, dtype, (rows, cols), odd, (1, 1), layout=padded)
        )
        ends = (rows * 2 - 5, cols * 2 - 16 // by_name(dtype).nbytes)
        cases.append(move_case(f"tma ends {size}", kernel, dtype, (rows, cols), ends, (1, 1)))
        free = through(dtype, rows, cols, at=True)
        cases.append(
            move_case(f"tma at {size}", free, dtype, (rows, cols), inside, (3, 1), at=True)
        )
    for dtype, rows, cols in (("bf16", 64, 64), ("f32", 32, 64), ("u8", 128, 32), ("f16", 16, 64)):
        kernel = through(dtype, rows, cols, "col")
        cases.append(
            move_case(
                f"tma columns {dtype} {rows}x{cols}", kernel, dtype, (rows, cols),
                (2 * rows, 2 * cols - 3), (1, 1), layout=transposed,
            )
        )  # fmt: skip
    for cache in ("evict_first", "evict_last", "evict_normal"):
        kernel = through("bf16", 64, 64, cache=cache)
        cases.append(move_case(f"tma {cache}", kernel, "bf16", (64, 64), (128, 64), (1, 0)))
    cases.append(
        move_case("tma long", through("bf16", 512, 16), "bf16", (512, 16), (600, 16), (0, 0))
    )
    return cases


def copy_cases() -> list[MemoryCase]:
    cases = []
    for how in ("copy", "copy_async"):
        for dtype, rows, cols in TILES:
            kernel = through(dtype, rows, cols, how=how)
            size = f"{how} {dtype} {rows}x{cols}"
            shape = (rows * 2 - 5, cols * 2 - 3)
            cases.append(
                move_case(f"{size} edge", kernel, dtype, (rows, cols), shape, (1, 1),
                          layout=padded)
            )  # fmt: skip
            if how == "copy":
                cases.append(
                    move_case(f"{size} strided", kernel, dtype, (rows, cols), shape, (1, 1),
                              layout=strided)
                )  # fmt: skip
                free = through(dtype, rows, cols, how=how, at=True)
                cases.append(
                    move_case(f"{size} at", free, dtype, (rows, cols), shape, (3, 1), at=True)
                )
        for dtype, rows, cols in (("bf16", 64, 64), ("f32", 32, 64), ("u8", 64, 32)):
            kernel = through(dtype, rows, cols, "col", how=how)
            cases.append(
                move_case(f"{how} columns {dtype}", kernel, dtype, (rows, cols),
                          (rows + 16, cols + 8), (0, 1), layout=transposed)
            )  # fmt: skip
    return cases


def reduction_cases() -> list[MemoryCase]:
    cases = []
    operations = {
        "add": (tc.store_add_async, np.add, ("f32", "bf16", "f16", "s32", "u32")),
        "min": (tc.store_min_async, np.minimum, ("s32", "u32", "bf16", "f16")),
        "max": (tc.store_max_async, np.maximum, ("s32", "u32", "bf16", "f16")),
    }
    for name, (function, ufunc, dtypes) in operations.items():
        for dtype in dtypes:
            cases.append(_reduction(f"tma {name} {dtype}", function, ufunc, dtype))
    return cases


def _reduction(name: str, function: Any, ufunc: Any, dtype: str) -> MemoryCase:
    kind = by_name(dtype)

    def combines(X: gl[kind, "M", "N"], Y: gl[kind, "P", "N"]):
        full = tc.barrier()
        with tc.warpgroup():
            tile = tc.shared(st[kind, 64, 32])
            full.expect(tile)
            tc.load_async(tile, X[tc.cta_id(), 0], full)
            full.wait(0)
            function(Y[0, 0], tile)
            function(Y[1, 0], tile)
            tc.store_wait(1)
            tc.store_wait(0, read=False)

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        x, y = a["X"].astype(np.float64), a["Y"].astype(np.float64)
        for cta in range(2):
            tile = x[cta * 64 : cta * 64 + 64]
            y[:64] = ufunc(y[:64], tile)
            y[64:] = ufunc(y[64:], tile[: y.shape[0] - 64])
        return {"Y": y}

    def arrays() -> dict[str, Any]:
        return {"X": numbers((128, 32), dtype, 1), "Y": numbers((100, 32), dtype, 2)}

    return MemoryCase(name, tc.kernel(combines), arrays, expected, grid=2)


def vector_cases() -> list[MemoryCase]:
    cases = []
    for dtype, length in (
        ("f32", 64), ("bf16", 256), ("f16", 264), ("f32", 700), ("u8", 1024), ("s32", 4),
    ):  # fmt: skip
        for how in ("tma", "copy", "copy_async", "bulk"):
            cases.append(_vector(dtype, length, how))
    return cases


def _vector(dtype: str, length: int, how: str) -> MemoryCase:
    kind = by_name(dtype)
    kept = length * 2 - (0 if how == "bulk" else 16 // kind.nbytes - 1)

    def vectors(X: gl[kind, "B", "N"], Y: gl[kind, "B", "N"], i: tc.s32):
        full = tc.barrier() if how in ("tma", "bulk") else None
        with tc.warpgroup():
            vec = tc.shared(sv[kind, length])
            if how == "tma":
                full.expect(vec)
                tc.load_async(vec, X[2, i], full)
                full.wait(0)
                if Y.tma_stores:
                    tc.store_async(Y[1, i], vec)
                    tc.store_wait(read=False)
                else:
                    tc.copy(Y[1, i], vec)
            elif how == "bulk":
                full.expect(vec)
                tc.load_bulk(vec, X[2, i], full, cache="evict_first")
                full.wait(0)
                tc.store_bulk(Y[1, i], vec, cache="evict_first")
                tc.store_wait(read=False)
            else:
                (tc.copy if how == "copy" else tc.copy_async)(vec, X[2, i])
                if how == "copy_async":
                    tc.copy_commit()
                    tc.copy_wait()
                tc.sync()
                tc.copy(Y[1, i], vec)

    def arrays() -> dict[str, Any]:
        return {"X": padded(numbers((3, kept), dtype)), "Y": padded(zeros((3, kept), dtype, 5)),
                "i": 1}  # fmt: skip

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        y = a["Y"].copy()
        y[1, length:] = a["X"][2, length:]
        return {"Y": y}

    return MemoryCase(f"vector {how} {dtype} {length}", tc.kernel(vectors), arrays, expected)


CASES = (*tma_cases(), *copy_cases(), *reduction_cases(), *vector_cases())
