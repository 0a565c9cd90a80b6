"""wgmma's shared-memory matrix descriptors, derived from a tile's layout and checked on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..errors import LayoutError
from .shared import CHUNK_BYTES, PATTERN_LINES, SharedLayout, nearest_multiple

# PTX ISA, wgmma: Matrix Descriptor Format. Bits 62-63, by swizzle bytes.
SWIZZLE_CODES = ((0, 0), (128, 1), (64, 2), (32, 3))
# Every wgmma k-step reads 32 bytes of K (k16 of 16 bits, k32 of 8, k8 of tf32; PTX ISA,
# wgmma: Matrix Shape).
K_STEP_BYTES = 32
# matrix-descriptor-encode(x) = (x & 0x3FFFF) >> 4, 14 bits (same section).
ADDRESS_MASK = 0x3FFFF


def _encode(x: int) -> int:
    return (x & ADDRESS_MASK) >> 4


@dataclass(frozen=True)
class DescriptorFields:
    """What the 64 bits of a wgmma descriptor say, in bytes."""

    address: int
    leading_bytes: int
    stride_bytes: int
    base_offset: int
    swizzle_bytes: int


@dataclass(frozen=True)
class MatrixDescriptor:
    """How wgmma walks a shared tile as operand A (M x K) or B (K x N).

    Example: `SharedLayout.of(bf16, 64, 256)` as B: N is contiguous, so major is "MN"; panels of
    64 columns lie 64 * 128 = 8192 bytes apart (leading_bytes), 8 lines of K 1024 bytes
    (stride_bytes), a k-step of 16 lines 2048 bytes. As A the same tile is "K"-major:
    stride_bytes is 1024 (8 rows), k-steps 0-3 are 32 bytes apart, step 4 starts the next panel
    at 8192.

    Args:
        layout: the tile.
        operand: "A" (rows = M, cols = K) or "B" (rows = K, cols = N).
        major: "K" or "MN": the contiguous axis; the trans operand of wgmma is 0 or 1.
        leading_bytes: LBO; 16 where the hardware ignores it.
        stride_bytes: SBO.
        swizzle_code: 0 none, 1 = 128 bytes, 2 = 64, 3 = 32.
    """

    layout: SharedLayout
    operand: str
    major: str
    leading_bytes: int
    stride_bytes: int
    swizzle_code: int

    @property
    def k_elems(self) -> int:
        """Elements of K in one k-step."""
        return K_STEP_BYTES // self.layout.dtype.nbytes

    @property
    def num_k_steps(self) -> int:
        """k-steps in the tile."""
        k = self.layout.cols if self.operand == "A" else self.layout.rows
        return k // self.k_elems

    @property
    def transposed(self) -> int:
        """The trans immediate of wgmma: 0 for K-major, 1 for MN-major."""
        return int(self.major == "MN")

    def k_step_bytes(self, step: int) -> int:
        """Byte offset of k-step `step` from the tile's start, panel steps included."""
        return self.start_bytes(0, step)

    def start_bytes(self, mn: int, step: int = 0) -> int:
        """Byte offset of the block that starts at M or N index `mn` and k-step `step`.

        Raises:
            LayoutError: no descriptor can start there: `mn` inside a swizzle pattern.
        """
        unit = PATTERN_LINES if self.major == "K" else self.layout.panel_elems
        if mn % unit:
            raise LayoutError(
                f"descriptor: a block of a {self.major}-major tile must start at a "
                f"multiple of {unit}, got mn={mn} (int)",
                hint=f"the nearest legal start is {round(mn / unit) * unit}",
            )
        k = step * self.k_elems
        return self.layout.byte_offset(*((mn, k) if self.operand == "A" else (k, mn)))

    def encode(self, address: int) -> int:
        """The 64-bit descriptor of a tile (or k-step) at a shared address.

        Raises:
            LayoutError: the address is not a multiple of 16.
        """
        if address % CHUNK_BYTES:
            raise LayoutError(
                f"descriptor: the address must be a multiple of {CHUNK_BYTES}, "
                f"got address={address:#x} (int)"
            )
        return (
            _encode(address)
            | _encode(self.leading_bytes) << 16
            | _encode(self.stride_bytes) << 32
            | self.swizzle_code << 62
        )

    @staticmethod
    def decode(bits: int) -> DescriptorFields:
        """The fields of a 64-bit wgmma descriptor."""
        field = 0x3FFF
        swizzle = next(width for width, code in SWIZZLE_CODES if code == bits >> 62 & 3)
        return DescriptorFields(
            (bits & field) << 4,
            (bits >> 16 & field) << 4,
            (bits >> 32 & field) << 4,
            bits >> 49 & 7,
            swizzle,
        )


