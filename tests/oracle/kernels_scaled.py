"""Products with a scale for each block of K, written in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gemm_scaled(
    a, scale_a, b, scale_b, c, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, VEC: tl.constexpr,
    FA: tl.constexpr, FB: tl.constexpr,
):  # fmt: skip
    """C = (A * scale_a) @ (B * scale_b), B stored [N, K], scales [rows, K / VEC] by pointers."""
    PA: tl.constexpr = 2 if FA == "e2m1" else 1
    PB: tl.constexpr = 2 if FB == "e2m1" else 1
    da = tl.make_tensor_descriptor(a, [M, K // PA], [K // PA, 1], [BM, BK // PA])
    db = tl.make_tensor_descriptor(b, [N, K // PB], [K // PB, 1], [BN, BK // PB])
    dc = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    row = tl.program_id(0) * BM
    col = tl.program_id(1) * BN
    rows = (row + tl.arange(0, BM))[:, None] * (K // VEC)
    cols = (col + tl.arange(0, BN))[:, None] * (K // VEC)
    blocks = tl.arange(0, BK // VEC)[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = da.load([row, k // PA])
        y = db.load([col, k // PB]).T
        u = tl.load(scale_a + rows + k // VEC + blocks)
        v = tl.load(scale_b + cols + k // VEC + blocks)
        acc = tl.dot_scaled(x, u, FA, y, v, FB, acc)
    dc.store([row, col], acc)


@triton.jit
def _unpacked(chunks, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """Scales [rows, blocks] of chunks of 128 rows x 4 blocks, as the tensor core has them."""
    parts = chunks.reshape(ROWS // 128, BLOCKS // 4, 32, 4, 4)
    return parts.trans(0, 3, 2, 1, 4).reshape(ROWS, BLOCKS)


@triton.jit
def gemm_packed(
    a, scale_a, b, scale_b, c, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, VEC: tl.constexpr,
    FA: tl.constexpr, FB: tl.constexpr,
):  # fmt: skip
    """C = (A * scale_a) @ (B * scale_b), scales in chunks of 512 bytes, by TMA."""
    PA: tl.constexpr = 2 if FA == "e2m1" else 1
    PB: tl.constexpr = 2 if FB == "e2m1" else 1
    BLOCKS: tl.constexpr = BK // VEC
    da = tl.make_tensor_descriptor(a, [M, K // PA], [K // PA, 1], [BM, BK // PA])
    db = tl.make_tensor_descriptor(b, [N, K // PB], [K // PB, 1], [BN, BK // PB])
    dc = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    chunks = K // VEC // 4
    du = tl.make_tensor_descriptor(
        scale_a, [1, M // 128, chunks, 2, 256], [M * chunks * 4, chunks * 512, 512, 256, 1],
        [1, BM // 128, BLOCKS // 4, 2, 256],
    )  # fmt: skip
    dv = tl.make_tensor_descriptor(
        scale_b, [1, N // 128, chunks, 2, 256], [N * chunks * 4, chunks * 512, 512, 256, 1],
        [1, BN // 128, BLOCKS // 4, 2, 256],
    )  # fmt: skip
    row = tl.program_id(0) * BM
    col = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = da.load([row, k // PA])
        y = db.load([col, k // PB]).T
        at = k // VEC // 4
        u = _unpacked(du.load([0, row // 128, at, 0, 0]), BM, BLOCKS)
        v = _unpacked(dv.load([0, col // 128, at, 0, 0]), BN, BLOCKS)
        acc = tl.dot_scaled(x, u, FA, y, v, FB, acc)
    dc.store([row, col], acc)
