"""Gradients of gates: `dg_t = <S_(t-1), dS_(t-1)>`, the state before a token and its gradient.

Between two tokens these differ by what the first adds to S and to its gradient: with G the running
sum of gates, o_i holds exp(G_i - G_j), so G_i has the gradient `r_i = q_i dq_i - k_i dk_i`, and
`dg_t = dg_(t+1) + r_t`. The r cancel, and their errors (of operands of 16 bits) do not: summed from
the end of a sequence they grow with the root of its length. So sums are of 512 tokens: what dg is
at both ends of a block is known from states (`checkpoints`), and what the sum misses, rounding, is
spread over the block.
"""

from __future__ import annotations

import tilecat as tc
from tilecat import f32, gl, rt, rv, s32

from ..language.scalars import minimum_of
from .checkpoints import EVERY, number_of

SUMMED = 1024  # gates at a time


def _sum_of_parts(tensor, place):
    """The sum over all parts of a block's tokens."""
    batch, head, row = place
    sums = tc.zeros(rv[f32, EVERY])
    for part in tc.range(tensor.size(2)):
        tc.fma(tc.load(tensor.at(batch, head, part, row), rv[f32, EVERY]), 1.0, sums, out=sums)
    return sums


def _inner_product(total, sequence, head, s, ds):
    """Adds `<S, dS>` of a head."""
    for row in tc.range(tc.cdiv(s.rows, 64)):
        for col in tc.range(tc.cdiv(s.cols, 64)):
            a, b = (tc.load(x[sequence, head, row, col], rt[f32, 64, 64]) for x in (s, ds))
            total.set(total.get() + tc.tile_sum(a * b))


def _at_border(products, block, inside, sequence, head, states):
    """The gradient at the border of a block: by products, or states at ends of a sequence."""
    total = tc.var(0.0)
    with tc.when(inside):
        for part in tc.range(products.size(2)):
            total.set(total.get() + tc.load(products[block, head, part], f32))
    if states:
        with tc.when(~inside):
            _inner_product(total, sequence, head, *states)
    return total.get()


@tc.kernel
def gate_gradients(
    Outer: gl[f32, "B", "H", "parts", "T"], Inner: gl[f32, "B", "H", "other", "T"],
    Products: gl[f32, "blocks", "H", "borders"], dG: gl[f32, "B", "H", "T"], stripes: s32,
    *args, packed=False, first=False, last=False,
):  # fmt: skip
    """The gradients dG, of r = Outer - Inner (sums over parts) and Products of `checkpoints`.

    args: cu_seqlens s32 [sequences + 1], if packed; S and dS before the first token, if first;
    behind the last, if last: f32 [sequences, H, K, V] each. stripes: CTAs that share a sequence's
    head.
    """
    args = list(args)
    starts = args.pop(0) if packed else None
    before = [args.pop(0) for _ in range(2)] if first else ()
    heads, sequences = dG.size(1), dG.size(0) if starts is None else starts.size(0) - 1
    with tc.warpgroup():
        for task in tc.range(tc.cta_id(), sequences * heads * stripes, tc.num_ctas()):
            stripe, sequence = task % stripes, task // stripes // heads
            head, batch, begin, end = task // stripes % heads, sequence, 0, dG.cols
            if packed:
                batch, begin = 0, tc.load(starts[sequence], s32)
                end = tc.load(starts[sequence + 1], s32)
            number = number_of(batch * dG.cols + begin, sequence)
            blocks = tc.cdiv(end - begin, EVERY)
            for block in tc.range(stripe, blocks, stripes):
                place = batch, head, begin + block * EVERY
                one, other = (_sum_of_parts(x[:, :, :, :end], place) for x in (Outer, Inner))
                r = one - other
                ends = [
                    _at_border(Products, number + at, inside, sequence, head, states)
                    for at, inside, states in (
                        (block, block > 0, before), (block + 1, block + 1 < blocks, args)
                    )
                ]  # fmt: skip
                missed = tc.reduce_vector("sum", r) + ends[1] - ends[0]
                tokens = minimum_of(end - place[2], EVERY).to(f32)
                share = 1.0 - tc.cast(tc.row_index(r), f32) / tokens
                dg = tc.cumsum(r, reverse=True) + ends[1] - share * missed
                tc.store(dG[:, :, :end].at(*place), dg)


@tc.kernel
def checkpoint_products(
    S: gl[f32, "blocks", "H", "R", "F"], dS: gl[f32, "blocks", "H", "R", "F"],
    Products: gl[f32, "blocks", "H", 1], scale: f32,
):  # fmt: skip
    """Products, `scale <S, dS>` of each block, where the scan of dS has no registers to spare."""
    with tc.warpgroup():
        for task in tc.range(tc.cta_id(), S.size(0) * S.size(1), tc.num_ctas()):
            block, head, total = task // S.size(1), task % S.size(1), tc.var(0.0)
            _inner_product(total, block, head, S, dS)
            tc.store(Products[block, head, 0], total.get() * scale)


@tc.kernel
def sum_gates(dG: gl[f32, "B", "H", "T"], dGamma: gl[f32, "H"]):
    """The sum of all gates of each head."""
    with tc.warpgroup():
        for head in tc.range(tc.cta_id(), dG.size(1), tc.num_ctas()):
            total = tc.zeros(rv[f32, SUMMED])
            for batch in tc.range(dG.size(0)):
                for row in tc.range(tc.cdiv(dG.cols, SUMMED)):
                    x = tc.load(dG.at(batch, head, row * SUMMED), rv[f32, SUMMED])
                    tc.fma(x, 1.0, total, out=total)
            tc.store(dGamma[head], tc.reduce_vector("sum", total))
