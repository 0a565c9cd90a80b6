"""tcgen05.alloc, .dealloc, .relinquish_alloc_permit. PTX ISA 9.4, 9.7.17.7."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.fibers import WARP, Fiber, cut, whole_warps
from tilecat.sim.parse import Imm, Instruction
from tilecat.sim.program import Program, refuse
from tilecat.sim.table import BLOCK, NEXT, Row
from tilecat.sim.tensor_memory import (
    Allocation,
    Known,
    Operation,
    Operations,
    TensorMemory,
    names,
    region,
    write,
)

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

UNIT = 32  # columns: the unit of allocation
_ADDRESS_BYTES = 4


def reset(machine: Machine) -> None:
    """Start of a cluster: nothing is allocated."""
    chip = machine.program.module.chip
    columns = max(chip.tensor_columns, chip.exclusive_columns)
    machine.tensor_memory = [
        TensorMemory(columns, cta) for cta in range(machine.ctas * (columns > 0))
    ]
    machine.tensor_operations = Operations(machine.clocks.nobody)
    machine.tensor_known = (-1, -1, None)
    machine.tensor_waiting = {}


def group_of(item: Instruction) -> int:
    """CTAs that a tcgen05 instruction is about: 1, or 2 for a pair."""
    return 2 if "cta_group::2" in item.mods else 1


def check_groups(program: Program) -> None:
    """All tcgen05 instructions of a kernel have the same `.cta_group`. 9.7.17.7.1.

    Raises:
        MachineError: both occur.
    """
    first = None
    for item in program.instructions:
        if item.mods[:1] == ("tcgen05",) and any(m.startswith("cta_group") for m in item.mods):
            first = first or item
            if group_of(item) != group_of(first):
                raise refuse(item, f"one .cta_group in a kernel is wanted, PTX line {first.line} "
                             f"has .cta_group::{group_of(first)}")  # fmt: skip


def members(machine: Machine, item: Instruction, cta: int) -> tuple[int, ...]:
    """The CTA, or the CTAs of its pair: ranks that differ in the last bit. 9.7.17.5.1."""
    if group_of(item) == 1:
        return (cta,)
    if machine.ctas % 2:
        machine.fault("tcgen05", item, f".cta_group::2 in a cluster of {machine.ctas} CTAs: a CTA "
                      "has no peer")  # fmt: skip
    return (cta & ~1, cta | 1)


def _one_warp(machine: Machine, fiber: Fiber, item: Instruction):
    """Wait for a warp's threads; warps go on one by one."""
    outcome = whole_warps(machine, fiber, item)
    if outcome is NEXT and fiber.hi - fiber.lo > WARP:
        return cut(machine, fiber, np.arange(fiber.lo, fiber.hi) // WARP)
    return outcome


def _key(fiber: Fiber, item: Instruction, ctas: tuple[int, ...]) -> tuple:
    return item.mods[1], ctas, fiber.lo if len(ctas) == 1 else -1


def _meet(machine: Machine, fiber: Fiber, item: Instruction, operands: tuple):
    """The warps of a pair's CTAs do it together: fibers by CTA once all are here, else None."""
    cta = fiber.lo // machine.block
    ctas = members(machine, item, cta)
    here = machine.tensor_waiting.setdefault(_key(fiber, item, ctas), {})
    here[cta] = (fiber, operands)
    if len(here) < len(ctas):
        fiber.waits_for = f"{item.mods[0]}.{item.mods[1]} by a warp of its peer CTA"
        return None
    if len({given for _, given in here.values()}) > 1:
        machine.fault("tcgen05", item, f"the CTAs of a pair give different operands: "
                      f"{sorted(given for _, given in here.values())}")  # fmt: skip
    return here


def _done(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """All of a pair have done it: who waited goes on."""
    ctas = members(machine, item, fiber.lo // machine.block)
    for other, _ in machine.tensor_waiting.pop(_key(fiber, item, ctas)).values():
        if other is not fiber:
            machine.blocked.pop(other)
            other.pc += 1
            machine.fibers.append(other)


def _count(machine: Machine, fiber: Fiber, item: Instruction, operand: object) -> int:
    counts = machine.values(item, operand, "u32", fiber.lo, fiber.hi)
    count, exclusive = int(counts[0]), "exclusive" in item.mods
    chip = machine.program.module.chip
    if (counts != count).any():
        machine.fault("tcgen05", item, "the threads of the warp give different numbers of columns")
    if exclusive:
        good = count % UNIT == 0 and UNIT <= count <= chip.exclusive_columns
        rule = f"a multiple of {UNIT} up to {chip.exclusive_columns} columns"
    else:
        good = count.bit_count() == 1 and UNIT <= count <= chip.tensor_columns
        rule = f"a power of two from {UNIT} to {chip.tensor_columns} columns"
    if not good:
        machine.fault("tcgen05", item, f"{rule} is wanted, got {count}")
    return count


def _check_order(machine: Machine, item: Instruction, memory: TensorMemory, count: int) -> None:
    if not memory.permit:
        machine.fault("tcgen05", item, f"CTA {memory.cta} allocates after its "
                      "tcgen05.relinquish_alloc_permit")  # fmt: skip
    if any(held.exclusive for held in memory.allocations.values()):
        machine.fault("tcgen05", item, f"CTA {memory.cta} allocates while it holds an exclusive "
                      "allocation")  # fmt: skip
    if count > memory.last_columns:
        machine.report("tcgen05", item, f"CTA {memory.cta} allocates {count} columns after "
                       f"{memory.last_columns}: the number must not grow")  # fmt: skip


def _place(machine: Machine, memories: list[TensorMemory], count: int, exclusive: bool):
    """First column of free ones, equal in all CTAs; seeds of odd number begin at the top."""
    chip = machine.program.module.chip
    limit = chip.exclusive_columns if exclusive else chip.tensor_columns
    busy = np.logical_or.reduce([memory.live for memory in memories])
    if exclusive and busy.any():
        return None
    starts = range(0, limit - count + 1, UNIT)
    order = starts[::-1] if machine.from_top else starts
    return next((start for start in order if not busy[start : start + count].any()), None)


def _alloc(machine: Machine, fiber: Fiber, item: Instruction):
    """tcgen05.alloc: 9.7.17.7.1. Blocks until the columns are free."""
    outcome = _one_warp(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    count, exclusive = _count(machine, fiber, item, item.args[1]), "exclusive" in item.mods
    here = _meet(machine, fiber, item, (count,))
    if here is None:
        return BLOCK
    memories = [machine.tensor_memory[cta] for cta in here]
    for memory in memories:
        _check_order(machine, item, memory, count)
    start = _place(machine, memories, count, exclusive)
    if start is None:
        fiber.waits_for = f"{count} columns of tensor memory that are free together"
        return BLOCK
    for cta, (other, _) in here.items():
        memory = machine.tensor_memory[cta]
        memory.claim(Allocation(start, count, exclusive, other.pc))
        memory.last_columns = count
        _write_address(machine, other, start)
    _done(machine, fiber, item)
    return NEXT


def _write_address(machine: Machine, fiber: Fiber, start: int) -> None:
    """A weak store of the generic proxy, as st.shared."""
    item = machine.program.instructions[fiber.pc]
    address = machine.address(item, item.args[0], fiber.lo)
    offset = machine.own_offset(item, address, fiber.lo, _ADDRESS_BYTES)
    if offset % _ADDRESS_BYTES:
        machine.fault("align", item, f"shared address {address:#x} is not 4-byte aligned")
    cta = fiber.lo // machine.block
    if machine.races:
        shadow = machine.shadows[cta]
        cells = shadow.byte_cells(np.arange(offset, offset + _ADDRESS_BYTES))
        shadow.generic_write(cells, np.full(len(cells), fiber.lo // WARP), item.pc)
    machine.shared[cta][offset : offset + _ADDRESS_BYTES].view(np.uint32)[0] = start


def _dealloc(machine: Machine, fiber: Fiber, item: Instruction):
    """tcgen05.dealloc: 9.7.17.7.1. What used the columns must be known to be done."""
    outcome = _one_warp(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    address = int(machine.value(item, item.args[0], fiber.lo))
    count = _count(machine, fiber, item, item.args[1])
    here = _meet(machine, fiber, item, (address, count))
    if here is None:
        return BLOCK
    lane, start = names(machine, item, address)
    for cta, (other, _) in here.items():
        memory = machine.tensor_memory[cta]
        held = memory.allocations.get(start)
        exclusive = "exclusive" in item.mods
        if lane or held is None or held.columns != count or held.exclusive != exclusive:
            machine.fault("tcgen05", item, f"dealloc of {count} columns at {address:#x}, which is "
                          f"no such allocation of CTA {cta}")  # fmt: skip
        _check_unused(machine, other, memory, held)
        memory.release(held)
    _done(machine, fiber, item)
    _wake(machine)
    return NEXT


def _check_unused(machine: Machine, fiber: Fiber, memory: TensorMemory, held: Allocation) -> None:
    """A synchronous operation: no tcgen05 fence is asked for. 9.7.17.6.1."""
    warp = fiber.lo // WARP
    generic = machine.clocks.know[warp, 0]
    operation = Operation(warp, 0, fiber.pc, "dealloc")
    number = machine.tensor_operations.add(operation)
    area = region(0, 128, held.start, held.columns)
    write(machine, memory, area, number, Known(generic, generic))


def _wake(machine: Machine) -> None:
    """Columns have become free: who waits for some looks again."""
    machine.idle_polls = 0
    for (what, *_), here in machine.tensor_waiting.items():
        for fiber, _ in here.values() if what.startswith("alloc") else ():
            if fiber in machine.blocked:
                machine.blocked.pop(fiber)
                machine.fibers.append(fiber)
                here.pop(fiber.lo // machine.block)
                break


def _relinquish(machine: Machine, fiber: Fiber, item: Instruction):
    """tcgen05.relinquish_alloc_permit: 9.7.17.7.1."""
    outcome = _one_warp(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    here = _meet(machine, fiber, item, ())
    if here is None:
        return BLOCK
    for cta in here:
        machine.tensor_memory[cta].permit = False
    _done(machine, fiber, item)
    return NEXT


def check_exit(machine: Machine, item: Instruction, cta: int) -> None:
    """All tensor memory is deallocated before the exit: 9.7.17.1.2."""
    for held in machine.tensor_memory[cta].allocations.values() if machine.tensor_memory else ():
        machine.report("exit", item, f"CTA {cta} exits with {held.columns} columns of tensor "
                       f"memory allocated at column {held.start}", held.pc)  # fmt: skip


def _check_constant(item: Instruction) -> None:
    """What ptxas finds in constants."""
    count = item.args[1]
    if not isinstance(count, Imm):
        return
    power = count.value.bit_count() == 1 and UNIT <= count.value <= 512
    if count.value % UNIT or not ("exclusive" in item.mods or power):
        raise refuse(item, "a power of two from 32 to 512 columns is wanted, or a multiple of 32 "
                     "that is allocated exclusively")  # fmt: skip


_GROUPS = "(.cta_group::1,.cta_group::2)"
TABLE = (
    Row(f"tcgen05.alloc{_GROUPS}.sync.aligned.shared::cta.b32", "m r", _alloc, "9.7.17.7.1",
        aligned=True, decode=_check_constant, needs="tcgen05"),
    Row(f"tcgen05.alloc.exclusive{_GROUPS}.sync.aligned.shared::cta.b32", "m r", _alloc,
        "9.7.17.7.1", aligned=True, decode=_check_constant, needs="exclusive"),
    Row(f"tcgen05.dealloc{_GROUPS}.sync.aligned.b32", "r r", _dealloc, "9.7.17.7.1", aligned=True,
        decode=_check_constant, needs="tcgen05"),
    Row(f"tcgen05.dealloc.exclusive{_GROUPS}.sync.aligned.b32", "r r", _dealloc, "9.7.17.7.1",
        aligned=True, decode=_check_constant, needs="exclusive"),
    Row(f"tcgen05.relinquish_alloc_permit{_GROUPS}.sync.aligned", "", _relinquish, "9.7.17.7.1",
        aligned=True, needs="tcgen05"),
)  # fmt: skip
