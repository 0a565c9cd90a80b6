"""What a trace records: folded and shared scalars, blocks, names, lines, and the printed IR."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilecat as tc
from language.bodies import TILE, N, ops, run, traced
from tilecat import f32, gl, rt, s32, u32
from tilecat.ops.control import Range, When
from tilecat.ops.elementwise import Map
from tilecat.ops.scalar import Binary, Compare, Extent, GetVar, Not, Select

OUT = slice(0, 1), slice(0, 4)


def names(body) -> list[str]:
    """Binary scalar operations of a body."""
    return [op.name for op in ops(body, Binary)]


# ---- folding


@pytest.mark.parametrize(
    "expression",
    [
        lambda n: n + 0, lambda n: 0 + n, lambda n: n - 0, lambda n: n * 1, lambda n: 1 * n,
        lambda n: n // 1, lambda n: n << 0, lambda n: n >> 0,
    ],
)  # fmt: skip
def test_neutral_numbers_record_nothing(expression):
    assert names(lambda k: expression(k.n)) == []
    np.testing.assert_array_equal(run(lambda k: expression(k.n)), N)


@pytest.mark.parametrize(("factor", "op"), [(8, "shl"), (6, "mul"), (-8, "mul"), (0, "mul")])
def test_products_with_powers_of_two_are_shifts(factor: int, op: str):
    assert names(lambda k: k.n * factor) == [op]
    assert names(lambda k: factor * k.n) == [op]
    np.testing.assert_array_equal(run(lambda k: k.n * factor), N * factor)


@pytest.mark.parametrize("base", [0, -1, -7, -8, -9, -64, -(2**31) + 20, 2**31 - 40])
@pytest.mark.parametrize("by", [2, 8, 64, 2**30])
def test_division_by_powers_of_two_is_shifts_and_truncates(base: int, by: int):
    """2^30 is the largest power of two that an s32 holds, -2^31 the least dividend."""
    assert "div" not in names(lambda k: (k.n + base) // by)
    found = run(lambda k: (k.n + base) // by)
    np.testing.assert_array_equal(found, np.float32(int((N + base) / by)))


def test_unsigned_division_by_powers_of_two_is_one_shift():
    assert names(lambda k: k.n.to(u32) // 4 + k.n.to(u32) % 4) == ["shr", "and", "add"]
    found = run(lambda k: ((k.n.to(u32) - 100) // 64 + k.n.to(u32) % 8).to(s32))
    np.testing.assert_array_equal(found, np.float32((N - 100) % 2**32 // 64 + N % 8))


def test_cdiv_by_a_power_of_two_is_one_shift():
    assert names(lambda k: tc.cdiv(k.n, 16)) == ["add", "shr"]
    np.testing.assert_array_equal(run(lambda k: tc.cdiv(k.n, 16)), -(-N // 16))


def test_floats_keep_additions_of_zero():
    """-0.0 + 0.0 is 0.0, so the addition is not the operand."""
    assert names(lambda k: k.s + 0.0) == ["add"]
    assert names(lambda k: k.s * 1.0) == []


def test_zero_and_minus_zero_are_two_numbers():
    assert names(lambda k: (k.s * 0.0) + (k.s * -0.0)) == ["mul", "mul", "add"]


@pytest.mark.parametrize(
    ("a", "b"), [(7, 2), (-7, 2), (7, -2), (-7, -2), (6, 3), (-6, 3), (0, 5)]
)
def test_division_and_remainder_truncate_folded_and_at_run_time(a: int, b: int):
    quotient = int(a / b)
    wanted = 100 * quotient + (a - quotient * b)

    def traced_both(k: Any) -> Any:
        x = k.n - N + a
        return 100 * (x // b) + x % b

    np.testing.assert_array_equal(run(traced_both), wanted)
    assert tc.language.scalars.binary("div", a, b) == quotient
    assert tc.language.scalars.binary("rem", a, b) == a - quotient * b


def test_bools_fold_in_conditions():
    def body(k: Any) -> None:
        p = k.n < 3
        assert (p & True).value is p.value
        assert (False | p).value is p.value
        assert (p & False) is False
        assert (p | True) is True
        assert (p ^ False).value is p.value
        _ = p ^ True

    kinds = [type(op) for op in ops(body)]
    assert (kinds.count(Compare), kinds.count(Not), names(body)) == (1, 1, [])


def test_select_of_a_python_bool_records_nothing():
    assert not ops(lambda k: tc.select(True, k.n, k.s), Select)
    np.testing.assert_array_equal(run(lambda k: tc.select(False, k.s, k.n)), N)


# ---- common subexpressions


def test_equal_expressions_are_one():
    assert names(lambda k: (k.n + 3) * (k.n + 3)) == ["add", "mul"]
    assert names(lambda k: (3 + k.n) * (k.n + 3)) == ["add", "mul"]
    assert len(ops(lambda k: k.X.rows + k.X.rows + k.X.size(0), Extent)) == 1


def test_expression_of_an_outer_block_serves_inner_ones():
    def body(k: Any) -> None:
        _ = k.n * 3
        with tc.when(k.n > 0):
            _ = k.n * 3

    assert names(body) == ["mul"]


def test_expression_of_a_block_does_not_serve_what_follows():
    def body(k: Any) -> Any:
        with tc.when(k.n > 100):
            k.x += (k.n * 3).to(f32)
        return k.n * 3

    assert names(body) == ["mul", "mul"]
    np.testing.assert_array_equal(run(body), N * 3)


def test_dropped_block_leaves_nothing_behind():
    """Blocks of a false Python condition are freed; their expressions must go with them."""

    def body(k: Any) -> Any:
        for i in range(50):
            with tc.when(False):
                _ = k.n * (i + 3)
            with tc.when(k.n > 0):
                k.x += (k.n * (i + 3)).to(f32)
        return k.x

    total = sum(N * (i + 3) for i in range(50))
    np.testing.assert_array_equal(run(body)[OUT], np.arange(4)[None] + total)


def test_variable_is_read_anew():
    def body(k: Any) -> Any:
        v = tc.var(1)
        first = v + 0
        v.set(5)
        return first * 10 + v

    assert len(ops(body, GetVar)) == 2
    np.testing.assert_array_equal(run(body), 15)


# ---- control flow


def test_python_condition_decides_while_tracing():
    def body(k: Any) -> Any:
        with tc.when(True):
            y = k.x + 1.0
        with tc.otherwise():
            k.x *= 7.0
        with tc.when(False):
            k.x *= 5.0
        with tc.otherwise():
            y += 2.0
        return y

    assert not ops(body, When)
    np.testing.assert_array_equal(run(body)[OUT], [[3, 4, 5, 6]])


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [((7,), 7), ((2, 7), 5), ((2, 9, 3), 3), ((5, 5), 0), ((6, 5), 0), ((0, 1, 100), 1)],
)
def test_range_counts_as_python_does(bounds, wanted: int):
    def body(k: Any) -> Any:
        count = tc.var(0)
        for _ in tc.range(*(k.n - N + bound for bound in bounds)):
            count += 1
        return count

    assert wanted == len(range(*bounds))
    np.testing.assert_array_equal(run(body), wanted)


def test_nested_loops_and_branches():
    def body(k: Any) -> Any:
        total = tc.var(0)
        for i in tc.range(k.n):
            for j in tc.range(i):
                with tc.when((j & 1) == 0):
                    total += j
                with tc.otherwise():
                    total -= 1
        return total

    wanted = sum(j if j % 2 == 0 else -1 for i in range(N) for j in range(i))
    np.testing.assert_array_equal(run(body), wanted)


def test_python_loops_unroll():
    assert len(ops(lambda k: [k.x.__iadd__(float(i)) for i in range(4)] and None, Map)) == 4
    assert len(ops(lambda k: [None for i in tc.range(4)] and None, Range)) == 1


def test_one_thread_runs_alone():
    @tc.kernel
    def counts(X: tc.inout[f32, "M", "N"]):
        with tc.warpgroup():
            x = tc.load(X[0, 0], TILE)
            v = tc.var(0.0)
            with tc.one_thread(5):
                v += 3.0
            tc.store(X[0, 0], x + v)

    x = np.zeros((64, 16), np.float32)
    counts(x, grid=1)
    assert x[1, 2] == 3 and x.sum() == 3 * 8  # thread 5: row 1, columns 2, 3, 10, 11; and row 9


# ---- extents


def test_extents_are_run_time_and_a_new_shape_compiles_nothing():
    @tc.kernel
    def sizes(X: gl[f32, "M", "N"], Y: gl[f32, 64, 16]):
        with tc.warpgroup():
            tc.store(Y[0, 0], tc.full(TILE, (X.rows * 1000 + X.cols).to(f32)))

    for shape in ((3, 5), (1, 70), (64, 64), (129, 2)):
        out = np.zeros((64, 16), np.float32)
        sizes(np.zeros(shape, np.float32), out, grid=1)
        np.testing.assert_array_equal(out, shape[0] * 1000 + shape[1])
    assert sizes.compiles == 1


def test_extents_named_like_a_parameter_are_compile_time():
    seen = []

    @tc.kernel
    def static(X: gl[f32, "M", "D"], *, D):
        seen.append((X.cols, type(X.rows).__name__))
        with tc.warpgroup():
            tc.store(X[0, 0], tc.full(rt[f32, 64, D], float(D)))

    for d in (16, 32, 16):
        x = np.zeros((10, d), np.float32)
        static(x, grid=1)
        np.testing.assert_array_equal(x, d)
    assert seen == [(16, "Scalar"), (32, "Scalar")]
    assert static.compiles == 2


def test_dtype_parameter_is_bound_by_the_first_array():
    T = tc.DTypeVar("T", tc.bf16, tc.f16)
    seen = []

    @tc.kernel
    def typed(X: gl[T, "M", "N"], Y: gl[T, "M", "N"]):
        seen.append(X.dtype.name)
        with tc.warpgroup():
            tc.store(Y[0, 0], tc.load(X[0, 0], rt[X.dtype, 64, 16]))

    for dtype in (tc.f16, tc.bf16):
        x = np.arange(64, dtype=dtype.numpy).reshape(4, 16)
        y = np.zeros_like(x)
        typed(x, y, grid=1)
        np.testing.assert_array_equal(x, y)
    assert seen == ["f16", "bf16"]
    with pytest.raises(tc.DTypeError, match="X and Y have one dtype, got X=f16 and Y=bf16"):
        typed(np.zeros((4, 16), np.float16), np.zeros((4, 16), tc.bf16.numpy))


# ---- lines, names, printer


def test_every_op_knows_its_line():
    def body(k: Any) -> Any:
        y = k.x + 1.0
        z = y * 2.0
        return z

    first = body.__code__.co_firstlineno
    lines = {op.name: op.loc.line - first for op in ops(body, Map) if op.loc is not None}
    assert lines == {"add": 1, "mul": 2}


def test_values_are_named_after_what_the_line_assigns():
    def body(k: Any) -> Any:
        left, right = k.x + 1.0, k.x * 2.0
        whole = (left + right)
        total = k.n + tc.cdiv(k.X.rows, 3)
        whole += total.to(f32)
        return whole

    made = {op.results[0].name for op in ops(body) if op.results}
    assert {"left", "right", "whole", "X_M", "X_M_blocks", "total"} <= made
    assert all(name.isascii() for name in made)


def test_printed_ir_is_the_kernel():
    def body(k: Any) -> None:
        with tc.when(k.n > 3):
            k.x *= 2.0
        with tc.otherwise():
            tc.mask_cols(k.x, k.n, 0.5)

    first = body.__code__.co_firstlineno
    head, *printed = str(traced(body).kernel).splitlines()
    args = "X: gl[f32, M, N], Y: gl[f32, M, N], n: s32, s: f32"
    assert head == f"kernel traced({args}) {{  # 128 threads, clusters of 1"
    start = next(i for i, text in enumerate(printed) if f"# {first + 1}: " in text)
    assert printed[start:] == [
        f"    # {first + 1}: with tc.when(k.n > 3):",
        "    %gt: pred = Compare.gt(%n, 3)",
        "    When(%gt) {",
        f"      # {first + 2}: k.x *= 2.0",
        "      Map.mul((%x, 2.0), %x)",
        "    } else {",
        f"      # {first + 4}: tc.mask_cols(k.x, k.n, 0.5)",
        "      Mask(%x, %n, 0.5, of=col, below=False, name=mask_cols)",
        "    }",
        "  }",
        "}",
    ]


def test_printed_names_are_unique():
    def body(k: Any) -> None:
        for _ in range(3):
            y = k.x + 1.0
            y *= 2.0

    printed = str(traced(body).kernel)
    defined = [text.split(":")[0].strip() for text in printed.splitlines() if ": rt[" in text]
    assert len(defined) == len(set(defined)) == 4
    assert s32.name in printed


def test_numpy_numbers_on_the_left_of_tiles_are_numbers():
    def body(k: Any) -> Any:
        y = np.float32(2) * k.x + (np.float64(1) - k.x) + np.int64(4) / (k.x + 1.0)
        return tc.select(np.float32(7) < k.x, tc.bf16.numpy.type(3) + y, 0.0)

    x = np.arange(64 * 16, dtype=np.float64).reshape(64, 16)
    np.testing.assert_allclose(run(body), np.where(x > 7, x + 4 + 4 / (x + 1), 0), rtol=1e-6)
