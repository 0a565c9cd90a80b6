"""Barriers, fences, clusters."""

from __future__ import annotations

from tilecat.language.barriers import Barrier

from .frame import Family
from .maps import E
from .memory import FRAME, LOAD

TWO = """
@tc.kernel
def example(X: gl[f32, 64, 64], Y: gl[f32, 64, 64]):
    {before}
    with tc.warpgroup(2) as number:
        tile = tc.shared(st[f32, 64, 64])
        with tc.when(number == 0):
            tc.store(tile, tc.load(X[0, 0], rt[f32, 64, 64]))
            {arrive}
        with tc.otherwise():
            {wait}
            tc.store(Y[0, 0], tc.load(tile))

X = np.ones((64, 64), np.float32)
Y = np.zeros_like(X)
example(X, Y, grid=1)
"""
SYNCHRONISATION = Family(
    "synchronisation",
    "Synchronisation by hand",
    """
A pipeline derives its barriers. By hand: mbarriers in shared memory for loads and for who waits for
whom, named barriers for threads of one CTA, fences between proxies. What each of them orders is
on the page of the [memory model](../memory-model.md).
""",
    ("sync", "barriers", "barrier", "barrier.arrive", "barrier.expect", "barrier.wait",
     "barrier.try_wait", "barrier.arrive_after_copies", "barrier_sync", "barrier_arrive", "fence",
     "fence_async", "elected"),
    (
        E("sync", """
@tc.kernel
def example(X: gl[f32, 64, 64], Y: gl[f32, 64, 64]):
    with tc.warpgroup():
        tile = tc.shared(st[f32, 64, 64])
        tc.store(tile, tc.load(X[0, 0], rt[f32, 64, 64]))
        tc.sync()  # what each thread wrote is there for all, and for TMA and mma
        tc.copy(Y[0, 0], tile)

X = np.ones((64, 64), np.float32)
Y = np.zeros_like(X)
example(X, Y, grid=1)
""", "np.array_equal(Y, X)"),
        E("sync", """
@tc.kernel
def example(X: gl[f32, 64, 64], Y: gl[f32, 64, 64]):
    with tc.warpgroup():
        tiles = tc.shared(st[f32, 16, 64], 4)
        with tc.warps():
            w = tc.warp_id()
            tc.store(tiles[w], tc.load(X[w, 0], rt[f32, 16, 64]))
            tc.sync()  # of this warp alone: each has a tile of its own
            tc.copy(Y[w, 0], tiles[w])

X = np.ones((64, 64), np.float32)
Y = np.zeros_like(X)
example(X, Y, grid=1)
""", "np.array_equal(Y, X)"),
        E("barrier barrier.expect barrier.wait elected",
          "tile = tc.shared(st[f32, 64, 64])\nwith tc.elected():\n    full.expect(tile)\n"
          "    tc.load_async(tile, X[0, 0], full)\nfull.wait(0)\ntc.copy(Y[0, 0], tile)",
          "np.array_equal(Y, X)"),
        E("barriers barrier.arrive",
          TWO.format(before="ready = tc.barriers(1, arrivals=128)",
                     arrive="ready[0].arrive(each=True)  # every thread, after its own stores",
                     wait="ready[0].wait(0)"), "np.array_equal(Y, X)"),
        E("barrier.try_wait",
          LOAD + "done = full.try_wait(0)  # a condition: phase 0 has completed\n"
          "tc.store(Y[0, 0], tc.select(done, 1.0, 0.0))", "Y[0, 0] == 1"),
        E("barrier.arrive_after_copies", """
@tc.kernel
def example(X: gl[f32, 64, 64], Y: gl[f32, 64, 64]):
    full = tc.barrier(arrivals=128)
    with tc.warpgroup():
        tile = tc.shared(st[f32, 64, 64])
        tc.copy_async(tile, X[0, 0])
        full.arrive_after_copies()
        full.wait(0)
        tc.copy(Y[0, 0], tile)

X = np.ones((64, 64), np.float32)
Y = np.zeros_like(X)
example(X, Y, grid=1)
""", "np.array_equal(Y, X)"),
        E("barrier_sync barrier_arrive",
          TWO.format(before="# named barrier 9, of 256 threads", arrive="tc.barrier_arrive(9, 256)",
                     wait="tc.barrier_sync(9, 256)"), "np.array_equal(Y, X)"),
        E("fence fence_async", """
@tc.kernel
def example(X: gl[f32, 64, 64], Y: inout[f32, 64, 64]):
    full = tc.barrier()
    with tc.warpgroup():
        tile = tc.shared(st[f32, 64, 64])
        tc.store(Y[0, 0], tc.load(X[0, 0], rt[f32, 64, 64]))
        tc.fence("gpu")
        tc.fence_async("global")  # before TMA reads what threads wrote
        tc.sync()
        full.expect(tile)
        tc.load_async(tile, Y[0, 0], full)
        full.wait(0)
        tc.store_async(Y[0, 0], tile)
        tc.store_wait(read=False)

X = np.ones((64, 64), np.float32)
Y = np.zeros_like(X)
example(X, Y, grid=1)
""", "np.array_equal(Y, X)"),
    ),
    FRAME,
    {"barrier": Barrier},
)  # fmt: skip

