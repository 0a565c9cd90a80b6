"""Gradients of attention against differences of its own forward, both on the PTX machine.

L = sum(dO O) is a function of Q, K and V. Along a direction d of each, with steps h that f16 holds
exactly, (L(x + h d) - L(x - h d)) / 2 h is the slope of L but for terms of h^2, and for the
roundings of O and P to f16, each of either sign. float64 gives the first; `DEVIATIONS` root sums
of squares bound the second (tests/reference.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gradients import gradients
from reference import DEVIATIONS, assert_close, attention, half_ulp

import tilecat as tc
from tilecat import f16

STEP = 2.0**-3  # inputs are multiples of 2**-5 below 4: sums are exact


def grid(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Numbers that f16 holds, and after a step too."""
    return np.clip(np.round(rng.standard_normal(shape) * 32) / 32, -3, 3)


def as_halves(inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    return tuple(x.astype(f16.numpy) for x in inputs.values())


def backward(inputs: dict[str, np.ndarray], dout: np.ndarray, causal: bool) -> tuple[Any, ...]:
    """Gradients by the machine, of what its forward gave."""
    out, lse = tc.attention(*as_halves(inputs), causal=causal, return_lse=True)
    halves = as_halves(inputs)
    return tc.attention_backward(dout.astype(f16.numpy), *halves, out, lse, causal=causal)


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize(("dim", "causal"), [(64, True), (128, False)])
def test_gradients_are_slopes_of_the_forward(dim, causal, name):
    rng = np.random.default_rng(dim + causal)
    shapes = {"q": (1, 2, 70, dim), "k": (1, 1, 90, dim), "v": (1, 1, 90, dim)}
    inputs = {key: grid(rng, *shape) for key, shape in shapes.items()}
    dout, direction = grid(rng, 1, 2, 70, dim), rng.choice([-1.0, 1.0], shapes[name])
    seen = (np.arange(90) <= np.arange(70)[:, None]) | (not causal)
    grads = getattr(gradients(*as_halves(inputs), dout.astype(f16.numpy), seen=seen), f"d{name}")
    wanted = float((grads.value * direction).sum())
    found = backward(inputs, dout, causal)["qkv".index(name)]
    found = float((found.astype(np.float64) * direction).sum())
    taken, slopes, noise = 0.0, 0.0, 0.0
    for sign in (1, -1):
        moved = {**inputs, name: inputs[name] + sign * STEP * direction}
        end, _ = attention(*as_halves(moved), dim**-0.5, lambda s: np.where(seen, s, -np.inf))
        got = tc.attention(*as_halves(moved), causal=causal)
        assert_close(got, end, f16.numpy)
        taken += sign * float((got.astype(np.float64) * dout).sum()) / (2 * STEP)
        slopes += sign * float((end.value * dout).sum()) / (2 * STEP)
        error = end.error + DEVIATIONS * half_ulp(f16.numpy) * np.abs(end.value)
        noise += float(((error * dout) ** 2).sum()) / (2 * STEP) ** 2
    error = grads.error + DEVIATIONS * half_ulp(f16.numpy) * np.abs(grads.value)
    noise = np.sqrt(noise + float((error**2).sum()))
    assert abs(taken - found) <= abs(slopes - wanted) + noise
    assert abs(slopes - wanted) + noise < 0.5 * np.linalg.norm(grads.value)  # a wrong one shows
