"""Bad input, each with an error of its own before anything runs; what is odd but legal works.

Here stand calls with wrong arrays and parameters, and what a kernel's parameters ask of the
hardware. Elsewhere: what a kernel's body may not do (tests/language, tests/pipeline, tests/check),
and the surroundings, in tests/runtime; ELSEWHERE names the tests.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import reference
from failures import fails

import tilecat as tc
from tilecat import bf16, f32, gl, rt, s32, u32
from tilecat.arch import ARCHS
from tilecat.errors import ArchError, DTypeError, LayoutError, ResourceError, ScopeError
from tilecat.kernels.attention import attention as attention_kernel
from tilecat.kernels.gemm import matmul
from tilecat.runtime.arrays import ArrayView

# What the surroundings do wrong -> the test in tests/runtime that holds what happens.
ELSEWHERE = {
    "unwritable cache folder": "test_assemble_goes_on_without_a_cache_and_warns_once",
    "corrupted cache entry": "test_assemble_replaces_a_damaged_entry",
    "two processes at once": "test_two_processes_assemble_once",
    "CUDA without a driver": "test_no_driver_is_an_error_that_says_so",
    "no ptxas": "test_missing_wheel_says_what_to_install_and_what_works",
    "spills": "test_assemble_rejects_spills",
    "object that is no array": "test_view_refuses_what_is_no_array",
    "other element types": "test_view_refuses_other_element_types",
}

BF16 = ml_dtypes.bfloat16


def normal(*shape: int, dtype=BF16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


A, B, C = normal(64, 64), normal(64, 64, seed=1), np.zeros((64, 64), BF16)
Q = normal(1, 2, 64, 64)


def test_surroundings_are_tested_elsewhere():
    folder = Path(__file__).parent / "runtime"
    text = "".join(path.read_text(encoding="utf-8") for path in folder.glob("test_*.py"))
    missing = [what for what, test in ELSEWHERE.items() if f"def {test}(" not in text]
    assert not missing


# ---- shapes, dtypes, devices


def test_matmul_rejects_a_k_mismatch():
    fails(
        lambda: tc.matmul(A, normal(32, 64)),
        LayoutError,
        "matmul: extent K must agree, got a with K=64 and b with K=32 "
        "(shapes (64, 64) and (32, 64))",
        at="tc.matmul(",
        hint="a is [..., M, K] and b is [..., K, N]",
    )


def test_matmul_rejects_a_dtype_it_does_not_multiply():
    fails(
        lambda: tc.matmul(np.ones((64, 64), np.int32), B),
        DTypeError,
        "matmul: multiplies bf16, f16, f32, e4m3, e5m2, s8, got a=s32",
        at="tc.matmul(",
        hint="convert a and b",
    )


def test_matmul_rejects_two_dtypes():
    fails(
        lambda: tc.matmul(A, normal(64, 64, dtype=np.float16)),
        DTypeError,
        "matmul: a and b have one dtype (e4m3 and e5m2 mix), got a=bf16 and b=f16",
        at="tc.matmul(",
    )


def test_matmul_rejects_an_array_of_one_axis():
    fails(
        lambda: tc.matmul(A[0], B),
        LayoutError,
        "matmul: a has at least 2 axes, got shape (64,)",
        at="tc.matmul(",
    )


def test_matmul_rejects_an_output_of_another_shape():
    fails(
        lambda: tc.matmul(A, B, out=normal(64, 32)),
        LayoutError,
        "matmul: out has the shape (64, 64) for these operands, got (64, 32)",
        at="tc.matmul(",
    )


def test_kernel_rejects_a_cpu_array_beside_a_cuda_one():
    on_gpu = ArrayView("cuda:0", 1 << 40, (64, 64), (64, 1), "bf16", False, None)
    fails(
        lambda: matmul(A, on_gpu, C),
        ResourceError,
        "matmul: all arrays are on one device, got A on cpu, B on cuda:0, C on cpu",
        at="matmul(A, on_gpu",
        hint="move them with .to(device)",
    )


def test_attention_rejects_a_head_dim_and_names_those_it_has():
    q = normal(1, 1, 16, 264)
    fails(
        lambda: tc.attention(q, q, q),
        LayoutError,
        "attention: the head dim is 1 to 256, computed in tiles of 32, 64, 96, 128, 192, 256 "
        "columns, got q with 264",
        at="tc.attention(",
    )


def test_attention_rejects_heads_that_do_not_group():
    fails(
        lambda: tc.attention(normal(1, 3, 16, 64), Q, Q),
        LayoutError,
        "attention: the heads of k and v divide those of q, got 3 and 2",
        at="tc.attention(",
    )


def test_attention_rejects_keys_and_values_of_two_lengths():
    error = fails(
        lambda: tc.attention(Q, Q, normal(1, 2, 32, 64)),
        LayoutError,
        "attention: extent Lk must agree, got k with Lk=64 and v with Lk=32 (shapes "
        "q (1, 2, 64, 64), k (1, 2, 64, 64), v (1, 2, 32, 64))",
        at="tc.attention(",
        hint="q is B x H x Lq x D, k is B x Hkv x Lk x D, v is B x Hkv x Lk x Dv",
    )
    assert "test_bad_input.py" in str(error.loc)


@pytest.mark.parametrize("scale", [-1.0, 0.0, 0, float("nan"), float("inf"), "x", True])
def test_attention_rejects_a_scale_that_is_not_positive(scale):
    fails(
        lambda: tc.attention(Q, Q, Q, scale=scale),
        LayoutError,
        f"attention: the scale of the scores is positive and finite, got scale={scale!r}",
        at="tc.attention(",
        hint="for a negative scale, negate q; for zero, every output is the mean of v",
    )


# ---- memory of outputs


def test_output_must_be_writable():
    out = np.zeros((64, 64), BF16)
    out.flags.writeable = False
    fails(
        lambda: tc.matmul(A, B, out=out),
        LayoutError,
        "matmul: C is written, got a read-only array",
        at="tc.matmul(",
        hint="write to a new array, or to a copy",
    )


def test_output_must_share_no_memory_with_an_input():
    a = A.copy()
    fails(
        lambda: tc.matmul(a, B, out=a),
        LayoutError,
        "matmul: C is written and must share no memory with other arguments, got memory of A",
        at="tc.matmul(",
        hint="write to a new array",
    )


@pytest.mark.parametrize(
    ("strides", "shown"), [((0, 2), "(0, 1)"), ((2, 2), "(1, 1)"), ((64, 2), "(32, 1)")]
)
def test_output_must_not_meet_itself(strides: tuple[int, int], shown: str):
    out = np.lib.stride_tricks.as_strided(np.zeros(64 * 65, BF16), (64, 64), strides)
    fails(
        lambda: tc.matmul(A, B, out=out),
        LayoutError,
        "matmul: C is written, and its elements must lie apart, "
        f"got shape=(64, 64), strides={shown} (elements)",
        at="tc.matmul(",
        hint="write to a new array",
    )


def test_halves_of_one_array_are_apart():
    both = np.concatenate([A, np.zeros((64, 64), BF16)])
    tc.matmul(both[:64], B, out=both[64:])
    reference.assert_close(both[64:], reference.matmul(A, B), BF16)


# ---- odd strides take the slow copy


@pytest.mark.parametrize("name", ["odd rows", "last axis", "address", "reversed", "column odd"])
def test_strides_that_tma_cannot_take_are_right(name: str):
    views = {
        "odd rows": lambda x: np.pad(x, ((0, 0), (0, 3)))[:, :-3],
        "last axis": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        "address": lambda x: np.pad(x, ((0, 0), (1, 7)))[:, 1:-7],
        "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
        "column odd": lambda x: np.pad(x.T, ((0, 0), (0, 3)))[:, :-3].T,
    }
    a, b = views[name](normal(70, 100)), views[name](normal(100, 72, seed=1))
    out = views[name](np.zeros((70, 72), BF16))
    tc.matmul(a, b, out=out)
    reference.assert_close(out, reference.matmul(a, b), BF16)


# ---- empty, NaN, infinite


@pytest.mark.parametrize(("m", "k", "n"), [(0, 64, 64), (64, 0, 64), (64, 64, 0), (0, 0, 0)])
def test_empty_products_are_right(m: int, k: int, n: int):
    out = tc.matmul(np.ones((m, k), BF16), np.ones((k, n), BF16))
    np.testing.assert_array_equal(out, np.zeros((m, n), BF16))


@pytest.mark.parametrize("shape", [(0, 2, 4, 4), (2, 0, 4, 4), (2, 2, 0, 4)])
def test_empty_attention_is_empty(shape: tuple[int, int, int, int]):
    b, h, lq, lk = shape
    out, lse = tc.attention(
        normal(b, h, lq, 64), normal(b, h, lk, 64), normal(b, h, lk, 64), return_lse=True
    )
    assert (out.shape, lse.shape) == ((b, h, lq, 64), (b, h, lq))


def test_attention_without_keys_is_zero():
    none = normal(1, 2, 0, 64)
    out, lse = tc.attention(Q, none, none, return_lse=True)
    assert not out.astype(np.float32).any()
    assert (lse == -np.inf).all()


def test_matmul_propagates_nan_and_infinity():
    a, b = A.copy(), B.copy()
    a[3, 5], a[9, 1], b[7, 9] = np.nan, -np.inf, np.inf
    with warnings.catch_warnings(action="ignore"):
        wanted = a.astype(np.float64) @ b.astype(np.float64)
    got = tc.matmul(a, b).astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    infinite = np.isinf(wanted)
    assert infinite.sum() > 60
    np.testing.assert_array_equal(got[infinite], wanted[infinite])


@pytest.mark.parametrize("at", ["q", "k", "v"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_attention_propagates_nan_and_infinity(at: str, value: float):
    arrays = {name: normal(1, 1, 64, 64, seed=n) for n, name in enumerate("qkv")}
    arrays[at][0, 0, 3, 5] = value
    with warnings.catch_warnings(action="ignore"):
        wanted, _ = reference.attention(*arrays.values())
    got = tc.attention(*arrays.values()).astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted.value))
    assert np.isnan(wanted.value).any() == (not (at == "v" and value == np.inf))


# ---- arguments and parameters of a call


def test_missing_argument_is_named():
    fails(
        lambda: matmul(A, B),
        LayoutError,
        "matmul: takes 3 arguments (A, B, C), got 2",
        at="matmul(A, B)",
        hint=matmul.signature.describe(),
    )


def test_missing_argument_beside_named_ones_is_named():
    error = fails(
        lambda: matmul(A, C=C),
        LayoutError,
        "matmul: missing argument B, got 1 by position and C",
        at="matmul(A, C=C)",
        hint=matmul.signature.describe(),
    )
    assert "B: gl[TB, ..., K, N]" in str(error)


def test_arguments_may_be_given_by_name():
    out = np.zeros((64, 64), BF16)
    matmul(A, C=out, B=B, tile_n=64)
    reference.assert_close(out, reference.matmul(A, B), BF16)


def test_unknown_parameter_is_refused():
    fails(
        lambda: matmul(A, B, C, tile_x=3),
        ScopeError,
        "matmul: unknown compile-time parameter, got tile_x=",
        at="matmul(A, B, C, tile_x",
        hint=f"matmul takes {', '.join(name for name, _ in matmul.signature.params)}",
    )


def test_missing_parameter_is_refused():
    fails(
        lambda: attention_kernel.compile(),
        ScopeError,
        "attention: missing compile-time parameter D",
        at="attention_kernel.compile()",
        hint=attention_kernel.signature.describe(),
    )


def test_parameters_that_hash_are_wanted():
    fails(
        lambda: matmul(A, B, C, tile_m=[64]),
        ScopeError,
        "matmul: a compile-time parameter is hashable, got tile_m=[64] (list)",
        at="matmul(A, B, C, tile_m",
        hint="a number, a string, a dtype or a tuple of them",
    )


def test_parameters_that_are_equal_but_of_two_types_are_not_mixed_up():
    matmul(A, B, C, tile_m=64, tile_n=64, stages=1)
    fails(
        lambda: matmul(A, B, C, tile_m=64, tile_n=64, stages=True),
        ResourceError,
        "lcf: stages is a compile-time int from 1 to 32, got stages=True",
        at="tc.lcf(",
    )


def test_numpy_parameters_are_python_numbers():
    out = np.zeros((64, 64), BF16)
    matmul(A, B, out, tile_m=np.int64(64), tile_n=np.int32(64))
    reference.assert_close(out, reference.matmul(A, B), BF16)


def test_unknown_target_is_refused():
    fails(
        lambda: matmul.compile(target="sm_80"),
        ArchError,
        f"target: tilecat compiles for {', '.join(a.target for a in ARCHS)}, got 'sm_80'",
        at="matmul.compile(",
    )


@tc.kernel
def scaled(X: gl[f32, "M", "N"], Z: gl[f32, "M", "N"], factor: f32, times: s32, offset: u32):
    with tc.warpgroup():
        x = tc.load(X[0, 0], rt[f32, 64, 16])
        for _ in tc.range(times):
            x *= factor
        tc.store(Z[0, 0], x + offset.to(f32))


X = normal(64, 16, dtype=np.float32)


@pytest.mark.parametrize(
    ("factor", "times", "offset"),
    [
        (2.0, 3, 1),
        (np.float32(2), np.int64(3), np.uint8(1)),
        (np.float64(2), np.int32(3), np.uint32(1)),
        (2, 3, 1),
        (BF16(2), 3, 1),
    ],
)
def test_scalars_may_be_numpys(factor, times, offset):
    out = np.zeros_like(X)
    scaled(X, out, factor, times, offset, grid=1)
    np.testing.assert_array_equal(out, X * 8 + 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((2.0, 3.0, 1), "scaled: times is an integer (s32), got 3.0 (float)"),
        ((2.0, True, 1), "scaled: times is an integer (s32), got True (bool)"),
        ((True, 3, 1), "scaled: factor is a number (f32), got True (bool)"),
        ((2.0, 2**31, 1), "scaled: times is an integer from -2147483648 to 2147483647, "
                          "got times=2147483648"),
    ],
)  # fmt: skip
def test_scalars_of_another_kind_are_refused(values, message: str):
    scaled(X, np.zeros_like(X), 1.0, 1, 1, grid=1)  # a call of this shape that passed before
    fails(lambda: scaled(X, np.zeros_like(X), *values), DTypeError, message, at="scaled(")


def test_array_is_no_scalar():
    fails(
        lambda: scaled(X, np.zeros_like(X), np.array(2.0, np.float32), 1, 1),
        DTypeError,
        "scaled: factor is a scalar (f32), got an array of shape ()",
        at="scaled(",
        hint="factor.item(), which waits for the device",
    )


def test_scalar_is_no_array():
    fails(
        lambda: scaled(2.0, np.zeros_like(X), 1.0, 1, 1),
        LayoutError,
        "scaled: X is a tensor gl[f32, M, N], got 2.0 (float)",
        at="scaled(",
    )


def test_array_without_axes_is_refused():
    fails(
        lambda: matmul(np.array(1, BF16), B, C),
        LayoutError,
        "matmul: A has 2 axes (M, K), got shape ()",
        at="matmul(",
    )


# ---- extents that the signature fixes


def test_extents_fixed_by_an_annotation_are_checked():
    @tc.kernel
    def fixed(X: gl[bf16, 64, "N"]):
        pass

    fails(
        lambda: fixed(normal(32, 64)),
        LayoutError,
        "fixed: X has shape (32, 64), wanted gl[bf16, 64, N]",
        at="fixed(",
    )


def test_dims_that_are_parameters_must_agree_with_them():
    error = fails(
        lambda: attention_kernel.compile(Q, Q, Q, Q, normal(1, 2, 64, dtype=np.float32), 1.0, D=32),
        LayoutError,
        "attention: parameter D=32 but the arrays have 64",
        at="attention_kernel.compile(",
        hint="D=64, or leave it out: the arrays say it",
    )
    assert error.kind == "Layout"


@pytest.mark.parametrize("grid", [0, -1, (1, 2), "x", 2.0])
def test_grid_is_a_number_of_ctas(grid):
    hint = "kernels have one line of CTAs, which share the tasks: grid=132"
    shown = f"grid is an int from 1 up, got grid={grid!r} ({type(grid).__name__})"
    fails(
        lambda: matmul(A, B, C.copy(), grid=grid),
        ResourceError,
        f"matmul: {shown}",
        at="matmul(A, B, C.copy()",
        hint=hint,
    )
    with pytest.raises(ResourceError, match="simulate: grid is an int from 1 up"):
        matmul.simulate(A, B, C.copy(), grid=grid)


@pytest.mark.parametrize("grid", [1, 2, 7, np.int64(3)])
def test_any_grid_is_right(grid):
    a, b, out = normal(200, 64), normal(64, 136, seed=1), np.zeros((200, 136), BF16)
    matmul(a, b, out, grid=grid, tile_m=64, tile_n=64, stages=2)
    reference.assert_close(out, reference.matmul(a, b), BF16)


def test_seed_is_a_number():
    with pytest.raises(ResourceError, match="simulate: seed is an int from 0 up, got seed='x'"):
        matmul.simulate(A, B, C.copy(), seed="x")


@pytest.mark.parametrize(
    "make",
    [
        lambda x: np.broadcast_to(x[:1], x.shape),
        np.asfortranarray,
        lambda x: np.ma.masked_array(x),
        lambda x: x[::-1],
    ],
    ids=["broadcast", "fortran", "masked array", "reversed"],
)
def test_inputs_of_other_kinds_are_right(make):
    a, b = make(normal(70, 64)), make(normal(64, 72, seed=1))
    out = tc.matmul(a, b)
    reference.assert_close(out, reference.matmul(np.asarray(a), np.asarray(b)), BF16)
