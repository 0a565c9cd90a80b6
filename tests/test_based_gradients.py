"""Gradients of Based against float64, on the PTX machine."""

from __future__ import annotations

import numpy as np
import pytest
from recurrences import assert_near, poison_calls
from test_based import features, weights

import tilecat as tc
from tilecat import based_backward_call, bf16, f16
from tilecat.errors import DTypeError, LayoutError
from tilecat.kernels.based_gradient import based_gradient as kernel

# Of q and k: scores' gradients, states and outputs are rounded to bf16, each 1.1e-3 at most, and
# what goes back from features is a sum of such. Divided ones are differences from a row's mean.
LIMIT, DIVIDED, STATE_LIMIT = 4e-3, 8e-3, 2.5e-3


def backward_of_features(g, x, root):
    """From gradients g of features of root x to those of x."""
    made = np.zeros(x.shape)
    for f, what in enumerate(tc.taylor_order()):
        if len(what) == 1 and what[0] >= 0:
            made[..., what[0]] += g[..., f] * root
        for i, j in (what, what[::-1]) if len(what) == 2 else ():
            made[..., i] += g[..., f] * x[..., j] * root**2 * (0.5**0.5 if i == j else 1.0)
    return made


def exact(do, q, k, v, scale, norm, state=None, d_last=None):
    """dq, dk, dv and the first state's gradient."""
    do, q, k, v = (x.astype(np.float64) for x in (do, q, k, v))
    w, s = weights(q, k, scale), scale * (q @ k.swapaxes(-1, -2))
    dw = do @ v.swapaxes(-1, -2)
    if norm:
        total = w.sum(-1, keepdims=True) + 1e-6
        dw = (dw - (do * (w @ v / total)).sum(-1, keepdims=True)) / total
        do = do / total
    ds = np.tril(dw * (1 + s))
    dq, dk, dv = scale * ds @ k, scale * ds.swapaxes(-1, -2) @ q, w.swapaxes(-1, -2) @ do
    root, first = scale**0.5, None
    if state is not None:
        dq = dq + backward_of_features(do @ state.swapaxes(-1, -2), q, root)
        first = features(q, root)[0].swapaxes(-1, -2) @ do
    if d_last is not None:
        dk = dk + backward_of_features(v @ d_last.swapaxes(-1, -2), k, root)
        dv = dv + features(k, root)[0] @ d_last
        first = first if first is None else first + d_last
    return dq, dk, dv, first


def arrays(length, columns, heads=1, dtype=bf16, seed=0, size=1.0):
    """do, q, k, v, tokens before heads in memory."""
    rng = np.random.default_rng(seed)
    given = ((columns, 1.0), (16, size), (16, 1.0), (columns, 1.0))
    return [
        (factor * rng.standard_normal((1, length, heads, d))).astype(dtype.numpy).swapaxes(1, 2)
        for d, factor in given
    ]


def check(length, columns=64, heads=1, *, norm=False, states=False, dtype=bf16, scale=0.25,
          size=1.0):  # fmt: skip
    """A call on arrays; whatever it allocates is written, or the numbers are not there."""
    given = arrays(length, columns, heads, dtype, size=size)
    rng, shape = np.random.default_rng(1), (1, heads, 160, columns)
    first, last = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    pair = (first, last) if states else (None, None)
    made = tc.based_backward(*given, scale, norm, initial_state=pair[0], d_final_state=pair[1])
    factor = 1 if dtype is bf16 else 1 / 8
    limits = [factor * (DIVIDED if norm else LIMIT)] * 3 + [STATE_LIMIT]
    for got, wanted, limit in zip(made, exact(*given, scale, norm, *pair), limits, strict=True):
        if wanted is None:
            assert got is None
        else:
            assert_near(got, wanted, limit)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What the call allocates is NaN until it is written."""
    poison_calls(monkeypatch, based_backward_call)


@pytest.mark.parametrize(
    "length", [130, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 63, 64, 65, 200, 300))]
)
def test_lengths(length):
    check(length, states=length == 130)


@pytest.mark.parametrize("length", [70, pytest.param(200, marks=pytest.mark.full)])
def test_divided(length):
    check(length, norm=True)


@pytest.mark.full
@pytest.mark.parametrize(
    ("columns", "heads", "options"),
    [(112, 2, {"states": True}), (24, 1, {"norm": True}), (100, 1, {"norm": True, "scale": 0.5}),
     (64, 3, {"dtype": f16}), (64, 1, {"size": 6.0}), (30, 2, {"states": True}),
     (128, 1, {"norm": True, "dtype": f16})],
)  # fmt: skip
def test_widths_heads_and_options(columns, heads, options):
    check(130, columns, heads, **options)


@pytest.mark.parametrize("reverse", [False, pytest.param(True, marks=pytest.mark.full)])
def test_no_races(reverse):
    do, q, k, v = arrays(130, 64, 2)
    out = np.full((1, *q.shape), np.nan, np.float32)
    given = (k, q, v, do) if reverse else (q, k, do, v)
    for seed in (0, 1, 2) if reverse else (1,):
        result = kernel.simulate(*given, out, 0.25, 0.5, reverse=reverse, grid=1, seed=seed)
        assert not result.reports, str(result)
        assert_near(out[0], exact(do, q, k, v, 0.25, False)[1 if reverse else 0], LIMIT)


def test_refusals():
    do, q, k, v = arrays(70, 64)
    state = np.zeros((1, 1, 160, 64), np.float32)
    for kind, message, call in (
        (LayoutError, "based_backward: do has the shape of v", lambda: tc.based_backward(
            do[..., :9], q, k, v)),
        (DTypeError, "based_backward: do is bf16", lambda: tc.based_backward(
            do.astype(np.float32), q, k, v)),
        (LayoutError, "q and k have 16 columns", lambda: tc.based_backward(do, v, v, v)),
        (LayoutError, "scale is positive, got -1", lambda: tc.based_backward(do, q, k, v, -1.0)),
        (LayoutError, "no sums of earlier weights", lambda: tc.based_backward(
            do, q, k, v, initial_state=state)),
        (LayoutError, "d_final_state has the shape B x H x 160 x V", lambda: tc.based_backward(
            do, q, k, v, d_final_state=state[..., :9])),
    ):  # fmt: skip
        error = pytest.raises(kind, call).value
        assert message in error.message, error.message


def test_nothing_to_do_keeps_the_states():
    given = arrays(0, 64)
    ones = np.ones((1, 1, 160, 64), np.float32)
    *_, first = tc.based_backward(*given, None, False, initial_state=ones, d_final_state=ones)
    assert (first == 1).all()
