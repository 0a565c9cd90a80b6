"""Which configuration of the forward kernel a problem gets: head dims, masks and lengths decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TILE_DIMS = (32, 64, 96, 128, 192, 256)  # columns of tiles; heads between them meet zero columns


NARROWEST = 32  # keys a block


@dataclass(frozen=True)
class Config:
    """Parameters of the kernel for heads of up to so many columns.

    Args:
        tile_k: keys a block.
        consumers: tiles of 64 queries a task.
        pingpong: whether consumers take turns.
    """

    tile_k: int
    consumers: int
    pingpong: bool = False


# By columns of the wider tile: what registers and shared memory hold (sm_90a, no spills).
CONFIGS = {
    32: Config(128, 3),
    64: Config(128, 3),
    96: Config(144, 2),
    128: Config(128, 2, True),
    192: Config(96, 2),
    256: Config(80, 2),
}


def tile_dim(dim: int) -> int:
    """Columns of the narrowest tile that holds a head dim."""
    return next(d for d in TILE_DIMS if d >= dim)


def choose(dim: int, dim_v: int, queries: int, uneven: bool, eased: int = 0) -> dict[str, Any]:
    """Compile-time parameters.

    Args:
        dim: of q and k, at most the widest tile's.
        dim_v: of v.
        queries: longest sequence of queries.
        uneven: whether tasks take different numbers of blocks: the longest come first.
        eased: steps of 32 keys by which blocks are narrower.
    """
    wide, wide_v = tile_dim(dim), tile_dim(dim_v)
    config = CONFIGS[max(wide, wide_v)]
    tile_k = max(config.tile_k - 32 * eased, NARROWEST)
    consumers = min(config.consumers, max(1, -(-queries // 64)))
    return {
        "dim": wide, "dim_v": wide_v, "tile_k": tile_k, "consumers": consumers,
        "pingpong": config.pingpong and consumers > 1, "order": "longest" if uneven else "sequence",
    }  # fmt: skip
