"""Memory: copies by threads, TMA, views of tensors."""

from __future__ import annotations

from tilecat.language.views import GlobalTensor

from .frame import Family
from .maps import E

FRAME = """
@tc.kernel
def example(X: gl[f32, 64, 64], Y: gl[f32, 64, 64], n: s32, s: f32):
    full = tc.barrier()
    with tc.warpgroup():
        BODY
"""
BARE = FRAME.replace("    full = tc.barrier()\n", "")
COPIES = Family(
    "memory",
    "Memory: shared tiles, loads, stores, copies by threads, atomics",
    """
A place in a tensor is `A[row, col]`, in tiles of whatever meets it, or `A.at(row, col)`, in
elements. Elements outside the tensor load as `fill` and are not stored. What threads write to a
shared tile is there for others after `tc.sync`.
""",
    ("shared", "view_as", "load", "store", "copy", "copy_async", "copy_commit", "copy_wait",
     "atomic_add", "atomic_min", "atomic_max", "turn", "pass_turn", "last_of"),
    (
        E("shared load store",
          "tile = tc.shared(st[f32, 64, 64])\ntc.store(tile, tc.load(X[0, 0], rt[f32, 64, 64]))\n"
          "tc.sync()\ntc.store(Y[0, 0], tc.load(tile))", "np.array_equal(Y, X)"),
        E("shared", "rows = tc.shared(sv[f32, 64], 2)  # two vectors\n"
                    "tc.store(rows[1], tc.load(X[7, 0], rv[f32, 64]))\ntc.sync()\n"
                    "tc.store(Y[3, 0], tc.load(rows[1]))", "np.array_equal(Y[3], X[7])"),
        E("view_as", "tile = tc.shared(st[f16, 64, 64])\nhalves = tc.view_as(tile, bf16)\n"
                     "tc.store(halves, tc.cast(tc.load(X[0, 0], rt[f32, 64, 64]), bf16))\n"
                     "tc.sync()\ntc.store(Y[0, 0], tc.cast(tc.load(halves), f32))",
          "np.array_equal(Y, bf(X))"),
        E("load", "x = tc.load(X.at(60, 0), rt[f32, 64, 64], fill=-1.0)  # 4 rows inside\n"
                  "tc.store(Y[0, 0], x)",
          ("np.array_equal(Y[:4], X[60:])", "(Y[4:] == -1).all()")),
        E("store", "tc.store(Y[2, 3], s)  # one element, by one thread", "Y[2, 3] == 0.5"),
        E("copy", "tile = tc.shared(st[f32, 64, 64])\ntc.copy(tile, X[0, 0])\ntc.sync()\n"
                  "tc.copy(Y[0, 0], tile)", "np.array_equal(Y, X)"),
        E("copy_async copy_commit copy_wait",
          "tiles = tc.shared(st[f32, 32, 64], 2)\n"
          "for half in range(2):\n    tc.copy_async(tiles[half], X[half, 0])\n"
          "    tc.copy_commit()\n"
          "tc.copy_wait(1)  # the first group is done\ntc.sync()\ntc.copy(Y[0, 0], tiles[0])\n"
          "tc.copy_wait()\ntc.sync()\ntc.copy(Y[1, 0], tiles[1])", "np.array_equal(Y, X)"),
        E("atomic_add", "x = tc.load(X[0, 0], rt[f32, 64, 64])\ntc.atomic_add(Y[0, 0], x)\n"
                        "tc.atomic_add(Y[0, 0], x)", "np.array_equal(Y, 2 * X)"),
        E("atomic_min atomic_max", """
@tc.kernel
def example(X: gl[s32, 64, 64], Y: gl[s32, 64, 64], Z: gl[s32, 64, 64]):
    with tc.warpgroup():
        x = tc.load(X[0, 0], rt[s32, 64, 64])
        tc.atomic_min(Y[0, 0], x)
        tc.atomic_max(Z[0, 0], x)

X = np.arange(-2048, 2048, dtype=np.int32).reshape(64, 64)
Y, Z = np.zeros_like(X), np.zeros_like(X)
example(X, Y, Z, grid=1)
""", ("np.array_equal(Y, np.minimum(X, 0))", "np.array_equal(Z, np.maximum(X, 0))")),
        E("turn", """
@tc.kernel
def example(X: gl[f32, 256, 64], Y: inout[f32, 64, 64], turns: inout[s32, 1]):
    with tc.warpgroup():
        x = tc.load(X[tc.cta_id(), 0], rt[f32, 64, 64])
        with tc.turn(turns.at(0), tc.cta_id()):  # CTA 0 first
            tc.store(Y[0, 0], tc.load(Y[0, 0], rt[f32, 64, 64]) * 0.5 + x)

X = np.arange(256 * 64, dtype=np.float32).reshape(256, 64)
Y, turns = np.zeros((64, 64), np.float32), np.zeros(1, np.int32)
example(X, Y, turns, grid=4)
""", ("np.array_equal(Y, X[:64] / 8 + X[64:128] / 4 + X[128:192] / 2 + X[192:])",
      "turns[0] == 4")),
        E("pass_turn", """
@tc.kernel
def example(X: gl[f32, 192, 64], Y: inout[f32, 192, 64], Z: gl[f32, 64, 64],
            flags: inout[s32, 3]):
    with tc.warpgroup():
        mine = tc.load(X[tc.cta_id(), 0], rt[f32, 64, 64])
        with tc.when(tc.cta_id() < 2):               # leave something, and go on
            tc.store(Y[tc.cta_id(), 0], mine)
            tc.pass_turn(flags.at(tc.cta_id()), 0)
        with tc.when(tc.cta_id() == 2), tc.turn(flags.at(0), 1, turns=2, count=2):
            left = [tc.load(Y[i, 0], rt[f32, 64, 64]) for i in range(2)]
            tc.store(Z[0, 0], left[0] + left[1] + mine)

X = np.arange(192 * 64, dtype=np.float32).reshape(192, 64)
Y, Z, flags = np.zeros_like(X), np.zeros((64, 64), np.float32), np.zeros(3, np.int32)
example(X, Y, Z, flags, grid=3)
""", ("np.array_equal(Z, X[:64] + X[64:128] + X[128:])", "not flags.any()")),
        E("last_of", """
@tc.kernel
def example(X: gl[f32, 192, 64], Y: inout[f32, 192, 64], Z: gl[f32, 64, 64],
            counter: inout[s32, 1]):
    with tc.warpgroup():
        tc.store(Y[tc.cta_id(), 0], tc.load(X[tc.cta_id(), 0], rt[f32, 64, 64]) * 2.0)
        with tc.when(tc.last_of(counter.at(0), 3)):  # whoever comes last; nobody waits
            left = [tc.load(Y[i, 0], rt[f32, 64, 64]) for i in range(3)]
            tc.store(Z[0, 0], left[0] + left[1] + left[2])

X = np.arange(192 * 64, dtype=np.float32).reshape(192, 64)
Y, Z, counter = np.zeros_like(X), np.zeros((64, 64), np.float32), np.zeros(1, np.int32)
example(X, Y, Z, counter, grid=3)
""", ("np.array_equal(Z, 2 * (X[:64] + X[64:128] + X[128:]))", "counter[0] == 0")),
    ),
    BARE,
)  # fmt: skip

