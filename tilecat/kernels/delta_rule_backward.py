"""Gradients of the (gated) delta rule: the two scans whose values are made of the state.

With n_t what a token writes, `S_t = e^g_t S_(t-1) + k_t n_t^T`: given n, the delta rule is gated
linear attention, and dq and the parts of dk are its scans. n is made again, with u of
`n_t = b_t u_t`; behind a chunk the gradient D of the state runs backwards:

    A0[i, j] = k_i.k_j e^(G_i - G_j), i > j            P[i, j] = scale q_i.k_j e^(G_i - G_j), i >= j
    U = (I + A0 diag(b))^-1 (V - e^G K S)                               N = diag(b) U
    X = e^(G_end - G) K D + P^T dO                                      dV = diag(b) dU
    dU = (I + diag(b) A0)^-T X
    D = e^G_end D + (e^G scale Q)^T dO - (e^G K)^T dV                   before the chunk

so D has the chain of products that S has. b has the gradient `u_t.dU_t`. Both scans are those of
`chunk_scan`, with chunks of their own: no product of theirs has queries. Keys and queries are of
norm 1 already, where that is wanted.

    score    T [0]  | T [1]     | T [2]    ...           (one of two warpgroups; of D: T, P)
    state           | N U S [0] | N U S [1] ...          (of D: dV D, from the last chunk on)
"""

from __future__ import annotations

from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, st

from .checkpoints import Checkpoints
from .chunk_cluster import VECTOR
from .chunk_scan import COLUMN, ChunkScan
from .chunk_tasks import CHUNK, At, tasks_of
from .delta_rule import REGISTERS, TILE, Parts, Scores

T = DTypeVar("T", bf16, f16)
TIGHT = 128, 224  # as `REGISTERS`, of the scan of gradients: its state role has two products more


class Written(ChunkScan):
    """N, U and the states after chunks; the ring of P has the inverses."""

    def rings(self) -> None:
        """As of the scan, P in two parts."""
        high, low = (st[self.dtype, rows, CHUNK] for rows in (Parts.ROWS, CHUNK))
        self.p = self.pipe.ring(high, writer=self.score, stages=self.depth)
        self.y = self.pipe.ring(low, writer=self.state, stages=self.outputs)
        self.vectors(self.p)

    def prepare(self, work: Any) -> None:
        """What else passes from role to role: a ring of U, that of b, and the inverses."""
        self.u = self.pipe.ring(self.y.kind, writer=self.state, beside=self.y)
        self.beta, self.t = work.b, work.t

    def chunk(
        self, work: Any, place: Any, head: Any, tiles: Any, sums: Any, out: Any
    ) -> None:  # fmt: skip
        """State role: N, U and the next S."""
        (_, k, v), ((total,), u) = tiles, sums
        last = tc.load(self.a[head].tile.at(CHUNK - 1))
        before = tc.as_a(total, self.dtype)
        tc.mul(total, last, out=total)
        tc.mma_ABt(u, before, k, accumulate=False)
        v = tc.load(v.tile.T)
        tc.mma_wait()
        tc.fma(u, -tc.load(self.a[head].tile, COLUMN), tc.cast(v, f32), out=u)
        self.t.multiply(tc.mma_ABt, u, tc.cast(u, self.dtype))
        tc.mma_wait()
        made = tc.cast(u, self.dtype)
        tc.mul(u, tc.load(self.beta.tile, COLUMN), out=u)
        results = tc.cast(u, self.dtype), made
        made = tc.mul(u, tc.load(self.b[head].tile, COLUMN), out=u)
        if self.packed:
            tc.mask_cols(made, place[1].rows, 0.0)
        tc.mma_AB(total, tc.cast(made, self.dtype), k)
        for ring, result, to in zip((self.y, self.u), results, out, strict=True):
            tc.store(ring[place[2]].tile.T, result)
            if self.packed:
                self._store_part(place, result, to)
        tc.mma_wait()

    def _store(self, task: Any, at: At, out: Any, ring: Any = None) -> None:
        for ring, tensor in zip((self.y, self.u), out, strict=True):
            super()._store(task, at, tensor, ring)


class Kept(Scores):
    """Scores, a ring of b, and what happens to states on the way: `keep`, or nothing."""

    points: Checkpoints | None = None

    def __init__(self, scan: ChunkScan, tensors: Any, tiles: Any, gates: Any):
        super().__init__(scan, tensors, tiles, gates)
        self.b = scan.pipe.ring(VECTOR, writer=scan.score, beside=scan.p)

    def keep(self, length: Any, states: Any, products: Any = None) -> None:
        """Stores states at checkpoints, or multiplies by those stored: see `Checkpoints`."""
        self.points = Checkpoints(self.scan, length, states, products)

    def passing(self, task: Any, at: At, index: Any, state: Any) -> None:
        """State role: a state between two chunks."""
        if self.points is not None:
            self.points.passing(task, at, index, state)


