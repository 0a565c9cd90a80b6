"""The gated delta rule and the delta rule, forward.

    S_t = e^g_t (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T        o_t = scale S_t^T q_t

In chunks, with G the running sum of g and S the state before a chunk:

    A[i, j] = b_i k_i.k_j e^(G_i - G_j), i > j             T = (I + A)^-1 diag(b)
    N = T (V - e^G K S)
    O = scale (e^G Q S + P N), P[i, j] = q_i.k_j e^(G_i - G_j), i >= j
    S = e^G_end S + (e^(G_end - G) K)^T N

That is the scan of `chunk_scan`, with N in place of V. T depends on no state: a role of its own
makes it, ahead of the score role, which takes G and the norms of keys from it. A and its inverse
are f32. Between its products the state's role has everything in registers: S^T K^T, less what goes
into N^T, is an A operand, and N^T too.

    inverse  T[0] G   | T[1] G   | ...
    score             | P[0] a b | P[1] a b | ...
    state                        | N[0] Y[0] S[0] | N[1] Y[1] S[1] | ...

L2 norms of q and k are factors of tokens, in f32: q and k are multiplied as they are.
"""

from __future__ import annotations

import math
from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, st, sv

from .chunk_scan import CHUNK, COLUMN, ROW, At, ChunkScan, Recurrence, tasks_of

T = DTypeVar("T", bf16, f16)
LOG2_E = 1 / math.log(2)
LEAST = -128.0  # log2 of a token's decay: 2**-128 is 0 in f32, and sums stay numbers
NORM_EPS = 1e-6  # below the root of a norm
TILE = rt[f32, CHUNK, CHUNK]
REGISTERS = 120, 224, 136  # of the score, state and inverse roles, beside a producer with 32
PART = 64  # columns of queries in registers at a time, for their norms


class Inverse:
    """The role that makes T of a chunk.

    Args:
        scan: the core. k: keys, an input. gates: global tensors g (or None) and b.
        norm: whether keys are divided by their norms. registers: a thread, or None.
    """

    def __init__(
        self, scan: ChunkScan, k: Any, gates: tuple[Any, Any], norm: bool, registers: Any
    ):  # fmt: skip
        self.scan, self.k, self.norm = scan, k, norm
        self.role = role = scan.pipe.role("inverse", registers=registers)
        self.t = scan.pipe.ring(st[scan.dtype, CHUNK, CHUNK], writer=role, stages=scan.depth)
        self.sums, self.norms, self.into = (
            scan.pipe.ring(sv[f32, CHUNK], writer=role, beside=self.t) for _ in range(3)
        )
        self.gates = [gate for gate in gates if gate is not None]
        self.gated = len(self.gates) == 2
        self.ahead, self.kk = [tc.empty(ROW) for _ in self.gates], tc.empty(TILE)
        role.start(lambda task: self.fetch(task, scan.at(task, 0).row))
        role.compute(lambda task, step: self.chunk(task, scan.at(task, step)))

    def fetch(self, task: Any, row: Any) -> None:
        """Loads gates, which are used a step later."""
        head, _ = self.scan.place(task, 0)
        for gate, ahead in zip(self.gates, self.ahead, strict=True):
            tc.copy(ahead, tc.load(gate.at(task.batch, head, row), ROW))

    def chunk(self, task: Any, at: At) -> None:
        """T; the sums of gates, base 2, norms of keys, and what k S is multiplied by."""
        kk = self.kk
        tc.mma_ABt(kk, self.k, self.k, accumulate=False)
        there = tc.row_index(kk) < at.rows
        *gate, beta = (tc.select(there, x, 0.0) for x in self.ahead)
        self.fetch(task, at.row + CHUNK)
        into, key = tc.full(ROW, 1.0), tc.full(ROW, 1.0)
        tc.mma_wait()
        if self.norm:  # a key's square is in K K^T
            squares = tc.select(tc.row_index(kk) == tc.col_index(kk), kk, 0.0)
            key = tc.rsqrt(tc.row_sum(squares) + NORM_EPS)
            tc.mul(kk, tc.to_col_vector(key), out=kk)
        if gate:
            sums = tc.cumsum(tc.maximum(gate[0] * LOG2_E, LEAST, nan=True))
            tc.mul(kk, self.scan.decays(sums), out=kk)
            tc.store(self.sums.tile, sums)
            into = tc.exp2(sums)
        tc.store(self.norms.tile, key)
        tc.store(self.into.tile, into * key)
        tc.mul(kk, beta * key, out=kk)
        t = tc.tril_inverse(kk, accurate=False)
        tc.store(self.t, tc.cast(t * tc.to_col_vector(beta), self.scan.dtype))


