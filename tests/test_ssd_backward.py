"""Gradients of Mamba-2 against the recurrence in reversed time, token by token, in float64."""

from __future__ import annotations

import numpy as np
import pytest
from recurrences import assert_near, assert_refused, mamba_gradients, poison_calls

import tilecat as tc
from tilecat import bf16, f16, ssd_backward_call
from tilecat.errors import DTypeError, LayoutError

LIMIT, STATE_LIMIT = 5.4e-3, 3.75e-3  # operands are rounded once more than in the forward
ALIKE = 16  # twice the root of 70 tokens: errors of gates are alike along a block of 512
NAMES = ("dx", "ddt", "dA", "dB", "dC", "dD", "dz", "d_bias", "d_initial")
PARTS = ("dx", "ddt", "rates", "dB", "dC", "dD", "dz", "d_initial")


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What calls allocate is NaN until it is written."""
    poison_calls(monkeypatch, ssd_backward_call)


def inputs(batch=1, length=70, heads=2, groups=1, dim=64, size=64, dtype=bf16):
    rng = np.random.default_rng(0)

    def normal(*shape, kind=dtype):
        return rng.standard_normal(shape).astype(kind.numpy)

    def single(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    x, z, dy = (normal(batch, length, heads, dim) for _ in range(3))
    b, c = (normal(batch, length, groups, size) for _ in range(2))
    dt, a = single(batch, length, heads) - 1, -np.exp(single(heads))
    return dy, x, dt, a, b, c, z, single(heads), 0.2 * single(batch, heads, dim, size)


def check(given, made, limits=(0.0, np.inf), *, skip=None, z=None, bias=None, state=None,
          d_last=None, starts=None, seq_idx=None, softplus=True, limit=LIMIT):  # fmt: skip
    """Results of a call, sequence by sequence."""
    dy, x, dt, a, b, c = given
    batch, length, heads, dim = x.shape
    starts = [0, length] if starts is None else starts
    none = np.zeros((batch * (len(starts) - 1), heads, dim, b.shape[3]))
    wide = np.zeros((heads, dim)) if skip is None else skip
    wide = wide if wide.ndim == 2 else np.broadcast_to(wide[:, None], (heads, dim))
    found = []
    for entry in range(batch):
        for i, tokens in enumerate(map(slice, starts, starts[1:])):
            parts = (None if y is None else y[entry, tokens].swapaxes(0, 1)
                     for y in (dy, x, dt, b, c, z))  # fmt: skip
            dy1, x1, dt1, b1, c1, z1 = parts
            first, last = (none[i] if y is None else y[entry + i] for y in (state, d_last))
            found.append(mamba_gradients(
                dy1, x1, dt1, a, b1, c1, first, last, skip=wide, z=z1, bias=bias,
                softplus=softplus, limits=limits,
                seq_idx=None if seq_idx is None else seq_idx[entry, tokens],
            ))  # fmt: skip
    exact = dict(zip(PARTS, zip(*found, strict=True), strict=True))
    made = dict(zip(NAMES, made, strict=True))
    for name in ("dx", "ddt", "dB", "dC", "dz"):
        if made[name] is not None:
            whole = np.concatenate([y.swapaxes(0, 1) for y in exact[name]])
            assert_near(made[name], whole.reshape(made[name].shape), limit)
    if state is not None:
        assert_near(made["d_initial"], np.stack(exact["d_initial"]), STATE_LIMIT)
    if skip is not None:
        assert_near(made["dD"], sum(exact["dD"]).sum(-1 if skip.ndim == 1 else ()), 2 * limit)
    for name, part in (("dA", "rates"), ("d_bias", "ddt")):  # sums, of which errors are alike
        if made[name] is not None:
            sums = sum(y.sum(-1) for y in exact[part])
            sizes = np.sqrt(sum((y**2).sum(-1) for y in exact[part]))
            assert (np.abs(made[name] - sums) <= ALIKE * limit * sizes).all()


def test_all_gradients():
    *given, z, bias, state = inputs()
    skip, d_last = bias[::-1].copy(), state[:, ::-1].copy()
    seq_idx = np.repeat(np.arange(2, dtype=np.int32), 35)[None]
    limits = 0.05, 1.0
    made = tc.ssd_backward(
        *given, D=skip, z=z, dt_bias=bias, initial_states=state, seq_idx=seq_idx,
        dt_softplus=True, dt_limit=limits, d_final_states=d_last,
    )  # fmt: skip
    check(given, made, limits, skip=skip, z=z, bias=bias, state=state, d_last=d_last,
          seq_idx=seq_idx)  # fmt: skip
    for mine, like in zip(made, (*given[1:], skip, z, bias, state), strict=True):
        assert mine.shape == like.shape and mine.dtype == like.dtype


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [({"heads": 2, "groups": 2, "dim": 30, "size": 20}, bf16),
     ({"batch": 2, "heads": 4, "groups": 2, "dim": 128, "size": 128}, f16),
     ({"length": 1, "heads": 3, "size": 256}, bf16)],
)  # fmt: skip
@pytest.mark.full
def test_sizes(sizes, dtype):
    """Without softplus: dt is clamped at 0. Columns of D; dt of 16 bits."""
    *given, _, bias, _ = inputs(dtype=dtype, **sizes)
    given[2] = (given[2] + 1).astype(dtype.numpy)
    skip = np.outer(bias, np.linspace(-1, 1, given[0].shape[3])).astype(np.float32)
    made = tc.ssd_backward(*given, D=skip)
    assert made[6:] == (None,) * 3
    check(given, made, skip=skip, softplus=False)


@pytest.mark.full
def test_packed_sequences():
    *given, _, bias, state = inputs(length=100)
    starts = np.array([0, 35, 35, 100], np.int32)
    states = np.concatenate([state, -state, 0.5 * state])
    made = tc.ssd_backward(
        *given, dt_bias=bias, initial_states=states, cu_seqlens=starts, dt_softplus=True
    )
    assert_near(made[8][1], np.zeros(state.shape[1:]), 0.0)
    check(given, made, bias=bias, state=states, starts=starts)


def test_nothing_to_compute():
    *given, _, _, state = inputs()
    given = [x[:, :0] if x.ndim > 1 else x for x in given]
    made = tc.ssd_backward(*given, initial_states=state, d_final_states=2 * state)
    np.testing.assert_array_equal(made[8], 2 * state)
    assert made[0].shape == given[1].shape and not made[2].any()


DY, X, DT, A, B, C, Z, BIAS, STATE = inputs()
REFUSED = {
    "a gradient of another length": (
        lambda: tc.ssd_backward(DY[:, :5], X, DT, A, B, C), LayoutError,
        "ssd_backward: dy has the shape of x = (1, 70, 2, 64) here, got (1, 5, 2, 64)",
    ),
    "a gradient of f32": (
        lambda: tc.ssd_backward(DY.astype(np.float32), X, DT, A, B, C), DTypeError,
        "ssd_backward: dy is bf16, got f32",
    ),
    "states turned": (
        lambda: tc.ssd_backward(DY, X, DT, A, B, C, d_final_states=STATE[:, :1]), LayoutError,
        "ssd_backward: d_final_states has the shape sequences x heads x P x N = (1, 2, 64, 64) "
        "here, got (1, 1, 64, 64)",
    ),
    "groups that do not divide": (
        lambda: tc.ssd_backward(DY, X, DT, A, B[:, :, :0], C), LayoutError,
        "ssd_backward: the groups of B and C divide the heads of x, got 0 and 2",
    ),
    "a positive A": (
        lambda: tc.ssd_backward(DY, X, DT, -A, B, C), LayoutError,
        f"ssd_backward: A is negative, got {-A.min()}",
    ),
    "a limit alone": (
        lambda: tc.ssd_backward(DY, X, DT, A, B, C, dt_limit=(1.0,)), LayoutError,
        "ssd_backward: dt_limit is two ascending numbers, got (1.0,)",
    ),
    "no chunk size": (
        lambda: tc.ssd_backward(DY, X, DT, A, B, C, chunk_size=0), LayoutError,
        "ssd_backward: chunk_size is an int from 1 up, got 0",
    ),
    "no gradient": (
        lambda: tc.ssd_backward(None, X, DT, A, B, C), DTypeError, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    assert_refused(*REFUSED[name])
