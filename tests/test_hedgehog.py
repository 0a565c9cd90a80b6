"""The kernel of Hedgehog against its definition in float64, token by token, on the PTX machine."""

from __future__ import annotations

import math

import numpy as np
import pytest
from recurrences import assert_near

from tilecat import bf16, f16
from tilecat.kernels.hedgehog import REGISTERS
from tilecat.kernels.hedgehog import hedgehog as kernel

# 1.5 times what NumPy gives with operands and outputs rounded to bf16: 1.7e-3 (the plan's table).
LIMIT, STATE_LIMIT = 2.6e-3, 2.5e-3
SUM_LIMIT = 5e-4  # of sums of features: f32, of features rounded as the state takes them in
BLOCK = 64


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def features(x, weights):
    """`[softmax(x W), softmax(-x W)]`."""
    return np.concatenate([softmax(x @ weights), softmax(-(x @ weights))], -1)


def reference(q, k, v, qmap, kmap, alpha, beta, state=None):
    """A head, token by token: q, k, v T x D; states as they are before its last block.

    The tokens that a query sees by features are those in blocks before the one before its own.
    """
    q, k, v, qmap, kmap = (np.asarray(x).astype(np.float64) for x in (q, k, v, qmap, kmap))
    kv = np.zeros((128, v.shape[1])) if state is None else state[0].astype(np.float64)
    ks = np.zeros(128) if state is None else state[1].astype(np.float64)
    out, taken = np.zeros((len(q), v.shape[1])), 0
    for t in range(len(q)):
        first = max(t // BLOCK - 1, 0) * BLOCK
        for j in range(taken, first):
            phi = features(k[j], kmap)
            kv, ks = kv + phi[:, None] * v[j], ks + phi
        taken = first
        s = k[first : t + 1] @ q[t] / math.sqrt(q.shape[1])
        w, phi = beta * np.exp(s - s.max()), features(q[t], qmap)
        total = w.sum() + alpha * phi @ ks + 1e-6
        out[t] = (w @ v[first : t + 1] + alpha * phi @ kv) / total
    for j in range(taken, (len(q) - 1) // BLOCK * BLOCK):
        phi = features(k[j], kmap)
        kv, ks = kv + phi[:, None] * v[j], ks + phi
    return out, kv, ks


def check(heads, length, *, dim=128, groups=None, dtype=bf16, states=False, size=1.0, seed=0,
          map_size=None, **params):  # fmt: skip
    """One batch entry, tokens before heads in memory; outputs poisoned."""
    rng = np.random.default_rng(seed)

    def normal(count, d, factor=1.0):
        x = (factor * rng.standard_normal((1, length, count, d))).astype(dtype.numpy)
        return x.swapaxes(1, 2)

    groups = groups or heads
    q, k, v = normal(heads, dim, size), normal(groups, dim, size), normal(groups, dim)
    factor = dim**-0.5 if map_size is None else map_size
    qmap, kmap = (
        (factor * rng.standard_normal((heads, dim, 64))).astype(dtype.numpy) for _ in range(2)
    )
    alpha, beta = (rng.uniform(0.2, 1, heads).astype(np.float32) for _ in range(2))
    out = np.full((1, length, heads, dim), np.nan, dtype.numpy).swapaxes(1, 2)
    kv, ks = (np.full((1, heads, 128, *d), np.nan, np.float32) for d in ((dim,), ()))
    first = [
        rng.standard_normal(kv.shape).astype(np.float32),
        rng.uniform(1, 3, ks.shape).astype(np.float32),
    ]
    kernel(q, k, v, qmap, kmap, alpha, beta, out, kv, ks, dim**-0.5, *(first if states else ()),
           dim=dim, start=states, **params)  # fmt: skip
    for h in range(heads):
        g = h * groups // heads
        exact = reference(q[0, h], k[0, g], v[0, g], qmap[h], kmap[h], alpha[h], beta[h],
                          [x[0, h] for x in first] if states else None)  # fmt: skip
        assert_near(out[0, h], exact[0], LIMIT)
        assert_near(kv[0, h], exact[1], STATE_LIMIT)
        assert_near(ks[0, h][None], exact[2][None], SUM_LIMIT)


@pytest.mark.parametrize(
    "length", [1, 64, 130, *(pytest.param(n, marks=pytest.mark.full) for n in (63, 65, 127, 300))]
)
def test_lengths(length):
    check(1, length)


def test_tasks_of_a_cta_groups_and_states():
    """Heads follow one another in a CTA, share keys, and start from sums before."""
    check(2, 200, groups=1, dim=64, states=True, grid=1)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [bf16, f16])
def test_groups_of_wide_heads(dtype):
    check(4, 130, groups=2, dtype=dtype, states=True, grid=2)


def test_large_scores():
    """Scores of +-60 and maps of +-60: one token has all the weight."""
    check(1, 200, size=4.5, map_size=1.2)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_no_races(seed):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((1, 2, 130, 64)).astype(bf16.numpy) for _ in range(3))
    maps = [(rng.standard_normal((2, 64, 64)) / 8).astype(bf16.numpy) for _ in range(2)]
    ones, out = np.ones(2, np.float32), np.full_like(q, np.nan)
    kv, ks = np.zeros((1, 2, 128, 64), np.float32), np.zeros((1, 2, 128), np.float32)
    result = kernel.simulate(q, k, v, *maps, ones, ones, out, kv, ks, 0.125, dim=64,
                             grid=1, seed=seed)  # fmt: skip
    assert not result.reports, str(result)
    assert_near(out[0, 1], reference(q[0, 1], k[0, 1], v[0, 1], *(m[1] for m in maps), 1, 1)[0],
                LIMIT)  # fmt: skip


@pytest.mark.parametrize(
    ("dim", "start"),
    [(128, True), *(pytest.param(d, s, marks=pytest.mark.full)
                    for d, s in ((128, False), (64, True), (64, False)))],
)  # fmt: skip
def test_is_assembled_without_spills(dim, start):
    """Which `compile` would refuse, as it would products that are serialised."""
    q = np.zeros((1, 64, 2, dim), bf16.numpy).swapaxes(1, 2)
    maps = [np.zeros((2, dim, 64), bf16.numpy)] * 2
    kv, ks = np.zeros((1, 2, 128, dim), np.float32), np.zeros((1, 2, 128), np.float32)
    ones, states = np.ones(2, np.float32), (kv, ks) if start else ()
    compiled = kernel.compile(q, q, q, *maps, ones, ones, q, kv, ks, 1.0, *states, dim=dim,
                              start=start)  # fmt: skip
    assert compiled.kernel.facts["registers"]["score"] == REGISTERS[0]
