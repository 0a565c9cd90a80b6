"""Which configuration of the GEMM a call takes: measured, or the best of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .arch import DEFAULT_TARGET, Arch, arch_of
from .gemm_call import HALVES
from .gemm_winners import Version, Winner, measured, version
from .model.gemm import (
    LEAST_STEPS,
    MOST_PARTS,
    cycles,
    shared,
    tensor_cycles,
    traffic_cycles,
    waves,
)

PARTS = ("split_k", "stream_k")  # parameters that have partial sums exchanged
THIN = 16  # rows of A up to which A and B change places


@dataclass(frozen=True)
class Problem:
    """What a choice depends on.

    Args:
        m: rows of one product.
        n: columns.
        depth: K in units of 2 bytes, as the tensor cores count.
        layout: of A and B, N for row-major and T for transposed: "NN", "NT", "TN" or "TT".
        planes: products of a batch.
        sms: of the device.
        dtype: of A.
        widest: columns that a tile has at most.
        sums: registers a thread that accumulators take at most.
        plain: whether the product is stored as it is, and of 2 or 4 bytes an element.
        grouped: whether rows are those of experts.
        block: columns that share a scale: a tile is whole blocks, or a part of one.
        splits: whether CTAs may share the K of a tile.
        target: of the device.
        reached: whether TMA reaches A and B.
    """

    m: int
    n: int
    depth: int
    layout: str
    planes: int
    sms: int
    dtype: str
    widest: int = 256
    sums: int = 192
    plain: bool = True
    grouped: bool = False
    block: int = 1
    splits: bool = False
    target: str = DEFAULT_TARGET
    reached: bool = True

    @property
    def arch(self) -> Arch:
        """That of the target."""
        return arch_of(self.target)

    @property
    def turned(self) -> bool:
        """Whether `C.T = B.T @ A.T` is computed, so that the tile's 64 rows are those of N."""
        thin = self.m <= THIN < self.n and "wgmma" in self.arch.features
        return self.dtype in HALVES and thin and self.plain and not self.grouped

    @property
    def as_measured(self) -> bool:
        """Whether winners were measured for such products: of one matrix, of any tile's width."""
        one = self.planes == 1 and not self.grouped
        return self.dtype in HALVES and one and self.widest == WIDEST and not self.turned


WIDEST = 256
# Rows, columns, stages, whether consumers take tiles in turn.
TILES = (
    (128, 256, 4, 0), (128, 192, 4, 0), (128, 128, 5, 0), (64, 256, 5, 0), (64, 128, 8, 0),
    (64, 64, 8, 0), (192, 192, 3, 0), (192, 128, 4, 0), (128, 192, 4, 1), (128, 128, 6, 1),
)  # fmt: skip
# Of chips whose sums are in tensor memory; of pairs, each CTA has so many rows. By the model alone.
TENSOR_TILES: tuple[dict[str, Any], ...] = (
    {"tile_m": 128, "tile_n": 256, "stages": 5, "cluster": 2, "pairs": True},
    {"tile_m": 128, "tile_n": 128, "stages": 6, "cluster": 2, "pairs": True},
    {"tile_m": 128, "tile_n": 256, "stages": 3}, {"tile_m": 128, "tile_n": 128, "stages": 5},
    {"tile_m": 128, "tile_n": 64, "stages": 7}, {"tile_m": 64, "tile_n": 64, "stages": 8},
)  # fmt: skip
# With 64 rows of B.T a tile nearly all of the ring holds B, so that enough of it is under way; the
# rows of M = 1 and 16 in benchmarks/results/h200.json are products of this configuration.
TURNED = {"tile_m": 64, "tile_n": 16, "tile_k": 128, "stages": 7, "group": 8}


STREAMED_BYTES = 30 << 20  # half of an H200's L2: what is larger finds nothing of itself there
# Products with scales of blocks on an H200 (benchmarks/results/block_scales.json): what is best of
# tiles of 256 columns, and how much longer those of fewer take.
_BESIDE_SCALES = {WIDEST: {"stages": 3, "cluster": 2}}
NARROW = 1.13
GAIN = 0.95  # of the time without parts: what parts have to win


def choose(problem: Problem) -> dict[str, Any]:
    """Parameters of the kernel.

    Of this very problem if it was measured; of the nearest one that was, in its bucket, if the
    model finds them faster; else the model's best of a few tiles.
    """
    return _choose(problem, version())


@lru_cache(maxsize=4096)
def _choose(problem: Problem, version: Version) -> dict[str, Any]:
    params = _tiles(problem)
    return {**params, **_priorities(params, problem)}


def _priorities(params: dict[str, int], problem: Problem) -> dict[str, Any]:
    """What L2 is told of an operand that one column or row of tiles reads, or two side by side.

    It drives others' lines out of L2 for nothing, and has what was written before written back.
    """
    if problem.grouped:
        return {}
    m, n = (problem.n, problem.m) if problem.turned else (problem.m, problem.n)
    readers = math.ceil(n / params["tile_n"]), math.ceil(m / params["tile_m"])
    sizes = (2 * problem.planes * extent * problem.depth for extent in (m, n))
    found = tuple("evict_first" if size >= STREAMED_BYTES and count <= 2 else ""
                  for size, count in zip(sizes, readers, strict=True))  # fmt: skip
    return {"cache": (*found, "")} if any(found) else {}


