"""What attention's gradients do for each query, before and after `attention_backward`."""

from __future__ import annotations

import math

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, inout, rt, rv, st, sv

from .attention_scores import LOG2_E

T = DTypeVar("T", bf16, f16)
ROWS = 64  # queries of a block
COLS = 32  # of O and dO that are multiplied at a time


@tc.kernel
def attention_delta(O: gl[T, "B", "H", "Lq", "Dv"], dO: gl[T, "B", "H", "Lq", "Dv"],
                    LSE: gl[f32, "B", "H", "Lq"], LSE2: gl[f32, "B", "H", "rows"],
                    Delta: gl[f32, "B", "H", "rows"], Sums: inout[f32, "B", "H", "elems"],
                    *, dim, dim_v, warpgroups=4):  # fmt: skip
    """LSE2 = log2(e) LSE and Delta = rowsum(dO O); zeros in Sums. `rows` is a multiple of 64.

    Rows beyond Lq, and rows without a key (LSE = -inf), get +inf and 0: their P is 0.
    """
    heads, blocks = O.size(1), Delta.size(2) // ROWS
    with tc.warpgroup(warpgroups) as number:
        zeros = tc.shared(sv[f32, ROWS * dim])
        for i in range(dim // 16):
            tc.store(zeros.part(i, dim // 16), tc.zeros(rv[f32, 1024, "plain"]))
        tc.cta_sync()
        first, step = tc.cta_id() * warpgroups + number, tc.num_ctas() * warpgroups
        for task in tc.range(first, O.size(0) * heads * blocks, step):
            plane = task // blocks
            block, batch = task - plane * blocks, plane // heads
            head = plane - batch * heads
            tc.store_bulk(Sums.at(batch, head, block * (ROWS * dim)), zeros)
            delta = tc.zeros(rv[f32, ROWS, "row", "partial"])
            for part in range(dim_v // COLS):
                o, do = (tc.load(x[batch, head, block, part], rt[O.dtype, ROWS, COLS])
                         for x in (O, dO))  # fmt: skip
                delta += tc.row_sum(tc.cast(o, f32) * tc.cast(do, f32), partial=True)
            lse = tc.load(LSE[batch, head, block], rv[f32, ROWS], fill=-math.inf)
            dead = lse == -math.inf
            tc.store(LSE2[batch, head, block], tc.select(dead, math.inf, lse * LOG2_E))
            tc.store(Delta[batch, head, block], tc.select(dead, 0.0, tc.total(delta)))
        tc.store_wait(read=False)


@tc.kernel
def attention_dq(Sums: gl[f32, "B", "H", "elems"], dQ: gl[T, "B", "H", "Lq", "D"], scale: f32,
                 *, dim, cut=2, warpgroups=4):  # fmt: skip
    """The gradient of Q, scale Sums: in register order, `cut` parts of a block's columns."""
    heads, blocks, width = dQ.size(1), tc.cdiv(dQ.size(2), ROWS), dim // cut
    kind = rv[f32, ROWS * width, "plain"]
    with tc.warpgroup(warpgroups) as number:
        room = tc.shared(st[dQ.dtype, ROWS, width], warpgroups)
        first, step = tc.cta_id() * warpgroups + number, tc.num_ctas() * warpgroups
        for task in tc.range(first, dQ.size(0) * heads * blocks * cut, step):
            place, part = task // cut, task % cut
            plane = place // blocks
            block, batch = place - plane * blocks, plane // heads
            head = plane - batch * heads
            sums = tc.load(Sums.at(batch, head, (block * cut + part) * kind.length), kind)
            tc.store_wait()
            tc.sync()
            dq = tc.from_register_order(sums, rt[f32, ROWS, width]) * scale
            tc.store(room[number], tc.cast(dq, dQ.dtype))
            tc.sync()
            move = tc.store_async if dQ.tma_stores else tc.copy
            move(dQ[batch, head, block, part], room[number])
        tc.store_wait()
