"""Quantisation to 8 bits with scales; codes of narrower floats."""

from __future__ import annotations

from typing import Any

from .. import dtypes
from ..builder import add
from ..dtypes import DType
from ..errors import DTypeError, LayoutError
from ..ops.minifloat import ConvertCodes, Nibbles
from ..tiles import RegTileType
from .functions import cast
from .maps import div, maximum, select
from .reductions import row_absmax, tile_absmax
from .values import RegTile, registers_of, wrap

BLOCK = 128
TINY = 2.0**-100  # a scale for blocks of zeros, whose reciprocal is finite


def quantize(tile: RegTile, dtype: DType, *, per: str = "tile") -> tuple[RegTile, Any]:
    """`(q, scale)` with `q = dtype(tile / scale)`, scale = absmax / largest value of the dtype.

    Args:
        tile: floats.
        dtype: e4m3, e5m2 or s8.
        per: "tile": the scale is a scalar; "row": a row vector; "block": one row vector for each
            128 columns, as a tuple.
    """
    kind = registers_of(tile, "quantize").type
    if not isinstance(kind, RegTileType) or not kind.dtype.is_float:
        raise LayoutError(f"quantize: wanted a register tile of floats, got {kind}")
    if getattr(dtype, "name", None) not in ("e4m3", "e5m2", "s8"):
        raise DTypeError(f"quantize: to e4m3, e5m2 or s8, got {dtype!r}")
    wide = cast(tile, dtypes.f32)
    if per == "tile":
        scale = tile_absmax(wide) * (1.0 / dtype.max_value)
        scale = select(scale > TINY, scale, TINY)
        return cast(div(wide, scale), dtype), scale
    if per == "row":
        rows = maximum(row_absmax(wide) * (1.0 / dtype.max_value), TINY)
        return cast(div(wide, rows), dtype), rows
    if per != "block":
        raise LayoutError(f'quantize: per is "tile", "row" or "block", got {per!r}')
    if kind.order != "row" or kind.cols % BLOCK:
        raise LayoutError(
            f"quantize: blocks are {BLOCK} columns of a row-order tile, got {kind}",
            hint='per="row" takes any width',
        )
    scales = []
    for first in range(0, kind.cols, BLOCK):
        part = wide[:, first : first + BLOCK]
        scales.append(maximum(row_absmax(part) * (1.0 / dtype.max_value), TINY))
        div(part, scales[-1], out=part)
    return cast(wide, dtype), tuple(scales)


def decode(codes: RegTile, dtype: DType) -> RegTile:
    """F32 values of u8 codes of e8m0, e2m1, e2m3 or e3m2, one a byte; exact.

    NaN of e8m0 is its code 255; the others have none.
    """
    return _codes("decode", codes, dtype)


def encode(tile: RegTile, dtype: DType) -> RegTile:
    """U8 codes of a tile of floats in e8m0, e2m1, e2m3 or e3m2, one a byte.

    Rounds to nearest even, saturates, and takes NaN to the largest value; e8m0, a scale, rounds up
    to a power of two of the magnitude and takes NaN to its NaN.
    """
    return _codes("encode", tile, dtype)


def _codes(name: str, tile: RegTile, dtype: DType) -> RegTile:
    op = ConvertCodes(registers_of(tile, name), dtype, name)
    return wrap(add(op).result)  # type: ignore[no-any-return]


def pack4(codes: RegTile) -> RegTile:
    """Two 4-bit codes a byte: half the columns, each lane its own; the first in the low half."""
    return wrap(add(Nibbles(registers_of(codes, "pack4"), "pack4")).result)  # type: ignore[no-any-return]


def unpack4(pairs: RegTile) -> RegTile:
    """The 4-bit codes of a tile of pairs: twice the columns; `pack4` backwards."""
    return wrap(add(Nibbles(registers_of(pairs, "unpack4"), "unpack4")).result)  # type: ignore[no-any-return]
