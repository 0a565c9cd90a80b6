"""Consumers that take whole tasks in turn (`pingpong="tasks"`), and several CTAs an SM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference

import tilecat as tc
from tilecat import bf16, f32, gl, st
from tilecat.errors import LayoutError, ResourceError, ScopeError
from tilecat.kernels.gemm import matmul

from .schedules import Check, Make, check_schedules, silent

BF16 = bf16.numpy
# M, N, K, parameters: tasks odd and even in number, steps less than the ring, as many and more.
CASES = {
    "two rows a consumer": (328, 264, 200, {"tile_m": 128, "tile_n": 64, "stages": 3}),
    "a step of one": (320, 136, 64, {"tile_m": 64, "tile_n": 64, "stages": 2}),
    "as many steps as stages": (200, 264, 136, {"tile_m": 64, "tile_n": 128, "stages": 3}),
    "one stage": (136, 192, 136, {"tile_m": 64, "tile_n": 64, "stages": 1}),
    "fewer tasks than consumers": (64, 64, 264, {"tile_m": 64, "tile_n": 64, "stages": 2}),
    "no steps": (128, 128, 0, {"tile_m": 64, "tile_n": 64, "stages": 2}),
}
CLUSTERS = {"2 rows": 2, "2 columns": (1, 2), "2 x 2": (2, 2)}


def problem(m: int, n: int, k: int, *, odd: int = 0) -> tuple[Make, Check]:
    """C = AB; with `odd`, rows that TMA cannot reach."""
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.standard_normal(s).astype(BF16) for s in ((m, k + odd), (k, n + odd)))
    a, b = a[:, :k], b[:, :n]

    def make() -> list[Any]:
        return [a, b, np.full((m, n), np.nan, BF16)]

    return make, lambda args: reference.assert_close(args[2], reference.matmul(a, b), BF16)


@pytest.mark.parametrize("name", CASES)
def test_each_takes_whole_tasks(name: str):
    m, n, k, params = CASES[name]
    check_schedules(matmul, *problem(m, n, k), grid=2, pingpong=True, **params)


@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters_too(name: str):
    params = {"tile_m": 64, "tile_n": 64, "stages": 3, "cluster": CLUSTERS[name]}
    check_schedules(matmul, *problem(200, 328, 200), grid=4, seeds=(0, 2), pingpong=True, **params)


def test_threads_load_where_tma_cannot_reach():
    params = {"tile_m": 64, "tile_n": 64, "stages": 2}
    check_schedules(matmul, *problem(136, 136, 136, odd=1), seeds=(0, 2), pingpong=True, **params)


def test_every_synchronisation_is_needed():
    """Tasks of two steps and a ring of three stages: parities alone would let a consumer ahead."""
    make, check = problem(328, 128, 128)
    params = {"tile_m": 64, "tile_n": 64, "stages": 3, "pingpong": True}
    assert silent(matmul, make, check, grid=1, seeds=(0, 1, 2), **params) == []


def test_equal_bits_with_both_ways_of_sharing():
    make, _ = problem(200, 136, 264)
    found = []
    for pingpong in (False, True):
        args = make()
        matmul(*args, tile_m=128, tile_n=64, stages=3, pingpong=pingpong)
        found.append(args[2].tobytes())
    assert found[0] == found[1]


def declared(**options: Any) -> None:
    """Declares a pipeline, and a scratch tile."""

    @tc.kernel
    def some(A: gl[bf16, "M", "K"], *, lcsf=False):
        settings: dict[str, Any] = {"consumers": 2, "stages": 2, "steps": 2, "pingpong": "tasks"}
        make = tc.lcsf if options.pop("lcsf", False) else tc.lcf
        pipe = make(**{**settings, "tasks": tc.row_major(1, 1), **options})
        pipe.scratch(st[bf16, 64, 64])

    some.compile()


WRONG = {
    "word": ({"pingpong": "rows"}, ScopeError, "pingpong is False, True or 'tasks', got"),
    "one": ({"consumers": 1}, ResourceError, "2 or 3 consumers take turns, got consumers=1"),
    "lcsf": ({"lcsf": True}, ScopeError, "consumers of lcf take tasks in turn"),
    "scratch": ({}, ScopeError, "consumers that take tasks in turn have none"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_has_no_turns_of_tasks_says_so(name: str):
    options, kind, text = WRONG[name]
    with pytest.raises(kind) as caught:
        declared(**options)
    assert text in str(caught.value)


def test_tasks_of_unequal_steps_are_refused():
    kernel = beside(1, pingpong="tasks", parts=2)
    with pytest.raises(ScopeError) as caught:
        kernel.compile()
    assert 'tasks of pingpong="tasks" have equal steps, got row-major, K in 2' in str(caught.value)


# ---- CTAs that share an SM


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_a_warp_loads_where_ctas_share_an_sm(blocks: int):
    """A whole warpgroup would take as many registers a thread as a consumer."""
    kernel = beside(blocks)
    compiled = kernel.compile(target="sm_90a")
    assert compiled.module.threads == 256 + (128 if blocks == 1 else 32)
    assert ("setmaxnreg" in compiled.ptx) == (blocks == 1)
    check_schedules(kernel, *problem(200, 136, 136), seeds=(0, 1, 2))
    assert silent(kernel, *problem(200, 136, 136), seeds=(0, 1)) == []


def beside(blocks: int, parts: int = 1, **options: Any) -> tc.KernelFunction:
    """A GEMM of 128 x 64 tiles."""

    @tc.kernel
    def product(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "M", "N"]):
        steps = tc.cdiv(A.cols, 64)
        tasks = tc.row_major(tc.cdiv(A.rows, 128), tc.cdiv(B.cols, 64))
        pipe = tc.lcf(consumers=2, stages=2, tasks=tc.split_k(tasks, parts, steps), steps=steps,
                      blocks_per_sm=blocks, **options)  # fmt: skip
        a, b = pipe.input(st[bf16, 64, 64], count=2), pipe.input(st[bf16, 64, 64])
        c, acc = pipe.output(st[bf16, 64, 64]), pipe.accumulator(f32, 64, 64)

        @pipe.load
        def _(task, k):
            for i in range(2):
                tc.load_async(a[i], A[task.row * 2 + i, k])
            tc.load_async(b, B[k, task.col])

        @pipe.compute
        def _(task, k):
            tc.mma_AB(acc, a[pipe.consumer], b)

        @pipe.finish
        def _(task):
            c.store(C[task.row * 2 + pipe.consumer, task.col], acc)

    return product


# ---- what the caches are told


def test_pipelines_pass_priorities_of_the_l2_on():
    make, check = problem(64, 64, 64)
    params = {"tile_m": 64, "tile_n": 64, "cache": ("evict_first", "evict_last", "evict_normal")}
    text = matmul.compile(*make(), **params).ptx
    loads = [line for line in text.splitlines() if "cp.async.bulk.tensor" in line]
    assert [line.rstrip(";").rpartition("%")[2] for line in loads] == list(params["cache"])
    check_schedules(matmul, make, check, seeds=(0,), **params)
    with pytest.raises(LayoutError) as caught:
        matmul.compile(*make(), tile_m=64, tile_n=64, cache=("", "", "first"))
    assert "output.store: cache is one of evict_first" in str(caught.value)


def test_a_thread_fetches_every_tensor_map_first():
    text = matmul.compile(*problem(64, 64, 64)[0](), tile_m=64, tile_n=64).ptx
    lines = [line.strip() for line in text.splitlines()]
    first = next(i for i, line in enumerate(lines) if "mbarrier.init" in line)
    found = [line for line in lines[:first] if "prefetch.tensormap" in line]
    assert [line.rpartition("%")[2] for line in found] == ["map_A];", "map_B];", "map_C];"]
    assert all(line.startswith("@%first ") for line in found)
