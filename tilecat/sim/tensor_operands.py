"""What tcgen05.mma and .cp read: shared-memory descriptors and number formats.

PTX ISA 9.4, 9.7.17.4.1 (descriptor), 9.7.17.3.3 (canonical layouts), 9.7.17.10.4 (packing).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.operands import decode_values, k_major, mn_major
from tilecat.sim.parse import Instruction
from tilecat.sim.program import refuse

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

_SWIZZLES = {0: 0, 1: 128, 2: 128, 4: 64, 6: 32}
_VERSION = 0b001
_CHUNK = 16
_WIDE_ATOM = 1  # the code of 128-byte swizzle with atoms of 32 bytes
_LOWEST = 0x400  # the first kilobyte belongs to the system


@dataclass(frozen=True)
class Fields:
    """The fields of a shared-memory descriptor, in bytes. 9.7.17.4.1, table 43."""

    start: int
    leading: int
    stride: int
    base_offset: int
    absolute: bool
    code: int

    @property
    def swizzle(self) -> int:
        """Bytes of a swizzle row, 0 without."""
        return _SWIZZLES[self.code]


def fields_of(machine: Machine, item: Instruction, bits: int, what: str) -> Fields:
    """Every field of a descriptor; what the manual reserves is refused."""
    chip = machine.program.module.chip
    width = chip.address_bits
    mask = (1 << width) - 1

    def wrong(why: str) -> None:
        machine.fault("tcgen05", item, f"{what}, matrix descriptor {bits:#018x}: {why}")

    reserved = ~(mask | mask << 16 | 0x3FFF << 32 | 0x7F << 46 | 7 << 61) & (1 << 64) - 1
    if bits & reserved:
        wrong(f"reserved bits {bits & reserved:#x} are set")
    if bits >> 46 & 7 != _VERSION:
        wrong(f"bits 46 to 48 are 0b001, got {bits >> 46 & 7:#05b}")
    code, base_offset, absolute = bits >> 61, bits >> 49 & 7, bool(bits >> 52 & 1)
    if code not in _SWIZZLES:
        wrong(f"swizzle {code} does not exist")
    if absolute and ("absolute" not in chip.features or code != 2 or base_offset):
        wrong(f"an absolute leading address on {chip.name}, swizzle {code}, base offset "
              f"{base_offset}: it goes with 128 bytes of atoms of 16, and base offset 0")
    start, leading, stride = (
        (bits & mask) << 4, (bits >> 16 & mask) << 4, (bits >> 32 & 0x3FFF) << 4
    )  # fmt: skip
    return Fields(start, leading, stride, base_offset, absolute, code)


def _swizzled(places: np.ndarray, fields: Fields) -> np.ndarray:
    """XOR of address bits; the pattern starts `base_offset` rows of 128 bytes late. 9.7.17.4.1."""
    if not fields.swizzle:
        return places
    row = (places >> 7) - fields.base_offset
    if fields.code == _WIDE_ATOM:  # Swizzle<2, 5, 2>
        return places ^ (row & 3) << 5
    return places ^ (row & fields.swizzle // _CHUNK - 1) << 4


@dataclass(frozen=True, eq=False)
class Operand:
    """A matrix in shared memory: (rows, K chunks) of 16 bytes if K-major, else (K, row chunks)."""

    start: int
    transposed: bool
    chunks: np.ndarray
    first: int
    last: int
    key: tuple


def operand(
    machine: Machine, item: Instruction, bits: int, what: str, *, rows: int, k_bytes: int,
    transposed: bool = False, item_bytes: int = 1,
) -> Operand:  # fmt: skip
    """The chunks that a descriptor names.

    Args:
        machine: the machine.
        item: the instruction.
        bits: the descriptor.
        what: the operand's name in reports.
        rows: rows of A, or columns of B.
        k_bytes: bytes of K in a row; with MN-major, K times `item_bytes`.
        transposed: MN-major.
        item_bytes: bytes of an element.
    """
    key = ("tcgen05 operand", bits, rows, k_bytes, transposed, item_bytes)
    found = machine.cache.get(key)
    if found is None:
        found = _decode(machine, item, bits, what, rows, k_bytes, transposed, item_bytes, key)
        machine.cache[key] = found
    return found


def _decode(machine, item, bits: int, what: str, rows, k_bytes, transposed, item_bytes, key):
    fields = fields_of(machine, item, bits, what)
    if transposed:
        _check_transposed(machine, item, fields, bits, what, item_bytes)
        depth, chunks = k_bytes // item_bytes, rows * item_bytes // _CHUNK
        if fields.code == _WIDE_ATOM:
            places = _mn_major_wide(fields, chunks, depth)
        else:
            places = mn_major(
                fields.start, fields.leading, fields.stride, fields.swizzle, chunks, depth
            )
    else:
        places = k_major(fields.start, fields.leading, fields.stride, fields.swizzle, rows,
                         k_bytes // _CHUNK)  # fmt: skip
        places = _second_buffer(machine, item, fields, bits, what, places, k_bytes)
    places = _swizzled(places, fields)
    low, high = int(places.min()), int(places.max()) + _CHUNK
    if low < _LOWEST or high > machine.shared_bytes:
        machine.fault("bounds", item, f"{what}: matrix descriptor {bits:#018x} reads shared bytes "
                      f"[{low:#x}, {high:#x}) outside the allocation")  # fmt: skip
    return Operand(fields.start, transposed, places >> 4, low, high, key)


def _second_buffer(machine, item, fields: Fields, bits: int, what: str, places, k_bytes: int):
    """Where a row of K leaves the swizzle row, an absolute address goes on. 9.7.17.3.1.2."""
    if not fields.swizzle:
        return places
    inside = fields.start % fields.swizzle
    over = inside + k_bytes - fields.swizzle
    if over <= 0:
        return places
    if not fields.absolute:
        machine.report("tcgen05", item, f"{what}: matrix descriptor {bits:#018x}: {k_bytes} bytes "
                       f"of K from byte {inside} leave the {fields.swizzle}-byte row")  # fmt: skip
        return places
    kept = places.shape[1] - over // _CHUNK
    second = places[:, : over // _CHUNK] - fields.start + fields.leading
    return np.concatenate([places[:, :kept], second], 1)


def _check_transposed(machine, item, fields: Fields, bits: int, what: str, size: int) -> None:
    """Which swizzles an MN-major operand can have: 9.7.17.10.3, table 57."""
    wide = fields.code == _WIDE_ATOM
    if wide != (size == 4) or fields.absolute:
        machine.fault("tcgen05", item, f"{what}: matrix descriptor {bits:#018x}: an MN-major "
                      f"operand of {size}-byte elements has "
                      f"{'only' if size == 4 else 'not'} the 128-byte swizzle with atoms of 32 "
                      "bytes, and no absolute address")  # fmt: skip


def _mn_major_wide(fields: Fields, chunks: int, depth: int) -> np.ndarray:
    """((T, 8, m), (4, k)): 4 rows of K at 128 bytes, then `stride`. 9.7.17.10.6, table 58."""
    k, chunk = np.arange(depth)[:, None], np.arange(chunks)
    place = fields.start + chunk // 8 * fields.leading + chunk % 8 * _CHUNK
    return place + k // 4 * fields.stride + k % 4 * 128


# ---- number formats
def _small_float(exponent_bits: int, mantissa_bits: int) -> np.ndarray:
    """Values of a float without infinities and NaN, by code."""
    code = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = (code & (1 << mantissa_bits) - 1) / (1 << mantissa_bits)
    bias = (1 << (exponent_bits - 1)) - 1
    size = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias),
                    (1 + mantissa) * 2.0 ** (exponent - bias))  # fmt: skip
    negative = code >> (exponent_bits + mantissa_bits) == 1
    return np.where(negative, -size, size).astype(np.float32)


E2M1 = _small_float(2, 1)
_SIX_BITS = {"e2m3": _small_float(2, 3), "e3m2": _small_float(3, 2)}
ITEM_BYTES = {
    "bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1, "e2m1": 1, "e2m3": 1,
    "e3m2": 1,
}  # fmt: skip
BITS = {"e2m1": 4, "e2m3": 6, "e3m2": 6}


def values_of(data: np.ndarray, kind: str, padded: bool) -> np.ndarray:
    """Bytes (last axis) to float32 values.

    Args:
        data: bytes, a multiple of 16 in the last axis.
        kind: element type.
        padded: whether 16 elements of 4 or 6 bits fill 16 bytes, the rest of which is a gap.
    """
    bits = BITS.get(kind)
    if bits is None:
        return decode_values(data, kind)
    if padded:
        data = data.reshape(*data.shape[:-1], -1, _CHUNK)[..., : 2 * bits]
        data = data.reshape(*data.shape[:-2], -1)
    if bits == 4:
        codes = np.stack([data & 15, data >> 4], -1)  # the low nibble comes first
        return E2M1[codes.reshape(*data.shape[:-1], -1)]
    flat = np.unpackbits(np.ascontiguousarray(data), axis=-1, bitorder="little")
    codes = np.packbits(flat.reshape(*data.shape[:-1], -1, 6), axis=-1, bitorder="little")[..., 0]
    return _SIX_BITS[kind][codes]


def refuse_packed(item: Instruction, kind: str) -> None:
    """Elements of 4 and 6 bits in tensor memory: the manual gives their place as a figure only."""
    raise refuse(item, f"A of {kind} in tensor memory is not implemented for this kind")
