"""The scan of chunks: every synchronisation deleted in turn, under several schedules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from recurrences import assert_near, gated

from pipeline.schedules import silent
from tilecat import bf16
from tilecat.kernels.linear_attention import linear_attention

# Right programs: accumulators that no thread touches between products need no fence, and the first
# group of two that are waited for together no commit of its own. With decays, the first fence is
# that of `tc.sync`, which vectors between threads do not need; the state waits for scores first,
# which are made of what it waits for then.
EQUIVALENT = {
    False: ["state: wgmma.commit_group #1", "state: wgmma.fence #2", "state: wgmma.fence #3"],
    True: ["score: fence.proxy.async #1", "state: mbarrier.try_wait #2", "state: wgmma.fence #3"],
}


def arrays(length: int, gates: bool) -> Any:
    """Two heads of one sequence, and a state before it."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, length, 64)).astype(bf16.numpy) for _ in range(3))
    g = [(-0.2 * rng.random((1, 2, length))).astype(np.float32)] if gates else []
    exact = gated(q[0], k[0], v[0], g[0][0] if gates else 0.0, None, 0.5)

    def make() -> list[Any]:
        state = np.full((1, 2, 64, 64), np.nan, np.float32)
        return [q, k, v, np.full_like(v, np.nan), 0.5, *g, state]

    def check(args: list[Any]) -> None:
        assert_near(args[3][0], exact[0], 3.6e-3)
        assert_near(args[-1][0], exact[1], 2.5e-3)

    return make, check


@pytest.mark.slow
@pytest.mark.parametrize("gates", [False, True], ids=["plain", "decays"])
def test_every_synchronisation_of_the_scan_is_needed(gates: bool):
    make, check = arrays(330, gates)
    found = silent(
        linear_attention, make, check, seeds=(0, 1), g=gates, end=True, heads=2, stages=3,
        registers=(96, 192), grid=1,
    )  # fmt: skip
    assert found == EQUIVALENT[gates]
