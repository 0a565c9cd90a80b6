"""The tuner's stages with made-up times: what it finds, and what candidates cannot break."""

import json
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

from tilecat import gemm_winners, tune
from tilecat.arch import DEFAULT_TARGET
from tilecat.bench import record
from tilecat.errors import LayoutError, ResourceError
from tilecat.kernels import KERNELS
from tilecat.kernels.space import GEMM_SPACE
from tilecat.testing import Times
from tilecat.tune import plan, stages, worker
from tilecat.tune.pool import Worker
from tilecat.tune.problems import TUNABLES, Ready, Tunable
from tilecat.tune.winners import merged, parameters, winners

from . import fake_worker
from .fake_worker import DIES, HANGS, HANGS_LATER, REFUSED, WRONG

COMMAND = (sys.executable, str(Path(fake_worker.__file__)))
SPEC = KERNELS[0]


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    monkeypatch.setattr(stages, "_patience", lambda answer, seconds: 2.0 if answer else 60.0)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(tune, "require_gpu", types.SimpleNamespace)
    monkeypatch.setattr(record, "environment", lambda torch, commit=None: {"device": "none"})


def problem(*tiles):
    candidates = {f"tile_n={n}": {"tile_n": n} for n in tiles}
    return stages.Problem(SPEC.shape("4096^3"), "NN", candidates)


def measured(*tiles, keep=2):
    one, made = problem(*tiles), Worker(COMMAND)
    try:
        stages.measure_problem(made, one, {"kernel": "matmul", "seconds": 1.0, "keep": keep})
    finally:
        made.close()
    return one


def test_measuring_screens_all_and_times_the_fastest_beside_the_peer():
    found = measured(300, 100, 200).found
    assert found["screen_us"] == {
        "torch.mm": 1000, "tile_n=300": 300, "tile_n=100": 100, "tile_n=200": 200,
    }  # fmt: skip
    assert set(found["times_us"]) == {"torch.mm", "tile_n=100", "tile_n=200"}
    assert found["times_us"]["tile_n=100"]["median"] == 100
    assert found["failed"] == {} and set(found["error"]) == {f"tile_n={n}" for n in (300, 100, 200)}


def test_candidates_that_hang_die_or_are_wrong_are_reported_and_skipped():
    one = measured(300, HANGS, 100, DIES, WRONG, 200)
    failed = one.found["failed"]
    assert set(failed) == {f"tile_n={n}" for n in (HANGS, DIES, WRONG)}
    assert failed[f"tile_n={HANGS}"].startswith("hung: no answer in 2 s, killed")
    assert failed[f"tile_n={DIES}"] == "died (exit code 11): Segmentation fault"
    assert failed[f"tile_n={WRONG}"] == "wrong result"
    assert set(one.found["times_us"]) == {"torch.mm", "tile_n=100", "tile_n=200"}
    assert "tile_n=100  /torch.mm 10.000  3 of 6 failed" in tune.line_of(one)


def test_a_candidate_that_hangs_while_many_are_timed_is_found_by_running_each_for_longer():
    found = measured(100, HANGS_LATER, 200).found
    assert list(found["failed"]) == [f"tile_n={HANGS_LATER}"]
    assert set(found["times_us"]) == {"torch.mm", "tile_n=100", "tile_n=200"}


def test_a_problem_that_loses_too_many_workers_is_given_up(monkeypatch):
    monkeypatch.setattr(stages, "MAX_LOST", 1)
    found = measured(DIES, 100).found
    assert found["skipped"].startswith("lost 1 workers; the last died (exit code 11)")


def test_compiling_prunes_what_is_refused_and_survives_a_worker_that_dies():
    families = [{f"tile_n={n}": {"tile_n": n}} for n in (64, REFUSED, -DIES, 128)]
    jobs = [{"do": "compile", "layout": "NT", "candidates": family} for family in families]
    seen = []
    found = stages.compile_all(jobs, 2, lambda *n: seen.append(n), COMMAND)["NT"]
    assert set(found.usable) == {"tile_n=64", "tile_n=128"}
    assert found.pruned[f"tile_n={REFUSED}"] == "Resource: too large"
    assert found.pruned[f"tile_n={-DIES}"] == "died (exit code 3)"
    assert seen[-1] == (4, 4)


