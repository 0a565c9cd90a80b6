"""Random tiles: the published test vectors, and one stream whatever the layout."""

from __future__ import annotations

import numpy as np
import pytest
from convert_rows import philox

import tilecat as tc
from tilecat import f32, gl, rt, s32
from tilecat.dtypes import u32


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        (0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (0xFFFFFFFF, 0xFFFFFFFF, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ],
)
def test_reference_gives_the_published_vectors(counter: int, key: int, words: str):
    """Random123 1.09, kat_vectors, philox4x32 10."""
    made = philox([np.array([counter])] * 4, (key, key))
    assert " ".join(f"{int(word[0]):08x}" for word in made) == words


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("rows", [64, 128])
def test_numbers_do_not_depend_on_order_or_tile(order: str, rows: int):
    @tc.kernel
    def draws(Z: gl[u32, "M", "N"], n: s32):
        with tc.warpgroup():
            for i in range(128 // rows):
                like = tc.empty(rt[f32, rows, 64, order])
                tc.store(Z[i, 0], tc.random_bits(like, n, row=rows * i, col=64))

    out = np.zeros((128, 64), np.uint32)
    draws(out, 77, grid=1)
    at = np.indices((128, 64))
    zero = np.zeros_like(at[0])
    words = philox([(at[1] + 64) // 4, at[0], zero, zero], (77, 0))
    np.testing.assert_array_equal(out, np.choose(at[1] % 4, words).astype(np.uint32))