class Delta(Recurrence):
    """Scores and values of the delta rule.

    Args:
        scan: the core. inverse: what makes T. tensors, tiles: of Q, K, V.
        scale: of the output. norm: whether queries and keys are divided by their norms.
    """

    def __init__(
        self, scan: ChunkScan, inverse: Inverse, tensors: Any, tiles: Any, scale: Any, norm: bool
    ):  # fmt: skip
        self.scan, self.inverse, self.tensors, self.tiles = scan, inverse, tensors, tiles
        self.scale, self.norm, self.s, self.u = scale, norm, tc.empty(TILE), tc.empty(TILE)
        self.group = tensors[2].size(1) // tensors[0].size(1)
        if norm:
            self.norms = scan.pipe.ring(sv[f32, CHUNK], writer=scan.score, beside=scan.p)

    def load(self, task: Any, at: At) -> None:
        """Q and K of the head's group, columns of V."""
        for tensor, tile in zip(self.tensors[:2], self.tiles, strict=False):
            tc.load_async(tile, tensor.at(task.batch, task.head // self.group, at.row, 0))
        self.scan.load(self.tiles[2], self.tensors[2], task, at, columns=True)

    def scores(self, task: Any, at: At, head: int) -> tuple[Any, ...]:
        """`Q K^T` times decays and norms of keys; decays to and from the ends of the chunk."""
        (q, k, _), s, made = self.tiles, self.s, self.inverse
        tc.mma_ABt(s, q, k, accumulate=False)
        if self.norm:
            tc.store(self.norms.tile, self.of_queries())
            norms = tc.load(made.norms, COLUMN)
        out, into = tc.full(ROW, 1.0), tc.load(made.norms, ROW)
        if self.inverse.gated:
            sums, last = tc.load(made.sums, ROW), tc.load(made.sums.tile.at(CHUNK - 1))
            out, into = tc.exp2(sums), tc.exp2(last - sums) * into
            decays = self.scan.decays(sums)
        tc.mma_wait()
        if self.inverse.gated:
            tc.mul(s, decays, out=s)
        if self.norm:
            tc.mul(s, norms, out=s)
        p = self.scan.mask(s)
        return (p, out, into) if self.scan.decayed else (p,)

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
        into = tc.load(self.inverse.into, COLUMN)
        tc.mma_wait()
        tc.fma(u, -into, tc.cast(v, f32), out=u)
        tc.mma_ABt(u, tc.cast(u, dtype), self.inverse.t, accumulate=False)
        tc.mma_wait()
        return tc.cast(u, dtype)

    def result(self, task: Any, at: At, index: Any, y: Any) -> Any:
        """Times the scale, over norms of queries."""
        if self.norm:
            tc.mul(y, tc.load(self.norms, COLUMN), out=y)
        return tc.mul(y, self.scale, out=y)


@tc.kernel
def delta_rule(
    Q: gl[T, "B", "Hk", "T", "K"], K: gl[T, "B", "Hk", "T", "K"], V: gl[T, "B", "H", "T", "V"],
    Beta: gl[f32, "B", "H", "T"], O: gl[T, "B", "H", "T", "V"], scale: f32, *args, dim=128,
    stages=3, depth=2, g=False, norm=False, packed=False, start=False, end=False,
    registers=REGISTERS,
):  # fmt: skip
    """O of the gated delta rule, and states f32 [sequences, H, K, V] before and after.

    Hk divides H. args: g f32 [B, H, T], cu_seqlens s32, states before and after; where wanted.
    registers: of the score, state and inverse roles.
    """
    args = list(args)
    gates, starts, *states = (args.pop(0) if wanted else None for wanted in (g, packed, start, end))
    tasks = tasks_of(V.size(1), V.size(0), V.rows, tc.cdiv(V.cols, CHUNK), starts)
    scan = ChunkScan(Q.dtype, tasks, stages=stages, depth=depth, decayed=g or norm, packed=packed,
                     registers=registers[:2])  # fmt: skip
    q, k = (scan.pipe.input(st[Q.dtype, CHUNK, dim]) for _ in range(2))
    v = scan.pipe.input(st[Q.dtype, CHUNK, CHUNK])
    inverse = Inverse(scan, k, (gates, Beta), norm, registers[2])
    work = Delta(scan, inverse, (Q, K, V), (q, k, v), scale, norm)
    turned = [None if x is None else x.permute(0, 1, 3, 2) for x in states]
    scan.run(work, q, k, v, O, *turned)
