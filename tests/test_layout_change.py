"""Layout changes in registers, executed by the manual's shfl, movmatrix and prmt."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs

from tilecat.dtypes import bf16, e4m3, f16, f32, pred, s8, tf32
from tilecat.errors import LayoutError
from tilecat.layouts import LayoutChange, RegisterLayout, layout_change

ORDERS = ("row", "col")


def numbers(layout: RegisterLayout) -> np.ndarray:
    """[thread, register, element in it]: row * cols + col of every element."""
    thread, index = np.indices((layout.threads, layout.elements_per_thread))
    row, col = layout.row_col(thread, index)
    return (row * layout.cols + col).reshape(
        layout.threads, layout.registers_per_thread, layout.elements_per_register
    )


def packed(registers: np.ndarray, packing) -> np.ndarray:
    """[lane, register, element] after gathering elements inside each lane."""
    if not packing:
        return registers
    at = np.array(packing)
    return registers[:, at[..., 0], at[..., 1]]


def transposed(matrix: np.ndarray) -> np.ndarray:
    """[lane, 1, 2] after movmatrix.trans: lane l holds row l // 4, columns 2 (l % 4) and next."""
    full = matrix.reshape(8, 8)
    return full.T.reshape(32, 1, 2)


def executed(change: LayoutChange, start: np.ndarray) -> np.ndarray:
    """The registers after the change, warp by warp."""
    end = np.full_like(start, -1)
    lane = np.arange(32)
    for first in range(0, len(start), 32):
        warp, result = start[first : first + 32], end[first : first + 32]
        for source, target in change.blocks:
            block = warp[:, list(source)]
            if change.kind == "none":
                result[:, list(target)] = block
                continue
            if change.kind == "movmatrix":
                result[:, list(target)] = transposed(block)
                continue
            block = packed(block, change.before)
            received = np.full_like(block, -1)
            for turn in change.rounds:
                sent = block[lane, turn.send(lane)]
                received[lane, turn.place(lane)] = sent[turn.read(lane)]
            result[:, list(target)] = packed(received, change.after)
    return end


def check(source: RegisterLayout, target: RegisterLayout) -> LayoutChange:
    """Every element arrives where the target has it."""
    change = layout_change(source, target)
    np.testing.assert_array_equal(executed(change, numbers(source)), numbers(target))
    return change


@settings(max_examples=40, deadline=None)
@given(
    dtypes=hs.sampled_from([(f32, e4m3), (f32, s8), (f32, tf32), (f16, e4m3), (tf32, f32)]),
    warps=hs.sampled_from([1, 4]),
    blocks=hs.integers(1, 2),
    steps=hs.integers(1, 4),
    order=hs.sampled_from(ORDERS),
)
def test_converted_tiles_become_operands(dtypes, warps, blocks, steps, order):
    shape = (16 * warps * blocks, 32 * steps)
    shape = shape if order == "row" else shape[::-1]
    source = RegisterLayout(dtypes[0], *shape, warps, order).cast(dtypes[1])
    target = RegisterLayout(dtypes[1], *shape, warps, order)
    change = check(source, target)
    assert change.kind == "shuffle"
    assert len(change.rounds) == len(change.blocks[0][0]), "one shuffle a register"


@pytest.mark.parametrize("shape", [(16, 16), (32, 64), (64, 48)])
@pytest.mark.parametrize("orders", [("row", "col"), ("col", "row")])
def test_16_bit_tiles_swap_layouts_by_movmatrix(shape, orders):
    source, target = (RegisterLayout(bf16, *shape, 1, order) for order in orders)
    change = check(source, target)
    assert change.kind == "movmatrix"
    assert len(change.blocks) == source.registers_per_thread


@pytest.mark.parametrize("dtype", [f32, tf32, e4m3], ids=str)
@pytest.mark.parametrize("orders", [("row", "col"), ("col", "row")])
def test_other_tiles_swap_layouts_by_shuffles(dtype, orders):
    source, target = (RegisterLayout(dtype, 64, 32, 1, order) for order in orders)
    change = check(source, target)
    assert change.kind == "shuffle"
    assert len(change.rounds) == len(change.blocks[0][0])


def test_casts_that_keep_the_fragment_are_free():
    source = RegisterLayout(f32, 64, 128, 4)
    assert source.cast(bf16) == RegisterLayout(bf16, 64, 128, 4)
    assert source.cast(e4m3).cast(f32) == source
    assert source.cast(e4m3).registers_per_thread == 16
    assert check(source.cast(bf16), RegisterLayout(bf16, 64, 128, 4)).kind == "none"


def test_change_docstring_example():
    source = RegisterLayout(f32, 64, 128, 4).cast(e4m3)
    change = check(source, RegisterLayout(e4m3, 64, 128, 4))
    assert change.blocks[1] == ((2, 3), (2, 3))
    assert change.before == ()
    assert change.after == (((0, 0), (0, 1), (1, 0), (1, 1)), ((0, 2), (0, 3), (1, 2), (1, 3)))
    assert [turn.send(np.arange(4)).tolist() for turn in change.rounds] == [
        [0, 1, 0, 1],
        [1, 0, 1, 0],
    ]
    assert [turn.read(np.arange(4)).tolist() for turn in change.rounds] == [
        [0, 2, 1, 3],
        [1, 3, 0, 2],
    ]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (
            RegisterLayout(bf16, 64, 64, 4),
            RegisterLayout(bf16, 64, 64, 4, "col"),
            "layout change: elements must stay in their warp, got order='row' to 'col' (str) "
            "over 4 warps",
        ),
        (
            RegisterLayout(f32, 64, 64, 4),
            RegisterLayout(bf16, 64, 64, 4),
            "layout change: rows, cols, warps and element bits must agree, got (64, 64, 4, 32) "
            "and (64, 64, 4, 16)",
        ),
        (
            RegisterLayout(pred, 16, 16, 1),
            RegisterLayout(pred, 16, 16, 1, "col"),
            "layout change: elements of 8, 16 or 32 bits, got dtype=pred (DType)",
        ),
    ],
)
def test_change_errors(source, target, message):
    with pytest.raises(LayoutError, match=re.escape(message)):
        layout_change(source, target)
