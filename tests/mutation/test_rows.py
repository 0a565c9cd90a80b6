"""Every synchronisation of cross-entropy, deleted in turn, is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pipeline.schedules import silent

from tilecat import bf16
from tilecat.kernels.cross_entropy import cross_entropy
from tilecat.kernels.row_specs import cross_entropy_reference

WIDTH = 2600  # of parts of 256: some of a part, and parts of nothing
WARP = "bar.warp.sync"  # which the machine cannot miss: a warp has one clock
EMPTY = "no copy comes into a part of nothing, nor before the next one's own fence"
NEVER = "here a row's end is not in this chunk, or nothing is"
EQUIVALENT: dict[int, dict[str, str]] = {
    1: {
        "all: bar.sync #1": "another stands behind the mbarriers of meetings",
        "rows: fence.proxy.async #2": EMPTY,
        "rows: fence.proxy.async #4": EMPTY,
        "rows: fence.proxy.async #5": NEVER,
        "rows: mbarrier.arrive.expect_tx #6": NEVER,
        "rows: fence.proxy.async #6": EMPTY,
    },
    2: {
        "all: fence.mbarrier_init #1": "another stands behind the mbarriers of meetings",
        "rows: fence.proxy.async #2": EMPTY,
        "rows: fence.proxy.async #4": EMPTY,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("cluster", EQUIVALENT)
def test_every_synchronisation_of_cross_entropy_is_needed(cluster: int):
    rng = np.random.default_rng(0)
    x, label = rng.standard_normal((7, WIDTH)).astype(bf16.numpy), rng.integers(0, WIDTH, (7, 1))
    exact = cross_entropy_reference(x, None, label)

    def make() -> list[Any]:
        rows = (np.full(7, np.nan, np.float32) for _ in range(2))
        return [x, np.full_like(x, np.nan), label.astype(np.int32), *rows, np.ones(1, np.float32),
                -100, 0.0, 0.0]  # fmt: skip

    def check(args: list[Any]) -> None:
        for got, wanted in zip((args[1], args[3], args[4]), exact, strict=True):
            np.testing.assert_allclose(got.astype(float), wanted, rtol=2.0**-7, atol=1e-5)

    found = silent(cross_entropy, make, check, grid=cluster, seeds=(0, 1), V=WIDTH, W=1, warps=4,
                   cluster=cluster, blocks=1, chunks=3 - cluster, stages=3, piece=256,
                   keep=True)  # fmt: skip
    assert [name for name in found if WARP not in name] == [*EQUIVALENT[cluster]]
