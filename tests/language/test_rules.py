"""What a kernel's body may not do: each rule's text, its line and its caret."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from failures import fails

import tilecat as tc
from language.bodies import TILE, kernel_of, run, traced
from tilecat import bf16, f32, rt, s32, st
from tilecat.errors import DTypeError, LayoutError, ScopeError, SyncError, TileError

T32 = "wants an s32 scalar or an int"
NUMBER = "wanted a run-time scalar or a Python number"
ELEMENTS = "element by element: tc.select(condition, a, b), tc.maximum, tc.minimum"
BRANCH = "write `with tc.when(condition):`, or tc.select(condition, a, b)"


@dataclass(frozen=True)
class Rule:
    """A body that breaks a rule, and all of its error."""

    body: Callable[[Any], Any]
    kind: type[TileError]
    message: str
    at: str
    hint: str = ""


RULES = (
    # scalars
    Rule(lambda k: k.n + k.s, DTypeError,
         "add: scalar operands have one dtype, got s32 and f32",
         "k.n + k.s", "convert one with .to(dtype)"),
    Rule(lambda k: k.n + 1.5, DTypeError,
         "add: an integer scalar takes an int, got 1.5 with s32",
         "k.n + 1.5", "convert the scalar with .to(tc.f32)"),
    Rule(lambda k: k.n / 2, DTypeError,
         "/: integer scalars divide with //, got Scalar(s32)",
         "k.n / 2", "a // b, or a.to(tc.f32) / b"),
    Rule(lambda k: k.s // 2, DTypeError,
         "//: is for integer scalars, got Scalar(f32)", "k.s // 2", "a / b"),
    Rule(lambda k: k.n // 0, DTypeError, "//: division by zero, got 0", "k.n // 0"),
    Rule(lambda k: k.n % 0, DTypeError, "%: division by zero, got 0", "k.n % 0"),
    Rule(lambda k: tc.cdiv(7, 0), DTypeError, "//: division by zero, got 6 // 0", "tc.cdiv("),
    Rule(lambda k: k.n + 2**40, DTypeError,
         "add: an s32 is -2147483648 to 2147483647, got 1099511627776", "k.n + 2**40"),
    Rule(lambda k: k.n << 40, DTypeError, "shift: a count is 0 to 31, got 40", "k.n << 40"),
    Rule(lambda k: k.s + "x", DTypeError, f"add: {NUMBER}, got 'x' (str)", "k.s + "),
    Rule(lambda k: (k.n < 3) + 1, DTypeError,
         "add: a condition goes with a condition or a bool, got 1",
         "(k.n < 3) + 1", "compare first: x != 0"),
    Rule(lambda k: (k.n < 3) == (k.n < 4), DTypeError,
         "eq: conditions are not compared, got two of pred",
         "(k.n < 3) == ", "combine them with &, |, ^ and ~"),
    Rule(lambda k: ~k.n, DTypeError,
         "~: negates a condition, got a scalar of s32", "~k.n", "x ^ -1 flips bits"),
    Rule(lambda k: tc.select(k.n, 1, 2), DTypeError,
         "select: the first operand is a condition, got %n: s32",
         "tc.select(", "tc.select(a < b, a, b)"),
    Rule(lambda k: tc.var(k.n < 3), DTypeError, "var: holds f32, s32 or u32, got pred", "tc.var("),
    Rule(lambda k: tc.var(0).set(1.5), DTypeError,
         "var.set: an integer scalar takes an int, got 1.5 with s32",
         "tc.var(0).set", "convert the scalar with .to(tc.f32)"),
    Rule(lambda k: tc.exp2(k.n), DTypeError, "exp2: not defined on integers, got s32", "tc.exp2(",
         "convert to a float: x.to(tc.f32)"),
    Rule(lambda k: np.zeros(3) + k.s, DTypeError,
         f"add: {NUMBER}, got array([0., 0., 0.]) (ndarray)", "np.zeros(3) + "),
    # Python decides nothing at run time
    Rule(lambda k: 1 if k.n < 3 else 2, ScopeError,
         "if: a run-time value cannot decide a Python branch, got Scalar(pred)", "k.n < 3", BRANCH),
    Rule(lambda k: k.n < 3 and k.n > 1, ScopeError,
         "if: a run-time value cannot decide a Python branch, got Scalar(pred)", "k.n < 3", BRANCH),
    Rule(lambda k: max(k.n, 3), ScopeError,
         "if: a run-time value cannot decide a Python branch, got Scalar(pred)", "max(", BRANCH),
    Rule(lambda k: range(k.n), ScopeError,
         "index: a run-time value is not a Python int, got Scalar(s32)",
         "range(", "loop with tc.range(n); tile extents come from keyword parameters"),
    Rule(lambda k: int(k.n), ScopeError,
         "index: a run-time value is not a Python int, got Scalar(s32)",
         "int(", "loop with tc.range(n); tile extents come from keyword parameters"),
    Rule(lambda k: float(k.s), ScopeError,
         "float: a run-time value is not a Python number, got Scalar(f32)", "float(",
         "use it in tilecat's own arithmetic; tc.exp2, tc.log2 and the like take scalars"),
    Rule(lambda k: 1 if k.x else 2, ScopeError,
         "if: a tile cannot decide a Python branch, got rt[f32, 64, 16]", "1 if k.x",
         ELEMENTS),
    Rule(lambda k: max(k.x, 0), ScopeError,
         "if: a tile cannot decide a Python branch, got rt[pred, 64, 16]", "max(", ELEMENTS),
    Rule(lambda k: np.maximum(k.x, 0), ScopeError,
         "np.maximum: NumPy does not compute with tiles, got rt[f32, 64, 16]", "np.maximum(",
         "tilecat's own functions do: tc.exp(x), tc.maximum(a, b), a + b, ..."),
    Rule(lambda k: np.zeros(3) + k.x, ScopeError,
         "np.add: NumPy does not compute with tiles, got rt[f32, 64, 16]", "np.zeros(3) + ",
         "tilecat's own functions do: tc.exp(x), tc.maximum(a, b), a + b, ..."),
    Rule(lambda k: tc.shared(st[f32, 64, 16]) < k.x, ScopeError,
         "comparison: only register tiles and vectors are compared, "
         "got st[f32, 64, 16] and rt[f32, 64, 16]", "tc.shared(st[f32, 64, 16]) < k.x",
         "tc.load(tile) brings a shared tile into registers"),
    # tiles
    Rule(lambda k: k.x + tc.zeros(rt[f32, 64, 32]), LayoutError,
         "add: shapes and layouts must agree, got rt[f32, 64, 16] and rt[f32, 64, 32]", "k.x + "),
    Rule(lambda k: k.x + "x", DTypeError, f"add: {NUMBER}, got 'x' (str)", "k.x + "),
    Rule(lambda k: tc.cast(k.x, "bf16"), DTypeError,
         "cast: to a dtype, got 'bf16' (str)", "tc.cast(", "tc.cast(x, tc.bf16)"),
    Rule(lambda k: tc.row_max(None), LayoutError,
         "row_max: wanted a register tile or vector, got None (NoneType)", "tc.row_max(",
         "tc.load(tile) brings a shared tile into registers"),
    Rule(lambda k: tc.exp2(k.x, out=3), LayoutError,
         "exp2: out: wanted a register tile or vector, got 3 (int)", "tc.exp2(",
         "tc.load(tile) brings a shared tile into registers"),
    Rule(lambda k: tc.zeros(64), LayoutError,
         "zeros: wanted the type of a register tile or vector, got 64 (int)",
         "tc.zeros(", "tc.zeros(tc.rt[tc.f32, 64, 64])"),
    Rule(lambda k: tc.mask_cols(k.x, k.s, 0.0), DTypeError, f"mask_cols: {T32}, got f32",
         "tc.mask_cols(", "convert it: x.to(tc.s32)"),
    Rule(lambda k: tc.store(k.Y[0, 0], "x"), LayoutError,
         "store: wanted a register tile, got 'x'", "tc.store(", "tc.load(tile)"),
    Rule(lambda k: tc.store(k.x, k.Y[0, 0]), LayoutError,
         "store: the place comes first, got rt[f32, 64, 16] and then Y[...]", "tc.store(",
         "tc.store(Y[...], x)"),
    Rule(lambda k: k.Y.__setitem__((0, 0), k.x), ScopeError,
         "Y: a place is stored to, not assigned, got rt[f32, 64, 16]", "k.Y.__setitem__(",
         "tc.store(Y[...], tile)"),
    Rule(lambda k: tc.row_max(tc.row_max(k.x)), LayoutError,
         "row_max: wanted a register tile, got rv[f32, 64]", "tc.row_max(",
         'of a vector: tc.reduce_vector("max", x)'),
    Rule(lambda k: tc.reduce_vector("mean", tc.row_max(k.x)), LayoutError,
         "reduce_vector: by max, min, sum, prod, max_nan, absmax, got 'mean'",
         "tc.reduce_vector(", '"sum"; a mean is the sum times 1 / length'),
    Rule(lambda k: tc.rv[f32, 64, "column"], LayoutError,
         'rv: axis is "row", "col" or "plain", got \'column\'', 'tc.rv[f32, 64, "column"]',
         'rv[f32, 64, "col"]'),
    Rule(lambda k: tc.rv[f32, 256, "plain", 3], LayoutError,
         "rv: a run is of 1, 2, 4 or 8 adjacent values, got 3", 'tc.rv[f32, 256, "plain", 3]',
         'rv[f32, 256, "plain", 8]'),
    Rule(lambda k: tc.store(tc.shared(st[f32, 64, 32]), k.x), LayoutError,
         "store: shapes must agree, got rt[f32, 64, 16] and st[f32, 64, 32]", "tc.store("),
    Rule(lambda k: tc.store(tc.shared(st[bf16, 64, 16]), k.x), DTypeError,
         "store: dtypes must agree, got rt[f32, 64, 16] and st[bf16, 64, 16]",
         "tc.store(", "convert first: tc.cast(x, tc.bf16)"),
    Rule(lambda k: tc.load(k.X[0, 0]), LayoutError,
         "load: a place in a tensor needs the registers' type, got None",
         "tc.load(", "tc.load(A[i, j], tc.rt[A.dtype, 64, 64])"),
    Rule(lambda k: tc.load(k.X[0, 0], rt[bf16, 64, 16]), DTypeError,
         "load: X holds f32, got rt[bf16, 64, 16]",
         "tc.load(", "convert in registers: tc.cast(x, dtype)"),
    Rule(lambda k: tc.load(k.X), LayoutError,
         "load: wanted a tile, got X: gl[f32, M, N] (GlobalTensor)", "tc.load("),
    Rule(lambda k: k.X[0], LayoutError, "X: one index an axis, got 1 for gl[f32, M, N]",
         "k.X[0]", "X[m, n]"),
    Rule(lambda k: k.X[0:4:2, 0], LayoutError,
         "X: slices have no step but -1 of a whole axis, got 2",
         "k.X[0:4:2", "a strided array can be an argument"),
    Rule(lambda k: k.X[-1:, :], LayoutError, "X: slices count from the first element, got -1",
         "k.X[-1:", "X.rows - n"),
    Rule(lambda k: k.X[0.5, 0], DTypeError, f"X: {T32}, got 0.5 (float)", "k.X[0.5"),
    Rule(lambda k: k.X.size(2), LayoutError, "X.size: an axis of X: gl[f32, M, N], got dim=2",
         "k.X.size("),
    Rule(lambda k: tc.store(k.Y[0, 0], tc.empty(TILE)), SyncError,
         "store: rt[f32, 64, 16] is read before anything was written to it", "tc.store(",
         "make it with tc.zeros(...), or let its first mma have accumulate=False"),
    Rule(lambda k: tc.mma_wait(-1), LayoutError,
         "mma_wait: pending is a compile-time int >= 0, got -1", "tc.mma_wait("),
    Rule(lambda k: tc.require(False, "k: the rule"), LayoutError, "k: the rule", "tc.require("),
    # inline
    Rule(lambda k: tc.inline("mov.b32 $0, $2;", k.n), LayoutError,
         "inline: holes $0..$n and operands must match, got holes [0, 2] for 1 operands",
         "tc.inline("),
    Rule(lambda k: tc.inline("mov.b32 $0, 1;", k.n, writes=(0,)), LayoutError,
         "inline: writes names operands that are tiles, vectors or tc.var scalars, "
         "got writes=(0,) of 1 operands", "tc.inline(",
         "writes=(0,) for the first; v = tc.var(0) for a scalar that is written"),
    Rule(lambda k: tc.inline(3), LayoutError,
         "inline: the first argument is PTX text, got 3", "tc.inline("),
)  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.message[:48])
def test_rule_is_held(rule: Rule):
    fails(lambda: traced(rule.body), rule.kind, rule.message, at=rule.at, hint=rule.hint)


# ---- control flow


def breaks(k: Any) -> None:
    for _ in tc.range(k.n):
        break
    k.x += 1.0


def breaks_last(k: Any) -> None:
    for _ in tc.range(k.n):
        break


def returns(k: Any) -> Any:
    for _ in tc.range(k.n):
        return k.x
    return None


@pytest.mark.parametrize("body", [breaks, breaks_last, returns])
def test_range_is_not_left_early(body):
    fails(
        lambda: traced(body),
        ScopeError,
        "tc.range: a run-time loop cannot be left by break or return",
        at="for _ in tc.range(",
        hint="compute the trip count first, or guard the body with tc.when",
    )


def in_range(k: Any) -> None:
    total = tc.var(0).get()
    for i in tc.range(k.n):
        total = total + i


def in_when(k: Any) -> None:
    total = k.n + 1
    with tc.when(k.n < 3):
        total = total + 2  # noqa: F841


def in_otherwise(k: Any) -> None:
    total = k.n + 1
    with tc.when(k.n < 3):
        pass
    with tc.otherwise():
        total = total + 3  # noqa: F841


@pytest.mark.parametrize(
    ("body", "what"),
    [(in_range, "tc.range"), (in_when, "tc.when"), (in_otherwise, "tc.otherwise")],
)
def test_scalar_is_not_rebound_in_a_block(body, what: str):
    fails(
        lambda: traced(body),
        ScopeError,
        f"{what}: rebinds the name `total`, got total=Scalar(s32) made inside the block; a trace "
        "runs the block once, so the new value would not reach the next iteration or the code "
        "after it",
        at="total + ",
        hint="before the block: total = tc.var(...), inside: total += ... or total.set(...)",
    )


def test_tile_is_not_rebound_in_a_block():
    def body(k: Any) -> None:
        x = k.x
        for _ in tc.range(k.n):
            x = x * 2.0
        tc.store(k.Y[0, 0], x)

    fails(
        lambda: traced(body),
        ScopeError,
        "tc.range: rebinds the name `x`, got x=rt[f32, 64, 16] made inside the block; a trace "
        "runs the block once, so the new value would not reach the next iteration or the code "
        "after it",
        at="x * 2.0",
        hint="write the tile in place: x *= ..., or an op's out=x",
    )


def test_number_is_not_updated_in_a_block():
    def body(k: Any) -> None:
        count = 0
        for _ in tc.range(k.n):
            count += 1

    fails(
        lambda: traced(body),
        ScopeError,
        "tc.range: updates the Python number `count` inside a run-time block, got count=1; "
        "a trace runs the block once",
        at="count += 1",
        hint="count = tc.var(0) before the block",
    )


def test_number_may_be_set_anew_in_a_block():
    def body(k: Any) -> Any:
        width = 3.0
        for _ in tc.range(k.n):
            width = 5.0
            k.x += width
        return k.x

    np.testing.assert_array_equal(run(body)[0, :3], [35, 36, 37])


def test_value_of_a_block_ends_with_it():
    def body(k: Any) -> None:
        for _ in tc.range(k.n):
            y = k.x * 2.0
        tc.store(k.Y[0, 0], y)

    error = pytest.raises(ScopeError, traced, body).value
    assert error.message.startswith(
        "store: uses a value made inside a tc.range or tc.when that has ended, "
        "got %y: rt[f32, 64, 16] (made at "
    )
    assert error.loc is not None and "tc.store(k.Y" in error.loc.text


def test_index_of_a_loop_ends_with_it():
    def body(k: Any) -> None:
        last = None
        for i in tc.range(k.n):
            last = i
        tc.store(k.Y[last, 0], k.x)

    with pytest.raises(ScopeError, match=r"uses a value made inside .* got %i: s32"):
        traced(body)


@pytest.mark.parametrize("condition", [lambda k: k.n, lambda k: 1, lambda k: k.s])
def test_when_takes_a_condition(condition):
    def body(k: Any) -> None:
        with tc.when(condition(k)):
            pass

    with pytest.raises(ScopeError, match="tc.when: the condition is a comparison of run-time"):
        traced(body)


def otherwise_alone(k: Any) -> None:
    with tc.otherwise():
        pass


def otherwise_twice(k: Any) -> None:
    with tc.when(k.n < 1):
        pass
    for _ in range(2):
        with tc.otherwise():
            pass


def otherwise_after_more(k: Any) -> None:
    with tc.when(k.n < 1):
        pass
    k.x += 1.0
    with tc.otherwise():
        pass


@pytest.mark.parametrize("body", [otherwise_alone, otherwise_twice, otherwise_after_more])
def test_otherwise_follows_a_when(body):
    fails(
        lambda: traced(body),
        ScopeError,
        "tc.otherwise: follows a tc.when block directly",
        at="with tc.otherwise()" if body is not otherwise_twice else "with tc.otherwise()",
        hint="put it on the line after the tc.when block, with nothing between",
    )


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((0, 4, 0), "tc.range: the step is positive, got step=0"),
        ((0, 4, -1), "tc.range: the step is positive, got step=-1"),
        ((2.5,), f"tc.range: {T32}, got 2.5 (float)"),
        ((None,), f"tc.range: {NUMBER}, got None (NoneType)"),
        ((0, True), f"tc.range: {T32}, got True (bool)"),
    ],
)
def test_range_takes_positive_steps_of_ints(bounds, message: str):
    def body(k: Any) -> None:
        for _ in tc.range(*bounds):
            pass

    error = pytest.raises(TileError, traced, body).value
    assert error.message == message


# ---- scopes


def test_tile_ops_need_a_warpgroup():
    def body(k: Any) -> None:
        with tc.one_thread():
            k.x += 1.0

    fails(
        lambda: traced(body),
        ScopeError,
        "add: must be executed by a warpgroup or warp, got scope=thread",
        at="k.x += 1.0",
        hint="call it where a warpgroup or warp runs: in a consumer's hole of a pipeline, "
        "or in a tc.warpgroup block",
    )


def test_one_warpgroup_block_a_kernel():
    def body(k: Any) -> None:
        with tc.warpgroup():
            pass

    fails(
        lambda: traced(body),
        ScopeError,
        "tc.warpgroup: a kernel has one such block, got another",
        at="with tc.warpgroup()",
    )


@pytest.mark.parametrize("call", [lambda: tc.zeros(TILE), lambda: tc.var(3), tc.sync])
def test_ops_run_in_kernels_only(call):
    with pytest.raises(ScopeError, match="run only while a kernel is traced, got a call outside"):
        call()


def test_error_in_a_helper_of_the_kernel_stands_at_the_helper():
    def helper(x: Any) -> Any:
        return x + 1j

    error = pytest.raises(DTypeError, traced, lambda k: helper(k.x)).value
    assert error.loc is not None and error.loc.text.strip() == "return x + 1j"


def test_error_after_a_failed_trace_is_not_left_over():
    kernel = kernel_of(lambda k: k.n + k.s)
    x = np.zeros((64, 16), np.float32)
    for _ in range(2):
        with pytest.raises(DTypeError, match="one dtype"):
            kernel(x, x.copy(), 1, 1.0)
    with pytest.raises(ScopeError, match="outside any kernel"):
        tc.zeros(TILE)
    assert s32.name == "s32"
