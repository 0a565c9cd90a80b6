"""Kernels in Gluon, Triton's lower level: layouts, barriers and tensor memory by hand."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma,
    tcgen05_mma_scaled,
    tma,
)
from triton.experimental.gluon.language.nvidia.rubin import TensorMemoryScalesLayout


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


@gluon.jit
def loads(
    a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
    VARIANT: gl.constexpr, HALF: gl.constexpr,
):  # fmt: skip
    """C = A @ B, B stored [N, K], loaded from tensor memory in one of the instruction's shapes."""
    da, db = _maps(a, b, M, N, K, BM, BN, BK, False, [], [])
    sa = gl.allocate_shared_memory(da.dtype, da.block_shape, da.layout)
    sb = gl.allocate_shared_memory(db.dtype, db.block_shape, db.layout)
    full = mbarrier.allocate_mbarrier()
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    ACC: gl.constexpr = gl.float16 if HALF else gl.float32
    LAYOUT: gl.constexpr = TensorMemoryLayout([BM, BN], col_stride=2 if HALF else 1)
    acc = allocate_tensor_memory(ACC, [BM, BN], LAYOUT)
    row = gl.program_id(0) * BM
    col = gl.program_id(1) * BN
    phase = 0
    for k in range(0, K, BK):
        mbarrier.expect(full, da.nbytes_per_cta + db.nbytes_per_cta)
        tma.async_load(da, [row, k], full, sa)
        tma.async_load(db, [col, k], full, sb)
        mbarrier.wait(full, phase)
        tcgen05_mma(sa, sb.permute((1, 0)), acc, use_acc=k > 0, mbarriers=[done])
        mbarrier.wait(done, phase)
        phase ^= 1
    mbarrier.invalidate(full)
    mbarrier.invalidate(done)
    REGISTERS: gl.constexpr = acc.get_reg_layout(instr_variant=VARIANT)
    _put(c, acc.load(REGISTERS), row, col, N, REGISTERS)


@gluon.jit
def reduced(a, b, c, high, low, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """C = A @ B with the largest and the smallest magnitude of each row, found by the loads."""
    da, db = _maps(a, b, M, N, K, BM, BN, BK, False, [], [])
    sa = gl.allocate_shared_memory(da.dtype, da.block_shape, da.layout)
    sb = gl.allocate_shared_memory(db.dtype, db.block_shape, db.layout)
    full = mbarrier.allocate_mbarrier()
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    LAYOUT: gl.constexpr = TensorMemoryLayout([BM, BN], col_stride=1)
    acc = allocate_tensor_memory(gl.float32, [BM, BN], LAYOUT)
    mbarrier.expect(full, da.nbytes_per_cta + db.nbytes_per_cta)
    tma.async_load(da, [0, 0], full, sa)
    tma.async_load(db, [0, 0], full, sb)
    mbarrier.wait(full, 0)
    tcgen05_mma(sa, sb.permute((1, 0)), acc, use_acc=False, mbarriers=[done])
    mbarrier.wait(done, 0)
    mbarrier.invalidate(full)
    mbarrier.invalidate(done)
    REGISTERS: gl.constexpr = acc.get_reg_layout()
    value, largest = acc.load_max(REGISTERS)
    _, smallest = acc.load_min(REGISTERS, abs=True)
    _put(c, value, 0, 0, N, REGISTERS)
    ROWS: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    rows = gl.arange(0, BM, ROWS)
    gl.store(high + rows, gl.convert_layout(largest, ROWS))
    gl.store(low + rows, gl.convert_layout(smallest, ROWS))


@gluon.jit
def left_in_tensor_memory(
    a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr
):
    """C = A @ B, B stored [N, K]; A goes through registers to tensor memory."""
    _, db = _maps(a, b, M, N, K, BM, BN, BK, False, [], [])
    sb = gl.allocate_shared_memory(db.dtype, db.block_shape, db.layout)
    full = mbarrier.allocate_mbarrier()
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    LAYOUT: gl.constexpr = TensorMemoryLayout([BM, BN], col_stride=1)
    acc = allocate_tensor_memory(gl.float32, [BM, BN], LAYOUT)
    LEFT: gl.constexpr = TensorMemoryLayout([BM, BK], col_stride=1)
    ta = allocate_tensor_memory(a.dtype.element_ty, [BM, BK], LEFT)
    REGISTERS: gl.constexpr = ta.get_reg_layout()
    rows = gl.arange(0, BM, gl.SliceLayout(1, REGISTERS))
    ks = gl.arange(0, BK, gl.SliceLayout(0, REGISTERS))
    phase = 0
    for k in range(0, K, BK):
        mbarrier.expect(full, db.nbytes_per_cta)
        tma.async_load(db, [0, k], full, sb)
        ta.store(gl.load(a + rows[:, None] * K + (k + ks)[None, :]))
        mbarrier.wait(full, phase)
        tcgen05_mma(ta, sb.permute((1, 0)), acc, use_acc=k > 0, mbarriers=[done])
        mbarrier.wait(done, phase)
        phase ^= 1
    mbarrier.invalidate(full)
    mbarrier.invalidate(done)
    OUT: gl.constexpr = acc.get_reg_layout()
    _put(c, acc.load(OUT), 0, 0, N, OUT)


@gluon.jit
def copied(a, b, c, start, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """C = start + A @ B, B stored [N, K]; the sum begins as a copy from shared memory."""
    da, db = _maps(a, b, M, N, K, BM, BN, BK, False, [], [])
    sa = gl.allocate_shared_memory(da.dtype, da.block_shape, da.layout)
    sb = gl.allocate_shared_memory(db.dtype, db.block_shape, db.layout)
    full = mbarrier.allocate_mbarrier()
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    LAYOUT: gl.constexpr = TensorMemoryLayout([BM, BN], col_stride=1)
    acc = allocate_tensor_memory(gl.float32, [BM, BN], LAYOUT)
    IN: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])
    rows = gl.arange(0, BM, gl.SliceLayout(1, IN))
    cols = gl.arange(0, BN, gl.SliceLayout(0, IN))
    SHARED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, BN], gl.float32)
    ss = gl.allocate_shared_memory(gl.float32, [BM, BN], SHARED)
    ss.store(gl.load(start + rows[:, None] * N + cols[None, :]))
    fence_async_shared()
    tcgen05_copy(ss, acc)
    mbarrier.expect(full, da.nbytes_per_cta + db.nbytes_per_cta)
    tma.async_load(da, [0, 0], full, sa)
    tma.async_load(db, [0, 0], full, sb)
    mbarrier.wait(full, 0)
    tcgen05_mma(sa, sb.permute((1, 0)), acc, use_acc=True)
    tcgen05_commit(done)
    mbarrier.wait(done, 0)
    mbarrier.invalidate(full)
    mbarrier.invalidate(done)
    OUT: gl.constexpr = acc.get_reg_layout()
    _put(c, acc.load(OUT), 0, 0, N, OUT)


