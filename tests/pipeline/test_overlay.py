"""Outputs that lie in a free stage of an input where shared memory is short."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference

import tilecat as tc
from pipeline.schedules import check_schedules, silent
from tilecat import bf16, f32, gl, st
from tilecat.errors import ResourceError

BF16 = bf16.numpy


def product(consumers: int, stages: int, tile_n: int, early: bool = False) -> tc.KernelFunction:
    """C = A B, in CTAs of consumers x 64 rows."""

    @tc.kernel
    def gemm(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "M", "N"]):
        pipe = tc.lcf(
            consumers=consumers, stages=stages, steps=tc.cdiv(A.cols, 64),
            tasks=tc.grouped(tc.cdiv(A.rows, 64 * consumers), tc.cdiv(B.cols, tile_n)),
        )  # fmt: skip
        a, b = pipe.input(st[bf16, 64, 64], count=consumers), pipe.input(st[bf16, 64, tile_n])
        c = pipe.output(st[bf16, 64, tile_n])
        acc = pipe.accumulator(f32, 64, tile_n)

        @pipe.load
        def _(task, k):
            for i in range(consumers):
                tc.load_async(a[i], A[task.row * consumers + i, k])
            tc.load_async(b, B[k, task.col])

        @pipe.compute
        def _(task, k):
            tc.mma_AB(acc, a[pipe.consumer], b)
            if early:
                tc.mma_wait()
                c.store(C[task.row, task.col], acc)

        @pipe.finish
        def _(task):
            c.store(C[task.row * consumers + pipe.consumer, task.col], acc)

    return gemm


def arrays(m: int, k: int, n: int, odd: int = 0) -> Any:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(BF16) for s in ((m, k + odd), (k, n)))
    a = a[:, :k]

    def check(args: list[Any]) -> None:
        reference.assert_close(args[2], reference.matmul(a, b), BF16)

    return lambda: [a, b, np.full((m, n + odd), np.nan, BF16)[:, :n]], check


CASES = {  # consumers, stages, tile_n
    "a panel of each consumer in A": (3, 5, 128),
    "a panel of each consumer in B": (2, 5, 192),
    "the whole tile in B": (1, 7, 192),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("k", [64, 520])
def test_output_lies_in_a_free_stage(name: str, k: int):
    consumers, stages, tile_n = CASES[name]
    kernel = product(consumers, stages, tile_n)
    facts = kernel.compile().kernel.facts
    assert facts["safe_stages"] == stages - 1 and facts["output_over"] in "ab"
    make, check = arrays(328, k, 264)
    check_schedules(kernel, make, check, seeds=(0, 1) if k > 64 else (2,))


def test_threads_load_and_store_where_tma_cannot_reach():
    make, check = arrays(200, 136, 136, odd=1)
    check_schedules(product(1, 7, 192), make, check, seeds=(0, 2))


def test_every_synchronisation_is_needed():
    make, check = arrays(456, 520, 200)
    left = silent(product(2, 5, 192), make, check, seeds=(0, 1))
    assert left == []


def test_no_step_leaves_zeros():
    a, c = np.ones((64, 0), BF16), np.full((64, 192), np.nan, BF16)
    kernel = product(1, 7, 192)
    kernel(a, np.ones((0, 192), BF16), c)
    assert not c.any()


def test_output_is_stored_in_finish_alone():
    error = pytest.raises(ResourceError, product(1, 7, 192, early=True).compile).value
    assert error.message == (
        "output.store: in finish alone where shared memory is short and the output lies in a "
        "free stage of b, got a store in another hole"
    )
