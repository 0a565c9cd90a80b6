"""Cases of clusters: multicast, parts, shared memory of peers, arrivals from afar."""

from __future__ import annotations

from typing import Any

import numpy as np
from memory_cases import MemoryCase, numbers, zeros

import tilecat as tc
from tilecat import f32, gl, rt, rv, s32, st, sv
from tilecat.dtypes import by_name


def multicast(dtype: str, size: int, parts: bool, *, runtime: bool = False) -> MemoryCase:
    """Each CTA of a cluster gets the same tile: one loads it for all, or each a part."""
    kind = by_name(dtype)

    def casts(X: gl[kind, "M", "N"], Y: gl[kind, "B", "P", "N"]):
        rank = tc.cluster(size)
        full = tc.barrier()
        with tc.warpgroup():
            tile = tc.shared(st[kind, 64, 64])
            ranks = tuple(range(size))
            mask = (rank * 0 + (1 << size) - 1) if runtime else ranks
            full.expect(tile)
            if parts:
                tc.load_async(tile, X[1, 0], full, part=rank, parts=size, multicast=mask)
            else:
                with tc.when(rank == 0):
                    tc.load_async(tile, X[1, 0], full, multicast=mask)
            full.wait(0)
            tc.store_async(Y[tc.cta_id(), 0, 0], tile)
            tc.store_wait()
            tc.cluster_sync()

    def arrays() -> dict[str, Any]:
        return {"X": numbers((100, 64), dtype), "Y": zeros((2 * size, 64, 64), dtype, 7)}

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        tile = np.zeros((64, 64), a["X"].dtype)
        tile[:36] = a["X"][64:]
        return {"Y": np.stack([tile] * (2 * size))}

    kind_of = "parts" if parts else "one"
    name = f"multicast {dtype} {size} {kind_of}{' mask' if runtime else ''}"
    return MemoryCase(name, tc.kernel(casts), arrays, expected, grid=2 * size)


def exchange(dtype: str, how: str) -> MemoryCase:
    """Two CTAs exchange their tiles."""
    kind = by_name(dtype)

    def trades(X: gl[kind, "M", "N"], Y: gl[kind, "M", "N"]):
        rank = tc.cluster(2)
        other = rank ^ 1
        full = tc.barrier() if how in ("bulk", "async") else None
        with tc.warpgroup():
            tile, landing = tc.shared(st[kind, 64, 64]), tc.shared(st[kind, 64, 64])
            mine = tc.load(X[tc.cta_id(), 0], rt[kind, 64, 64])
            tc.cluster_sync()  # the peer has started
            if how == "store":
                tc.store(tc.peer(landing, other), mine)
                tc.cluster_sync()
                tc.store(Y[tc.cta_id(), 0], tc.load(landing))
            elif how == "load":
                tc.store(tile, mine)
                tc.cluster_sync()
                tc.store(Y[tc.cta_id(), 0], tc.load(tc.peer(tile, other)))
            elif how == "async":
                full.expect(landing)
                tc.store_to_peer(tc.peer(landing, other), mine, full)
                full.wait(0)
                tc.store(Y[tc.cta_id(), 0], tc.load(landing))
            else:
                tc.store(tile, mine)
                full.expect(landing)
                tc.sync()
                tc.copy_to_peer(tc.peer(landing, other), tile, full)
                full.wait(0)
                tc.store(Y[tc.cta_id(), 0], tc.load(landing))
            tc.cluster_sync()

    def arrays() -> dict[str, Any]:
        return {"X": numbers((256, 64), dtype), "Y": zeros((256, 64), dtype, 7)}

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        return {"Y": a["X"].reshape(2, 2, 64, 64)[:, ::-1].reshape(256, 64)}

    return MemoryCase(f"peer {how} {dtype}", tc.kernel(trades), arrays, expected, grid=4)


def exchange_vectors(dtype: str, axis: str, how: str, length: int = 64) -> MemoryCase:
    """Two CTAs exchange vectors; shared memory may hold halves of f32 registers."""
    kind = by_name(dtype)
    held = s32 if dtype == "s32" else f32

    def trades(X: gl[kind, "B", "N"], Y: gl[held, "B", "N"]):
        rank = tc.cluster(2)
        other = rank ^ 1
        full = tc.barrier() if how == "async" else None
        with tc.warpgroup():
            tile, landing = tc.shared(sv[kind, length]), tc.shared(sv[kind, length])
            mine = tc.load(X[tc.cta_id(), 0], rv[held, length, axis])
            tc.cluster_sync()
            if how == "async":
                full.expect(landing)
                tc.store_to_peer(tc.peer(landing, other), mine, full)
                full.wait(0)
                got = tc.load(landing, rv[held, length, axis])
            elif how == "store":
                tc.store(tc.peer(landing, other), mine)
                tc.cluster_sync()
                got = tc.load(landing, rv[held, length, axis])
            else:
                tc.store(tile, mine)
                tc.cluster_sync()
                got = tc.load(tc.peer(tile, other), rv[held, length, axis])
            tc.store(Y[tc.cta_id(), 0], got)
            tc.cluster_sync()

    def arrays() -> dict[str, Any]:
        return {"X": numbers((4, length), dtype), "Y": zeros((4, length), held.name, 7)}

    name = f"peer vector {how} {dtype} {axis} {length}"
    return MemoryCase(name, tc.kernel(trades), arrays,
                      lambda a: {"Y": a["X"][[1, 0, 3, 2]]}, grid=4)  # fmt: skip


