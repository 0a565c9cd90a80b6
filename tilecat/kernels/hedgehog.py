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
told as soon as it is written, given back as soon as it is read. Tensor cores serve all in turn, and
the score role is the longest: S takes a block in behind Y, when they are at scores of the next.

    score  | Q K' Q K [1]   P' P [1]   phi(Q) [1]               | Q K' Q K [2] ...
    state                                       | S phi(Q) [1]  | S[1]   phi(K) [2]   V'P' + V P [2]
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
SLICES = 2  # warpgroups of the state role, of 64 columns of V and half of the features each
REGISTERS = 120, 184  # of the score role, and of the state role
MEETING = 9, 128 * SLICES  # named barrier of the state role
TILE, SUM = rt[f32, CHUNK, CHUNK], rv[f32, MAP, "col"]


class Lagging(ChunkScan):
    """A scan whose state takes in the block before, and makes features of keys itself."""

    def chunk(
        self, work: Any, place: Any, head: Any, tiles: Any, sums: Any, out: Any
    ) -> None:  # fmt: skip
        """State role: features of a chunk's keys, Y, and the next S."""
        (q, _, v), ((total,), y), (_, at, index) = tiles, sums, place
        before, made, gone = work.before, *(work.taken[(at.number + i) % 2] for i in range(2))
        work.tell(index)
        tc.mma_AB(work.z, work.tiles[1], work.maps[1], accumulate=False)
        tc.mma_ABt(y, before, self.p[head], accumulate=False)
        tc.mma_AtBt(y, v, work.p)
        tc.mma_wait(2)
        tc.barrier_sync(*MEETING)  # both have taken in what these features replace
        work.store_features(made.part(index, 2))  # telling Y fences it
        tc.mma_wait()
        work.p.release()
        tc.mma_ABt(y, tc.as_a(total, self.dtype), q)
        tc.mma_wait()
        work.phi.release()
        tc.mul(y, tc.load(work.rows, COLUMN), out=y)
        tc.store(self.y[index].tile.T, tc.cast(y, self.dtype))
        self.y.publish()
        tc.mma_AB(total, before, gone)
        tc.mma_AtB(work.total, gone.part(index, 2), work.ones)
        tc.mma_wait()
        tc.copy(before, tc.load(v.tile.T))


