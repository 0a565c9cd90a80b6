"""tcgen05.ld, .st, .wait, .fence: registers and tensor memory. PTX ISA 9.4, 9.7.17.8, 9.7.17.11."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.clocks import GENERIC
from tilecat.sim.fibers import WARP, Fiber, whole_warps
from tilecat.sim.parse import Imm, Instruction, Mem, Reg, Vec
from tilecat.sim.program import refuse
from tilecat.sim.registers import view
from tilecat.sim.table import NEXT, Row
from tilecat.sim.tensor_memory import (
    GROUP,
    Operation,
    TensorMemory,
    check_live,
    check_written,
    knowledge,
    names,
    read,
    region,
    write,
)

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

_QUARTER = 32  # lanes that a warp of a warpgroup reaches, 9.7.17.8.1
# Registers a repetition, and columns: 9.7.17.8.3, table 52; 9.7.17.2.3.
_REGISTERS = {"32x32b": 1, "16x64b": 1, "16x32bx2": 1, "16x128b": 2, "16x256b": 4}
_COLUMNS = {"32x32b": 1, "16x64b": 2, "16x32bx2": 1, "16x128b": 4, "16x256b": 8}
_MOST_REGISTERS = 128


@dataclass(frozen=True)
class Form:
    """A decoded load or store: shape, repetitions, packing, registers, address.

    `lanes` and `columns` (registers, halves, 32) are relative to the address; a packed register
    has two halves.
    """

    shape: str
    mem: Mem
    registers: tuple
    rows: tuple[int, ...]
    split: int
    packed: bool
    lanes: np.ndarray
    columns: np.ndarray
    num_columns: int


@dataclass
class Accesses:
    """Loads or stores of one warp: how many it has issued, and their agents in the clocks."""

    agent: int
    published: int
    issued: int = 0


def reset(machine: Machine) -> None:
    """Start of a cluster."""
    machine.tensor_accesses = {}


# ---- fragments
def _fragment(shape: str, count: int, split: int) -> tuple[np.ndarray, np.ndarray]:
    """Lane and column of every 32-bit element, (elements a thread, 32). 9.7.17.2.3.1.

    The shapes of 16 lanes are the fragments of mma: lane t holds row t / 4; of 16x64b, bit 0 of t
    is row + 8 and bit 1 the column.
    """
    t = np.arange(WARP)
    r = np.arange(count * _REGISTERS[shape])[:, None]
    zero = 0 * r + 0 * t
    if shape == "32x32b":
        return t + zero, r + zero
    if shape == "16x32bx2":
        return t % 16 + zero, r + split * (t // 16)
    if shape == "16x64b":
        return t // 4 + 8 * (t % 2) + zero, 2 * r + t // 2 % 2
    if shape == "16x128b":
        return t // 4 + 8 * (r % 2) + zero, r // 2 * 4 + t % 4
    return t // 4 + 8 * (r // 2 % 2) + zero, r // 4 * 8 + t % 4 * 2 + r % 2


def _decode(item: Instruction) -> Form:
    load = item.mods[1] == "ld"
    shape, count = item.mods[4], int(item.mods[5][1:])
    split = 0
    data, mem = (item.args[0], item.args[1]) if load else (item.args[-1], item.args[0])
    if shape == "16x32bx2":
        constant = item.args[2] if load else item.args[1]
        if not isinstance(constant, Imm):
            raise refuse(item, "a constant half-split offset is wanted")
        split = constant.value
    packed = any(mod.endswith("pack::16b") for mod in item.mods)
    registers = data.items if isinstance(data, Vec) else (data,)
    wanted = count * _REGISTERS[shape]
    if wanted > _MOST_REGISTERS:
        raise refuse(item, f"at most {_MOST_REGISTERS} registers a thread, got {wanted}")
    wrong = [r for r in registers if not isinstance(r, Reg) or r.bank != "R"]
    if len(registers) != wanted or wrong and (load or isinstance(wrong[0], Reg)):
        raise refuse(item, f"{wanted} registers of 32 bits are wanted")
    halves = 2 if packed else 1
    lanes, columns = _fragment(shape, count * halves, split)
    return Form(shape, mem, tuple(registers), tuple(r.row for r in registers if not wrong), split,
                packed, *_halves(lanes, columns, shape, halves),
                count * halves * _COLUMNS[shape])  # fmt: skip


def _halves(lanes: np.ndarray, columns: np.ndarray, shape: str, halves: int):
    """Elements as (registers, halves, 32): a packed register has two adjacent columns. 9.7.17.8.2.

    Adjacent columns are what unpacked registers of twice the width hold side by side.
    """
    if halves == 1:
        return lanes[:, None], columns[:, None]
    if shape in ("32x32b", "16x32bx2"):
        return tuple(x.reshape(-1, 2, WARP) for x in (lanes, columns))
    count = len(lanes) // 2
    single = _fragment(shape, count // _REGISTERS[shape], 0)
    low = 2 * single[1]
    return np.stack([single[0]] * 2, 1), np.stack([low, low + 1], 1)


# ---- loads and stores
def _address(machine: Machine, item: Instruction, form: Form, lo: int) -> tuple[int, int]:
    """Lane and column of a warp's access; every warp reaches a quarter of the lanes. 9.7.17.8.1."""
    addresses = machine.addresses(item, form.mem, lo, lo + WARP)
    who = machine.reporter.threads(lo, lo + WARP - 1)
    if (addresses != addresses[0]).any():
        machine.fault("tcgen05", item, f"the threads of {who} give different addresses")
    lane, column = names(machine, item, int(addresses[0]))
    first = lo % machine.block // WARP % 4 * _QUARTER
    height = _QUARTER if form.shape == "32x32b" else GROUP
    if lane % height or not first <= lane <= first + _QUARTER - height:
        machine.fault("tcgen05", item, f"{who} reaches lanes {first} to {first + _QUARTER - 1} of "
                      f"tensor memory, from a multiple of {height}; got lane {lane}")  # fmt: skip
    return lane, column


