"""Around the scans of the delta rule's gradients: keys and queries over their norms, sums of heads.

A task is 64 tokens of a head of q and k; a warpgroup has them in registers. Sums are a pipeline
whose steps are the heads that share it.
"""

from __future__ import annotations

from typing import Any

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, rv, st

from .delta_rule import NORM_EPS

T = DTypeVar("T", bf16, f16)
ROWS = 64  # tokens


def _tasks(tensor: Any) -> tuple[Any, Any]:
    """How many tasks there are; batch entry, head and first token of each."""
    blocks, heads = tc.cdiv(tensor.rows, ROWS), tensor.size(1)

    def locate(task: Any) -> dict[str, Any]:
        place = task // blocks
        return {"batch": place // heads, "head": place % heads, "row": task % blocks * ROWS}

    return tensor.size(0) * heads * blocks, locate


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
    count, locate = _tasks(Q)
    with tc.warpgroup():
        for task in tc.range(tc.cta_id(), count, tc.num_ctas()):
            place = tuple(locate(task).values())
            for x, unit in ((Q, Qn), (K, Kn)):
                rows = tc.cast(tc.load(x.at(*place, 0), rt[x.dtype, ROWS, dim]), f32)
                tc.store(unit.at(*place, 0), tc.cast(_unit(rows)[0], x.dtype))


@tc.kernel
def delta_rule_sums(
    Q: gl[T, "B", "Hk", "T", "K"], K: gl[T, "B", "Hk", "T", "K"], ofQ: gl[T, "B", "H", "T", "K"],
    ofK: gl[T, "B", "H", "T", "K"], later: gl[T, "B", "H", "T", "K"],
    before: gl[T, "B", "H", "T", "K"], parts: gl[f32, "B", "H", "blocks", "T"],
    dQ: gl[T, "B", "Hk", "T", "K"], dK: gl[T, "B", "Hk", "T", "K"], dBeta: gl[f32, "B", "H", "T"],
    *, dim=128, norm=False, stages=3,
):  # fmt: skip
    """dQ, dK and dBeta: sums over the heads that share q and k, and over blocks of columns.

    Args:
        Q, K: read where `norm`: dQ and dK are gradients behind the norms then.
        ofQ: of each head. ofK, later, before: of k of each head, which are subtracted from it.
        parts: of dBeta.
    """
    group = ofQ.size(1) // Q.size(1)
    pipe = tc.lcf(consumers=1, stages=stages, tasks=tc.custom_order(*_tasks(Q)), steps=group)
    tiles = [pipe.input(st[Q.dtype, ROWS, dim]) for _ in range(4)]
    of_q, of_k = totals = [tc.empty(rt[f32, ROWS, dim]) for _ in range(2)]

    @pipe.load
    def _(task, step):
        for tile, x in zip(tiles, (ofQ, ofK, later, before), strict=True):
            tc.load_async(tile, x.at(task.batch, task.head * group + step, task.row, 0))

    @pipe.start
    def _(task):
        for total in totals:
            tc.fill(total, 0.0)

    @pipe.compute
    def _(task, step):
        for total, tile, sign in zip((of_q, of_k, of_k, of_k), tiles, (1, 1, -1, -1), strict=True):
            tc.fma(tc.cast(tc.load(tile.tile), f32), float(sign), total, out=total)
        head, sums = task.head * group + step, tc.zeros(rv[f32, ROWS])
        for part in tc.range(parts.size(2)):
            sums += tc.load(parts.at(task.batch, head, part, task.row), rv[f32, ROWS])
        tc.store(dBeta.at(task.batch, head, task.row), sums)

    @pipe.finish
    def _(task):
        for total, x, out in zip(totals, (Q, K), (dQ, dK), strict=True):
            place = task.batch, task.head, task.row, 0
            if norm:
                rows = tc.cast(tc.load(x.at(*place), rt[x.dtype, ROWS, dim]), f32)
                unit, factor = _unit(rows)
                tc.fma(unit, -tc.row_sum(unit * total), total, out=total)
                tc.mul(total, factor, out=total)
            tc.store(out.at(*place), tc.cast(total, x.dtype))
