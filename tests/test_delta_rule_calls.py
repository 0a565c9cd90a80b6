"""`tc.gated_delta_rule`, `tc.delta_rule`, `tc.based` and their steps: results, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from recurrences import assert_near, delta

import tilecat as tc
from tilecat import bf16
from tilecat.errors import DTypeError, LayoutError

LIMIT = 6.3e-3  # as of the kernels


def arrays(batch=1, length=70, groups=1, heads=2, dim=64, columns=64, dtype=bf16, seed=0):
    """q, k, v, g, beta."""
    rng = np.random.default_rng(seed)
    q, k = (rng.standard_normal((batch, length, groups, dim)).astype(dtype.numpy) for _ in "qk")
    v = rng.standard_normal((batch, length, heads, columns)).astype(dtype.numpy)
    g = (-0.1 * rng.random((batch, length, heads))).astype(np.float32)
    return q, k, v, g, rng.random((batch, length, heads)).astype(np.float32)


def exact(q, k, v, g, beta, state=None, norm=True):
    """Of the first batch entry, tokens first."""
    q, k, v, g, beta = (np.moveaxis(np.asarray(x[0]), 1, 0) for x in (q, k, v, g, beta))
    o, s = delta(q, k, v, beta, g, state, q.shape[2] ** -0.5, norm)
    return np.moveaxis(o, 0, 1), s


@pytest.mark.parametrize(("dim", "columns"), [(64, 64), (20, 9)])
def test_a_sequence_and_its_steps(dim, columns):
    q, k, v, g, beta = given = arrays(dim=dim, columns=columns)
    options = {"use_qk_l2norm_in_kernel": True}
    o, state = tc.gated_delta_rule(*given, output_final_state=True, **options)
    wanted, last = exact(*given)
    assert_near(o[0], wanted, LIMIT)
    assert_near(state[0], last, LIMIT)
    one = arrays(length=1, dim=dim, columns=columns, seed=1)
    rows = [x[:, 0] for x in one]
    wanted, last = exact(*one, state[0])
    assert_near(tc.gated_delta_rule_step(*rows, state, **options), wanted[0][None], LIMIT)
    assert_near(state[0], last, 1e-5)


def test_a_split_sequence_is_the_whole():
    q, k, v, g, beta = given = arrays(length=130)
    options = {"use_qk_l2norm_in_kernel": True, "output_final_state": True}
    whole, end = tc.gated_delta_rule(*given, **options)
    first, state = tc.gated_delta_rule(*(x[:, :50] for x in given), **options)
    second, last = tc.gated_delta_rule(*(x[:, 50:] for x in given), initial_state=state, **options)
    joined = np.concatenate([first, second], 1).astype(np.float64)
    assert_near(joined, whole.astype(np.float64), 2 * LIMIT)
    assert_near(last, end, 2 * LIMIT)


def test_neighbours_of_packed_sequences_are_untouched():
    given = arrays(length=100)
    starts = np.array([0, 1, 1, 66, 100], np.int32)
    o, state = tc.gated_delta_rule(*given, cu_seqlens=starts, output_final_state=True,
                                   use_qk_l2norm_in_kernel=True)  # fmt: skip
    for i, (a, z) in enumerate(zip(starts, starts[1:], strict=False)):
        wanted, last = exact(*(x[:, a:z] for x in given))
        assert_near(o[0, a:z], wanted, LIMIT)
        assert_near(state[i], last, LIMIT)


def test_nothing_to_do_keeps_the_state():
    q, k, v, _, beta = arrays(length=0)
    start = np.ones((1, 2, 64, 64), np.float32)
    o, state = tc.delta_rule(q, k, v, beta, initial_state=start, output_final_state=True)
    assert o.shape == v.shape and (state == 1).all()


def refused(kind, message, call):
    error = pytest.raises(kind, call).value
    assert message in error.message, error.message


def test_delta_rule_refuses():
    q, k, v, g, beta = arrays()
    rule = tc.gated_delta_rule
    wide = np.zeros((1, 70, 1, 192), q.dtype)
    three = np.zeros((1, 70, 3, 64), q.dtype)
    starts = np.array([0, 71], np.int32)
    for kind, message, call in (
        (LayoutError, "K, of q and k, is 1 to 128", lambda: rule(wide, wide, v, g, beta)),
        (LayoutError, "the heads of q and k divide those of v, got 3 and 2",
         lambda: rule(three, three, v, g, beta)),
        (LayoutError, "k has the shape of q", lambda: rule(q, k[:, :9], v, g, beta)),
        (LayoutError, "beta has the shape B x T x H", lambda: rule(q, k, v, g, beta[:, :9])),
        (LayoutError, "g has the shape B x T x H", lambda: rule(q, k, v, g[..., :1], beta)),
        (DTypeError, "beta is f32", lambda: rule(q, k, v, g, beta.astype(np.float16))),
        (DTypeError, "beta", lambda: rule(q, k, v, g, None)),
        (DTypeError, "q is bf16 or f16", lambda: rule(q.astype(np.float32), k, v, g, beta)),
        (LayoutError, "scale is a finite number", lambda: rule(q, k, v, g, beta, scale=np.inf)),
        (LayoutError, "cu_seqlens ascends from 0 to the 70 tokens",
         lambda: rule(q, k, v, g, beta, cu_seqlens=starts)),
        (LayoutError, "initial_state has the shape sequences x H x K x V",
         lambda: rule(q, k, v, g, beta, initial_state=np.zeros((1, 2, 64, 9), np.float32))),
        (LayoutError, "q is batch x heads x dim",
         lambda: tc.gated_delta_rule_step(q, k, v, g, beta, None)),
    ):  # fmt: skip
        refused(kind, message, call)


def test_based_and_its_steps():
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((1, 2, 70, 16)).astype(bf16.numpy) for _ in "qk")
    v = rng.standard_normal((1, 2, 70, 9)).astype(bf16.numpy)
    x, y, u = (t.astype(np.float64) for t in (q, k, v))
    s = x @ y.swapaxes(2, 3) / 4
    w = np.tril(1 + s + s * s / 2)
    assert_near(tc.based(q, k, v)[0], w @ u / (w.sum(-1, keepdims=True) + 1e-6), LIMIT)
    _, state = tc.based(*(t[:, :, :69] for t in (q, k, v)), use_norm=False, output_final_state=True)
    o = tc.based_step(*(t[:, :, 69] for t in (q, k, v)), state)
    assert_near(o, (w @ u)[:, :, 69], LIMIT)


def test_based_refuses():
    q = np.zeros((1, 1, 70, 16), np.float16)
    v, state = np.zeros((1, 1, 70, 64), q.dtype), np.zeros((1, 1, 160, 64), np.float32)
    wide = np.zeros((1, 1, 70, 32), q.dtype)
    for message, call in (
        ("q and k have 16 columns", lambda: tc.based(wide, wide, v)),
        ("scale is positive, got -1", lambda: tc.based(q, q, v, -1.0)),
        ("no sums of earlier weights", lambda: tc.based(q, q, v, initial_state=state)),
        ("initial_state has the shape B x H x 160 x V",
         lambda: tc.based(q, q, v, None, False, initial_state=state[:, :, :9])),
        ("state is f32 B x H x 160 x V, got None",
         lambda: tc.based_step(q[:, :, 0], q[:, :, 0], v[:, :, 0], None)),
    ):  # fmt: skip
        refused(LayoutError, message, call)
