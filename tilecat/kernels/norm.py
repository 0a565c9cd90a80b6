"""Dropout, residual and layernorm (or RMSNorm) of rows in one pass, and its gradients.

A row lies in the registers of a warp, or of the warps of a CTA; the next one may be loaded before.
Statistics are two-pass, in f32. Nothing is kept of the mask of a dropout: Philox makes it
again from (seed, offset, row, column / 4).
"""

from __future__ import annotations

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rv, s32, u32

TX, TY, TW, TS = (DTypeVar(name, bf16, f16, f32) for name in ("TX", "TY", "TW", "TS"))
RUN = 8  # adjacent columns of a thread: 16 bytes of 16-bit types
UNIT = 32 * RUN  # columns of a warp's part of a row are a multiple of
COLUMNS = 128  # of partial sums of a warp: 16 bytes a lane
# Arguments that a call may have, in their order.
FORWARD = ("weight", "bias", "residual", "sums", "rowscale", "seed", "deviations", "means")
BACKWARD = ("means", "weight", "of_weight", "of_bias", "of_sums", "of_residual", "rowscale", "seed")


def named(given, args):
    """The arguments that a call has, by name."""
    fits = len(given) == len(args)
    tc.require(fits, f"norm: one argument for each name in given={given}, got {len(args)}")
    return dict(zip(given, args, strict=True))


