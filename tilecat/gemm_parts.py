"""What parts of K need besides the operands: places for partial sums, and flags."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .runtime.arrays import view
from .runtime.workspace import workspace

ROWS = 64  # of a consumer's tile


@dataclass(frozen=True)
class Places:
    """Places for the partial sums of one product.

    Args:
        count: how many; 0 where tiles are whole.
        cols: of each, with 64 rows.
        dtype: f32, or s32 of s8.
    """

    count: int
    cols: int
    dtype: str

    def arguments(self, like: Any) -> tuple[Any, ...]:
        """The kernel's further arguments, on the device and for the current stream of an array."""
        return workspace(like, self.count, ROWS, self.cols, self.dtype) if self.count else ()


def places_of(arrays: tuple[Any, Any, Any], params: Mapping[str, Any], sms: int) -> Places:
    """The places that the kernel's tasks have (`kernels.split`).

    Args:
        arrays: A, B and C as the kernel gets them.
        params: of the kernel.
        sms: CTAs of its grid.
    """
    *planes, m, n = view(arrays[2]).shape
    cluster, parts = params.get("cluster", 1), params.get("split_k", 1)
    high, wide = cluster if isinstance(cluster, tuple) else (cluster, 1)
    slots = 0
    if params.get("stream_k", 1) > 1:
        slots = -(-sms // (high * wide))
    elif parts > 1:
        rows, cols = -(-m // (params["tile_m"] * high)), -(-n // (params["tile_n"] * wide))
        slots = math.prod(planes) * rows * cols * (parts - 1)
    dtype = "s32" if view(arrays[0]).dtype == "s8" else "f32"
    return Places(slots * high * wide * params["tile_m"] // ROWS, params["tile_n"], dtype)
