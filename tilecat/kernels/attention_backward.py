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

from ..language.values import RegTile
from .attention_keys import keys_tile, scores, tasks_of, whole_blocks
from .attention_rows import ROWS
from .attention_scores import Edges, Mods

T = DTypeVar("T", bf16, f16)
MEETING = 9  # named barrier where dS of all consumers is there
REGISTERS = 240  # of a consumer of two: what setmaxnreg leaves beside a producer with 24
PLAIN, UNCHANGED, BOTH = Edges(), Mods(), ("dk", "dv")


@dataclass(eq=False)
class Consumer:
    """A consumer's work: dK and dV of its keys, and its part of each block of dQ.

    Args:
        pipe: the pipeline.
        count: consumers.
        k, v, q, do, lse, delta: its inputs.
        sight: which keys queries see.
        mods: what changes scores.
        side: which half of `shared_ds` is written, 0 or 1, a variable.
        held: what lies in registers beside shared memory, as A operands: "keys" for K and V of a
            task, "ds" for dS.
        turns: counters of the parts of dQ, to which blocks of keys then add in order; or None.
        grads: what is made: "dv", "dk" (and dQ), or both where registers hold both.
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
    held: tuple[str, ...]
    turns: Any
    grads: tuple[str, ...]

    def __post_init__(self) -> None:
        """Its registers and shared memory."""
        dtype, width = self.q.kind.dtype, self.q.kind.cols // self.count
        self.cuts = max(width // ROWS, 1)  # of its columns of dQ, made one after another
        self.part = ROWS * width // self.cuts  # elements of a block of dQ
        self.sides = min(self.count, 2)
        self.shared_ds = tc.shared(st[dtype, ROWS, ROWS], self.sides * self.count)
        self.shared_dq = tc.shared(sv[f32, self.part], self.count)
        self.s, self.dp = tc.empty(rt[f32, ROWS, ROWS]), tc.empty(rt[f32, ROWS, ROWS])
        self.p, self.ds = tc.empty(rt[dtype, ROWS, ROWS]), tc.empty(rt[dtype, ROWS, ROWS])
        self.of_keys = [tc.empty(rt[dtype, ROWS, x.kind.cols]) for x in (self.k, self.v)]
        self.dq = self.dp if width >= ROWS else tc.empty(rt[f32, ROWS, width])
        self.dk, self.dv = (tc.empty(rt[f32, ROWS, x.kind.cols]) for x in (self.q, self.do))

    def member(self, task, step):
        """Which head of a group and which block of queries a step of a task takes."""
        blocks = task.stop - task.first
        member = step // blocks
        return member, task.first + step - member * blocks

    def begin(self):
        """Before the first block of a task."""
        for name in self.grads:
            tc.fill(getattr(self, name), 0.0)
        for ring, registers in zip((self.k, self.v), self.of_keys, strict=True):
            ring.wait()
            if "keys" in self.held:
                tc.copy(registers, tc.load(ring[self.pipe.consumer]))

    def end(self, steps):
        """After the last block of a task."""
        tc.mma_wait()
        if "keys" in self.held:
            tc.sync()  # all threads have read them, in a task without steps too
        self.q.release_before(steps > 0)
        self.k.release()
        self.v.release()

    def steps(self, task, member, at, some, sums):
        """A range of blocks; `some`: the first, that behind the last, whether keys are hidden."""
        first, stop, masked = some
        for block in tc.range(first, stop):
            self.step(task, member, (*at, block), masked, sums)

    def step(self, task, member, at, masked, sums):
        """dK, dV and dQ of a block; dK is left under way.

        Args:
            task: the task.
            member: which head of the group.
            at: batch, head, block of queries.
            masked: whether queries of the block do not see all keys.
            sums: where dQ is added.
        """
        mine, s, dp, sloped = self.pipe.consumer, self.s, self.dp, self.mods.sloped
        column = rv[f32, ROWS, "col"]
        self.q.wait()
        k, v = self.of_keys if "keys" in self.held else (self.k[mine], self.v[mine])
        tc.mma_ABt(s, k, self.q, accumulate=False)
        ahead = "dk" in self.grads and not sloped  # P is made while dP is under way
        if "dk" in self.grads:
            tc.mma_ABt(dp, v, self.do, accumulate=False)
        tc.mma_wait(1 if ahead else 0)
        self.q.release_before((member > 0) | (at[2] > task.first))
        place = at[2] * ROWS, (task.tile * self.count + mine) * ROWS
        slope = scores(s, self.mods, self.sight.of(task), (*at[:2], *place), masked)
        lse = tc.load(self.lse, column)
        bent = isinstance(slope, RegTile) and "dk" in self.grads
        if bent:
            tc.mul(dp - tc.load(self.delta, column), slope, out=dp)
        tc.exp2(tc.fma(s, self.mods.unit, -lse, out=s), out=s)
        if not sloped:
            self.add_dv()
        if "dk" in self.grads:
            tc.mma_wait(1 if "dv" in self.grads else 0)
            tc.mul(dp if bent else dp - tc.load(self.delta, column), s, out=dp)
            tc.store(self.ds_of(mine), tc.cast(dp, self.p.dtype, out=self.ds))
        if sloped:  # later, with fewer registers
            self.add_dv()
        if "dk" in self.grads:
            self.add_dk(task, at, sums)
        else:
            tc.barrier_sync(mine + 1, 128)  # all threads have read the statistics
        self.q.advance()
        self.side.set(self.side ^ 1)

    def ds_of(self, consumer):
        """DS of a consumer's keys in shared memory, where it is written now."""
        return self.shared_ds[(self.side if self.sides > 1 else 0) * self.count + consumer]

    def add_dv(self):
        """DV of P."""
        if "dv" in self.grads:
            tc.mma_AB(self.dv, tc.cast(self.s, self.p.dtype, out=self.p), self.do)

    def add_dk(self, task, at, sums):
        """DQ and dK of dS; dK is left under way."""
        mine = self.pipe.consumer
        tc.fence_async()
        tc.barrier_sync(MEETING, 128 * self.count)
        for cut in range(self.cuts):
            last, columns = cut == self.cuts - 1, mine * self.cuts + cut
            for i in range(self.count):
                right = self.k[i].tile.part(columns, self.count * self.cuts)
                tc.mma_AtB(self.dq, self.ds_of(i), right, accumulate=i > 0)
            if last:
                ds = self.ds if "ds" in self.held else self.ds_of(mine)
                tc.mma_AB(self.dk, ds, self.q)
            tc.mma_wait(1 if last else 0)
            tc.store_wait()
            tc.barrier_sync(mine + 1, 128)  # what was stored has been read: nothing to fence
            tc.store(self.shared_dq[mine], tc.register_order(self.dq))
            tc.sync()
            part = (task.block + at[2]) * (self.count * self.cuts) + columns
            self.add(sums.at(*at[:2], part * self.part), (*at[:2], part), task.tile)

    def results(self, dK, dV, scale):
        """What a task has made: where it goes, the sums, their columns."""
        if "dv" in self.grads:
            yield dV, self.dv, self.dv.type.cols
        if "dk" in self.grads:
            yield dK, self.dk * scale, self.dk.type.cols

    def add(self, to, part, tile):
        """Adds a part of dQ to sums; in the turn of the block of keys, if they have turns."""
        dq = self.shared_dq[self.pipe.consumer]
        if self.turns is None:
            tc.store_bulk(to, dq, add_=True)
            return
        with tc.turn(self.turns.at(*part), tile):
            tc.store_bulk(to, dq, add_=True)
            tc.store_wait(read=False)


