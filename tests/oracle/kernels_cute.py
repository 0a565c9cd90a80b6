"""Kernels in CuTe DSL 4.8: what Triton has no way to say. One CTA of 128 threads each.

Operands go to shared memory by plain stores, so that CuTe's layouts of shared memory stand beside
its matrix descriptors.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05
from cutlass.experimental import primitives
from cutlass.utils import blackwell_helpers, blockscaled_layout

THREADS = 128
COLUMNS = 256
ONE, SHARED, K_MAJOR = tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM, OperandMajorMode.K
SCALES = 32  # elements of K


@cute.jit
def _fill(tile: cute.Tensor, source: cute.Tensor, thread: cutlass.Int32):
    """tile = source, element by element; both have the shape that the product takes."""
    for i in cutlass.range(thread, cute.size(source), THREADS):
        tile[i] = source[i]


@cute.jit
def _store(acc: cute.Tensor, target: cute.Tensor, thread: cutlass.Int32):
    """target = the sums in tensor memory."""
    primitives.tcgen05_fence(primitives.Tcgen05Fence.AFTER_THREAD_SYNC)
    times = tcgen05.Repetition(8 if cute.size(acc) // THREADS % 32 else 32)
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(times), acc.element_type)
    load = tcgen05.make_tmem_copy(atom, acc[(None, None), 0, 0])
    part = load.get_slice(thread)
    to = part.partition_D(target[(None, None), 0, 0])
    registers = cute.make_fragment_like(to)
    cute.copy(load, part.partition_S(acc[(None, None), 0, 0]), registers)
    cute.arch.fence_view_async_tmem_load()
    cute.autovec_copy(registers, to)


@cute.jit
def _begin(smem: cutlass.Constexpr, thread: cutlass.Int32, warp: cutlass.Int32,
           sums: cutlass.Constexpr):  # fmt: skip
    """An mbarrier for the products, and tensor memory."""
    bar = smem.allocate_array(cutlass.Int64, 1)
    holder = smem.allocate(cutlass.Int32)
    if warp == 0:
        cute.arch.alloc_tmem(COLUMNS, holder)
        if thread == 0:
            cute.arch.mbarrier_init(bar, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    return bar, cute.arch.retrieve_tmem_ptr(sums, 16, holder)


@cute.jit
def _end(tmem: cute.Pointer, warp: cutlass.Int32):
    cute.arch.sync_threads()
    if warp == 0:
        cute.arch.relinquish_tmem_alloc_permit()
        cute.arch.dealloc_tmem(tmem, COLUMNS)


@cute.jit
def _layouts(mma: cute.TiledMma, tiler: cutlass.Constexpr, A: cutlass.Constexpr,
             B: cutlass.Constexpr, atom: cutlass.Constexpr):  # fmt: skip
    """CuTe's own layouts of the operands in shared memory, or tiles of an atom."""
    if cutlass.const_expr(atom is None):
        left = blackwell_helpers.make_smem_layout_a(mma, tiler, A, 1)
        return left, blackwell_helpers.make_smem_layout_b(mma, tiler, B, 1)
    a = cute.append(mma.partition_shape_A((tiler[0], tiler[2])), 1)
    b = cute.append(mma.partition_shape_B((tiler[1], tiler[2])), 1)
    return (
        tcgen05.tile_to_mma_shape(tcgen05.make_smem_layout_atom(atom, A), a, order=(1, 2, 3)),
        tcgen05.tile_to_mma_shape(tcgen05.make_smem_layout_atom(atom, B), b, order=(1, 2, 3)),
    )


@cute.jit
def _ready():
    """What the threads have stored is there for the tensor core."""
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.sync_threads()


