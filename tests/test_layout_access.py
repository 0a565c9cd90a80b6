"""Plans of register-to-shared moves, executed by the manual's ldmatrix, stmatrix and st.shared."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs

from tilecat.dtypes import bf16, e4m3, f16, f32, s64, tf32
from tilecat.errors import LayoutError
from tilecat.layouts import (
    AccessPlan,
    RegisterLayout,
    SharedLayout,
    matrix_mode,
    plan_access,
    stmatrix_applies,
    vector_width,
)

ORDERS = ("row", "col")


def stored(plan: AccessPlan, registers: RegisterLayout, num_bytes: int) -> np.ndarray:
    """Number of the element byte that each byte of the shared tile gets, -1 where none.

    The elements of thread t are the bytes (t, i), numbered t * bytes + i, in index order.
    """
    size = registers.dtype.nbytes
    own = registers.elements_per_thread * size
    memory = np.full(num_bytes, -1)
    for access in plan.accesses:
        first = access.index * size
        for thread in range(registers.threads):
            address = plan.byte_offset(access, thread)
            if plan.matrices == 0:
                byte = np.arange(plan.width_bytes)
                memory[address + byte] = thread * own + first + byte
            elif thread % 32 < 8 * plan.matrices:
                memory[address : address + 16] = matrix_row(plan, thread, first, own)
    return memory


def matrix_row(plan: AccessPlan, thread: int, first: int, own: int) -> list[int]:
    """The 8 16-bit elements of the row whose address `thread` gives (PTX ISA, stmatrix).

    Row r of matrix m is in register m: of threads 4r .. 4r+3, two each; with .trans its element
    c is the half r % 2 of thread 4 * c + r // 2.
    """
    warp, lane = divmod(thread, 32)
    matrix, row = divmod(lane, 8)
    held = []
    for c in range(8):
        holder, half = (4 * c + row // 2, row % 2) if plan.trans else (4 * row + c // 2, c % 2)
        start = (32 * warp + holder) * own + first + 4 * matrix + 2 * half
        held += [start, start + 1]
    return held


def wanted(registers: RegisterLayout, shared: SharedLayout, row: int, col: int) -> np.ndarray:
    """The same, from the two layouts alone."""
    size = registers.dtype.nbytes
    memory = np.full(shared.num_bytes, -1)
    thread, index = np.indices((registers.threads, registers.elements_per_thread))
    at_row, at_col = registers.row_col(thread, index)
    offset = shared.byte_offset(at_row + row, at_col + col)
    number = (thread * registers.elements_per_thread + index) * size
    for byte in range(size):
        memory[offset + byte] = number + byte
    return memory


@settings(max_examples=60, deadline=None)
@given(
    dtype=hs.sampled_from([bf16, e4m3, f32, tf32, s64]),
    warps=hs.sampled_from([1, 4]),
    steps=hs.integers(1, 4),
    orders=hs.tuples(hs.sampled_from(ORDERS), hs.sampled_from(ORDERS)),
    swizzle=hs.integers(0, 3),
    matrices=hs.booleans(),
)
def test_plans_move_every_element(dtype, warps, steps, orders, swizzle, matrices):
    shape = (32 * warps, 32 * steps)
    shape = shape if orders[0] == "row" else shape[::-1]
    registers = RegisterLayout(dtype, *shape, warps, orders[0])
    plain = SharedLayout.of(dtype, *shape, orders[1], 0)
    legal = [s for s in (128, 64, 32) if plain.line_bytes % s == 0] + [0]
    shared = SharedLayout.of(dtype, *shape, orders[1], legal[swizzle % len(legal)])
    plan = plan_access(registers, shared, matrices=matrices)
    got = stored(plan, registers, shared.num_bytes)
    np.testing.assert_array_equal(got, wanted(registers, shared, 0, 0))
    assert (plan.kind == "matrix") == (matrices and stmatrix_applies(registers, shared))


@settings(max_examples=40, deadline=None)
@given(
    dtype=hs.sampled_from([bf16, e4m3, f32, tf32]),
    line=hs.integers(0, 8),
    panel=hs.integers(0, 1),
    order=hs.sampled_from(ORDERS),
    swizzle=hs.sampled_from([None, 0]),
)
def test_plan_at_a_place_inside_a_larger_tile(dtype, line, panel, order, swizzle):
    registers = RegisterLayout(dtype, 64, 32, 4)
    shared = SharedLayout.of(dtype, 256, 256, order, swizzle)
    start = (8 * line, panel * shared.panel_elems if swizzle is None else 32 * panel)
    row, col = start if order == "row" else start[::-1]
    plan = plan_access(registers, shared, row=row, col=col)
    got = stored(plan, registers, shared.num_bytes)
    np.testing.assert_array_equal(got, wanted(registers, shared, row, col))


@pytest.mark.parametrize(
    ("dtype", "orders", "mode", "width"),
    [
        (bf16, ("row", "row"), "row", 4),
        (f16, ("col", "col"), "row", 4),
        (bf16, ("row", "col"), "trans", 2),
        (f16, ("col", "row"), "trans", 2),
        (e4m3, ("row", "row"), "row", 4),
        (e4m3, ("row", "col"), None, 1),
        (tf32, ("row", "row"), "row", 4),
        (tf32, ("row", "col"), None, 4),
        (f32, ("row", "row"), None, 8),
        (f32, ("row", "col"), None, 4),
        (s64, ("row", "row"), None, 16),
    ],
)
def test_matrix_mode_and_vector_width(dtype, orders, mode, width):
    registers = RegisterLayout(dtype, 64, 64, 1, orders[0])
    shared = SharedLayout.of(dtype, 64, 64, orders[1])
    assert matrix_mode(registers, shared) == mode
    assert stmatrix_applies(registers, shared) == (mode is not None)
    assert vector_width(registers, shared) == width


def test_plan_docstring_example():
    """The epilogue of a 64 x 128 accumulator: eight stmatrix.x4, four address registers."""
    plan = plan_access(RegisterLayout(bf16, 64, 128, 4), SharedLayout.of(bf16, 64, 128))
    assert (plan.kind, plan.trans, plan.matrices, plan.elements) == ("matrix", False, 4, 8)
    assert [a.flip for a in plan.accesses] == [0, 32, 64, 96] * 2
    assert [a.add for a in plan.accesses] == [0] * 4 + [8192] * 4
    assert [a.index for a in plan.accesses] == list(range(0, 64, 8))
    thread = np.arange(128)
    line = thread // 32 * 16 + thread % 16
    offset = line * 128 + (thread % 32 // 16 ^ line % 8) * 16
    np.testing.assert_array_equal(plan.byte_offset(plan.accesses[0], thread), offset)
    terms = [(term.shift, term.mask, term.scale) for term in plan.chunk_terms + plan.line_terms]
    assert terms == [(0, 7, 16), (4, 1, 16), (0, 15, 128), (5, 3, 2048)]


@pytest.mark.parametrize("swizzle", [128, 64, 32])
@pytest.mark.parametrize("orders", [("row", "row"), ("row", "col"), ("col", "row")])
def test_swizzled_matrix_moves_have_no_conflicts(swizzle, orders):
    registers = RegisterLayout(bf16, 64, 64, 1, orders[0])
    shared = SharedLayout.of(bf16, 64, 64, orders[1], swizzle)
    plan = plan_access(registers, shared)
    assert plan.wavefronts == plan.ideal_wavefronts == 64 * 64 * 2 // 128


def test_unswizzled_moves_count_their_conflicts():
    registers = RegisterLayout(bf16, 64, 64, 4)
    plan = plan_access(registers, SharedLayout.of(bf16, 64, 64, swizzle_bytes=0))
    assert (plan.wavefronts, plan.ideal_wavefronts) == (8 * 16, 16)
    wide = plan_access(RegisterLayout(f32, 64, 64, 4), SharedLayout.of(f32, 64, 64))
    assert (wide.width_bytes, wide.wavefronts, wide.ideal_wavefronts) == (8, 64, 32)


@pytest.mark.parametrize(
    ("registers", "shared", "place", "message", "hint"),
    [
        (
            RegisterLayout(f32, 64, 64, 4),
            SharedLayout.of(bf16, 64, 64),
            (0, 0),
            "access: registers and shared tile must hold elements of one size, got f32 and bf16 "
            "(DType)",
            "convert the register tile first",
        ),
        (
            RegisterLayout(bf16, 64, 64, 4),
            SharedLayout.of(bf16, 128, 64),
            (96, 0),
            "access: the register tile must lie inside the shared tile, got row=96 (int), "
            "64 of 128 rows",
            "the last legal row is 64",
        ),
        (
            RegisterLayout(bf16, 64, 64, 4),
            SharedLayout.of(bf16, 128, 128),
            (0, 8),
            "access: no lane offset serves all 4 accesses to this place of the shared tile of "
            "swizzle_bytes=128 (int)",
            "start at a multiple of 8 lines and of the 64 elements of a panel",
        ),
    ],
)
def test_plan_errors(registers, shared, place, message, hint):
    with pytest.raises(LayoutError) as error:
        plan_access(registers, shared, row=place[0], col=place[1])
    assert (error.value.message, error.value.hint) == (message, hint)
