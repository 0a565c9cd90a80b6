"""The training example, at the PTX machine's size."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

PATH = Path(__file__).resolve().parents[1] / "examples" / "train_with_attention.py"
sys.path.append(str(PATH.parent))  # where `training` lies
SPEC = importlib.util.spec_from_file_location("train_with_attention", PATH)
example = sys.modules["train_with_attention"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)
from training import difference  # noqa: E402


def test_both_models_train_as_with_sdpa(tmp_path):
    out = tmp_path / "losses.json"
    assert example.main(["--tiny", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    for model in ("decoder", "encoder"):
        curves = [found[model][name]["losses"] for name in ("tilecat", "sdpa")]
        assert len(curves[0]) == 3 and curves[0] != [curves[0][0]] * 3
        for mine, other in zip(*curves, strict=True):
            assert abs(mine - other) <= 1e-2 * other


def test_curves_that_part_are_told():
    one = example.Run([2.0, 1.0], 1.0, 2.0)
    assert difference(one, example.Run([2.0, 1.5], 1.0, 2.0)) == 25.0
    assert math.isnan(difference(one, example.Run([2.0, math.nan], 1.0, 2.0)))


def test_a_wrong_attention_fails(monkeypatch, capsys):
    wrong = {"tilecat": [2.0, 1.0], "sdpa": [2.0, 1.5], "sdpa math": [2.0, 1.5]}
    monkeypatch.setattr(example, "train", lambda _, kind, *more: example.Run(wrong[kind], 1.0, 2.0))
    assert example.main(["--tiny", "--model", "encoder"]) == 1
    assert "differ by at most 25.000 %" in capsys.readouterr().out


def test_a_loss_that_is_nan_fails(monkeypatch):
    runs = {"tilecat": [2.0, math.nan], "sdpa": [2.0, 1.5], "sdpa math": [2.0, 1.5]}
    monkeypatch.setattr(example, "train", lambda _, kind, *more: example.Run(runs[kind], 1.0, 2.0))
    assert example.main(["--tiny", "--model", "encoder"]) == 1


def test_without_a_gpu_the_error_names_the_tiny_models(monkeypatch, capsys):
    monkeypatch.setattr(example.torch.cuda, "is_available", lambda: False)
    assert example.main([]) == 2
    assert "--tiny" in capsys.readouterr().err
