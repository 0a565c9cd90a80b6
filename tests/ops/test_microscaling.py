"""MX and NVFP4 in memory: packed elements and scale bytes, read by NumPy and by another kernel."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilecat as tc
from tilecat import f32, gl, rt, rv, s32, u8
from tilecat.dtypes import e2m1, e3m2, e8m0


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
        want[6 if block == 0 else []] = 2.0**127  # an infinity
        np.testing.assert_array_equal(scales[block], want)
        exact = e2m1.round(part / want[:, None], saturate=True)
        np.testing.assert_array_equal(values[:, 32 * block : 32 * block + 32], exact)
    y = np.zeros_like(x)
    from_mxfp4(q, s, y, grid=2)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y, np.float32(values * np.repeat(scales.T, 32, axis=1)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda x: tc.quantize_mx(x, tc.bf16), "quantize_mx: to e4m3, e5m2, e2m3, e3m2, e2m1, got"),
        (lambda x: tc.quantize_mx(x[:, 0:16], e3m2), "quantize_mx: blocks are 32 columns of a"),
        (lambda x: tc.quantize_nvfp4(tc.cast(x, s32)), "quantize_nvfp4: wanted a register tile of"),
        (lambda x: tc.quantize(x, tc.e4m3, per="square"), "quantize: blocks are 128 columns"),
        (lambda x: tc.dequantize(x, ()), "dequantize: scales is a tuple, one for each equal part"),
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
