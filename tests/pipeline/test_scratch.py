"""Scratch tiles and the consume hole: what a task needs once, and steps taken by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import reference
from failures import fails

import tilecat as tc
from tilecat import bf16, f32, gl, rt, st
from tilecat.errors import LayoutError, ScopeError, SyncError

BF16 = bf16.numpy
Hole = Callable[[Any], Any]


def begin_all(k: Any) -> None:
    for i in range(k.consumers):
        tc.load_async(k.q[i], k.Q[k.task.row * k.consumers + i, 0])


def load_all(k: Any) -> None:
    tc.load_async(k.b, k.B[0, k.step])


def consume_all(k: Any) -> None:
    k.q.wait()
    for step in tc.range(k.steps):
        k.b.wait()
        tc.mma_AB(k.acc, k.q, k.b, accumulate=step > 0)
        tc.mma_wait()
        k.b.release()
    k.q.release()


def kernel_of(
    begin: Hole | None = begin_all,
    load: Hole = load_all,
    consume: Hole = consume_all,
    consumers: int = 1,
    stages: int = 2,
) -> tc.KernelFunction:
    """C = Q times the sum of B's blocks of 64 columns; Q is a task's scratch."""

    @tc.kernel
    def folded(Q: gl[bf16, "M", 64], B: gl[bf16, 64, "N"], C: gl[bf16, "M", 64]):
        pipe = tc.lcf(
            consumers=consumers, stages=stages, steps=tc.cdiv(B.cols, 64),
            tasks=tc.row_major(tc.cdiv(Q.rows, 64 * consumers), 1),
        )  # fmt: skip
        q = pipe.scratch(st[bf16, 64, 64])
        b = pipe.input(st[bf16, 64, 64])
        out = pipe.output(st[bf16, 64, 64])
        acc = tc.empty(rt[f32, 64, 64])
        k = SimpleNamespace(pipe=pipe, q=q, b=b, acc=acc, Q=Q, B=B, consumers=consumers)

        def begins(task: Any) -> None:
            k.task = task
            assert begin is not None
            begin(k)

        def loads(task: Any, step: Any) -> None:
            k.task, k.step = task, step
            load(k)

        def consumes(task: Any, steps: Any) -> None:
            k.task, k.steps = task, steps
            consume(k)

        if begin is not None:
            pipe.begin(begins)
        pipe.load(loads)
        pipe.consume(consumes)

        @pipe.finish
        def _(task):
            out.store(C[task.row * consumers + pipe.consumer, 0], acc)

    return folded


@pytest.mark.parametrize("consumers", [1, 2, 3])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_scratch_is_loaded_once_a_task(consumers: int, stages: int):
    rng = np.random.default_rng(0)
    q, b = (rng.standard_normal(s).astype(BF16) for s in ((500, 64), (64, 256)))
    c = np.zeros((500, 64), BF16)
    kernel_of(consumers=consumers, stages=stages)(q, b, c)
    blocks = np.concatenate([b[:, 64 * i : 64 * i + 64] for i in range(4)])
    reference.assert_close(c, reference.matmul(np.tile(q, (1, 4)), blocks), BF16)


def compile_it(**holes: Any) -> Callable[[], Any]:
    return lambda: kernel_of(**holes).compile()


def test_scratch_needs_the_begin_hole():
    fails(
        compile_it(begin=None),
        ScopeError,
        "lcf: a scratch tile needs the hole `begin`",
        at="tc.lcf(",
        hint="@pipe.begin",
    )


def test_scratch_is_loaded_by_the_begin_hole():
    error = pytest.raises(SyncError, compile_it(begin=lambda k: None)).value
    assert error.message == "scratch: @pipe.begin loads each of its 1 tiles, got []"


def test_scratch_is_loaded_once():
    def twice(k: Any) -> None:
        begin_all(k)
        begin_all(k)

    error = pytest.raises(SyncError, compile_it(begin=twice)).value
    assert error.message == "load_async: scratch[0] is loaded once a task, got another"


def test_scratch_is_not_loaded_in_the_load_hole():
    def load(k: Any) -> None:
        begin_all(k)
        load_all(k)

    error = pytest.raises(ScopeError, compile_it(load=load)).value
    assert error.message == "load_async: scratch tiles are loaded in the pipeline's begin hole"


def test_inputs_are_not_loaded_in_the_begin_hole():
    def begin(k: Any) -> None:
        k.step = 0
        begin_all(k)
        load_all(k)

    error = pytest.raises(ScopeError, compile_it(begin=begin)).value
    assert error.message == "load_async: inputs are loaded in the pipeline's load hole"


@pytest.mark.parametrize("index", [1, -1, "x"])
def test_scratch_has_a_tile_a_consumer(index):
    error = pytest.raises(
        LayoutError, compile_it(begin=lambda k: tc.load_async(k.q[index], k.Q[0, 0]))
    ).value
    assert error.message == f"scratch: an int below 1, got {index!r}"


def test_scratch_is_the_consumers_to_use():
    error = pytest.raises(ScopeError, compile_it(load=lambda k: k.q.tile)).value
    assert error.message == "scratch: used by consumers; the producer loads scratch[i]"


def one_step(k: Any, *, release: bool) -> None:
    k.q.wait()
    k.b.wait()
    tc.mma_AB(k.acc, k.q, k.b, accumulate=False)
    tc.mma_wait()
    if release:
        k.b.release()
    k.q.release()


def test_stage_that_is_never_given_back_is_an_error():
    error = pytest.raises(
        SyncError, compile_it(consume=lambda k: one_step(k, release=False))
    ).value
    assert error.message == "mbarrier stage empty: is never arrived on"


def test_steps_that_are_not_taken_are_a_deadlock_the_machine_finds():
    """Waits and releases by hand are the user's; the machine says who waits for what."""
    rng = np.random.default_rng(0)
    q, b = (rng.standard_normal(s).astype(BF16) for s in ((64, 64), (64, 256)))
    kernel = kernel_of(consume=lambda k: one_step(k, release=True))
    with pytest.raises(SyncError, match="wait for mbarrier stage empty") as caught:
        kernel(q, b, np.zeros((64, 64), BF16))
    assert "deadlock: nothing can run" in caught.value.message
    assert "producer" in caught.value.message
