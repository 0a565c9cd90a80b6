"""The nine steps of a matrix product: each is right, and what its text says of the hardware."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tilecat import bf16

ROOT = Path(__file__).resolve().parents[1]
SPEC = importlib.util.spec_from_file_location(
    "gemm_in_nine_steps", ROOT / "examples" / "gemm_in_nine_steps.py"
)
steps = sys.modules["gemm_in_nine_steps"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(steps)
IDS = [step.name.split()[0] for step in steps.STEPS]


@pytest.mark.parametrize("step", steps.STEPS, ids=IDS)
def test_a_step_is_right_at_odd_sizes(step):
    rng = np.random.default_rng(1)
    a = rng.standard_normal((136, 104)).astype(bf16.numpy)
    b = rng.standard_normal((104, 264)).astype(bf16.numpy)
    c = np.full((136, 264), np.nan, bf16.numpy)
    step(a, b, c)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.linalg.norm(c.astype(np.float64) - exact) <= 2**-8 * np.linalg.norm(exact)


def test_each_step_uses_what_it_is_about():
    used = {
        "step1": ("mul.rn.f32", "mma.sync"),
        "step2": ("mma.sync", "ld.shared"),
        "step3": ("ldmatrix", "cp.async"),
        "step4": ("cp.async", "wgmma"),
        "step5": ("wgmma.mma_async", "setmaxnreg"),
    }
    for name, (has, lacks) in used.items():
        text = getattr(steps, name).compile(target="sm_90a").ptx
        text = re.sub(r"//.*", "", text)
        assert has in text and lacks not in text, name
    assert "setmaxnreg" in steps.pipelined.compile(target="sm_90a", consumers=2).ptx


def test_the_page_has_a_heading_for_each_step():
    text = (ROOT / "docs" / "gemm-in-nine-steps.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\d.*)$", text, re.M)
    assert [heading.replace(".", "") for heading in headings] == [s.name for s in steps.STEPS]


@pytest.mark.gpu
@pytest.mark.parametrize("step", steps.STEPS, ids=IDS)
def test_a_step_is_right_on_a_gpu(step):
    torch = pytest.importorskip("torch")
    generator = torch.Generator("cuda").manual_seed(2)
    a, b = (torch.randn(m, n, generator=generator, device="cuda", dtype=torch.bfloat16)
            for m, n in ((712, 520), (520, 648)))  # fmt: skip
    c = torch.full((712, 648), float("nan"), device="cuda", dtype=torch.bfloat16)
    step(a, b, c)
    exact = a.double() @ b.double()
    assert (c.double() - exact).norm() <= 2**-8 * exact.norm()
