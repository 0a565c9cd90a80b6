"""The replay of the GEMM: what must hold of any rates, and how near it is to an H200."""

from __future__ import annotations

import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilecat.errors import LayoutError, SyncError
from tilecat.model.events import Count, Events, Span
from tilecat.model.l2 import Problem
from tilecat.model.rates import H200
from tilecat.model.replay import (
    TENSOR_CORES,
    TMA,
    Config,
    Cta,
    Prediction,
    Work,
    predict,
    work_of,
    write_trace,
)

ROOT = Path(__file__).resolve().parents[2]
SMALL = Problem(2048, 2304, 512, 128, 256, 64)  # 144 tasks on 132 SMs: two, of 8 steps
SHAPES = (
    SMALL,
    Problem(4096, 4096, 64, 128, 128, 64),
    Problem(1000, 1016, 520, 64, 128, 64),
    Problem(128, 8192, 4096, 64, 64, 128),
    Problem(3072, 3072, 1024, 192, 128, 64),
)
ORDERLY = replace(H200, mma_latency_cycles=1e-9, task_cycles=1e-9, cta_cycles=1e-9)


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    source = ROOT / "benchmarks" / "cost_model.py"
    spec = importlib.util.spec_from_file_location("cost_model", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cycles(work: Work, **options: Any) -> float:
    return Cta(work, Config(**options), ORDERLY).run()


def test_one_stage_adds_load_and_products():
    """By hand: a step is load 100, latency 1050, products 400 by two consumers; C is 2 x 50."""
    work = Work(1, 10, 2, mma_cycles=200, load_cycles=100, store_cycles=50)
    # The first consumer stores when its last products are done, 200 before the second's.
    assert cycles(work, stages=1) == pytest.approx(10 * (100 + 1050 + 400) + 50)


def test_two_stages_wait_for_loads_alone():
    """A stage is given back when the next step is issued: a step a load, 1150, and its arrival."""
    work = Work(1, 100, 1, mma_cycles=400, load_cycles=100, store_cycles=50)
    assert cycles(work, stages=2) / 100 == pytest.approx(1150, rel=0.02)
    assert cycles(work, stages=3) / 100 == pytest.approx(1150 / 2, rel=0.02)
    assert cycles(work, stages=4) / 100 == pytest.approx(400, rel=0.05)


def test_consumers_in_turn_store_beside_the_other_one_s_products():
    work = Work(8, 10, 2, mma_cycles=200, load_cycles=100, store_cycles=1000)
    together, in_turn = (cycles(work, stages=6, pingpong=p) for p in (False, True))
    main = 8 * 10 * 400
    assert main < in_turn < together
    assert in_turn == pytest.approx(main + 1150 + 2000)  # the first load, the last C


@pytest.mark.parametrize("problem", SHAPES, ids=str)
@pytest.mark.parametrize("pingpong", [False, True])
def test_a_deeper_ring_is_not_slower(problem: Problem, pingpong: bool):
    work = work_of(problem, H200, 0, H200.clock_hz)
    times = [Cta(work, Config(stages=s, pingpong=pingpong), H200).run() for s in range(1, 9)]
    assert all(deep <= flat + 1e-6 for flat, deep in zip(times, times[1:], strict=False))
    assert times[-1] < times[0] or problem.steps == 1  # which stores alone bound


@pytest.mark.parametrize("problem", SHAPES, ids=str)
@pytest.mark.parametrize("pingpong", [False, True])
def test_a_persistent_grid_is_not_slower(problem: Problem, pingpong: bool):
    work = work_of(problem, H200, 0, H200.clock_hz)
    always, once = (
        Cta(work, Config(persistent=p, pingpong=pingpong), H200).run() for p in (True, False)
    )
    assert always <= once + 1e-6
    assert work.tasks == 1 or always < once


def total(found: Prediction, unit: str) -> float:
    """Cycles of a unit, none of which overlap."""
    spans = [span for span in found.spans if span.unit == unit]
    assert all(a.end <= b.start + 1e-6 for a, b in zip(spans, spans[1:], strict=False))
    return sum(span.end - span.start for span in spans)


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("pingpong", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_work_is_conserved(stages: int, pingpong: bool, persistent: bool):
    found = predict(SMALL, Config(stages, pingpong=pingpong, persistent=persistent), H200)
    assert found.tasks == 2
    assert found.mma_cycles == pytest.approx(2 * 2 * 128 * 256 * 512 / 4096)
    assert found.loaded_bytes == 2 * 8 * (128 + 256) * 64 * 2
    assert found.stored_bytes == 2 * 128 * 256 * 2
    assert total(found, TENSOR_CORES) == pytest.approx(found.mma_cycles)
    loads = [span for span in found.spans if span.unit == TMA]
    assert len(loads) == 16 and total(found, TMA) <= found.cycles
    assert found.cycles >= found.mma_cycles
    assert found.tflops == pytest.approx(2 * 2048 * 2304 * 512 / found.seconds / 1e12)


@pytest.mark.parametrize("stages", [1, 2, 3, 6])
@pytest.mark.parametrize("pingpong", [False, True])
@pytest.mark.parametrize("load_cycles", [50, 500])
def test_a_stage_is_read_when_full_and_filled_when_read(
    stages: int, pingpong: bool, load_cycles: float
):
    work = Work(3, 7, 2, mma_cycles=100, load_cycles=load_cycles, store_cycles=50)
    rates = replace(ORDERLY, load_latency_cycles=30)
    cta = Cta(work, Config(stages, pingpong=pingpong), rates)
    cta.run()
    loads = [span for span in cta.events.spans if span.unit == TMA]
    products: dict[str, list[Span]] = {}
    for span in cta.events.spans:
        if span.unit == TENSOR_CORES:
            products.setdefault(span.name.removeprefix("step "), []).append(span)
    read = [products[span.name.removeprefix("load ")] for span in loads]
    assert len(loads) == len(products) == 21
    for load, steps in zip(loads, read, strict=True):
        assert len(steps) == (1 if pingpong else 2)
        assert min(step.start for step in steps) >= load.end + 30 - 1e-6
    for load, steps in zip(loads[stages:], read, strict=False):
        assert load.start >= max(step.end for step in steps) - 1e-6


def test_no_time_is_below_what_the_units_take():
    for problem in SHAPES:
        found = predict(problem, Config(), H200)
        floor = found.memory_bytes / H200.memory_bytes_second
        assert found.seconds >= floor + H200.launch_seconds
        assert found.cycles >= found.mma_cycles
        assert found.memory_bytes >= problem.m * problem.n * 2


def test_power_holds_the_clock_back():
    clocks = [H200.clock(busy) for busy in (0.0, 0.3, 0.6, 1.0)]
    assert clocks[0] == clocks[1] == H200.clock_hz
    assert H200.busy_clock_hz == clocks[3] < clocks[2] < clocks[1]


def test_the_trace_has_every_span_on_a_row_of_its_unit(tmp_path: Path):
    found = predict(SMALL, Config(), H200)
    write_trace(found, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {TMA, TENSOR_CORES, "stores", "consumer 0", "consumer 1"} == set(rows.values())
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == len(found.spans)
    last = max(e["ts"] + e["dur"] for e in spans)
    assert last == pytest.approx(found.cycles / found.clock_hz * 1e6)


def test_what_cannot_be_replayed_is_an_error():
    with pytest.raises(LayoutError, match="stages is an int from 1 up, got stages=0"):
        Config(stages=0)
    with pytest.raises(LayoutError, match="order is one of row, .*, got order='zigzag'"):
        Config(order="zigzag")
    with pytest.raises(LayoutError, match="tile_m is a multiple of 64, got tile_m=96"):
        predict(replace(SMALL, tile_m=96), Config(), H200)
    with pytest.raises(LayoutError, match="rates: sms is a number above 0, got sms=0"):
        replace(H200, sms=0)


def test_an_arrival_that_never_comes_is_an_error():
    events, full = Events(), Count("full 0")

    def waits() -> Any:
        yield full, 1

    events.start(waits())
    with pytest.raises(SyncError, match="waits for 1 arrivals on full 0, got 0"):
        events.run((full,))


def test_rows_of_an_h200_are_predicted_within_18_percent(benchmark: ModuleType):
    """The depth table and the products; those above 0.4 ms are on the page."""
    rows = [row for row in benchmark.rows() if row["measured_us"] < 400]
    assert {row["table"] for row in rows} == {"depth", "gemm"} and len(rows) > 25
    errors = [abs(benchmark.error(row)) for row in rows]
    assert max(errors) < 0.18 and math.fsum(errors) / len(errors) < 0.07
    assert sum(e <= 0.15 for e in errors) >= len(errors) - 2


@pytest.mark.slow
def test_the_page_has_the_table_that_the_command_prints(benchmark: ModuleType):
    page = benchmark.PAGE.read_text(encoding="utf-8")
    found = page.split(benchmark.MARKS[0])[1].split(benchmark.MARKS[1])[0]
    assert found == benchmark.table()
    assert "gemm NN: 15 of 16 within 15 %" in found
