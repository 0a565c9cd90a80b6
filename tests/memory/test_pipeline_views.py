"""Pipelines on views: parts of tensors, sequences of a packed batch, pages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, f32, gl, s32, st


def product(view: Any) -> Any:
    """`C = view(A) @ B` by a pipeline."""

    def products(
        A: gl[bf16, "T", "W"], B: gl[bf16, "K", "N"], C: gl[f32, "M", "N"], first: s32, last: s32
    ):
        a = view(A, first, last)
        pipe = tc.lcf(
            consumers=1, stages=2, steps=tc.cdiv(B.rows, 64),
            tasks=tc.row_major(tc.cdiv(C.rows, 64), tc.cdiv(C.cols, 64)),
        )
        left, right = pipe.input(st[bf16, 64, 64]), pipe.input(st[bf16, 64, 64])
        out = pipe.output(st[f32, 64, 64])
        acc = pipe.accumulator(f32, 64, 64)

        @pipe.load
        def _(task, k):
            tc.load_async(left, a[task.row, k])
            tc.load_async(right, B[k, task.col])

        @pipe.compute
        def _(task, k):
            tc.mma_AB(acc, left, right)

        @pipe.finish
        def _(task):
            out.store(C[0 : last - first, :][task.row, task.col], acc)

    return tc.kernel(products)


VIEWS = {
    "sequence": (lambda A, first, last: A[first:last, 0:128], 0),
    "backwards": (lambda A, first, last: A[first:last, 0:128][::-1, :], 0),
    "columns": (lambda A, first, last: A[first:, :][:, 64:192], 64),
}


@pytest.mark.parametrize("name", VIEWS)
def test_pipeline_on_a_view(name: str):
    view, column = VIEWS[name]
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(bf16.numpy) for s in ((200, 192), (128, 128)))
    c = np.full((150, 128), 7, np.float32)
    product(view)(a, b, c, 40, 140, grid=2)
    rows = slice(139, 39, -1) if name == "backwards" else slice(40, 140)
    wanted = a[rows, column : column + 128].astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_allclose(c[:100], wanted, rtol=1e-4, atol=1e-4)
    assert (c[100:] == 7).all()


@tc.kernel
def stores_backwards(A: gl[bf16, "M", 64], B: gl[bf16, 64, "N"], C: gl[f32, "M", "N"]):
    pipe = tc.lcf(
        consumers=1, stages=2, steps=1,
        tasks=tc.row_major(tc.cdiv(C.rows, 64), tc.cdiv(C.cols, 64)),
    )
    left, right = pipe.input(st[bf16, 64, 64]), pipe.input(st[bf16, 64, 64])
    out = pipe.output(st[f32, 64, 64])
    acc = pipe.accumulator(f32, 64, 64)

    @pipe.load
    def _(task, k):
        tc.load_async(left, A[task.row, k])
        tc.load_async(right, B[k, task.col])

    @pipe.compute
    def _(task, k):
        tc.mma_AB(acc, left, right)

    @pipe.finish
    def _(task):
        out.store(C[::-1, ::-1][task.row, task.col], acc)


def test_pipeline_stores_backwards():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype(bf16.numpy) for s in ((100, 64), (64, 104)))
    c = np.full((100, 104), 7, np.float32)
    stores_backwards(a, b, c, grid=2)
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(c[::-1, ::-1], wanted)


@tc.kernel
def stores_sequences(
    A: gl[bf16, "M", 64], B: gl[bf16, 64, "N"], C: gl[f32, "M", "N"], first: s32, last: s32
):
    pipe = tc.lcf(
        consumers=1, stages=2, steps=1,
        tasks=tc.row_major(tc.cdiv(last - first, 64), tc.cdiv(C.cols, 128)),
    )
    left, right = pipe.input(st[bf16, 64, 64]), pipe.input(st[bf16, 64, 128])
    out = pipe.output(st[f32, 64, 128])
    acc = pipe.accumulator(f32, 64, 128)

    @pipe.load
    def _(task, k):
        tc.load_async(left, A[first:, :][task.row, k])
        tc.load_async(right, B[k, task.col])

    @pipe.compute
    def _(task, k):
        tc.mma_AB(acc, left, right)

    @pipe.finish
    def _(task):
        out.store(C[first:last, :][task.row, task.col], acc)


def test_stores_of_a_sequence_go_by_tma_but_for_its_last_tile():
    """Whole tiles by TMA, the one across the end by threads: its neighbours keep every byte."""
    text = stores_sequences.compile().ptx
    assert text.count("cp.async.bulk.tensor.2d.global.shared::cta") and "st.global.v4" in text
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype(bf16.numpy) for s in ((400, 64), (64, 200)))
    products = a.astype(np.float32) @ b.astype(np.float32)
    for first, last in ((40, 300), (0, 128), (7, 8), (130, 400)):
        for seed in range(4):
            c = np.full((400, 200), 7, np.float32)
            found = stores_sequences.simulate(a, b, c, first, last, grid=2, seed=seed)
            assert not found.reports, str(found)
            wanted = np.full_like(c, 7)
            wanted[first:last] = products[first:last]
            np.testing.assert_array_equal(c, wanted)
            stored = found.stats["bytes stored"]
            assert bool(stored) == (last - first >= 64), (first, last, stored)


@tc.kernel
def stores_twice(A: gl[bf16, "M", 64], B: gl[bf16, 64, "N"], C: gl[f32, "M", "N"],
                 D: gl[f32, "M", "N"], *, threads_first):  # fmt: skip
    """One output, twice a task: by TMA, and backwards by threads."""
    pipe = tc.lcf(
        consumers=1, stages=2, steps=1,
        tasks=tc.row_major(tc.cdiv(C.rows, 64), tc.cdiv(C.cols, 64)),
    )
    left, right = pipe.input(st[bf16, 64, 64]), pipe.input(st[bf16, 64, 64])
    out = pipe.output(st[f32, 64, 64])
    acc = pipe.accumulator(f32, 64, 64)

    @pipe.load
    def _(task, k):
        tc.load_async(left, A[task.row, k])
        tc.load_async(right, B[k, task.col])

    @pipe.compute
    def _(task, k):
        tc.mma_AB(acc, left, right)

    @pipe.finish
    def _(task):
        places = [C[task.row, task.col], D[::-1, :][task.row, task.col]]
        for place in reversed(places) if threads_first else places:
            out.store(place, acc)
            tc.fma(acc, 0.0, 3.0, out=acc)


@pytest.mark.parametrize("threads_first", [False, True])
def test_threads_write_a_buffer_when_tma_has_read_it(threads_first: bool):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype(bf16.numpy) for s in ((200, 64), (64, 136)))
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    for seed in range(4):
        c, d = (np.full((200, 136), np.nan, np.float32) for _ in range(2))
        found = stores_twice.simulate(a, b, c, d, grid=2, seed=seed, threads_first=threads_first)
        assert not found.reports, str(found)
        first, second = (d[::-1], c) if threads_first else (c, d[::-1])
        np.testing.assert_array_equal(first, wanted)
        np.testing.assert_array_equal(second, np.full_like(wanted, 3))
