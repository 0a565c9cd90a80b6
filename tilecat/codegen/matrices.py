"""Text of matrix descriptors, and of what a product starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ir import Scope, Value
from ..layouts import MatrixDescriptor
from ..ptx import instructions as ptx
from ..ptx import transfers
from ..ptx.tensor_descriptors import InstructionDescriptor, SharedDescriptor

if TYPE_CHECKING:
    from .writer import Address, Writer

TENSOR_ADDRESS_MASK = 0x7FFFF  # PTX ISA 9.7.16.4.1, shared memory descriptor: 15 bits of 16 bytes
LANE_BITS, WARP_BITS = 16, 5  # of an address in tensor memory; of a thread's number
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


# ---- tcgen05


def tensor_operand(descriptor: MatrixDescriptor, start: int = 0) -> int:
    """tcgen05's descriptor of a tile at a shared address."""
    return SharedDescriptor(
        start, descriptor.leading_bytes, descriptor.stride_bytes,
        swizzle_bytes=descriptor.layout.swizzle_bytes,
    ).encode()  # fmt: skip


def operand_base(w: Writer, tile: Value, descriptor: MatrixDescriptor) -> str:
    """Low word of tcgen05's descriptor of a tile: address bits and leading offset."""
    low = w.new("b32", "desc")
    source = w.materialize(w.address(tile))
    w.line(ptx.alu("and.b32", low, source, TENSOR_ADDRESS_MASK))
    w.line(ptx.alu("shr.u32", low, low, 4))
    w.line(ptx.alu("or.b32", low, low, tensor_operand(descriptor) & 0xFFFFFFFF))
    return low


def operand(w: Writer, base: str, descriptor: MatrixDescriptor, step: int) -> str:
    """tcgen05's 64-bit descriptor of k-step `step`."""
    low = w.add(base, descriptor.start_bytes(0, step) >> 4)
    result = w.new("b64", "desc")
    high = str(tensor_operand(descriptor) >> 32)
    w.line(ptx.alu("mov.b64", result, ptx.vector((low, high))))
    return result


SCALES = SharedDescriptor(0, 0, 128, swizzle_bytes=0)  # 8 rows of 16 bytes, without gaps


def scales_base(w: Writer, scales: Value) -> str:
    """Low word of the descriptor of scales in shared memory."""
    low = w.new("b32", "desc")
    w.line(ptx.alu("and.b32", low, w.materialize(w.address(scales)), TENSOR_ADDRESS_MASK))
    w.line(ptx.alu("shr.u32", low, low, 4))
    return low


def scales(w: Writer, base: str, num_bytes: int) -> str:
    """tcgen05.cp's 64-bit descriptor of a chunk, so many bytes further on."""
    result = w.new("b64", "desc")
    low, high = w.add(base, num_bytes >> 4), str(SCALES.encode() >> 32)
    w.line(ptx.alu("mov.b64", result, ptx.vector((low, high))))
    return result


def instruction_descriptor(w: Writer, what: InstructionDescriptor) -> str:
    """Register with what a tcgen05.mma multiplies, in words beside its bits."""
    bits = what.encode()

    def build(register: str) -> None:
        signs = ("-" * what.negate_a, "-" * what.negate_b)
        shape = f"M={what.m} N={what.n}" + ", wide K" * what.wide_k
        types = f"{signs[0]}{what.a} x {signs[1]}{what.b} -> {what.accumulator}"
        if what.scale:
            shape += f", scales {what.scale} from {what.sfa_id} and {what.sfb_id}"
        text = ptx.alu("mov.b32", register, f"0x{bits:08x}")
        w.line(f"{text}  // kind::{what.kind} {types}, {shape}")

    return w.invariant(("instruction", bits), "b32", "instruction", build)


def tensor_lanes(w: Writer, address: Address, pair: bool) -> Address:
    """The address of the 16 lanes that this warp moves.

    Warp w of the four has lanes 32 w to 32 w + 15. Of a pair of warpgroups, warp w of the eight
    has lanes 16 w to 16 w + 15: see `docs/design/tensor-memory.md`.
    """
    thread = w.tid()
    mask, step = (7, 16) if pair else (3, 32)

    def build(register: str) -> None:
        w.line(ptx.alu("and.b32", register, thread, mask << WARP_BITS))
        by = LANE_BITS + step.bit_length() - 1 - WARP_BITS
        w.line(ptx.alu("shl.b32", register, register, by))

    lanes = w.local(("tensor lanes", pair), "b32", "lanes", build)
    start = w.new("b32", "at")
    w.line(ptx.alu("add.u32", start, lanes, address.base))
    return address._replace(base=start)


def issuer(w: Writer, scope: Scope) -> str | None:
    """Predicate that leaves the lane of a warp that issues products; None where one thread runs."""
    if scope is Scope.THREAD:
        return None
    return w.local("issuer", "pred", "issuer", lambda r: w.line(transfers.elect(r)))
