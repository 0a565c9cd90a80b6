"""Sums of f16 in tensor memory: one a column of 32 bits, two a register; one source with wgmma."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilecat as tc
from tilecat import f16, gl, rt, st, tt
from tilecat.arch import ARCHS
from tilecat.dtypes import DType
from tilecat.errors import DTypeError

TARGETS = [arch.target for arch in ARCHS]


def pipeline(dtype: DType, consumers: int, n: int) -> Any:
    """C = A B of f16 sums, B with K contiguous."""
    k = 128 // dtype.nbytes

    @tc.kernel
    def product(A: gl[dtype, "M", "K"], B: gl[dtype, "N", "K"], C: gl[f16, "M", "N"]):
        tasks = tc.row_major(tc.cdiv(A.rows, 64 * consumers), tc.cdiv(B.rows, n))
        pipe = tc.lcf(consumers=consumers, stages=2, tasks=tasks, steps=tc.cdiv(A.cols, k))
        a = pipe.input(st[dtype, 64, k], count=consumers)
        b = pipe.input(st[dtype, n, k])
        c = pipe.output(st[f16, 64, n])
        acc = pipe.accumulator(f16, 64, n)

        @pipe.load
        def _(task, step):
            for i in range(consumers):
                tc.load_async(a[i], A[task.row * consumers + i, step])
            tc.load_async(b, B[task.col, step])

        @pipe.compute
        def _(task, step):
            tc.mma_ABt(acc, a[pipe.consumer], b)

        @pipe.finish
        def _(task):
            c.store(C[task.row * consumers + pipe.consumer, task.col], acc)

    return product


def check(c: np.ndarray, a: np.ndarray, b: np.ndarray, step: int, start: float = 0.0) -> None:
    """Each instruction rounds the sums to f16."""
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    bound = np.abs(a64) @ np.abs(b64).T + abs(start)
    count = a.shape[1] // step + 2
    assert (np.abs(c - (a64 @ b64.T + start)) <= count * 2.0**-11 * bound).all()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize(("consumers", "n"), [(1, 48), (2, 48), (2, 160)])
@pytest.mark.parametrize(
    "dtype", [tc.f16, tc.e4m3, pytest.param(tc.e5m2, marks=pytest.mark.full)], ids=str
)
@pytest.mark.parametrize("target", TARGETS)
def test_f16_sums_are_right(target: str, dtype: DType, consumers: int, n: int, seed: int):
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((rows, 288)).astype(np.float32).astype(dtype.numpy)
            for rows in (200, 264))  # fmt: skip
    c = np.full((200, 264), np.nan, np.float16)
    kernel = pipeline(dtype, consumers, n)
    result = kernel.simulate(a, b, c, target=target, grid=2, seed=seed)
    assert not result.reports, str(result.reports[0])
    check(c, a, b, 32 // dtype.nbytes)


def test_their_text_packs_two_columns():
    a, b = (np.zeros((256, 256), np.float16) for _ in range(2))
    made = pipeline(tc.f16, 2, 160).compile(a, b, a, target="sm_107a")
    loads = re.findall(r"tcgen05\.ld\.sync\.aligned\.16x128b\.(x\d+)\.pack::16b\.b32", made.ptx)
    assert loads == ["x16", "x4"] and made.resources.spill_bytes == 0
    assert "-> f16, M=128 N=160" in made.ptx
    assert made.kernel.facts["tensor_columns"] == 512  # 160 a task, as of f32


@pytest.mark.parametrize("seed", range(2))
def test_by_hand_they_are_stored_and_loaded(seed: int):
    @tc.kernel
    def product(A: gl[f16, "M", "K"], B: gl[f16, "N", "K"], C: gl[f16, "M", "N"]):
        a, b = tc.shared(st[f16, 64, 64]), tc.shared(st[f16, 96, 64])
        acc = tc.tmem(tt[f16, 64, 96, "sums"])
        loaded, done = tc.barrier(), tc.barrier()
        with tc.warpgroup():
            tc.store(acc, tc.full(rt[f16, 64, 96], 2.0))
            tc.sync()
            with tc.elected():
                loaded.expect(a, b)
                tc.load_async(a, A[0, 0], loaded)
                tc.load_async(b, B[0, 0], loaded)
                loaded.wait(0)
                tc.mma_ABt(acc, a, b)
                tc.mma_commit(done)
            done.wait(0)
            tc.store(C[0, 0], tc.load(acc[:, :32]))
            tc.store(C[0, 1], tc.load(acc[:, 32:64]))
            tc.store(C[0, 2], tc.load(acc[:, 64:]))
            tc.free_tmem()

    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((rows, 64)).astype(np.float16) for rows in (64, 96))
    c = np.full((64, 96), np.nan, np.float16)
    result = product.simulate(a, b, c, target="sm_100a", grid=1, seed=seed)
    assert not result.reports, str(result.reports[0])
    check(c, a, b, 16, start=2.0)
    text = product.compile(a, b, c, target="sm_100a").ptx
    assert "tcgen05.st.sync.aligned.16x128b.x8.unpack::16b.b32" in text


def test_their_columns_and_names():
    assert tt[f16, 64, 96, "sums"].columns == 96 and tt[f16, 64, 96].columns == 48
    assert str(tt[f16, 64, 96, "sums"]) == 'tt[f16, 64, 96, "sums"]'
    assert tt[tc.f32, 64, 96, "sums"] == tt[tc.f32, 64, 96]
    with pytest.raises(DTypeError, match="sums of f32, s32 or f16, got bf16"):
        tt[tc.bf16, 64, 96, "sums"]
