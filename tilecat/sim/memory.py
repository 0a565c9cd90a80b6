"""Plain loads, stores and atomics. PTX ISA 9.7.9.8 to 9.7.9.11, 9.7.13.5, 9.7.13.6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.alu_types import NUMPY
from tilecat.sim.conflicts import Pattern, pattern_of
from tilecat.sim.fibers import Fiber
from tilecat.sim.mbarrier import note_remote
from tilecat.sim.parse import TYPE_BYTES, Instruction, Mem, Reg, Vec
from tilecat.sim.program import refuse
from tilecat.sim.registers import view
from tilecat.sim.report import OFFSET_MASK, RANK_SHIFT
from tilecat.sim.table import AGAIN, Row

if TYPE_CHECKING:
    from tilecat.sim.core import Machine


@dataclass(frozen=True)
class Access:
    """Decoded form of a load or store: space, type, elements, bytes, registers."""

    space: str
    kind: str
    item_bytes: int
    registers: tuple
    mem: Mem
    polls: bool

    @property
    def num_bytes(self) -> int:
        """Bytes a thread touches."""
        return self.item_bytes * len(self.registers)


def _decode(item: Instruction) -> Access:
    load = item.mods[0] == "ld"
    data, mem = item.args if load else item.args[::-1]
    space = next(m for m in item.mods if m.split("::")[0] in ("global", "shared"))
    kind = item.mods[-1]
    count = next((int(m[1:]) for m in item.mods if m in ("v2", "v4", "v8")), 1)
    registers = data.items if isinstance(data, Vec) else (data,)
    if len(registers) != count or isinstance(data, Vec) != (count > 1):
        raise refuse(item, "a vector of as many registers as the modifier says is wanted")
    if kind not in TYPE_BYTES or kind in ("f16x2", "bf16x2", "b128") or mem.extra:
        raise refuse(item, "operand form not implemented")
    if TYPE_BYTES[kind] * count > (32 if "global" in space else 16):
        raise refuse(item, "wider than the machine takes")
    ordered = any(m in ("acquire", "release", "acq_rel") for m in item.mods)
    if ordered and "shared" in space:
        raise refuse(item, "ordering through shared memory is not implemented: use a barrier")
    for register in registers:
        if isinstance(register, Reg):
            width = TYPE_BYTES[
                {"B": "b8", "H": "b16", "R": "b32", "D": "b64"}.get(register.bank, "b8")
            ]
            if register.bank == "P" or width < TYPE_BYTES[kind]:
                raise refuse(item, f"register {register.name} is too narrow for .{kind}")
    polls = load and any(m in ("acquire", "relaxed", "volatile") for m in item.mods)
    return Access(space, kind, TYPE_BYTES[kind], tuple(registers), mem, polls)


def threads_of(machine: Machine, fiber: Fiber, item: Instruction) -> np.ndarray:
    """Active threads as an array."""
    if item.predicate is None:
        return np.arange(fiber.lo, fiber.hi)
    return fiber.lo + np.nonzero(machine.active_mask(fiber, item))[0]


def _addresses(machine: Machine, fiber: Fiber, item: Instruction, mem: Mem, kind: str, align: int):
    threads = threads_of(machine, fiber, item)
    addresses = machine.addresses(item, mem, fiber.lo, fiber.hi, kind)[threads - fiber.lo]
    if len(addresses) and (addresses % align).any():
        index = int(np.argmax(addresses % align != 0))
        who = machine.reporter.threads(int(threads[index]), int(threads[index]))
        machine.fault("align", item, f"address {int(addresses[index]):#x} of {who} is not aligned to "
                      f"{align} bytes")  # fmt: skip
    return threads, addresses


# ---- shared memory
def shared_cta(machine: Machine, fiber: Fiber, item: Instruction, space: str, addresses: np.ndarray,
               num_bytes: int) -> tuple[int, np.ndarray]:  # fmt: skip
    """The CTA all addresses lie in, and their offsets, checked."""
    low, high = int(addresses.min()), int(addresses.max())
    cta = low >> RANK_SHIFT
    if high >> RANK_SHIFT != cta:
        raise refuse(item, "one access to shared memory of several CTAs is not implemented")
    machine.checked_offset(item, low, num_bytes)
    machine.checked_offset(item, high, num_bytes)
    mine = fiber.lo // machine.block
    if cta != mine:
        if space != "shared::cluster":
            machine.fault("bounds", item, f"shared::cta address {low:#x} names another CTA")
        for warp in range(*fiber.warps):
            note_remote(machine, item, cta, warp)
    return cta, addresses & OFFSET_MASK


def observe(machine: Machine, item: Instruction, cta: int, pattern: Pattern, write: bool) -> None:
    """Bank conflicts and happens-before of one plain access to shared memory."""
    worst = machine.conflicts.get(item.pc)
    if worst is None or pattern.wavefronts * worst[1] > worst[0] * pattern.ideal:
        machine.conflicts[item.pc] = (pattern.wavefronts, pattern.ideal)
    if not machine.races:
        return
    shadow = machine.shadows[cta]
    if write and pattern.overlap is not None:
        first, second, offset = pattern.overlap
        machine.report("race", item, f"{machine.agent_name(first)} and {machine.agent_name(second)} both "
                       f"write {machine.reporter.shared(cta, offset)} here", item.pc)  # fmt: skip
    access = shadow.generic_write if write else shadow.generic_read
    if len(pattern.chunks):
        whole = shadow.chunk_cells(pattern.chunks, write)
        if whole is pattern.chunks:
            access(pattern.chunks, pattern.chunk_warps, item.pc)
        else:
            _split_access(shadow, access, pattern, write, item.pc)
    if len(pattern.bytes):
        access(shadow.byte_cells(pattern.bytes), pattern.byte_warps, item.pc)


def _split_access(shadow, access, pattern: Pattern, write: bool, pc: int) -> None:
    """Whole chunks, some of which are kept byte by byte."""
    fine = shadow.is_fine[pattern.chunks]
    coarse = ~fine
    if coarse.any():
        access(pattern.chunks[coarse], pattern.chunk_warps[coarse], pc)
    base = shadow.fine_base[pattern.chunks[fine]]
    cells = (base[:, None] + np.arange(16)).ravel()
    access(cells, np.repeat(pattern.chunk_warps[fine], 16), pc)
    if write:
        shadow.join_written(pattern.chunks[fine], pattern.chunk_warps[fine], pc)


def _shared_index(machine, fiber, item, threads, addresses, num_bytes: int, write: bool):
    access = item.info
    cta, offsets = shared_cta(machine, fiber, item, access.space, addresses, num_bytes)
    pattern = pattern_of(machine, offsets, threads, num_bytes)
    observe(machine, item, cta, pattern, write)
    return cta, offsets


def _read(data: np.ndarray, offsets: np.ndarray, width: int, count: int) -> list[np.ndarray]:
    if (offsets % width).any():
        raise AssertionError("alignment is checked before")
    usable = len(data) // width * width
    words = data[:usable].view(f"u{width}")
    index = offsets // width
    return [words[index + k] for k in range(count)]


def _put(
    machine: Machine, register: object, threads: np.ndarray, value: np.ndarray, kind: str
) -> None:
    """Write loaded bits, sign- or zero-extended to the register. 9.4.1."""
    if not isinstance(register, Reg):
        return
    bank = machine.registers.banks[register.bank][register.row]
    signed = kind[0] == "s" and bank.dtype.itemsize > value.dtype.itemsize
    typed_bank = bank.view(f"i{bank.dtype.itemsize}") if signed else bank
    typed_bank[threads] = value.view(f"i{value.dtype.itemsize}") if signed else value


def _load(machine: Machine, fiber: Fiber, item: Instruction):
    """ld.global, ld.shared: 9.7.9.8, 9.7.9.9."""
    access = item.info
    shared = access.space != "global"
    threads, addresses = _addresses(
        machine, fiber, item, access.mem, "u32" if shared else "u64", access.num_bytes
    )
    if not len(threads):
        return None
    width, count = access.item_bytes, len(access.registers)
    if shared:
        cta, offsets = _shared_index(
            machine, fiber, item, threads, addresses, access.num_bytes, False
        )
        values = _read(machine.shared[cta], offsets, width, count)
    else:
        values = _global_read(machine, item, addresses, width, count)
        machine.stats["bytes read"] += access.num_bytes * len(threads)
    for register, value in zip(access.registers, values, strict=True):
        _put(machine, register, threads, value, access.kind)
    return AGAIN if access.polls else None


def _source(
    machine: Machine, fiber: Fiber, item: Instruction, register, threads, access
) -> np.ndarray:
    kind = "b" + str(8 * access.item_bytes)
    if not isinstance(register, Reg) and access.kind[0] == "f":
        value = view(machine, item, register, access.kind, fiber.lo, fiber.hi).view(NUMPY[kind])
    else:
        value = view(machine, item, register, kind, fiber.lo, fiber.hi)
    return np.broadcast_to(value, fiber.hi - fiber.lo)[threads - fiber.lo]


def _store(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """st.global, st.shared: 9.7.9.11."""
    access = item.info
    shared = access.space != "global"
    threads, addresses = _addresses(
        machine, fiber, item, access.mem, "u32" if shared else "u64", access.num_bytes
    )
    if not len(threads):
        return
    machine.idle_polls = 0
    values = [_source(machine, fiber, item, r, threads, access) for r in access.registers]
    if not shared:
        _global_write(machine, item, threads, addresses, values, access.item_bytes)
        machine.stats["bytes written"] += access.num_bytes * len(threads)
        return
    cta, offsets = _shared_index(machine, fiber, item, threads, addresses, access.num_bytes, True)
    data, width = machine.shared[cta], access.item_bytes
    words = data[: len(data) // width * width].view(f"u{width}")
    for index, value in enumerate(values):
        words[offsets // width + index] = value


# ---- global memory
def _inside(machine: Machine, item: Instruction, addresses: np.ndarray, num_bytes: int):
    """(segment, mask of addresses inside it); the rest is reported."""
    memory = machine.global_memory
    low, high = int(addresses.min()), int(addresses.max())
    segment = memory.find(low, high + num_bytes)
    if segment is not None:
        return [(segment, slice(None))]
    parts, left = [], np.ones(len(addresses), bool)
    for segment in memory.segments:
        mask = (addresses >= segment.start) & (addresses + num_bytes <= segment.end)
        if mask.any():
            parts.append((segment, mask))
            left &= ~mask
    if left.any():
        wrong = int(addresses[int(np.argmax(left))])
        machine.report("bounds", item, f"{num_bytes} bytes at {memory.describe(wrong)}")
    return parts


def _global_read(
    machine: Machine, item: Instruction, addresses: np.ndarray, width: int, count: int
):
    values = [np.full(len(addresses), 0xFFFFFFFFFFFFFFFF, np.uint64).astype(f"u{width}")
              for _ in range(count)]  # fmt: skip
    for segment, mask in _inside(machine, item, addresses, width * count):
        offsets = addresses[mask] - segment.start
        for target, value in zip(values, _read(segment.data, offsets, width, count), strict=True):
            target[mask] = value
    return values


def _writeable(machine: Machine, item: Instruction, segment, address: int) -> None:
    if not segment.writeable:
        raise refuse(item, f"argument {segment.name_near(address)} is read-only")


def _global_write(machine, item, threads, addresses, values, width: int) -> None:
    for segment, mask in _inside(machine, item, addresses, width * len(values)):
        _writeable(machine, item, segment, int(addresses[mask][0]))
        offsets = addresses[mask] - segment.start
        words = segment.data[: len(segment.data) // width * width].view(f"u{width}")
        for index, value in enumerate(values):
            words[offsets // width + index] = value[mask]
        if machine.races:
            _claim(machine, item, threads[mask], segment, offsets, width * len(values))


def _claim(machine: Machine, item: Instruction, threads, segment, offsets, num_bytes: int) -> None:
    """Two CTAs of a launch must not store one element."""
    unit = segment.item_bytes
    index = (offsets[:, None] + np.arange(0, num_bytes, unit)) // unit
    cta = machine.cta_numbers[int(threads[0]) // machine.block]
    if not machine.global_memory.claim(segment, index.ravel(), cta):
        name = segment.name_near(segment.start + int(offsets[0]))
        machine.report("global-race", item, f"CTA {cta} stores elements of argument {name} that another "
                       "CTA of this launch has stored")  # fmt: skip


# ---- atomics
def _combine(operation: str, old: np.ndarray, new: np.ndarray, extra) -> np.ndarray:
    """One step of an atomic. 9.7.13.5."""
    simple = {"add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
              "min": np.minimum, "max": np.maximum}  # fmt: skip
    if operation in simple:
        return simple[operation](old, new)
    if operation == "exch":
        return new
    if operation == "cas":
        return np.where(old == new, extra, old)
    if operation == "inc":
        return np.where(old >= new, 0, old + 1)
    return np.where((old == 0) | (old > new), new, old - 1)


def _atomic(machine: Machine, fiber: Fiber, item: Instruction):
    """atom, red: one thread after the other, in thread order. 9.7.13.5, 9.7.13.6."""
    operation, kind, shared = item.info
    returns = item.mods[0] == "atom"
    mem, *operands = item.args[1:] if returns else item.args
    width = TYPE_BYTES[kind]
    threads, addresses = _addresses(machine, fiber, item, mem, "u32" if shared else "u64", width)
    if not len(threads):
        return None
    machine.idle_polls = 0
    picked = [
        machine.values(item, o, kind, fiber.lo, fiber.hi)[threads - fiber.lo] for o in operands
    ]
    if shared:
        cta, offsets = shared_cta(machine, fiber, item, shared, addresses, width)
        _observe_atomic(machine, item, cta, offsets, threads, width)
        old = _apply(operation, kind, machine.shared[cta], offsets, picked)
    else:
        old = np.zeros(len(threads), NUMPY[kind])
        for segment, mask in _inside(machine, item, addresses, width):
            _writeable(machine, item, segment, int(addresses[mask][0]))
            parts = [value[mask] for value in picked]
            old[mask] = _apply(
                operation, kind, segment.data, addresses[mask] - segment.start, parts
            )
    if returns:
        _put(machine, item.args[0], threads, old.view(f"u{width}"), kind)
    return AGAIN if returns and not shared else None


def _observe_atomic(machine, item, cta, offsets, threads, width: int) -> None:
    """Atomics of several warps on one place do not race with each other; see the limits."""
    if machine.races:
        shadow = machine.shadows[cta]
        pattern = pattern_of(machine, offsets, threads, width)
        shadow.atomic(shadow.byte_cells(np.unique(offsets[:, None] + np.arange(width))),
                      int(threads[0]) // 32, item.pc)  # fmt: skip
        machine.conflicts.setdefault(item.pc, (pattern.ideal, pattern.ideal))


def _apply(operation: str, kind: str, data: np.ndarray, offsets: np.ndarray, operands: list):
    width = TYPE_BYTES[kind]
    words = data[: len(data) // width * width].view(NUMPY[kind])
    index = offsets // width
    if len(np.unique(index)) == len(index):
        old = words[index]
        extra = operands[1] if len(operands) > 1 else None
        words[index] = _combine(operation, old, operands[0], extra)
        return old
    old = np.empty(len(index), NUMPY[kind])
    for place, where in enumerate(index):
        old[place] = words[where]
        extra = operands[1][place : place + 1] if len(operands) > 1 else None
        step = _combine(operation, words[where : where + 1], operands[0][place : place + 1], extra)
        words[where] = step[0]
    return old


def _decode_atomic(item: Instruction) -> tuple[str, str, str]:
    space = next((m for m in item.mods if m.split("::")[0] == "shared"), "")
    names = ("add", "and", "or", "xor", "min", "max", "exch", "cas", "inc", "dec")
    operation = next(m for m in item.mods if m in names)
    kind = item.mods[-1]
    wanted = (3 if operation == "cas" else 2) + (item.mods[0] == "atom")
    if len(item.args) != wanted or kind in ("inc", "dec") and kind != "u32":
        raise refuse(item, "operand form not implemented")
    if operation in ("and", "or", "xor", "exch", "cas") and kind[0] != "b":
        raise refuse(item, f".{operation} takes a .b type")
    return operation, kind, space


_ORDERS = "{.weak,.volatile,.relaxed,.acquire}{.cta,.cluster,.gpu,.sys}"
_ST_ORDERS = "{.weak,.volatile,.relaxed,.release}{.cta,.cluster,.gpu,.sys}"
_L1 = ("{.L1::evict_normal,.L1::evict_unchanged,.L1::evict_first,.L1::evict_last,"
       ".L1::no_allocate}")  # fmt: skip
_L2 = "{.L2::evict_normal,.L2::evict_first,.L2::evict_last}{.L2::64B,.L2::128B,.L2::256B}"
_TYPES = "(" + ",".join(f".{kind}" for kind in sorted(TYPE_BYTES)) + ")"
_SHARED = "(.shared,.shared::cta,.shared::cluster)"
_ATOMIC = "{.relaxed,.acquire,.release,.acq_rel}{.cta,.cluster,.gpu,.sys}"
_ATOMIC_OPS = "(.add,.and,.or,.xor,.min,.max,.exch,.cas,.inc,.dec)"
_ATOMIC_TYPES = "(.u32,.s32,.b32,.u64,.s64,.b64,.f32,.f64)"
TABLE = (
    Row(f"ld{_ORDERS}.global{{.ca,.cg,.cs,.lu,.cv}}{{.nc}}{_L1}{_L2}{{.v2,.v4,.v8}}{_TYPES}",
        "dv m", _load, "9.7.9.8", decode=_decode),
    Row(f"ld{_ORDERS}{_SHARED}{{.v2,.v4}}{_TYPES}", "dv m", _load, "9.7.9.8", decode=_decode),
    Row(f"st{_ST_ORDERS}.global{{.wb,.cg,.cs,.wt}}{_L1}{_L2}{{.v2,.v4,.v8}}{_TYPES}", "m rv",
        _store, "9.7.9.11", decode=_decode),
    Row(f"st{_ST_ORDERS}{_SHARED}{{.v2,.v4}}{_TYPES}", "m rv", _store, "9.7.9.11", decode=_decode),
    Row(f"red{_ATOMIC}(.global,.shared,.shared::cta,.shared::cluster){_ATOMIC_OPS}{_ATOMIC_TYPES}",
        "m r", _atomic, "9.7.13.6", decode=_decode_atomic),
    Row(f"atom{_ATOMIC}(.global,.shared,.shared::cta,.shared::cluster){_ATOMIC_OPS}{_ATOMIC_TYPES}",
        "d m r r?", _atomic, "9.7.13.5", decode=_decode_atomic),
)  # fmt: skip
