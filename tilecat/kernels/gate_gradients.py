"""Gradients of gates: `dg_t` is the sum, from t on, of `q_i dq_i - k_i dk_i`, and `<S, dS>` last.

A gate decays all that comes after it: with G the running sum of gates, o_i holds exp(G_i - G_j),
so G_i has the gradient q_i dq_i - k_i dk_i, and that of g_t is the sum of those from t on. The last
state S decays with all gates of its sequence.
"""

from __future__ import annotations

import tilecat as tc
from tilecat import f32, gl, rt, rv, s32

LENGTH = 512  # tokens at a time


def _add(sums, sign, tensor, place):
    """Adds all parts of some tokens."""
    batch, head, row = place
    for part in tc.range(tensor.size(2)):
        x = tc.load(tensor.at(batch, head, part, row), rv[f32, LENGTH])
        tc.fma(x, sign, sums, out=sums)


def _inner_product(total, sequence, head, s, ds):
    """Adds `<S, dS>` of a head."""
    for row in tc.range(tc.cdiv(s.rows, 64)):
        for col in tc.range(tc.cdiv(s.cols, 64)):
            a, b = (tc.load(x[sequence, head, row, col], rt[f32, 64, 64]) for x in (s, ds))
            total.set(total.get() + tc.tile_sum(a * b))


@tc.kernel
def gate_gradients(
    Outer: gl[f32, "B", "H", "parts", "T"], Inner: gl[f32, "B", "H", "other", "T"],
    dG: gl[f32, "B", "H", "T"], *args, packed=False, states=False,
):  # fmt: skip
    """Reversed running sums of Outer - Inner, both summed over their parts.

    args: cu_seqlens s32 [sequences + 1], if packed; S and dS, f32 [sequences, H, K, V], if states.
    """
    args = list(args)
    starts = args.pop(0) if packed else None
    heads, sequences = dG.size(1), dG.size(0) if starts is None else starts.size(0) - 1
    with tc.warpgroup():
        for task in tc.range(tc.cta_id(), sequences * heads, tc.num_ctas()):
            sequence, head = task // heads, task % heads
            batch, first, last, total = sequence, 0, dG.cols, tc.var(0.0)
            if packed:
                batch, first = 0, tc.load(starts[sequence], s32)
                last = tc.load(starts[sequence + 1], s32)
            if states:
                _inner_product(total, sequence, head, *args)
            chunks = tc.cdiv(last - first, LENGTH)
            for number in tc.range(chunks):
                place = batch, head, first + (chunks - 1 - number) * LENGTH
                sums = tc.zeros(rv[f32, LENGTH])
                for sign, tensor in ((1.0, Outer), (-1.0, Inner)):
                    _add(sums, sign, tensor[:, :, :, :last], place)
                tc.store(
                    dG[:, :, :last].at(*place), tc.cumsum(sums, reverse=True) + total.get()
                )
                total.set(total.get() + tc.reduce_vector("sum", sums))
