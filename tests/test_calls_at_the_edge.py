"""Calls at the edge of what numbers, arrays and threads can be: right, or an error of ours."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from failures import fails

import tilecat as tc
from tilecat import bf16, f32, gl, rt, rv, s32, st, u32
from tilecat.errors import DTypeError, LayoutError, MachineError, ResourceError, ScopeError
from tilecat.kernels.attention import attention as attention_kernel
from tilecat.kernels.gemm import matmul
from tilecat.runtime import cache

BF16 = ml_dtypes.bfloat16
A = np.ones((64, 64), BF16)
Q = np.ones((1, 1, 64, 64), BF16)


def repr_start(value: object) -> str:
    return repr(value)[:8]


def test_a_grid_in_brackets_is_refused():
    fails(
        lambda: matmul[(2, 1)](A, A, A),
        ScopeError,
        "matmul: the grid is an argument of the call, got matmul[(2, 1)]",
        at="matmul[(2, 1)]",
        hint="matmul(..., grid=2); without it as many CTAs as the device holds",
    )


# ---- numbers


def test_extents_beyond_s32_are_refused():
    tall = np.lib.stride_tricks.as_strided(np.ones(1, BF16), (2**31, 1), (0, 0))
    fails(
        lambda: matmul(tall, A[:1, :1], np.broadcast_to(A[:1, :1], (2**31, 1))),
        LayoutError,
        "matmul: an extent is at most 2147418112, got A with 2147483648",
        at="matmul(tall",
        hint="call the kernel on parts of the array",
    )


@pytest.mark.parametrize("scale", [1e39, -1e39, 10**400], ids=repr_start)
def test_scalars_beyond_f32_are_refused_as_on_a_gpu(scale):
    with pytest.raises(DTypeError, match="scale must fit f32"):
        attention_kernel(Q, Q, Q, np.empty_like(Q), np.empty((1, 1, 64), np.float32), scale)


@pytest.mark.parametrize("scale", [1e39, 1e-60, 10**400], ids=repr_start)
def test_attention_rejects_scales_that_are_zero_or_infinite_in_f32(scale):
    with pytest.raises(LayoutError, match="the scale of the scores is positive and finite"):
        tc.attention(Q, Q, Q, scale=scale)


def test_unsigned_arguments_are_not_negative():
    @tc.kernel
    def takes(n: u32):
        """Nothing."""

    fails(
        lambda: takes(-1),
        DTypeError,
        "takes: n is an integer from 0 to 4294967295, got n=-1",
        at="takes(-1)",
    )


def test_an_int_beyond_64_bits_is_refused_where_it_is_used():
    @tc.kernel
    def fills(Y: gl[f32, "M", "N"]):
        with tc.warpgroup():
            tc.store(Y[0, 0], tc.full(rt[f32, 64, 64], 10**400))

    fails(
        lambda: fills(np.empty((64, 64), np.float32)),
        DTypeError,
        "full: an integer has at most 64 bits, got 1329",
        at="tc.full(",
    )


@pytest.mark.parametrize("grid", [True, 0, 1.0])
def test_a_grid_is_a_positive_int(grid):
    with pytest.raises(ResourceError, match="grid is an int from 1 up"):
        matmul(A, A, np.empty_like(A), grid=grid)


def test_the_machine_refuses_a_grid_it_would_never_finish():
    with pytest.raises(MachineError, match="a grid has at most 1048576 CTAs"):
        matmul(A, A, np.empty_like(A), grid=10**9)


@pytest.mark.parametrize("cluster", [0, -2, "2", 2.0, True])
def test_grouped_rejects_what_is_no_cluster(cluster):
    with pytest.raises(LayoutError, match="grouped: cluster is a compile-time int from 1 up"):
        matmul.compile(cluster=cluster)


def test_dtype_by_name_says_it_is_a_string():
    with pytest.raises(DTypeError, match=r"TA cannot stand for 'f16', got dtype='f16' \(str\)"):
        matmul.compile(dtype="f16")


def test_cache_size_of_odd_digits_is_refused(monkeypatch):
    monkeypatch.setenv(cache.BYTES_VARIABLE, "\N{SUPERSCRIPT TWO}")
    with pytest.raises(ResourceError, match="must be a number of bytes"):
        cache.max_bytes()


# ---- attention without keys, and with keys of -inf


@pytest.mark.parametrize(
    "k, v, message",
    [
        ((1, 1, 0, 64), (1, 1, 5, 64), "extent Lk must agree"),
        ((1, 1, 0, 32), (1, 1, 0, 64), "extent D must agree"),
        ((2, 1, 0, 64), (2, 1, 0, 64), "extent B must agree"),
    ],
)
def test_attention_without_keys_checks_shapes(k, v, message):
    with pytest.raises(LayoutError, match=message):
        tc.attention(Q, np.empty(k, BF16), np.empty(v, BF16))


def test_attention_without_keys_checks_dtypes():
    none = np.empty((1, 1, 0, 64), np.float32)
    with pytest.raises(DTypeError, match="one dtype, bf16, f16 or e4m3, got q of f32"):
        tc.attention(Q.astype(np.float32), none, none)


@pytest.mark.parametrize("dim", [0, 257])
def test_attention_names_the_head_dims_it_has(dim):
    heads = np.ones((1, 1, 4, dim), BF16)
    with pytest.raises(LayoutError, match=f"head dim is 1 to 256, .* got q with {dim}"):
        tc.attention(heads, heads, heads)


@pytest.mark.parametrize("first, last", [(0, 128), (128, 300), (60, 300)])
def test_attention_with_scores_of_minus_infinity(first, last):
    """Keys first..last have the score -inf: the rest share the weight evenly."""
    rng = np.random.default_rng(0)
    q, k = np.zeros((2, 1, 1, 300, 64), np.float16)
    v = rng.standard_normal((1, 1, 300, 64)).astype(np.float16)
    q[..., 0] = 1
    k[0, 0, first:last, 0] = -np.inf
    out, lse = tc.attention(q, k, v, scale=1.0, return_lse=True)
    kept = np.delete(v[0, 0].astype(np.float64), np.s_[first:last], axis=0)
    np.testing.assert_allclose(out[0, 0], np.tile(kept.mean(0), (300, 1)), atol=2**-11)
    np.testing.assert_allclose(lse, np.log(len(kept)), rtol=1e-6)


# ---- kernels


def test_names_that_belong_to_the_call_are_refused():
    def takes(A: gl[bf16, "M"], *, grid=1):
        """Nothing."""

    fails(
        lambda: tc.kernel(takes),
        ScopeError,
        "kernel takes: grid= belongs to the call, and names no argument or parameter, got grid=1",
        at="def takes",
        hint="another name; these are taken: dtype, grid, progress, races, seed, stream, target",
    )


def test_holes_do_not_yield():
    @tc.kernel
    def yields(A: gl[bf16, "M", "K"]):
        pipe = tc.lcf(consumers=1, stages=2, tasks=tc.row_major(1, 1), steps=1)
        a = pipe.input(st[bf16, 64, 64])

        @pipe.load
        def _(task, k):
            yield tc.load_async(a, A[0, 0])

    fails(
        lambda: yields(A),
        ScopeError,
        "pipe.load: a hole is a plain function, without yield",
        at="@pipe.load",
    )


def test_a_vector_of_the_wrong_axis_names_the_right_one():
    @tc.kernel
    def adds(X: gl[f32, "N"], Y: gl[f32, "M", "N"]):
        with tc.warpgroup():
            tc.store(Y[0, 0], tc.zeros(rt[f32, 64, 128]) + tc.load(X[0], rv[f32, 128]))

    fails(
        lambda: adds(np.ones(128, np.float32), np.empty((64, 128), np.float32)),
        LayoutError,
        "add: a row vector has one value a row of the tile, got rv[f32, 128] with rt[f32, 64, 128]",
        at="tc.zeros(",
        hint="rv[f32, 128, col]",
    )


def test_threads_trace_one_kernel_at_a_time():
    @tc.kernel
    def adds(X: gl[f32, "M", "N"], Y: gl[f32, "M", "N"], n: s32, *, times):
        with tc.warpgroup():
            tile = tc.load(X[0, 0], rt[f32, 64, 64])
            for _ in tc.range(n):
                for _ in range(times):
                    tile += 1.0
            tc.store(Y[0, 0], tile)

    def run(times: int) -> bool:
        out = np.empty((64, 64), np.float32)
        adds(np.zeros_like(out), out, 3, grid=1, times=times % 8)
        return bool((out == 3 * (times % 8)).all())

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(run, range(32)))
    assert adds.compiles == 8
