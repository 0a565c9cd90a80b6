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
TENSOR = Family(
    "tensor-memory",
    "Tensor memory, on Blackwell and Rubin",
    """
Where `tcgen05.mma` keeps its sums: 128 lanes of 512 columns of 32 bits a CTA. One thread issues
products of shared tiles; a commit arrives on an mbarrier when they are done; then a warpgroup loads
the sums into a register tile. Waits and fences of loads and stores are the compiler's.

A pipeline's `accumulator` is such a tile on these chips, and the same kernel runs on all: see
[tensor memory](../design/tensor-memory.md). By hand, on sm_100a, sm_103a and sm_107a:
""",
    ("tt", "tmem", "mma_commit", "free_tmem"),
    (
        E("tt tmem mma_commit free_tmem", PRODUCT,
          ("text.count('tcgen05.mma.cta_group::1.kind::f16') == 4",
           "'tcgen05.ld.sync.aligned.16x256b.x8.b32' in text")),
    ),
)  # fmt: skip
