"""TILECAT_AUTOTUNE and the user's winners: when a product is tuned, and what comes of it."""

import json
import sys
import time
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest

import tilecat as tc
from tilecat import gemm_autotune, gemm_choice, gemm_winners
from tilecat.bench import record

PROBLEM = gemm_choice.Problem(640, 512, 72, layout="NT", planes=1, sms=132, dtype="bf16")
PARAMS = {"tile_m": 64, "tile_n": 32, "tile_k": 64, "stages": 3, "group": 4, "cluster": 1}
FACTS = {"device": "NVIDIA H200", "sms": 132, "date": "2026-11-30"}


def found(*extents, layout="NT", params=PARAMS, dtype="bf16", **facts):
    row = {"layout": layout, "extents": dict(zip("MNK", extents, strict=True)), "params": params}
    return {"kernel": "matmul", "target": "sm_90a", "dtype": dtype,
            "environment": {**FACTS, **facts}, "problems": [{**row, "us": 1.0}]}  # fmt: skip


class Tensor:
    """A torch tensor on a GPU."""

    is_cuda, device = True, "cuda:1"

    def get_device(self):
        return 1


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A GPU whose tuner keeps what `found` says, or does as `script` says."""
    state = SimpleNamespace(capturing=False, commands=[], waited=0, script=None, found=None)
    cuda = SimpleNamespace(
        is_current_stream_capturing=lambda: state.capturing,
        synchronize=lambda device: setattr(state, "waited", state.waited + 1),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor, cuda=cuda))
    monkeypatch.setenv("TILECAT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TILECAT_AUTOTUNE", "1")
    monkeypatch.setattr(gemm_autotune, "_tried", set())
    state.found = found(640, 512, 72)
    command = gemm_autotune._command

    def tuner(*args):
        state.commands.append(command(*args))
        text = f"from tilecat import gemm_winners; gemm_winners.keep({state.found!r})"
        return [sys.executable, "-c", state.script or text]

    monkeypatch.setattr(gemm_autotune, "_command", tuner)
    return state


def test_the_first_call_of_a_product_is_tuned_and_later_processes_know(gpu, tmp_path):
    assert gemm_choice.choose(PROBLEM) != PARAMS
    for _ in range(2):
        gemm_autotune.tune_first(PROBLEM, Tensor())
        assert gemm_choice.choose(PROBLEM) == PARAMS
    (command,) = gpu.commands
    assert gpu.waited == 1
    assert command[1:] == ["-m", "tilecat", "tune", "matmul", "--shapes", "640x512x72",
                           "--layout", "NT", "--dtype", "bf16", "--budget", "20.0"]  # fmt: skip
    gemm_autotune._tried.clear()
    gemm_autotune.tune_first(replace(PROBLEM, m=632), Tensor())
    assert len(gpu.commands) == 1, "its bucket is covered"
    assert (tmp_path / "tuned" / "matmul-sm_90a-h200.json").is_file()


@pytest.mark.parametrize("change", [
    {"grouped": True}, {"planes": 2}, {"dtype": "s8"}, {"widest": 128}, {"m": 8}, {"n": 509},
    {"depth": 0}, {"m": 4096, "n": 4096, "depth": 4096},
], ids=str)  # fmt: skip
def test_products_unlike_those_measured_or_covered_are_not_tuned(gpu, change):
    gemm_autotune.tune_first(replace(PROBLEM, **change), Tensor())
    assert not gpu.commands and not gpu.waited


def test_nothing_is_tuned_unless_asked_nor_in_a_capture_nor_without_a_cache(gpu, monkeypatch):
    gpu.capturing = True
    gemm_autotune.tune_first(PROBLEM, Tensor())
    gpu.capturing = False
    gemm_autotune.tune_first(PROBLEM, object())
    monkeypatch.setenv("TILECAT_CACHE_BYTES", "0")
    gemm_autotune.tune_first(PROBLEM, Tensor())
    monkeypatch.delenv("TILECAT_CACHE_BYTES")
    for value in ("", "0", "off"):
        monkeypatch.setenv("TILECAT_AUTOTUNE", value)
        gemm_autotune.tune_first(PROBLEM, Tensor())
    assert not gpu.commands and not gpu.waited
    monkeypatch.setenv("TILECAT_AUTOTUNE", "45")
    gemm_autotune.tune_first(PROBLEM, Tensor())
    assert gpu.commands[0][-1] == "45.0"
    for value in ("3", "soon"):
        monkeypatch.setenv("TILECAT_AUTOTUNE", value)
        with pytest.raises(tc.ResourceError, match="TILECAT_AUTOTUNE is 0, 1, or seconds from 5"):
            gemm_autotune.tune_first(PROBLEM, Tensor())


def test_a_tuner_that_fails_or_hangs_is_killed_reported_and_not_tried_again(gpu, monkeypatch):
    model = gemm_choice.choose(PROBLEM)
    monkeypatch.setattr(gemm_autotune, "GRACE_S", -19.0)
    cases = [
        ("import sys; sys.exit('ResourceError: no GPU')", "exit code 1: ResourceError: no GPU"),
        ("import time; time.sleep(60)", "not done in 1 s, killed"),
        ("pass", "no candidate was measured"),
    ]
    for number, (gpu.script, reason) in enumerate(cases):
        problem = replace(PROBLEM, m=640 + 8 * number)
        started = time.monotonic()
        with pytest.warns(RuntimeWarning, match=rf"tuning matmul .* found nothing: {reason}"):
            gemm_autotune.tune_first(problem, Tensor())
        assert time.monotonic() - started < 30
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gemm_autotune.tune_first(problem, Tensor())
    assert len(gpu.commands) == 3 and gemm_choice.choose(PROBLEM) == model


def test_the_tuner_sees_the_operands_gpu_alone(gpu, monkeypatch, tmp_path):
    told = tmp_path / "told"
    gpu.script = f"""
