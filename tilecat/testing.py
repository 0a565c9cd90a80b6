"""Timing on a GPU, and poison for outputs.

    a, b = do_bench([lambda: tc.matmul(x, y, out=z), lambda: torch.mm(x, y, out=z)])
    print(b.median_us / a.median_us)

A claim counts as a ratio taken in one run, both sides interleaved: one GPU's clock moves with its
power, and two GPUs of a kind differ by up to 20% (H200, 2026-11).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import ResourceError

Function = Callable[[], Any]

FLUSH_BYTES = 256 << 20  # over four times the L2 of an H200 (60 MB)
# Cycles the device idles before each timed call, 0.1 ms at 2 GHz: while it idles and flushes, the
# host records and launches all that is timed, so no host time stands between the two events.
HEAD_START_CYCLES = 200_000
# Every fourth kernel launched starts some 0.9 us late, whatever it is (H200, driver 580, 2026-11).
# So each timed call is the last of as many launches, and once in a while of one more: all functions
# are late alike, and seldom enough for their medians.
LAUNCHES = 4
MIN_ROUNDS = 3


@dataclass(frozen=True)
class Times:
    """Device times of one function, microseconds.

    Args:
        samples_us: one a round, in the order they were taken.
        quantiles: the fractions that `at` gives back.
    """

    samples_us: tuple[float, ...]
    quantiles: tuple[float, ...] = (0.1, 0.9)

    def quantile(self, fraction: float) -> float:
        """Linear between samples: 0 the least, 0.5 the median, 1 the largest."""
        return float(np.quantile(self.samples_us, fraction))

    @property
    def median_us(self) -> float:
        """The median."""
        return self.quantile(0.5)

    def summary(self) -> dict[str, float]:
        """Median, quantiles (`p10`), least, largest and number of rounds."""
        named = {f"p{round(100 * q):02d}": self.quantile(q) for q in self.quantiles}
        ends = {"min": min(self.samples_us), "max": max(self.samples_us)}
        numbers = {"median": self.median_us, **named, **ends}
        rounded = {key: float(f"{value:.5g}") for key, value in numbers.items()}
        return {**rounded, "rounds": len(self.samples_us)}


def ratio(of: Times, to: Times) -> dict[str, float]:
    """How many times slower `of` is than `to`: of medians, and quantiles of the paired rounds.

    Args:
        of: the peer, measured interleaved with `to`.
        to: ours; above 1 it is faster.
    """
    paired = Times(
        tuple(a / b for a, b in zip(of.samples_us, to.samples_us, strict=True)), to.quantiles
    ).summary()
    spread = {key: value for key, value in paired.items() if key.startswith("p")}
    return {"median": float(f"{of.median_us / to.median_us:.5g}"), **spread}


def require_gpu() -> Any:
    """The torch module.

    Raises:
        ResourceError: PyTorch is not installed, or finds no CUDA GPU.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ResourceError(
            "testing: timing on a GPU needs PyTorch, which is not installed",
            hint="pip install 'tilecat[torch]'",
        ) from error
    if not torch.cuda.is_available():
        raise ResourceError(
            "testing: timing needs a CUDA GPU, and PyTorch finds none",
            hint="`tilecat doctor` says what is missing; `tilecat sim` runs kernels on the CPU",
        )
    return torch


