"""The gated delta rule and the delta rule, forward.

    S_t = e^g_t (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T        o_t = scale S_t^T q_t

In chunks, with G the running sum of g and S the state before a chunk:

    A[i, j] = b_i k_i.k_j e^(G_i - G_j), i > j             T = (I + A)^-1 diag(b)
    N = T (V - e^G K S)
    O = scale (e^G Q S + P N), P[i, j] = q_i.k_j e^(G_i - G_j), i >= j
    S = e^G_end S + (e^(G_end - G) K)^T N

That is the scan of `chunk_scan`, with N in place of V, by two CTAs (`chunk_cluster`): T and P
depend on no state and on no column of V, so each CTA makes those of every second chunk, two
warpgroups in turn, and sends them to the other. A and its inverse are f32. Between its products the
state's role has everything in registers: S^T K^T, less what goes into N^T, is an A operand, and N^T
too.

    score    T P [0] | T P [4]        | T P [8]     ...         CTA 1: T P [1] | T P [5] ...
                | T P [2]     | T P [6]      | T P [10] ...
    state              | N Y S [0] | N Y S [1] | N Y S [2] ...

L2 norms of q and k are factors of tokens, in f32: q and k are multiplied as they are. T is the sum
of two tiles of 16 bits (`Parts`).
"""

from __future__ import annotations

import math
from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, st

from .chunk_cluster import CTAS, VECTOR, ClusterScan
from .chunk_scan import COLUMN, ROW, ChunkScan, Recurrence
from .chunk_tasks import CHUNK, At, tasks_of

T = DTypeVar("T", bf16, f16)
LOG2_E = 1 / math.log(2)
LEAST = -128.0  # log2 of a token's decay: 2**-128 is 0 in f32, and sums stay numbers
NORM_EPS = 1e-6  # below the root of a norm
TILE = rt[f32, CHUNK, CHUNK]
REGISTERS = 136, 208  # of the score role (twice) and the state role, beside a producer with 32
SPILLED = 16  # bytes of the score role with norms, gates and a last state: 8 by ptxas 13.5
PART = 64  # columns of queries in registers at a time, for their norms


class Scores(Recurrence):
    """What every scan of the delta rule has: loads, gates, decays, products of keys.

    Args:
        scan: the core. tensors, tiles: of Q, K and V, or of K and V.
        gates: tensors g (or None) and b.
    """

    def __init__(self, scan: ChunkScan, tensors: Any, tiles: Any, gates: Any):
        self.scan, self.tensors, self.tiles, self.gates = scan, tensors, tiles, gates
        self.kk = tc.empty(TILE)
        self.sums, self.less, self.betas = (tc.shared(VECTOR, scan.turns) for _ in range(3))

    def load(self, task: Any, at: At, tiles: Any = None) -> None:
        """Q and K of the head's group, to `tiles` alone, or also columns of V."""
        head = task.head // (self.tensors[-1].size(1) // self.tensors[0].size(1))
        for tensor, tile in zip(self.tensors[:-1], tiles or self.tiles, strict=False):
            tc.load_async(tile, tensor.at(task.batch, head, at.row, 0))
        if tiles is None:
            self.scan.load(self.tiles[-1], self.tensors[-1], task, at, columns=True)

    def start(self, task: Any) -> None:
        """Gates of the first chunk."""
        self.ahead = [tc.zeros(ROW) for _ in self.gates]
        self.fetch(task, self.scan.first(task).row)

    def fetch(self, task: Any, row: Any) -> None:
        """Loads gates of a chunk, which are used a step later."""
        for tensor, x in zip(self.gates, self.ahead, strict=True):
            if tensor is not None:
                tc.copy(x, tc.load(tensor.at(task.batch, task.head, row), ROW))

    def made(self, task: Any, at: At) -> tuple[Any, Any]:
        """Sums of gates g, base 2, and b of the tokens; g and b are 0 behind the last."""
        g, b = (tc.select(tc.row_index(self.kk) < at.rows, x, 0.0) for x in self.ahead)
        self.fetch(task, self.scan.following(at))
        return tc.cumsum(tc.maximum(g * LOG2_E, LEAST, nan=True)), b

    def decays(self, sums: Any, beta: Any, key: Any = None) -> Any:
        """Decays of pairs of tokens, times a factor of keys; of pairs that are masked perhaps inf.

        Leaves sums and b to be spread over columns: `column`, `last`.
        """
        less = sums if key is None else sums - tc.log2(key)
        for vectors, x in ((self.sums, sums), (self.less, less), (self.betas, beta)):
            tc.store(vectors[self.scan.score.consumer], x)
        tc.sync()
        factors = tc.broadcast_row(tc.empty(TILE), sums) - self.column(self.less)
        return tc.exp2(factors, out=factors)

    def column(self, vectors: Any) -> Any:
        """What a warpgroup of the score role has left, a number a column."""
        return tc.load(vectors[self.scan.score.consumer], COLUMN)

    def last(self) -> Any:
        """Sum of the chunk's gates."""
        return tc.load(self.sums[self.scan.score.consumer].at(CHUNK - 1))


