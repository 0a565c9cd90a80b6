"""Cases of axes that run backwards: time reversed, mirrored, of one sequence of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from memory_cases import MemoryCase, numbers, put, window, zeros

import tilecat as tc
from tilecat import f32, gl, rt, rv, s32, st
from tilecat.dtypes import by_name

from .views import moved

FLIPS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: x[::-1, :],
    "cols": lambda x: x[:, ::-1],
    "both": lambda x: x[::-1, ::-1],
    "T": lambda x: x[::-1, :].T,
    "twice": lambda x: x[::-1, :][::-1, :],
    "part": lambda x: x[20:150, :][::-1, :],
    "from": lambda x: x[::-1, :][10:, :],
    "part of it": lambda x: x[::-1, :][10:90, :],
    "part of part": lambda x: x[20:150, :][::-1, :][10:100, 0:96],
    "columns of it": lambda x: x[:, ::-1][:, 8:70],
    "part and back": lambda x: x[::-1, :][10:90, :][::-1, :],
}


def flipped(flip: str, dtype: str, how: str, place: tuple[int, int], side: str) -> MemoryCase:
    """A tile of a view: read from it, or written to it; outside the view nothing."""
    kind, view = by_name(dtype), FLIPS[flip]
    order = "col" if flip == "T" else "row"

    def flips(X: gl[kind, "M", "N"], Y: gl[kind, "P", "Q"], i: s32, j: s32):
        with tc.warpgroup():
            if side == "load":
                moved(how, kind, order, view(X)[i, j], Y[0, 0], None)
            else:
                moved(how, kind, order, X[0, 0], view(Y)[i, j], None)

    row, col = 64 * place[0], 64 * place[1]

    def arrays() -> dict[str, Any]:
        big, small = (170, 104), (64, 64)
        shapes = (big, small) if side == "load" else (small, big)
        x, y = numbers(shapes[0], dtype), zeros(shapes[1], dtype, 3)
        return {"X": x, "Y": y, "i": place[0], "j": place[1]}

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        if side == "load":
            return {"Y": window(view(a["X"]), row, col, 64, 64)}
        y = a["Y"].copy()
        seen = view(y)
        seen[...] = put(seen.copy(), row, col, a["X"])
        return {"Y": y}

    name = f"reversed {flip} {dtype} {how} {place} {side}"
    return MemoryCase(name, tc.kernel(flips), arrays, expected)


@tc.kernel
def backwards(
    X: gl[f32, "N"], Z: gl[f32, 3, "M", 64], Y: gl[f32, 4, "N"], W: gl[f32, 64, 64], i: s32,
):  # fmt: skip
    """Vectors, elements, a fixed coordinate, an atomic update, a broadcast."""
    with tc.warpgroup():
        tc.store(Y[0, 0], tc.load(X[::-1][i], rv[f32, 64]))
        tc.store(Y[1, 0], tc.load(X[::-1][0], rv[f32, 64, "plain"]))
        tc.store(Y.at(2, 0), tc.load(X[::-1].at(i + 2), f32))
        tc.store(Y[:, ::-1].at(2, 0), tc.load(X[10:50][::-1].at(3), f32))
        tc.atomic_add(Y[:, ::-1][3, 0], tc.load(X[0], rv[f32, 64]))
        z = Z[::-1, :, :][0, :, :]
        x = tc.load(z[::-1, :][0, 0], rt[f32, 64, 64])
        tc.store(W[0, 0], x + tc.load(X[::-1].broadcast(64)[0, 0], rt[f32, 64, 64]))


def vectors() -> MemoryCase:
    def arrays() -> dict[str, Any]:
        return {"X": numbers((100,), "f32"), "Z": numbers((3, 80, 64), "f32", 1),
                "Y": zeros((4, 100), "f32", 3), "W": zeros((64, 64), "f32"), "i": 1}  # fmt: skip

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        x, y = a["X"], a["Y"].copy()
        back = np.concatenate([x[::-1], np.zeros(64, np.float32)])
        y[0, :64], y[1, :64] = back[64:128], back[:64]
        y[2, 0], y[2, 99] = back[3], x[10:50][::-1][3]
        y[3, ::-1][:64] += x[:64]
        return {"Y": y, "W": a["Z"][2, ::-1][:64] + back[None, :64]}

    return MemoryCase("reversed vectors", backwards, arrays, expected)


def ragged(length: int, i: int, how: str) -> MemoryCase:
    """One sequence of a packed batch backwards, its bounds known at run time; and where it was."""
    kind = by_name("bf16")

    def sequences(
        X: gl[kind, "T", "H", 64], Y: gl[kind, "T", "H", 64], starts: gl[s32, "B"], b: s32, i: s32
    ):
        with tc.warpgroup():
            first, last = tc.load(starts[b], s32), tc.load(starts[b + 1], s32)
            x, y = X[first:last, 1, :][::-1, :], Y[first:last, 1, :]
            moved(how, kind, "row", x[i, 0], y[i, 0], None)

    def arrays() -> dict[str, Any]:
        starts = np.array([0, 10, 10 + length, 30 + length], np.int32)
        shape = (30 + length, 2, 64)
        return {"X": numbers(shape, "bf16"), "Y": zeros(shape, "bf16", 1), "starts": starts,
                "b": 1, "i": i}  # fmt: skip

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        y, sequence = a["Y"].copy(), slice(10, 10 + length)
        part = a["X"][sequence, 1][::-1][64 * i : 64 * i + 64]
        y[10 + 64 * i : 10 + 64 * i + len(part), 1] = part
        return {"Y": y}

    return MemoryCase(f"reversed ragged {how} {length} {i}", tc.kernel(sequences), arrays, expected)


@tc.kernel
def both_ways(X: gl[f32, "M", 64], Y: gl[f32, "M", 64]):
    """What is loaded backwards by threads is what TMA would have loaded forwards, turned."""
    full = tc.barrier()
    with tc.warpgroup():
        back, forth = tc.shared(st[f32, 64, 64]), tc.shared(st[f32, 64, 64])
        tc.copy(back, X[::-1, :][0, 0])
        full.expect(forth)
        tc.load_async(forth, X.at(X.rows - 64, 0), full)
        full.wait(0)
        tc.sync()
        tc.copy(Y[::-1, :][0, 0], forth)
        tc.store(Y[1, 0], tc.load(back))


def beside_tma() -> MemoryCase:
    def expected(a: dict[str, Any]) -> dict[str, Any]:
        y = a["Y"].copy()
        y[::-1][:64] = a["X"][36:]
        y[64:] = a["X"][::-1][:36]
        return {"Y": y}

    return MemoryCase(
        "reversed beside TMA", both_ways,
        lambda: {"X": numbers((100, 64), "f32"), "Y": zeros((100, 64), "f32", 1)}, expected,
    )  # fmt: skip


CASES = (
    *(flipped(flip, d, how, (1, 0), side) for flip in FLIPS for d in ("f32", "bf16")
      for how in ("registers", "copy") for side in ("load", "store")),
    *(flipped(flip, "u8", how, (2, 1), "load") for flip in ("rows", "cols", "part of part")
      for how in ("registers", "copy")),
    *(flipped(flip, "bf16", "copy_async", place, "load") for flip in ("rows", "part", "T")
      for place in ((0, 0), (1, 1))),
    *(flipped("rows", "f32", "registers", (i, 0), "load") for i in (0, 2)),
    vectors(), beside_tma(),
    *(ragged(n, i, how) for how in ("registers", "copy", "copy_async")
      for n, i in ((0, 0), (1, 0), (64, 0), (150, 2))),
)  # fmt: skip
