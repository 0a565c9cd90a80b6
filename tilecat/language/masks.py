"""Masks of register tiles: by rows, by columns, along diagonals; each writes in place.

The value that masked elements take is a number or a run-time scalar of the tile's kind; limits and
offsets are ints or run-time s32 scalars, and may lie anywhere. For masks of any other form,
`tc.select(condition, x, value)` with conditions made of `tc.row_index` and `tc.col_index`.
"""

from __future__ import annotations

from typing import Any

from ..builder import add
from ..errors import LayoutError
from ..ops.masks import Mask
from .scalars import binary, operand_of
from .values import RegTile, registers_of


def _mask(
    name: str, tile: RegTile, of: str, limit: Any, value: Any, *, below: bool = False
) -> RegTile:
    target = registers_of(tile, name)
    number = operand_of(value, name)
    if type(number) is int and getattr(getattr(target.type, "dtype", None), "is_float", False):
        number = float(number)
    add(Mask(target, operand_of(limit, name), number, of, below, name))
    return tile


def mask_cols(tile: RegTile, limit: Any, value: Any) -> RegTile:
    """`tile[:, c] = value` for `c >= limit`. Scope: warpgroup, warp."""
    return _mask("mask_cols", tile, "col", limit, value)


def mask_rows(tile: RegTile, limit: Any, value: Any) -> RegTile:
    """`tile[r, :] = value` for `r >= limit`: a length mask of rows."""
    return _mask("mask_rows", tile, "row", limit, value)


def right_fill(tile: RegTile, col: Any, value: Any = 0) -> RegTile:
    """`tile[:, c] = value` for `c >= col`."""
    return _mask("right_fill", tile, "col", col, value)


def left_fill(tile: RegTile, col: Any, value: Any = 0) -> RegTile:
    """`tile[:, c] = value` for `c < col`."""
    return _mask("left_fill", tile, "col", col, value, below=True)


def upper_fill(tile: RegTile, row: Any, value: Any = 0) -> RegTile:
    """`tile[r, :] = value` for `r < row`."""
    return _mask("upper_fill", tile, "row", row, value, below=True)


def lower_fill(tile: RegTile, row: Any, value: Any = 0) -> RegTile:
    """`tile[r, :] = value` for `r >= row`."""
    return _mask("lower_fill", tile, "row", row, value)


def tril(tile: RegTile, diagonal: Any = 0, value: Any = 0) -> RegTile:
    """`tile[r, c] = value` for `c > r + diagonal`: keeps the lower triangle."""
    return _mask("tril", tile, "col - row", binary("add", diagonal, 1), value)


def triu(tile: RegTile, diagonal: Any = 0, value: Any = 0) -> RegTile:
    """`tile[r, c] = value` for `c < r + diagonal`: keeps the upper triangle."""
    return _mask("triu", tile, "col - row", diagonal, value, below=True)


def make_causal(
    tile: RegTile,
    value: Any = float("-inf"),
    *,
    row: Any = 0,
    col: Any = 0,
    transposed: bool = False,
) -> RegTile:
    """Masks scores of keys after their query: `tile[r, c] = value` for `col + c > row + r`.

    Args:
        tile: scores, one row a query; `transposed`: one row a key.
        value: what masked scores become.
        row: position of the tile's first row in the sequence.
        col: position of its first column.
        transposed: rows are keys, so `row + r > col + c` is masked.
    """
    distance = binary("sub", row, col)
    if not isinstance(transposed, bool):
        raise LayoutError(f"make_causal: transposed is True or False, got {transposed!r}")
    if transposed:
        return _mask("make_causal", tile, "col - row", distance, value, below=True)
    return _mask("make_causal", tile, "col - row", binary("add", distance, 1), value)


def make_window(
    tile: RegTile, left: Any, right: Any, value: Any = float("-inf"), *, row: Any = 0, col: Any = 0
) -> RegTile:
    """Keeps the keys of a window: from `left` before the query to `right` after it.

    `tile[r, c] = value` unless `-left <= (col + c) - (row + r) <= right`.
    """
    distance = binary("sub", row, col)
    _mask("make_window", tile, "col - row", binary("sub", distance, left), value, below=True)
    limit = binary("add", binary("add", distance, right), 1)
    return _mask("make_window", tile, "col - row", limit, value)
