"""`tilecat layout`: its numbers against the manual's fragments and against counted addresses."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

import tilecat as tc
from tilecat import bf16, f32, gl, rt, st, u8
from tilecat.check import shared_accesses
from tilecat.cli import main
from tilecat.cli.layout import chunk_cell, register_cell, tile_of, vector_rows
from tilecat.errors import LayoutError
from tilecat.layouts.degrees import access_degrees


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["layout", *words])
    assert result.exit_code == code, result.output
    return result.output


def test_layout_of_an_accumulator_is_the_manuals():
    """PTX ISA, wgmma: D fragment: lane = row % 8 * 4 + col % 8 // 2."""
    layout = tile_of("rt[f32, 64, 32]").layout
    for row in range(64):
        for col in range(32):
            lane = row % 8 * 4 + col % 8 // 2
            register = col // 8 * 4 + row % 16 // 8 * 2 + col % 2
            assert register_cell(layout, row, col) == f"{lane}:{register}"
    out = call("rt[f32, 64, 32]", "--rows", "16:18", "--cols", "8:12")
    assert "16     1  0:4  0:5  1:4  1:5" in out


def test_layout_of_a_b_operand_is_the_manuals():
    """PTX ISA, mma.m16n8k16: B fragment: lane = n * 4 + k % 8 // 2; two k's share a register."""
    layout = tile_of("rt[bf16, 16, 16, col]").layout
    for k in range(16):
        for n in range(16):
            lane, register = n % 8 * 4 + k % 8 // 2, n // 8 + 2 * (k // 8)
            assert register_cell(layout, k, n) == f"{lane}:{register}{'ab'[k % 2]}"


