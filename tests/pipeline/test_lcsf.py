"""The load-compute-store-finish pipeline: outputs that travel through rings to a storing thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from failures import fails

import tilecat as tc
from pipeline.schedules import check_schedules, silent
from tilecat import bf16, f32, gl, st
from tilecat.errors import ScopeError, SyncError

BF16 = bf16.numpy


def streamed(consumers: int = 1, stages: int = 2, out_stages: int = 2) -> tc.KernelFunction:
    """Y[i] = X[i] W for every block of 64 rows, one step each; a task is a block of columns."""

    @tc.kernel
    def product(X: gl[bf16, "M", 64], W: gl[bf16, 64, "N"], Y: gl[bf16, "M", "N"]):
        pipe = tc.lcsf(
            consumers=consumers, stages=stages, steps=tc.cdiv(X.rows, 64 * consumers),
            tasks=tc.row_major(tc.cdiv(W.cols, 64), 1),
        )  # fmt: skip
        x = pipe.input(st[bf16, 64, 64], count=consumers)
        w = pipe.input(st[bf16, 64, 64])
        y = pipe.output(st[bf16, 64, 64], count=consumers, stages=out_stages)
        acc = tc.empty(tc.rt[f32, 64, 64])

        @pipe.load
        def _(task, i):
            for c in range(consumers):
                tc.load_async(x[c], X[i * consumers + c, 0])
            tc.load_async(w, W[0, task.row])

        @pipe.compute
        def _(task, i):
            tc.mma_AB(acc, x[pipe.consumer], w, accumulate=False)
            tc.mma_wait()
            tc.store(y[pipe.consumer], tc.cast(acc, bf16))

        @pipe.store
        def _(task, i):
            for c in range(consumers):
                tc.store_async(Y[i * consumers + c, task.row], y[c])

    return product


def arrays(m: int, n: int, odd: int = 0) -> Any:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(BF16) for s in ((m, 64), (64, n)))

    def make() -> list[Any]:
        return [x, w, np.full((m, n + odd), np.nan, BF16)[:, :n]]

    def check(args: list[Any]) -> None:
        reference.assert_close(args[2], reference.matmul(x, w), BF16)

    return make, check


@pytest.mark.parametrize("consumers", [1, 2, 3])
@pytest.mark.parametrize(("stages", "out_stages"), [(1, 1), (2, 2), (3, 1), (2, 3)])
def test_every_step_is_stored(consumers: int, stages: int, out_stages: int):
    make, check = arrays(328, 136)
    check_schedules(streamed(consumers, stages, out_stages), make, check)


def test_threads_store_where_tma_cannot_reach():
    make, check = arrays(200, 72, odd=1)
    check_schedules(streamed(2), make, check)


def padded(array: np.ndarray) -> np.ndarray:
    """The same matrix with rows that begin at multiples of 16 bytes, so that TMA reaches it."""
    rows, cols = array.shape
    held = np.full((rows, -(-cols // 8) * 8), np.nan, array.dtype)
    held[:, :cols] = array
    return held[:, :cols]


@pytest.mark.parametrize("n", [1, 66, 196])
def test_threads_store_what_ends_beside_16_bytes(n: int):
    """There TMA would also write what follows each row; it loads what ends so."""
    make, check = arrays(200, n)

    def made() -> list[Any]:
        return [make()[0], *map(padded, make()[1:])]

    kernel = streamed(2)
    text = kernel.compile(*made()).ptx
    assert "bulk.tensor.2d.shared" in text and "bulk.tensor.2d.global" not in text
    check_schedules(kernel, made, check)
    kernel.simulate(*map(padded, arrays(200, 72)[0]()))
    assert kernel.compiles == 2


@pytest.mark.parametrize("odd", [0, 1])
def test_every_synchronisation_is_needed(odd: int):
    make, check = arrays(392, 128, odd)
    assert silent(streamed(1), make, check, seeds=(0, 1)) == []


def gemm(consumers: int = 2, stages: int = 2) -> tc.KernelFunction:
    """A matrix product whose results are stored by the storing thread during the next task."""

    @tc.kernel
    def product(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "M", "N"]):
        pipe = tc.lcsf(
            consumers=consumers, stages=stages, steps=tc.cdiv(A.cols, 64),
            tasks=tc.grouped(tc.cdiv(A.rows, 64 * consumers), tc.cdiv(B.cols, 64), rows=2),
        )  # fmt: skip
        a = pipe.input(st[bf16, 64, 64], count=consumers)
        b = pipe.input(st[bf16, 64, 64])
        c = pipe.output(st[bf16, 64, 64], count=consumers)
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
            tc.store(c[pipe.consumer], tc.cast(acc, bf16))

        @pipe.finish_store
        def _(task):
            for i in range(consumers):
                tc.store_async(C[task.row * consumers + i, task.col], c[i])

    return product


@pytest.mark.parametrize("consumers", [1, 2, 4])
def test_results_of_a_task_are_stored_during_the_next(consumers: int):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(BF16) for s in ((300, 136), (136, 200)))

    def check(args: list[Any]) -> None:
        reference.assert_close(args[2], reference.matmul(a, b), BF16)

    check_schedules(gemm(consumers), lambda: [a, b, np.full((300, 200), np.nan, BF16)], check)


# ---- bad input


def kernel_of(body: Any) -> tc.KernelFunction:
    """A pipeline whose holes `body` fills."""

    @tc.kernel
    def k(X: gl[bf16, "M", 64], Y: gl[bf16, "M", 64]):
        pipe = tc.lcsf(consumers=1, stages=2, steps=tc.cdiv(X.rows, 64), tasks=tc.row_major(1, 1))
        x, y = pipe.input(st[bf16, 64, 64]), pipe.output(st[bf16, 64, 64])

        @pipe.load
        def _(task, i):
            tc.load_async(x, X[i, 0])

        body(pipe, x, y, X, Y)

    return k


def test_output_is_filled():
    def body(pipe: Any, x: Any, y: Any, X: Any, Y: Any) -> None:
        @pipe.compute
        def _(task, i):
            tc.load(x.tile)

        @pipe.store
        def _(task, i):
            tc.store_async(Y[i, 0], y)

    error = pytest.raises(SyncError, kernel_of(body).compile).value
    assert error.message == "ring y: is never filled by the consumer"


def test_output_is_stored():
    def body(pipe: Any, x: Any, y: Any, X: Any, Y: Any) -> None:
        @pipe.compute
        def _(task, i):
            tc.store(y, tc.load(x.tile))

    error = pytest.raises(SyncError, kernel_of(body).compile).value
    assert error.message == "ring y: is filled by the consumer and used by nobody"


def test_output_has_one_rate():
    def body(pipe: Any, x: Any, y: Any, X: Any, Y: Any) -> None:
        @pipe.compute
        def _(task, i):
            tc.store(y, tc.load(x.tile))

        @pipe.finish_store
        def _(task):
            tc.store_async(Y[0, 0], y)

    error = pytest.raises(SyncError, kernel_of(body).compile).value
    assert error.message.startswith("ring y: is filled and used once a ")


def test_inputs_are_not_stored_and_outputs_not_loaded():
    def store(pipe: Any, x: Any, y: Any, X: Any, Y: Any) -> None:
        @pipe.compute
        def _(task, i):
            tc.store_async(Y[i, 0], x)

    fails(
        kernel_of(store).compile, ScopeError,
        "store_async: outputs are stored in the pipeline's store hole, got x[0]",
        at="tc.store_async(", hint="@pipe.store; inputs are not stored",
    )  # fmt: skip

    def load(pipe: Any, x: Any, y: Any, X: Any, Y: Any) -> None:
        @pipe.compute
        def _(task, i):
            tc.load_async(y, X[i, 0])

    fails(
        kernel_of(load).compile, ScopeError,
        "load_async: y is filled by the consumer, not loaded",
        at="tc.load_async(", hint="tc.store(y, tile) in a hole of the consumer",
    )  # fmt: skip
