"""Hedgehog: a window of softmax attention, and linear attention with learned features before it.

Of tokens i in block c of 64, with m_i the largest score that i sees in its window:

    w_ij = beta e^(s_ij - m_i), s = scale q_i.k_j        j <= i in blocks c and c - 1
    w_ij = alpha phi(q_i).phi(k_j)                       j in blocks before c - 1
    o_i = sum of w_ij v_j / (sum of w_ij + 1e-6)         phi(x) = [softmax(x W), softmax(-x W)]

The scan of `chunk_scan` with a state that lags a block behind: it takes in the block that leaves
the window, the one before the chunk's, of which the state role still has V^T in registers, and
features of its keys in shared memory; K is loaded for the score role again. With ' for that block,

    Y^T = V'^T P'^T + V^T P^T + S^T phi(Q)^T        S^T = S^T + V'^T phi(K')

The score role makes P' and P, e^(s - m) as it is, for rounding a 1 costs nothing; phi(Q) times
alpha / beta; and beta over the sum of the weights, in f32, by which Y is multiplied. The state
role makes phi(K), of which each warpgroup of two makes a half, and sums of it, products with ones,
for the score role. P' and P, phi(Q), and the sums of weights go through a ring each, of one stage:
told as soon as it is written, given back as soon as it is read, so the roles overlap:

    score  P' P [0] | phi(Q) [0]       | P' P [1]                       | ...
    state           | V'P' + V P [0]   | S phi(Q) [0], S[0], phi(K) [0] | ...
"""

from __future__ import annotations

import math
from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, rv, st, sv

from .chunk_scan import COLUMN, LOG2_E, ROW, ChunkScan, Recurrence
from .chunk_tasks import CHUNK, At, tasks_of

T = DTypeVar("T", bf16, f16)
MAP = 64  # columns of a map
FEATURES = 2 * MAP
NORM_EPS = 1e-6  # added to sums of weights, as ThunderKittens' reference does
# Of the score role, and of each warpgroup of the state role, of which there are one or two.
REGISTERS = {1: (168, 216), 2: (120, 184)}
MEETING = 9  # named barrier: of the state role's warpgroups; behind it one of each
TILE, SUM = rt[f32, CHUNK, CHUNK], rv[f32, MAP, "col"]


class Lagging(ChunkScan):
    """A scan whose state takes in the block before, and makes that block's features itself."""

    def chunk(
        self, work: Any, place: Any, head: Any, tiles: Any, sums: Any, out: Any
    ) -> None:  # fmt: skip
        """State role: Y and the next S of a chunk, then features of its keys."""
        (q, _, v), ((total,), y), before, index = tiles, sums, work.before, place[2]
        work.tell(index)
        state = tc.as_a(total, self.dtype)
        tc.mma_ABt(y, before, self.p[head], accumulate=False)
        tc.mma_AtBt(y, v, work.p)
        tc.mma_wait()
        work.p.release()
        tc.mma_ABt(y, state, q)
        work.meet()  # the halves of what is taken in are there
        tc.mma_AB(total, before, work.taken)
        parts = work.parts(index)
        for part, count in parts:
            tc.mma_AtB(count, work.taken.part(part, 2), work.ones)
        tc.mma_wait(1 + len(parts))
        work.phi.release()
        tc.mma_AB(work.z, work.tiles[1], work.maps[1], accumulate=False)
        made = tc.cast(tc.mul(y, tc.load(work.rows, COLUMN), out=y), self.dtype)
        tc.store(self.y[index].tile.T, made)
        self.y.publish()
        tc.mma_wait(1)
        work.meet()  # both have taken them in
        work.rows.release()
        tc.copy(before, tc.load(v.tile.T))
        tc.mma_wait()
        for part, _ in parts:
            work.store_features(part, y)
        tc.fence_async()


