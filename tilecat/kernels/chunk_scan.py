"""A scan of chunks, the core of linear recurrences: the state stays in accumulators.

A chunk is 64 tokens of one head, with features Q and K (64 x F), values V, scores P (64 x 64,
masked and decayed), factors a of what goes out and b of what comes in, one a token, and a factor r
of the chunk. In transposed form, a row a column of V:

    Y^T = (S^T Q^T) a + V^T P^T        S^T = r S^T + (V^T b) K

S^T is an accumulator of the warpgroup that owns 64 columns of V of one head, and, rounded, the A
operand of the product that reads it: it never moves. P, a and b do not depend on the state: a score
role makes them ahead, and hands them on through a ring.

    producer  q k v [0] | q k v [1]      | q k v [2] ...
    score                 P[0]  a b      | P[1]  a b      | ...
    state                                | Y[0]  S[0]     | Y[1]  S[1] | ...
    store                                                 | Y[0]       | ...

Barriers: full and empty of each stage of q, k, v (bytes; an arrival of the score role and one a
warpgroup of the state role), of P with a and b (128 threads; one a warpgroup), of Y (all threads of
the state role; one). In reversed time (`reverse`) chunks run from the last to the first, token i
sees those from i on, and a and b change places. docs/design/chunk-scan.md has the interface.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import tilecat as tc
from tilecat import f32, rt, rv, st, sv

from .chunk_tasks import CHUNK, At, Chunks

LOG2_E = 1 / math.log(2)
LEAST = -128.0  # of gates, base 2: 2**-128 is 0 in f32, and sums of gates of -inf are numbers
ROW, COLUMN, PLAIN = (rv[f32, CHUNK, axis] for axis in ("row", "col", "plain"))
WARPS = 4  # of a warpgroup


class Recurrence:
    """What a kernel gives to the core; each method is traced once, in the role that it names."""

    def load(self, task: Any, at: At) -> None:
        """Producer: `tc.load_async` of each input of a chunk."""
        raise NotImplementedError

    def start(self, task: Any) -> None:
        """Score role: before the first chunk of a task."""

    def begin(self, task: Any) -> None:
        """State role: before the first chunk of a task."""

    def end(self, task: Any, index: Any) -> None:
        """State role: after the last chunk of a task."""

    def products(self, task: Any, at: At) -> None:
        """Score role: products that are issued before factors are made."""

    def factors(self, task: Any, at: At, head: Any) -> tuple[Any, ...]:
        """Score role, a warp a head (where `gated`): plain vectors, base 2.

        The running sums of gates, the same less log2 of what else tokens are multiplied by, a, b.
        """
        raise NotImplementedError

    def scores(self, task: Any, at: At, head: int) -> tuple[Any, ...]:
        """Score role: P of a head, f32 (64 x 64), masked; decayed but not `gated`, also a and b.

        None in place of P: it has been stored already.

        The element of a at the last token (reversed: of b) is r.
        """
        raise NotImplementedError

    def passing(self, task: Any, at: At, index: Any, state: Any) -> None:
        """State role: S^T before a chunk (reversed: behind it), f32, parts of its columns."""

    def before(self, at: At, state: Any) -> None:
        """State role: products of the state, an operand, that are issued ahead of `S^T Q^T`."""

    def values(self, task: Any, at: At, index: Any, state: Any) -> Any:
        """State role: V^T of a chunk in registers, made of the state before; None: V as loaded."""

    def result(self, task: Any, at: At, index: Any, y: Any) -> Any:
        """State role: what is stored, of Y^T (f32, 64 x 64)."""
        return y


class ChunkScan(Chunks):
    """Roles and rings of a scan; `run` fills the holes.

    Args:
        dtype: of operands. tasks: of `tasks_of`. heads: of a task. slices: of 64 columns of V.
        stages: of inputs. depth: of P. outputs: of Y; None: as of P. reverse: time runs backwards.
        decayed: there are a, b and r. gated: `factors` makes them.
        packed: other sequences follow a sequence's tokens.
        strict: tokens do not see themselves.
        registers: of a thread of the score role, and of the state role, or None.
        turns: warpgroups of the score role, which take chunks in turn.
    """

    def __init__(
        self, dtype: Any, tasks: Any, *, heads: int = 1, slices: int = 1, stages: int = 3,
        depth: int = 2, reverse: bool = False, decayed: bool = False, packed: bool = False,
        blocks_per_sm: int = 1, registers: tuple[int | None, int | None] = (None, None),
        turns: int = 1, gated: bool = False, strict: bool = False,
        outputs: int | None = None,
    ):  # fmt: skip
        super().__init__(heads, slices, turns, reverse)
        self.dtype, self.packed, self.strict = dtype, packed, strict
        self.loaded: Any = None  # V^T of the chunk, where the state role has had to load it
        self.depth, self.outputs = depth, depth if outputs is None else outputs
        self.gated, self.decayed = gated, decayed or gated
        self.pipe = pipe = tc.roles(stages=stages, steps=1, tasks=tasks,
                                    cluster=tasks.cluster, blocks_per_sm=blocks_per_sm)  # fmt: skip
        self.score = pipe.role("score", warpgroups=turns, turns=turns > 1, registers=registers[0])
        self.state = pipe.role("state", warpgroups=heads * slices, registers=registers[1])
        self.rings()

    def rings(self) -> None:
        """Rings of P and Y, and beside P of vectors."""
        kind, pipe = st[self.dtype, CHUNK, CHUNK], self.pipe
        p = pipe.ring(kind, writer=self.score, count=self.heads, stages=self.depth)
        y = pipe.ring(kind, writer=self.state, count=self.heads * self.slices,
                      stages=self.outputs)  # fmt: skip
        self.p, self.y = p, y
        self.vectors(p)

    def vectors(self, beside: Any) -> None:
        """Rings of a, b, running sums, and those less other factors; as many as there are."""
        made: list[Any] = []
        for _ in range(4 if self.gated else 2 if self.decayed else 0):
            made.append(self.pipe.ring(sv[f32, CHUNK], writer=self.score, count=self.heads,
                                       stages=self.depth, beside=beside))  # fmt: skip
            beside = beside or made[0]
        self.a, self.b, self.sums, self.less = (made + [None] * 4)[:4]

    def mask(self, p: Any) -> Any:
        """Scores of pairs that see each other."""
        beside = int(self.strict)
        return tc.triu(p, beside) if self.reverse else tc.tril(p, -beside)

    def made_decays(self, head: int) -> Any:
        """Decays between the tokens of a chunk, by what `factors` has made.

        Factors of masked pairs may be infinite: masks come after.
        """
        rows, cols = (self.less, self.sums) if self.reverse else (self.sums, self.less)
        tile, cols = tc.empty(rt[f32, CHUNK, CHUNK]), tc.load(cols[head].tile, COLUMN)
        tc.broadcast_row(tile, tc.load(rows[head].tile, ROW))
        return tc.exp2(cols - tile if self.reverse else tile - cols)

    def run(
        self, work: Recurrence, q: Any, k: Any, v: Any, out: Any, start: Any = None,
        end: Any = None, unit: Any = None,
    ) -> None:  # fmt: skip
        """Fills the holes.

        Args:
            work: the kernel's part.
            q, k: features, 64 x F: inputs or rings of tiles, one a head or one for all.
            v: values, 64 x 64: one a warpgroup of the state role.
            out: the output, batch x heads x tokens x columns of V.
            start, end: states before and after, f32, sequences x heads x columns of V x F, or None.
            unit: what S is multiplied by to be such a state; None: 1.
        """
        totals, sums = self.totals_of(k.kind.cols), tc.empty(rt[f32, CHUNK, CHUNK])

        @self.pipe.load
        def _(task, step):
            work.load(task, self.at(task, step))

        self.score.start(lambda task: work.start(task))

        self.score.compute(lambda task, step: self.scores(work, task, self.at(task, step)))

        @self.state.start
        def _(task):
            work.begin(task)
            self.begin(task, totals, start, unit)

        @self.state.compute
        def _(task, step):
            for at, head in self.chunks_of(task, step, q, k, v):
                tiles = [None if x is None else x[head if x.count > 1 else 0] for x in (q, k)]
                place = task, at, self.state.consumer
                work.passing(*place, totals)
                self.chunk(work, place, head, (*tiles, v[place[2]]), (totals, sums), out)

        @self.state.finish
        def _(task):
            self.finish(task, totals, end, unit)
            work.end(task, self.state.consumer)

        if self.y is not None:
            self.pipe.store(lambda task, step: self._store(task, self.at(task, step), out))

    def scores(self, work: Recurrence, task: Any, at: At) -> None:
        """Score role: P, a and b of a chunk of each head."""
        work.products(task, at)
        if self.gated:
            self.factors(work, task, at)
        for head in range(self.heads):
            p, *factors = work.scores(task, at, head)
            if p is not None:
                if self.packed and self.reverse:
                    tc.mask_cols(p, at.rows, 0.0)
                tc.store(self.p[head], tc.cast(p, self.dtype))
            for ring, vector in zip((self.a, self.b), factors, strict=False):
                tc.store(ring[head].tile, vector)

    def factors(self, work: Recurrence, task: Any, at: At) -> None:
        """A warp a head; the others do the same for nothing."""
        rings = self.sums, self.less, self.a, self.b
        with tc.warps():
            head = tc.warp_id() % WARPS
            made = work.factors(task, at, head)
            with tc.when(head < self.heads):
                for ring, vector in zip(rings, made, strict=True):
                    tc.store(ring[head].tile, vector)
        tc.sync()

    def chunk(
        self, work: Recurrence, place: Any, head: Any, tiles: Any, sums: Any,
        out: Any,
    ) -> None:  # fmt: skip
        """State role: Y and the next S of a chunk."""
        (q, k, v), (totals, y), parts = tiles, sums, len(sums[0])
        made = work.values(*place, self._read(work, place[1], totals, q, y, head))
        values = v if made is None else made
        if made is None and (self.decayed or self.packed):
            made = self.loaded = tc.load(v.tile.T)
        if self.packed:
            tc.mask_cols(made, place[1].rows, 0.0)
        if self.decayed:
            made = tc.cast(made * tc.load(self.b[head].tile, COLUMN), self.dtype)
            tc.mma_wait()
            tc.mul(y, tc.load(self.a[head].tile, COLUMN), out=y)
        if values is v:
            tc.mma_AtBt(y, v, self.p[head])
        else:
            tc.mma_ABt(y, values, self.p[head])
        for i, total in enumerate(totals):
            columns = k if parts == 1 else k.tile.part(i, parts)
            if made is None:
                tc.mma_AtB(total, v, columns)
            else:
                tc.mma_AB(total, made, columns)
        tc.mma_wait(parts)
        made = tc.cast(work.result(*place, y), self.dtype)
        tc.store(self.y[place[2]].tile.T, made)
        if self.packed:  # by TMA it would write tokens of the next sequence
            self._store_part(place, made, out)
        tc.mma_wait()

    def _read(self, work: Any, at: At, totals: Any, q: Any, y: Any, head: Any) -> Any:
        """State role: `S^T Q^T`, perhaps under way, and S times r. Gives S^T as an operand.

        Of many features part after part, for operands of all take too many registers; None then.
        """
        factor = self.b if self.reverse else self.a
        last = tc.load(factor[head].tile.at(CHUNK - 1)) if self.decayed else None
        if len(totals) == 1:  # S is scaled ahead of the product: ptxas would wait for it
            before = tc.as_a(totals[0], self.dtype)
            if last is not None:
                tc.mul(totals[0], last, out=totals[0])
            work.before(at, before)
            tc.mma_ABt(y, before, q, accumulate=False)
            return before
        for i, total in enumerate(totals):
            part = q.tile.part(i, len(totals))
            tc.mma_ABt(y, tc.as_a(total, self.dtype), part, accumulate=i > 0)
            tc.mma_wait()
        for total in totals if last is not None else ():
            tc.mul(total, last, out=total)
        return None

    def _store(self, task: Any, at: At, out: Any, ring: Any = None) -> None:
        """The storing thread: a whole chunk; of packed sequences the last may be none."""
        ring = self.y if ring is None else ring
        for index in range(self.heads * self.slices):
            head, col = self.place(task, index)
            to = out.at(task.batch, head, at.row, col)
            with tc.when(at.rows == CHUNK) if self.packed else nullcontext():
                tc.store_async(to, ring[index])

    def _store_part(self, place: Any, y: Any, out: Any) -> None:
        """State role: a chunk that is not whole."""
        task, at, index = place
        head, col = self.place(task, index)
        with tc.when(at.rows < CHUNK):
            rows = out.permute(0, 1, 3, 2)[:, :, :, : task.last]
            tc.store(rows.at(task.batch, head, col, at.row), y)
