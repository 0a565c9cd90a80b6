"""Every op alone on the PTX machine, against NumPy; see ops_cases."""

from __future__ import annotations

import numpy as np
import pytest
from ops_cases import CASES, COLS, ROWS, N, OpCase, S, check, kernel_of, operands

import tilecat as tc
from tilecat import f32, gl, rt, rv, st
from tilecat.tiles import SharedTileType


@pytest.mark.parametrize("case", CASES, ids=str)
def test_op_on_the_machine_is_numpy(case: OpCase):
    arrays = operands()
    out = np.full((ROWS, COLS), np.nan, np.float32)
    kernel_of(case)(arrays.X, arrays.Y, arrays.R, arrays.C, out, N, S, grid=1)
    check(case, out, arrays)


def test_cases_have_names_of_their_own():
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, -0.0, 1e-40, 3.4e38])
def test_arithmetic_keeps_special_values(special: float):
    case = OpCase("add", lambda k: k.x + k.y, lambda k: k.x + k.y, 2.0**-23)
    arrays = operands()
    arrays.X[::7, ::3] = special
    out = np.zeros((ROWS, COLS), np.float32)
    kernel_of(case)(arrays.X, arrays.Y, arrays.R, arrays.C, out, N, S, grid=1)
    np.testing.assert_array_equal(out, arrays.X + arrays.Y)


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("cols", [16, 32, 48, 80, 96, 128, 144])
@pytest.mark.parametrize("dtype", [tc.bf16, tc.f16, f32], ids=str)
def test_tile_passes_through_shared_memory(dtype: tc.DType, cols: int, order: str):
    @tc.kernel
    def passes(X: gl[f32, "M", "N"], Z: gl[f32, "M", "N"]):
        with tc.warpgroup():
            tile = tc.shared(st[dtype, 64, cols, order])
            tc.store(tile, tc.cast(tc.load(X[0, 0], rt[f32, 64, cols]), dtype))
            tc.sync()
            tc.store(Z[0, 0], tc.cast(tc.load(tile), f32))

    x = np.random.default_rng(1).standard_normal((64, cols)).astype(np.float32)
    out = np.zeros_like(x)
    passes(x, out, grid=1)
    np.testing.assert_array_equal(out, x.astype(dtype.numpy).astype(np.float32))


@pytest.mark.parametrize("view", ["transposed", "reversed", "every second", "one row"])
def test_direct_loads_and_stores_take_any_strides(view: str):
    views = {
        "transposed": lambda a: a.T,
        "reversed": lambda a: a[::-1, ::-1],
        "every second": lambda a: a[::2, ::2],
        "one row": lambda a: a[3:4],
    }

    @tc.kernel
    def doubles(X: gl[tc.f16, "M", "N"], Z: gl[tc.f16, "M", "N"]):
        with tc.warpgroup():
            x = tc.load(X[0, 0], rt[tc.f16, 64, 64])
            tc.store(Z[0, 0], tc.cast(tc.cast(x, f32) * 2.0, tc.f16))

    base = np.random.default_rng(2).standard_normal((60, 50)).astype(np.float16)
    x, out = views[view](base), views[view](np.zeros_like(base))
    doubles(x, out, grid=1)
    np.testing.assert_array_equal(out, 2 * x)


def test_tiles_of_a_grid_are_shared_between_ctas():
    @tc.kernel
    def adds(X: gl[f32, "B", "M", "N"], bias: gl[f32, "N"], Z: gl[f32, "B", "M", "N"]):
        with tc.warpgroup():
            cols = tc.cdiv(X.cols, 32)
            for t in tc.range(tc.cta_id(), X.size(0) * cols, tc.num_ctas()):
                entry, col = t // cols, t % cols
                x = tc.load(X[entry, 0, col], rt[f32, 64, 32])
                tc.store(Z[entry, 0, col], x + tc.load(bias[col], rv[f32, 32, "col"]))

    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 40, 70)).astype(np.float32)
    bias, out = rng.standard_normal(70).astype(np.float32), np.zeros((3, 40, 70), np.float32)
    adds(x, bias, out)
    np.testing.assert_array_equal(out, x + bias)


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("dtype", [tc.bf16, f32], ids=str)
def test_tile_passes_through_every_swizzle(dtype: tc.DType, swizzle: int, order: str):
    """Narrow panels: warps of a column-ordered tile, and registers of a row-ordered one, cross."""
    kind = SharedTileType(dtype, 64, 64, order, swizzle)

    @tc.kernel
    def passes(X: gl[dtype, "M", "N"], Z: gl[dtype, "M", "N"]):
        with tc.warpgroup():
            tile = tc.shared(kind)
            tc.store(tile, tc.load(X[0, 0], rt[dtype, 64, 64]))
            tc.sync()
            tc.store(Z[0, 0], tc.load(tile))

    x = np.random.default_rng(1).standard_normal((64, 64)).astype(dtype.numpy)
    out = np.zeros_like(x)
    passes(x, out, grid=1)
    np.testing.assert_array_equal(out, x)
