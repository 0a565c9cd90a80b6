"""Formats with a scale for each few elements: MXFP8, MXFP6, MXFP4, NVFP4 of arrays and tensors.

    q, s = tc.formats.quantize_mx(x, tc.e4m3)        # MXFP8: an e8m0 scale for each 32 columns
    y = tc.formats.dequantize_mx(q, s)
    q, s, t = tc.formats.quantize_nvfp4(x)           # an e4m3 scale for each 16, an f32 one for all

Blocks lie along the last axis. 4-bit elements are u8, two a byte, the first in the low half, as in
`torch.float4_e2m1fn_x2`; 6-bit elements are a byte each, of NumPy arrays ml_dtypes' own types.
Inside kernels `tc.quantize_mx` and `tc.quantize_nvfp4` do the same to register tiles.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .dtypes import DType, e2m1, e2m3, e3m2, e4m3, e5m2, e8m0
from .errors import DTypeError, LayoutError
from .tiles import SCALE_CHUNK_BYTES, SCALE_ROWS, SCALE_WORD

MX_BLOCK, NVFP4_BLOCK = 32, 16
# Of the largest value of each element type (OCP Microscaling Formats 1.0, section 5.3).
LARGEST_EXPONENT = {"e4m3": 8, "e5m2": 15, "e2m3": 2, "e3m2": 4, "e2m1": 2}
SIX_BITS = (e2m3, e3m2)
_BIAS = {"e2m3": 1, "e3m2": 3}
# Between two neighbours among 0, 0.5, 1, 1.5, 2, 3, 4, 6; halves go to the even code.
_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_SCALE_NAN, _F32_NAN, _F32_LEAST_E8M0 = 255, 0x7FC00000, 0x00400000  # 2**-127 is subnormal in f32
_LEAST_E4M3 = 2.0**-6  # the smallest normal one
_LEAST_F32 = 2.0**-126  # the same of f32
_MANTISSA_BITS = 23


class _NumPy:
    """What differs between the libraries: NumPy's."""

    amax, where, signbit, clip, round = np.amax, np.where, np.signbit, np.clip, np.rint
    int32: Any = np.int32
    float32: Any = np.float32
    uint8: Any = np.uint8
    uint64: Any = np.uint64

    @staticmethod
    def dtype(dtype: DType) -> Any:
        return dtype.numpy

    @staticmethod
    def cast(x: Any, dtype: Any) -> Any:
        return x.astype(dtype)

    @staticmethod
    def permute(x: Any, axes: tuple[int, ...]) -> Any:
        return x.transpose(axes)

    @staticmethod
    def zeros(like: Any, shape: tuple[int, ...]) -> Any:
        return np.zeros(shape, like.dtype)


class _Torch:
    """torch's, on the device of its tensors."""

    def __init__(self, torch: Any):
        self.torch = torch
        self.amax, self.where, self.signbit = torch.amax, torch.where, torch.signbit
        self.clip, self.round = torch.clip, torch.round
        self.int32, self.float32, self.uint8 = torch.int32, torch.float32, torch.uint8
        self.uint64 = torch.uint64

    def dtype(self, dtype: DType) -> Any:
        return getattr(self.torch, dtype.torch) if dtype.torch else self.torch.uint8

    @staticmethod
    def cast(x: Any, dtype: Any) -> Any:
        return x.to(dtype)

    @staticmethod
    def permute(x: Any, axes: tuple[int, ...]) -> Any:
        return x.permute(axes)

    def zeros(self, like: Any, shape: tuple[int, ...]) -> Any:
        return self.torch.zeros(shape, dtype=like.dtype, device=like.device)


