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

from tilecat.errors import LayoutError, ResourceError, SyncError
from tilecat.model.events import Count, Events, Span
from tilecat.model.l2 import Problem, Wave
from tilecat.model.loads import TMA, Loads, Supply, late, memory_traffic
from tilecat.model.rates import H200
from tilecat.model.replay import (
    TENSOR_CORES,
    Config,
    Cta,
    Prediction,
    Work,
    pace_of,
    predict,
    step_bytes,
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
ORDERLY = replace(
    H200, mma_latency_cycles=1e-9, task_cycles=1e-9, cta_cycles=1e-9, load_latency_cycles=1050,
    load_bytes_second=1e15,
)  # fmt: skip
WAVE = Wave(steps=1)  # nothing waits for the memory


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    source = ROOT / "benchmarks" / "cost_model.py"
    spec = importlib.util.spec_from_file_location("cost_model", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(source.parent)  # it imports the script of the steps
        spec.loader.exec_module(module)
    return module


def work_by_hand(
    tasks: int, steps: int, consumers: int, *, mma: float, load: float, store: float
) -> Work:
    """Cycles of a product of 64 rows, of a load through the port, of 64 rows of C."""
    supply = Supply((WAVE,) * tasks, 1, round(load * ORDERLY.port_bytes_cycle), ORDERLY.clock_hz)
    return Work(tasks, steps, consumers, mma, store, supply)


def of_problem(problem: Problem) -> Work:
    rows, cols = problem.blocks
    waves = (WAVE,) * math.ceil(rows * cols / H200.sms)
    supply = Supply(waves, min(H200.sms, rows * cols), step_bytes(problem), H200.clock_hz)
    return work_of(problem, H200, supply)


def cycles(work: Work, **options: Any) -> float:
    return Cta(work, Config(**options), ORDERLY).run()


def test_one_stage_adds_load_and_products():
    """By hand: a step is load 100, latency 1050, products 400 by two consumers; C is 2 x 50."""
    work = work_by_hand(1, 10, 2, mma=200, load=100, store=50)
    # The first consumer stores when its last products are done, 200 before the second's.
    assert cycles(work, stages=1) == pytest.approx(10 * (100 + 1050 + 400) + 50)


def test_two_stages_wait_for_loads_alone():
    """A stage is given back when the next step is issued: a step a load, 1150, and its arrival."""
    work = work_by_hand(1, 100, 1, mma=400, load=100, store=50)
    assert cycles(work, stages=2) / 100 == pytest.approx(1150, rel=0.02)
    assert cycles(work, stages=3) / 100 == pytest.approx(1150 / 2, rel=0.02)
    assert cycles(work, stages=4) / 100 == pytest.approx(400, rel=0.05)


def test_consumers_in_turn_store_beside_the_other_one_s_products():
    work = work_by_hand(8, 10, 2, mma=200, load=100, store=1000)
    together, in_turn = (cycles(work, stages=6, pingpong=p) for p in (False, True))
    main = 8 * 10 * 400
    assert main < in_turn < together
    assert in_turn == pytest.approx(main + 1150 + 2000)  # the first load, the last C


@pytest.mark.parametrize("problem", SHAPES, ids=str)
@pytest.mark.parametrize("pingpong", [False, True])
def test_a_deeper_ring_is_not_slower(problem: Problem, pingpong: bool):
    work = of_problem(problem)
    times = [Cta(work, Config(stages=s, pingpong=pingpong), H200).run() for s in range(1, 9)]
    assert all(deep <= flat + 1e-6 for flat, deep in zip(times, times[1:], strict=False))
    assert times[-1] < times[0] or problem.steps == 1  # which stores alone bound


@pytest.mark.parametrize("problem", SHAPES, ids=str)
@pytest.mark.parametrize("pingpong", [False, True])
def test_a_persistent_grid_is_not_slower(problem: Problem, pingpong: bool):
    work = of_problem(problem)
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
    work = work_by_hand(3, 7, 2, mma=100, load=load_cycles, store=50)
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
    clocks = [H200.clock(busy, 1.0) for busy in (0.0, 0.2, 0.6, 1.0)]
    assert clocks[0] == clocks[1] == pytest.approx(H200.clock_hz, rel=1e-4)
    assert clocks[1] > clocks[2] > clocks[3] == pytest.approx(H200.busy_clock_hz, rel=1e-4)
    times = [H200.clock(1.0, seconds) for seconds in (1e-5, 1e-4, 1e-3, 1e-2, 1.0)]
    assert times == sorted(times, reverse=True) and times[0] == H200.first_clock_hz


def test_the_trace_has_every_span_on_a_row_of_its_unit(tmp_path: Path):
    found = predict(SMALL, Config(), H200)
    write_trace(found, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {TMA, TENSOR_CORES, "consumer 0", "consumer 1"} == set(rows.values())
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


def test_rows_of_an_h200_are_predicted_within_15_percent(benchmark: ModuleType):
    """The depth table and at least 12 products; those above 0.4 ms are on the page."""
    rows = [row for row in benchmark.rows() if row["measured_us"] < 400]
    errors: dict[str, list[float]] = {}
    for row in rows:
        errors.setdefault(row["table"], []).append(abs(benchmark.error(row)))
    assert len(errors["depth"]) == 4 and max(errors["depth"]) < 0.15
    assert sum(error <= 0.15 for error in errors["gemm"]) >= max(12, len(errors["gemm"]) - 2)
    assert math.fsum(errors["grid"]) / len(errors["grid"]) < 0.15


def test_misses_are_spread_evenly_and_wait_longer_where_the_memory_is_busy():
    assert [late(0.25, n) for n in range(8)] == [False, False, False, True] * 2
    assert sum(late(0.3, n) for n in range(1000)) == 300 and not any(late(0, n) for n in range(9))
    events = Events()

    def mean(busy: float, loaders: int = 1) -> float:
        supply = Supply((Wave(steps=1, waits=1),), 1, 1, H200.clock_hz, busy, loaders)
        loads = Loads(events, supply, H200)
        return sum(loads._queued() for _ in range(4000)) / 4000 / H200.clock_hz

    assert mean(0.0) == 0
    for busy in (0.3, 0.7):  # M/D/1: half the service, busy / (1 - busy) times
        wanted = H200.queue_seconds / 2 * busy / (1 - busy)
        assert mean(busy) == pytest.approx(wanted, rel=0.15)
    assert mean(0.5, 2) > 1.4 * mean(0.5)


def test_a_cta_that_rests_takes_a_step_at_its_port_s_rate():
    events = Events()
    supply = Supply((WAVE,), 132, 48 << 10, H200.clock_hz)
    loads = Loads(events, supply, H200)
    first = [loads.load("a", 48 << 10, 0, late=False) for _ in range(40)]
    bytes_cycle = H200.load_bytes_second / H200.clock_hz
    assert first[0] == pytest.approx((48 << 10) / 128 + H200.load_latency_cycles)
    assert (first[-1] - first[-2]) == pytest.approx((48 << 10) / bytes_cycle)
    assert loads.load("m", 1024, 0, late=True) > first[-1] + H200.miss_cycles


def test_bytes_from_memory_are_those_of_the_counter():
    """An H200's dram__bytes_read.sum; the pairs that take long are in l2_model.json."""
    rows = json.loads((ROOT / "benchmarks" / "results" / "l2_model.json").read_text())["rows"]
    quick = [row for row in rows if row["k"] * row["m"] * row["n"] <= 8192**3]
    assert len(quick) == 9
    errors = {}
    for row in quick:
        problem = Problem(row["m"], row["n"], row["k"], 128, 256, 64)
        found = memory_traffic(problem, row["order"], row["group"], H200.sms, H200.l2_bytes,
                               pace_of(problem, H200))  # fmt: skip
        assert found.read_bytes == row["predicted_bytes"]
        errors[row["m"], row["k"], row["order"]] = abs(row["ratio"] - 1)
    assert errors.pop((16384, 2048, "row")) < 0.5  # part of B survives in the whole L2
    assert max(errors.values()) < 0.12


@pytest.mark.slow
def test_the_pages_have_the_tables_that_the_command_prints(benchmark: ModuleType):
    steps = benchmark.rubin_steps
    for name, page, text in (*benchmark.PARTS, *((n, steps.PAGE, t) for n, t in steps.PARTS)):
        found = page.read_text(encoding="utf-8").split(f"<!-- {name} -->\n")[1]
        assert found.split(f"<!-- end {name} -->\n")[0] == text(), name


def test_more_tiles_than_minutes_are_refused():
    problem = Problem(10**8, 10**8, 1024, 128, 256, 64)
    with pytest.raises(ResourceError, match="model: of at most 262,144 tiles, got 305,17") as error:
        predict(problem, Config(), H200)
    assert "M=32768 and N=65536" in error.value.hint
