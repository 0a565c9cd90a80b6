"""Which bytes a plain access to shared memory touches, and its bank conflicts.

Shared memory has 32 banks of 4 bytes. A warp's request is served in phases: 32 lanes for accesses
of at most 4 bytes, 16 for 8 bytes, 8 for 16 bytes; a phase takes as many wavefronts as the most
distinct words in one bank. Banks are in the CUDA C++ Best Practices Guide, "Shared memory and
memory banks"; the split into phases is the usual model and has not been measured here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

_CACHE_LIMIT = 20000
_EMPTY = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Pattern:
    """One access: chunks that one warp covers whole, single bytes, overlaps, wavefronts.

    `overlap` is (warp, other warp, byte offset) if two warps touch one byte.
    """

    chunks: np.ndarray
    chunk_warps: np.ndarray
    bytes: np.ndarray
    byte_warps: np.ndarray
    overlap: tuple[int, int, int] | None
    wavefronts: int
    ideal: int


def pattern_of(
    machine: Machine, offsets: np.ndarray, threads: np.ndarray, num_bytes: int
) -> Pattern:
    """The pattern of an access of `num_bytes` a thread, kept for the next time."""
    key = ("pattern", num_bytes, offsets.tobytes(), threads.tobytes())
    found = machine.cache.get(key)
    if found is None:
        if len(machine.cache) > _CACHE_LIMIT:
            machine.cache.clear()
        found = machine.cache[key] = _analyse(offsets, threads, num_bytes)
    return found


def _analyse(offsets: np.ndarray, threads: np.ndarray, num_bytes: int) -> Pattern:
    warps = threads // 32
    wavefronts, ideal = _wavefronts(offsets, threads, num_bytes)
    if num_bytes == 16:
        keys = np.unique(warps << 32 | offsets >> 4)
        whole, single = keys, _EMPTY
    else:
        touched = (offsets[:, None] + np.arange(num_bytes)).ravel()
        keys = np.unique(np.repeat(warps, num_bytes) << 32 | touched)
        chunks, first, counts = np.unique(keys >> 4, return_index=True, return_counts=True)
        full = counts == 16
        whole = (keys[first[full]] >> 32) << 32 | (chunks[full] & (1 << 28) - 1)
        single = keys[~np.isin(keys >> 4, chunks[full])]
    low = (1 << 32) - 1
    return Pattern(whole & low, whole >> 32, single & low, single >> 32,
                   _overlap(offsets, warps, num_bytes), wavefronts, ideal)  # fmt: skip


def _overlap(offsets: np.ndarray, warps: np.ndarray, num_bytes: int) -> tuple[int, int, int] | None:
    """Two warps that touch one unit; units have the access's size and alignment."""
    unit = offsets // num_bytes
    order = np.lexsort((warps, unit))
    unit, warps = unit[order], warps[order]
    clash = np.nonzero((unit[1:] == unit[:-1]) & (warps[1:] != warps[:-1]))[0]
    if not len(clash):
        return None
    at = int(clash[0])
    return int(warps[at]), int(warps[at + 1]), int(unit[at]) * num_bytes


def _wavefronts(offsets: np.ndarray, threads: np.ndarray, num_bytes: int) -> tuple[int, int]:
    """Wavefronts of the worst warp's request, and its ideal."""
    lanes = min(32, 128 // max(num_bytes, 4))
    words = max(num_bytes // 4, 1)
    worst, ideal = 1, 1
    for warp in np.unique(threads // 32):
        mine = threads // 32 == warp
        phase = threads[mine] % 32 // lanes
        total = 0
        phases = np.unique(phase)
        for number in phases:
            start = offsets[mine][phase == number] >> 2
            distinct = np.unique(start[:, None] + np.arange(words))
            total += int(np.bincount(distinct & 31).max())
        if total * ideal > worst * len(phases):
            worst, ideal = total, len(phases)
        elif worst == ideal and len(phases) > ideal:
            worst = ideal = len(phases)
    return worst, ideal


def matrix_wavefronts(chunks: np.ndarray) -> tuple[int, int]:
    """Worst request of ldmatrix or stmatrix; `chunks` (warps, matrices, 8) of 16-byte rows."""
    worst = chunks.shape[1]
    for warp in chunks:
        total = 0
        for rows in warp:
            total += int(np.bincount(np.unique(rows) & 7).max())
        worst = max(worst, total)
    return worst, chunks.shape[1]
