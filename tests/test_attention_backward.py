"""Gradients of attention against float64, on the PTX machine."""

from __future__ import annotations

import numpy as np
import pytest
from gradients import gradients
from reference import assert_close

import tilecat as tc
from tilecat import attention_backward_call, bf16, f16


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What the call allocates is NaN until it is written."""
    allocate = attention_backward_call.empty

    def empty(*args):
        made = allocate(*args)
        made.fill(np.nan)
        return made

    monkeypatch.setattr(attention_backward_call, "empty", empty)


def check(size, dim, dtype=bf16, seed=0, scale=None, dim_v=None, **options):
    """B, H, Hkv, Lq, Lk."""
    batch, heads, groups, queries, keys = size
    rng = np.random.default_rng(seed)
    dim_v = dim_v or dim

    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype.numpy)

    q, dout = normal(batch, heads, queries, dim), normal(batch, heads, queries, dim_v)
    k, v = normal(batch, groups, keys, dim), normal(batch, groups, keys, dim_v)
    exact = gradients(q, k, v, dout, scale)
    found = tc.attention_backward(
        dout, q, k, v, exact.out.astype(dtype.numpy), exact.lse.astype(np.float32), scale=scale,
        **options,
    )  # fmt: skip
    for got, wanted in zip(found, (exact.dq, exact.dk, exact.dv), strict=True):
        assert_close(got, wanted, dtype.numpy)


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("size", [(1, 1, 1, 64, 128), (2, 2, 1, 100, 200), (1, 3, 3, 1, 130),
                                  (1, 4, 2, 130, 1)], ids=str)  # fmt: skip
def test_gradients_of_attention(size, dtype):
    check(size, 128, dtype, seed=sum(size))


def test_gradients_with_a_scale():
    check((1, 1, 1, 70, 140), 128, scale=0.3)


@pytest.mark.parametrize("size", [(1, 2, 2, 0, 8), (1, 2, 1, 8, 0), (0, 2, 2, 8, 8)], ids=str)
def test_gradients_of_nothing_are_zero(size):
    batch, heads, groups, queries, keys = size
    q, k = np.ones((batch, heads, queries, 128), bf16.numpy), np.ones((batch, groups, keys, 128))
    k = k.astype(bf16.numpy)
    lse = np.full(q.shape[:3], -np.inf, np.float32)
    for got, like in zip(tc.attention_backward(q, q, k, k, q, lse), (q, k, k), strict=True):
        assert got.shape == like.shape and (got == 0).all()


def test_large_scores_of_a_ragged_block_stay_finite():
    """Keys beyond the last have scores of 0: exp(0 - lse) is not to be multiplied by."""
    q = np.full((1, 1, 3, 128), -10, bf16.numpy)
    k = np.full((1, 1, 5, 128), 10, bf16.numpy)
    exact = gradients(q, k, k, q)
    lse, out = exact.lse.astype(np.float32), exact.out.astype(bf16.numpy)
    assert lse.max() < -1000
    found = tc.attention_backward(q, q, k, k, out, lse)
    for got, wanted in zip(found, (exact.dq, exact.dk, exact.dv), strict=True):
        assert_close(got, wanted, bf16.numpy)
