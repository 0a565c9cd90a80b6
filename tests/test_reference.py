"""The yardstick itself: right results pass, and each kind of wrong one fails."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from reference import (
    Reference,
    accumulation,
    assert_close,
    attention,
    half_ulp,
    matmul,
    rounding_interval,
    spacing,
)

BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype(np.float16)
DTYPES = pytest.mark.parametrize("dtype", [BF16, F16], ids=["bf16", "f16"])


def random(shape, dtype, seed=0):
    """Normal numbers rounded to `dtype`."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def product(m, n, k, dtype):
    """Operands, an honest fp32 result rounded once, and the reference."""
    a, b = random((m, k), dtype, 1), random((k, n), dtype, 2)
    result = (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)
    return result, matmul(a, b)


def neighbour(value, direction):
    """The next value of the same dtype towards `direction` (an infinity)."""
    return np.nextafter(value, value.dtype.type(direction))


def flash_attention(q, k, v, block):
    """fp32 attention as kernels do it: blocks of keys, running maximum, rounded weights."""
    q32, k32, v32 = (x.astype(np.float32) for x in (q, k, v))
    scale = np.float32(1 / math.sqrt(q.shape[3]))
    largest = np.full((*q.shape[:3], 1), -np.inf, np.float32)
    total, out = np.zeros_like(largest), np.zeros(q.shape, np.float32)
    for start in range(0, k.shape[2], block):
        keys, values = k32[:, :, start : start + block], v32[:, :, start : start + block]
        scores = (q32 @ keys.swapaxes(2, 3)) * scale
        new = np.maximum(largest, scores.max(axis=3, keepdims=True))
        weights, shrink = np.exp(scores - new), np.exp(largest - new)
        total = total * shrink + weights.sum(axis=3, keepdims=True)
        out = out * shrink + weights.astype(q.dtype).astype(np.float32) @ values
        largest = new
    return (out / total).astype(q.dtype), (largest + np.log(total))[..., 0]


@DTYPES
@pytest.mark.parametrize("k", [1, 16, 100, 4096])
def test_matmul_accepts_fp32_accumulation(dtype, k):
    result, expected = product(40, 24, k, dtype)
    assert_close(result, expected, dtype)
    assert_close(result, expected.value, dtype, k)


def test_matmul_is_exact_on_small_integers():
    a, b = np.arange(6).reshape(2, 3).astype(BF16), np.arange(12).reshape(3, 4).astype(BF16)
    assert matmul(a, b).value.tolist() == [[20, 23, 26, 29], [56, 68, 80, 92]]


def test_matmul_of_no_products_is_zero():
    expected = matmul(np.zeros((2, 0), BF16), np.zeros((0, 3), BF16))
    assert_close(np.zeros((2, 3), BF16), expected, BF16)


@DTYPES
@pytest.mark.parametrize("k", [64, 512])
def test_assert_close_rejects_one_ulp_too_many(dtype, k):
    result, expected = product(16, 16, k, dtype)
    for index in np.ndindex(result.shape):
        low, high = (bound[index] for bound in rounding_interval(expected, dtype))
        for edge, direction in ((low, -np.inf), (high, np.inf)):
            wrong = result.copy()
            wrong[index] = edge
            assert_close(wrong, expected, dtype)
            wrong[index] = neighbour(wrong[index], direction)
            with pytest.raises(AssertionError, match="1 of 256 elements wrong"):
                assert_close(wrong, expected, dtype)


@DTYPES
def test_tolerance_is_one_value_on_most_elements(dtype):
    _, expected = product(64, 64, 512, dtype)
    low, high = rounding_interval(expected, dtype)
    assert np.mean(low == high) > {BF16: 0.85, F16: 0.5}[dtype]
    assert np.all(high - low <= 2 * expected.error + spacing(high, dtype))


@DTYPES
@pytest.mark.parametrize("k", [64, 4096])
def test_assert_close_rejects_one_missing_product(dtype, k):
    a, b = random((16, k), dtype, 1), random((k, 16), dtype, 2)
    result = (a.astype(np.float32)[:, :-1] @ b.astype(np.float32)[:-1]).astype(dtype)
    with pytest.raises(AssertionError, match="elements wrong"):
        assert_close(result, matmul(a, b), dtype)
    with pytest.raises(AssertionError, match="elements wrong"):
        assert_close(result, matmul(a, b).value, dtype, k)


@DTYPES
def test_assert_close_rejects_nan_on_either_side(dtype):
    result, expected = product(8, 8, 32, dtype)
    wrong = result.copy()
    wrong[3, 5] = np.nan
    with pytest.raises(AssertionError, match=r"NaN on one side only at 1 of 64.*\(3, 5\)"):
        assert_close(wrong, expected, dtype)
    value = expected.value.copy()
    value[3, 5] = np.nan
    with pytest.raises(AssertionError, match="got .* expected nan"):
        assert_close(result, Reference(value, expected.error), dtype)
    assert_close(wrong, Reference(value, expected.error), dtype)


@DTYPES
@pytest.mark.parametrize("poison", [0x7FFF, 0xFFFF, 0x7B7B, 0x0000])
def test_assert_close_rejects_unwritten_rows(dtype, poison):
    result, expected = product(8, 8, 32, dtype)
    result.view(np.uint16)[6] = poison
    with pytest.raises(AssertionError, match=r"\(6, \d\)"):
        assert_close(result, expected, dtype)


