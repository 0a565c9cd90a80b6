"""A matrix product in thirty lines, as the README shows it.

The kernel of the package (`tilecat/kernels/gemm.py`) is this one with parameters for other dtypes,
batches, scales and epilogues; without them it makes the same PTX, which a test holds.

    python examples/gemm.py
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, st

T = DTypeVar("T", bf16, f16)


@tc.kernel
def matmul(A: gl[T, "M", "K"], B: gl[T, "K", "N"], C: gl[T, "M", "N"],
           *, tile_m=128, tile_n=256, tile_k=64, stages=4, group=8, cluster=1):  # fmt: skip
    """C = A @ B with fp32 accumulation."""
    n = tile_m // 64
    tc.require(n > 0 and tile_m == 64 * n, f"matmul: tile_m is a multiple of 64, got {tile_m=}")
    tasks = tc.grouped(tc.cdiv(A.rows, tile_m), tc.cdiv(B.cols, tile_n),
                       rows=group, cluster=cluster)  # fmt: skip
    pipe = tc.lcf(consumers=n, stages=stages, tasks=tasks, steps=tc.cdiv(A.cols, tile_k),
                  cluster=cluster)  # fmt: skip
    a = pipe.input(st[A.dtype, 64, tile_k, A.order], count=n)
    b = pipe.input(st[B.dtype, tile_k, tile_n, B.order])
    c = pipe.output(st[C.dtype, 64, tile_n])
    acc = pipe.accumulator(f32, 64, tile_n)

    @pipe.load
    def _(task, k):
        for i in range(n):
            tc.load_async(a[i], A[task.row * n + i, k])
        tc.load_async(b, B[k, task.col], multicast=True)

    @pipe.compute
    def _(task, k):
        tc.mma_AB(acc, a[pipe.consumer], b)

    @pipe.finish
    def _(task):
        c.store(C[task.row * n + pipe.consumer, task.col], acc)


def main() -> None:
    """One product on the PTX machine, against float64."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((300, 200),) * 2)
    c = np.empty((300, 300), a.dtype)
    matmul(a, b.T, c)
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    print(f"largest error: {np.abs(c.astype(np.float64) - exact).max() / np.abs(exact).max():.1e}")


if __name__ == "__main__":
    main()
