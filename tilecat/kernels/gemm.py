"""Matrix multiplication: one kernel; dtypes, batches, epilogues and scales are its parameters."""

from __future__ import annotations

import tilecat as tc
from tilecat import DTypeVar, bf16, e4m3, e5m2, f16, f32, gl, inout, s8, s32, st, tf32

from . import epilogues
from .epilogues import plane

TA = DTypeVar("TA", bf16, f16, f32, e4m3, e5m2, s8)
TB = DTypeVar("TB", bf16, f16, f32, e4m3, e5m2, s8)
TC = DTypeVar("TC", bf16, f16, f32, e4m3, e5m2, s32)
STEP_BYTES = 128  # of K a step: the widest swizzle, of A and of a transposed B


def multiplied_as(tensor):
    """The dtype of an operand's shared tiles: f32 is multiplied as tf32."""
    return tf32 if tensor.dtype == f32 else tensor.dtype


def order_of(tensor, k_last):
    """The order of an operand's shared tiles: as in memory, or K contiguous where that is a rule.

    Only 16-bit types may have M or N contiguous (PTX ISA 9.7.15.5.1, wgmma's shared operands).
    """
    if tensor.dtype.bits == 16:
        return tensor.order
    tc.require(
        not tensor.tma or tensor.order == k_last,
        f"matmul: {tensor.dtype} is multiplied with K contiguous in memory, got {tensor!r} in "
        f"{tensor.order} order",
        hint="x.T.contiguous().T",
    )
    return k_last


@tc.kernel
def matmul(A: gl[TA, ..., "M", "K"], B: gl[TB, ..., "K", "N"], C: inout[TC, ..., "M", "N"], *args,
           tile_m=128, tile_n=256, tile_k=0, stages=4, group=8, cluster=1,
           epilogue=()):  # fmt: skip
    """C = epilogue(A @ B), fp32 sums (s32 of s8); args are those of the epilogue's steps."""
    n = tile_m // 64
    tile_k = tile_k or STEP_BYTES // A.dtype.nbytes
    tc.require(n > 0 and tile_m == 64 * n, f"matmul: tile_m is a multiple of 64, got {tile_m=}")
    tasks = tc.grouped(tc.cdiv(A.rows, tile_m), tc.cdiv(B.cols, tile_n),
                       rows=group, cluster=cluster)  # fmt: skip
    tasks = tc.batched(tasks, *(C.size(axis) for axis in range(C.rank - 2)))
    pipe = tc.lcf(consumers=n, stages=stages, tasks=tasks, steps=tc.cdiv(A.cols, tile_k),
                  cluster=cluster)  # fmt: skip
    a = pipe.input(st[multiplied_as(A), 64, tile_k, order_of(A, "row")], count=n)
    b = pipe.input(st[multiplied_as(B), tile_k, tile_n, order_of(B, "col")])
    c = pipe.output(st[C.dtype, 64, tile_n])
    acc = pipe.accumulator(s32 if A.dtype == s8 else f32, 64, tile_n)

    @pipe.load
    def _(task, k):
        for i in range(n):
            tc.load_async(a[i], A[*plane(A, C, task.batch, "MK"), task.row * n + i, k])
        tc.load_async(b, B[*plane(B, C, task.batch, "KN"), k, task.col], multicast=True)

    @pipe.compute
    def _(task, k):
        tc.mma_AB(acc, a[pipe.consumer], b)

    @pipe.finish
    def _(task):
        place = (*task.batch, task.row * n + pipe.consumer, task.col)
        c.store(C[place], epilogues.apply(epilogue, args, (acc,), C, place))
