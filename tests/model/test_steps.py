"""Steps from a B200's kernel to Rubin's controls: from traced kernels, ordered as users found."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tilecat.arch import arch_of
from tilecat.model.tensor import Shape

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "rubin_steps.py"
RUBIN = arch_of("sm_107a")


@pytest.fixture(scope="module")
def steps() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rubin_steps", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["mxf4nvf4", "f8f6f4"])
def test_traced_kernels_are_the_shapes_that_their_parameters_say(steps: ModuleType, kind: str):
    found = list(steps.steps(kind).values())
    buffers = 1 if kind == "mxf4nvf4" else 2
    first = Shape(kind, pair=True, stages=found[0].stages, buffers=buffers)
    assert found[0] == first and found[1] == replace(first, wide=True)
    shared = replace(found[1], tiles=2, buffers=1, stages=found[2].stages)
    deep = replace(shared, stages=found[3].stages)
    kept = replace(deep, collector_b=True)
    early = replace(kept, early_a=True, a_stages=kept.stages)
    assert found[2:] == [shared, deep, kept, early]
    assert found[3].stages > found[2].stages
    for shape, oversized in zip(found, (False, False, False, True, True, True), strict=True):
        shape.check(RUBIN, oversized=oversized, exclusive=True)


@pytest.mark.parametrize("kind", ["mxf4nvf4", "f8f6f4"])
def test_shared_b_and_depth_gain_most_and_a_wide_step_alone_little(steps: ModuleType, kind: str):
    wide, shared, deep, kept, early = steps.gains(kind, 8192).values()
    assert 0 <= wide < 0.03
    assert shared > 0.1 and (1 + shared) * (1 + deep) > 1.25
    assert kept == pytest.approx(0, abs=0.01) and early == pytest.approx(0, abs=0.001)


@pytest.mark.slow
def test_early_release_gains_at_65536_and_up_alone(steps: ModuleType):
    gains = [steps.gains("mxf4nvf4", n)["`early_a=True`"] for n in (8192, 16384, 65536, 131072)]
    assert gains[0] < 5e-4 and gains[1] < 5e-4
    assert gains[3] > gains[2] > 1e-3
    deep = [steps.gains("mxf4nvf4", n)["`oversized=True`, deeper"] for n in (16384, 65536)]
    assert deep[1] > deep[0] > 0.05
