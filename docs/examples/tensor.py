"""Tensor memory."""

from __future__ import annotations

from .frame import Family
from .maps import E

PRODUCT = """
@tc.kernel
def product(A: gl[bf16, "M", "K"], B: gl[bf16, "N", "K"], C: gl[f32, "M", "N"]):
    a, b = tc.shared(st[bf16, 64, 64]), tc.shared(st[bf16, 64, 64])
    acc = tc.tmem(tt[f32, 64, 64])
    loaded, done = tc.barrier(), tc.barrier()
    with tc.warpgroup():
        with tc.elected():
            loaded.expect(a, b)
            tc.load_async(a, A[0, 0], loaded)
            tc.load_async(b, B[0, 0], loaded)
            loaded.wait(0)
            tc.mma_ABt(acc, a, b, accumulate=False)
            tc.mma_commit(done)
        done.wait(0)
        tc.store(C[0, 0], tc.load(acc))
        tc.free_tmem()

text = product.compile(target="sm_100a").ptx
"""
ROWS = """
ROW = rt[f32, 128, 64, "32x32b"]   # a row a thread of a warpgroup

@tc.kernel
def softmax(X: gl[f32, "M", "N"], Y: gl[f32, "M", "N"]):
    scores = tc.tmem(tt[f32, 128, 64])
    with tc.warpgroup():
        tc.store(scores, tc.load(X[0, 0], ROW))
        tc.sync()
        x, most = tc.load_row_max(scores, ROW)
        y = tc.exp(x - most)
        tc.store(Y[0, 0], y / tc.row_sum(y))
        tc.free_tmem()

text = softmax.compile(target="sm_103a").ptx
"""
SCALED = """
@tc.kernel
def product(
    A: gl[e4m3, "M", "K"], B: gl[e4m3, "N", "K"], SA: gl[tc.dtypes.u64, "P", "Q"],
    SB: gl[tc.dtypes.u64, "R", "Q"], C: gl[f32, "M", "N"],
):
    tasks = tc.row_major(tc.cdiv(A.rows, 128), tc.cdiv(B.rows, 128))
    pipe = tc.lcf(consumers=2, stages=4, tasks=tasks, steps=tc.cdiv(A.cols, 128))
    a, b = pipe.input(st[e4m3, 64, 128], count=2), pipe.input(st[e4m3, 128, 128])
    scale_a = pipe.input(tc.sc[tc.dtypes.e8m0, 128, 4])   # a scale for each 32 of K
    scale_b = pipe.input(tc.sc[tc.dtypes.e8m0, 128, 4])
    acc = pipe.accumulator(f32, 64, 128)

    @pipe.load
    def _(task, k):
        for i in range(2):
            tc.load_async(a[i], A[task.row * 2 + i, k])
        tc.load_async(b, B[task.col, k])
        tc.load_async(scale_a, SA[task.row, k])
        tc.load_async(scale_b, SB[task.col, k])

    @pipe.compute
    def _(task, k):
        tc.mma_ABt(acc, a[pipe.consumer], b, scale_a=scale_a, scale_b=scale_b)

    @pipe.finish
    def _(task):
        tc.store(C[task.row * 2 + pipe.consumer, task.col], acc)

text = product.compile(target="sm_100a").ptx
"""
TENSOR = Family(
    "tensor-memory",
    "Tensor memory, on Blackwell and Rubin",
    """
Where `tcgen05.mma` keeps its sums: 128 lanes of 512 columns of 32 bits a CTA. One thread issues
products of shared tiles; a commit arrives on an mbarrier when they are done; then a warpgroup loads
the sums into a register tile. Waits and fences of loads and stores are the compiler's.

A pipeline's `accumulator` is such a tile on these chips, and the same kernel runs on all: see
[tensor memory](../design/tensor-memory.md). By hand on sm_100a, sm_103a and sm_107a it is as below.

Products with scales (MXFP8, MXFP4, NVFP4) take them from tensor memory too, from which copies of
shared memory bring them: `tcgen05.mma` of the kinds `mxf8f6f4`, `mxf4` and `mxf4nvf4`.
""",
    ("tt", "tmem", "mma_commit", "free_tmem", "load_row_max", "load_row_min", "sc", "copy_scales"),
    (
        E("tt tmem mma_commit free_tmem", PRODUCT,
          ("text.count('tcgen05.mma.cta_group::1.kind::f16') == 4",
           "'tcgen05.ld.sync.aligned.16x256b.x8.b32' in text")),
        E("load_row_max load_row_min", ROWS,
          ("'tcgen05.ld.red.sync.aligned.32x32b.x64.max.f32' in text",
           "'shfl' not in text")),
        E("sc copy_scales", SCALED,
          ("text.count('kind::mxf8f6f4.block_scale.block32') == 4",
           "text.count('tcgen05.cp.cta_group::1.32x128b.warpx4') == 2")),
    ),
)  # fmt: skip
