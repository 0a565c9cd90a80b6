"""Sums of a product whose K several CTAs share, in a fixed order: equal bits each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tilecat as tc
from tilecat import rt

PANEL = 64  # columns that are read back at a time: 32 registers a thread


@contextmanager
def whole_product(
    acc: Any, shared: tuple[Any, ...], task: Any, row: Callable[[], Any], parts: int
) -> Iterator[None]:
    """Around the end of a task: what stands inside runs where acc has the sums of all parts.

    Part after part adds its sums to those in memory, which L2 holds; the last reads them back. It
    leaves its turn at 0, so that turns are zeroed once, before the first launch of all, and sums
    never.

    Args:
        acc: a consumer's sums, 64 x tile_n.
        shared: sums, inout [..., M, N] of acc's dtype; turns, inout s32 [..., M / 64, N / tile_n],
            as many as there are tiles of consumers, also of CTAs of a cluster beyond M or N.
            Nothing without parts.
        task: of `tc.split_k`.
        row: gives the block row of 64.
        parts: of K; 1 for a task that has all of it.
    """
    if parts == 1:
        yield
        return
    sums, turns = shared
    place = (*task.batch, row(), task.col)
    rows, cols = acc.type.shape
    with tc.turn(turns.at(*place), task.part, turns=parts):
        with tc.when(task.part < 1):
            tc.store(sums[*place], acc)
        with tc.when(task.part > 0):
            tc.atomic_add(sums[*place], acc)
        with tc.when(task.part == parts - 1):
            for first in range(0, cols, PANEL):
                stop = min(first + PANEL, cols)
                at = (*task.batch, place[-2] * rows, place[-1] * cols + first)
                acc[:, first:stop] = tc.load(sums.at(*at), rt[acc.dtype, rows, stop - first])
    with tc.when(task.part == parts - 1):
        yield
