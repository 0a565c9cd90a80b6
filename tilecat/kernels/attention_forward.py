"""Softmax attention, forward, with all that may happen to its scores: one kernel.

A task is `consumers` tiles of 64 queries of one head. Its key blocks run backwards: those at the
right edge of what its queries see first, which are masked, then those that all of them see whole,
then those at the left edge of a window. Blocks that no query of the task sees are not loaded. While
the softmax of one block is computed, O += P V of the block before and S = Q K^T of this one run on
the tensor cores.

    producer      q, k[n-1], v[n-1], k[n-2], v[n-2], ...
    tensor cores  S[n-1] | S[n-2], O += P[n-1] V[n-1] | S[n-3], O += P[n-2] V[n-2] | ...
    threads              | softmax S[n-1]             | softmax S[n-2]             | ...

Barriers: `full` and `empty` of q (one a consumer), of k and of v (one a stage); with `pingpong`, a
named barrier a consumer.
"""

from __future__ import annotations

import tilecat as tc
from tilecat import DTypeVar, bf16, e4m3, f16, f32, gl, rt, rv, st

from .attention_factors import LIFT, Factors
from .attention_scores import LOG2_E, Edges, Mods, clamp, maximum_of, taken, tasks_of
from .score_mods import At

T, TO = DTypeVar("T", bf16, f16, e4m3), DTypeVar("TO", bf16, f16)
ALL, PLAIN, ONE = Edges(), Mods(), Factors()
LOWEST = -1e30  # where maxima start: finite, for with -inf a block of -inf scores would give NaN


class Consumer:
    """One consumer's task: S and P of a key block, O of those before.

    Args:
        pipe, tiles, registers: the pipeline; its q, k and v; s, p, o, m, l.
        sight, mods: keys that queries see, what changes scores. factors: of q, k and v.
    """

    def __init__(self, pipe, tiles, registers, sight, mods, factors):
        self.pipe, self.all_keys, self.mods, self.factors = pipe, sight, mods, factors
        self.q, self.k, self.v = tiles
        self.s, self.p, self.o, self.m, self.l = registers
        self.lift = 0 if self.p.dtype.bits == 16 else LIFT

    def task(self, task, row, steps):
        """All key blocks of 64 queries from `row` on: those at an edge are masked."""
        self.sight = self.all_keys.of(task)
        edges, (low, end) = self.sight.edges, self.sight.whole(row, row + 64)
        own_low, own_behind = self.sight.blocks(row, row + 64)
        start = clamp(task.behind - own_behind, 0, steps - 1) if edges.right else 0
        stop = clamp(task.behind - own_low, start + 1, steps) if edges.left else steps
        inner = clamp(task.behind - end, start + 1, stop) if edges.right else start + 1
        outer = clamp(task.behind - low, inner, stop) if edges.left else stop
        self.stop, self.factor = stop, self.factors.of_query(task, row)
        self.value = self.factors.first(task)
        sink = maximum_of(self.mods.sink(task.head), LOWEST) if self.mods.sinks else LOWEST
        tc.fill(self.m, sink)
        if edges.right:
            self.skip(start)
        self.q.wait()
        self.first(task, row, start)
        if edges.right:
            self.blocks(task, row, start + 1, inner, masked=True)
        self.blocks(task, row, inner, outer, masked=False)
        if edges.left:
            self.blocks(task, row, outer, stop, masked=True)
        self.v.wait()
        tc.mma_AB(self.o, tc.regroup(self.p), self.v)
        tc.mma_wait()
        self.v.release()
        if edges.left:
            self.skip(steps - stop)

    def skip(self, count):
        """Passes over blocks that other consumers of the task see, and this one does not."""
        for _ in tc.range(count):
            self.k.wait()
            with self.pipe.turn():
                self.k.release()
            self.v.wait()
            self.v.release()

    def first(self, task, row, step):
        """S and P of the block that runs first; meanwhile sums start."""
        self.k.wait()
        with self.pipe.turn():
            tc.mma_ABt(self.s, self.q, self.k, accumulate=False)
        tc.fill(self.o, 0.0)
        tc.fill(self.l, 0.0)
        tc.mma_wait()
        self.k.release()
        self.q.release(step == self.stop - 1)
        self.softmax(task, row, step, masked=True, ends=True)
        tc.cast(self.s, self.p.dtype, out=self.p)

    def blocks(self, task, row, start, stop, *, masked):
        """S and P of further blocks, each with O += P V of the one before."""
        for step in tc.range(start, stop):
            self.k.wait()
            with self.pipe.turn():
                tc.mma_ABt(self.s, self.q, self.k, accumulate=False)
                self.v.wait()
                tc.mma_AB(self.o, tc.regroup(self.p), self.v)
            tc.mma_wait(1)
            self.k.release()
            self.q.release(step == self.stop - 1)
            shrink = self.softmax(task, row, step, masked=masked)
            tc.mma_wait()
            self.v.release()
            tc.mul(self.o, shrink, out=self.o)
            tc.cast(self.s, self.p.dtype, out=self.p)

    def softmax(self, task, row, step, *, masked, ends=False):
        """S becomes scores, then 2 to the power of their distance to the running maximum.

        Returns:
            what O must shrink by.
        """
        s, m, col = self.s, self.m, (task.behind - 1 - step) * self.sight.tile_k
        mods = self.mods.times(self.factor * self.factors.of_keys(task, col))
        at = At(s, task.batch, task.head, row, col, row + self.sight.first_query,
                col + self.sight.first_key)  # fmt: skip
        mods.apply(s, at)
        mods.hide(s, at)
        if masked:
            self.sight.mask(s, row, col, ends=ends)
        highest = tc.maximum(tc.row_max(s) * mods.unit, m)
        shrink = tc.exp2(m - highest)
        tc.copy(m, highest)
        tc.exp2(tc.fma(s, mods.unit, self.lift - highest, out=s), out=s)
        tc.fma(self.l, shrink, tc.row_sum(s, partial=True), out=self.l)
        return self.factors.turn(self.value, task, col, shrink) if self.factors.by_block else shrink