def _regions(machine: Machine, item: Instruction, memory, form: Form, lane: int, column: int, who):
    """The rectangles an access touches."""
    height = _QUARTER if form.shape == "32x32b" else GROUP
    starts = (column, column + form.split) if form.shape == "16x32bx2" else (column,)
    for start in starts:
        check_live(machine, item, memory, start, form.num_columns, who)
    return [region(lane, height, start, form.num_columns) for start in starts]


def _accesses(machine: Machine, warp: int, kind: str) -> Accesses:
    found = machine.tensor_accesses.get((warp, kind))
    if found is None:
        who = machine.reporter.threads(warp * WARP, warp * WARP + WARP - 1)
        agent = machine.clocks.agent(f"tcgen05.{kind} of {who}")
        published = machine.clocks.agent(f"tcgen05.{kind} of {who}, fenced")
        machine.clocks.published[agent] = published
        found = machine.tensor_accesses[(warp, kind)] = Accesses(agent, published)
    return found


def _operation(machine: Machine, item: Instruction, lo: int) -> int:
    kind, warp = item.mods[1], lo // WARP
    accesses = _accesses(machine, warp, kind)
    accesses.issued += 1
    operation = Operation(accesses.agent, accesses.issued, item.pc, kind, warp=warp)
    return machine.tensor_operations.add(operation)


