"""One token of the gated delta rule, for decoding.

    S' = e^g S, n = b (v - k S'), S = S' + k n^T, o = scale q S

A CTA has a head's state, K x 64 columns of V, in the registers of a warpgroup: it is read and
written once, and everything else is sums down its columns.
"""

from __future__ import annotations

from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, inout, rt, rv

T = DTypeVar("T", bf16, f16)
COLUMNS = 64  # of V a CTA
NORM_EPS = 1e-6  # below the root of a norm


def normed(x: Any) -> Any:
    """A vector over its norm."""
    return x * tc.rsqrt(tc.reduce_vector("sum", x * x) + NORM_EPS)


@tc.kernel
def delta_rule_step(
    Q: gl[T, "B", "Hk", "K"], K: gl[T, "B", "Hk", "K"], V: gl[T, "B", "H", "V"],
    Beta: gl[f32, "B", "H"], S: inout[f32, "B", "H", "K", "V"], O: gl[T, "B", "H", "V"],
    scale: f32, *args, dim=128, g=False, norm=False,
):  # fmt: skip
    """O of one token, and S, the state, after it. args: g f32 [B, H], where there is one."""
    with tc.warpgroup():
        blocks = tc.cdiv(V.size(2), COLUMNS)
        for task in tc.range(tc.cta_id(), V.size(0) * V.size(1) * blocks, tc.num_ctas()):
            place, col = task // blocks, task % blocks * COLUMNS
            batch, head = place // V.size(1), place % V.size(1)
            group = head // (V.size(1) // Q.size(1))
            s = tc.load(S.at(batch, head, 0, col), rt[f32, dim, COLUMNS])
            q, k = (tc.load(x.at(batch, group, 0), rv[f32, dim]) for x in (Q, K))
            v = tc.load(V.at(batch, head, col), rv[f32, COLUMNS, "col"])
            if norm:
                q, k = normed(q), normed(k)
            if g:
                tc.mul(s, tc.exp(tc.load(args[0].at(batch, head), f32)), out=s)
            new = (v - tc.col_sum(s * k)) * tc.load(Beta.at(batch, head), f32)
            rows = tc.broadcast_row(tc.empty(rt[f32, dim, COLUMNS]), k)
            tc.fma(rows, new, s, out=s)
            tc.store(S.at(batch, head, 0, col), s)
            o = tc.col_sum(s * q) * scale
            tc.store(O.at(batch, head, col), o)
