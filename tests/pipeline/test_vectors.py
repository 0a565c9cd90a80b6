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


def test_a_vector_is_not_loaded_in_parts():
    with pytest.raises(LayoutError, match="a vector has no parts"):
        scaled_rows.compile(n=1, cluster=2, multicast=True)
