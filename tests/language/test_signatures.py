"""What may be a kernel, and what its signature says: annotations, closures, decorators."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from failures import fails

import tilecat as tc
from tilecat import bf16, f32, gl, rt, rv, s32, st
from tilecat.errors import DTypeError, LayoutError, ScopeError, TileError

TILE = rt[f32, 64, 16]
X = np.arange(64 * 16, dtype=np.float32).reshape(64, 16)
ANNOTATE = 'A: tc.gl[tc.bf16, "M", "K"]; compile-time parameters go after `*`'


def test_annotations_are_strings_here_and_may_name_locals():
    elements, width = f32, 16

    @tc.kernel
    def doubles(A: tc.inout[elements, "M", width]):
        with tc.warpgroup():
            tc.store(A[0, 0], tc.load(A[0, 0], TILE) * 2.0)

    assert doubles.signature.describe() == "doubles(A: inout[f32, M, 16]; )"
    x = X.copy()
    doubles(x, grid=1)
    np.testing.assert_array_equal(x, 2 * X)


def test_annotations_that_cannot_be_read_are_an_error():
    def define() -> None:
        @tc.kernel
        def k(A: gl[unknown_name, "M"]):  # noqa: F821
            pass

    fails(
        define,
        DTypeError,
        "kernel k: its annotations cannot be read: NameError: name 'unknown_name' is not defined",
        at="@tc.kernel",
        hint='A: tc.gl[tc.bf16, "M", "K"], of names known where the kernel is defined',
    )


def test_kernel_is_a_closure_of_functions_and_values():
    def helper(x: Any) -> Any:
        return x * factor

    factor = 3.0

    @tc.kernel
    def k(A: tc.inout[f32, "M", "N"], *, twice=False):
        def inner(x: Any) -> Any:
            return helper(helper(x)) if twice else helper(x)

        with tc.warpgroup():
            tc.store(A[0, 0], inner(tc.load(A[0, 0], TILE)))

    for twice, wanted in ((False, 3 * X), (True, 9 * X)):
        x = X.copy()
        k(x, twice=twice, grid=1)
        np.testing.assert_array_equal(x, wanted)


def test_kernel_may_name_itself():
    def outer() -> tc.KernelFunction:
        @tc.kernel
        def k(A: gl[f32, "M", "N"]):
            assert k.__name__ == "k"
            with tc.warpgroup():
                tc.store(A[0, 0], tc.zeros(TILE))

        return k

    x = X.copy()
    outer()(x, grid=1)
    assert not x.any()


def test_kernel_under_a_decorator_that_wraps():
    calls = []

    def watched(function):
        @functools.wraps(function)
        def wrapper(*args, **params):
            calls.append(params)
            return function(*args, **params)

        return wrapper

    @tc.kernel
    @watched
    def k(A: gl[f32, "M", "N"], *, value=5.0):
        with tc.warpgroup():
            tc.store(A[0, 0], tc.full(TILE, value))

    x = X.copy()
    k(x, grid=1)
    np.testing.assert_array_equal(x, 5.0)
    assert calls == [{"value": 5.0}]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(int, "<class 'int'> (type)"), (None, "None (NoneType)"), (3, "3 (int)")],
)
def test_kernel_is_a_function(value, shown: str):
    fails(
        lambda: tc.kernel(value),
        ScopeError,
        f"kernel: decorates a Python function, got {shown}",
        at="tc.kernel(value)",
        hint="@tc.kernel",
    )


def test_kernel_is_no_generator():
    def k(A: gl[f32, "M"]):
        yield A

    with pytest.raises(ScopeError, match="a plain function, without yield and async, got"):
        tc.kernel(k)


def test_arguments_need_a_type():
    def define() -> None:
        @tc.kernel
        def k(A, *, n):
            pass

    fails(
        define,
        DTypeError,
        "kernel k: argument A is a tensor (gl[...]) or a scalar (f32, s32, u32), got A: None",
        at="@tc.kernel",
        hint=ANNOTATE,
    )


@pytest.mark.parametrize("kind", [int, bf16, st[bf16, 64, 64], TILE])
def test_arguments_are_tensors_or_scalars(kind):
    def k(A):
        pass

    k.__annotations__ = {"A": kind}
    with pytest.raises(DTypeError, match=r"argument A is a tensor \(gl\[...\]\) or a scalar"):
        tc.kernel(k)


def test_arguments_have_no_default_and_no_star():
    def starred(*A: gl[f32, "M"]):
        pass

    def given(A: gl[f32, "M"] = 3):
        pass

    message = "run-time arguments are named and have no default, got"
    with pytest.raises(ScopeError, match=rf"kernel starred: {message} \*A: .gl"):
        tc.kernel(starred)
    with pytest.raises(ScopeError, match="kernel given: run-time arguments .* = 3"):
        tc.kernel(given)


def test_star_takes_tensors_and_numbers_of_any_kind():
    @tc.kernel
    def k(A: tc.inout[f32, "M", "N"], *more, first=True):
        with tc.warpgroup():
            x = tc.load(A[0, 0], TILE)
            for value in more if first else ():
                x = x + (tc.load(value[0], f32) if hasattr(value, "rank") else value)
            tc.store(A[0, 0], x)

    assert k.signature.describe() == "k(A: inout[f32, M, N], *more; first=True)"
    for more, added in (((), 0), ((2.0,), 2), ((np.ones(3, np.float32), 4.0), 5)):
        x = X.copy()
        k(x, *more, grid=1)
        np.testing.assert_array_equal(x, X + added)
    assert k.compiles == 3
    with pytest.raises(DTypeError, match=r"k: more0 is an integer \(s32\), got True"):
        k(X.copy(), True)


def test_dots_take_any_number_of_axes_in_front():
    @tc.kernel
    def k(A: tc.inout[f32, ..., "M", "N"]):
        with tc.warpgroup():
            place = A[*(0 for _ in range(A.rank - 2)), 0, 0]
            tc.store(place, tc.load(place, TILE) * 2.0)

    assert k.signature.describe() == "k(A: inout[f32, ..., M, N]; )"
    for shape in (X.shape, (1, *X.shape), (1, 1, *X.shape)):
        x = X.reshape(shape).copy()
        k(x, grid=1)
        np.testing.assert_array_equal(x, 2 * X.reshape(shape))
    with pytest.raises(LayoutError, match=r"k: A has 2 axes \(M, N\), got shape \(16,\)"):
        k(np.zeros(16, np.float32))


def test_extents_of_arguments_can_be_made_to_agree():
    @tc.kernel
    def k(A: tc.inout[f32, "M", "N"], *more):
        tc.require_extent(more[0], -1, A, 1, or_one=True)
        with tc.warpgroup():
            tc.store(A[0, 0], tc.load(A[0, 0], TILE) + tc.load(more[0][0], f32))

    for size in (16, 1):
        k(X.copy(), np.ones(size, np.float32), grid=1)
    for size in (15, 0):
        message = f"k: axis 0 of more0 is as long as axis 1 of A, or 1, got {size} and 16"
        with pytest.raises(LayoutError, match=message):
            k(X.copy(), np.ones(size, np.float32), grid=1)


def test_kernel_returns_nothing():
    @tc.kernel
    def k(A: gl[f32, "M", "N"]):
        return 3

    fails(
        lambda: k(X.copy()),
        ScopeError,
        "k: a kernel returns nothing, got 3",
        at="@tc.kernel",
        hint="write results to a tensor argument",
    )


def test_kernel_of_any_names_runs():
    @tc.kernel
    def größe(Ä: gl[f32, "Größe", "M*2"], smem: gl[f32, "Größe", "M*2"], é: s32):
        with tc.warpgroup():
            ß = tc.load(Ä[0, 0], TILE)
            with tc.when(Ä.rows + é > 3):
                tc.store(smem[0, 0], ß)

    out = np.zeros_like(X)
    größe(X, out, 3, grid=1)
    np.testing.assert_array_equal(out, X)
    compiled = größe.compile()
    assert compiled.module.text.isascii() or ".visible .entry gr__e(" in compiled.ptx
    assert compiled.resources.spill_bytes == 0


def test_kernel_may_have_the_name_of_the_shared_array():
    @tc.kernel
    def smem(A: gl[f32, "M", "N"]):
        with tc.warpgroup():
            tile = tc.shared(st[f32, 64, 16])
            tc.store(tile, tc.load(A[0, 0], TILE))

    assert smem.compile().module.entry == "smem_kernel"


FROM_STDIN = """
import numpy as np, tilecat as tc
from tilecat import gl, f32, rt
@tc.kernel
def k(A: tc.inout[f32, "M", "N"], *, wrong=False):
    with tc.warpgroup():
        x = tc.load(A[0, 0], rt[f32, 64, 16])
        tc.store(A[0, 0], x * 2.0)
        for i in tc.range(3):
            if wrong:
                x = x * 2.0
