"""The model of the L2 against traffic that is counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

import tilecat as tc
from tilecat.arch import ARCHS, DEFAULT_TARGET, arch_of
from tilecat.errors import LayoutError
from tilecat.model.l2 import Lru, Pace, Problem, traffic

# 4 x 4 tasks of 64 x 64, 10 steps of 16: A and B have 256 x 160 elements, 81,920 bytes each, and a
# tile of either 2,048 bytes. C's tiles, 8,192 bytes, take the room of a small cache.
SQUARE = Problem(256, 256, 160, 64, 64, 16)
EACH = 256 * 160 * 2
TILE = 64 * 16 * 2


def read(tasks: Any, l2_bytes: int, problem: Problem = SQUARE, ctas: int = 4) -> int:
    return traffic(problem, tasks, ctas=ctas, l2_bytes=l2_bytes).read_bytes


@pytest.mark.parametrize(
    ("tasks", "of_a", "of_b"),
    [
        (tc.row_major(4, 4), 1, 4),
        (tc.column_major(4, 4), 4, 1),
        (tc.grouped(4, 4, rows=2), 2, 2),
        (tc.snake(4, 4), 1, 4),
        (tc.custom_order(16, lambda t: {"row": t % 4, "col": (t + t // 4) % 4}), 4, 4),
    ],
    ids=lambda x: getattr(x, "name", x),
)  # fmt: skip
def test_a_small_cache_reads_what_each_wave_needs(tasks: Any, of_a: int, of_b: int):
    assert read(tasks, 8 * TILE) == (of_a + of_b) * EACH


def test_a_large_cache_reads_all_once():
    found = traffic(SQUARE, tc.row_major(4, 4), ctas=4, l2_bytes=1 << 20)
    assert found.read_bytes == found.least_bytes == 2 * EACH
    assert found.asked_bytes == 16 * 20 * TILE  # 16 tasks of 10 steps ask for two tiles each


def test_one_cta_at_a_time_reads_both_again_for_each_task():
    assert read(tc.row_major(4, 4), 2 * TILE, ctas=1) == 16 * 20 * TILE


def test_lru_loses_all_of_a_matrix_that_is_a_tile_too_large():
    """Row by row B goes round: 40 tiles; with room for a tile less of it, nothing is left of it."""
    whole = EACH + 11 * TILE + 4 * 8192  # B, a block row of A and a tile, the results of 4 tasks
    assert read(tc.row_major(4, 4), whole) == 2 * EACH
    assert read(tc.row_major(4, 4), EACH) == 5 * EACH


def test_a_snake_finds_what_the_wave_before_left():
    """2 x 4 tasks, waves of 2: the second row begins with the columns that the first ended with."""
    problem = Problem(128, 256, 160, 64, 64, 16)
    room = 20 * TILE + 10 * TILE + 2 * 8192 + 4 * TILE  # two block columns, a block row, results
    straight, turning = (read(make(2, 4), room, problem, 2) for make in (tc.row_major, tc.snake))
    assert straight == 20 * TILE + 80 * TILE  # A once, B for each row
    assert turning == 20 * TILE + 60 * TILE  # two of B's four block columns are still there


def test_edges_are_read_as_far_as_they_go():
    problem = Problem(100, 70, 50, 64, 64, 32)
    assert problem.blocks == (2, 2) and problem.steps == 2
    assert read(tc.row_major(2, 2), 1 << 20, problem) == (100 + 70) * 50 * 2


def test_lru_drops_what_was_used_longest_ago():
    cache = Lru(10)
    found = [cache.touch(key, 4, now) is not None for now, key in enumerate("abacab")]
    assert found == [False, False, True, False, True, False]
    assert cache.used_bytes == 8 and list(cache.held) == ["a", "b"]
    assert cache.touch("a", 4) == 0 and cache.touch("b", 4) == 5
    assert cache.touch("huge", 11) is None and cache.touch("huge", 11) is None


def test_groups_of_8_read_what_an_h200_was_seen_to():
    """8192^3 in bf16, 132 SMs, dram__bytes_read.sum of one launch (2026-11): 1.34 GB."""
    problem = Problem(8192, 8192, 8192, 128, 256, 64)
    room = arch_of(DEFAULT_TARGET).limit("l2_bytes")
    groups = read(tc.grouped(*problem.blocks, rows=8), room, problem, 132)
    assert abs(groups / 1.34e9 - 1) < 0.15
    assert read(tc.row_major(*problem.blocks), room, problem, 132) > 1.5 * groups


def test_what_the_model_cannot_say_is_an_error():
    with pytest.raises(LayoutError, match="order of Python numbers, of single CTAs, got 4 tasks"):
        traffic(SQUARE, tc.grouped(4, 4, rows=2, cluster=(2, 2)), ctas=4, l2_bytes=1)
    with pytest.raises(LayoutError, match="l2: tile_m is an int from 1 up, got tile_m=0"):
        Problem(1, 1, 1, 0, 1, 1)


def test_every_arch_says_how_large_its_l2_is():
    assert all(a.limit("l2_bytes") > 1 << 20 for a in ARCHS if a.knows("l2_bytes"))


def test_ctas_on_clocks_of_their_own_lose_what_they_share():
    """2 CTAs, one block column: in lockstep B is read once for both, apart twice."""
    problem = Problem(64 * 20, 64, 160, 64, 64, 16)  # 20 tasks of 10 steps, ten a CTA
    order, room = tc.column_major(20, 1), 6 * TILE

    def both(clocks: tuple[float, ...], room: int = room) -> int:
        pace = Pace(clocks, step_cycles=100.0)
        return traffic(problem, order, ctas=2, l2_bytes=room, pace=pace).read_bytes

    a, b = 20 * 10 * TILE, 10 * TILE
    assert both((1.0,)) == both((1.0, 1.0)) == a + 10 * b
    assert a + 10 * b < both((1.0, 0.98)) < both((1.0, 0.9)) < a + 18 * b
    assert both((1.0, 0.5)) >= a + 18 * b
    assert both((1.0, 0.5), 1 << 20) == a + b  # a cache that holds all of it loses nothing


def test_waves_say_who_waits_for_the_memory():
    pace = Pace(step_cycles=100.0, miss_cycles=50.0)
    found = traffic(SQUARE, tc.row_major(4, 4), ctas=4, l2_bytes=1 << 20, pace=pace)
    first, *later = found.waves
    assert (first.steps, first.waits_a, first.waits_b, first.waits) == (40,) * 4  # at one time
    assert [(w.waits_a, w.waits_b, w.waits) for w in later] == [(40, 0, 40)] * 3  # new rows of A
    assert sum(wave.read_bytes for wave in found.waves) == found.read_bytes