class Parts:
    """T as the sum of two tiles of 16 bits, one above the other in a tile of a ring.

    Rounded once, T is off by 2**-9 of its elements, alike along its diagonals where keys are alike:
    of beta 1.9 states grew by a third each chunk, and the true ones shrink.
    """

    ROWS = 2 * CHUNK

    def __init__(self, ring: Any):
        self.ring = ring

    def tiles(self, member: Any) -> list[Any]:
        """Both."""
        whole = self.ring[member].tile
        return [whole[row : row + CHUNK, :] for row in range(0, self.ROWS, CHUNK)]

    def invert(self, a: Any, factor: Any = None, member: Any = 0) -> None:
        """Score role: `(I + A)**-1`, times a factor of columns."""
        room, (high, low) = self.ring[member].tile, self.tiles(member)
        t = tc.tril_inverse(a, accurate=False, room=room)
        if factor is not None:
            tc.mul(t, factor, out=t)
        part = tc.cast(t, room.type.dtype)
        tc.store(high, part)
        tc.store(low, tc.cast(t - tc.cast(part, f32), room.type.dtype))

    def multiply(self, product: Any, out: Any, x: Any, member: Any = 0) -> None:
        """State role: `out = product(x, T)`, x of 16 bits."""
        for number, tile in enumerate(self.tiles(member)):
            product(out, x, tile, accumulate=number > 0)


