"""Atomics and reductions on memory: atom, red. PTX ISA 9.7.13.5, 9.7.13.6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.alu_types import NUMPY
from tilecat.sim.conflicts import pattern_of
from tilecat.sim.fibers import Fiber
from tilecat.sim.memory import (
    _addresses,
    _inside,
    _writeable,
    put,
    shared_cta,
    synchronise,
)  # fmt: skip
from tilecat.sim.parse import TYPE_BYTES, Instruction, Mem, Reg, Vec
from tilecat.sim.program import refuse
from tilecat.sim.registers import view
from tilecat.sim.table import AGAIN, Row

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

_SIMPLE = {
    "add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip
_OPERATIONS = (*_SIMPLE, "exch", "cas", "inc", "dec")
_PACKED = {"f16x2": "f16", "bf16x2": "bf16"}
_HALVES = ("f16", "bf16", *_PACKED)
# Registers of a vector: 9.7.13.5, .vec_16_bit, .vec_32_bit.
_VECTORS = {"f32": (2, 4), "f16": (2, 4, 8), "bf16": (2, 4, 8), "f16x2": (2, 4), "bf16x2": (2, 4)}


@dataclass(frozen=True)
class Atomic:
    """Decoded form: operation, elements, registers of the data and of the result."""

    operation: str
    kind: str
    packed: int
    shared: str
    mem: Mem
    operands: tuple[tuple, ...]
    results: tuple

    @property
    def num_bytes(self) -> int:
        """Bytes a thread touches."""
        return NUMPY[self.kind].itemsize * self.packed * len(self.operands[0])


def _registers(operand: object) -> tuple:
    return tuple(operand.items) if isinstance(operand, Vec) else (operand,)


def decode(item: Instruction) -> Atomic:
    """Registers, element type and operation of an atomic."""
    returns, kind = item.mods[0] == "atom", item.mods[-1]
    operation = next(mod for mod in item.mods if mod in _OPERATIONS)
    count = next((int(mod[1:]) for mod in item.mods if mod in ("v2", "v4", "v8")), 1)
    shared = next((mod for mod in item.mods if mod.split("::")[0] == "shared"), "")
    wanted = (3 if operation == "cas" else 2) + returns
    if len(item.args) != wanted:
        raise refuse(item, f"{wanted} operands are wanted")
    _check_types(item, operation, kind, count, shared)
    mem, *operands = item.args[1:] if returns else item.args
    results = _registers(item.args[0]) if returns else ()
    groups = tuple(_registers(operand) for operand in operands)
    if any(len(group) != count for group in (*groups, *((results,) if returns else ()))):
        raise refuse(item, f"{count} registers are wanted")
    element = _PACKED.get(kind, kind)
    return Atomic(operation, element, 2 if kind in _PACKED else 1, shared, mem, groups, results)


def _check_types(item: Instruction, operation: str, kind: str, count: int, shared: str) -> None:
    if operation in ("and", "or", "xor", "exch", "cas") and kind[0] != "b" or kind == "b16" and (
        operation != "cas"):  # fmt: skip
        raise refuse(item, f".{operation} does not take .{kind}")
    if operation in ("inc", "dec") and kind != "u32":
        raise refuse(item, f".{operation} takes .u32")
    if operation in ("add", "min", "max") and kind in ("b32", "b64", "s64") and (
        kind != "s64" or operation == "add"):  # fmt: skip
        raise refuse(item, f".{operation} does not take .{kind}")
    floating = kind in ("f32", "f64", *_HALVES)
    if floating and operation != "add" and not (count > 1 and kind in _HALVES):
        raise refuse(item, f".{operation} of .{kind} is for vectors of halves")
    if (kind in _HALVES) != ("noftz" in item.mods):
        raise refuse(item, ".noftz goes with halves")
    if count > 1 and (shared or count not in _VECTORS.get(kind, ())):
        raise refuse(item, f"a vector of {count} .{kind} is not implemented here")


def _combine(operation: str, old: np.ndarray, new: np.ndarray, extra) -> np.ndarray:
    """One step of an atomic."""
    if operation in _SIMPLE:
        return _SIMPLE[operation](old, new)
    if operation == "exch":
        return new
    if operation == "cas":
        return np.where(old == new, extra, old)
    if operation == "inc":
        return np.where(old >= new, 0, old + 1)
    return np.where((old == 0) | (old > new), new, old - 1)


def apply(
    machine: Machine, atomic: Atomic, data: np.ndarray, offsets: np.ndarray, operands: list
) -> np.ndarray:
    """One element of every thread, one thread after the other; the old values."""
    dtype = NUMPY[atomic.kind]
    words = data[: len(data) // dtype.itemsize * dtype.itemsize].view(dtype)
    index = offsets // dtype.itemsize
    new, extra = operands[0], operands[1] if len(operands) > 1 else None
    if len(np.unique(index)) == len(index):
        old = words[index]
        fresh = _combine(atomic.operation, old, new, extra)
        if (fresh != old).any():  # a failed attempt at a lock is no progress
            machine.idle_polls = 0
        words[index] = fresh
        return old
    machine.idle_polls = 0
    old = np.empty(len(index), dtype)
    for place, where in enumerate(index):
        one = slice(place, place + 1)
        old[place] = words[where]
        step = _combine(atomic.operation, words[where : where + 1], new[one],
                        None if extra is None else extra[one])  # fmt: skip
        words[where] = step[0]
    return old


def _elements(machine: Machine, fiber: Fiber, item: Instruction, atomic: Atomic, threads):
    """For every operand, its elements: one array of all threads each."""
    kind = {"f16": "f16x2", "bf16": "bf16x2"}[atomic.kind] if atomic.packed == 2 else atomic.kind
    for group in atomic.operands:
        parts = []
        for register in group:
            value = view(machine, item, register, kind, fiber.lo, fiber.hi)
            value = np.broadcast_to(value, (fiber.hi - fiber.lo) * atomic.packed)
            parts += [value[k :: atomic.packed][threads - fiber.lo] for k in range(atomic.packed)]
        yield parts


def run(machine: Machine, fiber: Fiber, item: Instruction):
    """atom, red: in thread order."""
    atomic: Atomic = item.info
    width, space = NUMPY[atomic.kind].itemsize, "u32" if atomic.shared else "u64"
    threads, addresses = _addresses(machine, fiber, item, atomic.mem, space, atomic.num_bytes)
    if not len(threads):
        return None
    if not atomic.shared:
        synchronise(machine, item, threads, addresses)
    operands = list(zip(*_elements(machine, fiber, item, atomic, threads), strict=True))
    old = np.zeros((len(operands), len(threads)), NUMPY[atomic.kind])
    for segment, mask in _places(machine, fiber, item, atomic, threads, addresses):
        data, base = segment
        for index, parts in enumerate(operands):
            offsets = addresses[mask] - base + index * width
            old[index, mask] = apply(
                machine, atomic, data, offsets, [part[mask] for part in parts]
            )
    for index, register in enumerate(atomic.results):
        _result(machine, register, threads, old[index * atomic.packed :][: atomic.packed])
    if not atomic.results or atomic.shared:
        return None
    machine.watch(fiber, item, addresses.tobytes() + old.tobytes())
    return AGAIN


def _places(machine: Machine, fiber: Fiber, item: Instruction, atomic: Atomic, threads, addresses):
    """Memory and its base address, with the threads whose addresses lie in it."""
    size = atomic.num_bytes
    if not atomic.shared:
        for segment, mask in _inside(machine, item, addresses, size):
            _writeable(machine, item, segment, int(addresses[mask][0]))
            yield (segment.data, segment.start), mask
        return
    cta, offsets = shared_cta(machine, fiber, item, atomic.shared, addresses, size)
    if machine.races:
        shadow, pattern = machine.shadows[cta], pattern_of(machine, offsets, threads, size)
        cells = shadow.byte_cells(np.unique(offsets[:, None] + np.arange(size)))
        shadow.atomic(cells, int(threads[0]) // 32, item.pc)
        worst = machine.conflicts.get(item.pc)
        if worst is None or pattern.wavefronts * worst[1] > worst[0] * pattern.ideal:
            machine.conflicts[item.pc] = (pattern.wavefronts, pattern.ideal)
    yield (machine.shared[cta], int(addresses[0] - offsets[0])), slice(None)


def _result(machine: Machine, register: object, threads: np.ndarray, values: np.ndarray) -> None:
    if isinstance(register, Reg):
        words = np.ascontiguousarray(values.T)
        bits = words.view(f"u{words.shape[1] * words.itemsize}").ravel()
        put(machine, register, threads, bits, "b" + str(8 * bits.itemsize))


_SEMANTICS = "{.relaxed,.acquire,.release,.acq_rel}"
_SCOPE = "{.cta,.cluster,.gpu,.sys}"
_SPACE = "(.global,.shared,.shared::cta,.shared::cluster)"
FORM = ("(" + ",".join(f".{name}" for name in _OPERATIONS) + "){.noftz}{.L2::cache_hint}"
         "{.v2,.v4,.v8}(" + ",".join(f".{kind}" for kind in sorted(TYPE_BYTES)) + ")")  # fmt: skip
ORDER = f"{_SEMANTICS}{_SCOPE}"
# The manual writes semantics, scope, space; ptxas takes, and Triton writes, other orders too.
TABLE = tuple(
    Row(f"{name}{order}{FORM}", forms, run, isa, decode=decode)
    for name, forms, isa in (("red", "m rv rv?", "9.7.13.6"), ("atom", "dv m rv rv?", "9.7.13.5"))
    for order in (
        f"{_SEMANTICS}{_SCOPE}{_SPACE}",
        f"{_SPACE}{_SCOPE}{_SEMANTICS}",
        f"{_SPACE}{_SEMANTICS}{_SCOPE}",
    )
)
