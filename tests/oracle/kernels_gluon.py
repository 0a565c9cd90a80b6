"""Kernels in Gluon, Triton's lower level: layouts, barriers and tensor memory by hand."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    mbarrier,
    tcgen05_mma,
    tma,
)


@gluon.jit
def _put(c, value, row, col, N, LAYOUT: gl.constexpr):
    """C[row:, col:] = value, every thread what it has."""
    BM: gl.constexpr = value.shape[0]
    BN: gl.constexpr = value.shape[1]
    rows = row + gl.arange(0, BM, gl.SliceLayout(1, LAYOUT))
    cols = col + gl.arange(0, BN, gl.SliceLayout(0, LAYOUT))
    value = gl.convert_layout(value, LAYOUT).to(c.dtype.element_ty)
    gl.store(c + rows[:, None] * N + cols[None, :], value)


@gluon.jit
def _maps(
    a, b, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, NMAJOR: gl.constexpr,
    SPLIT_A: gl.constexpr, SPLIT_B: gl.constexpr,
):  # fmt: skip
    """Tensor maps of A [M, K] and of B, stored [N, K] or [K, N]; splits: the tiles' among CTAs."""
    A: gl.constexpr = a.dtype.element_ty
    B: gl.constexpr = b.dtype.element_ty
    LA: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, BK], A, cga_layout=SPLIT_A)
    da = tma.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK], LA)
    if NMAJOR:
        LB: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BK, BN], B, cga_layout=SPLIT_B)
        db = tma.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN], LB)
    else:
        LB: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, BK], B, cga_layout=SPLIT_B)
        db = tma.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK], LB)
    return da, db


@gluon.jit
def pair(
    a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, NMAJOR: gl.constexpr,
):  # fmt: skip
    """C = A @ B by pairs of CTAs: each has half of the rows of A and half of the columns of B."""
    SPLIT_B: gl.constexpr = [[0, 1]] if NMAJOR else [[1, 0]]
    da, db = _maps(a, b, M, N, K, BM, BN, BK, NMAJOR, [[1, 0]], SPLIT_B)
    sa = gl.allocate_shared_memory(da.dtype, da.block_shape, da.layout)
    sb = gl.allocate_shared_memory(db.dtype, db.block_shape, db.layout)
    full = mbarrier.allocate_mbarrier(two_ctas=True)
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    LAYOUT: gl.constexpr = TensorMemoryLayout(
        [BM // 2, BN], col_stride=1, cga_layout=[[1, 0]], two_ctas=True
    )
    acc = allocate_tensor_memory(gl.float32, [BM, BN], LAYOUT)
    row = gl.program_id(0) * BM
    col = gl.program_id(1) * BN
    phase = 0
    for k in range(0, K, BK):
        mbarrier.expect(full, da.nbytes_per_cta + db.nbytes_per_cta)
        tma.async_load(da, [row, k], full, sa)
        if NMAJOR:
            tma.async_load(db, [k, col], full, sb)
        else:
            tma.async_load(db, [col, k], full, sb)
        mbarrier.wait(full, phase, deps=[sa, sb])
        y = sb if NMAJOR else sb.permute((1, 0))
        tcgen05_mma(sa, y, acc, use_acc=k > 0, mbarriers=[done])
        mbarrier.wait(done, phase, deps=[sa, sb])
        phase ^= 1
    mbarrier.invalidate(full)
    mbarrier.invalidate(done)
    OUT: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0], cga_layout=[[1, 0]])
    _put(c, acc.load(), row, col, N, OUT)
