"""A GEMM of groups of rows: what ends or counts mean, checked, and the plan of its tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import DTypeError, LayoutError
from .kernels.groups import plan_groups
from .runtime.arrays import ArrayView, check_address, empty, view


@dataclass(frozen=True)
class Groups:
    """Rows of groups, on the device.

    Args:
        rows: s32 array [E]: the row behind each group, or each group's number of rows.
        ends: which of them.
    """

    rows: Any
    ends: bool

    def shape(self, left: ArrayView, right: ArrayView) -> tuple[int, ...]:
        """The output's shape.

        Raises:
            LayoutError: shapes that do not fit, or rows that do not add up (of a CPU array alone:
                those of a GPU are not waited for).
            DTypeError: rows of another dtype than s32.
        """
        rank, name = (2, "ends") if self.ends else (3, "counts")
        wanted = "a is [M, K]" if self.ends else "a is [E, M, K]"
        if (len(left.shape), len(right.shape)) != (rank, 3):
            raise LayoutError(
                f"grouped_matmul: with {name}, {wanted} and b is [E, K, N], got "
                f"{tuple(left.shape)} and {tuple(right.shape)}"
            )
        rows, groups = view(self.rows), right.shape[0]
        for what, array in (("a", left), ("b", right), (name, rows)):
            check_address("grouped_matmul", what, array)
        if rows.dtype != "s32":
            raise DTypeError(f"grouped_matmul: {name} is s32, got {rows.dtype}")
        if groups == 0:
            raise LayoutError(
                f"grouped_matmul: b has a group at least, got shape {tuple(right.shape)}"
            )
        fits = tuple(rows.shape) == (groups,)
        if not fits or not self.ends and left.shape[0] != groups:
            raise LayoutError(
                f"grouped_matmul: {name} has one element a group, as b (and a) have groups, got "
                f"{tuple(rows.shape)} for a of {tuple(left.shape)} and b of {tuple(right.shape)}"
            )
        if left.shape[-1] != right.shape[-2]:
            raise LayoutError(
                f"grouped_matmul: extent K must agree, got {tuple(left.shape)} and "
                f"{tuple(right.shape)}"
            )
        if rows.device == "cpu":
            self._check_rows(rows.array, left.shape[-2])
        return (*left.shape[:-1], right.shape[-1])

    def _check_rows(self, rows: np.ndarray, m: int) -> None:
        if self.ends and ((np.diff(rows, prepend=0) < 0).any() or rows[-1] != m):
            raise LayoutError(
                f"grouped_matmul: ends ascend from 0 to the rows of a, {m}, got {rows.tolist()}"
            )
        if not self.ends and ((rows < 0) | (rows > m)).any():
            raise LayoutError(
                f"grouped_matmul: counts are 0 to the rows of a group, {m}, got {rows.tolist()}"
            )

    def plan(self, m: int, tile_m: int) -> tuple[Any, Any]:
        """The table of tiles and how many there are, made on the device; see `plan_groups`.

        Args:
            m: rows of a, of one group for counts.
            tile_m: rows of a tile.
        """
        groups = view(self.rows).shape[0]
        slots = groups + m // tile_m if self.ends else groups * -(-m // tile_m)
        table = empty(self.rows, (3, max(slots, 1)), "s32")
        total = empty(self.rows, (1,), "s32")
        plan_groups(self.rows, table, total, m, tile_m=tile_m, ends=self.ends)
        return table, total
