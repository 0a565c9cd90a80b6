"""The time of a GEMM: a discrete-event replay of one CTA's roles on the rates of a GPU.

The CTA with the most tasks is replayed, on its share of L2 and device memory (`loads.py`). Roles
are those of `tc.lcf`: a producer waits for an empty stage and has TMA fill it; consumers wait for
the full stage, issue its products, and give back the stage before (a ring of one stage: this one,
when its products are done); behind the last step the sums go to memory.

    stages 2     TMA   | load 0 | load 1 |        | load 2 | load 3 |
                 mma            | step 0 | step 1 |        | step 2 |
                                         ^ step 1 is issued: as step 0 is done, its stage is free

It leaves out clusters and parts of K.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import LayoutError
from .events import Count, Events, Process, Server, Span
from .l2 import Pace, Problem
from .loads import (
    ORDERS,
    ROUNDS,
    TMA,
    Loads,
    Supply,
    late,
    memory_traffic,
    period,
    sample,
    share_of,
)
from .rates import Rates

ROWS, DEPTH_BYTES = 64, 32  # of a wgmma: rows, and bytes of K of any type
TENSOR_CORES = "tensor cores"
LINE_BYTES = 128  # CUDA C++ Programming Guide: a cache line


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
        store_cycles: of 64 rows of C, by one consumer.
        supply: what L2 and memory give it.
    """

    tasks: int
    steps: int
    consumers: int
    mma_cycles: float
    store_cycles: float
    supply: Supply


class Cta:
    """The roles of one CTA, as processes."""

    def __init__(self, work: Work, config: Config, rates: Rates):
        self.work, self.config, self.rates = work, config, rates
        self.events = Events()
        self.loads = Loads(self.events, work.supply, rates)
        self.tensor = Server(self.events, TENSOR_CORES)
        self.full = [Count(f"full {i}") for i in range(config.stages)]
        self.empty = [Count(f"empty {i}") for i in range(config.stages)]
        self.ends: list[float] = []  # of the tasks' main loops, by their last consumer
        self.ended, self.turn = Count("task ended"), Count("main loops issued")
        self.parties = 2 if config.pingpong else work.consumers
        self.arrivals = 1 if config.pingpong else work.consumers  # that free a stage

    def run(self) -> float:
        """All tasks; cycles until the last of C is stored."""
        self.events.start(self._produce())
        for party in range(self.parties):
            self.events.start(self._consume(party))
        counts = (*self.full, *self.empty, self.ended, self.turn)
        return self.events.run(counts)

    def _produce(self) -> Process:
        number = 0
        yield self.rates.cta_cycles
        for task in range(self.work.tasks):
            if task and not self.config.persistent:
                yield self.ended, task * self.arrivals
                yield self.rates.cta_cycles
            wave = self.work.supply.waves[task]
            share = share_of(wave.waits, wave)
            for step in range(self.work.steps):
                stage, round_ = number % self.config.stages, number // self.config.stages
                yield self.empty[stage], round_ * self.arrivals
                done = self.loads.load(f"load {task}.{step}", self.work.supply.step_bytes, task,
                                       late=late(share, step))  # fmt: skip
                self.events.arrive_at(done, self.full[stage])
                number += 1

    def _consume(self, party: int) -> Process:
        together = not self.config.pingpong
        mine = range(0 if together else party, self.work.tasks, 1 if together else self.parties)
        parts = 1 if together else self.work.consumers  # of 64 rows, by this consumer
        for task in mine:
            yield self.rates.task_cycles * parts  # each part of C waits for its buffer
            if not together:
                yield self.turn, task  # the consumer before has issued its main loop
            yield from self._main_loop(task, party, parts)
            start = self.events.now
            yield self.work.store_cycles * parts
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
        self.ends[task:] = [self.events.now]


