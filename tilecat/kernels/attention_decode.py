"""Softmax attention of a few queries over a cache of keys and values: decoding.

Rows of a tile are the queries of all heads that share keys: a query's heads, then the next
query's. The key blocks of a sequence are shared out among `splits` tasks; the sums and log-sum-exps
of each go to memory, and the last to arrive of a tile's tasks puts them together. Blocks run
backwards, and S = Q K^T of one runs beside O += P V of the one before, as in `attention_forward`.

    producer      k[n-1], v[n-1], k[n-2], v[n-2], ...
    tensor cores       S[n-1] | S[n-2], O += P[n-1] V[n-1] | ...
    threads       q           | softmax S[n-1]             | ...

q comes by the consumers' own loads, beside those of keys.
Barriers: `full` and `empty` of k and of v (one a stage).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, e4m3, f16, f32, gl, rt, rv, s32, st

from ..language.scalars import minimum_of
from .attention_scores import LOG2_E, Edges, Mods, clamp, taken
from .score_mods import At

T, TC = DTypeVar("T", bf16, f16), DTypeVar("TC", bf16, f16, e4m3)
ALL, PLAIN = Edges(from_end=True), Mods()
ROWS = 64  # of a consumer's tile
LOWEST = -1e30  # where maxima start: finite, for with -inf a block of -inf scores would give NaN
BESIDE = 4  # columns beside a part's sums: its log-sum-exp, and 16 bytes to keep rows aligned
RUN = 4  # f32 of 16 bytes, which move in one access
TOGETHER = 4  # parts whose loads are under way at a time
SHIFT = 24  # of the division of rows by heads: exact for rows x heads below 2**24
MEETING = 15  # named barrier of all consumers
# How many e4m3 a query's element is the sum of: 4 bits each. Keys of 8 bits have one consumer, with
# as many tiles of queries.
QUERY_PARTS = {"bf16": 2, "f16": 3}
TOP = 7  # exponent of a row's largest element, divided into parts: e4m3 has 448
SMALLEST = 2.0**-100  # rows of less are not made larger


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of packed queries: query and head of each, and where it lies.

    Args:
        queries, heads, group: Lq, H, and how many heads share keys; s32 scalars.
    """

    queries: Any
    heads: Any
    group: Any

    @property
    def count(self) -> Any:
        """How many there are for each head of keys."""
        return self.queries * self.group

    def of(self, index: Any) -> tuple[Any, Any]:
        """Query and member of the group of a row, or of a vector of rows."""
        query = (index * tc.cdiv(1 << SHIFT, self.group)) >> SHIFT
        return query, index - query * self.group

    def head(self, task: Any, member: Any) -> Any:
        """Head of a member of the group."""
        return member + task.head * self.group

    def in_q(self, task: Any, query: Any, member: Any) -> Any:
        """Row of Q and O, [B Lq H, D]."""
        return (query + task.batch * self.queries) * self.heads + self.head(task, member)

    def in_lse(self, task: Any, query: Any, member: Any) -> Any:
        """Element of LSE, [B H Lq]."""
        plane = self.head(task, member) + task.batch * self.heads
        return plane * self.queries + query


@dataclass(frozen=True, eq=False)
class Cache:
    """Keys or values of all sequences.

    Args:
        tensor: [B, Lk, Hkv, D], or [pages, rows of a page, Hkv, D].
        table: pages of each sequence, s32 [B, pages]; None without.
        page: rows of a page, known while tracing.
    """

    tensor: Any
    table: Any = None
    page: int = 0

    def __post_init__(self) -> None:
        """Boxes of a row are loaded side by side: what a miss fetches beside one comes anyway."""
        self.tensor.fetch(128)

    def at(self, batch: Any, head: Any, row: Any) -> Any:
        """A place in a sequence of one head."""
        if self.table is None:
            return self.tensor.permute(0, 2, 1, 3).at(batch, head, row, 0)
        rows = self.tensor.permute(2, 0, 1, 3).paged(self.table[batch, :], 1, size=self.page)
        return rows.at(head, row, 0)

    @property
    def room(self) -> Any:
        """Keys that a sequence may have."""
        if self.table is None:
            return self.tensor.size(1)
        return self.table.size(1) * self.page


