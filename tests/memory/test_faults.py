"""Hand-written synchronisation that is wrong: the PTX machine says what, and where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilecat as tc
from tilecat import f32, gl, rt, rv, s32, sim, st, sv


def _call(body: Any, *, before: Any = lambda: None, warpgroups: int = 1, grid: int = 1) -> Any:
    """Reports of a kernel on X and Y, 128 x 64."""

    def faulty(X: gl[f32, "M", 64], Y: gl[f32, "M", 64]):
        made = before()
        with tc.warpgroup(warpgroups) as number:
            body(X, Y, made, number)

    x = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)
    kernel = tc.kernel(faulty)
    found = []
    for seed in range(4):
        found += kernel.simulate(x, np.zeros_like(x), grid=grid, seed=seed).reports
    return found


def reads_before_the_load(X: Any, Y: Any, full: Any, number: Any) -> None:
    tile = tc.shared(st[f32, 64, 64])
    full.expect(tile)
    tc.load_async(tile, X[0, 0], full)
    tc.store(Y[0, 0], tc.load(tile))
    full.wait(0)


def forgets_the_fence(X: Any, Y: Any, full: Any, number: Any) -> None:
    tile = tc.shared(st[f32, 64, 64])
    tc.store(tile, tc.load(X[0, 0], rt[f32, 64, 64]))
    tc.barrier_sync(9, 128)
    tc.store_async(Y[0, 0], tile)
    tc.store_wait()


def writes_under_the_store(X: Any, Y: Any, full: Any, number: Any) -> None:
    tile = tc.shared(st[f32, 64, 64])
    x = tc.load(X[0, 0], rt[f32, 64, 64])
    tc.store(tile, x)
    tc.sync()
    tc.store_async(Y[0, 0], tile)
    tc.store(tile, x * 2.0)
    tc.store_wait()


def leaves_before_the_store(X: Any, Y: Any, full: Any, number: Any) -> None:
    tile = tc.shared(st[f32, 64, 64])
    tc.store(tile, tc.load(X[0, 0], rt[f32, 64, 64]))
    tc.sync()
    tc.store_async(Y[0, 0], tile)


def expects_too_much(X: Any, Y: Any, full: Any, number: Any) -> None:
    tile = tc.shared(st[f32, 64, 64])
    full.expect(tile, 128)
    tc.load_async(tile, X[0, 0], full)
    full.wait(0)


def arrives_too_often(X: Any, Y: Any, full: Any, number: Any) -> None:
    tile = tc.shared(st[f32, 64, 64])
    full.expect(tile)
    full.arrive()
    tc.load_async(tile, X[0, 0], full)
    full.wait(0)
    tc.store(Y[0, 0], tc.load(tile))


def waits_for_the_other_parity(X: Any, Y: Any, full: Any, number: Any) -> None:
    vec = tc.shared(sv[f32, 64])
    for step in tc.range(2):
        full.expect(vec)
        tc.load_async(vec, X[step, 0], full)
        full.wait((step & 1) ^ 1)
        tc.store(Y[step, 0], tc.load(vec))


def forgets_the_copy(X: Any, Y: Any, full: Any, number: Any) -> None:
    tile = tc.shared(st[f32, 64, 64])
    tc.copy_async(tile, X[0, 0])
    tc.copy_commit()
    tc.copy_wait(1)
    tc.sync()
    tc.store(Y[0, 0], tc.load(tile))


def passes_no_barrier(X: Any, Y: Any, full: Any, number: Any) -> None:
    tile = tc.shared(st[f32, 64, 64])
    with tc.when(number == 0):
        tc.store(tile, tc.load(X[0, 0], rt[f32, 64, 64]))
    with tc.otherwise():
        tc.store(Y[0, 0], tc.load(tile))


def counts_wrong(X: Any, Y: Any, full: Any, number: Any) -> None:
    with tc.when(number == 0):
        tc.barrier_sync(9, 256)


def adds_apart(X: Any, Y: Any, full: Any, number: Any) -> None:
    vec = tc.shared(sv[f32, 64])
    x = tc.load(X[0, 0], rv[f32, 64])
    with tc.when(number == 0):
        tc.store(vec, x)
    tc.atomic_add(vec, x)


FAULTS = (
    (reads_before_the_load, "race", "full", 1, True),
    (forgets_the_fence, "fence", "", 1, False),
    (writes_under_the_store, "race", "", 1, False),
    (leaves_before_the_store, "exit", "", 1, False),
    (expects_too_much, "deadlock", "128 bytes missing", 1, True),
    (arrives_too_often, "mbarrier", "full", 1, True),
    (waits_for_the_other_parity, "uninitialised", "vec", 1, True),
    (forgets_the_copy, "race", "", 1, False),
    (passes_no_barrier, "race", "", 2, False),
    (counts_wrong, "deadlock", "barrier 9: 128 of 256", 2, False),
    (adds_apart, "race", "vec", 2, False),
)  # fmt: skip


@pytest.mark.parametrize(
    ("body", "kind", "text", "warpgroups", "barrier"), FAULTS, ids=[f[0].__name__ for f in FAULTS]
)
def test_machine_reports(body: Any, kind: str, text: str, warpgroups: int, barrier: bool):
    def before() -> Any:
        full = tc.barrier() if barrier else None
        return full  # on a line of its own: the barrier takes its name

    reports = _call(body, before=before, warpgroups=warpgroups)
    mine = [r for r in reports if r.kind == kind]
    assert mine, [str(r) for r in reports]
    assert any(text in str(r) for r in mine), [str(r) for r in mine]
    assert any(place and place.file == __file__ for r in mine for place in places(r))


def places(report: Any) -> tuple[Any, Any]:
    """The user's lines of a report: where it was found, and the other instruction's."""
    return report.source, report.other and report.other.source


# ---- clusters


@tc.kernel
def leaves_its_peer(X: gl[f32, "M", 64], Y: gl[f32, "M", 64]):
    rank = tc.cluster(2)
    with tc.warpgroup():
        tile = tc.shared(st[f32, 64, 64])
        tc.store(tile, tc.load(X[0, 0], rt[f32, 64, 64]))
        tc.cluster_sync()
        tc.store(Y[rank, 0], tc.load(tc.peer(tile, rank ^ 1)))


@tc.kernel
def meets_no_peer(X: gl[f32, "M", 64], Y: gl[f32, "M", 64]):
    rank = tc.cluster(2)
    with tc.warpgroup():
        tile = tc.shared(st[f32, 64, 64])
        tc.store(tc.peer(tile, rank ^ 1), tc.load(X[rank, 0], rt[f32, 64, 64]))
        tc.store(Y[rank, 0], tc.load(tile))
        tc.cluster_sync()


@tc.kernel
def leaves_while_it_copies(X: gl[f32, "M", 64], Y: gl[f32, "M", 64]):
    rank = tc.cluster(2)
    full = tc.barrier()
    with tc.warpgroup():
        tile, landing = tc.shared(st[f32, 64, 64]), tc.shared(st[f32, 64, 64])
        tc.store(tile, tc.load(X[rank, 0], rt[f32, 64, 64]))
        tc.cluster_sync()
        with tc.when(rank == 0):
            tc.copy_to_peer(tc.peer(landing, 1), tile, full)
        with tc.otherwise():
            full.expect(landing)
            full.wait(0)
            tc.store(Y[rank, 0], tc.load(landing))


CLUSTER_FAULTS = (
    (leaves_its_peer, "exit", "CTA 1 may exit before the remote access"),
    (meets_no_peer, "start", "uses shared memory of CTA 1, which may not have started"),
    (leaves_while_it_copies, "exit", "CTA 0 exits while its copy to a peer may still read"),
)


@pytest.mark.parametrize(
    ("kernel", "kind", "text"), CLUSTER_FAULTS, ids=[f[0].__name__ for f in CLUSTER_FAULTS]
)
def test_machine_reports_of_clusters(kernel: Any, kind: str, text: str):
    x = np.ones((128, 64), np.float32)
    found = []
    for seed in range(4):
        found += kernel.simulate(x, np.zeros_like(x), grid=2, seed=seed).reports
    mine = [report for report in found if report.kind == kind and text in report.message]
    assert mine, [str(report) for report in found]
    assert any(place and place.file == __file__ for r in mine for place in places(r))


def test_loop_with_a_step_of_zero_at_run_time_is_reported(monkeypatch: pytest.MonkeyPatch):
    @tc.kernel
    def count(Y: gl[s32, 1], step: s32):
        with tc.warpgroup(), tc.elected():
            total = tc.var(0)
            for i in tc.range(0, 4, step):
                total += i
            tc.store(Y[0], total)

    y = np.zeros(1, np.int32)
    assert not count.simulate(y, 1, grid=1).reports and y[0] == 6
    monkeypatch.setattr(sim.launch, "_DEFAULT_LIMIT", 5000)
    (report,) = count.simulate(y, 0, grid=1).reports
    assert report.kind == "limit" and "endless" in report.message
    assert report.source is not None and "tc.range(0, 4, step)" in report.source.text
