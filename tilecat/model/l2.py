"""Bytes that a GEMM reads from device memory, by the order of its tasks: a model of the L2 cache.

All CTAs run in lockstep: in wave w, CTA c has task `w * ctas + c`; in step s each of them asks for
its tile of A and its tile of B. Tiles lie in the L2 whole, the least recently used leaves first.
Results are written back at the end of a wave, and take room as tiles do.

Example: 4 x 4 tasks, 4 CTAs. Row by row, a wave needs one block row of A and all of B: A is read
once, and B once if it stays in the L2, else four times. Two by two (`grouped(4, 4, rows=2)`) a wave
needs two block rows and two block columns: A and B are read twice at most.

The L2 of an H200 has two halves, and what both read lies in both: `l2_bytes` is the half of it
(`rates.H200`). It leaves out that CTAs drift apart: at 16384^3 row by row, an H200 read twice what
the model says. The GEMM of 8192^3 in groups of 8 read 1.34 GB in one run and 1.49 GB in another
(ncu, dram__bytes_read.sum, 2026-11); the model says 1.49 GB, of the whole L2 and of half of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import LayoutError
from ..pipeline.scheduler import Schedule


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
class Traffic:
    """What the model says.

    Args:
        read_bytes: from device memory.
        least_bytes: A and B once.
        asked_bytes: what the CTAs ask the L2 for.
    """

    read_bytes: int
    least_bytes: int
    asked_bytes: int


class Lru:
    """A cache of things of different sizes; the least recently used leave first."""

    def __init__(self, capacity_bytes: int):
        self.capacity_bytes = capacity_bytes
        self.held: OrderedDict[Any, int] = OrderedDict()
        self.used_bytes = 0

    def touch(self, key: Any, num_bytes: int) -> bool:
        """Whether it was there; it is now, the most recently used."""
        found = key in self.held
        if found:
            self.held.move_to_end(key)
            return True
        self.held[key] = num_bytes
        self.used_bytes += num_bytes
        while self.used_bytes > self.capacity_bytes and self.held:
            self.used_bytes -= self.held.popitem(last=False)[1]
        return False


def traffic(problem: Problem, tasks: Schedule, *, ctas: int, l2_bytes: int) -> Traffic:
    """Bytes from device memory, of an order of tasks.

    Args:
        problem: extents and tiles.
        tasks: an order made of Python numbers, `tc.grouped(*problem.blocks, rows=8)`, with the
            coordinates row and col; without clusters.
        ctas: that run at one time, e.g. the SMs of the GPU.
        l2_bytes: of the cache.

    Raises:
        LayoutError: an order of run-time scalars, or of clusters.
    """
    if not isinstance(tasks.count, int) or tasks.cluster != 1:
        raise LayoutError(
            f"l2: an order of Python numbers, of single CTAs, got {tasks.count!r} tasks by "
            f"{tasks.cluster} CTAs",
            hint="traffic(problem, tc.grouped(*problem.blocks, rows=8), ...)",
        )
    cache, read, asked = Lru(l2_bytes), 0, 0
    for first in range(0, tasks.count, ctas):
        wave = [dict(tasks.locate(t)) for t in range(first, min(first + ctas, tasks.count))]
        rows, cols = ([place[axis] for place in wave] for axis in ("row", "col"))
        asked += _asked(problem, rows, cols)
        for key, num_bytes in _loads(problem, list(dict.fromkeys(rows)), list(dict.fromkeys(cols))):
            if not cache.touch(key, num_bytes):
                read += num_bytes
        for row, col in zip(rows, cols, strict=True):
            high = _part(problem.m, problem.tile_m, row)
            wide = _part(problem.n, problem.tile_n, col)
            cache.touch(("C", row, col), high * wide * problem.out_bytes)
    least = _bytes(problem, (problem.m + problem.n) * problem.k)
    return Traffic(read, least, asked)


def _bytes(problem: Problem, elems: int) -> int:
    """Of elements of A or B."""
    return round(elems * problem.item_bits / 8)


def _part(extent: int, tile: int, index: int) -> int:
    """Rows or columns of a tile that lie inside: TMA reads no others."""
    return min(tile, extent - index * tile)


def _asked(problem: Problem, rows: list[int], cols: list[int]) -> int:
    """Bytes that the tasks of a wave ask for."""
    high = sum(_part(problem.m, problem.tile_m, row) for row in rows)
    wide = sum(_part(problem.n, problem.tile_n, col) for col in cols)
    return _bytes(problem, (high + wide) * problem.k)


def _loads(problem: Problem, rows: list[int], cols: list[int]) -> Iterator[tuple[Any, int]]:
    """Tiles that a wave loads, in order, each once a step; and their bytes."""
    high = {row: _part(problem.m, problem.tile_m, row) for row in rows}
    wide = {col: _part(problem.n, problem.tile_n, col) for col in cols}
    for step in range(problem.steps):
        deep = _part(problem.k, problem.tile_k, step)
        for row in rows:
            yield ("A", row, step), _bytes(problem, high[row] * deep)
        for col in cols:
            yield ("B", step, col), _bytes(problem, wide[col] * deep)
