"""Local memory: arrays of a thread's own. PTX ISA 5.1.5, 9.7.9.8, 9.7.9.11.

Addresses are offsets in the thread's block; generic addresses of local memory are not followed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.fibers import Fiber
from tilecat.sim.memory import put, source, threads_of
from tilecat.sim.parse import TYPE_BYTES, Instruction, Mem, Reg, Vec
from tilecat.sim.program import refuse
from tilecat.sim.table import Row

if TYPE_CHECKING:
    from tilecat.sim.core import Machine


@dataclass(frozen=True)
class LocalAccess:
    """Decoded form: type, bytes of an element, registers, address and its register's width."""

    kind: str
    item_bytes: int
    registers: tuple
    mem: Mem
    address_kind: str


def layout(machine: Machine) -> None:
    """Place the variables, and give every thread a block."""
    offset = 0
    for variable in machine.program.module.local:
        offset = -(-offset // variable.align) * variable.align
        narrow = np.full(machine.num_threads, offset, np.uint32)
        machine.symbols[variable.name] = (narrow, narrow.astype(np.uint64))
        offset += variable.num_bytes
    machine.local = np.zeros((machine.num_threads, offset), np.uint8)


def reset(machine: Machine) -> None:
    """Start of a cluster: nothing is initialised."""
    machine.local[:] = 0xFF


def _decode(item: Instruction) -> LocalAccess:
    data, mem = item.args if item.mods[0] == "ld" else item.args[::-1]
    count = next((int(mod[1:]) for mod in item.mods if mod in ("v2", "v4")), 1)
    registers = tuple(data.items) if isinstance(data, Vec) else (data,)
    kind = item.mods[-1]
    if len(registers) != count or mem.extra or TYPE_BYTES[kind] * count > 16:
        raise refuse(item, f"{count} registers, of at most 16 bytes, are wanted")
    wide = not (isinstance(mem.base, Reg) and mem.base.bank == "R")
    return LocalAccess(kind, TYPE_BYTES[kind], registers, mem, "u64" if wide else "u32")


def _index(machine: Machine, fiber: Fiber, item: Instruction) -> tuple[np.ndarray, np.ndarray]:
    """Threads, and the first byte of each one's access in its block."""
    access: LocalAccess = item.info
    num_bytes = access.item_bytes * len(access.registers)
    threads = threads_of(machine, fiber, item)
    found = machine.addresses(item, access.mem, fiber.lo, fiber.hi, access.address_kind)
    offsets = found[threads - fiber.lo]
    if len(offsets) and (offsets % num_bytes).any():
        machine.fault("align", item, f"local addresses are not aligned to {num_bytes} bytes")
    size = machine.local.shape[1]
    if len(offsets) and (int(offsets.min()) < 0 or int(offsets.max()) + num_bytes > size):
        machine.fault("bounds", item, f"local bytes {int(offsets.min())} to "
                      f"{int(offsets.max()) + num_bytes}, a thread has {size}")  # fmt: skip
    return threads, offsets


def _load(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """ld.local: 9.7.9.8."""
    access: LocalAccess = item.info
    threads, offsets = _index(machine, fiber, item)
    for index, register in enumerate(access.registers):
        columns = offsets[:, None] + np.arange(access.item_bytes) + index * access.item_bytes
        words = machine.local[threads[:, None], columns].view(f"u{access.item_bytes}")[:, 0]
        put(machine, register, threads, words, access.kind)


def _store(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """st.local: 9.7.9.11."""
    access: LocalAccess = item.info
    threads, offsets = _index(machine, fiber, item)
    for index, register in enumerate(access.registers):
        value = source(machine, fiber, item, register, threads, access)
        columns = offsets[:, None] + np.arange(access.item_bytes) + index * access.item_bytes
        words = np.ascontiguousarray(value).view(np.uint8).reshape(len(threads), -1)
        machine.local[threads[:, None], columns] = words


_HINTS = "{.volatile,.weak}{.ca,.cg,.cs,.lu,.cv,.wb,.wt}"
_TYPES = "(" + ",".join(f".{kind}" for kind in sorted(TYPE_BYTES) if kind != "b128") + ")"
TABLE = (
    Row(f"ld{_HINTS}.local{{.v2,.v4}}{_TYPES}", "dv m", _load, "9.7.9.8", decode=_decode),
    Row(f"st{_HINTS}.local{{.v2,.v4}}{_TYPES}", "m rv", _store, "9.7.9.11", decode=_decode),
)  # fmt: skip