def tasks_of(batch, rows, groups, lengths, room, splits, tall, sight_of):
    """Parts of key blocks: of a sequence's first all heads, whose keys lie side by side, and so on.

    Coordinates: batch, head (of keys), tile, part, unit (number of the tile), keys, behind
    (the first block behind those of the part), steps.
    """
    tiles = tc.cdiv(rows.count, tall)
    count = batch * groups * tiles * splits

    def locate(t):
        plane = t // tiles
        part = plane // groups
        head, entry = plane - part * groups, part // splits
        part, tile = part - entry * splits, t - plane * tiles
        keys = room if lengths is None else clamp(tc.load(lengths[entry], s32), 0, room)
        low, end = sight_of(keys).blocks(0, rows.queries)
        first, behind = low + (end - low) * part // splits, low + (end - low) * (part + 1) // splits
        return {
            "batch": entry, "head": head, "tile": tile, "part": part,
            "unit": (entry * groups + head) * tiles + tile, "keys": keys, "behind": behind,
            "steps": behind - first,
        }  # fmt: skip

    return tc.custom_order(count, locate)


class Widened:
    """Values of 8 bits in a ring, as f16: a consumer's copy of one block at a time.

    Args:
        ring: the values.
        tile: f16, of the consumer.
    """

    def __init__(self, ring, tile):
        self.ring, self.tile = ring, tile

    def wait(self):
        """The next block; the ring has its stage back."""
        self.ring.wait()
        tc.store(self.tile, tc.cast(tc.load(self.ring), f16))
        tc.sync()
        self.ring.release()

    def release(self):
        """Nothing: the tile is the consumer's own."""


