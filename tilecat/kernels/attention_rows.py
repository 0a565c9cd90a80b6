"""What attention's gradients do for each query, before and after `attention_backward`.

Both kernels move memory: a producer loads blocks of 64 queries ahead, consumers take one each.
"""

from __future__ import annotations

import math
from dataclasses import replace

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, inout, rt, rv, st, sv

from .attention_scores import LOG2_E

T = DTypeVar("T", bf16, f16)
ROWS = 64  # queries of a block
ZEROS = 1024  # elements that one bulk copy sets to 0


def blocks_of(Q, count, tile_q, starts=()):
    """Tasks of `count` blocks of 64 queries: batch, head, and of the first its number and its row.

    And where its sequence ends, and its last block of `tile_q`.

    Args:
        Q: [B, H, Lq, D].
        count: blocks a task.
        tile_q: queries of a block of the main kernel: a multiple of 64, at most count times.
        starts: where sequences of a packed batch begin, s32 [sequences + 1]; or empty. Sequence i
            has the blocks of `tile_q` from starts[i] // tile_q + i on.
    """
    if starts:
        tasks = tc.batched(tc.ragged(starts[0], Q.size(2), chunk=ROWS * count), Q.size(1))
    else:
        tasks = tc.sequence_first(tc.cdiv(Q.size(2), ROWS * count), Q.size(1), Q.size(0))

    def locate(t):
        at = dict(tasks.locate(t))
        if not starts:
            block = at["tile"] * count
            return (("batch", at["batch"]), ("head", at["head"]), ("block", block),
                    ("row", block * ROWS), ("end", Q.size(2)),
                    ("behind", tc.cdiv(Q.size(2), tile_q) * tile_q))  # fmt: skip
        row = at["first"] + at["chunk"] * (count * ROWS)
        block = (at["first"] // tile_q + at["sequence"]) * (tile_q // ROWS) + at["chunk"] * count
        behind = at["first"] + tc.cdiv(at["last"] - at["first"], tile_q) * tile_q
        return (("batch", 0), ("head", at["batch"][0]), ("block", block), ("row", row),
                ("end", at["last"]), ("behind", behind))  # fmt: skip

    return replace(tasks, locate=locate)


@tc.kernel
def attention_delta(O: gl[T, "B", "H", "Lq", "Dv"], dO: gl[T, "B", "H", "Lq", "Dv"],
                    LSE: gl[f32, "B", "H", "Lq"], LSE2: gl[f32, "B", "H", "rows"],
                    Delta: gl[f32, "B", "H", "rows"], Sums: inout[f32, "B", "H", "parts", "part"],
                    *starts, dim, dim_v, part, tile_q=ROWS, consumers=2, sunk=False):  # fmt: skip
    """LSE2 = log2(e) LSE and Delta = rowsum(dO O); zeros in Sums, of whole blocks of `tile_q`.

    Rows beyond Lq, and rows without a key (LSE = -inf), get +inf and 0: their P is 0. If `sunk`,
    two arguments more: sinks [H], and [B, H, blocks] of 64 rows, where sums of P of the sink times
    Delta go; less these is the sink's gradient.
    """
    tc.grid_launch()
    *starts, sinks, shares = starts if sunk else (*starts, None, None)
    tasks = blocks_of(O, consumers, tile_q, starts)
    stages = min(384 // dim_v, 4)  # what shared memory has
    pipe = tc.lcf(consumers=consumers, stages=stages, tasks=tasks, steps=1)
    o, do = (pipe.input(st[O.dtype, ROWS, dim_v], count=consumers) for _ in range(2))
    zeros, fresh = tc.shared(sv[f32, ZEROS], consumers), tc.var(1)
    lse = tc.empty(rv[f32, ROWS])

    @pipe.load
    def _(task, _step):
        for i in range(consumers):
            place = task.batch, task.head, task.row + i * ROWS, 0
            tc.load_async(o[i], O.at(*place))
            tc.load_async(do[i], dO.at(*place))

    @pipe.start
    def _(task):
        zero, first = zeros[pipe.consumer], (task.block + pipe.consumer) * (ROWS * dim // part)
        with tc.when(fresh > 0):
            tc.store(zero, tc.zeros(rv[f32, ZEROS, "plain", 4]))
            tc.sync()
        fresh.set(0)
        row = task.row + pipe.consumer * ROWS
        with tc.when(row < task.behind):
            for i in range(ROWS * dim // ZEROS):
                at = first + i * ZEROS // part, i * ZEROS % part
                tc.store_bulk(Sums.at(task.batch, task.head, *at), zero)
        place = (LSE[:, :, : task.end] if starts else LSE).at(task.batch, task.head, row)
        tc.copy(lse, tc.load(place, rv[f32, ROWS], fill=-math.inf))

    @pipe.compute
    def _(task, _step):
        x, y = (tc.cast(tc.load(tile[pipe.consumer]), f32) for tile in (o, do))
        delta, dead = tc.row_sum(x * y), lse == -math.inf
        with tc.when(task.row + pipe.consumer * ROWS < task.behind):
            place = task.batch, task.head, task.block + pipe.consumer
            tc.store(LSE2[*place], tc.select(dead, math.inf, lse * LOG2_E))
            tc.store(Delta[*place], tc.select(dead, 0.0, delta))
            if sunk:
                sink = tc.load(sinks[task.head], f32) * LOG2_E
                share = tc.select(dead, 0.0, tc.exp2(sink - lse * LOG2_E) * delta)
                tc.store(shares[*place], tc.reduce_vector("sum", share))
        tc.store_wait()


@tc.kernel
def attention_dq(Sums: gl[f32, "B", "H", "parts", "part"], dQ: gl[T, "B", "H", "Lq", "D"],
                 scale: f32, *starts, dim, part, tile_q=ROWS):  # fmt: skip
    """The gradient of Q, scale Sums: in register order, a part the columns of 64 rows."""
    tc.grid_wait()
    width = part // ROWS
    cut = dim // width
    consumers, kind = max(cut, 2), rv[f32, part, "plain", 4]
    tasks = blocks_of(dQ, consumers // cut, tile_q, starts)
    pipe = tc.lcf(consumers=consumers, stages=10 // consumers, tasks=tasks, steps=1)
    sums = pipe.input(sv[f32, kind.length], count=consumers)
    out, dq = pipe.output(st[dQ.dtype, ROWS, width]), tc.empty(rt[f32, ROWS, width])

    @pipe.load
    def _(task, _step):
        for i in range(consumers):
            tc.load_async(sums[i], Sums[task.batch, task.head, task.block * cut + i, 0])

    @pipe.compute
    def _(_task, _step):
        found = tc.load(sums[pipe.consumer], kind)
        tc.copy(dq, tc.from_register_order(found, rt[f32, ROWS, width]))

    @pipe.finish
    def _(task):
        to = dQ[:, :, : task.end, :] if starts else dQ
        row, part = task.row + pipe.consumer // cut * ROWS, pipe.consumer % cut
        out.store(to.at(task.batch, task.head, row, part * width), dq * scale)
