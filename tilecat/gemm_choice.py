"""Which configuration of the GEMM a call takes: measured, or the best of a model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

TUNED = Path(__file__).parent / "kernels" / "tuned"
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
        widest: columns that a tile has at most.
        halves: whether A and B are 16-bit types.
        plain: whether the product is stored as it is, and of 2 or 4 bytes an element.
        block: columns that share a scale: a tile is whole blocks, or a part of one.
        splits: whether CTAs may share the K of a tile.
    """

    m: int
    n: int
    depth: int
    layout: str
    planes: int
    sms: int
    widest: int
    halves: bool
    plain: bool
    block: int = 1
    splits: bool = False

    @property
    def traffic_cycles(self) -> float:
        """Cycles in which A, B and C of two bytes an element pass the memory's interface."""
        m, n, k = self.m, self.n, self.depth
        return 2 * self.planes * (m * k + k * n + m * n) / MEMORY_BYTES_CYCLE

    @property
    def turned(self) -> bool:
        """Whether `C.T = B.T @ A.T` is computed, so that the tile's 64 rows are those of N."""
        return self.halves and self.plain and self.m <= THIN < self.n


@dataclass(frozen=True)
class GemmConfig:
    """Compile-time parameters of the GEMM, and what a model of its time needs.

    Args:
        tile_m: rows of a CTA's tile; 64 a consumer.
        tile_n: columns.
        stages: depth of the ring.
        efficiency: share of the tensor core's rate in a long main loop, relative to the best tile.
        fixed_cycles: a task's start and epilogue. The model and its two numbers a tile are fitted
            to times on H200s (2026-11): they choose, and predict no time.
    """

    tile_m: int
    tile_n: int
    stages: int
    efficiency: float
    fixed_cycles: int

    def cycles(self, m: int, n: int, k: int, sms: int) -> float:
        """Modelled cycles: waves of tasks, each its mma and a fixed start and epilogue.

        An m64nNk16 takes N/2 cycles (1024 bf16 FMA a cycle and SM quarter: 4096 FLOP a cycle).
        """
        mma = math.ceil(k / 64) * self.step_cycles
        return math.ceil(self.tasks(m, n) / sms) * (mma + self.fixed_cycles)

    def tasks(self, m: int, n: int) -> int:
        """Tiles of a product."""
        return math.ceil(m / self.tile_m) * math.ceil(n / self.tile_n)

    @property
    def step_cycles(self) -> float:
        """Modelled cycles of a step of 64 of K."""
        return 4 * (self.tile_m // 64) * self.tile_n / 2 / self.efficiency

    @property
    def exchange_cycles(self) -> float:
        """Modelled cycles to leave a tile's partial sums in L2, or to add what another left."""
        return FLAG_CYCLES + self.tile_m * self.tile_n * 4 / L2_BYTES_CYCLE

    def shared(self, m: int, n: int, k: int, sms: int) -> Iterator[tuple[float, dict[str, int]]]:
        """Modelled cycles where CTAs share K, and the parameters that say how."""
        steps, tasks = math.ceil(k / 64), max(self.tasks(m, n), 1)
        for parts in range(2, min(MOST_PARTS, sms // tasks, steps // LEAST_STEPS) + 1):
            mma = math.ceil(steps / parts) * self.step_cycles
            yield mma + self.fixed_cycles + parts * self.exchange_cycles, {"split_k": parts}
        waves, rest = divmod(tasks, sms)
        for parts in range(2, min(MOST_PARTS, steps // LEAST_STEPS) + 1) if rest else ():
            sharers = min(sms, rest * parts)
            share = math.ceil(rest * steps / sharers)
            sums = math.ceil(steps / share) + (sharers % rest > 0)
            tail = share * self.step_cycles + self.fixed_cycles + sums * self.exchange_cycles
            tail += self.fixed_cycles * (sharers % rest > 0)
            whole = waves * (steps * self.step_cycles + self.fixed_cycles)
            yield whole + tail, {"stream_k": parts}

    def params(self, m: int) -> dict[str, int]:
        """As the kernel takes them: 16 rows a group make a wave's patch square, 8 a small A."""
        group = 16 if m <= 32 * self.tile_m else 8
        return {"tile_m": self.tile_m, "tile_n": self.tile_n, "stages": self.stages, "group": group}


GEMM_CONFIGS = (
    GemmConfig(128, 256, 4, 1.0, 3000),
    GemmConfig(128, 192, 4, 0.99, 1900),
    GemmConfig(128, 128, 5, 0.97, 1300),
    GemmConfig(64, 256, 5, 0.93, 2500),
    GemmConfig(64, 128, 8, 0.80, 1000),
    GemmConfig(64, 64, 8, 0.50, 1000),
)
# With 64 rows of B.T a tile nearly all of the ring holds B, so that enough of it is under way; the
# rows of M = 1 and 16 in benchmarks/results/h200.json are products of this configuration.
TURNED = {"tile_m": 64, "tile_n": 16, "tile_k": 128, "stages": 7, "group": 8}


# Parts of K: of at least so many steps, at most so many; what leaving and adding sums costs, from
# L2's latency and what one SM gets from it. Not fitted to times yet.
LEAST_STEPS, MOST_PARTS = 4, 16
FLAG_CYCLES, L2_BYTES_CYCLE = 1200, 40
MEMORY_BYTES_CYCLE = 2470  # 4.2 TB/s of an H200 at 1.7 GHz: kernels.space
GAIN = 0.95  # of the time without parts: what parts have to win


@lru_cache(maxsize=4096)
def choose(problem: Problem) -> dict[str, int]:
    """Parameters of the kernel: of this very problem if measured, else the model's best."""
    if problem.turned:
        return {**TURNED, **_thin_parts(problem)}
    if problem.halves and problem.planes == 1 and problem.widest == 256:
        key = (problem.layout, problem.m, problem.n, problem.depth)
        found = measured(problem.sms).get(key)
        # Three consumers have registers for their sums, and for little that an epilogue takes.
        if found is not None and (problem.plain or found["tile_m"] <= 128):
            return found if problem.splits else without_parts(found)
    fitting = [
        c for c in GEMM_CONFIGS
        if c.tile_n <= problem.widest
        and (c.tile_n % problem.block == 0 or problem.block % c.tile_n == 0)
    ]  # fmt: skip
    extents = problem.m * problem.planes, problem.n, problem.depth, problem.sms
    best = min(fitting, key=lambda c: c.cycles(*extents))
    least = whole = max(best.cycles(*extents), problem.traffic_cycles)
    params = best.params(problem.m)
    for config in fitting if problem.splits else ():
        for cycles, parts in config.shared(*extents):
            time = max(cycles, problem.traffic_cycles)
            if time < min(least, GAIN * whole):
                least, params = time, {**config.params(problem.m), **parts}
    return params


def without_parts(params: dict[str, int]) -> dict[str, int]:
    """Parameters of the same tiles, each of one CTA."""
    return {name: value for name, value in params.items() if name not in PARTS}


def _thin_parts(problem: Problem) -> dict[str, int]:
    """Parts of K where tiles are so few that all together they do not draw on the memory's rate."""
    tiles = max(math.ceil(problem.n / TURNED["tile_m"]) * problem.planes, 1)
    steps = math.ceil(problem.depth / TURNED["tile_k"])
    parts = min(problem.sms // tiles, steps // (2 * LEAST_STEPS), MOST_PARTS // 2)
    return {"split_k": parts} if problem.splits and parts >= 4 else {}


@cache
def measured(sms: int) -> dict[tuple[str, int, int, int], dict[str, int]]:
    """Winners shipped for a GPU with as many SMs, by layout, M, N and K of bf16 operands."""
    found: dict[tuple[str, int, int, int], dict[str, int]] = {}
    for path in sorted(TUNED.glob("matmul-*.json")):
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if data["environment"]["sms"] == sms:
            for row in data["problems"]:
                extents = row["extents"]
                found[row["layout"], extents["M"], extents["N"], extents["K"]] = row["params"]
    return found
