"""Run-time blocks end at their end: `return`, `break` and `continue` out of them are errors."""

from __future__ import annotations

import numpy as np
import pytest
from failures import fails

import tilecat as tc
from tilecat import f32, gl, rt, s32
from tilecat.errors import ScopeError

TILE = rt[f32, 64, 64]


def returns(tile, n):
    with tc.when(n > 3):
        return
    tc.fill(tile, 7.0)


def continues(tile, n):
    for i in tc.range(n):
        with tc.when(i > 100):
            continue
        tile += 1.0


def breaks(tile, n):
    for _ in range(4):
        with tc.when(n > 100):
            if tile is not None:
                break
        tile += 1.0


def returns_otherwise(tile, n):
    with tc.when(n > 3):
        tc.fill(tile, 1.0)
    with tc.otherwise():
        return
    tc.fill(tile, 2.0)


def returns_for_one(tile, n):
    with tc.one_thread():
        return
    tc.fill(tile, n)


def returns_elected(tile, n):
    with tc.elected():
        return
    tc.fill(tile, n)


def stays(tile, n):
    with tc.when(n > 1):

        def inner():
            return 5.0

        for i in range(4):
            if i == 2:
                continue
            if i == 3:
                break
            tile += inner()


def kernel_of(body):
    @tc.kernel
    def kernel(Y: gl[f32, "M", "N"], n: s32):
        with tc.warpgroup():
            tile = tc.zeros(TILE)
            body(tile, n)
            tc.store(Y[0, 0], tile)

    return kernel


@pytest.mark.parametrize(
    "body, what, word",
    [
        (returns, "tc.when", "return"),
        (continues, "tc.when", "continue"),
        (breaks, "tc.when", "break"),
        (returns_otherwise, "tc.otherwise", "return"),
        (returns_for_one, "tc.one_thread", "return"),
        (returns_elected, "tc.elected", "return"),
    ],
)
def test_leaving_a_run_time_block_is_refused(body, what, word):
    fails(
        lambda: kernel_of(body)(np.zeros((64, 64), np.float32), 2, grid=1),
        ScopeError,
        f"{what}: the block cannot be left by {word}; a trace runs the block once, and all that "
        "follows would be lost for the other threads too",
        at=word,
        hint="guard what follows by a condition of its own, e.g. with tc.otherwise():",
    )


def test_loops_and_functions_inside_a_block_may_be_left():
    out = np.zeros((64, 64), np.float32)
    kernel_of(stays)(out, 2, grid=1)
    assert (out == 10).all()
