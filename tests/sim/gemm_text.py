"""A small hand-written GEMM: one producer thread, one consumer warpgroup, a ring of two stages.

C (64 x 64 a CTA) = A (64 x K) B^T (64 x K), bf16, K-major operands, 128-byte swizzle.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tilecat import sim
from tilecat.addresses import AddressTable, BarrierName, SharedRange, ThreadRole

from .texts import HEAD

BF16 = ml_dtypes.bfloat16
STAGE, TILE = 16384, 8192
OUT, FULL, EMPTY = 2 * STAGE, 2 * STAGE + TILE, 2 * STAGE + TILE + 16
ACC = ", ".join(f"%a{k}" for k in range(32))
HIGH = 64 | 1 << 30  # stride 1024, 128-byte swizzle


def _wait(barrier: str, parity: str, label: str) -> str:
    return (f"{label}: mbarrier.try_wait.parity.shared::cta.b64 %p9, [{barrier}], {parity}; "
            f"@!%p9 bra {label};")  # fmt: skip


def _steps() -> str:
    lines = []
    for k in range(4):
        lines += [
            f"add.u32 %r40, %r30, {2 * k}; mov.b64 %d10, {{%r40, {HIGH}}};",
            f"add.u32 %r41, %r31, {2 * k}; mov.b64 %d11, {{%r41, {HIGH}}};",
            f"setp.ne.u32 %p5, %r12, {0 if k == 0 else -1};",
            f"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{{ACC}}}, %d10, %d11, %p5, "
            "1, 1, 0, 0;",
        ]
    return "\n".join(lines)


def _epilogue() -> str:
    lines = []
    for c in range(4):
        lines.append(f"add.u32 %r50, %r23, {2 * c}; xor.b32 %r50, %r50, %r25;")
        lines.append("mad.lo.u32 %r50, %r50, 16, %r24;")
        for x, (j, h) in enumerate(((2 * c, 0), (2 * c, 2), (2 * c + 1, 0), (2 * c + 1, 2))):
            low, high = f"%a{4 * j + h}", f"%a{4 * j + h + 1}"
            lines.append(f"cvt.rn.bf16x2.f32 %r{60 + x}, {high}, {low};")
        lines.append("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r50], {%r60, %r61, %r62, %r63};")
    return "\n".join(lines)


def _start(loc) -> str:
    return f""".extern .shared .align 1024 .b8 smem[];
.visible .entry gemm(.param .align 64 .b8 mapA[128], .param .align 64 .b8 mapB[128],
  .param .align 64 .b8 mapC[128], .param .u32 pK)