def _of_tensor_chip(problem: Problem) -> dict[str, Any]:
    """Pairs of CTAs where their large tiles fill the device, else tiles of one CTA."""
    fitting = [
        params for params in TENSOR_TILES
        if params["tile_n"] <= problem.widest
        and not ("pairs" in params and (problem.grouped or not problem.reached))
    ]  # fmt: skip
    extents = problem.m, problem.n, problem.depth, problem.planes, problem.sms
    best = min(fitting, key=lambda params: tensor_cycles(params, *extents, target=problem.target))
    return {**best, "group": 8}


def _tiles(problem: Problem) -> dict[str, int]:
    if "tcgen05" in problem.arch.features:
        return _of_tensor_chip(problem)
    if problem.turned:
        return {**TURNED, **_thin_parts(problem)}
    mine = _modelled(problem)
    near = nearest(problem) if problem.as_measured else None
    if near is None:
        return mine
    found = near.params if problem.splits else without_parts(near.params)
    exact = (near.m, near.n, near.depth) == (problem.m, problem.n, problem.depth)
    return found if exact or _cycles(found, problem) < _cycles(mine, problem) else mine


def held(params: dict[str, int]) -> int:
    """Registers a thread that the accumulators of a plain product take."""
    return params["tile_n"] // 2 * (params["tile_m"] // 64 if params.get("pingpong") else 1)


def without_parts(params: dict[str, int]) -> dict[str, int]:
    """Parameters of the same tiles, each of one CTA."""
    return {name: value for name, value in params.items() if name not in PARTS}


def _thin_parts(problem: Problem) -> dict[str, int]:
    """Parts of K where tiles are so few that all together they do not draw on the memory's rate."""
    tiles = max(math.ceil(problem.n / TURNED["tile_m"]) * problem.planes, 1)
    steps = math.ceil(problem.depth / TURNED["tile_k"])
    parts = min(problem.sms // tiles, steps // (2 * LEAST_STEPS), MOST_PARTS // 2)
    return {"split_k": parts} if problem.splits and parts >= 4 else {}


def nearest(problem: Problem) -> Winner | None:
    """The winner of the measured problem that is least far off, if one is in the bucket.

    A bucket is a layout, each extent within a factor of 2, and as many waves of the winner's tiles.
    """
    inside = [
        (distance, winner)
        for winner in measured(problem.sms)
        if winner.layout == problem.layout
        # Three consumers have registers for their sums, and for little that an epilogue takes.
        and (problem.plain or winner.params["tile_m"] <= 128)
        and held(winner.params) <= problem.sums
        and (distance := _distance(winner, problem)) < math.inf
    ]
    # Of two as near the one of this very dtype, then the user's own.
    least = min(inside, key=lambda x: (x[0], x[1].dtype != problem.dtype), default=None)
    return None if least is None else least[1]


def _distance(winner: Winner, problem: Problem) -> float:
    """Sum of the extents' ratios, as powers of 2; infinite between buckets."""
    pairs = (winner.m, problem.m), (winner.n, problem.n), (winner.depth, problem.depth)
    if any(not mine <= 2 * other <= 4 * mine for mine, other in pairs):
        return math.inf
    here, there = (waves(winner.params, m, n, problem.sms)
                   for m, n in ((problem.m, problem.n), (winner.m, winner.n)))  # fmt: skip
    return sum(abs(math.log2(a / b)) for a, b in pairs) if here == there else math.inf


def _modelled(problem: Problem) -> dict[str, int]:
    """The model's best; 16 rows a group make a wave's patch square, 8 a small A.

    8 of tiles of 128 columns in turn, too: 0.6 % less at 4096^3 of FP8 (trials, H200, 2026-11).
    """
    fitting = [
        {"tile_m": tile_m, "tile_n": tile_n, "stages": stages,
         "group": 16 if problem.m <= 32 * tile_m and not (turns and tile_n == 128) else 8,
         **({"pingpong": 1} if turns else {})}
        for tile_m, tile_n, stages, turns in TILES
        # Three consumers have registers for their sums, and for little that an epilogue takes;
        # groups' tiles have a power of 2 of rows (`plan_groups`).
        if tile_n <= problem.widest and (problem.plain and not problem.grouped or tile_m <= 128)
        and (tile_n % problem.block == 0 or problem.block % tile_n == 0)
        and not (turns and problem.block > 1)
    ]  # fmt: skip
    fitting = [params for params in fitting if held(params) <= problem.sums]
    if problem.block > 1 and not problem.grouped:
        fitting = [{**params, **_BESIDE_SCALES.get(params["tile_n"], {})} for params in fitting]
    best = min(fitting, key=lambda params: _tensor_cycles(params, problem))
    if not problem.splits:
        return best
    extents = problem.m * problem.planes, problem.n, problem.depth, problem.sms
    whole = (params for params in fitting if not params.get("pingpong"))
    parts = [{**params, **parts} for params in whole for parts in shared(params, *extents)]
    split = min(parts, key=lambda params: _cycles(params, problem), default=best)
    return split if _cycles(split, problem) < GAIN * _cycles(best, problem) else best


def _tensor_cycles(params: dict[str, int], problem: Problem) -> float:
    rows = problem.m * problem.planes
    narrow = NARROW if problem.block > 1 and params["tile_n"] < WIDEST else 1.0
    return narrow * cycles(params, rows, problem.n, problem.depth, problem.sms)


def _cycles(params: dict[str, int], problem: Problem) -> float:
    """By the tensor cores, or by the memory that bounds them."""
    memory = traffic_cycles(problem.m, problem.n, problem.depth, problem.planes)
    return max(_tensor_cycles(params, problem), memory)
