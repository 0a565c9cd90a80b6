"""Calls of linear recurrences: numbers, gradients, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from recurrences import assert_near, assert_refused, gated, gradients, mamba, poison_calls

import tilecat as tc
from tilecat import (
    bf16,
    linear_attention_backward_call,
    linear_attention_call,
    scan_call,
    scan_segments,
)
from tilecat.errors import DTypeError, LayoutError

LIMIT, STATE_LIMIT = 3.6e-3, 2.5e-3  # see test_linear_attention
GATES = 5e-3  # of gradients of gates: their errors do not grow with the length


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What calls allocate is NaN until it is written."""
    poison_calls(
        monkeypatch, linear_attention_call, linear_attention_backward_call, scan_call, scan_segments
    )


def normal(rng, *shape, dtype=bf16.numpy):
    return rng.standard_normal(shape).astype(dtype)


def heads_first(x):
    return x.swapaxes(1, 2)


def inputs(batch=2, length=70, heads=3, dim=64, dim_v=64, seed=0):
    rng = np.random.default_rng(seed)
    q, k = (normal(rng, batch, length, heads, dim) for _ in range(2))
    v, g = normal(rng, batch, length, heads, dim_v), -0.2 * rng.random((batch, length, heads))
    state = normal(rng, batch, heads, dim, dim_v, dtype=np.float32)
    return q, k, v, g.astype(np.float32), state


def test_simple_gla():
    q, k, v, g, state = inputs()
    gamma = np.linspace(-0.5, 0, 3, dtype=np.float32)
    out, last = tc.simple_gla(q, k, v, g, gamma, initial_state=state, output_final_state=True)
    assert out.shape == v.shape and out.dtype == v.dtype and last.dtype == np.float32
    for b in range(2):
        turned = (heads_first(x)[b] for x in (q, k, v, g + gamma))
        exact = gated(*turned, state[b], 64**-0.5)
        assert_near(heads_first(out)[b], exact[0], LIMIT)
        assert_near(last[b], exact[1], STATE_LIMIT)


@pytest.mark.parametrize(("dim", "dim_v"), [(64, 128), (50, 30)])
def test_linear_attention(dim, dim_v):
    q, k, v, _, _ = inputs(1, 130, 2, dim, dim_v)
    out, last = tc.linear_attention(q, k, v, 0.3)
    assert last is None
    exact, _ = gated(*(heads_first(x)[0] for x in (q, k, v)), scale=0.3)
    assert_near(heads_first(out)[0], exact, LIMIT)


def test_lightning_attention():
    q, k, v, _, _ = inputs(1, 70, 4)
    out, _ = tc.lightning_attn(q, k, v, layer_idx=2, num_layers=8)
    decays = -2 * 0.75 * np.arange(4)[:, None]
    exact, _ = gated(*(heads_first(x)[0] for x in (q, k, v)), decays, scale=64**-0.5)
    assert_near(heads_first(out)[0], exact, LIMIT)


def test_packed_sequences_of_a_call():
    q, k, v, g, _ = inputs(1, 135, 2)
    starts = np.array([0, 70, 70, 135], np.int32)
    state = normal(np.random.default_rng(1), 3, 2, 64, 64, dtype=np.float32)
    out, last = tc.simple_gla(
        q, k, v, g, initial_state=state, output_final_state=True, cu_seqlens=starts
    )
    for i, (a, b) in enumerate(zip(starts, starts[1:], strict=False)):
        turned = (heads_first(x)[0, :, a:b] for x in (q, k, v, g))
        exact = gated(*turned, state[i], 64**-0.5)
        assert_near(heads_first(out)[0, :, a:b], exact[0], LIMIT)
        assert_near(last[i], exact[1], STATE_LIMIT)


def test_a_call_may_be_cut_anywhere():
    q, k, v, g, state = inputs(1, 100, 1)
    whole, last = tc.simple_gla(q, k, v, g, initial_state=state, output_final_state=True)
    for cut in (1, 64, 77):
        first = [x[:, :cut] for x in (q, k, v, g)]
        rest = [x[:, cut:] for x in (q, k, v, g)]
        one, middle = tc.simple_gla(*first, initial_state=state, output_final_state=True)
        two, end = tc.simple_gla(*rest, initial_state=middle, output_final_state=True)
        assert_near(np.concatenate([one, two], 1), whole.astype(float), LIMIT)
        assert_near(end, last, STATE_LIMIT)


def test_nothing_to_compute():
    q, k, v, _, state = inputs()
    out, last = tc.simple_gla(
        q[:, :0], k[:, :0], v[:, :0], initial_state=state, output_final_state=True
    )
    assert out.shape == (2, 0, 3, 64)
    np.testing.assert_array_equal(last, state)