.maxntid 256, 1, 1
.minnctapersm 1
{{
.reg .pred %p<10>; .reg .b32 %r<70>; .reg .b64 %d<12>; .reg .f32 %a<32>;
mov.b64 %d1, mapA; cvta.param.u64 %d1, %d1; mov.b64 %d2, mapB; cvta.param.u64 %d2, %d2;
mov.b64 %d3, mapC; cvta.param.u64 %d3, %d3;
ld.param.u32 %r1, [pK]; add.u32 %r1, %r1, 63; shr.u32 %r1, %r1, 6;
mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; shl.b32 %r3, %r3, 6;
mov.u32 %r4, smem; add.u32 %r5, %r4, {FULL}; add.u32 %r6, %r4, {EMPTY};
setp.ne.u32 %p1, %r2, 0; @%p1 bra READY;
{loc(1)}mbarrier.init.shared::cta.b64 [%r5], 1;
mbarrier.init.shared::cta.b64 [%r5+8], 1;
mbarrier.init.shared::cta.b64 [%r6], 1;
mbarrier.init.shared::cta.b64 [%r6+8], 1;
fence.mbarrier_init.release.cluster;
READY:
bar.sync 0;
mov.u32 %r12, 0; mov.u32 %r10, 0; mov.u32 %r11, 0;
setp.lt.u32 %p2, %r2, 128; @%p2 bra CONSUMER;
setp.ne.u32 %p1, %r2, 128; @%p1 bra END;
mov.u32 %r11, 1;
"""


def _producer(loc) -> str:
    return f"""LOAD:
mad.lo.u32 %r13, %r10, 8, %r5; mad.lo.u32 %r14, %r10, 8, %r6;
mad.lo.u32 %r15, %r10, {STAGE}, %r4; add.u32 %r16, %r15, {TILE}; shl.b32 %r17, %r12, 6;
{loc(10)}{_wait("%r14", "%r11", "FREE")}
{loc(11)}mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r13], {STAGE};
{loc(12)}cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
  [%r15], [%d1, {{%r17, %r3}}], [%r13];
{loc(13)}cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
  [%r16], [%d2, {{%r17, 0}}], [%r13];
add.u32 %r10, %r10, 1; setp.eq.u32 %p3, %r10, 2; @%p3 mov.u32 %r10, 0; @%p3 xor.b32 %r11, %r11, 1;
add.u32 %r12, %r12, 1; setp.lt.u32 %p3, %r12, %r1; @%p3 bra LOAD;
bra END;
"""


def _consumer(loc) -> str:
    return f"""CONSUMER:
setp.eq.u32 %p4, %r2, 0;
MAIN:
mad.lo.u32 %r13, %r10, 8, %r5; mad.lo.u32 %r14, %r10, 8, %r6; mad.lo.u32 %r15, %r10, {STAGE}, %r4;
{loc(20)}{_wait("%r13", "%r11", "ARRIVED")}
and.b32 %r30, %r15, 0x3FFFF; shr.u32 %r30, %r30, 4; add.u32 %r31, %r30, {TILE >> 4};
{loc(21)}wgmma.fence.sync.aligned;
{loc(22)}{_steps()}
wgmma.commit_group.sync.aligned;
{loc(23)}wgmma.wait_group.sync.aligned 0;
{loc(24)}@%p4 mbarrier.arrive.shared::cta.b64 _, [%r14];
add.u32 %r10, %r10, 1; setp.eq.u32 %p3, %r10, 2; @%p3 mov.u32 %r10, 0; @%p3 xor.b32 %r11, %r11, 1;
add.u32 %r12, %r12, 1; setp.lt.u32 %p3, %r12, %r1; @%p3 bra MAIN;
and.b32 %r20, %r2, 31; shr.u32 %r21, %r2, 5; and.b32 %r22, %r20, 15; shr.u32 %r23, %r20, 4;
mad.lo.u32 %r22, %r21, 16, %r22; add.u32 %r24, %r4, {OUT}; mad.lo.u32 %r24, %r22, 128, %r24;
and.b32 %r25, %r22, 7;
{loc(30)}{_epilogue()}
{loc(31)}fence.proxy.async.shared::cta;
{loc(32)}bar.sync 1, 128;
add.u32 %r26, %r4, {OUT};
{loc(33)}@%p4 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d3, {{0, %r3}}], [%r26];
@%p4 cp.async.bulk.commit_group;
@%p4 cp.async.bulk.wait_group 0;
END:
ret;
}}
"""


def text(source: bool = False) -> str:
    """The kernel; with `source`, `.loc` lines name user.py."""
    loc = (lambda line: f".loc 1 {line} 5\n") if source else (lambda line: "")
    file = '.file 1 "user.py"\n' if source else "\n"
    return HEAD + file + _start(loc) + _producer(loc) + _consumer(loc)


TABLE = AddressTable(
    shared=tuple(
        SharedRange(stage * STAGE + which * TILE, TILE, name, "bf16", 64, 64, stage)
        for stage in range(2) for which, name in enumerate("AB")
    ) + (SharedRange(OUT, TILE, "C", "bf16", 64, 64),),
    barriers=tuple(
        BarrierName(base + 8 * stage, f"{name}[{stage}]", 1)
        for base, name in ((FULL, "full"), (EMPTY, "empty")) for stage in range(2)
    ),
    roles=(ThreadRole(0, 127, "consumer"), ThreadRole(128, 255, "producer")),
)  # fmt: skip


def run(ptx: str | None = None, *, m: int = 128, k: int = 320, seed: int = 0, **options):
    """Result of the kernel and the relative error of C."""
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(shape).astype(BF16) for shape in ((m, k), (64, k)))
    c = np.full((m, 64), np.nan, BF16)
    maps = [sim.TensorMap(array, (64, 64), 128, "bf16") for array in (a, b, c)]
    grid = options.pop("grid", -(-m // 64))
    result = sim.run(ptx or text(), grid=grid, args=[*maps, k], smem_bytes=EMPTY + 16, seed=seed,
                     **options)  # fmt: skip
    want = a.astype(np.float64) @ b.astype(np.float64).T
    got = c.astype(np.float64)
    return result, float(np.linalg.norm(got - want) / np.linalg.norm(want))