class Window(Recurrence):
    """Scores and features of both parts.

    Args:
        scan: the core. tensors: Q, K and V. tiles: of them, and of K of the block before.
        maps: tensors, of queries and of keys; the head's lie in shared memory.
        factors: tensors alpha and beta, f32 [heads]; beta is positive.
        scale: of scores.
        counts: sums of phi(k) before the first token, or None, and behind the last block but one.
    """

    def __init__(
        self, scan: ChunkScan, tensors: Any, tiles: Any, maps: Any, factors: Any, scale: Any,
        counts: Any,
    ):  # fmt: skip
        self.scan, self.tensors, self.tiles = scan, tensors, tiles
        self.given, self.weights, self.scale, self.counts = maps, factors, scale, counts
        dtype, pipe, score = scan.dtype, scan.pipe, scan.score
        self.maps = tc.shared(st[dtype, tiles[0].kind.cols, MAP], 2)
        self.taken = tc.shared(st[dtype, CHUNK, FEATURES])
        self.ones = tc.shared(st[dtype, CHUNK, 16])
        self.group = tensors[0].size(1) // tensors[1].size(1)
        self.near, self.far, self.z = (tc.empty(TILE) for _ in range(3))
        self.totals = [tc.empty(rt[f32, MAP, 16]) for _ in range(2 // scan.slices)]
        self.before = tc.empty(rt[dtype, CHUNK, CHUNK])
        self.p = pipe.ring(st[dtype, CHUNK, CHUNK], writer=score, beside=scan.p)
        self.phi = pipe.ring(st[dtype, CHUNK, FEATURES], writer=score, stages=scan.depth)
        self.rows = pipe.ring(sv[f32, CHUNK], writer=score, stages=scan.depth)
        self.sums = pipe.ring(sv[f32, MAP], writer=scan.state, count=2, stages=1)

    def load(self, task: Any, at: At) -> None:
        """Q of the head; K and V of its group."""
        (q, k, v, old), (queries, keys, values) = self.tiles, self.tensors
        head = task.head // self.group
        tc.load_async(q, queries.at(task.batch, task.head, at.row, 0))
        tc.load_async(k, keys.at(task.batch, head, at.row, 0))
        tc.load_async(old, keys.at(task.batch, head, at.row - CHUNK, 0))
        for index in range(v.count):
            tc.load_async(v[index], values.at(task.batch, head, at.row, index * CHUNK))

    # ---- the score role

    def start(self, task: Any) -> None:
        """The head's map of queries."""
        for row in range(0, self.maps[0].type.rows, CHUNK):
            self.take_map(task, 0, row)
        tc.sync()

    def take_map(self, task: Any, side: int, row: int) -> None:
        """64 rows of a map."""
        part = self.given[side].at(task.head, row, 0)
        tc.store(self.maps[side][row : row + CHUNK, :], tc.load(part, self.before.type))

    def scores(self, task: Any, at: At, head: int) -> tuple[Any, ...]:
        """P and P', phi(Q), and beta over sums of weights; all are stored here."""
        (q, k, _, old), near, far = self.tiles, self.near, self.far
        alpha, beta = (tc.load(x.at(task.head), f32) for x in self.weights)
        tc.mma_ABt(near, q, k, accumulate=False)
        tc.mma_ABt(far, q, old, accumulate=False)
        tc.mma_wait(1)
        near = tc.tril(near, value=-math.inf)
        top = tc.row_max(near)
        tc.mma_wait()
        k.release()
        old.release()
        with tc.when(at.number == 0):
            tc.fill(far, -math.inf)
        top = tc.row_max(far, top) * (self.scale * LOG2_E)
        weights = self.weigh(near, top, self.p)
        tc.mma_AB(near, q, self.maps[0], accumulate=False)
        weights = self.weigh(far, top, self.scan.p, weights)
        self.p.publish()
        tc.mma_wait()
        q.release()
        made = (1, far), (-1, near)
        for part, (sign, out) in enumerate(made):
            phi = softmax(near, sign, out, alpha / beta)
            tc.store(self.phi.tile.part(part, 2), tc.cast(phi, self.scan.dtype))
        self.phi.publish()
        for part, (_, phi) in enumerate(made):
            share = phi * tc.load(self.sums[part].tile, SUM)
            weights = tc.row_sum(share, weights, partial=True)
        tc.store(self.rows.tile, tc.rcp(tc.total(weights) + NORM_EPS / beta))
        return (None,)

    def weigh(self, s: Any, top: Any, ring: Any, before: Any = None) -> Any:
        """Stores e^(s - m), and adds up its rows: shares of the lanes."""
        tc.exp2(tc.fma(s, self.scale * LOG2_E, -top, out=s), out=s)
        tc.store(ring, tc.cast(s, self.scan.dtype))
        return tc.row_sum(s, before, partial=True)

    # ---- the state role

    def parts(self, index: Any) -> list[tuple[Any, Any]]:
        """Which halves of phi(k) a warpgroup makes, and their sums."""
        return [(index, self.totals[0])] if self.scan.slices == 2 else [*enumerate(self.totals)]

    def begin(self, task: Any) -> None:
        """The head's map of keys; nothing came before the first block."""
        index, rows = self.scan.state.consumer, self.maps[1].type.rows
        self.meet()  # of the task before all has been read
        for row in range(0, rows, CHUNK):
            with tc.when(index == row // CHUNK):
                self.take_map(task, 1, row)
        tc.store(self.ones, tc.full(rt[self.scan.dtype, CHUNK, 16], 1.0))
        tc.fill(self.before, 0.0)
        for part, total in self.parts(index):
            tc.store(self.taken.part(part, 2), self.before)
            tc.fill(total, 0.0)
            if self.counts[0] is not None:
                place = self.counts[0].at(task.batch, task.head, part * MAP)
                tc.copy(total, total + tc.load(place, ROW))
        tc.fence_async()  # the warpgroups meet before they read it

    def meet(self) -> None:
        """The role's warpgroups wait for each other."""
        tc.barrier_sync(MEETING, self.scan.slices * 128)

    def tell(self, index: Any) -> None:
        """Sums of phi(k) of what is in S, for the score role."""
        for part, total in self.parts(index):
            tc.store(self.sums[part].tile, tc.row_max(total))
        self.sums.publish()

    def store_features(self, part: Any, other: Any) -> None:
        """Half of phi(k), from z = K W; where it makes both, the first in another tile."""
        z = self.z
        if self.scan.slices == 2:
            phi = softmax(tc.mul(z, tc.select(part == 0, 1.0, -1.0), out=z), 1, z, 1.0)
        else:
            phi = softmax(z, *((1, other), (-1, z))[part], 1.0)
        tc.store(self.taken.part(part, 2), tc.cast(phi, self.scan.dtype))

    def end(self, task: Any, index: Any) -> None:
        """Sums of phi(k) of all but the last block."""
        for part, total in self.parts(index):
            place = self.counts[1].at(task.batch, task.head, part * MAP)
            tc.store(place, tc.row_max(total))


def softmax(z: Any, sign: int, out: Any, factor: Any) -> Any:
    """Of rows the softmax of z or -z, times a factor."""
    end = (tc.row_max if sign > 0 else tc.row_min)(z) * (-sign * LOG2_E)
    tc.exp2(tc.fma(z, sign * LOG2_E, end, out=out), out=out)
    return tc.mul(out, tc.rcp(tc.row_sum(out)) * factor, out=out)


@tc.kernel
def hedgehog(
    Q: gl[T, "B", "H", "T", "D"], K: gl[T, "B", "Hk", "T", "D"], V: gl[T, "B", "Hk", "T", "V"],
    QMap: gl[T, "H", "D", 64], KMap: gl[T, "H", "D", 64], Alpha: gl[f32, "H"], Beta: gl[f32, "H"],
    O: gl[T, "B", "H", "T", "V"], KV: gl[f32, "B", "H", 128, "V"], KS: gl[f32, "B", "H", 128],
    scale: f32, *args, dim=128, slices=2, stages=2, depth=1, start=False, registers=None,
):  # fmt: skip
    """O, and sums of phi(k) v^T and of phi(k) of all but the last block; Hk divides H.

    args: such sums before the first token, f32 [B, H, 128, V] and [B, H, 128]; where wanted.
    """
    tasks = tasks_of(Q.size(1), Q.size(0), Q.rows)
    scan = Lagging(
        Q.dtype, tasks, slices=slices, stages=stages, depth=depth,
        registers=registers or REGISTERS[slices],
    )
    pipe, tile = scan.pipe, st[Q.dtype, CHUNK, dim]
    q, k = pipe.input(tile, ring="q"), pipe.input(tile, ring="k")
    old = pipe.input(tile, ring="old", stages=1)
    v = pipe.input(st[Q.dtype, CHUNK, CHUNK], ring="v", count=slices)
    work = Window(scan, (Q, K, V), (q, k, v, old), (QMap, KMap), (Alpha, Beta), scale,
                  (args[1] if start else None, KS))  # fmt: skip
    states = (args[0] if start else None, KV)
    turned = [None if x is None else x.permute(0, 1, 3, 2) for x in states]
    scan.run(work, work.phi, work.phi, v, O, *turned)