class Consumer:
    """One consumer's task: S and P of key blocks, O of those before.

    Args:
        pipe, tiles, sizes: the pipeline; its q (tiles of consumers, or parts of 8 bits), k and v;
            keys of a block, and columns of values.
        rows, sight, mods: which row is what, keys that queries see, what changes scores.
        scales: of keys and values of 8 bits, f32 [B, Hkv]; of others none.
    """

    def __init__(self, pipe, tiles, sizes, rows, sight, mods, scales):
        self.pipe, self.rows, self.all_keys, self.all_mods = pipe, rows, sight, mods
        self.scales, (self.q, self.k, self.v) = scales, tiles
        keys, columns = sizes
        self.s = tc.empty(rt[f32, ROWS, keys])
        self.p = tc.empty(self.s.type.cast(f16 if scales else self.q[0].type.dtype))
        self.o = tc.empty(rt[f32, ROWS, columns])
        self.m, self.l = tc.empty(rv[f32, ROWS]), tc.empty(rv[f32, ROWS, "row", "partial"])

    def load(self, task, Q, first):
        """The queries of 64 rows from `first` on, zero behind the last."""
        self.start = first
        self.locate(task, first)
        q = tc.load(Q[self.place, 0], rt[Q.dtype, *self.q[0].type.shape])
        self.mods = self.all_mods.times(self.split(task, q))
        tc.sync()

    def locate(self, task, first):
        """Which query and head rows from `first` on are, whether there are such, where they lie."""
        index = tc.row_index(self.s) + first
        self.query, self.member = self.rows.of(index)
        self.real = index < self.rows.count
        self.place = tc.select(self.real, self.rows.in_q(task, self.query, self.member), -1)

    def split(self, task, q):
        """Stores queries in as many parts as there are tiles; what products are to be times.

        Parts of 8 bits are of rows times a power of two: q is their sum but for 2**-18 of a row's
        largest, as far as tiles go. Keys of 8 bits are so multiplied as they are.
        """
        self.parts = [self.q[self.pipe.consumer]]
        if self.scales:
            self.parts = [self.q[number] for number in range(QUERY_PARTS[q.dtype.name])]
        else:
            tc.store(self.parts[0], q)
            return 1.0
        left = tc.cast(q, f32)
        power = TOP - tc.floor(tc.log2(tc.maximum(tc.row_absmax(left), SMALLEST)))
        tc.mul(left, tc.exp2(power), out=left)
        for tile in self.parts:
            part = tc.cast(left, tile.type.dtype)
            tc.store(tile, tc.regroup(part))
            tc.copy(left, left - tc.cast(part, f32))
        return tc.exp2(-power) * tc.load(self.scales[0][task.batch, task.head], f32)

    def scores(self):
        """S = Q K^T of the next keys, under way."""
        for number, tile in enumerate(self.parts):
            tc.mma_ABt(self.s, tile, self.k, accumulate=number > 0)

    def task(self, task, steps, whole):
        """The key blocks of a part, if it has any: those at an edge are masked.

        Args:
            whole: whether that are all of the sequence, its sinks too.
        """
        sight = self.sight = replace(self.all_keys, keys=task.keys)
        for place, start in ((self.o, 0.0), (self.l, 0.0), (self.m, LOWEST)):
            tc.fill(place, start)
        if whole and self.mods.sinks:
            heads = tc.select(self.real, self.rows.head(task, self.member), -1)
            self.sink = sinks_of(self.mods, heads, rv[f32, ROWS])
            tc.copy(self.m, tc.maximum(self.sink, LOWEST))
        low, end = sight.whole(0, self.rows.queries)
        inner = clamp(task.behind - end, 1, steps) if sight.edges.right else 1
        outer = clamp(task.behind - low, inner, steps) if sight.edges.left else steps
        with tc.when(steps > 0):
            self.first(task)
            if sight.edges.right:
                self.blocks(task, 1, inner, masked=True)
            self.blocks(task, inner, outer, masked=False)
            if sight.edges.left:
                self.blocks(task, outer, steps, masked=True)
            self.v.wait()
            self.values()
            tc.mma_wait()
            self.v.release()
            if self.scales:
                tc.mul(self.o, tc.load(self.scales[1][task.batch, task.head], f32), out=self.o)

    def values(self):
        """O += P V of the values that have been waited for, under way."""
        tc.mma_AB(self.o, tc.regroup(self.p), self.v.tile if self.scales else self.v)

    def first(self, task):
        """S and P of the block that runs first, the only one with keys behind the sequence."""
        self.k.wait()
        self.scores()
        tc.mma_wait()
        self.k.release()
        self.softmax(task, 0, masked=True)
        tc.cast(self.s, self.p.dtype, out=self.p)
        self.clear(task.keys - (task.behind - 1) * self.sight.tile_k)

    def clear(self, left):
        """Zeros in rows of V behind the sequence, which may hold anything, NaN too."""
        ring = self.v.ring if self.scales else self.v
        with tc.when(left < self.sight.tile_k):
            ring.wait()
            with tc.when(self.pipe.consumer == 0):
                tc.store(ring.tile, tc.mask_rows(tc.load(ring), left, 0))
                tc.sync()
            if self.pipe.consumers > 1:
                tc.barrier_sync(MEETING, 128 * self.pipe.consumers)

    def blocks(self, task, start, stop, *, masked):
        """S and P of further blocks, each with O += P V of the one before."""
        for step in tc.range(start, stop):
            self.v.wait()  # of the block before: they have come first
            self.k.wait()
            self.scores()
            self.values()
            tc.mma_wait(1)
            self.k.release()
            shrink = self.softmax(task, step, masked=masked)
            tc.mma_wait()
            self.v.release()
            tc.mul(self.o, shrink, out=self.o)
            tc.cast(self.s, self.p.dtype, out=self.p)

    def softmax(self, task, step, *, masked):
        """S becomes 2 to the power of scores' distance to the running maximum.

        Returns:
            what O must shrink by.
        """
        s, m, mods = self.s, self.m, self.mods
        col = (task.behind - 1 - step) * self.sight.tile_k
        mods.apply(s, At(s, task.batch, task.head, 0, col, 0, col))
        if masked:
            self.mask(col)
        highest = tc.maximum(tc.row_max(s) * mods.unit, m)
        shrink = tc.exp2(m - highest)
        tc.copy(m, highest)
        tc.exp2(tc.fma(s, mods.unit, -highest, out=s), out=s)
        tc.fma(self.l, shrink, tc.row_sum(s, partial=True), out=self.l)
        return shrink

    def mask(self, col):
        """Hides keys behind the sequence and beyond the edges of each row's query."""
        s, sight = self.s, self.sight
        tc.mask_cols(s, sight.keys - col, -math.inf)
        cols = tc.col_index(s)
        if sight.edges.right:
            tc.select(cols <= self.query + (sight.shift + sight.right - col), s, -math.inf, out=s)
        if sight.edges.left:
            tc.select(cols >= self.query + (sight.shift - sight.left - col), s, -math.inf, out=s)

    def store(self, task, O, LSE):
        """The results of a tile that one task had alone, as `load` has it."""
        if self.scales:
            self.locate(task, self.start)  # again, for want of registers
        total = tc.total(self.l)
        if self.mods.sinks:
            total = total + tc.exp2(self.sink - self.m)
        share = tc.select(total == 0.0, 0.0, tc.rcp(total))
        sums = tc.select(self.real, self.rows.in_lse(task, self.query, self.member), -1)
        tc.store(LSE[sums], (tc.log2(total) + self.m) * (1 / LOG2_E))
        tc.store(O[self.place, 0], tc.cast(self.o * share, O.dtype))


