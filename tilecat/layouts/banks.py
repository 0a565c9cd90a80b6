"""Bank conflicts of shared-memory accesses, counted exactly from addresses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ..errors import LayoutError
from .shared import CHUNK_BYTES, PATTERN_LINES, SharedLayout

# CUDA C++ Programming Guide, compute capability 5.x and later: 32 banks of 4 bytes, one word a
# bank and wavefront, equal words broadcast.
NUM_BANKS = 32
WORD_BYTES = 4
WARP = 32


def lanes_per_phase(width_bytes: int) -> int:
    """Lanes served together: a wavefront moves 128 bytes, so 16 lanes of 8, 8 of 16 bytes."""
    return min(WARP, NUM_BANKS * WORD_BYTES // width_bytes)


def ideal_wavefronts(lanes: int, width_bytes: int) -> int:
    """Wavefronts of a request without conflicts."""
    return -(-lanes // lanes_per_phase(width_bytes))


def bank_conflicts(byte_addresses: Any, width_bytes: int) -> int:
    """Wavefronts of one warp's request: the sum over phases of the busiest bank's words.

    Example: 32 lanes reading 4 bytes each at stride 128 all hit bank 0: 32 wavefronts; at
    stride 4 one; 16-byte accesses at stride 16 take 4, which is their ideal.

    Args:
        byte_addresses: at most 32 addresses by lane; negative for an inactive lane.
        width_bytes: 1, 2, 4, 8 or 16 bytes a lane.

    Raises:
        LayoutError: an address is not a multiple of the width.
    """
    if width_bytes not in (1, 2, 4, 8, 16):
        raise LayoutError(
            f"bank_conflicts: an access has 1, 2, 4, 8 or 16 bytes, "
            f"got width_bytes={width_bytes} (int)"
        )
    addresses = np.asarray(byte_addresses, np.int64).reshape(-1)
    if addresses.size > WARP:
        raise LayoutError(
            f"bank_conflicts: a warp has {WARP} lanes, got {addresses.size} addresses"
        )
    if (addresses[addresses >= 0] % width_bytes).any():
        raise LayoutError(
            f"bank_conflicts: addresses must be multiples of the access's "
            f"{width_bytes} bytes, got {addresses.tolist()}"
        )
    lanes = lanes_per_phase(width_bytes)
    words_a_lane = np.arange(max(width_bytes // WORD_BYTES, 1))
    total = 0
    for first in range(0, addresses.size, lanes):
        active = addresses[first : first + lanes]
        active = active[active >= 0]
        # A set, not numpy.unique: that one imports numpy.ma at its first call, 60 ms.
        words = set((active[:, None] // WORD_BYTES + words_a_lane).ravel().tolist())
        total += max(Counter(word % NUM_BANKS for word in words).values(), default=0)
    return total


def ldmatrix_conflicts(layout: SharedLayout) -> int:
    """Wavefronts of the worst 8 x 8 matrix that ldmatrix reads in a tile: 1 means no conflict.

    A matrix is 8 lines of one 16-byte chunk; .trans moves data between registers, not addresses.
    """
    size = layout.dtype.nbytes
    worst = 0
    for first in range(0, layout.num_lines, PATTERN_LINES):
        for elem in range(0, layout.contiguous, CHUNK_BYTES // size):
            lines = first + np.arange(PATTERN_LINES)
            elems = np.full(PATTERN_LINES, elem)
            row, col = (lines, elems) if layout.order == "row" else (elems, lines)
            worst = max(worst, bank_conflicts(layout.byte_offset(row, col), CHUNK_BYTES))
    return worst


def stmatrix_conflicts(layout: SharedLayout) -> int:
    """Wavefronts of the worst 8 x 8 matrix that stmatrix writes: addresses as ldmatrix's."""
    return ldmatrix_conflicts(layout)
