"""Layouts of shared and register tiles, against tables and formulas of the manual written again."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as hs

from tilecat.dtypes import DType, bf16, e2m1, e4m3, f16, f32, pred, s8, s32, s64, tf32
from tilecat.errors import DTypeError, LayoutError
from tilecat.layouts import LinearMap, RegisterLayout, SharedLayout, VectorLayout

# PTX ISA, Swizzling Modes: the chunk of 16 bytes found at each place of successive 128-byte lines.
SWIZZLE_TABLES = {
    0: ("01234567",),
    32: ("01234567", "10325476"),
    64: ("01234567", "10325476", "23016745", "32107654"),
    128: (
        *("01234567", "10325476", "23016745", "32107654"),
        *("45670123", "54761032", "67452301", "76543210"),
    ),
}
ORDERS = ("row", "col")


def widths(dtype: DType) -> range:
    """Legal widths from 16 to 256."""
    step = 32 if dtype.bits == 8 else 16
    return range(step, 257, step)


def legal_swizzles(width_bytes: int) -> list[int]:
    """Swizzles that divide a width, and none."""
    return [s for s in (128, 64, 32) if width_bytes % s == 0] + [0]


def written_by_tma(lines: int, width: int, size: int, swizzle: int) -> np.ndarray:
    """Place of each byte of a tile (lines x width bytes) when TMA writes it box by box."""
    box = swizzle or width * size
    place = np.full((lines, width * size), -1)
    for panel in range(width * size // box):
        chunk = np.arange(lines * box // 16)
        line, spot = chunk // 8, chunk % 8
        table = np.array([[int(c) for c in row] for row in SWIZZLE_TABLES[swizzle]])
        found = 8 * line + table[line % len(table), spot]
        # `found[p]` is the chunk that lies at place p of the panel.
        for byte in range(16):
            source = found * 16 + byte
            place[source // box, panel * box + source % box] = (
                panel * lines * box + chunk * 16 + byte
            )
    return place


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [e4m3, bf16, f32, s64], ids=str)
def test_shared_tile_is_what_tma_writes(dtype: DType, order: str):
    size = dtype.bits // 8
    for width in widths(dtype):
        for swizzle in legal_swizzles(width * size):
            lines = 64 if width % 64 else 48
            shape = (lines, width) if order == "row" else (width, lines)
            layout = SharedLayout.of(dtype, *shape, order, swizzle)
            row, col = np.indices(shape)
            got = layout.byte_offset(row, col)
            wanted = written_by_tma(lines, width, size, swizzle)[:, ::size]
            np.testing.assert_array_equal(got, wanted if order == "row" else wanted.T)
            assert layout.num_bytes == lines * width * size
            assert layout.alignment == {128: 1024, 64: 512, 32: 256, 0: 128}[swizzle]
            back = layout.row_col(got + size - 1)
            np.testing.assert_array_equal(back, (row, col))


@pytest.mark.parametrize(
    ("dtype", "width", "swizzle", "panel", "count"),
    [
        (bf16, 16, 32, 16, 1),
        (bf16, 32, 64, 32, 1),
        (bf16, 48, 32, 16, 3),
        (bf16, 64, 128, 64, 1),
        (bf16, 96, 64, 32, 3),
        (bf16, 256, 128, 64, 4),
        (e4m3, 32, 32, 32, 1),
        (e4m3, 192, 64, 64, 3),
        (f32, 16, 64, 16, 1),
        (f32, 48, 64, 16, 3),
        (f32, 64, 128, 32, 2),
    ],
)
def test_shared_tile_takes_the_widest_swizzle(dtype, width, swizzle, panel, count):
    layout = SharedLayout.of(dtype, 64, width)
    assert (layout.swizzle_bytes, layout.panel_elems, layout.num_panels) == (swizzle, panel, count)
    assert layout.panel_bytes == 64 * swizzle
    transposed = SharedLayout.of(dtype, width, 64, "col")
    assert (transposed.swizzle_bytes, transposed.num_panels) == (swizzle, count)


def test_shared_tile_docstring_example():
    layout = SharedLayout.of(bf16, 64, 128)
    assert (layout.num_panels, layout.panel_elems, layout.panel_bytes) == (2, 64, 8192)
    assert layout.byte_offset(3, 70) == 8636
    assert layout.row_col(8636) == (3, 70)


@pytest.mark.parametrize("swizzle", [128, 64, 32, 0])
def test_panel_map_is_its_own_inverse_and_gives_the_offsets(swizzle: int):
    layout = SharedLayout.of(bf16, 48, 64, swizzle_bytes=swizzle)
    assert layout.panel_map.inverse() == layout.panel_map
    assert layout.panel_map @ layout.panel_map == LinearMap.identity(layout.panel_map.in_bits)
    row, col = np.indices((48, layout.panel_elems))
    plain = row * layout.pitch_bytes + 2 * col
    np.testing.assert_array_equal(layout.panel_map(plain), layout.byte_offset(row, col))


@given(
    dtype=hs.sampled_from([e4m3, f16, f32]),
    lines=hs.integers(1, 16),
    panels=hs.integers(1, 8),
    order=hs.sampled_from(ORDERS),
)
def test_shared_tile_offsets_fill_the_tile_once(dtype, lines, panels, order):
    shape = (16 * lines, 32 * panels)
    layout = SharedLayout.of(dtype, *(shape if order == "row" else shape[::-1]), order)
    offsets = layout.byte_offset(*np.indices((layout.rows, layout.cols)))
    size = dtype.nbytes
    np.testing.assert_array_equal(np.sort(offsets.ravel()), np.arange(offsets.size) * size)


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (
            (bf16, 64, 24),
            "shared tile: cols must be a multiple of 16 for bf16 in row order, got cols=24 (int)",
            "the nearest legal cols is 32",
        ),
        (
            (e4m3, 64, 80),
            "shared tile: cols must be a multiple of 32 for e4m3 in row order, got cols=80 (int)",
            "the nearest legal cols is 96",
        ),
        (
            (bf16, 8, 64),
            "shared tile: rows must be a multiple of 16 for bf16 in row order, got rows=8 (int)",
            "the nearest legal rows is 16",
        ),
        (
            (bf16, 64, 12, "col"),
            "shared tile: cols must be a multiple of 8 for bf16 in col order, got cols=12 (int)",
            "the nearest legal cols is 16",
        ),
        (
            (s8, 16, 64, "col"),
            "shared tile: rows must be a multiple of 32 for s8 in col order, got rows=16 (int)",
            "the nearest legal rows is 32",
        ),
        (
            (bf16, 64, 48, "row", 128),
            "shared tile: swizzle_bytes must be 128, 64, 32 or 0 and divide the 96 bytes of "
            "cols=48 bf16, got swizzle_bytes=128 (int)",
            "take swizzle_bytes=32 or 0",
        ),
        (
            (bf16, 64, 64, "diagonal"),
            "shared tile: order must be row or col, got order='diagonal' (str)",
            'order="row" keeps columns contiguous, order="col" rows',
        ),
    ],
)
def test_shared_tile_errors(args, message, hint):
    with pytest.raises(LayoutError) as error:
        SharedLayout.of(*args)
    assert error.value.message == message
    assert error.value.hint == hint


def test_shared_tile_rejects_packed_types_and_outside_elements():
    with pytest.raises(DTypeError, match="elements must be whole bytes, got dtype=e2m1"):
        SharedLayout.of(e2m1, 64, 64)
    layout = SharedLayout.of(bf16, 64, 64)
    with pytest.raises(
        LayoutError, match=re.escape("row must be in [0, 64), got row from 64 to 64")
    ):
        layout.byte_offset(64, 0)
    with pytest.raises(
        LayoutError, match=re.escape("col must be in [0, 64), got col from -1 to 3")
    ):
        layout.byte_offset(0, np.arange(-1, 4))


# PTX ISA, mma: Matrix Fragments. Row and column of element i of lane `lane`, by instruction.


def accumulator(lane: int, i: int) -> tuple[int, int]:
    """C or D of m16n8."""
    return lane // 4 + (0 if i < 2 else 8), lane % 4 * 2 + (i & 1)


def a_16_bit(lane: int, i: int) -> tuple[int, int]:
    """A of m16n8k16."""
    row = lane // 4 + (0 if i < 2 or 4 <= i < 6 else 8)
    return row, lane % 4 * 2 + (i & 1) + (0 if i < 4 else 8)


def a_8_bit(lane: int, i: int) -> tuple[int, int]:
    """A of m16n8k32."""
    row = lane // 4 + (0 if i < 4 or 8 <= i < 12 else 8)
    return row, lane % 4 * 4 + (i & 3) + (0 if i < 8 else 16)


def a_tf32(lane: int, i: int) -> tuple[int, int]:
    """A of m16n8k8."""
    return lane // 4 + (0 if i in (0, 2) else 8), lane % 4 + (0 if i < 2 else 4)


def b_16_bit(lane: int, i: int) -> tuple[int, int]:
    """B of m16n8k16."""
    return lane % 4 * 2 + (i & 1) + (0 if i < 2 else 8), lane // 4


def b_8_bit(lane: int, i: int) -> tuple[int, int]:
    """B of m16n8k32."""
    return lane % 4 * 4 + (i & 3) + (0 if i < 4 else 16), lane // 4


def b_tf32(lane: int, i: int) -> tuple[int, int]:
    """B of m16n8k8."""
    return lane % 4 + (0 if i == 0 else 4), lane // 4


@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize(
    ("dtype", "fragment", "k", "num"),
    [
        *((dtype, accumulator, 8, 4) for dtype in (f32, s32, f16, pred, s64)),
        *((dtype, a_16_bit, 16, 8) for dtype in (bf16, f16)),
        *((dtype, a_8_bit, 32, 16) for dtype in (e4m3, s8)),
        (tf32, a_tf32, 8, 4),
    ],
)
def test_register_tile_is_the_fragment_repeated(dtype, fragment, k, num, warps):
    layout = RegisterLayout(dtype, 32 * warps, 96, warps)
    for thread in range(0, 32 * warps, 7):
        warp, lane = divmod(thread, 32)
        wanted = [
            (16 * warps * block + 16 * warp + row, k * step + col)
            for block in range(2)
            for step in range(96 // k)
            for row, col in (fragment(lane, i) for i in range(num))
        ]
        row, col = layout.row_col(thread, np.arange(layout.elements_per_thread))
        assert list(zip(row.tolist(), col.tolist(), strict=True)) == wanted


@pytest.mark.parametrize(
    ("dtype", "fragment", "k", "num"),
    [(bf16, b_16_bit, 16, 4), (e4m3, b_8_bit, 32, 8), (tf32, b_tf32, 8, 2)],
)
def test_column_register_tile_holds_the_b_fragments(dtype, fragment, k, num):
    """A k-step of 16 columns is 4 registers: 0 and 2 are B of columns 0-7, 1 and 3 of 8-15."""
    layout = RegisterLayout(dtype, 2 * k, 32, 1, "col")
    per_register = layout.elements_per_register
    registers = layout.registers_per_thread
    assert registers == 4 * 2 * 2
    for lane in range(32):
        for block in range(2):
            for step in range(2):
                for half in range(2):
                    first = 4 * (2 * block + step) + half
                    held = [
                        layout.row_col(lane, register * per_register + e)
                        for register in (first, first + 2)
                        for e in range(per_register)
                    ]
                    wanted = [fragment(lane, i) for i in range(num)]
                    shift = (k * step, 16 * block + 8 * half)
                    assert held == [(r + shift[0], c + shift[1]) for r, c in wanted]


@given(
    dtype=hs.sampled_from([f32, bf16, e4m3, tf32]),
    warps=hs.sampled_from([1, 4]),
    blocks=hs.integers(1, 3),
    steps=hs.integers(1, 8),
    order=hs.sampled_from(ORDERS),
)
def test_register_tile_index_of_is_the_inverse(dtype, warps, blocks, steps, order):
    shape = (16 * warps * blocks, 32 * steps)
    layout = RegisterLayout(dtype, *(shape if order == "row" else shape[::-1]), warps, order)
    thread, index = np.indices((32 * warps, layout.elements_per_thread))
    row, col = layout.row_col(thread, index)
    np.testing.assert_array_equal(np.unique(row * layout.cols + col), np.arange(row.size))
    np.testing.assert_array_equal(layout.index_of(row, col), (thread, index))


def test_register_tile_docstring_example_and_counts():
    layout = RegisterLayout(f32, 64, 256, 4)
    assert (layout.elements_per_thread, layout.registers_per_thread) == (128, 128)
    assert layout.row_col(37, 6) == (25, 10)
    assert layout.index_of(25, 10) == (37, 6)
    assert RegisterLayout(bf16, 64, 256, 4).registers_per_thread == 64
    assert RegisterLayout(e4m3, 64, 256, 4).registers_per_thread == 32
    assert RegisterLayout(s64, 64, 8, 4).registers_per_thread == 8
    assert RegisterLayout(pred, 64, 8, 4).registers_per_thread == 4
    assert layout.same_places(RegisterLayout(bf16, 64, 256, 4))
    assert not layout.same_places(RegisterLayout(tf32, 64, 256, 4))
    assert not layout.same_places(RegisterLayout(e4m3, 64, 256, 4))


def test_register_tile_is_linear_in_thread_and_index_bits():
    """128 threads x 32 elements of a 64 x 64 tile: 12 bits to 6 + 6 bits."""
    layout = RegisterLayout(bf16, 64, 64, 4)

    def place(x: int) -> int:
        row, col = layout.row_col(x >> 5, x & 31)
        return row << 6 | col

    places = LinearMap.of(place, 12, 12)
    assert places.is_injective
    assert places.inverse() @ places == LinearMap.identity(12)


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (
            (f32, 32, 64, 4),
            "register tile: rows must be a multiple of 64 for f32 in row order over 4 warps, "
            "got rows=32 (int)",
            "the nearest legal rows is 64",
        ),
        (
            (bf16, 24, 64, 1),
            "register tile: rows must be a multiple of 16 for bf16 in row order over 1 warp, "
            "got rows=24 (int)",
            "the nearest legal rows is 32",
        ),
        (
            (e4m3, 16, 48, 1),
            "register tile: cols must be a multiple of 32 for e4m3 in row order over 1 warp, "
            "got cols=48 (int)",
            "the nearest legal cols is 64",
        ),
        (
            (bf16, 16, 12, 1, "col"),
            "register tile: cols must be a multiple of 16 for bf16 in col order over 1 warp, "
            "got cols=12 (int)",
            "the nearest legal cols is 16",
        ),
        (
            (bf16, 16, 16, 2),
            "register tile: warps must be 1 or 4, got warps=2 (int)",
            "a warp's tile or a warpgroup's",
        ),
    ],
)
def test_register_tile_errors(args, message, hint):
    with pytest.raises(LayoutError) as error:
        RegisterLayout(*args)
    assert (error.value.message, error.value.hint) == (message, hint)


@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize("dtype", [f32, bf16, e4m3, tf32], ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_vectors_lie_with_the_tile(dtype, warps, order):
    """Each thread holds the vector's value of every row and column of its own elements."""
    shape = (32 * warps, 96)
    tile = RegisterLayout(dtype, *(shape if order == "row" else shape[::-1]), warps, order)
    for axis, kinds in (("rows", ("aligned", "orthogonal")), ("cols", ("orthogonal", "aligned"))):
        vector = tile.vector(axis, f32)
        assert vector.dtype is f32
        assert tile.vector(axis).dtype is dtype
        assert vector.kind == kinds[ORDERS.index(order)]
        thread, index = np.indices((tile.threads, vector.elements_per_thread))
        held = vector.position(thread, index)
        owned = tile.row_col(*np.indices((tile.threads, tile.elements_per_thread)))
        for t in range(tile.threads):
            mine = owned[0 if axis == "rows" else 1][t]
            np.testing.assert_array_equal(np.unique(held[t]), np.unique(mine))
            assert len(np.unique(held[t])) == vector.elements_per_thread
        everything = np.arange(vector.length)
        first, at = vector.index_of(everything)
        np.testing.assert_array_equal(vector.position(first, at), everything)
        lowest = [int(np.nonzero((held == x).any(axis=1))[0][0]) for x in everything]
        np.testing.assert_array_equal(first, lowest)


def test_vector_counts_and_plain_layout():
    assert VectorLayout(f32, 64, 4, "aligned").elements_per_thread == 2
    assert VectorLayout(f32, 256, 4, "orthogonal").elements_per_thread == 64
    plain = VectorLayout(f32, 300, 4, "plain")
    assert (plain.elements_per_thread, plain.index_of(299), plain.position(43, 2)) == (
        3,
        (43, 2),
        299,
    )
    rows = VectorLayout(f32, 64, 4, "aligned").position(37, np.arange(2))
    assert rows.tolist() == [17, 25]
    assert VectorLayout(f32, 256, 4, "orthogonal").position(37, np.arange(4)).tolist() == [
        2,
        3,
        10,
        11,
    ]
    with pytest.raises(LayoutError) as error:
        VectorLayout(f32, 24, 1, "aligned")
    assert error.value.message == (
        "register vector: length must be a multiple of 16 in aligned layout for f32, "
        "got length=24 (int)"
    )
