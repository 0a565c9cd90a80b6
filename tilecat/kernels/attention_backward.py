"""Softmax attention, backward: dQ, dK and dV from dO, in three kernels.

`attention_delta` makes what the gradients need of each query, and zeroes the sums of dQ.
`attention_backward` has a task a block of keys: its CTA walks the blocks of 64 queries, for all
heads that share the keys. Scores stand transposed, one row a key: S^T = K Q^T and dP^T = V dO^T lie
in the registers of the consumer that has the keys, so P^T and dS^T are A operands of dV += P^T dO
and dK += dS^T Q. dS^T also goes through shared memory, where all consumers read all of it: each
makes its columns of dQ = dS K and adds them to f32 sums in global memory, in register order.
`attention_dq` brings those in order.

    producer      k, v, q[0], do[0], q[1], do[1], ...
    tensor cores  S dP | dV | dQ dK | S dP | dV | dQ dK ...
    threads            P   dS     add dQ     P   dS

P is computed while dP is under way, dS beside dV, dQ is added beside dK, which ends in the next
step. Barriers: `full` and `empty` of k and of v, of each stage of q, do and the statistics; a named
barrier where dS of all consumers is there (twice in shared memory: one is read as the next is
written); each consumer's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, inout, rt, rv, st, sv

from ..language.scalars import minimum_of, select
from ..language.values import RegTile
from .attention_scores import LOG2_E, Edges, Mods, maximum_of
from .score_mods import At

T = DTypeVar("T", bf16, f16)
ROWS = 64  # queries of a block, and keys of a consumer
COLS = 32  # of O and dO that are multiplied at a time
MEETING = 9  # named barrier where dS of all consumers is there
REGISTERS = 240  # of a consumer of two: what setmaxnreg leaves beside a producer with 24
PLAIN, UNCHANGED = Edges(), Mods()


@tc.kernel
def attention_delta(O: gl[T, "B", "H", "Lq", "Dv"], dO: gl[T, "B", "H", "Lq", "Dv"],
                    LSE: gl[f32, "B", "H", "Lq"], LSE2: gl[f32, "B", "H", "rows"],
                    Delta: gl[f32, "B", "H", "rows"], Sums: inout[f32, "B", "H", "elems"],
                    *, dim, dim_v, warpgroups=4):  # fmt: skip
    """LSE2 = log2(e) LSE and Delta = rowsum(dO O); zeros in Sums. `rows` is a multiple of 64.

    Rows beyond Lq, and rows without a key (LSE = -inf), get +inf and 0: their P is 0.
    """
    heads, blocks = O.size(1), Delta.size(2) // ROWS
    with tc.warpgroup(warpgroups) as number:
        zeros = tc.shared(sv[f32, ROWS * dim])
        for i in range(dim // 16):
            tc.store(zeros.part(i, dim // 16), tc.zeros(rv[f32, 1024, "plain"]))
        tc.cta_sync()
        first, step = tc.cta_id() * warpgroups + number, tc.num_ctas() * warpgroups
        for task in tc.range(first, O.size(0) * heads * blocks, step):
            plane = task // blocks
            block, batch = task - plane * blocks, plane // heads
            head = plane - batch * heads
            tc.store_bulk(Sums.at(batch, head, block * (ROWS * dim)), zeros)
            delta = tc.zeros(rv[f32, ROWS, "row", "partial"])
            for part in range(dim_v // COLS):
                o, do = (tc.load(x[batch, head, block, part], rt[O.dtype, ROWS, COLS])
                         for x in (O, dO))  # fmt: skip
                delta += tc.row_sum(tc.cast(o, f32) * tc.cast(do, f32), partial=True)
            lse = tc.load(LSE[batch, head, block], rv[f32, ROWS], fill=-math.inf)
            dead = lse == -math.inf
            tc.store(LSE2[batch, head, block], tc.select(dead, math.inf, lse * LOG2_E))
            tc.store(Delta[batch, head, block], tc.select(dead, 0.0, tc.total(delta)))
        tc.store_wait(read=False)


@dataclass(eq=False)
class Consumer:
    """One consumer's work on one block of queries.

    Args:
        pipe: the pipeline.
        count: consumers.
        k, v, q, do, lse, delta: its inputs.
        dk, dv: sums in registers.
        side: which half of `shared_ds` is written, 0 or 1, a variable.
        unit: makes exponents of two of scores.
        sloped: whether a score is no multiple of a product, nor one and what keys add.
    """

    pipe: Any
    count: int
    k: Any
    v: Any
    q: Any
    do: Any
    lse: Any
    delta: Any
    dk: Any
    dv: Any
    side: Any
    unit: Any
    sloped: bool

    def __post_init__(self) -> None:
        """Its registers and shared memory."""
        dtype, (rows, dim) = self.q.kind.dtype, self.q.kind.shape
        self.by_rows = rows == ROWS * self.count
        self.shared_ds = tc.shared(st[dtype, ROWS, rows], 2 * self.count)
        self.shared_dq = tc.shared(sv[f32, rows * dim // self.count], self.count)
        self.s, self.dp = tc.empty(rt[f32, ROWS, rows]), tc.empty(rt[f32, ROWS, rows])
        self.p = tc.empty(rt[dtype, ROWS, rows])
        width = rows * dim // self.count // ROWS
        self.dq = self.dp if width == rows else tc.empty(rt[f32, ROWS, width])

    def step(self, again, scores, place):
        """dK, dV and dQ of a block; dK is left under way.

        Args:
            again: whether it is not the task's first.
            scores: makes scores of products, and gives their slope, or None where it is constant.
            place: where its part of dQ is added.
        """
        mine, s, dp = self.pipe.consumer, self.s, self.dp
        self.q.wait()
        tc.mma_ABt(s, self.k[mine], self.q, accumulate=False)
        tc.mma_ABt(dp, self.v[mine], self.do, accumulate=False)
        tc.mma_wait(0 if self.sloped else 1)
        self.q.release_before(again)
        column = rv[f32, s.type.cols, "col"]
        slope, lse = scores(s), tc.load(self.lse, column)
        bent = isinstance(slope, RegTile)
        if bent:
            tc.mul(dp - tc.load(self.delta, column), slope, out=dp)
        tc.exp2(tc.fma(s, self.unit, -lse, out=s), out=s)
        if not self.sloped:
            tc.mma_AB(self.dv, tc.cast(s, self.p.dtype, out=self.p), self.do)
            tc.mma_wait(1)
        tc.mul(dp if bent else dp - tc.load(self.delta, column), s, out=dp)
        ds = [self.shared_ds[self.side * self.count + i] for i in (mine, *range(self.count))]
        tc.store(ds[0], tc.cast(dp, self.p.dtype))
        if self.sloped:  # later, with fewer registers
            tc.mma_AB(self.dv, tc.cast(s, self.p.dtype, out=self.p), self.do)
        tc.fence_async()
        tc.barrier_sync(MEETING, 128 * self.count)
        for i, other in enumerate(ds[1:]):
            left, right = other, self.k[i].tile
            if self.by_rows:
                left = left.part(mine, self.count)
            else:
                right = right.part(mine, self.count)
            tc.mma_AtB(self.dq, left, right, accumulate=i > 0)
        tc.mma_AB(self.dk, ds[0], self.q)
        tc.mma_wait(1)
        self.q.advance()
        self.side.set(self.side ^ 1)
        tc.store_wait()
        tc.sync()
        tc.store(self.shared_dq[mine], tc.register_order(self.dq))
        tc.sync()
        tc.store_bulk(place, self.shared_dq[mine], add_=True)


def tasks_of(order, sight, Q, K, tall, tile_q):
    """Blocks of `tall` keys, and which blocks of queries see them."""
    tiles, planes = tc.cdiv(K.size(2), tall), (K.size(1), K.size(0))
    if order == "sequence":
        tasks = tc.sequence_first(tiles, *planes)
    else:
        tasks = tc.longest_first(tiles, *planes, planes=planes[0] * planes[1])

    def locate(t):
        coords = dict(tasks.locate(t))
        if order != "sequence":
            coords["tile"] = tiles - 1 - coords["tile"]  # most queries see the first keys
        first = coords["tile"] * tall
        last = minimum_of(first + tall, K.size(2))
        start, stop = sight.queries(first, last, Q.size(2), tile_q)
        steps = (stop - start) * (Q.size(1) // K.size(1))
        return (*coords.items(), ("first", start), ("stop", stop), ("steps", steps))

    return replace(tasks, locate=locate)


@tc.kernel
def attention_backward(
    Q: gl[T, "B", "H", "Lq", "D"], K: gl[T, "B", "Hkv", "Lk", "D"],
    V: gl[T, "B", "Hkv", "Lk", "Dv"], dO: gl[T, "B", "H", "Lq", "Dv"],
    LSE2: gl[f32, "B", "H", "rows"], Delta: gl[f32, "B", "H", "rows"],
    Sums: inout[f32, "B", "H", "elems"], dK: gl[T, "B", "Hkv", "Lk", "D"],
    dV: gl[T, "B", "Hkv", "Lk", "Dv"], scale: f32, *args, dim, dim_v, tile_q=64,
    consumers=2, stages=2, order="sequence", edges=PLAIN, mods=UNCHANGED,
):  # fmt: skip
    """dK, dV, and dQ / scale added to Sums, blocks of 64 x 64 in register order.

    A block of 64 queries is cut in `dim` / `consumers` columns; with tile_q = 64 consumers it is
    whole: each consumer has one.
    """
    group, args = Q.size(1) // K.size(1), list(args)
    sight = edges.sight(args, ROWS, Q.size(2), K.size(2))
    mods = mods.take(args, scale)
    tasks = tasks_of(order, sight, Q, K, ROWS * consumers, tile_q)
    pipe = tc.lcf(consumers=consumers, stages=stages, tasks=tasks, steps=1, registers=REGISTERS)
    cut = 1 if tile_q == ROWS * consumers else consumers  # parts of K's columns
    panel = min(dim // cut, ROWS)
    k = pipe.input(st[K.dtype, ROWS, dim, "row", panel * K.dtype.nbytes], count=consumers, ring="k",
                   rate="task")  # fmt: skip
    v = pipe.input(st[K.dtype, ROWS, dim_v], count=consumers, ring="v", rate="task")
    q, do = pipe.input(st[K.dtype, tile_q, dim]), pipe.input(st[K.dtype, tile_q, dim_v])
    lse, delta = pipe.input(sv[f32, tile_q]), pipe.input(sv[f32, tile_q])
    out = pipe.output(st[K.dtype, ROWS, dim])
    out_v = out if dim == dim_v else pipe.output(st[K.dtype, ROWS, dim_v])
    dk, dv = tc.empty(rt[f32, ROWS, dim]), tc.empty(rt[f32, ROWS, dim_v])
    work = Consumer(pipe, consumers, k, v, q, do, lse, delta, dk, dv, tc.var(0),
                    mods.unit, mods.sloped)

    def whole_blocks(task, tall):
        """Blocks of queries that see all keys of the task, or those all but the last."""
        first = task.tile * tall
        low, end = sight.queries_whole(first, first + tall, Q.size(2), tile_q)
        low = minimum_of(maximum_of(low, task.first), task.stop)
        inner = select(K.size(2) < first + tall, task.stop, low)
        return inner, maximum_of(minimum_of(end, task.stop), inner)

    @pipe.begin
    def _(task):
        for i in range(consumers):
            place = task.batch, task.head, task.tile * consumers + i, 0
            tc.load_async(k[i], K[*place])
            tc.load_async(v[i], V[*place])

    @pipe.load
    def _(task, step):
        blocks = task.stop - task.first
        member = step // blocks
        place = task.batch, task.head * group + member, task.first + step - member * blocks
        for tile, tensor in ((q, Q), (do, dO)):
            tc.load_async(tile, tensor[*place, 0])
        for vector, tensor in ((lse, LSE2), (delta, Delta)):
            tc.load_async(vector, tensor[*place])

    @pipe.consume
    def _(task, steps):
        tall, part = consumers * ROWS, tile_q * dim // consumers
        col, inner, outer = task.tile * tall + pipe.consumer * ROWS, *whole_blocks(task, tall)

        def scores_at(head, block, masked):
            def scores(s):
                row = block * tile_q
                at = At(s, task.batch, head, row, col, row, col, transposed=True)
                slope = mods.slope(s, at)
                mods.hide(s, at)
                if masked:
                    sight.mask(s.T, row, col, ends=True)
                return slope

            return scores

        def some(member, first, stop, masked):
            head = task.head * group + member
            for block in tc.range(first, stop):
                place = Sums.at(task.batch, head, (block * consumers + pipe.consumer) * part)
                again = (member > 0) | (block > task.first)
                work.step(again, scores_at(head, block, masked), place)

        tc.fill(dk, 0.0)
        tc.fill(dv, 0.0)
        k.wait()
        v.wait()
        for member in tc.range(group):
            some(member, task.first, inner, True)
            some(member, inner, outer, False)
            if edges.left:
                some(member, outer, task.stop, True)
        tc.mma_wait()
        q.release_before(steps > 0)
        k.release()
        v.release()

    @pipe.finish
    def _(task):
        tile = task.tile * consumers + pipe.consumer
        out_v.store(dV[task.batch, task.head, tile, 0], dv)
        out.store(dK[task.batch, task.head, tile, 0], dk * scale)


@tc.kernel
def attention_dq(Sums: gl[f32, "B", "H", "elems"], dQ: gl[T, "B", "H", "Lq", "D"], scale: f32,
                 *, dim, cut=2, warpgroups=4):  # fmt: skip
    """The gradient of Q, scale Sums: in register order, `cut` parts of a block's columns."""
    heads, blocks, width = dQ.size(1), tc.cdiv(dQ.size(2), ROWS), dim // cut
    kind = rv[f32, ROWS * width, "plain"]
    with tc.warpgroup(warpgroups) as number:
        room = tc.shared(st[dQ.dtype, ROWS, width], warpgroups)
        first, step = tc.cta_id() * warpgroups + number, tc.num_ctas() * warpgroups
        for task in tc.range(first, dQ.size(0) * heads * blocks * cut, step):
            place, part = task // cut, task % cut
            plane = place // blocks
            block, batch = place - plane * blocks, plane // heads
            head = plane - batch * heads
            sums = tc.load(Sums.at(batch, head, (block * cut + part) * kind.length), kind)
            tc.store_wait()
            tc.sync()
            dq = tc.from_register_order(sums, rt[f32, ROWS, width]) * scale
            tc.store(room[number], tc.cast(dq, dQ.dtype))
            tc.sync()
            move = tc.store_async if dQ.tma_stores else tc.copy
            move(dQ[batch, head, block, part], room[number])
        tc.store_wait()
