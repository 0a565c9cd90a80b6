"""Segments of sequences, where there are fewer heads than SMs: three launches of one recurrence.

    1  each segment from a state of 0: L_i, and by what it multiplies the state before, f_i
    2  S_(i+1) = f_i S_i + L_i (in reversed time from the last), S_i in place of L_i
    3  the scan, each segment from its S_i

The first is the core without queries, scores and outputs (`LocalStates`), the second
`join_segments`. Q, K and V are read 5/3 times as often, and segments are computed at one time.
"""

from __future__ import annotations

from typing import Any

import tilecat as tc
from tilecat import f32, rt, s32

from .chunk_scan import COLUMN, ChunkScan, Recurrence
from .chunk_tasks import CHUNK, At

COLS = 32  # of a tile of states: few heads make many


class LocalStates(ChunkScan):
    """A scan that gives states alone, and (`fades`) the products of the chunks' factors r."""

    fades: Any = None

    def rings(self) -> None:
        """No scores, no outputs: vectors."""
        self.p = self.y = None
        self.vectors(None)

    def scores(self, work: Recurrence, task: Any, at: At) -> None:
        """Score role: factors."""
        if self.gated:
            self.factors(work, task, at)

    def begin(self, task: Any, totals: Any, start: Any, unit: Any) -> None:
        """State role: nothing before."""
        self.fade = tc.var(1.0)
        super().begin(task, totals, None, unit)

    def chunk(
        self, work: Recurrence, place: Any, head: Any, tiles: Any, sums: Any, out: Any
    ) -> None:  # fmt: skip
        """State role: the next S of a chunk."""
        (_, k, v), (totals, _) = tiles, sums
        values = tc.load(v.tile.T) if self.decayed else None
        if values is not None:
            last = tc.load((self.b if self.reverse else self.a)[head].tile.at(CHUNK - 1))
            self.fade.set(self.fade.get() * last)
            values = tc.cast(values * tc.load(self.b[head].tile, COLUMN), self.dtype)
            for total in totals:
                tc.mul(total, last, out=total)
        for i, total in enumerate(totals):
            columns = k if len(totals) == 1 else k.tile.part(i, len(totals))
            if values is None:
                tc.mma_AtB(total, v, columns)
            else:
                tc.mma_AB(total, values, columns)
        tc.mma_wait()

    def finish(self, task: Any, totals: Any, end: Any, unit: Any) -> None:
        """State role: the state, and its factor."""
        super().finish(task, totals, end, unit)
        if self.fades is not None:
            head, col = self.place(task, self.state.consumer)
            with tc.when(col == 0):
                tc.store(self.fades[task.state, head], self.fade.get())


@tc.kernel
def join_segments(
    States: tc.inout[f32, "N", "H", "R", "F"], segments: s32, *args, fades=False, start=False,
    end=False, reverse=False,
):  # fmt: skip
    """States before each segment, in place of each segment's own.

    args: fades f32 [N, H] (else 1); states before and after, f32 [N / segments, H, R, F]; those
    that are wanted.
    """
    args = list(args)
    factors, first, last = (args.pop(0) if wanted else None for wanted in (fades, start, end))
    heads, rows, cols = States.size(1), tc.cdiv(States.rows, CHUNK), tc.cdiv(States.cols, COLS)
    state, local, ahead = (tc.empty(rt[f32, CHUNK, COLS]) for _ in range(3))
    with tc.warpgroup():
        for task in tc.range(
            tc.cta_id(), States.size(0) // segments * heads * rows * cols, tc.num_ctas()
        ):
            part, sequence = task % (rows * cols), task // (rows * cols) // heads
            place = task // (rows * cols) % heads, part // cols, part % cols
            if start:
                tc.copy(state, tc.load(first[sequence, *place], state.type))
            else:
                tc.fill(state, 0.0)
            step, at = (-1, segments - 1) if reverse else (1, 0)
            at = sequence * segments + at
            tc.copy(ahead, tc.load(States[at, *place], state.type))
            for i in tc.range(segments):
                now = at + i * step
                tc.copy(local, ahead)
                with tc.when(i + 1 < segments):
                    tc.copy(ahead, tc.load(States[now + step, *place], state.type))
                tc.store(States[now, *place], state)
                fade = tc.load(factors[now, place[0]], f32) if fades else 1.0
                tc.fma(state, fade, local, out=state)
            if end:
                tc.store(last[sequence, *place], state)
