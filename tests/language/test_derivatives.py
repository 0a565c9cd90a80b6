"""`tc.derivative` against central differences in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tilecat as tc
from tilecat import f32, gl, rt

FUNCTIONS = {
    "constant": (lambda x: tc.zeros(rt[f32, 64, 64]), lambda x: 0 * x),
    "identity": (lambda x: x, lambda x: x),
    "arithmetic": (lambda x: (2.0 - x) * x / (x + 4.0) - (-x), lambda x: (2 - x) * x / (x + 4) + x),
    "fma": (lambda x: tc.fma(x, x, x), lambda x: x * x + x),
    "abs": (abs, abs),
    "relu": (tc.relu, lambda x: np.maximum(x, 0)),
    "maximum": (lambda x: tc.maximum(x * x, x + 1.0), lambda x: np.maximum(x * x, x + 1)),
    "minimum": (lambda x: tc.minimum(x * 3.0, 1.0), lambda x: np.minimum(3 * x, 1)),
    "exp": (tc.exp, np.exp),
    "exp2": (tc.exp2, np.exp2),
    "log": (lambda x: tc.log(x + 3.0), lambda x: np.log(x + 3)),
    "log2": (lambda x: tc.log2(x + 3.0), lambda x: np.log2(x + 3)),
    "rcp": (lambda x: tc.rcp(x + 3.0), lambda x: 1 / (x + 3)),
    "sqrt": (lambda x: tc.sqrt(x + 3.0), lambda x: np.sqrt(x + 3)),
    "rsqrt": (lambda x: tc.rsqrt(x + 3.0), lambda x: 1 / np.sqrt(x + 3)),
    "tanh": (lambda x: tc.tanh(x, accurate=True), np.tanh),
    "sigmoid": (tc.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "softplus": (tc.softplus, lambda x: np.log1p(np.exp(x))),
    "sin": (tc.sin, np.sin),
    "cos": (tc.cos, np.cos),
    "floor": (tc.floor, np.floor),
    "select": (lambda x: tc.select(x > 0.5, x * x, 3.0 * x),
               lambda x: np.where(x > 0.5, x * x, 3 * x)),
    "chain": (lambda x: 30.0 * tc.tanh(tc.exp(x) * (1 / 30), accurate=True),
              lambda x: 30 * np.tanh(np.exp(x) / 30)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivative_is_that_of_float64(name):
    ours, theirs = FUNCTIONS[name]

    @tc.kernel
    def derive(X: gl[f32, 64, 64], Y: gl[f32, 64, 64], D: gl[f32, 64, 64]):
        with tc.warpgroup():
            y, slope = tc.derivative(ours, tc.load(X[0, 0], rt[f32, 64, 64]))
            tc.store(Y[0, 0], y)
            tc.store(D[0, 0], slope if hasattr(slope, "T") else tc.full(rt[f32, 64, 64], slope))

    x = np.linspace(-1.49, 1.51, 4096, dtype=np.float32).reshape(64, 64)
    y, d = np.full_like(x, math.nan), np.full_like(x, math.nan)
    derive(x, y, d, grid=1)
    wide, step = x.astype(np.float64), 1e-6
    exact = (theirs(wide + step) - theirs(wide - step)) / (2 * step)
    np.testing.assert_allclose(y, theirs(wide), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(d, exact, rtol=1e-4, atol=1e-4)


def derived(f):
    @tc.kernel
    def derive(X: gl[f32, 64, 64]):
        with tc.warpgroup():
            tc.derivative(f, tc.load(X[0, 0], rt[f32, 64, 64]))

    return derive.compile


@pytest.mark.parametrize(("f", "why"), [
    (lambda x: tc.exp(x, out=x), "it writes in place"),
    (lambda x: tc.erf(x), "there is no rule for it"),
    (lambda x: tc.row_max(x), "there is no rule for it"),
])  # fmt: skip
def test_what_has_no_rule_is_an_error(f, why):
    error = pytest.raises(tc.LayoutError, derived(f)).value
    assert error.message.startswith("derivative: ") and error.message.endswith(why)
    assert error.loc is not None and "lambda x" in error.loc.text


def test_a_function_gives_registers():
    error = pytest.raises(tc.LayoutError, derived(lambda x: 3.0)).value
    assert error.message == "derivative: f gives registers, got 3.0"