class Inverses(Kept):
    """(I + A0 diag(b))^-1."""

    def __init__(self, scan: ChunkScan, tensors: Any, tiles: Any, gates: Any):
        super().__init__(scan, tensors, tiles, gates)
        self.t = Parts(scan.p)

    def scores(self, task: Any, at: At, head: int) -> tuple[Any, ...]:
        """The inverse; decays out of the state and into it."""
        k, kk = self.tiles[0], self.kk
        tc.mma_ABt(kk, k, k, accumulate=False)
        sums, beta = self.made(task, at)
        factors = self.decays(sums, beta)
        tc.store(self.b.tile, beta)
        tc.mul(factors, self.column(self.betas), out=factors)
        tc.mma_wait()
        self.t.invert(tc.mul(kk, factors, out=kk))
        return None, tc.exp2(sums), tc.exp2(self.last() - sums)


@tc.kernel
def delta_rule_written(
    K: gl[T, "B", "Hk", "T", "K"], V: gl[T, "B", "H", "T", "V"], Beta: gl[f32, "B", "H", "T"],
    N: gl[T, "B", "H", "T", "V"], U: gl[T, "B", "H", "T", "V"], *args, dim=128, stages=3, g=False,
    packed=False, start=False, end=False, checkpoints=False, registers=REGISTERS, depth=4,
):  # fmt: skip
    """What tokens write, `n_t = b_t u_t`, and states f32 [sequences, H, K, V] before and after.

    args: g f32 [B, H, T], cu_seqlens s32, states before and after, checkpoints f32 [.., H, V, K];
    where wanted.
    """
    args = list(args)
    gates, starts, *states, kept = (
        args.pop(0) if wanted else None for wanted in (g, packed, start, end, checkpoints)
    )  # fmt: skip
    tasks = tasks_of(V.size(1), V.size(0), V.rows, tc.cdiv(V.cols, CHUNK), starts)
    scan = Written(K.dtype, tasks, stages=stages, depth=depth, outputs=2, decayed=True,
                   packed=packed, turns=2, registers=registers)  # fmt: skip
    k = scan.pipe.input(st[K.dtype, CHUNK, dim])
    v = scan.pipe.input(st[K.dtype, CHUNK, CHUNK])
    work = Inverses(scan, (K, V), (k, v), (gates, Beta))
    scan.prepare(work)
    if checkpoints:
        work.keep(V.rows, kept)
    turned = [None if x is None else x.permute(0, 1, 3, 2) for x in states]
    scan.run(work, k, k, v, (N, U), *turned)