LOAD = "tile = tc.shared(st[f32, 64, 64])\nfull.expect(tile)\n" \
       "tc.load_async(tile, X[0, 0], full)\nfull.wait(0)\n"  # fmt: skip
TMA = Family(
    "tma",
    "Asynchronous transfers: TMA and bulk copies",
    """
One thread starts a transfer of a whole tile; the hardware moves it. A load completes on an
mbarrier, a store in groups of the thread that started it. In a pipeline the template owns the
barriers.
""",
    ("load_async", "store_async", "store_add_async", "store_min_async", "store_max_async",
     "store_wait", "prefetch", "load_bulk", "store_bulk"),
    (
        E("load_async store_async store_wait",
          LOAD + "tc.store_async(Y[0, 0], tile)\ntc.store_wait(read=False)",
          "np.array_equal(Y, X)"),
        E("store_add_async",
          LOAD + "tc.store_add_async(Y[0, 0], tile)\ntc.store_add_async(Y[0, 0], tile)\n"
          "tc.store_wait(read=False)", "np.array_equal(Y, 2 * X)"),
        E("store_min_async store_max_async", """
@tc.kernel
def example(X: gl[s32, 64, 64], Y: gl[s32, 64, 64], Z: gl[s32, 64, 64]):
    full = tc.barrier()
    with tc.warpgroup():
        tile = tc.shared(st[s32, 64, 64])
        full.expect(tile)
        tc.load_async(tile, X[0, 0], full)
        full.wait(0)
        tc.store_min_async(Y[0, 0], tile)
        tc.store_max_async(Z[0, 0], tile)
        tc.store_wait(read=False)

X = np.arange(-2048, 2048, dtype=np.int32).reshape(64, 64)
Y, Z = np.zeros_like(X), np.zeros_like(X)
example(X, Y, Z, grid=1)
""", ("np.array_equal(Y, np.minimum(X, 0))", "np.array_equal(Z, np.maximum(X, 0))")),
        E("prefetch", "tc.prefetch(X[0, 0], st[f32, 64, 64])  # into L2\n" + LOAD +
                      "tc.copy(Y[0, 0], tile)", "np.array_equal(Y, X)"),
        E("load_bulk store_bulk",
          "row = tc.shared(sv[f32, 64])\nfull.expect(row)\ntc.load_bulk(row, X[5, 0], full)\n"
          "full.wait(0)\ntc.store_bulk(Y[2, 0], row)\ntc.store_wait(read=False)",
          "np.array_equal(Y[2], X[5])"),
    ),
    FRAME,
)  # fmt: skip

