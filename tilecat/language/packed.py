"""Tiles that are not of a tensor's own elements: tf32, scales, 4-bit elements with gaps."""

from __future__ import annotations

from ..dtypes import DType, b4x16_p64, f32, tf32, u8, u64
from ..errors import LayoutError
from ..tiles import ScalesType, SharedTileType, SharedVecType
from .regions import Region

PADDED_ELEMS = 128  # of a box of 4-bit elements with gaps (cuda.h, 16U4_ALIGN16B)


def tensor_dtype(kind: SharedTileType | SharedVecType) -> DType:
    """Element type of the tensors that a tile is loaded from."""
    if isinstance(kind, ScalesType):
        return u64
    return {tf32: f32, b4x16_p64: u8}.get(kind.dtype, kind.dtype)


def check_packed(name: str, kind: SharedTileType | SharedVecType, region: Region) -> None:
    """Scales, and 4-bit elements with gaps, are moved by TMA alone.

    Raises:
        LayoutError: it cannot reach them, or has no such box.
    """
    arg = region.arg
    if isinstance(kind, ScalesType) and not region.tma:
        raise LayoutError(
            f"{name}: scales lie packed, at a multiple of 16 bytes, for TMA to move them, got "
            f"{arg.name}: {region.obstacle}",
            hint="tc.formats.pack_scales(scales), viewed as 64-bit words",
        )
    if kind.dtype != b4x16_p64:
        return
    if not region.tma:
        raise LayoutError(
            f"{name}: 4-bit elements get their gaps from TMA, got {arg.name}: {region.obstacle}",
            hint="rows of multiples of 64 bytes",
        )
    if isinstance(kind, SharedVecType) or kind.layout.swizzle_bytes != PADDED_ELEMS:
        raise LayoutError(
            f"{name}: TMA gives gaps to {PADDED_ELEMS} 4-bit elements of a line at a time, got a "
            f"tile {kind}",
            hint=f"a multiple of {PADDED_ELEMS} elements along K",
        )
