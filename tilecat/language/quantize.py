"""Quantisation to 8 bits with scales; codes of narrower floats."""

from __future__ import annotations

from typing import Any

from .. import dtypes
from ..builder import add
from ..dtypes import DType
from ..errors import DTypeError, LayoutError
from ..ops.minifloat import GROUPS, ConvertCodes, PackCodes, laid_out
from ..tiles import RegTileType
from .functions import cast
from .maps import absolute, div, maximum, mul, select
from .reductions import row_absmax, row_max, tile_absmax
from .values import RegTile, RegVec, apply_map, registers_of, wrap

BLOCK = 128
MX_BLOCK, NVFP4_BLOCK = 32, 16
# Of the largest value of each element type (OCP Microscaling Formats 1.0, section 5.3).
LARGEST_EXPONENT = {"e4m3": 8, "e5m2": 15, "e2m3": 2, "e3m2": 4, "e2m1": 2}
TINY = 2.0**-100  # a scale for blocks of zeros, whose reciprocal is finite


def quantize(tile: RegTile, dtype: DType, *, per: str = "tile") -> tuple[RegTile, Any]:
    """`(q, scale)` with `q = dtype(tile / scale)`, scale = absmax / largest value of the dtype.

    Args:
        tile: floats.
        dtype: e4m3, e5m2 or s8.
        per: "tile": the scale is a scalar; "row": a row vector; "block": one row vector for each
            128 columns, as a tuple; "square": one scalar for each 128 columns of 128 rows, as a
            tuple.
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
    if per not in ("block", "square"):
        raise LayoutError(f'quantize: per is "tile", "row", "block" or "square", got {per!r}')
    _check_blocks("quantize", kind, BLOCK)
    if per == "square" and kind.rows != BLOCK:
        raise LayoutError(
            f"quantize: a square block has {BLOCK} rows, got {kind}",
            hint='per="block" has a scale for each row',
        )
    wide, scales = _copy(tile), []
    for first in range(0, kind.cols, BLOCK):
        part = wide[:, first : first + BLOCK]
        top = row_absmax(part) if per == "block" else tile_absmax(part)
        scale = top * (1.0 / dtype.max_value)
        scales.append(maximum(scale, TINY) if per == "block" else select(scale > TINY, scale, TINY))
        div(part, scales[-1], out=part)
    return cast(wide, dtype), tuple(scales)


def _check_blocks(name: str, kind: Any, block: int) -> None:
    if kind.order != "row" or kind.cols % block:
        raise LayoutError(
            f"{name}: blocks are {block} columns of a row-order tile, got {kind}",
            hint='tc.quantize(x, dtype, per="row") takes any width',
        )


# ---- microscaling: a scale for each few columns


def quantize_mx(tile: RegTile, dtype: DType) -> tuple[RegTile, tuple[Any, ...]]:
    """`(q, scales)` in an MX format: one power of two for each row and 32 columns.

    A scale is the largest power of two up to the block's absmax, over that of the dtype (OCP
    Microscaling Formats 1.0, section 6.3); elements round to nearest even and saturate. A block
    with a NaN or an infinity has the scale NaN (as torchao's `to_mx` has it).

    Args:
        tile: floats in row order, of a multiple of 32 columns.
        dtype: e4m3, e5m2 (MXFP8), e2m3, e3m2 (MXFP6) or e2m1 (MXFP4).

    Returns:
        q: a tile of the dtype, or its u8 codes of 4- and 6-bit types; scales: f32 row vectors, one
        for each 32 columns. `tc.scale_codes` makes the bytes that are stored.
    """
    if getattr(dtype, "name", None) not in LARGEST_EXPONENT:
        raise DTypeError(f"quantize_mx: to {', '.join(LARGEST_EXPONENT)}, got {dtype!r}")
    wide = _wide("quantize_mx", tile, MX_BLOCK)
    least, over = 2.0**-127, 2.0 ** -LARGEST_EXPONENT[dtype.name]
    scales = []
    for first in range(0, wide.type.cols, MX_BLOCK):
        part = wide[:, first : first + MX_BLOCK]
        scale = apply_map("power_of_two", _absmax(part)) * over
        scales.append(maximum(scale, least, nan=True))
        div(part, scales[-1], out=part, accurate=True)
    return _narrowed(wide, dtype), tuple(scales)


def quantize_nvfp4(tile: RegTile, tensor_scale: Any = None) -> tuple[RegTile, tuple[Any, ...], Any]:
    """`(codes, scales, tensor_scale)` in NVFP4: e2m1, an e4m3 scale for each row and 16 columns.

    `x = e2m1 * scale * tensor_scale`; a scale is the block's absmax / 6 / tensor_scale, at least
    2**-6 (the smallest normal e4m3), rounded to e4m3; NaN where the block has a NaN.

    Args:
        tile: floats in row order, of a multiple of 16 columns.
        tensor_scale: an f32 scalar; None for the tile's absmax / (448 * 6).

    Returns:
        codes: u8, one a byte; scales: f32 row vectors of e4m3 values, one for each 16 columns.
    """
    wide = _wide("quantize_nvfp4", tile, NVFP4_BLOCK)
    if tensor_scale is None:
        whole = tile_absmax(wide) * (1.0 / (448 * 6))
        tensor_scale = select(whole > TINY, whole, TINY)
    scales = []
    for first in range(0, wide.type.cols, NVFP4_BLOCK):
        part = wide[:, first : first + NVFP4_BLOCK]
        scale = div(_absmax(part) * (1.0 / 6), tensor_scale, accurate=True)
        scales.append(apply_map("to_e4m3", maximum(scale, 2.0**-6, nan=True)))
        div(part, scales[-1] * tensor_scale, out=part, accurate=True)
    return encode(wide, dtypes.e2m1), tuple(scales), tensor_scale


def dequantize(q: RegTile, scales: tuple[Any, ...], dtype: DType | None = None) -> RegTile:
    """F32 `q * scale`, block by block: the inverse of `quantize_mx`, `quantize_nvfp4`, `quantize`.

    Args:
        q: a tile, or u8 codes.
        scales: one for each equal number of columns: row vectors or scalars.
        dtype: of u8 codes: e2m1, e2m3 or e3m2.
    """
    wide = cast(q, dtypes.f32) if dtype is None or dtype == q.dtype else decode(q, dtype)
    if not isinstance(scales, tuple) or not scales or wide.type.cols % len(scales):
        raise LayoutError(
            f"dequantize: scales is a tuple, one for each equal part of the columns, got {scales!r}"
        )
    if len(scales) == 1:
        return wide * scales[0]
    _check_blocks("dequantize", wide.type, block := wide.type.cols // len(scales))
    wide = _copy(wide)
    for index, scale in enumerate(scales):
        part = wide[:, block * index : block * (index + 1)]
        mul(part, scale, out=part)
    return wide


def scale_codes(scales: RegVec) -> RegVec:
    """S32 codes of a vector of powers of two in e8m0: 127 more than the exponent.

    `tc.store` takes them to u8 memory; `tc.load` of u8 memory into an s32 vector brings them back
    for `tc.scale_values`.
    """
    return cast(  # type: ignore[return-value]
        apply_map("exponent", _vector("scale_codes", scales, dtypes.f32)), dtypes.s32
    )


def scale_values(codes: RegVec) -> RegVec:
    """The powers of two of a vector of e8m0 codes, f32; NaN of code 255."""
    number: Any = _vector("scale_values", codes, dtypes.s32)
    return apply_map("e8m0", cast(number, dtypes.f32))  # type: ignore[no-any-return]


def _vector(name: str, value: Any, dtype: DType) -> RegVec:
    if not isinstance(value, RegVec) or value.type.dtype != dtype:
        raise LayoutError(f"{name}: wanted a register vector of {dtype}, got {value!r}")
    return value


def _wide(name: str, tile: RegTile, block: int) -> RegTile:
    """A copy in f32, whose columns are whole blocks."""
    kind = registers_of(tile, name).type
    if not isinstance(kind, RegTileType) or not kind.dtype.is_float:
        raise LayoutError(f"{name}: wanted a register tile of floats, got {kind}")
    _check_blocks(name, kind, block)
    return _copy(tile)


def _absmax(tile: RegTile) -> RegVec:
    """The absmax of each row, NaN if one element is."""
    return row_max(absolute(tile), nan=True)


def _copy(tile: RegTile) -> RegTile:
    """A new tile, f32."""
    return cast(tile if tile.dtype != dtypes.f32 else apply_map("copy", tile), dtypes.f32)  # type: ignore[no-any-return]


def _narrowed(tile: RegTile, dtype: DType) -> RegTile:
    return cast(tile, dtype) if dtype.bits == 8 else encode(tile, dtype)


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
    return _packed("pack4", codes, 4)


def unpack4(pairs: RegTile) -> RegTile:
    """The 4-bit codes of a tile of pairs: twice the columns; `pack4` backwards."""
    return _packed("unpack4", pairs, 4, reverse=True)


def pack6(codes: RegTile) -> RegTile:
    """Four 6-bit codes in three bytes: three quarters of the columns, the first in the lowest bits.

    Bit b of code c of a row is bit `6 c + b` of the row's bytes, lowest bit of a byte first.

    Args:
        codes: u8, in the lanes of u8: `tc.regroup(tc.encode(x, tc.dtypes.e2m3))`.
    """
    return _packed("pack6", codes, 6)


def unpack6(packed: RegTile) -> RegTile:
    """The 6-bit codes of a tile of packed bytes: `pack6` backwards.

    Args:
        packed: from `pack6`, or loaded as `tc.packed6_type(...)`.
    """
    return _packed("unpack6", packed, 6, reverse=True)


def packed6_type(kind: RegTileType) -> RegTileType:
    """The type of `tc.pack6` of a tile of codes, to load packed bytes as.

    Example: `tc.load(Q[0, 0], tc.packed6_type(tc.rt[tc.u8, 64, 32]))` loads 64 x 24 bytes.

    Args:
        kind: the type of the codes, `rt[u8, rows, cols]`.
    """
    if not isinstance(kind, RegTileType) or kind.dtype != dtypes.u8 or kind.order != "row":
        raise LayoutError(
            f"packed6_type: wanted the type of a u8 register tile in row order, got {kind!r}",
            hint="tc.packed6_type(tc.rt[tc.u8, 64, 32])",
        )
    codes, num_bytes = GROUPS[6]
    return laid_out(kind, kind.cols * num_bytes // codes, num_bytes)


def _packed(name: str, tile: RegTile, bits: int, *, reverse: bool = False) -> RegTile:
    return wrap(add(PackCodes(registers_of(tile, name), bits, reverse)).result)  # type: ignore[no-any-return]
