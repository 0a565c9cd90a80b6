"""The GEMM's time: waves of tasks, each its tensor-core work and a fixed start and epilogue.

It chooses among configurations and predicts no time: over the candidates of 36 problems with more
than 16 rows (benchmarks/results/tune-matmul.json) its pick is 5.9 % slower than the best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ..arch import arch_of
from .rates import GPUS, Rates

Params = Mapping[str, Any]

# Tile -> share of the tensor cores' rate in a long main loop, and cycles of a task's start and
# epilogue: fitted to those candidates' times on an H200 (2026-11), of which each problem's clock
# is free. A share above 1 is a clock that falls less.
TILES = {
    (64, 32): (0.40, 690), (64, 64): (0.54, 530), (64, 128): (0.81, 930), (64, 160): (0.80, 1570),
    (64, 192): (0.915, 1410), (64, 224): (0.90, 2330), (64, 256): (0.99, 2140),
    (128, 32): (0.48, 750), (128, 64): (0.67, 740), (128, 128): (0.987, 1510),
    (128, 160): (0.994, 2200), (128, 192): (1.015, 2280), (128, 224): (1.014, 3130),
    (128, 256): (1.04, 3390), (192, 32): (0.43, 750), (192, 64): (0.67, 980),
    (192, 128): (0.978, 2280), (192, 160): (1.018, 3090), (192, 192): (1.047, 3760),
}  # fmt: skip
# Of the same fit: cycles that a cluster's second CTA costs a task, a step of 128 instead of 64
# elements, and any launch.
CLUSTER_CYCLES, STEP_CYCLES, LAUNCH_CYCLES = 43, 171, 10700
STEP = 64  # elements of K of 2 bytes
# Parts of K: of at least so many steps, at most so many; what leaving and adding sums costs, from
# L2's latency and what one SM gets from it. Not fitted to times yet.
LEAST_STEPS, MOST_PARTS = 4, 16
FLAG_CYCLES, L2_BYTES_CYCLE = 1200, 40
CLOCK_HZ = 1.7e9  # of an H200 under a GEMM: 1.4 to 1.98 GHz (2026-11)
MEMORY_BYTES_CYCLE = 4.2e12 / CLOCK_HZ  # an H200's copy reaches 4.2 TB/s (2026-11)


def cycles(params: Params, m: int, n: int, depth: int, sms: int) -> float:
    """Modelled cycles of a launch, without what any launch takes (`LAUNCH_CYCLES`).

    An m64nNk16 takes N/2 cycles (1024 bf16 FMA a cycle and SM quarter: 4096 FLOP a cycle).

    Args:
        params: tile_m, tile_n; tile_k (64 if none), cluster, split_k and stream_k (1), pingpong.
        m: rows.
        n: columns.
        depth: K in units of 2 bytes.
        sms: of the device.
    """
    step, fixed, exchange = _task_cycles(params)
    steps = math.ceil(depth / (params.get("tile_k") or STEP))
    tasks, at_once = _clusters(params, m, n), sms // params.get("cluster", 1)
    if params.get("pingpong"):  # one consumer's start and epilogue beside the other's steps
        turns, main = math.ceil(tasks / at_once), steps * step
        return max(turns * main, math.ceil(turns / 2) * (main + fixed)) + fixed
    if (parts := params.get("split_k", 1)) > 1:
        task = math.ceil(steps / parts) * step + fixed + parts * exchange
        return math.ceil(tasks * parts / at_once) * task
    whole, rest = divmod(tasks, at_once)
    parts = params.get("stream_k", 1)
    if parts == 1 or not rest or not steps:
        return math.ceil(tasks / at_once) * (steps * step + fixed)
    sharers = min(at_once, rest * parts)
    share, twice = math.ceil(rest * steps / sharers), sharers % rest > 0
    sums = math.ceil(steps / share) + twice
    return whole * (steps * step + fixed) + share * step + (1 + twice) * fixed + sums * exchange


def traffic_cycles(m: int, n: int, depth: int, planes: int = 1) -> float:
    """Cycles in which A, B and C of two bytes an element pass the memory's interface once."""
    return 2 * planes * (m * depth + depth * n + m * n) / MEMORY_BYTES_CYCLE