def predict(problem: Problem, config: Config, rates: Rates) -> Prediction:
    """Time of C[M, N] = A[M, K] @ B[K, N].

    Args:
        problem: extents and tiles; tile_m a multiple of 64, tile_k of 32 bytes.
        config: of the kernel.
        rates: of the GPU.

    Of many tasks some are replayed, from the first to the last, and the rest take as long.

    Raises:
        LayoutError: tiles that no wgmma has.
    """
    for name, unit in (("tile_m", ROWS), ("tile_k", int(DEPTH_BYTES * 8 / problem.item_bits))):
        if (value := getattr(problem, name)) % unit:
            raise LayoutError(f"replay: {name} is a multiple of {unit}, got {name}={value}")
    found = memory_traffic(problem, config.order, config.group, rates.sms, rates.l2_bytes,
                           pace_of(problem, rates))  # fmt: skip
    moved = found.read_bytes + problem.m * problem.n * problem.out_bytes
    flops, clock, memory = 2 * problem.m * problem.n * problem.k, rates.clock_hz, 0.0
    rows, cols = problem.blocks
    tasks = math.ceil(rows * cols / rates.sms)
    some = sample(tasks, problem.steps)
    waves = tuple(found.waves[number] for number in some)
    for _ in range(ROUNDS):  # the clock follows from how busy the tensor cores are at that clock
        supply = Supply(waves, min(rates.sms, rows * cols), step_bytes(problem), clock, memory,
                        lines=lines_of(problem))  # fmt: skip
        work = work_of(problem, rates, supply)
        cta = Cta(work, config, rates)
        cycles = cta.run() + (tasks - len(some)) * period(cta.ends)
        mma_cycles = cta.tensor.busy * tasks / len(some)
        seconds = max(cycles / clock, moved / rates.memory_bytes_second) + rates.launch_seconds
        used, clock = clock, rates.clock(mma_cycles / (seconds * clock), seconds)
        busy = found.read_bytes / seconds / rates.memory_bytes_second
        if abs(clock / used - 1) < 1e-3 and abs(memory - busy) < 1e-2:
            break
        memory = (memory + busy) / 2
    steps = tasks * work.steps
    return Prediction(
        cycles, used, seconds, flops / seconds / 1e12, moved, tasks, mma_cycles,
        steps * step_bytes(problem),
        tasks * problem.tile_m * problem.tile_n * problem.out_bytes,
        tuple(cta.events.spans),
    )  # fmt: skip


def step_bytes(problem: Problem) -> int:
    """Of A's and B's tiles of a step."""
    return round((problem.tile_m + problem.tile_n) * problem.tile_k * problem.item_bits / 8)


def lines_of(problem: Problem) -> int:
    """Lines of the L2 that 128 bytes of a row lie in, rows of K elements one behind the other."""
    return 1 if problem.k * problem.item_bits / 8 % LINE_BYTES == 0 else 2


def product_cycles(problem: Problem, rates: Rates) -> float:
    """Of 64 rows of a step: operands come out of shared memory, and narrow ones wait for theirs."""
    flops = 2 * ROWS * problem.tile_n * DEPTH_BYTES / 2 / rates.mma_flops_cycle  # as of bf16
    operands = (ROWS + problem.tile_n) * DEPTH_BYTES / rates.shared_bytes_cycle
    return problem.tile_k * problem.item_bits / 8 / DEPTH_BYTES * max(flops, operands)


def pace_of(problem: Problem, rates: Rates) -> Pace:
    """How fast CTAs go on whose products bound them."""
    step = product_cycles(problem, rates) * (problem.tile_m // ROWS)
    stored = problem.tile_m * problem.tile_n * problem.out_bytes / rates.store_bytes_cycle
    return Pace(rates.clocks, step, rates.task_cycles + stored, rates.miss_cycles)


def work_of(problem: Problem, rates: Rates, supply: Supply) -> Work:
    """What the CTA with the most tasks does."""
    consumers = problem.tile_m // ROWS
    rate = min(rates.warpgroup_bytes_cycle, rates.store_bytes_cycle / consumers)
    store = ROWS * problem.tile_n * problem.out_bytes / rate
    return Work(len(supply.waves), problem.steps, consumers, product_cycles(problem, rates),
                store, supply)  # fmt: skip


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
