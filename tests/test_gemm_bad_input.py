"""Arrays that a product cannot take, or that look so: addresses, strides, memory that meets out's.

Each has an error of its own before anything runs, or the right numbers. Beside test_bad_input.py,
which has what all kernels refuse, and the lists of test_gemm.py and test_gemm_groups.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import reference
from failures import fails

import tilecat as tc
from tilecat import DTypeError, LayoutError
from tilecat.kernels.gemm import matmul as kernel

BF16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn
E = tc.epilogues


def normal(*shape: int, dtype: Any = BF16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


A, B = normal(64, 64), normal(64, 64, seed=1)
EXPERTS = normal(3, 64, 64, seed=2)
ENDS = np.array([10, 20, 64], np.int32)


def a_byte_off(x: np.ndarray) -> np.ndarray:
    """The same array at an odd address."""
    memory = np.zeros(x.nbytes + 1, np.uint8)
    made = np.ndarray(x.shape, x.dtype, memory.data, 1)
    made[...] = x
    return made


# ---- addresses

OFF: dict[str, tuple[Callable[[], Any], str]] = {
    "a": (lambda: tc.matmul(a_byte_off(A), B), "matmul: the address of A is a multiple of its "
          "elements' 2 bytes, got one 1 bytes beyond"),
    "b": (lambda: tc.matmul(A, a_byte_off(B)), "matmul: the address of B is a multiple of its "
          "elements' 2 bytes, got one 1 bytes beyond"),
    "out": (lambda: tc.matmul(A, B, a_byte_off(A)), "matmul: the address of C is a multiple of "
            "its elements' 2 bytes, got one 1 bytes beyond"),
    "a scale": (lambda: tc.matmul(A, B, scale_a=a_byte_off(np.ones(64, np.float32))),
                "matmul: the address of factors of row_scale is a multiple of its elements' "
                "4 bytes, got one 1 bytes beyond"),
    "ends": (lambda: tc.grouped_matmul(A, EXPERTS, ends=a_byte_off(ENDS)),
             "grouped_matmul: the address of ends is a multiple of its elements' 4 bytes, got one "
             "1 bytes beyond"),
}  # fmt: skip


@pytest.mark.parametrize("name", OFF)
def test_an_address_between_elements_is_refused(name: str):
    call, message = OFF[name]
    fails(call, LayoutError, message, at="tc.", hint="a copy of the array")


def test_bytes_may_lie_at_any_address():
    a, b = a_byte_off(normal(64, 64, dtype=E4M3)), normal(64, 64, dtype=E4M3).T
    exact = a.astype(np.float64) @ b.astype(np.float64)
    reference.assert_close(tc.matmul(a, b), exact, BF16, k=64)


# ---- strides: negative ones, zero


@pytest.mark.parametrize("name", ["rows", "columns", "both", "one row", "one column", "one"])
def test_operands_of_negative_and_zero_strides_are_right(name: str):
    views: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "rows": lambda x: x[::-1],
        "columns": lambda x: x[:, ::-1],
        "both": lambda x: x[::-1, ::-1],
        "one row": lambda x: np.broadcast_to(x[:1], x.shape),
        "one column": lambda x: np.broadcast_to(x[:, :1], x.shape),
        "one": lambda x: np.broadcast_to(x[:1, :1], x.shape),
    }
    for a, b in ((views[name](A), B), (A, views[name](B)), (views[name](A), views[name](B))):
        reference.assert_close(tc.matmul(a, b), reference.matmul(a, b), BF16)


def test_outputs_of_negative_strides_are_right():
    for out in (np.zeros((64, 64), BF16)[::-1], np.zeros((64, 64), BF16)[:, ::-1]):
        tc.matmul(A, B, out)
        reference.assert_close(out, reference.matmul(A, B), BF16)


def test_planes_of_negative_strides_are_right():
    a, out = normal(3, 64, 64)[::-1], np.zeros((3, 64, 64), BF16)[::-1]
    tc.matmul(a, B, out)
    for plane in range(3):
        reference.assert_close(out[plane], reference.matmul(a[plane], B), BF16)


# ---- memory that meets the output's

def square(x: np.ndarray) -> np.ndarray:
    return x.reshape(64, 64)


WIDE = np.zeros(3 * 64 * 64, BF16)
FLOATS = np.zeros((64, 64), np.float32)
MEETS: dict[str, tuple[Callable[[], Any], str]] = {
    "half of a": (lambda: tc.matmul(square(WIDE[:4096]), B, square(WIDE[2048:6144])), "A"),
    "planes of a": (lambda: (lambda x: tc.matmul(x[:2], B, x[1:]))(WIDE.reshape(3, 64, 64)), "A"),
    "b": (lambda: (lambda x: tc.matmul(A, x, x.T))(B.copy()), "B"),
    "a bias": (lambda: (lambda x: tc.matmul(A, B, x, epilogue=(E.bias, x[3])))(A.copy()),
               "values of bias"),
    "a residual": (lambda: (lambda x: tc.matmul(A, B, x, epilogue=(E.residual, x.T)))(A.copy()),
                   "addend of residual"),
    "scales": (lambda: tc.matmul(A, B, FLOATS, scale_b=FLOATS[5]), "factors of col_scale"),
    "alpha": (lambda: tc.matmul(A, B, FLOATS, alpha=FLOATS[:1, 0]), "factor of scale"),
    "a second b": (lambda: (lambda x: tc.matmul(A, B, x, second=x, epilogue=E.swiglu))(A.copy()),
                   "second"),
    "groups": (lambda: (lambda x: tc.grouped_matmul(x, EXPERTS, x, ends=ENDS))(A.copy()), "A"),
    "a bias of groups": (
        lambda: (lambda x: tc.grouped_matmul(A, EXPERTS, x, ends=ENDS, epilogue=(E.bias, x[:3])))(
            A.copy()), "values of bias"),
}  # fmt: skip


@pytest.mark.parametrize("name", MEETS)
def test_memory_of_out_is_no_argument_s(name: str):
    call, whose = MEETS[name]
    fails(
        call,
        LayoutError,
        "matmul: C is written and must share no memory with other arguments, got memory of "
        f"{whose}",
        at="tc.",
        hint="write to a new array",
    )


def test_columns_between_those_of_out_are_read():
    both = normal(64, 128)
    before = both.copy()
    tc.matmul(both[:, ::2], B, both[:, 1::2])
    reference.assert_close(
        np.ascontiguousarray(both[:, 1::2]), reference.matmul(before[:, ::2], B), BF16
    )
    np.testing.assert_array_equal(both[:, ::2], before[:, ::2])


# ---- scales, factors, groups

FP8 = normal(64, 256, dtype=E4M3), normal(256, 256, dtype=E4M3)


@pytest.mark.parametrize(
    ("a", "b"),
    [((64, 3), (2, 2)), ((2, 64), (2, 2)), ((64, 2), (2, 3)), ((64, 2), (256,))],
    ids=str,
)
def test_scales_of_blocks_fit_both_operands(a: tuple[int, ...], b: tuple[int, ...]):
    scales = (np.ones(a, np.float32), np.ones(b, np.float32))
    fails(
        lambda: tc.matmul(*FP8, scale_a=scales[0], scale_b=scales[1]),
        LayoutError,
        "matmul: scales of blocks of 128 are (64, 2) of a and (2, 2) of b, got shapes "
        f"{a} and {b}",
        at="tc.matmul(",
    )


@pytest.mark.parametrize("shape", [(64, 64), (1, 64), (63,), (2, 64), (64, 1, 1)], ids=str)
def test_scales_of_rows_are_one_a_row(shape: tuple[int, ...]):
    fails(
        lambda: tc.matmul(A, B, scale_a=np.ones(shape, np.float32)),
        LayoutError,
        "matmul: scale_a has one element, or one a row of a, (64,), or both are of blocks, got "
        f"shape {shape}",
        at="tc.matmul(",
    )


@pytest.mark.parametrize("name", ["alpha", "beta", "scale_a", "scale_b"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [("x", "'x' (str)"), (1j, "1j (complex)"), ([1.0] * 64, f"[{'1.0, ' * 6}...] (list)")],
    ids=["text", "complex", "list"],
)  # fmt: skip
def test_factors_are_numbers_or_arrays(name: str, value: Any, shown: str):
    fails(
        lambda: tc.matmul(A, B, A.copy(), **{name: value}),
        DTypeError,
        f"matmul: {name} is a number or an f32 array, got {shown}",
        at="tc.matmul(",
        hint="numpy.asarray(x) or torch.as_tensor(x) makes one",
    )


def test_factors_are_no_f64_arrays():
    fails(
        lambda: tc.matmul(A, B, scale_a=np.ones(64)),
        DTypeError,
        "matmul: scale_a is a number or an f32 array, got one of float64",
        at="tc.matmul(",
    )


@pytest.mark.parametrize(
    ("name", "shown"), [("alpha", "factor of scale"), ("beta", "beta of add_out")], ids=str
)
def test_factors_fit_f32(name: str, shown: str):
    fails(
        lambda: tc.matmul(A, B, np.zeros_like(A), **{name: 1e300}),
        DTypeError,
        f"launch: {shown} must fit f32, got 1e+300 (float)",
        at="tc.matmul(",
    )


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        ({"second": True}, "come with 1 arguments behind C here, got 0"),
        ({"groups": True}, "come with 2 arguments behind C here, got 0"),
        ({"block_scales": True}, "come with 2 arguments behind C here, got 0"),
        ({"epilogue": "gelu"}, "matmul: the kernel's epilogue is a tuple of steps, got epilogue="),
        ({"tile_m": None}, "matmul: tile_m is a multiple of 64, got tile_m=None"),
        ({"cache": None}, "matmul: cache has a priority of A, B and C each, got cache=None"),
    ],
    ids=str,
)
def test_the_kernel_itself_says_what_it_takes(params: dict[str, Any], shown: str):
    with pytest.raises(LayoutError) as found:
        kernel(A, B, np.zeros_like(A), **params)
    assert shown in found.value.message


def test_there_is_a_group_at_least():
    fails(
        lambda: tc.grouped_matmul(A[:0], EXPERTS[:0], ends=ENDS[:0]),
        LayoutError,
        "grouped_matmul: b has a group at least, got shape (0, 64, 64)",
        at="tc.grouped_matmul(",
    )


@pytest.mark.parametrize("groups", [2, 4])
def test_tensors_of_groups_have_as_many_as_there_are(groups: int):
    fails(
        lambda: tc.grouped_matmul(
            A, EXPERTS, ends=ENDS, epilogue=(E.bias, np.ones((groups, 64), np.float32))
        ),
        LayoutError,
        f"matmul: axis 0 of values of bias is as long as axis 0 of B, or 1, got {groups} and 3",
        at="tc.grouped_matmul(",
    )


@pytest.mark.parametrize("rows", [[-1, 20, 64], [10, 20, 63], [10, 20, 65], [20, 10, 64]], ids=str)
def test_ends_add_up(rows: list[int]):
    fails(
        lambda: tc.grouped_matmul(A, EXPERTS, ends=np.array(rows, np.int32)),
        LayoutError,
        f"grouped_matmul: ends ascend from 0 to the rows of a, 64, got {rows}",
        at="tc.grouped_matmul(",
    )


@pytest.mark.parametrize("rows", [[-1, 20, 64], [10, 65, 3]], ids=str)
def test_counts_are_of_the_rows(rows: list[int]):
    fails(
        lambda: tc.grouped_matmul(EXPERTS, EXPERTS.copy(), counts=np.array(rows, np.int32)),
        LayoutError,
        f"grouped_matmul: counts are 0 to the rows of a group, 64, got {rows}",
        at="tc.grouped_matmul(",
    )
