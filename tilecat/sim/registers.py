"""The register file, views of operands, and ALU instructions bound to a run of threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.alu_types import NUMPY
from tilecat.sim.parse import Imm, Instruction, Not, Pair, Reg, Sink, Special, Symbol, Vec
from tilecat.sim.program import refuse

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

_POISON = {"B": 0xBD, "H": 0x7FBD, "R": 0x7FBADBAD, "D": 0x7FF4DEAD00000000, "P": False}
PAIRS = ("f16x2", "bf16x2")
_DTYPES = {"B": np.uint8, "H": np.uint16, "R": np.uint32, "D": np.uint64, "P": bool}


@dataclass
class Segment:
    """A straight run of ALU instructions, bound to threads [lo, hi)."""

    calls: list[Callable[[], object]]
    start: int
    end: int
    mask: int
    runs: int = 0


class Registers:
    """One array a bank: rows are registers, columns the threads of a cluster."""

    def __init__(self, sizes: dict[str, int], threads: int):
        self.banks = {b: np.zeros((sizes[b] + 1, threads), _DTYPES[b]) for b in "PBHRD"}
        # A bank as elements of a type, how many a register has, and which of them count.
        self._typed: dict[tuple[str, str], tuple[np.ndarray, int, int]] = {}

    def reset(self) -> None:
        """Poison every register."""
        for bank, array in self.banks.items():
            array[:] = _POISON[bank]

    def raw(self, reg: Reg, lo: int, hi: int) -> np.ndarray:
        """The register as unsigned bits (or bool) of its own width."""
        return self.banks[reg.bank][reg.row, lo:hi]

    def typed(self, reg: Reg, kind: str, lo: int, hi: int) -> np.ndarray:
        """The register as elements of a type: its low ones, if it is wider."""
        found = self._typed.get((reg.bank, kind))
        if found is None:
            found = self._typed[reg.bank, kind] = self._as_type(self.banks[reg.bank], kind)
        array, many, step = found
        if many == 1:
            return array[reg.row, lo:hi]
        return array[reg.row, many * lo : many * hi : step]

    @staticmethod
    def _as_type(bank: np.ndarray, kind: str) -> tuple[np.ndarray, int, int]:
        dtype = NUMPY[kind]
        many = bank.dtype.itemsize // dtype.itemsize
        return bank.view(dtype), many, max(many // (2 if kind in PAIRS else 1), 1)


def constant(item: Instruction | None, operand: Imm, kind: str) -> np.ndarray:
    """An immediate as a one-element array of the type's view. PTX ISA 4.5."""
    dtype = NUMPY[kind]
    if kind == "pred":
        return np.array([bool(operand.value)])
    if operand.bits is not None:
        wanted = 4 if operand.bits < 1 << 32 and dtype.itemsize == 4 else 8
        if dtype.itemsize != wanted or kind in PAIRS:
            raise refuse(item, f"constant does not have the size of .{kind}")
        return np.array([operand.bits], f"u{wanted}").view(dtype)
    if isinstance(operand.value, float):
        if kind not in ("f32", "f64"):
            raise refuse(item, f"floating-point constant for .{kind}")
        return np.array([operand.value], dtype)
    if dtype.kind not in "ui":
        raise refuse(item, f"integer constant for .{kind}")
    bits = 8 * dtype.itemsize
    return np.array([operand.value & ((1 << bits) - 1)], f"u{bits // 8}").view(dtype)


def view(machine: Machine, item: Instruction | None, operand: object, kind: str, lo: int, hi: int):
    """An operand of threads [lo, hi) as an array of its type; constants have one element."""
    if isinstance(operand, Reg):
        return machine.registers.typed(operand, kind, lo, hi)
    if isinstance(operand, Imm):
        return constant(item, operand, kind)
    if isinstance(operand, Special) and operand.name.startswith("%globaltimer"):
        return timer(machine, operand.name, kind)
    if isinstance(operand, Special):
        typed = machine.specials[operand.name][lo:hi].view(NUMPY[kind])
        step = 4 // NUMPY[kind].itemsize
        return typed[::step] if step > 1 else typed
    if isinstance(operand, Symbol):
        return symbol(machine, item, operand, kind, lo, hi)
    raise refuse(item, "operand form not implemented")