@pytest.mark.parametrize(
    ("lengths", "dims", "gates"),
    [((70,), (64, 64), True), ((100,), (64, 128), False), ((513, 0, 30), (32, 64), True),
     pytest.param((520,), (64, 160), True, marks=pytest.mark.full)],
)
def test_gradients(lengths, dims, gates):
    q, k, v, g, _ = inputs(1, sum(lengths), 2, *dims)
    rng, g = np.random.default_rng(2), g if gates else None
    do = normal(rng, *v.shape)
    state, d_last = (
        normal(rng, len(lengths), 2, *dims, dtype=np.float32) for _ in range(2)
    )
    starts = np.cumsum([0, *lengths]).astype(np.int32) if len(lengths) > 1 else None
    made = tc.simple_gla_backward(
        do, q, k, v, g, scale=0.3, initial_state=state, d_final_state=d_last, cu_seqlens=starts
    )
    assert (made[3] is None) == (g is None)
    where = np.cumsum([0, *lengths])
    for i, (a, b) in enumerate(zip(where, where[1:], strict=False)):
        decays = np.zeros(q.shape[:3]) if g is None else g
        turned = [heads_first(x)[0, :, a:b] for x in (do, q, k, v, decays)]
        exact = gradients(*turned, state[i], d_last[i], 0.3)
        for got, wanted in zip(made[:3], exact, strict=False):
            assert_near(heads_first(got)[0, :, a:b], wanted, LIMIT)
        if g is not None:
            assert_near(heads_first(made[3])[0, :, a:b], exact[3], GATES)
        assert_near(made[5][i], exact[4], STATE_LIMIT)


def test_gradients_of_gates_do_not_lose_accuracy_along_a_sequence():
    q, k, v, g, _ = inputs(1, 1100, 1, 32, 32)
    do = normal(np.random.default_rng(2), *v.shape)
    gamma = np.full(1, -0.02, np.float32)
    made = tc.simple_gla_backward(do, q, k, v, 0.1 * g, gamma, wants_d_gamma=True)
    turned = [heads_first(x)[0] for x in (do, q, k, v, 0.1 * g + gamma)]
    zero = np.zeros((1, 32, 32))
    exact = gradients(*turned, zero, zero, 32**-0.5)[3]
    assert_near(heads_first(made[3])[0], exact, GATES)  # by one sum over all tokens 1.2e-2
    alike = np.sqrt(512)  # errors of a block's tokens
    assert abs(made[4] - exact.sum()) <= alike * GATES * np.linalg.norm(exact)


def test_gradients_of_decays_of_heads():
    q, k, v, g, state = inputs(2, 70, 2, 32, 32)
    do, gamma = normal(np.random.default_rng(2), *v.shape), np.array([-0.5, 0], np.float32)
    made = tc.simple_gla_backward(
        do, q, k, v, None, gamma, 0.3, initial_state=state, d_final_state=state, wants_d_gamma=True
    )
    assert made[3] is None
    exact = 0.0
    for b in range(2):
        turned = [heads_first(x)[b] for x in (do, q, k, v)]
        decays = np.broadcast_to(gamma[:, None], g.shape[:0:-1])
        exact = exact + gradients(*turned, decays, state[b], state[b], 0.3)[3].sum(-1)
    np.testing.assert_allclose(made[4], exact, atol=GATES * np.abs(exact).max())


def mamba_inputs(batch=1, length=100, heads=4, groups=2, dim=64, size=64):
    rng = np.random.default_rng(0)
    x, z = (normal(rng, batch, length, heads, dim) for _ in range(2))
    b, c = (normal(rng, batch, length, groups, size) for _ in range(2))
    dt = normal(rng, batch, length, heads, dtype=np.float32) - 2
    a = -np.exp(normal(rng, heads, dtype=np.float32))
    return x, dt, a, b, c, z


def softplus(x):
    return np.logaddexp(0, x.astype(np.float64))


