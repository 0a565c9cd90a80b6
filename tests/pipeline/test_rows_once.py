"""Rows in shared memory that are read once: fewer stages than chunks, or powers in registers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from failures import fails

import tilecat as tc
from pipeline.schedules import check_schedules
from tilecat import bf16, f32, gl, rv, sv
from tilecat.errors import LayoutError

BF16 = bf16.numpy


@tc.kernel
def read_once(X: gl[bf16, "M", "D"], Y: gl[f32, "M", "D"], *, D, stages, unroll=False, last=True):
    """Y = X + 1, or X - max(X) of registers; chunks leave shared memory when they are read."""
    rows = tc.rows(X.rows, shared_by="cta", ahead=0, stages=stages)
    chunks = D // (256 * rows.parts)
    x, kind = rows.input(sv[bf16, 256], chunks=chunks), rv[bf16, 256, "plain", 8]

    @rows.load
    def _(row):
        x.load(X.at(row, (rows.part * chunks + x.chunk) * 256))

    @rows.compute
    def _(row):
        kept = []
        for chunk in x.parts(last=last, unroll=unroll):
            held = tc.cast(tc.load(x.vector, kind), f32)
            if unroll:
                kept.append(held)
            else:
                tc.store(Y[row, rows.part * chunks + chunk], held + 1.0)
        if unroll:
            tops = [tc.reduce_vector("max", held) for held in kept]
            top = rows.reduce("max", functools.reduce(tc.maximum, tops))
            for chunk, held in enumerate(kept):
                tc.store(Y[row, rows.part * chunks + chunk], held - top)


@pytest.mark.parametrize(("stages", "unroll"), [(2, False), (7, True)])
def test_rows_that_are_read_once(stages: int, unroll: bool):
    x = np.random.default_rng(0).standard_normal((9, 3072)).astype(BF16)
    exact = x.astype(np.float32)
    exact = exact - exact.max(1, keepdims=True) if unroll else exact + 1

    def check(args: list[Any]) -> None:
        np.testing.assert_array_equal(args[1], exact)

    check_schedules(read_once, lambda: [x, np.full(x.shape, np.nan, np.float32)], check, grid=2,
                    D=3072, stages=stages, unroll=unroll)  # fmt: skip


def test_rows_of_few_stages_are_read_once():
    got = "last=False, chunks=3, stages=2"
    said = f"x.parts: rows of more chunks than stages are read once, got {got}"
    fails(lambda: read_once.compile(D=3072, stages=2, last=False), LayoutError, said,
          at="for chunk in x.parts(", hint="last=True, or tc.rows(..., stages=3)")  # fmt: skip
