"""Every synchronisation of the kernel of decoding, deleted in turn, is found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from decode_cases import Decode

from tilecat.binding import bind
from tilecat.codegen.module import PtxModule
from tilecat.kernels.attention_decode import attention_decode as kernel
from tilecat.kernels.attention_scores import Edges
from tilecat.runtime.arrays import view

from .deletions import deletions, unlisted
from .subjects import Subject, verdict

# Two parts of each sequence, each with blocks that are masked and, of the first, blocks that are
# not; pages smaller than a block; two tasks a CTA.
CASE = Decode(16, 4, 2, 768, 32, (708, 200), page=16, options={"causal": True})
PARTS, DIM = 2, 32
PARAMS = (("page", 16), ("dim", DIM), ("dim_v", DIM), ("tile_k", 64), ("stages", 2),
          ("ragged", True), ("split", True), ("edges", Edges(right=True, from_end=True)))
# Why a deletion leaves a right program; tests/mutation/equivalents.py says it at length.
EQUIVALENT = {
    "all: fence.mbarrier_init #1": "kernels of one CTA do without",
    "consumer: setmaxnreg.inc #1": "only ptxas can object",
    "consumer: bar.sync #3": "right only here: global memory does not tell a CTA's threads apart",
    "consumer: mbarrier.try_wait #3": "V's rows behind the sequence were waited for, and zeroed",
    **{f"consumer: wgmma.fence #{n}": "the fence before S covers O and P too" for n in (3, 5)},
}  # fmt: skip


@dataclass(frozen=True)
class Decoding(Subject):
    """The kernel on `CASE`."""

    def arguments(self) -> list[Any]:
        """Fresh arguments: the same inputs every time, outputs and sums NaN."""
        (q, k, v), options = CASE.call()
        batch, queries, heads, _ = q.shape
        rows, groups = q.reshape(-1, DIM), k.shape[2]
        sums = np.full((batch * groups * PARTS * queries * heads // groups, DIM + 4), np.nan, "f4")
        return [rows, k, v, np.full_like(rows, np.nan), np.full(len(rows), np.nan, np.float32),
                DIM**-0.5, batch, queries, heads, PARTS, options["block_table"],
                options["cache_seqlens"], sums, np.zeros(batch * groups, np.int32), 0]  # fmt: skip

    @cached_property
    def module(self) -> PtxModule:
        """The PTX module."""
        views = [view(x) if hasattr(x, "shape") else x for x in self.arguments()]
        bound = bind(kernel.signature, views, dict(self.params))
        return kernel.specialize(bound.specialization, self.target).module

    def _wrong(self, args: list[Any]) -> str:
        def found(q: Any, k: Any, v: Any, out: Any, lse: Any, **_: Any) -> None:
            out[...], lse[...] = args[3].reshape(out.shape), args[4].reshape(lse.shape)

        try:
            CASE.check(found)
        except AssertionError as error:
            return str(error) or "wrong"
        return "counters are left" if args[-2].any() else ""


SUBJECT = Decoding("decode", "attention", (), PARAMS, ctas=4)


def test_the_kernel_itself_is_right():
    assert not unlisted(SUBJECT.text)
    for seed in range(2):
        assert not verdict(SUBJECT, SUBJECT.text, seed)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["all", "producer", "consumer"])
def test_deletions_are_found(role):
    chosen = [one for one in deletions(SUBJECT.text) if one.name.startswith(role)]
    wrong = [f"{one.name}: {one.shown}" for one in chosen
             if bool(verdict(SUBJECT, one.text, 0)) == (one.name in EQUIVALENT)]  # fmt: skip
    assert chosen and not wrong, "\n".join(wrong)