@tc.kernel
def attention_forward(Q: gl[T, "B", "H", "Lq", "Dqk"], K: gl[T, "B", "Hkv", "Lk", "Dqk"],
                      V: gl[T, "B", "Hkv", "Lk", "Dv"], O: gl[TO, "B", "H", "Lq", "Dv"],
                      LSE: gl[f32, "B", "H", "Lq"], scale: f32, *args, dim=128, dim_v=128,
                      tile_k=128, consumers=2, stages=2, pingpong=False, order="sequence",
                      persistent=True, edges=ALL, mods=PLAIN, packed=False, scaled=False):
    """O = softmax(mods(scale Q K^T)) V, LSE = ln sum exp(mods(scale Q K^T)). Hkv divides H.

    Args:
        Q, K, V, O, LSE, scale: see `tc.attention`; Lk is positive; if packed B is 1.
        args: if packed where sequences begin; of order "longest" planes, turned; of edges left,
            right; if scaled factors of q, k, v; of mods soft cap, sinks, functions'.
        dim, dim_v, tile_k: columns of tiles (Dqk and Dv, or more), keys a block.
        consumers, stages: tiles of 64 queries a task, blocks of K and of V. pingpong: in turns.
        order, persistent: sequence, longest; or a task a CTA. edges, mods: known while tracing.
    """
    tall, args = 64 * consumers, list(args)
    starts = taken(args, 2, "packed sequences") if packed else ()
    tasks = tasks_of(order, args, Q, tall, starts)
    sight = edges.sight(args, tile_k, Q.size(2), K.size(2))
    factors = Factors.take(args, Q.size(1) // K.size(1)) if scaled else ONE
    mods, tasks = mods.take(args, scale), sight.within(tasks, tall)
    pipe = tc.lcf(consumers=consumers, stages=stages, tasks=tasks, steps=1, pingpong=pingpong,
                  persistent=persistent)  # fmt: skip
    q = pipe.scratch(st[Q.dtype, 64, dim])
    k = pipe.input(st[K.dtype, tile_k, dim], ring="k")
    v = pipe.input(st[V.dtype, tile_k, dim_v, "row" if V.dtype.bits == 16 else "col"], ring="v")
    out, s = pipe.output(st[O.dtype, 64, dim_v]), tc.empty(rt[f32, 64, tile_k])
    p = tc.empty(s.type.cast(Q.dtype))  # 8-bit elements stay in the lanes of S until their product
    m, l = tc.empty(rv[f32, 64]), tc.empty(rv[f32, 64, "row", "partial"])
    o = tc.empty(rt[f32, 64, dim_v])
    work = Consumer(pipe, (q, k, v), (s, p, o, m, l), sight, mods, factors)

    @pipe.begin
    def _(task):
        for i in range(consumers):
            tc.load_async(q[i], Q.at(*sight.place(task, tall, i), 0))

    @pipe.load
    def _(task, step):
        row = sight.of(task).first_key + (task.behind - 1 - step) * tile_k
        place = task.batch, task.head // (Q.size(1) // K.size(1)), row, 0
        tc.load_async(k, K.at(*place))
        tc.load_async(v, V.at(*place))

    @pipe.consume
    def _(task, steps):
        work.task(task, task.tile * tall + pipe.consumer * 64, steps)

    @pipe.finish
    def _(task):
        total, place = tc.total(l), sight.place(task, tall, pipe.consumer)
        if mods.sinks:
            total = total + tc.exp2(mods.sink(task.head) + work.lift - m)
        share = tc.select(total == 0.0, 0.0, tc.rcp(total)) * work.value
        to, sums = O, LSE
        if packed:  # others write the rows behind
            end = sight.of(task).first_query + sight.of(task).queries
            to, sums = O[:, :, :end, :], LSE[:, :, :end]
        tc.store(sums.at(*place), tc.log(total) + (m - work.lift) * (1 / LOG2_E))
        out.store(to.at(*place, 0), o * share)
