"""`tc.gated_delta_rule_backward` against gradients in float64, token by token."""

from __future__ import annotations

import numpy as np
import pytest
from recurrences import assert_near, delta_gradients, poison_calls

import tilecat as tc
from tilecat import bf16, delta_rule_backward_call, f16
from tilecat.errors import DTypeError, LayoutError

# Roundings of 16-bit operands of two scans, one after the other, and of what passes between them.
# dg and what few tokens give dbeta are differences of sums that all but cancel: worse.
LIMIT, CANCELS = 8e-3, 5e-2


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What the call allocates is NaN until it is written."""
    poison_calls(monkeypatch, delta_rule_backward_call)


def arrays(batch, length, groups, heads, dims, dtype):
    """q, k, v, g, beta and the gradient of o; one token has beta 0."""
    rng, (dim, dim_v) = np.random.default_rng(0), dims
    q, k = (rng.standard_normal((batch, length, groups, dim)).astype(dtype.numpy) for _ in "qk")
    v, do = (rng.standard_normal((batch, length, heads, dim_v)).astype(dtype.numpy) for _ in "vo")
    g = (-0.1 * rng.random((batch, length, heads))).astype(np.float32)
    beta = rng.random((batch, length, heads)).astype(np.float32)
    beta[:, length // 2 : length // 2 + 1] = 0
    return q, k, v, g, beta, do


def check(
    batch, length, groups, heads, dims, *, gated=True, norm=True, states=True, starts=None,
    dtype=bf16, limit=LIMIT,
):  # fmt: skip
    """Every gradient of every sequence."""
    q, k, v, g, beta, do = arrays(batch, length, groups, heads, dims, dtype)
    if not norm:
        k = (k / np.linalg.norm(k.astype(np.float32), axis=-1, keepdims=True)).astype(k.dtype)
    count = batch if starts is None else len(starts) - 1
    rng = np.random.default_rng(1)
    first, d_last = (rng.standard_normal((count, heads, *dims)).astype(np.float32) for _ in "sd")
    given = (first, d_last) if states else (None, None)
    packed = None if starts is None else np.array(starts, np.int32)
    made = tc.gated_delta_rule_backward(do, q, k, v, g if gated else None, beta, 0.2, *given, norm,
                                        packed)  # fmt: skip
    places = [(i, 0, length) for i in range(batch)]
    if starts is not None:
        places = [(0, a, z) for a, z in zip(starts, starts[1:], strict=False)]
    for number, (i, a, z) in enumerate(places):
        part = (np.moveaxis(x[i, a:z], 1, 0) for x in (do, q, k, v, beta, g * gated))
        exact = delta_gradients(*part, first[number] * states, d_last[number] * states, 0.2, norm)
        for name, mine, wanted in zip(("q", "k", "v", "g", "b", "s"), made, exact, strict=True):
            assert (mine is None) == (name == "g" and not gated or name == "s" and not states)
            if mine is None:
                continue
            mine = mine[number] if name == "s" else np.moveaxis(mine[i, a:z], 1, 0)
            cancels = name == "g" or name == "b" and z - a < 64
            assert_near(mine, wanted, CANCELS if cancels else limit)


def test_packed_sequences():
    check(1, 100, 1, 2, (64, 64), starts=[0, 1, 1, 34, 100])


@pytest.mark.full
@pytest.mark.parametrize("length", [1, 15, 63, 64, 65, 127, 200])
def test_lengths(length):
    check(1, length, 1, 1, (64, 64), states=length != 65)


@pytest.mark.full
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    ("groups", "heads", "dims", "dtype"),
    [(1, 2, (128, 128), bf16), (2, 2, (20, 9), bf16), (2, 4, (64, 128), f16)],
)
def test_heads_and_widths(groups, heads, dims, dtype, norm, gated):
    limit = LIMIT if dtype is bf16 else LIMIT / 4
    check(2, 130, groups, heads, dims, dtype=dtype, norm=norm, gated=gated, limit=limit)


def test_nothing_to_do_gives_the_states_gradient():
    q, k, v, g, beta, do = arrays(1, 0, 1, 2, (64, 64), bf16)
    state = np.ones((1, 2, 64, 64), np.float32)
    made = tc.gated_delta_rule_backward(do, q, k, v, g, beta, None, state, 2 * state)
    assert made[0].shape == q.shape and made[3].shape == g.shape and (made[5] == 2).all()


def test_refuses():
    q, k, v, g, beta, do = arrays(1, 9, 1, 2, (64, 64), bf16)
    back, state = tc.gated_delta_rule_backward, np.zeros((1, 2, 64, 9), np.float32)
    for kind, message, call in (
        (LayoutError, "do has the shape of v", lambda: back(do[:, :5], q, k, v, g, beta)),
        (DTypeError, "do is bf16", lambda: back(do.astype(np.float32), q, k, v, g, beta)),
        (LayoutError, "d_final_state has the shape sequences x H x K x V",
         lambda: back(do, q, k, v, g, beta, d_final_state=state)),
        (LayoutError, "gradients are those of a scale other than 0",
         lambda: back(do, q, k, v, g, beta, scale=0.0)),
        (LayoutError, "gated_delta_rule_backward: beta has the shape B x T x H",
         lambda: back(do, q, k, v, g, beta[:, :5])),
    ):  # fmt: skip
        error = pytest.raises(kind, call).value
        assert message in error.message, error.message
