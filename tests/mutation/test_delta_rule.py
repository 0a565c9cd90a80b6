"""Every synchronisation of the delta rule's kernel, deleted in turn, is found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from recurrences import assert_near, delta

from tilecat import bf16, sim
from tilecat.arch import DEFAULT_TARGET
from tilecat.binding import bind
from tilecat.codegen.module import PtxModule
from tilecat.errors import MachineError
from tilecat.kernels.delta_rule import delta_rule
from tilecat.runtime import machine
from tilecat.runtime.arrays import view

from .deletions import deletions, unlisted
from .subjects import NO_OUTPUT

# Why a deletion leaves a right program; tests/mutation/equivalents.py says it at length.
EQUIVALENT = {
    "producer: mbarrier.try_wait #3": "V goes back ahead of K, which the producer has waited for",
    "producer: mbarrier.try_wait #6": "as #3, at the end",
    "producer: cp.async.bulk.wait_group.read #3": "each stage goes back behind such a wait",
    "score: setmaxnreg.inc #1": "only ptxas can object",
    "state: setmaxnreg.inc #1": "only ptxas can object",
    "score: wgmma.fence #2": "no register of Q K^T is touched behind the fence before K K^T",
    "score: fence.proxy.async #1": "threads alone read these vectors; P has its own fence",
    **{f"score: bar.warp.sync #{n}": "lanes of a warp run together in the machine: it cannot see it"
       for n in range(1, 5)},
    "score: bar.sync #2": "scratch is next written behind the barrier that spreads vectors",
    "score: mbarrier.try_wait #3": "at the end: stages go back in order, the last wait is all",
    **{f"state: wgmma.fence #{n}": "no register of this product is touched behind the fence before"
       for n in (2, 4, 6)},
    "state: wgmma.commit_group #3": "the next one closes both groups, with both parts of T",
    "state: wgmma.wait_group #3": "values of the state have waited for all products",
}  # fmt: skip
CLUSTER = ["barrier.cluster.arrive.release.aligned", "barrier.cluster.wait.acquire.aligned"]
SEEDS = (0, 1, 2)
TOKENS, HEADS, WIDTH = 300, 2, 64  # five chunks, the last not whole; two tasks of a cluster
FAR = 6.3e-3  # as in tests/test_delta_rule.py
SHARE = 17  # one deletion of so many a test


@dataclass(frozen=True)
class Problem:
    """The gated delta rule with norms, and its states before and after."""

    params = {"dim": WIDTH, "g": True, "norm": True, "start": True, "end": True}

    @cached_property
    def given(self) -> tuple[Any, ...]:
        """q, k, v, b, g and the state before."""
        rng = np.random.default_rng(0)
        q, k = (rng.standard_normal((1, 1, TOKENS, WIDTH)).astype(bf16.numpy) for _ in "qk")
        v = rng.standard_normal((1, HEADS, TOKENS, WIDTH)).astype(bf16.numpy)
        b, g = rng.random((2, 1, HEADS, TOKENS)).astype(np.float32)
        return q, k, v, b, -0.1 * g, rng.standard_normal((1, HEADS, WIDTH, WIDTH), np.float32)

    @cached_property
    def exact(self) -> tuple[np.ndarray, np.ndarray]:
        """The output and the state after."""
        q, k, v, b, g, state = (x[0] for x in self.given)
        return delta(q, k, v, b, g, state, 0.125, True)

    def arguments(self) -> list[Any]:
        """Fresh arguments: outputs NaN."""
        q, k, v, b, g, state = self.given
        return [q, k, v, b, np.full_like(v, np.nan), 0.125, g, state, np.full_like(state, np.nan)]

    @cached_property
    def module(self) -> PtxModule:
        """The PTX module."""
        bound = bind(delta_rule.signature, [_view(x) for x in self.arguments()], self.params)
        return delta_rule.specialize(bound.specialization, DEFAULT_TARGET).module

    def verdict(self, text: str, seed: int) -> str:
        """What the machine, or the numbers, say of a text; "" if nothing."""
        args, module = self.arguments(), self.module
        try:
            result = sim.run(
                text, grid=2, smem_bytes=module.smem_bytes, table=module.table, seed=seed,
                args=[machine.argument(x, [_view(y) for y in args], NO_OUTPUT)
                      for x in module.params],
                limit=60_000,
            )  # fmt: skip
        except MachineError:
            return "refused"
        if result.reports:
            return ", ".join(sorted({report.kind for report in result.reports}))
        try:
            for mine, exact in zip((args[4], args[8]), self.exact, strict=True):
                assert_near(mine[0], exact, FAR)
        except AssertionError:
            return "wrong result"
        return ""


def _view(value: Any) -> Any:
    return value if isinstance(value, float) else view(value)


PROBLEM = Problem()


@pytest.mark.full
def test_the_kernel_itself_is_right():
    text = PROBLEM.module.text
    assert unlisted(text) == CLUSTER and not PROBLEM.verdict(text, 0)


@pytest.mark.full
@pytest.mark.parametrize("opcode", CLUSTER)
def test_ctas_of_the_cluster_meet_first(opcode):
    lines = PROBLEM.module.text.splitlines()
    left = [line for line in lines if opcode not in line]
    assert len(left) == len(lines) - 1 and PROBLEM.verdict("\n".join(left), 0)


@pytest.mark.full
@pytest.mark.parametrize("share", range(SHARE))
def test_deletions_are_found(share):
    wrong = []
    for number, one in enumerate(deletions(PROBLEM.module.text)):
        if number % SHARE == share:
            found = any(PROBLEM.verdict(one.text, seed) for seed in SEEDS)
            if found == (one.name in EQUIVALENT):
                wrong.append(f"{one.name}: {one.shown}: {'found' if found else 'not found'}")
    assert not wrong, "\n".join(wrong)
