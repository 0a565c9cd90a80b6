"""Moves between registers and swizzled tiles have no bank conflict, with one exception.

A warp's 16 rows of 32-bit elements in column order are lines of 64 bytes, of which an access meets
every second one: half the banks, 2 ways.
"""

import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, e4m3, f16, f32, gl, ready, rt, s8, s32, st, tf32
from tilecat.binding import bind
from tilecat.check import shared_accesses
from tilecat.errors import LayoutError
from tilecat.layouts import RegisterLayout, SharedLayout, plan_access
from tilecat.runtime.arrays import view

WIDTHS = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)


def plans(dtype):
    """Plans of all widths and both orders of a dtype, at warpgroup and warp scope."""
    for cols in WIDTHS:
        for order in ("row", "col"):
            for rows, warps in ((64, 4), (16, 1), (128, 4)):
                try:
                    registers = RegisterLayout(dtype, rows, cols, warps)
                    shared = SharedLayout.of(dtype, rows, cols, order)
                except LayoutError:
                    continue
                if shared.swizzle_bytes:
                    yield (cols, order, rows), plan_access(registers, shared, exchange=True)


@pytest.mark.parametrize("dtype", [f32, s32, bf16, f16], ids=str)
def test_moves_of_a_swizzled_tile_have_no_conflict(dtype):
    found = dict(plans(dtype))
    assert len(found) > 40
    worst = {k: p.wavefronts / p.ideal_wavefronts for k, p in found.items()}
    half_banks = {k: 2 for k in found if k[1:] == ("col", 16) and dtype.bits == 32}
    assert {k: v for k, v in worst.items() if v != 1} == half_banks


@pytest.mark.parametrize("dtype", [tf32, e4m3, s8], ids=str)
def test_moves_in_the_order_of_rows_have_no_conflict(dtype):
    found = {k: p for k, p in plans(dtype) if k[1] == "row"}
    assert len(found) > 8
    worst = {k: p.wavefronts / p.ideal_wavefronts for k, p in found.items()}
    assert {k: v for k, v in worst.items() if v != 1} == {}


@pytest.mark.parametrize("cols", [16, 32, 48, 96])
@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("dtype", [f32, s32], ids=str)
def test_elements_that_accesses_trade_arrive(dtype, order, cols):
    @tc.kernel
    def through_shared(A: gl[dtype, "M", "N"], B: gl[dtype, "M", "N"]):
        tile = tc.shared(st[dtype, 64, cols, order])
        with tc.warpgroup():
            tc.store(tile, tc.load(A[0, 0], rt[dtype, 64, cols]))
            tc.sync()
            tc.store(B[0, 0], tc.load(tile))

    a = np.arange(64 * cols).reshape(64, cols).astype(dtype.numpy)
    b = np.zeros_like(a)
    result = through_shared.simulate(a, b, grid=1)
    assert not result.reports and np.array_equal(a, b)
    requests = [q for a in shared_accesses(through_shared.compile(a, b).kernel) for q in a.requests]
    assert requests and all(q.wavefronts == q.ideal for q in requests)
    assert all(c.wavefronts == c.ideal for c in result.conflicts)


@pytest.mark.parametrize("dim", [64, 96, pytest.param(192, marks=pytest.mark.full)])
def test_attention_and_its_gradients_have_no_conflict(monkeypatch, dim):
    """Every access to shared memory in the text of every launch."""
    found = {}

    def run(launch):
        kernel, given = launch.kernel, (*launch.tensors, *launch.rest)
        args = [view(x) if hasattr(x, "shape") else x for x in given]
        traced = kernel.specialize(bind(kernel.signature, args, launch.params).specialization,
                                   "sm_90a")  # fmt: skip
        requests = [q for access in shared_accesses(traced.kernel) for q in access.requests]
        found.setdefault(kernel.__name__, []).extend(q.ways for q in requests)

    monkeypatch.setattr(ready.Launch, "run", run)
    x = np.zeros((1, 2, 200, dim), bf16.numpy)
    out, lse = tc.attention(x, x, x, causal=True, return_lse=True)
    tc.attention_backward(x, x, x, x, out, lse, causal=True)
    assert len(found) == 4 and all(found.values())
    assert {name: max(ways) for name, ways in found.items()} == dict.fromkeys(found, 1)
