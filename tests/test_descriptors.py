"""wgmma descriptors: a tile's bytes, read back by the manual's canonical layouts."""

from __future__ import annotations

import numpy as np
import pytest

from tilecat.dtypes import bf16, e4m3, e5m2, f16, f32, s8, s64, tf32
from tilecat.errors import LayoutError
from tilecat.layouts import SharedLayout, matrix_descriptor

BASE = 5 * 1024  # any start on a boundary of the swizzle pattern


def read_by_wgmma(memory: np.ndarray, bits: int, size: int, extent: int, trans: int) -> np.ndarray:
    """Elements (mn, k) of one k-step (32 bytes of K) that a descriptor's 64 bits select.

    PTX ISA, wgmma: Canonical Layouts, with T elements a 16-byte unit and W units a swizzle width:
    K-major ((8,m),(T,2k)):((W*T,SBO),(1,T)), or (1,LBO) without swizzle; MN-major
    ((T,W,m),(8,k)):((1,T,LBO),(W*T,SBO)); then Swizzle<log2 W, 4, 3> on byte addresses.
    """
    start, lbo, sbo = ((bits >> shift & 0x3FFF) * 16 for shift in (0, 16, 32))
    assert bits & 0x3FFF_C000_C000_C000 == 0, "reserved bits and base offset"
    units = {0: 1, 1: 8, 2: 4, 3: 2}[bits >> 62]
    t = 16 // size
    mn, k = np.arange(extent)[:, None], np.arange(32 // size)[None, :]
    if trans == 0:
        unit = 16 if units > 1 else lbo
        offset = mn % 8 * units * 16 + mn // 8 * sbo + k % t * size + k // t * unit
    else:
        group, rest = mn // t // units, mn // t % units
        offset = mn % t * size + rest * 16 + group * lbo + k % 8 * units * 16 + k // 8 * sbo
    address = start + offset
    address ^= (address >> 7 & (units - 1)) << 4
    return memory[(address - BASE) // size]


def check_operand(layout: SharedLayout, operand: str) -> None:
    """Every k-step of every block of 64 rows (A) or 256 columns (B) reads its elements."""
    size = layout.dtype.nbytes
    memory = np.full(layout.num_bytes // size, -1)
    row, col = np.indices((layout.rows, layout.cols))
    number = row * layout.cols + col
    memory[layout.byte_offset(row, col) // size] = number
    wanted = number if operand == "A" else number.T
    descriptor = matrix_descriptor(layout, operand)
    num_mn, num_k = wanted.shape
    block = 64 if operand == "A" else min(256, num_mn)
    k = 32 // size
    assert descriptor.num_k_steps == num_k // k
    for mn in range(0, num_mn // block * block, block):
        for step in range(num_k // k):
            bits = descriptor.encode(BASE + descriptor.start_bytes(mn, step))
            got = read_by_wgmma(memory, bits, size, block, descriptor.transposed)
            np.testing.assert_array_equal(got, wanted[mn : mn + block, step * k : (step + 1) * k])


def swizzles(layout: SharedLayout) -> list[int]:
    """Every swizzle that divides the contiguous axis."""
    return [s for s in (128, 64, 32) if layout.line_bytes % s == 0]


@pytest.mark.parametrize("dtype", [bf16, e4m3, f32], ids=str)
def test_k_major_a_reads_its_rows(dtype):
    for cols in range(32, 257, 32):
        for rows in (64, 128):
            for swizzle in swizzles(SharedLayout.of(dtype, rows, cols)):
                check_operand(SharedLayout.of(dtype, rows, cols, "row", swizzle), "A")


@pytest.mark.parametrize("dtype", [f16, s8, tf32], ids=str)
def test_k_major_b_reads_its_columns(dtype):
    for k in (32, 64, 96, 256):
        for n in (8, 16, 24, 104, 256):
            for swizzle in swizzles(SharedLayout.of(dtype, k, n, "col")):
                check_operand(SharedLayout.of(dtype, k, n, "col", swizzle), "B")


def test_mn_major_a_reads_its_rows():
    for rows in (64, 128, 192):
        for k in (16, 64, 144):
            for swizzle in swizzles(SharedLayout.of(bf16, rows, k, "col")):
                check_operand(SharedLayout.of(bf16, rows, k, "col", swizzle), "A")


def test_mn_major_b_reads_its_columns():
    for n in range(16, 257, 16):
        for k in (16, 64, 128):
            for swizzle in swizzles(SharedLayout.of(bf16, k, n)):
                check_operand(SharedLayout.of(bf16, k, n, "row", swizzle), "B")
    check_operand(SharedLayout.of(bf16, 64, 512), "B")


@pytest.mark.parametrize(
    ("layout", "operand", "major", "leading", "stride", "code", "steps"),
    [
        # GEMM and attention kernels measured on an H200 use these very numbers.
        (SharedLayout.of(bf16, 64, 64), "A", "K", 16, 1024, 1, (0, 32, 64, 96)),
        (SharedLayout.of(bf16, 64, 256), "B", "MN", 8192, 1024, 1, (0, 2048, 4096, 6144)),
        (SharedLayout.of(bf16, 128, 128, "col"), "B", "K", 16, 1024, 1, (0, 32, 64, 96, 16384)),
        (SharedLayout.of(bf16, 64, 128), "B", "MN", 8192, 1024, 1, (0, 2048, 4096, 6144)),
        (SharedLayout.of(bf16, 64, 128, "col"), "A", "MN", 16, 1024, 1, (0, 2048)),
        (SharedLayout.of(bf16, 16, 96), "B", "MN", 1024, 512, 2, (0,)),
        (SharedLayout.of(e4m3, 64, 64), "A", "K", 16, 512, 2, (0, 32)),
        # PTX ISA, wgmma: Canonical Layouts, example "K-Major, 32B swizzling and tf32 type".
        (SharedLayout.of(tf32, 16, 16, "row", 32), "A", "K", 16, 64 * 4, 3, (0, 512)),
    ],
)
def test_strides_and_steps(layout, operand, major, leading, stride, code, steps):
    descriptor = matrix_descriptor(layout, operand)
    assert (descriptor.major, descriptor.leading_bytes) == (major, leading)
    assert (descriptor.stride_bytes, descriptor.swizzle_code) == (stride, code)
    assert tuple(descriptor.k_step_bytes(step) for step in range(len(steps))) == steps


def test_encode_masks_a_cluster_address_and_decode_reads_it_back():
    descriptor = matrix_descriptor(SharedLayout.of(bf16, 64, 256), "B")
    bits = descriptor.encode(3 << 24 | 0x12400)
    assert bits == 1 << 62 | (1024 >> 4) << 32 | (8192 >> 4) << 16 | 0x1240
    fields = descriptor.decode(bits)
    assert (fields.address, fields.leading_bytes, fields.stride_bytes) == (0x12400, 8192, 1024)
    assert (fields.base_offset, fields.swizzle_bytes) == (0, 128)
    with pytest.raises(LayoutError, match="the address must be a multiple of 16, got address=0x8"):
        descriptor.encode(8)


@pytest.mark.parametrize(
    ("layout", "operand", "message", "hint"),
    [
        (
            SharedLayout.of(e5m2, 64, 128),
            "B",
            "descriptor: e5m2 operands must be K-major in shared memory (only 16-bit types may be "
            "MN-major), got B in order='row' (str)",
            'make the tile with order="col", or transpose it on the way in',
        ),
        (
            SharedLayout.of(f32, 64, 64, "col"),
            "A",
            "descriptor: f32 operands must be K-major in shared memory (only 16-bit types may be "
            "MN-major), got A in order='col' (str)",
            'make the tile with order="row", or transpose it on the way in',
        ),
        (
            SharedLayout.of(bf16, 64, 64, swizzle_bytes=0),
            "A",
            "descriptor: no wgmma descriptor can walk this tile as A, K-major, "
            "got swizzle_bytes=0, rows=64, cols=64",
            "take a swizzle of 128, 64 or 32 bytes",
        ),
        (
            SharedLayout.of(bf16, 64, 64, swizzle_bytes=0),
            "B",
            "descriptor: no wgmma descriptor can walk this tile as B, MN-major, "
            "got swizzle_bytes=0, rows=64, cols=64",
            "take a swizzle of 128, 64 or 32 bytes",
        ),
        (
            SharedLayout.of(bf16, 64, 24, "col"),
            "A",
            "descriptor: K must be a multiple of 16 for bf16, got cols=24 (int)",
            "the nearest legal cols is 32",
        ),
        (
            SharedLayout.of(s64, 64, 64),
            "A",
            "descriptor: operands of wgmma have 8, 16 or 32 bits, got dtype=s64 (DType)",
            "bf16, f16, tf32, e4m3, e5m2, s8, u8",
        ),
    ],
)
def test_descriptor_errors(layout, operand, message, hint):
    with pytest.raises(LayoutError) as error:
        matrix_descriptor(layout, operand)
    assert (error.value.message, error.value.hint) == (message, hint)


def test_blocks_start_on_patterns():
    descriptor = matrix_descriptor(SharedLayout.of(bf16, 128, 64), "A")
    assert descriptor.start_bytes(64, 1) == 64 * 128 + 32
    with pytest.raises(LayoutError) as error:
        descriptor.start_bytes(12)
    assert error.value.message == (
        "descriptor: a block of a K-major tile must start at a multiple of 8, got mn=12 (int)"
    )
