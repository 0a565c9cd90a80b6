"""A small hand-written GEMM for Blackwell: a TMA warp, an MMA warp, an epilogue warpgroup.

C (128 x 64 a CTA, f32) = A (128 x K) B^T (64 x K), bf16, K-major operands, 128-byte swizzle, a ring
of two stages; D in tensor memory.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tilecat import sim
from tilecat.addresses import AddressTable, BarrierName, SharedRange, ThreadRole

BF16 = ml_dtypes.bfloat16
TILE_M, TILE_N, TILE_K = 128, 64, 64
A_BYTES, B_BYTES = TILE_M * TILE_K * 2, TILE_N * TILE_K * 2
STAGE = A_BYTES + B_BYTES
FULL, EMPTY = 2 * STAGE, 2 * STAGE + 16
DONE, HOLDER = 2 * STAGE + 32, 2 * STAGE + 40
SMEM = 2 * STAGE + 48
# Shared-memory descriptor, high word: stride 1024, version 1, 128-byte swizzle.
HIGH = 1024 >> 4 | 1 << 14 | 2 << 29
# Instruction descriptor: f32 += bf16 x bf16, N, M.
IDESC = 1 << 4 | 1 << 7 | 1 << 10 | (TILE_N >> 3) << 17 | (TILE_M >> 4) << 24


def wait(barrier: str, parity: str, label: str) -> str:
    """A try_wait in its loop."""
    return (f"{label}: mbarrier.try_wait.parity.shared::cta.b64 %p9, [{barrier}], {parity}; "
            f"@!%p9 bra {label};")  # fmt: skip


def _start() -> str:
    return f""".version 8.6
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry gemm(.param .align 64 .b8 mapA[128], .param .align 64 .b8 mapB[128],
  .param .u64 pC, .param .u32 pK)
.maxntid 192, 1, 1
.minnctapersm 1
{{
.reg .pred %p<10>; .reg .b32 %r<70>; .reg .b64 %d<12>; .reg .b32 %a<64>;
mov.b64 %d1, mapA; cvta.param.u64 %d1, %d1; mov.b64 %d2, mapB; cvta.param.u64 %d2, %d2;
ld.param.u32 %r1, [pK]; add.u32 %r1, %r1, 63; shr.u32 %r1, %r1, 6;
mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; shl.b32 %r3, %r3, 7; shr.u32 %r8, %r2, 5;
mov.u32 %r4, smem; add.u32 %r5, %r4, {FULL}; add.u32 %r6, %r4, {EMPTY};
setp.ne.u32 %p1, %r2, 0; @%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r5], 1;
mbarrier.init.shared::cta.b64 [%r5+8], 1;
mbarrier.init.shared::cta.b64 [%r6], 1;
mbarrier.init.shared::cta.b64 [%r6+8], 1;
mbarrier.init.shared::cta.b64 [%r4+{DONE}], 1;
fence.mbarrier_init.release.cluster;
READY:
setp.ne.u32 %p1, %r8, 0; @%p1 bra HAVE;
add.u32 %r7, %r4, {HOLDER};
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r7], 64;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
HAVE:
tcgen05.fence::before_thread_sync;
bar.sync 0;
tcgen05.fence::after_thread_sync;
ld.shared.b32 %r9, [%r4+{HOLDER}];
mov.u32 %r12, 0; mov.u32 %r10, 0; mov.u32 %r11, 0;
setp.lt.u32 %p2, %r2, 128; @%p2 bra EPILOGUE;
setp.eq.u32 %p2, %r2, 160; @%p2 bra PRODUCT;
setp.ne.u32 %p2, %r2, 128; @%p2 bra LEAVE;
"""


def _producer() -> str:
    return f"""mov.u32 %r11, 1;
LOAD:
mad.lo.u32 %r13, %r10, 8, %r5; mad.lo.u32 %r14, %r10, 8, %r6;
mad.lo.u32 %r15, %r10, {STAGE}, %r4; add.u32 %r16, %r15, {A_BYTES}; shl.b32 %r17, %r12, 6;
{wait("%r14", "%r11", "FREE")}
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r13], {STAGE};
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
  [%r15], [%d1, {{%r17, %r3}}], [%r13];
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
  [%r16], [%d2, {{%r17, 0}}], [%r13];
