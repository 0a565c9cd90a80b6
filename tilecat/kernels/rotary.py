"""Rotary position embedding of queries and keys, in one launch.

A warp has 16 tokens of one sequence: it loads their cosines and sines once, for several heads. A
thread has 8 adjacent columns of both halves of a row, so that 16 bytes move an access and nothing
crosses lanes: y = (a + ib)(cos + i sin), where (a, b) are the halves of a row, or its pairs.
"""

from __future__ import annotations

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, inout, rt, s32

T = DTypeVar("T", bf16, f16, f32)
TC = DTypeVar("TC", f32, bf16, f16)
TOKENS = 16  # rows of a warp's tile


class Columns:
    """Tiles of columns that are turned together.

    Args:
        pairs: R, of a row.
        cols: of a tile of cosines, a multiple of 8.
        interleaved: pairs are (2i, 2i+1), not (i, i + R).
    """

    def __init__(self, pairs, cols, interleaved):
        self.pairs, self.cols, self.interleaved = pairs, cols, interleaved
        self.count = -(-pairs // cols)
        self.cut = pairs % cols > 0  # else tiles end where the turned columns do
        self.wide = 2 * cols if interleaved else cols
        # Adjacent columns of a thread: as many as fill the columns of a tile, at most 8.
        self.run = next(run for run in (8, 4, 2) if self.wide % (4 * run) == 0)

    def angles(self, dtype):
        """Registers of a tile of cosines."""
        return rt[dtype, TOKENS, self.cols, "row", self.run // (1 + self.interleaved)]

    def place(self, row, tokens, groups, heads_first):
        """Group of heads, tile of columns, first token and sequence of a task."""
        blocks = tokens * self.count
        if heads_first:
            block, group, sequence = row % blocks, row // blocks % groups, row // blocks // groups
        else:
            block, group, sequence = row // groups % blocks, row % groups, row // groups // blocks
        token, chunk = (block // self.count, block % self.count) if self.count > 1 else (block, 0)
        return group, chunk, token * TOKENS, sequence

    def turn(self, x, y, angle, row, chunk, cache):
        """A tile (of each half) of a head: y = x angle; both may lie in one place."""
        kind, first = rt[x.dtype, TOKENS, self.wide, "row", self.run], self.wide * chunk
        end = 2 * self.pairs if self.cut else None
        if self.interleaved:
            tile = tc.cast(tc.load(x[:, 0:end].at(row, first), kind), f32)
            pairs = tc.complex_pairs(tile)
            turned = pairs * angle
            tc.copy(pairs.re, turned.re)
            tc.copy(pairs.im, turned.im)
            tc.store(y[:, 0:end].at(row, first), tc.cast(tile, y.dtype), cache=cache)
            return
        halves = slice(0, self.pairs if self.cut else None), slice(self.pairs, end)
        a, b = (tc.cast(tc.load(x[:, half].at(row, first), kind), f32) for half in halves)
        turned = tc.complex_tile(a, b) * angle
        for half, part in zip(halves, (turned.re, turned.im), strict=True):
            tc.store(y[:, half].at(row, first), tc.cast(part, y.dtype), cache=cache)


@tc.kernel
def rotary(C: gl[TC, "P", "R"], S: gl[TC, "P", "R"], Q: inout[T, "B", "N", "H", "D"],
           QO: inout[T, "B", "N", "H", "D"], K: inout[T, "B", "N", "Hk", "D"],
           KO: inout[T, "B", "N", "Hk", "D"], length: s32, offset: s32, *args, R, D, cols=64,
           heads=4, interleaved=False, conjugate=False, packed=False, offsets=False,
           heads_first=False, warps=4, blocks=3, cache=""):  # fmt: skip
    """QO = Q (C + iS), KO = K (C + iS) in the first 2 R columns; C - iS if `conjugate`.

    Args:
        C, S: cosines and sines of positions; what is beyond the last position gives NaN.
        Q, QO, K, KO: in place where they are the same. Hk may be 0.
        length: tokens of the longest sequence. offset: position of each sequence's first token.
        args: if packed s32 [sequences + 1]: where sequences begin, in axis N of a B of 1; if
            offsets s32 [sequences]: added to offset.
        R, D, cols, interleaved: see `Columns`; D columns in all.
        heads: that a warp takes with one load of cosines.
        heads_first: heads lie apart and the tokens of a head together: tasks that follow one
            another are tokens of the same heads.
        warps, blocks: of a CTA, CTAs that share an SM.
        cache: of `tc.store`.
    """
    starts, moved = args[0] if packed else None, args[-1] if offsets else None
    columns, tokens = Columns(R, cols, interleaved), tc.cdiv(length, TOKENS)
    sequences = starts.size(0) - 1 if packed else Q.size(0)
    groups = tc.cdiv(Q.size(2), heads)
    every = groups + tc.cdiv(K.size(2), heads)
    rows = tc.rows(sequences * tokens * columns.count * every, warps=warps, blocks_per_sm=blocks,
                   ahead=0)  # fmt: skip

    @rows.load
    def _(row):
        _, chunk, token, sequence = columns.place(row, tokens, every, heads_first)
        first = offset + token + (tc.load(moved[sequence], s32) if offsets else 0)
        return tuple(tc.load(x.at(first, chunk * cols), columns.angles(C.dtype), fill=float("nan"))
                     for x in (C, S))  # fmt: skip

    @rows.compute
    def _(row, c, s):
        group, chunk, token, sequence = columns.place(row, tokens, every, heads_first)
        angle = tc.complex_tile(tc.cast(c, f32), tc.cast(s, f32))
        angle = angle.conj() if conjugate else angle
        first = tc.load(starts[sequence], s32) if packed else None
        last = tc.load(starts[sequence + 1], s32) if packed else None
        plane = 0 if packed else sequence

        def turn(x, y, part):
            for head in tc.range(part * heads, tc.minimum((part + 1) * heads, x.size(2))):
                source, target = (z[plane, first:last, head, :] for z in (x, y))
                columns.turn(source, target, angle, token, chunk, cache)

        with tc.when(group < groups):
            turn(Q, QO, group)
        with tc.otherwise():
            turn(K, KO, group - groups)
