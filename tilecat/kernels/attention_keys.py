"""Blocks of keys: in which order, which blocks of queries see them, and their scores."""

from __future__ import annotations

from dataclasses import replace

import tilecat as tc
from tilecat import st

from ..language.scalars import minimum_of, select
from ..language.values import RegTile
from ..pipeline.scheduler import Task
from .attention_rows import ROWS
from .attention_scores import maximum_of
from .attention_scores import packed as packed_tasks
from .score_mods import At

FEW = 32  # queries whose scores functions change at a time: all that they compute takes registers
SPILLS = 1 << 10  # bytes a thread where they are few, and still compute more than registers hold
L2_BYTES = 32 << 20  # of Q, dO and dQ to work on at a time; an H200 has 60 MB (h200-peers.md)


def scores(s, mods, sight, place, masked, apart):
    """Makes scores of products at (batch, head, query, key); their slopes, and place.

    Slopes are those of the soft cap and of the step behind it, or with `apart` false 1.0 and their
    product: numbers, or tiles.
    """
    *_, row, col = place
    at = At(s, *place, row + sight.first_query, col + sight.first_key, transposed=True)
    slopes = None
    if mods.change or mods.mods.mask is not None:
        slopes = changed(s, mods, at, apart)
    if masked:
        sight.mask(s.T, row, col, ends=True)
    return slopes or (1.0, 1.0), at


def changed(s, mods, at, apart):
    """Scores of products, of few queries at a time; their slopes."""
    found = []
    for first in range(0, s.type.cols, FEW):
        part = s[:, first : first + FEW]
        here = replace(at, scores=part, row=at.row + first, first_row=at.first_row + first)
        of_cap, of_step = mods.slopes(part, here)
        found.append((of_cap, of_step) if apart else (1.0, of_cap * of_step))
        mods.hide(part, here)
    return tuple(whole(s.type, parts) for parts in zip(*found, strict=True))


def whole(kind, parts):
    """A tile of its parts' slopes; a number that is known while tracing stays one."""
    if isinstance(parts[0], int | float):
        return parts[0]
    slope = tc.empty(kind)
    for i, part in enumerate(parts):
        into = slope[:, i * FEW : (i + 1) * FEW]
        if isinstance(part, RegTile):
            tc.copy(into, part)
        else:  # a number or a vector of run time, which another part of the tile has others of
            tc.fill(into, 1.0)
            tc.mul(into, part, out=into)
    return slope


def times(tile, slope):
    """A tile times a slope, in place; 1 takes no time."""
    if isinstance(slope, RegTile) or slope != 1:
        tc.mul(tile, slope, out=tile)


def make_few(work, task, at, masked):
    """Makes dS of S under way, of few queries at a time: no slopes of others take registers.

    Args:
        work: a consumer of `attention_backward`, and what else its `make_all` is given.
    """
    tc.mma_ABt(work.dp, work.v[work.pipe.consumer], work.do, accumulate=False)
    tc.mma_wait()
    *plane, row, col = work.place(task, at)
    tiles = work.with_each(work.s, work.lse, FEW), work.with_each(work.dp, work.delta, FEW)
    for number, ((s, lse), (dp, delta)) in enumerate(zip(*tiles, strict=True)):
        place = *plane, row + number * FEW, col
        (of_cap, of_step), here = scores(s, work.mods, work.sight.of(task), place, masked, True)
        tc.exp2(tc.fma(s, work.mods.unit, -lse, out=s), out=s)
        tc.mul(dp - delta, s, out=dp)
        times(dp, of_step)
        if work.biased is not None:
            work.biased(here, tile=dp)
        times(dp, of_cap)
    tc.cast(work.dp, work.p.dtype, out=work.ds)


def tasks_of(order, sight, K, group, sizes, starts):
    """Blocks of keys, and which blocks of queries see them; those of a sequence if packed.

    Coordinates: batch, head, tile, first and stop (blocks of the sequence's queries), block (number
    of its first), and those of `Sight.of`.

    Args:
        order: "sequence" first, or "longest".
        sight: which keys queries see.
        K: [B, Hkv, Lk, D].
        group: heads that share keys.
        sizes: columns of a tile, keys of a block, queries of a block.
        starts: of the sequences of queries and of keys, or empty.
    """
    dim, tall, rows = sizes
    tiles, planes = tc.cdiv(K.size(2), tall), (K.size(1), K.size(0))
    if starts:
        tasks = packed_tasks(starts[1], starts[0], K.size(2), K.size(1), tall)
    elif order == "sequence":
        tasks = tc.sequence_first(tiles, *planes)
    else:
        plane = sight.queries * (group * 8 * dim)  # bytes of Q, dO and sums of dQ
        tasks = tc.longest_first(tiles, *planes, planes=maximum_of(L2_BYTES // plane, 1))

    def locate(t):
        at = {**dict(tasks.locate(t)), "block": 0}
        if starts:  # of keys and queries `packed` has exchanged roles
            at.update(keys=at["queries"], queries=at["keys"], first_key=at["first_query"],
                      first_query=at["first_key"])  # fmt: skip
            at["block"] = at["first_query"] // rows + at["sequence"]
        elif order != "sequence":
            at["tile"] = tiles - 1 - at["tile"]  # most queries see the first keys
        own, first = sight.of(Task(t, tuple(at.items()))), at["tile"] * tall
        start, stop = own.seen_by(first, minimum_of(first + tall, own.keys), rows)
        stop = select(first < own.keys, stop, start)
        return (*at.items(), ("first", start), ("stop", stop), ("steps", (stop - start) * group))

    return replace(tasks, locate=locate)


def parts_of(dim, rows, consumers):
    """In how many parts the columns of 64 rows of dQ are made, for blocks of `rows` queries."""
    return max(dim // ROWS, consumers * ROWS // rows, 1)


def keys_tile(dtype, dim, parts):
    """A tile of 64 keys, whose columns are cut in parts of whole panels, as wide as can be."""
    panel = next(cols for cols in (64, 32, 16) if dim // parts % cols == 0)
    return st[dtype, ROWS, dim, "row", panel * dtype.nbytes]


def whole_blocks(sight, task, tall, rows):
    """Blocks of queries that see all keys of the task, or those all but the last."""
    own, first = sight.of(task), task.tile * tall
    low, end = own.seen_whole_by(first, first + tall, rows)
    low = minimum_of(maximum_of(low, task.first), task.stop)
    inner = select(own.keys < first + tall, task.stop, low)
    return inner, maximum_of(minimum_of(end, task.stop), inner)


def ranges_of(sight, task, tall, rows, changed):
    """Of a task's blocks of queries: first, that behind the last, whether keys are hidden.

    Where functions change scores and there is a left edge it is one loop, all of it masked: of
    three, registers would hold what leads them too.
    """
    if sight.edges.left and changed:
        return ((task.first, task.stop, True),)
    inner, outer = whole_blocks(sight, task, tall, rows)
    ranges = ((task.first, inner, True), (inner, outer, False), (outer, task.stop, True))
    return ranges[: 3 if sight.edges.left else 2]
