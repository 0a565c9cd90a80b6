"""Elements of register tiles in 32-bit registers, and back: how every dtype is computed with.

Floats are computed in f32 and rounded once, integers in s32. A 32-bit tile's elements are its
registers; narrower ones are unpacked and packed around the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import dtypes
from ..dtypes import DType
from ..errors import DTypeError
from ..ptx import instructions as ptx
from ..tiles import RegTileType, RegVecType

# f32 pair -> packed pair, high element first (PTX ISA, cvt)
PACK = {"bf16": "cvt.rn.bf16x2.f32", "f16": "cvt.rn.f16x2.f32"}
PACK_FP8 = {
    "e4m3": "cvt.rn.satfinite.e4m3x2.f32",
    "e5m2": "cvt.rn.satfinite.e5m2x2.f32",
}
UNPACK_FP8 = {"e4m3": "cvt.rn.f16x2.e4m3x2", "e5m2": "cvt.rn.f16x2.e5m2x2"}
INTEGER_RANGE = {"s8": (-128, 127), "u8": (0, 255)}


def computed_in(dtype: DType) -> DType:
    """The type that arithmetic on a dtype uses: f32, s32, or pred for conditions."""
    if dtype.kind == "pred":
        return dtype
    return dtypes.f32 if dtype.is_float else dtypes.s32


def register_kind(dtype: DType) -> str:
    """Register type of an element of a dtype while it is computed with."""
    if dtype.kind == "pred":
        return "pred"
    return "f32" if dtype.is_float else "b32"


def require_numbers(name: str, dtype: DType) -> None:
    """Elements are numbers, not conditions.

    Raises:
        DTypeError: they are conditions.
    """
    if dtype.kind == "pred":
        raise DTypeError(
            f"{name}: wanted numbers, got conditions", hint="tc.select(condition, 1, 0) gives them"
        )


def require_unpacked(name: str, kind: object) -> None:
    """A vector has one value a register.

    Raises:
        DTypeError: two share one.
    """
    if isinstance(kind, RegVecType) and kind.packed:
        raise DTypeError(
            f"{name}: a vector of 32-bit values, got {kind}",
            hint="packed ones are loaded, stored, cast and computed with: tc.cast(x, tc.f32)",
        )


def whole_registers(dtype: DType) -> bool:
    """Whether a tile's elements are registers to compute with as they are."""
    return dtype.name in ("f32", "s32", "u32", "pred")


def unpack(w: Any, kind: RegTileType | RegVecType, registers: Sequence[str]) -> list[str]:
    """One 32-bit register an element, f32 or s32."""
    name = kind.dtype.name
    if whole_registers(kind.dtype):
        return list(registers)
    found: list[str] = []
    for register in registers:
        found += _UNPACK[name](w, register, name)
    return found


def pack(w: Any, dtype: DType, elements: Sequence[str], registers: Sequence[str]) -> None:
    """Rounds (saturates) 32-bit elements into the registers of a tile of a dtype."""
    name = dtype.name
    if whole_registers(dtype):
        for register, element in zip(registers, elements, strict=True):
            if register != element:
                w.line(ptx.alu(f"mov.{register_kind(dtype)}", register, element))
        return
    per = len(elements) // len(registers)
    for index, register in enumerate(registers):
        _PACK[name](w, elements[per * index : per * (index + 1)], register, name)


def _unpack_bf16(w: Any, packed: str, name: str) -> list[str]:
    """A bf16 is the upper half of an f32."""
    bits, low, high = w.new("b32", "bits"), w.new("f32", "low"), w.new("f32", "high")
    w.line(ptx.alu("shl.b32", bits, packed, 16))
    w.line(ptx.alu("mov.b32", low, bits))
    w.line(ptx.alu("and.b32", bits, packed, "0xffff0000"))
    w.line(ptx.alu("mov.b32", high, bits))
    return [low, high]


def _unpack_f16(w: Any, packed: str, name: str) -> list[str]:
    halves = [w.new("b16", "half"), w.new("b16", "half")]
    w.line(ptx.alu("mov.b32", ptx.vector(halves), packed))
    found = [w.new("f32", "low"), w.new("f32", "high")]
    for half, element in zip(halves, found, strict=True):
        w.line(ptx.alu("cvt.f32.f16", element, half))
    return found


def widen_fp8(w: Any, name: str, words: Sequence[str], targets: Sequence[str]) -> None:
    """8-bit floats, four a register, as f16, two a register: each is one of them."""
    for index, word in enumerate(words):
        pairs = [w.new("b16", "pair"), w.new("b16", "pair")]
        w.line(ptx.alu("mov.b32", ptx.vector(pairs), word))
        for pair, target in zip(pairs, targets[2 * index : 2 * index + 2], strict=True):
            w.line(ptx.alu(UNPACK_FP8[name], target, pair))


def _unpack_fp8(w: Any, packed: str, name: str) -> list[str]:
    wide = [w.new("b32", "wide"), w.new("b32", "wide")]
    widen_fp8(w, name, [packed], wide)
    return [element for pair in wide for element in _unpack_f16(w, pair, "f16")]


def _unpack_bytes(w: Any, packed: str, name: str) -> list[str]:
    found = [w.new("b32", "byte") for _ in range(4)]
    for index, element in enumerate(found):
        w.line(ptx.alu(f"bfe.{'s' if name == 's8' else 'u'}32", element, packed, 8 * index, 8))
    return found


def _unpack_tf32(w: Any, register: str, name: str) -> list[str]:
    element = w.new("f32", "element")
    w.line(ptx.alu("mov.b32", element, register))
    return [element]


def _pack_pair(w: Any, elements: Sequence[str], register: str, name: str) -> None:
    w.line(ptx.alu(PACK[name], register, elements[1], elements[0]))


def _pack_fp8(w: Any, elements: Sequence[str], register: str, name: str) -> None:
    pairs = [w.new("b16", "pair"), w.new("b16", "pair")]
    for index, pair in enumerate(pairs):
        w.line(ptx.alu(PACK_FP8[name], pair, elements[2 * index + 1], elements[2 * index]))
    w.line(ptx.alu("mov.b32", register, ptx.vector(pairs)))


def _pack_bytes(w: Any, elements: Sequence[str], register: str, name: str) -> None:
    low, high = INTEGER_RANGE[name]
    part = w.new("b32", "byte")
    for index, element in enumerate(elements):
        target = part if index else register
        w.line(ptx.alu("max.s32", target, element, low))
        w.line(ptx.alu("min.s32", target, target, high))
        w.line(ptx.alu("and.b32", target, target, 255))
        if index:
            w.line(ptx.alu("shl.b32", part, part, 8 * index))
            w.line(ptx.alu("or.b32", register, register, part))


def _pack_tf32(w: Any, elements: Sequence[str], register: str, name: str) -> None:
    w.line(ptx.alu("cvt.rna.tf32.f32", register, elements[0]))


_UNPACK = {
    "bf16": _unpack_bf16, "f16": _unpack_f16, "e4m3": _unpack_fp8, "e5m2": _unpack_fp8,
    "s8": _unpack_bytes, "u8": _unpack_bytes, "tf32": _unpack_tf32,
}  # fmt: skip
_PACK = {
    "bf16": _pack_pair, "f16": _pack_pair, "e4m3": _pack_fp8, "e5m2": _pack_fp8,
    "s8": _pack_bytes, "u8": _pack_bytes, "tf32": _pack_tf32,
}  # fmt: skip
