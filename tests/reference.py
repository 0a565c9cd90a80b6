"""What the operators must compute, in float64 NumPy, and how far a kernel may be from it.

Nothing here knows how a kernel works beyond three facts, from which the tolerance follows:

1. Products of two bf16 or two f16 numbers are exact in fp32 (8 + 8 and 11 + 11 bits fit in 24).
2. Sums are kept in fp32. A tensor core adds 16 products and the accumulator in one step and may
   truncate, so that a sum of K products takes at most 16 additions inside a step and ceil(K / 16)
   steps after each other, each losing at most 2^-23 of the largest partial sum, which is at most
   `magnitude` = sum |a_i b_i|. Hence, with `accumulation(K) = (ceil(K / 16) + 16) 2^-23`:

       | fp32 sum - exact sum | <= error = accumulation(K) * magnitude

   (The block size and the truncation are measured on hardware by Fasi, Higham, Mikaitis and
   Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330, 2021.)
3. The result is rounded once to its dtype. Rounding is monotone, so the kernel's answer lies in

       [ round(exact - error), round(exact + error) ]

   an interval of one value (the correctly rounded one) wherever the error reaches no rounding
   boundary, of two neighbours where it reaches one, of more only where terms cancel so far that
   the error exceeds a unit of the sum. This is what `assert_close` checks: no relative tolerance
   to choose, and infinities and subnormals need no special case.

Attention rounds the probabilities to the dtype before the second product as well. That is the one
error that is neither in fp32 nor at the end; `_attention_error` derives its size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

# Relative error of fp32: truncated (tensor cores), and of `ex2.approx.ftz.f32`, whose maximum
# error is 2 units in the last place (PTX ISA, "Floating Point Instructions: ex2").
TRUNCATION = 2.0**-23
EXP2_ERROR = 2.0**-22
# A sum of n independent rounding errors exceeds DEVIATIONS times its root sum of squares with
# a probability below 2 exp(-DEVIATIONS^2 / 2) = 3e-8 (Hoeffding's inequality).
DEVIATIONS = 6.0
_LOG2_E = 1.0 / math.log(2.0)


@dataclass(frozen=True)
class Reference:
    """An exact result and how far a value may be from it before its one rounding.

    Args:
        value: the result in float64.
        error: a bound of the absolute error of every element before rounding, float64,
            the shape of `value`.
    """

    value: np.ndarray
    error: np.ndarray


def as_numpy(array: Any) -> np.ndarray:
    """A NumPy array of the same values and dtype; takes NumPy arrays and torch tensors."""
    if isinstance(array, np.ndarray):
        return array
    host = array.detach().cpu()
    if str(host.dtype) == "torch.bfloat16":  # NumPy has no bf16; fp32 holds every bf16
        return host.float().numpy().astype(ml_dtypes.bfloat16)
    return host.numpy()


def as_float64(array: Any) -> np.ndarray:
    """The same values in float64, exactly."""
    return as_numpy(array).astype(np.float64)


def half_ulp(dtype: Any) -> float:
    """Largest relative error of one rounding to `dtype`: 2^-8 for bf16, 2^-11 for f16."""
    return float(ml_dtypes.finfo(np.dtype(dtype)).eps) / 2


def accumulation(k: int) -> float:
    """Error of an fp32 sum of `k` exact products, relative to the sum of their absolute values.

    For K = 512: (32 + 16) 2^-23 = 5.7e-6, a 683rd of the half unit of bf16.
    """
    return (math.ceil(k / 16) + 16) * TRUNCATION


def matmul(a: Any, b: Any) -> Reference:
    """C = A @ B in float64.

    Args:
        a: [M, K], bf16 or f16, any strides.
        b: [K, N], the same dtype, any strides.
    """
    a64, b64 = as_float64(a), as_float64(b)
    with np.errstate(invalid="ignore", over="ignore"):
        value = a64 @ b64
        magnitude = np.abs(a64) @ np.abs(b64)
    return Reference(value, accumulation(a64.shape[1]) * magnitude)


def attention(
    q: Any, k: Any, v: Any, scale: float | None = None, change: Any = None,
    aligned: float = 0.0,
) -> tuple[Reference, Reference]:  # fmt: skip
    """softmax(scale Q K^T) V and log(sum(exp(scale Q K^T))), in float64.

    A row without keys (Lk = 0, or all scores -inf) gives zeros and a log-sum-exp of minus infinity.

    Args:
        q: [B, H, Lq, D], bf16 or f16, as which probabilities are rounded.
        k: [B, Hkv, Lk, D]; H is a multiple of Hkv, head h reads head h // (H // Hkv).
        v: as `k`.
        scale: of the scores; 1 / sqrt(D) if None.
        change: makes scores [B, H, Lq, Lk] of the scaled products, -inf of keys that are hidden;
            None for nothing. An error of a product is taken to be no larger afterwards.
        aligned: what each term of Q K^T is off by at most, to either side, as a share of the
            largest of its row: where tensor cores align them (`mma_cases.FP8_ON_GPU`).

    Returns:
        The output [B, H, Lq, D] and the log-sum-exp [B, H, Lq] (natural logarithm).
    """
    q64, k64, v64 = as_float64(q), as_float64(k), as_float64(v)
    group = q64.shape[1] // k64.shape[1]
    k64, v64 = (np.repeat(x, group, axis=1) for x in (k64, v64))
    scale = 1.0 / math.sqrt(q64.shape[3]) if scale is None else scale
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        scores = scale * (q64 @ k64.swapaxes(2, 3))
        scores = scores if change is None else change(scores)
        largest = scores.max(axis=3, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - largest)
        weights[scores == -np.inf] = 0
        total = weights.sum(axis=3, keepdims=True)
        lse = (largest + np.log(total))[..., 0]
        terms = (np.abs(largest) + np.abs(np.log(total)))[..., 0]
        probabilities = np.where(total == 0, 0, weights / total)
        out = probabilities @ v64
        products = abs(scale) * (np.abs(q64) @ np.abs(k64).swapaxes(2, 3))
        score_error = _score_error(products, scores, q64.shape[3], change is not None)
        largest = np.abs(q64).max(3) * np.abs(k64).max((2, 3), initial=0.0)[..., None]
        score_error += 2 * abs(scale) * DEVIATIONS * math.sqrt(q64.shape[3]) * aligned * largest
        out_error = _attention_error(probabilities, v64, score_error, as_numpy(q).dtype)
        lse_error = score_error + accumulation(k64.shape[2]) + 4 * TRUNCATION * (1 + terms)
    return Reference(out, out_error), Reference(lse, lse_error)


def _score_error(
    products: np.ndarray, scores: np.ndarray, d: int, changed: bool = False
) -> np.ndarray:
    """[B, H, Lq]: largest relative error of a row's weights exp(score - max).

    The fp32 product is off by `accumulation(D)` of `products` = scale sum |q_i k_i|; scaling by
    scale * log2(e) and subtracting the maximum round three times more. An absolute error of the
    exponent is a relative one of the exponential; its own approximation comes on top.
    """
    exponent = accumulation(d) * products + 3 * TRUNCATION * np.abs(scores)
    if changed:  # a few more roundings of what is at most so large
        exponent += 8 * TRUNCATION * products
        exponent = np.where(scores == -np.inf, 0, exponent)
    return 2 * _LOG2_E * exponent.max(axis=3, initial=0.0) + EXP2_ERROR


def _attention_error(
    probabilities: np.ndarray, v: np.ndarray, score_error: np.ndarray, dtype: Any
) -> np.ndarray:
    """[B, H, Lq, D]: error of sum_j p_j v_j before the output is rounded.

    With P v short for sum_j p_j |v_j|:
    - the weights' errors, in the numerator and in the sum it is divided by: 2 score_error P v;
    - both fp32 sums, and the rescaling and the division: 2 accumulation(Lk) P v;
    - p_j rounded to the dtype, each by at most half_ulp p_j, to nearest, hence of either sign:
      at worst half_ulp P v, but DEVIATIONS half_ulp sqrt(sum_j p_j^2 v_j^2) all but surely.
    """
    size = probabilities @ np.abs(v)
    spread = DEVIATIONS * np.sqrt((probabilities**2) @ (v**2))
    fp32 = 2 * score_error[..., None] + 2 * accumulation(v.shape[2])
    return fp32 * size + half_ulp(dtype) * np.minimum(size, spread)


def default_magnitude(expected: np.ndarray, k: int) -> float:
    """sum |a_i b_i| guessed from the results, for operands of independent random signs.

    K terms of one size t add up to about sqrt(K) t in a random walk and to K t in absolute
    value: sqrt(K) times as much.
    """
    finite = expected[np.isfinite(expected)]
    return math.sqrt(max(k, 1) * float(np.mean(finite**2))) if finite.size else 0.0


def assert_close(actual: Any, expected: Any, dtype: Any, k: int | None = None) -> None:
    """Fail unless every element is a possible fp32-accumulated, once-rounded result.

    Args:
        actual: the kernel's result: a NumPy array or a torch tensor.
        expected: a `Reference`, or a float64 array; then `k` is needed, and the sum of absolute
            products is guessed by `default_magnitude`.
        dtype: the dtype that `actual` must have.
        k: number of products in a sum, when `expected` is an array.

    Raises:
        AssertionError: wrong dtype, wrong shape, a NaN on one side only, or an element outside
            [round(expected - error), round(expected + error)]; names the worst element.
    """
    actual, dtype = as_numpy(actual), np.dtype(dtype)
    if not isinstance(expected, Reference):
        if k is None:
            raise TypeError("assert_close: `k` is needed when `expected` is an array")
        value = np.asarray(expected, np.float64)
        error = accumulation(k) * default_magnitude(value, k)
        expected = Reference(value, np.broadcast_to(error, value.shape))
    if actual.dtype != dtype:
        raise AssertionError(f"wrong dtype: got {actual.dtype}, expected {dtype}")
    if actual.shape != expected.value.shape:
        raise AssertionError(f"wrong shape: got {actual.shape}, expected {expected.value.shape}")
    _assert_same_nan(actual, expected.value)
    _assert_in_interval(actual, expected, dtype)


def _assert_same_nan(actual: np.ndarray, expected: np.ndarray) -> None:
    wrong = np.isnan(actual.astype(np.float64)) != np.isnan(expected)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"NaN on one side only at {int(wrong.sum())} of {wrong.size} elements, "
            f"first at {index}: got {actual[index]}, expected {expected[index]}"
        )


def rounding_interval(expected: Reference, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest value of `dtype` that a right result can have, as float64."""
    value = expected.value
    error = np.where(np.isfinite(value), expected.error, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        low = (value - error).astype(dtype).astype(np.float64)
        high = (value + error).astype(dtype).astype(np.float64)
    return low, high


def spacing(value: np.ndarray, dtype: Any) -> np.ndarray:
    """Distance of two neighbours of `dtype` at `value`: its unit in the last place."""
    info = ml_dtypes.finfo(np.dtype(dtype))
    exponent = np.where(value == 0, info.minexp, np.frexp(np.abs(value))[1] - 1)
    return np.ldexp(float(info.eps), np.maximum(exponent, info.minexp))


def _assert_in_interval(actual: np.ndarray, expected: Reference, dtype: np.dtype) -> None:
    low, high = rounding_interval(expected, dtype)
    got = actual.astype(np.float64)
    wrong = (got < low) | (got > high)
    if not wrong.any():
        return
    with np.errstate(invalid="ignore"):
        distance = np.maximum(low - got, got - high) / spacing(expected.value, dtype)
    worst = np.where(wrong, np.nan_to_num(distance, nan=np.inf, posinf=np.inf), -np.inf)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(worst)), got.shape))
    raise AssertionError(
        f"{int(wrong.sum())} of {wrong.size} elements wrong, worst at {index}: "
        f"got {got[index]!r}, expected {expected.value[index]!r}, "
        f"allowed [{low[index]!r}, {high[index]!r}], "
        f"outside by {worst[index]:.4g} units in the last place of {dtype}"
    )
