"""Timelines of the pages of kernels: clocks of warps on the PTX machine's run."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
sys.path.insert(0, str(DOCS))

import make_timelines as timelines  # noqa: E402

import tilecat as tc  # noqa: E402
from tilecat.sim import launch, mbarrier  # noqa: E402


def test_a_unit_takes_the_first_free_cycles():
    unit = timelines.Unit("u")
    assert unit.serve("a", 10, 5) == 15
    assert unit.serve("b", 0, 12) == 17  # ten before, two behind
    assert unit.serve("a", 15, 1) == 18
    busy = [(span.start, span.end, span.name) for span in unit.spans]
    assert busy == [(0, 10, "b"), (10, 15, "a"), (15, 17, "b"), (17, 18, "a")]


def test_linear_attention_is_bound_by_memory_and_each_unit_does_one_thing():
    kept = launch.Machine, mbarrier.MBarrier
    x = np.ones((1, 8 * 64, 1, 64), np.float16)
    results = []
    spans = timelines.timeline(lambda: results.append(tc.linear_attention(x, x, x, 1.0)[0]))
    assert (launch.Machine, mbarrier.MBarrier) == kept
    np.testing.assert_allclose(results[0][0, :, 0, 0], 64.0 * np.arange(1, 513), rtol=1e-3)
    memory = [span for span in spans if span.unit == timelines.MEMORY]
    moved = sum(span.end - span.start for span in memory) * timelines.BYTES_CYCLE
    assert moved == pytest.approx(4 * x.nbytes)
    end = max(span.end for span in spans)
    busy = sum(span.end - max(span.start, end / 2) for span in memory if span.end > end / 2)
    assert busy > 0.8 * end / 2
    assert {"score", "state"} <= {span.unit for span in spans}
    for unit in {span.unit for span in spans}:
        mine = sorted((span.start, span.end) for span in spans if span.unit == unit)
        assert all(b <= c + 1e-6 for (_, b), (c, _) in zip(mine, mine[1:], strict=False)), unit


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name != "rotary" else name
             for name in timelines.calls()]
)  # fmt: skip
def test_pictures_are_up_to_date(name):
    made = timelines.svg(name, timelines.timeline(timelines.calls()[name]))
    kept = (timelines.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert made == kept, "run: python docs/make_timelines.py"