@cute.kernel
def product(
    A: cute.Tensor, B: cute.Tensor, C: cute.Tensor, op: cutlass.Constexpr,
    tiler: cutlass.Constexpr, negate: cutlass.Constexpr, lanes: cutlass.Constexpr,
    atom: cutlass.Constexpr,
):  # fmt: skip
    """C = (-)A (-)B^T; lanes whose bits are set in `lanes` keep the first step's sums."""
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    mma = cute.make_tiled_mma(op)
    sa_layout, sb_layout = _layouts(mma, tiler, A.element_type, B.element_type, atom)
    smem = cutlass.memory.SmemAllocator()
    bar, tmem = _begin(smem, thread, warp, op.acc_dtype)
    sa = smem.allocate_tensor(A.element_type, sa_layout.outer, 1024, sa_layout.inner)
    sb = smem.allocate_tensor(B.element_type, sb_layout.outer, 1024, sb_layout.inner)
    part = mma.get_slice(0)
    ga = part.partition_A(cute.local_tile(A, (tiler[0], tiler[2]), (0, None)))
    gb = part.partition_B(cute.local_tile(B, (tiler[1], tiler[2]), (0, None)))
    ra, rb = mma.make_fragment_A(sa), mma.make_fragment_B(sb)
    shape = mma.partition_shape_C(tiler[:2])
    acc = cute.make_tensor(tmem, mma.make_fragment_C(shape).layout)
    mma.set(tcgen05.Field.ACCUMULATE, False)
    if cutlass.const_expr(negate is not None):
        mma.set(tcgen05.Field.NEGATE_A, negate[0])
        mma.set(tcgen05.Field.NEGATE_B, negate[1])
    for step in cutlass.range_constexpr(cute.size(ga, mode=[3])):
        _fill(sa, ga[None, None, None, step], thread)
        _fill(sb, gb[None, None, None, step], thread)
        _ready()
        if warp == 0:
            for k in cutlass.range_constexpr(cute.size(ra, mode=[2])):
                cute.gemm(mma, acc, ra[None, None, k, 0], rb[None, None, k, 0], acc)
                mma.set(tcgen05.Field.ACCUMULATE, True)
            with cute.arch.elect_one():
                tcgen05.commit(bar)
        mma.set(tcgen05.Field.ACCUMULATE, True)
        if cutlass.const_expr(lanes is not None):
            mma.set(tcgen05.Field.DISABLE_OUTPUT_LANE, lanes)
        cute.arch.mbarrier_wait(bar, step % 2)
    _store(acc, part.partition_C(C), thread)
    _end(tmem, warp)


@cute.kernel
def released(
    A: cute.Tensor, B: cute.Tensor, C: cute.Tensor, op: cutlass.Constexpr,
    tiler: cutlass.Constexpr,
):  # fmt: skip
    """C = A B^T: the next step's A is stored when this step's has been read, B when it is done."""
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    mma = cute.make_tiled_mma(op)
    sa_layout, sb_layout = _layouts(mma, tiler, A.element_type, B.element_type, None)
    smem = cutlass.memory.SmemAllocator()
    read = smem.allocate_array(cutlass.Int64, 1)
    if thread == 0:
        cute.arch.mbarrier_init(read, 1)
    bar, tmem = _begin(smem, thread, warp, op.acc_dtype)
    sa = smem.allocate_tensor(A.element_type, sa_layout.outer, 1024, sa_layout.inner)
    sb = smem.allocate_tensor(B.element_type, sb_layout.outer, 1024, sb_layout.inner)
    part = mma.get_slice(0)
    ga = part.partition_A(cute.local_tile(A, (tiler[0], tiler[2]), (0, None)))
    gb = part.partition_B(cute.local_tile(B, (tiler[1], tiler[2]), (0, None)))
    ra, rb = mma.make_fragment_A(sa), mma.make_fragment_B(sb)
    acc = cute.make_tensor(tmem, mma.make_fragment_C(mma.partition_shape_C(tiler[:2])).layout)
    steps = cute.size(ga, mode=[3])
    _fill(sa, ga[None, None, None, 0], thread)
    for step in cutlass.range_constexpr(steps):
        _fill(sb, gb[None, None, None, step], thread)
        _ready()
        if warp == 0:
            for k in cutlass.range_constexpr(cute.size(ra, mode=[2])):
                mma.set(tcgen05.Field.ACCUMULATE, step + k > 0)
                cute.gemm(mma, acc, ra[None, None, k, 0], rb[None, None, k, 0], acc)
            with cute.arch.elect_one():
                primitives.tcgen05_commit(read, smem_a_read=True)
                tcgen05.commit(bar)
        cute.arch.mbarrier_wait(read, step % 2)
        if cutlass.const_expr(step + 1 < steps):
            _fill(sa, ga[None, None, None, step + 1], thread)
        cute.arch.mbarrier_wait(bar, step % 2)
    _store(acc, part.partition_C(C), thread)
    _end(tmem, warp)


