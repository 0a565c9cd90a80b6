"""What a tuner may choose of a kernel: candidates, and a simple model of their time.

The model is for pruning and for shapes that nobody has measured: it ranks candidates, and its
microseconds are no prediction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Extents = Mapping[str, int]
Params = Mapping[str, Any]


@dataclass(frozen=True)
class Device:
    """What the models know of a GPU.

    Args:
        sms: streaming multiprocessors.
        clock_hz: of the SMs under load.
        memory_bytes_s: bytes a second from device memory.
        l2_bytes_cycle: bytes that one SM gets from L2 in a cycle.
        launch_us: start and end of any kernel.
    """

    sms: int
    clock_hz: float
    memory_bytes_s: float
    l2_bytes_cycle: float
    launch_us: float


# An H200's copy reaches 4.2 TB/s, its clock under a GEMM is 1.4 to 1.98 GHz (2026-11). With 64
# bytes a cycle and SM from L2 a 64 x 128 tile reaches 0.7 of the tensor cores' rate, as measured.
H200 = Device(sms=132, clock_hz=1.7e9, memory_bytes_s=4.2e12, l2_bytes_cycle=64, launch_us=2.5)


@dataclass(frozen=True)
class Space:
    """Candidates of a kernel on one architecture.

    Args:
        axes: values of each compile-time parameter that is tuned.
        legal: (parameters, bytes an element) -> whether they are worth a trace; the checks of the
            compiler have the last word.
        same: (parameters, extents) -> parameters whose kernel does the same for these extents.
        micros: (parameters, extents, bytes an element, device) -> modelled microseconds.
        ring: the parameter that is a ring's depth, or None.
        depths: how many of the deepest rings that fit are candidates.
        device: the model's GPU.
    """

    axes: tuple[tuple[str, tuple[Any, ...]], ...]
    legal: Callable[[Params, int], bool]
    same: Callable[[Params, Extents], Params]
    micros: Callable[[Params, Extents, int, Device], float]
    ring: str | None = "stages"
    depths: int = 2
    device: Device = H200

    def families(self, item_bytes: int) -> Iterator[tuple[dict[str, Any], ...]]:
        """Candidates that differ in the ring's depth alone, the deepest first."""
        rings = sorted(dict(self.axes).get(self.ring or "", ()), reverse=True)
        names = [name for name, _ in self.axes if name != self.ring]
        for values in itertools.product(*(v for name, v in self.axes if name != self.ring)):
            base = dict(zip(names, values, strict=True))
            family = [{**base, self.ring: depth} for depth in rings] if rings else [base]
            legal = tuple(params for params in family if self.legal(params, item_bytes))
            if legal:
                yield legal

    def ranked(
        self,
        candidates: list[dict[str, Any]],
        extents: Extents,
        item_bytes: int,
        *,
        within: float = math.inf,
    ) -> list[dict[str, Any]]:
        """Candidates that differ for these extents, by modelled time.

        Args:
            candidates: parameters.
            extents: of the problem.
            item_bytes: bytes an element.
            within: only those up to this factor from the least time.
        """
        distinct: dict[tuple[tuple[str, Any], ...], dict[str, Any]] = {}
        for params in candidates:
            distinct.setdefault(tuple(sorted(self.same(params, extents).items())), params)
        timed = [(self.micros(p, extents, item_bytes, self.device), n, p)
                 for n, p in enumerate(distinct.values())]  # fmt: skip
        timed.sort(key=lambda row: row[:2])
        limit = timed[0][0] * within if timed else 0.0
        return [params for micros, _, params in timed if micros <= limit]


# ---- matmul

# Rows of a consumer's tile, and columns of a swizzle panel of 16-bit elements.
_ROWS = 64
# A task's start, and the bytes a cycle that its results leave by: what the times of H200s say.
_START_CYCLES, _STORE_BYTES_CYCLE = 500, 26
# Cycles a column of an m64nNk16, 2048 FLOP, at 4096 FLOP a cycle and SM (bf16 and f16).
_MMA_CYCLES_COL = 0.5


def _gemm_legal(params: Params, item_bytes: int) -> bool:
    tile_m, tile_n, group = params["tile_m"], params["tile_n"], params["group"]
    accumulator = tile_n // 2  # registers a thread for 64 rows of f32
    most = {1: 128, 2: 128, 3: 96}  # what the consumers' share of the registers leaves for it
    return (
        accumulator <= most.get(tile_m // _ROWS, 0)
        and group % params["cluster"] == 0
        and params["stages"] * (tile_m + tile_n) * params["tile_k"] * item_bytes < 232448
    )


def _gemm_same(params: Params, extents: Extents) -> Params:
    """A group of at least all block rows is one group, whatever its size."""
    rows = math.ceil(extents["M"] / params["tile_m"])
    return {**params, "group": min(params["group"], max(rows, params["cluster"]))}


def gemm_micros(params: Params, extents: Extents, item_bytes: int, device: Device) -> float:
    """Waves of tasks: each its main loop, by tensor cores or by L2, its start and its epilogue."""
    m, n, k = extents["M"], extents["N"], extents["K"]
    tile_m, tile_n, tile_k = params["tile_m"], params["tile_n"], params["tile_k"]
    cluster = params["cluster"]
    clusters = math.ceil(math.ceil(m / tile_m) / cluster) * math.ceil(n / tile_n)
    waves = math.ceil(clusters / (device.sms // cluster))
    steps = math.ceil(k / tile_k)
    mma = tile_m / _ROWS * (tile_k * item_bytes / 32) * tile_n * _MMA_CYCLES_COL
    loads = (tile_m + tile_n / cluster) * tile_k * item_bytes / device.l2_bytes_cycle
    epilogue = _START_CYCLES + tile_m * tile_n * item_bytes / _STORE_BYTES_CYCLE
    cycles = waves * (steps * max(mma, loads) + epilogue)
    traffic = item_bytes * (m * k + k * n + m * n) / device.memory_bytes_s
    return max(cycles / device.clock_hz, traffic) * 1e6 + device.launch_us


GEMM_SPACE = Space(
    axes=(
        ("tile_m", (64, 128, 192)),
        ("tile_n", (32, 64, 128, 160, 192, 224, 256)),
        ("tile_k", (64, 128)),
        ("stages", tuple(range(2, 9))),
        ("group", (4, 8, 16, 32)),
        ("cluster", (1, 2)),
    ),
    legal=_gemm_legal,
    same=_gemm_same,
    micros=gemm_micros,
)
