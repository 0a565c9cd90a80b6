"""Bytes that orders of a GEMM's tasks read from device memory, cheap enough to rank many.

The model of `l2` on a launch's first tasks and with few chunks of steps: orders are compared, and
what an order reads repeats from group to group.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from .l2 import Pace, Problem, traffic
from .loads import ORDERS
from .rates import Rates

WAVES = 4  # tasks of a CTA that are looked at
CHUNKS = 2  # of a task's steps


@lru_cache(maxsize=4096)
def order_bytes(problem: Problem, order: str, group: int, rates: Rates, cluster: int = 1) -> int:
    """Bytes of A and B that the first tasks of an order read from memory.

    Args:
        problem: extents and a CTA's tiles.
        order: of `loads.ORDERS`.
        group: block rows of a group.
        rates: of the GPU.
        cluster: CTAs below each other that take a tile of B together; divides `group`.

    Returns:
        0 where A, B and C all stay in the L2: no order reads more than another.
    """
    bits = problem.m * problem.k + problem.k * problem.n
    size = bits * problem.item_bits / 8 + problem.m * problem.n * problem.out_bytes
    if size <= rates.l2_bytes:
        return 0
    ctas = max(rates.sms // cluster, 1)
    together = replace(problem, tile_m=problem.tile_m * cluster)
    tasks = ORDERS[order](*together.blocks, max(group // cluster, 1))
    first = replace(tasks, count=min(tasks.count, WAVES * ctas))
    pace = Pace(rates.clocks, chunks=CHUNKS)
    return traffic(together, first, ctas=ctas, l2_bytes=rates.l2_bytes, pace=pace).read_bytes