def do_bench(
    fns: Function | Sequence[Function],
    *,
    warmup: int = 3,
    warm_s: float = 0.0,
    repeats: int = 20,
    flush_l2: bool = True,
    quantiles: Sequence[float] = (0.1, 0.9),
    budget_s: float | None = None,
) -> Any:
    """Device time of each function: CUDA events around each call on the current stream.

    Several functions are interleaved: a round calls each once, and each round starts with another.

    Args:
        fns: a function, or several to compare.
        warmup: rounds that are not counted (at least one, which compiles and loads).
        warm_s: seconds for which such rounds go on at least, after the first: power lowers the
            clock of a busy GPU within some tenths of one.
        repeats: rounds that are.
        flush_l2: write 256 MB before each timed call, so that it finds its inputs in memory.
        quantiles: fractions to report beside the median.
        budget_s: seconds after which no new round starts; at least 3 rounds are taken.

    Returns:
        `Times` for a function, a tuple of them for a sequence.

    Raises:
        ResourceError: no PyTorch, no GPU.
        ValueError: no function, or no repeats.
    """
    torch = require_gpu()
    functions = [fns] if callable(fns) else list(fns)
    if not functions or repeats < 1:
        raise ValueError(f"do_bench: wants functions and repeats, got {len(functions)}, {repeats}")
    scratch = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda") if flush_l2 else None
    for _ in range(max(warmup, 1)):
        for function in functions:
            function()
    torch.cuda.synchronize()
    started = time.perf_counter()
    while time.perf_counter() - started < warm_s:
        _round(torch, functions, scratch, 0)
    samples: list[list[float]] = [[] for _ in functions]
    started = time.perf_counter()
    for number in range(repeats):
        for index, micros in _round(torch, functions, scratch, number):
            samples[index].append(micros)
        late = budget_s is not None and time.perf_counter() - started > budget_s
        if late and number + 1 >= MIN_ROUNDS:
            break
    times = tuple(Times(tuple(taken), tuple(quantiles)) for taken in samples)
    return times[0] if callable(fns) else times


def _round(
    torch: Any, functions: list[Function], scratch: Any, number: int
) -> list[tuple[int, float]]:
    pairs = []
    if number % len(functions) == 0:
        torch.cuda._sleep(1)
    for position in range(len(functions)):
        index = (number + position) % len(functions)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(LAUNCHES - 2 - (scratch is not None)):
            torch.cuda._sleep(1)
        torch.cuda._sleep(HEAD_START_CYCLES)
        if scratch is not None:
            scratch.zero_()
        begin.record()
        functions[index]()
        end.record()
        pairs.append((index, begin, end))
    torch.cuda.synchronize()
    return [(index, 1000.0 * begin.elapsed_time(end)) for index, begin, end in pairs]


def host_time(
    fns: Function | Sequence[Function],
    *,
    calls: int = 200,
    batches: int = 9,
    drain: Callable[[], Any] | None = None,
) -> Any:
    """Host microseconds of a call: median over batches, the device idle before each batch.

    Several functions take batches in turn, so that a processor's clock is the same for all.

    Args:
        fns: a function, or several; small work, so that no call waits for a full queue of launches.
        calls: a batch; far below the 1024 launches that a queue takes.
        batches: of each function; one more, not counted, comes first.
        drain: waits for the device; None for `torch.cuda.synchronize`.

    Returns:
        A number, or a list of them for several functions.

    Raises:
        ResourceError: no PyTorch, no GPU, and no drain given.
    """
    drain = require_gpu().cuda.synchronize if drain is None else drain
    several = not callable(fns)
    functions: list[Function] = list(fns) if several else [fns]  # type: ignore[list-item, arg-type]
    taken: list[list[float]] = [[] for _ in functions]
    for _ in range(batches + 1):
        for fn, times in zip(functions, taken, strict=True):
            drain()
            start = time.perf_counter()
            for _ in range(calls):
                fn()
            times.append((time.perf_counter() - start) / calls * 1e6)
    drain()
    found = [float(np.median(times[1:])) for times in taken]
    return found if several else found[0]


def poison(*arrays: Any) -> None:
    """Fills arrays with NaN (integers: their least value): an element nobody writes shows.

    Args:
        arrays: torch tensors, NumPy or CuPy arrays.
    """
    for array in arrays:
        fill = array.fill_ if hasattr(array, "fill_") else array.fill
        floating = array.is_floating_point() if hasattr(array, "fill_") else _is_float(array.dtype)
        fill(math.nan if floating else _least(array.dtype))


def _is_float(dtype: Any) -> bool:
    return np.dtype(dtype).kind in "fV"  # ml_dtypes' types are of kind V


def _least(dtype: Any) -> int:
    width = str(dtype).rpartition(".")[2]
    return int(np.iinfo(width).min)


def relative_error(actual: Any, expected: Any) -> float:
    """||actual - expected|| / ||expected|| over all elements; NaN if any element is NaN.

    Args:
        actual: a tensor or array of any float type.
        expected: the same kind and shape in float64.
    """
    wide = actual.double() if hasattr(actual, "double") else actual.astype(np.float64)
    difference = float(((wide - expected) ** 2).sum()) ** 0.5
    size = float((expected**2).sum()) ** 0.5
    return difference / (size or 1.0)
