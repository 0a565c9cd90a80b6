"""Gradients of norms of arrays of NumPy against float64."""

from __future__ import annotations

import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16
from tilecat.errors import DTypeError, LayoutError

LIMIT = 4e-3  # dy, what is normalised and gradients have 16 bits
RNG = np.random.default_rng(0)
X, DY, R, DS = (RNG.standard_normal((5, 3, 200)).astype(bf16.numpy) for _ in range(4))
W, B = (RNG.standard_normal(200).astype(np.float32) for _ in range(2))
SCALE = RNG.random((5, 3)).astype(np.float32)


def exact(dy, x, weight=1.0, eps=1e-6, rms=False, ds=0.0):
    """Of what is normalised, of the weight and of the bias."""
    dy, x, ds = (np.asarray(y).astype(np.float64) for y in (dy, x, ds))
    x = x if rms else x - x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    x = x * rstd
    g = dy * weight
    change = g - x * (g * x).mean(-1, keepdims=True)
    change = change if rms else change - g.mean(-1, keepdims=True)
    return change * rstd + ds, (dy * x).sum((0, 1)), dy.sum((0, 1))


def close(got, wanted):
    error = np.asarray(got).astype(np.float64) - wanted
    assert np.sqrt((error**2).mean()) <= LIMIT * np.sqrt((wanted**2).mean())


@pytest.mark.parametrize("rms", [False, True])
def test_gradients(rms):
    made = tc.layer_norm_fn_backward(DY, X, W, B, is_rms_norm=rms)
    assert made[3] is None
    for mine, wanted in zip(made, exact(DY, X, W, rms=rms), strict=False):
        close(mine, wanted)


def test_a_residual_and_scales_of_rows():
    sums = X.astype(float) * SCALE[..., None] + R.astype(float)
    dx, dw, db, dr = tc.layer_norm_fn_backward(DY, X, W, None, R, rowscale=SCALE, d_sums=DS)
    ds, wanted, _ = exact(DY, sums, W, ds=DS)
    assert db is None
    for mine, other in ((dx, ds * SCALE[..., None]), (dr, ds), (dw, wanted)):
        close(mine, other)
    same = tc.layer_norm_fn_backward(DY, X, None, None, R)
    assert same[0] is same[3]


def test_dropped_elements_have_no_gradient():
    _, sums = tc.layer_norm_fn(X, dropout_p=0.3, prenorm=True, seed=7)
    dx, *_ = tc.layer_norm_fn_backward(DY, X, dropout_p=0.3, seed=7)
    kept = np.asarray(sums).astype(float) != 0
    assert 0.6 < kept.mean() < 0.8
    close(dx, np.where(kept, exact(DY, sums)[0] / 0.7, 0))


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [({"dy": DY[:4]}, LayoutError, "dy"), ({"dropout_p": 0.5}, LayoutError, "seed"),
     ({"dy": DY.astype(np.float32)}, DTypeError, "dy is bf16"),
     ({"d_sums": DS[0]}, LayoutError, "d_sums")],
)  # fmt: skip
def test_refused(change, kind, message):
    with pytest.raises(kind, match="layer_norm_fn_backward: ") as caught:
        tc.layer_norm_fn_backward(**{"dy": DY, "x": X, **change})
    assert message in caught.value.message
