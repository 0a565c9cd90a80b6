"""The time of a GEMM on Blackwell and Rubin: a replay of one CTA's roles, sums in tensor memory.

Roles are those of `tc.lcf` there. The producer waits for an empty stage and has TMA fill it; one
warp waits for the full stage and issues its `tcgen05.mma`, whose commit gives the stage back;
epilogue warps load the task's sums by `tcgen05.ld`, give them back, and store C. Of a pair of CTAs
(`cta_group::2`) each has its rows of A and half of B's columns; both do the same, and one of them
is replayed.

    TMA     | load 0 | load 1 | load 2 | load 3 |
    mma              | 0      | 1      | 2      | 3 | next task, in the other sums |
    epilogue                                        | ld | store C              |

It leaves out clusters beyond the pair and parts of K. Nobody has run it beside a chip: the rates
say which of them are announced and assumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..arch import Arch
from ..errors import ArchError, LayoutError, ResourceError
from .events import Count, Events, Process, Server
from .l2 import Pace, Problem
from .loads import ROUNDS, Loads, Supply, late, memory_traffic, period, sample, share_of
from .rates import Rates
from .replay import TENSOR_CORES, Prediction

BYTES = {"tf32": 4.0, "f16": 2.0, "f8f6f4": 1.0, "i8": 1.0, "mxf8f6f4": 1.0, "mxf4": 0.5,
         "mxf4nvf4": 0.5}  # fmt: skip
BLOCKS = {"mxf8f6f4": 32, "mxf4": 32, "mxf4nvf4": 16}  # elements of K that share a scale
STEP_BYTES, WIDE_BYTES = 32, 64  # of K, of one tcgen05.mma (PTX ISA 9.7.16.2.1, table of shapes)
QUARTER_BYTES = 32 * 4  # of a column: 32 lanes of 4 bytes (PTX ISA 9.7.16.7.4, tcgen05.cp)
EPILOGUE, STORES = "epilogue", "stores"


@dataclass(frozen=True)
class Shape:
    """How a GEMM kernel with sums in tensor memory is made.

    Args:
        kind: of its tcgen05.mma, `f16`, `f8f6f4`, `mxf4nvf4`.
        rows: of an instruction in one CTA, 64 or 128.
        cols: N of an instruction.
        k_bytes: of a row of A in a step.
        pair: two CTAs multiply together, each with half of B's columns.
        tiles: row tiles that share a step's B, 1 or 2.
        wide: the K step of 64 bytes.
        stages: of the ring of B, and of A where it has none of its own.
        a_stages: steps of A in a ring of its own, 0: A lies in the stages of B.
        collector_b: the second row tile finds B in the collector.
        early_a: a tile of A is given back when it has been read, not when its products are done.
        buffers: of the sums, 1 or 2.
        group: block rows of a group of tasks.
        order: grouped, snake, row or column.
        out_bytes: an element of C.
    """

    kind: str = "f16"
    rows: int = 128
    cols: int = 256
    k_bytes: int = 128
    pair: bool = False
    tiles: int = 1
    wide: bool = False
    stages: int = 4
    a_stages: int = 0
    collector_b: bool = False
    early_a: bool = False
    buffers: int = 2
    group: int = 8
    order: str = "grouped"
    out_bytes: int = 2

    def __post_init__(self) -> None:
        if self.kind not in BYTES:
            raise LayoutError(f"model: kind is one of {', '.join(BYTES)}, got kind={self.kind!r}")
        if self.rows not in (64, 128) or self.tiles not in (1, 2) or self.buffers not in (1, 2):
            raise LayoutError(
                "model: rows is 64 or 128, tiles and buffers are 1 or 2, got "
                f"rows={self.rows!r}, tiles={self.tiles!r}, buffers={self.buffers!r}"
            )
        if self.stages < 1 or self.k_bytes % self.instruction_bytes:
            raise LayoutError(
                f"model: stages is 1 or more and k_bytes a multiple of {self.instruction_bytes}, "
                f"got stages={self.stages!r}, k_bytes={self.k_bytes!r}"
            )
        if self.early_a and not self.a_stages:
            raise LayoutError(
                "model: early release of A needs a ring of A's own, got a_stages=0",
                hint="a_stages=stages + 1",
            )
        if self.collector_b and self.tiles == 1:
            raise LayoutError("model: a B that no second tile reads is not kept, got tiles=1")

    @property
    def tile_m(self) -> int:
        """Rows of a task."""
        return self.rows * self.tiles * (2 if self.pair else 1)

    @property
    def tile_k(self) -> int:
        """Elements of K of a step."""
        return int(self.k_bytes / BYTES[self.kind])

    @property
    def instruction_bytes(self) -> int:
        """Of K, of one instruction."""
        return WIDE_BYTES if self.wide else STEP_BYTES

    @property
    def scale_bytes(self) -> tuple[int, int]:
        """A step's scales of one row tile, and of B: each CTA of a pair has all of B's."""
        block = BLOCKS.get(self.kind)
        each = self.tile_k // block if block else 0
        return self.rows * each, self.cols * each

    @property
    def a_bytes(self) -> int:
        """A step's A of one row tile in one CTA, with its scales."""
        return self.rows * self.k_bytes + self.scale_bytes[0]

    @property
    def b_bytes(self) -> int:
        """A step's B in one CTA, with its scales."""
        return self.cols // (2 if self.pair else 1) * self.k_bytes + self.scale_bytes[1]

    @property
    def shared_bytes(self) -> int:
        """Of its rings and of one panel of C, 64 columns wide."""
        of_a = self.tiles * self.a_bytes * (self.a_stages or self.stages)
        return of_a + self.b_bytes * self.stages + self.rows * 64 * self.out_bytes

    @property
    def columns(self) -> int:
        """Of tensor memory: sums, and a step's scales, which each quarter of the lanes has."""
        of_a, of_b = self.scale_bytes
        return self.tiles * self.cols * self.buffers + (self.tiles * of_a + of_b) // QUARTER_BYTES

    def check(self, arch: Arch, *, oversized: bool = False, exclusive: bool = False) -> None:
        """Whether a chip has what it needs.

        Raises:
            ArchError: a control the chip lacks.
            ResourceError: more shared or tensor memory than a CTA has.
        """
        wants = {"wide_k": self.wide, "collector_b": self.collector_b, "early_a": self.early_a,
                 "oversized": oversized, "exclusive_columns": exclusive}  # fmt: skip
        for feature, wanted in wants.items():
            if wanted:
                arch.require(feature, "model")
        room = arch.limit("shared_bytes_oversized" if oversized else "shared_bytes_per_cta")
        cols = arch.limit("tensor_columns_exclusive" if exclusive else "tensor_columns")
        for what, used, most in (("bytes of shared memory", self.shared_bytes, room),
                                 ("columns of tensor memory", self.columns, cols)):  # fmt: skip
            if used > most:
                raise ResourceError(f"model: a CTA has {most} {what}, got {used}")


