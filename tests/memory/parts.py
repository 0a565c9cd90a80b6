"""Cases of parts of shared tiles: column slices and blocks of rows, wherever a tile may be."""

from __future__ import annotations

from typing import Any

import numpy as np
from memory_cases import MemoryCase, numbers, zeros

import tilecat as tc
from tilecat import bf16, f32, gl, rt, st
from tilecat.dtypes import by_name

SLICES = {"columns": np.s_[:, 64:128], "rows": np.s_[64:128, :]}


def part_of(how: str, which: str, dtype: str) -> MemoryCase:
    """A part of a tile is filled and emptied; the rest of the tile keeps what it holds."""
    kind = by_name(dtype)
    shape = (64, 64 * 3) if which == "columns" else (64 * 3, 16 * 8 // kind.nbytes // 2)
    size = (64, 64) if which == "columns" else (64, shape[1])
    index = SLICES[which]

    def fills(X: gl[kind, "M", "N"], Y: gl[kind, "M", "N"], Z: gl[kind, "P", "Q"]):
        full = tc.barrier() if how == "tma" else None
        with tc.warpgroup():
            tile = tc.shared(st[kind, *shape])
            part = tile[index]
            tc.store(tile, tc.full(rt[kind, *shape], 3))
            tc.sync()
            if how == "tma":
                full.expect(part)
                tc.load_async(part, X[0, 0], full)
                full.wait(0)
                tc.store_async(Y[0, 0], part)
                tc.store_wait(read=False)
            elif how == "copy":
                tc.copy(part, X[0, 0])
                tc.sync()
                tc.copy(Y[0, 0], part)
            elif how == "copy_async":
                tc.copy_async(part, X[0, 0])
                tc.copy_commit()
                tc.copy_wait()
                tc.sync()
                tc.copy(Y[0, 0], part)
            elif how == "map":
                tc.store(part, tc.load(X[0, 0], rt[kind, *size]))
                tc.map_shared(lambda t: t * 2.0, part, part)
                tc.store(Y[0, 0], tc.load(part))
            else:
                tc.atomic_add(part, tc.load(X[0, 0], rt[kind, *size]))
                tc.sync()
                tc.store(Y[0, 0], tc.load(part))
            tc.sync()
            tc.store(Z[0, 0], tc.load(tile))

    def arrays() -> dict[str, Any]:
        return {"X": numbers(size, dtype), "Y": zeros(size, dtype), "Z": zeros(shape, dtype)}

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        x = a["X"].astype(np.float64)
        y = 2 * x if how == "map" else x + 3 if how == "atomic" else x
        z = np.full(shape, 3.0)
        z[index] = y
        return {"Y": y, "Z": z}

    return MemoryCase(f"part {how} {which} {dtype}", tc.kernel(fills), arrays, expected)


def product(transposed: bool, name: str) -> MemoryCase:
    """Parts as operands: K in columns of A, N in rows (or K in rows) of B, by TMA and wgmma."""

    def multiplies(A: gl[bf16, 64, 128], B: gl[bf16, 128, 64], C: gl[f32, 64, 64]):
        full = tc.barrier()
        with tc.warpgroup():
            a, b = tc.shared(st[bf16, 64, 256]), tc.shared(st[bf16, 192, 64])
            half = a[:, 64:192]
            full.expect(half, b[:128])
            for k in (0, 1):
                tc.load_async(half[:, 64 * k : 64 * k + 64], A[0, k], full)
                tc.load_async(b[64 * k : 64 * k + 64], B[k, 0], full)
            full.wait(0)
            acc = tc.zeros(rt[f32, 64, 64])
            if transposed:
                tc.mma_ABt(acc, a[:, 64:128], b[64:128])
            else:
                for k in (0, 1):
                    tc.mma_AB(acc, a[:, 64 + 64 * k : 128 + 64 * k], b[64 * k : 64 * k + 64])
            tc.mma_wait()
            tc.store(C[0, 0], acc)

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        left, right = a["A"].astype(np.float64), a["B"].astype(np.float64)
        return {"C": left[:, :64] @ right[64:].T if transposed else left @ right}

    return MemoryCase(
        f"part mma {name}", tc.kernel(multiplies),
        lambda: {"A": numbers((64, 128), "bf16"), "B": numbers((128, 64), "bf16", 1),
                 "C": zeros((64, 64), "f32")}, expected,
    )  # fmt: skip


@tc.kernel
def to_peer(X: gl[bf16, "M", 64], Y: gl[bf16, "M", 64]):
    """A part goes to the same part of the peer's tile."""
    rank = tc.cluster(2)
    full = tc.barrier()
    with tc.warpgroup():
        tile, landing = tc.shared(st[bf16, 64, 128]), tc.shared(st[bf16, 64, 128])
        full.expect(landing[:, 64:], landing[:, :64])
        x = tc.load(X[tc.cta_id(), 0], rt[bf16, 64, 64])
        tc.store(tile[:, 64:], x)
        tc.sync()
        tc.cluster_sync()
        tc.copy_to_peer(tc.peer(landing[:, 64:], rank ^ 1), tile[:, 64:], full)
        tc.store_to_peer(tc.peer(landing[:, :64], rank ^ 1), x, full)
        full.wait(0)
        tc.store(Y[tc.cta_id(), 0], tc.load(landing[:, 64:]) + tc.load(landing[:, :64]))
        tc.cluster_sync()


def peers() -> MemoryCase:
    return MemoryCase(
        "part peer", to_peer,
        lambda: {"X": numbers((128, 64), "bf16"), "Y": zeros((128, 64), "bf16")},
        lambda a: {"Y": 2 * np.roll(a["X"].astype(np.float64), 64, 0)}, grid=2,
    )  # fmt: skip


CASES = (
    *(part_of(how, "columns", d) for how in ("tma", "copy", "copy_async", "map", "atomic")
      for d in ("bf16", "f16")),
    *(part_of(how, "rows", d) for how in ("tma", "copy", "copy_async", "map", "atomic")
      for d in ("bf16", "f32")),
    product(False, "AB"), product(True, "ABt"), peers(),
)  # fmt: skip
