"""Tiles that CTAs of a cluster share: who loads which part, for whom, and who frees a stage.

The CTAs of a cluster take rows x cols blocks, CTA r the block (r // cols, r mod cols). A tile of A
is the same for those of one row, a tile of B for those of one column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..builder import current
from ..errors import LayoutError
from ..ir import Value
from ..language.clusters import cluster_rank
from ..language.scalars import Scalar, binary

ROW, COL = "row", "col"


@dataclass(frozen=True)
class Share:
    """This CTA's part of a tile's load.

    Args:
        parts: CTAs that need the tile, each loads one part of it.
        part: this one's.
        ranks: the CTAs that receive it, as bits of a mask.
        among: "row", "col" or both: whose consumers must have read a stage before it is filled.
    """

    parts: int
    part: Any
    ranks: Any
    among: frozenset[str]


def _shape() -> tuple[int, int]:
    kernel = current().kernel
    cols = int(kernel.facts.get("cluster_cols", 1))
    return kernel.cluster // cols, cols


def share_of(multicast: bool | str) -> Share:
    """The part that this CTA loads of a tile for its row, its column, or the whole cluster."""
    rows, cols = _shape()
    total = rows * cols
    if not multicast or total == 1:
        return Share(1, 0, 1, frozenset())
    rank = cluster_rank()
    if multicast is True or {ROW: rows, COL: cols}[str(multicast)] == 1:
        return Share(total, rank, (1 << total) - 1, frozenset((ROW, COL)))
    if {ROW: cols, COL: rows}[str(multicast)] == 1:
        return Share(1, 0, 1, frozenset())
    if multicast == ROW:
        mask = binary("shl", (1 << cols) - 1, rank // cols * cols)
        return Share(cols, rank % cols, mask, frozenset((ROW,)))
    mask = binary("shl", sum(1 << row * cols for row in range(rows)), rank % cols)
    return Share(rows, rank // cols, mask, frozenset((COL,)))


def own(coordinate: Scalar, axis: str) -> Scalar:
    """Marks a coordinate of which each row ("row") or column ("col") of a cluster has its own."""
    current().kernel.facts.setdefault("own", {})[coordinate.value] = axis
    return coordinate


def check_same(coords: tuple[Any, ...], multicast: bool | str) -> None:
    """Refuses to load in shares a tile that lies elsewhere for each of those who share it.

    Raises:
        LayoutError: one row's tile is to be that of all rows, or one column's that of all columns.
    """
    others = {ROW: {COL}, COL: {ROW}, True: {ROW, COL}}[multicast]
    marked, seen = current().kernel.facts.get("own", {}), set()
    left = [coord for coord in coords if isinstance(coord, Value)]
    while left:
        value = left.pop()
        if marked.get(value) in others:
            axis = marked[value]
            raise LayoutError(
                f"load_async: {multicast=} sends one tile to CTAs of other block "
                f"{'rows' if axis == ROW else 'columns'}, got a place that depends on the CTA's "
                "own",
                hint=f'multicast="{axis}"',
            )
        if value not in seen:
            seen.add(value)
            left += value.op.operands() if value.op is not None else ()


def num_sharers(among: set[str]) -> int:
    """How many CTAs fill stages here, this one among them."""
    rows, cols = _shape()
    if rows == 1 or cols == 1:
        return rows * cols if among else 1
    return 1 + (cols - 1) * (ROW in among) + (rows - 1) * (COL in among)


def sharers(among: set[str]) -> list[Any]:
    """Ranks of the CTAs whose producers fill stages here, this one among them; empty: no other."""
    if not among:
        return []
    rows, cols = _shape()
    total = rows * cols
    if rows == 1 or cols == 1:
        return list(range(total))
    rank = cluster_rank()
    found: list[Any] = [rank]
    if ROW in among:
        found = [rank // cols * cols + col for col in range(cols)]
    if COL in among:
        found += [(rank + step * cols) % total for step in range(1, rows)]
    return found