a = np.ones((64, 16), np.float32)
k(a, grid=1)
print(a.sum())
try:
    k(a, wrong=True)
except tc.TileError as error:
    print(error)
"""


def test_kernel_without_a_source_file():
    done = subprocess.run(
        [sys.executable, "-"], input=FROM_STDIN, capture_output=True, text=True, check=False
    )
    total, error, place, *_ = done.stdout.splitlines()
    assert total == "2048.0", done.stderr
    assert error.startswith("Scope: tc.range: rebinds the name `x`, got x=rt[f32, 64, 16]")
    assert place == "  --> <stdin>:11"


# ---- types


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: gl["x"], DTypeError, "gl: the first item is a dtype, got 'x' (str)"),
        (lambda: gl[f32], LayoutError, "gl: 1 to 5 dims, got 0"),
        (lambda: gl[f32, 1, 2, 3, 4, 5, 6], LayoutError, "gl: 1 to 5 dims, got 6"),
        (lambda: gl[f32, -1], LayoutError, "gl: a dim is a name or a positive int, got -1"),
        (lambda: gl[f32, ""], LayoutError, "gl: a dim is a name or a positive int, got ''"),
        (lambda: gl[f32, True], LayoutError, "gl: a dim is a name or a positive int, got True"),
        (lambda: st[f32, 3], LayoutError,
         "st: wants st[dtype, rows, cols] or st[dtype, rows, cols, order]"),
        (lambda: st[bf16, 64, 64, "x"], LayoutError, 'st: order is "row" or "col", got \'x\''),
        (lambda: rt[f32, 64, 64.0], LayoutError,
         "rt: tile extents are compile-time positive ints, got 64.0 (float)"),
        (lambda: rt[bf16, 64, 20], LayoutError,
         "rt: columns of a bf16 tile are a multiple of 8, got columns=20"),
        (lambda: rv[f32, 0], LayoutError,
         "rv: tile extents are compile-time positive ints, got 0 (int)"),
    ],
)  # fmt: skip
def test_types_say_what_they_take(make, kind, message: str):
    error = pytest.raises(TileError, make).value
    assert (type(error), error.message) == (kind, message)
    assert error.loc is not None and "lambda:" in error.loc.text or "test_signatures" in str(error)