def timer(machine: Machine, name: str, kind: str):
    """%globaltimer and its halves, ch. 10: here instructions of all clusters, which only grow."""
    now = int(machine.stats["instructions"]) + machine.executed
    shift = 32 if name.endswith("_hi") else 0
    size = NUMPY[kind].itemsize
    return np.array([now >> shift & (1 << 8 * size) - 1], f"u{size}").view(NUMPY[kind])


def symbol(machine: Machine, item: Instruction, operand: Symbol, kind: str, lo: int, hi: int):
    """Address of a shared variable or of a parameter."""
    if operand.name in machine.symbols:
        narrow, wide = machine.symbols[operand.name]
        return (wide if NUMPY[kind].itemsize == 8 else narrow)[lo:hi].view(NUMPY[kind])
    param = machine.param_offsets.get(operand.name)
    width = NUMPY[kind].itemsize
    if param is None or width < 4:
        raise refuse(item, f"unknown name {operand.name}, or an address in a narrow type")
    return np.array([param], f"u{width}").view(NUMPY[kind])


def predicate(machine: Machine, operand: Reg | Not, lo: int, hi: int) -> np.ndarray:
    """A predicate operand, negation applied."""
    if isinstance(operand, Not):
        return ~machine.registers.raw(operand.reg, lo, hi)
    return machine.registers.raw(operand, lo, hi)


def _masked_copy(dst: np.ndarray, value: np.ndarray, mask: np.ndarray, negated: bool) -> None:
    np.copyto(dst, value, where=~mask if negated else mask)


def _guarded(machine: Machine, item: Instruction, lo: int, hi: int, build) -> list[Callable]:
    """`build(target)` gives calls that fill `target`; under a predicate it is a temporary."""
    dst = item.args[0]
    aliased = item.row is not None and item.row.into and (
        not isinstance(item.row.apply, np.ufunc) and dst in item.args[1:])  # fmt: skip
    if isinstance(dst, Sink):
        return []
    target = machine.registers.raw(dst, lo, hi)
    if item.predicate is None and not aliased:
        return build(target)
    temporary = np.empty_like(target)
    if item.predicate is None:
        return [*build(temporary), partial(np.copyto, target, temporary)]
    mask = machine.registers.raw(item.predicate, lo, hi)
    return [*build(temporary), partial(_masked_copy, target, temporary, mask, item.negated)]


def _sources(machine: Machine, item: Instruction, lo: int, hi: int) -> list:
    srcs, registers = [], machine.registers
    for operand, kind in zip(item.args[1:], item.row.srcs, strict=True):
        if type(operand) is Reg:
            srcs.append(registers.typed(operand, kind, lo, hi))
        elif isinstance(operand, Not):
            srcs.append(registers.raw(operand.reg, lo, hi))
        elif kind in PAIRS and isinstance(operand, Imm):
            raise refuse(item, "constants of packed types are not implemented")
        else:
            srcs.append(view(machine, item, operand, kind, lo, hi))
    return srcs


def _with_negation(item: Instruction) -> Callable:
    """`apply`, with predicate operands `!p` negated first."""
    apply = item.row.apply
    if Not not in map(type, item.args):
        return apply
    flags = [isinstance(operand, Not) for operand in item.args[1:]]
    return lambda *srcs: apply(*(~s if f else s for s, f in zip(srcs, flags, strict=False)))


def _extended(target: np.ndarray, apply: Callable, srcs: list, kind: str) -> None:
    """Cvt into a wider register: sign- or zero-extended. PTX ISA 9.4.1."""
    value = np.asarray(apply(*srcs))
    bits = 8 * NUMPY[kind].itemsize
    value = value.astype(NUMPY[kind])
    value = value if kind[0] in "su" else value.view(f"u{bits // 8}")
    np.copyto(target.view(f"{'i' if kind[0] == 's' else 'u'}{target.dtype.itemsize}"), value)


def _compute(machine: Machine, item: Instruction, lo: int, hi: int) -> list[Callable]:
    row, srcs = item.row, _sources(machine, item, lo, hi)
    apply = _with_negation(item)

    def build(target):
        dtype = NUMPY[row.dst]
        if row.dst != "pred" and target.itemsize > dtype.itemsize * (1 + (row.dst in PAIRS)):
            return [partial(_extended, target, apply, srcs, row.dst)]
        typed = target.view(dtype)
        if apply is not row.apply:
            return [lambda: np.copyto(typed, apply(*srcs), casting="unsafe")]
        return [row.bind(typed, srcs)]

    return _guarded(machine, item, lo, hi, build)


