"""Tile and vector types: where a value lives, its dtype, shape and layout.

`gl[bf16, "M", "K"]`, `st[bf16, 64, 64]`, `sv[f32, 64]`, `rt[f32, 64, 256]`, `rv[f32, 64]`,
`tt[f32, 128, 256]` and `sc[e8m0, 128, 4]` build the types of global layouts, shared tiles and
vectors, register tiles and vectors, tiles of tensor memory, and scales of operands.
"""

from __future__ import annotations

from .builders import gl, inout, rt, rv, sc, st, sv, tt
from .types import (
    SCALE_CHUNK_BYTES,
    SCALE_CHUNK_COLUMNS,
    SCALE_ROWS,
    SCALE_WORD,
    SUMS,
    TENSOR_OPERANDS,
    BarrierType,
    BytesType,
    GlobalType,
    PeerType,
    RegTileType,
    RegVecType,
    ScalarType,
    ScalesType,
    SharedTileType,
    SharedVecType,
    TensorScalesType,
    TensorTileType,
    TileType,
    place_type,
)

__all__ = [
    "SCALE_CHUNK_BYTES", "SCALE_CHUNK_COLUMNS", "SCALE_ROWS", "SCALE_WORD",
    "BarrierType", "BytesType", "GlobalType", "PeerType", "RegTileType", "RegVecType",
    "ScalarType", "ScalesType", "SharedTileType", "SharedVecType", "TensorScalesType",
    "SUMS", "TENSOR_OPERANDS", "TensorTileType", "TileType", "gl", "inout", "place_type", "rt",
    "rv", "sc", "st", "sv", "tt",
]  # fmt: skip
