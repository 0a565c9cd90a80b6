"""What `tc.matmul` chooses for a shape: winners that were measured, thin products, the model."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, f16, gemm_choice, gemm_winners, operators
from tilecat.gemm_parts import places_of
from tilecat.gemm_winners import Winner
from tilecat.kernels import epilogues
from tilecat.kernels.epilogues import Step
from tilecat.kernels.gemm import SPILL_BYTES
from tilecat.kernels.gemm import matmul as kernel
from tilecat.kernels.space import GEMM_SPACE
from tilecat.model.gemm import cycles
from tilecat.tune.winners import merged, parameters, winners

H200 = gemm_winners.SHIPPED / "matmul-h200.json"
DATA = json.loads(H200.read_text())
RESULTS, *LATER = (
    json.loads((gemm_winners.SHIPPED.parents[2] / "benchmarks" / "results" / name).read_text())
    for name in ("tune-matmul.json", "tune-matmul-large.json", "tune-matmul-groups.json")
)
PROBLEM = gemm_choice.Problem(
    512, 512, 512, layout="NN", planes=1, sms=132, dtype="bf16"
)


def test_a_measured_problem_takes_its_winner_and_nothing_else_does():
    for row in DATA["problems"]:
        m, n, k = row["extents"].values()
        problem = replace(PROBLEM, m=m, n=n, depth=k, layout=row["layout"])
        if not problem.turned:
            wanted = gemm_choice.without_parts(row["params"])
            assert {**gemm_choice.choose(problem), "cache": 0} == {**wanted, "cache": 0}
    problem = replace(PROBLEM, m=4096, n=4096, depth=128)
    model = gemm_choice.choose(replace(problem, layout="TN"))
    assert "cluster" not in model and gemm_choice.choose(problem) != model
    assert gemm_choice.choose(replace(problem, sms=114)) == model
    assert gemm_choice.choose(replace(problem, planes=2))["tile_m"] in (64, 128)
    assert gemm_choice.choose(replace(problem, widest=128))["tile_n"] <= 128


def test_tiles_of_groups_have_a_power_of_2_of_rows():
    for m in range(64, 4000, 64):
        problem = replace(PROBLEM, m=m, n=m, grouped=True, plain=True)
        assert gemm_choice.choose(problem)["tile_m"] in (64, 128)


def test_tiles_are_whole_blocks_of_scales_or_parts_of_one():
    for n in range(64, 2000, 64):
        problem = replace(PROBLEM, m=4096, n=n, dtype="e4m3", block=128)
        assert gemm_choice.choose(problem)["tile_n"] in (64, 128, 256)


def test_a_shape_nearby_takes_the_winner_where_the_model_finds_it_faster(monkeypatch):
    fast = {"tile_m": 128, "tile_n": 224, "stages": 4, "group": 4}
    slow = {"tile_m": 64, "tile_n": 32, "stages": 8, "group": 4}
    rows = (
        Winner("bf16", "NN", 2048, 3584, 4096, fast),
        Winner("bf16", "NT", 2048, 3584, 4096, slow),
    )
    monkeypatch.setattr(gemm_choice, "measured", lambda sms: rows)
    choose = lambda problem: gemm_choice._choose.__wrapped__(problem, None)  # noqa: E731
    near = replace(PROBLEM, m=2000, n=3500, depth=4000)
    assert choose(near) == fast != gemm_choice._modelled(near)
    assert cycles(fast, 2000, 3500, 4000, 132) < cycles(
        gemm_choice._modelled(near), 2000, 3500, 4000, 132
    )
    assert choose(replace(near, depth=2048)) == fast, "a factor of 2 is in the bucket"
    for other in (
        replace(near, depth=2047), replace(near, layout="NT"), replace(near, layout="TN"),
        replace(near, m=2100, n=3700), replace(near, planes=2), replace(near, dtype="s8"),
        replace(near, grouped=True), replace(near, widest=192),
    ):  # fmt: skip
        assert choose(other) == gemm_choice._modelled(other), other
    exact = replace(PROBLEM, m=2048, n=3584, depth=4096, layout="NT")
    assert choose(exact) == slow, "measured is measured"
    monkeypatch.setattr(gemm_choice, "measured", lambda sms: (*rows, *nearer))
    other = {**fast, "group": 32}
    nearer = (Winner("bf16", "NN", 2001, 3500, 4000, other),)
    assert choose(near) == other


def test_the_model_picks_nearly_the_best_of_what_was_measured():
    """The tuner's screening of all candidates; thin products are turned, not modelled."""
    regrets = {"tiles of tc.matmul": [], "all candidates": []}
    for problem in RESULTS["problems"]:
        m, n, k = problem["extents"].values()
        if m <= gemm_choice.THIN:
            continue
        us = {json.dumps(parameters(name)): us for name, us in problem["screen_us"].items()
              if "=" in name}  # fmt: skip
        mine = gemm_choice._modelled(replace(PROBLEM, m=m, n=n, depth=k))
        mine.pop("stages"), mine.pop("group")
        same = [t for text, t in us.items()
                if {"tile_k": 64, "cluster": 1, **mine}.items() <= json.loads(text).items()]
        first = min(us, key=lambda text: GEMM_SPACE.micros(
            json.loads(text), problem["extents"], 2))  # fmt: skip
        best = min(us.values())
        regrets["tiles of tc.matmul"].append(min(same) / best)
        regrets["all candidates"].append(us[first] / best)
    assert len(regrets["all candidates"]) == 36
    means = {name: np.exp(np.mean(np.log(found))) for name, found in regrets.items()}
    assert means["tiles of tc.matmul"] < 1.04 and means["all candidates"] < 1.06, means