def waves(params: Params, m: int, n: int, sms: int) -> int:
    """Tasks that the busiest SM gets, where none is shared.

    Args:
        params: tile_m, tile_n; cluster (1 if none).
        m: rows.
        n: columns.
        sms: of the device.
    """
    return math.ceil(_clusters(params, m, n) / (sms // params.get("cluster", 1)))


def shared(params: Params, m: int, n: int, depth: int, sms: int) -> Iterator[dict[str, int]]:
    """Ways to share the K of these tiles: `split_k` in one wave, `stream_k` of the last wave."""
    steps = math.ceil(depth / (params.get("tile_k") or STEP))
    tasks = max(_clusters(params, m, n), 1)
    most = min(MOST_PARTS, steps // LEAST_STEPS)
    for parts in range(2, min(most, sms // tasks) + 1):
        yield {"split_k": parts}
    for parts in range(2, most + 1) if tasks % sms else ():
        yield {"stream_k": parts}


def _clusters(params: Params, m: int, n: int) -> int:
    rows = math.ceil(math.ceil(m / params["tile_m"]) / params.get("cluster", 1))
    return rows * math.ceil(n / params["tile_n"])


def _task_cycles(params: Params) -> tuple[float, float, float]:
    """Of a step of K, of a task's start and epilogue, and to leave partial sums or add them."""
    tile_m, tile_n, tile_k = params["tile_m"], params["tile_n"], params.get("tile_k") or STEP
    efficiency, fixed = TILES[_nearest(tile_m, tile_n)]
    step = (tile_k / 16) * (tile_m / 64) * tile_n / 2 / efficiency
    more = CLUSTER_CYCLES * (params.get("cluster", 1) - 1) + STEP_CYCLES * (tile_k / STEP - 1)
    return step, fixed + more, FLAG_CYCLES + tile_m * tile_n * 4 / L2_BYTES_CYCLE


def _nearest(tile_m: int, tile_n: int) -> tuple[int, int]:
    if (tile_m, tile_n) in TILES:
        return tile_m, tile_n
    return min(TILES, key=lambda t: abs(math.log2(t[0] / tile_m)) + abs(math.log2(t[1] / tile_n)))


def standing_for(target: str) -> Rates:
    """Rates of a target's GPU; of one without, those of the one with the most of its features.

    To choose takes what rates are to each other, which differs little within a family.
    """
    features = set(arch_of(target).features)
    near = min(GPUS, key=lambda name: len(features ^ set(arch_of(name).features)))
    return GPUS[target if target in GPUS else near][1]


def tensor_cycles(
    params: Mapping[str, Any], m: int, n: int, depth: int, planes: int, sms: int, *, target: str
) -> float:
    """Cycles of a GEMM whose sums are in tensor memory, by turns of its tasks.

    A step takes what its products take, or its loads; a task what its steps do, and the first
    loads, its start and its sums, of which the last overlaps the next task's steps.

    Args:
        params: tile_m and tile_n of a CTA, pairs (none if missing).
        m, n: rows and columns of a product.
        depth: K in units of 2 bytes.
        planes: products of a batch.
        sms: of the device.
        target: whose rates are taken.
    """
    rates, ctas = standing_for(target), 2 if params.get("pairs") else 1
    rows, cols = params["tile_m"], params["tile_n"]
    tasks = math.ceil(m / (rows * ctas)) * math.ceil(n / cols) * planes
    turns, steps = math.ceil(tasks / max(sms // ctas, 1)), math.ceil(depth / STEP)
    operands = (rows + cols / ctas) * 2 * STEP  # bytes of a step
    products = 2 * max(rows, 128) * cols * STEP / rates.mma_flops_cycle  # M = 64 gains nothing
    loads = operands * rates.clock_hz / rates.load_bytes_second
    step = max(products, loads, operands / rates.shared_bytes_cycle)
    start = rates.task_cycles + rates.load_latency_cycles
    sums = rows * cols * 4 / rates.tensor_read_bytes_cycle
    return turns * (steps * step + start) + sums
