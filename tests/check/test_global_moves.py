"""Vector widths of registers from and to tensors: those of the layout maps, and of the text."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, e4m3, f32, gl, rt, rv, s32, u8
from tilecat.check import global_moves
from tilecat.dtypes import DType
from tilecat.layouts.registers import fragment_of
from tilecat.ops.ranges import span

SUFFIX_BYTES = {"b8": 1, "b16": 2, "b32": 4, "f32": 4}
# dtype in memory, dtype in registers, order of the tile, of the tensor: bytes of an access.
# A lane holds 2 adjacent elements of 16 and 32 bits, 4 of 8 bits, whatever they become.
WIDTHS = [
    (f32, f32, "row", "row", 8), (s32, s32, "row", "row", 8), (bf16, bf16, "row", "row", 4),
    (e4m3, e4m3, "row", "row", 4), (u8, u8, "row", "row", 4), (f32, f32, "col", "row", 4),
    (f32, f32, "col", "col", 8), (bf16, bf16, "col", "row", 2), (bf16, bf16, "col", "col", 4),
    (f32, e4m3, "row", "row", 16), (s32, u8, "row", "row", 16), (bf16, e4m3, "row", "row", 8),
]  # fmt: skip


def copies(made: DType, held: DType, order: str) -> tc.KernelFunction:
    """`Y = X`, with the fragment of a dtype in registers."""

    def copy(X: gl[held, "M", "N"], Y: gl[made, "M", "N"]):
        with tc.warpgroup():
            tc.store(Y[0, 0], tc.cast(tc.load(X[0, 0], rt[held, 64, 64, order]), made))

    return tc.kernel(copy)


@pytest.mark.parametrize(("made", "held", "order", "lies", "width"), WIDTHS)
def test_widths_are_those_of_the_text(
    made: DType, held: DType, order: str, lies: str, width: int
):
    x = np.random.default_rng(0).integers(0, 9, (64, 64)).astype(held.numpy)
    y = np.zeros((64, 64), made.numpy)
    if lies == "col":
        x, y = np.asfortranarray(x), np.asfortranarray(y)
    kernel = copies(made, held, order)
    compiled = kernel.compile(x, y)
    assert not kernel.simulate(x, y, grid=1).reports
    assert (y.astype(float) == x.astype(float)).all()
    load, store = global_moves(compiled.kernel)
    assert store.width_bytes == width and store.edge_bytes == made.nbytes
    for move, name in ((load, "ld"), (store, "st")):
        other = name == "st" and fragment_of(made) != fragment_of(held)
        assert found(compiled.ptx, name) == written(move, masked=other)


def found(text: str, name: str) -> Counter[int]:
    """Bytes of each access in a text."""
    pattern = rf"\b{name}\.global\.(?:v(\d)\.)?(\w+)"
    return Counter(int(n or 1) * SUFFIX_BYTES[kind] for n, kind in re.findall(pattern, text))


def written(move: Any, *, masked: bool = False) -> Counter[int]:
    """Those of a move: whole tiles, and element by element at edges; or runs under masks."""
    if masked:
        return Counter({move.width_bytes: move.count})
    elements = move.count * move.width_bytes // move.edge_bytes
    counts = Counter({move.edge_bytes: elements})
    if move.width_bytes > move.edge_bytes:
        counts[move.width_bytes] += move.count
    return counts


def test_narrower_where_less_is_known_of_the_place():
    @tc.kernel
    def places(X: gl[u8, "M", "N"], Y: gl[s32, "B", "M", "K"], n: s32):
        with tc.warpgroup():
            held = tc.cast(tc.load(X[0, 0], rt[u8, 64, 32]), s32)
            for index, col in enumerate((n * 4, n * 2, n)):
                tc.store(Y.at(index, 0, col), held)

    x = np.random.default_rng(0).integers(0, 9, (64, 32), np.uint8)
    y = np.zeros((3, 64, 64), np.int32)
    assert not places.simulate(x, y, 3, grid=1).reports
    for index, col in enumerate((12, 6, 3)):
        assert (y[index, :, col : col + 32] == x).all()
        assert y[index].sum() == x.sum()
    stores = global_moves(places.compile(x, y, 3).kernel)[1:]
    assert [move.width_bytes for move in stores] == [16, 8, 4]


def test_places_of_two_tensors_keep_their_own_addresses():
    @tc.kernel
    def twin(X: gl[f32, 128, 64], Y: gl[f32, 128, 64], P: gl[f32, 128, 64], Q: gl[f32, 128, 64]):
        with tc.warpgroup():
            for row in range(2):
                for col in range(2):
                    tc.store(P[row, col], tc.load(X[row, col], rt[f32, 64, 32]))
                    tc.store(Q[row, col], tc.load(Y[row, col], rt[f32, 64, 32]))

    x = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)
    y, p, q = -1 - x, np.zeros_like(x), np.zeros_like(x)
    assert not twin.simulate(x, y, p, q, grid=1).reports
    assert (p == x).all() and (q == y).all()
    assert "edge" not in twin.compile(x, y, p, q).ptx


def test_last_round_of_a_plain_vector_is_masked():
    @tc.kernel
    def copy(X: gl[f32, 100], Y: gl[f32, 100]):
        with tc.warpgroup():
            tc.store(Y.at(0), tc.load(X.at(0), rv[f32, 100, "plain"]))

    x = np.arange(1, 101, dtype=np.float32)
    y = np.zeros_like(x)
    assert not copy.simulate(x, y, grid=1).reports
    assert (y == x).all()


def test_places_by_the_number_of_the_warp_need_no_masks_where_all_warps_are_inside():
    def by_warps(rows: int, step: int, first: int = 0) -> str:
        @tc.kernel
        def copy(X: gl[f32, rows, 32], Y: gl[f32, rows, 32]):
            with tc.warpgroup(), tc.warps():
                at = (tc.warp_id() * step + first, 0)
                tc.store(Y.at(*at), tc.load(X.at(*at), rt[f32, 16, 32].held_by(1)))

        x = np.arange(1, rows * 32 + 1, dtype=np.float32).reshape(rows, 32)
        y = np.zeros_like(x)
        assert not copy.simulate(x, y, grid=1).reports
        starts = [warp * step + first for warp in range(4)]
        moved = [row for row in range(rows) if any(0 <= row - start < 16 for start in starts)]
        wanted = np.zeros_like(x)
        wanted[moved] = x[moved]
        assert (y == wanted).all()
        return copy.compile(x, y).ptx

    for inside in ((64, 16), (80, 16, 16), (67, 17)):
        assert "edge" not in by_warps(*inside)
    for outside in ((63, 16), (79, 16, 16), (64, 16, -1), (66, 17)):
        assert "edge" in by_warps(*outside)


def test_span_of_scalars():
    @tc.kernel
    def spans(X: gl[f32, 64, 32], n: s32):
        with tc.warpgroup():
            warp = tc.warp_id()
            found.extend(span(value.value, 128) for value in (
                warp, warp * 16 + 8, 5 - warp * 3, (warp - 2) * (warp - 1), warp << 2, n + 1,
                warp * n, warp * 2**30, warp << warp,
            ))  # fmt: skip

    found: list[tuple[int, int] | None] = []
    spans.compile(np.zeros((64, 32), np.float32), 3)
    wanted = [(0, 3), (8, 56), (-4, 5), (-4, 2), (0, 12), None, None, None, (0, 24)]
    assert found == wanted and span(7, 128) == (7, 7) and span(2.0, 128) is None
