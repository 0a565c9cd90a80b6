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
from ..pipeline.scheduler import Task
from .attention_rows import ROWS
from .attention_scores import Edges, Mods, maximum_of
from .attention_scores import packed as packed_tasks
from .score_mods import At

T = DTypeVar("T", bf16, f16)
MEETING = 9  # named barrier where dS of all consumers is there
REGISTERS = 240  # of a consumer of two: what setmaxnreg leaves beside a producer with 24
L2_BYTES = 32 << 20  # of Q, dO and dQ to work on at a time; an H200 has 60 MB (h200-peers.md)
PLAIN, UNCHANGED = Edges(), Mods()


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

    def __post_init__(self) -> None:
        """Its registers and shared memory."""
        dtype, width = self.q.kind.dtype, self.q.kind.cols // self.count
        self.part = ROWS * width  # elements of a block of dQ
        self.shared_ds = tc.shared(st[dtype, ROWS, ROWS], 2 * self.count)
        self.shared_dq = tc.shared(sv[f32, self.part], self.count)
        self.s, self.dp = tc.empty(rt[f32, ROWS, ROWS]), tc.empty(rt[f32, ROWS, ROWS])
        self.p, self.ds = tc.empty(rt[dtype, ROWS, ROWS]), tc.empty(rt[dtype, ROWS, ROWS])
        self.of_keys = [tc.empty(rt[dtype, ROWS, x.kind.cols]) for x in (self.k, self.v)]
        self.dq = self.dp if width == ROWS else tc.empty(rt[f32, ROWS, width])
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
        tc.mma_ABt(dp, v, self.do, accumulate=False)
        tc.mma_wait(0 if sloped else 1)
        self.q.release_before((member > 0) | (at[2] > task.first))
        place = at[2] * ROWS, (task.tile * self.count + mine) * ROWS
        slope = scores(s, self.mods, self.sight.of(task), (*at[:2], *place), masked)
        lse = tc.load(self.lse, column)
        bent = isinstance(slope, RegTile)
        if bent:
            tc.mul(dp - tc.load(self.delta, column), slope, out=dp)
        tc.exp2(tc.fma(s, self.mods.unit, -lse, out=s), out=s)
        if not sloped:
            tc.mma_AB(self.dv, tc.cast(s, self.p.dtype, out=self.p), self.do)
            tc.mma_wait(1)
        tc.mul(dp if bent else dp - tc.load(self.delta, column), s, out=dp)
        ds = [self.shared_ds[self.side * self.count + i] for i in (mine, *range(self.count))]
        tc.store(ds[0], tc.cast(dp, self.p.dtype, out=self.ds))
        if sloped:  # later, with fewer registers
            tc.mma_AB(self.dv, tc.cast(s, self.p.dtype, out=self.p), self.do)
        tc.fence_async()
        tc.barrier_sync(MEETING, 128 * self.count)
        for i, other in enumerate(ds[1:]):
            columns = self.k[i].tile.part(mine, self.count)
            tc.mma_AtB(self.dq, other, columns, accumulate=i > 0)
        tc.mma_AB(self.dk, self.ds if "ds" in self.held else ds[0], self.q)
        tc.mma_wait(1)
        self.q.advance()
        self.side.set(self.side ^ 1)
        tc.store_wait()
        tc.barrier_sync(mine + 1, 128)  # what was stored has been read: nothing to fence
        tc.store(self.shared_dq[mine], tc.register_order(self.dq))
        tc.sync()
        part = (task.block + at[2]) * self.count + mine
        to = sums.at(*at[:2], part * self.part)
        if self.turns is None:
            tc.store_bulk(to, self.shared_dq[mine], add_=True)
            return
        with tc.turn(self.turns.at(*at[:2], part), task.tile):
            tc.store_bulk(to, self.shared_dq[mine], add_=True)
            tc.store_wait(read=False)


def scores(s, mods, sight, place, masked):
    """Makes scores of products at (batch, head, query, key), and gives their slope, or None."""
    *_, row, col = place
    at = At(s, *place, row + sight.first_query, col + sight.first_key, transposed=True)
    slope = mods.slope(s, at)
    mods.hide(s, at)
    if masked:
        sight.mask(s.T, row, col, ends=True)
    return slope


