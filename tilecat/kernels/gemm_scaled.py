"""The GEMM with scales of blocks as kernels of their own: MXFP8, MXFP4 and NVFP4.

`tc.matmul_mxfp8`, `tc.matmul_mxfp4` and `tc.matmul_nvfp4` call them on targets that have the
instructions: sm_100a, sm_103a, sm_107a. The text of one is

    tilecat emit tilecat/kernels/gemm_scaled.py:matmul_mxfp8 --target sm_100a
"""

from __future__ import annotations

import tilecat as tc
from tilecat import DTypeVar, bf16, e4m3, e5m2, f16, f32, gl, inout, u8
from tilecat.kernels.gemm import matmul

TA = DTypeVar("TA", e4m3, e5m2)
TB = DTypeVar("TB", e4m3, e5m2, u8)
TC = DTypeVar("TC", bf16, f16, f32)
u64 = tc.dtypes.u64


@tc.kernel
def matmul_mxfp8(A: gl[TA, ..., "M", "K"], B: gl[TB, ..., "N", "KB"], C: inout[TC, ..., "M", "N"],
                 scale_a: gl[u64, ..., "MC", "W"], scale_b: gl[u64, ..., "NC", "W"], *args,
                 tile_m=128, tile_n=256, stages=3, group=8, cluster=1, order="grouped", epilogue=(),
                 persistent=True, stacked=1, pairs=False, wide_k=False, collectors="",
                 early_a=False, exclusive=False, oversized=False):  # fmt: skip
    """C = epilogue((scale_a A) @ (scale_b B).T), an e8m0 scale for each 32 of K.

    Args:
        A: K contiguous.
        B: the transpose of the second operand, K contiguous; u8: two e2m1 a byte.
        C: the output.
        scale_a, scale_b: of `tc.formats.pack_scales`, viewed as 64-bit words: 128 rows of A, or
            columns of B, each.
        args: of the epilogue. The parameters are those of the GEMM.
    """
    if B.dtype != u8:
        tc.require_extent(B, B.rank - 1, A, A.rank - 1)
    matmul.function(A, B.T, C, scale_a, scale_b, *args, tile_m=tile_m, tile_n=tile_n, stages=stages,
                    group=group, cluster=cluster, order=order, epilogue=epilogue,
                    persistent=persistent, stacked=stacked, pairs=pairs, wide_k=wide_k,
                    collectors=collectors, early_a=early_a, exclusive=exclusive,
                    oversized=oversized, block_scales="mxfp8")  # fmt: skip


@tc.kernel
def matmul_fp4(A: gl[u8, ..., "M", "K"], B: gl[u8, ..., "N", "K"], C: inout[TC, ..., "M", "N"],
               scale_a: gl[u64, ..., "MC", "W"], scale_b: gl[u64, ..., "NC", "W"], *args,
               form="nvfp4", tile_m=128, tile_n=256, stages=3, group=8, cluster=1, order="grouped",
               epilogue=(), persistent=True, stacked=1, pairs=False, wide_k=False, collectors="",
               early_a=False, exclusive=False, oversized=False):  # fmt: skip
    """C = epilogue((scale_a A) @ (scale_b B).T) of e2m1, two a byte along K.

    Args:
        A: K contiguous, bytes.
        B: the transpose of the second operand, K contiguous, bytes.
        C: the output.
        scale_a, scale_b: as for `matmul_mxfp8`.
        args: of the epilogue. The parameters are those of the GEMM.
        form: "nvfp4", an e4m3 scale for each 16 of K, or "mxfp4", an e8m0 one for each 32.
    """
    matmul.function(A, B.T, C, scale_a, scale_b, *args, tile_m=tile_m, tile_n=tile_n, stages=stages,
                    group=group, cluster=cluster, order=order, epilogue=epilogue,
                    persistent=persistent, stacked=stacked, pairs=pairs, wide_k=wide_k,
                    collectors=collectors, early_a=early_a, exclusive=exclusive,
                    oversized=oversized, block_scales=form)  # fmt: skip
