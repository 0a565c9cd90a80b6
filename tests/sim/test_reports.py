"""Reports name tiles, stages, barriers, roles, both PTX lines and both user lines."""

from . import gemm_text
from .texts import clean, kernel, run


def mutated(line: str, **options):
    """Reports of the annotated kernel without one line."""
    lines = gemm_text.text(source=True).splitlines()
    index = next(i for i, one in enumerate(lines) if line in one)
    lines[index] = ""
    return gemm_text.run("\n".join(lines), table=gemm_text.TABLE, **options)[0].reports


def test_race_names_tile_stage_agents_and_both_lines():
    report = next(r for r in mutated("fence.proxy.async") if r.kind == "fence")
    shown = str(report)
    assert "C (shared memory of CTA 0" in shown and "consumer" in shown
    assert "fence.proxy.async" in report.message
    assert report.source.file == "user.py" and report.source.line == 33
    assert report.other.source.line == 30 and "stmatrix" in report.other.text
    assert "cp.async.bulk.tensor" in report.text
    assert gemm_text.text(source=True).splitlines()[report.line - 1].startswith("@%p4 cp.async")
    assert len(shown.splitlines()) <= 8


def test_uninitialised_read_names_the_tile():
    reports = mutated("ARRIVED: mbarrier.try_wait", seed=1)
    report = next(r for r in reports if r.kind == "uninitialised")
    assert "[stage 0] (shared memory of CTA 0, byte 0 of the tile)" in report.message
    assert "wgmma of consumer" in report.message


def test_deadlock_says_who_waits_for_what():
    report = next(r for r in mutated("@%p4 mbarrier.arrive") if r.kind == "deadlock")
    shown = str(report)
    assert "wait for mbarrier empty[0] of CTA 0, phase 0: 0 of 1 arrivals, 0 bytes missing" in shown
    assert "producer (thread 128 of CTA 0) at PTX line" in shown
    assert "consumer (warps 0-3 of CTA 0) at PTX line" in shown and "mbarrier full[0]" in shown
    assert len(shown.splitlines()) <= 8


def test_missing_bytes_are_counted():
    text = gemm_text.text().replace("], 16384;", "], 16400;", 1)
    result, _ = gemm_text.run(text, table=gemm_text.TABLE)
    report = next(r for r in result.reports if r.kind == "deadlock")
    assert "mbarrier full[0] of CTA 0, phase 0: 1 of 1 arrivals, 16 bytes missing" in str(report)


def test_descriptor_that_leaves_its_tile_is_reported():
    text = gemm_text.text().replace("add.u32 %r31, %r30, 512;", "add.u32 %r31, %r30, 448;")
    result, _ = gemm_text.run(text, table=gemm_text.TABLE)
    report = next(r for r in result.reports if r.kind == "bounds")
    assert "starts in A[stage 0]" in report.message and "reads bytes 7168 to" in report.message


def test_statistics_and_progress():
    seen = []
    result, _ = gemm_text.run(m=256, k=320, progress=lambda done, total: seen.append((done, total)))
    clean(result)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert result.stats["wgmma m64n64k16.f32.bf16.bf16"] == 4 * 5 * 4
    assert result.stats["bytes loaded"] == 4 * 5 * gemm_text.STAGE
    assert result.stats["bytes stored"] == 256 * 64 * 2
    assert result.stats["stmatrix"] == 16
    assert result.instructions == sum(
        count for name, count in result.stats.items() if " " not in name
    )


def test_endless_loop_hits_the_limit():
    result = run(kernel("mov.u32 %r1, 0; L: add.u32 %r1, %r1, 1; bra L;"), limit=5000)
    assert [report.kind for report in result.reports] == ["limit"]
