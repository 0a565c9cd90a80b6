"""Every synchronisation of a convolution's kernel with a gate, deleted in turn, is found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from test_fft_conv import LIMITS, error, exact, numbers

from tilecat import f16, sim
from tilecat.binding import bind
from tilecat.codegen.module import PtxModule
from tilecat.fft_plans import plan_of
from tilecat.fft_spectra import spectrum_of, tables_of
from tilecat.kernels.fft_conv import fft_conv_64
from tilecat.kernels.fft_conv_halves import fft_conv_halves
from tilecat.kernels.fft_conv_quarters import fft_conv_quarters
from tilecat.kernels.fft_conv_short import fft_conv_32
from tilecat.runtime import machine
from tilecat.runtime.arrays import view

from .deletions import Mutant, deletions, unlisted
from .subjects import NO_OUTPUT, Subject, verdict

# Why a deletion leaves a right program; tests/mutation/equivalents.py says it at length.
CLOSED = "the next one closes both groups"
COVERED = "the fence before covers these registers too"
WHOLE = "the products that read the tile are the whole warpgroup's"
LATER = "the products that read v_0 stand behind the next one too"
TURN = "the products that read the tile stand behind a meeting of both consumers"
# Products of four sums at a time are waited for together, of two at the end of 1024 and at both
# ends of causal ones.
SHORT, LONG = (5, 6, 7, 9, 10, 11, 13), (5, 6, 7, 9, 10, 11, 13, 14, 15)
CAUSAL = (1, 3, 4, 5, 7, 8, 9, 11)
HALVES = tuple(n for n in range(1, 32) if n % 4)  # #28: the last products of both are one group
EVERY = {
    "all: fence.mbarrier_init #1": "kernels of one CTA do without",
    "consumer: setmaxnreg.inc #1": "only ptxas can object",
    "producer: cp.async.bulk.wait_group.read #2": "a ring of one stage has waited before",
}
EQUIVALENT = {
    "1024 circular": {
        **EVERY, "consumer: bar.sync #3": WHOLE,
        **{f"producer: cp.async.bulk.commit_group #{n}": CLOSED for n in range(1, 8)},
        **{f"consumer: wgmma.commit_group #{n}": CLOSED for n in (1, 2, 3, *SHORT)},
        **{f"consumer: wgmma.fence #{n}": COVERED for n in (2, 3, 4, 6, 7, 8, 10, 11, 12, 13, 14)},
    },
    "4096 circular": {
        **EVERY, "consumer: bar.sync #2": WHOLE,
        **{f"producer: cp.async.bulk.commit_group #{n}": CLOSED for n in range(1, 4)},
        **{f"consumer: wgmma.commit_group #{n}": CLOSED for n in (1, 2, 3, *LONG)},
        **{f"consumer: wgmma.fence #{n + 1}": COVERED for n in (1, 2, 3, *LONG)},
    },
    "4096 causal": {
        **EVERY, "consumer: bar.sync #2": WHOLE,
        **{f"producer: cp.async.bulk.commit_group #{n}": CLOSED for n in (1, 2)},
        **{f"consumer: wgmma.commit_group #{n}": CLOSED for n in CAUSAL},
        **{f"consumer: wgmma.fence #{n + 1}": COVERED for n in CAUSAL},
    },
    **{name: {
        **EVERY, "consumer: fence.proxy.async #2": LATER, "consumer: bar.sync #2": LATER,
        "consumer: bar.sync #4": WHOLE,
        **{f"producer: cp.async.bulk.commit_group #{n}": CLOSED for n in range(1, stores)},
        **{f"consumer: wgmma.commit_group #{n}": CLOSED for n in (*HALVES, 28)},
        **{f"consumer: wgmma.fence #{n + 1}": COVERED for n in HALVES},
    } for name, stores in (("8192 causal", 4), ("8192 circular", 8))},
    "16384 causal": {
        **EVERY, "consumer: fence.proxy.async #2": LATER, "consumer: bar.sync #5": LATER,
        "consumer: bar.sync #9": TURN, "consumer: bar.sync #11": WHOLE,
        **{f"producer: cp.async.bulk.commit_group #{n}": CLOSED for n in range(1, 4)},
        **{f"consumer: wgmma.commit_group #{n}": CLOSED for n in (*HALVES, 28)},
        **{f"consumer: wgmma.fence #{n + 1}": COVERED for n in (*HALVES, 28)},
    },
}  # fmt: skip


KERNELS = {1024: fft_conv_32, 4096: fft_conv_64, 8192: fft_conv_halves}
LIMIT = 200_000  # instructions of a CTA; right runs of both take 102,461 at most


@dataclass(frozen=True)
class Convolution(Subject):
    """A kernel on a few channels, with a gate before and one behind."""

    @cached_property
    def kernel_function(self) -> Any:
        """The kernel."""
        return KERNELS.get(dict(self.extents)["L"], fft_conv_quarters)

    def given(self) -> tuple[Any, ...]:
        """U, k and the gates."""
        size = dict(self.extents)
        shape = size["B"], size["C"], size["L"]
        u, k = numbers(*shape, size["L"], f16)
        return u, k, *(numbers(*shape, 1, f16, seed)[0] for seed in (1, 2))

    def arguments(self) -> list[Any]:
        """Fresh arguments: the same inputs every time, outputs NaN."""
        u, k, *gates = self.given()
        params = dict(self.params)
        plan = plan_of("fft_conv", u.shape[2], bool(params["causal"]))
        y, rows = np.full_like(u, np.nan), (*u.shape[:2], -1, plan.cols)
        names = "in_gate", "out_gate"
        given = [x for name, x in zip(names, gates, strict=True) if params.get(name)]
        shaped = [x.reshape(rows) for x in (y, *given)]
        spectrum = spectrum_of(plan, k, u, "f16")
        tables = tables_of(plan, u, "f16", quarters=plan.outer > 2)[int(plan.outer == 2) :]
        first = 3 if plan.outer > 2 else len(tables)
        return [u.reshape(rows), spectrum, *tables[:first], *shaped, *tables[first:]]

    @cached_property
    def module(self) -> PtxModule:
        """The PTX module."""
        views = [view(x) for x in self.arguments()]
        bound = bind(self.kernel_function.signature, views, dict(self.params))
        return self.kernel_function.specialize(bound.specialization, self.target).module

    def run(self, text: str, seed: int) -> tuple[sim.Result, str]:
        """Runs a text in place of the kernel's own: see `Subject`."""
        args = self.arguments()
        result = sim.run(
            text, grid=self.ctas,
            args=[machine.argument(param, [view(x) for x in args], NO_OUTPUT)
                  for param in self.module.params],
            smem_bytes=self.module.smem_bytes, table=self.module.table, seed=seed, limit=LIMIT,
        )  # fmt: skip
        u, k, *gates = self.given()
        names, params = ("in_gate", "out_gate"), dict(self.params)
        gates = [x if params.get(name) else None for name, x in zip(names, gates, strict=True)]
        used = [gate for gate in gates if gate is not None]
        wanted = exact(u, k, bool(params["causal"]), *gates)
        apart = dict(self.params).get("outer") == 8 and not params["causal"]
        made = args[-1 - len(used) - apart].reshape(u.shape)
        return result, "" if error(made, wanted) < 2 * LIMITS["f16"] else "far"


