"""Bad input of memory, views and synchronisation: the rule's text, one or more a family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

import tilecat as tc
from tilecat import bf16, f32, gl, rt, rv, s32, st, sv, u8
from tilecat.errors import (
    DTypeError,
    LayoutError,
    ResourceError,
    ScopeError,
    SyncError,
    TileError,
)

TILE = rt[f32, 64, 64]


@dataclass(frozen=True)
class Rule:
    """A body that breaks a rule, and its error."""

    body: Callable[[Any], Any]
    kind: type[TileError]
    message: str
    hint: str = ""
    before: Callable[[], Any] = lambda: None

    def __str__(self) -> str:
        return self.message[:60]


def full() -> Any:
    return tc.barrier()


def pair() -> Any:
    rank = tc.cluster(2)
    return SimpleNamespace(rank=rank, full=tc.barrier())


def tile(kind: Any = st[f32, 64, 64]) -> Any:
    return tc.shared(kind)


def one_thread(body: Callable[[], Any]) -> Any:
    with tc.elected():
        return body()


RULES = (
    # types
    Rule(lambda k: sv[f32, 6], LayoutError,
         "sv: a f32 vector has a multiple of 4 elements (16 bytes), got length=6",
         "nearest legal: 4 and 8"),
    Rule(lambda k: tc.shared(rt[f32, 64, 64]), LayoutError,
         "shared: wanted a shared tile's type, got rt[f32, 64, 64] (RegTileType)",
         "tc.shared(tc.st[tc.bf16, 64, 64])"),
    # views
    Rule(lambda k: k.A[:, 0:4:2], LayoutError,
         "A: slices have no step but -1 of a whole axis, got 2",
         "a strided array can be an argument"),
    Rule(lambda k: k.A.permute(0, 0), LayoutError,
         "A.permute: names each of 2 axes once, got (0, 0)"),
    Rule(lambda k: k.v.T, LayoutError, "v.T: wants two axes, got v: gl[s32, K]"),
    Rule(lambda k: k.P.paged(k.A), LayoutError,
         "P.paged: a page table is an s32 tensor of one axis, got A: gl[f32, M, N]",
         "P.paged(table[b, :])"),
    Rule(lambda k: k.Q.paged(k.v), LayoutError,
         "Q.paged: rows of a page are known at compile time, got Q: gl[f32, G, R, 64]",
         'Q: gl[bf16, "pages", 64, "D"]'),
    Rule(lambda k: tc.copy(tile(), k.P.paged(k.v)[0, 0]), LayoutError,
         "P: a tile is whole pages or a whole part of one, got 64 rows and pages of 48"),
    Rule(lambda k: tc.load(k.v[0], TILE), LayoutError,
         "v: a tile covers two axes, got v: gl[s32, K]"),
    Rule(lambda k: tc.load(k.A[0, 0], bf16), DTypeError, "load: A holds f32, got bf16"),
    Rule(lambda k: tc.load(k.B[0, 0], bf16), DTypeError,
         "load: a scalar is f32, s32, u32, got B of bf16"),
    Rule(lambda k: k.A[1.5, 0], DTypeError,
         "A: wants an s32 scalar or an int, got 1.5 (float)"),
    Rule(lambda k: tc.load(k.A[tc.load(k.v[0], rv[s32, 128]), 0], TILE), LayoutError,
         "load: an index vector goes with the rows or columns of what it loads, "
         "got rv[s32, 128] with rt[f32, 64, 64]", "one of rv[f32, 64], rv[f32, 64, col], of s32"),
    Rule(lambda k: tc.load(k.A[tc.load(k.A[0, 0], rv[f32, 64]), 0], TILE), DTypeError,
         "A: an index vector holds s32, got rv[f32, 64]"),
    # TMA
    *(Rule(lambda k, store=store: store(k.R[0, 0], tile()), LayoutError,
           f"{store.__name__}: TMA cannot reach R: its rows are no multiple of 16 bytes, and a "
           "store would also write what follows them",
           "tc.copy(A[row, col], tile) by threads, or rows padded to 16 bytes; A.tma_stores, "
           "known while tracing, tells")
      for store in (tc.store_async, tc.store_add_async)),
    Rule(lambda k: tc.load_async(tile(), k.A[0, 0]), SyncError,
         "load_async: its bytes complete on an mbarrier, got None",
         "full = tc.barrier() before tc.warpgroup, tc.load_async(tile, A[row, col], full)"),
    Rule(lambda k: tc.load_async(tile(), k.B[0, 0], k.b), LayoutError,
         "load_async: B holds bf16, got a tile st[f32, 64, 64]", "", full),
    Rule(lambda k: tc.load_async(tile(st[f32, 64, 64, "col"]), k.A[0, 0], k.b), LayoutError,
         "load_async: A is row-ordered in memory, got a tile st[f32, 64, 64, col]",
         "st[f32, 64, 64, A.order]", full),
    Rule(lambda k: tc.load_async(tile(), k.A[0:9, :][0, 0], k.b), LayoutError,
         "load_async: TMA cannot reach A: a view with an end is narrower than the tensor that "
         "TMA knows", "tc.copy(tile, A[row, col]) by threads, or A[first:, :], which reads what "
         "follows too, and a mask", full),
    Rule(lambda k: tc.store_async(k.A[0 : k.n, :][0, 0], tile()), LayoutError,
         "store_async: TMA cannot reach A: a view with an end is narrower than the tensor that "
         "TMA knows", "tc.copy(A[row, col], tile) by threads, which writes nothing behind the end"),
    *(Rule(lambda k, at=at: tc.load_async(tile(), at(k), k.b), LayoutError,
           "load_async: TMA cannot reach A: it is not known to begin at a multiple of 16 bytes "
           "along the contiguous axis",
           "tc.copy(tile, A[row, col]) by threads; A.tma, known while tracing, tells", full)
      for at in (lambda k: k.A.at(0, k.n), lambda k: k.A.at(0, 2), lambda k: k.A[:, 2:][0, 0],
                 lambda k: k.A.at(0, k.n * 2), lambda k: k.A[:, k.n :][0, 0])),
    *(Rule(lambda k, at=at: tc.store_async(at(k), tile()), LayoutError,
           "store_async: TMA cannot reach A: a store begins at a negative place along the "
           "contiguous axis",
           "tc.copy(tile, A[row, col]) by threads; A.tma, known while tracing, tells")
      for at in (lambda k: k.A[0, -1], lambda k: k.A.at(0, -8), lambda k: k.A[:, 8:].at(0, -16))),
    *(Rule(lambda k, at=at: tc.load_async(tile(), at(k), k.b), LayoutError,
           f"load_async: TMA cannot reach {name}: {why}",
           "tc.copy(tile, A[row, col]) by threads; A.tma, known while tracing, tells", full)
      for at, name, why in (
          (lambda k: k.A[0, :].broadcast(64)[0, 0], "A", "a broadcast axis has no stride"),
          (lambda k: k.P.permute(2, 0, 1)[0, 0, 0], "P",
           "the tile does not lie along its contiguous axis"),
          (lambda k: k.A[tile(sv[s32, 64]), 0], "A", "rows that a vector gathers lie apart"))),
    Rule(lambda k: tc.load_async(tile(), k.A[::-1, :][0, 0], k.b), LayoutError,
         "load_async: TMA cannot reach A: an axis that runs backwards has a negative stride",
         "tc.copy(tile, A[row, col]) by threads; A.tma, known while tracing, tells", full),
    Rule(lambda k: k.A[::-2, :], LayoutError,
         "A: slices have no step but -1 of a whole axis, got -2",
         "a strided array can be an argument"),
    Rule(lambda k: k.A[9:0:-1, :], LayoutError,
         "A: slices have no step but -1 of a whole axis, got -1",
         "A[first:last, :][::-1, :]"),
    Rule(lambda k: k.A[::-1, :][tc.load(k.v[0], rv[s32, 64]), 0].region(64, 64), LayoutError,
         "A: an axis with an index vector begins at its first element, got a slice",
         "add the slice's start to the index"),
    Rule(lambda k: tc.load_async(tile(), k.A[0, 0], k.b, cache="hot"), LayoutError,
         "load_async: cache is one of evict_first, evict_last, evict_normal, got cache='hot'",
         "", full),
    Rule(lambda k: tc.load_async(tile(), k.A[0, 0], k.b, multicast=(0, 1)), LayoutError,
         "load_async: multicast names ranks of the cluster, 0 to 0, got multicast=(0, 1)",
         "tc.cluster(2), before anything else in the kernel", full),
    Rule(lambda k: tc.load_async(tile(), k.A[0, 0], k.b, part=0, parts=16), LayoutError,
         "load_async: a part is a multiple of 8 lines, got 64 lines in 16 parts", "", full),
    Rule(lambda k: tc.store_async(k.A[0, 0], tc.full(TILE, 0.0)), LayoutError,
         "store_async: wanted a shared tile or vector, got rt[f32, 64, 64] (RegTile)",
         "tile = tc.shared(tc.st[tc.bf16, 64, 64])"),
    Rule(lambda k: tc.store_min_async(k.A[0, 0], tile()), DTypeError,
         "store_min_async: TMA combines f16, bf16, s32, u32, got st[f32, 64, 64]",
         "tc.atomic_add and its like combine registers with a tensor"),
    Rule(lambda k: tc.store_wait(-1), SyncError,
         "store_wait: pending is a compile-time int >= 0, got -1"),
    Rule(lambda k: tc.prefetch(k.A[0, 0], TILE), LayoutError,
         "prefetch: wanted a shared tile's type, got rt[f32, 64, 64]"),
    Rule(lambda k: tc.load_bulk(tile(), k.A[0, 0], k.b), LayoutError,
         "load_bulk: moves a shared vector, got st[f32, 64, 64]", "", full),
    Rule(lambda k: tc.load_bulk(tile(sv[f32, 64]), k.A.T[0, 0], k.b), LayoutError,
         "load_bulk: the elements lie together in A, got a place along another axis or backwards, "
         "a view with an end, or strides that are not multiples of 16 bytes", "", full),
    # copies by threads
    Rule(lambda k: tc.copy_async(tile(), k.A.at(0, k.n)), LayoutError,
         "copy_async: copies 16-byte units whose place in A is a multiple of 16 bytes, in one "
         "order with the tile, got st[f32, 64, 64]",
         "tc.copy(tile, A[row, col]) copies any elements, by plain loads and stores"),
    Rule(lambda k: one_thread(lambda: tc.copy(tile(), k.A[0, 0])), ScopeError,
         "copy: must be executed by a warpgroup or warp, got scope=thread",
         "call it where a warpgroup or warp runs: in a consumer's hole of a pipeline, or in a "
         "tc.warpgroup block"),
    Rule(lambda k: tc.copy(tile(), tile()), LayoutError,
         "copy: wanted a place in a tensor, got st[f32, 64, 64]",
         "tc.copy(tile, A[row, col])"),
    # shared vectors
    Rule(lambda k: tc.store(tile(sv[f32, 64]), tc.full(TILE, 0.0)), LayoutError,
         "store: a shared vector takes a register vector, got rt[f32, 64, 64]"),
    Rule(lambda k: tc.load(tile(sv[f32, 64]), rv[f32, 128]), LayoutError,
         "load: a shared vector and a whole register vector of its length, "
         "got sv[f32, 64] and rv[f32, 128]"),
    Rule(lambda k: tc.load(tile(sv[s32, 64]), rv[f32, 64]), DTypeError,
         "load: dtypes must agree, got sv[s32, 64] and rv[f32, 64]",
         "f32 registers take f32, bf16 and f16; s32 take s32"),
    Rule(lambda k: tc.register_order(tc.full(rv[f32, 64], 0.0)), LayoutError,
         "register_order: wanted a register tile of memory's dtypes, got rv[f32, 64]"),
    Rule(lambda k: tc.from_register_order(tc.full(rv[f32, 64, "plain"], 0.0), TILE), LayoutError,
         "from_register_order: rt[f32, 64, 64] is made of rv[f32, 4096, plain, 4], "
         "got rv[f32, 64, plain]", 'tc.load(place, tc.rv[tc.f32, 4096, "plain", 4])'),
    # atomics
    Rule(lambda k: tc.atomic_min(k.A[0, 0], tc.full(TILE, 0.0)), DTypeError,
         "atomic_min: combines s32, u32, got rt[f32, 64, 64]"),
    Rule(lambda k: tc.atomic_add(tile(st[f32, 64, 32]), tc.full(TILE, 0.0)), LayoutError,
         "atomic_add: shapes and dtypes must agree, got rt[f32, 64, 64] and st[f32, 64, 32]",
         "convert first: tc.cast(x, dtype)"),
    Rule(lambda k: tc.atomic_add(k.A[0, 0], 3.0), LayoutError,
         "atomic_add: adds registers, got 3.0", "tc.load(tile)"),
    # barriers
    Rule(lambda k: tc.barriers(2), ScopeError,
         "barriers: made by the whole CTA, got scope=warpgroup",
         "make them before the tc.warpgroup block or the pipeline"),
    Rule(lambda k: k.b.expect(), SyncError,
         "expect: barrier expects the bytes of a phase's loads, got 0",
         "barrier.expect(tile), or barrier.arrive() for a phase without loads", full),
    Rule(lambda k: k.b.wait(2), SyncError, "wait: a parity is 0 or 1, got 2", "phase & 1", full),
    Rule(lambda k: k.b.arrive(rank=1), ScopeError,
         "arrive: a rank is 0 to 0, the CTAs of the cluster, got rank=1",
         "tc.cluster(2), before anything else in the kernel", full),
    Rule(lambda k: k.b.wait(0), SyncError, "mbarrier barrier: is never arrived on", "", full),
    Rule(lambda k: tc.barrier_sync(3, 128), ResourceError,
         "barrier_sync: named barriers 9 to 15 are free to use, got number=3"),
    Rule(lambda k: tc.barrier_sync(9, 100), SyncError,
         "barrier_sync: a named barrier is for a multiple of 32 threads, got threads=100"),
    Rule(lambda k: tc.fence("warp"), DTypeError,
         "fence: among cta, cluster, gpu, sys, got 'warp'"),
    Rule(lambda k: tc.fence_async("tensor"), DTypeError,
         "fence_async: a space is shared, cluster, global, got 'tensor'"),
    # clusters
    Rule(lambda k: tc.cluster(2), ScopeError,
         "cluster: stands first in a kernel, got ops before it"),
    Rule(lambda k: None, ResourceError, "cluster: 2 to 16 CTAs, known while tracing, got 1", "",
         lambda: tc.cluster(1)),
    Rule(lambda k: tc.cluster_sync(), ScopeError, "cluster_sync: the kernel has no clusters",
         "tc.cluster(2), first"),
    Rule(lambda k: tc.peer(tc.full(TILE, 0.0), 1), LayoutError,
         "peer: of a shared tile or vector, got rt[f32, 64, 64]", "", pair),
    Rule(lambda k: tc.peer(tile(), 2), ScopeError,
         "peer: a rank is 0 to 1, the CTAs of the cluster, got rank=2",
         "tc.cluster(2), before anything else in the kernel", pair),
    Rule(lambda k: tc.store(tc.peer(tile(st[f32, 64, 32]), 1), tc.full(TILE, 0.0)), LayoutError,
         "store: shapes and dtypes must agree, got rt[f32, 64, 64] and st[f32, 64, 32] of a peer",
         "convert first: tc.cast(x, dtype)", pair),
    Rule(lambda k: tc.copy_to_peer(tc.peer(tile(st[f32, 64, 32]), 1), tile(), k.b.full),
         LayoutError, "copy_to_peer: both sides have one type, got st[f32, 64, 32] of a peer and "
         "st[f32, 64, 64]", "", pair),
    Rule(lambda k: tc.store_to_peer(tile(), tc.full(TILE, 0.0), k.b.full), LayoutError,
         "store_to_peer: from registers to a peer's tile, got rt[f32, 64, 64] and "
         "st[f32, 64, 64]", "tc.store_to_peer(tc.peer(tile, rank), x, barrier)", pair),
    Rule(lambda k: tc.store_to_peer(tc.peer(tile(st[f32, 64, 32]), 1), tc.full(TILE, 0.0),
                                    k.b.full), LayoutError,
         "store_to_peer: shapes and dtypes must agree, got rt[f32, 64, 64] and "
         "st[f32, 64, 32] of a peer", "convert first: tc.cast(x, dtype)", pair),
    Rule(lambda k: tc.store_to_peer(tc.peer(tile(sv[bf16, 64]), 1), tc.full(rv[f32, 64], 0.0),
                                    k.b.full), DTypeError,
         "store_to_peer: dtypes must agree, got sv[bf16, 64] and rv[f32, 64]",
         "f32 registers take f32, bf16 and f16; s32 take s32", pair),
    Rule(lambda k: tc.add_to_peer(tc.peer(tile(), 1), tc.full(TILE, 0.0), k.b.full), DTypeError,
         "add_to_peer: the hardware combines s32, u32, got rt[f32, 64, 64]",
         "tc.atomic_add(tc.peer(tile, rank), x), and a barrier of the cluster", pair),
    Rule(lambda k: tc.atomic_add(tc.peer(tile(st[bf16, 64, 64]), 1),
                                 tc.cast(tc.full(TILE, 0.0), bf16)), DTypeError,
         "atomic_add: in a peer's shared memory 16-bit floats come out wrong, got "
         "rt[bf16, 64, 64]", "tc.cast(x, tc.f32) into an f32 tile", pair),
    Rule(lambda k: tc.max_to_peer(tc.peer(tile(), 1), tc.full(TILE, 0.0), None), SyncError,
         "max_to_peer: its bytes complete on an mbarrier, got None",
         "full = tc.barrier() before tc.warpgroup, "
         "tc.max_to_peer(tc.peer(tile, rank), x, full)", pair),
    # prints and assertions
    Rule(lambda k: tc.print("only text"), LayoutError,
         "print: shows run-time values, got 'only text' with none after it",
         "Python's own print shows what is known while tracing"),
    Rule(lambda k: one_thread(lambda: tc.print(k.x)), LayoutError,
         "print: a rt[f32, 64, 64] is printed by the scope that holds it"),
    Rule(lambda k: tc.device_assert(k.n, "n"), DTypeError,
         "device_assert: the condition is a comparison of run-time scalars, got Scalar(s32)",
         "tc.device_assert(i < n, message)"),
    Rule(lambda k: tc.device_assert(1 > 2, "wrong"), LayoutError,
         "device_assert: is false while tracing: wrong"),
    # caches
    Rule(lambda k: tc.load(k.A[0, 0], TILE, cache="evict_last"), LayoutError,
         "load: cache is \"evict_first\", of tiles and vectors of tensors, got cache='evict_last'",
         'cache="evict_first"'),
    Rule(lambda k: tc.store(tile(), tc.full(TILE, 0.0), cache="evict_first"), LayoutError,
         "store: cache is \"evict_first\", of tiles and vectors of tensors, got "
         "cache='evict_first'", "tc.store without cache"),
    # in place
    Rule(lambda k: tc.store(k.A[0, 0], k.x + 1.0), SyncError,
         "breaks: A is written here and read at",
         'declare it: A: tc.inout[f32, "M", "N"]'),
)  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rule(rule: Rule):
    def breaks(
        A: gl[f32, "M", "N"], B: gl[bf16, "M", "N"], v: gl[s32, "K"], P: gl[f32, "G", 48, 64],
        Q: gl[f32, "G", "R", 64], U: gl[u8, "M", "N"], n: s32,
        R: gl[f32, "L", 66],
    ):  # fmt: skip
        b = rule.before()
        with tc.warpgroup():
            reads = rule.message.startswith(("print: a rt", "breaks:"))
            x = tc.load(A[0, 0], TILE) if reads else None
            names = {"A": A, "B": B, "v": v, "P": P, "Q": Q, "U": U, "R": R, "n": n, "b": b, "x": x}
            rule.body(SimpleNamespace(**names))

    error = pytest.raises(rule.kind, lambda: tc.kernel(breaks).compile()).value
    assert error.message.startswith(rule.message), error.message
    assert (error.hint or "") == rule.hint
    assert error.loc is not None and error.loc.file == __file__