def test_tune_writes_what_it_found_after_every_problem(no_gpu, tmp_path):
    path, lines = tmp_path / "found.json", []

    def say(line):
        lines.append((line, json.loads(path.read_text())["problems"]) if path.exists() else line)

    settings = tune.Settings(budget_s=60, processes=2, say=say, command=COMMAND)
    tune.tune("matmul", ("512^3", "64x128x256"), layouts=("NT",), out=path, settings=settings)
    found = json.loads(path.read_text())
    assert [row["shape"] for row in found["problems"]] == ["512^3", "64x128x256"]
    assert found["problems"][1]["extents"] == {"M": 64, "N": 128, "K": 256}
    usable = found["candidates"]["NT"]["usable"]
    assert set(found["problems"][0]["screen_us"]) - {"torch.mm"} <= set(usable)
    assert [len(rows) for line, rows in lines[-2:]] == [1, 2], "saved before the next problem"
    with pytest.raises(ResourceError, match="results of an earlier run"):
        tune.tune("matmul", out=path, settings=settings)


def test_tune_keeps_winners_in_the_users_cache_unless_told_where(no_gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("TILECAT_CACHE_DIR", str(tmp_path))
    facts = {"device": "NVIDIA H200", "sms": 132}
    kept = ("date", "cuda", "ptxas", "packages", "commit", "source_sha256")
    monkeypatch.setattr(
        record, "environment", lambda torch, commit=None: {**facts, **dict.fromkeys(kept)}
    )
    settings = tune.Settings(budget_s=60, processes=2, say=lambda line: None, command=COMMAND)
    options = {"layouts": ("NT",), "settings": settings}
    tune.tune("matmul", ("640x512x72",), out=tmp_path / "own.json", **options)
    assert not (tmp_path / "tuned").exists()
    for _ in range(2):
        path = tune.tune("matmul", ("640x512x72",), **options)
    assert path == tmp_path / "tuned" / "tune-matmul.json"
    (winner,) = (w for w in gemm_winners.measured(132) if (w.m, w.n, w.depth) == (640, 512, 72))
    assert winner.layout == "NT" and winner.params["tile_n"] == 32, "the least made-up time"
    monkeypatch.setenv("TILECAT_CACHE_BYTES", "0")
    with pytest.raises(ResourceError, match="TILECAT_CACHE_BYTES=0 turns off"):
        tune.tune("matmul", **options)


def test_problems_go_without_when_the_time_is_up():
    many = [problem(100), problem(200)]
    saved = []
    settings = tune.Settings(say=lambda line: None, command=COMMAND)
    tune.measure_all(many, {"kernel": "matmul"}, 0.0, settings, lambda: saved.append(1))
    assert [one.found for one in many] == [{"skipped": "out of time"}] * 2 and len(saved) == 2


def test_problems_without_candidates_are_skipped_with_the_reason():
    """As when the time for compiling was over before one was made."""
    none, settings = problem(), tune.Settings(say=lambda line: None, command=COMMAND)
    none.cost_s = 0.0
    tune.measure_all([none], {"kernel": "matmul"}, time.monotonic() + 9, settings, lambda: None)
    assert none.found == {"skipped": "no candidate"}


def test_a_candidate_that_cost_a_worker_is_not_tried_again():
    many = [problem(DIES, 100), problem(100, DIES)]
    settings = tune.Settings(say=lambda line: None, command=COMMAND)
    end = time.monotonic() + 60
    tune.measure_all(many, {"kernel": "matmul"}, end, settings, lambda: None)
    assert list(many[0].found["failed"]) == [f"tile_n={DIES}"]
    assert many[1].found["failed"] == {} and list(many[1].candidates) == ["tile_n=100"]


def test_fit_keeps_the_most_promising_candidates():
    one = problem(*range(100, 140))
    one.cost_s = 20.0
    plan.fit(one, 5.0)
    assert list(one.candidates) == [f"tile_n={n}" for n in range(100, 110)]


def test_names_that_mean_nothing_are_refused():
    with pytest.raises(LayoutError, match="a kernel with a space"):
        plan.tunable_of("fft", DEFAULT_TARGET)
    with pytest.raises(LayoutError, match="has no layout 'NX'"):
        plan.layouts_of(TUNABLES["matmul"], ("NX",))
    for name in ("big", "3x4", "0x4x4", "5^2"):
        with pytest.raises(LayoutError, match="named by its extents M x N x K"):
            plan.shapes_of(SPEC, (name,))


def test_space_prunes_before_a_trace_and_ranks_by_the_model():
    candidates = [params for family in GEMM_SPACE.families(2) for params in family]
    assert not any(p["tile_m"] == 192 and p["tile_n"] > 192 for p in candidates)
    best = GEMM_SPACE.ranked(candidates, {"M": 1, "N": 8192, "K": 8192}, 2)[0]
    assert best["tile_m"] == 64, "one row wastes the least of a small tile"
    close = GEMM_SPACE.ranked(candidates, {"M": 4096, "N": 4096, "K": 4096}, 2, within=1.1)
    assert 0 < len(close) < len(candidates)
    few = GEMM_SPACE.ranked(candidates, {"M": 256, "N": 4096, "K": 4096}, 2)
    whole = [p for p in few if p["split_k"] == p["stream_k"] == 1]
    plain = [p for p in whole if (p["tile_m"], p["cluster"], p["pingpong"]) == (128, 1, 0)]
    groups = {p["group"] for p in plain}
    assert groups == {4}, "two block rows: every group is the whole"


def test_space_shares_k_where_tiles_are_few_or_leave_a_tail():
    candidates = [params for family in GEMM_SPACE.families(2) for params in family]
    long = GEMM_SPACE.ranked(candidates, {"M": 512, "N": 512, "K": 16384}, 2)
    assert max(long[0]["split_k"], long[0]["stream_k"]) > 1
    tail = {"M": 128 * 19, "N": 256 * 7, "K": 4096}
    wide = [p for p in candidates if (p["tile_m"], p["tile_n"]) == (128, 256)]
    assert GEMM_SPACE.ranked(wide, tail, 2)[0]["stream_k"] == 4
    even = GEMM_SPACE.ranked(wide, {"M": 128 * 12, "N": 256 * 11, "K": 4096}, 2)
    assert {p["stream_k"] for p in even} == {1}, "132 tiles leave no tail"
    assert not any(p["split_k"] > 1 < p["stream_k"] for p in candidates)


def tiles_of(candidates):
    """Candidates by everything but the order of their tasks."""
    found = {}
    for p in candidates:
        rest = tuple((name, x) for name, x in p.items() if name not in ("order", "group"))
        found.setdefault(rest, []).append((p["order"], p["group"]))
    return found


def test_space_keeps_the_orders_of_a_tile_that_read_least():
    wide = {"tile_m": 128, "tile_n": 256, "tile_k": 64, "stages": 4, "cluster": 1, "pingpong": 0}
    alike = [p for f in GEMM_SPACE.families(2) for p in f
             if wide.items() <= p.items() and p["split_k"] == p["stream_k"] == 1]  # fmt: skip
    assert len(alike) == 7, "grouped by 4 to 32 block rows, snakes of 8 to 32"
    large = {"M": 12288, "N": 12288, "K": 12288}
    kept = GEMM_SPACE.ranked(alike, large, 2)
    by_bytes = sorted(alike, key=lambda p: GEMM_SPACE.read_bytes(p, large, 2))
    assert len(kept) == 2 and {id(p) for p in kept} == {id(p) for p in by_bytes[:2]}
    assert GEMM_SPACE.read_bytes(by_bytes[0], large, 2) < GEMM_SPACE.read_bytes(
        next(p for p in alike if p["group"] == 4), large, 2
    ), "a patch of 4 x 33 tiles reads more than a square one"
    assert all(len(orders) <= 2 for orders in tiles_of(GEMM_SPACE.ranked(
        [p for f in GEMM_SPACE.families(2) for p in f], {"M": 1024, "N": 1024, "K": 1024}, 2
    )).values())  # fmt: skip


@pytest.mark.parametrize("name", ["2048^3 NT", "4352^3 NT", "8192x1024x8192 NN"])
def test_what_the_models_of_time_and_l2_leave_has_a_measured_winner(name):
    rows = json.loads(Path("benchmarks/results/tune-matmul.json").read_text())["problems"]
    row = next(row for row in rows if f"{row['shape']} {row['layout']}" == name)
    medians = {n: t["median"] for n, t in row["times_us"].items() if "=" in n}
    every = [{"order": "grouped", **parameters(n)} for n in row["screen_us"] if "=" in n]
    left = GEMM_SPACE.ranked(every, row["extents"], 2, within=tune.WITHIN)
    assert len(left) < 0.8 * len(every)
    ids = {plan.candidate_id(p).replace("order=grouped ", "") for p in left}
    best = min(us for n, us in medians.items() if n in ids)
    assert best <= 1.005 * min(medians.values())


def test_only_candidates_that_the_models_leave_are_compiled():
    shapes = plan.shapes_of(SPEC, ("512x384x256",))
    few = plan.promising(GEMM_SPACE, shapes, "bf16", tune.WITHIN)
    jobs = plan.compile_jobs("matmul", GEMM_SPACE, ["NN", "NT"], "bf16", DEFAULT_TARGET, few)
    assert {name for job in jobs for name in job["candidates"]} == set(few)
    every = plan.compile_jobs(
        "matmul", GEMM_SPACE, ["NN", "NT"], "bf16", DEFAULT_TARGET,
        [plan.candidate_id(p) for f in GEMM_SPACE.families(2) for p in f],
    )  # fmt: skip
    assert 0 < len(jobs) < 0.6 * len(every)


def test_the_most_promising_candidates_compile_first():
    """Time may end before all have; 64 rows, the first of the space, suit large products least."""
    shapes = plan.shapes_of(SPEC, ("3072^3",))
    few = list(plan.promising(GEMM_SPACE, shapes, "bf16", tune.WITHIN))
    assert len(few) == plan.MOST_CANDIDATES
    jobs = plan.compile_jobs("matmul", GEMM_SPACE, ["NN"], "bf16", DEFAULT_TARGET, few)
    firsts = [min(few.index(name) for name in job["candidates"]) for job in jobs]
    assert firsts[0] == 0 and firsts == sorted(firsts)
    assert all(p["tile_m"] > 64 for job in jobs[:8] for p in job["candidates"].values())


def test_winners_tell_an_order_that_is_not_the_usual_one():
    name = "tile_m=64 tile_n=128 order=snake group=8 split_k=1"
    assert parameters(name)["order"] == "snake" and parameters(name)["group"] == 8
    times = {name: {"median": 2.0}, name.replace("snake", "grouped"): {"median": 3.0}}
    facts = ("date", "device", "sms", "cuda", "ptxas", "packages", "commit", "source_sha256")
    results = {
        "kernel": "matmul", "target": "sm_90a", "dtype": "bf16",
        "environment": dict.fromkeys(facts),
        "problems": [{"layout": "NN", "extents": {}, "times_us": times}],
    }  # fmt: skip
    (row,) = winners(results)["problems"]
    assert row["params"] == {"tile_m": 64, "tile_n": 128, "order": "snake", "group": 8}


def test_winners_of_a_later_run_take_the_place_of_an_earlier_ones():
    def run(date, *problems, device="NVIDIA H200"):
        rows = [{"layout": "NN", "extents": {"M": m, "N": 8, "K": 8}, "us": us}
                for m, us in problems]  # fmt: skip
        facts = {"date": date, "device": device, "commit": "c"}
        return {"kernel": "matmul", "target": "sm_90a", "dtype": "bf16", "environment": facts,
                "problems": rows}  # fmt: skip

    found = merged(run("1", (64, 5.0), (128, 6.0)), run("2", (128, 4.0), (256, 9.0)))
    assert [(row["extents"]["M"], row["us"]) for row in found["problems"]] == [
        (64, 5.0), (128, 4.0), (256, 9.0),
    ]  # fmt: skip
    assert found["environment"]["date"] == "1" and "run" not in found["problems"][0]
    assert found["problems"][1]["run"] == {"date": "2", "device": "NVIDIA H200", "commit": "c"}
    with pytest.raises(LayoutError, match="results of one device, got NVIDIA H200 and NVIDIA H100"):
        merged(run("1"), run("2", device="NVIDIA H100"))


def test_family_compiles_the_deepest_rings_that_fit(monkeypatch):
    family = next(f for f in GEMM_SPACE.families(2) if (f[0]["tile_m"], f[0]["tile_n"]) == (64, 32))
    wide = {"tile_m": 128, "tile_n": 256, "tile_k": 64, "group": 8, "cluster": 1, "split_k": 4}
    depths = {plan.candidate_id(p): p for n in (9, 4, 3, 2) for p in [{**wide, "stages": n}]}
    job = {"kernel": "matmul", "layout": "NT", "dtype": "bf16", "target": DEFAULT_TARGET}
    answers = list(worker.compile_family({**job, "depths": 2, "candidates": depths}))
    assert ["pruned" in answer for answer in answers] == [True, False, False]
    assert answers[1]["registers"] > 100 and answers[1]["id"].endswith("stages=4")
    assert [p["stages"] for p in family] == sorted((p["stages"] for p in family), reverse=True)


def test_measure_runs_checks_and_times_on_the_machine(monkeypatch):
    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(worker, "require_gpu", lambda: torch)
    monkeypatch.setattr(worker, "do_bench", lambda fns, **_: tuple(Times((1.0,)) for _ in fns))
    args = SPEC.example({"M": 64, "N": 64, "K": 64})
    problem = Ready(
        tuple(args),
        check=lambda: SPEC.error(args),
        clear=lambda: args[2].fill(np.nan),
        peers={"torch.mm": lambda: None},
    )
    monkeypatch.setitem(worker.TUNABLES, "matmul", Tunable(
        SPEC, ("NN",), ("NN",), None, lambda *_: problem, TUNABLES["matmul"].further))  # fmt: skip
    good = {"tile_m": 64, "tile_n": 64, "tile_k": 64, "stages": 2, "group": 8, "cluster": 1}
    job = {"kernel": "matmul", "shape": "64^3", "items": [("M", 64)], "layout": "NN"}
    candidates = {"good": good, "bad": {**good, "stages": 99}, "split": {**good, "split_k": 3}}
    job |= {"dtype": "bf16", "candidates": candidates, "seconds": 60, "keep": 1, "calls": 1}
    worker._problem.cache_clear()
    assert list(worker.prepare(job)) == []
    answers = list(worker.measure(job))
    assert answers[0] == {"trying": "good"} and answers[1]["error"] < 2**-8
    assert answers[3]["failed"] == "bad" and "stages" in answers[3]["reason"]
    assert answers[5]["checked"] == "split" and answers[5]["error"] < 2**-8
    assert answers[7] == {"screen": {"torch.mm": 1.0, "good": 1.0, "split": 1.0}}
    assert set(answers[-1]["times"]) == {"torch.mm", "good"}
    assert worker._problem.cache_info().misses == 1, "made once, before it was measured"
    many = {f"good {n}": good for n in range(plan.MIN_CANDIDATES + 3)}
    late = list(worker.measure({**job, "seconds": 0, "candidates": many}))
    tried = [answer["trying"] for answer in late if "trying" in answer]
    assert tried == list(many)[: plan.MIN_CANDIDATES], "no further one when the time is over"
    torch.cuda.synchronize = lambda: (_ for _ in ()).throw(RuntimeError("context is gone"))
    with pytest.raises(worker.ContextLost, match="context is gone"):
        list(worker.measure(job))
