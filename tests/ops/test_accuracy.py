"""Errors of the f32 functions against float64, over their ranges, and what special values give."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tilecat as tc
from tilecat import f32, gl, rt

ROWS, COLS = 256, 256
erf = np.vectorize(math.erf, otypes=[np.float64])
erfc = np.vectorize(math.erfc, otypes=[np.float64])
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, 1.0, -1.0, 0.5])


@dataclass(frozen=True)
class Bound:
    """A function, and its error over a range: in ulp of the result, or absolute."""

    name: str
    body: Callable[[Any], Any]
    reference: Callable[[np.ndarray], np.ndarray]
    low: float
    high: float
    ulp: float = 0.0
    absolute: float = 0.0
    logarithmic: bool = False

    def __str__(self) -> str:
        return self.name


def accurate(name: str) -> Callable[[Any], Any]:
    return lambda x: getattr(tc, name)(x, accurate=True)


BOUNDS = (
    Bound("exp", accurate("exp"), np.exp, -103, 88.7, 1.01),
    Bound("log", accurate("log"), np.log, 1e-42, 3e38, 1.0, logarithmic=True),
    Bound("log near 1", accurate("log"), np.log, 0.5, 2.0, 1.0),
    Bound("tanh", accurate("tanh"), np.tanh, -10, 10, 2.0),
    Bound("tanh near 0", accurate("tanh"), np.tanh, 1e-30, 1, 2.0, logarithmic=True),
    Bound("sin", accurate("sin"), np.sin, -(2**16), 2**16, absolute=2.0**-23),
    Bound("cos", accurate("cos"), np.cos, -(2**16), 2**16, absolute=2.0**-23),
    Bound("sin near 0", accurate("sin"), np.sin, -3, 3, 2.0, absolute=2.0**-24),
    Bound("rcp", accurate("rcp"), lambda x: 1 / x, 1e-38, 1e38, 0.5, logarithmic=True),
    Bound("sqrt", accurate("sqrt"), np.sqrt, 1e-44, 3e38, 0.5, logarithmic=True),
    Bound("rsqrt", accurate("rsqrt"), lambda x: x**-0.5, 1e-44, 3e38, 1.5, logarithmic=True),
    Bound("div", lambda x: tc.div(x, 3.0, accurate=True), lambda x: x / 3, -9, 9, 0.5),
    Bound("erf", tc.erf, erf, -5, 5, 2.0),
    Bound("erf near 0", tc.erf, erf, 1e-30, 1, 2.0, logarithmic=True),
    Bound("gelu", tc.gelu, lambda x: x * erfc(-x / 2**0.5) / 2, -5, 5, 24.0),
    Bound("gelu tail", tc.gelu, lambda x: x * erfc(-x / 2**0.5) / 2, -12, -5, 160.0),
    Bound("gelu half", lambda x: tc.gelu(x, approximate="half"),
          lambda x: x * erfc(-x / 2**0.5) / 2, -5, 5, 2.0**11),
    Bound("gelu half, tails", lambda x: tc.gelu(x, approximate="half"),
          lambda x: x * erfc(-x / 2**0.5) / 2, -60, -5, absolute=2.0**-20),
    Bound("softplus", tc.softplus, lambda x: np.maximum(x, 0) + np.log1p(np.exp(-abs(x))), -60, 60,
          64.0),
    Bound("softplus near 0", tc.softplus, lambda x: np.log1p(np.exp(x)), -4, 4, 8.0),
    Bound("sigmoid", tc.sigmoid, lambda x: 1 / (1 + np.exp(-x)), -60, 60, 64.0),
    Bound("silu", tc.silu, lambda x: x / (1 + np.exp(-x)), -20, 20, 24.0),
    Bound("gelu tanh", lambda x: tc.gelu(x, approximate="tanh"),
          lambda x: x / (1 + np.exp(-2 * (2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))), -5, 5, 32.0),
    Bound("exp approximate", tc.exp, np.exp, -60, 60, 64.0),
)  # fmt: skip


def computed(body: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    """The function of an array of 256 columns, on the machine."""

    @tc.kernel
    def function(X: gl[f32, "M", COLS], Z: gl[f32, "M", COLS]):
        with tc.warpgroup():
            for i in tc.range(tc.cdiv(X.size(0), 64)):
                tc.store(Z[i, 0], body(tc.load(X[i, 0], rt[f32, 64, COLS])))

    out = np.zeros_like(x)
    function(x, out, grid=1)
    return out


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_error_is_within_its_bound(bound: Bound):
    rng = np.random.default_rng(0)
    if bound.logarithmic:
        x = np.exp(rng.uniform(np.log(bound.low), np.log(bound.high), (ROWS, COLS)))
    else:
        x = rng.uniform(bound.low, bound.high, (ROWS, COLS))
    x = x.astype(np.float32)
    wanted = bound.reference(x.astype(np.float64))
    unit = np.maximum(np.spacing(abs(wanted).astype(np.float32)).astype(np.float64), 2.0**-149)
    error = abs(computed(bound.body, x) - wanted)
    worst = (error / np.maximum(bound.ulp * unit, bound.absolute)).max()
    assert worst <= 1, f"{worst:.3g} times the bound of {bound.ulp} ulp or {bound.absolute}"


EXACT: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = {
    "exp": (accurate("exp"), np.exp),
    "log": (accurate("log"), np.log),
    "tanh": (accurate("tanh"), np.tanh),
    "rcp": (accurate("rcp"), lambda x: 1 / x),
    "sqrt": (accurate("sqrt"), np.sqrt),
    "rsqrt": (accurate("rsqrt"), lambda x: 1 / np.sqrt(x)),
    "erf": (tc.erf, erf),
    "floor": (tc.floor, np.floor),
    "ceil": (tc.ceil, np.ceil),
    "round": (tc.round, np.rint),
    "trunc": (tc.trunc, np.trunc),
    "sigmoid": (tc.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "softplus": (tc.softplus, lambda x: np.logaddexp(0, x)),
    "maximum nan": (lambda x: tc.maximum(x, 0.5, nan=True), lambda x: np.maximum(x, 0.5)),
    "minimum nan": (lambda x: tc.minimum(x, 0.5, nan=True), lambda x: np.minimum(x, 0.5)),
    "maximum": (lambda x: tc.maximum(x, 0.5), lambda x: np.fmax(x, 0.5)),
    "clamp": (lambda x: tc.clamp(x, -0.5, 0.5), lambda x: np.where(x == x, np.clip(x, -0.5, 0.5),
                                                                    -0.5)),
    "ne": (lambda x: tc.select(x != x, 1.0, 0.0), np.isnan),
    "eq": (lambda x: tc.select(x == 0.0, 1.0, 0.0), lambda x: x == 0),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_special_values_give_what_numpy_gives(name: str):
    body, reference = EXACT[name]
    x = np.resize(SPECIAL, (64, COLS)).astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = reference(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(computed(body, x), wanted, rtol=2.0**-21, atol=0)


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_circular_functions_of_infinity_are_nan(name: str):
    x = np.resize(np.array([np.inf, -np.inf, np.nan]), (64, COLS)).astype(np.float32)
    assert np.isnan(computed(accurate(name), x)).all()
