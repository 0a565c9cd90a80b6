"""Tiles of another dtype whose elements stay in their lanes: the columns are permuted instead."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .registers import LANES, Fragment, RegisterLayout


@lru_cache(maxsize=64)
def column_order(held: Fragment, wanted: Fragment) -> tuple[int, ...]:
    """For each column of a period in fragment `wanted`, the column of `held` at its place.

    Of a period, the larger step of both, lane l of four holds as many columns in either; the
    k-th it holds in one stands for the k-th it holds in the other.

    Example: pairs to quads, a period of 16: lane 0 holds columns 0, 1, 8, 9 as pairs and 0, 1, 2,
    3 as quads, so the order starts 0, 1, 8, 9, 2, 3, 10, 11, ...
    """
    period = max(held.step, wanted.step)
    order = [0] * period
    for lane in range(4):
        mine, place = ([c for c in range(period) if c % f.step // f.run == lane]
                       for f in (held, wanted))  # fmt: skip
        for source, target in zip(mine, place, strict=True):
            order[target] = source
    return tuple(order)


@lru_cache(maxsize=256)
def permuted_indices(held: RegisterLayout, wanted: RegisterLayout) -> tuple[int, ...]:
    """For each element index of a thread in `wanted`, the index in `held` of what stands there.

    Along the fragment (columns, or rows in column order), `wanted` holds `held` permuted by
    `column_order`; its extent is a multiple of the order's length.
    """
    order = np.array(column_order(held.fragment, wanted.fragment))
    thread, index = np.indices((LANES, wanted.elements_per_thread))
    row, col = wanted.row_col(thread, index)
    along = col if held.order == "row" else row
    moved = along // len(order) * len(order) + order[along % len(order)]
    owner, place = held.index_of(*((row, moved) if held.order == "row" else (moved, col)))
    assert (owner == thread).all() and (place == place[0]).all(), "nothing leaves its lane"
    return tuple(int(i) for i in place[0])
