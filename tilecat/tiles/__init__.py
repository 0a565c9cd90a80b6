"""Tile and vector types: where a value lives, its dtype, shape and layout.

`gl[bf16, "M", "K"]`, `st[bf16, 64, 64]`, `sv[f32, 64]`, `rt[f32, 64, 256]`, `rv[f32, 64]` and
`tt[f32, 128, 256]` build the types of global layouts, shared tiles and vectors, register tiles and
vectors, and tiles of tensor memory.
"""

from __future__ import annotations

from .builders import gl, inout, rt, rv, st, sv, tt
from .types import (
    BarrierType,
    BytesType,
    GlobalType,
    PeerType,
    RegTileType,
    RegVecType,
    ScalarType,
    SharedTileType,
    SharedVecType,
    TensorTileType,
    TileType,
    place_type,
)

__all__ = [
    "BarrierType", "BytesType", "GlobalType", "PeerType", "RegTileType", "RegVecType",
    "ScalarType", "SharedTileType", "SharedVecType", "TensorTileType", "TileType", "gl", "inout",
    "place_type", "rt", "rv", "st", "sv", "tt",
]  # fmt: skip
