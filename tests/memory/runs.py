"""Runs of adjacent elements of a thread: vectors and tiles that move 16 bytes an access."""

from __future__ import annotations

from typing import Any

import numpy as np
from memory_cases import MemoryCase, numbers, zeros

import tilecat as tc
from tilecat import f32, gl, rt, rv, s32, sv
from tilecat.dtypes import by_name


def vectors(
    memory: str, register: str, run: int, length: int, width: int, cache: str = ""
) -> MemoryCase:
    """A row a warp, wider or narrower than the vector; `fill` beyond it."""
    kind, held = by_name(memory), by_name(register)

    def rows(X: gl[kind, "M", "N"], Y: gl[kind, "M", "N"], Z: gl[f32, "M", "L"]):
        with tc.warpgroup(), tc.warps():
            x = tc.load(X[tc.warp_id(), 0], rv[held, length, "plain", run], fill=3,
                        cache=cache)  # fmt: skip
            y = tc.empty(rv[held, length, "plain", run])
            tc.copy(y, x)
            tc.store(Y[tc.warp_id(), 0], y, cache=cache)
            tc.store(Z[tc.warp_id(), 0], tc.cast(x, f32))

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        z = np.full((3, length), 3, np.float32)
        z[:, :width] = a["X"][:, :length].astype(np.float32)
        y = a["Y"].copy()
        y[:, :length] = a["X"][:, :length]
        return {"Y": y, "Z": z}

    return MemoryCase(
        f"runs {memory}-{register} of {run}, {length} of {width}{cache}", tc.kernel(rows),
        lambda: {"X": numbers((3, width), memory), "Y": zeros((3, width), memory, 5),
                 "Z": zeros((3, length), "f32")}, expected,
    )  # fmt: skip


def tiles(dtype: str, run: int, extents: tuple[int, int], cut: int = 0) -> MemoryCase:
    """A warp's tile in long runs, whole and across an edge, of a view with an end too."""
    kind = by_name(dtype)

    def moves(X: gl[kind, "M", "N"], Y: gl[kind, "M", "N"], n: s32):
        x, y = (X[cut:n, :], Y[cut:n, :]) if cut else (X, Y)
        with tc.warpgroup(), tc.warps():
            place = (tc.warp_id() & 1, tc.warp_id() >> 1)
            tc.store(y[place], tc.load(x[place], rt[kind, 16, 64, "row", run], fill=7))

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        y = a["Y"].copy()
        last = min(a["n"], cut + 32) if cut else 32
        y[cut:last, :128] = a["X"][cut:last, :128]
        return {"Y": y}

    return MemoryCase(
        f"runs tile {dtype} of {run}, {extents[0]}x{extents[1]}{f' from {cut}' * (cut > 0)}",
        tc.kernel(moves), lambda: {"X": numbers(extents, dtype), "Y": zeros(extents, dtype, 5),
                                   "n": extents[0] - 3}, expected,
    )  # fmt: skip


def shared(run: int) -> MemoryCase:
    """A vector in runs to shared memory and back, and where each value is."""

    def goes_round(X: gl[f32, "N"], Y: gl[f32, "N"], Z: gl[s32, "N"]):
        with tc.warpgroup():
            kind, room = rv[f32, 1024, "plain", run], tc.shared(sv[f32, 1024])
            x = tc.load(X[0], kind)
            tc.store(room, x)
            tc.sync()
            tc.store(Y[0], tc.load(room, rv[f32, 1024, "plain"]) + 1.0)
            back = tc.load(room, kind)
            tc.store(Z[0], tc.select(back == x, tc.col_index(x), -1))

    return MemoryCase(
        f"runs shared of {run}", tc.kernel(goes_round),
        lambda: {"X": numbers((1024,), "f32"), "Y": zeros((1024,), "f32"),
                 "Z": zeros((1024,), "s32")},
        lambda a: {"Y": a["X"] + 1, "Z": np.arange(1024)},
    )  # fmt: skip


CASES = (
    *(vectors(m, r, run, 512, width) for m, r, run in (
        ("bf16", "bf16", 8), ("f16", "f16", 8), ("bf16", "f32", 8), ("f16", "f32", 8),
        ("f32", "f32", 8), ("f32", "f32", 4), ("bf16", "bf16", 2),
    ) for width in (512, 488, 301, 600)),
    vectors("bf16", "bf16", 8, 256, 1),
    *(vectors("bf16", "bf16", 8, 512, width, "evict_first") for width in (512, 301)),
    *(tiles(d, run, (32, 128)) for d, run in (("bf16", 8), ("f16", 4), ("f32", 8))),
    *(tiles(d, 8, extents) for d in ("bf16", "f32") for extents in ((29, 120), (40, 77))),
    tiles("bf16", 8, (45, 128), 9), tiles("bf16", 8, (30, 128), 9), tiles("f32", 4, (30, 77), 5),
    *(shared(run) for run in (2, 4, 8)),
)  # fmt: skip
