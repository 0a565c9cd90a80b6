"""Decays between the steps of a chunk, strong ones and total ones included."""

from __future__ import annotations

import numpy as np
import pytest

import tilecat as tc
from tilecat import f32, gl, rv

STEPS = {
    "weak": lambda u: -0.05 * u,
    "strong": lambda u: -20 * u,
    "very strong": lambda u: -200 * u,
    "one step of -1e6": lambda u: np.where(np.arange(u.size) == 20, -1e6, -0.05 * u),
    "one step of -inf": lambda u: np.where(np.arange(u.size) == 20, -np.inf, -0.05 * u),
    "grows": lambda u: 0.3 * u,
}


@tc.kernel
def by_warpgroup(G: gl[f32, "N"], Y: gl[f32, "N", "N"], *, n: int, reverse: bool):
    with tc.warpgroup():
        g = tc.load(G[0], rv[f32, n])
        tc.store(Y[0, 0], tc.decay_tile(g, reverse=reverse))


@tc.kernel
def by_warp(G: gl[f32, "N"], Y: gl[f32, "N", "N"], *, n: int, reverse: bool):
    with tc.warpgroup():
        with tc.warps():
            g = tc.load(G[0], rv[f32, n])
            with tc.when(tc.warp_id() == 0):
                tc.store(Y[0, 0], tc.decay_tile(g, reverse=reverse))


def reference(g: np.ndarray, reverse: bool) -> np.ndarray:
    """Each exponent summed in float64."""
    size = g.size
    out = np.zeros((size, size))
    for j in range(size):
        for i in range(j, size):
            out[i, j] = np.exp(g[j + 1 : i + 1].astype(np.float64).sum())
    return out.T if reverse else out


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("kernel", "n"), [(by_warpgroup, 64), (by_warpgroup, 128), (by_warp, 32)])
@pytest.mark.parametrize("name", STEPS)
def test_decay_tile_sums_each_exponent(kernel, n, reverse, name):
    u = np.random.default_rng(2).random(n)
    g = STEPS[name](u).astype(np.float32)
    y = np.full((n, n), np.nan, np.float32)
    kernel(g, y, n=n, reverse=reverse, grid=1)
    # Sums of up to n steps in f32, whose error the exponential takes over.
    exponents = np.abs(np.cumsum(np.where(g > -1e3, g, 0))).max()
    np.testing.assert_allclose(y, reference(g, reverse), rtol=2**-21 * (1 + exponents), atol=1e-37)