import os, pathlib
names = "CUDA_VISIBLE_DEVICES", "TILECAT_AUTOTUNE"
pathlib.Path({str(told)!r}).write_text(" ".join(map(os.environ.__getitem__, names)))
"""
    for visible, wanted in (("", "1"), ("5,GPU-7", "GPU-7")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setattr(gemm_autotune, "_tried", set())
        with pytest.warns(RuntimeWarning):
            gemm_autotune.tune_first(PROBLEM, Tensor())
        assert told.read_text() == f"{wanted} 0"


def test_the_users_winners_come_before_the_shipped_ones(gpu):
    (shipped, *_) = (w for w in gemm_winners.measured(132) if w.m == 4096 == w.n == w.depth)
    problem = replace(PROBLEM, m=4096, n=4096, depth=4096, layout=shipped.layout)
    assert gemm_choice.choose(problem) == shipped.params != PARAMS
    extents = (4096, 4096, 4096)
    gemm_winners.keep(found(*extents, layout=shipped.layout, sms=114))
    assert gemm_choice.choose(problem) == shipped.params, "of another GPU"
    gemm_winners.keep(found(*extents, layout=shipped.layout, dtype="f16"))
    assert gemm_choice.choose(problem) == shipped.params, "of another dtype"
    assert gemm_choice.choose(replace(problem, dtype="f16")) == PARAMS
    gemm_winners.keep(found(*extents, layout=shipped.layout))
    assert gemm_choice.choose(problem) == PARAMS
    assert gemm_winners.keep(found(64, 64, 64, device="NVIDIA H100/80GB", sms=114)).parent == (
        gemm_winners.folder()
    )
    newer = {**PARAMS, "stages": 5}
    path = gemm_winners.keep(found(*extents, layout=shipped.layout, params=newer))
    assert gemm_choice.choose(problem) == newer
    assert len(json.loads(path.read_text())["problems"]) == 3
    path.write_text('{"problems": [{}]}')
    gemm_winners.forget()
    assert gemm_choice.choose(problem) == shipped.params, "a damaged file is none"


def test_winners_that_cannot_be_kept_are_an_error(gpu, tmp_path):
    (tmp_path / "tuned").write_text("in the way")
    with pytest.raises(tc.ResourceError, match="winners are kept in .*tuned, which cannot"):
        gemm_winners.keep(found(64, 64, 64))


def test_results_name_the_commit_outside_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(record, "PACKAGE", tmp_path / "tilecat")
    monkeypatch.delenv("TILECAT_COMMIT", raising=False)
    properties = SimpleNamespace(name="GPU", multi_processor_count=1, total_memory=1)
    torch = SimpleNamespace(
        cuda=SimpleNamespace(get_device_properties=lambda _: properties, current_device=lambda: 0),
        version=SimpleNamespace(cuda="13"), backends=SimpleNamespace(
            cudnn=SimpleNamespace(version=lambda: 9)),
    )  # fmt: skip
    assert record.environment(torch)["commit"] is None
    monkeypatch.setenv("TILECAT_COMMIT", "4ec8d38")
    assert record.environment(torch)["commit"] == "4ec8d38"
    assert record.environment(torch, "abc")["commit"] == "abc"
