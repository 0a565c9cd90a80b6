"""Sums of a tile whose K several CTAs share, added in a fixed order: equal bits each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tilecat as tc
from tilecat import rt

ROWS = 64  # of a consumer's tile
PANEL = 128  # columns of partial sums that are read at a time: 64 registers a thread


def slots_of(shared: tuple[Any, ...], cols: int, places: int) -> Any:
    """How many slots of a schedule sums and flags have room for; none if sums are too narrow.

    Args:
        shared: sums and flags, as of `whole_product`.
        cols: of a tile.
        places: of a slot.
    """
    tc.require([getattr(x, "rank", 0) for x in shared] == [2, 1],
               "matmul: with parts of K come sums, [64 places, tile_n], and flags, [places], got "
               f"{', '.join(map(repr, shared)) or 'none'}",
               hint="tc.matmul brings its own")  # fmt: skip
    sums, flags = shared
    room = tc.minimum(flags.size(0), sums.rows // ROWS) // places
    return tc.select(sums.cols < cols, 0, room)


@contextmanager
def whole_product(
    acc: Any, shared: tuple[Any, ...], task: Any, consumer: Any, consumers: int, cluster: int
) -> Iterator[None]:
    """Around the end of a task: what stands inside runs where acc has the sums of all of K.

    A task that does not end its tile leaves its sums in memory, which L2 holds, and raises a flag.
    The one that ends it waits for the flags of all, adds, and takes them down. So flags are zeroed
    once, before the first launch of all, and sums never; launches that share them follow one
    another.

    Args:
        acc: a consumer's sums, 64 x tile_n.
        shared: sums, inout [64 places, tile_n] of acc's dtype; flags, inout s32 [places]: a place
            for each slot of the schedule, CTA of a cluster and consumer. Nothing where tasks are
            whole.
        task: of `tc.split_k` or `tc.stream_k`.
        consumer: number of this one.
        consumers: of a CTA.
        cluster: CTAs.
    """
    if not shared:
        yield
        return
    sums, flags = shared
    rows, cols = acc.type.shape
    places = cluster * consumers  # of a slot
    rank = tc.cluster_rank() * consumers if cluster > 1 else 0
    mine = task.slot * places + rank + consumer
    with tc.when(~task.ends):
        tc.store(sums[mine, 0], acc)
        tc.pass_turn(flags.at(mine), 0)
    with tc.when(task.ends):
        some = task.partials > 0
        with tc.when(some), tc.turn(flags.at(mine), 1, turns=2, count=task.partials, step=places):
            for i in tc.range(task.partials):
                for first in range(0, cols, PANEL):
                    stop = min(first + PANEL, cols)
                    at = sums.at((mine + i * places) * rows, first)
                    acc[:, first:stop] += tc.load(at, rt[acc.dtype, rows, stop - first])
        yield
