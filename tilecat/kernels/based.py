"""Based: causal linear attention with the degree two Taylor expansion of exp.

    o_i = sum over j <= i of w_ij v_j, w = 1 + s + s^2 / 2, s = scale q_i.k_j

K is 16, and w a product of 153 features of q and of k (`tc.taylor_features`): the scan of
`chunk_scan` with these in place of q and k. Within a chunk w is made of s itself, in f32. The score
role makes features and scores, two warpgroups in turn (one, where a third kind of role is beside
it: four and the producer's would leave a thread too few registers for products of 160 columns).

Divided by the sum of w (and 1e-6) where asked for: of tokens of earlier chunks that is
n + scale q.m + (scale^2 / 2) q.M q with n their number, m = sum k and M = sum k k^T, 16 x 16, kept
in f32 by a role of its own.
"""

from __future__ import annotations

from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, rv, st, sv

from .chunk_scan import COLUMN, ROW, ChunkScan, Recurrence
from .chunk_tasks import CHUNK, At, tasks_of

T = DTypeVar("T", bf16, f16)
DIM = 16
FEATURES = 160
NORM_EPS = 1e-6  # added to sums of weights, as FLA does
SCORE, STATE, SUMS = 136, 208, 136  # registers


class Norms:
    """The role that sums the weights of earlier chunks, a row vector a chunk; and the division.

    Args:
        scan: the core. q, k, wide: queries; keys; keys and 48 columns of zeros, inputs.
        scale: of scores.
        totals: where sums of weights are stored, f32 [B, H, T], or None.
    """

    def __init__(self, scan: ChunkScan, q: Any, k: Any, wide: Any, scale: Any, totals: Any):
        self.q, self.k, self.wide, self.scale, self.totals = q, k, wide, scale, totals
        role, vector = scan.pipe.role("norms", registers=SUMS), sv[f32, CHUNK]
        self.before = scan.pipe.ring(vector, writer=role, stages=scan.depth)
        self.inside = scan.pipe.ring(vector, writer=scan.score, beside=scan.p)
        self.total, self.y = (tc.empty(rt[f32, CHUNK, DIM]) for _ in range(2))
        self.first = tc.empty(rv[f32, DIM, "col"])
        self.parts = tc.shared(st[scan.dtype, CHUNK, DIM], 2)
        role.start(lambda task: self.start())
        role.compute(lambda task, step: self.chunk((step * CHUNK).to(f32)))

    def start(self) -> None:
        """Nothing has come before."""
        for tile in (self.total, self.first):
            tc.fill(tile, 0.0)

    def chunk(self, tokens: Any) -> None:
        """Sums for queries of a chunk with so many before, and the chunk's keys into M and m."""
        for part, x in enumerate(in_two(self.total, self.q.kind.dtype)):
            tc.store(self.parts[part], x)
        tc.fence_async()
        tc.sync()
        for part in range(2):  # the 16 rows of the product of wide keys that are not zero
            tc.mma_AB(self.y, self.q, self.parts[part][:DIM, :], accumulate=part > 0)
        tc.mma_AtB(self.total, self.wide, self.k)
        k, q = (tc.cast(tc.load(x), f32) for x in (self.k, self.q))
        tc.mma_wait(1)
        weights = tc.fma(self.y, 0.5 * self.scale, self.first)
        tc.store(self.before.tile, tc.row_sum(q * weights) * self.scale + tokens)
        tc.copy(self.first, tc.col_sum(k, self.first))
        tc.mma_wait()

    def divide(self, task: Any, at: At, y: Any) -> Any:
        """State role: Y^T over the sums of weights."""
        sums = tc.load(self.inside, COLUMN) + tc.load(self.before, COLUMN)
        if self.totals is not None:
            with tc.when(task.block == 0):
                tc.store(self.totals.at(task.batch, task.head, at.row), sums)
        return tc.mul(y, tc.rcp(sums + NORM_EPS), out=y)


def in_two(x: Any, dtype: Any) -> tuple[Any, Any]:
    """An f32 tile rounded to a dtype, and rounded what is left of it."""
    high = tc.cast(x, dtype)
    return high, tc.cast(x - tc.cast(high, f32), dtype)


