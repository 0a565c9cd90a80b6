"""Cases of registers from and to memory: every dtype, gather, scatter, atomics, scalars, .trans."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
from memory_cases import MemoryCase, numbers, window, zeros

import tilecat as tc
from tilecat import f32, gl, rt, rv, s32, st, sv
from tilecat.dtypes import by_name

from .transfers import padded, strided, transposed

DTYPES = ("f32", "bf16", "f16", "s32", "u8", "s8", "e4m3", "e5m2")
LAYOUTS = {"rows": padded, "odd": strided, "columns": transposed}


def tiles(dtype: str, layout: str, order: str, warp: bool) -> MemoryCase:
    """A register tile from global memory and back, whole and across an edge."""
    kind = by_name(dtype)
    shape = (64, 64) if not warp else (32, 32)

    def loads(X: gl[kind, "M", "N"], Y: gl[kind, "M", "N"]):
        with tc.warpgroup():
            if not warp:
                for i in range(2):
                    for j in range(2):
                        tc.store(Y[i, j], tc.load(X[i, j], rt[kind, *shape, order]))
                return
            with tc.warps():
                place = (tc.warp_id() & 1, tc.warp_id() >> 1)
                tc.store(Y[place], tc.load(X[place], rt[kind, *shape, order]))

    extents = (shape[0] * 2 - 9, shape[1] * 2 - 5)
    change = LAYOUTS[layout]

    def arrays() -> dict[str, Any]:
        return {"X": change(numbers(extents, dtype)), "Y": change(zeros(extents, dtype, 3))}

    name = f"registers {dtype} {layout} {order}{' warp' if warp else ''}"
    return MemoryCase(name, tc.kernel(loads), arrays, lambda a: {"Y": a["X"]})


def filled(dtype: str, fill: float) -> MemoryCase:
    """Elements outside the tensor are what the author says."""
    kind = by_name(dtype)

    def fills(X: gl[kind, "M", "N"], Y: gl[kind, "P", "Q"], Z: gl[kind, "P", "Q"]):
        with tc.warpgroup():
            tc.store(Y[0, 0], tc.load(X[0, 0], rt[kind, 64, 64], fill=fill))
            tile = tc.shared(st[kind, 64, 64])
            tc.copy(tile, X[0, 0], fill=fill)
            tc.sync()
            tc.copy(Z[0, 0], tile)

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        tile = window(a["X"], 0, 0, 64, 64, fill)
        return {"Y": tile, "Z": tile}

    return MemoryCase(
        f"fill {dtype} {fill}", tc.kernel(fills),
        lambda: {"X": padded(numbers((50, 41), dtype)), "Y": zeros((64, 64), dtype),
                 "Z": zeros((64, 64), dtype)}, expected,
    )  # fmt: skip


def vectors(axis: str, length: int) -> MemoryCase:
    """A vector: global to registers to shared and back."""

    def goes_round(X: gl[f32, "N"], Y: gl[f32, "N"], Z: gl[f32, "N"]):
        with tc.warpgroup():
            kind, vec = rv[f32, length, axis], tc.shared(sv[f32, length])
            x = tc.load(X[0], kind)
            tc.store(vec, x + 1.0)
            tc.sync()
            tc.store(Y[0], tc.load(vec, kind))
            tc.store(Z[0], x)

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        y, z = a["Y"].copy(), a["Z"].copy()
        y[:length], z[:length] = a["X"][:length] + 1, a["X"][:length]
        return {"Y": y, "Z": z}

    return MemoryCase(
        f"registers vector {axis} {length}", tc.kernel(goes_round),
        lambda: {"X": numbers((length + 9,), "f32"), "Y": zeros((length + 9,), "f32", 5),
                 "Z": zeros((length + 9,), "f32", 5)}, expected,
    )  # fmt: skip


def halves(dtype: str, axis: str) -> MemoryCase:
    """bf16 and f16 in memory, f32 in registers: exact on the way in, rounded on the way out."""
    kind = by_name(dtype)

    def converts(X: gl[kind, "N"], Y: gl[kind, "N"], Z: gl[kind, "N"]):
        with tc.warpgroup():
            vec = tc.shared(sv[kind, 64])
            x = tc.load(X[0], rv[f32, 64, axis])
            tc.store(vec, x * 1.0009765625)
            tc.sync()
            tc.store(Y[0], tc.load(vec, rv[f32, 64, axis]))
            tc.store(Z[0], x * 1.0009765625)

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        wide = (a["X"].astype(np.float32) * np.float32(1.0009765625)).astype(kind.numpy)
        return {"Y": wide, "Z": wide}

    return MemoryCase(
        f"registers halves {dtype} {axis}", tc.kernel(converts),
        lambda: {"X": (numbers((60,), "f32") / 7).astype(kind.numpy), "Y": zeros((60,), dtype),
                 "Z": zeros((60,), dtype)}, expected,
    )  # fmt: skip


def gathers(dtype: str, what: str) -> MemoryCase:
    """Rows, columns or elements by an index vector; scattered to other places."""
    kind = by_name(dtype)

    def picks(X: gl[kind, "M", "N"], Y: gl[kind, "M", "N"], at: gl[s32, "K"], to: gl[s32, "K"]):
        with tc.warpgroup():
            if what == "rows":
                rows, there = tc.load(at[0], rv[s32, 64]), tc.load(to[0], rv[s32, 64])
                tc.store(Y[there, 0], tc.load(X[rows, 0], rt[kind, 64, 32]))
            elif what == "columns":
                axis = rv[s32, 64, "col"]
                cols, there = tc.load(at[0], axis), tc.load(to[0], axis)
                tc.store(Y[0, there], tc.load(X[0, cols], rt[kind, 64, 64]))
            else:
                axis = rv[s32, 64]
                cols, there = tc.load(at[0], axis), tc.load(to[0], axis)
                tc.store(Y[3, there], tc.load(X[5, cols], rv[kind, 64]))

    def arrays() -> dict[str, Any]:
        rng = np.random.default_rng(4)
        at, to = rng.permutation(100)[:64], rng.permutation(100)[:64]
        at[7], to[9] = -1, 1000
        return {"X": numbers((100, 100), dtype), "Y": zeros((100, 100), dtype, 3),
                "at": at.astype(np.int32), "to": to.astype(np.int32)}  # fmt: skip

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        y = a["Y"].copy()
        for source, target in zip(a["at"].tolist(), a["to"].tolist(), strict=True):
            if target >= 100:
                continue
            if what == "rows":
                y[target, :32] = a["X"][source, :32] if source >= 0 else 0
            elif what == "columns":
                y[:64, target] = a["X"][:64, source] if source >= 0 else 0
            else:
                y[3, target] = a["X"][5, source] if source >= 0 else 0
        return {"Y": y}

    return MemoryCase(f"gather {what} {dtype}", tc.kernel(picks), arrays, expected)


def gathers_shared(dtype: str, how: str) -> MemoryCase:
    """Rows gathered into a shared tile by a shared vector, and scattered from it."""
    kind = by_name(dtype)

    def picks(X: gl[kind, "M", "N"], Y: gl[kind, "M", "N"], at: gl[s32, "K"], to: gl[s32, "K"]):
        with tc.warpgroup():
            tile = tc.shared(st[kind, 64, 32])
            rows, there = tc.shared(sv[s32, 64]), tc.shared(sv[s32, 64])
            tc.copy(rows, at[0])
            tc.copy(there, to[0])
            tc.sync()
            if how == "copy":
                tc.copy(tile, X[rows, 1])
            else:
                tc.copy_async(tile, X[rows, 1])
                tc.copy_commit()
                tc.copy_wait()
            tc.sync()
            tc.copy(Y[there, 1], tile)

    def arrays() -> dict[str, Any]:
        rng = np.random.default_rng(4)
        at, to = rng.permutation(100)[:64], rng.permutation(100)[:64]
        at[7], to[9] = -1, 1000
        return {"X": padded(numbers((100, 61), dtype)), "Y": padded(zeros((100, 61), dtype, 3)),
                "at": at.astype(np.int32), "to": to.astype(np.int32)}  # fmt: skip

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        y = a["Y"].copy()
        for source, target in zip(a["at"].tolist(), a["to"].tolist(), strict=True):
            if target < 100:
                y[target, 32:] = a["X"][source, 32:] if source >= 0 else 0
        return {"Y": y}

    return MemoryCase(f"gather shared {how} {dtype}", tc.kernel(picks), arrays, expected)


def atomic_global(operation: str, dtype: str) -> MemoryCase:
    """Every CTA combines its tile with one place, and its vector with another."""
    kind = by_name(dtype)
    function = getattr(tc, f"atomic_{operation}")

    def combines(X: gl[kind, "M", "N"], Y: gl[kind, "P", "N"]):
        with tc.warpgroup():
            function(Y[0, 0], tc.load(X[tc.cta_id(), 0], rt[kind, 64, 32]))

    def arrays() -> dict[str, Any]:
        return {"X": numbers((192, 30), dtype), "Y": numbers((50, 30), dtype, 2)}

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        ufunc = {"add": np.add, "min": np.minimum, "max": np.maximum}[operation]
        y = a["Y"].astype(np.float64)
        for cta in range(3):
            y = ufunc(y, a["X"][64 * cta :][:50].astype(np.float64))
        return {"Y": y}

    return MemoryCase(f"atomic {operation} {dtype}", tc.kernel(combines), arrays, expected, grid=3)


def in_turns(how: str) -> MemoryCase:
    """Sums of large and small numbers, whose rounding tells the order of the CTAs."""

    def adds(X: gl[f32, "M", "N"], Y: tc.inout[f32, "P", "N"], turns: tc.inout[s32, 2]):
        with tc.warpgroup():
            tile = tc.shared(st[f32, 64, 32])
            x = tc.load(X[tc.cta_id(), 0], rt[f32, 64, 32])
            tc.store(tile, x)
            tc.sync()
            with tc.turn(turns.at(1), tc.cta_id()):
                if how == "tma":
                    tc.store_add_async(Y[0, 0], tile)
                    tc.store_wait(read=False)
                elif how == "atomic":
                    tc.atomic_add(Y[0, 0], x)
                else:
                    tc.store(Y[0, 0], tc.load(Y[0, 0], rt[f32, 64, 32]) + x)

    def arrays() -> dict[str, Any]:
        x = np.random.default_rng(3).standard_normal((4, 64, 32)).astype(np.float32)
        x *= np.array([1e6, 1, 1e-3, 1e5], np.float32)[:, None, None]
        return {"X": x.reshape(256, 32), "Y": zeros((64, 32), "f32"), "turns": zeros((2,), "s32")}

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        y = a["Y"].copy()
        for part in a["X"].reshape(4, 64, 32):
            y = y + part
        return {"Y": y, "turns": np.array([0, 4])}

    return MemoryCase(f"turns {how}", tc.kernel(adds), arrays, expected, grid=4)


def turns_of_many(scope: str, count: int) -> MemoryCase:
    """The last CTA waits for counters of the others, every second one, and takes them down."""
    alone = scope == "thread"

    def waits(X: gl[f32, "M", 32], Y: tc.inout[f32, "M", 32], turns: tc.inout[s32, "A", "B"],
              n: s32):  # fmt: skip
        def load(tensor, i):
            return tc.load(tensor.at(i, 3), f32) if alone else tc.load(tensor[i, 0], kind)

        kind = rv[f32, 32, "plain"]
        with tc.warpgroup(), tc.one_thread() if alone else nullcontext():
            with tc.when(tc.cta_id() < 3):
                for i in tc.range(tc.cta_id(), n, 3):
                    tc.store(Y.at(i, 3) if alone else Y[i, 0], load(X, i))
                    with tc.turn(turns.at(1, 1 + 2 * i), 0):
                        pass
            with (
                tc.when(tc.cta_id() == 3),
                tc.turn(turns.at(1, 1), 1, turns=2, count=n, step=2),
            ):
                for j in tc.range(n):
                    tc.store(Y.at(j, 3) if alone else Y[j, 0], load(Y, j) * 2.0)

    def arrays() -> dict[str, Any]:
        x = np.random.default_rng(3).standard_normal((max(count, 1), 32)).astype(np.float32)
        turns = np.zeros((2, 2 * count + 2), np.int32)
        turns[0], turns[1, ::2] = 7, 9
        return {"X": x, "Y": zeros(x.shape, "f32"), "turns": turns, "n": count}

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        cols = slice(3, 4) if alone else slice(None)
        y = a["Y"].copy()
        y[:count, cols] = 2 * a["X"][:count, cols]
        return {"Y": y, "turns": a["turns"]}

    return MemoryCase(f"turns of {count} {scope}", tc.kernel(waits), arrays, expected, grid=4)


def last_of_many(scope: str) -> MemoryCase:
    """Five CTAs store a row each, twice; the last to come each time adds up what all stored."""
    alone, kind = scope == "thread", rv[f32, 32, "plain"]

    def sums(X: gl[f32, "M", 32], Y: tc.inout[f32, "M", 32], Z: gl[f32, "N", 32],
             counters: tc.inout[s32, "A", "B"], n: s32):  # fmt: skip
        def body():
            for turn in tc.range(2):
                x = X.at(tc.cta_id() + turn * n, 3)
                tc.store(Y.at(tc.cta_id() + turn * n, 3), tc.load(x, f32 if alone else kind))
                with tc.when(tc.last_of(counters.at(1, 2 * turn), n)):
                    total = tc.var(0.0) if alone else tc.zeros(kind)
                    for i in tc.range(n):
                        y = tc.load(Y.at(i + turn * n, 3), f32 if alone else kind)
                        if alone:
                            total.set(total.get() + y)
                        else:
                            tc.copy(total, total + y)
                    tc.store(Z.at(turn, 3), total.get() if alone else total)

        with tc.warpgroup():
            if scope == "warpgroup":
                body()
            elif scope == "warp":
                with tc.warps(), tc.when(tc.warp_id() == 2):
                    body()
            else:
                with tc.one_thread():
                    body()

    def arrays() -> dict[str, Any]:
        x = np.random.default_rng(3).integers(-8, 8, (10, 35)).astype(np.float32)
        return {"X": x[:, :32].copy(), "Y": zeros((10, 32), "f32"), "Z": zeros((2, 32), "f32"),
                "counters": np.zeros((2, 4), np.int32), "n": 5}  # fmt: skip

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        z, stop = a["Z"].copy(), 4 if alone else 32
        y = a["Y"].copy()
        y[:, 3:stop] = a["X"][:, 3:stop]
        z[:, 3:stop] = a["X"].reshape(2, 5, 32).sum(1)[:, 3:stop]
        return {"Y": y, "Z": z, "counters": a["counters"]}

    return MemoryCase(f"last of many {scope}", tc.kernel(sums), arrays, expected, grid=5)


def atomic_shared(operation: str, dtype: str, order: str = "row") -> MemoryCase:
    """Two warpgroups combine their tiles and vectors in one shared place."""
    kind = by_name(dtype)
    function = getattr(tc, f"atomic_{operation}")
    with_vector = dtype in ("f32", "s32", "u32")

    def combines(X: gl[kind, "M", "N"], Y: gl[kind, "P", "N"], Z: gl[kind, "P"]):
        with tc.warpgroup(2) as number:
            tile = tc.shared(st[kind, 64, 64, order])
            vec = tc.shared(sv[kind, 64])
            with tc.when(number == 0):
                tc.store(tile, tc.load(X[0, 0], rt[kind, 64, 64]))
                if with_vector:
                    tc.store(vec, tc.load(X.at(0, 0), rv[kind, 64]))
            tc.barrier_sync(9, 256)
            function(tile, tc.load(X[number + 1, 0], rt[kind, 64, 64]))
            if with_vector:
                function(vec, tc.load(X[number + 1, 0], rv[kind, 64]))
            tc.barrier_sync(9, 256)
            with tc.when(number == 1):
                tc.store(Y[0, 0], tc.load(tile))
                if with_vector:
                    tc.store(Z[0], tc.load(vec))

    ufunc = {"add": np.add, "min": np.minimum, "max": np.maximum}[operation]

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        x = a["X"].astype(np.float64)
        found = {"Y": ufunc(ufunc(x[:64], x[64:128]), x[128:192])}
        if with_vector:
            found["Z"] = ufunc(ufunc(x[0], x[1]), x[2])
        return found

    return MemoryCase(
        f"atomic shared {operation} {dtype} {order}", tc.kernel(combines),
        lambda: {"X": numbers((192, 64), dtype), "Y": zeros((64, 64), dtype),
                 "Z": zeros((64,), dtype)}, expected,
    )  # fmt: skip


@tc.kernel
def single(X: gl[f32, "M", "N"], n: gl[s32, "K"], Y: gl[f32, "M", "N"], m: gl[s32, "K"]):
    """Scalars from and to memory; what is outside is the fill, or dropped."""
    with tc.warpgroup():
        row = tc.load(n[1], s32)
        far = tc.load(n[100], s32, fill=7)
        tc.store(Y.at(row, 2), tc.load(X[3, row], f32) * 2.0)
        tc.store(Y.at(row, 100), 1.0)
        tc.store(m[0], row + far)
        with tc.elected():
            tc.store(m[1], 5)


def scalars() -> MemoryCase:
    def arrays() -> dict[str, Any]:
        return {"X": numbers((6, 5), "f32"), "n": np.array([9, 4, 1], np.int32),
                "Y": zeros((6, 5), "f32"), "m": zeros((3,), "s32")}  # fmt: skip

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        y = a["Y"].copy()
        y[4, 2] = 2 * a["X"][3, 4]
        return {"Y": y, "m": np.array([11, 5, 0])}

    return MemoryCase("registers scalars", single, arrays, expected)


def matrices(dtype: str, rows: int, cols: int, order: str, register: str) -> MemoryCase:
    """Registers to shared and back, transposed by ldmatrix and stmatrix where they can."""
    kind = by_name(dtype)

    def turns(X: gl[kind, "M", "N"], Y: gl[kind, "M", "N"], Z: gl[kind, "M", "N"]):
        with tc.warpgroup():
            tile = tc.shared(st[kind, rows, cols, order])
            tc.store(tile, tc.load(X[0, 0], rt[kind, rows, cols, register]))
            tc.sync()
            tc.copy(Y[0, 0], tile)
            tc.store(Z[0, 0], tc.load(tile, order=register))

    return MemoryCase(
        f"matrices {dtype} {rows}x{cols} {order} {register}", tc.kernel(turns),
        lambda: {"X": numbers((rows, cols), dtype), "Y": zeros((rows, cols), dtype),
                 "Z": zeros((rows, cols), dtype)}, lambda a: {"Y": a["X"], "Z": a["X"]},
    )  # fmt: skip


CASES = (
    *(tiles(d, layout, "row", False) for d in DTYPES for layout in LAYOUTS),
    *(tiles(d, layout, "col", False) for d in ("f32", "bf16", "u8") for layout in LAYOUTS),
    *(tiles(d, "rows", o, True) for d in ("f32", "f16", "e4m3") for o in ("row", "col")),
    filled("f32", float("-inf")), filled("bf16", float("-inf")), filled("f16", 1.5),
    filled("s32", -7), filled("u8", 3),
    *(vectors(axis, n) for axis, n in (("row", 64), ("col", 64), ("col", 24), ("plain", 64),
                                       ("plain", 300), ("row", 192))),
    *(halves(d, axis) for d in ("bf16", "f16") for axis in ("row", "col", "plain")),
    *(gathers(d, "rows") for d in ("f32", "bf16", "u8")),
    *(gathers(d, "columns") for d in ("f32", "f16")), gathers("f32", "elements"),
    gathers("s32", "elements"),
    *(gathers_shared(d, how) for d in ("bf16", "f32", "u8") for how in ("copy", "copy_async")),
    *(atomic_global("add", d) for d in ("f32", "s32", "u32", "bf16", "f16")),
    *(atomic_global(o, d) for o in ("min", "max") for d in ("s32", "u32")),
    *(atomic_shared("add", d) for d in ("f32", "s32", "bf16", "f16")),
    atomic_shared("add", "f32", "col"), atomic_shared("min", "s32"), atomic_shared("max", "u32"),
    scalars(), *(in_turns(how) for how in ("tma", "atomic", "store")),
    turns_of_many("thread", 4), turns_of_many("warpgroup", 0), turns_of_many("warpgroup", 5),
    turns_of_many("warpgroup", 131),
    *(last_of_many(scope) for scope in ("thread", "warp", "warpgroup")),
    *(matrices(d, r, c, o, g) for d in ("bf16", "f16")
      for r, c in ((64, 64), (64, 32), (128, 64), (64, 16)) for o in ("row", "col")
      for g in (("row",) if c == 16 or c == 32 else ("row", "col"))),
    *(matrices(d, 64, 64, o, "row") for d in ("f32",) for o in ("row", "col")),
    *(matrices(d, 64, 64, "row", "row") for d in ("u8", "e4m3")),
)  # fmt: skip


