"""Text of matrix descriptors, and of what a product starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ir import Value
from ..layouts import MatrixDescriptor
from ..ptx import instructions as ptx

if TYPE_CHECKING:
    from .writer import Writer

ADDRESS_MASK = 0x3FFFF  # PTX ISA 9.7.15.5.1.2, matrix descriptor: 18 bits of a shared address


def start_from(
    w: Writer, registers: tuple[str, ...], kind: str, accumulate: Value | bool
) -> tuple[str, ...]:
    """What a product is added to: the registers, or zeros, or what a predicate says."""
    if accumulate is True:
        return registers
    zero = "0f00000000" if kind == "f32" else "0"
    if accumulate is False:
        held = w.invariant(
            ("zero", kind), kind, "zero", lambda r: w.line(ptx.alu(f"mov.{kind}", r, zero))
        )
        return (held,) * len(registers)
    for register in registers:
        w.line(ptx.alu(f"selp.{kind}", register, register, zero, w.src(accumulate)))
    return registers


def descriptor_base(w: Writer, tile: Value, descriptor: MatrixDescriptor) -> str:
    """Low word of wgmma's descriptor of a tile: address bits and leading offset."""
    low = w.new("b32", "desc")
    source = w.materialize(w.address(tile))
    w.line(ptx.alu("and.b32", low, source, ADDRESS_MASK))
    w.line(ptx.alu("shr.u32", low, low, 4))
    w.line(ptx.alu("or.b32", low, low, descriptor.encode(0) & 0xFFFFFFFF))
    return low


def descriptor(
    w: Writer, base: str, descriptor: MatrixDescriptor, step: int, mn: int = 0
) -> str:
    """Wgmma's 64-bit descriptor of k-step `step`, from row or column `mn` on."""
    low = w.add(base, descriptor.start_bytes(mn, step) >> 4)
    result = w.new("b64", "desc")
    w.line(ptx.alu("mov.b64", result, ptx.vector((low, str(descriptor.encode(0) >> 32)))))
    return result
