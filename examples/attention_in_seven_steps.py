"""Softmax attention in seven steps, from one warp's own registers to the top.

O = softmax(scale Q K^T) V of heads of 128, bf16 with f32 sums. Each step is a kernel that runs by
itself; `STEPS` says how each is called. The page `docs/attention-in-seven-steps.md` explains them,
`benchmarks/attention_steps.py` times them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import tilecat as tc
from tilecat import bf16, f32, gl, rt, rv, st

LOG2_E = math.log2(math.e)
LOWEST = -1e30  # where maxima start


def softmax(s, m, l, unit):
    """S becomes exp2 of its distance to the running maximum; gives what O must shrink by."""
    highest = tc.row_max(s, m)
    shrink = tc.exp2((m - highest) * unit)
    tc.copy(m, highest)
    tc.exp2(tc.fma(s, unit, highest * -unit, out=s), out=s)
    tc.fma(l, shrink, tc.row_sum(s), out=l)
    return shrink


def place_of(tasks):
    """The task of this CTA: a tile of queries, a head, a batch entry."""
    return tasks.task(tc.cta_id())


@tc.kernel
def step1(Q: gl[bf16, "B", "H", "Lq", "D"], K: gl[bf16, "B", "H", "Lk", "D"],
          V: gl[bf16, "B", "H", "Lk", "D"], O: gl[bf16, "B", "H", "Lq", "D"],
          scale: f32, *, D):  # fmt: skip
    """Scores never leave registers: each warp has 16 queries, and reads 16 keys at a time."""
    tasks = tc.sequence_first(tc.cdiv(Q.size(2), 64), Q.size(1), Q.size(0))
    with tc.warpgroup(), tc.warps():
        task, unit = place_of(tasks), scale * LOG2_E
        here = (task.batch, task.head)
        q = tc.load(Q[*here, task.tile * 4 + tc.warp_id(), 0], rt[bf16, 16, D])
        o, m, l = tc.zeros(rt[f32, 16, D]), tc.full(rv[f32, 16], LOWEST), tc.zeros(rv[f32, 16])
        for j in tc.range(tc.cdiv(K.size(2), 16)):
            s = tc.zeros(rt[f32, 16, 16])
            tc.mma_ABt(s, q, tc.load(K[*here, j, 0], rt[bf16, 16, D]))
            tc.mask_cols(s, K.size(2) - j * 16, -math.inf)
            tc.mul(o, softmax(s, m, l, unit), out=o)
            tc.mma_AB(o, tc.cast(s, bf16), tc.load(V[*here, j, 0], rt[bf16, 16, D, "col"]))
        tile = O[*here, task.tile * 4 + tc.warp_id(), 0]
        tc.store(tile, tc.cast(o * tc.rcp(l), bf16))


@tc.kernel
def step2(Q: gl[bf16, "B", "H", "Lq", "D"], K: gl[bf16, "B", "H", "Lk", "D"],
          V: gl[bf16, "B", "H", "Lk", "D"], O: gl[bf16, "B", "H", "Lq", "D"],
          scale: f32, *, D):  # fmt: skip
    """Shared memory: K and V are loaded once and read by four warps."""
    tasks = tc.sequence_first(tc.cdiv(Q.size(2), 64), Q.size(1), Q.size(0))
    with tc.warpgroup():
        task, unit = place_of(tasks), scale * LOG2_E
        here = (task.batch, task.head)
        k, v = tc.shared(st[bf16, 32, D], 2), tc.shared(st[bf16, 32, D], 2)
        with tc.warps():
            q = tc.load(Q[*here, task.tile * 4 + tc.warp_id(), 0], rt[bf16, 16, D])
            o, m, l = tc.zeros(rt[f32, 16, D]), tc.full(rv[f32, 16], LOWEST), tc.zeros(rv[f32, 16])
        for j in tc.range(tc.cdiv(K.size(2), 64)):
            for half in range(2):
                tc.copy(k[half], K[*here, j * 2 + half, 0])
                tc.copy(v[half], V[*here, j * 2 + half, 0])
            tc.sync()
            with tc.warps():
                for half in range(2):
                    s = tc.zeros(rt[f32, 16, 32])
                    tc.mma_ABt(s, q, tc.load(k[half]))
                    tc.mask_cols(s, K.size(2) - (j * 2 + half) * 32, -math.inf)
                    tc.mul(o, softmax(s, m, l, unit), out=o)
                    tc.mma_AB(o, tc.cast(s, bf16), tc.load(v[half], order="col"))
            tc.sync()
        with tc.warps():
            tile = O[*here, task.tile * 4 + tc.warp_id(), 0]
            tc.store(tile, tc.cast(o * tc.rcp(l), bf16))


@tc.kernel
def step3(Q: gl[bf16, "B", "H", "Lq", "D"], K: gl[bf16, "B", "H", "Lk", "D"],
          V: gl[bf16, "B", "H", "Lk", "D"], O: gl[bf16, "B", "H", "Lq", "D"],
          scale: f32, *, D):  # fmt: skip
    """Hopper: TMA loads tiles, `wgmma` multiplies 64 queries by 128 keys from shared memory."""
    tasks = tc.sequence_first(tc.cdiv(Q.size(2), 64), Q.size(1), Q.size(0))
    full = tc.barrier()
    with tc.warpgroup():
        task, unit = place_of(tasks), scale * LOG2_E
        here = (task.batch, task.head)
        q, k, v = (tc.shared(st[bf16, rows, D]) for rows in (64, 128, 128))
        s, o = tc.empty(rt[f32, 64, 128]), tc.zeros(rt[f32, 64, D])
        m, l = tc.full(rv[f32, 64], LOWEST), tc.zeros(rv[f32, 64])
        full.expect(q)
        tc.load_async(q, Q[*here, task.tile, 0], full)
        full.wait(0)
        for j in tc.range(tc.cdiv(K.size(2), 128)):
            full.expect(k, v)
            tc.load_async(k, K[*here, j, 0], full)
            tc.load_async(v, V[*here, j, 0], full)
            full.wait(j + 1 & 1)
            tc.mma_ABt(s, q, k, accumulate=False)
            tc.mma_wait()
            tc.mask_cols(s, K.size(2) - j * 128, -math.inf)
            tc.mul(o, softmax(s, m, l, unit), out=o)
            tc.mma_AB(o, tc.cast(s, bf16), v)
            tc.mma_wait()
            tc.sync()
        tc.store(O[*here, task.tile, 0], tc.cast(o * tc.rcp(l), bf16))


def scores(pipe, q, k, s):
    """S = Q K^T of the next block."""
    k.wait()
    with pipe.turn():
        tc.mma_ABt(s, q, k, accumulate=False)
    tc.mma_wait()
    k.release()


def values(v, p, o):
    """O += P V."""
    v.wait()
    tc.mma_AB(o, p, v)
    tc.mma_wait()
    v.release()


def apart(pipe, tiles, registers, unit):
    """One product after the other; the tensor cores idle while the softmax is computed."""
    (q, k, v), (s, p, o, m, l) = tiles, registers
    values(v, p, o)
    scores(pipe, q, k, s)
    tc.mul(o, softmax(s, m, l, unit), out=o)


def together(pipe, tiles, registers, unit):
    """O += P V of the block before runs while the softmax of this one is computed."""
    (q, k, v), (s, p, o, m, l) = tiles, registers
    k.wait()
    with pipe.turn():
        tc.mma_ABt(s, q, k, accumulate=False)
        v.wait()
        tc.mma_AB(o, p, v)
    tc.mma_wait(1)
    k.release()
    shrink = softmax(s, m, l, unit)
    tc.mma_wait()
    v.release()
    tc.mul(o, shrink, out=o)


@tc.kernel
def pipelined(Q: gl[bf16, "B", "H", "Lq", "D"], K: gl[bf16, "B", "H", "Lk", "D"],
              V: gl[bf16, "B", "H", "Lk", "D"], O: gl[bf16, "B", "H", "Lq", "D"],
              scale: f32, *, D, consumers=1, block=apart, pingpong=False):  # fmt: skip
    """A pipeline: a producer warp loads ahead, consumer warpgroups have 64 queries each."""
    steps = tc.cdiv(K.size(2), 128)
    tasks = tc.sequence_first(tc.cdiv(Q.size(2), 64 * consumers), Q.size(1), Q.size(0))
    pipe = tc.lcf(consumers=consumers, stages=2, tasks=tasks, steps=steps, pingpong=pingpong)
    q, out = pipe.scratch(st[bf16, 64, D]), pipe.output(st[bf16, 64, D])
    k, v = (pipe.input(st[bf16, 128, D], ring=name) for name in ("k", "v"))
    s, o, p = tc.empty(rt[f32, 64, 128]), tc.empty(rt[f32, 64, D]), tc.empty(rt[bf16, 64, 128])
    m, l = tc.empty(rv[f32, 64]), tc.empty(rv[f32, 64])
    unit = scale * LOG2_E

    @pipe.begin
    def _(task):
        for i in range(consumers):
            tc.load_async(q[i], Q[task.batch, task.head, task.tile * consumers + i, 0])

    @pipe.load
    def _(task, j):  # from the last block on: only that one can be ragged
        tc.load_async(k, K[task.batch, task.head, steps - 1 - j, 0])
        tc.load_async(v, V[task.batch, task.head, steps - 1 - j, 0])

    @pipe.consume
    def _(task, steps):
        q.wait()
        for place, start in ((o, 0.0), (l, 0.0), (m, LOWEST)):
            tc.fill(place, start)
        scores(pipe, q, k, s)
        tc.mask_cols(s, K.size(2) - (steps - 1) * 128, -math.inf)
        softmax(s, m, l, unit)
        tc.cast(s, bf16, out=p)
        for _ in tc.range(1, steps):
            block(pipe, (q, k, v), (s, p, o, m, l), unit)
            tc.cast(s, bf16, out=p)
        q.release()
        values(v, p, o)

    @pipe.finish
    def _(task):
        tile = task.tile * consumers + pipe.consumer
        out.store(O[task.batch, task.head, tile, 0], o * tc.rcp(l))


@dataclass(frozen=True)
class Step:
    """One step: a kernel, and how it is called.

    Args:
        name: as tables show it.
        kernel: called with Q, K, V, O and the scale.
        persistent: the grid is one CTA a SM, each with many tasks; else one CTA a 64 queries.
    """

    name: str
    kernel: Callable[..., Any]
    persistent: bool = True

    def __call__(self, q: Any, k: Any, v: Any, out: Any) -> None:
        """Attention of NumPy arrays on the PTX machine, or of CUDA tensors on a GPU."""
        batch, heads, queries, dim = q.shape
        grid = {} if self.persistent else {"grid": tc.cdiv(queries, 64) * heads * batch}
        self.kernel(q, k, v, out, dim**-0.5, **grid)


STEPS = (
    Step("1 scores in registers", step1, False),
    Step("2 shared memory", step2, False),
    Step("3 TMA and wgmma", step3, False),
    Step("4 a pipeline", pipelined),
    Step("5 two consumers", partial(pipelined, consumers=2)),
    Step("6 two products in flight", partial(pipelined, consumers=2, block=together)),
    Step("7 turns", partial(pipelined, consumers=2, block=together, pingpong=True)),
)
