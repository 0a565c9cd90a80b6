"""Gradients of Mamba-2: what is around the scans of linear attention that give most of them.

`y = (C h + D x) silu(z)` is `simple_gla(C, B, dt x, dt A)` and what a token does by itself. Ahead
of the scans are values `dt x`, gates `dt A` and the gradient of `C h + D x` (`ssd_operands`);
behind them, from the gradients of values and gates, those of x, dt, A and z (`ssd_gradients`), of D
(`ssd_skip_gradients`), and of B and C sums over the heads that share them (`sum_heads`).
"""

from __future__ import annotations

import math
from typing import Any

import tilecat as tc
from tilecat import f32, gl, rt

from .chunk_scan import COLUMN, ROW
from .chunk_tasks import CHUNK
from .ssd import TD, T
from .ssd_steps import Steps


class _Tokens:
    """64 tokens of a head: how far they step.

    Args:
        steps: of the call. place: batch entry, head, first token.
    """

    def __init__(self, steps: Steps, place: Any):
        self.all, self.place, dt = steps, place, tc.load(steps.dt.at(*place), ROW)
        self.rate, offset = steps.of_head(place[1])
        self.dt = dt + offset
        self.steps = steps.of(self.dt)

    def going_on(self, x: Any, other: float) -> Any:
        """A vector, but `other` of the first token of a sequence behind another one."""
        return self.all.going_on(x, other, self.place[0], self.place[2], "row")

    def back(self, x: Any) -> Any:
        """The gradient of dt, from that of the steps."""
        if self.all.limits is not None:
            (low, high), plain = self.all.limits, self.dt
            plain = tc.softplus(plain) if self.all.softplus else plain
            x = tc.select(plain < low, 0.0, tc.select(plain > high, 0.0, x))
        return x * tc.sigmoid(self.dt) if self.all.softplus else x


def _tile(tensor: Any, place: Any, col: Any) -> Any:
    """64 columns of 64 tokens, f32."""
    return tc.cast(tc.load(tensor.at(*place, col), rt[tensor.dtype, CHUNK, CHUNK]), f32)


@tc.kernel
def ssd_operands(
    X: gl[T, "B", "H", "T", "P"], dt: gl[TD, "B", "H", "T"], A: gl[f32, "H"],
    Values: gl[T, "B", "H", "T", "P"], Gates: gl[f32, "B", "H", "T"], low: f32, high: f32, *args,
    softplus=False, limits=False, names=(),
):  # fmt: skip
    """Values dt X and gates dt A, dt as in `ssd`; gated, dN = dY silu(Z) too.

    args: those of `names`: bias f32 [H], sequences s32 [B, T]; z, dy and dn [B, H, T, P].
    """
    given, blocks = dict(zip(names, args, strict=True)), tc.cdiv(X.rows, CHUNK)
    steps = Steps(dt, A, given.get("bias"), softplus, (low, high) if limits else None,
                  given.get("sequences"))  # fmt: skip
    with tc.warpgroup():
        for task in tc.range(tc.cta_id(), X.size(0) * X.size(1) * blocks, tc.num_ctas()):
            head = task // blocks
            place = head // X.size(1), head % X.size(1), task % blocks * CHUNK
            tokens = _Tokens(steps, place)
            gates = tokens.going_on(tokens.steps * tokens.rate, -math.inf)
            tc.store(Gates.at(*place), gates)
            for block in tc.range(tc.cdiv(X.cols, CHUNK)):
                col = block * CHUNK
                made = _tile(X, place, col) * tokens.steps
                tc.store(Values.at(*place, col), tc.cast(made, X.dtype))
                if "z" in given:
                    made = _tile(given["dy"], place, col) * tc.silu(_tile(given["z"], place, col))
                    tc.store(given["dn"].at(*place, col), tc.cast(made, X.dtype))


