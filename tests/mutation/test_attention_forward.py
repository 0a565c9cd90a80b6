"""Every synchronisation of the forward kernel with edges, deleted in turn, is found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import reference

from tilecat.binding import bind
from tilecat.codegen.module import PtxModule
from tilecat.kernels.attention_forward import attention_forward as kernel
from tilecat.kernels.attention_scores import Edges
from tilecat.runtime.arrays import view

from .deletions import Mutant, deletions, unlisted
from .edits import EVERY, Fault, mutants, number
from .subjects import Subject, verdict

PARAMS = (("dim", 64), ("dim_v", 64), ("tile_k", 16), ("consumers", 2), ("stages", 2),
          ("pingpong", True), ("order", "longest"), ("edges", Edges(left=True, right=True)))
# Why a deletion leaves a right program; tests/mutation/equivalents.py says it at length.
EQUIVALENT = {
    "all: fence.mbarrier_init #1": "kernels of one CTA do without",
    "consumer: setmaxnreg.inc #1": "only ptxas can object",
    **{
        f"consumer: wgmma.fence #{n}": "the fence before S covers O and P too"
        for n in (3, 5, 7)  # the second of each loop
    },
    **{  # K's and V's, before the first block and behind the last
        f"consumer: mbarrier.try_wait #{n}": "a skipped block's other wait, and the turns, order it"
        for n in (1, 2, 12, 13)
    },
}  # fmt: skip


@dataclass(frozen=True)
class Edged(Subject):
    """The kernel where queries see keys from `left` before to `right` behind their own."""

    def arguments(self) -> list[Any]:
        """Fresh arguments: the same inputs every time, outputs NaN."""
        draw, size = np.random.default_rng(0).standard_normal, dict(self.extents)
        q = draw((2, 2, size["L"], 64)).astype(ml_dtypes.bfloat16)
        k, v = (draw((2, 1, size["L"], 64)).astype(ml_dtypes.bfloat16) for _ in range(2))
        out, lse = np.full_like(q, np.nan), np.full(q.shape[:3], np.nan, np.float32)
        return [q, k, v, out, lse, 0.125, 3, 1, size["left"], size["right"]]

    @cached_property
    def module(self) -> PtxModule:
        """The PTX module."""
        views = [view(x) if hasattr(x, "shape") else x for x in self.arguments()]
        bound = bind(kernel.signature, views, dict(self.params))
        return kernel.specialize(bound.specialization, self.target).module

    @cached_property
    def exact(self) -> tuple[reference.Reference, ...]:
        """What the outputs must be."""
        size = dict(self.extents)
        distance = np.arange(size["L"]) - np.arange(size["L"])[:, None]
        seen = (distance <= size["right"]) & (distance >= -size["left"])
        return reference.attention(
            *self.arguments()[:3], 0.125, lambda s: np.where(seen, s, -np.inf)
        )


def _edged(length: int, left: int, right: int) -> Edged:
    extents = (("L", length), ("left", left), ("right", right))
    return Edged(f"edges {length}", "attention", extents, PARAMS)


# One text. Tasks whose last block is at the right edge, whole, the first; then all kinds of block:
# skipped, at the right edge, whole, at the left edge, skipped again.
SUBJECTS = (_edged(30, 90, 5), _edged(30, 90, 20), _edged(12, 90, 20), _edged(150, 80, 20))
FAULTS = (
    Fault("mask", "one key too many at the right edge",
          r"(setp\.gt\.s32 %keep\d*, %limit\d*, )(-?\d+)(;)", number(lambda n: n - 1), "consumer",
          EVERY),
    Fault("mask", "no key hidden before the window",
          r"(setp\.le\.s32 %keep\d*, %limit\d*, )-?\d+;", r"\g<1>4096;", "consumer", EVERY),
    Fault("order", "the producer's waves do not turn", r"(setp\.eq\.s32 %task\d+, %task\d+, )1;",
          r"\g<1>9;", "producer"),
    Fault("schedule", "Q is given back a block late",
          r"(setp\.eq\.s32 %eq\d*, %i\d+, )%\w+;", r"\g<1>-1;", "consumer", -1),
)  # fmt: skip


def check(mutant: Mutant, seeds: tuple[int, ...] = (0,)) -> str:
    """What is wrong with a mutant's fate; "" if it is found, or listed and not found."""
    found = any(verdict(subject, mutant.text, seed) for subject in SUBJECTS for seed in seeds)
    return "" if found != (mutant.name in EQUIVALENT) else f"{mutant.name}: {mutant.shown}"


def test_the_kernel_itself_is_right():
    assert not unlisted(SUBJECTS[0].text) and len({x.text for x in SUBJECTS}) == 1
    for subject in SUBJECTS:
        assert not any(verdict(subject, subject.text, seed) for seed in range(4)), subject.name


@pytest.mark.parametrize("role", ["all", "producer", "consumer"])
def test_deletions_are_found(role):
    chosen = [one for one in deletions(SUBJECTS[0].text) if one.name.startswith(role)]
    wrong = [fault for one in chosen if (fault := check(one))]
    assert chosen and not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_deletions_are_found_at_three_seeds():
    for seed in (1, 2, 3):
        wrong = [f for one in deletions(SUBJECTS[0].text) if (f := check(one, (seed,)))]
        assert not wrong, "\n".join(wrong)


def test_faults_are_found():
    wrong = [fault for one in mutants(SUBJECTS[0].text, FAULTS) if (fault := check(one))]
    assert not wrong, "\n".join(wrong)
