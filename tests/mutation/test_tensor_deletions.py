"""The PTX machine finds each synchronisation of tcgen05.mma's GEMM that is deleted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from .deletions import Mutant, listed, looks_like_sync, opcode, roles
from .subjects import Subject, verdict

SEEDS = range(3)
TENSOR_SYNC = (
    "tcgen05.alloc", "tcgen05.dealloc", "tcgen05.commit", "tcgen05.wait::ld",
    "tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync",
    "tcgen05.relinquish_alloc_permit",
)  # fmt: skip
LAUNCH_SYNC = ("clusterlaunchcontrol.try_cancel", "fence.proxy.async")
PAIR_SYNC = ("barrier.cluster.arrive", "barrier.cluster.wait", "bar.warp.sync")
DATA = (
    "clusterlaunchcontrol.query_cancel", "shfl.sync", "stmatrix.sync", "tcgen05.ld", "tcgen05.mma",
    "elect.sync",
)  # fmt: skip
# Deletions that leave a right program, each with the reason, by the subject.
_END = (
    "consumers, who end the CTA, have waited for a later commit of the same lane; kept, since the "
    "manual does not order the arrivals of two commits, and one must not come after the CTA's end"
)
_PERMIT = {
    "all: tcgen05.relinquish_alloc_permit #1": "for other CTAs of the SM, which may wait for it"
}
_FENCE = {
    "all: fence.mbarrier_init #1": "of use in clusters alone; bar.sync orders the CTA's threads"
}
_WARP = {
    "consumer: bar.warp.sync #1": "the lanes of a warp have executed tcgen05.wait::ld together "
    "(.sync.aligned)"
}
_FIRST = dict.fromkeys(
    ("consumer: tcgen05.wait::ld #1", "consumer: tcgen05.fence::before_thread_sync #1"),
    "of the first of two loads; those of the second stand in front of the arrival, and a thread's "
    "own use of what it has loaded is tracked by ptxas, as in Triton's texts",
)
_READ = (
    "the read of an answer and its next write are ordered by arrivals; kept, as the manual's "
    "example has a fence between the proxies (PTX ISA 9.7.14.18)"
)
_READS = dict.fromkeys(
    (f"{role}: fence.proxy.async #{n}"
     for role, n in (("producer", 1), ("producer", 2), ("consumer", 2))), _READ,
)  # fmt: skip


def _ends(*numbers: int) -> dict[str, str]:
    return {f"producer: mbarrier.try_wait #{number}": _END for number in numbers}


PLAIN, PAIRS, LAUNCHED, BOTH = "a CTA", "pairs of CTAs", "launch control", "pairs, launch control"
RUBIN, RUBIN_PAIRS = "Rubin's controls", "Rubin's controls, pairs"
EQUIVALENT = {
    PLAIN: {**_PERMIT, **_ends(2, 3), **_FENCE},
    PAIRS: {**_PERMIT, **_ends(2, 3), **_WARP},
    LAUNCHED: {**_PERMIT, **_ends(4, 5, 6, 7), **_FENCE, **_READS},
    BOTH: {**_PERMIT, **_ends(5, 6, 7, 8), **_WARP, **_READS},
    RUBIN: {**_PERMIT, **_ends(3, 4, 5, 6), **_FENCE, **_FIRST},
    RUBIN_PAIRS: {**_PERMIT, **_ends(3, 4, 5, 6), **_WARP, **_FIRST},
}
PAIR, LAUNCH = {"cluster": 2, "pairs": True}, {"persistent": "launch-control"}
CONTROLS = {
    "tile_m": 256, "tile_n": 32, "stacked": 2, "collectors": "b", "early_a": True,
    "exclusive": True,
}  # fmt: skip
PARAMS: dict[str, dict[str, Any]] = {
    PLAIN: {}, PAIRS: PAIR, LAUNCHED: LAUNCH, BOTH: {**PAIR, **LAUNCH},
    RUBIN: CONTROLS, RUBIN_PAIRS: {**PAIR, **CONTROLS},
}  # fmt: skip


def subject(target: str, which: str = PLAIN) -> Subject:
    """Four tasks for each CTA or pair, so that both buffers are used; ragged edges.

    Of launch control eight tasks of two steps, so that the producer is as many ahead as it can be.
    """
    cluster, name = PARAMS[which].get("cluster", 1), f"matmul by {which} on {target}"
    if which in (LAUNCHED, BOTH):
        extents = (("M", 450 * cluster), ("N", 40), ("K", 72))
        params = (("tile_m", 128), ("tile_n", 32), ("stages", 4), *PARAMS[which].items())
        return Subject(name, "matmul", extents, params, target=target, ctas=8 * cluster)
    extents = (("M", 200 * cluster), ("N", 200), ("K", 264))
    params = (("tile_m", 128), ("tile_n", 64), ("stages", 2), *PARAMS[which].items())
    return Subject(name, "matmul", extents, params, target=target)


def group_of(name: str) -> str:
    """What a deletion counts as, "" for what does not synchronise."""
    known = (*TENSOR_SYNC, *PAIR_SYNC, *LAUNCH_SYNC)
    found = [key for key in known if name == key or name.startswith(key + ".")]
    return found[0] if found else listed(name)


def deletions(text: str) -> Iterator[Mutant]:
    """The text without one synchronisation instruction; a try_wait goes with its loop branch."""
    lines = text.splitlines()
    seen: Counter[tuple[str, str]] = Counter()
    for index, (line, role) in enumerate(zip(lines, roles(lines), strict=True)):
        group = group_of(opcode(line))
        if not group:
            continue
        seen[role, group] += 1
        gone = 2 if group == "mbarrier.try_wait" else 1
        kept = [*lines[:index], *[""] * gone, *lines[index + gone :]]
        yield Mutant(group, f"{role}: {group} #{seen[role, group]}", "\n".join(kept), line.strip())


@pytest.mark.parametrize(
    ("which", "more"), [(PLAIN, ()), (PAIRS, PAIR_SYNC), (BOTH, (*PAIR_SYNC, *LAUNCH_SYNC))]
)
def test_every_opcode_that_synchronises_is_deleted(which: str, more: tuple[str, ...]):
    text = subject("sm_100a", which).text
    names = {opcode(line) for line in text.splitlines()} - {""}
    known = {name for name in names if group_of(name) or name.startswith(DATA)}
    assert not [name for name in names - known if looks_like_sync(name)]
    assert {group_of(name) for name in names} >= {*TENSOR_SYNC, *more}


QUICK = [("sm_100a", PLAIN), ("sm_107a", BOTH), ("sm_107a", RUBIN)]
CASES = [
    pytest.param(target, which, marks=() if (target, which) in QUICK else pytest.mark.full)
    for target, which in product(("sm_100a", "sm_107a"), PARAMS)
    if target == "sm_107a" or which not in (RUBIN, RUBIN_PAIRS)
]


@pytest.mark.parametrize(("target", "which"), CASES)
def test_each_deletion_is_found(target: str, which: str):
    mine, equivalent = subject(target, which), EQUIVALENT[which]
    for seed in SEEDS:
        assert verdict(mine, mine.text, seed) == (), "the text itself"
    missed, wrong = [], []
    for mutant in deletions(mine.text):
        found = any(verdict(mine, mutant.text, seed) for seed in SEEDS)
        if found and mutant.name in equivalent:
            wrong.append(mutant.name)
        if not found and mutant.name not in equivalent:
            missed.append(f"{mutant.name}: {mutant.shown}")
    assert not missed, "not found:\n" + "\n".join(missed)
    assert not wrong, f"found, though equivalent: {wrong}"


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"(%instruction, )0x10110490", r"\g<1>0x08110490"),  # M = 128
        (r"(%instruction, )0x10110490", r"\g<1>0x10090490"),  # N = 32
        (r"(_, \[%at\d+\+\d+\], )40960", r"\g<1>20480"),  # bytes of one CTA alone
        (r"%cluster_ctarank_x, 5;", "%cluster_ctarank_x, 4;"),  # the halves of B overlap
        (r"(cvt\.u16\.u32 %ranks, )3", r"\g<1>1"),  # a commit for the even CTA alone
        (r"mapa\.shared::cluster\.u32 %leader, %base, 0", "mov.u32 %leader, %base"),
        (r"(mapa\.shared::cluster\.u32 %peer, %mine, )0", r"\g<1>1"),  # the odd CTA's
        (r"(mbarrier\.init\.shared::cta\.b64 \[%base\+\d+\], )16", r"\g<1>8"),
    ],
)
def test_a_wrong_constant_of_pairs_is_found(pattern: str, text: object):
    mine = subject("sm_100a", PAIRS)
    changed, count = re.subn(pattern, text, mine.text, count=1)  # type: ignore[call-overload]
    assert count == 1
    assert any(verdict(mine, changed, seed) for seed in SEEDS)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"(%instruction, )0x08110490", r"\g<1>0x08100490"),  # B with K contiguous
        (r"(%instruction, )0x08110490", r"\g<1>0x04110490"),  # M = 64
        (r"(%instruction, )0x08110490", r"\g<1>0x08112490"),  # -A
        (r", 15;", ", 16;"),  # lanes of the other half
        (r"(bfi\.b32 %number, %half, %number, )5", r"\g<1>6"),  # warps numbered otherwise
        (r"(cluster\.b64 \[%at\d+\+)(\d+)\]", lambda m: f"{m[1]}{int(m[2]) + 8}]"),
    ],
)
def test_a_wrong_constant_is_found(pattern: str, text: object):
    mine = subject("sm_100a")
    changed, count = re.subn(pattern, text, mine.text, count=1)  # type: ignore[call-overload]
    assert count == 1
    assert any(verdict(mine, changed, seed) for seed in SEEDS)
