"""Every synchronisation instruction of a pipeline is needed: without it the machine says so."""

import pytest

from . import gemm_text
from .texts import kinds

ROUNDING = 4e-3  # half an ulp of bf16 is 2^-9 of the value; the norm averages over the mantissa


@pytest.mark.parametrize("seed", range(10))
def test_gemm_is_right_and_clean_at_every_schedule(seed):
    result, error = gemm_text.run(seed=seed)
    assert not result.reports, str(result)
    assert 1e-4 < error < ROUNDING


@pytest.mark.parametrize("m, k", [(64, 64), (40, 40), (100, 72), (128, 200)])
def test_gemm_edges(m, k):
    result, error = gemm_text.run(m=m, k=k, seed=3)
    assert not result.reports, str(result)
    assert error < ROUNDING


DELETIONS = [
    ("mbarrier.init.shared::cta.b64 [%r5], 1;", 0, {"mbarrier"}),
    ("mbarrier.init.shared::cta.b64 [%r6+8], 1;", 0, {"mbarrier"}),
    ("bar.sync 0;", 0, {"race", "mbarrier"}),
    # Late loads: the producer arrives twice in one phase before anything can race.
    ("FREE: mbarrier.try_wait", 0, {"race", "mbarrier"}),
    ("mbarrier.arrive.expect_tx", 0, {"deadlock"}),
    ("ARRIVED: mbarrier.try_wait", 0, {"uninitialised", "race"}),
    ("wgmma.fence", 0, {"wgmma"}),
    ("wgmma.commit_group", 0, {"race", "wgmma"}),
    ("wgmma.wait_group", 0, {"race", "wgmma"}),
    ("@%p4 mbarrier.arrive", 0, {"deadlock"}),
    ("fence.proxy.async", 0, {"fence"}),
    ("bar.sync 1, 128;", 0, {"race"}),
    ("@%p4 cp.async.bulk.commit_group", 0, {"exit"}),
    ("@%p4 cp.async.bulk.wait_group", 0, {"exit"}),
]


def delete(line: str, occurrence: int) -> str:
    """The kernel without one line, which must be there."""
    lines = gemm_text.text().splitlines()
    places = [index for index, one in enumerate(lines) if line in one]
    lines[places[occurrence]] = ""
    return "\n".join(lines)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("line, occurrence, wanted", DELETIONS, ids=[d[0] for d in DELETIONS])
def test_deleted_synchronisation_is_reported(line, occurrence, wanted, seed):
    result, _ = gemm_text.run(delete(line, occurrence), seed=seed)
    assert kinds(result) & wanted, str(result)


CORRUPTIONS = [
    ("], 16384;", "], 8192;"),  # expect_tx of half the bytes
    ("], 16384;", "], 32768;"),
    ("[%r6], 1;", "[%r6], 2;"),  # arrivals
    ("mov.u32 %r11, 1;", "mov.u32 %r11, 0;"),  # the producer's first parity
    ("bar.sync 1, 128;", "bar.sync 1, 96;"),
    ("[%d3, {0, %r3}]", "[%d3, {0, 0}]"),  # every CTA stores the first rows
    ("add.u32 %r16, %r15, 8192;", "add.u32 %r16, %r15, 4096;"),  # overlapping tiles
]


@pytest.mark.parametrize("old, new", CORRUPTIONS)
def test_corrupted_protocol_is_reported(old, new):
    text = gemm_text.text()
    assert text.count(old) >= 1
    result, _ = gemm_text.run(text.replace(old, new, 1))
    assert result.reports


@pytest.mark.parametrize("old, new", [
    (f", {gemm_text.HIGH}}}", f", {gemm_text.HIGH + 1}}}"),  # stride 1040
    (f", {gemm_text.HIGH}}}", f", {64 | 2 << 30}}}"),  # 64-byte swizzle
    ("add.u32 %r40, %r30, 2;", "add.u32 %r40, %r30, 4;"),  # K step
    ("and.b32 %r25, %r22, 7;", "and.b32 %r25, %r22, 3;"),  # XOR of the staging tile
])  # fmt: skip
def test_wrong_layouts_give_wrong_numbers_or_reports(old, new):
    text = gemm_text.text()
    assert old in text
    result, error = gemm_text.run(text.replace(old, new))
    assert result.reports or not error < 0.1


def test_no_report_without_races_but_deadlocks_still():
    result, error = gemm_text.run(delete("fence.proxy.async", 0), races=False)
    assert not result.reports and error < ROUNDING
    result, _ = gemm_text.run(delete("mbarrier.arrive.expect_tx", 0), races=False)
    assert kinds(result) == {"deadlock"}