def combine(how: str, operation: str, dtype: str, axis: str = "") -> MemoryCase:
    """CTA 0 of four combines what all have: tiles, or vectors along an axis."""
    kind, vector = by_name(dtype), bool(axis)
    function = getattr(tc, f"{operation}_to_peer" if how == "async" else f"atomic_{operation}")

    def combines(X: gl[kind, "M", 64], Y: gl[kind, "P", 64]):
        rank = tc.cluster(4)
        full = tc.barrier() if how == "async" else None
        with tc.warpgroup():
            total = tc.shared(sv[kind, 64] if vector else st[kind, 64, 64])
            here = rv[kind, 64, axis or "row"] if vector else rt[kind, 64, 64]
            x = tc.load(X[tc.cta_id(), 0], here)
            with tc.when(rank == 0):
                tc.store(total, x)
                if full is not None:
                    full.expect(total, total, total)
            tc.cluster_sync()
            with tc.when(rank != 0):
                function(tc.peer(total, 0), x, *([full] if full is not None else []))
            if full is None:
                tc.cluster_sync()
            with tc.when(rank == 0):
                if full is not None:
                    full.wait(0)
                tc.store(Y[tc.cta_id() >> 2, 0], tc.load(total, here) if vector else tc.load(total))
            tc.cluster_sync()

    rows = 1 if vector else 64

    def arrays() -> dict[str, Any]:
        return {"X": numbers((8 * rows, 64), dtype), "Y": zeros((2 * rows, 64), dtype, 7)}

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        ufunc = {"add": np.add, "min": np.minimum, "max": np.maximum}[operation]
        parts = a["X"].astype(np.float64).reshape(2, 4, rows, 64)
        return {"Y": ufunc.reduce(parts, axis=1).reshape(2 * rows, 64)}

    name = f"peer combine {how} {operation} {dtype} {axis or 'tile'}"
    return MemoryCase(name, tc.kernel(combines), arrays, expected, grid=8)


@tc.kernel
def ring_of_two(X: gl[f32, "M", 64], Y: gl[f32, "B", 64], steps: tc.s32):
    """CTA 0 loads each step's vector for both CTAs; both tell it when they have read it."""
    rank = tc.cluster(2)
    full, empty = tc.barrier(), tc.barrier(arrivals=2)
    with tc.warpgroup():
        vec, total = tc.shared(sv[f32, 64]), tc.zeros(rv[f32, 64])
        for step in tc.range(steps):
            full.expect(vec)
            with tc.when(rank == 0):
                empty.wait((step & 1) ^ 1)
                tc.load_async(vec, X[step, 0], full, multicast=(0, 1))
            full.wait(step & 1)
            total += tc.load(vec)
            tc.sync()
            empty.arrive(rank=0)
        tc.store(Y[tc.cta_id(), 0], total)
        tc.cluster_sync()


def arrives_afar() -> MemoryCase:
    def arrays() -> dict[str, Any]:
        return {"X": numbers((9, 64), "f32"), "Y": zeros((2, 64), "f32"), "steps": 9}

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        return {"Y": np.stack([a["X"].sum(0)] * 2)}

    return MemoryCase("arrive afar", ring_of_two, arrays, expected, grid=2)


@tc.kernel
def shares(X: gl[f32, "M", 64], Y: gl[f32, "B", 64]):
    """Each CTA leaves its vector with the next one of four; the barrier goes in two halves."""
    rank = tc.cluster(4)
    full = tc.barrier()
    with tc.warpgroup():
        mine, landing = tc.shared(sv[f32, 64]), tc.shared(sv[f32, 64])
        full.expect(landing)
        tc.store(mine, tc.load(X[tc.cta_id(), 0], rv[f32, 64]))
        tc.sync()
        tc.cluster_arrive()
        tc.cluster_wait()
        tc.copy_to_peer(tc.peer(landing, (rank + 1) & 3), mine, full)
        full.wait(0)
        tc.store(Y[tc.cta_id(), 0], tc.load(landing))
        tc.cluster_sync()


def barrier_in_halves() -> MemoryCase:
    def arrays() -> dict[str, Any]:
        return {"X": numbers((4, 64), "f32"), "Y": zeros((4, 64), "f32")}

    return MemoryCase("cluster arrive wait", shares, arrays, lambda a: {"Y": np.roll(a["X"], 1, 0)},
                      grid=4)  # fmt: skip


CASES = (
    *(multicast(d, n, p) for d in ("bf16", "f32", "u8") for n in (2, 4) for p in (False, True)),
    multicast("bf16", 2, True, runtime=True), multicast("f16", 8, True),
    *(exchange(d, how) for d in ("f32", "bf16") for how in ("store", "load", "bulk")),
    exchange("s32", "store"), *(exchange(d, "async") for d in ("f32", "bf16", "s32", "u8")),
    *(exchange_vectors("f32", axis, how) for axis in ("row", "col", "plain")
      for how in ("store", "load", "async")),
    exchange_vectors("f32", "plain", "async", 300), exchange_vectors("s32", "row", "async"),
    exchange_vectors("bf16", "row", "store"), exchange_vectors("f16", "col", "load"),
    *(combine("async", o, d) for o in ("add", "min", "max") for d in ("s32", "u32")),
    *(combine("async", "add", "s32", axis) for axis in ("row", "col", "plain")),
    *(combine("atomic", "add", d) for d in ("f32", "s32")),
    *(combine("atomic", "add", "f32", axis) for axis in ("row", "col")),
    combine("atomic", "max", "s32"),
    arrives_afar(), barrier_in_halves(),
)  # fmt: skip