@pytest.mark.parametrize("size", [64, 128, pytest.param(16, marks=pytest.mark.full)])
def test_mamba(size):
    x, dt, a, b, c, z = mamba_inputs(size=size)
    rng = np.random.default_rng(1)
    bias, skip = normal(rng, 4, dtype=np.float32), normal(rng, 4, dtype=np.float32)
    state = normal(rng, 1, 4, 64, size, dtype=np.float32)
    seq_idx = np.sort(rng.integers(0, 4, (1, 100)), 1).astype(np.int32)
    out, last = tc.ssd(
        x, dt, a, b, c, D=skip, z=z, dt_bias=bias, initial_states=state, seq_idx=seq_idx,
        dt_softplus=True, dt_limit=(0.01, 1.0), return_final_states=True,
    )  # fmt: skip
    steps = np.clip(softplus(dt + bias), 0.01, 1.0)
    turned = [heads_first(y)[0] for y in (x, steps)]
    y, h = mamba(*turned, a, heads_first(b)[0], heads_first(c)[0], state[0], seq_idx[0])
    gate = z.astype(float)
    exact = (heads_first(y[None]) + skip[:, None] * x.astype(float)) * gate / (1 + np.exp(-gate))
    assert_near(out, exact, LIMIT)
    assert_near(last[0], h, STATE_LIMIT)


def test_mamba_of_packed_sequences_with_one_group():
    x, dt, a, b, c, _ = mamba_inputs(length=101, groups=1)
    starts = np.array([0, 65, 65, 101], np.int32)
    skip = normal(np.random.default_rng(1), 4, 64, dtype=np.float32)
    out, last = tc.ssd(
        x, dt.astype(bf16.numpy), a, b, c, D=skip, cu_seqlens=starts, dt_softplus=True,
        return_final_states=True,
    )  # fmt: skip
    steps = softplus(dt.astype(bf16.numpy))
    for i, (first, end) in enumerate(zip(starts, starts[1:], strict=False)):
        cut = [heads_first(y)[0, :, first:end] for y in (x, steps, b, c)]
        y, h = mamba(*cut[:2], a, *cut[2:], np.zeros((4, 64, 64)))
        exact = heads_first(y[None])[0] + skip * x[0, first:end].astype(float)
        assert_near(out[0, first:end], exact, LIMIT)
        assert_near(last[i], h, STATE_LIMIT)


def test_steps_of_zero_take_nothing_in():
    x, dt, a, b, c, _ = mamba_inputs()
    dt[:] = 0
    out, last = tc.ssd(x, dt, a, b, c, return_final_states=True)
    assert not out.any() and not last.any()


def test_tokens_one_by_one():
    q, k, v, g, state = inputs(2, 3, 4, 100, 80)
    gamma = np.linspace(-0.5, 0, 4, dtype=np.float32)
    exact = [gated(*(heads_first(x)[b] for x in (q, k, v, g + gamma)), state[b], 0.1)
             for b in range(2)]  # fmt: skip
    for t in range(3):
        out = tc.simple_gla_step(q[:, t], k[:, t], v[:, t], state, g[:, t], gamma, scale=0.1)
        assert_near(out, np.stack([o[:, t] for o, _ in exact]), 2.0**-8)
    np.testing.assert_allclose(state, np.stack([s for _, s in exact]), atol=1e-4)


def test_tokens_of_mamba_one_by_one():
    x, dt, a, b, c, z = mamba_inputs(length=3, size=100)
    rng = np.random.default_rng(1)
    bias, skip = normal(rng, 4, dtype=np.float32), normal(rng, 4, dtype=np.float32)
    state = normal(rng, 1, 4, 64, 100, dtype=np.float32)
    turned = (heads_first(y)[0] for y in (x, softplus(dt + bias), b, c))
    one, steps, *rest = turned
    y, h = mamba(one, steps, a, *rest, state[0])
    gate = z.astype(float)
    exact = (heads_first(y[None]) + skip[:, None] * x.astype(float)) * gate / (1 + np.exp(-gate))
    for t in range(3):
        out = tc.ssd_step(x[:, t], dt[:, t], a, b[:, t], c[:, t], state, skip, z[:, t], bias, True)
        assert_near(out, exact[:, t], 2.0**-8)
    np.testing.assert_allclose(state[0], h, atol=1e-4)