class Part:
    """A warp's part of rows of D: how it is held, and where it begins."""

    def __init__(self, rows, D):
        self.number, self.width = rows.part, -(-D // (rows.parts * UNIT)) * UNIT
        self.whole, self.D = self.width * rows.parts == D, D

    def load(self, tensor, *row):
        """The part of a row, as it lies in memory; 0 beyond the row."""
        return tc.load(tensor[*row, self.number], rv[tensor.dtype, self.width, "plain", RUN])

    def store(self, tensor, row, x):
        """Rounds and stores it."""
        tc.store(tensor[row, self.number], x)

    def inside(self, x):
        """The vector, 0 beyond the row."""
        if self.whole:
            return x
        return tc.select(tc.col_index(x) + self.number * self.width < self.D, x, 0.0)

    def dropped(self, x, seed, row, threshold, factor):
        """The vector times the factor, 0 where random bits are below the threshold."""
        key, offset = tc.load(seed[0], s32), tc.load(seed[1], s32)
        bits = tc.random_bits(x, key, row=row, col=self.number * self.width, offset=offset)
        return tc.select(bits >= threshold, x * factor, 0.0)


@tc.kernel
def norm_forward(X: gl[TX, "M", "D"], Y: gl[TY, "M", "D"], eps: f32, threshold: u32, factor: f32,
                 *args, D, given=(), rms=False, warps=8, blocks=2, shared_by="warp", cluster=1,
                 ahead=1, hold=True):  # fmt: skip
    """Y = norm(dropout(X rowscale) + residual) weight + bias, over rows of D.

    Args:
        X, Y: M x D.
        eps: added to the variance (or to the mean square, of RMSNorm).
        threshold, factor: of dropout: 2**32 p, and what remaining elements are multiplied by.
        args: those that `given` names, of FORWARD: weight and bias [D], residual and sums (what is
            normalised) M x D, rowscale f32 [M], seed s32 [2], 1 / deviation and mean f32 [M].
        rms: RMSNorm: no mean is subtracted.
        ahead, shared_by, warps, blocks, cluster: of `tc.rows`. hold: keep weights in registers.
    """
    at = named(given, args)
    rows = tc.rows(X.rows, warps=warps, blocks_per_sm=blocks, shared_by=shared_by, ahead=ahead,
                   cluster=cluster)  # fmt: skip
    part = Part(rows, D)

    def weights():
        return tuple(part.load(at[name]) for name in ("weight", "bias") if name in at)

    @rows.start
    def _():
        return weights() if hold else ()

    @rows.load
    def _(row):
        return tuple(part.load(x, row) for x in (X, at.get("residual")) if x is not None)

    @rows.compute
    def _(row, x, *more):
        more, x = list(more), tc.cast(x, f32)
        x = x * tc.load(at["rowscale"][row], f32) if "rowscale" in at else x
        x = part.dropped(x, at["seed"], row, threshold, factor) if "seed" in at else x
        x = x + tc.cast(more.pop(0), f32) if "residual" in at else x
        if "sums" in at:
            part.store(at["sums"], row, x)
        mean = None if rms else rows.reduce("sum", x) * (1.0 / D)
        x = x if rms else part.inside(x - mean)
        square = rows.reduce("sum", x * x) * (1.0 / D)
        deviation = tc.rsqrt(square + eps, accurate=True)
        y, more = x * deviation, [tc.cast(w, f32) for w in (more if hold else weights())]
        y = y * more.pop(0) if "weight" in at else y
        part.store(Y, row, y + more.pop(0) if "bias" in at else y)
        with tc.when(part.number == 0):
            for name, value in (("deviations", deviation), ("means", mean)):
                if name in at:
                    tc.store(at[name][row], value)


@tc.kernel
def norm_backward(DY: gl[TY, "M", "D"], S: gl[TS, "M", "D"], DX: gl[TX, "M", "D"],
                  RSTD: gl[f32, "M"], threshold: u32, factor: f32, *args, D, given=(), rms=False,
                  warps=8, blocks=1, shared_by="warp", cluster=1, ahead=1,
                  hold=True):  # fmt: skip
    """Gradients of `norm_forward`: DX, and partial sums of those of weight and bias.

    Args:
        DY: gradient of Y. S: what was normalised. DX: gradient of X.
        RSTD: 1 / deviation of each row.
        args: those that `given` names, of BACKWARD: mean f32 [M], weight [D], partial sums of
            weight's and of bias's gradients f32 [CTAs, D], gradient of the sums and the residual's
            gradient M x D, rowscale f32 [M], seed s32 [2].
    """
    at = named(given, args)
    rows = tc.rows(S.rows, warps=warps, blocks_per_sm=blocks, shared_by=shared_by, ahead=ahead,
                   cluster=cluster)  # fmt: skip
    part = Part(rows, D)
    totals = [at[name] for name in ("of_weight", "of_bias") if name in at]

    @rows.start
    def _():
        zeros = [tc.zeros(rv[f32, part.width, "plain", RUN]) for _ in totals]
        return (*zeros, part.load(at["weight"])) if hold and "weight" in at else tuple(zeros)

    @rows.load
    def _(row):
        return tuple(part.load(x, row) for x in (DY, S, at.get("of_sums")) if x is not None)

    @rows.compute
    def _(row, dy, x, *more):
        more, dy, x = list(more), tc.cast(dy, f32), tc.cast(x, f32)
        change = tc.cast(more.pop(0), f32) if "of_sums" in at else None
        deviation = tc.load(RSTD[row], f32)
        x = (x if rms else x - tc.load(at["means"][row], f32)) * deviation
        for name, value in (("of_weight", dy * x), ("of_bias", dy)):
            if name in at:
                total = more.pop(0)
                total += value
        if "weight" in at:
            dy = dy * tc.cast(more.pop(0) if hold else part.load(at["weight"]), f32)
        g = dy - x * (rows.reduce("sum", dy * x) * (1.0 / D))
        g = (g if rms else g - rows.reduce("sum", dy) * (1.0 / D)) * deviation
        g = g if change is None else g + change
        if "of_residual" in at:
            part.store(at["of_residual"], row, g)
        g = part.dropped(g, at["seed"], row, threshold, factor) if "seed" in at else g
        g = g * tc.load(at["rowscale"][row], f32) if "rowscale" in at else g
        part.store(DX, row, g)

    @rows.finish
    def _(*places):
        for total, place in zip(totals, places, strict=False):
            if shared_by == "warp":
                rows.combine(place)
            with tc.when(rows.has_sum if shared_by == "warp" else True):
                part.store(total, tc.cta_id() // cluster, place)


@tc.kernel
def column_sums(P: gl[f32, "S", "C", "D"], W: gl[TW, "D"], *args, warps=8):
    """W = sum of the rows of P[0]; P[1] into a second tensor: partial sums of gradients."""
    targets = [W, *args]
    tiles = tc.cdiv(W.size(0), COLUMNS)
    rows = tc.rows(tiles * len(targets), warps=warps, shared_by="cta", ahead=0)
    kind = rv[f32, COLUMNS, "plain", 4]

    @rows.load
    def _(row):
        return tc.zeros(kind)

    @rows.compute
    def _(row, total):
        which, tile = row // tiles, row % tiles
        for number in tc.range(rows.part, P.size(1), rows.parts):
            total += tc.load(P[which, number, tile], kind)
        rows.combine(total)
        for index, target in enumerate(targets):
            with tc.when((which == index) & rows.has_sum):
                tc.store(target[tile], total)