def test_shipped_winners_are_what_the_tuner_found():
    assert merged(*map(winners, (RESULTS, *LATER))) == DATA
    found = {(*problem["extents"].values(), problem["layout"]): problem["times_us"]
             for results in (RESULTS, *LATER) for problem in results["problems"]}  # fmt: skip
    for row in DATA["problems"]:
        times = found[*row["extents"].values(), row["layout"]]
        best = min(us["median"] for name, us in times.items() if "=" in name)
        assert best <= row["us"] <= 1.01 * best


@pytest.mark.parametrize(
    "params", {json.dumps(row["params"]): row["params"] for row in DATA["problems"]}.values(),
    ids=str,
)  # fmt: skip
def test_a_shipped_configuration_is_right_and_spills_nothing(params):
    rng = np.random.default_rng(3)
    a = rng.standard_normal((200, 136)).astype(bf16.numpy)
    b = rng.standard_normal((136, 264)).astype(bf16.numpy)
    c = np.full((200, 264), np.nan, bf16.numpy)
    shared = places_of((a, b, c), params, 132).arguments(a)
    kernel(a, b, c, *shared, **params)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.linalg.norm(c.astype(np.float64) - exact) <= 2**-8 * np.linalg.norm(exact)
    assert kernel.compile(a, b, c, *shared, target="sm_90a", **params).resources.spill_bytes == 0


def test_consumers_in_turn_have_registers_for_bias_and_gelu_but_for_a_few():
    a, b = np.zeros((256, 128), bf16.numpy), np.zeros((128, 192), bf16.numpy)
    steps = Step(epilogues.bias, 1), Step(epilogues.gelu)
    made = kernel.compile(a, b, np.zeros((256, 192), bf16.numpy), np.zeros(192, np.float32),
                          tile_m=128, tile_n=192, stages=4, group=8, pingpong=1, epilogue=steps,
                          target="sm_90a")  # fmt: skip
    assert made.resources.spill_bytes <= SPILL_BYTES


@pytest.mark.parametrize("dtype", [bf16, f16])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_thin_products_change_places_and_stay_right(dtype, layout, batch):
    rng = np.random.default_rng(4)
    for rows in (1, 7, 16):
        a = rng.standard_normal((*batch, rows, 72)).astype(dtype.numpy)
        b = rng.standard_normal((*batch, 72, 136)).astype(dtype.numpy)
        a = np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2) if layout[0] == "T" else a
        b = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2) if layout[1] == "T" else b
        for out_dtype in (dtype, tc.f32):
            out = np.full((*batch, rows, 136), np.nan, out_dtype.numpy)
            tc.matmul(a, b, out)
            exact = a.astype(np.float64) @ b.astype(np.float64)
            limit = (2**-8 if out_dtype != tc.f32 else 2**-16) * np.linalg.norm(exact)
            assert np.linalg.norm(out.astype(np.float64) - exact) <= limit
    assert replace(PROBLEM, m=16).turned
    assert not replace(PROBLEM, m=16, plain=False).turned
    assert not replace(PROBLEM, m=17).turned


def test_an_epilogue_whose_registers_would_spill_gets_a_narrower_tile(monkeypatch):
    tried = []

    def kernel(*args, tile_n, **params):
        tried.append(tile_n)
        if tile_n > 64:
            raise tc.ResourceError("assemble: registers must not spill to local memory")

    monkeypatch.setattr(operators, "matmul_kernel", kernel)
    monkeypatch.setattr(operators, "num_sms", lambda device: 132)
    a = np.zeros((4096, 64), bf16.numpy)
    for _ in range(2):
        tc.matmul(a, a.T, epilogue=tc.epilogues.relu)
    assert tried[-2:] == [64, 64] and tried[0] > 64 and len(tried) <= 4
    with pytest.raises(tc.ResourceError):
        tc.matmul(a, a.T)


class OnlyDlpack:
    """An array seen through DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_arrays_of_protocols_alone_are_multiplied():
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal(s).astype(f16.numpy) for s in ((8, 72), (72, 136)))
    out = np.full((8, 136), np.nan, f16.numpy)
    for _ in range(2):
        tc.matmul(*map(OnlyDlpack, (a, b, out)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.linalg.norm(out.astype(np.float64) - exact) <= 2**-10 * np.linalg.norm(exact)


def test_operands_read_once_are_streamed_through_l2():
    big = replace(PROBLEM, n=8192, depth=8192)
    assert gemm_choice.choose(replace(big, m=16))["cache"] == ("evict_first", "", ""), "turned"
    assert gemm_choice.choose(replace(big, m=128))["cache"] == ("", "evict_first", "")
    for other in (
        replace(big, m=1024), replace(big, m=16, depth=512), replace(big, m=64, grouped=True)
    ):  # fmt: skip
        assert "cache" not in gemm_choice.choose(other)


def test_consumers_take_turns_where_their_sums_have_registers():
    problem = replace(PROBLEM, m=8192, n=8200, depth=512, dtype="e4m3")
    assert gemm_choice.choose(problem) == {
        "tile_m": 128, "tile_n": 192, "stages": 4, "group": 8, "pingpong": 1
    }  # fmt: skip
    assert gemm_choice.choose(replace(problem, sums=191))["tile_n"] != 192
    for other in (replace(problem, sums=96), replace(problem, block=128)):
        assert "pingpong" not in gemm_choice.choose(other)
