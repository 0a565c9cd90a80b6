"""A small hand-written GEMM of CTA pairs: .cta_group::2, the even CTA issues for both.

C (M x N a pair, f32) = A (M x K) B^T (N x K), bf16, K-major, 128-byte swizzle, a ring of two
stages. Each CTA loads half of A's rows and half of B's, all of which complete on the even CTA's
mbarrier; commits arrive in both.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tilecat import sim

from .tensor_gemm_text import HIGH, wait

BF16 = ml_dtypes.bfloat16


def _layout(m: int, n: int) -> dict[str, int]:
    a, b = m // 2 * 128, n // 2 * 128
    stage = a + b
    full = 2 * stage
    return {"a": a, "b": b, "stage": stage, "full": full, "empty": full + 16, "done": full + 32,
            "holder": full + 40, "smem": full + 48}  # fmt: skip


def _start(place: dict[str, int], m: int, n: int) -> str:
    barriers = "\n".join(f"mbarrier.init.shared::cta.b64 [%r4+{place['full'] + 8 * k}], 1;"
                         for k in range(5))  # fmt: skip
    return f""".version 8.6
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry gemm(.param .align 64 .b8 mapA[128], .param .align 64 .b8 mapB[128],
  .param .u64 pC, .param .u32 pK)
.maxntid 192, 1, 1
.minnctapersm 1
.reqnctapercluster 2, 1, 1
{{
.reg .pred %p<10>; .reg .b16 %h<2>; .reg .b32 %r<70>; .reg .b64 %d<12>; .reg .b32 %a<64>;
mov.b64 %d1, mapA; cvta.param.u64 %d1, %d1; mov.b64 %d2, mapB; cvta.param.u64 %d2, %d2;
ld.param.u32 %r1, [pK]; add.u32 %r1, %r1, 63; shr.u32 %r1, %r1, 6;
mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; mul.lo.u32 %r3, %r3, {m // 2}; shr.u32 %r8, %r2, 5;
mov.u32 %r60, %cluster_ctarank; mul.lo.u32 %r61, %r60, {n // 2}; mov.u16 %h1, 3;
mov.u32 %r4, smem; and.b32 %r62, %r4, 0xFEFFFFFF; // the even CTA's
add.u32 %r5, %r4, {place["full"]}; add.u32 %r6, %r4, {place["empty"]};
add.u32 %r63, %r62, {place["full"]};
setp.ne.u32 %p1, %r2, 0; @%p1 bra READY;
{barriers}
fence.mbarrier_init.release.cluster;
READY:
setp.ne.u32 %p1, %r8, 0; @%p1 bra HAVE;
add.u32 %r7, %r4, {place["holder"]};
tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r7], 128;
tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
HAVE:
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; // of the start
ld.shared.b32 %r9, [%r4+{place["holder"]}];
mov.u32 %r12, 0; mov.u32 %r10, 0; mov.u32 %r11, 0;
setp.lt.u32 %p2, %r2, 128; @%p2 bra EPILOGUE;
setp.eq.u32 %p2, %r2, 160; setp.eq.u32 %p4, %r60, 0; and.pred %p4, %p4, %p2; @%p4 bra PRODUCT;
setp.ne.u32 %p2, %r2, 128; @%p2 bra LEAVE;
"""


_NEXT = """add.u32 %r10, %r10, 1; setp.eq.u32 %p3, %r10, 2; @%p3 mov.u32 %r10, 0;
@%p3 xor.b32 %r11, %r11, 1; add.u32 %r12, %r12, 1; setp.lt.u32 %p3, %r12, %r1;"""


def _producer(place: dict[str, int]) -> str:
    load = ("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
            ".cta_group::2")  # fmt: skip
    return f"""mov.u32 %r11, 1; setp.eq.u32 %p6, %r60, 0;
LOAD:
mad.lo.u32 %r13, %r10, 8, %r63; mad.lo.u32 %r14, %r10, 8, %r6; mad.lo.u32 %r18, %r10, 8, %r5;
mad.lo.u32 %r15, %r10, {place["stage"]}, %r4; add.u32 %r16, %r15, {place["a"]};
shl.b32 %r17, %r12, 6;
{wait("%r14", "%r11", "FREE")}
@%p6 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r18], {2 * place["stage"]};
{load} [%r15], [%d1, {{%r17, %r3}}], [%r13];
{load} [%r16], [%d2, {{%r17, %r61}}], [%r13];
{_NEXT} @%p3 bra LOAD;
bra LEAVE;
"""


COMMIT = ("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster"
          ".b64")  # fmt: skip


def _product(place: dict[str, int], m: int, n: int) -> str:
    steps = "\n".join(
        f"add.u32 %r40, %r30, {2 * k}; mov.b64 %d10, {{%r40, {HIGH}}};\n"
        f"add.u32 %r41, %r31, {2 * k}; mov.b64 %d11, {{%r41, {HIGH}}};\n"
        f"setp.ne.u32 %p5, %r12, {0 if k == 0 else -1};\n"
        "tcgen05.mma.cta_group::2.kind::f16 [%r9], %d10, %d11, %r50, %p5;"
        for k in range(4)
    )
    bits = 1 << 4 | 1 << 7 | 1 << 10 | (n >> 3) << 17 | (m >> 4) << 24
    return f"""PRODUCT:
mov.u32 %r50, {bits};
MAIN:
mad.lo.u32 %r13, %r10, 8, %r5; mad.lo.u32 %r14, %r10, 8, %r6;
mad.lo.u32 %r15, %r10, {place["stage"]}, %r4;
{wait("%r13", "%r11", "ARRIVED")}
tcgen05.fence::after_thread_sync;
and.b32 %r30, %r15, 0x3FFFF; shr.u32 %r30, %r30, 4; add.u32 %r31, %r30, {place["a"] >> 4};
{steps}
{COMMIT} [%r14], %h1;
{_NEXT} @%p3 bra MAIN;
add.u32 %r14, %r4, {place["done"]};
{COMMIT} [%r14], %h1; // of the end
bra LEAVE;
"""


def _epilogue(place: dict[str, int], m: int, n: int) -> str:
    """A thread a lane. 64 rows of a CTA are 2 x 2: lanes 64 on hold the right half. Layout B."""
    columns = n if m == 256 else n // 2
    names = ", ".join(f"%a{k}" for k in range(32))
    moves = "\n".join(
        f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{names}}}, [%r22+{start}];\n"
        "tcgen05.wait::ld.sync.aligned;\n"
        + "\n".join(f"st.global.b32 [%d4+{4 * (start + k)}], %a{k};" for k in range(32))
        for start in range(0, columns, 32)
    )
    rows = "mov.u32 %r23, %r2; mov.u32 %r24, 0;"
    if m == 128:
        rows = f"and.b32 %r23, %r2, 63; shr.u32 %r24, %r2, 6; mul.lo.u32 %r24, %r24, {n // 2};"
    return f"""EPILOGUE:
add.u32 %r20, %r4, {place["done"]};
{wait("%r20", "0", "COMPUTED")}
tcgen05.fence::after_thread_sync; // of the epilogue
shl.b32 %r21, %r8, 21; add.u32 %r22, %r9, %r21;
{rows} add.u32 %r23, %r23, %r3; mad.lo.u32 %r24, %r23, {n}, %r24;
ld.param.u64 %d3, [pC]; mul.wide.u32 %d4, %r24, 4; add.u64 %d4, %d4, %d3;
{moves}
LEAVE:
tcgen05.fence::before_thread_sync;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; // of the end
@%p1 bra END;
tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r9, 128;
END:
ret;
}}
"""


def text(m: int = 256, n: int = 128) -> str:
    """The kernel for tiles of m x n."""
    place = _layout(m, n)
    return _start(place, m, n) + _producer(place) + _product(place, m, n) + _epilogue(place, m, n)


def run(ptx: str | None = None, *, m: int = 256, n: int = 128, pairs: int = 2, k: int = 192,
        seed: int = 0, **options):  # fmt: skip
    """Result of the kernel and the relative error of C."""
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(shape).astype(BF16) for shape in ((m * pairs, k), (n, k)))
    c = np.full((m * pairs, n), np.nan, np.float32)
    maps = [sim.TensorMap(x, (64, rows // 2), 128, "bf16") for x, rows in ((a, m), (b, n))]
    result = sim.run(ptx or text(m, n), grid=2 * pairs, args=[*maps, sim.Pointer(c), k],
                     smem_bytes=_layout(m, n)["smem"], seed=seed, **options)  # fmt: skip
    want = a.astype(np.float64) @ b.astype(np.float64).T
    with np.errstate(invalid="ignore"):
        return result, float(np.linalg.norm(c - want) / np.linalg.norm(want))
