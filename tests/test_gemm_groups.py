"""tc.grouped_matmul on the PTX machine: groups of rows whose extents are on the device."""

from __future__ import annotations

import gemm_cases
import ml_dtypes
import numpy as np
import pytest
import reference

import tilecat as tc
from tilecat import DTypeError, LayoutError, operators
from tilecat.kernels.epilogues import Step
from tilecat.kernels.gemm import matmul as kernel
from tilecat.kernels.groups import plan_groups

BF16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn
E = tc.epilogues
COUNTS = ((0, 70, 200, 1, 0, 130, 64), (5,), (0, 0, 3), (64, 64), (300, 0, 300))


def operands(counts, n, k, *, dtype="bf16", ends=True, most=310):
    """a, b and the rows of groups: ends, or counts of at most `most`."""
    rng = np.random.default_rng(len(counts) + n)
    shape = (sum(counts), k) if ends else (len(counts), most, k)
    a = gemm_cases.numbers(rng, shape, dtype, "row")
    b = gemm_cases.numbers(rng, (len(counts), k, n), dtype, "col")
    rows = np.cumsum(counts) if ends else np.array(counts)
    return a, b, rows.astype(np.int32)


def parts(counts, a, out, ends):
    """(group, rows of a, rows of out) of each group that has rows."""
    last = np.cumsum(counts)
    for group, count in enumerate(counts):
        where = slice(last[group] - count, last[group]) if ends else (group, slice(0, count))
        if count:
            yield group, a[where], out[where]


def close(actual, chain):
    reference.assert_close(actual, reference.Reference(chain.value, chain.error), actual.dtype)


def test_consumers_take_the_tiles_of_groups_in_turn(monkeypatch):
    """As `tc.matmul` chooses for many rows."""
    turns = {"tile_m": 128, "tile_n": 128, "stages": 4, "group": 8, "pingpong": 1}
    monkeypatch.setattr(operators, "choose", lambda problem: turns)
    counts, n = (0, 130, 70), 136
    a, b, ends = operands(counts, n, 40)
    out = np.full((*a.shape[:-1], n), np.nan, BF16)
    bias = np.linspace(-1, 1, len(counts) * n, dtype=np.float32).reshape(-1, n)
    tc.grouped_matmul(a, b, out, ends=ends, epilogue=((E.bias, bias), E.relu))
    for group, left, made in parts(counts, a, out, True):
        exact = left.astype(float) @ b[group].astype(float) + bias[group]
        assert np.abs(made.astype(float) - np.maximum(exact, 0)).max() < 2**-7 * np.abs(exact).max()


@pytest.mark.parametrize("ends", [True, False], ids=["ends", "counts"])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize(
    ("n", "k", "dtype"), [(200, 96, "bf16"), (64, 200, "e4m3"), (33, 20, "bf16")], ids=str
)
def test_groups(n, k, dtype, counts, ends):
    a, b, rows = operands(counts, n, k, dtype=dtype, ends=ends)
    out = np.full((*a.shape[:-1], n), np.nan, BF16)
    name = "ends" if ends else "counts"
    assert tc.grouped_matmul(a, b, out, **{name: rows}) is out
    for group, left, made in parts(counts, a, out, ends):
        close(made, gemm_cases.product(left, b[group]))
    written = int((~np.isnan(out.astype(np.float32))).sum())
    assert written == sum(counts) * n, "rows that are no group's were written"


@pytest.mark.parametrize("ends", [True, False], ids=["ends", "counts"])
def test_groups_with_scales_bias_and_beta(ends):
    counts = (30, 0, 150)
    a, b, rows = operands(counts, 136, 128, dtype="e4m3", ends=ends)
    rng = np.random.default_rng(0)
    scale_a = rng.uniform(0.5, 2, a.shape[:-1]).astype(np.float32)
    scale_b, bias = (rng.uniform(0.5, 2, (3, 136)).astype(np.float32) for _ in range(2))
    out = rng.standard_normal((*a.shape[:-1], 136)).astype(BF16)
    before, name = out.copy(), "ends" if ends else "counts"
    tc.grouped_matmul(a, b, out, **{name: rows}, scale_a=scale_a, scale_b=scale_b, beta=1.0,
                      epilogue=(E.bias, bias))  # fmt: skip
    scales, olds = parts(counts, scale_a, before, ends), parts(counts, a, out, ends)
    for (group, scale, old), (_, left, made) in zip(scales, olds, strict=True):
        chain = gemm_cases.product(left, b[group])
        chain.times(scale[:, None].astype(np.float64))
        chain.times(scale_b[group].astype(np.float64))
        chain.plus(old.astype(np.float64))
        chain.plus(bias[group].astype(np.float64))
        close(made, chain)


