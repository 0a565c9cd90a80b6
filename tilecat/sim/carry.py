"""Extended-precision integer arithmetic: the carry flag CC.CF. PTX ISA 9.7.2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.fibers import Fiber
from tilecat.sim.parse import Instruction, Reg, Sink
from tilecat.sim.program import bank_of, refuse
from tilecat.sim.table import Row

if TYPE_CHECKING:
    from tilecat.sim.core import Machine


def reset(machine: Machine) -> None:
    """Start of a cluster: no carry."""
    machine.carry = np.zeros(machine.num_threads, bool)


def _check(item: Instruction) -> None:
    bank = bank_of(item.mods[-1])
    wrong = [arg for arg in item.args if isinstance(arg, Reg) and arg.bank != bank]
    if wrong or not isinstance(item.args[0], Reg | Sink):
        raise refuse(item, f"registers of the size of .{item.mods[-1]} are wanted")


def _sum(a: np.ndarray, b: np.ndarray, carry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unsigned a + b + carry, and the carry out."""
    partial = a + b
    total = partial + carry.astype(a.dtype)
    return total, (partial < a) | (total < partial)


def _product(a: np.ndarray, b: np.ndarray, high: bool) -> np.ndarray:
    """One half of a product, as unsigned words of the operands' size."""
    bits = 8 * a.dtype.itemsize
    kind = object if bits == 64 else np.int64 if a.dtype.kind == "i" else np.uint64
    exact = a.astype(kind) * b.astype(kind)
    half = exact >> (bits if bits == 64 else np.array(bits, kind)) if high else exact
    mask = (1 << bits) - 1
    return (half & (mask if bits == 64 else np.array(mask, kind))).astype(f"u{bits // 8}")


def _run(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """add.cc, addc, sub.cc, subc, mad.cc, madc: 9.7.2.1 to 9.7.2.6."""
    kind, base = item.mods[-1], item.mods[0]
    lo, hi = fiber.lo, fiber.hi
    flag = machine.carry[lo:hi]
    values = [machine.values(item, arg, kind, lo, hi) for arg in item.args[1:]]
    words = [value.view(f"u{value.dtype.itemsize}") for value in values]
    carry = flag if base.endswith("c") else np.zeros(hi - lo, bool)
    if base.startswith("mad"):
        total, out = _sum(_product(*values[:2], "hi" in item.mods), words[2], carry)
    elif base.startswith("sub"):
        total, out = _sum(words[0], ~words[1], ~carry)
        out = ~out  # a borrow is the absence of a carry
    else:
        total, out = _sum(words[0], words[1], carry)
    active = machine.active_mask(fiber, item)
    if isinstance(item.args[0], Reg):
        np.copyto(machine.registers.raw(item.args[0], lo, hi), total, where=active)
    if "cc" in item.mods:
        np.copyto(flag, out, where=active)


_TYPES = "(.u32,.s32,.u64,.s64)"
TABLE = (
    Row(f"add.cc{_TYPES}", "d r r", _run, "9.7.2.1", decode=_check),
    Row(f"addc{{.cc}}{_TYPES}", "d r r", _run, "9.7.2.2", decode=_check),
    Row(f"sub.cc{_TYPES}", "d r r", _run, "9.7.2.3", decode=_check),
    Row(f"subc{{.cc}}{_TYPES}", "d r r", _run, "9.7.2.4", decode=_check),
    Row(f"mad(.lo,.hi).cc{_TYPES}", "d r r r", _run, "9.7.2.5", decode=_check),
    Row(f"madc(.lo,.hi){{.cc}}{_TYPES}", "d r r r", _run, "9.7.2.6", decode=_check),
)
