"""Changes that leave a right program: each with the reason, for a reader to check.

The test fails when one of them is reported, and when a change that is not here goes unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Equivalent:
    """One change that may not be reported.

    Args:
        names: mutants' names.
        subjects: start of the subjects' names.
        reason: why the program is still right, or why no machine can see it.
    """

    names: tuple[str, ...]
    subjects: tuple[str, ...]
    reason: str

    def covers(self, subject: str, name: str) -> bool:
        """Whether a subject's mutant is this."""
        return name in self.names and subject.startswith(self.subjects)


EVERY = ("matmul", "attention")
EQUIVALENT = (
    Equivalent(
        ("consumer: setmaxnreg.inc #1",), EVERY,
        "Only ptxas can object: without it the consumers keep the registers of the launch, and "
        "ptxas spills or refuses; the compile stage makes a spill an error. The values are the "
        "same.",
    ),
    Equivalent(
        ("all: fence.mbarrier_init #1",), EVERY,
        "The fence makes inits visible to other CTAs of a cluster (PTX ISA 9.7.13.4), and these "
        "kernels have none; within the CTA bar.sync orders them. The machine reports its lack in "
        "clusters (tests/sim). Kernels of one CTA by other compilers do without it; this generator "
        "keeps it.",
    ),
    Equivalent(
        ("consumer: wgmma.fence #3",), ("attention",),
        "The fence between S = Q K^T and O += P V of a step: no thread touches a register of O or "
        "P between it and the fence before S, which therefore covers them (9.7.15.7.1).",
    ),
    Equivalent(
        ("consumer: cp.async.bulk.commit_group #1",), ("matmul, 2 stages", "matmul, 4 stages"),
        "The store of the first panel joins the group of the second. Both waits of the kernel are "
        "wait_group.read 0, for all groups.",
    ),
    Equivalent(
        ("consumer: cp.async.bulk.commit_group #2",), ("matmul, 4 stages",),
        "As the first: the store joins the group of the third panel.",
    ),
    Equivalent(
        ("consumer: cp.async.bulk.wait_group.read #1", "no stores are waited for at the end"),
        ("matmul, threads",),
        "C is stored by threads: there is no bulk store to wait for.",
    ),
    Equivalent(
        ("bytes announced after the load",), EVERY,
        "The producer's own arrival is still missing, so the phase cannot end before the "
        "announcement; the transaction count may be negative meanwhile (PTX ISA, contents of the "
        "mbarrier object: tx-count from -(2^20 - 1) to 2^20 - 1).",
    ),
    Equivalent(
        ("the async proxy's fence after the barrier",), EVERY,
        "The thread that issues the store has passed the barrier, and then fences: the writes of "
        "all threads happen before its fence, and the fence before its store. The path from each "
        "write to the store goes through a proxy fence all the same (PTX ISA, memory consistency "
        "model: causality order across proxies).",
    ),
    Equivalent(
        ("LBO of A, which K-major swizzled tiles do not use",
         "LBO of Q, which K-major swizzled tiles do not use"), EVERY,
        "The leading-dimension offset of a swizzled K-major operand is not used: one swizzle atom "
        "holds its 32 bytes of K (PTX ISA, wgmma matrix descriptor: \"not used\", \"assumed 1\").",
    ),
)  # fmt: skip


def reason(subject: str, name: str) -> str:
    """Why a mutant is equivalent, "" if it is not."""
    found = (entry.reason for entry in EQUIVALENT if entry.covers(subject, name))
    return next(found, "")
