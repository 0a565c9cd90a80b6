"""Around the scans of the delta rule's gradients: keys and queries over their norms, sums of heads.

A task is 64 tokens of a head of q and k; a warpgroup has them in registers.
"""

from __future__ import annotations

from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, rv

from .delta_rule import NORM_EPS

T = DTypeVar("T", bf16, f16)
ROWS = 64  # tokens


def _tasks(tensor: Any) -> Any:
    """Batch entry, head and first token of each of a CTA's tasks."""
    blocks, heads = tc.cdiv(tensor.rows, ROWS), tensor.size(1)
    for task in tc.range(tc.cta_id(), tensor.size(0) * heads * blocks, tc.num_ctas()):
        place = task // blocks
        yield place // heads, place % heads, task % blocks * ROWS


def _unit(x: Any) -> tuple[Any, Any]:
    """Rows over their norms, and what they were multiplied by."""
    factor = tc.rsqrt(tc.row_sum(x * x) + NORM_EPS)
    return x * factor, factor


@tc.kernel
def delta_rule_units(
    Q: gl[T, "B", "Hk", "T", "K"], K: gl[T, "B", "Hk", "T", "K"], Qn: gl[T, "B", "Hk", "T", "K"],
    Kn: gl[T, "B", "Hk", "T", "K"], *, dim=128,
):  # fmt: skip
    """Q and K over their norms."""
    with tc.warpgroup():
        for place in _tasks(Q):
            for x, unit in ((Q, Qn), (K, Kn)):
                rows = tc.cast(tc.load(x.at(*place, 0), rt[x.dtype, ROWS, dim]), f32)
                tc.store(unit.at(*place, 0), tc.cast(_unit(rows)[0], x.dtype))


@tc.kernel
def delta_rule_sums(
    Q: gl[T, "B", "Hk", "T", "K"], K: gl[T, "B", "Hk", "T", "K"], ofQ: gl[T, "B", "H", "T", "K"],
    ofK: gl[T, "B", "H", "T", "K"], later: gl[T, "B", "H", "T", "K"],
    before: gl[T, "B", "H", "T", "K"], parts: gl[f32, "B", "H", "blocks", "T"],
    dQ: gl[T, "B", "Hk", "T", "K"], dK: gl[T, "B", "Hk", "T", "K"], dBeta: gl[f32, "B", "H", "T"],
    *, dim=128, norm=False,
):  # fmt: skip
    """dQ, dK and dBeta: sums over the heads that share q and k, and over blocks of columns.

    Args:
        Q, K: read where `norm`: dQ and dK are gradients behind the norms then.
        ofQ: of each head. ofK, later, before: of k of each head, which are subtracted from it.
        parts: of dBeta.
    """
    group = ofQ.size(1) // Q.size(1)
    with tc.warpgroup():
        for batch, head, row in _tasks(Q):
            totals = [tc.zeros(rt[f32, ROWS, dim]) for _ in range(2)]
            for h in tc.range(head * group, (head + 1) * group):
                for total, signs in zip(totals, (((ofQ, 1.0),), ((ofK, 1.0), (later, -1.0),
                                                                 (before, -1.0))), strict=True):
                    for x, sign in signs:
                        rows = tc.load(x.at(batch, h, row, 0), rt[x.dtype, ROWS, dim])
                        tc.fma(tc.cast(rows, f32), sign, total, out=total)
                sums = tc.zeros(rv[f32, ROWS])
                for part in tc.range(parts.size(2)):
                    sums += tc.load(parts.at(batch, h, part, row), rv[f32, ROWS])
                tc.store(dBeta.at(batch, h, row), sums)
            for total, x, out in zip(totals, (Q, K), (dQ, dK), strict=True):
                if norm:
                    rows = tc.cast(tc.load(x.at(batch, head, row, 0), rt[x.dtype, ROWS, dim]), f32)
                    unit, factor = _unit(rows)
                    along = tc.row_sum(unit * total)
                    tc.fma(unit, -along, total, out=total)
                    tc.mul(total, factor, out=total)
                tc.store(out.at(batch, head, row, 0), tc.cast(total, x.dtype))
