"""Stacks of sequence models: a step with tilecat's operators, on the PTX machine, is PyTorch's."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

PATH = Path(__file__).resolve().parents[1] / "examples" / "train_sequence_models.py"
sys.path.append(str(PATH.parent))  # where `training` lies
SPEC = importlib.util.spec_from_file_location("train_sequence_models", PATH)
example = sys.modules["train_sequence_models"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)

LOSS = 1e-3  # of the loss; bf16 rounds a logit by 2**-9 of itself, and there are many
ERROR = 1e-2  # of a gradient's norm, beyond what PyTorch's own gradients of bf16 tensors are off
CANCELS = 5e-2  # that of a sum over all tokens, much smaller than they are
SUMS = ("layers.0.a_log", "layers.0.dt_bias")


def step(name, operators):
    """Loss and gradients of a first step."""
    model = example.model_of(name, operators, tiny=True)
    shape = model.config.batch, model.config.length + 1
    loss = model(torch.randint(256, shape, generator=torch.Generator().manual_seed(1)))
    loss.backward()
    return loss.item(), {key: x.grad.double() for key, x in model.named_parameters()}


def errors(gradients, exact):
    return {key: float((gradients[key] - x).norm() / x.norm()) for key, x in exact.items()}


@pytest.mark.parametrize("name", ["mamba2", "gla", "hyena"])
def test_a_step_is_that_of_pytorch(name):
    loss, gradients = step(name, "tilecat")
    _, rounded = step(name, "torch")
    wanted, exact = step(name, "torch f32")
    assert abs(loss - wanted) <= LOSS * wanted
    limits = errors(rounded, exact)
    for key, error in errors(gradients, exact).items():
        assert error <= limits[key] + (CANCELS if key in SUMS else ERROR), (key, error)


def test_the_masked_product_is_the_recurrence():
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 20, 1, 8).unbind()
    v, g = torch.randn(1, 20, 3, 5), -torch.rand(1, 20, 3)
    state, rows = torch.zeros(3, 8, 5).double(), []
    for t in range(20):
        state = (
            state * g[0, t, :, None, None].double().exp() + k[0, t, 0, :, None] * v[0, t, :, None]
        )
        rows.append(q[0, t].double() @ state)
    wanted = torch.cat(rows, 1).permute(1, 0, 2)
    torch.testing.assert_close(
        example.decayed(q, k, v, g)[0].double(), wanted, rtol=1e-4, atol=1e-4
    )


def test_curves_are_written_after_each_model(monkeypatch, tmp_path, capsys):
    curves = {"tilecat": [2.0, 1.0], "torch": [2.0, 1.5], "torch f32": [2.0, 1.5]}
    seen = []

    def train(name, operators, *_):
        seen.append(json.loads(out.read_text()) if out.exists() else {})
        return example.Run(curves[operators], 1.0, 2.0)

    out = tmp_path / "losses.json"
    monkeypatch.setattr(example, "train", train)
    assert example.main(["--device", "cpu", "--json", str(out)]) == 1
    assert list(seen[3]) == ["mamba2"] and list(seen[6]) == ["mamba2", "gla"]
    assert json.loads(out.read_text())["hyena"]["apart_percent"]["tilecat"] == 25.0
    assert "differ by at most 25.000 %" in capsys.readouterr().out


def test_batches_are_bytes_of_the_source_and_the_same_in_each_run():
    config = example.Config(d_model=16, layers=1, length=70, batch=3)
    first, again = (next(example.batches(config)) for _ in range(2))
    assert first.shape == (3, 71) and torch.equal(first, again)
    text = b"\n".join(path.read_bytes() for path in sorted(example.SOURCE.rglob("*.py")))
    assert all(bytes(row.tolist()) in text for row in first)


def test_a_loss_that_is_nan_fails(monkeypatch):
    runs = {"tilecat": [2.0, math.nan], "torch": [2.0, 1.5], "torch f32": [2.0, 1.5]}
    monkeypatch.setattr(example, "train", lambda name, ops, *_: example.Run(runs[ops], 1.0, 2.0))
    assert example.main(["--device", "cpu", "--model", "gla"]) == 1


def test_without_a_gpu_the_error_names_the_cpu(monkeypatch, capsys):
    monkeypatch.setattr(example.torch.cuda, "is_available", lambda: False)
    assert example.main([]) == 2
    assert "--device cpu" in capsys.readouterr().err
