"""Python's own errors in a kernel: what is about tilecat says so, the user's stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from failures import fails

import tilecat as tc
from language.bodies import traced
from tilecat import bf16, f32, gl, rt, st
from tilecat.errors import LayoutError, ScopeError, SyncError
from tilecat.language import functions

MMA = ("mma_AB(acc, a, b, *, accumulate=None, negate_a=False, negate_b=False, saturate=False, "
       "scale_a=None, scale_b=None)")  # fmt: skip
NUMBERS = "register tiles and numbers are computed with: x = tc.load(tile)"


def product(compute: Any = None, finish: Any = None, template: Any = tc.lcf, **options: Any) -> Any:
    """Traces a product with holes of a test."""

    @tc.kernel
    def kernel(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[f32, "M", "N"]):
        pipe = template(consumers=1, stages=2, steps=1, tasks=tc.row_major(1, 1), **options)
        a, b = pipe.input(st[bf16, 64, 64]), pipe.input(st[bf16, 64, 64])
        c = pipe.output(st[f32, 64, 64])
        acc = pipe.accumulator(f32, 64, 64)

        @pipe.load
        def _(task, k):
            tc.load_async(a, A[task.row, k])
            tc.load_async(b, B[k, task.col])

        @pipe.compute
        def _(task, k):
            (compute or tc.mma_AB)(acc, a, b)

        @pipe.finish
        def _(task):
            if finish is None:
                c.store(C[task.row, task.col], acc)
            else:
                finish(c, C, acc)

    return kernel.compile(target="sm_90a")


def assigns(acc: Any, a: Any, b: Any) -> None:
    def hole() -> None:
        acc += a @ b  # noqa: F823, F841

    hole()


@pytest.mark.parametrize(
    ("compute", "message", "at", "hint"),
    [
        (lambda acc, a, b: a @ b,
         "@: unsupported operand type(s) for @: 'Slots' and 'Slots', got a @ b", "a @ b",
         "tc.mma_AB(acc, a, b)"),
        (lambda acc, a, b: tc.mma_AB(acc, a),
         "mma_AB: missing 1 required positional argument: 'b', got tc.mma_AB(acc, a)",
         "tc.mma_AB(acc, a)", MMA),
        (lambda acc, a, b: tc.mma_AB(acc, a, b, transposed=True),
         "mma_AB: got an unexpected keyword argument 'transposed', got "
         "tc.mma_AB(acc, a, b, transposed=True)", "tc.mma_AB(acc, a, b, t", MMA),
        (lambda acc, a, b: a + b,
         "+: unsupported operand type(s) for +: 'Slots' and 'Slots', got a + b", "a + b", NUMBERS),
        (lambda acc, a, b: tc.dot(a, b), "dot: tilecat has no such attribute, got tc.dot",
         "tc.dot", "tc.mma_AB(acc, a, b)"),
        (lambda acc, a, b: tc.mma_BA(acc, a, b),
         "mma_BA: tilecat has no such attribute, got tc.mma_BA", "tc.mma_BA",
         "nearest: mma_AB, mma_AtB, mma_ABt"),
        (lambda acc, a, b: tc.mma_AB(acc, a, b.T),
         "T: b: input of 1 st[bf16, 64, 64] (Slots) has no such attribute, got b.T", "b.T",
         "tc.mma_ABt, tc.mma_AtB and tc.mma_AtBt take operands transposed"),
        (lambda acc, a, b: b(0), "kernel: 'Slots' object is not callable, got b(0)", "b(0)",
         "places and parts are indexed: X[i, j], tile[:, 0:32]"),
    ],
)  # fmt: skip
def test_python_refuses_a_line_of_a_hole(compute, message, at, hint):
    fails(lambda: product(compute), ScopeError, message, at=at, hint=hint)


def test_a_hole_that_assigns_an_accumulator_is_told_how():
    error = fails(
        lambda: product(assigns), ScopeError,
        "acc: a name that a hole assigns is the hole's own, got UnboundLocalError: cannot access "
        "local variable 'acc' where it is not associated with a value", at="acc += a @ b",
        hint="tiles are written in place: tc.mma_AB(acc, a, b), acc[:] = x; or `nonlocal acc`, or "
        "another name",
    )  # fmt: skip
    assert error.__cause__ is not None


def test_a_product_that_no_accumulator_takes_is_refused():
    def body(k: Any) -> None:
        a, b = tc.shared(st[bf16, 64, 64]), tc.shared(st[bf16, 64, 64])
        k.x = a @ b

    fails(
        lambda: traced(body), LayoutError,
        "@: by itself a product is no tile, got st[bf16, 64, 64] @ st[bf16, 64, 64], to be added "
        "to an accumulator: acc += a @ b", at="a @ b", hint="tc.mma_AB(acc, a, b)",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("finish", "message"),
    [(lambda c, C, acc: None,
      "c: an output is stored in a hole, got none that stores c: output of st[f32, 64, 64]"),
     (lambda c, C, acc: tc.store(C[0, 0], acc),
      "c: an output is stored in a hole, got none that stores c: output of st[f32, 64, 64]")],
)  # fmt: skip
def test_an_output_that_no_hole_stores_is_refused(finish, message):
    fails(lambda: product(finish=finish), SyncError, message, at="pipe.output(",
          hint="c.store(C[row, col], x) in finish")  # fmt: skip


def test_a_pipeline_that_stores_nothing_is_refused():
    @tc.kernel
    def kernel(A: gl[bf16, 64, 64]):
        pipe = tc.lcf(consumers=1, stages=1, steps=1, tasks=tc.row_major(1, 1))
        a = pipe.input(st[bf16, 64, 64])

        @pipe.load
        def _(task, k):
            tc.load_async(a, A[task.row, k])

        @pipe.compute
        def _(task, k):
            tc.load(a)

    fails(
        kernel.compile, SyncError,
        "lcf: results are stored to a tensor, got holes that store nothing", at="tc.lcf(",
        hint="tc.store(C[row, col], x) in finish",
    )  # fmt: skip


def test_what_fails_inside_of_an_op_is_an_error_of_its_line(monkeypatch):
    monkeypatch.setattr(functions, "wrap", None)
    fails(
        lambda: traced(lambda k: tc.zeros(rt[f32, 64, 64])), ScopeError,
        "zeros: cannot take what it was given, got tc.zeros(rt[f32, 64, 64]): TypeError: "
        "'NoneType' object is not callable", at="tc.zeros(", hint="zeros(kind)",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "kind"),
    [(lambda k: {}["x"], KeyError), (lambda k: 1 / 0, ZeroDivisionError),
     (lambda k: len(), TypeError), (lambda k: "x".nothing, AttributeError),
     (lambda k: np.zeros(3).reshape(7), ValueError), (lambda k: sorted(1), TypeError)],
)  # fmt: skip
def test_errors_of_the_users_own_are_his(body, kind):
    with pytest.raises(kind):
        traced(body)
