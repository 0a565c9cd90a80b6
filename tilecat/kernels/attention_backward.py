"""Softmax attention, backward: dQ, dK and dV from dO.

A task is a block of keys: its CTA walks the blocks of queries, for all heads that share the keys.
Scores stand transposed, one row a key: S^T = K Q^T and dP^T = V dO^T lie in the registers of the
consumer that has the keys, so P^T and dS^T are A operands of dV += P^T dO and dK += dS^T Q. dS^T
also goes through shared memory, where all consumers read all of it: each makes its share of
dQ = dS K and adds it to f32 sums in global memory, in register order, 16 bytes a thread.
`attention_rows` makes what a query needs before, zeroes these sums, and brings them in order after.

    producer      keys, q[0], do[0], q[1], do[1], ...
    tensor cores  S dP |    dV  dQ dK | S dP |    dV  dQ dK ...
    threads            P dS        add dQ     P dS

P is computed while dP is under way, dS is stored beside dV, dQ is added beside dK. Barriers: `full`
and `empty` of the keys, and of each stage of q, do and the statistics; a named barrier where dS of
all consumers is there (twice in shared memory: one is read as the next is written); each consumer's
own.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, inout, rt, rv, st, sv

from ..language.values import RegTile
from .attention_keys import keys_tile, parts_of, ranges_of, scores, tasks_of
from .attention_rows import ROWS
from .attention_scores import Edges, Mods

T = DTypeVar("T", bf16, f16)
MEETING = 9  # named barrier where dS of all consumers is there
COLUMNS = 64  # whose statistics are in registers at a time
REGISTERS = 240  # of a consumer of two: what setmaxnreg leaves beside a producer with 24
PLAIN, UNCHANGED, ALL = Edges(), Mods(), ("dq", "dk", "dv")


@dataclass(eq=False)
class Consumer:
    """A consumer's work: dK and dV of its keys, and its share of each block of dQ.

    Args:
        pipe: the pipeline.
        count: consumers.
        k, v, q, do, lse, delta: its inputs.
        sight: which keys queries see.
        mods: what changes scores.
        side: which half of `shared_ds` is written, 0 or 1, a variable.
        held: whether dS lies in registers too, as the A operand of dK.
        turns: counters of the parts of dQ, to which blocks of keys then add in order; or None.
        grads: what is made, of "dq", "dk", "dv": all where registers hold all.
        half: which half of dK's columns is made, 0 or 1, or None for all.
        biased: the bias's gradient, to which scores' are added; or None.
    """

    pipe: Any
    count: int
    k: Any
    v: Any
    q: Any
    do: Any
    lse: Any
    delta: Any
    sight: Any
    mods: Any
    side: Any
    held: bool
    turns: Any
    grads: tuple[str, ...]
    half: int | None
    biased: Any

    def __post_init__(self) -> None:
        """Its registers and shared memory."""
        dtype, rows, dim = self.q.kind.dtype, self.q.kind.rows, self.q.kind.cols
        self.rows, self.tall, self.parts = rows, rows // ROWS, parts_of(dim, rows, self.count)
        self.cuts = self.parts * self.tall // self.count  # of its share of dQ, one after another
        self.late = rows > ROWS  # P is rounded after dS, with fewer registers
        self.sides = min(self.count, 2)
        self.with_ds = self.grads != ("dv",)
        self.biased = self.biased if "dq" in self.grads else None  # added once
        self.shared_ds = tc.shared(st[dtype, ROWS, rows], self.sides * self.count)
        self.s, self.dp = tc.empty(rt[f32, ROWS, rows]), tc.empty(rt[f32, ROWS, rows])
        self.p, self.ds = tc.empty(rt[dtype, ROWS, rows]), tc.empty(rt[dtype, ROWS, rows])
        width = dim // self.parts
        self.dq = self.dp if width == rows else tc.empty(rt[f32, ROWS, width])
        wide = dim if self.half is None else dim // 2
        self.dk = tc.empty(rt[f32, ROWS, wide])
        self.dv = tc.empty(rt[f32, ROWS, self.do.kind.cols])

    def member(self, task, step):
        """Which head of a group and which block of queries a step of a task takes."""
        blocks = task.stop - task.first
        member = step // blocks
        return member, task.first + step - member * blocks

    def walk(self, task, group, ranges, sums):
        """A task: blocks of queries, of all heads that share its keys.

        Args:
            task: the task.
            group: how many heads.
            ranges: of blocks: the first, that behind the last, whether keys are hidden.
            sums: where dQ is added.
        """
        for name in self.grads:
            if name != "dq":
                tc.fill(getattr(self, name), 0.0)
        self.k.wait()
        for member in tc.range(group):
            for some in ranges:
                self.steps(task, (task.batch, task.head * group + member), some, sums)
        self.k.release()

    def steps(self, task, plane, some, sums):
        """A range of blocks of a plane, batch and head."""
        first, stop, masked = some
        for block in tc.range(first, stop):
            self.step(task, (*plane, block), masked, sums)

    def step(self, task, at, masked, sums):
        """dK, dV and dQ of a block.

        Args:
            task: the task.
            at: batch, head, block of queries.
            masked: whether queries of the block do not see all keys.
            sums: where dQ is added.
        """
        mine, s, dp = self.pipe.consumer, self.s, self.dp
        self.q.wait()
        tc.mma_ABt(s, self.k[mine], self.q, accumulate=False)
        ahead = self.with_ds and not self.mods.sloped  # P is made while dP is under way
        if ahead:
            tc.mma_ABt(dp, self.v[mine], self.do, accumulate=False)
        tc.mma_wait(1 if ahead else 0)
        place = at[2] * self.rows, (task.tile * self.count + mine) * ROWS
        slope, here = scores(s, self.mods, self.sight.of(task), (*at[:2], *place), masked)
        for part, lse in self.with_each(s, self.lse):
            tc.exp2(tc.fma(part, self.mods.unit, -lse, out=part), out=part)
        if "dv" in self.grads and not self.late:
            tc.cast(s, self.p.dtype, out=self.p)
        if self.with_ds:
            self.make_ds(slope, here, ahead)
        if self.late:
            tc.cast(s, self.p.dtype, out=self.p)
        if "dv" in self.grads:
            tc.mma_AB(self.dv, self.p, self.do)
        if self.with_ds:
            tc.store(self.ds_of(mine), self.ds)
            self.use_ds(task, at, sums)
        else:
            tc.barrier_sync(mine + 1, 128)  # all threads have read the statistics
        tc.mma_wait()
        self.q.release()
        self.side.set(self.side ^ 1)

    def make_ds(self, slope, here, ahead):
        """DS of P and dP, which may be under way: P (dP - delta), and times the slope of scores."""
        s, dp, bent = self.s, self.dp, isinstance(slope, RegTile) or slope not in (None, 1)
        if bent and self.biased is None:
            tc.mul(s, slope, out=s)
        if not ahead:
            tc.mma_ABt(dp, self.v[self.pipe.consumer], self.do, accumulate=False)
        tc.mma_wait()
        for part, delta in self.with_each(dp, self.delta):
            part -= delta
        tc.mul(dp, s, out=dp)
        if self.biased is not None:
            here.add(self.biased, dp)
            if bent:
                tc.mul(dp, slope, out=dp)
        tc.cast(dp, self.p.dtype, out=self.ds)

    def with_each(self, tile, statistic):
        """Columns of a tile, few at a time, with what is known of their queries."""
        for first in range(0, self.rows, COLUMNS):
            vector = statistic.tile.part(first // COLUMNS, self.rows // COLUMNS)
            yield tile[:, first : first + COLUMNS], tc.load(vector, rv[f32, COLUMNS, "col"])

    def ds_of(self, consumer):
        """DS of a consumer's keys in shared memory, where it is written now."""
        return self.shared_ds[(self.side if self.sides > 1 else 0) * self.count + consumer]

    def use_ds(self, task, at, sums):
        """DQ and dK of dS; dK is left under way."""
        tc.fence_async()
        tc.barrier_sync(MEETING, 128 * self.count)
        mine = self.pipe.consumer
        for cut in range(self.cuts if "dq" in self.grads else 0):
            share, last = mine * self.cuts + cut, cut == self.cuts - 1
            for i in range(self.count):
                ds, k = self.ds_of(i), self.k[i].tile
                ds = ds if self.tall == 1 else ds.part(share, self.tall)
                k = k if self.parts == 1 else k.part(share, self.parts)
                tc.mma_AtB(self.dq, ds, k, accumulate=i > 0)
            if last:
                self.add_dk()
            tc.mma_wait(1 if last and "dk" in self.grads and self.turns is None else 0)
            part = (task.block + at[2]) * (self.count * self.cuts) + share
            self.add(sums, (*at[:2], part), task.tile)
        if "dq" not in self.grads:
            self.add_dk()

    def add_dk(self):
        """DK of dS, if it is made; left under way."""
        if "dk" in self.grads:
            q = self.q if self.half is None else self.q.tile.part(self.half, 2)
            tc.mma_AB(self.dk, self.ds if self.held else self.ds_of(self.pipe.consumer), q)

    def results(self, dK, dV, scale):
        """What a task has made: where it goes, the sums, their columns."""
        if "dv" in self.grads:
            yield dV, self.dv, self.dv.type.cols
        if "dk" in self.grads:
            yield dK, self.dk * scale, self.dk.type.cols

    def add(self, sums, part, tile):
        """Adds a part of dQ to sums; in the turn of the block of keys, if they have turns."""
        turn = nullcontext() if self.turns is None else tc.turn(self.turns.at(*part), tile)
        with turn:
            tc.atomic_add(sums[*part, 0], tc.register_order(self.dq))