class Window(Recurrence):
    """Scores and features of both parts.

    Args:
        scan: the core. tensors: Q, K and V. tiles: of them, and of K of the block before.
        maps: tiles of a task, of queries and of keys.
        factors: tensors alpha and beta, f32 [heads]; beta is positive.
        scale: of scores.
        counts: sums of phi(k) before the first token, or None, and behind the last block but one.
    """

    def __init__(
        self, scan: ChunkScan, tensors: Any, tiles: Any, maps: Any, factors: Any, scale: Any,
        counts: Any,
    ):  # fmt: skip
        self.scan, self.tensors, self.tiles = scan, tensors, tiles
        self.maps, self.weights, self.scale, self.counts = maps, factors, scale, counts
        dtype, pipe, score = scan.dtype, scan.pipe, scan.score
        self.taken = tc.shared(st[dtype, CHUNK, FEATURES], 2)  # of a chunk, of the one before
        self.ones = tc.shared(st[dtype, CHUNK, 16])
        self.group = tensors[0].size(1) // tensors[1].size(1)
        self.near, self.far, self.z = (tc.empty(TILE) for _ in range(3))
        self.total = tc.empty(rt[f32, MAP, 16])  # of a half of phi(k), in each column
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
        for index in range(SLICES):
            tc.load_async(v[index], values.at(task.batch, head, at.row, index * CHUNK))

    # ---- the score role

    def start(self, task: Any) -> None:
        """What the head's features are multiplied by, and what is added to sums of weights."""
        alpha, beta = (tc.load(x.at(task.head), f32) for x in self.weights)
        self.ratio, self.least = alpha * tc.rcp(beta), NORM_EPS * tc.rcp(beta)

    def scores(self, task: Any, at: At, head: int) -> tuple[Any, ...]:
        """P and P', phi(Q), and beta over sums of weights; all are stored here."""
        (q, k, _, old), near, far = self.tiles, self.near, self.far
        tc.mma_ABt(near, q, k, accumulate=False)
        tc.mma_ABt(far, q, old, accumulate=False)
        tc.mma_wait(1)
        near = tc.tril(near, value=-math.inf)
        top = tc.row_max(near)
        tc.mma_wait()
        k.release()
        with tc.when(at.number == 0):
            tc.fill(far, -math.inf)
        top = tc.row_max(far, top) * (self.scale * LOG2_E)
        weights = self.weigh(near, top, self.p)
        weights = self.weigh(far, top, self.scan.p, weights)
        self.p.publish()
        tc.mma_AB(near, q, self.maps[0], accumulate=False)
        tc.mma_wait()
        q.release()
        for part, (sign, out) in enumerate(((1, far), (-1, near))):
            phi = softmax(near, sign, out, self.ratio)
            tc.store(self.phi.tile.part(part, 2), tc.cast(phi, self.scan.dtype))
        self.phi.publish()
        first, second = (tc.load(x.tile, SUM) for x in (self.sums[0], self.sums[1]))
        tc.fma(far, first, tc.mul(near, second, out=near), out=far)
        weights = tc.row_sum(far, weights, partial=True)
        tc.store(self.rows.tile, tc.rcp(tc.total(weights) + self.least))
        return (None,)

    def weigh(self, s: Any, top: Any, ring: Any, before: Any = None) -> Any:
        """Stores e^(s - m), and adds up its rows: shares of the lanes."""
        tc.exp2(tc.fma(s, self.scale * LOG2_E, -top, out=s), out=s)
        tc.store(ring, tc.cast(s, self.scan.dtype))
        return tc.row_sum(s, before, partial=True)

    # ---- the state role

    def begin(self, task: Any) -> None:
        """Nothing came before the first block."""
        index = self.scan.state.consumer
        tc.barrier_sync(*MEETING)  # of the task before all has been read
        tc.store(self.ones, tc.full(rt[self.scan.dtype, CHUNK, 16], 1.0))
        tc.fill(self.before, 0.0)
        tc.store(self.taken[1].part(index, 2), self.before)
        tc.fill(self.total, 0.0)
        if self.counts[0] is not None:
            first = self.counts[0].at(task.batch, task.head, index * MAP)
            tc.copy(self.total, self.total + tc.load(first, ROW))

    def tell(self, index: Any) -> None:
        """Sums of phi(k) of what is in S, for the score role."""
        tc.store(self.sums[index].tile, tc.row_max(self.total))
        self.sums.publish()

    def store_features(self, half: Any) -> None:
        """Half of phi(k), from z = K W."""
        z, sign = self.z, tc.select(self.scan.state.consumer == 0, 1.0, -1.0)
        phi = softmax(tc.mul(z, sign, out=z), 1, z, 1.0)
        tc.store(half, tc.cast(phi, self.scan.dtype))

    def end(self, task: Any, index: Any) -> None:
        """Sums of phi(k) of all but the last block."""
        tc.store(self.counts[1].at(task.batch, task.head, index * MAP), tc.row_max(self.total))


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
    scale: f32, *args, dim=128, stages=2, start=False,
):  # fmt: skip
    """O, and sums of phi(k) v^T and of phi(k) of all but the last block; Hk divides H.

    args: such sums before the first token, f32 [B, H, 128, V] and [B, H, 128]; where wanted.
    """
    if dim == MAP:
        tc.allow_spills(8)  # of the score role, which has fewer products to wait for
    tasks = tasks_of(Q.size(1), Q.size(0), Q.rows)
    scan = Lagging(
        Q.dtype, tasks, slices=SLICES, stages=stages, depth=1, registers=REGISTERS
    )
    pipe, tile = scan.pipe, st[Q.dtype, CHUNK, dim]
    q, old = (pipe.input(tile, ring="q", stages=1) for _ in range(2))
    k = pipe.input(tile, ring="k")
    v = pipe.input(st[Q.dtype, CHUNK, CHUNK], ring="v", count=SLICES)
    maps = pipe.input(st[Q.dtype, dim, MAP], ring="maps", count=2, rate="task")
    work = Window(scan, (Q, K, V), (q, k, v, old), maps, (Alpha, Beta), scale,
                  (args[1] if start else None, KS))  # fmt: skip
    states = (args[0] if start else None, KV)
    turned = [None if x is None else x.permute(0, 1, 3, 2) for x in states]

    @pipe.begin
    def _(task):
        for i, given in enumerate((QMap, KMap)):
            tc.load_async(maps[i], given.at(task.head, 0, 0))

    scan.run(work, work.phi, work.phi, v, O, *turned)
