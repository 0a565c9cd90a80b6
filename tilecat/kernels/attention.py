"""Softmax attention, forward.

Key blocks run backwards: only the last can be ragged, and it is masked before the loop, where no
mma is in flight. In the loop, S = Q K^T of this block and O += P V of the block before run on the
tensor cores while the softmax of S is computed.
"""

from __future__ import annotations

import math

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, rv, st

T = DTypeVar("T", bf16, f16)
LOG2_E = math.log2(math.e)
LOWEST = -1e30  # where maxima start: finite, for with -inf a block of -inf scores would give NaN


def first_scores(pipe, q, k, s, starts):
    """S of the block that runs first; meanwhile the sums start."""
    q.wait()
    k.wait()
    with pipe.turn():
        tc.mma_ABt(s, q, k, accumulate=False)
    for place, start in starts:
        tc.fill(place, start)
    tc.mma_wait()
    k.release()


def softmax(s, m, l, log2_scale):
    """S becomes exp2 of its distance to the running maximum; gives what O must shrink by."""
    highest = tc.row_max(s, m)
    shrink = tc.exp2((m - highest) * log2_scale)
    tc.copy(m, highest)
    tc.exp2(tc.fma(s, log2_scale, highest * -log2_scale, out=s), out=s)
    tc.fma(l, shrink, tc.row_sum(s, partial=True), out=l)
    return shrink


@tc.kernel
def attention(Q: gl[T, "B", "H", "Lq", "D"], K: gl[T, "B", "Hkv", "Lk", "D"],
              V: gl[T, "B", "Hkv", "Lk", "D"], O: gl[T, "B", "H", "Lq", "D"],
              LSE: gl[f32, "B", "H", "Lq"], scale: f32,
              *, D, tile_k=128, consumers=2, stages=2, pingpong=False,
              order=tc.sequence_first):  # fmt: skip
    """O = softmax(scale Q K^T) V, LSE = ln sum exp(scale Q K^T). Hkv divides H; Lk is positive."""
    steps = tc.cdiv(K.size(2), tile_k)
    tasks = order(tc.cdiv(Q.size(2), 64 * consumers), Q.size(1), Q.size(0))
    pipe = tc.lcf(consumers=consumers, stages=stages, tasks=tasks, steps=steps, pingpong=pingpong)
    q = pipe.scratch(st[Q.dtype, 64, D])
    k = pipe.input(st[K.dtype, tile_k, D], ring="k")
    v = pipe.input(st[V.dtype, tile_k, D], ring="v")
    out = pipe.output(st[O.dtype, 64, D])
    s, o = tc.empty(rt[f32, 64, tile_k]), tc.empty(rt[f32, 64, D])
    p = tc.empty(rt[Q.dtype, 64, tile_k])
    m, l = tc.empty(rv[f32, 64]), tc.empty(rv[f32, 64, "row", "partial"])
    log2_scale = scale * LOG2_E

    @pipe.begin
    def _(task):
        for i in range(consumers):
            tc.load_async(q[i], Q[task.batch, task.head, task.tile * consumers + i, 0])

    @pipe.load
    def _(task, j):
        head, block = task.head // (Q.size(1) // K.size(1)), steps - 1 - j
        tc.load_async(k, K[task.batch, head, block, 0])
        tc.load_async(v, V[task.batch, head, block, 0])

    @pipe.consume
    def _(task, steps):
        first_scores(pipe, q, k, s, ((o, 0.0), (l, 0.0), (m, LOWEST)))
        tc.mask_cols(s, K.size(2) - (steps - 1) * tile_k, -math.inf)
        softmax(s, m, l, log2_scale)
        tc.cast(s, Q.dtype, out=p)
        for _ in tc.range(1, steps):
            k.wait()
            with pipe.turn():
                tc.mma_ABt(s, q, k, accumulate=False)
                v.wait()
                tc.mma_AB(o, p, v)
            tc.mma_wait(1)
            k.release()
            shrink = softmax(s, m, l, log2_scale)
            tc.mma_wait()
            v.release()
            tc.mul(o, shrink, out=o)
            tc.cast(s, Q.dtype, out=p)
        q.release()
        v.wait()
        tc.mma_AB(o, p, v)
        tc.mma_wait()
        v.release()

    @pipe.finish
    def _(task):
        total, tile = tc.total(l), task.tile * consumers + pipe.consumer
        tc.store(LSE[task.batch, task.head, tile], tc.log(total) + m * scale)
        out.store(O[task.batch, task.head, tile, 0], o * tc.rcp(total))
