"""Bank conflicts: wavefronts counted bank by bank, and the tiles that have none."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as hs

from tilecat.dtypes import bf16, e4m3, f32
from tilecat.errors import LayoutError
from tilecat.layouts import (
    SharedLayout,
    bank_conflicts,
    ideal_wavefronts,
    ldmatrix_conflicts,
    stmatrix_conflicts,
)


def counted(addresses: list[int], width: int) -> int:
    """Wavefronts, by dictionaries of words: 32 lanes a phase up to 4 bytes, 16 of 8, 8 of 16."""
    lanes = {8: 16, 16: 8}.get(width, 32)
    total = 0
    for first in range(0, len(addresses), lanes):
        banks = defaultdict(set)
        for address in addresses[first : first + lanes]:
            if address >= 0:
                for byte in range(address, address + width):
                    banks[byte // 4 % 32].add(byte // 4)
        total += max((len(words) for words in banks.values()), default=0)
    return total


@given(
    width=hs.sampled_from([1, 2, 4, 8, 16]),
    places=hs.lists(hs.integers(-1, 200), min_size=1, max_size=32),
)
def test_wavefronts_are_the_busiest_banks_words(width, places):
    addresses = [place * width if place >= 0 else -1 for place in places]
    assert bank_conflicts(addresses, width) == counted(addresses, width)


@pytest.mark.parametrize(
    ("stride", "width", "wavefronts"),
    [(4, 4, 1), (8, 4, 2), (128, 4, 32), (0, 4, 1), (132, 4, 1), (8, 8, 2), (16, 16, 4), (2, 2, 1)],
)
def test_known_strides(stride, width, wavefronts):
    assert bank_conflicts(stride * np.arange(32), width) == wavefronts
    assert ideal_wavefronts(32, width) == {2: 1, 4: 1, 8: 2, 16: 4}[width]


@pytest.mark.parametrize(
    ("cols", "swizzle", "ways"),
    [(64, 0, 8), (64, 128, 1), (32, 0, 4), (32, 64, 1), (16, 0, 2), (16, 32, 1), (128, 0, 8)],
)
def test_ldmatrix_of_bf16_tiles(cols, swizzle, ways):
    layout = SharedLayout.of(bf16, 64, cols, swizzle_bytes=swizzle)
    assert ldmatrix_conflicts(layout) == stmatrix_conflicts(layout) == ways


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("dtype", [e4m3, bf16, f32], ids=str)
def test_swizzled_tiles_have_no_matrix_conflicts(dtype, order):
    for width in range(32, 257, 32):
        shape = (16, width) if order == "row" else (width, 16)
        assert ldmatrix_conflicts(SharedLayout.of(dtype, *shape, order)) == 1


def test_bank_conflict_errors():
    with pytest.raises(
        LayoutError, match="an access has 1, 2, 4, 8 or 16 bytes, got width_bytes=3"
    ):
        bank_conflicts([0], 3)
    with pytest.raises(LayoutError, match="a warp has 32 lanes, got 33 addresses"):
        bank_conflicts(np.zeros(33), 4)
    with pytest.raises(LayoutError, match="addresses must be multiples of the access's 8 bytes"):
        bank_conflicts([0, 4], 8)
