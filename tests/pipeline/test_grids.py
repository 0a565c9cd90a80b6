"""Grids that are not persistent: one task a CTA, counted by the host from a call's arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from failures import fails

import tilecat as tc
from tilecat import bf16, gl, inout, s32, st
from tilecat.codegen.count import GivenExtent, GivenNumber, Term, count_of, counted
from tilecat.errors import ResourceError, ScopeError
from tilecat.kernels.gemm import matmul

BF16 = bf16.numpy
TILES = {"tile_m": 64, "tile_n": 64, "stages": 2, "group": 2}


def visits(schedule: Any, **options: Any) -> tc.KernelFunction:
    """Who[task] = number of the CTA that has it + 1, and of CTAs; through a pipeline of no use."""

    @tc.kernel
    def visit(X: gl[bf16, "M", 64], Who: inout[s32, "T", 2], extra: s32):
        tasks = schedule(X, extra)
        pipe = tc.roles(stages=1, steps=1, tasks=tasks, cluster=tasks.cluster, **options)
        reader = pipe.role("reader")
        x = pipe.input(st[bf16, 64, 64])

        @pipe.load
        def _(task: Any, step: Any) -> None:
            tc.load_async(x, X[0, 0])

        @reader.compute
        def _(task: Any, step: Any) -> None:
            tc.load(x.tile)

        @reader.finish
        def _(task: Any) -> None:
            with tc.one_thread():
                tc.store(Who[task.index, 0], tc.cta_id() + 1)
                tc.store(Who[task.index, 1], tc.num_ctas())

    return visit


SCHEDULES = {
    "extents": (lambda X, n: tc.grouped(tc.cdiv(X.rows, 64), 3), 3 * 3),
    "a scalar argument": (lambda X, n: tc.row_major(n + 1, tc.cdiv(X.rows, 64)), 5 * 3),
    "numbers": (lambda X, n: tc.snake(2, 5), 10),
    "planes": (lambda X, n: tc.batched(tc.column_major(2, n), X.size(1) // 32), 2 * 4 * 2),
    "an own order": (lambda X, n: tc.custom_order(X.rows % 7 * n, lambda t: {"row": t}), 24),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_cta_has_one_task(name: str):
    schedule, tasks = SCHEDULES[name]
    who = np.zeros((tasks + 3, 2), np.int32)
    visits(schedule, persistent=False)(np.zeros((188, 64), BF16), who, 4)
    np.testing.assert_array_equal(who[:tasks, 0], np.arange(1, tasks + 1))
    assert (who[:tasks, 1] == tasks).all() and not who[tasks:].any()


def test_a_grid_that_is_given_takes_all_tasks():
    who = np.zeros((12, 2), np.int32)
    visits(SCHEDULES["extents"][0], persistent=False)(np.zeros((188, 64), BF16), who, 4, grid=2)
    np.testing.assert_array_equal(who[:9, 0], np.arange(9) % 2 + 1)


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("shape", [(200, 328, 72), (64, 64, 64), (70, 1, 300)], ids=str)
def test_product_is_the_same_on_either_grid(shape: tuple[int, int, int], cluster: int):
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(BF16) for s in ((2, m, k), (2, k, n)))
    found = []
    for persistent in (True, False):
        c = np.full((2, m, n), np.nan, BF16)
        matmul(a, b, c, **TILES, cluster=cluster, persistent=persistent)
        found.append(c)
    reference.assert_close(found[1], reference.matmul(a, b), BF16)
    np.testing.assert_array_equal(found[0], found[1])


def test_the_text_is_the_same_on_either_grid():
    texts = [matmul.compile(**TILES, persistent=p).ptx.splitlines()[1:] for p in (True, False)]
    assert texts[0] == texts[1]
    assert matmul.compile(**TILES).module.tasks is None


def test_tasks_of_a_product_are_counted_from_its_extents():
    tasks = matmul.compile(**TILES, persistent=False).module.tasks
    shapes = [np.empty(shape) for shape in ((129, 64), (64, 65), (129, 65))]
    assert counted(tasks, shapes) == 3 * 2
    empty = [np.empty(shape) for shape in ((0, 64), (64, 65), (0, 65))]
    assert counted(tasks, empty) == 0


def test_counts_are_expressions_of_arguments():
    count = Term("add", GivenExtent(1, 0), Term("div", GivenNumber(0), 3))
    assert counted(count, [8, np.empty((5, 2))]) == 7
    assert count_of(12, "x") == 12


def test_tasks_that_the_device_counts_are_refused():
    @tc.kernel
    def by_device(X: gl[bf16, "M", 64], Count: gl[s32, 1]):
        tasks = tc.row_major(tc.load(Count[0], s32), 1)
        tc.lcf(consumers=1, stages=1, steps=1, tasks=tasks, persistent=False)

    fails(
        lambda: by_device.compile(),
        ScopeError,
        "lcf: persistent=False: the host counts the tasks, by arithmetic of extents and scalar "
        "arguments, got %v: s32, which the device computes",
        at="tc.lcf(",
        hint="persistent=True, whose grid depends on no number of tasks",
    )


def test_persistent_is_a_bool():
    fails(
        lambda: matmul.compile(**TILES, persistent=0),
        ResourceError,
        "lcf: persistent is True, False or 'launch-control', got persistent=0",
        at="tc.lcf(",
    )


def test_parts_of_k_need_a_persistent_grid():
    a, sums, turns = np.zeros((64, 64), BF16), np.zeros((64, 64), "f4"), np.zeros((1, 1), "i4")
    fails(
        lambda: matmul(a, a.copy(), a.copy(), sums, turns, **TILES, split_k=2, persistent=False),
        tc.LayoutError,
        "matmul: one plain product, on a persistent grid, has its K split, got split_k=2, "
        "stream_k=1",
        at="tc.require(",
    )
