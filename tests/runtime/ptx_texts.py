"""Small kernels as PTX text, for the runtime's tests."""

from tilecat.addresses import AddressTable
from tilecat.codegen.module import (
    ExtentParam,
    Param,
    PointerParam,
    PtxModule,
    ScalarParam,
    StrideParam,
    TensorMapParam,
)

HEAD = ".version 8.6\n.target {target}\n.address_size 64\n"


def module(text: str, **fields) -> PtxModule:
    defaults = dict(
        entry="kernel",
        target="sm_90a",
        threads=128,
        smem_bytes=0,
        cluster=1,
        min_blocks=1,
        params=(),
        table=AddressTable(),
    )
    return PtxModule(text=text, **(defaults | fields))


def tiny(value: int = 7, *, target: str = "sm_90a", body: str = "", limits: str = "") -> PtxModule:
    """Stores a constant; `body` goes in before, at line 3 of kernel.py."""
    text = f"""{HEAD.format(target=target)}
.file 1 "kernel.py"
.visible .entry kernel(.param .u64 out)
.maxntid 128, 1, 1
{limits}
{{
.reg .b64 %p;
.reg .b32 %r<4>;
.loc 1 2 4
ld.param.u64 %p, [out];
mov.b32 %r1, {value};
.loc 1 3 8
{body}
st.global.b32 [%p], %r1;
ret;
}}
"""
    return module(text, target=target, params=(PointerParam("out", 0),))


def spilling(live: int = 64) -> PtxModule:
    """Holds `live` loaded values over a barrier with 24 registers a thread."""
    loads = "\n".join(f"ld.global.b32 %r{i}, [%p + {4 * i}];" for i in range(live))
    stores = "\n".join(f"st.global.b32 [%p + {4 * (i * 7 % live)}], %r{i};" for i in range(live))
    text = f"""{HEAD.format(target="sm_90a")}
.file 1 "kernel.py"
.visible .entry kernel(.param .u64 out)
.maxntid 128, 1, 1
.maxnreg 24
{{
.reg .b64 %p;
.reg .b32 %r<{live}>;
.loc 1 5 0
ld.param.u64 %p, [out];
{loads}
.loc 1 6 0
bar.sync 0;
.loc 1 7 0
{stores}
ret;
}}
"""
    return module(text, params=(PointerParam("out", 0),))


def wgmma(between: str = "") -> PtxModule:
    """One wgmma; `between` stands after it and before its wait, at line 4 of kernel.py."""
    text = f"""{HEAD.format(target="sm_90a")}
.file 1 "kernel.py"
.visible .entry kernel(.param .u64 out)
.maxntid 128, 1, 1
{{
.reg .b64 %p<2>;
.reg .f32 %f<4>;
.loc 1 2 0
ld.param.u64 %p0, [out];
mov.b64 %p1, 0;
.loc 1 3 0
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 \
{{%f0, %f1, %f2, %f3}}, %p1, %p1, 0, 1, 1, 0, 0;
wgmma.commit_group.sync.aligned;
.loc 1 4 0
{between}
.loc 1 5 0
wgmma.wait_group.sync.aligned 0;
st.global.f32 [%p0], %f0;
ret;
}}
"""
    return module(text, params=(PointerParam("out", 0),))


def scale(*, cluster: int = 1) -> PtxModule:
    """x[i] = x[i] * factor for fp32 x of any length and stride, by a persistent grid."""
    text = f"""{HEAD.format(target="sm_90a")}
.visible .entry scale(
  .param .u64 x, .param .u32 length, .param .s64 stride, .param .f32 factor)
.maxntid 128, 1, 1
{{
.reg .b64 %d<6>;
.reg .b32 %r<8>;
.reg .f32 %f<3>;
.reg .pred %p;
ld.param.u64 %d0, [x];
ld.param.u32 %r0, [length];
ld.param.s64 %d1, [stride];
ld.param.f32 %f0, [factor];
cvta.to.global.u64 %d0, %d0;
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %tid.x;
mad.lo.u32 %r3, %r1, 128, %r2;
mov.u32 %r4, %nctaid.x;
shl.b32 %r4, %r4, 7;
next:
setp.ge.u32 %p, %r3, %r0;
@%p bra done;
cvt.u64.u32 %d2, %r3;
mul.lo.s64 %d2, %d2, %d1;
shl.b64 %d2, %d2, 2;
add.s64 %d3, %d0, %d2;
ld.global.f32 %f1, [%d3];
mul.f32 %f1, %f1, %f0;
st.global.f32 [%d3], %f1;
add.u32 %r3, %r3, %r4;
bra next;
done:
ret;
}}
"""
    params: tuple[Param, ...] = (
        PointerParam("x", 0),
        ExtentParam("length", 0, 0),
        StrideParam("stride", 0, 0),
        ScalarParam("factor", 1, "f32"),
    )
    return module(text, entry="scale", cluster=cluster, params=params)


def copy_tile(
    *, rows: int = 64, cols: int = 64, swizzle_bytes: int = 128, start: int = 0, to: int = 0,
    prefetch: int = 0,
) -> PtxModule:  # fmt: skip
    """dst[:rows, to : to + cols] = src[:rows, start : start + cols], bf16, by TMA, one tile.

    Before it, a prefetch of the tile at column `prefetch`.
    """
    tile_bytes = rows * cols * 2
    text = f"""{HEAD.format(target="sm_90a")}
.extern .shared .align 1024 .b8 smem[];
.visible .entry copy_tile(
  .param .align 64 .b8 src[128], .param .align 64 .b8 dst[128])
.maxntid 128, 1, 1
{{
.reg .b64 %d<4>;
.reg .b32 %r<6>;
.reg .pred %p<2>;
mov.b64 %d0, src;
cvta.param.u64 %d0, %d0;
mov.b64 %d1, dst;
cvta.param.u64 %d1, %d1;
mov.u32 %r0, smem;
add.u32 %r0, %r0, 1023;
and.b32 %r0, %r0, -1024;
add.u32 %r1, %r0, {tile_bytes};
mov.u32 %r2, %tid.x;
setp.ne.u32 %p0, %r2, 0;
@%p0 bra done;
mbarrier.init.shared::cta.b64 [%r1], 1;
fence.mbarrier_init.release.cluster;
fence.proxy.async.shared::cta;
mbarrier.arrive.expect_tx.shared::cta.b64 %d2, [%r1], {tile_bytes};
cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%d0, {{{prefetch}, 0}}];
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes \
[%r0], [%d0, {{{start}, 0}}], [%r1];
wait:
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
@!%p1 bra wait;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d1, {{{to}, 0}}], [%r0];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
done:
ret;
}}
"""
    params = tuple(
        TensorMapParam(name, arg, (1, 0), (cols, rows), swizzle_bytes)
        for arg, name in enumerate(("src", "dst"))
    )
    return module(
        text, entry="copy_tile", params=params, smem_bytes=tile_bytes + 8 + 1024, min_blocks=1
    )


def three_maps() -> PtxModule:
    """Does nothing with three tensor maps: what a launch costs."""
    text = f"""{HEAD.format(target="sm_90a")}
.visible .entry three_maps(
  .param .align 64 .b8 a[128], .param .align 64 .b8 b[128], .param .align 64 .b8 c[128])
.maxntid 128, 1, 1
{{
ret;
}}
"""
    params = tuple(
        TensorMapParam(name, arg, (1, 0), (64, 64), 128) for arg, name in enumerate("abc")
    )
    return module(text, entry="three_maps", params=params)
