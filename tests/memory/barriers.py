"""Cases of synchronisation by hand inside a CTA, and of dependent kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from memory_cases import MemoryCase, numbers, zeros

import tilecat as tc
from tilecat import bf16, f32, gl, rt, rv, s32, st, sv


@tc.kernel
def by_warps(X: gl[f32, "M", 64], Y: gl[f32, "M", 64], steps: s32):
    """A ring of two stages: warp 0 loads by TMA, warps 1 to 3 take every third step each."""
    full, empty = tc.barriers(2), tc.barriers(2, arrivals=3)
    with tc.warpgroup():
        vec = tc.shared(sv[f32, 64], 2)
        with tc.warps():
            warp = tc.warp_id()
            with tc.when(warp == 0):
                for step in tc.range(steps):
                    stage, round_ = step & 1, step >> 1
                    empty[stage].wait((round_ & 1) ^ 1)
                    full[stage].expect(vec[stage])
                    tc.load_async(vec[stage], X[step, 0], full[stage])
            with tc.otherwise():
                for turn in tc.range(steps):
                    slot = turn & 1
                    full[slot].wait((turn >> 1) & 1)
                    with tc.when(turn % 3 == warp - 1):
                        x = tc.load(vec[slot], rv[f32, 64])
                        tc.store(Y[turn, 0], x * 2.0)
                    empty[slot].arrive()


@tc.kernel
def two_warpgroups(X: gl[f32, "M", 64], Y: gl[f32, "M", 64]):
    """Warpgroup 1 writes a shared tile, warpgroup 0 reads it: a named barrier between."""
    with tc.warpgroup(2) as number:
        tile = tc.shared(st[f32, 64, 64])
        with tc.when(number == 1):
            tc.store(tile, tc.load(X[0, 0], rt[f32, 64, 64]))
            tc.barrier_arrive(9, 256)
        with tc.otherwise():
            tc.barrier_sync(9, 256)
            tc.store(Y[0, 0], tc.load(tile))


@tc.kernel
def polls(X: gl[f32, "M", 64], Y: gl[f32, "M", 64], suspends: gl[s32, 1]):
    """Counts looks at a barrier until its phase has completed; elected threads load."""
    full = tc.barrier()
    with tc.warpgroup():
        tile = tc.shared(st[f32, 64, 64])
        first = full.try_wait(1, suspend=False)
        with tc.elected():
            full.expect(64 * 64 * 4)
            tc.load_async(tile, X[0, 0], full)
        full.wait(0)
        done = full.try_wait(0)
        tc.store(suspends[0], tc.select(first & done, 1, 0))
        tc.store(Y[0, 0], tc.load(tile))


@tc.kernel
def elected_lane(X: gl[f32, "M", 64], Y: gl[f32, "M", 64]):
    """Each warp moves rows of its own; one lane of each loads and stores."""
    full = tc.barriers(4)
    with tc.warpgroup():
        tiles = tc.shared(st[f32, 16, 64], 4)
        with tc.warps():
            warp = tc.warp_id()
            with tc.elected():
                full[warp].expect(tiles[warp])
                tc.load_async(tiles[warp], X[warp, 0], full[warp])
            full[warp].wait(0)
            tc.store_async(Y[warp, 0], tiles[warp])
            tc.store_wait(read=False)


@tc.kernel
def copies_arrive(X: gl[bf16, "M", 64], Y: gl[bf16, "M", 64]):
    """cp.async tells an mbarrier; every thread of both warpgroups waits."""
    full = tc.barriers(2, arrivals=128)
    with tc.warpgroup(2) as number:
        tiles = tc.shared(st[bf16, 64, 64], 2)
        tc.copy_async(tiles[number], X[number, 0])
        full[number].arrive_after_copies()
        other = 1 - number
        full[other].wait(0)
        tc.copy(Y[other, 0], tiles[other])


@tc.kernel
def elements(X: gl[f32, "M", 64], Y: gl[f32, "M", 64]):
    """Single elements, from anywhere to anywhere in a vector: column 0, rows turned."""
    full = tc.barrier(arrivals=128)
    with tc.warpgroup():
        vector = tc.shared(sv[f32, 8])
        tc.copy_async(vector.at(7), X.at(8, 5))  # outside: zero
        for i in tc.range(7):
            tc.copy_async(vector.at(i), X.at(7 - i, 5))
        full.arrive_after_copies()
        full.wait(0)
        tc.store(Y.at(0, 5), tc.load(vector.at(7), f32))
        for j in tc.range(7):
            tc.store(Y.at(7 - j, 5), tc.load(vector.at(j)))


@tc.kernel
def groups(X: gl[f32, "M", 64], Y: gl[f32, "M", 64], n: s32):
    """Two groups of copies under way; each is waited for in its turn."""
    with tc.warpgroup():
        tiles = tc.shared(st[f32, 64, 64], 2)
        tc.copy_async(tiles[0], X[0, 0])
        tc.copy_commit()
        for i in tc.range(n):
            with tc.when(i + 1 < n):
                tc.copy_async(tiles[(i + 1) & 1], X[i + 1, 0])
            tc.copy_commit()
            tc.copy_wait(1)
            tc.sync()
            tc.store(Y[i, 0], tc.load(tiles[i & 1]))
            tc.sync()


@tc.kernel
def counts(X: gl[f32, "M", 64], Y: gl[f32, "M", 64]):
    """Every thread of one warpgroup arrives; `when` limits an arrival to where it is due."""
    ready, once = tc.barrier(arrivals=128), tc.barrier(arrivals=1)
    with tc.warpgroup(2) as number:
        tile = tc.shared(st[f32, 64, 64])
        with tc.when(number == 0):
            tc.store(tile, tc.load(X[0, 0], rt[f32, 64, 64]))
            ready.arrive(each=True)
        once.arrive(when=number == 1)
        once.wait(0)
        ready.wait(0)
        with tc.when(number == 1):
            tc.store(Y[0, 0], tc.load(tile))


@tc.kernel
def fences(X: gl[f32, "M", 64], Y: tc.inout[f32, "M", 64], Z: gl[f32, "M", 64]):
    """Threads write global memory, TMA reads it after a fence of both proxies."""
    full = tc.barrier()
    with tc.warpgroup():
        tile = tc.shared(st[f32, 64, 64])
        tc.grid_launch()
        tc.grid_wait()
        tc.store(Y[0, 0], tc.load(X[0, 0], rt[f32, 64, 64]))
        tc.fence("gpu")
        tc.fence_async("global")
        tc.fence_async("shared")
        tc.sync()
        full.expect(tile)
        tc.load_async(tile, Y[0, 0], full)
        full.wait(0)
        tc.store_async(Z[0, 0], tile)
        tc.store_wait()


def _case(name: str, kernel: Any, rows: int, *extra: Any, dtype: str = "f32", scale: int = 1):
    def arrays() -> dict[str, Any]:
        base = {"X": numbers((rows, 64), dtype), "Y": zeros((rows, 64), dtype, 3)}
        names = [n for n, _ in kernel.signature.args[2:]]
        return {**base, **{n: np.copy(e) if isinstance(e, np.ndarray) else e
                           for n, e in zip(names, extra, strict=True)}}  # fmt: skip

    def expected(a: dict[str, Any]) -> dict[str, Any]:
        found = {"Y": a["X"] * scale}
        if "suspends" in a:
            found["suspends"] = np.ones(1, np.int32)
        if "Z" in a:
            found["Z"] = a["X"]
        return found

    return MemoryCase(name, kernel, arrays, expected)


CASES = (
    _case("ring by warps", by_warps, 10, 10, scale=2),
    _case("named barrier", two_warpgroups, 64),
    _case("try_wait", polls, 64, np.zeros(1, np.int32)),
    _case("elected lane", elected_lane, 64),
    _case("copies arrive", copies_arrive, 128, dtype="bf16"),
    MemoryCase(
        "copies of elements", elements,
        lambda: {"X": numbers((8, 64), "f32"), "Y": zeros((8, 64), "f32", 3)},
        lambda a: {"Y": np.where(np.arange(64) == 5, np.pad(a["X"][1:], ((1, 0), (0, 0))), 3)},
    ),
    _case("copy groups", groups, 64 * 5, 5),
    _case("each arrives", counts, 64),
    _case("fences", fences, 64, np.zeros((64, 64), np.float32)),
)