Q, K, V, G, STATE = inputs()
X, DT, A, B, C, Z = mamba_inputs()
REFUSED = {
    "gates with heads before tokens": (
        lambda: tc.simple_gla(Q, K, V, heads_first(G)), LayoutError,
        "simple_gla: g has the shape B x T x H = (2, 70, 3) here, got (2, 3, 70)",
    ),
    "gates of bf16": (
        lambda: tc.simple_gla(Q, K, V, G.astype(bf16.numpy)), DTypeError,
        "simple_gla: g is f32, got bf16",
    ),
    "another length": (
        lambda: tc.linear_attention(Q, K[:, :50], V), LayoutError,
        "linear_attention: k has the shape of q = (2, 70, 3, 64) here, got (2, 50, 3, 64)",
    ),
    "f32": (
        lambda: tc.linear_attention(Q.astype(np.float32), K, V), DTypeError,
        "linear_attention: q is bf16 or f16, got f32",
    ),
    "two dtypes": (
        lambda: tc.linear_attention(Q, K, V.astype(np.float16)), DTypeError,
        "linear_attention: v is bf16, got f16",
    ),
    "three axes": (
        lambda: tc.linear_attention(Q[0], K[0], V[0]), LayoutError,
        "linear_attention: q is batch x length x heads x dim, got the shape (70, 3, 64)",
    ),
    "a wide head": (
        lambda: tc.linear_attention(*[np.zeros((1, 8, 1, 300), bf16.numpy)] * 3), LayoutError,
        "linear_attention: K, of q and k, is 1 to 256, computed in tiles of 32, 64, 96, 128, 192, "
        "256 columns, got 300",
    ),
    "a state transposed": (
        lambda: tc.linear_attention(Q, K, V, initial_state=STATE[:1]), LayoutError,
        "linear_attention: initial_state has the shape sequences x H x K x V = (2, 3, 64, 64) "
        "here, got (1, 3, 64, 64)",
    ),
    "offsets of several entries": (
        lambda: tc.simple_gla(Q, K, V, cu_seqlens=np.array([0, 70], np.int32)), LayoutError,
        "simple_gla: with cu_seqlens all sequences lie in one batch entry, got 2",
    ),
    "offsets that end early": (
        lambda: tc.simple_gla(Q[:1], K[:1], V[:1], cu_seqlens=np.array([0, 60], np.int32)),
        LayoutError,
        "simple_gla: cu_seqlens ascends from 0 to the 70 tokens there are, got [0, 60]",
    ),
    "offsets of 64 bits": (
        lambda: tc.simple_gla(Q[:1], K[:1], V[:1], cu_seqlens=np.array([0, 70])), DTypeError,
        None,
    ),
    "a scale that is none": (
        lambda: tc.linear_attention(Q, K, V, float("nan")), LayoutError,
        "linear_attention: scale is a finite number, got nan",
    ),
    "a layer too far": (
        lambda: tc.lightning_attn(Q, K, V, 8, 8), LayoutError,
        "lightning_attn: layer_idx is an int from 0 to num_layers - 1, got layer_idx=8, "
        "num_layers=8",
    ),
    "groups that do not divide": (
        lambda: tc.ssd(X[:, :, :3], DT[:, :, :3], A[:3], B, C), LayoutError,
        "ssd: the groups of B and C divide the heads of x, got 2 and 3",
    ),
    "a state size without a tile": (
        lambda: tc.ssd(X, DT, A, *[np.zeros((1, 100, 2, 257), bf16.numpy)] * 2), LayoutError,
        "ssd: N, the state size, is 1 to 256, computed in tiles of 32, 64, 96, 128, 192, 256 "
        "columns, got 257",
    ),
    "a positive A": (
        lambda: tc.ssd(X, DT, -A, B, C), LayoutError, f"ssd: A is negative, got {-A.min()}",
    ),
    "steps of the wrong shape": (
        lambda: tc.ssd(X, heads_first(DT), A, B, C), LayoutError,
        "ssd: dt has the shape batch x length x heads = (1, 100, 4) here, got (1, 4, 100)",
    ),
    "a limit alone": (
        lambda: tc.ssd(X, DT, A, B, C, dt_limit=(1.0, 0.5)), LayoutError,
        "ssd: dt_limit is two ascending numbers, got (1.0, 0.5)",
    ),
    "D of heads x N": (
        lambda: tc.ssd(X, DT, A, B, C, D=np.zeros(5, np.float32)), LayoutError,
        "ssd: D has the shape [heads] or [heads, P] = (4,) here, got (5,)",
    ),
    "a state for another token": (
        lambda: tc.simple_gla_step(Q[:, 0], K[:, 0], V[:, 0], STATE[:1]), LayoutError,
        "simple_gla_step: state has the shape B x H x K x V = (2, 3, 64, 64) here, got "
        "(1, 3, 64, 64)",
    ),
    "a token with its length": (
        lambda: tc.ssd_step(X, DT, A, B, C, STATE), LayoutError,
        "ssd_step: x has 3 axes, batch x heads x dim, got the shape (1, 100, 4, 64)",
    ),
    "a gradient of no g_gamma": (
        lambda: tc.simple_gla_backward(V, Q, K, V, wants_d_gamma=True), LayoutError,
        "simple_gla_backward: wants_d_gamma is for a g_gamma, got None",
    ),
    "a gradient of another length": (
        lambda: tc.simple_gla_backward(V[:, :5], Q, K, V), LayoutError,
        "simple_gla_backward: do has the shape of v = (2, 70, 3, 64) here, got (2, 5, 3, 64)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    assert_refused(*REFUSED[name])
