"""Bytes that a GEMM reads from device memory, by the order of its tasks: a model of the L2 cache.

CTA c has the tasks c, c + ctas, c + 2 ctas, ...; in a step it asks for its tile of A and of B.
Tiles lie in the L2 whole, the least recently used leaves first. Results are written back at the end
of a task, and take room as tiles do.

Each CTA goes on at the clock of its SM, and nothing brings two of them together again: the ring
hides a miss, and where the memory holds CTAs back it holds all of them back. Clocks differ: under a
load that power limits, each GPC of an H200 had its own, up to 2 % apart, while cycles a task were
equal to 0.02 % (`rates.H200.clocks`). So CTAs that began side by side on a tile of B are hundreds
of steps apart at the end of a long launch, and what one has read has left the L2 before the other
asks. With all clocks equal they run in lockstep.

Example: 4 x 4 tasks, 4 CTAs. Row by row, the first four tasks need one block row of A and all of B:
A is read once, and B once if it stays in the L2, else four times. Two by two (`grouped(4, 4,
rows=2)`) they need two block rows and two block columns: A and B are read twice at most.

The L2 of an H200 has two halves, and what both read lies in both: `l2_bytes` is the half of it.
benchmarks/results/l2_model.json has the model beside a counter.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import LayoutError
from ..pipeline.scheduler import Schedule

MOST_EVENTS = 1 << 19  # of a task's chunks: some seconds


@dataclass(frozen=True)
class Problem:
    """C[M, N] = A[M, K] @ B[K, N] in tiles.

    Args:
        m, n, k: extents, in elements.
        tile_m, tile_n, tile_k: extents of a task's tile of C, and of a step.
        item_bits: bits an element of A and B, scales of blocks included.
        out_bytes: bytes an element of C.
    """

    m: int
    n: int
    k: int
    tile_m: int
    tile_n: int
    tile_k: int
    item_bits: float = 16
    out_bytes: int = 2

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            whole = int if name != "item_bits" else int | float
            if isinstance(value, bool) or not isinstance(value, whole) or value < 1:
                raise LayoutError(f"l2: {name} is an int from 1 up, got {name}={value!r}")

    @property
    def blocks(self) -> tuple[int, int]:
        """Block rows and block columns."""
        return -(-self.m // self.tile_m), -(-self.n // self.tile_n)

    @property
    def steps(self) -> int:
        """Steps of a task."""
        return -(-self.k // self.tile_k)


@dataclass(frozen=True)
class Pace:
    """How fast CTAs go on.

    Args:
        clocks: of equal runs of consecutive CTAs, relative to their mean.
        step_cycles: of a step's products.
        task_cycles: between the last step of a task and the first of the next.
        miss_cycles: until a tile that was missed is there for those who ask for it meanwhile.
        chunks: a task's steps are moved in at most so many; in fewer where there are many tasks.
    """

    clocks: tuple[float, ...] = (1.0,)
    step_cycles: float = 1024.0
    task_cycles: float = 0.0
    miss_cycles: float = 0.0
    chunks: int = 64

    def of(self, ctas: int) -> np.ndarray[Any, Any]:
        """The clock of each CTA."""
        runs = np.arange(ctas) * len(self.clocks) // ctas
        return np.asarray(self.clocks)[runs]


LOCKSTEP = Pace()


@dataclass
class Wave:
    """What all CTAs asked for in their task of one number.

    Args:
        steps: in which each asked for two tiles (chunks of steps).
        waits_a, waits_b: of them, that waited for the memory: the tile was missed, or another
            CTA's miss of it was under way.
        waits: that waited for either.
        asked_bytes: in them.
        read_bytes: of those, from device memory.
    """

    steps: int = 0
    waits_a: int = 0
    waits_b: int = 0
    waits: int = 0
    asked_bytes: float = 0.0
    read_bytes: float = 0.0


@dataclass(frozen=True)
class Traffic:
    """What the model says.

    Args:
        read_bytes: from device memory.
        least_bytes: A and B once.
        asked_bytes: what the CTAs ask the L2 for.
        waves: by the number of a CTA's task.
    """

    read_bytes: int
    least_bytes: int
    asked_bytes: int
    waves: tuple[Wave, ...]


class Lru:
    """A cache of things of different sizes; the least recently used leave first."""

    def __init__(self, capacity_bytes: int):
        self.capacity_bytes = capacity_bytes
        self.held: OrderedDict[Any, tuple[float, float]] = OrderedDict()  # bytes, since when
        self.used_bytes = 0.0

    def touch(self, key: Any, num_bytes: float, now: float = 0.0) -> float | None:
        """Since when it was there, None if it was not; it is now, the most recently used."""
        found = self.held.get(key)
        if found is not None:
            self.held.move_to_end(key)
            return found[1]
        self.held[key] = num_bytes, now
        self.used_bytes += num_bytes
        while self.used_bytes > self.capacity_bytes and self.held:
            self.used_bytes -= self.held.popitem(last=False)[1][0]
        return None


def traffic(
    problem: Problem, tasks: Schedule, *, ctas: int, l2_bytes: int, pace: Pace = LOCKSTEP
) -> Traffic:
    """Bytes from device memory, of an order of tasks.

    Args:
        problem: extents and tiles.
        tasks: an order made of Python numbers, `tc.grouped(*problem.blocks, rows=8)`, with the
            coordinates row and col; without clusters.
        ctas: that run at one time, e.g. the SMs of the GPU.
        l2_bytes: of the cache.
        pace: how fast CTAs go on; in lockstep if not given.

    Raises:
        LayoutError: an order of run-time scalars, or of clusters.
    """
    if not isinstance(tasks.count, int) or tasks.cluster != 1:
        raise LayoutError(
            f"l2: an order of Python numbers, of single CTAs, got {tasks.count!r} tasks by "
            f"{tasks.cluster} CTAs",
            hint="traffic(problem, tc.grouped(*problem.blocks, rows=8), ...)",
        )
    places = [(place["row"], place["col"]) for place in map(dict, map(tasks.locate,
              range(tasks.count)))]  # fmt: skip
    high = [_part(problem.m, problem.tile_m, row) for row, _ in places]
    wide = [_part(problem.n, problem.tile_n, col) for _, col in places]
    waves = tuple(Wave() for _ in range(0, tasks.count, ctas))
    chunks = min(problem.steps, pace.chunks, max(MOST_EVENTS // tasks.count, 8))
    cache = Lru(l2_bytes)
    deep = [_chunk(problem, chunks, chunk) for chunk in range(chunks)]
    for event, now in _events(problem, tasks.count, ctas, pace, chunks):
        task, chunk = divmod(event, chunks + 1)
        (row, col), wave = places[task], waves[task // ctas]
        if chunk == chunks:
            cache.touch(task, high[task] * wide[task] * problem.out_bytes)
            continue
        late = []
        for key, extent in (((row, chunk), high[task]), ((chunk, col, "B"), wide[task])):
            since = cache.touch(key, extent * deep[chunk], now)
            wave.asked_bytes += extent * deep[chunk]
            wave.read_bytes += extent * deep[chunk] if since is None else 0.0
            late.append(since is None or now < since + pace.miss_cycles)
        wave.steps += 1
        wave.waits_a += late[0]
        wave.waits_b += late[1]
        wave.waits += late[0] or late[1]
    bits = problem.k * problem.item_bits / 8
    read, asked = (sum(getattr(w, name) for w in waves) for name in ("read_bytes", "asked_bytes"))
    return Traffic(round(read), round((problem.m + problem.n) * bits), round(asked), waves)


def _events(
    problem: Problem, count: int, ctas: int, pace: Pace, chunks: int
) -> zip[tuple[int, float]]:
    """Number and time of every event: `task * (chunks + 1) + chunk`, the last a task's result."""
    task = np.arange(count)
    work = problem.steps * pace.step_cycles
    begin = task // ctas * (work + pace.task_cycles)
    when = begin[:, None] + np.arange(chunks + 1)[None] * (work / chunks)
    when = (when / pace.of(ctas)[task % ctas][:, None]).ravel()
    order = np.argsort(when, kind="stable")
    return zip(order.tolist(), when[order].tolist(), strict=True)


def _chunk(problem: Problem, chunks: int, index: int) -> float:
    """Bytes a row of A or a column of B has in a chunk of the steps."""
    first, last = (problem.steps * i // chunks * problem.tile_k for i in (index, index + 1))
    return (min(last, problem.k) - first) * problem.item_bits / 8


def _part(extent: int, tile: int, index: int) -> int:
    """Rows or columns of a tile that lie inside: TMA reads no others."""
    return min(tile, extent - index * tile)
