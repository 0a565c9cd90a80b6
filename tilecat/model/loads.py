"""TMA loads of one CTA: its port, its share of the L2 and of the memory, and latencies."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import lru_cache

from ..errors import ResourceError
from ..pipeline.scheduler import Schedule, column_major, grouped, row_major, snake
from .events import Events, Server
from .l2 import Pace, Problem, Traffic, Wave, traffic
from .rates import Rates

TMA = "TMA loads"
MOST_TASKS = 1 << 18  # of a GEMM: 131072 x 131072 by 256 x 256, about a minute to model
MOST_STEPS = 3000  # that are replayed one by one
ROUNDS = 10  # in which the clock and the memory's busy share are found: each follows from the time
MOST_BUSY = 0.95  # beyond it the queue is as long as the launch, and the bytes bound it
ORDERS = {
    "row": lambda rows, cols, _: row_major(rows, cols),
    "column": lambda rows, cols, _: column_major(rows, cols),
    "grouped": lambda rows, cols, group: grouped(rows, cols, rows=group),
    "snake": lambda rows, cols, group: snake(rows, cols, rows=group),
}


@dataclass(frozen=True)
class Supply:
    """What the L2 and the memory give a CTA.

    Args:
        waves: what all CTAs ask for, by the number of a task.
        ctas: that share the memory.
        step_bytes: that a CTA loads in a step.
        clock_hz: of its SM.
        memory_busy: share of the time in which the memory is busy.
        loaders: CTAs that wait for each other's loads, 2 of a pair.
        lines: that a row's 128 bytes of a tile lie in: 2 where rows begin between lines.
    """

    waves: tuple[Wave, ...]
    ctas: int
    step_bytes: int
    clock_hz: float
    memory_busy: float = 0.0
    loaders: int = 1
    lines: int = 1


class Loads:
    """The TMA of a CTA: one load after another, out of L2 or, on a miss, out of the memory.

    A CTA that has not loaded for a while may take a step's bytes at its port's rate; one that loads
    all the time gets its share of what the L2 gives all. Misses stand in a queue: the busier the
    memory, the longer, as in a queue of one server (M/D/1), and by chance: a step waits for the
    last of its loads, of both CTAs of a pair.
    """

    def __init__(self, events: Events, supply: Supply, rates: Rates):
        self.events, self.supply, self.rates = events, supply, rates
        self.server = Server(events, TMA)
        self.l2_bytes_cycle = rates.load_bytes_second / supply.clock_hz
        self.memory_bytes_cycle = rates.memory_bytes_second / supply.clock_hz / supply.ctas
        self._l2_free = self._memory_free = -math.inf
        self._chance = random.Random(0)  # the same misses in every replay

    def load(self, name: str, num_bytes: float, task: int, *, late: bool) -> float:
        """Queues a load; when its bytes are there.

        Args:
            name: for the timeline.
            num_bytes: of it.
            task: number of the CTA's task.
            late: whether it waits for the memory.
        """
        now, wave = self.events.now, self.supply.waves[task]
        lines = num_bytes * self.supply.lines
        self._l2_free = self._after(self._l2_free, lines, self.l2_bytes_cycle)
        missed = num_bytes * wave.read_bytes / max(wave.asked_bytes, 1.0)
        self._memory_free = self._after(self._memory_free, missed, self.memory_bytes_cycle)
        start = max(now, self.server.free_at)
        ported = start + lines / self.rates.port_bytes_cycle
        done = max(ported, self._l2_free, self._memory_free)
        self.server.serve(name, done - start)
        done += self.rates.load_latency_cycles
        return done + self.rates.miss_cycles + self._queued() if late else done

    def _queued(self) -> float:
        """Cycles that a miss stands in the memory's queue, by chance."""
        busy = min(self.supply.memory_busy, MOST_BUSY)
        mean = self.rates.queue_seconds * self.supply.clock_hz / (2 * (1 - busy))
        draws = (self._chance.random() for _ in range(self.supply.loaders))
        # It stands at all with a probability `busy`, then an exponential time.
        return max(mean * math.log(busy / (1 - x)) if 1 - x < busy else 0.0 for x in draws)

    def _after(self, free: float, num_bytes: float, rate: float) -> float:
        unused = self.events.now - self.supply.step_bytes / rate  # what it may catch up
        return max(free, unused) + num_bytes / rate


def sample(tasks: int, steps: int) -> tuple[int, ...]:
    """Numbers of the tasks that are replayed: all, or of many some, from the first to the last."""
    most = max(8, MOST_STEPS // steps)
    if tasks <= most:
        return tuple(range(tasks))
    return tuple(number * (tasks - 1) // (most - 1) for number in range(most))


def period(ends: list[float]) -> float:
    """Cycles from one task's end to the next one's, in the second half of the tasks."""
    middle = len(ends) // 2
    return (ends[-1] - ends[middle]) / max(len(ends) - 1 - middle, 1)


def late(share: float, number: int) -> bool:
    """Whether the one of this number is among those that wait: a share, evenly."""
    return int((number + 1) * share + 1e-9) > int(number * share + 1e-9)


def share_of(waits: int, wave: Wave) -> float:
    """Share of a wave's steps."""
    return waits / wave.steps if wave.steps else 0.0


@lru_cache(maxsize=256)
def memory_traffic(
    problem: Problem, order: str, group: int, ctas: int, l2_bytes: int, pace: Pace
) -> Traffic:
    """Bytes of A and B from device memory, by the model of the L2.

    Raises:
        ResourceError: so many tasks that it would take minutes.
    """
    rows, cols = problem.blocks
    if rows * cols > MOST_TASKS:
        raise ResourceError(
            f"model: of at most {MOST_TASKS:,} tiles, got {rows * cols:,} ({rows:,} x {cols:,} of "
            f"{problem.tile_m} x {problem.tile_n})",
            hint=f"a part of it, e.g. M={problem.tile_m * 256} and N={problem.tile_n * 256}: time "
            "grows with M N",
        )
    tasks: Schedule = ORDERS[order](*problem.blocks, group)
    return traffic(problem, tasks, ctas=ctas, l2_bytes=l2_bytes, pace=pace)