class TensorCta:
    """The roles of one CTA, as processes."""

    def __init__(self, shape: Shape, steps: int, tasks: int, supply: Supply, rates: Rates):
        self.shape, self.steps, self.tasks, self.rates = shape, steps, tasks, rates
        self.supply = supply
        self.ends: list[float] = []  # of the tasks' products
        self.events = Events()
        self.loads = Loads(self.events, supply, rates)
        self.tensor, self.stores = (Server(self.events, name) for name in (TENSOR_CORES, STORES))
        self.depth_a = shape.a_stages or shape.stages
        self.full_a, self.empty_a = self._ring("A", self.depth_a * shape.tiles)
        self.full_b, self.empty_b = self._ring("B", shape.stages)
        sums = shape.tiles * shape.buffers
        self.sums, self.vacant = self._ring("sums", sums)

    def _ring(self, name: str, depth: int) -> tuple[list[Count], list[Count]]:
        return ([Count(f"{name} full {i}") for i in range(depth)],
                [Count(f"{name} empty {i}") for i in range(depth)])  # fmt: skip

    def run(self) -> float:
        """All tasks; cycles until the last of C is stored."""
        for process in (self._produce(), self._issue(), self._finish()):
            self.events.start(process)
        rings = (self.full_a, self.empty_a, self.full_b, self.empty_b, self.sums, self.vacant)
        return max(self.events.run(tuple(c for ring in rings for c in ring)), self.stores.free_at)

    def _load(self, number: int, what: str, num_bytes: int, full: Count) -> None:
        task, step = divmod(number, self.steps)
        wave = self.supply.waves[task]
        share = share_of(wave.waits_b if what == "B" else wave.waits_a, wave)
        name = f"load {what} {task}.{step}"
        done = self.loads.load(name, num_bytes, task, late=late(share, step))
        self.events.arrive_at(done, full)

    def _produce(self) -> Process:
        shape = self.shape
        yield self.rates.cta_cycles
        for number in range(self.tasks * self.steps):
            round_a, slot_a = divmod(number, self.depth_a)
            round_b, slot_b = divmod(number, shape.stages)
            for tile in range(shape.tiles):
                slot = slot_a * shape.tiles + tile
                yield self.empty_a[slot], round_a
                if not shape.a_stages:
                    yield self.empty_b[slot_b], round_b  # one barrier frees all of a stage
                self._load(number, f"A{tile}", shape.a_bytes, self.full_a[slot])
            yield self.empty_b[slot_b], round_b
            self._load(number, "B", shape.b_bytes, self.full_b[slot_b])

    def _issue(self) -> Process:
        for task in range(self.tasks):
            yield self.rates.task_cycles
            for tile in range(self.shape.tiles):
                yield self.vacant[self._sums(task, tile)], task // self.shape.buffers
            for step in range(self.steps):
                yield from self._step(task, step)
            self.ends.append(self.tensor.free_at)
            for tile in range(self.shape.tiles):
                done = self.tensor.free_at + self.rates.mma_latency_cycles
                self.events.arrive_at(done, self.sums[self._sums(task, tile)])

    def _sums(self, task: int, tile: int) -> int:
        return task % self.shape.buffers * self.shape.tiles + tile

    def _step(self, task: int, step: int) -> Process:
        shape, number = self.shape, task * self.steps + step
        slots = [number % self.depth_a * shape.tiles + tile for tile in range(shape.tiles)]
        slot_b = number % shape.stages
        yield self.full_b[slot_b], number // shape.stages + 1
        for slot in slots:
            yield self.full_a[slot], number // self.depth_a + 1
        scales = sum(shape.scale_bytes) + (shape.tiles - 1) * shape.scale_bytes[0]
        if scales:
            self.tensor.serve(f"scales {task}.{step}", scales / self.rates.shared_bytes_cycle)
        read = [0.0] * shape.tiles  # when a tile of A has been read
        done = [0.0] * shape.tiles
        for tile, first in self._order():
            cycles = self.product_cycles(reads_b=first or not shape.collector_b)
            start = max(self.events.now, self.tensor.free_at)
            done[tile] = self.tensor.serve(f"mma {task}.{step} A{tile}", cycles)
            of_a = shape.rows * shape.instruction_bytes / self.rates.shared_bytes_cycle
            read[tile] = min(start + of_a, done[tile])
        last = self.tensor.free_at + self.rates.mma_latency_cycles
        for tile, slot in enumerate(slots):
            when = read[tile] if shape.early_a else done[tile] + self.rates.mma_latency_cycles
            self.events.arrive_at(max(when, self.events.now), self.empty_a[slot])
        self.events.arrive_at(last, self.empty_b[slot_b])

    def _order(self) -> list[tuple[int, bool]]:
        """Row tile of each instruction of a step, and whether it is the first to read its B."""
        shape = self.shape
        count, tiles = shape.k_bytes // shape.instruction_bytes, range(shape.tiles)
        if shape.collector_b:
            return [(tile, tile == 0) for _ in range(count) for tile in tiles]
        return [(tile, True) for tile in tiles for _ in range(count)]

    def product_cycles(self, *, reads_b: bool = True) -> float:
        """Of one instruction: its products, or its operands out of shared memory."""
        return product_cycles(self.shape, self.rates, reads_b=reads_b)

    def _finish(self) -> Process:
        shape, rates = self.shape, self.rates
        elems = shape.rows * shape.cols
        for task in range(self.tasks):
            for tile in range(shape.tiles):
                where = self._sums(task, tile)
                yield self.sums[where], task // shape.buffers + 1
                start = self.events.now
                yield elems * 4 / rates.tensor_read_bytes_cycle
                self.events.span(EPILOGUE, f"load sums {task}.{tile}", start, self.events.now)
                self.events.arrive(self.vacant[where])
                done = self.stores.serve(
                    f"C of {task}.{tile}", elems * shape.out_bytes / rates.store_bytes_cycle
                )
                yield done - self.events.now


