"""The gated delta rule and the delta rule, forward.

    S_t = e^g_t (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T        o_t = scale S_t^T q_t

In chunks, with G the running sum of g and S the state before a chunk:

    A[i, j] = b_i k_i.k_j e^(G_i - G_j), i > j             T = (I + A)^-1 diag(b)
    N = T (V - e^G K S)
    O = scale (e^G Q S + P N), P[i, j] = q_i.k_j e^(G_i - G_j), i >= j
    S = e^G_end S + (e^(G_end - G) K)^T N

That is the scan of `chunk_scan`, with N in place of V. T and P depend on no state: the score role
makes both, two warpgroups in turn. A and its inverse are f32. Between its products the state's role
has everything in registers: S^T K^T, less what goes into N^T, is an A operand, and N^T too.

    score    T P [0] | T P [2]        | T P [4]     ...
                | T P [1]     | T P [3]      | T P [5] ...
    state              | N Y S [0] | N Y S [1] | N Y S [2] ...

L2 norms of q and k are factors of tokens, in f32: q and k are multiplied as they are.
"""

from __future__ import annotations

import math
from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, st, sv

from .chunk_scan import COLUMN, ROW, ChunkScan, Recurrence
from .chunk_tasks import CHUNK, At, tasks_of

T = DTypeVar("T", bf16, f16)
LOG2_E = 1 / math.log(2)
LEAST = -128.0  # log2 of a token's decay: 2**-128 is 0 in f32, and sums stay numbers
NORM_EPS = 1e-6  # below the root of a norm
TILE = rt[f32, CHUNK, CHUNK]
REGISTERS = 136, 208  # of the score role (twice) and the state role, beside a producer with 32
PART = 64  # columns of queries in registers at a time, for their norms