class Delta(Scores):
    """Scores, T and values of the delta rule.

    Args:
        scan, tensors, tiles, gates: of Q, K and V: see `Scores`.
        own: tiles of Q and K of the chunk that this CTA makes scores of.
        scale: of the output. norm: whether queries and keys are divided by their norms.
    """

    def __init__(
        self, scan: ClusterScan, tensors: Any, tiles: Any, gates: Any, own: Any, scale: Any,
        norm: bool,
    ):  # fmt: skip
        super().__init__(scan, tensors, tiles, gates)
        self.own, self.scale, self.norm = own, scale, norm
        self.qk, self.u = tc.empty(TILE), tc.empty(TILE)
        self.into, self.queries = (scan.gathered(VECTOR) for _ in range(2))
        self.t = Parts(scan.gathered(st[scan.dtype, Parts.ROWS, CHUNK]))

    def load(self, task: Any, at: At, tiles: Any = None) -> None:
        """Of all chunks of a step, or (to `tiles`) of this CTA's."""
        for one in self.scan.step_of(task, at, *self.tiles) if tiles is None else (at,):
            super().load(task, one, tiles)

    def scores(self, task: Any, at: At, head: int) -> tuple[Any, ...]:
        """T, and P with factors of tokens, from the chunk's keys and queries."""
        (q, k), kk, qk, scan, member = self.own, self.kk, self.qk, self.scan, at.member
        tc.mma_ABt(kk, k, k, accumulate=False)
        query = key = tc.full(ROW, 1.0)
        if self.norm:
            query = self.of_queries()
        sums, beta = self.made(task, at)
        tc.mma_wait()
        tc.mma_ABt(qk, q, k, accumulate=False)
        if self.norm:  # a key's square is in K K^T
            squares = tc.select(tc.row_index(kk) == tc.col_index(kk), kk, 0.0)
            key = tc.rsqrt(tc.row_sum(squares) + NORM_EPS)
        factors = self.decays(sums, beta, key if self.norm else None)
        tc.mul(tc.mul(kk, beta * key, out=kk), factors, out=kk)
        tc.mma_wait()
        q.release()
        p = scan.mask(tc.mul(qk, factors, out=qk))
        tc.store(scan.p[member], tc.cast(p, scan.dtype))
        out, into = tc.exp2(sums), tc.exp2(self.last() - sums)
        for ring, x in zip((scan.a, scan.b, self.into, self.queries),
                           (out, into * key, out * key, query * self.scale), strict=True):
            tc.store(ring[member].tile, x)
        self.t.invert(kk, self.column(self.betas), member)
        return (None,)

    def of_queries(self) -> Any:
        """1 / norm of each query."""
        tile = self.own[0].tile
        parts, total = max(tile.type.cols // PART, 1), None
        for part in range(parts):
            q = tc.cast(tc.load(tile.part(part, parts)), f32)
            total = tc.row_sum(q * q, total)
        return tc.rsqrt(total + NORM_EPS)

    def before(self, at: At, state: Any) -> None:
        """`S^T K^T`."""
        tc.mma_ABt(self.u, state, self.tiles[1], accumulate=False)

    def values(self, task: Any, at: At, index: Any, state: Any) -> Any:
        """N^T, of the state before."""
        (q, _, values), u, dtype = self.tiles, self.u, self.scan.dtype
        v = tc.load(values[index].tile.T)
        values.next()
        into = tc.load(self.into[at.member].tile, COLUMN)
        tc.mma_wait(1)
        tc.fma(u, -into, tc.cast(v, f32), out=u)
        self.t.multiply(tc.mma_ABt, u, tc.cast(u, dtype), at.member)
        tc.mma_wait()
        q.next()
        return tc.cast(u, dtype)

    def result(self, task: Any, at: At, index: Any, y: Any) -> Any:
        """Times the scale, over norms of queries."""
        return tc.mul(y, tc.load(self.queries[at.member].tile, COLUMN), out=y)


@tc.kernel
def delta_rule(
    Q: gl[T, "B", "Hk", "T", "K"], K: gl[T, "B", "Hk", "T", "K"], V: gl[T, "B", "H", "T", "V"],
    Beta: gl[f32, "B", "H", "T"], O: gl[T, "B", "H", "T", "V"], scale: f32, *args, dim=128,
    stages=2, g=False, norm=False, packed=False, start=False, end=False, registers=REGISTERS,
):  # fmt: skip
    """O of the gated delta rule, and states f32 [sequences, H, K, V] before and after.

    Hk divides H. args: g f32 [B, H, T], cu_seqlens s32, states before and after; where wanted.
    registers: of the score and the state role.
    """
    args = list(args)
    tc.allow_spills(SPILLED)
    gates, starts, *states = (args.pop(0) if wanted else None for wanted in (g, packed, start, end))
    blocks = tc.cdiv(V.cols, CHUNK * CTAS)
    tasks = tasks_of(V.size(1), V.size(0), V.rows, blocks, starts, cluster=CTAS)
    scan = ClusterScan(Q.dtype, tasks, stages=stages, outputs=1, decayed=True, packed=packed,
                       turns=2, registers=registers)  # fmt: skip
    own = [scan.pipe.input(st[Q.dtype, CHUNK, dim], ring="own", turns=2, ahead=True)
           for _ in range(2)]  # fmt: skip
    kinds = (st[Q.dtype, CHUNK, columns] for columns in (dim, dim, CHUNK))
    q, k, v = (scan.pipe.input(kind, ring=name) for kind, name in zip(kinds, "qkv", strict=True))
    work = Delta(scan, (Q, K, V), (q, k, v), (gates, Beta), own, scale, norm)
    turned = [None if x is None else x.permute(0, 1, 3, 2) for x in states]
    scan.pipe.load_ahead(lambda task, step: work.load(task, scan.at(task, step), own))
    scan.run(work, q, k, v, O, *turned)
