"""TMA of four rows of a matrix: gather4 and scatter4."""

import numpy as np
import pytest

from tilecat import sim
from tilecat.errors import MachineError

from .test_tma import MAPS, PROLOGUE, STORE
from .texts import clean, kernel, kinds, run

GATHER = ("cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes "
          "[%r2], [%d1, {COL, R0, R1, R2, R3}], [%r3];")  # fmt: skip
SCATTER = ("cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group "
           "[%d2, {TO, S0, S1, S2, S3}], [%r2];")  # fmt: skip


def _text(rows: tuple, col: int, to_rows: tuple, to_col: int, num_bytes: int) -> str:
    load, store = GATHER.replace("COL", str(col)), SCATTER.replace("TO", str(to_col))
    for index, (row, to) in enumerate(zip(rows, to_rows, strict=True)):
        load = load.replace(f"R{index}", str(row))
        store = store.replace(f"S{index}", str(to))
    body = PROLOGUE.format(barrier=32768, num_bytes=num_bytes, load=load)
    return kernel(f"{body}\n{store} {STORE}\nEND:", MAPS).replace("sm_90a", "sm_100a")


def _maps(swizzle: int, box: tuple = (64, 1)):
    source = np.random.default_rng(0).integers(1, 2**16, (12, 96)).astype(np.uint16)
    target = np.zeros((16, 128), np.uint16)
    return source, target, [sim.TensorMap(x, box, swizzle, "u16") for x in (source, target)]


@pytest.mark.parametrize("swizzle", [0, 128])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rows_go_where_the_coordinates_say(swizzle, seed):
    """Rows and columns beyond the source are zero, rows beyond the target are left out."""
    source, target, maps = _maps(swizzle)
    rows, to_rows = (7, 2, 12, 0), (3, 15, 1, 16)
    clean(run(_text(rows, 56, to_rows, 8, 4 * 128), maps, seed=seed))
    want = np.zeros_like(target)
    padded = np.pad(source, ((0, 4), (0, 64)))
    for row, to in zip(rows[:3], to_rows[:3], strict=True):
        want[to, 8:72] = padded[row, 56:120]
    np.testing.assert_array_equal(target, want)


def test_an_mbarrier_counts_all_four_rows():
    _, _, maps = _maps(0)
    text = _text((0, 1, 2, 3), 0, (0, 1, 2, 3), 0, 128)
    assert kinds(run(text, maps)) & {"deadlock", "mbarrier", "race", "uninitialised"}


def test_boxes_are_of_one_row():
    _, _, maps = _maps(0, (64, 4))
    text = _text((0, 1, 2, 3), 0, (0, 1, 2, 3), 0, 512)
    assert "boxes of one row" in str(run(text, maps))


def test_five_coordinates_are_wanted():
    _, _, maps = _maps(0)
    text = _text((0, 1, 2, 3), 0, (0, 1, 2, 3), 0, 512)
    with pytest.raises(MachineError, match="coordinates"):
        run(text.replace("{0, 0, 1, 2, 3}], [%r3]", "{0, 0}], [%r3]"), maps)
    with pytest.raises(MachineError, match="four rows"):
        run(text.replace("{0, 0, 1, 2, 3}], [%r2]", "{0, 0}], [%r2]"), maps)


def test_hopper_has_none():
    _, _, maps = _maps(0)
    text = _text((0, 1, 2, 3), 0, (0, 1, 2, 3), 0, 512).replace("sm_100a", "sm_90a")
    with pytest.raises(MachineError, match="not supported on target sm_90a"):
        run(text, maps)


def test_a_row_stored_twice_by_two_ctas_is_reported():
    _, _, maps = _maps(0)
    text = _text((0, 1, 2, 3), 0, (0, 1, 2, 3), 0, 512)
    assert "global-race" in kinds(run(text, maps, grid=2))
