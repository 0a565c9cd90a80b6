"""Vectors that travel through a pipeline's ring beside tiles."""

from __future__ import annotations

import numpy as np
import pytest
import reference

import tilecat as tc
from tilecat import bf16, f32, gl, rt, rv, st, sv
from tilecat.errors import LayoutError

BF16 = bf16.numpy


@tc.kernel
def scaled_rows(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], S: gl[f32, "S", "M"],
                C: gl[bf16, "M", "N"], *, n=2, stages=2, cluster=1, multicast=False):  # fmt: skip
    """C = sum over steps of 64 of K of S[step, :, None] * (A @ B of the step)."""
    tasks = tc.grouped(tc.cdiv(A.rows, 64 * n), tc.cdiv(B.cols, 64), cluster=cluster)
    pipe = tc.lcf(consumers=n, stages=stages, tasks=tasks, steps=tc.cdiv(A.cols, 64),
                  cluster=cluster)  # fmt: skip
    a = pipe.input(st[bf16, 64, 64], count=n)
    b = pipe.input(st[bf16, 64, 64])
    scales = pipe.input(sv[f32, 64], count=n)
    c = pipe.output(st[bf16, 64, 64])
    part, acc = (tc.empty(rt[f32, 64, 64]) for _ in range(2))

    @pipe.load
    def _(task, k):
        for i in range(n):
            tc.load_async(a[i], A[task.row * n + i, k])
            tc.load_async(scales[i], S[k, task.row * n + i], multicast=multicast)
        tc.load_async(b, B[k, task.col])

    @pipe.start
    def _(task):
        tc.fill(acc, 0.0)

    @pipe.compute
    def _(task, k):
        tc.mma_AB(part, a[pipe.consumer], b, accumulate=False)
        rows = tc.load(scales[pipe.consumer], rv[f32, 64])
        tc.mma_wait()
        tc.fma(part, rows, acc, out=acc)

    @pipe.finish
    def _(task):
        c.store(C[task.row * n + pipe.consumer, task.col], acc)


@pytest.mark.parametrize("m", [200, 130], ids=["by TMA", "by threads"])
@pytest.mark.parametrize("params", [{}, {"n": 1, "stages": 3}, {"cluster": 2}], ids=str)
def test_a_vector_a_step(m, params):
    """130 rows of f32 are no multiple of 16 bytes: the producer's threads copy."""
    n, k = 136, 456
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(BF16) for shape in ((m, k), (k, n)))
    scales = rng.uniform(0.5, 2, (8, m)).astype(np.float32)
    c = np.full((m, n), np.nan, BF16)
    scaled_rows(a, b, scales, c, grid=2, **params)
    wide = a.astype(np.float64) * np.repeat(scales.T.astype(np.float64), 64, 1)[:, :k]
    exact = reference.matmul(wide, b)
    reference.assert_close(c, exact, BF16)


@tc.kernel
def scaled_steps(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], S: gl[f32, "S", "N2"],
                 C: gl[bf16, "M", "N"], *, alone=False, stages=2):  # fmt: skip
    """C = sum over steps of 64 of K of S[step, col] * (A @ B of the step)."""
    tasks = tc.row_major(tc.cdiv(A.rows, 64), tc.cdiv(B.cols, 64))
    pipe = tc.lcf(consumers=1, stages=stages, tasks=tasks, steps=tc.cdiv(A.cols, 64))
    a, b = (pipe.input(st[bf16, 64, 64]) for _ in range(2))
    scale = pipe.input(sv[f32, 4], **({"ring": "scales"} if alone else {}))
    c = pipe.output(st[bf16, 64, 64])
    part, acc = (tc.empty(rt[f32, 64, 64]) for _ in range(2))

    @pipe.load
    def _(task, k):
        tc.load_async(a, A[task.row, k])
        tc.load_async(scale.at(1), S.at(k, task.col))
        tc.load_async(scale.at(task.col & 1), S.at(k, task.col))
        tc.load_async(b, B[k, task.col])

    @pipe.start
    def _(task):
        tc.fill(acc, 0.0)

    @pipe.compute
    def _(task, k):
        tc.mma_AB(part, a, b, accumulate=False)
        tc.mma_wait()
        tc.fma(part, tc.load(scale.at(1), f32), acc, out=acc)

    @pipe.finish
    def _(task):
        c.store(C[task.row, task.col], acc)


@pytest.mark.parametrize("n", [136, 130], ids=["by TMA", "by threads"])
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("stages", [1, 3, 11])
def test_an_element_a_step(n, alone, stages):
    """11 stages: the output lies in a free one, which the producer passes on."""
    m, k = 100, 328
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(BF16) for shape in ((m, k), (k, n)))
    scales = rng.uniform(0.5, 2, (6, 3)).astype(np.float32)
    c = np.full((m, n), np.nan, BF16)
    scaled_steps(a, b, scales, c, grid=1, alone=alone, stages=stages)
    exact = [
        reference.matmul(np.repeat(scales[:, col].astype(np.float64), 64)[:k] * a,
                         b[:, 64 * col : 64 * col + 64]) for col in range(3)
    ]  # fmt: skip
    for col, found in enumerate(exact):
        reference.assert_close(c[:, 64 * col : 64 * col + 64], found, BF16)


WRONG = (
    (lambda v, t, S: tc.load_async(t.at(0), S.at(0, 0)), "elements are those of vectors"),
    (lambda v, t, S: tc.load_async(v.at(4), S.at(0, 0)), r"an element of sv\[f32, 4\], 0 to 3"),
    (lambda v, t, S: tc.load_async(v.at(0), S.at(0, 0), multicast=True), "tiles are multicast"),
    (lambda v, t, S: tc.load_async(t, S[0, 0]), "each of its 1 tiles is loaded once a step"),
)


@pytest.mark.parametrize(("load", "message"), WRONG, ids=[message for _, message in WRONG])
def test_elements_refuse(load, message):
    @tc.kernel
    def wrong(S: gl[f32, "M", "N"]):
        pipe = tc.lcf(consumers=1, stages=2, tasks=tc.row_major(1, 1), steps=1)
        vector, tile = pipe.input(sv[f32, 4]), pipe.input(st[f32, 64, 32])

        @pipe.load
        def _(task, k):
            load(vector, tile, S)

        @pipe.compute
        def _(task, k):
            tc.load(tile)

    with pytest.raises(tc.TileError, match=message):
        wrong.compile()


def test_a_vector_across_the_contiguous_axis_is_refused():
    a, c = np.zeros((64, 64), BF16), np.zeros((64, 64), BF16)
    with pytest.raises(LayoutError, match="TMA cannot reach S here, and one thread loads"):
        scaled_rows(a, a, np.zeros((64, 8), np.float32).T, c, n=1)


def test_a_vector_is_not_loaded_in_parts():
    with pytest.raises(LayoutError, match="a vector has no parts"):
        scaled_rows.compile(n=1, cluster=2, multicast=True)
