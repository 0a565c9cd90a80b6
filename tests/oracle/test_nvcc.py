"""The PTX machine runs what nvcc makes of CUDA kernels: divergence, votes, atomics, copies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilecat import sim

from .nvcc_cases import NVCC_CASES
from .runs import SEEDS, assert_matches

FOLDER = Path(__file__).parent / "sm_90a_nvcc"


def run_kernel(name: str, launch, seed: int, text: str | None = None) -> sim.Result:
    """Run a text of `sm_90a_nvcc/` with a launch's arguments."""
    args = [sim.Pointer(arg) if isinstance(arg, np.ndarray) else arg for arg in launch.args]
    text = (FOLDER / f"{name}.ptx").read_text() if text is None else text
    return sim.run(text, grid=launch.grid, args=args, smem_bytes=launch.smem_bytes, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", [pytest.param(c, id=c.__name__) for c in NVCC_CASES])
def test_machine_runs_cuda_kernel(case, seed):
    launch = case(np.random.default_rng(seed))
    result = run_kernel(case.__name__, launch, seed)
    assert not result.reports, str(result)
    for index, expected in launch.expected.items():
        assert_matches(launch.args[index], expected)


def test_every_text_has_a_case():
    assert {path.stem for path in FOLDER.iterdir()} == {case.__name__ for case in NVCC_CASES}
