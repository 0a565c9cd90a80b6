"""The PTX machine finds every fault put into the shipped kernels, and none in the kernels."""

from __future__ import annotations

import pytest

from .attention_faults import TILES, TURNS
from .deletions import SYNC, deletions, listed, looks_like_sync, opcode, unlisted
from .edits import Fault, mutants
from .equivalents import EQUIVALENT
from .gemm_faults import THREADS
from .subjects import SUBJECTS, Subject
from .table import PAGE, everything, faults_of, list_of_equivalents, mutants_of, outcomes, page

FEWEST_FAULTS = 25
MATMUL, _, BY_THREADS, TWO, _ = SUBJECTS
FEW_SEEDS, MANY_SEEDS = range(6), range(6, 100)
each_subject = pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)


def check(subject: Subject, chosen, seeds) -> None:
    """Every mutant is found, or listed as equivalent and not found."""
    wrong = [one.fault for one in outcomes(subject, chosen, seeds) if one.fault]
    assert not wrong, "\n".join(wrong)


# ---- the harness itself
@each_subject
def test_every_opcode_that_synchronises_is_deleted(subject):
    assert not unlisted(subject.text), "add it to SYNC, or to DATA if it only moves data"
    lines = [line for line in subject.text.splitlines() if listed(opcode(line))]
    assert len(list(deletions(subject.text))) == len(lines)


def test_every_listed_opcode_occurs():
    used = {listed(opcode(line)) for s in SUBJECTS for line in s.text.splitlines()}
    # In kernels of `lcsf`, whose stores are waited for; in decoding (test_attention_decode.py); in
    # inverses (test_delta_rule.py).
    elsewhere = {"cp.async.bulk.wait_group", "bar.red", "atom.release", "fence.acq_rel",
                 "bar.warp.sync"}  # fmt: skip
    assert used - {""} == set(SYNC) - elsewhere


@pytest.mark.parametrize("name", [
    "barrier.cluster.wait.acquire", "mbarrier.test_wait.shared::cta.b64", "membar.cta",
    "atom.global.add.u32", "fence.sc.gpu", "cp.async.wait_all", "tcgen05.wait::ld.sync",
    "griddepcontrol.wait", "ld.acquire.gpu.global.b32", "cp.async.mbarrier.arrive.noinc.b64",
])  # fmt: skip
def test_words_of_synchronisation_are_known(name):
    assert looks_like_sync(name)
    assert unlisted(f"    @%p1 {name} [%r1];") == [name]


@pytest.mark.parametrize("name", ["add.s32", "bra", "ld.shared.b32", "wgmma.mma_async", "stmatrix"])
def test_other_words_are_not(name):
    assert not looks_like_sync(name) or not unlisted(f"    {name} %r1;")


@each_subject
def test_faults_are_enough_differ_and_fit(subject):
    names = [mutant.name for mutant in mutants_of(subject)]
    assert len(set(names)) == len(names)
    assert len(faults_of(subject)) >= FEWEST_FAULTS


def test_a_fault_that_fits_nowhere_is_an_error():
    with pytest.raises(AssertionError, match="is not in the text"):
        Fault("group", "name", "no such text", "").apply(MATMUL.text)
    with pytest.raises(AssertionError, match="nothing changes"):
        Fault("group", "name", "(mbarrier)", r"\1").apply(MATMUL.text)


def test_equivalents_name_mutants_that_exist():
    names = {(s.name, mutant.name) for s in SUBJECTS for mutant in mutants_of(s)}
    for entry in EQUIVALENT:
        for name in entry.names:
            assert any(entry.covers(*pair) for pair in names if pair[1] == name), name


# ---- the kernels themselves
def check_clean(subject: Subject, seeds) -> None:
    """No report, right numbers."""
    for seed in seeds:
        result, wrong = subject.run(subject.text, seed)
        assert not result.reports, f"seed {seed}: {result}"
        assert not wrong, f"seed {seed}: {wrong}"


@each_subject
def test_no_false_report(subject):
    check_clean(subject, FEW_SEEDS)


@pytest.mark.slow
@each_subject
def test_no_false_report_at_a_hundred_seeds(subject):
    check_clean(subject, MANY_SEEDS)


# ---- mutants: a part at seed 0 everywhere, all at three seeds on request
@pytest.mark.parametrize("subject, role", [
    (MATMUL, ""), (BY_THREADS, "producer"), (TWO, ""),
], ids=["matmul", "threads", "attention"])  # fmt: skip
def test_deletions_are_found(subject, role):
    check(subject, [one for one in deletions(subject.text) if one.name.startswith(role)], (0,))


@pytest.mark.parametrize("subject, faults", [
    (MATMUL, faults_of(MATMUL)), (BY_THREADS, THREADS), (TWO, (*TILES, *TURNS)),
], ids=["matmul", "threads", "attention"])  # fmt: skip
def test_faults_are_found(subject, faults):
    check(subject, mutants(subject.text, faults), (0,))


def test_page_has_the_list_of_equivalents():
    assert PAGE.read_text(encoding="utf-8").endswith(list_of_equivalents())


@pytest.mark.slow
def test_all_mutants_are_found_and_the_page_says_how(capsys):
    found = everything()
    with capsys.disabled():
        print("\n" + page(found))
    wrong = [one.fault for one in found if one.fault]
    assert not wrong, "\n".join(wrong)
    assert PAGE.read_text(encoding="utf-8") == page(found), (
        "run `PYTHONPATH=tests python -m mutation.table` and look at the difference"
    )
