"""Softmax attention, backward: dQ, dK and dV from dO.

A task is a block of keys: its CTA walks the blocks of 64 queries, for all heads that share the
keys. Scores stand transposed, one row a key: S^T = K Q^T and dP^T = V dO^T lie in the registers of
the consumer that has the keys, so P^T and dS^T are A operands of dV += P^T dO and dK += dS^T Q.
dS^T also goes through shared memory, where all consumers read all of it: each makes its columns of
dQ = dS K and adds them to f32 sums in global memory, in register order. `attention_rows` makes what
a query needs before, zeroes these sums, and brings them in order after.

    producer      k, v, q[0], do[0], q[1], do[1], ...
    tensor cores  S dP | dV | dQ dK | S dP | dV | dQ dK ...
    threads            P   dS     add dQ     P   dS

P is computed while dP is under way, dS beside dV, dQ is added beside dK, which ends in the next
step. Barriers: `full` and `empty` of k and of v, of each stage of q, do and the statistics; a named
barrier where dS of all consumers is there (twice in shared memory: one is read as the next is
written); each consumer's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, inout, rt, rv, st, sv

from ..language.scalars import minimum_of, select
from ..language.values import RegTile
from .attention_rows import ROWS
from .attention_scores import Edges, Mods, maximum_of
from .score_mods import At

T = DTypeVar("T", bf16, f16)
MEETING = 9  # named barrier where dS of all consumers is there
REGISTERS = 240  # of a consumer of two: what setmaxnreg leaves beside a producer with 24
PLAIN, UNCHANGED = Edges(), Mods()


@dataclass(eq=False)
class Consumer:
    """A consumer's work: dK and dV of its keys, and its part of each block of dQ.

    Args:
        pipe: the pipeline.
        count: consumers.
        k, v, q, do, lse, delta: its inputs.
        mods: what changes scores.
        side: which half of `shared_ds` is written, 0 or 1, a variable.
    """

    pipe: Any
    count: int
    k: Any
    v: Any
    q: Any
    do: Any
    lse: Any
    delta: Any
    mods: Any
    side: Any

    def __post_init__(self) -> None:
        """Its registers and shared memory."""
        dtype, (rows, dim) = self.q.kind.dtype, self.q.kind.shape
        self.by_rows = rows == ROWS * self.count
        self.part = rows * dim // self.count  # elements of a block of dQ
        self.shared_ds = tc.shared(st[dtype, ROWS, rows], 2 * self.count)
        self.shared_dq = tc.shared(sv[f32, self.part], self.count)
        self.s, self.dp = tc.empty(rt[f32, ROWS, rows]), tc.empty(rt[f32, ROWS, rows])
        self.p = tc.empty(rt[dtype, ROWS, rows])
        width = self.part // ROWS
        self.dq = self.dp if width == rows else tc.empty(rt[f32, ROWS, width])
        self.dk, self.dv = (tc.empty(rt[f32, ROWS, x.kind.cols]) for x in (self.q, self.do))

    def member(self, task, step):
        """Which head of a group and which block of queries a step of a task takes."""
        blocks = task.stop - task.first
        member = step // blocks
        return member, task.first + step - member * blocks

    def begin(self):
        """Before the first block of a task."""
        tc.fill(self.dk, 0.0)
        tc.fill(self.dv, 0.0)
        self.k.wait()
        self.v.wait()

    def end(self, steps):
        """After the last block of a task."""
        tc.mma_wait()
        self.q.release_before(steps > 0)
        self.k.release()
        self.v.release()

    def steps(self, task, member, at, some, sums):
        """A range of blocks; `some`: the first, that behind the last, what hides keys, or None."""
        first, stop, sight = some
        for block in tc.range(first, stop):
            self.step(task, member, (*at, block), sight, sums)

    def step(self, task, member, at, sight, sums):
        """dK, dV and dQ of a block; dK is left under way.

        Args:
            task: the task.
            member: which head of the group.
            at: batch, head, block of queries.
            sight: hides keys, if not None.
            sums: where dQ is added.
        """
        mine, s, dp, sloped = self.pipe.consumer, self.s, self.dp, self.mods.sloped
        rows, column = s.type.cols, rv[f32, s.type.cols, "col"]
        self.q.wait()
        tc.mma_ABt(s, self.k[mine], self.q, accumulate=False)
        tc.mma_ABt(dp, self.v[mine], self.do, accumulate=False)
        tc.mma_wait(0 if sloped else 1)
        self.q.release_before((member > 0) | (at[2] > task.first))
        place = *at[:2], at[2] * rows, (task.tile * self.count + mine) * ROWS
        slope, lse = scores(s, self.mods, place, sight), tc.load(self.lse, column)
        bent = isinstance(slope, RegTile)
        if bent:
            tc.mul(dp - tc.load(self.delta, column), slope, out=dp)
        tc.exp2(tc.fma(s, self.mods.unit, -lse, out=s), out=s)
        if not sloped:
            tc.mma_AB(self.dv, tc.cast(s, self.p.dtype, out=self.p), self.do)
            tc.mma_wait(1)
        tc.mul(dp if bent else dp - tc.load(self.delta, column), s, out=dp)
        ds = [self.shared_ds[self.side * self.count + i] for i in (mine, *range(self.count))]
        tc.store(ds[0], tc.cast(dp, self.p.dtype))
        if sloped:  # later, with fewer registers
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
        to = sums.at(*at[:2], (at[2] * self.count + mine) * self.part)
        tc.store_bulk(to, self.shared_dq[mine], add_=True)


def scores(s, mods, place, sight):
    """Makes scores of products at (batch, head, query, key), and gives their slope, or None."""
    at = At(s, *place, *place[2:], transposed=True)
    slope = mods.slope(s, at)
    mods.hide(s, at)
    if sight is not None:
        sight.mask(s.T, *place[2:], ends=True)
    return slope


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
        start, stop = sight.seen_by(first, last, tile_q)
        steps = (stop - start) * (Q.size(1) // K.size(1))
        return (*coords.items(), ("first", start), ("stop", stop), ("steps", steps))

    return replace(tasks, locate=locate)


def keys_tile(dtype, dim, cut):
    """A tile of 64 keys, whose columns are cut in whole panels."""
    return st[dtype, ROWS, dim, "row", min(dim // cut, ROWS) * dtype.nbytes]


def whole_blocks(sight, task, tall, tile_q):
    """Blocks of queries that see all keys of the task, or those all but the last."""
    first = task.tile * tall
    low, end = sight.seen_whole_by(first, first + tall, tile_q)
    low = minimum_of(maximum_of(low, task.first), task.stop)
    inner = select(sight.keys < first + tall, task.stop, low)
    return inner, maximum_of(minimum_of(end, task.stop), inner)


@tc.kernel
def attention_backward(
    Q: gl[T, "B", "H", "Lq", "D"], K: gl[T, "B", "Hkv", "Lk", "D"],
    V: gl[T, "B", "Hkv", "Lk", "Dv"], dO: gl[T, "B", "H", "Lq", "Dv"],
    LSE2: gl[f32, "B", "H", "rows"], Delta: gl[f32, "B", "H", "rows"],
    Sums: inout[f32, "B", "H", "elems"], dK: gl[T, "B", "Hkv", "Lk", "D"],
    dV: gl[T, "B", "Hkv", "Lk", "Dv"], scale: f32, *args, dim, dim_v, tile_q=64,
    consumers=2, stages=2, order="sequence", edges=PLAIN, mods=UNCHANGED,
):  # fmt: skip
    """dK, dV, and dQ / scale added to Sums, in register order: parts of blocks of 64 queries.

    Each consumer has dim / consumers columns of a block; with tile_q = 64 consumers whole blocks.
    """
    group, args = Q.size(1) // K.size(1), list(args)
    sight = edges.sight(args, ROWS, Q.size(2), K.size(2))
    mods, tall = mods.take(args, scale), ROWS * consumers
    tasks = tasks_of(order, sight, Q, K, tall, tile_q)
    pipe = tc.lcf(consumers=consumers, stages=stages, tasks=tasks, steps=1, registers=REGISTERS)
    panels = keys_tile(K.dtype, dim, 1 if tile_q == tall else consumers)
    k = pipe.input(panels, count=consumers, ring="k", rate="task")
    v = pipe.input(st[K.dtype, ROWS, dim_v], count=consumers, ring="v", rate="task")
    q, do = (pipe.input(st[K.dtype, tile_q, d]) for d in (dim, dim_v))
    lse, delta = pipe.input(sv[f32, tile_q]), pipe.input(sv[f32, tile_q])
    out = {d: pipe.output(st[K.dtype, ROWS, d]) for d in dict.fromkeys((dim, dim_v))}
    work = Consumer(pipe, consumers, k, v, q, do, lse, delta, mods, tc.var(0))

    @pipe.begin
    def _(task):
        for i in range(consumers):
            place = task.batch, task.head, task.tile * consumers + i, 0
            tc.load_async(k[i], K[*place])
            tc.load_async(v[i], V[*place])

    @pipe.load
    def _(task, step):
        member, block = work.member(task, step)
        place = task.batch, task.head * group + member, block
        tc.load_async(q, Q[*place, 0])
        tc.load_async(do, dO[*place, 0])
        tc.load_async(lse, LSE2[*place])
        tc.load_async(delta, Delta[*place])

    @pipe.consume
    def _(task, steps):
        (inner, outer), heads = whole_blocks(sight, task, tall, tile_q), task.head * group

        ranges = ((task.first, inner, sight), (inner, outer, None), (outer, task.stop, sight))
        work.begin()
        for member in tc.range(group):
            for some in ranges[: 3 if edges.left else 2]:
                work.steps(task, member, (task.batch, heads + member), some, Sums)
        work.end(steps)

    @pipe.finish
    def _(task):
        place = task.batch, task.head, task.tile * consumers + pipe.consumer, 0
        out[dim_v].store(dV[*place], work.dv)
        out[dim].store(dK[*place], work.dk * scale)
