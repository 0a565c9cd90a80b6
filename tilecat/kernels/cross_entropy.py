"""Cross-entropy of rows of logits, its log-sum-exp, and the gradient of the logits in one pass.

A row of a vocabulary lies in the shared memory of the CTAs of a cluster (or in their registers): it
is read once. Its largest logit, the sum of exponentials and then the gradient are made from there.
"""

from __future__ import annotations

import functools
import math

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, inout, rv, s32, sv

T = DTypeVar("T", bf16, f16, f32)
RUN = 8  # adjacent logits of a thread: 16 bytes of 16-bit types
PIECE = 32 * RUN  # logits of a warp that are computed with at a time
LOG2E = math.log2(math.e)
FILLS = (float("-inf"), 0.0, 0.0, 0.0)  # of what warps tell one another


class Row:
    """The chunks of a row: each warp of the cluster has `chunks` of them, side by side.

    Args:
        rows: the template.
        X: logits.
        V: logits of a row.
        piece: logits of a warp in a vector.
        chunks: of a warp's part, each of pieces that are in registers together.
        keep: the powers of a row stay in registers, and it leaves shared memory when it is read.
        again: a row in shared memory is read again, for its gradient.
        staged: whether rows lie in shared memory.
        cache: of their loads.
    """

    def __init__(self, rows, X, V, piece, chunks, *, keep, again, staged, cache):
        self.cache = cache
        self.X, self.rows, self.V, self.piece = X, rows, V, piece
        self.chunks, self.count = chunks, -(-V // (rows.parts * chunks * piece))  # pieces of each
        self.keep, self.again, self.wide = keep, again, self.count * piece  # logits of a chunk
        self.kind = rv[X.dtype, piece, "plain", RUN]
        room = sv[X.dtype, self.wide]
        self.input = rows.input(room, fill=float("-inf"), chunks=chunks) if staged else None

    def load(self, row):
        """In the load hole: registers, or nothing where bulk copies bring the row."""
        if self.input is None:
            return tuple(tc.load(self.X[row, place], self.kind, fill=float("-inf"))
                         for place in self.places(0))  # fmt: skip
        chunk, (whole, rest) = self.number(self.input.chunk), divmod(self.V, self.wide)
        place = self.X.at(row, chunk * self.wide)
        with tc.when(chunk < whole):
            self.input.load(place, cache=self.cache)
        if whole < self.rows.parts * self.chunks:
            with tc.when(chunk == whole):
                self.input.load(place, rest, cache=self.cache)
            with tc.when(chunk > whole):
                self.input.load(place, 0)
        return None

    def number(self, chunk):
        """Number in the row of this warp's chunk."""
        return self.rows.part * self.chunks + chunk

    def places(self, chunk):
        """Numbers in the row of the pieces of this warp's chunk."""
        return [self.number(chunk) * self.count + i for i in range(self.count)]

    def read(self, loaded, last):
        """This warp's chunks and their pieces: from registers, or shared memory.

        What lies beyond the row is -inf. last: the row is not read again.
        """
        if self.input is None:
            yield 0, loaded
            return
        for chunk in self.input.parts(last=last, unroll=self.keep):
            parts = (self.input.vector.part(i, self.count) for i in range(self.count))
            yield chunk, [tc.load(part, self.kind) for part in parts]

    def has(self, label, chunk):
        """Condition: the label is in this warp's chunk."""
        return label // self.wide == self.number(chunk)

    def hot(self, x, label, place):
        """Conditions: an element of a piece is the label's."""
        return tc.col_index(x) == label - place * self.piece

    def inside(self, x, place):
        """Conditions: elements of a piece are in the row."""
        return tc.col_index(x) + place * self.piece < self.V

    def power(self, x, base):
        """`exp(x - base)`; of 16-bit logits in one product, whose error is below their own."""
        if self.X.dtype == f32:
            return tc.exp2((x - base) * LOG2E)
        return tc.exp2(tc.fma(x, LOG2E, base * -LOG2E))

    def sums(self, loaded, label, smooth):
        """This warp's largest logit, its sum of powers, the label's logit, and the sum if `smooth`.

        Powers are those of logits less the largest so far: no warp waits for another, and each
        reads its logits once. Also, to keep, each chunk's powers and what was largest then.
        """
        logit, every, kept = tc.var(0.0), tc.var(0.0), []
        top, total = tc.var(-math.inf), tc.zeros(rv[f32, self.piece, "plain", RUN])
        for chunk, raw in self.read(loaded, last=self.keep or not self.again):
            own = tc.reduce_vector("max", tc.cast(functools.reduce(tc.maximum, raw), f32))
            xs, places = [tc.cast(x, f32) for x in raw], self.places(chunk)
            with tc.when(self.has(label, chunk)):
                found = [tc.select(self.hot(x, label, place), x, 0.0)
                         for x, place in zip(xs, places, strict=True)]  # fmt: skip
                logit.set(tc.reduce_vector("sum", sum(found[1:], found[0])))
            if smooth:
                whole = [tc.select(self.inside(x, place), x, 0.0)
                         for x, place in zip(xs, places, strict=True)]  # fmt: skip
                every += tc.reduce_vector("sum", sum(whole[1:], whole[0]))
            new = tc.maximum(top.get(), own)
            base = tc.select(new == -math.inf, 0.0, new)
            powers = [self.power(x, base) for x in xs]
            tc.fma(total, tc.exp2((top.get() - base) * LOG2E), sum(powers[1:], powers[0]),
                   out=total)  # fmt: skip
            top.set(new)
            kept += [(new, powers)] * self.keep
        sums = top.get(), tc.reduce_vector("sum", total), logit.get()
        return (*sums, every.get())[: 3 + smooth], kept

    @staticmethod
    def together(tops, totals, *others):
        """The row's log-sum-exp, the label's logit, and the sum, of those of all warps."""
        top = tc.reduce_vector("max", tops)
        base = tc.select(top == -math.inf, 0.0, top)
        total = tc.reduce_vector("sum", totals * tc.exp2((tops - base) * LOG2E))
        lse = base + tc.log(total, accurate=True)
        return lse, *(tc.reduce_vector("sum", v) for v in others)

    def gradients(self, loaded, kept, lse):
        """Each of this warp's chunks, and `exp(x - lse)` of its pieces."""
        for chunk, (top, powers) in enumerate(kept):
            factor = tc.exp2((top - lse) * LOG2E)
            yield chunk, [power * factor for power in powers]
        if not self.keep:
            for chunk, raw in self.read(loaded, last=True):
                yield chunk, [self.power(tc.cast(x, f32), lse) for x in raw]

    def store_gradient(self, G, row, gradients, label, scale, hot, flat):
        """`G = softmax scale - flat`, less `hot` at the label."""
        for chunk, powers in gradients:
            places = self.places(chunk)
            g = [power * scale if flat is None else power * scale - flat for power in powers]
            with tc.when(self.has(label, chunk)):
                for x, place in zip(g, places, strict=True):
                    tc.copy(x, tc.select(self.hot(x, label, place), x - hot, x))
            for x, place in zip(g, places, strict=True):
                tc.store(G[row, place], x)


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
                  z=False, warps=8, cluster=4, blocks=3, piece=PIECE, staged=True, stages=None,
                  chunks=1, keep=False, scaled=True):  # fmt: skip
    """LOSS = LSE - (1 - smoothing) X[label] - smoothing mean(X) + z_loss LSE^2; G = FACTOR dX.

    Args:
        X, G: logits, and their gradient; may be one array.
        TARGET: labels, s32 (W = 1) or the two halves of s64 (W = 2). Rows of label `ignored` have
            loss and gradient 0; those of one outside the vocabulary NaN.
        LOSS, LSE: of each row; LSE is read, not written, unless `forward`.
        FACTOR: of each row, or one of all; not looked at unless `scaled`.
        ignored, smoothing, z_loss: the last two are not looked at unless `smooth`, `z`.
        V: logits of a row. forward, gradient: what is made.
        warps, cluster, blocks, stages: of `tc.rows`; rows in shared memory if `staged`.
        piece, chunks, keep: see `Row`.
    """
    rows = tc.rows(X.rows, warps=warps, shared_by="cta", cluster=cluster, blocks_per_sm=blocks,
                   ahead=0, stages=stages)  # fmt: skip
    whole = Row(rows, X, V, piece, chunks, keep=keep, again=forward and gradient, staged=staged,
                cache="" if gradient else "evict_first")  # fmt: skip
    rows.load(lambda row: whole.load(row))

    @rows.compute
    def _(row, *loaded):
        label, skipped, inside = label_of(TARGET, row, W, V, ignored)
        kept = ()
        if forward:
            sums, kept = whole.sums(loaded, label, smooth)
            rows.send(*sums)
        if gradient:
            of_row = FACTOR[tc.minimum(row, FACTOR.size(0) - 1)]
            factor = tc.load(of_row, f32) if scaled else 1.0
        if forward:
            lse, logit, *every = whole.together(*rows.receive(*FILLS[: 3 + smooth]))
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
            whole.store_gradient(G, row, whole.gradients(loaded, kept, lse), label, scale, hot,
                                 flat)  # fmt: skip


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
