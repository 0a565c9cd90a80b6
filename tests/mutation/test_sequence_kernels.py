"""Every synchronisation of Based, its gradients and Hedgehog, deleted in turn, is found."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from pipeline.schedules import silent
from recurrences import assert_near
from test_based import weights
from test_hedgehog import reference

from tilecat import bf16
from tilecat.kernels.based import based
from tilecat.kernels.based_gradient import based_gradient
from tilecat.kernels.hedgehog import hedgehog

Problem = tuple[Any, Any, Any, dict[str, Any]]


def normal(heads: int, length: int, dim: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((1, heads, length, dim)).astype(bf16.numpy)


def of_based() -> Problem:
    """Two heads, one after the other, in a CTA; not divided, as `tc.based` runs it."""
    q, k, v = (normal(2, 330, d, seed) for seed, d in enumerate((16, 16, 64)))

    def check(args: list[Any]) -> None:
        exact = weights(q.astype(float), k.astype(float), 0.25) @ v.astype(float)
        assert_near(args[3], exact, 3.6e-3)

    return (
        based, lambda: [q, k, v, np.full_like(v, np.nan), 0.25, 0.5], check, {"stages": 4}
    )  # fmt: skip


def of_gradients() -> Problem:
    """Gradients of queries of two heads."""
    q, k, do, v = (normal(2, 330, d, seed) for seed, d in enumerate((16, 16, 64, 64)))

    def check(args: list[Any]) -> None:
        x, y, a, b = (t.astype(float) for t in (q, k, do, v))
        products = a @ b.swapaxes(-1, -2) * (1 + 0.25 * x @ y.swapaxes(-1, -2))
        assert_near(args[4][0], 0.25 * np.tril(products) @ y, 4e-3)

    def make() -> list[Any]:
        return [q, k, do, v, np.full((1, *q.shape), np.nan, np.float32), 0.25, 0.5]

    return based_gradient, make, check, {}


def of_hedgehog() -> Problem:
    """Two heads of 128, so that two warpgroups share the state role."""
    q, k, v = (normal(2, 200, 128, seed) for seed in range(3))
    maps = [normal(2, 128, 64, seed)[0] / 8 for seed in (3, 4)]
    maps = [x.astype(bf16.numpy) for x in maps]
    ones = np.ones(2, np.float32)

    @cache
    def exact(h: int) -> Any:
        return reference(q[0, h], k[0, h], v[0, h], *(m[h] for m in maps), 1, 1)

    def make() -> list[Any]:
        kv, ks = (np.full((1, 2, 128, *d), np.nan, np.float32) for d in ((128,), ()))
        return [q, k, v, *maps, ones, ones, np.full_like(q, np.nan), kv, ks, 128**-0.5]

    def check(args: list[Any]) -> None:
        for h in range(2):
            assert_near(args[7][0, h], exact(h)[0], 2.6e-3)
            assert_near(args[8][0, h], exact(h)[1], 2.5e-3)
            assert_near(args[9][0, h][None], exact(h)[2][None], 5e-4)

    return hedgehog, make, check, {"dim": 128}


# Right programs, each with the reason.
TOLD = "the state role gives the stage back too, after what all threads of this one have told it"
MADE = "what it has waited for is made of that"
CLOSED = "the next one closes both groups, which are waited for together"
COVERED = "no thread has touched these registers since the fence before"
LEFT = "no product of the task is under way"
EQUIVALENT: dict[str, dict[str, str]] = {
    "based": {
        "score: bar.sync #1": TOLD,
        "state: wgmma.commit_group #1": CLOSED,
        "state: mbarrier.try_wait #2": MADE,
        "state: wgmma.fence #2": COVERED,
        "state: wgmma.fence #3": COVERED,
    },
    "gradients": {
        "features: mbarrier.try_wait #2": "room for two chunks' features: chunks come as two "
        "stages, which the state role gives back when it has read their features",
        "features: bar.sync #1": TOLD,
        "state: mbarrier.try_wait #3": MADE,
        "gradient: wgmma.commit_group #1": CLOSED,
        "gradient: wgmma.fence #2": COVERED,
        "gradient: wgmma.commit_group #3": CLOSED,
        "gradient: wgmma.fence #4": COVERED,
    },
    "hedgehog": {
        "producer: mbarrier.try_wait #3": "Q's stage has been waited for, given back behind P, "
        "whose room the state role makes behind products with the K before",
        "producer: mbarrier.try_wait #4": "K's stage has been waited for, which the state role "
        "gives back with V's",
        "producer: cp.async.bulk.commit_group #1": "the next one closes both groups",
        "producer: cp.async.bulk.wait_group.read #2": "a ring of one stage has waited before",
        "score: wgmma.fence #2": COVERED,
        "score: mbarrier.try_wait #7": "sums of features have come, which the state role tells "
        "when it has read the sums of weights before",
        "score: bar.sync #1": "sums of features are written again behind sums of weights, of "
        "which all threads have told",
        "score: wgmma.wait_group #4": LEFT,
        "state: mbarrier.try_wait #2": "sums of weights have come, made of the sums before",
        "state: wgmma.fence #2": COVERED,
        "state: wgmma.fence #3": COVERED,
        "state: wgmma.fence #5": COVERED,
        "state: wgmma.commit_group #5": CLOSED,
        "state: wgmma.fence #6": COVERED,
        "state: wgmma.wait_group #5": LEFT,
    },
}
PROBLEMS = {"based": of_based, "gradients": of_gradients, "hedgehog": of_hedgehog}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_synchronisation_is_needed(name: str):
    kernel, make, check, params = PROBLEMS[name]()
    found = silent(kernel, make, check, grid=1, seeds=(0, 1), **params)
    assert found == [*EQUIVALENT[name]]