add.u32 %r10, %r10, 1; setp.eq.u32 %p3, %r10, 2; @%p3 mov.u32 %r10, 0; @%p3 xor.b32 %r11, %r11, 1;
add.u32 %r12, %r12, 1; setp.lt.u32 %p3, %r12, %r1; @%p3 bra LOAD;
bra LEAVE;
"""


def _steps() -> str:
    lines = []
    for k in range(4):
        lines += [
            f"add.u32 %r40, %r30, {2 * k}; mov.b64 %d10, {{%r40, {HIGH}}};",
            f"add.u32 %r41, %r31, {2 * k}; mov.b64 %d11, {{%r41, {HIGH}}};",
            f"setp.ne.u32 %p5, %r12, {0 if k == 0 else -1};",
            "tcgen05.mma.cta_group::1.kind::f16 [%r9], %d10, %d11, %r50, %p5;",
        ]
    return "\n".join(lines)


COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"


def _product() -> str:
    return f"""PRODUCT:
mov.u32 %r50, {IDESC};
MAIN:
mad.lo.u32 %r13, %r10, 8, %r5; mad.lo.u32 %r14, %r10, 8, %r6; mad.lo.u32 %r15, %r10, {STAGE}, %r4;
{wait("%r13", "%r11", "ARRIVED")}
tcgen05.fence::after_thread_sync;
and.b32 %r30, %r15, 0x3FFFF; shr.u32 %r30, %r30, 4; add.u32 %r31, %r30, {A_BYTES >> 4};
{_steps()}
{COMMIT} [%r14];
add.u32 %r10, %r10, 1; setp.eq.u32 %p3, %r10, 2; @%p3 mov.u32 %r10, 0; @%p3 xor.b32 %r11, %r11, 1;
add.u32 %r12, %r12, 1; setp.lt.u32 %p3, %r12, %r1; @%p3 bra MAIN;
add.u32 %r14, %r4, {DONE};
{COMMIT} [%r14];
bra LEAVE;
"""


def _epilogue() -> str:
    halves = [", ".join(f"%a{32 * h + k}" for k in range(32)) for h in range(2)]
    loads = "\n".join(
        f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{half}}}, [%r22+{32 * h}];"
        for h, half in enumerate(halves)
    )
    stores = "\n".join(
        f"st.global.v4.b32 [%d4+{16 * k}], {{{', '.join(f'%a{4 * k + j}' for j in range(4))}}};"
        for k in range(16)
    )
    return f"""EPILOGUE:
add.u32 %r20, %r4, {DONE};
{wait("%r20", "0", "COMPUTED")}
tcgen05.fence::after_thread_sync; // of the epilogue
shl.b32 %r21, %r8, 21; add.u32 %r22, %r9, %r21;
{loads}
tcgen05.wait::ld.sync.aligned;
tcgen05.fence::before_thread_sync; // of the epilogue
ld.param.u64 %d3, [pC]; add.u32 %r23, %r3, %r2; mul.wide.u32 %d4, %r23, {4 * TILE_N};
add.u64 %d4, %d4, %d3;
{stores}
LEAVE:
bar.sync 0; // before the end
@%p1 bra END;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r9, 64;
END:
ret;
}}
"""


def text() -> str:
    """The kernel."""
    return _start() + _producer() + _product() + _epilogue()


TABLE = AddressTable(
    shared=tuple(
        SharedRange(stage * STAGE + start, size, name, "bf16", rows, 64, stage)
        for stage in range(2)
        for name, start, size, rows in (("A", 0, A_BYTES, 128), ("B", A_BYTES, B_BYTES, 64))
    ),
    barriers=tuple(
        BarrierName(base + 8 * stage, f"{name}[{stage}]", 1)
        for base, name in ((FULL, "full"), (EMPTY, "empty")) for stage in range(2)
    ) + (BarrierName(DONE, "done", 1),),
    roles=(ThreadRole(0, 127, "epilogue"), ThreadRole(128, 159, "loads"),
           ThreadRole(160, 191, "products")),
)  # fmt: skip


def run(ptx: str | None = None, *, m: int = 256, k: int = 320, seed: int = 0, **options):
    """Result of the kernel and the relative error of C."""
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(shape).astype(BF16) for shape in ((m, k), (TILE_N, k)))
    c = np.full((m, TILE_N), np.nan, np.float32)
    maps = [sim.TensorMap(a, (64, TILE_M), 128, "bf16"), sim.TensorMap(b, (64, 64), 128, "bf16")]
    result = sim.run(ptx or text(), grid=m // TILE_M, args=[*maps, sim.Pointer(c), k],
                     smem_bytes=SMEM, seed=seed, **options)  # fmt: skip
    want = a.astype(np.float64) @ b.astype(np.float64).T
    return result, float(np.linalg.norm(c - want) / np.linalg.norm(want))