def _library(name: str, x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return _NumPy
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _Torch(torch)
    raise DTypeError(
        f"{name}: wanted a NumPy array or a torch tensor, got {type(x).__name__}",
        hint="numpy.asarray(x)",
    )


def _blocks(name: str, lib: Any, x: Any, block: int) -> Any:
    """f32 [..., K / block, block]."""
    if not x.shape or x.shape[-1] % block:
        got = x.shape[-1] if x.shape else "a scalar"
        raise LayoutError(
            f"{name}: the last axis is whole blocks of {block}, got {got}",
            hint=f"pad it with zeros to a multiple of {block}",
        )
    return lib.cast(x, lib.float32).reshape(*x.shape[:-1], x.shape[-1] // block, block)


def _rows(x: Any) -> Any:
    """The blocks of a row behind one another."""
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def quantize_mx(x: Any, dtype: DType = e4m3) -> tuple[Any, Any]:
    """`(q, scales)` in an MX format: one power of two for each 32 elements of the last axis.

    A scale is the largest power of two up to the block's absmax, over that of the dtype (OCP
    Microscaling Formats 1.0, section 6.3; torchao's `to_mx` with FLOOR); elements round to nearest
    even and saturate. A block with a NaN or an infinity has the scale NaN.

    Args:
        x: floats [..., K], K a multiple of 32; a NumPy array or a torch tensor.
        dtype: e4m3 or e5m2 (MXFP8), e2m3 or e3m2 (MXFP6), or e2m1 (MXFP4).

    Returns:
        q: [..., K] of the dtype (of 6 bits in torch u8, a code each), or u8 [..., K / 2] of e2m1;
            scales: e8m0 [..., K / 32].

    Raises:
        DTypeError: another dtype, or another kind of array.
        LayoutError: K is no multiple of 32.
    """
    if getattr(dtype, "name", None) not in LARGEST_EXPONENT:
        raise DTypeError(f"quantize_mx: to {', '.join(LARGEST_EXPONENT)}, got {dtype!r}")
    lib = _library("quantize_mx", x)
    wide = _blocks("quantize_mx", lib, x, MX_BLOCK)
    top = lib.amax(abs(wide), -1)
    exponent = (top.view(lib.int32) >> _MANTISSA_BITS) & 255
    code = lib.clip(exponent - LARGEST_EXPONENT[dtype.name], 0, 254)
    code = lib.where(exponent == 255, _SCALE_NAN, code)
    inverse = lib.cast(lib.where(exponent == 255, 0, 254 - code), lib.int32)
    q = _narrow(lib, wide * _power(lib, inverse)[..., None], dtype)
    scales = lib.cast(code, lib.uint8).view(lib.dtype(e8m0))
    return _rows(q), scales


def _power(lib: Any, code: Any) -> Any:
    """`2**(code - 127)` in f32 of int32 codes; NaN of 255."""
    bits = lib.where(code == 0, _F32_LEAST_E8M0, code << _MANTISSA_BITS)
    bits = lib.where(code == _SCALE_NAN, _F32_NAN, bits)
    return lib.cast(bits, lib.int32).view(lib.float32)


def _narrow(lib: Any, x: Any, dtype: DType) -> Any:
    """f32 rounded to nearest even, saturated; e2m1 packed."""
    if dtype in SIX_BITS:
        return _six_bits(lib, x, dtype)
    if dtype != e2m1:
        most = float(dtype.max_value)
        return lib.cast(lib.clip(x, -most, most), lib.dtype(dtype))
    size = abs(x)
    code = lib.cast(lib.signbit(x), lib.uint8) << 3
    for index, middle in enumerate(_MIDDLES):
        above = size >= middle if index % 2 else size > middle
        code = code + lib.cast(above, lib.uint8)
    return code[..., 0::2] | code[..., 1::2] << 4


def _six_bits(lib: Any, x: Any, dtype: DType) -> Any:
    """Codes of f32: in units of the last place, which grow with the exponent field."""
    least = 1 - _BIAS[dtype.name]  # exponent of the least normal value, and of those below it
    size = lib.clip(lib.where(x == x, abs(x), 0), 0, float(dtype.max_value))
    size = lib.cast(size, lib.float32)
    exponent = lib.clip((size.view(lib.int32) >> _MANTISSA_BITS) - 127, least, 127)
    exponent = lib.cast(exponent, lib.int32)
    units = lib.round(size * _power(lib, 127 + dtype.mantissa_bits - exponent))
    code = lib.cast(units, lib.int32) + (exponent - least << dtype.mantissa_bits)
    signed = code | lib.cast(lib.signbit(x), lib.int32) << 5
    return lib.cast(signed, lib.uint8).view(lib.dtype(dtype))


def _wide_six(lib: Any, q: Any, dtype: DType) -> Any:
    """f32 of 6-bit codes, exact."""
    code, bits = lib.cast(q.view(lib.uint8), lib.int32), dtype.mantissa_bits
    field, units = code >> bits & (1 << 5 - bits) - 1, code & (1 << bits) - 1
    units = lib.cast(lib.where(field == 0, units, units + (1 << bits)), lib.float32)
    exponent = lib.cast(lib.where(field == 0, 1, field), lib.int32) - _BIAS[dtype.name]
    size = units * _power(lib, exponent - bits + 127)
    return lib.where((code & 32) > 0, -size, size)


def _wide(lib: Any, q: Any, dtype: DType) -> Any:
    """f32 values [..., K] of elements; of packed e2m1 twice the columns."""
    if dtype in SIX_BITS:
        return _wide_six(lib, q, dtype)
    if dtype != e2m1:
        return lib.cast(q, lib.float32)
    pairs = lib.cast(q.view(lib.uint8), lib.int32)
    out = lib.cast(lib.zeros(pairs, (*q.shape[:-1], 2 * q.shape[-1])), lib.float32)
    for place, codes in enumerate((pairs & 15, pairs >> 4)):
        index = codes & 7
        exponent, mantissa = index >> 1, lib.cast(index & 1, lib.float32)
        size = lib.where(exponent == 0, mantissa * 0.5,
                         (1 + mantissa * 0.5) * _power(lib, exponent + 126))  # fmt: skip
        out[..., place::2] = lib.where(codes > 7, -size, size)
    return out


def dequantize_mx(q: Any, scales: Any, dtype: DType | None = None) -> Any:
    """F32 `q * scale`, block by block: `quantize_mx` backwards.

    Args:
        q: [..., K] of e4m3, e5m2, e2m3 or e3m2, or u8 (or torch's packed type) [..., K / 2] of
            e2m1; 6-bit codes may be u8 [..., K].
        scales: e8m0, or its codes as u8, [..., K / 32].
        dtype: of the elements; None: that of q, e2m1 for u8.

    Raises:
        LayoutError: shapes that do not fit.
        DTypeError: other dtypes.
    """
    lib = _library("dequantize_mx", q)
    _require_scales("dequantize_mx", scales, (lib.dtype(e8m0), lib.uint8), "e8m0 or its codes, u8")
    wide = _elements("dequantize_mx", lib, q, dtype, scales, MX_BLOCK)
    power = _power(lib, lib.cast(scales.view(lib.uint8), lib.int32))
    return _rows(wide * power[..., None])


def _require_scales(name: str, scales: Any, dtypes: tuple[Any, ...], shown: str) -> None:
    if getattr(scales, "dtype", None) not in dtypes:
        got = getattr(scales, "dtype", type(scales).__name__)
        raise DTypeError(f"{name}: scales are {shown}, got {got}")


def _elements(
    name: str, lib: Any, q: Any, dtype: DType | None, scales: Any, block: int
) -> Any:
    """f32 [..., K / block, block], whose scales fit.

    Raises:
        LayoutError: they do not.
    """
    dtype = dtype or own_dtype(lib, q) or e2m1
    if q.dtype.itemsize != 1:
        raise DTypeError(
            f"{name}: elements are e4m3, e5m2, e2m3, e3m2 or u8, two e2m1, got {q.dtype}"
        )
    wide = _wide(lib, q, dtype)
    wanted = (*wide.shape[:-1], wide.shape[-1] // block)
    if tuple(scales.shape) != wanted or wide.shape[-1] % block:
        raise LayoutError(
            f"{name}: a scale for each {block} of the last axis, {wanted} for these elements, got "
            f"scales of shape {tuple(scales.shape)}"
        )
    return wide.reshape(*wanted, block)


def own_dtype(lib: Any, q: Any) -> DType | None:
    """The dtype that an array of bytes says by itself; None of u8."""
    known = (d for d in (e4m3, e5m2, *SIX_BITS) if lib.dtype(d) != lib.uint8)
    return next((d for d in known if q.dtype == lib.dtype(d)), None)


def as_e4m3(q: Any, dtype: DType | None = None) -> Any:
    """Elements of 6 bits as e4m3, which has all values of e2m3 and of e3m2: exact.

    Args:
        q: e2m3 or e3m2, or their codes as u8, of any shape; elements of 8 bits stay as they are.
        dtype: of codes: e2m3 or e3m2; None: q's own.

    Raises:
        DTypeError: u8 without a dtype, or another type.
    """
    lib = _library("as_e4m3", q)
    kind = own_dtype(lib, q)
    if kind is None and q.dtype == lib.uint8:
        kind = dtype
    if kind in (e4m3, e5m2):
        return q
    if kind not in SIX_BITS:
        raise DTypeError(
            f"as_e4m3: elements are e2m3 or e3m2, or their codes as u8 with a dtype, got {q.dtype} "
            f"and dtype={dtype}",
            hint="tc.formats.quantize_mx(x, tc.dtypes.e2m3)",
        )
    return lib.cast(_wide_six(lib, q, kind), lib.dtype(e4m3))


def quantize_nvfp4(x: Any, tensor_scale: Any = None) -> tuple[Any, Any, Any]:
    """`(q, scales, tensor_scale)` in NVFP4: e2m1, an e4m3 scale for each 16 elements.

    `x = e2m1 * scale * tensor_scale`. A scale is the block's absmax / 6 / tensor_scale, from 2**-6
    (the smallest normal e4m3) to 448, rounded to e4m3, as torchao's `nvfp4_quantize` has it; NaN
    where the block has a NaN, and everywhere where that makes the tensor scale NaN or infinite.

    Args:
        x: floats [..., K], K a multiple of 16; a NumPy array or a torch tensor.
        tensor_scale: a number or an f32 array of one element; None for absmax / (448 * 6), or the
            smallest normal f32 if that is larger.

    Returns:
        q: u8 [..., K / 2]; scales: e4m3 [..., K / 16]; tensor_scale: f32, as given or computed.

    Raises:
        DTypeError: another kind of array.
        LayoutError: K is no multiple of 16.
    """
    lib = _library("quantize_nvfp4", x)
    wide = _blocks("quantize_nvfp4", lib, x, NVFP4_BLOCK)
    top = lib.amax(abs(wide), -1)
    whole = tensor_scale
    if whole is None:
        most = top.max() if 0 not in top.shape else lib.zeros(top, (1,))[0]
        least = most * 0 + _LEAST_F32
        small = lib.where(most / (448 * 6) < least, least, most / (448 * 6))
        whole = lib.where(most > 0, small, most * 0 + 1)
    scale = top / 6 / whole
    eight = lib.cast(lib.clip(scale, _LEAST_E4M3, 448.0), lib.dtype(e4m3))
    factor = lib.cast(eight, lib.float32) * whole
    q = _narrow(lib, wide / factor[..., None], e2m1)
    return _rows(q), eight, whole


def dequantize_nvfp4(q: Any, scales: Any, tensor_scale: Any = 1.0) -> Any:
    """F32 `q * scale * tensor_scale`, block by block: `quantize_nvfp4` backwards.

    Args:
        q: u8 (or torch's packed type) [..., K / 2].
        scales: e4m3 [..., K / 16].
        tensor_scale: a number or an array of one element.

    Raises:
        LayoutError: shapes that do not fit.
        DTypeError: other dtypes.
    """
    lib = _library("dequantize_nvfp4", q)
    _require_scales("dequantize_nvfp4", scales, (lib.dtype(e4m3),), "e4m3")
    wide = _elements("dequantize_nvfp4", lib, q, e2m1, scales, NVFP4_BLOCK)
    factor = lib.cast(scales, lib.float32) * tensor_scale
    return _rows(wide * factor[..., None])


# ---- the tensor core's order


def pack_scales(scales: Any) -> Any:
    """Scales of rows in the order in which the tensor core takes them.

    128 rows of 4 scales are a chunk of 512 bytes: scale k of row r at byte
    `r % 32 * 16 + r // 32 * 4 + k` (PTX ISA 9.7.16.10.7; torch's blocked layout). Chunks of the
    same rows follow each other; rows and scales that are missing are zero bytes.

    Example: row 70's scale 5 of [200, 8] lies in chunk (0, 1), at byte 6 * 16 + 2 * 4 + 1 = 105 of
    it: [0, 617] of the result, [2, 1024].

    Args:
        scales: [..., rows, blocks] of a type of one byte.

    Returns:
        [..., ceil(rows / 128), 512 ceil(blocks / 4)] of the same dtype.

    Raises:
        LayoutError: fewer than 2 axes. DTypeError: a type of several bytes.
    """
    lib = _library("pack_scales", scales)
    if len(scales.shape) < 2:
        raise LayoutError(
            f"pack_scales: scales have rows and blocks, got shape {tuple(scales.shape)}"
        )
    if scales.dtype.itemsize != 1:
        raise DTypeError(f"pack_scales: scales are e8m0, e4m3 or u8, got {scales.dtype}")
    *lead, rows, blocks = scales.shape
    high, words = -(-rows // SCALE_ROWS), -(-blocks // SCALE_WORD)
    plain = scales.view(lib.uint8)
    whole = lib.zeros(plain, (*lead, high * SCALE_ROWS, words * SCALE_WORD))
    whole[..., :rows, :blocks] = plain
    cut = whole.reshape(*lead, high, 4, 32, words, SCALE_WORD)
    n = len(lead)
    axes = (*range(n), n, n + 3, n + 2, n + 1, n + 4)
    packed = lib.permute(cut, axes).reshape(*lead, high, words * SCALE_CHUNK_BYTES)
    return packed.view(scales.dtype)


def unpack_scales(packed: Any, rows: int, blocks: int) -> Any:
    """Scales [..., rows, blocks] of packed ones: `pack_scales` backwards.

    Raises:
        LayoutError: no such rows and blocks make an array of that shape.
    """
    lib = _library("unpack_scales", packed)
    *lead, high, num_bytes = packed.shape
    words = -(-blocks // SCALE_WORD)
    if (high, num_bytes) != (-(-rows // SCALE_ROWS), words * SCALE_CHUNK_BYTES):
        wanted = (-(-rows // SCALE_ROWS), words * SCALE_CHUNK_BYTES)
        raise LayoutError(
            f"unpack_scales: {rows} rows of {blocks} scales are packed in {wanted}, got shape "
            f"{tuple(packed.shape)}"
        )
    cut = packed.view(lib.uint8).reshape(*lead, high, words, 32, 4, SCALE_WORD)
    n = len(lead)
    axes = (*range(n), n, n + 3, n + 2, n + 1, n + 4)
    whole = lib.permute(cut, axes).reshape(*lead, high * SCALE_ROWS, words * SCALE_WORD)
    return whole[..., :rows, :blocks].view(packed.dtype)


def scale_words(packed: Any) -> Any:
    """Packed scales as 64-bit words, which is how kernels take them (`gl[u64, ...]`): no copy.

    Args:
        packed: of `pack_scales`, contiguous rows.
    """
    return packed.view(_library("scale_words", packed).uint64)


__all__ = [
    "as_e4m3", "dequantize_mx", "dequantize_nvfp4", "pack_scales", "quantize_mx", "quantize_nvfp4",
    "scale_words", "unpack_scales",
]  # fmt: skip
