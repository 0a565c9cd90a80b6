"""Hedgehog: a window of softmax attention, and linear attention with learned features before it.

Of tokens i in block c of 64, with m_i the largest score that i sees in its window:

    w_ij = beta e^(s_ij - m_i), s = scale q_i.k_j        j <= i in blocks c and c - 1
    w_ij = alpha phi(q_i).phi(k_j)                       j in blocks before c - 1
    o_i = sum of w_ij v_j / (sum of w_ij + 1e-6)         phi(x) = [softmax(x W), softmax(-x W)]

The scan of `chunk_scan` with a state that lags a block behind: it takes in the block that leaves
the window, the one before the chunk's, of which the state role still has V^T in registers and the
score role a copy of K. So a chunk is, with ' for that block,

    Y^T = S^T phi(Q)^T + V'^T P'^T + V^T P^T        S^T = S^T + V'^T phi(K')

The score role makes P' and P, e^(s - m) as it is, for rounding a 1 costs nothing; phi(Q) times
alpha / beta and phi(K') from one product with each map; and beta over the sum of the weights, in
f32, by which Y is multiplied. Sums of phi(k) are products with ones, of what S takes in.

P' and P, phi(Q), and phi(K') go through a ring each, of one stage: told as soon as it is written,
given back as soon as it is read. So the roles overlap without room for two chunks:

    score  P' P [0] | phi(Q) [0]     | phi(K') [0]       | P' P [1]     | ...
    state           | V'P' + V P [0] | S^T phi(Q) [0]    | S[0], V^T[0] | ...
"""

from __future__ import annotations

import math
from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, rv, st, sv

from .chunk_scan import CHUNK, COLUMN, LOG2_E, ROW, At, ChunkScan, Recurrence, tasks_of

T = DTypeVar("T", bf16, f16)
MAP = 64  # columns of a map
FEATURES = 2 * MAP
NORM_EPS = 1e-6  # added to sums of weights, as ThunderKittens' reference does
REGISTERS = 136, 176  # of the score role, and of two warpgroups of the state role
TILE, SUM = rt[f32, CHUNK, CHUNK], rv[f32, MAP, "col"]


class Lagging(ChunkScan):
    """A scan whose state takes in the block before: scores first, then what features made."""

    def chunk(
        self, work: Any, place: Any, head: Any, tiles: Any, sums: Any, out: Any
    ) -> None:  # fmt: skip
        """State role: Y and the next S of a chunk; each ring goes back as soon as it is read."""
        (q, k, v), ((total,), y), before = tiles, sums, work.before
        state = tc.as_a(total, self.dtype)
        tc.mma_ABt(y, before, self.p[head], accumulate=False)
        tc.mma_AtBt(y, v, work.p)
        tc.mma_wait()
        work.p.release()
        tc.mma_ABt(y, state, q)
        tc.mma_AB(total, before, k)
        tc.mma_wait(1)
        made = tc.cast(tc.mul(y, tc.load(work.rows, COLUMN), out=y), self.dtype)
        tc.store(self.y[place[2]].tile.T, made)
        tc.sync()
        work.rows.release()
        tc.mma_wait()
        tc.copy(before, tc.load(v.tile.T))


