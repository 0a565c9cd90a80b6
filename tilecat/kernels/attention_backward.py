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
from functools import partial
from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, inout, rt, rv, st, sv

from .attention_keys import SPILLS, keys_tile, make_few, ranges_of, scores, tasks_of, times
from .attention_rows import ROWS
from .attention_scores import Edges, Mods
from .score_mods import At

T = DTypeVar("T", bf16, f16)
MEETING = 9  # named barrier where dS of all consumers is there
COLUMNS = 64  # whose statistics are in registers at a time
REGISTERS = 240  # of a consumer of two: what setmaxnreg leaves beside a producer with 24
ADD = {"scores": At.add, "keys": At.add_keys}  # to the bias's gradient, by what a bias is of
PLAIN, UNCHANGED, ALL = Edges(), Mods(), ("dq", "dk", "dv")


@dataclass(eq=False)
class Consumer:
    """A consumer's work: dK and dV of its keys, and its share of each block of dQ.

    Args:
        pipe: the pipeline.
        count: consumers.
        parts: in which the columns of 64 rows of dQ are made.
        k, v, q, do, lse, delta: its inputs.
        sight: which keys queries see.
        mods: what changes scores.
        held: whether dS lies in registers too, as the A operand of dK.
        turns: counters of the parts of dQ, to which blocks of keys then add in order; or None.
        wide: columns of what is made of "dk" and "dv": both where registers hold both.
        piece: which part of their columns it is, of how many.
        with_dq: whether dQ is made.
        biased: adds gradients of scores, given their place, to the bias's; or None.
        few: whether dS is made of few queries at a time, and may spill for all that.
    """

    pipe: Any
    count: int
    parts: int
    k: Any
    v: Any
    q: Any
    do: Any
    lse: Any
    delta: Any
    sight: Any
    mods: Any
    held: bool
    turns: Any
    wide: dict[str, int]
    piece: tuple[int, int]
    with_dq: bool
    biased: Any
    few: bool

    def __post_init__(self) -> None:
        """Its registers and shared memory."""
        self.side = tc.var(0)  # which half of `shared_ds` is written
        tc.allow_spills(SPILLS if self.few else 0)
        dtype, rows, dim = self.q.kind.dtype, self.q.kind.rows, self.q.kind.cols
        self.rows, self.tall = rows, rows // ROWS
        self.cuts = self.parts * self.tall // self.count  # of its share of dQ, one after another
        self.late = rows > ROWS  # P is rounded after dS, with fewer registers
        self.sides = min(self.count, 2)
        self.with_ds = self.with_dq or "dk" in self.wide
        self.biased = self.biased if self.with_dq else None  # added once
        self.shared_ds = tc.shared(st[dtype, ROWS, rows], self.sides * self.count)
        self.s, self.dp = tc.empty(rt[f32, ROWS, rows]), tc.empty(rt[f32, ROWS, rows])
        self.p, self.ds = tc.empty(rt[dtype, ROWS, rows]), tc.empty(rt[dtype, ROWS, rows])
        width = dim // self.parts
        self.dq = self.dp if width == rows else tc.empty(rt[f32, ROWS, width])
        self.made = {x: tc.empty(rt[f32, ROWS, d]) for x, d in self.wide.items()}

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
        for tile in self.made.values():
            tc.fill(tile, 0.0)
        self.k.wait()
        for member in tc.range(group):
            plane = task.batch, task.head * group + member
            for first, stop, masked in ranges:
                self.steps(task, plane, tc.range(first, stop), masked, sums)
        self.k.release()

    def steps(self, task, plane, blocks, masked, sums):
        """Some blocks of a plane, batch and head."""
        for block in blocks:
            self.step(task, (*plane, block), masked, sums)

    def step(self, task, at, masked, sums):
        """dK, dV and dQ of a block.

        Args:
            task: the task.
            at: batch, head, block of queries.
            masked: whether queries of the block do not see all keys.
            sums: where dQ is added.
        """
        mine, few = self.pipe.consumer, self.few and self.with_ds
        self.q.wait()
        tc.mma_ABt(self.s, self.k[mine], self.q, accumulate=False)
        (partial(make_few, self) if few else self.make_all)(task, at, masked)
        if "dv" in self.made:
            tc.mma_AB(self.made["dv"], self.p, self.columns(self.do))
        if self.with_ds:
            tc.store(self.ds_of(mine), self.ds)
            self.use_ds(task, at, sums)
        else:
            tc.barrier_sync(mine + 1, 128)  # all threads have read the statistics
        tc.mma_wait()
        self.q.release()
        self.side.set(self.side ^ 1)

    def place(self, task, at):
        """Of scores: batch, head, query, key."""
        return *at[:2], at[2] * self.rows, (task.tile * self.count + self.pipe.consumer) * ROWS

    def make_all(self, task, at, masked):
        """P, if dV needs it, and dS, of S under way."""
        s, ahead = self.s, self.with_ds and not self.mods.sloped
        if ahead:  # P is made while dP is under way
            tc.mma_ABt(self.dp, self.v[self.pipe.consumer], self.do, accumulate=False)
        tc.mma_wait(1 if ahead else 0)
        place = self.place(task, at)
        slopes, here = scores(s, self.mods, self.sight.of(task), place, masked, bool(self.biased))
        for part, lse in self.with_each(s, self.lse):
            tc.exp2(tc.fma(part, self.mods.unit, -lse, out=part), out=part)
        if "dv" in self.made and not self.late:
            tc.cast(s, self.p.dtype, out=self.p)
        if self.with_ds:
            self.make_ds(slopes, here, ahead)
        if self.late:
            tc.cast(s, self.p.dtype, out=self.p)

    def make_ds(self, slopes, here, ahead):
        """DS of P and dP, which may be under way: P (dP - delta), times the slopes of scores."""
        s, dp, (of_cap, of_step) = self.s, self.dp, slopes
        if self.biased is None:
            times(s, of_step)
        if not ahead:
            tc.mma_ABt(dp, self.v[self.pipe.consumer], self.do, accumulate=False)
        tc.mma_wait()
        for part, delta in self.with_each(dp, self.delta):
            part -= delta
        tc.mul(dp, s, out=dp)
        if self.biased is not None:  # the bias is added between the soft cap and the step
            times(dp, of_step)
            self.biased(here, tile=dp)
        times(dp, of_cap)
        tc.cast(dp, self.p.dtype, out=self.ds)

    def with_each(self, tile, statistic, columns=COLUMNS):
        """Columns of a tile, few at a time, with what is known of their queries."""
        for first in range(0, self.rows, columns):
            vector = statistic.tile.part(first // columns, self.rows // columns)
            yield tile[:, first : first + columns], tc.load(vector, rv[f32, columns, "col"])

    def ds_of(self, consumer):
        """DS of a consumer's keys in shared memory, where it is written now."""
        return self.shared_ds[(self.side if self.sides > 1 else 0) * self.count + consumer]

    def use_ds(self, task, at, sums):
        """DQ and dK of dS; dK is left under way."""
        tc.fence_async()
        tc.barrier_sync(MEETING, 128 * self.count)
        mine = self.pipe.consumer
        for cut in range(self.cuts if self.with_dq else 0):
            share, last = mine * self.cuts + cut, cut == self.cuts - 1
            for i in range(self.count):
                ds, k = self.ds_of(i), self.k[i].tile
                ds = ds if self.tall == 1 else ds.part(share, self.tall)
                k = k if self.parts == 1 else k.part(share, self.parts)
                tc.mma_AtB(self.dq, ds, k, accumulate=i > 0)
            if last:
                self.add_dk()
            tc.mma_wait(1 if last and "dk" in self.made and self.turns is None else 0)
            part = (task.block + at[2]) * (self.count * self.cuts) + share
            self.add(sums, (*at[:2], part), task.tile)
        if not self.with_dq:
            self.add_dk()

    def add_dk(self):
        """DK of dS, if it is made; left under way."""
        if "dk" in self.made:
            ds = self.ds if self.held else self.ds_of(self.pipe.consumer)
            tc.mma_AB(self.made["dk"], ds, self.columns(self.q))

    def columns(self, operand):
        """Those of an operand that are those of what is made."""
        return operand if self.piece[1] == 1 else operand.tile.part(*self.piece)

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
    tile_q=ROWS, held=False, few=False, order="sequence", edges=PLAIN, mods=UNCHANGED, packed=False,
    ordered=False, biased=None, grads=ALL, piece=(0, 1),
):  # fmt: skip
    """dK, dV, and dQ / scale added to Sums: parts of 64 queries, in register order.

    args: starts, if packed; counters, 0, if ordered; if biased (see ADD) its gradient; others'.
    """
    tc.grid_wait()
    tc.grid_launch()
    group, tall, args = Q.size(1) // K.size(1), ROWS * consumers, list(args)
    starts = (args.pop(0), args.pop(0)) if packed else ()
    turns, bias = (args.pop(0) if there else None for there in (ordered, biased))
    sight = edges.sight(args, ROWS, Q.size(2), K.size(2))
    walked = replace(sight, edges=PLAIN) if ordered else sight  # a turn of each tile
    tasks = tasks_of(order, walked, K, group, (dim, tall, tile_q), starts)
    mods, parts = mods.take(args, scale), ROWS * dim // part
    pipe = tc.lcf(consumers=consumers, stages=stages, tasks=tasks, steps=1, registers=REGISTERS)
    k = pipe.input(keys_tile(K.dtype, dim, parts), count=consumers, ring="keys", rate="task")
    v = pipe.input(st[K.dtype, ROWS, dim_v], count=consumers, ring="keys", rate="task")
    q, do = (pipe.input(st[K.dtype, tile_q, d]) for d in (dim, dim_v))
    lse, delta = (pipe.input(sv[f32, tile_q]) for _ in range(2))
    wide = {x: d // piece[1] for x, d in (("dv", dim_v), ("dk", dim)) if x in grads}
    out = {d: pipe.output(st[K.dtype, ROWS, d]) for d in dict.fromkeys(wide.values())}
    work = Consumer(pipe, consumers, parts, k, v, q, do, lse, delta, sight, mods, held, turns,
                    wide, piece, "dq" in grads, biased and partial(ADD[biased], tensor=bias), few)

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
        own = sight.of(task)
        row = own.first_key + (task.tile * consumers + pipe.consumer) * ROWS
        for name, sums in work.made.items():
            d, to, sums = wide[name], *((dK, sums * scale) if name == "dk" else (dV, sums))
            to = to[:, :, : own.first_key + own.keys, :] if packed else to
            out[d].store(to.at(task.batch, task.head, row, piece[0] * d), sums)
