"""Operands of wgmma in shared memory and registers: descriptors, layouts, number formats.

PTX ISA 9.7.15.5.1.2 (descriptor), 9.7.15.5.1.2.1 (canonical layouts).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from tilecat.sim.bulk import as_slice, swizzled
from tilecat.sim.parse import Instruction
from tilecat.sim.program import refuse

if TYPE_CHECKING:
    from tilecat.sim.core import Machine
    from tilecat.sim.tensor_operands import Operand

OPERAND_BYTES = {"bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
_K_BYTES = 32
_SWIZZLES = {0: 0, 1: 128, 2: 64, 3: 32}
_RESERVED = ~(0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49 | 3 << 62) & (1 << 64) - 1
_FP8 = {
    kind: np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    for kind, dtype in (("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2))
}


@dataclass(frozen=True, eq=False)
class Descriptor:
    """A decoded matrix descriptor, and the chunks one wgmma reads through it.

    `chunks` is (rows, 2) if K-major, (K, rows * size / 16) if MN-major.
    """

    start: int
    transposed: bool
    chunks: np.ndarray
    first: int
    last: int

    @classmethod
    def decode(
        cls, machine: Machine, item: Instruction, bits: int, transposed: bool, rows: int, kind: str
    ) -> Descriptor:
        """Read every field; refuse what the manual reserves."""
        if bits & _RESERVED:
            machine.fault("wgmma", item, f"matrix descriptor {bits:#018x} has reserved bits "
                          f"{bits & _RESERVED:#x} set")  # fmt: skip
        start, leading, stride = (((bits >> shift) & 0x3FFF) << 4 for shift in (0, 16, 32))
        swizzle = _SWIZZLES[bits >> 62]
        if swizzle and bits >> 49 & 7:
            raise refuse(item, f"matrix descriptor {bits:#018x}: a base offset is not implemented")
        size = OPERAND_BYTES[kind]
        if transposed:
            places = mn_major(start, leading, stride, swizzle, rows * size // 16, _K_BYTES // size)
        else:
            places = k_major(start, leading, stride, swizzle, rows, _K_BYTES // 16)
            if swizzle and start % swizzle + _K_BYTES > swizzle:
                machine.report("wgmma", item, f"matrix descriptor {bits:#018x}: 32 bytes of K from "
                               f"byte {start % swizzle} leave the {swizzle}-byte row")  # fmt: skip
        places = swizzled(places, swizzle)
        low, high = int(places.min()), int(places.max()) + 16
        if low < 0x400 or high > machine.shared_bytes:
            machine.fault("bounds", item, f"matrix descriptor {bits:#018x} reads shared bytes "
                          f"[{low:#x}, {high:#x}) outside the allocation")  # fmt: skip
        return cls(start, transposed, places >> 4, low, high)


def k_major(
    start: int, leading: int, stride: int, swizzle: int, rows: int, columns: int
) -> np.ndarray:
    """((8, m), (T, columns)): 8 rows at the swizzle's pitch, then `stride`; 16-byte columns."""
    row, column = np.arange(rows)[:, None], np.arange(columns)
    pitch = swizzle or 16
    return start + row // 8 * stride + row % 8 * pitch + column * (16 if swizzle else leading)


def mn_major(start, leading, stride, swizzle: int, chunks: int, depth: int) -> np.ndarray:
    """((T, W, m), (8, k)): K rows at the swizzle's pitch, panels `leading` apart."""
    k, chunk = np.arange(depth)[:, None], np.arange(chunks)
    if not swizzle:
        return start + chunk * stride + k // 8 * leading + k % 8 * 16
    width = swizzle // 16
    inside = chunk % width * 16 + k % 8 * swizzle
    return start + chunk // width * leading + k // 8 * stride + inside


def check_tile(
    machine: Machine, item: Instruction, found: Descriptor | Operand,
    what: str = "the matrix descriptor",
) -> None:  # fmt: skip
    """A descriptor's footprint must stay in the tile it starts in, if a table names tiles."""
    table, base = machine.reporter.table, machine.reporter.shared_base
    tile = None if table is None else table.range_at(found.start - base)
    if tile is None:
        return
    low, high = found.first - base, found.last - base
    if low < tile.start or high > tile.start + tile.num_bytes:
        machine.report("bounds", item, f"{what} starts in {tile} at byte "
                       f"{found.start - base - tile.start} and reads bytes {low - tile.start} to "
                       f"{high - tile.start} of its {tile.num_bytes}")  # fmt: skip


def chunks_of(machine: Machine, descriptors: tuple[Descriptor, ...]):
    """Chunks of consecutive K steps as one index, and the same as a set."""
    key = ("run", *map(id, descriptors))
    found = machine.cache.get(key)
    if found is None:
        axis = 0 if descriptors[0].transposed else 1
        index = np.concatenate([d.chunks for d in descriptors], axis)
        # The descriptors stay in the value, so that their ids stay theirs.
        found = machine.cache[key] = (index, as_slice(index), descriptors)
    return found[:2]


def decode_values(data: np.ndarray, kind: str) -> np.ndarray:
    """Bytes (last axis) to float32 values."""
    if kind == "bf16":
        words = data.view(np.uint16)
        wide = np.zeros((*words.shape, 2), np.uint16)
        wide[..., 1] = words
        return wide.view(np.float32)[..., 0]
    if kind == "f16":
        return data.view(np.float16).astype(np.float32)
    if kind == "tf32":
        return (data.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    if kind in _FP8:
        return _FP8[kind][data.view(np.uint8)]
    return data.view(np.int8 if kind == "s8" else np.uint8).astype(np.float32)


def values_of(chunks: np.ndarray, kind: str, transposed: bool) -> np.ndarray:
    """Gathered chunks to (rows, K) values."""
    values = decode_values(chunks, kind)
    return values.T if transposed else values


def register_a(words: np.ndarray, count: int, kind: str) -> np.ndarray:
    """A from registers, (4 * count, 128) words, to (64, K * count): 9.7.15.5.1.1.

    Lane 4 g + q, register 2 c + h of a step holds row 16 w + 8 h + g, bytes 16 c + 4 q on.
    """
    parts = words.reshape(count, 2, 2, 4, 8, 4).transpose(3, 2, 4, 0, 1, 5)
    return decode_values(np.ascontiguousarray(parts).reshape(64, -1), kind)