@pytest.mark.parametrize("k", [300, 304], ids=["threads", "TMA"])
def test_groups_with_scales_of_blocks(k):
    """Groups begin in rows 30, 130 and 133: no multiples of 4, where TMA reaches scales of rows."""
    counts, n = (30, 100, 0, 6), 200
    a, b, rows = operands(counts, n, k, dtype="e4m3")
    rng = np.random.default_rng(0)
    scale_a = rng.uniform(0.5, 2, (sum(counts), 3)).astype(np.float32)
    scale_b = rng.uniform(0.5, 2, (4, 3, 2)).astype(np.float32)
    out = tc.grouped_matmul(a, b, ends=rows, scale_a=scale_a, scale_b=scale_b)
    for group, left, made in parts(counts, a, out, True):
        start = rows[group] - counts[group]
        wide = np.repeat(scale_b[group].astype(np.float64), 128, 1)[:, :n]
        total = gemm_cases.Chain(np.zeros(made.shape), np.zeros(made.shape))
        for block in range(3):
            inner = slice(128 * block, 128 * block + 128)
            part = gemm_cases.product(left[:, inner], b[group, inner])
            part.times(scale_a[start : rows[group], block, None].astype(np.float64) * wide[block])
            total.plus(part.value)
            total.error = total.error + part.error
        close(made, total)


def test_gated_groups():
    counts = (30, 100)
    a, b, rows = operands(counts, 64, 96)
    out = tc.grouped_matmul(a, b, ends=rows, second=b, epilogue=lambda x, y, at: x - y)
    assert not out.any()


def test_plan_lists_every_tile_of_many_groups():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 300, 150).astype(np.int32)
    ends = np.cumsum(counts).astype(np.int32)
    table = np.full((3, 150 + ends[-1] // 64), -7, np.int32)
    total = np.full(1, -7, np.int32)
    plan_groups(ends, table, total, int(ends[-1]), tile_m=64, ends=True)
    wanted = [
        (group, first, end)
        for group, (count, end) in enumerate(zip(counts, ends, strict=True))
        for first in range(end - count, end, 64)
    ]
    assert total[0] == len(wanted)
    np.testing.assert_array_equal(table[:, : total[0]].T, wanted)


def test_plan_ignores_what_lies_beyond_the_rows():
    ends = np.array([-5, 40, 30, 10**6], np.int32)
    table, total = np.zeros((3, 8), np.int32), np.zeros(1, np.int32)
    plan_groups(ends, table, total, 100, tile_m=64, ends=True)
    np.testing.assert_array_equal(
        table[:, : total[0]].T, [(1, 0, 40), (3, 30, 100), (3, 94, 100)]
    )


def test_kernel_of_groups_does_not_spill():
    a, b, rows = operands((64, 64), 256, 64)
    table, total = np.zeros((3, 4), np.int32), np.zeros(1, np.int32)
    compiled = kernel.compile(
        a, b, np.zeros((128, 256), BF16), table, total, groups=True, epilogue=(Step(E.gelu),)
    )
    assert compiled.resources.spill_bytes == 0


X, W = np.ones((70, 40), BF16), np.ones((3, 40, 64), BF16)
GOOD = np.array([10, 20, 70], np.int32)
BAD = (
    ({}, LayoutError, "takes ends or counts, got ends=None and counts=None"),
    ({"ends": GOOD, "counts": GOOD}, LayoutError, "takes ends or counts"),
    ({"ends": GOOD.astype(np.int64)}, DTypeError, "ends is s32, got s64"),
    ({"ends": GOOD[:2]}, LayoutError, "ends has one element a group"),
    ({"ends": GOOD - 1}, LayoutError, "ends ascend from 0 to the rows of a, 70, got"),
    ({"ends": GOOD[[1, 0, 2]]}, LayoutError, "ends ascend from 0 to the rows of a, 70, got"),
    ({"counts": GOOD}, LayoutError, r"with counts, a is \[E, M, K\] and b is \[E, K, N\]"),
    ({"ends": GOOD, "tile": 3}, LayoutError, "no option tile"),
)


@pytest.mark.parametrize(("options", "kind", "message"), BAD, ids=[x[2][:40] for x in BAD])
def test_groups_refuse(options, kind, message):
    with pytest.raises(kind, match=message):
        tc.grouped_matmul(X, W, **options)


def test_counts_beyond_the_rows_are_refused():
    with pytest.raises(LayoutError, match="counts are 0 to the rows of a group, 70, got"):
        tc.grouped_matmul(np.ones((3, 70, 40), BF16), W, counts=np.array([0, 71, 3], np.int32))