def _load(machine: Machine, fiber: Fiber, item: Instruction):
    """tcgen05.ld: 9.7.17.8.3. Registers are there at once: hardware tracks them (9.7.17.6.4.5)."""
    outcome = whole_warps(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    form: Form = item.info
    for lo in range(fiber.lo, fiber.hi, WARP):
        words = _fetch(machine, item, form, lo)
        machine.registers.banks["R"][list(form.rows), lo : lo + WARP] = words
    return NEXT


def _fetch(machine: Machine, item: Instruction, form: Form, lo: int) -> np.ndarray:
    """The registers that a warp loads, (registers, 32)."""
    memory: TensorMemory = machine.tensor_memory[lo // machine.block]
    lane, column = _address(machine, item, form, lo)
    who = f"tcgen05.ld of {machine.reporter.threads(lo, lo + WARP - 1)}"
    areas = _regions(machine, item, memory, form, lane, column, who)
    lanes, columns = form.lanes + lane, form.columns + column
    number = _operation(machine, item, lo)
    known = knowledge(machine, lo // WARP)
    for area in areas:
        read(machine, memory, area, number, known)
    check_written(machine, item, memory, lanes, columns, who)
    words = memory.words[lanes, columns]
    if not form.packed:
        return words[:, 0]
    return words[:, 0] & np.uint32(0xFFFF) | words[:, 1] << np.uint32(16)


def _store(machine: Machine, fiber: Fiber, item: Instruction):
    """tcgen05.st: 9.7.17.8.4."""
    outcome = whole_warps(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    form: Form = item.info
    machine.idle_polls = 0
    for lo in range(fiber.lo, fiber.hi, WARP):
        memory: TensorMemory = machine.tensor_memory[lo // machine.block]
        lane, column = _address(machine, item, form, lo)
        who = f"tcgen05.st of {machine.reporter.threads(lo, lo + WARP - 1)}"
        number = _operation(machine, item, lo)
        known = knowledge(machine, lo // WARP)
        for area in _regions(machine, item, memory, form, lane, column, who):
            write(machine, memory, area, number, known)
        words = np.stack([
            np.broadcast_to(view(machine, item, register, "b32", lo, lo + WARP), WARP)
            for register in form.registers
        ])[:, None]  # fmt: skip
        if form.packed:
            low = words & np.uint32(0xFFFF)
            words = np.concatenate([low, words >> np.uint32(16)], 1)
        memory.words[form.lanes + lane, form.columns + column] = words
        memory.written[form.lanes + lane, form.columns + column] = True
    return NEXT


# ---- loads with a reduction
def _decode_reduction(item: Instruction) -> tuple[Form, Reg]:
    target = item.args[1]
    target = target.items[0] if isinstance(target, Vec) else target
    shape = item.mods[5]
    if not isinstance(target, Reg) or target.bank != "R" or item.mods[6] == "x1":
        raise refuse(item, "at least .x2, and a 32-bit register for the result, are wanted")
    if len(item.args) != (4 if shape == "16x32bx2" else 3):
        raise refuse(item, "a half-split offset goes with .16x32bx2 alone")
    plain = Instruction(item.pc, item.op, (item.args[0], *item.args[2:]), item.predicate,
                        item.negated, item.line, item.text, item.loc,
                        ("tcgen05", "ld", *item.mods[3:]))  # fmt: skip
    return _decode(plain), target


_VIEWS = {"f32": np.float32, "u32": np.uint32, "s32": np.int32}


def _load_reduce(machine: Machine, fiber: Fiber, item: Instruction):
    """tcgen05.ld.red: the least or greatest of what a thread loads. 9.7.17.8.3."""
    outcome = whole_warps(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    form, target = item.info
    greatest, nan = "max" in item.mods, "NaN" in item.mods
    for lo in range(fiber.lo, fiber.hi, WARP):
        words = _fetch(machine, item, form, lo)
        machine.registers.banks["R"][list(form.rows), lo : lo + WARP] = words
        values = words.view(_VIEWS[item.mods[-1]])
        if "abs" in item.mods:
            values = np.abs(values)
        if nan or item.mods[-1] != "f32":
            result = (np.maximum if greatest else np.minimum).reduce(values, 0)
        else:
            result = (np.fmax if greatest else np.fmin).reduce(values, 0)
        if item.mods[-1] == "f32":
            result = np.where(np.isnan(result), np.uint32(0x7FFFFFFF).view(np.float32), result)
        machine.registers.raw(target, lo, lo + WARP)[:] = result.view(np.uint32)
    return NEXT


# ---- completion and order
def _wait(machine: Machine, fiber: Fiber, item: Instruction):
    """tcgen05.wait::ld, .wait::st: 9.7.17.8.5."""
    outcome = whole_warps(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    kind = item.mods[1].removeprefix("wait::")
    for warp in range(*fiber.warps):
        accesses = machine.tensor_accesses.get((warp, kind))
        if accesses is not None:
            machine.clocks.tensor[warp, accesses.agent] = accesses.issued
            machine.clocks.learn(warp, warp + 1, accesses.agent, accesses.issued)
    return NEXT


def _fence(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """tcgen05.fence: 9.7.17.11."""
    warps = sorted({thread // WARP for thread in machine.active(fiber, item)})
    for warp in warps:
        if item.mods[1] == "fence::after_thread_sync":
            machine.clocks.fence_tensor(warp, warp + 1)
            continue
        for kind in ("ld", "st"):
            accesses = machine.tensor_accesses.get((warp, kind))
            if accesses is not None:
                done = int(machine.clocks.know[warp, GENERIC, accesses.agent])
                machine.clocks.learn(warp, warp + 1, accesses.published, done)


_NUMBERS = "(.x1,.x2,.x4,.x8,.x16,.x32,.x64,.x128)"
_SHAPES = "(.32x32b,.16x64b,.16x128b,.16x256b)"
_RED = "tcgen05.ld.red.sync.aligned(.32x32b,.16x32bx2)"
TABLE = (
    Row(f"tcgen05.ld.sync.aligned{_SHAPES}{_NUMBERS}{{.pack::16b}}.b32", "dv m", _load,
        "9.7.17.8.3", aligned=True, decode=_decode, needs="tcgen05"),
    Row(f"tcgen05.ld.sync.aligned.16x32bx2{_NUMBERS}{{.pack::16b}}.b32", "dv m i", _load,
        "9.7.17.8.3", aligned=True, decode=_decode, needs="tcgen05"),
    Row(f"{_RED}{_NUMBERS}(.min,.max){{.abs}}{{.NaN}}.f32", "v dv m i?", _load_reduce,
        "9.7.17.8.3", aligned=True, decode=_decode_reduction, needs="ld.red"),
    Row(f"{_RED}{_NUMBERS}(.min,.max)(.u32,.s32)", "v dv m i?", _load_reduce, "9.7.17.8.3",
        aligned=True, decode=_decode_reduction, needs="ld.red"),
    Row(f"tcgen05.st.sync.aligned{_SHAPES}{_NUMBERS}{{.unpack::16b}}.b32", "m rv", _store,
        "9.7.17.8.4", aligned=True, decode=_decode, needs="tcgen05"),
    Row(f"tcgen05.st.sync.aligned.16x32bx2{_NUMBERS}{{.unpack::16b}}.b32", "m i rv", _store,
        "9.7.17.8.4", aligned=True, decode=_decode, needs="tcgen05"),
    Row("tcgen05(.wait::ld,.wait::st).sync.aligned", "", _wait, "9.7.17.8.5", aligned=True,
        needs="tcgen05"),
    Row("tcgen05(.fence::before_thread_sync,.fence::after_thread_sync)", "", _fence, "9.7.17.11",
        needs="tcgen05"),
)  # fmt: skip
