"""Plain loads and stores. PTX ISA 9.7.9.8 to 9.7.9.11."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.alu_types import NUMPY
from tilecat.sim.conflicts import Pattern, pattern_of
from tilecat.sim.fibers import Fiber
from tilecat.sim.global_order import is_strong
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
    if len(registers) != count:
        raise refuse(item, "a vector of as many registers as the modifier says is wanted")
    if kind == "b128" and isinstance(data, Reg) and data.bank == "Q":
        registers, kind = data.halves, "b64"
    if kind not in TYPE_BYTES or kind in ("f16x2", "bf16x2", "b128") or mem.extra:
        raise refuse(item, "operand form not implemented")
    if TYPE_BYTES[kind] * len(registers) > (32 if "global" in space else 16):
        raise refuse(item, "wider than the machine takes")
    ordered = any(m in ("acquire", "release", "acq_rel") for m in item.mods)
    if ordered and "shared" in space:
        raise refuse(item, "ordering through shared memory is not implemented: use a barrier")
    for register in registers:
        if isinstance(register, Reg):
            width = TYPE_BYTES[
                {"B": "b8", "H": "b16", "R": "b32", "D": "b64"}.get(register.bank, "b8")
            ]
            if register.bank == "Q":
                raise refuse(item, f"register {register.name} of 128 bits is for .b128 alone")
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
        machine.fault("align", item, f"address {int(addresses[index]):#x} of {who} is not aligned "
                      f"to {align} bytes")  # fmt: skip
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


def observe(
    machine: Machine,
    item: Instruction,
    cta: int,
    pattern: Pattern,
    write: bool,
    same_bytes: Callable[[], bool] | None = None,
) -> None:
    """Bank conflicts and happens-before of one plain access to shared memory.

    `same_bytes` tells whether a write would change nothing.
    """
    worst = machine.conflicts.get(item.pc)
    if worst is None or pattern.wavefronts * worst[1] > worst[0] * pattern.ideal:
        machine.conflicts[item.pc] = (pattern.wavefronts, pattern.ideal)
    if not machine.races:
        return
    shadow = machine.shadows[cta]
    access = shadow.generic_read
    if write:
        access = partial(shadow.generic_write, same_bytes=same_bytes)
    if len(pattern.chunks):
        whole = shadow.chunk_cells(pattern.chunks, write)
        if whole is pattern.chunks:
            access(pattern.chunks, pattern.chunk_warps, item.pc)
        else:
            _split_access(shadow, access, pattern, write, item.pc)
    if len(pattern.bytes):
        access(shadow.byte_cells(pattern.bytes), pattern.byte_warps, item.pc)


def check_overlap(
    machine: Machine, item: Instruction, cta: int, pattern: Pattern, kept: bool
) -> None:
    """Warps that write one place in one instruction must write the same bytes there.

    `kept` tells whether memory now holds what every thread wrote.
    """
    if machine.races and pattern.overlap is not None and not kept:
        first, second, offset = pattern.overlap
        who = f"{machine.agent_name(first)} and {machine.agent_name(second)}"
        where = machine.reporter.shared(cta, offset)
        machine.report("race", item, f"{who} write different bytes to {where} here", item.pc)


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


def _read(data: np.ndarray, offsets: np.ndarray, width: int, count: int) -> list[np.ndarray]:
    if (offsets % width).any():
        raise AssertionError("alignment is checked before")
    usable = len(data) // width * width
    words = data[:usable].view(f"u{width}")
    index = offsets // width
    return [words[index + k] for k in range(count)]


def put(
    machine: Machine, register: object, threads: np.ndarray, value: np.ndarray, kind: str
) -> None:
    """Write loaded bits, sign- or zero-extended to the register. 9.4.1."""
    if not isinstance(register, Reg):
        return
    bank = machine.registers.banks[register.bank][register.row]
    signed = kind[0] == "s" and bank.dtype.itemsize > value.dtype.itemsize
    typed_bank = bank.view(f"i{bank.dtype.itemsize}") if signed else bank
    typed_bank[threads] = value.view(f"i{value.dtype.itemsize}") if signed else value


def load(machine: Machine, fiber: Fiber, item: Instruction):
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
        cta, offsets = shared_cta(machine, fiber, item, access.space, addresses, access.num_bytes)
        pattern = pattern_of(machine, offsets, threads, access.num_bytes)
        observe(machine, item, cta, pattern, False)
        values = _read(machine.shared[cta], offsets, width, count)
    else:
        values = _global_read(machine, item, threads, addresses, width, count)
        machine.stats["bytes read"] += access.num_bytes * len(threads)
    for register, value in zip(access.registers, values, strict=True):
        put(machine, register, threads, value, access.kind)
    if not access.polls:
        return None
    if not shared:
        machine.watch(fiber, item, addresses.tobytes() + b"".join(v.tobytes() for v in values))
    return AGAIN


def source(
    machine: Machine, fiber: Fiber, item: Instruction, register, threads, access
) -> np.ndarray:
    """What a store's register holds, as bits, one element an active thread."""
    kind = "b" + str(8 * access.item_bytes)
    if not isinstance(register, Reg) and access.kind[0] == "f":
        value = view(machine, item, register, access.kind, fiber.lo, fiber.hi).view(NUMPY[kind])
    else:
        value = view(machine, item, register, kind, fiber.lo, fiber.hi)
    return np.broadcast_to(value, fiber.hi - fiber.lo)[threads - fiber.lo]


