"""The kernel of linear attention against the recurrence, token by token, on the PTX machine."""

from __future__ import annotations

import numpy as np
import pytest
from recurrences import assert_near, gated

from tilecat import bf16, f16
from tilecat.kernels.linear_attention import linear_attention as kernel

# Operands are rounded to 16 bits twice (state or scores, values with decay), the output once:
# 2.4e-3 of bf16 (facts of the numerics: docs/design/chunk-scan.md), an eighth of it for f16.
LIMIT, STATE_LIMIT = 3.6e-3, 2.5e-3


def check(
    num_heads, dims, lengths, *, g=None, gamma=None, dtype=bf16, reverse=False, states=True, seed=0,
    **params,
):  # fmt: skip
    """Some sequences one after another (one: not packed), tokens before heads in memory."""
    rng, total, (dim, dim_v) = np.random.default_rng(seed), sum(lengths), dims

    def normal(d):
        x = rng.standard_normal((1, total, num_heads, d)).astype(dtype.numpy)
        return x.swapaxes(1, 2)

    q, k, v = normal(dim), normal(dim), normal(dim_v)
    out = np.full((1, total, num_heads, dim_v), np.nan, dtype.numpy).swapaxes(1, 2)
    first = rng.standard_normal((len(lengths), num_heads, dim, dim_v)).astype(np.float32)
    last = np.full_like(first, np.nan)
    gates = None if g is None else g(rng, (1, total, num_heads)).astype(np.float32).swapaxes(1, 2)
    gammas = None if gamma is None else np.linspace(-gamma, 0, num_heads, dtype=np.float32)
    starts = np.cumsum([0, *lengths]).astype(np.int32) if len(lengths) > 1 else None
    args = [x for x in (gates, gammas, starts) if x is not None]
    kernel(
        q, k, v, out, 0.5, *args, *([first, last] if states else []), g=g is not None,
        gamma=gamma is not None, packed=starts is not None, start=states, end=states,
        reverse=reverse, **{"dim": dim, **params},
    )  # fmt: skip
    decays = (0 if gates is None else gates[0]) + (0 if gammas is None else gammas[:, None])
    decays = np.broadcast_to(decays, (num_heads, total))
    where = np.cumsum([0, *lengths])
    limit = LIMIT if dtype is bf16 else LIMIT / 8
    decayed, unit = bool(np.any(decays)), 0.5 if reverse else 1.0
    for i, (a, b) in enumerate(zip(where, where[1:], strict=False)):
        exact = gated(
            q[0, :, a:b], k[0, :, a:b], v[0, :, a:b], decays[:, a:b],
            (first[i] / unit if states else None), 0.5, reverse,
        )  # fmt: skip
        assert_near(out[0, :, a:b], exact[0], limit)
        if states:
            assert_near(last[i], exact[1] * unit, STATE_LIMIT if decayed else 1e-5)


def uniform(mean):
    """Gates from 0 to twice a mean."""
    return lambda rng, shape: 2 * mean * rng.random(shape)


def spikes(value):
    """A few tokens forget, others hardly."""
    return lambda rng, shape: np.where(rng.random(shape) < 0.05, value, -1e-3 * rng.random(shape))


@pytest.mark.parametrize("length", [1, 15, 63, 64, 65, 127])
def test_lengths(length):
    check(1, (64, 64), [length], states=length == 65)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("num_heads", "dims", "params"),
    [(3, (64, 64), {"heads": 2}), (1, (128, 128), {"slices": 2}), (1, (64, 128), {"slices": 2}),
     (1, (128, 64), {}), (2, (32, 96), {"heads": 2}), (1, (96, 32), {}),
     (1, (256, 64), {"stages": 2}), (1, (40, 24), {"dim": 64}), (1, (20, 9), {"dim": 64})],
)  # fmt: skip
def test_heads_and_widths(num_heads, dims, params, reverse):
    check(num_heads, dims, [100], reverse=reverse, dtype=f16 if reverse else bf16, **params)


@pytest.mark.parametrize("reverse", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "g", [uniform(0), uniform(-1e-6), uniform(-0.05), uniform(-1.5), uniform(-20), uniform(-200),
          spikes(-np.inf), spikes(-1e6), uniform(0.02)],
    ids=["0", "1e-6", "0.05", "1.5", "20", "200", "inf", "1e6", "positive"],
)  # fmt: skip
def test_decays(g, reverse):
    check(1, (64, 64), [100], g=g, reverse=reverse)


@pytest.mark.parametrize("dim", [256, pytest.param(192, marks=pytest.mark.full)])
def test_decays_of_many_features(dim):
    check(1, (dim, 64), [100], g=uniform(-0.1), stages=1, reverse=dim == 192)


@pytest.mark.parametrize("reverse", [False, True])
def test_scores_by_warpgroups_in_turn(reverse):
    check(2, (64, 64), [200, 70, 64], g=uniform(-0.1), gamma=0.2, reverse=reverse, turns=2)
    check(2, (64, 64), [200], gamma=0.2, reverse=reverse, turns=2)


def test_two_ctas_share_an_sm():
    check(3, (64, 64), [130], g=uniform(-0.1), blocks_per_sm=2, registers=(80, 136))


def test_decays_of_heads():
    check(4, (64, 64), [150], gamma=0.9, heads=2)
    check(4, (128, 128), [100], gamma=0.1, g=uniform(-0.1), slices=2)


@pytest.mark.parametrize("reverse", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("g", [None, uniform(-0.1)], ids=["plain", "decays"])
def test_packed_sequences(g, reverse):
    check(3, (64, 64), [0, 1, 64, 65, 100], g=g, reverse=reverse)
    check(4, (64, 64), [70, 30], g=g, reverse=reverse, heads=2, states=False)


@pytest.mark.parametrize("reverse", [False, True])
def test_no_bank_conflicts(reverse):
    x = np.zeros((1, 2, 130, 64), bf16.numpy)
    args = [x, x, x, x.copy(), 0.5, np.zeros((1, 2, 130), np.float32)]
    options = {"g": True, "heads": 2, "reverse": reverse, "registers": (96, 192)}
    result = kernel.simulate(*args, **options)
    assert not result.reports and result.conflicts
    assert all(c.wavefronts == c.ideal for c in result.conflicts)
