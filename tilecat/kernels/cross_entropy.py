"""Cross-entropy of rows of logits, its log-sum-exp, and the gradient of the logits in one pass.

A row of a vocabulary lies in the shared memory of the CTAs of a cluster (or in their registers): it
is read once. Its largest logit, the sum of exponentials and then the gradient are made from there.
"""

from __future__ import annotations

import math

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, inout, rv, s32, sv

T = DTypeVar("T", bf16, f16, f32)
RUN = 8  # adjacent logits of a thread: 16 bytes of 16-bit types
PIECE = 32 * RUN  # logits of a warp that are computed with at a time
LOG2E = math.log2(math.e)
FILLS = (float("-inf"), 0.0, 0.0, 0.0)  # of what warps tell one another


class Row:
    """The pieces of a row: each warp of the cluster has `count` of them, side by side.

    Args:
        rows: the template.
        X: logits.
        V: logits of a row.
        warps: of a CTA.
        piece: logits of a warp that are computed with at a time.
        staged: whether rows lie in shared memory.
    """

    def __init__(self, rows, X, V, piece, staged, chunks):
        self.X, self.rows, self.V, self.piece = X, rows, V, piece
        self.chunks, self.count = chunks, -(-V // (rows.parts * chunks * piece))  # pieces of each
        self.kind = rv[X.dtype, piece, "plain", RUN]
        room = sv[X.dtype, self.count * piece]
        self.input = rows.input(room, fill=float("-inf"), chunks=chunks) if staged else None

    def load(self, row):
        """In the load hole: registers, or nothing where bulk copies bring the row."""
        if self.input is None:
            return tuple(
                tc.load(self.X[row, self.number(i)], self.kind, fill=float("-inf"))
                for i in range(self.count)
            )
        held = self.count * self.piece
        chunk = self.rows.part * self.chunks + self.input.chunk
        place, (whole, rest) = self.X.at(row, chunk * held), divmod(self.V, held)
        with tc.when(chunk < whole):
            self.input.load(place)
        if whole < self.rows.parts * self.chunks:
            with tc.when(chunk == whole):
                self.input.load(place, rest)
            with tc.when(chunk > whole):
                self.input.load(place, 0)
        return None

    def number(self, i):
        """Number in the row of this warp's i-th piece."""
        return self.rows.part * self.chunks * self.count + i

    def pieces(self, held, last=False):
        """This warp's pieces and their numbers in the row: from registers, or shared memory.

        What lies beyond the row is -inf. last: the row is not read again.
        """
        if held:
            yield from ((self.number(i), x) for i, x in enumerate(held))
            return
        for chunk in self.input.parts(last=last):
            for i in (range if self.chunks > 1 and self.count <= 4 else tc.range)(self.count):
                place = self.number(chunk * self.count + i)
                yield place, tc.load(self.input.vector.part(i, self.count), self.kind)

    def hot(self, x, label, place):
        """Conditions: an element of a piece is the label's."""
        return tc.col_index(x) == label - place * self.piece

    def power(self, x, base):
        """`exp(x - base)`; of 16-bit logits in one product, whose error is below their own."""
        if self.X.dtype == f32:
            return tc.exp2((x - base) * LOG2E)
        return tc.exp2(tc.fma(x, LOG2E, base * -LOG2E))

    def sums(self, held, label, smooth):
        """This warp's largest logit, its sum of powers, the label's logit, and the sum if `smooth`.

        Powers are those of logits less the warp's own largest.
        """
        largest = tc.full(self.kind, float("-inf"))
        for _, x in self.pieces(held):
            tc.maximum(largest, x, out=largest)
        top = tc.reduce_vector("max", tc.cast(largest, f32))
        base = tc.select(top == -math.inf, 0.0, top)
        wide = rv[f32, self.piece, "plain", RUN]
        total, every, logit = tc.zeros(wide), tc.zeros(wide), tc.var(0.0)
        for place, x in self.pieces(held):
            x = tc.cast(x, f32)
            total += self.power(x, base)
            with tc.when(label // self.piece == place):
                logit.set(tc.reduce_vector("sum", tc.select(self.hot(x, label, place), x, 0.0)))
            if smooth:
                every += tc.select(tc.col_index(x) + place * self.piece < self.V, x, 0.0)
        sums = [tc.reduce_vector("sum", v) for v in (total, every)[: 1 + smooth]]
        return top, sums[0], logit.get(), *sums[1:]

    @staticmethod
    def together(tops, totals, *others):
        """The row's log-sum-exp, the label's logit, and the sum, of those of all warps."""
        top = tc.reduce_vector("max", tops)
        base = tc.select(top == -math.inf, 0.0, top)
        total = tc.reduce_vector("sum", totals * tc.exp2((tops - base) * LOG2E))
        lse = base + tc.log(total, accurate=True)
        return lse, *(tc.reduce_vector("sum", v) for v in others)

    def store_gradient(self, G, row, held, label, lse, scale, hot, flat):
        """`G = softmax scale - flat`, less `hot` at the label."""
        for place, x in self.pieces(held, last=True):
            g = self.power(tc.cast(x, f32), lse) * scale
            g = g if flat is None else g - flat
            with tc.when(label // self.piece == place):
                tc.copy(g, tc.select(self.hot(g, label, place), g - hot, g))
            tc.store(G[row, place], g)


def label_of(target, row, words, V, ignored):
    """A row's label of one or two words, whether it is ignored, and in the vocabulary."""
    label, inside = tc.load(target[row, 0], s32), True
    if words == 2:
        inside = tc.load(target[row, 1], s32) == label >> 31
    return label, (label == ignored) & inside, (label >= 0) & (label < V) & inside


def loss_of(lse, logit, every, V, smoothing):
    """A row's loss, smoothed where `every` has the sum of its logits."""
    if not every:
        return lse - logit
    return lse - (1.0 - smoothing) * logit - smoothing * (every[0] * (1.0 / V))


@tc.kernel
def cross_entropy(X: inout[T, "M", "V"], G: inout[T, "M", "V"], TARGET: gl[s32, "M", "W"],
                  LOSS: gl[f32, "M"], LSE: inout[f32, "M"], FACTOR: gl[f32, "F"], ignored: s32,
                  smoothing: f32, z_loss: f32, *, V, W, forward=True, gradient=True, smooth=False,
                  z=False, warps=8, cluster=4, blocks=3, piece=PIECE, staged=True,
                  stages=1, chunks=1, behind=False):  # fmt: skip
    """LOSS = LSE - (1 - smoothing) X[label] - smoothing mean(X) + z_loss LSE^2; G = FACTOR dX.

    Args:
        X, G: logits, and their gradient; may be one array.
        TARGET: labels, s32 (W = 1) or the two halves of s64 (W = 2). Rows of label `ignored` have
            loss and gradient 0; those of one outside the vocabulary NaN.
        LOSS, LSE: of each row; LSE is read, not written, unless `forward`.
        FACTOR: of each row, or one of all.
        ignored, smoothing, z_loss: the last two are not looked at unless `smooth`, `z`.
        V: logits of a row. forward, gradient: what is made.
        warps, cluster, blocks, stages: of `tc.rows`; rows in shared memory if `staged`.
        piece: logits that a warp computes with at a time.
        chunks: that a warp's part of a row in shared memory is loaded in.
        behind: whether gradients are made behind the sums of the next row, which needs two rows in
            shared memory.
    """
    rows = tc.rows(X.rows, warps=warps, shared_by="cta", cluster=cluster, blocks_per_sm=blocks,
                   ahead=0, stages=stages)  # fmt: skip
    whole = Row(rows, X, V, piece, staged, chunks)
    rows.load(lambda row: whole.load(row))

    lags, fills = forward and behind, FILLS[: 3 + smooth]

    def finish(row, held, met):
        label, skipped, inside = label_of(TARGET, row, W, V, ignored)
        if gradient:
            factor = tc.load(FACTOR[tc.minimum(row, FACTOR.size(0) - 1)], f32)
        if forward:
            lse, logit, *every = whole.together(*met)
            loss = loss_of(lse, logit, every, V, smoothing)
            loss = loss + z_loss * lse * lse if z else loss
            loss = tc.select(inside, loss, float("nan"))
            with tc.when(rows.part == 0):
                tc.store(LOSS[row], tc.select(skipped, 0.0, loss))
                tc.store(LSE[row], lse)
        else:
            lse = tc.load(LSE[row], f32)
        if gradient:
            factor = tc.select(skipped, 0.0, tc.select(inside, factor, float("nan")))
            scale = factor * (1.0 + 2.0 * z_loss * lse) if z else factor
            hot = factor * (1.0 - smoothing) if smooth else factor
            flat = factor * smoothing * (1.0 / V) if smooth else None
            whole.store_gradient(G, row, held, label, lse, scale, hot, flat)

    @rows.compute
    def _(row, *held):
        if forward:
            rows.send(*whole.sums(held, label_of(TARGET, row, W, V, ignored)[0], smooth))
        if not lags:
            finish(row, held, rows.receive(*fills) if forward else ())

    if lags:
        rows.behind(lambda row: finish(row, (), rows.receive(*fills)))


@tc.kernel
def scale_rows(G: inout[T, "M", "D"], FACTOR: gl[f32, "F"], *, D, warps=8, blocks=2):
    """G *= FACTOR, of each row, or one of all; rows of factor 1 are not touched."""
    rows = tc.rows(G.rows, warps=warps, shared_by="cta", blocks_per_sm=blocks, ahead=0)
    pieces = -(-D // PIECE)

    @rows.load
    def _(row):
        return tc.full(rv[f32, 32, "plain"], tc.load(FACTOR[row % FACTOR.size(0)], f32))

    @rows.compute
    def _(row, factor):
        factor = tc.reduce_vector("max", factor)
        with tc.when(~(factor == 1.0)):
            for piece in tc.range(rows.part, pieces, rows.parts):
                g = tc.cast(tc.load(G[row, piece], rv[G.dtype, PIECE, "plain", RUN]), f32)
                tc.store(G[row, piece], g * factor)
