"""Rows of the table: conversions, quantisation, codes of narrow floats, random tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from table import EVERY, FLOATS, ORDERS, SCOPES, Row

import tilecat as tc
from tilecat import e4m3, e5m2, f32, rt, s8, s32, st, u8
from tilecat.dtypes import DType, bf16, e2m1, e2m3, e3m2, e8m0, f16

CODES = (e2m1, e2m3, e3m2)
SEED, OFFSET = 1234567, 3


def philox(counter: Any, key: tuple[int, int]) -> Any:
    """Philox 4x32-10 on uint64 arrays of 32-bit words."""
    c, (k0, k1), low = [x.astype(np.uint64) for x in counter], key, np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        top = np.uint64(32)
        c = [(b >> top) ^ c[1] ^ np.uint64(k0), b & low, (a >> top) ^ c[3] ^ np.uint64(k1), a & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def bits(k: Any, row: int = 0, col: int = 0) -> Any:
    """The random words of a tile."""
    rows, cols = np.broadcast_arrays(k.rows + row, k.cols + col)
    zero = np.zeros_like(rows)
    words = philox((cols // 4, rows, zero + OFFSET, zero), (SEED, 0))
    return np.choose(cols % 4, words).astype(np.float64)


def rounded_to(dtype: DType) -> Any:
    """The values of a format nearest to x, saturated."""
    return lambda k: dtype.round(k.x * 4, saturate=True)


def quantized(dtype: DType, per: str) -> tuple[Any, Any]:
    """Body and reference of q * scale."""

    def body(k: Any) -> Any:
        q, scale = tc.quantize(k.x, dtype, per=per)
        return tc.dequantize(q, scale if isinstance(scale, tuple) else (scale,))

    def reference(k: Any) -> Any:
        x = k.x
        if per == "tile":
            top = abs(x).max()
        elif per == "row":
            top = abs(x).max(1, keepdims=True)
        else:
            blocks = abs(x).reshape(x.shape[0], -1, 128).max(2)
            blocks = blocks if per == "block" else blocks.max(0, keepdims=True)
            top = np.repeat(blocks, 128, 1)
        scale = (np.float32(top) * np.float32(1 / dtype.max_value)).astype(np.float64)
        return dtype.round(np.float64(np.float32(x / scale)), saturate=True) * scale

    return body, reference


# An element at a tie of the quantised type may go either way: one unit of the last place.
STEP = {"e4m3": 2.0**20, "e5m2": 2.0**21, "s8": 2.0**17}
SHAPES = {"block": ((64, 128), (64, 256)), "square": ((128, 128),)}
QUANTIZED = tuple(
    Row(f"quantize {dtype} per {per}", *quantized(dtype, per), (f32, bf16, f16), out=f32,
        ulps=STEP[dtype.name], floor=0 if dtype.is_float else lambda k: abs(k.x).max(),
        shapes=SHAPES.get(per, ((64, 32), (64, 128))),
        scopes=("warpgroup",) if per == "square" else SCOPES,
        orders=("row",) if per in SHAPES else ORDERS)
    for dtype in (e4m3, e5m2, s8) for per in ("tile", "row", "block", "square")
)  # fmt: skip


def in_blocks(x: np.ndarray, size: int) -> np.ndarray:
    """The absmax of each block of columns, at each of its elements, f32."""
    tops = abs(x).reshape(x.shape[0], -1, size).max(2)
    return np.repeat(tops, size, 1).astype(np.float32)


def microscaled(dtype: DType) -> tuple[Any, Any]:
    """Body and reference of an MX format, there and back; scales through their codes."""

    def body(k: Any) -> Any:
        q, scales = tc.quantize_mx(k.x * 4.0, dtype)
        scales = tuple(tc.scale_values(tc.scale_codes(scale)) for scale in scales)
        return tc.dequantize(q, scales, None if dtype.bits == 8 else dtype)

    def reference(k: Any) -> Any:
        x = np.float32(k.x * 4).astype(np.float64)
        largest = int(np.floor(np.log2(dtype.max_value)))
        _, exponent = np.frexp(in_blocks(x, 32))
        scale = 2.0 ** np.clip(exponent - 1.0 - largest, -127, 127)
        return dtype.round(x / scale, saturate=True) * scale

    return body, reference


def nvfp4(k: Any) -> Any:
    """Reference of NVFP4, each step rounded to f32 as the tile ops are."""
    x, one = np.float32(k.x), np.float32
    whole = one(abs(x).max()) * one(1 / 2688)
    scale = np.maximum(in_blocks(x, 16) * one(1 / 6) / whole, one(2**-6))
    scale = e4m3.round(scale.astype(np.float64), saturate=True).astype(np.float32) * whole
    return e2m1.round((x / scale).astype(np.float64), saturate=True) * scale


def kept(quantize: Any) -> Any:
    """A body that gives its operand back, after quantising it."""

    def body(k: Any) -> Any:
        quantize(k.x)
        return k.x

    return body


MICROSCALED = (
    *(Row(f"{name} leaves its operand", kept(f), lambda k: k.x, (f32, bf16), shapes=((64, 128),),
          orders=("row",))
      for name, f in (("quantize", lambda x: tc.quantize(x, e4m3, per="block")),
                      ("quantize_mx", lambda x: tc.quantize_mx(x, e2m1)),
                      ("quantize_nvfp4", tc.quantize_nvfp4))),
    *(Row(f"quantize_mx {d}", *microscaled(d), (f32, bf16, f16), out=f32,
          shapes=((64, 32), (64, 96)), orders=("row",)) for d in (e4m3, e5m2, *CODES)),
    Row("quantize_nvfp4", lambda k: tc.dequantize(*tc.quantize_nvfp4(k.x)[:2], e2m1)
        * tc.quantize_nvfp4(k.x)[2], nvfp4, (f32, bf16, f16), out=f32, ulps=2,
        shapes=((64, 16), (64, 80)), orders=("row",)),
)  # fmt: skip


def code_values(dtype: DType) -> np.ndarray:
    """The value of every code."""
    return np.arange(2**dtype.bits, dtype=np.uint8).view(dtype.numpy).astype(np.float64)


NARROW = (
    *(Row(f"encode {d}", lambda k, d=d: tc.decode(tc.encode(k.x * 4, d), d), rounded_to(d),
          (f32, bf16, f16, e4m3), out=f32) for d in CODES),
    *(Row(f"decode {d}", lambda k, d=d: tc.decode(tc.cast(tc.apply(
              lambda row, col, x: (row * 16 + col) & (2**d.bits - 1), k.x), u8), d),
          lambda k, d=d: code_values(d)[(k.rows * 16 + k.cols) % 2**d.bits], (f32, s32), out=f32)
      for d in CODES),
    Row("decode e8m0", lambda k: tc.decode(tc.cast(tc.apply(
            lambda row, col, x: col + row * 0, k.x), u8), e8m0),
        lambda k: 2.0 ** (k.cols - 127 + 0 * k.rows), (f32,), out=f32, shapes=((64, 64), (64, 96))),
    Row("encode e8m0", lambda k: tc.decode(tc.encode(k.y, e8m0), e8m0),
        lambda k: 2.0 ** np.ceil(np.log2(k.y)), (f32, bf16, f16), out=f32, data="positive"),
    Row("pack4", lambda k: tc.unpack4(tc.pack4(tc.encode(k.x, e2m1))), lambda k: codes_of(k.x),
        (f32, bf16, e4m3), out=u8, orders=("row",)),
    *(Row(f"pack6 {d}", lambda k, d=d: tc.unpack6(tc.pack6(tc.regroup(tc.encode(k.x, d)))),
          lambda k, d=d: codes_of(k.x, d), (f32, bf16, e4m3), out=u8, orders=("row",),
          shapes=((64, 32), (64, 96))) for d in (e2m3, e3m2)),
)  # fmt: skip


def codes_of(x: Any, dtype: DType = e2m1) -> Any:
    """Codes of 4 or 6 bits."""
    return dtype.round(x, saturate=True).astype(dtype.numpy).view(np.uint8).astype(np.float64)


RANDOM = (
    Row("random_bits", lambda k: tc.cast(tc.random_bits(k.x, SEED, offset=OFFSET) >> 9, f32),
        lambda k: bits(k) // 512, (f32, bf16, e4m3), out=f32),
    Row("uniform", lambda k: tc.uniform(k.x, SEED, row=k.n, col=8, offset=OFFSET),
        lambda k: bits(k, 5, 8) // 256 * 2.0**-24, (f32, bf16, e4m3), out=f32),
    Row("dropout", lambda k: tc.dropout(k.x, 0.25, SEED, offset=OFFSET),
        lambda k: np.where(bits(k) // 256 * 2.0**-24 >= 0.25, k.x / 0.75, 0), FLOATS[:3], ulps=1),
)  # fmt: skip

CASTS = tuple(
    Row(f"cast to {d}", lambda k, d=d: tc.cast(k.x, d), lambda k, d=d: k.x, EVERY, out=d)
    for d in (f32, bf16, f16, e4m3, e5m2, s32, s8, u8)
)


def hard(k: Any) -> Any:
    """Correlated rows: elements of one sign near 1, whose inverse stays small."""
    return np.linalg.inv(np.tril(1 - 2.0**-6 * np.abs(k.x), -1) + np.eye(k.x.shape[0]))


TRIANGULAR = tuple(
    Row(f"tril_inverse {name} of a {scope}", body, reference, (f32,), ulps=64,
        floor=lambda k, r=reference: abs(r(k)).max(), shapes=shapes, scopes=(scope,),
        orders=("row",))
    for scope, shapes in (("warpgroup", ((64, 64),)), ("warp", ((64, 16), (128, 32), (256, 64))))
    for name, body, reference in (
        ("random", lambda k: tc.tril_inverse(k.x * 0.25),
         lambda k: np.linalg.inv(np.tril(k.x * 0.25, -1) + np.eye(k.x.shape[0]))),
        ("correlated", lambda k: tc.tril_inverse(1.0 - tc.absolute(k.x) * 2.0**-6), hard),
    )
)  # fmt: skip

TRIANGULAR += tuple(
    Row("tril_inverse in two parts of a warpgroup" + name, body, TRIANGULAR[0].reference, (f32,),
        ulps=1024, floor=TRIANGULAR[0].floor, shapes=((64, 64),), scopes=("warpgroup",),
        orders=("row",))
    for name, body in (
        ("", lambda k: tc.tril_inverse(k.x * 0.25, accurate=False)),
        (", in a shared tile", lambda k: tc.tril_inverse(
            k.x * 0.25, accurate=False, room=tc.shared(st[bf16, 128, 64]))),
    )
)  # fmt: skip


def taylor(k: Any) -> Any:
    """Features of rows x / 2, by the list of columns."""
    x, made = k.x / 2, []
    for what in tc.taylor_order():
        scale = 0.5**0.5 if len(what) == 2 and what[0] == what[1] else float(what != (-1,))
        made.append(scale * np.prod(x[:, [i for i in what if i >= 0]], axis=1))
    return np.stack(made, axis=1)


FEATURES = tuple(
    Row(f"taylor_features from {a}", lambda k, a=a: tc.taylor_features(k.x, 0.5)[:, a : a + 16],
        lambda k, a=a: taylor(k)[:, a : a + 16], (bf16, f16), ulps=3,
        shapes=((64, 16), (128, 16)), orders=("row",))
    for a in range(0, 160, 16)
)  # fmt: skip


def slopes(x: Any) -> Any:
    """A gradient of features: another for each column and row."""
    tile = tc.zeros(rt[f32, x.type.rows, 160])
    tile = tile + tc.cast(tc.col_index(tile), f32) + tc.cast(tc.row_index(tile), f32)
    return tile * 0.0625 - 5.0


def taylor_slopes(k: Any, c: float) -> Any:
    """Of rows x, where features are those of c x."""
    x, made = k.x * c, np.zeros(k.x.shape)
    given = (np.arange(160) + np.arange(len(x))[:, None]) * 0.0625 - 5
    for g, what in zip(given.T, tc.taylor_order(), strict=True):
        if len(what) == 1 and what[0] >= 0:
            made[:, what[0]] += g
        for i, j in (what, what[::-1]) if len(what) == 2 else ():
            made[:, i] += g * x[:, j] * (0.5**0.5 if i == j else 1.0)
    return made * c


BACKWARD = tuple(
    Row(f"taylor_gradient of {c}", lambda k, c=c: tc.taylor_gradient(slopes(k.x), k.x, c),
        lambda k, c=c: taylor_slopes(k, c), (bf16, f16), ulps=8, floor=128.0 * c, out=f32,
        shapes=((64, 16), (128, 16)), orders=("row",))
    for c in (0.25, 0.5, 1.0)
)  # fmt: skip

ROWS = TRIANGULAR + FEATURES + QUANTIZED + MICROSCALED + NARROW + RANDOM + CASTS + BACKWARD
