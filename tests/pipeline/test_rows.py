"""The streaming template: rows by warps, the next loaded while one is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from failures import fails

import tilecat as tc
from pipeline.schedules import check_schedules
from tilecat import bf16, f32, gl, rt, rv
from tilecat.errors import LayoutError, ScopeError

BF16 = bf16.numpy


@tc.kernel
def rms_norm(X: gl[bf16, "M", "D"], W: gl[bf16, "D"], Y: gl[f32, "M", "D"], eps: f32,
             *, D, warps=4, blocks=1):  # fmt: skip
    """Y = X / sqrt(mean(X^2) + eps) * W, a row a warp."""
    rows = tc.rows(X.rows, warps=warps, blocks_per_sm=blocks)
    kind = rv[f32, D, "plain"]

    @rows.start
    def _():
        return tc.load(W[0], kind)

    @rows.load
    def _(row):
        return tc.load(X[row, 0], kind)

    @rows.compute
    def _(row, x, w):
        mean = tc.reduce_vector("sum", x * x) * (1.0 / D)
        tc.store(Y[row, 0], x * tc.rsqrt(mean + eps) * w)


@pytest.mark.parametrize(("warps", "rows", "width"), [(4, 37, 96), (8, 5, 256), (4, 1, 32)])
def test_norm_of_rows(warps: int, rows: int, width: int):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((rows, width)).astype(BF16), rng.random(width).astype(BF16)
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * w.astype(np.float64)

    def check(args: list[Any]) -> None:
        # f32 sums of squares, a division and two products: 2**-23 each, 2**-22 of rsqrt.approx
        np.testing.assert_allclose(args[2], exact, rtol=(width + 8) * 2.0**-23)

    def make() -> list[Any]:
        return [x, w, np.full((rows, width), np.nan, np.float32), 1e-5]

    check_schedules(rms_norm, make, check, D=width, warps=warps, seeds=(0, 2))


@tc.kernel
def rotary(X: gl[f32, "H", "N", 64], C: gl[f32, "N", 32], S: gl[f32, "N", 32],
           Y: gl[f32, "H", "N", 64]):  # fmt: skip
    """Halves (a, b) of each row become (a cos - b sin, b cos + a sin); 16 rows a warp."""
    blocks = tc.cdiv(X.size(1), 16)
    rows = tc.rows(X.size(0) * blocks, warps=4)
    half = rt[f32, 16, 32]

    @rows.load
    def _(row):
        head, block = row // blocks, row % blocks
        return (tc.load(X[head, block, 0], half), tc.load(X[head, block, 1], half),
                tc.load(C[block, 0], half), tc.load(S[block, 0], half))  # fmt: skip

    @rows.compute
    def _(row, a, b, cos, sin):
        tc.store(Y[row // blocks, row % blocks, 0], a * cos - b * sin)
        tc.store(Y[row // blocks, row % blocks, 1], b * cos + a * sin)


def test_rotary_of_blocks_of_rows():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 50, 64)).astype(np.float32)
    angle = rng.standard_normal((50, 32)) * 10
    c, s = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    a, b = x[..., :32].astype(float), x[..., 32:].astype(float)
    exact = np.concatenate([a * c - b * s, b * c + a * s], -1)

    def check(args: list[Any]) -> None:
        np.testing.assert_allclose(args[3], exact, atol=2.0**-21 * abs(exact).max())

    check_schedules(rotary, lambda: [x, c, s, np.full_like(x, np.nan)], check, seeds=(0, 2))


def test_ctas_that_share_an_sm_are_in_the_text():
    compiled = rms_norm.compile(D=64, blocks=8)
    assert ".minnctapersm 8" in compiled.ptx and compiled.module.min_blocks == 8


# ---- bad input


def test_holes_return_registers():
    @tc.kernel
    def k(X: gl[f32, "M", 64]):
        rows = tc.rows(X.rows)

        @rows.load
        def _(row):
            return 3

        @rows.compute
        def _(row, x):
            pass

    error = pytest.raises(ScopeError, k.compile).value
    assert error.message == "rows.load: returns register tiles and vectors, got 3"


def test_compute_takes_what_load_returns():
    @tc.kernel
    def k(X: gl[f32, "M", 64]):
        rows = tc.rows(X.rows)

        @rows.load
        def _(row):
            return tc.load(X[row, 0], rv[f32, 64, "plain"])

        @rows.compute
        def _(row):
            pass

    fails(
        k.compile, ScopeError,
        "rows.compute: gets 2 arguments, the row and what load and start have returned, "
        "got a hole of 1",
        at="@rows.compute",
    )  # fmt: skip


def test_warps_are_whole_warpgroups():
    @tc.kernel
    def k(X: gl[f32, "M", 64]):
        tc.rows(X.rows, warps=6)

    fails(k.compile, LayoutError, "rows: warps of a CTA are a multiple of 4, got warps=6",
          at="tc.rows(", hint="warps=4")  # fmt: skip


def test_rows_need_their_holes():
    @tc.kernel
    def k(X: gl[f32, "M", 64]):
        tc.rows(X.rows)

    fails(k.compile, ScopeError, "rows: the hole `load` is not filled", at="tc.rows(",
          hint="@rows.load")  # fmt: skip


def test_plain_vector_of_a_warpgroup_is_reduced():
    @tc.kernel
    def k(X: gl[f32, 256], Y: gl[f32, 1]):
        with tc.warpgroup():
            tc.store(Y[0], tc.reduce_vector("sum", tc.load(X[0], rv[f32, 256, "plain"])))

    x, y = np.arange(256, dtype=np.float32), np.zeros(1, np.float32)
    k(x, y, grid=1)
    assert y[0] == x.sum()
