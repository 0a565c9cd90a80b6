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
            pipe.start(lambda task: tc.fill(acc, 0.0))
            pipe.compute(lambda task, step: tc.mma_ABt(
                acc, w.tile.part(pipe.consumer, 2), x.tile.part(pipe.consumer, 2)
            ))  # fmt: skip

        @pipe.finish
        def _(task):
            tc.store(C[task.row, pipe.consumer], acc)

    return summed


HOLES = {"kept": {}, "given back": {"keep": False}, "compute": {"consume": False}}


@pytest.mark.parametrize("hole", HOLES)
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("rows", [(64, 64), (200, 320)])
def test_an_input_of_a_task_is_loaded_once_for_all_consumers(rows, stages, hole):
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal((n, 128)).astype(BF16) for n in rows)
    c = np.full((rows[0], 128), np.nan, np.float32)
    kernel_of(stages=stages, **HOLES[hole])(w, x, c)
    blocks = x.astype(np.float64).reshape(-1, 64, 128).sum(0)
    for half in (slice(0, 64), slice(64, 128)):
        exact = w[:, half].astype(np.float64) @ blocks[:, half].T
        np.testing.assert_allclose(c[:, half], exact, atol=1e-4)
    assert reference.as_float64(c).shape == (rows[0], 128)


def compile_it(**options: Any) -> Callable[[], Any]:
    return lambda: kernel_of(**options).compile()


def test_rates_are_three():
    wanted = 'pipe.input: rate is "step", "task" or "cta", got rate=\'once\''
    fails(compile_it(rate="once"), ScopeError, wanted, at="pipe.input(")


def test_inputs_of_a_ring_have_one_rate():
    error = pytest.raises(ScopeError, compile_it(other="stage", rate="step")).value
    assert "load hole must load it every step" not in str(error)


def test_a_ring_of_a_task_has_no_inputs_of_steps():
    error = pytest.raises(ScopeError, compile_it(other="w")).value
    assert error.message == (
        "pipe.input: the inputs of a ring are loaded at one rate, got rate='step' in w, which is "
        "loaded once a task"
    )


def test_inputs_of_a_task_need_begin():
    error = pytest.raises(ScopeError, compile_it(other="x", begin=False)).value
    assert error.message == (
        "lcf: an input of a task is loaded in the hole `begin` and used by consumers that share "
        "tasks; where their sums are in tensor memory, in `consume` or beside `transform`, got "
        "ring w"
    )


def test_inputs_of_a_task_need_consume_where_sums_are_in_tensor_memory():
    @tc.kernel
    def product(W: gl[bf16, "M", 64], X: gl[bf16, "K", 64], C: gl[f32, "M", 64]):
        pipe = tc.lcf(consumers=1, stages=2, steps=tc.cdiv(X.rows, 64),
                      tasks=tc.row_major(tc.cdiv(W.rows, 64), 1))  # fmt: skip
        w = pipe.input(st[bf16, 64, 64], ring="w", rate="task")
        x, acc = pipe.input(st[bf16, 64, 64]), pipe.accumulator(f32, 64, 64)
        pipe.begin(lambda task: tc.load_async(w, W[task.row, 0]))
        pipe.load(lambda task, step: tc.load_async(x, X[step, 0]))
        pipe.compute(lambda task, step: tc.mma_ABt(acc, w, x))
        pipe.finish(lambda task: tc.store(C[task.row, 0], acc))

    assert product.compile(target="sm_90a")
    error = pytest.raises(ScopeError, lambda: product.compile(target="sm_100a")).value
    assert "in `consume` or beside `transform`, got ring w" in error.message


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


def kept(*, setup: bool = True, release: bool = False, stages: int | None = None) -> Any:
    """Y = X W + X V, block rows in turn: W is loaded once a CTA, V in two halves a step."""

    @tc.kernel
    def projected(X: gl[bf16, "M", 64], W: gl[bf16, 64, 64], V: gl[bf16, 64, 64],
                  Y: gl[bf16, "M", 64]):  # fmt: skip
        pipe = tc.lcsf(consumers=1, stages=2, steps=1, tasks=tc.row_major(tc.cdiv(X.rows, 64), 1))
        w = pipe.input(st[bf16, 64, 64], ring="w", rate="cta", stages=stages)
        x, v = pipe.input(st[bf16, 64, 64]), pipe.input(st[bf16, 64, 64])
        y, acc = pipe.output(st[bf16, 64, 64]), tc.empty(rt[f32, 64, 64])

        def load_w() -> None:
            tc.load_async(w, W[0, 0])

        @pipe.load
        def _(task, step):
            tc.load_async(x, X[task.row, 0])
            for half in range(2):
                tc.load_async(v[0][32 * half : 32 * half + 32, :], V[half, 0])

        @pipe.compute
        def _(task, step):
            tc.mma_AB(acc, x, w, accumulate=False)
            tc.mma_AB(acc, x, v)
            tc.mma_wait()
            tc.store(y, tc.cast(acc, bf16))
            if release:
                w.release()

        @pipe.store
        def _(task, step):
            for half in range(2):
                tc.store_async(Y[task.row * 2 + half, 0], y[0][32 * half : 32 * half + 32, :])

        if setup:
            pipe.setup(load_w)

    return projected


def test_an_input_of_a_cta_is_loaded_once_and_tiles_in_parts():
    rng = np.random.default_rng(0)
    x, w, v = (rng.standard_normal((n, 64)).astype(BF16) for n in (300, 64, 64))
    y = np.full_like(x, np.nan)
    kept()(x, w, v, y, grid=2)
    exact = x.astype(np.float64) @ w.astype(np.float64) + x.astype(np.float64) @ v
    assert np.linalg.norm(y - exact) < 2**-8 * np.linalg.norm(exact)
    barriers = [b.name for b in kept().compile().module.table.barriers]
    assert "w full[0]" in barriers and "w empty[0]" not in barriers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"setup": False}, "lcsf: an input of a CTA is loaded in the hole `setup`, and used by "
                           "consumers whose sums are in registers, got ring w"),
        ({"release": True}, "release: ring w is the CTA's to the end, never given back"),
        ({"stages": 2}, "lcsf: stages is a compile-time int from 1 to 1, got stages=2"),
    ],
    ids=["no setup", "released", "two stages"],
)  # fmt: skip
def test_inputs_of_a_cta_have_their_hole_and_stay(options, message):
    error = pytest.raises((ScopeError, SyncError, ResourceError), kept(**options).compile).value
    assert error.message == message