def test_assert_close_rejects_swapped_infinities_and_finite_for_infinite():
    expected = Reference(np.array([np.inf, -np.inf, 7e4]), np.array([np.nan, np.inf, 1.0]))
    assert_close(np.array([np.inf, -np.inf, np.inf], F16), expected, F16)
    for wrong in ([-np.inf, -np.inf, np.inf], [np.inf, -65504, np.inf], [np.inf, -np.inf, 65504]):
        with pytest.raises(AssertionError, match="1 of 3 elements wrong"):
            assert_close(np.array(wrong, F16), expected, F16)


def test_matmul_propagates_nan_and_infinity():
    a = np.array([[1, np.nan], [np.inf, 0], [np.inf, 1]], F16)
    expected = matmul(a, np.array([[1, -1], [1, np.inf]], F16))
    actual = np.array([[np.nan, np.nan], [np.inf, np.nan], [np.inf, np.nan]], F16)
    assert_close(actual, expected, F16)


def test_assert_close_rejects_shape_dtype_and_missing_k():
    result, expected = product(4, 6, 8, BF16)
    with pytest.raises(AssertionError, match=r"wrong shape: got \(6, 4\), expected \(4, 6\)"):
        assert_close(result.T, expected, BF16)
    with pytest.raises(AssertionError, match=r"wrong shape: got \(1, 6\)"):
        assert_close(result[:1], expected, BF16)
    with pytest.raises(AssertionError, match="wrong dtype: got float32, expected bfloat16"):
        assert_close(result.astype(np.float32), expected, BF16)
    with pytest.raises(TypeError, match="`k` is needed"):
        assert_close(result, expected.value, BF16)


def test_assert_close_names_the_worst_element():
    result, expected = product(8, 8, 32, BF16)
    result[1, 1] = neighbour(neighbour(result[1, 1], np.inf), np.inf)
    result[2, 7] += BF16.type(8)
    with pytest.raises(AssertionError, match=r"2 of 64 elements wrong, worst at \(2, 7\)"):
        assert_close(result, expected, BF16)


@DTYPES
@pytest.mark.parametrize(
    ("heads", "kv_heads", "lq", "lk", "d"),
    [(4, 4, 8, 8, 32), (4, 2, 33, 100, 64), (2, 1, 16, 1000, 128), (1, 1, 5, 1, 32)],
)
def test_attention_accepts_blockwise_fp32(dtype, heads, kv_heads, lq, lk, d):
    q = random((2, heads, lq, d), dtype, 1)
    k, v = (random((2, kv_heads, lk, d), dtype, seed) for seed in (2, 3))
    group = heads // kv_heads
    out, lse = flash_attention(q, *(np.repeat(x, group, axis=1) for x in (k, v)), block=64)
    expected, expected_lse = attention(q, k, v)
    assert_close(out, expected, dtype)
    assert_close(lse, expected_lse, np.float32)


@DTYPES
def test_attention_rejects_a_missing_key_and_a_wrong_scale(dtype):
    q, k, v = (random((1, 2, 16, 64), dtype, seed) for seed in (1, 2, 3))
    expected, expected_lse = attention(q, k, v)
    out, lse = flash_attention(q, k[:, :, :-1], v[:, :, :-1], block=64)
    with pytest.raises(AssertionError, match="elements wrong"):
        assert_close(out, expected, dtype)
    with pytest.raises(AssertionError, match="elements wrong"):
        assert_close(lse, expected_lse, np.float32)
    with pytest.raises(AssertionError, match="elements wrong"):
        assert_close(out, attention(q, k, v, scale=0.126)[0], dtype)


def test_attention_of_equal_keys_is_the_mean_of_values():
    q, v = random((1, 1, 3, 32), F16, 1), random((1, 1, 7, 32), F16, 2)
    out, lse = attention(q, np.zeros_like(v), v)
    np.testing.assert_allclose(out.value[0, 0, 1], v.astype(float).mean(axis=2)[0, 0], rtol=1e-14)
    np.testing.assert_allclose(lse.value, math.log(7), rtol=1e-14)


def test_attention_without_keys_is_zero():
    q, v = random((1, 2, 3, 32), F16), np.zeros((1, 1, 0, 32), F16)
    out, lse = attention(q, v, v)
    assert_close(np.full((1, 2, 3), -np.inf, np.float32), lse, np.float32)
    assert_close(q * 0, out, F16)


def test_attention_propagates_nan_to_its_row_only():
    q, k, v = (random((1, 1, 4, 32), BF16, seed) for seed in (1, 2, 3))
    q[0, 0, 2, 5] = np.nan
    out, lse = attention(q, k, v)
    assert np.isnan(out.value).all(axis=3).tolist() == [[[False, False, True, False]]]
    assert np.isnan(lse.value).tolist() == [[[False, False, True, False]]]


@DTYPES
def test_spacing_is_the_distance_of_neighbours(dtype):
    values = np.abs(random((100,), dtype))
    values[:3] = [0, 1, 2]
    distance = neighbour(values, np.inf).astype(float) - values.astype(float)
    assert spacing(values.astype(float), dtype).tolist() == distance.tolist()


def test_constants_are_those_of_the_documentation():
    assert (half_ulp(BF16), half_ulp(F16)) == (2**-8, 2**-11)
    assert accumulation(512) == 48 * 2**-23
    assert round(half_ulp(BF16) / accumulation(512)) == 683
