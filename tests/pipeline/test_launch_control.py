"""Cluster launch control as the scheduler: each task is done once, by who got it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, f32, gl, st
from tilecat.errors import ArchError, ResourceError, ScopeError, TileError
from tilecat.kernels.gemm import matmul

from .test_tensor import TARGETS, TYPES, arrays, check

LAUNCH = {"persistent": "launch-control"}
SCHEDULES = [
    {}, {"cluster": 2}, {"cluster": 2, "pairs": True}, {"cluster": (2, 2), "group": 4},
]  # fmt: skip


def run(target: str, *args: Any, seed: int = 0, **params: Any) -> Any:
    result = matmul.simulate(*args, target=target, seed=seed, **LAUNCH, **params)
    assert not result.reports, str(result.reports[0])
    return result


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("params", SCHEDULES, ids=str)
def test_tasks_are_done_once_at_any_schedule(params: dict[str, Any], seed: int):
    a, b, c = arrays(600, 104, 72, TYPES["bf16"])
    run("sm_100a", a, b, c, seed=seed, tile_n=32, stages=3, **params)
    check(c, a, b)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.full) for name in TYPES])
@pytest.mark.parametrize("params", SCHEDULES[::2], ids=str)
def test_product_of_each_type_is_right(target: str, name: str, params: dict[str, Any]):
    a, b, c = arrays(600, 264, 160, TYPES[name])
    run(target, a, b, c, tile_n=64, **params)
    check(c, a, b, name)


@pytest.mark.parametrize("target", TARGETS[1:])
def test_ctas_that_run_take_over_tasks(target: str):
    a, b, c = arrays(1100, 72, 64, TYPES["bf16"])
    result = run(target, a, b, c, tile_n=32)
    assert result.stats["clusterlaunchcontrol"] > 0
    check(c, a, b)


def test_tensors_beside_tma_are_loaded_by_a_warpgroup_that_asks():
    a, b, c = arrays(300, 40, 75, TYPES["bf16"])
    run("sm_100a", a, b, c, tile_n=32, stages=2)
    check(c, a, b)


@tc.kernel
def doubled(A: gl[bf16, "M", "N"], B: gl[bf16, "M", "N"], *, persistent=True):
    """B = 2 A: consumers without products, and a thread that stores."""
    tasks = tc.row_major(tc.cdiv(A.rows, 64), tc.cdiv(A.cols, 64))
    pipe = tc.lcsf(consumers=1, stages=2, tasks=tasks, steps=1, persistent=persistent)
    a = pipe.input(st[bf16, 64, 64])
    b = pipe.output(st[bf16, 64, 64])

    @pipe.load
    def _(task, step):
        tc.load_async(a, A[task.row, task.col])

    @pipe.compute
    def _(task, step):
        tc.store(b, tc.load(a) * 2)

    @pipe.store
    def _(task, step):
        tc.store_async(B[task.row, task.col], b)


@pytest.mark.parametrize("seed", range(3))
def test_who_stores_takes_the_same_tasks(seed: int):
    a, _, _ = arrays(400, 8, 136, TYPES["bf16"])
    b = np.full_like(a, np.nan)
    result = doubled.simulate(a, b, target="sm_100a", seed=seed, **LAUNCH)
    assert not result.reports, str(result.reports[0])
    np.testing.assert_array_equal(b.astype(np.float32), 2 * a.astype(np.float32))


# ---- errors


def test_hopper_has_no_launch_control():
    with pytest.raises(ArchError, match="cluster launch control, which sm_90a does not") as error:
        matmul.compile(target="sm_90a", **LAUNCH)
    assert "hint: persistent=True" in str(error.value)


@pytest.mark.parametrize(
    ("params", "kind", "text"),
    [
        ({"persistent": "yes"}, ResourceError, "persistent is True, False or 'launch-control'"),
        ({"persistent": 1}, ResourceError, "persistent is True, False or 'launch-control'"),
        ({**LAUNCH, "split_k": 2}, TileError, "one plain product, on a persistent grid, has its K"),
    ],
    ids=str,
)
def test_other_schedules_are_refused(params: dict[str, Any], kind: type, text: str):
    with pytest.raises(kind, match=text):
        matmul.compile(target="sm_100a", **params)


def test_consumers_that_take_tasks_in_turn_are_refused():
    @tc.kernel
    def example(A: gl[bf16, "M", "K"], B: gl[f32, "M", "K"]):
        pipe = tc.lcf(consumers=2, stages=2, tasks=tc.row_major(tc.cdiv(A.rows, 64), 1), steps=1,
                      pingpong="tasks", persistent="launch-control")  # fmt: skip
        a = pipe.input(st[bf16, 64, 64])

        @pipe.load
        def _(task, step):
            tc.load_async(a, A[task.row, 0])

        @pipe.compute
        def _(task, step):
            pass

    with pytest.raises(ScopeError, match="take every other task of an order that is known"):
        example.compile(target="sm_100a")


def test_a_grid_of_fewer_tasks_is_refused():
    a, b, c = arrays(600, 104, 72, TYPES["bf16"])
    with pytest.raises(ResourceError, match="a cluster for each task, got grid=2 for 20 CTAs"):
        matmul.simulate(a, b, c, target="sm_100a", grid=2, tile_n=32, **LAUNCH)
    matmul.simulate(a, b, c, target="sm_100a", grid=20, tile_n=32, **LAUNCH)
