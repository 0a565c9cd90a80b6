"""Inputs loaded once a task for all consumers, stages kept beside the next, parts of tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import reference
from failures import fails

import tilecat as tc
from tilecat import bf16, f32, gl, rt, st
from tilecat.errors import LayoutError, ResourceError, ScopeError, SyncError

BF16 = bf16.numpy


def kernel_of(
    *, stages: int = 2, rate: str = "task", begin: bool = True, consume: bool = True,
    other: str = "x", keep: bool = True, registers: int | None = None,
) -> tc.KernelFunction:  # fmt: skip
    """C = W times the sum of X's blocks of 64 rows; each consumer has half of W's rows of C."""

    @tc.kernel
    def summed(W: gl[bf16, "M", 128], X: gl[bf16, "K", 128], C: gl[f32, "M", 128]):
        pipe = tc.lcf(consumers=2, stages=stages, steps=tc.cdiv(X.rows, 64), registers=registers,
                      tasks=tc.row_major(tc.cdiv(W.rows, 64), 1))  # fmt: skip
        w = pipe.input(st[bf16, 64, 128], ring="w", rate=rate)
        x = pipe.input(st[bf16, 64, 128], ring=other)
        acc = tc.empty(rt[f32, 64, 64])

        def load_w(task: Any) -> None:
            tc.load_async(w, W[task.row, 0])

        @pipe.load
        def _(task, step):
            tc.load_async(x, X[step, 0])

        def whole(task: Any, steps: Any) -> None:
            tc.fill(acc, 0.0)
            w.wait()
            for step in tc.range(steps):
                x.wait()
                # the consumer's 64 columns of W, and of X's block
                tc.mma_ABt(acc, w.tile.part(pipe.consumer, 2), x.tile.part(pipe.consumer, 2))
                if keep:
                    tc.mma_wait(1)
                    x.release_before(step > 0)
                    x.advance()
                else:
                    tc.mma_wait()
                    x.release()
            tc.mma_wait()
            if keep:
                x.release_before(steps > 0)
            w.release()

        if begin:
            pipe.begin(load_w)
        if consume:
            pipe.consume(whole)
        else:
            pipe.compute(lambda task, step: tc.mma_ABt(acc, w.tile[:, 0:64], x.tile[:, 0:64]))

        @pipe.finish
        def _(task):
            tc.store(C[task.row, pipe.consumer], acc)

    return summed


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("rows", [(64, 64), (200, 320)])
def test_an_input_of_a_task_is_loaded_once_for_all_consumers(rows, stages, keep):
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal((n, 128)).astype(BF16) for n in rows)
    c = np.full((rows[0], 128), np.nan, np.float32)
    kernel_of(stages=stages, keep=keep)(w, x, c)
    blocks = x.astype(np.float64).reshape(-1, 64, 128).sum(0)
    for half in (slice(0, 64), slice(64, 128)):
        exact = w[:, half].astype(np.float64) @ blocks[:, half].T
        np.testing.assert_allclose(c[:, half], exact, atol=1e-4)
    assert reference.as_float64(c).shape == (rows[0], 128)


def compile_it(**options: Any) -> Callable[[], Any]:
    return lambda: kernel_of(**options).compile()


def test_rates_are_two():
    fails(compile_it(rate="once"), ScopeError,
          'pipe.input: rate is "step", "task" or "cta", got rate=\'once\'', at="pipe.input(")  # fmt: skip


def test_inputs_of_a_ring_have_one_rate():
    error = pytest.raises(ScopeError, compile_it(other="stage", rate="step")).value
    assert "load hole must load it every step" not in str(error)


def test_a_ring_of_a_task_has_no_inputs_of_steps():
    error = pytest.raises(ScopeError, compile_it(other="w")).value
    assert error.message == (
        "pipe.input: the inputs of a ring are loaded at one rate, got rate='step' in w, which is "
        "loaded once a task"
    )


@pytest.mark.parametrize("options", [{"begin": False}, {"consume": False}], ids=str)
def test_inputs_of_a_task_need_begin_and_consume(options):
    error = pytest.raises(ScopeError, compile_it(other="x", **options)).value
    assert error.message == (
        "lcf: an input of a task is loaded in the hole `begin` and used in `consume`, by consumers "
        "that share tasks, got ring w"
    )


def test_a_stage_is_not_kept_in_a_ring_of_one():
    error = pytest.raises(SyncError, compile_it(other="x", stages=1)).value
    assert error.message == "advance: a stage is kept beside the next, got x in a ring of one"


def test_registers_of_consumers_are_asked_for():
    compiled = kernel_of(other="x", registers=240).compile()
    assert compiled.kernel.facts["registers"] == {"producer": 24, "consumer": 240}
    error = pytest.raises(ResourceError, compile_it(other="x", registers=248)).value
    assert "2 x 248: 32 too many" in error.message


def test_parts_of_a_tile_are_whole_panels():
    @tc.kernel
    def cut(X: gl[bf16, 64, 64]):
        with tc.warpgroup():
            tc.shared(st[bf16, 64, 64]).part(0, 2)

    error = pytest.raises(LayoutError, cut.compile).value
    assert error.message == (
        "part: parts of a shared tile are equal, and whole panels of 64 columns, got 2 of 64 x 64"
    )
