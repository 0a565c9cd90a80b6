"""The load-compute-finish pipeline: what its holes may hold, and what runs around them."""

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
from tilecat.errors import LayoutError, ResourceError, ScopeError, SyncError

BF16 = bf16.numpy
Hole = Callable[[Any], Any]


def pipeline(
    load: Hole | None = None,
    compute: Hole | None = None,
    finish: Hole | None = None,
    leave_out: tuple[str, ...] = (),
    **options: Any,
) -> tc.KernelFunction:
    """A 64 x 64 GEMM whose holes may be replaced; `k` has everything the holes see."""

    @tc.kernel
    def gemm(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "M", "N"]):
        settings = {"consumers": 1, "stages": 2, "steps": tc.cdiv(A.cols, 64)}
        settings["tasks"] = tc.row_major(tc.cdiv(A.rows, 64), tc.cdiv(B.cols, 64))
        pipe = tc.lcf(**{**settings, **options})
        a = pipe.input(st[bf16, 64, 64])
        b = pipe.input(st[bf16, 64, 64])
        c = pipe.output(st[bf16, 64, 64])
        acc = pipe.accumulator(f32, 64, 64)
        k = SimpleNamespace(pipe=pipe, a=a, b=b, c=c, acc=acc, A=A, B=B, C=C)

        def loads(task: Any, step: Any) -> None:
            k.task, k.step = task, step
            if load is not None:
                load(k)
                return
            tc.load_async(a, A[task.row, step])
            tc.load_async(b, B[step, task.col])

        def computes(task: Any, step: Any) -> None:
            k.task, k.step = task, step
            (compute or (lambda k: tc.mma_AB(acc, a, b)))(k)

        def finishes(task: Any) -> None:
            k.task = task
            (finish or (lambda k: c.store(C[task.row, task.col], acc)))(k)

        for name, hole in (("load", loads), ("compute", computes), ("finish", finishes)):
            if name not in leave_out:
                getattr(pipe, name)(hole)

    return gemm