PAIR = """
@tc.kernel
def example(X: gl[f32, "M", 64], Y: gl[f32, "M", 64]):
    rank = tc.cluster(2)
    {}
    with tc.warpgroup():
        mine, other = tc.shared(st[f32, 64, 64]), tc.shared(st[f32, 64, 64])
        {}
        tc.cluster_sync()  # no CTA leaves while the other may still use its memory

X = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)
Y = np.zeros_like(X)
example(X, Y, grid=2)
"""
LINES = "\n        "
COMBINE = """
@tc.kernel
def example(X: gl[s32, "M", 64], Y: gl[s32, 1, 64]):
    rank = tc.cluster(2)
    full = tc.barrier()
    with tc.warpgroup():
        total = tc.shared(sv[s32, 64])
        x = tc.load(X[rank, 0], rv[s32, 64])
        with tc.when(rank == 0):
            tc.store(total, x)
            full.expect(total)
        tc.cluster_sync()
        with tc.when(rank == 1):
            tc.{how}_to_peer(tc.peer(total, 0), x, full)
        with tc.when(rank == 0):
            full.wait(0)
            tc.store(Y[0, 0], tc.load(total))
        tc.cluster_sync()

X = np.arange(128, dtype=np.int32).reshape(2, 64)[:, ::-1].copy() % 50
Y = np.zeros((1, 64), np.int32)
example(X, Y, grid=2)
"""
CLUSTERS = Family(
    "clusters",
    "Clusters of CTAs, and kernels that depend on one another",
    """
The CTAs of a cluster run at once and reach each other's shared memory. A kernel may wait for those
before it on the stream, and let those after it start early.
""",
    ("cluster", "cluster_rank", "cluster_id", "num_clusters", "cluster_sync", "cluster_arrive",
     "cluster_wait", "peer", "copy_to_peer", "store_to_peer", "add_to_peer", "min_to_peer",
     "max_to_peer", "grid_wait", "grid_launch"),
    (
        E("cluster cluster_sync peer", PAIR.format("# two CTAs", LINES.join([
            "tc.store(mine, tc.load(X[tc.cta_id(), 0], rt[f32, 64, 64]))", "tc.cluster_sync()",
            "tc.store(Y[tc.cta_id(), 0], tc.load(tc.peer(mine, rank ^ 1)))"])),
          "np.array_equal(Y, np.roll(X, 64, 0))"),
        E("copy_to_peer cluster_arrive cluster_wait", PAIR.format(
            "full = tc.barrier()", LINES.join([
            "tc.store(mine, tc.load(X[tc.cta_id(), 0], rt[f32, 64, 64]))", "full.expect(other)",
            "tc.sync()", "tc.cluster_arrive()  # the other's barrier expects its bytes",
            "tc.cluster_wait()", "tc.copy_to_peer(tc.peer(other, rank ^ 1), mine, full)",
            "full.wait(0)", "tc.store(Y[tc.cta_id(), 0], tc.load(other))"])),
          "np.array_equal(Y, np.roll(X, 64, 0))"),
        E("store_to_peer", PAIR.format("full = tc.barrier()", LINES.join([
            "full.expect(other)", "tc.cluster_sync()  # the other's barrier expects its bytes",
            "x = tc.load(X[tc.cta_id(), 0], rt[f32, 64, 64])",
            "tc.store_to_peer(tc.peer(other, rank ^ 1), x, full)",
            "full.wait(0)", "tc.store(Y[tc.cta_id(), 0], tc.load(other))"])),
          "np.array_equal(Y, np.roll(X, 64, 0))"),
        *(E(f"{how}_to_peer", COMBINE.format(how=how), f"np.array_equal(Y[0], {function}(X, 0))")
          for how, function in (("add", "np.sum"), ("min", "np.min"), ("max", "np.max"))),
        E("cluster_rank cluster_id num_clusters", """
@tc.kernel
def example(Y: gl[s32, 4, 3]):
    tc.cluster(2)
    with tc.warpgroup():
        tc.store(Y[tc.cta_id(), 0], tc.cluster_id())
        tc.store(Y[tc.cta_id(), 1], tc.cluster_rank())
        tc.store(Y[tc.cta_id(), 2], tc.num_clusters())

Y = np.zeros((4, 3), np.int32)
example(Y, grid=4)
""", "Y.tolist() == [[0, 0, 2], [0, 1, 2], [1, 0, 2], [1, 1, 2]]"),
        E("grid_wait grid_launch", """
@tc.kernel
def example(X: gl[f32, 64, 64], Y: gl[f32, 64, 64]):
    with tc.warpgroup():
        tc.grid_launch()  # the next kernel of the stream may start
        tc.grid_wait()    # what the kernels before wrote is there
        tc.store(Y[0, 0], tc.load(X[0, 0], rt[f32, 64, 64]))

X = np.ones((64, 64), np.float32)
Y = np.zeros_like(X)
example(X, Y, grid=1)
""", "np.array_equal(Y, X)"),
    ),
)  # fmt: skip