@cute.kernel
def collected(
    A: cute.Tensor, B: cute.Tensor, C: cute.Tensor, fill: cutlass.Constexpr,
    last: cutlass.Constexpr, tiler: cutlass.Constexpr,
):  # fmt: skip
    """C = A B^T, two tiles of columns: A is collected for the first and used for the second."""
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    first, second = cute.make_tiled_mma(fill), cute.make_tiled_mma(last)
    sa_layout = blackwell_helpers.make_smem_layout_a(first, tiler, A.element_type, 1)
    sb_layout = blackwell_helpers.make_smem_layout_b(first, tiler, B.element_type, 2)
    smem = cutlass.memory.SmemAllocator()
    bar, tmem = _begin(smem, thread, warp, cutlass.Float32)
    sa = smem.allocate_tensor(A.element_type, sa_layout.outer, 1024, sa_layout.inner)
    sb = smem.allocate_tensor(B.element_type, sb_layout.outer, 1024, sb_layout.inner)
    part = first.get_slice(0)
    ga = part.partition_A(cute.local_tile(A, (tiler[0], tiler[2]), (0, 0)))
    gb = part.partition_B(cute.local_tile(B, (tiler[1], tiler[2]), (None, 0)))
    gc = part.partition_C(cute.local_tile(C, (tiler[0], tiler[1]), (0, None)))
    ra, rb = first.make_fragment_A(sa), first.make_fragment_B(sb)
    layout = first.make_fragment_C(first.partition_shape_C(tiler[:2])).layout
    left = cute.make_tensor(tmem, layout)
    right = cute.make_tensor(tmem + tiler[1], layout)
    _fill(sa, ga, thread)
    _fill(sb, gb, thread)
    _ready()
    if warp == 0:
        for k in cutlass.range_constexpr(cute.size(ra, mode=[2])):
            first.set(tcgen05.Field.ACCUMULATE, k > 0)
            second.set(tcgen05.Field.ACCUMULATE, k > 0)
            cute.gemm(first, left, ra[None, None, k, 0], rb[None, None, k, 0], left)
            cute.gemm(second, right, ra[None, None, k, 0], rb[None, None, k, 1], right)
        with cute.arch.elect_one():
            tcgen05.commit(bar)
    cute.arch.mbarrier_wait(bar, 0)
    _store(left, gc[None, None, None, 0], thread)
    _store(right, gc[None, None, None, 1], thread)
    _end(tmem, warp)


@cute.jit
def _copy_scales(source: cute.Tensor, target: cute.Tensor):
    """Scales from shared to tensor memory, repeated in every quarter of the lanes."""
    atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(ONE), cutlass.Float8E8M0FNU)
    compact = cute.filter_zeros(target)
    copy = tcgen05.make_s2t_copy(atom, compact)
    part = copy.get_slice(0)
    places = part.partition_S(cute.filter_zeros(source))
    descriptors = tcgen05.get_s2t_smem_desc_tensor(copy, places)
    cute.copy(copy, descriptors[None, None, None, None, 0], part.partition_D(compact))


