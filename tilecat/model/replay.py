"""The time of a GEMM: a discrete-event replay of one CTA's roles on the rates of a GPU.

The CTA with the most tasks is replayed; its share of L2 and of device memory is an SM's. Roles are
those of `tc.lcf`: a producer waits for an empty stage and has TMA fill it; consumers wait for the
full stage, issue its products, and give back the stage before (a ring of one stage: this one, when
its products are done); behind the last step the sums go to memory.

    stages 2     TMA   | load 0 | load 1 |        | load 2 | load 3 |
                 mma            | step 0 | step 1 |        | step 2 |
                                         ^ step 1 is issued: as step 0 is done, its stage is free

It leaves out clusters, parts of K, how CTAs drift apart, and the first wave's cold L2.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import LayoutError
from ..pipeline.scheduler import column_major, grouped, row_major, snake
from .events import Count, Events, Process, Server, Span
from .l2 import Problem, traffic
from .rates import Rates

ROWS, DEPTH_BYTES = 64, 32  # of a wgmma: rows, and bytes of K of any type
ORDERS = {
    "row": lambda rows, cols, _: row_major(rows, cols),
    "column": lambda rows, cols, _: column_major(rows, cols),
    "grouped": lambda rows, cols, group: grouped(rows, cols, rows=group),
    "snake": lambda rows, cols, group: snake(rows, cols, rows=group),
}
TENSOR_CORES, TMA, STORES = "tensor cores", "TMA loads", "stores"


@dataclass(frozen=True)
class Config:
    """How the GEMM kernel is made: parameters of `tilecat.kernels.gemm.matmul`.

    Args:
        stages: of the ring.
        group: block rows of a group of tasks.
        order: grouped, snake, row or column.
        persistent: a CTA an SM takes tasks until none is left; or one task a CTA.
        pingpong: two consumers take tasks in turn; or all share each task's rows.
    """

    stages: int = 4
    group: int = 8
    order: str = "grouped"
    persistent: bool = True
    pingpong: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.stages, bool) or not isinstance(self.stages, int) or self.stages < 1:
            raise LayoutError(f"replay: stages is an int from 1 up, got stages={self.stages!r}")
        if self.order not in ORDERS:
            known = ", ".join(ORDERS)
            raise LayoutError(f"replay: order is one of {known}, got order={self.order!r}")


@dataclass(frozen=True)
class Prediction:
    """What the replay says.

    Args:
        cycles: of the CTAs, without the launch.
        clock_hz: of the SMs.
        seconds: of the launch.
        tflops: 2 M N K in that time, TFLOP/s.
        memory_bytes: read from device memory and written to it.
        tasks: of the CTA that was replayed.
        mma_cycles: of its tensor cores.
        loaded_bytes: by its TMA.
        stored_bytes: of its C.
        spans: its timeline.
    """

    cycles: float
    clock_hz: float
    seconds: float
    tflops: float
    memory_bytes: int
    tasks: int
    mma_cycles: float
    loaded_bytes: int
    stored_bytes: int
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Work:
    """Of one task, and of the CTA that has the most of them: what a replay runs.

    Args:
        tasks: that the CTA takes, one after another.
        steps: of a task.
        consumers: warpgroups.
        mma_cycles: of 64 rows of a step.
        load_cycles: of a step: its bytes from L2, or its share of them from device memory.
        store_cycles: of 64 rows of C.
    """

    tasks: int
    steps: int
    consumers: int
    mma_cycles: float
    load_cycles: float
    store_cycles: float


class Cta:
    """The roles of one CTA, as processes."""

    def __init__(self, work: Work, config: Config, rates: Rates):
        self.work, self.config, self.rates = work, config, rates
        self.events = Events()
        self.tma, self.tensor, self.stores = (
            Server(self.events, name) for name in (TMA, TENSOR_CORES, STORES)
        )
        self.full = [Count(f"full {i}") for i in range(config.stages)]
        self.empty = [Count(f"empty {i}") for i in range(config.stages)]
        self.ended, self.turn = Count("task ended"), Count("main loops issued")
        self.parties = 2 if config.pingpong else work.consumers
        self.arrivals = 1 if config.pingpong else work.consumers  # that free a stage

    def run(self) -> float:
        """All tasks; cycles until the last of C is stored."""
        self.events.start(self._produce())
        for party in range(self.parties):
            self.events.start(self._consume(party))
        counts = (*self.full, *self.empty, self.ended, self.turn)
        return max(self.events.run(counts), self.stores.free_at)

    def _produce(self) -> Process:
        number = 0
        yield self.rates.cta_cycles
        for task in range(self.work.tasks):
            if task and not self.config.persistent:
                yield self.ended, task * self.arrivals
                yield self.rates.cta_cycles
            for step in range(self.work.steps):
                stage, round_ = number % self.config.stages, number // self.config.stages
                yield self.empty[stage], round_ * self.arrivals
                done = self.tma.serve(f"load {task}.{step}", self.work.load_cycles)
                self.events.arrive_at(done + self.rates.load_latency_cycles, self.full[stage])
                number += 1

    def _consume(self, party: int) -> Process:
        together = not self.config.pingpong
        mine = range(0 if together else party, self.work.tasks, 1 if together else self.parties)
        parts = 1 if together else self.work.consumers  # of 64 rows, by this consumer
        for task in mine:
            yield self.rates.task_cycles
            if not together:
                yield self.turn, task  # the consumer before has issued its main loop
            yield from self._main_loop(task, party, parts)
            start = self.events.now
            done = self.stores.serve(f"C of {task}", self.work.store_cycles * parts)
            yield done - self.events.now
            self.events.span(f"consumer {party}", f"epilogue {task}", start, self.events.now)
            self.events.arrive(self.ended)

    def _main_loop(self, task: int, party: int, parts: int) -> Process:
        depth, last = self.config.stages, self.work.steps - 1
        held: tuple[Count, float] | None = None  # the stage before, and when its products are done
        start = self.events.now
        for step in range(self.work.steps):
            number = task * self.work.steps + step
            yield self.full[number % depth], number // depth + 1
            issued = self.tensor.serve(f"step {task}.{step}", self.work.mma_cycles * parts)
            done = issued + self.rates.mma_latency_cycles
            if held is not None:
                yield max(held[1] - self.events.now, 0)
                self.events.arrive(held[0])
            held = self.empty[number % depth], done
            if step == last and self.config.pingpong:
                self.events.arrive(self.turn)
            if depth == 1 or step == last:
                yield max(done - self.events.now, 0)
                self.events.arrive(held[0])
                held = None
        self.events.span(f"consumer {party}", f"main loop {task}", start, self.events.now)


def predict(problem: Problem, config: Config, rates: Rates) -> Prediction:
    """Time of C[M, N] = A[M, K] @ B[K, N].

    Args:
        problem: extents and tiles; tile_m a multiple of 64, tile_k of 32 bytes.
        config: of the kernel.
        rates: of the GPU.

    Raises:
        LayoutError: tiles that no wgmma has.
    """
    for name, unit in (("tile_m", ROWS), ("tile_k", int(DEPTH_BYTES * 8 / problem.item_bits))):
        if (value := getattr(problem, name)) % unit:
            raise LayoutError(f"replay: {name} is a multiple of {unit}, got {name}={value}")
    read = memory_reads(problem, config.order, config.group, rates.sms, rates.l2_bytes)
    moved = read + problem.m * problem.n * problem.out_bytes
    flops, clock = 2 * problem.m * problem.n * problem.k, rates.clock_hz
    for _ in range(3):  # the clock follows from how busy the tensor cores are at that clock
        work = work_of(problem, rates, read, clock)
        cta = Cta(work, config, rates)
        cycles = cta.run()
        seconds = max(cycles / clock, moved / rates.memory_bytes_second) + rates.launch_seconds
        used, clock = clock, rates.clock(cta.tensor.busy / (seconds * clock))
        if abs(clock / used - 1) < 1e-3:
            break
    steps = work.tasks * work.steps
    return Prediction(
        cycles, used, seconds, flops / seconds / 1e12, moved, work.tasks, cta.tensor.busy,
        steps * step_bytes(problem),
        work.tasks * problem.tile_m * problem.tile_n * problem.out_bytes,
        tuple(cta.events.spans),
    )  # fmt: skip


def step_bytes(problem: Problem) -> int:
    """Of A's and B's tiles of a step."""
    return round((problem.tile_m + problem.tile_n) * problem.tile_k * problem.item_bits / 8)


def work_of(problem: Problem, rates: Rates, read_bytes: int, clock_hz: float) -> Work:
    """What the CTA with the most tasks does, at a clock."""
    rows, cols = problem.blocks
    tasks = math.ceil(rows * cols / rates.sms)
    # Operands of a wgmma come out of shared memory; narrow ones wait for theirs.
    flops = 2 * ROWS * problem.tile_n * DEPTH_BYTES / 2 / rates.mma_flops_cycle  # as of bf16
    operands = (ROWS + problem.tile_n) * DEPTH_BYTES / rates.shared_bytes_cycle
    missed = read_bytes / (rows * cols * problem.steps)
    ctas = min(rates.sms, rows * cols)
    share = rates.memory_bytes_second / clock_hz / ctas
    load = max(step_bytes(problem) / rates.load_bytes_cycle, missed / share)
    store = ROWS * problem.tile_n * problem.out_bytes / rates.store_bytes_cycle
    each = problem.tile_k * problem.item_bits / 8 / DEPTH_BYTES * max(flops, operands)
    return Work(tasks, problem.steps, problem.tile_m // ROWS, each, load, store)


@lru_cache(maxsize=256)
def memory_reads(problem: Problem, order: str, group: int, ctas: int, l2_bytes: int) -> int:
    """Bytes of A and B from device memory, by the model of the L2."""
    tasks = ORDERS[order](*problem.blocks, group)
    return traffic(problem, tasks, ctas=ctas, l2_bytes=l2_bytes).read_bytes


def chrome_trace(found: Prediction) -> Mapping[str, Any]:
    """The timeline as a Chrome trace, which ui.perfetto.dev opens; microseconds."""
    units = {unit: None for unit in (TMA, TENSOR_CORES)}
    units |= dict.fromkeys(span.unit for span in found.spans)
    rows = {unit: row for row, unit in enumerate(units)}
    names = [{"ph": "M", "name": "thread_name", "pid": 0, "tid": row, "args": {"name": unit}}
             for unit, row in rows.items()]  # fmt: skip
    scale = 1e6 / found.clock_hz
    events = [{"ph": "X", "name": span.name, "pid": 0, "tid": rows[span.unit],
               "ts": span.start * scale, "dur": (span.end - span.start) * scale}
              for span in found.spans]  # fmt: skip
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ns"}


def write_trace(found: Prediction, path: Path) -> None:
    """Writes `chrome_trace` as JSON."""
    path.write_text(json.dumps(chrome_trace(found)), encoding="utf-8")
