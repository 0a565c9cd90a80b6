"""One token of a linear recurrence, for decoding: the state is read, changed and written in place.

A warpgroup takes a head: 64 rows of its state at a time, f32, in registers. What it costs is the
state, read once and written once.
"""

from __future__ import annotations

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, inout, rt, rv

T, TD = DTypeVar("T", bf16, f16), DTypeVar("TD", f32, bf16, f16)
ROWS = 64


def _gate(task, heads, gates):
    """`exp` of a head's gates: of tensors [B, H] and [H]."""
    total = 0.0
    for x in gates:
        place = x[task // heads, task % heads] if x.rank == 2 else x[task % heads]
        total = total + tc.load(place, f32)
    return tc.exp(total) if gates else None


@tc.kernel
def gla_step(
    Q: gl[T, "B", "H", "K"], K: gl[T, "B", "H", "K"], V: gl[T, "B", "H", "V"],
    S: inout[f32, "B", "H", "K", "V"], O: gl[T, "B", "H", "V"], scale: f32, *gates, dim=64,
):  # fmt: skip
    """S = exp(g) S + k v, O = scale q S; a block of `dim` columns at a time.

    gates: log-decays f32 [B, H], [H], both or none.
    """
    heads, blocks = S.size(1), tc.cdiv(V.cols, dim)
    row, col = rv[f32, ROWS], rv[f32, dim, "col"]
    with tc.warpgroup():
        for task in tc.range(tc.cta_id(), S.size(0) * heads * blocks, tc.num_ctas()):
            plane, block = task // blocks, task % blocks
            place = plane // heads, plane % heads
            decay, sums = _gate(plane, heads, gates), tc.zeros(col)
            v = tc.load(V[(*place, block)], col)
            for i in tc.range(tc.cdiv(K.cols, ROWS)):
                s = tc.load(S[(*place, i, block)], rt[f32, ROWS, dim])
                if decay is not None:
                    s = s * decay
                made = tc.zeros(rt[f32, ROWS, dim])
                tc.broadcast_col(made, v)
                tc.fma(made, tc.load(K[(*place, i)], row), s, out=made)
                tc.store(S[(*place, i, block)], made)
                tc.copy(sums, sums + tc.col_sum(made * tc.load(Q[(*place, i)], row)))
            tc.store(O[(*place, block)], sums * scale)


def _head(given, name, task):
    """An f32 number of a head, or 0."""
    return tc.load(given[name][task], f32) if name in given else 0.0


@tc.kernel
def ssd_step(
    X: gl[T, "B", "H", "P"], dt: gl[f32, "B", "H"], A: gl[f32, "H"], Bm: gl[T, "B", "G", "N"],
    C: gl[T, "B", "G", "N"], S: inout[f32, "B", "H", "P", "N"], O: gl[T, "B", "H", "P"], *args,
    dim=64, softplus=False, names=(),
):  # fmt: skip
    """S = exp(dt A) S + dt x B, O = (S C + D x) silu(z); N is at most `dim`, G divides H.

    args: those of `names`: D f32 [H], bias f32 [H], z [B, H, P].
    """
    given, heads = dict(zip(names, args, strict=True)), S.size(1)
    blocks, row, col = tc.cdiv(X.cols, ROWS), rv[f32, ROWS], rv[f32, dim, "col"]
    with tc.warpgroup():
        for task in tc.range(tc.cta_id(), S.size(0) * heads * blocks, tc.num_ctas()):
            plane, block = task // blocks, task % blocks
            batch, head = plane // heads, plane % heads
            group = head // (heads // Bm.size(1))
            step = tc.load(dt[batch, head], f32) + _head(given, "bias", head)
            step = tc.softplus(step) if softplus else step
            x = tc.load(X[batch, head, block], row)
            s = tc.load(S[batch, head, block, 0], rt[f32, ROWS, dim])
            made = tc.zeros(rt[f32, ROWS, dim])
            tc.broadcast_col(made, tc.load(Bm[batch, group, 0], col))
            tc.fma(made, x * step, s * tc.exp(step * tc.load(A[head], f32)), out=made)
            tc.store(S[batch, head, block, 0], made)
            y = tc.row_sum(made * tc.load(C[batch, group, 0], col))
            y = tc.fma(x, _head(given, "D", head), y) if "D" in given else y
            if "z" in given:
                y = y * tc.silu(tc.load(given["z"][batch, head, block], row))
            tc.store(O[batch, head, block], y)
