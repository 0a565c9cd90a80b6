"""The PTX machine finds each synchronisation around operands of tensor memory that is deleted."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pytest
from pipeline import test_between as between

from tilecat.binding import bind
from tilecat.codegen.module import PtxModule

from .subjects import Subject, _view, verdict
from .test_tensor_deletions import _FENCE, _PERMIT, _WARP, _ends, deletions

SEEDS = range(3)


class Fused(Subject):
    """Attention whose P lies in tensor memory: three tasks for each CTA or pair, three steps."""

    def arguments(self) -> list[Any]:
        """Queries, keys and values, and the output full of NaN."""
        return between.arrays(*dict(self.extents).values())

    @cached_property
    def module(self) -> PtxModule:
        """The PTX module."""
        views = [_view(arg) for arg in self.arguments()]
        bound = bind(between.attention.signature, views, dict(self.params))
        return between.attention.specialize(bound.specialization, self.target).module

    def _wrong(self, args: list[Any]) -> str:
        if np.isnan(args[3]).any():
            return "not written"
        try:
            between.check(args)
        except AssertionError:
            return "wrong"
        return ""


_BEFORE = {
    "producer: mbarrier.try_wait #9": "an operand of the task comes behind its consumers' loads of "
    "the task before; kept, for tasks without steps",
    "producer: tcgen05.fence::after_thread_sync #1": "of that wait",
}
_LOADED = {
    "consumer: tcgen05.fence::before_thread_sync #1": "of the loads of a step; that of the store "
    "behind them stands in front of the arrival",
    "consumer: tcgen05.fence::before_thread_sync #3": "of the loads of a task, as that wait",
}
ONE, PAIR = (), (("options", (("cluster", 2), ("pairs", True))),)
EQUIVALENT: dict[tuple, dict[str, str]] = {
    ONE: {**_PERMIT, **_FENCE, **_ends(5, 6, 7, 8), **_BEFORE, **_LOADED},
    PAIR: {
        **_PERMIT, **_ends(4, 5, 6, 7, 8), **_BEFORE, **_LOADED, **_WARP,
        "consumer: bar.warp.sync #2": _WARP["consumer: bar.warp.sync #1"],
    },
}  # fmt: skip
CASES = [
    ("sm_100a", ONE, "tcgen05."),  # waits and fences of tensor memory
    *(
        pytest.param(target, params, "", marks=pytest.mark.full)
        for target in ("sm_100a", "sm_103a", "sm_107a")
        for params in (ONE, PAIR)
    ),
]


@pytest.mark.parametrize(("target", "params", "group"), CASES)
def test_each_deletion_is_found(target: str, params: tuple, group: str):
    ctas = 1 + bool(params)
    extents = (("M", 330 * ctas), ("N", 136))
    mine = Fused(f"attention on {target}", "attention", extents, params, target=target, ctas=ctas)
    equivalent = EQUIVALENT[params]
    for seed in SEEDS:
        assert verdict(mine, mine.text, seed) == (), "the text itself"
    missed, wrong = [], []
    for mutant in (m for m in deletions(mine.text) if m.group.startswith(group)):
        found = any(verdict(mine, mutant.text, seed) for seed in SEEDS)
        if found and mutant.name in equivalent:
            wrong.append(mutant.name)
        if not found and mutant.name not in equivalent:
            missed.append(f"{mutant.name}: {mutant.shown}")
    assert not missed, "not found:\n" + "\n".join(missed)
    assert not wrong, f"found, though equivalent: {wrong}"
