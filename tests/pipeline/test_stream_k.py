"""Tasks that share K: every step of every tile once, places that fit, CTAs that have equal work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, inout, s32
from tilecat.kernels.gemm import matmul

from .schedules import Check, Make, check_schedules, silent

FIELDS = ("cta", "row", "col", "first", "steps", "ends", "slot", "partials")
MOST = 4096


@tc.kernel
def visit(Tasks: inout[s32, "T", 8], Count: inout[s32, 1], Rows: inout[s32, "R", "S"],
          Steps: inout[s32, 1], *, cut, parts, slots):  # fmt: skip
    """A line of Tasks for each, in the order in which CTAs take them."""
    steps = tc.load(Steps.at(0), s32)
    with tc.one_thread():
        order = cut(tc.row_major(Rows.rows, Rows.cols), parts, steps, slots=slots)
        for number in tc.range(tc.cta_id(), order.count, tc.num_ctas()):
            task = order.task(number)
            line = tc.load(Count.at(0), s32)
            tc.store(Count.at(0), line + 1)
            ends = tc.select(task.ends, 1, 0)
            found = (tc.cta_id(), task.row, task.col, task.first_step, task.steps, ends,
                     task.slot, task.partials)  # fmt: skip
            for field, value in enumerate(found):
                tc.store(Tasks.at(line, field), value)


@dataclass(frozen=True)
class Seen:
    """One task."""

    cta: int
    row: int
    col: int
    first: int
    steps: int
    ends: int
    slot: int
    partials: int


def tasks_of(
    cut, parts: int, rows: int, cols: int, steps: int, grid: int, slots: int | None = None
) -> list[Seen]:
    tasks, count = np.full((MOST, len(FIELDS)), -1, np.int32), np.zeros(1, np.int32)
    shape = np.zeros((rows, cols), np.int32)
    visit.simulate(tasks, count, shape, np.array([steps], np.int32), cut=cut, parts=parts,
                   slots=slots, grid=grid, races=False)  # fmt: skip
    return [Seen(*map(int, line)) for line in tasks[: count[0]]]


def check_tiles(tasks: list[Seen], rows: int, cols: int, steps: int) -> None:
    """Each step of each tile once; one task ends it, and adds the others' places, each once."""
    tiles: dict[tuple[int, int], list[Seen]] = {}
    for task in tasks:
        tiles.setdefault((task.row, task.col), []).append(task)
    assert len(tiles) == rows * cols
    left = [task.slot for task in tasks if not task.ends]
    assert len(set(left)) == len(left), "a place has the sums of one task"
    for shared in tiles.values():
        done = sorted(k for t in shared for k in range(t.first, t.first + t.steps))
        assert done == list(range(steps))
        (last,) = [task for task in shared if task.ends]
        others = [task for task in shared if not task.ends]
        added = list(range(last.slot, last.slot + last.partials))
        assert sorted(task.slot for task in others) == added


CASES = [(2, 2, 5, 1), (2, 2, 5, 3), (2, 2, 5, 4), (2, 2, 5, 7), (2, 2, 5, 31), (3, 3, 16, 8),
         (19, 7, 64, 132), (11, 18, 24, 132), (2, 2, 0, 3), (1, 1, 1, 5), (4, 1, 100, 132),
         (5, 10, 7, 33)]  # fmt: skip


@pytest.mark.parametrize("rows, cols, steps, grid", CASES)
@pytest.mark.parametrize("parts", [2, 8])
def test_stream_k_shares_the_last_wave(rows, cols, steps, grid, parts):
    tasks = tasks_of(tc.stream_k, parts, rows, cols, steps, grid)
    check_tiles(tasks, rows, cols, steps)
    waves, rest = divmod(rows * cols, grid)
    sharers = min(grid, rest * parts, rest * max(steps, 1))
    work = np.zeros(grid, int)
    order: dict[int, list[Seen]] = {}
    for task in tasks:
        work[task.cta] += task.steps
        order.setdefault(task.cta, []).append(task)
    share = -(-rest * steps // sharers) if rest else 0
    assert work.max() <= waves * steps + share, "the last wave takes a share of the steps"
    for mine in order.values():
        assert all(task.steps == steps and task.ends and task.partials == 0
                   for task in mine[:waves])  # fmt: skip
        ending = [task.ends for task in mine[waves:]]
        assert ending in ([], [0], [1], [0, 1], [1, 1]), "who waits has left its own sums before"
    by_slot = {task.slot: task for task in tasks if not task.ends}
    for task in tasks:
        if task.ends:
            firsts = [by_slot[task.slot + i] for i in range(task.partials)]
            assert all(other.cta < task.cta for other in firsts), "waits for lower numbers alone"
            assert [t.first for t in (task, *firsts)] == sorted(t.first for t in (task, *firsts))


@pytest.mark.parametrize("rows, cols, steps, grid", CASES[:4] + CASES[5:6])
@pytest.mark.parametrize("parts", [2, 7])
def test_split_k_shares_every_tile(rows, cols, steps, grid, parts):
    tasks = tasks_of(tc.split_k, parts, rows, cols, steps, grid)
    check_tiles(tasks, rows, cols, steps)
    assert len(tasks) == rows * cols * parts
    assert max(task.slot + 1 for task in tasks if not task.ends) == rows * cols * (parts - 1)


@pytest.mark.parametrize("slots", [0, 1, 2, 5, 6, 11, 40])
@pytest.mark.parametrize("cut", [tc.split_k, tc.stream_k])
def test_no_more_share_than_there_are_places(cut, slots):
    rows, cols, steps, grid = 5, 3, 8, 13
    tasks = tasks_of(cut, 4, rows, cols, steps, grid, slots)
    check_tiles(tasks, rows, cols, steps)
    assert all(task.slot < slots for task in tasks if not task.ends)


NOT_SEEN = [
    "consumer: bar.sync #1",  # of the machine, threads of a CTA are one for another CTA
    "consumer: fence.proxy.async #1", "consumer: fence.proxy.async #2",  # TMA moves no sums
    "consumer: bar.sync #3",  # flags are taken down for the next launch, the sums' next writer
    # An output of one tile a consumer: nobody waits for its stage.
    "consumer: cp.async.bulk.wait_group.read #1", "consumer: bar.sync #4",
    "consumer: cp.async.bulk.commit_group #1",
]  # fmt: skip


def shared_product(slots: int) -> tuple[Make, Check]:
    """Arguments of the GEMM whose K is shared; a check of the product, and of flags left down."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(bf16.numpy) for s in ((128, 264), (264, 128)))
    wanted = a.astype(np.float64) @ b.astype(np.float64)

    def make() -> list[Any]:
        sums = np.full((64 * slots, 64), np.nan, np.float32)
        return [a, b, np.full(wanted.shape, np.nan, np.float32), sums, np.zeros(slots, np.int32)]

    def check(args: list[Any]) -> None:
        np.testing.assert_allclose(args[2], wanted, rtol=1e-5, atol=1e-4)
        assert not args[4].any()

    return make, check


@pytest.mark.parametrize("params", [{"split_k": 2}, {"stream_k": 3}], ids=str)
def test_every_synchronisation_of_shared_k_is_needed(params):
    make, check = shared_product(16)
    options = {"tile_m": 64, "tile_n": 64, "stages": 2, **params}
    check_schedules(matmul, make, check, grid=7, **options)
    assert silent(matmul, make, check, grid=7, seeds=(0, 1, 2), **options) == NOT_SEEN
