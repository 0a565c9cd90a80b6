"""Timing without a GPU: a torch that keeps its own clock."""

import math
import sys
import types

import ml_dtypes
import numpy as np
import pytest

from tilecat import testing
from tilecat.errors import ResourceError


class FakeTorch(types.ModuleType):
    """Events on a clock that functions advance; counts flushes and waits."""

    int8 = "int8"

    def __init__(self, available=True):
        super().__init__("torch")
        self.clock_ms, self.flushes, self.waits, self.available = 0.0, 0, 0, available
        clock = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = clock.clock_ms

            def elapsed_time(self, end):
                return end.at - self.at

        self.cuda = types.SimpleNamespace(
            Event=Event, is_available=lambda: available, _sleep=self.spend, synchronize=self.wait
        )

    def spend(self, milliseconds):
        self.clock_ms += milliseconds

    def wait(self):
        self.waits += 1

    def empty(self, size, dtype, device):
        assert (size, device) == (testing.FLUSH_BYTES, "cuda")
        return types.SimpleNamespace(zero_=self.flush)

    def flush(self):
        self.flushes += 1


@pytest.fixture
def torch(monkeypatch):
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def test_do_bench_interleaves_and_times_each_function(torch):
    order = []

    def work(name, milliseconds):
        order.append(name)
        torch.spend(milliseconds)

    one, two = testing.do_bench(
        [lambda: work("a", 0.25), lambda: work("b", 0.5)], warmup=2, repeats=4
    )
    assert "".join(order) == "abab" + "abbaabba"
    assert one.samples_us == pytest.approx((250,) * 4) and two.median_us == pytest.approx(500)
    assert torch.flushes == 8
    assert testing.ratio(two, one) == pytest.approx({"median": 2, "p10": 2, "p90": 2})


@pytest.mark.parametrize("flush", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_function_is_as_often_a_fourth_launch_as_the_others(torch, count, flush):
    """Which launches are late is known modulo 4: each function meets all four equally often."""
    launched, found = [], {}

    def launch(*_):
        launched.append(0)

    def function(index):
        launch()
        found.setdefault(index, []).append(len(launched) % 4)

    torch.cuda._sleep, torch.flush = launch, launch
    functions = [lambda i=i: function(i) for i in range(count)]
    testing.do_bench(functions, warmup=1, repeats=8 * count, flush_l2=flush)
    for residues in found.values():
        assert [residues[1:].count(n) for n in range(4)] == [2 * count] * 4


def test_do_bench_of_one_function_gives_its_times(torch):
    durations = iter([9, 9, 9, 1, 2, 3, 4, 5])
    found = testing.do_bench(lambda: torch.spend(next(durations)), repeats=5, flush_l2=False)
    assert found.summary() == {
        "median": 3000, "p10": 1400, "p90": 4600, "min": 1000, "max": 5000, "rounds": 5,
    }  # fmt: skip
    assert torch.flushes == 0


def test_do_bench_warms_for_seconds_that_do_not_count(torch, monkeypatch):
    clock, calls = iter(range(100)), []
    monkeypatch.setattr(testing.time, "perf_counter", lambda: float(next(clock)))
    found = testing.do_bench(lambda: calls.append(0), warmup=1, warm_s=5.0, repeats=4)
    assert len(found.samples_us) == 4
    assert len(calls) == 1 + 4 + 4  # the clock ticks once a round, and starts at 0


def test_do_bench_stops_after_its_budget(torch):
    found = testing.do_bench(lambda: None, repeats=100, budget_s=0.0)
    assert len(found.samples_us) == testing.MIN_ROUNDS


def test_do_bench_wants_functions_and_repeats(torch):
    with pytest.raises(ValueError, match="wants functions"):
        testing.do_bench([])
    with pytest.raises(ValueError, match="repeats"):
        testing.do_bench(lambda: None, repeats=0)


def test_timing_without_a_gpu_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(available=False))
    with pytest.raises(ResourceError, match="finds none"):
        testing.do_bench(lambda: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ResourceError, match="PyTorch, which is not installed"):
        testing.host_time(lambda: None)


def test_host_time_is_a_median_of_batches_with_the_device_idle(monkeypatch):
    clock, drained, batch = [0.0], [], iter([50, 1, 2, 3])
    monkeypatch.setattr(testing.time, "perf_counter", lambda: clock[0])

    def drain():
        drained.append(clock[0])
        step[0] = next(batch, 0) * 1e-6

    def call():
        clock[0] += step[0]

    step = [0.0]
    found = testing.host_time(call, calls=10, batches=3, drain=drain)
    assert found == pytest.approx(2.0) and len(drained) == 5


def test_host_times_of_several_calls_take_batches_in_turn(monkeypatch):
    clock, order = [0.0], []
    monkeypatch.setattr(testing.time, "perf_counter", lambda: clock[0])

    def call(name, us):
        order.append(name)
        clock[0] += us * 1e-6

    fns = [lambda: call("a", 2), lambda: call("b", 5)]
    found = testing.host_time(fns, calls=2, batches=1, drain=lambda: None)
    assert found == pytest.approx([2, 5]) and "".join(order) == "aabbaabb"


def test_poison_reaches_every_element():
    arrays = [
        np.zeros((2, 3), np.float32),
        np.zeros(4, ml_dtypes.bfloat16),
        np.zeros((4, 4), np.float16)[::2, 1:],
        np.zeros(3, np.int32),
    ]
    testing.poison(*arrays)
    assert all(np.isnan(x.astype(np.float64)).all() for x in arrays[:3])
    assert (arrays[3] == np.iinfo(np.int32).min).all()


def test_relative_error_lets_no_nan_pass():
    expected = np.array([3.0, 4.0])
    assert testing.relative_error(np.float32([3, 4.5]), expected) == pytest.approx(0.1)
    assert math.isnan(testing.relative_error(np.float32([3, np.nan]), expected))
