"""Random tiles and dropout."""

from __future__ import annotations

from typing import Any

from .. import dtypes
from ..builder import add
from ..errors import DTypeError, LayoutError
from ..ops.random import RandomBits
from ..tiles import RegTileType, RegVecType
from .maps import select
from .scalars import operand_of
from .values import RegTile, registers_of, wrap


def random_bits(
    tile: RegTile, seed: Any, *, row: Any = 0, col: Any = 0, offset: Any = 0
) -> RegTile:
    """A u32 tile of random bits in the shape and layout of `tile`, by Philox 4x32-10.

    Element (r, c) depends on (seed, offset, row + r, col + c) alone: the same on every layout, at
    every scope, on every chip.

    Args:
        tile: for its shape and layout; its elements are not read. A plain vector in runs of 4 or 8
            is columns of one row.
        seed: an int or s32 scalar.
        row: position of the tile's first row in the whole.
        col: position of its first column; a multiple of 4.
        offset: another stream of the same seed, e.g. the step of the training.
    """
    return _random(tile, seed, row, col, offset, dtypes.u32)


def uniform(tile: RegTile, seed: Any, *, row: Any = 0, col: Any = 0, offset: Any = 0) -> RegTile:
    """An f32 tile of random numbers in [0, 1), multiples of 2**-24; see `random_bits`."""
    return _random(tile, seed, row, col, offset, dtypes.f32)


def _random(tile: Any, seed: Any, row: Any, col: Any, offset: Any, dtype: Any) -> RegTile:
    kind = registers_of(tile, "random_bits").type
    if not isinstance(kind, RegTileType | RegVecType):
        raise LayoutError(f"random_bits: wanted a register tile or vector, got {kind}")
    numbers = [operand_of(v, "random_bits") for v in (seed, row, col, offset)]
    op = RandomBits(kind.cast(dtype), *numbers)
    return wrap(add(op).result)  # type: ignore[no-any-return]


def dropout(
    tile: RegTile, p: float, seed: Any, *, row: Any = 0, col: Any = 0, offset: Any = 0
) -> RegTile:
    """`x / (1 - p)` with probability 1 - p, else 0; the mask is `uniform(...) >= p`.

    No mask is kept: a backward pass makes the same one from the same numbers.
    """
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p < 1:
        raise DTypeError(f"dropout: p is a number, at least 0 and below 1, got {p!r}")
    if not getattr(getattr(registers_of(tile, "dropout").type, "dtype", None), "is_float", False):
        raise DTypeError(f"dropout: wanted a tile of floats, got {tile!r}")
    kept = uniform(tile, seed, row=row, col=col, offset=offset) >= float(p)
    return select(kept, tile * (1.0 / (1.0 - p)), 0.0)  # type: ignore[no-any-return]
