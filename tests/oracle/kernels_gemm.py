"""Matrix products and attention written in Triton, compiled to the texts in `sm_90a/`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gemm_tma(
    a,
    b,
    c,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    A_MMAJOR: tl.constexpr,
    B_NMAJOR: tl.constexpr,
    ACC: tl.constexpr,
):
    """C = A @ B through tensor maps that the kernel builds itself."""
    if A_MMAJOR:
        da = tl.make_tensor_descriptor(a, [K, M], [M, 1], [BK, BM])
    else:
        da = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    if B_NMAJOR:
        db = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
    else:
        db = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    dc = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    row = tl.program_id(0) * BM
    col = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=ACC)
    for k in range(0, K, BK):
        x = da.load([k, row]).T if A_MMAJOR else da.load([row, k])
        y = db.load([k, col]) if B_NMAJOR else db.load([col, k]).T
        acc = tl.dot(x, y, acc, out_dtype=ACC)
    dc.store([row, col], acc.to(dc.dtype))


@triton.jit
def gemm_host(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A @ B through tensor maps passed by value, B stored [N, K]."""
    row = tl.program_id(0) * BM
    col = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([row, k]), b.load([col, k]).T, acc)
    c.store([row, col], acc.to(c.dtype))


@triton.jit
def gemm_specialized(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A @ B, loads and products in different warps."""
    da = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    db = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    dc = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    row = tl.program_id(0) * BM
    col = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in tl.range(0, K, BK, warp_specialize=True):
        acc = tl.dot(da.load([row, k]), db.load([col, k]).T, acc)
    dc.store([row, col], acc.to(dc.dtype))


@triton.jit
def gemm_persistent(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PROGRAMS: tl.constexpr
):
    """C = A @ B, each program taking every PROGRAMS-th tile."""
    da = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    db = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    dc = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    cols = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * cols
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
        row = (tile // cols) * BM
        col = (tile % cols) * BN
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            acc = tl.dot(da.load([row, k]), db.load([col, k]).T, acc)
        dc.store([row, col], acc.to(dc.dtype))


@triton.jit
def gemm_pointer(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr
):
    """C = A @ B through masked pointers, A [M, K] and B [K, N]."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=ACC)
    for k in range(0, K, BK):
        deep = k + ks < K
        x = tl.load(
            a + rows[:, None] * K + (k + ks)[None, :], (rows < M)[:, None] & deep[None, :], 0.0
        )
        y = tl.load(
            b + (k + ks)[:, None] * N + cols[None, :], deep[:, None] & (cols < N)[None, :], 0.0
        )
        acc = tl.dot(x, y, acc, out_dtype=ACC)
    at = c + rows[:, None] * N + cols[None, :]
    tl.store(at, acc.to(c.dtype.element_ty), (rows < M)[:, None] & (cols < N)[None, :])


@triton.jit
def gemm_split(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C += A @ B over one slice of K for each program of axis 2, B stored [N, K]."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.program_id(2) * BK, K, BK * tl.num_programs(2)):
        x = tl.load(a + rows[:, None] * K + (k + ks)[None, :])
        y = tl.load(b + cols[None, :] * K + (k + ks)[:, None])
        acc = tl.dot(x, y, acc)
    tl.atomic_add(c + rows[:, None] * N + cols[None, :], acc, sem="relaxed")


@triton.jit
def gemm_int4(a, b, scale, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A @ (B - 8) * scale, A [K, M] packed two 4-bit values a byte along K."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        packed = k // 2 + tl.arange(0, BK // 2)
        q = tl.load(a + rows[:, None] * (K // 2) + packed[None, :])
        low = (q & 15).to(tl.int8) - 8
        high = (q >> 4).to(tl.int8) - 8
        x = tl.join(low, high).reshape(BM, BK).to(tl.bfloat16)
        y = tl.load(b + cols[None, :] * K + (k + tl.arange(0, BK))[:, None])
        acc = tl.dot(x, y, acc)
    acc *= tl.load(scale + rows)[:, None]
    tl.store(c + rows[:, None] * N + cols[None, :], acc)


@triton.jit
def batched_tma(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C[i] += A[i] @ B[i] through three-dimensional tensor maps; the sum is a TMA reduction."""
    batch = tl.num_programs(2)
    da = tl.make_tensor_descriptor(a, [batch, M, K], [M * K, K, 1], [1, BM, BK])
    db = tl.make_tensor_descriptor(b, [batch, K, N], [K * N, N, 1], [1, BK, BN])
    dc = tl.make_tensor_descriptor(c, [batch, M, N], [M * N, N, 1], [1, BM, BN])
    i = tl.program_id(2)
    row = tl.program_id(0) * BM
    col = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = da.load([i, row, k]).reshape(BM, BK)
        y = db.load([i, k, col]).reshape(BK, BN)
        acc = tl.dot(x, y, acc)
    dc.atomic_add([i, row, col], acc.reshape(1, BM, BN))


@triton.jit
def attention(
    q, k, v, o, N, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr
):
    """O = softmax(Q K^T * scale) V for each head; scale includes log2(e)."""
    head = tl.program_id(1)
    start = tl.program_id(0) * BM
    size = N * D
    dq = tl.make_tensor_descriptor(q + head * size, [N, D], [D, 1], [BM, D])
    dk = tl.make_tensor_descriptor(k + head * size, [N, D], [D, 1], [BN, D])
    dv = tl.make_tensor_descriptor(v + head * size, [N, D], [D, 1], [BN, D])
    do = tl.make_tensor_descriptor(o + head * size, [N, D], [D, 1], [BM, D])
    x = dq.load([start, 0])
    high = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    rows = start + tl.arange(0, BM)
    end = tl.minimum(start + BM, N) if CAUSAL else N
    for j in range(0, end, BN):
        s = tl.dot(x, dk.load([j, 0]).T) * scale
        cols = j + tl.arange(0, BN)
        keep = (cols < N)[None, :]
        if CAUSAL:
            keep = keep & (rows[:, None] >= cols[None, :])
        s = tl.where(keep, s, float("-inf"))
        top = tl.maximum(high, tl.max(s, 1))
        p = tl.math.exp2(s - top[:, None])
        fade = tl.math.exp2(high - top)
        total = total * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(x.dtype), dv.load([j, 0]), acc * fade[:, None])
        high = top
    do.store([start, 0], (acc / total[:, None]).to(o.dtype.element_ty))


@triton.jit
def attention_specialized(q, k, v, o, N, scale, D: tl.constexpr, BM: tl.constexpr,
                          BN: tl.constexpr):
    """O = softmax(Q K^T * scale) V for each head, loads and products in different warps."""
    head = tl.program_id(1)
    start = tl.program_id(0) * BM
    size = N * D
    dq = tl.make_tensor_descriptor(q + head * size, [N, D], [D, 1], [BM, D])
    dk = tl.make_tensor_descriptor(k + head * size, [N, D], [D, 1], [BN, D])
    dv = tl.make_tensor_descriptor(v + head * size, [N, D], [D, 1], [BN, D])
    do = tl.make_tensor_descriptor(o + head * size, [N, D], [D, 1], [BM, D])
    x = dq.load([start, 0])
    high = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for j in tl.range(0, N, BN, warp_specialize=True):
        s = tl.dot(x, dk.load([j, 0]).T) * scale
        top = tl.maximum(high, tl.max(s, 1))
        p = tl.math.exp2(s - top[:, None])
        fade = tl.math.exp2(high - top)
        total = total * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(x.dtype), dv.load([j, 0]), acc * fade[:, None])
        high = top
    do.store([start, 0], (acc / total[:, None]).to(o.dtype.element_ty))