def run(kernel: tc.KernelFunction, m: int = 64, k: int = 64, n: int = 64) -> np.ndarray:
    """C, checked against A B unless the kernel is to compute something else."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(BF16) for s in ((m, k), (k, n)))
    c = np.full((m, n), np.nan, BF16)
    kernel(a, b, c)
    reference.assert_close(c, reference.matmul(a, b), BF16)
    return c


def compile_it(**holes: Any) -> Callable[[], Any]:
    return lambda: pipeline(**holes).compile()


# ---- it works


@pytest.mark.parametrize("stages", range(1, 9))
@pytest.mark.parametrize("k", [64, 136, 704])
def test_every_depth_is_right(stages: int, k: int):
    run(pipeline(stages=stages), 100, k, 136)


def test_edges_off_the_16_byte_rule_are_right():
    run(pipeline(stages=3), 70, 130, 66)


@pytest.mark.parametrize("order", ["row_major", "grouped", "rows of one"])
def test_every_order_covers_all_tasks(order: str):
    orders = {
        "row_major": lambda: tc.row_major(3, 4),
        "grouped": lambda: tc.grouped(3, 4, rows=2),
        "rows of one": lambda: tc.grouped(3, 4, rows=1),
    }

    def tasks() -> Any:
        return orders[order]()

    a, b = (np.random.default_rng(i).standard_normal(s).astype(BF16)
            for i, s in enumerate(((192, 64), (64, 256))))  # fmt: skip
    c = np.zeros((192, 256), BF16)
    pipeline(tasks=tasks())(a, b, c)
    reference.assert_close(c, reference.matmul(a, b), BF16)


def test_steps_and_tasks_may_be_python_numbers():
    run(pipeline(steps=2, tasks=tc.row_major(1, 1)), 64, 128, 64)


@pytest.mark.parametrize("steps", [0, -1])
def test_no_step_leaves_the_accumulator_at_zero(steps: int):
    c = np.full((64, 64), np.nan, BF16)
    a = np.ones((64, 64), BF16)
    pipeline(steps=steps)(a, a, c)
    assert not c.any()


@pytest.mark.parametrize("count", [0, -1])
def test_no_task_writes_nothing(count: int):
    c = np.full((64, 64), 7, BF16)
    a = np.ones((64, 64), BF16)
    pipeline(tasks=tc.row_major(count, 5))(a, a, c)
    assert (c == 7).all()


def test_a_may_come_from_registers():
    def compute(k: Any) -> None:
        x = tc.load(k.a.tile)
        tc.mma_AB(k.acc, x, k.b)
        tc.mma_wait()

    run(pipeline(compute=compute), 64, 200, 64)


def test_output_is_stored_twice():
    def finish(k: Any) -> None:
        for _ in range(2):
            k.c.store(k.C[k.task.row, k.task.col], k.acc)

    run(pipeline(finish=finish), 130, 64, 70)


# ---- holes


@pytest.mark.parametrize("name", ["load", "compute"])
def test_holes_are_filled(name: str):
    fails(
        compile_it(leave_out=(name,)),
        ScopeError,
        f"lcf: the hole `{name}` is not filled",
        at="tc.lcf(",
        hint=f"@pipe.{name}",
    )


def test_hole_is_filled_once():
    @tc.kernel
    def k(A: gl[bf16, "M", "N"]):
        pipe = tc.lcf(consumers=1, stages=1, steps=1, tasks=tc.row_major(1, 1))
        for _ in range(2):
            @pipe.load
            def _(task, step):
                pass

    fails(k.compile, ScopeError, "pipe.load: this hole is already filled", at="@pipe.load")


def test_hole_takes_its_arguments():
    @tc.kernel
    def k(A: gl[bf16, "M", "N"]):
        pipe = tc.lcf(consumers=1, stages=1, steps=1, tasks=tc.row_major(1, 1))

        @pipe.load
        def _(task):
            pass

    fails(
        k.compile,
        ScopeError,
        "pipe.load: the hole takes 2 arguments (task, step), got 1",
        at="@pipe.load",
        hint="@pipe.load def _(task, step):",
    )


def test_hole_is_a_function():
    @tc.kernel
    def k(A: gl[bf16, "M", "N"]):
        tc.lcf(consumers=1, stages=1, steps=1, tasks=tc.row_major(1, 1)).load(3)

    fails(k.compile, ScopeError, "pipe.load: decorates a function, got 3", at="tc.lcf(")


def test_kernel_has_one_pipeline():
    @tc.kernel
    def k(A: gl[bf16, "M", "N"]):
        for _ in range(2):
            tc.lcf(consumers=1, stages=1, steps=1, tasks=tc.row_major(1, 1))

    fails(k.compile, ScopeError, "lcf: a kernel has one pipeline, got another", at="tc.lcf(")


def test_kernel_has_a_pipeline_or_a_warpgroup_block():
    @tc.kernel
    def k(A: gl[bf16, "M", "N"]):
        with tc.warpgroup():
            pass
        tc.lcf(consumers=1, stages=1, steps=1, tasks=tc.row_major(1, 1))

    with pytest.raises(ScopeError):
        k.compile()


# ---- loads


HINT = (
    "@pipe.load; what a task needs once is pipe.scratch, or an input of "
    'rate="task", loaded in @pipe.begin'
)


@pytest.mark.parametrize("hole", ["compute", "finish"])
def test_inputs_are_loaded_in_the_load_hole(hole: str):
    fails(
        compile_it(**{hole: lambda k: tc.load_async(k.a, k.A[k.task.row, 0])}),
        ScopeError,
        "load_async: inputs are loaded in the pipeline's load hole",
        at="tc.load_async(",
        hint=HINT,
    )


def test_load_hole_loads():
    fails(
        compile_it(load=lambda k: None),
        SyncError,
        "ring stage: the load hole must load it every step, got no load_async",
        at="pipe.input(",
        hint="load every pipe.input in @pipe.load",
    )


def load_one(k: Any) -> None:
    tc.load_async(k.a, k.A[k.task.row, k.step])


def load_twice(k: Any) -> None:
    for _ in range(2):
        tc.load_async(k.a, k.A[k.task.row, k.step])
    tc.load_async(k.b, k.B[k.step, k.task.col])


@pytest.mark.parametrize(
    ("load", "name", "count"), [(load_one, "b", 0), (load_twice, "a", 2)]
)
def test_each_input_is_loaded_once_a_step(load, name: str, count: int):
    fails(
        compile_it(load=load),
        SyncError,
        f"{name}: each of its 1 tiles is loaded once a step, got {count} loads",
        at="pipe.input(",
    )


@pytest.mark.parametrize(
    ("load", "message", "hint"),
    [
        (lambda k: tc.load_async(k.a, k.A),
         "load_async: the source is a place in a tensor, got A: gl[bf16, M, K]",
         "tc.load_async(a, A[row, k])"),
        (lambda k: tc.load_async(k.acc, k.A[0, 0]),
         "load_async: the destination is an input or scratch tile, or a shared tile, "
         "got rt[f32, 64, 64]", ""),
        (lambda k: tc.load_async(k.a[1], k.A[0, 0]), "a: 1 tiles a stage, got index=1", ""),
    ],
)  # fmt: skip
def test_load_async_takes_an_input_and_a_place(load, message: str, hint: str):
    error = pytest.raises(LayoutError, compile_it(load=load)).value
    assert (error.message, error.hint or "") == (message, hint)


def test_one_of_several_tiles_is_said():
    """Both consumers would multiply by the first."""

    @tc.kernel
    def k(A: gl[bf16, "M", "N"]):
        pipe = tc.lcf(consumers=2, stages=1, steps=1, tasks=tc.row_major(1, 1))
        a, b = pipe.input(st[bf16, 64, 64], count=2), pipe.input(st[bf16, 64, 64])
        acc = pipe.accumulator(tc.f32, 64, 64)

        @pipe.load
        def _(task, step):
            for i in range(2):
                tc.load_async(a[i], A[i, 0])
            tc.load_async(b, A[0, 0])

        @pipe.compute
        def _(task, step):
            tc.mma_AB(acc, a, b)

        @pipe.finish
        def _(task):
            tc.relu(acc)

    fails(
        k.compile,
        LayoutError,
        "a: a stage has 2 tiles, and which is meant is not said",
        at="tc.mma_AB(",
        hint="a[pipe.consumer], or a[i] of i from 0 to 1",
    )


def test_load_of_another_order_says_which():
    @tc.kernel
    def k(A: gl[bf16, "M", "N"]):
        pipe = tc.lcf(consumers=1, stages=1, steps=1, tasks=tc.row_major(1, 1))
        a = pipe.input(st[bf16, 64, 64, "col"])

        @pipe.load
        def _(task, step):
            tc.load_async(a, A[0, 0])

        @pipe.compute
        def _(task, step):
            pass

    fails(
        k.compile,
        LayoutError,
        "load_async: A is row-ordered in memory, got a tile st[bf16, 64, 64, col]",
        at="tc.load_async(",
        hint="st[bf16, 64, 64, A.order]",
    )


# ---- who runs what


def test_consumer_is_unknown_to_the_producer():
    fails(
        compile_it(load=lambda k: k.pipe.consumer + 1),
        ScopeError,
        "pipe.consumer: known in the consumers' holes only (compute, consume, finish)",
        at="k.pipe.consumer",
        hint="the producer loads for all consumers: for i in range(consumers)",
    )


def test_mma_is_the_consumers():
    error = pytest.raises(ScopeError, compile_it(load=lambda k: tc.mma_AB(k.acc, k.a, k.b))).value
    assert error.message == "mma_AB: must be executed by a warpgroup, got scope=thread"


def test_accumulator_is_left_alone_while_an_mma_is_under_way():
    def compute(k: Any) -> None:
        tc.mma_AB(k.acc, k.a, k.b)
        k.acc *= 2.0

    fails(
        compile_it(compute=compute),
        SyncError,
        "mul: acc: rt[f32, 64, 64] is read while mma_AB is still using it".replace(
            "acc: rt[f32, 64, 64]", "acc"
        ),
        at="k.acc *= 2.0",
        hint=f"call tc.mma_wait() after the mma_AB at {__file__}:"
        f"{compute.__code__.co_firstlineno + 1}",
    )


def test_task_has_its_coordinates():
    fails(
        compile_it(finish=lambda k: k.task.head),
        ScopeError,
        "task: has the coordinates row, col, got task.head",
        at="k.task.head",
    )


# ---- output


@pytest.mark.parametrize(
    ("finish", "message", "hint"),
    [
        (lambda k: k.c.store(k.C[0, 0], 3), "output.store: stores a register tile, got 3",
         "c.store(C[row, col], x)"),
        (lambda k: k.c.store(k.C, k.acc),
         "output.store: wants C[row, col], got C: gl[bf16, M, N]", "c.store(C[row, col], x)"),
        (lambda k: k.c.store(k.C[0, 0], tc.zeros(rt[f32, 64, 32])),
         "output.store: the output is st[bf16, 64, 64], got rt[f32, 64, 32]", None),
    ],
)  # fmt: skip
def test_output_stores_a_tile_of_its_shape(finish, message: str, hint: str | None):
    error = pytest.raises(LayoutError, compile_it(finish=finish)).value
    assert (error.message, error.hint or None) == (message, hint)


# ---- declarations


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"consumers": 0}, ResourceError,
         "lcf: consumers is a compile-time int from 1 to 7, got consumers=0"),
        ({"stages": 33}, ResourceError,
         "lcf: stages is a compile-time int from 1 to 32, got stages=33"),
        ({"tasks": 3}, ScopeError, "lcf: tasks is an order of tasks, got tasks=3 (int)"),
        ({"steps": 2.5}, tc.DTypeError,
         "lcf: steps: wants an s32 scalar or an int, got 2.5 (float)"),
        ({"steps": "x"}, tc.DTypeError,
         "lcf: steps: wanted a run-time scalar or a Python number, got 'x' (str)"),
    ],
)  # fmt: skip
def test_pipeline_checks_what_it_is_made_from(options, kind, message: str):
    error = pytest.raises(tc.TileError, compile_it(**options)).value
    assert (type(error), error.message) == (kind, message)
    assert error.loc is not None and "tc.lcf(" in error.loc.text


@pytest.mark.parametrize("what", ["input", "scratch", "output"])
def test_pipeline_holds_shared_tiles(what: str):
    @tc.kernel
    def k(A: gl[bf16, "M", "N"]):
        pipe = tc.lcf(consumers=1, stages=1, steps=1, tasks=tc.row_major(1, 1))
        getattr(pipe, what)(rt[f32, 64, 64])

    fails(
        k.compile,
        LayoutError,
        f"pipe.{what}: wanted a shared tile's type, got rt[f32, 64, 64] (RegTileType)",
        at="getattr(pipe, what)(",
        hint=f"pipe.{what}(tc.st[tc.bf16, 64, 64])",
    )


@pytest.mark.parametrize(
    "store", [lambda C, c, x: tc.store(c, x), lambda C, c, x: tc.store_async(C[0, 0], c)]
)
def test_output_is_stored_by_its_own_method(store):
    @tc.kernel
    def k(C: gl[bf16, "M", "N"]):
        pipe = tc.lcf(consumers=1, stages=1, steps=1, tasks=tc.row_major(1, 1))
        tile, out = pipe.input(st[bf16, 64, 64]), pipe.output(st[bf16, 64, 64])

        @pipe.load
        def _(task, step):
            tc.load_async(tile, C[0, 0])

        @pipe.compute
        def _(task, step):
            pass

        @pipe.finish
        def _(task):
            store(C, out, tc.zeros(rt[bf16, 64, 64]))

    fails(
        k.compile,
        LayoutError,
        "out: an output is stored by its own method, got out: output of st[bf16, 64, 64] as a tile",
        at="tc.store",
        hint="out.store(C[row, col], x)",
    )


@pytest.mark.parametrize("width, whole", [(1, False), (12, False), (97, False), (96, True)])
def test_threads_store_what_ends_beside_16_bytes(width: int, whole: bool):
    """There TMA would also write what follows each row: those bytes are kept."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(BF16) for s in ((100, 64), (64, 104)))
    held = np.full((100, 104), np.nan, BF16)
    c, kernel = held[:, :width], pipeline()
    kernel(a, b[:, :width], c)
    reference.assert_close(c, reference.matmul(a, b[:, :width]), BF16)
    assert np.isnan(held[:, width:].astype(np.float32)).all()
    text = kernel.compile(a, b[:, :width], c).ptx
    assert ("bulk.tensor.2d.global" in text) == whole


def test_inputs_that_end_beside_16_bytes_compile_nothing_new():
    rng = np.random.default_rng(0)
    kernel, b = pipeline(), rng.standard_normal((72, 64)).astype(BF16)
    for k in (72, 68, 65):
        held = rng.standard_normal((64, 72)).astype(BF16)
        c = np.full((64, 64), np.nan, BF16)
        kernel(held[:, :k], b[:k], c)
        reference.assert_close(c, reference.matmul(held[:, :k], b[:k]), BF16)
    assert kernel.compiles == 1
