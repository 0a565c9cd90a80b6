"""Atomic updates: several threads, warps or CTAs combine what they have in one place."""

from __future__ import annotations

from typing import Any

from ..builder import add
from ..errors import LayoutError
from ..ops.atomics import AtomicGlobal, AtomicShared, AtomicVector
from ..tiles import RegTileType
from .values import Registers, SharedTile, SharedVec
from .views import GlobalTile


def atomic_add(destination: Any, source: Any) -> None:
    """`destination += source`, atomic for each element; in no fixed order.

    Args:
        destination: a place in a tensor `A[row, col]` (or `A[rows, col]` with an s32 vector of
            rows, which may repeat), a shared tile or a shared vector.
        source: a register tile or whole vector of its dtype: f32, s32, u32, f16, bf16.

    Elements outside a tensor are dropped. Scope: warpgroup, warp. PTX: `red`.
    """
    _atomic("add", destination, source)


def atomic_min(destination: Any, source: Any) -> None:
    """`destination = min(destination, source)`, of s32 and u32; as `atomic_add`."""
    _atomic("min", destination, source)


def atomic_max(destination: Any, source: Any) -> None:
    """`destination = max(destination, source)`, of s32 and u32; as `atomic_add`."""
    _atomic("max", destination, source)


def _atomic(operation: str, destination: Any, source: Any) -> None:
    name = f"atomic_{operation}"
    if not isinstance(source, Registers):
        raise LayoutError(f"{name}: adds registers, got {source!r}", hint="tc.load(tile)")
    value = source.value
    if isinstance(destination, SharedTile):
        add(AtomicShared(operation, destination.value, value))
    elif isinstance(destination, SharedVec):
        add(AtomicVector(destination.value, operation, value))
    elif isinstance(destination, GlobalTile):
        kind = value.type
        extents = kind.shape if isinstance(kind, RegTileType) else (kind.length,)  # type: ignore[union-attr]
        region = destination.region(*extents)
        add(AtomicGlobal(
            region.coords, region.arg, axes=region.axes, bounds=region.bounds,
            operation=operation, tile=value,
        ))  # fmt: skip
    else:
        raise LayoutError(
            f"{name}: into a place in a tensor, a shared tile or a shared vector, "
            f"got {destination!r}"
        )
