"""Kernels in Gluon about transfers and schedules: gather, multicast, launch control, roles."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    clc,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma,
    tcgen05_mma_barrier_count,
    tma,
)

from oracle.kernels_gluon import _maps, _put


@gluon.jit
def gathered(x, index, y, rows, cols, N: gl.constexpr, W: gl.constexpr):
    """Rows of x by index to rows of y by the same index in reverse, four at a time."""
    SHARED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([N, W], x.dtype.element_ty)
    dx = tma.make_tensor_descriptor(x, [rows, cols], [cols, 1], [1, W], SHARED)
    dy = tma.make_tensor_descriptor(y, [rows, cols], [cols, 1], [1, W], SHARED)
    tile = gl.allocate_shared_memory(x.dtype.element_ty, [N, W], SHARED)
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    PLACES: gl.constexpr = gl.SliceLayout(0, gl.BlockedLayout([1, 4], [32, 1], [1, 4], [1, 0]))
    at = gl.arange(0, N, PLACES)
    col = gl.program_id(0) * W
    mbarrier.expect(full, tile.nbytes_per_cta)
    tma.async_gather(dx, gl.load(index + at), col, full, tile)
    mbarrier.wait(full, 0)
    mbarrier.invalidate(full)
    tma.async_scatter(dy, gl.load(index + N - 1 - at), col, tile)
    tma.store_wait(0)


@gluon.jit
def multicast(a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """C = A @ B, B stored [N, K], by clusters of four: rows and columns of tiles are shared."""
    GRID: gl.constexpr = [[1, 0], [0, 1]]
    da, db = _maps(a, b, M, N, K, BM, BN, BK, False, [[1, 0], [0, 0]], [[0, 0], [1, 0]])
    sa = gl.allocate_shared_memory(da.dtype, da.block_shape, da.layout)
    sb = gl.allocate_shared_memory(db.dtype, db.block_shape, db.layout)
    full = mbarrier.allocate_mbarrier()
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=tcgen05_mma_barrier_count([sa, sb], True, False))
    LAYOUT: gl.constexpr = TensorMemoryLayout([BM // 2, BN // 2], col_stride=1, cga_layout=GRID)
    acc = allocate_tensor_memory(gl.float32, [BM, BN], LAYOUT)
    phase = 0
    for k in range(0, K, BK):
        mbarrier.expect(full, da.nbytes_per_cta + db.nbytes_per_cta)
        tma.async_load(da, [0, k], full, sa, multicast=True)
        tma.async_load(db, [0, k], full, sb, multicast=True)
        mbarrier.wait(full, phase, deps=[sa, sb])
        tcgen05_mma(sa, sb.permute((1, 0)), acc, use_acc=k > 0, multicast=True, mbarriers=[done])
        mbarrier.wait(done, phase, deps=[sa, sb])
        phase ^= 1
    mbarrier.invalidate(full)
    mbarrier.invalidate(done)
    OUT: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0], cga_layout=GRID)
    _put(c, acc.load(), 0, 0, N, OUT)


@gluon.jit
def launch_control(a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """C = A @ B, B stored [N, K]: a CTA that is done takes the tile of one that has not begun."""
    da, db = _maps(a, b, M, N, K, BM, BN, BK, False, [], [])
    sa = gl.allocate_shared_memory(da.dtype, da.block_shape, da.layout)
    sb = gl.allocate_shared_memory(db.dtype, db.block_shape, db.layout)
    full = mbarrier.allocate_mbarrier()
    done = mbarrier.allocate_mbarrier()
    asked = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    mbarrier.init(asked, count=1)
    ANSWER: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    answer = gl.allocate_shared_memory(gl.int64, [2], ANSWER)
    LAYOUT: gl.constexpr = TensorMemoryLayout([BM, BN], col_stride=1)
    acc = allocate_tensor_memory(gl.float32, [BM, BN], LAYOUT)
    OUT: gl.constexpr = acc.get_reg_layout()
    row = gl.program_id(0) * BM
    col = gl.program_id(1) * BN
    phase, turn, more = 0, 0, True
    while more:
        mbarrier.expect(asked, 16)
        clc.try_cancel(answer, asked)
        for k in range(0, K, BK):
            mbarrier.expect(full, da.nbytes_per_cta + db.nbytes_per_cta)
            tma.async_load(da, [row, k], full, sa)
            tma.async_load(db, [col, k], full, sb)
            mbarrier.wait(full, phase)
            tcgen05_mma(sa, sb.permute((1, 0)), acc, use_acc=k > 0, mbarriers=[done])
            mbarrier.wait(done, phase)
            phase ^= 1
        _put(c, acc.load(OUT), row, col, N, OUT)
        mbarrier.wait(asked, turn)
        result = clc.load_result(answer)
        fence_async_shared()
        turn ^= 1
        more = result.is_canceled()
        if more:
            row = result.program_id(0) * BM
            col = result.program_id(1) * BN
    mbarrier.invalidate(full)
    mbarrier.invalidate(done)
    mbarrier.invalidate(asked)


@gluon.jit
def _loader(da, db, sa, sb, full, empty, K, STAGES: gl.constexpr, BK: gl.constexpr):
    row = gl.program_id(0) * da.block_shape[0]
    col = gl.program_id(1) * db.block_shape[0]
    for step in range(0, K // BK):
        stage = step % STAGES
        phase = step // STAGES & 1
        mbarrier.wait(empty.index(stage), phase ^ 1)
        mbarrier.expect(full.index(stage), da.nbytes_per_cta + db.nbytes_per_cta)
        tma.async_load(da, [row, step * BK], full.index(stage), sa.index(stage))
        tma.async_load(db, [col, step * BK], full.index(stage), sb.index(stage))


@gluon.jit
def _multiplier(sa, sb, full, empty, acc, done, K, STAGES: gl.constexpr, BK: gl.constexpr):
    for step in range(0, K // BK):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), step // STAGES & 1)
        tcgen05_mma(sa.index(stage), sb.index(stage).permute((1, 0)), acc, use_acc=step > 0,
                    mbarriers=[empty.index(stage)])  # fmt: skip
    tcgen05_commit(done)


@gluon.jit
def _storer(c, acc, done, N, BM: gl.constexpr, BN: gl.constexpr):
    mbarrier.wait(done, 0)
    OUT: gl.constexpr = acc.get_reg_layout()
    _put(c, acc.load(OUT), gl.program_id(0) * BM, gl.program_id(1) * BN, N, OUT)


@gluon.jit
def roles(
    a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """C = A @ B, B stored [N, K]: a warp that loads, a warp that multiplies, four that store."""
    da, db = _maps(a, b, M, N, K, BM, BN, BK, False, [], [])
    sa = gl.allocate_shared_memory(da.dtype, [STAGES] + da.block_shape, da.layout)
    sb = gl.allocate_shared_memory(db.dtype, [STAGES] + db.block_shape, db.layout)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    done = mbarrier.allocate_mbarrier()
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    mbarrier.init(done, count=1)
    LAYOUT: gl.constexpr = TensorMemoryLayout([BM, BN], col_stride=1)
    acc = allocate_tensor_memory(gl.float32, [BM, BN], LAYOUT)
    gl.warp_specialize(
        [
            (_storer, (c, acc, done, N, BM, BN)),
            (_loader, (da, db, sa, sb, full, empty, K, STAGES, BK)),
            (_multiplier, (sa, sb, full, empty, acc, done, K, STAGES, BK)),
        ],
        [1, 1],
        [24, 24],
    )