class Gradient(ChunkScan):
    """dV and the gradients of states before chunks, from the last chunk on."""

    def prepare(self, work: Any, scale: Any, tiles: Any, dots: Any) -> None:
        """What else a chunk takes: rings of T and b, the scale, tiles of U and V, and results."""
        self.t, self.beta, self.scale, self.others, self.dots = (
            work.t, work.b, scale, tiles, dots
        )  # fmt: skip

    def chunk(
        self, work: Any, place: Any, head: Any, tiles: Any, sums: Any, out: Any
    ) -> None:  # fmt: skip
        """State role: dV and the next D."""
        (q, k, do), ((total,), x) = tiles, sums
        into, rows = tc.load(self.b[head].tile, COLUMN), place[1].rows
        last = tc.load(self.b[head].tile.at(CHUNK - 1))
        before = tc.as_a(total, self.dtype)
        tc.mul(total, last, out=total)
        tc.mma_ABt(x, before, k, accumulate=False)
        do = tc.load(do.tile.T)
        if self.packed:
            tc.mask_cols(do, rows, 0.0)
        made = tc.cast(do * (into * self.scale), self.dtype)
        tc.mma_wait()
        tc.mul(x, tc.load(self.a[head].tile, COLUMN), out=x)
        tc.mma_AB(x, do, self.p[head])
        tc.mma_AB(total, made, q)
        tc.mma_wait(1)
        if self.packed:
            tc.mask_cols(x, rows, 0.0)
        self.t.multiply(tc.mma_AB, x, tc.cast(x, self.dtype))
        tc.mma_wait()
        self._sum(place, x, 0)
        tc.mul(x, tc.load(self.beta.tile, COLUMN), out=x)
        if self.packed:
            tc.mask_cols(x, rows, 0.0)
        result = tc.cast(x, self.dtype)
        tc.mma_AB(total, tc.cast(x * -into, self.dtype), k)
        tc.store(self.y[place[2]].tile.T, result)
        self._sum(place, x, 1)
        if self.packed:
            self._store_part(place, result, out)
        tc.mma_wait()

    def _sum(self, place: Any, x: Any, number: int) -> None:
        """Sums over the columns of V of x times U, or V, one a token."""
        task, at, index = place
        head, col = self.place(task, index)
        other = tc.cast(tc.load(self.others[number][index].tile.T), f32)
        rows = self.dots[number][:, :, :, : task.last]
        tc.store(rows.at(task.batch, head, col // CHUNK, at.row), tc.col_sum(x * other))


class Turned(Kept):
    """(I + diag(b) A0)^-1, and P with a row a query.

    Args:
        scan, tensors, tiles, gates: of Q, K and dO: see `Scores`.
        others: tensors U and V, and their tiles.
        scale: of P.
    """

    def __init__(
        self, scan: ChunkScan, tensors: Any, tiles: Any, gates: Any, others: Any, scale: Any
    ):
        super().__init__(scan, tensors, tiles, gates)
        self.others, self.scale, self.qk = others, scale, tc.empty(TILE)
        t = st[scan.dtype, Parts.ROWS, CHUNK]
        self.t = Parts(scan.pipe.ring(t, writer=scan.score, beside=scan.p))

    def load(self, task: Any, at: At, tiles: Any = None) -> None:
        """Q, K, dO, and columns of U and V."""
        super().load(task, at)
        for tensor, tiles in zip(*self.others, strict=True):
            self.scan.load(tiles, tensor, task, at, columns=True)

    def scores(self, task: Any, at: At, head: int) -> tuple[Any, ...]:
        """The inverse and P; decays out of the gradient and into it."""
        (q, k, _), kk, qk = self.tiles, self.kk, self.qk
        tc.mma_ABt(qk, q, k, accumulate=False)
        tc.mma_ABt(kk, k, k, accumulate=False)
        sums, beta = self.made(task, at)
        factors = self.decays(sums, beta)
        tc.store(self.b.tile, beta)
        tc.mma_wait()
        p = tc.tril(tc.mul(qk, factors * self.scale, out=qk))
        if self.scan.packed:
            tc.mask_rows(p, at.rows, 0.0)
        tc.store(self.scan.p, tc.cast(p, self.scan.dtype))
        self.t.invert(tc.mul(tc.mul(kk, beta, out=kk), factors, out=kk))
        return None, tc.exp2(self.last() - sums), tc.exp2(sums)


@tc.kernel
def delta_rule_gradient(
    Q: gl[T, "B", "Hk", "T", "K"], K: gl[T, "B", "Hk", "T", "K"], dO: gl[T, "B", "H", "T", "V"],
    U: gl[T, "B", "H", "T", "V"], V: gl[T, "B", "H", "T", "V"], Beta: gl[f32, "B", "H", "T"],
    dV: gl[T, "B", "H", "T", "V"], dBeta: gl[f32, "B", "H", "blocks", "T"],
    Dots: gl[f32, "B", "H", "blocks", "T"], scale: f32, *args, dim=128, stages=2, g=False,
    packed=False, start=False, end=False, checkpoints=False, registers=TIGHT, depth=2,
):  # fmt: skip
    """dV, and of blocks of 64 columns of V the parts of dBeta and of the products of V and dV.

    args: g f32 [B, H, T], cu_seqlens s32; f32 [sequences, H, K, V] the gradients of the last and of
    the first state; checkpoints of `delta_rule_written` and their products; where wanted.
    """
    args = list(args)
    gates, starts, *states, kept, met = (
        args.pop(0) if wanted else None
        for wanted in (g, packed, start, end, checkpoints, checkpoints)
    )  # fmt: skip
    tasks = tasks_of(V.size(1), V.size(0), V.rows, tc.cdiv(V.cols, CHUNK), starts)
    scan = Gradient(K.dtype, tasks, stages=stages, depth=depth, outputs=2, decayed=True,
                    packed=packed, turns=2, registers=registers, reverse=True)  # fmt: skip
    q, k = (scan.pipe.input(st[K.dtype, CHUNK, dim]) for _ in range(2))
    do, u, v = (scan.pipe.input(st[K.dtype, CHUNK, CHUNK]) for _ in range(3))
    work = Turned(scan, (Q, K, dO), (q, k, do), (gates, Beta), ((U, V), (u, v)), scale)
    scan.prepare(work, scale, (u, v), (dBeta, Dots))
    if checkpoints:
        work.keep(V.rows, kept, met)
    turned = [None if x is None else x.permute(0, 1, 3, 2) for x in states]
    scan.run(work, q, k, do, dV, *turned)