@cute.kernel
def scaled(
    A: cute.Tensor, B: cute.Tensor, U: cute.Tensor, V: cute.Tensor, C: cute.Tensor,
    op: cutlass.Constexpr, tiler: cutlass.Constexpr, turn: cutlass.Constexpr,
):  # fmt: skip
    """C = (A U) (B V)^T, one chunk of 512 bytes of scales each.

    Scales of A lie `turn` blocks late, so that the two indices of scales differ.
    """
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    mma = cute.make_tiled_mma(op)
    sa_layout = blackwell_helpers.make_smem_layout_a(mma, tiler, A.element_type, 1)
    sb_layout = blackwell_helpers.make_smem_layout_b(mma, tiler, B.element_type, 1)
    su_layout = blockscaled_layout.make_smem_layout_sfa(mma, tiler, SCALES, 1)
    sv_layout = blockscaled_layout.make_smem_layout_sfb(mma, tiler, SCALES, 1)
    smem = cutlass.memory.SmemAllocator()
    bar, tmem = _begin(smem, thread, warp, cutlass.Float32)
    sa = smem.allocate_tensor(A.element_type, sa_layout.outer, 1024, sa_layout.inner)
    sb = smem.allocate_tensor(B.element_type, sb_layout.outer, 1024, sb_layout.inner)
    su = smem.allocate_tensor(cutlass.Float8E8M0FNU, su_layout, 128)
    sv = smem.allocate_tensor(cutlass.Float8E8M0FNU, sv_layout, 128)
    part = mma.get_slice(0)
    _fill(sa, part.partition_A(cute.local_tile(A, (tiler[0], tiler[2]), (0, 0))), thread)
    _fill(sb, part.partition_B(cute.local_tile(B, (tiler[1], tiler[2]), (0, 0))), thread)
    flat = cute.make_layout(cute.size(U))
    _fill(cute.make_tensor(cute.recast_ptr(su.iterator, dtype=cutlass.Uint8), flat), U, thread)
    _fill(cute.make_tensor(cute.recast_ptr(sv.iterator, dtype=cutlass.Uint8), flat), V, thread)
    _ready()
    ra, rb = mma.make_fragment_A(sa), mma.make_fragment_B(sb)
    acc = cute.make_tensor(tmem, mma.make_fragment_C(mma.partition_shape_C(tiler[:2])).layout)
    u_layout = blockscaled_layout.make_tmem_layout_sfa(
        mma, tiler, SCALES, cute.slice_(su_layout, (None, None, None, 0))
    )
    v_layout = blockscaled_layout.make_tmem_layout_sfb(
        mma, tiler, SCALES, cute.slice_(sv_layout, (None, None, None, 0))
    )
    tu = cute.make_tensor(cute.recast_ptr(tmem + 128, dtype=cutlass.Float8E8M0FNU), u_layout)
    tv = cute.make_tensor(cute.recast_ptr(tmem + 160, dtype=cutlass.Float8E8M0FNU), v_layout)
    if warp == 0:
        _copy_scales(su, tu)
        _copy_scales(sv, tv)
        for k in cutlass.range_constexpr(cute.size(ra, mode=[2])):
            mma.set(tcgen05.Field.ACCUMULATE, k > 0)
            a = [ra[None, None, k, 0], tu[None, None, (k + turn) % 4]]
            cute.gemm(mma, acc, a, [rb[None, None, k, 0], tv[None, None, k]], acc)
        with cute.arch.elect_one():
            tcgen05.commit(bar)
    cute.arch.mbarrier_wait(bar, 0)
    _store(acc, part.partition_C(C), thread)
    _end(tmem, warp)


@cute.kernel
def taken_over(X: cute.Tensor, Y: cute.Tensor):
    """Row i of Y = i * row i of X: a CTA goes on with rows whose CTA has not begun."""
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    smem = cutlass.memory.SmemAllocator()
    bar = smem.allocate_array(cutlass.Int64, 1)
    answer = smem.allocate_array(cutlass.Int32, 4, byte_alignment=16)
    if thread == 0:
        cute.arch.mbarrier_init(bar, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    phase, more = cutlass.Int32(0), cutlass.Int32(1)
    while more != 0:
        if thread == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(bar, 16)
            cute.arch.issue_clc_query(bar, answer, multicast=False)
        Y[row, thread] = X[row, thread] * row.to(cutlass.Float32)
        cute.arch.mbarrier_wait(bar, phase)
        row, _, _, more = cute.arch.clc_response(answer)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()
        phase ^= 1