@tc.kernel
def ssd_gradients(
    X: gl[T, "B", "H", "T", "P"], dt: gl[TD, "B", "H", "T"], A: gl[f32, "H"],
    dValues: gl[T, "B", "H", "T", "P"], dGates: gl[f32, "B", "H", "T"],
    dX: gl[T, "B", "H", "T", "P"], dDt: gl[TD, "B", "H", "T"], dRates: gl[f32, "B", "H", "T"],
    low: f32, high: f32, *args, softplus=False, limits=False, names=(),
):  # fmt: skip
    """From dValues and dGates dX, dDt, of each token what it adds to dA, and dZ.

    args: those of `names`: bias f32 [H], sequences s32 [B, T]; d_offsets f32 [B, H, T], dDt before
    it is rounded; D f32 [H] or [H, P] and dn, the gradient of `C h + D x`; z, dy, n, which is
    `C h + D x`, and dz.
    """
    given, blocks = dict(zip(names, args, strict=True)), tc.cdiv(X.rows, CHUNK)
    steps = Steps(dt, A, given.get("bias"), softplus, (low, high) if limits else None,
                  given.get("sequences"))  # fmt: skip
    with tc.warpgroup():
        for task in tc.range(tc.cta_id(), X.size(0) * X.size(1) * blocks, tc.num_ctas()):
            head = task // blocks
            place = head // X.size(1), head % X.size(1), task % blocks * CHUNK
            tokens = _Tokens(steps, place)
            dots = tc.zeros(ROW)
            for block in tc.range(tc.cdiv(X.cols, CHUNK)):
                col = block * CHUNK
                values = _tile(dValues, place, col)
                tc.copy(dots, tc.row_sum(values * _tile(X, place, col), dots))
                _store_token_gradients(given, place, col, values * tokens.steps, dX)
            gates = tokens.going_on(tc.load(dGates.at(*place), ROW), 0.0)
            tc.store(dRates.at(*place), gates * tokens.steps)
            found = tokens.back(tc.fma(gates, tokens.rate, dots))
            tc.store(dDt.at(*place), found)
            if "d_offsets" in given:
                tc.store(given["d_offsets"].at(*place), found)


def _store_token_gradients(given: dict[str, Any], place: Any, col: Any, dx: Any, out: Any) -> None:
    """Of 64 columns dX, from the scan's part of it, and dZ."""
    if "D" in given:
        skip = given["D"]
        direct = (tc.load(skip.at(place[1], col), COLUMN) if skip.rank == 2
                  else tc.load(skip[place[1]], f32))  # fmt: skip
        dx = dx + _tile(given["dn"], place, col) * direct
    tc.store(out.at(*place, col), tc.cast(dx, out.dtype))
    if "dz" in given:
        z = _tile(given["z"], place, col)
        s = tc.sigmoid(z)
        slope = s * tc.fma(z, 1.0 - s, 1.0)  # of z s(z), the derivative of s being s (1 - s)
        made = _tile(given["dy"], place, col) * _tile(given["n"], place, col) * slope
        tc.store(given["dz"].at(*place, col), tc.cast(made, out.dtype))


@tc.kernel
def ssd_skip_gradients(
    X: gl[T, "B", "H", "T", "P"], dN: gl[T, "B", "H", "T", "P"], Parts: gl[f32, "S", "H", "P"],
):  # fmt: skip
    """Parts of the gradient of D: sums over tokens of X dN; chunk i of all is in part i mod S."""
    blocks, chunks = tc.cdiv(X.cols, CHUNK), tc.cdiv(X.rows, CHUNK)
    with tc.warpgroup():
        for task in tc.range(tc.cta_id(), Parts.size(0) * X.size(1) * blocks, tc.num_ctas()):
            part, col = task // blocks // X.size(1), task % blocks * CHUNK
            head, total = task // blocks % X.size(1), tc.zeros(COLUMN)
            for chunk in tc.range(part, X.size(0) * chunks, Parts.size(0)):
                place = chunk // chunks, head, chunk % chunks * CHUNK
                tc.copy(total, tc.col_sum(_tile(X, place, col) * _tile(dN, place, col), total))
            tc.store(Parts.at(part, head, col), total)


@tc.kernel
def sum_heads(Heads: gl[T, "B", "H", "T", "N"], Groups: gl[T, "B", "G", "T", "N"]):
    """The sum over the heads of each group, which lie one after another."""
    chunks, blocks = tc.cdiv(Heads.rows, CHUNK), tc.cdiv(Heads.cols, CHUNK)
    groups, each = Groups.size(1), Heads.size(1) // Groups.size(1)
    with tc.warpgroup():
        for task in tc.range(
            tc.cta_id(), Heads.size(0) * groups * chunks * blocks, tc.num_ctas()
        ):  # fmt: skip
            rest, col = task // blocks, task % blocks * CHUNK
            batch, row = rest // chunks // groups, rest % chunks * CHUNK
            group, total = rest // chunks % groups, tc.zeros(rt[f32, CHUNK, CHUNK])
            for head in tc.range(group * each, (group + 1) * each):
                tc.copy(total, total + _tile(Heads, (batch, head, row), col))
            tc.store(Groups.at(batch, group, row, col), tc.cast(total, Groups.dtype))
