"""Triangular matrices."""

from __future__ import annotations

from ..builder import add
from ..errors import DTypeError
from ..ops.triangular import TriangularInverse
from ..ops.triangular_blocks import scratch_bytes
from ..tiles import RegTileType
from .reductions import scratch
from .values import RegTile, registers_of, wrap


def tril_inverse(tile: RegTile, *, accurate: bool = True) -> RegTile:
    """`(I + A)**-1` of the strictly lower part A of an f32 tile, by substitution in f32.

    The tile is 16, 32 or 64 rows square; a warpgroup's is 64. Its diagonal and what is above are
    not read. Relative error 1e-6 of the largest element, correlated rows included.

    Args:
        tile: A.
        accurate: False halves the products by which a warpgroup joins its blocks of 16 rows, for a
            result that is rounded to 16 bits: relative error 2**-14 of the largest element, of the
            inverse where rows are nearly alike (A near 2) 2**-10.

    Scope: warpgroup, warp. PTX: of a warp `shfl.sync.idx` and `fma`; of a warpgroup `fma`,
    `mma.sync` of bf16 and `movmatrix`, and shared memory between three barriers.
    """
    source = registers_of(tile, "tril_inverse")
    if not isinstance(accurate, bool):
        raise DTypeError(f"tril_inverse: accurate is True or False, got {accurate!r}")
    spread = isinstance(source.type, RegTileType) and source.type.warps > 1
    parts = 3 if accurate else 2
    room = scratch(scratch_bytes(parts) if spread else 0)
    return wrap(add(TriangularInverse(source, room, parts)).result)  # type: ignore[no-any-return]
