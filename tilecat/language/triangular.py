"""Triangular matrices."""

from __future__ import annotations

from ..builder import add
from ..ops.triangular import SCRATCH_BYTES, TriangularInverse
from ..tiles import RegTileType
from .reductions import scratch
from .values import RegTile, registers_of, wrap


def tril_inverse(tile: RegTile) -> RegTile:
    """`(I + A)**-1` of the strictly lower part A of an f32 tile, by substitution in f32.

    The tile is 16, 32 or 64 rows square; a warpgroup's is 64. Its diagonal and what is above are
    not read. Relative error 1e-6 of the largest element, correlated rows included.

    Scope: warpgroup, warp. PTX: `shfl.sync.idx` and `fma`, and for a warpgroup shared memory
    between two barriers for each 16 rows.
    """
    source = registers_of(tile, "tril_inverse")
    spread = isinstance(source.type, RegTileType) and source.type.warps > 1
    room = scratch(SCRATCH_BYTES if spread else 0)
    return wrap(add(TriangularInverse(source, room)).result)  # type: ignore[no-any-return]
