"""Scans and positions of plain vectors, which a warp holds without copies."""

from __future__ import annotations

import numpy as np
import pytest

import tilecat as tc
from tilecat import f32, gl, rv, s32


@pytest.mark.parametrize("length", [16, 64, 80])
def test_scans_of_a_warps_plain_vector(length):
    @tc.kernel
    def k(X: gl[f32, 4, "N"], Up: gl[f32, 4, "N"], Down: gl[f32, 4, "N"], At: gl[s32, 4, "N"]):
        with tc.warpgroup(), tc.warps():
            row = tc.warp_id()
            x = tc.load(X[row, 0], rv[f32, length, "plain"])
            tc.store(Up[row, 0], tc.cumsum(x))
            tc.store(Down[row, 0], tc.cumsum(x, exclusive=True, reverse=True))
            tc.store(At[row, 0], tc.row_index(x))

    x = np.random.default_rng(0).standard_normal((4, length)).astype(np.float32)
    up, down, at = np.full_like(x, np.nan), np.full_like(x, np.nan), np.full(x.shape, -1, np.int32)
    k(x, up, down, at, grid=1)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(up, np.cumsum(wide, 1), atol=1e-5)
    np.testing.assert_allclose(down, np.cumsum(wide[:, ::-1], 1)[:, ::-1] - wide, atol=1e-5)
    np.testing.assert_array_equal(at, np.broadcast_to(np.arange(length), x.shape))
