"""MXFP8, MXFP4 and NVFP4 of arrays: against definitions written apart, and against ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scaled_cases import chunks

import tilecat as tc
from tilecat import e4m3, e5m2, formats
from tilecat.dtypes import e2m1, e2m3, e3m2, e8m0
from tilecat.errors import DTypeError, LayoutError

MOST = {e4m3: 448.0, e5m2: 57344.0, e2m3: 7.5, e3m2: 28.0, e2m1: 6.0}
TOP_EXPONENT = {e4m3: 8, e5m2: 15, e2m3: 2, e3m2: 4, e2m1: 2}


def inputs(rows: int = 60, depth: int = 128) -> np.ndarray:
    """Rows of very different sizes, of zeros, of the smallest and largest numbers, of ties."""
    x = np.random.default_rng(5).standard_normal((rows, depth)).astype(np.float32)
    x *= 2.0 ** np.linspace(-60, 60, rows, dtype=np.float32)[:, None]
    x[3], x[4] = 0, np.float32(1e-45)
    x[5] = np.finfo(np.float32).max
    x[6, 3], x[7, 40], x[8, 70] = -np.inf, np.nan, np.inf
    x[9] = np.arange(depth) / 8 - 6  # halves between codes of e2m1
    x[10] = -0.0
    x[11] = np.float32(2.0**-126) * np.linspace(0.1, 4, depth)
    return x


def nearest_even(x: float, values: np.ndarray) -> float:
    """By search among all values of the type, of two as near that with an even code."""
    gaps = np.abs(values - abs(x))
    best = np.flatnonzero(gaps == gaps.min())
    return float(np.copysign(values[best[best % 2 == 0][0] if len(best) > 1 else best[0]], x))


def values_of(dtype: Any) -> np.ndarray:
    """All finite non-negative values, by code."""
    count = {e4m3: 127, e5m2: 124, e2m3: 32, e3m2: 32, e2m1: 8}[dtype]
    return np.arange(count, dtype=np.uint8).view(dtype.numpy).astype(np.float64)


def elements(q: np.ndarray, dtype: Any) -> np.ndarray:
    """Values, of e2m1 from the two halves of each byte."""
    if dtype != e2m1:
        return q.astype(np.float64)
    codes = np.stack([q & 15, q >> 4], axis=-1).reshape(*q.shape[:-1], -1)
    return codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)


@pytest.mark.parametrize("dtype", [e4m3, e5m2, e2m3, e3m2, e2m1], ids=str)
def test_mx_is_the_definition(dtype: Any):
    x = inputs()
    q, scales = formats.quantize_mx(x, dtype)
    assert scales.dtype == e8m0.numpy and scales.shape == (60, 4)
    assert q.dtype == (np.uint8 if dtype == e2m1 else dtype.numpy)
    found, table = elements(q, dtype), values_of(dtype)
    for row in range(60):
        for block in range(4):
            part = x[row, 32 * block : 32 * block + 32].astype(np.float64)
            scale = float(scales[row, block])
            if not np.isfinite(part).all():
                assert np.isnan(scale)
                continue
            top = np.abs(part).max()
            exponent = np.floor(np.log2(top)) if top else -1000
            assert scale == 2.0 ** max(exponent - TOP_EXPONENT[dtype], -127)
            want = [nearest_even(v, table) for v in part / scale]
            np.testing.assert_array_equal(found[row, 32 * block : 32 * block + 32], want)
    y = formats.dequantize_mx(q, scales)
    want = found * np.repeat(scales.astype(np.float64), 32, axis=1)
    np.testing.assert_array_equal(y, want.astype(np.float32))


def test_mx_of_ml_dtypes_values_is_exact():
    """What the format holds comes back as it was."""
    rng = np.random.default_rng(1)
    for dtype in (e4m3, e5m2, e2m3, e3m2, e2m1):
        table = values_of(dtype)
        x = rng.choice(table, (8, 64)) * rng.choice([-1.0, 1.0], (8, 64))
        x[:, ::32] = table[-1]
        x = (x * 2.0 ** rng.integers(-20, 20, (8, 1))).astype(np.float32)
        q, scales = formats.quantize_mx(x, dtype)
        np.testing.assert_array_equal(formats.dequantize_mx(q, scales), x)


@pytest.mark.parametrize("given", [None, 0.25, np.array([3.0], np.float32)], ids=str)
def test_nvfp4_is_the_definition(given: Any):
    x = inputs()[12:40] * np.float32(2.0**-10)
    x[0, 5] = np.nan
    finite = x.copy()
    finite[0, 5] = 0
    if given is None:
        x = finite
    q, scales, whole = formats.quantize_nvfp4(x, given)
    assert scales.dtype == e4m3.numpy and q.dtype == np.uint8
    if given is None:
        assert whole == np.float32(np.abs(x).max()) / np.float32(2688)
    found, table, eights = elements(q, e2m1), values_of(e2m1), values_of(e4m3)
    whole = np.float32(np.asarray(whole).reshape(()))
    for row in range(len(x)):
        for block in range(8):
            part = x[row, 16 * block : 16 * block + 16]
            scale = float(scales[row, block])
            if np.isnan(part).any():
                assert np.isnan(scale)
                continue
            wanted = np.float32(np.abs(part).max()) / np.float32(6) / whole
            assert scale == nearest_even(min(max(wanted, 2.0**-6), 448.0), eights)
            divided = part / (np.float32(scale) * whole)
            want = [nearest_even(v, table) for v in divided.astype(np.float64)]
            np.testing.assert_array_equal(found[row, 16 * block : 16 * block + 16], want)
    y = formats.dequantize_nvfp4(q, scales, whole)
    factors = scales.astype(np.float32) * whole
    np.testing.assert_array_equal(y, np.float32(found) * np.repeat(factors, 16, axis=1))


def test_nvfp4_of_zeros_is_zero():
    q, scales, whole = formats.quantize_nvfp4(np.zeros((2, 32), np.float32))
    assert (formats.dequantize_nvfp4(q, scales, whole) == 0).all() and whole == 1


@pytest.mark.parametrize("size", [2.0**-149, 1e-41, 1e-38, 1e-33])
def test_nvfp4_of_the_smallest_values_is_finite(size: float):
    x = (np.linspace(-1, 1, 32) * size).astype(np.float32)
    q, scales, whole = formats.quantize_nvfp4(x)
    allowed = 0.15 * size + 2.0**-132  # half a step of e2m1, of the least scale of all
    assert (np.abs(formats.dequantize_nvfp4(q, scales, whole).astype(float) - x) <= allowed).all()


def test_kernels_and_arrays_quantise_alike():
    """`tc.quantize_mx` in a kernel gives the same codes and scales."""
    x = np.random.default_rng(2).standard_normal((64, 64)).astype(np.float32)

    @tc.kernel
    def quantise(X: tc.gl[tc.f32, 64, 64], Q: tc.gl[tc.u8, 64, 32], S: tc.gl[tc.u8, 2, 64]):
        with tc.warpgroup():
            codes, scales = tc.quantize_mx(tc.load(X[0, 0], tc.rt[tc.f32, 64, 64]), e2m1)
            tc.store(Q[0, 0], tc.pack4(codes))
            for block, scale in enumerate(scales):
                tc.store(S[block, 0], tc.scale_codes(scale))

    q, s = np.zeros((64, 32), np.uint8), np.zeros((2, 64), np.uint8)
    quantise(x, q, s, grid=1)
    mine, scales = formats.quantize_mx(x, e2m1)
    np.testing.assert_array_equal(mine, q)
    np.testing.assert_array_equal(scales.view(np.uint8), s.T)


@pytest.mark.parametrize("shape", [(1, 1), (128, 4), (200, 9), (3, 257, 5)], ids=str)
def test_packed_scales_lie_as_the_manual_has_them(shape: tuple[int, ...]):
    codes = np.random.default_rng(3).integers(0, 256, shape).astype(np.uint8)
    packed = formats.pack_scales(codes.view(e8m0.numpy))
    planes = codes.reshape(-1, *shape[-2:])
    want = np.stack([chunks(plane).view(np.uint8) for plane in planes])
    np.testing.assert_array_equal(packed.view(np.uint8).reshape(want.shape), want)
    back = formats.unpack_scales(packed, *shape[-2:])
    assert back.dtype == e8m0.numpy
    np.testing.assert_array_equal(back.view(np.uint8), codes)
    if shape == (200, 9):
        assert packed.view(np.uint8)[0, 512 + 105] == codes[70, 5]  # the docstring's example


def test_torch_tensors_are_quantised_as_arrays_are():
    torch = pytest.importorskip("torch")
    x = inputs()
    x[6:9] = 1  # what the elements of a block with the scale NaN are has no meaning
    for dtype in (e4m3, e5m2, e2m1):
        wanted, mine = formats.quantize_mx(x, dtype), formats.quantize_mx(torch.tensor(x), dtype)
        for array, tensor in zip(wanted, mine, strict=True):
            np.testing.assert_array_equal(tensor.view(torch.uint8).numpy(), array.view(np.uint8))
        y = formats.dequantize_mx(*mine)
        np.testing.assert_array_equal(y.numpy(), formats.dequantize_mx(*wanted))
        packed = formats.pack_scales(mine[1])
        np.testing.assert_array_equal(
            packed.view(torch.uint8).numpy(), formats.pack_scales(wanted[1]).view(np.uint8)
        )
    x = np.nan_to_num(x[12:40])
    wanted, mine = formats.quantize_nvfp4(x), formats.quantize_nvfp4(torch.tensor(x))
    np.testing.assert_array_equal(mine[0].numpy(), wanted[0])
    np.testing.assert_array_equal(mine[1].view(torch.uint8).numpy(), wanted[1].view(np.uint8))
    assert float(mine[2]) == float(wanted[2])


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: formats.quantize_mx(np.zeros((2, 40))), LayoutError, "whole blocks of 32, got 40"),
        (lambda: formats.quantize_mx(np.zeros((2, 32)), tc.bf16), DTypeError, "to e4m3, e5m2"),
        (lambda: formats.quantize_mx([1.0]), DTypeError, "or a torch tensor, got list"),
        (lambda: formats.quantize_nvfp4(np.zeros(24)), LayoutError, "whole blocks of 16, got 24"),
        (lambda: formats.dequantize_mx(np.zeros((2, 16), np.uint8), np.zeros((2, 1), np.float32)),
         DTypeError, "dequantize_mx: scales are e8m0 or its codes, u8, got float32"),
        (lambda: formats.dequantize_nvfp4(np.zeros((2, 8), np.uint8), np.zeros((2, 1), np.uint8)),
         DTypeError, "dequantize_nvfp4: scales are e4m3, got uint8"),
        (lambda: formats.dequantize_mx(np.zeros((2, 32), np.float32), np.zeros((2, 1), np.uint8)),
         DTypeError, "elements are e4m3, e5m2, e2m3, e3m2 or u8, two e2m1, got float32"),
        (lambda: formats.pack_scales(np.zeros((2, 1), np.float32)), DTypeError,
         "pack_scales: scales are e8m0, e4m3 or u8, got float32"),
        (lambda: formats.pack_scales(np.zeros(4, np.uint8)), LayoutError,
         r"pack_scales: scales have rows and blocks, got shape \(4,\)"),
        (lambda: formats.dequantize_mx(np.zeros((2, 64), np.uint8), np.zeros((2, 2), np.uint8)),
         LayoutError, r"\(2, 4\) for these elements, got scales of shape \(2, 2\)"),
        (lambda: formats.unpack_scales(np.zeros((2, 512), np.uint8), 128, 4), LayoutError,
         r"128 rows of 4 scales are packed in \(1, 512\), got shape \(2, 512\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(call: Any, kind: Any, text: str):
    with pytest.raises(kind, match=text):
        call()


@pytest.mark.parametrize("dtype", [e2m3, e3m2], ids=str)
def test_six_bits_are_exact_in_e4m3(dtype: Any):
    codes = np.arange(64, dtype=np.uint8)
    want = codes.view(dtype.numpy).astype(np.float64)
    for q, given in ((codes.view(dtype.numpy), None), (codes, dtype)):
        wide = formats.as_e4m3(q, given)
        assert wide.dtype == e4m3.numpy
        np.testing.assert_array_equal(wide.astype(np.float64), want)
        one = np.full((2, 1), 127, np.uint8)
        np.testing.assert_array_equal(
            formats.dequantize_mx(q.reshape(2, 32), one, given), want.reshape(2, 32)
        )
    with pytest.raises(DTypeError, match="as_e4m3: elements are e2m3 or e3m2, or their codes"):
        formats.as_e4m3(codes)