@lru_cache(maxsize=1024)
def matrix_descriptor(layout: SharedLayout, operand: str) -> MatrixDescriptor:
    """The wgmma descriptor of a shared tile used as operand "A" or "B".

    Strides are read off `byte_offset` and the canonical layout they stand for is compared with
    it on every element (PTX ISA, wgmma: Canonical Layouts).

    Args:
        layout: the tile; A: rows = M, cols = K; B: rows = K, cols = N.
        operand: "A" or "B".

    Raises:
        LayoutError: no descriptor can say it: MN-major with elements not of 16 bits, a tile
            without swizzle, K not a multiple of 32 bytes, elements of 8 bytes.
    """
    if operand not in ("A", "B"):
        raise LayoutError(f"descriptor: operand must be A or B, got operand={operand!r} (str)")
    major = "K" if (layout.order == "row") == (operand == "A") else "MN"
    _check_operand(layout, operand, major)
    if major == "K":
        lines = layout.num_lines
        stride = _offset(layout, PATTERN_LINES, 0) if lines > PATTERN_LINES else layout.panel_bytes
        leading = CHUNK_BYTES
    else:
        stride = _offset(layout, PATTERN_LINES, 0)
        several = layout.num_panels > 1
        leading = _offset(layout, 0, layout.panel_elems) if several else CHUNK_BYTES
    code = dict(SWIZZLE_CODES)[layout.swizzle_bytes]
    result = MatrixDescriptor(layout, operand, major, leading, stride, code)
    if not _reproduces(result):
        raise LayoutError(
            f"descriptor: no wgmma descriptor can walk this tile as {operand}, {major}-major, "
            f"got swizzle_bytes={layout.swizzle_bytes}, rows={layout.rows}, cols={layout.cols}",
            hint="take a swizzle of 128, 64 or 32 bytes",
        )
    return result


def _offset(layout: SharedLayout, line: int, elem: int) -> int:
    """Byte offset by (line, element of the line) instead of (row, col)."""
    return layout.byte_offset(*((line, elem) if layout.order == "row" else (elem, line)))


def _check_operand(layout: SharedLayout, operand: str, major: str) -> None:
    dtype = layout.dtype
    if dtype.nbytes > 4:
        raise LayoutError(
            f"descriptor: operands of wgmma have 8, 16 or 32 bits, got dtype={dtype} (DType)",
            hint="bf16, f16, tf32, e4m3, e5m2, s8, u8",
        )
    if major == "MN" and dtype.bits != 16:
        other = "row" if operand == "A" else "col"
        raise LayoutError(
            f"descriptor: {dtype} operands must be K-major in shared memory (only 16-bit types "
            f"may be MN-major), got {operand} in order={layout.order!r} (str)",
            hint=f'make the tile with order="{other}", or transpose it on the way in',
        )
    k, axis = (layout.cols, "cols") if operand == "A" else (layout.rows, "rows")
    unit = K_STEP_BYTES // dtype.nbytes
    if k % unit:
        raise LayoutError(
            f"descriptor: K must be a multiple of {unit} for {dtype}, got {axis}={k} (int)",
            hint=f"the nearest legal {axis} is {nearest_multiple(k, unit)}",
        )


def canonical_offsets(descriptor: MatrixDescriptor) -> np.ndarray:
    """Bytes that wgmma reads for element (mn, k) of the whole tile, all k-steps, by the manual.

    K-major: ((8,m),(T,2k)):((W*T,SBO),(1,T)); MN-major: ((T,W,m),(8,k)):((1,T,LBO),(W*T,SBO)),
    both under the address swizzle; W*T elements are the swizzle width, or T without swizzle.
    """
    layout = descriptor.layout
    size = layout.dtype.nbytes
    rows, cols = layout.rows, layout.cols
    extent_mn, extent_k = (rows, cols) if descriptor.operand == "A" else (cols, rows)
    mn, k = np.arange(extent_mn)[:, None], np.arange(extent_k)[None, :]
    step, kk = k // descriptor.k_elems, k % descriptor.k_elems
    starts = np.array([descriptor.k_step_bytes(s) for s in range(descriptor.num_k_steps)])
    width = layout.swizzle_bytes or CHUNK_BYTES
    lbo, sbo = descriptor.leading_bytes, descriptor.stride_bytes
    if descriptor.major == "K":
        plain = mn // 8 * sbo + mn % 8 * width + kk * size
    else:
        group, inside = mn * size // width, mn * size % width
        plain = group * lbo + inside + kk // 8 * sbo + kk % 8 * width
    return layout.swizzle(starts[step] + plain)


def _reproduces(descriptor: MatrixDescriptor) -> bool:
    """Whether the canonical layout of the strides is the tile's layout, element by element."""
    wanted = canonical_offsets(descriptor)
    mn, k = np.indices(wanted.shape)
    row, col = (mn, k) if descriptor.operand == "A" else (k, mn)
    return bool(np.array_equal(wanted, descriptor.layout.byte_offset(row, col)))