def product_cycles(shape: Shape, rates: Rates, *, reads_b: bool = True) -> float:
    """Cycles of one instruction: its products, or its operands out of shared memory if longer.

    M = 64 takes as long as M = 128: it fills half of the tensor core. The wide K step takes no
    longer; only a chip that has it can be asked for it.
    """
    full = 2 * 128 * shape.cols * STEP_BYTES / 2  # bf16: 2 M N K of 32 bytes of K
    rows_b = shape.cols / (2 if shape.pair else 1) if reads_b else 0
    operands = (shape.rows + rows_b) * shape.instruction_bytes
    return max(full / rates.mma_flops_cycle, operands / rates.shared_bytes_cycle)


def predict_tensor(m: int, n: int, k: int, shape: Shape, rates: Rates) -> Prediction:
    """Time of C[M, N] = A[M, K] @ B[K, N] with sums in tensor memory.

    Args:
        m: rows.
        n: columns.
        k: depth, elements.
        shape: of the kernel.
        rates: of the GPU.

    Of many tasks some are replayed, from the first to the last, and the rest take as long.
    """
    block = BLOCKS.get(shape.kind)
    bits = 8 * BYTES[shape.kind] + (8 / block if block else 0)
    problem = Problem(m, n, k, shape.tile_m, shape.cols, shape.tile_k, bits, shape.out_bytes)
    at_once, sharing = rates.sms // (2 if shape.pair else 1), 2 if shape.pair else 1
    found = memory_traffic(problem, shape.order, shape.group, at_once, rates.l2_bytes,
                           pace_of(shape, rates))  # fmt: skip
    moved = found.read_bytes + m * n * shape.out_bytes
    rows, cols = problem.blocks
    tasks = math.ceil(rows * cols / at_once)
    ctas = min(rates.sms, rows * cols * sharing)
    each = shape.tiles * shape.a_bytes + shape.b_bytes  # of a CTA, a step
    flops, clock, memory = 2 * m * n * k, rates.clock_hz, 0.0
    some = sample(tasks, problem.steps)
    waves = tuple(found.waves[number] for number in some)
    for _ in range(ROUNDS):  # the clock follows from how busy the tensor cores are at that clock
        supply = Supply(waves, ctas, each, clock, memory, loaders=sharing)
        cta = TensorCta(shape, problem.steps, len(some), supply, rates)
        cycles = cta.run() + (tasks - len(some)) * period(cta.ends)
        mma_cycles = cta.tensor.busy * tasks / len(some)
        seconds = max(cycles / clock, moved / rates.memory_bytes_second) + rates.launch_seconds
        used, clock = clock, rates.clock(mma_cycles / (seconds * clock), seconds)
        busy = found.read_bytes / seconds / rates.memory_bytes_second
        if abs(clock / used - 1) < 1e-3 and abs(memory - busy) < 1e-2:
            break
        memory = (memory + busy) / 2
    return Prediction(
        cycles, used, seconds, flops / seconds / 1e12, moved, tasks, mma_cycles,
        tasks * problem.steps * each, tasks * shape.rows * shape.tiles * shape.cols
        * shape.out_bytes, tuple(cta.events.spans),
    )  # fmt: skip


def pace_of(shape: Shape, rates: Rates) -> Pace:
    """How fast CTAs go on: a step takes its products, or its loads out of L2 if longer."""
    count = shape.k_bytes // shape.instruction_bytes * shape.tiles
    loads = shape.tiles * shape.a_bytes + shape.b_bytes
    loaded = loads * rates.clock_hz / rates.load_bytes_second
    step = max(count * product_cycles(shape, rates), loaded)
    stored = shape.rows * shape.cols * shape.tiles * shape.out_bytes / rates.store_bytes_cycle
    waits = rates.task_cycles + (stored if shape.buffers == 1 else 0.0)
    return Pace(rates.clocks, step, waits, rates.miss_cycles)


def roof(kind: str, arch: Arch) -> float:
    """Announced dense TFLOP/s of a kind of products.

    Raises:
        ArchError: the chip has none.
    """
    plain = {"mxf8f6f4": "f8f6f4", "mxf4": "mxf4nvf4"}.get(kind, kind)
    if plain not in dict(arch.rates):
        raise ArchError(f"model: {arch.target} has no announced rate of kind {kind}")
    return float(arch.rate(plain).value)

