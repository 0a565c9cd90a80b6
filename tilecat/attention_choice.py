"""Which configuration and order of tasks the forward kernel gets: head dims, edges and lengths."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

TILE_DIMS = (32, 64, 96, 128, 192, 256)  # columns of tiles; heads between them meet zero columns
NARROWEST = 32  # keys a block
# Of K and V that the tiles at work read, so that L2 (60 MB on an H200) keeps them; more of them let
# tasks be shared out more evenly.
L2_BYTES = 48 << 20
BEST_BYTES = 32 << 20  # of equally even orders the one that is nearest
# Heads whose K and V may come from memory, a query row of a tile: with so many rows a byte of K and
# V is good for as many FLOPs, an SM makes 4.3e12 of them a second, and memory gives 1.6e12 bytes
# beside what else is read and written (trials on an H200: docs/design/attention-forward.md).
STREAMS = 1.6 / 4.3
# What a task takes beside its blocks, in blocks (H200, D 64, N 768 against 12288, 2026-11-30).
OVERHEAD = 1.2
CLOSE = 0.01  # shares that differ by less count as equal
TOGETHER = 4  # heads of a packed batch that are taken together
MAX_ORDERS = 64  # candidates that are replayed


@dataclass(frozen=True)
class Config:
    """Parameters of the kernel.

    Args:
        tile_k: keys a block.
        consumers: tiles of 64 queries a task.
        pingpong: whether consumers take turns.
        long_k: keys a block of long sequences, or None.
        long_rate: time a key of those blocks, to that of the others.
    """

    tile_k: int
    consumers: int
    pingpong: bool = True
    long_k: int | None = None
    long_rate: float = 1.0

    def keys(self, keys: int, uneven: bool) -> int:
        """Keys a block: few are beyond the end, or masked."""
        if self.long_k is None:
            return self.tile_k
        if uneven:
            return self.long_k if keys >= UNEVEN_LONG else self.tile_k
        padded = [-(-keys // tile) * tile for tile in (self.tile_k, self.long_k)]
        return self.long_k if padded[1] * self.long_rate < padded[0] else self.tile_k


UNEVEN_LONG = 4096  # keys from which wide blocks win where edges mask parts of them
# By columns of the wider tile: the fastest of those that fit in registers and shared memory
# (screened on one H200, against cuDNN in the same run, 2026-11-30).
CONFIGS = {
    32: Config(128, 3),
    64: Config(128, 3),
    96: Config(112, 3),
    128: Config(128, 2, long_k=176, long_rate=0.955),
    192: Config(112, 2),
    256: Config(80, 2),
}
# Of 8-bit types, whose blocks are a multiple of 32 keys, and divide 128, which share a factor.
EIGHT_BIT = {
    32: Config(128, 3), 64: Config(128, 3), 96: Config(128, 2), 128: Config(128, 2),
    192: Config(64, 2), 256: Config(64, 2),
}  # fmt: skip
NARROW_VALUES = {(192, 128): Config(128, 2)}  # where v's tile is narrower than q's


@dataclass(frozen=True)
class Problem:
    """What decides.

    Args:
        dim, dim_v: columns of q and k, of v.
        queries, keys: of a sequence; of a packed batch, on average.
        heads: of all batch entries.
        group: heads that share keys and values.
        left, right, shift: a query sees keys from `left` before to `right` behind its own, which is
            `shift` behind its position; None for no edge.
        sms: of the device.
        packed: sequences of several lengths.
        bits: of an element.
        step: what keys a block are a multiple of: 16, or 32 where mods read tensors of bytes.
    """

    dim: int
    dim_v: int
    queries: int
    keys: int
    heads: int
    group: int
    left: int | None
    right: int | None
    shift: int
    sms: int
    packed: bool = False
    bits: int = 16
    step: int = 16

    @property
    def uneven(self) -> bool:
        """Whether tasks of a sequence take different numbers of blocks."""
        return self.left is not None or self.right is not None


def tile_dim(dim: int) -> int:
    """Columns of the narrowest tile that holds a head dim."""
    return next(d for d in TILE_DIMS if d >= dim)


def choose(problem: Problem, eased: int = 0) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Compile-time parameters, and the arguments of the order of tasks.

    Args:
        problem: what is computed.
        eased: steps of 32 keys by which blocks are narrower than registers allow without mods.
    """
    wide, wide_v = tile_dim(problem.dim), tile_dim(problem.dim_v)
    config = NARROW_VALUES.get((wide, wide_v), CONFIGS[max(wide, wide_v)])
    if problem.bits == 8:
        config = EIGHT_BIT[max(wide, wide_v)]
    tile_k = config.keys(problem.keys, problem.uneven)
    tile_k = tile_k - 32 * eased if problem.bits == 16 else tile_k >> eased
    tile_k = max(tile_k // problem.step * problem.step, NARROWEST)
    consumers = min(config.consumers, max(1, -(-problem.queries // 64)))
    while consumers > 1 and _tasks(problem, consumers - 1) <= problem.sms:
        consumers -= 1
    longest = problem.uneven and _tasks(problem, consumers) > problem.sms
    params = {
        "dim": wide, "dim_v": wide_v, "tile_k": tile_k, "consumers": consumers,
        "pingpong": config.pingpong and consumers > 1,
        "order": "longest" if longest else "sequence",
    }  # fmt: skip
    if longest and problem.packed:
        return params, (max(problem.group, TOGETHER),)
    return params, order_of(problem, 64 * consumers, tile_k) if longest else ()


def _tasks(problem: Problem, consumers: int) -> int:
    return problem.heads * -(-problem.queries // (64 * consumers))


@lru_cache(maxsize=4096)
def order_of(problem: Problem, tall: int, tile_k: int) -> tuple[int, int]:
    """Arguments of `tc.longest_first` under which the CTA with most to do has least.

    Tasks are dealt to CTAs before the launch, so how even their shares are depends on how many
    heads come together, and on whether waves turn: each candidate is replayed.
    """
    blocks = _blocks(problem, tall, tile_k)
    even = float(blocks.sum()) * problem.heads / problem.sms
    kv_bytes = problem.bits // 8 * problem.keys * (problem.dim + problem.dim_v) / problem.group
    found = []
    for sections in range(1, problem.heads + 1):
        planes = -(-problem.heads // sections)
        size, few = planes * kv_bytes, planes <= problem.group * max(1, STREAMS * tall)
        if size > L2_BYTES and not few:
            continue
        away = abs(math.log(size / BEST_BYTES))
        for turned in (0, 1):
            share = _longest_share(blocks, problem, planes, turned) / even
            found.append((share, away, planes, turned))
        if len(found) >= MAX_ORDERS:
            break
    best = min(found)[0]
    return min(one[1:] for one in found if one[0] <= best + CLOSE)[1:]


def _blocks(problem: Problem, tall: int, tile_k: int) -> np.ndarray:
    """Key blocks of each tile, the last tile first; `Sight.blocks` on the host."""
    first = np.arange(-(-problem.queries // tall))[::-1] * tall
    last = np.minimum(first + tall, problem.queries)
    low, end = np.zeros_like(first), np.full_like(first, problem.keys)
    if problem.left is not None:
        low = np.maximum(first + problem.shift - problem.left, 0) // tile_k
    if problem.right is not None:
        end = np.clip(last + problem.shift + problem.right, 0, problem.keys)
    return np.maximum(-(-end // tile_k) - low, 1) + OVERHEAD


def _longest_share(blocks: np.ndarray, problem: Problem, planes: int, turned: int) -> float:
    """Blocks of the CTA that has most."""
    sections = -(-problem.heads // planes)
    low, taller = divmod(problem.heads, sections)
    high, short = np.repeat(blocks, low + 1), np.repeat(blocks, low)
    tasks = np.concatenate([high] * taller + [short] * (sections - taller))
    waves = -(-tasks.size // problem.sms)
    shares = np.zeros((waves, problem.sms))
    shares.flat[: tasks.size] = tasks
    if turned:
        shares[-2::-2] = shares[-2::-2, ::-1].copy()
    return float(shares.sum(0).max())