@gluon.jit
def _scale_maps(scale, rows, chunks, TILE: gl.constexpr, BLOCKS: gl.constexpr, SPLIT: gl.constexpr):
    """Tensor map of scales in chunks of 128 rows x 4 blocks, 512 bytes each."""
    BOX: gl.constexpr = [1, TILE // 128, BLOCKS // 4, 2, 256]
    FLAT: gl.constexpr = gl.NVMMASharedLayout(0, 8, rank=5, cga_layout=SPLIT)
    return tma.make_tensor_descriptor(
        scale, [1, rows // 128, chunks, 2, 256], [rows * chunks * 4, chunks * 512, 512, 256, 1],
        BOX, FLAT,
    )  # fmt: skip


@gluon.jit
def _map(x, rows, cols, TILE: gl.constexpr, DEEP: gl.constexpr, SPLIT: gl.constexpr):
    """Tensor map of a matrix, K innermost."""
    KIND: gl.constexpr = x.dtype.element_ty
    SHARED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TILE, DEEP], KIND,
                                                                cga_layout=SPLIT)  # fmt: skip
    return tma.make_tensor_descriptor(x, [rows, cols], [cols, 1], [TILE, DEEP], SHARED)


@gluon.jit
def _scale_view(chunks, ROWS: gl.constexpr, BLOCKS: gl.constexpr):
    """Scales [rows, blocks] of chunks in shared memory."""
    parts = chunks.reshape((ROWS // 128, BLOCKS // 4, 32, 4, 4))
    return parts.permute((0, 3, 2, 1, 4)).reshape((ROWS, BLOCKS))


@gluon.jit
def scaled(
    a, scale_a, b, scale_b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
    VEC: gl.constexpr, FA: gl.constexpr, FB: gl.constexpr, PAIR: gl.constexpr,
    K_FIRST: gl.constexpr,
):  # fmt: skip
    """C = (A * scale_a) @ (B * scale_b), scales in chunks, copied to tensor memory; or in pairs."""
    PA: gl.constexpr = 2 if FA == "e2m1" else 1
    PB: gl.constexpr = 2 if FB == "e2m1" else 1
    BLOCKS: gl.constexpr = BK // VEC
    SPLIT: gl.constexpr = [[1, 0]] if PAIR else []
    SPLIT_SA: gl.constexpr = [[0, 1, 0, 0, 0]] if PAIR else []
    SPLIT_SB: gl.constexpr = [[0, 0, 0, 0, 0]] if PAIR else []
    da = _map(a, M, K // PA, BM, BK // PA, SPLIT)
    db = _map(b, N, K // PB, BN, BK // PB, SPLIT)
    chunks = K // VEC // 4
    du = _scale_maps(scale_a, M, chunks, BM, BLOCKS, SPLIT_SA)
    dv = _scale_maps(scale_b, N, chunks, BN, BLOCKS, SPLIT_SB)
    sa = gl.allocate_shared_memory(da.dtype, da.block_shape, da.layout)
    sb = gl.allocate_shared_memory(db.dtype, db.block_shape, db.layout)
    su = gl.allocate_shared_memory(du.dtype, du.block_shape, du.layout)
    sv = gl.allocate_shared_memory(dv.dtype, dv.block_shape, dv.layout)
    full = mbarrier.allocate_mbarrier(two_ctas=PAIR)
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    ACC: gl.constexpr = TensorMemoryLayout(
        [128, BN], col_stride=1, cga_layout=SPLIT, two_ctas=PAIR
    )
    acc = allocate_tensor_memory(gl.float32, [BM, BN], ACC)
    ORDER: gl.constexpr = "kThenMn" if K_FIRST else "mnThenK"
    U: gl.constexpr = TensorMemoryScalesLayout(SPLIT, ORDER)
    V: gl.constexpr = TensorMemoryScalesLayout([[0, 0]] if PAIR else [])
    tu = allocate_tensor_memory(scale_a.dtype.element_ty, [BM, BLOCKS], U)
    tv = allocate_tensor_memory(scale_b.dtype.element_ty, [BN, BLOCKS], V)
    row = gl.program_id(0) * BM
    col = gl.program_id(1) * BN
    phase = 0
    for k in range(0, K, BK):
        at = k // VEC // 4
        mbarrier.expect(full, da.nbytes_per_cta + db.nbytes_per_cta + du.nbytes_per_cta
                        + dv.nbytes_per_cta)  # fmt: skip
        tma.async_load(da, [row, k // PA], full, sa)
        tma.async_load(db, [col, k // PB], full, sb)
        tma.async_load(du, [0, row // 128, at, 0, 0], full, su)
        tma.async_load(dv, [0, col // 128, at, 0, 0], full, sv)
        mbarrier.wait(full, phase)
        tcgen05_copy(_scale_view(su, BM, BLOCKS), tu)
        tcgen05_copy(_scale_view(sv, BN, BLOCKS), tv)
        tcgen05_mma_scaled(
            sa, sb.permute((1, 0)), acc, tu, tv, FA, FB, use_acc=k > 0, mbarriers=[done]
        )
        mbarrier.wait(done, phase)
        phase ^= 1
    mbarrier.invalidate(full)
    mbarrier.invalidate(done)
    OUT: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0], cga_layout=SPLIT)
    _put(c, acc.load(), row, col, N, OUT)


@gluon.jit
def started(
    a, b, c, start, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
    VARIANT: gl.constexpr, HALF: gl.constexpr,
):  # fmt: skip
    """C = start + A @ B, B stored [N, K]; threads store the start in one of the shapes."""
    da, db = _maps(a, b, M, N, K, BM, BN, BK, False, [], [])
    sa = gl.allocate_shared_memory(da.dtype, da.block_shape, da.layout)
    sb = gl.allocate_shared_memory(db.dtype, db.block_shape, db.layout)
    full = mbarrier.allocate_mbarrier()
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    ACC: gl.constexpr = gl.float16 if HALF else gl.float32
    LAYOUT: gl.constexpr = TensorMemoryLayout([BM, BN], col_stride=2 if HALF else 1)
    acc = allocate_tensor_memory(ACC, [BM, BN], LAYOUT)
    REGISTERS: gl.constexpr = acc.get_reg_layout(instr_variant=VARIANT)
    rows = gl.arange(0, BM, gl.SliceLayout(1, REGISTERS))
    cols = gl.arange(0, BN, gl.SliceLayout(0, REGISTERS))
    acc.store(gl.load(start + rows[:, None] * N + cols[None, :]))
    mbarrier.expect(full, da.nbytes_per_cta + db.nbytes_per_cta)
    tma.async_load(da, [0, 0], full, sa)
    tma.async_load(db, [0, 0], full, sb)
    mbarrier.wait(full, 0)
    tcgen05_mma(sa, sb.permute((1, 0)), acc, use_acc=True, mbarriers=[done])
    mbarrier.wait(done, 0)
    mbarrier.invalidate(full)
    mbarrier.invalidate(done)
    OUT: gl.constexpr = acc.get_reg_layout()
    _put(c, acc.load(OUT), 0, 0, N, OUT)
