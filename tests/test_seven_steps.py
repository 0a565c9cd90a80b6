"""The seven steps of attention: each is right, and what its text says of the hardware."""

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
    "attention_in_seven_steps", ROOT / "examples" / "attention_in_seven_steps.py"
)
steps = sys.modules["attention_in_seven_steps"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(steps)
IDS = [step.name.split()[0] for step in steps.STEPS]
DIM = 128


def exact(q, k, v):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(DIM)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("step", steps.STEPS, ids=IDS)
def test_a_step_is_right_at_odd_lengths(step):
    rng = np.random.default_rng(1)
    q, k, v = (
        rng.standard_normal((1, 2, length, DIM)).astype(bf16.numpy) for length in (136, 200, 200)
    )
    out = np.full(q.shape, np.nan, bf16.numpy)
    step(q, k, v, out)
    expected = exact(q, k, v)
    error = np.linalg.norm(out.astype(np.float64) - expected)
    assert error <= 2**-8 * np.linalg.norm(expected)


def text_of(name: str, **params) -> str:
    text = getattr(steps, name).compile(target="sm_90a", D=DIM, **params).ptx
    return re.sub(r"//.*", "", text)


def test_each_step_uses_what_it_is_about():
    used = {
        "step1": ("mma.sync", "ld.shared"),
        "step2": ("ldmatrix", "cp.async"),
        "step3": ("wgmma.mma_async", "setmaxnreg"),
    }
    for name, (has, lacks) in used.items():
        text = text_of(name)
        assert has in text and lacks not in text, name
    plain, overlapped = (
        text_of("pipelined", consumers=2, block=x) for x in (steps.apart, steps.together)
    )
    assert "setmaxnreg" in plain
    assert "wgmma.wait_group.sync.aligned 1" in overlapped
    assert "wgmma.wait_group.sync.aligned 1" not in plain


def test_no_step_spills():
    turns = {"consumers": 2, "block": steps.together, "pingpong": True}
    for params in ({}, {"consumers": 2}, turns):
        compiled = steps.pipelined.compile(target="sm_90a", D=DIM, **params)
        assert compiled.resources.spill_bytes == 0
    for name in ("step1", "step2", "step3"):
        compiled = getattr(steps, name).compile(target="sm_90a", D=DIM)
        assert compiled.resources.spill_bytes == 0


def test_the_page_has_a_heading_for_each_step():
    text = (ROOT / "docs" / "attention-in-seven-steps.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\d.*)$", text, re.M)
    assert [heading.replace(".", "") for heading in headings] == [s.name for s in steps.STEPS]


@pytest.mark.gpu
@pytest.mark.parametrize("step", steps.STEPS, ids=IDS)
def test_a_step_is_right_on_a_gpu(step):
    torch = pytest.importorskip("torch")
    generator = torch.Generator("cuda").manual_seed(2)
    q, k, v = (
        torch.randn(2, 3, length, DIM, generator=generator, device="cuda", dtype=torch.bfloat16)
        for length in (712, 648, 648)
    )
    out = torch.full_like(q, float("nan"))
    step(q, k, v, out)
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert (out.double() - expected).norm() <= 2**-8 * expected.norm()