@tc.kernel
def attention_backward(
    Q: gl[T, "B", "H", "Lq", "D"], K: gl[T, "B", "Hkv", "Lk", "D"],
    V: gl[T, "B", "Hkv", "Lk", "Dv"], dO: gl[T, "B", "H", "Lq", "Dv"],
    LSE2: gl[f32, "B", "H", "rows"], Delta: gl[f32, "B", "H", "rows"],
    Sums: inout[f32, "B", "H", "elems"], dK: gl[T, "B", "Hkv", "Lk", "D"],
    dV: gl[T, "B", "Hkv", "Lk", "Dv"], scale: f32, *args, dim, dim_v, consumers=2, stages=2,
    held=(), order="sequence", edges=PLAIN, mods=UNCHANGED, packed=False, ordered=False, grads=BOTH,
):  # fmt: skip
    """dK, dV, and dQ / scale added to Sums: parts of blocks of queries, in register order.

    args: where sequences begin, if packed; counters of parts, 0, if ordered; of edges and mods.
    """
    group, tall, args = Q.size(1) // K.size(1), ROWS * consumers, list(args)
    starts = (args.pop(0), args.pop(0)) if packed else ()
    turns = args.pop(0) if ordered else None
    sight = edges.sight(args, ROWS, Q.size(2), K.size(2))
    walked = replace(sight, edges=PLAIN) if ordered else sight  # a turn of each tile
    tasks, mods = tasks_of(order, walked, K, group, dim, tall, starts), mods.take(args, scale)
    pipe = tc.lcf(consumers=consumers, stages=stages, tasks=tasks, steps=1, registers=REGISTERS)
    k = pipe.input(keys_tile(K.dtype, dim, consumers), count=consumers, ring="k", rate="task")
    v = pipe.input(st[K.dtype, ROWS, dim_v], count=consumers, ring="v", rate="task")
    q, do = (pipe.input(st[K.dtype, ROWS, d]) for d in (dim, dim_v))
    lse, delta = (pipe.input(sv[f32, ROWS]) for _ in range(2))
    made = dict.fromkeys(d for x, d in (("dk", dim), ("dv", dim_v)) if x in grads)
    out = {d: pipe.output(st[K.dtype, ROWS, d]) for d in made}
    work = Consumer(pipe, consumers, k, v, q, do, lse, delta, sight, mods, tc.var(0), held,
                    turns, grads)

    @pipe.begin
    def _(task):
        for i in range(consumers):
            row = sight.of(task).first_key + (task.tile * consumers + i) * ROWS
            tc.load_async(k[i], K.at(task.batch, task.head, row, 0))
            tc.load_async(v[i], V.at(task.batch, task.head, row, 0))

    @pipe.load
    def _(task, step):
        member, block = work.member(task, step)
        head, row = task.head * group + member, sight.of(task).first_query + block * ROWS
        tc.load_async(q, Q.at(task.batch, head, row, 0))
        tc.load_async(do, dO.at(task.batch, head, row, 0))
        tc.load_async(lse, LSE2[task.batch, head, task.block + block])
        tc.load_async(delta, Delta[task.batch, head, task.block + block])

    @pipe.consume
    def _(task, steps):
        inner, outer = whole_blocks(sight, task, tall)
        ranges = ((task.first, inner, True), (inner, outer, False), (outer, task.stop, True))
        work.begin()
        for member in tc.range(group):
            for some in ranges[: 3 if edges.left else 2]:
                work.steps(task, member, (task.batch, task.head * group + member), some, Sums)
        work.end(steps)

    @pipe.finish
    def _(task):
        own, tile = sight.of(task), task.tile * consumers + pipe.consumer
        for tensor, sums, d in work.results(dK, dV, scale):
            to = tensor[:, :, : own.first_key + own.keys, :] if packed else tensor
            out[d].store(to.at(task.batch, task.head, own.first_key + tile * ROWS, 0), sums)