def tasks_of(order, sight, K, group, dim, tall, starts):
    """Blocks of `tall` keys, and which blocks of queries see them; those of a sequence if packed.

    Coordinates: batch, head, tile, first and stop (blocks of the sequence's queries), block (number
    of its first), and those of `Sight.of`.
    """
    tiles, planes = tc.cdiv(K.size(2), tall), (K.size(1), K.size(0))
    if starts:
        tasks = packed_tasks(starts[1], starts[0], K.size(2), K.size(1), tall)
    elif order == "sequence":
        tasks = tc.sequence_first(tiles, *planes)
    else:
        rows = sight.queries * (group * 8 * dim)  # bytes of Q, dO and sums of dQ
        tasks = tc.longest_first(tiles, *planes, planes=maximum_of(L2_BYTES // rows, 1))

    def locate(t):
        at = {**dict(tasks.locate(t)), "block": 0}
        if starts:  # of keys and queries `packed` has exchanged roles
            at.update(keys=at["queries"], queries=at["keys"], first_key=at["first_query"],
                      first_query=at["first_key"])  # fmt: skip
            at["block"] = at["first_query"] // ROWS + at["sequence"]
        elif order != "sequence":
            at["tile"] = tiles - 1 - at["tile"]  # most queries see the first keys
        own, first = sight.of(Task(t, tuple(at.items()))), at["tile"] * tall
        start, stop = own.seen_by(first, minimum_of(first + tall, own.keys), ROWS)
        stop = select(first < own.keys, stop, start)
        return (*at.items(), ("first", start), ("stop", stop), ("steps", (stop - start) * group))

    return replace(tasks, locate=locate)


def keys_tile(dtype, dim, cut):
    """A tile of 64 keys, whose columns are cut in whole panels, as wide as can be."""
    panel = next(cols for cols in (64, 32, 16) if dim // cut % cols == 0)
    return st[dtype, ROWS, dim, "row", panel * dtype.nbytes]


def whole_blocks(sight, task, tall):
    """Blocks of queries that see all keys of the task, or those all but the last."""
    own, first = sight.of(task), task.tile * tall
    low, end = own.seen_whole_by(first, first + tall, ROWS)
    low = minimum_of(maximum_of(low, task.first), task.stop)
    inner = select(own.keys < first + tall, task.stop, low)
    return inner, maximum_of(minimum_of(end, task.stop), inner)


@tc.kernel
def attention_backward(
    Q: gl[T, "B", "H", "Lq", "D"], K: gl[T, "B", "Hkv", "Lk", "D"],
    V: gl[T, "B", "Hkv", "Lk", "Dv"], dO: gl[T, "B", "H", "Lq", "Dv"],
    LSE2: gl[f32, "B", "H", "rows"], Delta: gl[f32, "B", "H", "rows"],
    Sums: inout[f32, "B", "H", "elems"], dK: gl[T, "B", "Hkv", "Lk", "D"],
    dV: gl[T, "B", "Hkv", "Lk", "Dv"], scale: f32, *args, dim, dim_v, consumers=2, stages=2,
    held=(), order="sequence", edges=PLAIN, mods=UNCHANGED, packed=False, ordered=False,
):  # fmt: skip
    """dK, dV, and dQ / scale added to Sums: parts of blocks of queries, in register order.

    Each consumer has dim / consumers columns of a block. args: if packed, where sequences of
    queries and of keys begin; if ordered, counters of the parts, 0; of edges and mods.
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
    out = {d: pipe.output(st[K.dtype, ROWS, d]) for d in dict.fromkeys((dim, dim_v))}
    work = Consumer(pipe, consumers, k, v, q, do, lse, delta, sight, mods, tc.var(0), held,
                    turns)

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
        for tensor, sums, d in ((dV, work.dv, dim_v), (dK, work.dk * scale, dim)):
            to = tensor[:, :, : own.first_key + own.keys, :] if packed else tensor
            out[d].store(to.at(task.batch, task.head, own.first_key + tile * ROWS, 0), sums)