PLACE = "tc.store(Y[0, 0], tc.load({}, rt[f32, 64, 64]))"
VIEWS = Family(
    "views",
    "Views of tensors",
    """
A view renames axes of a tensor argument; nothing is copied, and everything that takes a place
takes one of a view. `A[first:last, col, :]` cuts an axis, fixes one and keeps one;
`A[::-1, :]` has its rows backwards.
""",
    tuple(f"tensor.{name}" for name in
          "size rows cols at T permute broadcast paged fetch dtype order tma tma_stores".split()),
    (
        E("tensor.T", PLACE.format("X.T[0, 0]"), "np.array_equal(Y, X.T)"),
        E("tensor.at", PLACE.format("X.at(1, 0)"), "np.array_equal(Y[:63], X[1:])"),
        E("tensor.permute tensor.size",
          "first = X.permute(1, 0)\n"
          "tc.store(Y[0, 0], tc.load(first[0, 0], rt[f32, 64, 64]) + float(first.size(0)))",
          "np.allclose(Y, X.T + 64)"),
        E("tensor.rows", PLACE.format("X[::-1, :][0, 0]"), "np.array_equal(Y, X[::-1])"),
        E("tensor.fetch", """
@tc.kernel
def example(X: gl[f32, "M", 64], Y: gl[f32, "M", 64]):
    X.fetch(128)  # rows of 256 bytes, as two boxes of 128
    full = tc.barrier()
    with tc.warpgroup():
        tile = tc.shared(st[f32, 64, 64])
        full.expect(tile)
        tc.load_async(tile, X[0, 0], full)
        full.wait(0)
        tc.copy(Y[0, 0], tile)

X = np.ones((64, 64), np.float32)
Y = np.zeros_like(X)
example(X, Y, grid=1)
""", "(Y == 1).all()"),
        E("tensor.broadcast", PLACE.format("X[n, :].broadcast(64)[0, 0]"),
          "np.array_equal(Y, np.broadcast_to(X[5], (64, 64)))"),
        E("tensor.rows tensor.cols tensor.dtype tensor.order tensor.tma tensor.tma_stores", """
@tc.kernel
def example(X: gl[f32, "M", "N"], Y: gl[f32, "M", "N"]):
    assert (X.dtype, X.order, X.tma) == (f32, "row", True)  # known while tracing
    assert X.tma_stores
    with tc.warpgroup():
        for i in tc.range(tc.cdiv(X.rows, 64)):
            for j in tc.range(tc.cdiv(X.cols, 32)):
                tc.store(Y[i, j], tc.load(X[i, j], rt[f32, 64, 32]) * 2.0)

X = np.ones((100, 72), np.float32)
Y = np.zeros_like(X)
example(X, Y, grid=1)
""", "(Y == 2).all()"),
        E("tensor.paged", """
@tc.kernel
def example(cache: gl[f32, "pages", 16, 64], table: gl[s32, 4], Y: gl[f32, 64, 64]):
    rows = cache.paged(table)  # 4 pages of 16 rows, wherever they are
    with tc.warpgroup():
        tile = tc.shared(st[f32, 64, 64])
        tc.copy(tile, rows[0, 0])
        tc.sync()
        tc.copy(Y[0, 0], tile)

cache = np.random.default_rng(0).standard_normal((9, 16, 64)).astype(np.float32)
table = np.array([3, 8, 0, 5], np.int32)
Y = np.zeros((64, 64), np.float32)
example(cache, table, Y, grid=1)
""", "np.array_equal(Y, cache[table].reshape(64, 64))"),
    ),
    BARE,
    {"tensor": GlobalTensor},
)  # fmt: skip