def _subject(batch: int, channels: int, length: int, **params: Any) -> Convolution:
    extents = (("B", batch), ("C", channels), ("L", length))
    name = f"{length} {'causal' if params['causal'] else 'circular'}"
    return Convolution(name, "fft_conv", extents, tuple(params.items()))


SUBJECTS = (
    _subject(5, 9, 1024, causal=False, cols=32, consumers=2, stages=2, in_gate=True),
    # In the full run alone, as all shares but the first of the one above.
    _subject(5, 6, 4096, causal=False, consumers=2, stages=2),
    _subject(5, 5, 4096, causal=True, consumers=3, stages=2),
    _subject(3, 5, 8192, causal=True, consumers=2),
    _subject(5, 5, 8192, causal=False, consumers=2),
    _subject(3, 3, 16384, causal=True, outer=4),
)
SHARE = 7  # one deletion of so many is tried by default
SHARES = [
    pytest.param(subject, part, id=f"{subject.name}-{part}",
                 marks=() if subject is SUBJECTS[0] and part == 0 else pytest.mark.full)
    for subject in SUBJECTS for part in range(SHARE)
]  # fmt: skip


def check(subject: Convolution, mutant: Mutant) -> str:
    """What is wrong with a mutant's fate; "" if it is found, or listed and not found."""
    found = any(verdict(subject, mutant.text, seed) for seed in (0, 1, 2))
    listed = mutant.name in EQUIVALENT[subject.name]
    return "" if found != listed else f"{mutant.name}: {mutant.shown}"


@pytest.mark.parametrize("subject", SUBJECTS[:1], ids=lambda subject: subject.name)
def test_the_kernel_itself_is_right(subject):
    assert not unlisted(subject.text)
    for seed in range(2):
        assert not verdict(subject, subject.text, seed)


@pytest.mark.parametrize(("subject", "share"), SHARES)
def test_deletions_are_found(subject, share):
    chosen = [one for number, one in enumerate(deletions(subject.text)) if number % SHARE == share]
    wrong = [fault for one in chosen if (fault := check(subject, one))]
    assert chosen and not wrong, "\n".join(wrong)
