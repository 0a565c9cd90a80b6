"""Loads of the next task run while a task is finished: the producer does not wait for stores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference

import tilecat as tc
from pipeline.schedules import check_schedules
from tilecat import bf16, f32, gl, st

BF16 = bf16.numpy


def product(consumers: int, stages: int) -> tc.KernelFunction:
    """C = A B, whose finish hole waits for the first stage of the next task.

    If the producer waited for anything that finish does, no schedule could come to its end.
    """

    @tc.kernel
    def gemm(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "M", "N"]):
        tasks = tc.row_major(tc.cdiv(A.rows, 64 * consumers), tc.cdiv(B.cols, 64))
        pipe = tc.lcf(consumers=consumers, stages=stages, steps=tc.cdiv(A.cols, 64), tasks=tasks)
        a, b = pipe.input(st[bf16, 64, 64], count=consumers), pipe.input(st[bf16, 64, 64])
        c = pipe.output(st[bf16, 64, 64])
        acc = pipe.accumulator(f32, 64, 64)

        @pipe.load
        def _(task, k):
            for i in range(consumers):
                tc.load_async(a[i], A[task.row * consumers + i, k])
            tc.load_async(b, B[k, task.col])

        @pipe.compute
        def _(task, k):
            tc.mma_AB(acc, a[pipe.consumer], b)

        @pipe.finish
        def _(task):
            with tc.when(task.index + tc.num_ctas() < tasks.count):
                b.wait()
            c.store(C[task.row * consumers + pipe.consumer, task.col], acc)

    return gemm


@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_next_task_is_loaded_before_a_task_is_stored(consumers: int, stages: int):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(BF16) for s in ((256, 136), (136, 200)))

    def check(args: list[Any]) -> None:
        reference.assert_close(args[2], reference.matmul(a, b), BF16)

    check_schedules(
        product(consumers, stages), lambda: [a, b, np.full((256, 200), np.nan, BF16)], check
    )