def _two_predicates(machine: Machine, item: Instruction, lo: int, hi: int) -> list[Callable]:
    """Setp p|q: q gets the opposite comparison. 9.7.6.2."""
    srcs, apply, opposite = _sources(machine, item, lo, hi), _with_negation(item), item.info.apply
    flags = [isinstance(operand, Not) for operand in item.args[1:]]
    first, second = item.args[0].first, item.args[0].second
    mask = item.predicate and machine.registers.raw(item.predicate, lo, hi)

    def run():
        plain = [~s if flag else s for s, flag in zip(srcs, flags, strict=True)]
        where = True if mask is None else (~mask if item.negated else mask.copy())
        if item.row.into:
            value = np.empty(hi - lo, bool)
            apply(*srcs, value)
        else:
            value = apply(*srcs)
        for reg, result in ((first, value), (second, opposite(*plain))):
            if isinstance(reg, Reg):
                np.copyto(machine.registers.raw(reg, lo, hi), result, where=where)

    return [run]


def _join_parts(target: np.ndarray, parts: list[np.ndarray], bits: int) -> None:
    value = np.zeros(target.shape, target.dtype)
    for index, part in enumerate(parts):
        value |= part.astype(target.dtype) << np.array(index * bits, target.dtype)
    np.copyto(target, value)


def _pack_pair(target: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    words = target.view(low.dtype)
    words[0::2] = low
    words[1::2] = high


def _pack(machine: Machine, item: Instruction, lo: int, hi: int) -> list[Callable]:
    """Mov of a vector into one register: 9.7.9.2."""
    items = item.args[1].items
    bits = 8 * NUMPY[item.row.dst].itemsize // len(items)
    parts = [view(machine, item, part, f"b{bits}", lo, hi) for part in items]
    if len(parts) == 2 and item.args[0] not in items:
        return _guarded(machine, item, lo, hi, lambda t: [partial(_pack_pair, t, *parts)])
    return _guarded(machine, item, lo, hi, lambda t: [partial(_join_parts, t, parts, bits)])


def _unpack(machine: Machine, item: Instruction, lo: int, hi: int) -> list[Callable]:
    """Mov of one register into a vector: 9.7.9.2."""
    items = item.args[0].items
    bits = 8 * NUMPY[item.row.dst].itemsize // len(items)
    source = view(machine, item, item.args[1], item.row.dst, lo, hi)
    mask = item.predicate and machine.registers.raw(item.predicate, lo, hi)

    def run():
        words = np.broadcast_to(source, hi - lo).copy().view(f"u{bits // 8}")
        where = True if mask is None else (~mask if item.negated else mask)
        for index, part in enumerate(items):
            if isinstance(part, Reg):
                value = words[index :: len(items)]
                np.copyto(machine.registers.raw(part, lo, hi), value, where=where)

    return [run]


def _parameter(machine: Machine, item: Instruction, lo: int, hi: int) -> list[Callable]:
    offset, kind = item.info
    value = machine.param_bytes[offset : offset + NUMPY[kind].itemsize].view(NUMPY[kind])

    def build(target):
        signed = f"{'i' if kind[0] == 's' else 'u'}"
        raw = value.view(f"{signed}{value.dtype.itemsize}")
        return [partial(np.copyto, target.view(f"{signed}{target.dtype.itemsize}"), raw)]

    return _guarded(machine, item, lo, hi, build)


def bind(machine: Machine, item: Instruction, lo: int, hi: int) -> list[Callable]:
    """Calls that execute one ALU instruction for threads [lo, hi)."""
    if item.kind == "param":
        return _parameter(machine, item, lo, hi)
    if isinstance(item.args[0], Pair):
        return _two_predicates(machine, item, lo, hi)
    if isinstance(item.args[0], Vec):
        return _unpack(machine, item, lo, hi)
    if isinstance(item.args[1], Vec):
        return _pack(machine, item, lo, hi)
    return _compute(machine, item, lo, hi)
