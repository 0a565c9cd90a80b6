"""tc.attention of e4m3 heads on the PTX machine, with factors of heads and of blocks."""

import ml_dtypes
import numpy as np
import pytest
import reference

import tilecat as tc
from tilecat.errors import DTypeError, LayoutError

E4M3 = ml_dtypes.float8_e4m3fn
# Of the norm: P is rounded to 4 significant bits, each by up to 2**-4, of either sign.
BOUND = 2.0**-5


def heads(*shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(E4M3)


def factors(*shape, seed):
    return (0.25 + np.random.default_rng(seed).random(shape)).astype(np.float32)


def of_rows(x, scale):
    """In float64, each row times its head's or its block's factor."""
    rows = scale[..., None] if scale.ndim == 2 else np.repeat(scale, 128, axis=2)
    return x.astype(np.float64) * rows[:, :, : x.shape[2], None]


@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (192, 128), (40, 72)])
@pytest.mark.parametrize("kind", ["", "head", "block"])
def test_fp8_is_right_but_for_its_probabilities(dims, kind):
    (dim, dim_v), queries, keys = dims, 200, 330
    q, k, v = (heads(1, h, n, d, seed=s) for h, n, d, s in
               ((2, queries, dim, 1), (1, keys, dim, 2), (1, keys, dim_v, 3)))  # fmt: skip
    options, wide = {}, [x.astype(np.float64) for x in (q, k, v)]
    if kind:
        for name, number in zip("qkv", range(3), strict=True):
            x = (q, k, v)[number]
            blocks = (-(-x.shape[2] // 128),) * (kind == "block")
            options[f"scale_{name}"] = factors(1, x.shape[1], *blocks, seed=number)
            wide[number] = of_rows(x, options[f"scale_{name}"])
    out, lse = tc.attention(q, k, v, causal="bottom-right", return_lse=True, **options)
    shift = np.arange(queries)[:, None] + keys - queries
    expected, expected_lse = reference.attention(
        *wide, None, lambda s: np.where(np.arange(keys) <= shift, s, -np.inf)
    )
    assert out.dtype == ml_dtypes.bfloat16
    error = np.linalg.norm(out.astype(float) - expected.value) / np.linalg.norm(expected.value)
    assert error < BOUND
    np.testing.assert_allclose(lse, expected_lse.value, atol=2e-5)


def test_values_with_keys_contiguous_are_not_copied(monkeypatch):
    q, k = heads(1, 1, 70, 64, seed=1), heads(1, 1, 96, 64, seed=2)
    v = heads(1, 1, 64, 96, seed=3).swapaxes(2, 3)
    copied = tc.attention(q, k, np.ascontiguousarray(v))
    monkeypatch.setattr("tilecat.attention_call.empty", None)
    np.testing.assert_array_equal(tc.attention(q, k, v), copied)


def test_f16_results_and_softcap():
    q, k, v = (heads(1, 1, 100, 64, seed=n) for n in range(3))
    scale = dict(zip(("scale_q", "scale_k", "scale_v"),
                     (factors(1, 1, seed=n) for n in range(3)), strict=True))  # fmt: skip
    out = np.full(q.shape, np.nan, np.float16)
    tc.attention(q, k, v, out=out, softcap=3.0, **scale)
    wide = [of_rows(x, s) for x, s in zip((q, k, v), scale.values(), strict=True)]
    expected, _ = reference.attention(*wide, None, lambda s: 3 * np.tanh(s / 3))
    error = np.linalg.norm(out.astype(float) - expected.value) / np.linalg.norm(expected.value)
    assert error < BOUND


Q = heads(1, 2, 30, 64, seed=0)
HEADS = factors(1, 2, seed=0)
WRONG = {
    "alone": (dict(scale_q=HEADS), LayoutError, "scale_q, scale_k and scale_v come together"),
    "shape": (dict(scale_q=HEADS, scale_k=HEADS, scale_v=HEADS[:, :1]), LayoutError,
              r"scale_v has the shape B x heads = \(1, 2\) here, got \(1, 1\)"),
    "blocks": (dict(zip(("scale_q", "scale_k", "scale_v"), [factors(1, 2, 2, seed=0)] * 3,
                        strict=True)), LayoutError, r"B x heads x blocks of 128 = \(1, 2, 1\)"),
    "dtype": (dict(scale_q=HEADS.astype(np.float16), scale_k=HEADS, scale_v=HEADS), DTypeError,
              "scale_q is f32, got f16"),
    "out": (dict(out=np.zeros((1, 2, 30, 64), np.float32)), DTypeError, "out is bf16 or f16"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_bad_factors_are_refused(name):
    options, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        tc.attention(Q, Q, Q, **options)
