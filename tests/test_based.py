"""The kernel of Based against its definition in float64, on the PTX machine."""

from __future__ import annotations

import numpy as np
import pytest
from recurrences import assert_near

import tilecat as tc
from tilecat import bf16, f16
from tilecat.kernels.based import based as kernel

# 1.5 times what NumPy gives with features, scores, values and outputs rounded to bf16: 1.6e-3.
LIMIT, STATE_LIMIT = 3.6e-3, 2.5e-3


def weights(q, k, scale):
    """`1 + s + s^2 / 2` of the pairs that see each other."""
    s = scale * (q @ k.swapaxes(-1, -2))
    return np.tril(1 + s + s * s / 2)


def features(x, root):
    """Rows as columns of `tc.taylor_order`, and all 1 + 16 + 256 of them, in float64."""
    x = root * x
    made = [
        x[..., list(c)].prod(-1) * (0.5**0.5 if len(c) == 2 and c[0] == c[1] else 1.0)
        if -1 not in c else 0 * x[..., 0]
        for c in tc.taylor_order()
    ]  # fmt: skip
    whole = [np.ones(x.shape[:-1]), *np.moveaxis(x, -1, 0)]
    whole += [x[..., i] * x[..., j] * 0.5**0.5 for i in range(16) for j in range(16)]
    return np.stack(made, -1), np.stack(whole, -1)


def check(heads, columns, lengths, *, dtype=bf16, norm=False, states=False, size=1.0, scale=0.25,
          seed=0, **params):  # fmt: skip
    """Some sequences one after another (one: not packed), tokens before heads in memory."""
    rng, total = np.random.default_rng(seed), sum(lengths)

    def normal(d, factor=1.0):
        x = (factor * rng.standard_normal((1, total, heads, d))).astype(dtype.numpy)
        return x.swapaxes(1, 2)

    q, k, v = normal(16, size), normal(16), normal(columns)
    out = np.full((1, total, heads, columns), np.nan, dtype.numpy).swapaxes(1, 2)
    first = rng.standard_normal((len(lengths), heads, 160, columns)).astype(np.float32)
    last = np.full_like(first, np.nan)
    starts = np.cumsum([0, *lengths]).astype(np.int32) if len(lengths) > 1 else None
    args = [] if starts is None else [starts]
    kernel(q, k, v, out, scale, scale**0.5, *args, *([first, last] if states else []),
           packed=starts is not None, norm=norm, start=states, end=states, **params)  # fmt: skip
    where = np.cumsum([0, *lengths])
    for i, (a, z) in enumerate(zip(where, where[1:], strict=False)):
        x, y, u = (t[0, :, a:z].astype(np.float64) for t in (q, k, v))
        w = weights(x, y, scale)
        exact = w @ u
        if states:
            exact = exact + features(x, scale**0.5)[0] @ first[i]
        if norm:
            exact = exact / (w.sum(-1, keepdims=True) + 1e-6)
        limit = LIMIT if dtype is bf16 else LIMIT / 8
        assert_near(out[0, :, a:z], exact, limit)
        if states:
            phi = features(y, scale**0.5)[0]
            assert_near(last[i], first[i] + phi.swapaxes(-1, -2) @ u, STATE_LIMIT)


def test_features_are_a_kernel():
    """153 of them have the inner product that all 273 have."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 50, 16))
    for few, many in [(features(x, 0.5), features(y, 0.5))]:
        np.testing.assert_allclose(few[0] @ many[0].T, few[1] @ many[1].T, rtol=1e-12)
        s = x @ y.T / 4
        np.testing.assert_allclose(few[0] @ many[0].T, 1 + s + s * s / 2, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", [1, 65, 200, *(pytest.param(n, marks=pytest.mark.full) for n in
                                                 (15, 63, 64, 127))])  # fmt: skip
def test_lengths(length):
    check(1, 64, [length], states=length == 65)


@pytest.mark.parametrize("norm", [False, True])
def test_norms_and_large_scores(norm):
    check(1, 64, [200], norm=norm, size=6.0)


@pytest.mark.full
@pytest.mark.parametrize(
    ("heads", "columns", "dtype", "params"),
    [(3, 64, f16, {}), (1, 112, bf16, {}), (1, 24, bf16, {"norm": True}), (2, 128, f16, {})],
)
def test_heads_and_widths(heads, columns, dtype, params):
    check(heads, columns, [130], dtype=dtype, states=not params, **params)


@pytest.mark.parametrize("element", [pytest.param(n, marks=pytest.mark.full) for n in range(16)])
def test_single_elements(element):
    """Queries and keys of one element alone: each feature reaches its own."""
    q = np.zeros((1, 1, 130, 16), bf16.numpy)
    q[..., element] = 4
    v = np.ones((1, 1, 130, 64), bf16.numpy)
    out = np.full_like(v, np.nan)
    kernel(q, q, v, out, 0.25, 0.5)
    assert_near(out, 13.0 * np.arange(1, 131)[None, None, :, None] + 0 * v.astype(float), LIMIT)


def test_packed_sequences():
    check(1, 64, [0, 1, 64, 65], states=True)
    check(1, 64, [70, 30], norm=True)