def test_layout_of_a_shared_tile_is_the_swizzle():
    out = call("st[bf16, 64, 128]", "--rows", "3:4", "--cols", "64:72")
    # Panel 1, line 3, chunk 0 of the line: 8192 + 3 * 128, and the chunk's index XORed with 3.
    assert "8624 c539 b12" in out
    layout = tile_of("st[bf16, 64, 128]").layout
    assert chunk_cell(layout, 3, 70 // 8 * 8) == "8624 c539 b12"
    assert "2 of 64 columns: 64 lines of 128 bytes, 8,192 bytes" in out


def brute(kind: str, swizzle: int, column: int) -> int:
    """Words of the busiest bank when 32 rows of a column are read."""
    layout = tile_of(kind, swizzle=swizzle).layout
    words = {int(layout.byte_offset(row, column)) // 4 for row in range(32)}
    return max(Counter(word % 32 for word in words).values())


@pytest.mark.parametrize("swizzle", [128, 64, 32, 0])
def test_degree_of_a_column_is_counted_from_addresses(swizzle: int):
    found = {d.name: d for d in access_degrees(tile_of("st[bf16, 64, 64]", swizzle=swizzle).layout)}
    column = found["column, an element a lane"]
    assert column.ways == max(brute("st[bf16, 64, 64]", swizzle, c) for c in range(64))
    assert found["ldmatrix, 8 lines"].ways == {128: 1, 64: 1, 32: 1, 0: 8}[swizzle]
    # 16 columns a panel of 32 bytes: a row of 32 lies in two panels, at the same banks.
    assert found["row, an element a lane"].ways == (2 if swizzle == 32 else 1)


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize(
    "kind", [st[d, *s] for d in (f32, bf16, u8) for s in ((64, 64), (64, 128), (128, 64, "col"))],
    ids=str,
)
def test_degrees_of_whole_tiles_are_those_of_what_is_emitted(kind: Any, order: str):
    def moves(A: gl[kind.dtype, "M", "N"]):
        tile = tc.shared(kind)
        with tc.warpgroup():
            tc.store(tile, tc.load(A[0, 0], rt[kind.dtype, *kind.shape, order]))

    found = [d for d in access_degrees(kind.layout) if d.name.startswith(f"{order}-order")]
    try:
        kernel = tc.kernel(moves).compile().kernel
    except LayoutError:  # no instruction moves parts of registers, or no such register tile
        assert not found
        return
    (access,) = shared_accesses(kernel)
    assert [(d.width_bytes, d.ways) for d in found] == [(access.width_bytes, access.ways)]
    assert found[0].wavefronts == sum(request.wavefronts for request in access.requests)


def test_degrees_are_printed():
    out = call("st[bf16, 64, 64]", "--swizzle", "0")
    row = next(line for line in out.splitlines() if "ldmatrix.x4.trans" in line)
    assert row.split()[-4:] == ["16", "128", "16", "8-way"]
    out = call("st[bf16, 64, 64]")
    assert "stmatrix, 8 lines" in out and out.count("1-way") == 5 and out.count("4-way") == 1


def test_layout_of_vectors():
    rows = {int(position): (threads, index) for position, threads, index in
            vector_rows(tile_of("rv[f32, 64]").layout)}  # fmt: skip
    assert rows[17] == ("36-39", "0") and rows[25] == ("36-39", "1") and len(rows) == 64
    columns = vector_rows(tile_of("rv[f32, 16, col]").layout)
    assert columns[2] == ("2", "1, 5, ... 125", "0")
    assert tile_of("rv[f32, 64, plain]") == tc.rv[f32, 64, "plain"]
    last = call("sv[f32, 64]").split()[-3:]
    assert last == ["63", "252", "31"]


def test_options_change_the_tile():
    assert tile_of("rt[bf16, 64, 64]", warps=1) == tc.rt[bf16, 64, 64].held_by(1)
    assert tile_of("st[bf16, 64, 64]", order="col") == tc.st[bf16, 64, 64, "col"]
    assert tile_of("st[bf16, 64, 64, col]", order="row") == tc.st[bf16, 64, 64]
    assert tile_of("st[bf16, 64, 64]", swizzle=32).layout.swizzle_bytes == 32


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("st",), 2, "no tile type: 'st'"),
        (("gl[bf16, 64]",), 2, "there are st, sv, rt, rv"),
        (("st[b16, 64, 64]",), 1, "no element type of that name"),
        (("st[bf16, 64, 60]",), 1, "cols must be a multiple of 16"),
        (("st[bf16, 64, 1 + 1]",), 2, "no item '1 + 1'"),
        (("rt[bf16, 64, 64]", "--swizzle", "32"), 2, "is for shared tiles"),
        (("st[bf16, 64, 16]", "--swizzle", "128"), 1, "swizzle_bytes"),
        (("st[bf16, 64, 64]", "--rows", "4"), 2, "FIRST:END"),
        (("st[bf16, 64, 64]", "--rows", "64:70"), 2, "the tile has 64"),
        (("rv[f32, 64]", "--png", "x.png"), 2, "pictures are of tiles"),
    ],
)
def test_layout_says_what_is_wrong(words, code, text):
    assert text in call(*words, code=code)


@pytest.mark.parametrize("kind", ["st[f32, 16, 64, col]", "rt[e4m3, 64, 64]", "rt[bf16, 16, 16]"])
def test_layout_draws(kind: str, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    png, svg = tmp_path / "a.png", tmp_path / "a.svg"
    out = call(kind, "--png", str(png), "--svg", str(svg), "--rows", "0:8", "--cols", "0:16")
    assert out.count("written: ") == 2
    pixels = image.imread(png)
    assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 8  # colours
    assert svg.read_text().lstrip().startswith("<?xml")


def test_drawing_without_matplotlib_says_so(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    out = call("st[bf16, 64, 64]", "--png", str(tmp_path / "a.png"), code=1)
    assert "pictures need matplotlib" in out and "pip install 'tilecat[plot]'" in out


def test_tile_of_raises_clicks_errors():
    with pytest.raises(click.BadParameter):
        tile_of("st[bf16")
