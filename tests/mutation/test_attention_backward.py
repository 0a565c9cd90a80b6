"""Every synchronisation of the gradients' kernel, deleted in turn, is found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import reference
from gradients import Gradients, gradients
from memory.register_order import fragment

from tilecat.binding import bind
from tilecat.codegen.module import PtxModule
from tilecat.kernels.attention_backward import attention_backward as kernel
from tilecat.kernels.attention_scores import Edges
from tilecat.runtime.arrays import view

from .deletions import Mutant, deletions, unlisted
from .subjects import Subject, verdict

DIM, PART, SCALE, LOG2_E = 64, 64 * 64, 0.125, np.log2(np.e)
PARAMS = (("dim", DIM), ("dim_v", DIM), ("part", PART), ("consumers", 2), ("stages", 2),
          ("tile_q", 128), ("held", True), ("order", "longest"), ("edges", Edges(right=True)))
# Why a deletion leaves a right program; tests/mutation/equivalents.py says it at length.
OTHERS = {  # they move data; the machine runs a kernel after another
    "red.global.add.v4.f32", "griddepcontrol.wait", "griddepcontrol.launch_dependents",
}  # fmt: skip
EQUIVALENT: dict[str, str] = {
    "all: fence.mbarrier_init #1": "kernels of one CTA do without",
    "consumer: setmaxnreg.inc #1": "only ptxas can object",
    **{f"consumer: wgmma.fence #{n}": "dP's: no thread touches a register since that of S"
       for n in (2, 8)},
    **{f"consumer: wgmma.fence #{n}": "dQ's and dK's: dS is made before that of dV, and dQ added "
       "in the step before" for n in (4, 5, 6, 10, 11, 12)},
    **{f"consumer: wgmma.commit_group #{n}": "dV and a part of dQ join the group of dQ's last, "
       "and are waited for with it" for n in (3, 4, 9, 10)},
}  # fmt: skip


@dataclass(frozen=True)
class Causal(Subject):
    """The kernel where queries see no key further behind their own than `right`, two heads."""

    @cached_property
    def inputs(self) -> tuple[np.ndarray, ...]:
        """Q, K, V, dO."""
        draw, size = np.random.default_rng(0).standard_normal, dict(self.extents)
        shapes = [(2, size["Lq"]), (1, size["Lk"]), (1, size["Lk"]), (2, size["Lq"])]
        return tuple(draw((1, *s, DIM)).astype(ml_dtypes.bfloat16) for s in shapes)

    @cached_property
    def gradients(self) -> Gradients:
        """What the forward gives, and the exact gradients."""
        size = dict(self.extents)
        distance = np.arange(size["Lk"]) - np.arange(size["Lq"])[:, None]
        return gradients(*self.inputs, seen=distance <= size["right"])

    def arguments(self) -> list[Any]:
        """Fresh arguments: the same inputs every time, outputs NaN."""
        (q, k, v, dout), exact, size = self.inputs, self.gradients, dict(self.extents)
        rows = -(-size["Lq"] // 128) * 128
        lse2, delta = np.full((1, 2, rows), np.inf, np.float32), np.zeros((1, 2, rows), np.float32)
        lse2[..., : size["Lq"]] = exact.lse * LOG2_E
        rounded = exact.out.astype(q.dtype).astype(float)
        delta[..., : size["Lq"]] = (dout.astype(float) * rounded).sum(-1)
        sums = np.zeros((1, 2, rows // 64, PART), np.float32)
        made = (np.full_like(k, np.nan) for _ in "kv")
        return [q, k, v, dout, lse2, delta, sums, *made, SCALE, size["right"]]

    @cached_property
    def module(self) -> PtxModule:
        """The PTX module."""
        views = [view(x) if hasattr(x, "shape") else x for x in self.arguments()]
        bound = bind(kernel.signature, views, dict(self.params))
        return kernel.specialize(bound.specialization, self.target).module

    def _wrong(self, args: list[Any]) -> str:
        exact, (sums, dk, dv) = self.gradients, args[6:9]
        dq = np.empty((1, 2, sums.shape[2] * 64 * DIM))
        dq[..., (PART * np.arange(sums.shape[2])[:, None] + fragment(64, 64)).ravel()] = (
            SCALE * sums.reshape(1, 2, -1)
        )
        dq = dq.reshape(1, 2, -1, DIM)[:, :, : dict(self.extents)["Lq"]].astype(dk.dtype)
        for got, wanted in zip((dq, dk, dv), (exact.dq, exact.dk, exact.dv), strict=True):
            try:
                reference.assert_close(got, wanted, got.dtype)
            except AssertionError as error:
                return str(error)
        return ""


def _causal(queries: int, keys: int, right: int) -> Causal:
    extents = (("Lq", queries), ("Lk", keys), ("right", right))
    return Causal(f"causal {queries}x{keys}", "attention", extents, PARAMS)


# One text. Two heads share three tiles of keys, ragged at both ends; two CTAs. In the second all
# queries of the first blocks see all keys: a CTA's first step is not masked.
SUBJECTS = (_causal(200, 300, 90), _causal(200, 300, 200))


def check(mutant: Mutant, seeds: tuple[int, ...] = (0,)) -> str:
    """What is wrong with a mutant's fate; "" if it is found, or listed and not found."""
    found = any(verdict(subject, mutant.text, seed) for subject in SUBJECTS for seed in seeds)
    return "" if found != (mutant.name in EQUIVALENT) else f"{mutant.name}: {mutant.shown}"


def test_the_kernel_itself_is_right():
    assert set(unlisted(SUBJECTS[0].text)) == OTHERS
    for subject in SUBJECTS:
        assert not verdict(subject, subject.text, 0), subject.name


@pytest.mark.slow
@pytest.mark.parametrize("role", ["all", "producer", "consumer"])
def test_deletions_are_found(role):
    chosen = [one for one in deletions(SUBJECTS[0].text) if one.name.startswith(role)]
    wrong = [fault for one in chosen if (fault := check(one))]
    assert chosen and not wrong, "\n".join(wrong)
