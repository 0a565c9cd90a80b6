"""Compile-time slices of tiles."""

from __future__ import annotations

from typing import Any

from ..errors import LayoutError


def spans_of(
    name: str, index: Any, shape: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """First and extent of each axis of a compile-time slice `[a:b, c:d]`.

    Raises:
        LayoutError: not two slices of ints, or an empty one.
    """
    items = index if isinstance(index, tuple) else (index,)
    found = []
    for item, extent in zip((*items, slice(None)), shape, strict=False):
        bounds = (item.start, item.stop, item.step) if isinstance(item, slice) else (item,)
        known = isinstance(item, slice) and all(b is None or type(b) is int for b in bounds)
        first, last, step = item.indices(extent) if known else (0, 0, 0)
        if step != 1 or first >= last or len(items) > 2:
            raise LayoutError(
                f"slice: a part of a {name} is rows and columns, compile-time and not empty, "
                f"got {index!r} of {shape[0]} x {shape[1]}",
                hint="tile[:, 32:64]",
            )
        found.append((first, last - first))
    return found[0], found[1]