class Scores(Recurrence):
    """What every scan of the delta rule has: loads, gates, products of keys.

    Args:
        scan: the core. tensors, tiles: of Q, K and V, or of K and V.
        gates: tensors g (or None) and b.
    """

    def __init__(self, scan: ChunkScan, tensors: Any, tiles: Any, gates: Any):
        self.scan, self.tensors, self.tiles, self.gates = scan, tensors, tiles, gates
        self.kk = tc.empty(TILE)
        self.group = tensors[-1].size(1) // tensors[0].size(1)
        self.sums, self.betas = (self.vector() for _ in range(2))

    def vector(self) -> Any:
        """A ring of numbers of tokens, beside P."""
        return self.scan.pipe.ring(sv[f32, CHUNK], writer=self.scan.score, beside=self.scan.p)

    def load(self, task: Any, at: At) -> None:
        """Q and K of the head's group, columns of V."""
        for tensor, tile in zip(self.tensors[:-1], self.tiles, strict=False):
            tc.load_async(tile, tensor.at(task.batch, task.head // self.group, at.row, 0))
        self.scan.load(self.tiles[-1], self.tensors[-1], task, at, columns=True)

    def gate(self, tensor: Any, task: Any, at: At) -> Any:
        """Gates g, base 2, or b of the tokens; 0 behind the last, and where there are none."""
        if tensor is None:
            return tc.zeros(ROW)
        x = tc.load(tensor.at(task.batch, task.head, at.row), ROW)
        if tensor is self.gates[0]:
            x = tc.maximum(x * LOG2_E, LEAST, nan=True)
        return tc.select(tc.row_index(self.kk) < at.rows, x, 0.0)

    def decays(self, sums: Any) -> Any:
        """Decays of pairs of tokens; those that do not see each other may be infinite."""
        factors = tc.broadcast_row(tc.empty(TILE), sums) - tc.load(self.sums, COLUMN)
        return tc.exp2(factors, out=factors)


class Parts:
    """A ring of a tile as the sum of two of 16 bits, or rounded once.

    Rounded once, T is off by 2**-9 of its elements, alike along its diagonals where keys are alike:
    of beta 1.9 states grew by a third each chunk, and the true ones shrink.
    """

    def __init__(self, high: Any, scan: ChunkScan, split: bool):
        kind = st[scan.dtype, CHUNK, CHUNK]
        low = [scan.pipe.ring(kind, writer=scan.score, beside=scan.p)] if split else []
        self.rings, self.dtype = [high, *low], scan.dtype

    def store(self, tile: Any) -> None:
        """Score role: an f32 tile, which is overwritten."""
        for number, ring in enumerate(self.rings):
            part = tc.cast(tile, self.dtype)
            tc.store(ring, part)
            if number + 1 < len(self.rings):
                tc.fma(tc.cast(part, f32), -1.0, tile, out=tile)

    def multiply(self, product: Any, out: Any, x: Any) -> None:
        """State role: `out = product(x, tile)`, x of 16 bits."""
        for number, ring in enumerate(self.rings):
            product(out, x, ring, accumulate=number > 0)


class Delta(Scores):
    """Scores, T and values of the delta rule.

    Args:
        scan, tensors, tiles, gates: of Q, K and V: see `Scores`.
        scale: of the output. norm: whether queries and keys are divided by their norms.
        split: see `Parts`.
    """

    def __init__(
        self, scan: ChunkScan, tensors: Any, tiles: Any, gates: Any, scale: Any, norm: bool,
        split: bool,
    ):  # fmt: skip
        self.scale, self.norm = scale, norm
        super().__init__(scan, tensors, tiles, gates)
        self.qk, self.u = tc.empty(TILE), tc.empty(TILE)
        self.keys, self.into, self.queries = (self.vector() for _ in range(3))
        t = scan.pipe.ring(st[scan.dtype, CHUNK, CHUNK], writer=scan.score, beside=scan.p)
        self.t = Parts(t, scan, split)

    def scores(self, task: Any, at: At, head: int) -> tuple[Any, ...]:
        """T, and P with factors of tokens, from the chunk's keys and queries."""
        (q, k, _), kk, qk = self.tiles, self.kk, self.qk
        gate, beta = (self.gate(x, task, at) for x in self.gates)
        tc.mma_ABt(kk, k, k, accumulate=False)
        if self.norm:
            tc.store(self.queries.tile, self.of_queries())
        tc.mma_wait()
        tc.mma_ABt(qk, q, k, accumulate=False)
        key = tc.full(ROW, 1.0)
        if self.norm:  # a key's square is in K K^T
            squares = tc.select(tc.row_index(kk) == tc.col_index(kk), kk, 0.0)
            key = tc.rsqrt(tc.row_sum(squares) + NORM_EPS)
            tc.store(self.keys.tile, key)
        sums = tc.cumsum(gate)
        tc.store(self.sums.tile, sums)
        tc.store(self.betas.tile, beta)
        tc.sync()
        factors = self.decays(sums)
        if self.norm:
            tc.mul(factors, tc.load(self.keys, COLUMN), out=factors)
        out, last = tc.exp2(sums), tc.load(self.sums.tile.at(CHUNK - 1))
        tc.store(self.into.tile, out * key)
        tc.mul(tc.mul(kk, beta * key, out=kk), factors, out=kk)
        tc.mma_wait()
        p = self.scan.mask(tc.mul(qk, factors, out=qk))
        tc.store(self.scan.p, tc.cast(p, self.scan.dtype))
        t = tc.tril_inverse(kk, accurate=False)
        self.t.store(tc.mul(t, tc.load(self.betas, COLUMN), out=t))
        return None, out, tc.exp2(last - sums) * key

    def of_queries(self) -> Any:
        """1 / norm of each query."""
        tile = self.tiles[0].tile
        parts, total = max(tile.type.cols // PART, 1), None
        for part in range(parts):
            q = tc.cast(tc.load(tile.part(part, parts)), f32)
            total = tc.row_sum(q * q, total)
        return tc.rsqrt(total + NORM_EPS)

    def values(self, task: Any, at: At, index: Any, state: Any) -> Any:
        """N^T, of the state before."""
        (_, k, v), u, dtype = self.tiles, self.u, self.scan.dtype
        tc.mma_ABt(u, state, k, accumulate=False)
        v = tc.load(v[index].tile.T)
        into = tc.load(self.into, COLUMN)
        tc.mma_wait()
        tc.fma(u, -into, tc.cast(v, f32), out=u)
        self.t.multiply(tc.mma_ABt, u, tc.cast(u, dtype))
        tc.mma_wait()
        return tc.cast(u, dtype)

    def result(self, task: Any, at: At, index: Any, y: Any) -> Any:
        """Times the scale, over norms of queries."""
        if self.norm:
            tc.mul(y, tc.load(self.queries, COLUMN), out=y)
        return tc.mul(y, self.scale, out=y)


@tc.kernel
def delta_rule(
    Q: gl[T, "B", "Hk", "T", "K"], K: gl[T, "B", "Hk", "T", "K"], V: gl[T, "B", "H", "T", "V"],
    Beta: gl[f32, "B", "H", "T"], O: gl[T, "B", "H", "T", "V"], scale: f32, *args, dim=128,
    stages=3, g=False, norm=False, packed=False, start=False, end=False,
    registers=REGISTERS, depth=2, outputs=2, split=True,
):  # fmt: skip
    """O of the gated delta rule, and states f32 [sequences, H, K, V] before and after.

    Hk divides H. args: g f32 [B, H, T], cu_seqlens s32, states before and after; where wanted.
    registers: of the score and the state role. depth: chunks whose T and P there is room for.
    split: T is the sum of two of 16 bits; without, of beta above 1 and keys alike, states may grow.
    """
    args = list(args)
    gates, starts, *states = (args.pop(0) if wanted else None for wanted in (g, packed, start, end))
    tasks = tasks_of(V.size(1), V.size(0), V.rows, tc.cdiv(V.cols, CHUNK), starts)
    scan = ChunkScan(Q.dtype, tasks, stages=stages, depth=depth, outputs=outputs, decayed=True,
                     packed=packed, turns=2, registers=registers)  # fmt: skip
    q, k = (scan.pipe.input(st[Q.dtype, CHUNK, dim]) for _ in range(2))
    v = scan.pipe.input(st[Q.dtype, CHUNK, CHUNK])
    work = Delta(scan, (Q, K, V), (q, k, v), (gates, Beta), scale, norm, split)
    turned = [None if x is None else x.permute(0, 1, 3, 2) for x in states]
    scan.run(work, q, k, v, O, *turned)
