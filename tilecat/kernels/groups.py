"""Groups of rows, each with a B of its own (mixture of experts): which tile is whose.

How many rows a group has is known on the device alone. `plan_groups` gives every tile of rows a
slot in a table, in the order of the groups; the GEMM takes as many tasks as there are slots in use.
"""

from __future__ import annotations

from typing import Any

import tilecat as tc
from tilecat import gl, rt, rv, s32

WIDTH = 64  # slots of a step, and groups


@tc.kernel
def plan_groups(Rows: gl[s32, "E"], Table: gl[s32, 3, "S"], Total: gl[s32, 1], m: s32,
                *, tile_m, ends):  # fmt: skip
    """Table[:, s] = group, first row and last row + 1 of slot s; Total = slots in use.

    Args:
        Rows: with `ends`, the row behind each group, ascending; else each group's number of rows.
        Table: room for all slots, at most E + m / tile_m (E cdiv(m, tile_m) without `ends`).
        Total: slots in use.
        m: rows there are (of a group, without `ends`): what lies beyond is ignored.
        tile_m: rows of a tile, a power of 2.
    """
    tc.require(tile_m & tile_m - 1 == 0, f"plan_groups: tile_m is a power of 2, got {tile_m=}")
    like = rt[s32, WIDTH, WIDTH]
    with tc.warpgroup():
        tile = tc.zeros(like)
        for block in tc.range(tc.cta_id(), tc.cdiv(Table.cols, WIDTH), tc.num_ctas()):
            slot = tc.row_index(tile) + block * WIDTH
            found = [tc.zeros(rv[s32, WIDTH]) for _ in range(3)]
            used = tc.var(0)
            for chunk in tc.range(tc.cdiv(Rows.size(0), WIDTH)):
                first, last = _bounds(Rows, chunk * WIDTH, m, ends)
                tiles = (tc.maximum(last - first, 0) + (tile_m - 1)) >> (tile_m.bit_length() - 1)
                before = tc.cumsum(tiles, exclusive=True) + used
                place = tc.broadcast_row(tc.empty(like), slot) - before
                mine = (place >= 0) & (place < tiles)
                group = tc.broadcast_col(tc.empty(like), tc.col_index(tile) + chunk * WIDTH)
                behind = tc.broadcast_col(tc.empty(like), last)
                values = (group, place * tile_m + first, behind)
                for total, value in zip(found, values, strict=True):
                    total += tc.row_sum(tc.select(mine, value, 0))
                used += tc.reduce_vector("sum", tiles)
            for axis, vector in enumerate(found):
                tc.store(Table[axis, block], vector)
            with tc.when(block < 1):
                tc.store(Total[0], used.get())


def _bounds(Rows: Any, at: Any, m: Any, ends: bool) -> tuple[Any, Any]:
    """First row of each of WIDTH groups, and the row behind its last."""
    kind = rv[s32, WIDTH, "col"]
    here = tc.maximum(tc.minimum(tc.load(Rows.at(at), kind), m), 0)
    if not ends:
        return here - here, here
    return tc.maximum(tc.minimum(tc.load(Rows.at(at - 1), kind), m), 0), here


def in_groups(table: Any, total: Any, cols: Any, *, rows: int) -> tc.Schedule:
    """The tiles of all groups. Coordinates: batch, (group,); row, col; first and last + 1 rows."""
    tasks = tc.grouped(tc.load(total[0], s32), cols, rows=rows)

    def locate(t: Any) -> tuple[tuple[str, Any], ...]:
        coords = dict(tasks.locate(t))
        group, first, last = (tc.load(table[axis, coords["row"]], s32) for axis in range(3))
        return (*coords.items(), ("batch", (group,)), ("first", first), ("last", last))

    return tc.Schedule("groups", tasks.count, locate)