class Window(Recurrence):
    """Scores and features of both parts, and what V of the block before adds.

    Args:
        scan: the core. tensors, tiles: of Q, K and V.
        maps: tensors, of queries and of keys; the head's lie in shared memory.
        factors: tensors alpha and beta, f32 [heads]; beta is positive.
        scale: of scores. first: sums of phi(k) before the first token, or None.
    """

    def __init__(
        self, scan: ChunkScan, tensors: Any, tiles: Any, maps: Any, factors: Any, scale: Any,
        first: Any,
    ):  # fmt: skip
        self.scan, self.tensors, self.tiles = scan, tensors, tiles
        self.maps, self.weights, self.scale, self.first = maps, factors, scale, first
        self.shared = tc.shared(st[scan.dtype, tiles[0].kind.cols, MAP], 2)
        self.old = tc.shared(tiles[1].kind)
        self.group = tensors[0].size(1) // tensors[1].size(1)
        self.near, self.far = (tc.empty(TILE) for _ in range(2))
        self.sums = tc.shared(sv[f32, MAP], 2)
        self.ones = tc.shared(st[scan.dtype, CHUNK, 16])
        self.totals = [tc.empty(rt[f32, MAP, 16]) for _ in range(2)]
        self.before = tc.empty(rt[scan.dtype, CHUNK, CHUNK])
        self.p = scan.pipe.ring(st[scan.dtype, CHUNK, CHUNK], writer=scan.score, beside=scan.p)
        self.phi = [
            scan.pipe.ring(st[scan.dtype, CHUNK, FEATURES], writer=scan.score, stages=scan.depth)
            for _ in range(2)
        ]
        self.rows = scan.pipe.ring(sv[f32, CHUNK], writer=scan.score, beside=self.phi[0])

    def load(self, task: Any, at: At) -> None:
        """Q of the head; K and V of its group."""
        (q, k, v), (queries, keys, values) = self.tiles, self.tensors
        head = task.head // self.group
        tc.load_async(q, queries.at(task.batch, task.head, at.row, 0))
        tc.load_async(k, keys.at(task.batch, head, at.row, 0))
        for index in range(v.count):
            tc.load_async(v[index], values.at(task.batch, head, at.row, index * CHUNK))

    def start(self, task: Any) -> None:
        """The head's maps, and sums of phi(k) of earlier tokens."""
        for tensor, tile in zip(self.maps, (self.shared[0], self.shared[1]), strict=True):
            for row in range(0, tile.type.rows, CHUNK):
                part = tile[row : row + CHUNK, :]
                tc.store(part, tc.load(tensor.at(task.head, row, 0), self.before.type))
        tc.store(self.ones, tc.full(rt[self.scan.dtype, CHUNK, 16], 1.0))
        for part, total in enumerate(self.totals):
            tc.fill(total, 0.0)
            if self.first is not None:
                place = self.first.at(task.batch, task.head, part * MAP)
                tc.copy(total, total + tc.load(place, ROW))
            tc.store(self.sums[part], tc.row_max(total))
        self.keep(lambda part, parts: tc.zeros(self.before.type))

    def begin(self, task: Any) -> None:
        """State role: nothing came before the first block."""
        tc.fill(self.before, 0.0)

    def scores(self, task: Any, at: At, head: int) -> tuple[Any, ...]:
        """P and P', features, and beta over sums of weights; all are stored here."""
        (q, k, _), near, far = self.tiles, self.near, self.far
        alpha, beta = (tc.load(x.at(task.head), f32) for x in self.weights)
        tc.mma_ABt(near, q, k, accumulate=False)
        tc.mma_ABt(far, q, self.old, accumulate=False)
        tc.mma_wait()
        near = tc.tril(near, value=-math.inf)
        with tc.when(at.number == 0):
            tc.fill(far, -math.inf)
        factor = self.scale * LOG2_E
        top = tc.row_max(far, tc.row_max(near)) * factor
        weights = self.weigh(near, top, self.p)
        tc.mma_AB(near, q, self.shared[0], accumulate=False)
        weights = self.weigh(far, top, self.scan.p, weights)
        self.p.publish()
        tc.mma_wait()
        for part, phi in enumerate(self.features(near, far, alpha / beta)):
            weights = tc.row_sum(phi * tc.load(self.sums[part], SUM), weights)
            tc.store(self.phi[0].tile.part(part, 2), tc.cast(phi, self.scan.dtype))
            if part == 0:
                tc.mma_AB(far, self.old, self.shared[1], accumulate=False)
        tc.store(self.rows.tile, tc.rcp(weights + NORM_EPS / beta))
        self.phi[0].publish()
        seen = tc.select(at.number > 0, 1.0, 0.0)
        tc.mma_wait()
        for part, phi in enumerate(self.features(far, near, seen)):
            tc.store(self.phi[1].tile.part(part, 2), tc.cast(phi, self.scan.dtype))
        taken = self.phi[1].tile
        self.phi[1].publish()
        self.keep(lambda part, parts: tc.load(k.tile.part(part, parts)))
        for part, total in enumerate(self.totals):
            tc.mma_AtB(total, taken.part(part, 2), self.ones)
        tc.mma_wait()
        for part, total in enumerate(self.totals):
            tc.store(self.sums[part], tc.row_max(total))
        tc.sync()
        return (None,)

    def weigh(self, s: Any, top: Any, ring: Any, before: Any = None) -> Any:
        """Stores e^(s - m), and adds up its rows."""
        tc.exp2(tc.fma(s, self.scale * LOG2_E, -top, out=s), out=s)
        tc.store(ring, tc.cast(s, self.scan.dtype))
        return tc.row_sum(s, before)

    def keep(self, part_of: Any) -> None:
        """Score role: keys for the next chunk, 64 columns after 64 columns."""
        parts = self.old.type.cols // CHUNK
        for part in range(parts):
            tc.store(self.old.part(part, parts), part_of(part, parts))
        tc.fence_async()
        tc.sync()

    def features(self, z: Any, other: Any, factor: Any) -> Any:
        """`factor softmax(z)`, in `other`, and `factor softmax(-z)`, in place of z = x W."""
        for sign, end, e in ((1.0, tc.row_max(z), other), (-1.0, tc.row_min(z), z)):
            tc.exp2(tc.fma(z, sign * LOG2_E, end * (-sign * LOG2_E), out=e), out=e)
            yield tc.mul(e, tc.rcp(tc.row_sum(e)) * factor, out=e)


@tc.kernel
def hedgehog(
    Q: gl[T, "B", "H", "T", "D"], K: gl[T, "B", "Hk", "T", "D"], V: gl[T, "B", "Hk", "T", "V"],
    QMap: gl[T, "H", "D", 64], KMap: gl[T, "H", "D", 64], Alpha: gl[f32, "H"], Beta: gl[f32, "H"],
    O: gl[T, "B", "H", "T", "V"], KV: gl[f32, "B", "H", 128, "V"], KS: gl[f32, "B", "H", 128],
    scale: f32, *args, dim=128, slices=2, stages=2, depth=1, start=False, registers=REGISTERS,
):  # fmt: skip
    """O, and sums of phi(k) v^T and of phi(k) of all but the last block; Hk divides H.

    args: such sums before the first token, f32 [B, H, 128, V] and [B, H, 128]; where wanted.
    """
    tasks = tasks_of(Q.size(1), Q.size(0), Q.rows)
    scan = Lagging(
        Q.dtype, tasks, slices=slices, stages=stages, depth=depth, registers=registers
    )
    q, k = (scan.pipe.input(st[Q.dtype, CHUNK, dim]) for _ in range(2))
    v = scan.pipe.input(st[Q.dtype, CHUNK, CHUNK], count=slices)
    work = Window(scan, (Q, K, V), (q, k, v), (QMap, KMap), (Alpha, Beta), scale,
                  args[1] if start else None)  # fmt: skip

    @scan.score.finish
    def _(task):
        for part in range(2):
            sums = tc.load(work.sums[part], SUM)
            tc.store(KS.at(task.batch, task.head, part * MAP), sums)
        tc.sync()

    states = (args[0] if start else None, KV)
    turned = [None if x is None else x.permute(0, 1, 3, 2) for x in states]
    scan.run(work, work.phi[0], work.phi[1], v, O, *turned)