def store(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """st.global, st.shared: 9.7.9.11."""
    access = item.info
    shared = access.space != "global"
    threads, addresses = _addresses(
        machine, fiber, item, access.mem, "u32" if shared else "u64", access.num_bytes
    )
    if not len(threads):
        return
    machine.idle_polls = 0
    values = [source(machine, fiber, item, r, threads, access) for r in access.registers]
    if not shared:
        _global_write(machine, item, threads, addresses, values, access.item_bytes)
        if is_strong(item.mods):
            synchronise(machine, item, threads, addresses)
        machine.stats["bytes written"] += access.num_bytes * len(threads)
        return
    _shared_write(machine, fiber, item, threads, addresses, values)


def _shared_write(machine: Machine, fiber: Fiber, item: Instruction, threads, addresses, values):
    access = item.info
    cta, offsets = shared_cta(machine, fiber, item, access.space, addresses, access.num_bytes)
    pattern = pattern_of(machine, offsets, threads, access.num_bytes)
    words = machine.shared[cta].view(f"u{access.item_bytes}")
    first = offsets // access.item_bytes

    def same() -> bool:
        return all((words[first + k] == value).all() for k, value in enumerate(values))

    observe(machine, item, cta, pattern, True, same)
    for index, value in enumerate(values):
        words[first + index] = value
    if pattern.overlap is not None:
        check_overlap(machine, item, cta, pattern, same())


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


def synchronise(machine: Machine, item: Instruction, threads: np.ndarray, addresses) -> None:
    """A strong access to global memory may order its CTA after others, and others after it."""
    cta = machine.cta_numbers[int(threads[0]) // machine.block]
    machine.global_memory.order.synchronise(cta, addresses, item.mods)


def _check_read(machine: Machine, item: Instruction, threads, segment, offsets, num_bytes: int):
    """A CTA must not read what another one has stored with no order between."""
    unit = segment.item_bytes
    index = (offsets[:, None] + np.arange(0, num_bytes, unit)) // unit
    cta = machine.cta_numbers[int(threads[0]) // machine.block]
    if not machine.global_memory.may_read(segment, index.ravel(), cta):
        name = segment.name_near(segment.start + int(offsets[0]))
        machine.report("global-race", item, f"CTA {cta} reads elements of argument {name} that "
                       "another CTA of this launch has stored, with no order between")  # fmt: skip


def _global_read(
    machine: Machine, item: Instruction, threads, addresses: np.ndarray, width: int, count: int
):
    if is_strong(item.mods):
        synchronise(machine, item, threads, addresses)
    values = [np.full(len(addresses), 0xFFFFFFFFFFFFFFFF, np.uint64).astype(f"u{width}")
              for _ in range(count)]  # fmt: skip
    for segment, mask in _inside(machine, item, addresses, width * count):
        offsets = addresses[mask] - segment.start
        if machine.races and segment.owners is not None:
            _check_read(machine, item, threads[mask], segment, offsets, width * count)
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
        if machine.races and not is_strong(item.mods):
            _claim(machine, item, threads[mask], segment, offsets, width * len(values))


def _claim(machine: Machine, item: Instruction, threads, segment, offsets, num_bytes: int) -> None:
    """Two CTAs of a launch must not store one element."""
    unit = segment.item_bytes
    index = (offsets[:, None] + np.arange(0, num_bytes, unit)) // unit
    cta = machine.cta_numbers[int(threads[0]) // machine.block]
    if not machine.global_memory.claim(segment, index.ravel(), cta):
        name = segment.name_near(segment.start + int(offsets[0]))
        machine.report("global-race", item, f"CTA {cta} stores elements of argument {name} that "
                       "another CTA of this launch has stored")  # fmt: skip


_ORDERS = "{.weak,.volatile,.relaxed,.acquire}{.cta,.cluster,.gpu,.sys}"
_ST_ORDERS = "{.weak,.volatile,.relaxed,.release}{.cta,.cluster,.gpu,.sys}"
_L1 = ("{.L1::evict_normal,.L1::evict_unchanged,.L1::evict_first,.L1::evict_last,"
       ".L1::no_allocate}")  # fmt: skip
_L2 = "{.L2::evict_normal,.L2::evict_first,.L2::evict_last}{.L2::64B,.L2::128B,.L2::256B}"
_TYPES = "(" + ",".join(f".{kind}" for kind in sorted(TYPE_BYTES)) + ")"
_SHARED = "(.shared,.shared::cta,.shared::cluster)"
TABLE = (
    Row(f"ld{_ORDERS}.global{{.ca,.cg,.cs,.lu,.cv}}{{.nc}}{_L1}{_L2}{{.v2,.v4,.v8}}{_TYPES}",
        "dvw m", load, "9.7.9.8", decode=_decode),
    Row(f"ld{_ORDERS}{_SHARED}{{.v2,.v4}}{_TYPES}", "dvw m", load, "9.7.9.8", decode=_decode),
    Row(f"st{_ST_ORDERS}.global{{.wb,.cg,.cs,.wt}}{_L1}{_L2}{{.v2,.v4,.v8}}{_TYPES}", "m rvw",
        store, "9.7.9.11", decode=_decode),
    Row(f"st{_ST_ORDERS}{_SHARED}{{.v2,.v4}}{_TYPES}", "m rvw", store, "9.7.9.11", decode=_decode),
)  # fmt: skip