class Parts:
    """Results of parts, and how they are put together.

    Args:
        memory: Sums, [rows of all parts, columns + BESIDE], of each row its sum and its
            log-sum-exp, in powers of two; Flags, s32, a counter a tile.
        rows, mods: which row is what, what changes scores. splits: parts of a tile.
        columns: of a tile of sums.
    """

    def __init__(self, memory, rows, mods, splits, columns):
        self.sums, self.flags = memory
        self.rows, self.mods, self.splits, self.columns = rows, mods, splits, columns
        self.tall = minimum_of(rows.count, ROWS)  # rows that a part keeps
        self.width_of_warp = -(-columns // 64) * 16

    def at(self, part, count=1):
        """Sums and log-sum-exps of parts from number `part` on."""
        first, behind = part * self.tall, (part + count) * self.tall
        return self.sums[first:behind, :], self.sums[first:behind, self.columns]

    def store(self, task, work, tile):
        """A part of a tile of 64 rows, number `tile` of all; whether it is the last to come."""
        total = tc.total(work.l)
        sums, scales = self.at(tile * self.splits + task.part)
        tc.store(scales.at(0), tc.log2(total) + work.m)
        tc.store(sums.at(0, 0), work.o * tc.select(total == 0.0, 0.0, tc.rcp(total)))
        return tc.last_of(self.flags.at(tile), self.splits)

    def combine(self, task, first, tile, O, LSE):
        """The results of the tile that begins with row `first`: a warp some columns of 16 rows."""
        rows, mine = self.rows, self.at(tile * self.splits, self.splits)
        with tc.warps():
            part = tc.warp_id() % 4
            for row in tc.range(0, minimum_of(rows.count - first, ROWS), 16):
                o = tc.zeros(rt[f32, 16, self.width_of_warp, "row", RUN])
                index = tc.row_index(o) + (first + row)
                query, member = rows.of(index)
                kind = tc.vector_type(o, "row")
                real, m, total = index < rows.count, tc.full(kind, LOWEST), tc.zeros(kind)
                if self.mods.sinks:
                    sink = sinks_of(self.mods, tc.select(real, rows.head(task, member), -1), kind)
                    tc.maximum(m, sink, out=m)
                    tc.exp2(sink - m, out=total)
                for split in tc.range(0, self.splits, TOGETHER):
                    self.add((o, m, total), mine, split * self.tall + row, part)
                share = tc.select(total == 0.0, 0.0, tc.rcp(total))
                place = tc.select(real, rows.in_q(task, query, member), -1)
                tc.store(O[place, part], tc.cast(o * share, O.dtype))
                with tc.when(part == 0):
                    sums = tc.select(real, rows.in_lse(task, query, member), -1)
                    tc.store(LSE[sums], (tc.log2(total) + m) * (1 / LOG2_E))

    def add(self, sums, mine, row, part):
        """Adds 16 rows of some parts, whose first begins with `row`: to o, maximum, total."""
        (o, m, total), (found, scales) = sums, mine
        places = [row + self.tall * i for i in range(TOGETHER)]
        new = [tc.load(scales.at(at), m.type, fill=-math.inf) for at in places]
        values = [tc.load(found.at(at, part * o.type.cols), o.type) for at in places]
        highest = tc.maximum(m, new[0])
        for x in new[1:]:
            tc.maximum(highest, x, out=highest)
        shrink = tc.exp2(m - highest)
        tc.copy(m, highest)
        tc.mul(total, shrink, out=total)
        tc.mul(o, shrink, out=o)
        for x, value in zip(new, values, strict=True):
            weight = tc.exp2(x - highest)
            tc.copy(total, total + weight)
            tc.fma(value, weight, o, out=o)


def sinks_of(mods, heads, kind):
    """The sinks of rows as exponents of two; of no row 0."""
    return tc.load(mods.sinks[0][heads], kind) * LOG2_E


@tc.kernel
def attention_decode(Q: gl[T, "rows", "D"], K: gl[TC, "P", "R", "Hkv", "D"],
                     V: gl[TC, "P", "R", "Hkv", "Dv"], O: gl[T, "rows", "Dv"],
                     LSE: gl[f32, "rows"], scale: f32, batch: s32, queries: s32, heads: s32,
                     splits: s32, *args, page=0, dim=128, dim_v=128, tile_k=128, consumers=1,
                     stages=3, blocks=1, spills=0, cache="", ragged=False, split=False, edges=ALL,
                     mods=PLAIN):  # fmt: skip
    """O = softmax(mods(scale Q K^T)) V of each sequence's last Lq queries, LSE = ln sum exp.

    Args:
        Q, O: [B Lq H, D and Dv]. LSE: [B H Lq].
        K, V: [B, Lk, Hkv, D and Dv]; with `page` pools of pages of so many rows. Of Q's dtype, or
            e4m3.
        batch, queries, heads: B, Lq, H; Hkv divides H. splits: parts of a sequence's keys.
        args: with page the table, s32 [B, pages of a sequence]; if ragged keys of sequences, s32
            [B]; of e4m3 scales of K and V, f32 [B, Hkv]; if split Sums and Flags (see Parts); of
            edges left, right; of mods soft cap, sinks.
        dim, dim_v, tile_k, consumers, stages: as of `attention_forward`. blocks: CTAs an SM, whose
            threads may spill so many bytes.
    """
    tc.allow_spills(spills)
    args = list(args)
    (table,) = taken(args, 1, "a table of pages") if page else (None,)
    (lengths,) = taken(args, 1, "lengths") if ragged else (None,)
    scales = taken(args, 2, "scales") if K.dtype != Q.dtype else ()
    memory = taken(args, 2, "parts") if split else ()
    limits = taken(args, edges.left + edges.right, "edges")
    keys, values = Cache(K, table, page), Cache(V, table, page)
    rows, tall = Rows(queries, heads, heads // K.size(2)), ROWS * consumers
    tasks = tasks_of(batch, rows, K.size(2), lengths, keys.room, splits, tall,
                     lambda n: edges.sight(list(limits), tile_k, queries, n))  # fmt: skip
    # A CTA a task: hardware hands them out as SMs become free, where lengths differ too.
    pipe = tc.lcf(consumers=consumers, stages=stages, tasks=tasks, steps=1, persistent=False,
                  blocks_per_sm=blocks)  # fmt: skip
    k, v = (pipe.input(st[K.dtype, tile_k, d], ring=r) for d, r in ((dim, "k"), (dim_v, "v")))
    kind, count = (K.dtype, QUERY_PARTS[Q.dtype.name]) if scales else (Q.dtype, consumers)
    q = tc.shared(st[kind, ROWS, dim], count)
    read = Widened(v, tc.shared(st[f16, tile_k, dim_v])) if scales else v
    sight, mods = edges.sight(list(limits), tile_k, queries, keys.room), mods.take(args, scale)
    work = Consumer(pipe, (q, k, read), (tile_k, dim_v), rows, sight, mods, scales)

    @pipe.load
    def _(task, step):
        place = task.batch, task.head, (task.behind - 1 - step) * tile_k
        tc.load_async(k, keys.at(*place), cache=cache)
        tc.load_async(v, values.at(*place), cache=cache)

    @pipe.consume
    def _(task, steps):
        work.load(task, Q, task.tile * tall + pipe.consumer * ROWS)
        work.task(task, steps, not split)

    @pipe.finish
    def _(task):
        if not split:
            work.store(task, O, LSE)
            return
        parts = Parts(memory, rows, mods, splits, dim_v)
        tile = task.unit * consumers + pipe.consumer
        with tc.when(parts.store(task, work, tile)):
            parts.combine(task, work.start, tile, O, LSE)
