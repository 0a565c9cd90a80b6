"""MX and NVFP4 in memory: packed elements and scale bytes, read by NumPy and by another kernel."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilecat as tc
from tilecat import e4m3, f32, gl, rt, rv, s32, u8
from tilecat.dtypes import e2m1, e2m3, e3m2, e8m0


@tc.kernel
def to_mxfp4(X: gl[f32, "M", 64], Q: gl[u8, "M", 32], S: gl[u8, 2, "M"]):
    with tc.warpgroup():
        codes, scales = tc.quantize_mx(tc.load(X[tc.cta_id(), 0], rt[f32, 64, 64]), e2m1)
        tc.store(Q[tc.cta_id(), 0], tc.pack4(codes))
        for block, scale in enumerate(scales):
            tc.store(S[block, tc.cta_id()], tc.scale_codes(scale))


@tc.kernel
def from_mxfp4(Q: gl[u8, "M", 32], S: gl[u8, 2, "M"], Y: gl[f32, "M", 64]):
    with tc.warpgroup():
        codes = tc.unpack4(tc.load(Q[tc.cta_id(), 0], rt[u8, 64, 32]))
        scales = tuple(tc.scale_values(tc.load(S[b, tc.cta_id()], rv[s32, 64])) for b in range(2))
        tc.store(Y[tc.cta_id(), 0], tc.dequantize(codes, scales, e2m1))


def inputs() -> np.ndarray:
    """Rows of very different sizes, of zeros, of the smallest and largest numbers."""
    x = np.random.default_rng(5).standard_normal((100, 64)).astype(np.float32)
    x *= 2.0 ** np.arange(-50, 50, dtype=np.float32)[:, None]
    x[3] = 0
    x[4] = np.float32(1e-45)
    x[5] = np.finfo(np.float32).max
    x[6, 3] = -np.inf
    x[7, 4] = np.nan
    return x


def test_mxfp4_in_memory_is_the_definition():
    x = inputs()
    q, s = np.zeros((100, 32), np.uint8), np.zeros((2, 100), np.uint8)
    to_mxfp4(x, q, s, grid=2)
    scales = s.view(e8m0.numpy).astype(np.float64)  # [block, row]
    codes = np.stack([q & 15, q >> 4], axis=-1).reshape(100, 64)
    values = codes.view(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    for block in range(2):
        part = x[:, 32 * block : 32 * block + 32].astype(np.float64)
        top = np.minimum(abs(part).max(1), np.finfo(np.float32).max)
        exponent = np.floor(np.log2(np.maximum(top, 2.0**-126))) - 2
        want = 2.0 ** np.clip(exponent, -127, 127)
        if block == 0:
            want[6:8] = np.nan  # an infinity, a NaN: what the block's codes are has no meaning
        np.testing.assert_array_equal(scales[block], want)
        kept = np.isfinite(want)
        exact = e2m1.round(part[kept] / want[kept, None], saturate=True)
        np.testing.assert_array_equal(values[kept, 32 * block : 32 * block + 32], exact)
    y = np.zeros_like(x)
    from_mxfp4(q, s, y, grid=2)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y, np.float32(values * np.repeat(scales.T, 32, axis=1)))


@tc.kernel
def to_mxfp6(X: gl[f32, "M", 32], Q: gl[u8, "M", 24]):
    with tc.warpgroup():
        codes = tc.regroup(tc.encode(tc.load(X[tc.cta_id(), 0], rt[f32, 64, 32]), e3m2))
        tc.store(Q[tc.cta_id(), 0], tc.pack6(codes))


@tc.kernel
def from_mxfp6(Q: gl[u8, "M", 24], Y: gl[f32, "M", 32]):
    with tc.warpgroup():
        packed = tc.load(Q[tc.cta_id(), 0], tc.packed6_type(rt[u8, 64, 32]))
        tc.store(Y[tc.cta_id(), 0], tc.decode(tc.unpack6(packed), e3m2))


def test_six_bit_codes_are_a_stream_of_bits():
    x = np.random.default_rng(6).standard_normal((100, 32)).astype(np.float32) * 8
    q, y = np.zeros((100, 24), np.uint8), np.zeros_like(x)
    to_mxfp6(x, q, grid=2)
    exact = e3m2.round(x.astype(np.float64), saturate=True)
    codes = exact.astype(e3m2.numpy).view(np.uint8)
    bits = np.unpackbits(codes[..., None], axis=-1, bitorder="little")[..., :6]
    np.testing.assert_array_equal(q, np.packbits(bits.reshape(100, 192), 1, bitorder="little"))
    from_mxfp6(q, y, grid=2)
    np.testing.assert_array_equal(y, exact)


@pytest.mark.parametrize("dtype", [e2m1, e2m3, e4m3])
@pytest.mark.parametrize("format", ["mx", "nvfp4"])
def test_a_block_with_nan_is_nan(dtype, format):
    @tc.kernel
    def both(X: gl[f32, 64, 64], Y: gl[f32, 64, 64]):
        with tc.warpgroup():
            x = tc.load(X[0, 0], rt[f32, 64, 64])
            if format == "mx":
                q, scales = tc.quantize_mx(x, dtype)
                y = tc.dequantize(q, scales, None if dtype == e4m3 else dtype)
            else:
                q, scales, whole = tc.quantize_nvfp4(x)
                y = tc.dequantize(q, scales, e2m1) * whole
            tc.store(Y[0, 0], y)

    x = np.ones((64, 64), np.float32)
    x[2, 35] = np.nan
    y = np.zeros_like(x)
    both(x, y, grid=1)
    size = 32 if format == "mx" else 16
    want = np.zeros_like(x, bool)
    want[2, 32 : 32 + size] = True
    np.testing.assert_array_equal(np.isnan(y), want)
    np.testing.assert_allclose(y[~want], 1, rtol=2**-3)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda x: tc.quantize_mx(x, tc.bf16), "quantize_mx: to e4m3, e5m2, e2m3, e3m2, e2m1, got"),
        (lambda x: tc.quantize_mx(x[:, 0:16], e3m2), "quantize_mx: blocks are 32 columns of a"),
        (lambda x: tc.quantize_nvfp4(tc.cast(x, s32)), "quantize_nvfp4: wanted a register tile of"),
        (lambda x: tc.quantize(x, tc.e4m3, per="square"), "quantize: blocks are 128 columns"),
        (lambda x: tc.dequantize(x, ()), "dequantize: scales is a tuple, one for each equal part"),
        (lambda x: tc.pack6(tc.encode(x, e3m2)), "pack6: a lane has no 4 adjacent columns"),
        (lambda x: tc.unpack6(tc.regroup(tc.encode(x, e3m2))), "unpack6: a lane has no 3 adjacent"),
        (lambda x: tc.pack6(x), "pack6: wanted a u8 register tile in row order, got rt[f32, 64"),
        (lambda x: tc.packed6_type(rt[f32, 64, 32]), "packed6_type: wanted the type of a u8"),
        (lambda x: tc.decay_tile(tc.row_max(x), reverse=1), "decay_tile: reverse is True or False"),
        (lambda x: tc.scale_codes(x), "scale_codes: wanted a register vector of f32"),
        (lambda x: tc.scale_values(tc.row_max(x)), "scale_values: wanted a register vector of s32"),
    ],
)
def test_what_does_not_fit_is_said(body, message):
    @tc.kernel
    def wrong(X: gl[f32, 64, 64]):
        with tc.warpgroup():
            body(tc.load(X[0, 0], rt[f32, 64, 64]))

    with pytest.raises(tc.TileError) as caught:
        wrong.compile(target="sm_90a")
    assert message in str(caught.value)
