"""Rows whose second half of work runs behind the first of the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from failures import fails

import tilecat as tc
from pipeline.schedules import check_schedules
from tilecat import bf16, f32, gl, rv, sv
from tilecat.errors import LayoutError, ScopeError

BF16 = bf16.numpy


@tc.kernel
def centred(X: gl[bf16, "M", "D"], Y: gl[f32, "M", "D"], *, D, cluster=1, chunks=1, stages=2):
    """Y = X - max(X), each row behind the largest of the next."""
    rows = tc.rows(X.rows, shared_by="cta", cluster=cluster, ahead=0, stages=stages)
    each = D // (rows.parts * chunks)
    x = rows.input(sv[bf16, each], chunks=chunks)

    def piece():
        return tc.cast(tc.load(x.vector, rv[bf16, each, "plain", 8]), f32)

    @rows.load
    def _(row):
        x.load(X.at(row, (rows.part * chunks + x.chunk) * each))

    @rows.compute
    def _(row):
        top = tc.full(rv[f32, each, "plain", 8], float("-inf"))
        for _ in x.parts():
            tc.maximum(top, piece(), out=top)
        rows.send(tc.reduce_vector("max", top))

    @rows.behind
    def _(row):
        top = tc.reduce_vector("max", rows.receive(float("-inf"))[0])
        for chunk in x.parts(last=True):
            tc.store(Y[row, rows.part * chunks + chunk], piece() - top)


@pytest.mark.parametrize(("cluster", "chunks", "stages"), [(1, 1, 2), (2, 2, 5), (4, 1, 3)])
def test_rows_behind_the_next(cluster: int, chunks: int, stages: int):
    width = 1024 * cluster * chunks
    x = np.random.default_rng(0).standard_normal((9, width)).astype(BF16)
    exact = x.astype(np.float32) - x.astype(np.float32).max(1, keepdims=True)

    def check(args: list[Any]) -> None:
        np.testing.assert_array_equal(args[1], exact)

    check_schedules(centred, lambda: [x, np.full(x.shape, np.nan, np.float32)], check,
                    grid=2 * cluster, D=width, cluster=cluster, chunks=chunks,
                    stages=stages)  # fmt: skip


def test_rows_behind_want_two_in_shared_memory():
    fails(lambda: centred.compile(D=2048, chunks=2, stages=3), LayoutError,
          "rows.behind: two rows lie in shared memory, 4 chunks, got stages=3", at="tc.rows(",
          hint="tc.rows(..., stages=4)")  # fmt: skip


@tc.kernel
def twice_behind(X: gl[bf16, "M", 2048], Y: gl[f32, "M", 2048], *, first=True, input=True,
                 last=False):
    """Y = X - max(X), by an exchange of CTAs in one of both holes."""
    rows = tc.rows(X.rows, shared_by="cta", cluster=2, ahead=0, stages=2)
    x = rows.input(sv[bf16, 256]) if input else None

    def shift(row):
        piece = tc.cast(tc.load(x.vector, rv[bf16, 256, "plain", 8]), f32)
        tc.store(Y[row, rows.part], piece - rows.reduce("max", piece))

    @rows.load
    def _(row):
        if input:
            x.load(X.at(row, rows.part * 256))
        return () if input else tc.load(X[row, rows.part], rv[bf16, 256, "plain", 8])

    @rows.compute
    def _(row, *_):
        if first:
            shift(row)
        for _ in x.parts(last=True) if last else ():
            pass

    @rows.behind
    def _(row):
        if not first:
            shift(row)


@pytest.mark.parametrize("first", [True, False])
def test_ctas_meet_between_exchanges_of_rows_behind(first: bool):
    x = np.random.default_rng(0).standard_normal((7, 2048)).astype(BF16)
    exact = x.astype(np.float32) - x.astype(np.float32).max(1, keepdims=True)
    y = np.full(x.shape, np.nan, np.float32)
    twice_behind(x, y, first=first, grid=4)
    np.testing.assert_array_equal(y, exact)


def test_rows_behind_lie_in_shared_memory_until_then():
    fails(lambda: twice_behind.compile(first=False, input=False), LayoutError,
          "rows.behind: two rows lie in shared memory, 2 chunks, got no rows.input",
          at="tc.rows(", hint="x = rows.input(...)")  # fmt: skip
    fails(lambda: twice_behind.compile(last=True), ScopeError,
          "x.parts: with rows.behind that hole reads a row for the last time, got last=True in "
          "compute", at="for _ in x.parts(last=True)", hint="last=True in behind")  # fmt: skip
