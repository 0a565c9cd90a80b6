"""Triangular matrices."""

from __future__ import annotations

from typing import Any

from ..builder import add
from ..errors import DTypeError, LayoutError
from ..ir import Value
from ..ops.triangular import TriangularInverse
from ..ops.triangular_blocks import scratch_bytes
from ..tiles import RegTileType
from .reductions import scratch
from .values import RegTile, SharedTile, registers_of, wrap


def tril_inverse(tile: RegTile, *, accurate: bool = True, room: Any = None) -> RegTile:
    """`(I + A)**-1` of the strictly lower part A of an f32 tile, by substitution in f32.

    The tile is 16, 32 or 64 rows square; a warpgroup's is 64. Its diagonal and what is above are
    not read. Relative error 1e-6 of the largest element, correlated rows included.

    Args:
        tile: A.
        accurate: False halves the products by which a warpgroup joins its blocks of 16 rows, for a
            result that is rounded to 16 bits: relative error 2**-14 of the largest element, of the
            inverse where rows are nearly alike (A near 2) 2**-10.
        room: a shared tile that a warpgroup writes to meanwhile, 9216 bytes at least (13824 where
            accurate); None: shared memory of its own. What else the tile takes is stored behind.

    Scope: warpgroup, warp. PTX: of a warp `shfl.sync.idx` and `fma`; of a warpgroup `fma`,
    `mma.sync` of bf16 and `movmatrix`, and shared memory between three barriers.
    """
    source = registers_of(tile, "tril_inverse")
    if not isinstance(accurate, bool):
        raise DTypeError(f"tril_inverse: accurate is True or False, got {accurate!r}")
    spread = isinstance(source.type, RegTileType) and source.type.warps > 1
    parts = 3 if accurate else 2
    needs = scratch_bytes(parts) if spread else 0
    held = scratch(needs) if room is None else _room(room, needs)
    return wrap(add(TriangularInverse(source, held, parts)).result)  # type: ignore[no-any-return]


def _room(tile: Any, num_bytes: int) -> Value:
    """A shared tile as scratch.

    Raises:
        LayoutError: it is none, or too small, or a warp needs none.
    """
    tile = getattr(tile, "tile", tile)
    size = tile.type.layout.num_bytes if isinstance(tile, SharedTile) else 0
    if not num_bytes or size < num_bytes:
        raise LayoutError(
            f"tril_inverse: room is a shared tile of {num_bytes} bytes or more, of a warpgroup, "
            f"got {tile!r}", hint="leave out room=",
        )  # fmt: skip
    return tile.value  # type: ignore[no-any-return]
