"""A matrix product in nine steps, from a naive kernel to the top.

C = A @ B, bf16 with f32 sums. Each step is a kernel that runs by itself; `STEPS` says how each is
called. The page `docs/gemm-in-nine-steps.md` explains them, `benchmarks/gemm_steps.py` times them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import tilecat as tc
from tilecat import bf16, f32, gl, rt, rv, st


@tc.kernel
def step1(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "M", "N"]):
    """No tensor cores: a warpgroup adds the outer products of columns of A and rows of B."""
    tasks = tc.row_major(tc.cdiv(A.rows, 64), tc.cdiv(B.cols, 64))
    with tc.warpgroup():
        task = tasks.task(tc.cta_id())
        acc = tc.zeros(rt[f32, 64, 64])
        for k in tc.range(A.cols):
            column = tc.load(A.T[k, task.row], rv[f32, 64])
            row = tc.load(B[k, task.col], rv[f32, 64, "col"])
            acc += column * row
        tc.store(C[task.row, task.col], tc.cast(acc, bf16))


@tc.kernel
def step2(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "M", "N"]):
    """Tensor cores: each warp multiplies 64x64 tiles from registers, loaded by itself."""
    tasks = tc.row_major(tc.cdiv(A.rows, 128), tc.cdiv(B.cols, 128))
    with tc.warpgroup(), tc.warps():
        task, warp = tasks.task(tc.cta_id()), tc.warp_id()
        row, col = task.row * 2 + (warp >> 1), task.col * 2 + (warp & 1)
        acc = tc.zeros(rt[f32, 64, 64])
        for k in tc.range(tc.cdiv(A.cols, 16)):
            a = tc.load(A[row, k], rt[bf16, 64, 16])
            b = tc.load(B[k, col], rt[bf16, 16, 64, "col"])
            tc.mma_AB(acc, a, b)
        tc.store(C[row, col], tc.cast(acc, bf16))


@tc.kernel
def step3(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "M", "N"]):
    """Shared memory: 128x64 and 64x128 elements are loaded once and read by two warps each."""
    tasks = tc.row_major(tc.cdiv(A.rows, 128), tc.cdiv(B.cols, 128))
    with tc.warpgroup():
        task, warp = tasks.task(tc.cta_id()), tc.warp_id()
        a, b = tc.shared(st[bf16, 64, 64], 2), tc.shared(st[bf16, 64, 64], 2)
        with tc.warps():
            acc = tc.zeros(rt[f32, 64, 64])
        for k in tc.range(tc.cdiv(A.cols, 64)):
            for half in range(2):
                tc.copy(a[half], A[task.row * 2 + half, k])
                tc.copy(b[half], B[k, task.col * 2 + half])
            tc.sync()
            with tc.warps():
                tc.mma_AB(acc, tc.load(a[warp >> 1]), tc.load(b[warp & 1], order="col"))
            tc.sync()
        with tc.warps():
            place = C[task.row * 2 + (warp >> 1), task.col * 2 + (warp & 1)]
            tc.store(place, tc.cast(acc, bf16))


@tc.kernel
def step4(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "M", "N"]):
    """Copies in flight: `cp.async` fills one half of the buffers while the other is multiplied."""
    tasks = tc.row_major(tc.cdiv(A.rows, 128), tc.cdiv(B.cols, 128))
    with tc.warpgroup():
        task, warp = tasks.task(tc.cta_id()), tc.warp_id()
        a, b = tc.shared(st[bf16, 64, 64], 4), tc.shared(st[bf16, 64, 64], 4)

        def fetch(k):
            for half in range(2):
                tc.copy_async(a[2 * (k & 1) + half], A[task.row * 2 + half, k])
                tc.copy_async(b[2 * (k & 1) + half], B[k, task.col * 2 + half])
            tc.copy_commit()

        with tc.warps():
            acc = tc.zeros(rt[f32, 64, 64])
        fetch(tc.var(0))
        for k in tc.range(tc.cdiv(A.cols, 64)):
            fetch(k + 1)
            tc.copy_wait(1)
            tc.sync()
            with tc.warps():
                left = tc.load(a[2 * (k & 1) + (warp >> 1)])
                right = tc.load(b[2 * (k & 1) + (warp & 1)], order="col")
                tc.mma_AB(acc, left, right)
            tc.sync()
        with tc.warps():
            place = C[task.row * 2 + (warp >> 1), task.col * 2 + (warp & 1)]
            tc.store(place, tc.cast(acc, bf16))


@tc.kernel
def step5(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "M", "N"]):
    """Hopper: TMA loads a tile with one instruction, `wgmma` multiplies from shared memory."""
    tasks = tc.row_major(tc.cdiv(A.rows, 128), tc.cdiv(B.cols, 128))
    full = tc.barrier()
    with tc.warpgroup():
        task = tasks.task(tc.cta_id())
        a, b = tc.shared(st[bf16, 128, 64]), tc.shared(st[bf16, 64, 128])
        acc = tc.zeros(rt[f32, 128, 128])
        for k in tc.range(tc.cdiv(A.cols, 64)):
            full.expect(a, b)
            tc.load_async(a, A[task.row, k], full)
            tc.load_async(b, B[k, task.col], full)
            full.wait(k & 1)
            tc.mma_AB(acc, a, b)
            tc.mma_wait()
            tc.sync()
        tc.store(C[task.row, task.col], tc.cast(acc, bf16))


@tc.kernel
def pipelined(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "M", "N"],
              *, consumers=1, stages=4, group=1):  # fmt: skip
    """A pipeline: a producer warp loads ahead, consumer warpgroups multiply 64x256 tiles each."""
    rows, cols = tc.cdiv(A.rows, 64 * consumers), tc.cdiv(B.cols, 256)
    pipe = tc.lcf(consumers=consumers, stages=stages, steps=tc.cdiv(A.cols, 64),
                  tasks=tc.grouped(rows, cols, rows=group))  # fmt: skip
    a = pipe.input(st[bf16, 64, 64], count=consumers)
    b = pipe.input(st[bf16, 64, 256])
    c = pipe.output(st[bf16, 64, 256])
    acc = pipe.accumulator(f32, 64, 256)

    @pipe.load
    def _(task, k):
        for i in range(consumers):
            tc.load_async(a[i], A[task.row * consumers + i, k])
        tc.load_async(b, B[k, task.col])

    @pipe.compute
    def _(task, k):
        tc.mma_AB(acc, a[pipe.consumer], b)

    @pipe.finish
    def _(task):
        c.store(C[task.row * consumers + pipe.consumer, task.col], acc)


@dataclass(frozen=True)
class Step:
    """One step: a kernel, and how it is called.

    Args:
        name: as tables show it.
        kernel: called with A, B and C.
        tile: rows and columns of C that one task makes.
        persistent: the grid is one CTA a SM, each with many tasks; else one CTA a task.
    """

    name: str
    kernel: Callable[..., Any]
    tile: tuple[int, int]
    persistent: bool = False

    def __call__(self, a: Any, b: Any, c: Any) -> None:
        """C = A @ B, of NumPy arrays on the PTX machine or of CUDA tensors on a GPU."""
        if self.persistent:
            self.kernel(a, b, c)
        else:
            self.kernel(a, b, c, grid=tc.cdiv(c.shape[0], self.tile[0])
                        * tc.cdiv(c.shape[1], self.tile[1]))  # fmt: skip


STEPS = (
    Step("1 outer products", step1, (64, 64)),
    Step("2 tensor cores", step2, (128, 128)),
    Step("3 shared memory", step3, (128, 128)),
    Step("4 copies in flight", step4, (128, 128)),
    Step("5 TMA and wgmma", step5, (128, 128)),
    Step("6 a pipeline", pipelined, (64, 256)),
    Step("7 two consumers", partial(pipelined, consumers=2), (128, 256)),
    Step("8 persistent, in groups", partial(pipelined, consumers=2, group=8), (128, 256), True),
    Step("9 tile by shape", lambda a, b, c: tc.matmul(a, b, out=c), (0, 0), True),
)
