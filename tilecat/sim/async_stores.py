"""Asynchronous stores and reductions to shared memory of a cluster: st.async, red.async.

PTX ISA 9.7.9.12, 9.7.13.7. Both are weak accesses of the generic proxy that happen at any time
until their bytes complete on an mbarrier of the CTA that they write to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.alu_types import NUMPY
from tilecat.sim.atomics import Atomic, apply
from tilecat.sim.fibers import Fiber
from tilecat.sim.mbarrier import MBarrier, check_there, find
from tilecat.sim.memory import _addresses
from tilecat.sim.parse import TYPE_BYTES, Imm, Instruction, Mem, Reg, Vec
from tilecat.sim.program import refuse
from tilecat.sim.registers import view
from tilecat.sim.report import OFFSET_MASK, RANK_SHIFT
from tilecat.sim.table import Row

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

# Types of each reduction: 9.7.13.7.
_REDUCES = {
    "add": ("u32", "s32", "u64"), "min": ("u32", "s32"), "max": ("u32", "s32"), "inc": ("u32",),
    "dec": ("u32",), "and": ("b32",), "or": ("b32",), "xor": ("b32",),
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """Decoded form: operation ("" for a store), type, address, registers, mbarrier."""

    operation: str
    kind: str
    mem: Mem
    registers: tuple
    barrier: Mem

    @property
    def num_bytes(self) -> int:
        """Bytes a thread writes."""
        return TYPE_BYTES[self.kind] * len(self.registers)


@dataclass
class Push:
    """What one warp sends to one CTA: bytes of each thread, where, and what was known."""

    item: Instruction
    form: Form
    cta: int
    sender: int
    offsets: np.ndarray
    values: list[np.ndarray]
    barrier: MBarrier
    snapshot: np.ndarray

    def run(self, machine: Machine) -> None:
        """Write, and complete the bytes."""
        barrier, pc = self.barrier, self.item.pc
        if not machine.alive[self.cta]:
            machine.report("exit", self.item, f"an asynchronous store writes shared memory of CTA "
                           f"{self.cta}, which has exited")  # fmt: skip
        agent, time = barrier.loads_agent(machine), barrier.phase + 1
        barrier.issued, barrier.issued_pc = max(barrier.issued, time), pc
        if machine.races:
            self._observe(machine, agent, time)
            barrier.current.values[0, agent] = time
            barrier.current.values[0, machine.clocks.start(self.sender)] = 1
        self._write(machine)
        barrier.expect(machine, self.item, -self.form.num_bytes * len(self.offsets))
        barrier.advance(machine)

    def _observe(self, machine: Machine, agent: int, time: int) -> None:
        """Its writes follow what its warp knew; reductions follow one another in any order."""
        shadow, pc, form = machine.shadows[self.cta], self.item.pc, self.form
        places = self.offsets[:, None] + np.arange(form.num_bytes)
        cells = shadow.byte_cells(np.unique(places))
        known = machine.clocks.padded(self.snapshot)
        items, writers = machine.program.instructions, shadow.write_pc[cells]
        reduced = [p for p in np.unique(writers) if p >= 0 and items[p].op.startswith("red.async")]
        others = cells
        if form.operation:
            shadow.check_initialised(cells, agent, pc)
            others = cells[~np.isin(writers, reduced)]
        if others.size:
            shadow.check_unwritten(others, agent, time, pc)
            shadow.copy_write(others, agent, time, known, pc)
        if others.size < cells.size:
            shadow.note_write(cells, agent, time, pc)

    def _write(self, machine: Machine) -> None:
        form, width, data = self.form, TYPE_BYTES[self.form.kind], machine.shared[self.cta]
        if form.operation:
            atomic = Atomic(form.operation, form.kind, 1, "shared", form.mem, (form.registers,), ())
            value = self.values[0].view(NUMPY[form.kind])
            apply(machine, atomic, data, self.offsets, [value])
            return
        words = data[: len(data) // width * width].view(f"u{width}")
        for index, value in enumerate(self.values):
            words[self.offsets // width + index] = value


def _decode(item: Instruction) -> Form:
    mem, data, barrier = item.args
    kind = item.mods[-1]
    operation = item.mods[-2] if item.mods[0] == "red" else ""
    registers = tuple(data.items) if isinstance(data, Vec) else (data,)
    count = next((int(mod[1:]) for mod in item.mods if mod in ("v2", "v4")), 1)
    if len(registers) != count:
        raise refuse(item, "a vector of as many registers as the modifier says is wanted")
    if not isinstance(barrier, Mem) or mem.extra or barrier.extra:
        raise refuse(item, "the third operand is the address of an mbarrier")
    if operation and kind not in _REDUCES[operation]:
        raise refuse(item, f".{operation} takes {', '.join(_REDUCES[operation])}")
    if TYPE_BYTES[kind] * count > 16:
        raise refuse(item, "wider than 16 bytes")
    if any(isinstance(r, Imm) for r in registers) and kind[0] == "f":
        raise refuse(item, "floating constants are not implemented")
    if any(isinstance(r, Reg) and r.bank == "P" for r in registers):
        raise refuse(item, "a predicate cannot be stored")
    return Form(operation, kind, mem, registers, barrier)


def _issue(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """st.async, red.async: one piece of work a warp and CTA."""
    form: Form = item.info
    threads, addresses = _addresses(machine, fiber, item, form.mem, "u32", form.num_bytes)
    if not len(threads):
        return
    machine.idle_polls = 0
    kind, picked = "b" + str(8 * TYPE_BYTES[form.kind]), threads - fiber.lo
    values = [
        np.broadcast_to(view(machine, item, r, kind, fiber.lo, fiber.hi), fiber.hi - fiber.lo)
        for r in form.registers
    ]
    signals = machine.addresses(item, form.barrier, fiber.lo, fiber.hi)[picked]
    groups = np.stack([threads // 32, addresses >> RANK_SHIFT, signals], 1)
    for warp, cta, signal in np.unique(groups, axis=0).tolist():
        part = (groups == (warp, cta, signal)).all(1)
        mine = int(warp) * 32 // machine.block
        if signal >> RANK_SHIFT != cta:
            machine.fault("bounds", item, "the mbarrier lies in another CTA than the destination")
        for address in (int(addresses[part].min()), int(addresses[part].max())):
            machine.checked_offset(item, address, form.num_bytes)
        barrier = find(machine, item, signal, int(threads[part][0]), remote=True)
        if cta != mine:
            check_there(machine, item, cta, warp)
        barrier.loads_agent(machine)
        barrier.issued, barrier.issued_pc = max(barrier.issued, barrier.phase + 1), item.pc
        push = Push(item, form, cta, mine, addresses[part] & OFFSET_MASK,
                    [value[picked[part]].copy() for value in values], barrier,
                    machine.clocks.snapshot(warp, warp + 1))  # fmt: skip
        machine.clocks.tick(warp, warp + 1)
        machine.start(partial(push.run, machine))


_TX = ".mbarrier::complete_tx::bytes"
TABLE = (
    Row(f"st.async{{.weak}}{{.shared::cluster}}{_TX}{{.v2,.v4}}"
        "(.b32,.b64,.u32,.u64,.s32,.s64,.f32,.f64)", "m rv m", _issue, "9.7.9.12", decode=_decode),
    Row(f"red.async.relaxed.cluster{{.shared::cluster}}{_TX}"
        "(.add,.min,.max,.inc,.dec,.and,.or,.xor)(.u32,.s32,.b32,.u64)", "m r m", _issue,
        "9.7.13.7", decode=_decode),
)  # fmt: skip