class Taylor(Recurrence):
    """Scores and features.

    Args:
        scan: the core. tensors, tiles: of Q, K, V, and of what is beside them.
        features: rings, of queries and of keys. scale: of scores; root: its root.
        norms: by what outputs are divided, or None.
    """

    def __init__(
        self, scan: ChunkScan, tensors: Any, tiles: Any, features: Any, scale: Any, root: Any,
        norms: Norms | None,
    ):  # fmt: skip
        self.scan, self.tensors, self.tiles, self.features = scan, tensors, tiles, features
        self.scale, self.root, self.norms = scale, root, norms
        self.s = tc.empty(rt[f32, CHUNK, CHUNK])

    def load(self, task: Any, at: At) -> None:
        """Q, K, V."""
        for i, (tensor, tiles) in enumerate(zip(self.tensors, self.tiles, strict=True)):
            self.scan.load(tiles, tensor, task, at, columns=i == 2)

    def scores(self, task: Any, at: At, head: int) -> tuple[Any, ...]:
        """`1 + s + s^2 / 2`; features meanwhile."""
        (q, k), s = self.tiles[:2], self.s
        tc.mma_ABt(s, q, k, accumulate=False)
        for tile, ring in zip((q, k), self.features, strict=True):
            tc.store(ring, tc.taylor_features(tc.load(tile), self.root))
        tc.mma_wait()
        tc.mul(s, self.scale, out=s)
        p = self.scan.mask(tc.fma(s, tc.fma(s, 0.5, 1.0), 1.0, out=s))
        if self.norms is not None:
            tc.store(self.norms.inside.tile, tc.row_sum(p))
        return (p,)

    def result(self, task: Any, at: At, index: Any, y: Any) -> Any:
        """Over the sum of weights, where asked for."""
        return y if self.norms is None else self.norms.divide(task, at, y)


@tc.kernel
def based(
    Q: gl[T, "B", "H", "T", 16], K: gl[T, "B", "H", "T", 16], V: gl[T, "B", "H", "T", "V"],
    O: gl[T, "B", "H", "T", "V"], scale: f32, root: f32, *args, slices=1, stages=3, packed=False,
    norm=False, sums=False, start=False, end=False, reverse=False, registers=(SCORE, STATE),
):  # fmt: skip
    """O, and states f32 [sequences, H, 160, V] before and after; root is that of the scale.

    args: cu_seqlens s32, sums of weights f32 [B, H, T], states before and after; where wanted.
    """
    args = list(args)
    starts, totals, *states = (
        args.pop(0) if wanted else None for wanted in (packed, sums, start, end)
    )
    tasks = tasks_of(Q.size(1), Q.size(0), Q.rows, tc.cdiv(V.cols, CHUNK * slices), starts)
    scan = ChunkScan(Q.dtype, tasks, slices=slices, stages=stages, reverse=reverse, packed=packed,
                     registers=registers, turns=1 if norm else 2)  # fmt: skip
    q, k = (scan.pipe.input(st[Q.dtype, CHUNK, DIM]) for _ in range(2))
    v = scan.pipe.input(st[Q.dtype, CHUNK, CHUNK], count=slices)
    features = [
        scan.pipe.ring(st[Q.dtype, CHUNK, FEATURES], writer=scan.score, beside=scan.p)
        for _ in range(2)
    ]
    tensors, tiles, norms = [Q, K, V], [q, k, v], None
    if norm:
        wide = scan.pipe.input(st[Q.dtype, CHUNK, CHUNK])
        tensors, tiles = [*tensors, K], [*tiles, wide]
        norms = Norms(scan, q, k, wide, scale, totals)
    work = Taylor(scan, tensors, tiles, features, scale, root, norms)
    turned = [None if x is None else x.permute(0, 1, 3, 2) for x in states]
    scan.run(work, *features, v, O, *turned)


@tc.kernel
def norm_gradients(
    dO: gl[T, "B", "H", "T", "V"], O: gl[T, "B", "H", "T", "V"], Sums: gl[f32, "B", "H", "T"],
    dN: gl[T, "B", "H", "T", "V"], dSums: gl[T, "B", "H", "T", 8], Ones: gl[T, "B", "H", "T", 8],
):  # fmt: skip
    """Of O = N / (Sums + 1e-6): dN, and dSums in two columns, rounded and what is left; and ones.

    What is added to all products of a row of dN with values is a product of dSums with ones.
    """
    blocks, tile = tc.cdiv(dO.rows, CHUNK), rt[dO.dtype, CHUNK, CHUNK]
    with tc.warpgroup():
        for task in tc.range(tc.cta_id(), dO.size(0) * dO.size(1) * blocks, tc.num_ctas()):
            head = task // blocks
            place = head // dO.size(1), head % dO.size(1), task % blocks * CHUNK
            factor = tc.rcp(tc.load(Sums.at(*place), ROW) + NORM_EPS)
            dots = tc.zeros(ROW)
            for block in tc.range(tc.cdiv(dO.cols, CHUNK)):
                do, o = (
                    tc.cast(tc.load(x.at(*place, block * CHUNK), tile), f32) for x in (dO, O)
                )
                tc.copy(dots, tc.row_sum(do * o, dots))
                tc.store(dN.at(*place, block * CHUNK), tc.cast(do * factor, dN.dtype))
            wide = tc.zeros(rt[f32, CHUNK, DIM]) - dots * factor
            high, rest = (tc.cast(x, f32) for x in in_two(wide, dO.dtype))
            column = tc.col_index(wide)
            made = tc.select(column == 0, high, tc.select(column == 1, rest, 0.0))
            tc.store(dSums.at(*place, 0), tc.cast(made, dSums.dtype))
            tc.store(Ones.at(*place, 0), tc.full(rt[dO.dtype, CHUNK, DIM], 1.0))