@tc.kernel
def attention_backward(
    Q: gl[T, "B", "H", "Lq", "D"], K: gl[T, "B", "Hkv", "Lk", "D"],
    V: gl[T, "B", "Hkv", "Lk", "Dv"], dO: gl[T, "B", "H", "Lq", "Dv"],
    LSE2: gl[f32, "B", "H", "rows"], Delta: gl[f32, "B", "H", "rows"],
    Sums: inout[f32, "B", "H", "parts", "part"], dK: gl[T, "B", "Hkv", "Lk", "D"],
    dV: gl[T, "B", "Hkv", "Lk", "Dv"], scale: f32, *args, dim, dim_v, part, consumers=2, stages=2,
    tile_q=ROWS, held=False, order="sequence", edges=PLAIN, mods=UNCHANGED, packed=False,
    ordered=False, biased=False, grads=ALL, half=None,
):  # fmt: skip
    """dK, dV, and dQ / scale added to Sums: parts of 64 queries, in register order.

    args: starts, if packed; counters, 0, if ordered; the bias's gradient, 0, if biased; others'.
    """
    tc.grid_wait()
    tc.grid_launch()
    group, tall, args = Q.size(1) // K.size(1), ROWS * consumers, list(args)
    starts = (args.pop(0), args.pop(0)) if packed else ()
    turns, bias = args.pop(0) if ordered else None, args.pop(0) if biased else None
    sight = edges.sight(args, ROWS, Q.size(2), K.size(2))
    walked = replace(sight, edges=PLAIN) if ordered else sight  # a turn of each tile
    tasks = tasks_of(order, walked, K, group, (dim, tall, tile_q), starts)
    mods, parts = mods.take(args, scale), parts_of(dim, tile_q, consumers)
    pipe = tc.lcf(consumers=consumers, stages=stages, tasks=tasks, steps=1, registers=REGISTERS)
    k = pipe.input(keys_tile(K.dtype, dim, parts), count=consumers, ring="keys", rate="task")
    v = pipe.input(st[K.dtype, ROWS, dim_v], count=consumers, ring="keys", rate="task")
    q, do = (pipe.input(st[K.dtype, tile_q, d]) for d in (dim, dim_v))
    lse, delta = (pipe.input(sv[f32, tile_q]) for _ in range(2))
    dim_k, first = (dim, 0) if half is None else (dim // 2, dim // 2 * half)
    made = dict.fromkeys(d for x, d in (("dk", dim_k), ("dv", dim_v)) if x in grads)
    out = {d: pipe.output(st[K.dtype, ROWS, d]) for d in made}
    work = Consumer(pipe, consumers, k, v, q, do, lse, delta, sight, mods, tc.var(0), held,
                    turns, grads, half, bias)

    @pipe.begin
    def _(task):
        for i in range(consumers):
            row = sight.of(task).first_key + (task.tile * consumers + i) * ROWS
            tc.load_async(k[i], K.at(task.batch, task.head, row, 0))
            tc.load_async(v[i], V.at(task.batch, task.head, row, 0))

    @pipe.load
    def _(task, step):
        member, block = work.member(task, step)
        head, row = task.head * group + member, sight.of(task).first_query + block * tile_q
        tc.load_async(q, Q.at(task.batch, head, row, 0))
        tc.load_async(do, dO.at(task.batch, head, row, 0))
        tc.load_async(lse, LSE2[task.batch, head, task.block + block])
        tc.load_async(delta, Delta[task.batch, head, task.block + block])

    @pipe.consume
    def _(task, steps):
        work.walk(task, group, ranges_of(sight, task, tall, tile_q, mods.change), Sums)

    @pipe.finish
    def _(task):
        own, tile = sight.of(task), task.tile * consumers + pipe.consumer
        for tensor, sums, d in work.results(dK, dV, scale):
            to = tensor[:, :, : own.first_key + own.keys, :] if packed else tensor
            out[d].store(to.at(task.batch, task.head, own.first_key + tile * ROWS, first), sums)
