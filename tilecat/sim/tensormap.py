"""Tensor maps that a kernel builds itself: tensormap.replace, .cp_fenceproxy and their fence.

NVIDIA's 128 bytes are opaque (PTX ISA 5.5.8), so the machine has an encoding of its own: a kernel
starts from zeros, replaces fields in shared memory, copies the map to global memory and fences it.
Nothing but TMA looks inside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tilecat.errors import MachineError
from tilecat.sim.fibers import Fiber, whole_warps
from tilecat.sim.global_memory import EncodedMap, Segment, TensorMap
from tilecat.sim.parse import Imm, Instruction, Mem
from tilecat.sim.program import refuse
from tilecat.sim.table import NEXT, Row

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

MAP_BYTES = 128


@dataclass(frozen=True)
class Field:
    """A field of the machine's own encoding: first byte, bytes an entry, entries, PTX type."""

    start: int
    width: int
    entries: int
    kind: str


# Fields and types: PTX ISA 9.7.9.28 (tensormap.replace).
FIELDS = {
    "global_address": Field(0, 8, 1, "b64"), "elemtype": Field(8, 1, 1, "b32"),
    "rank": Field(9, 1, 1, "b32"), "interleave_layout": Field(10, 1, 1, "b32"),
    "swizzle_mode": Field(11, 1, 1, "b32"), "fill_mode": Field(12, 1, 1, "b32"),
    "swizzle_atomicity": Field(13, 1, 1, "b32"), "element_stride": Field(16, 1, 5, "b32"),
    "box_dim": Field(24, 2, 5, "b32"), "global_dim": Field(36, 4, 5, "b32"),
    "global_stride": Field(56, 8, 4, "b64"),
}  # fmt: skip
# Values: PTX ISA 9.7.9.28, table "Valid values of new_val": element types, swizzle modes.
ELEMENTS = {
    0: "u8", 1: "u16", 2: "u32", 3: "s32", 4: "u64", 5: "s64", 6: "f16", 7: "f32", 8: "f32",
    9: "f64", 10: "bf16", 11: "f32", 12: "f32", 13: "b4x16", 14: "b4x16_p64",
}  # fmt: skip
_ITEM_BYTES = {"u8": 1, "u16": 2, "f16": 2, "bf16": 2, "u64": 8, "s64": 8, "f64": 8, "b4x16": 1,
               "b4x16_p64": 1}  # fmt: skip
SWIZZLES = {0: 0, 1: 32, 2: 64, 3: 128}


@dataclass
class MapState:
    """Who copied a map to its place in global memory, and who has fenced it since."""

    warp: int
    time: int
    pc: int
    fences: list[tuple[int, int]] = field(default_factory=list)


def reset(machine: Machine) -> None:
    """Start of a cluster."""
    machine.map_states = {}


def put(data: np.ndarray, name: str, index: int, value: int) -> None:
    """Write one entry of a field into the 128 bytes."""
    place = FIELDS[name]
    start = place.start + index * place.width
    data[start : start + place.width] = np.array([value], f"u{place.width}").view(np.uint8)


def get(data: np.ndarray, name: str) -> list[int]:
    """All entries of a field."""
    place = FIELDS[name]
    stop = place.start + place.width * place.entries
    return data[place.start : stop].copy().view(f"u{place.width}").tolist()


# ---- tensormap.replace
def _decode_replace(item: Instruction) -> tuple[str, int]:
    name, kind = item.mods[3], item.mods[-1]
    place = FIELDS[name]
    if kind != place.kind or len(item.args) != (3 if place.entries > 1 else 2):
        raise refuse(item, f"{name} takes .{place.kind}, and an ordinal if it is one of several")
    if place.entries == 1:
        return name, 0
    ordinal = item.args[1]
    if not isinstance(ordinal, Imm) or not 0 <= ordinal.value < place.entries:
        raise refuse(item, f"an ordinal below {place.entries} is wanted")
    return name, ordinal.value


def _replace(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """tensormap.replace.tile: 9.7.9.28."""
    name, index = item.info
    place = FIELDS[name]
    for thread in machine.active(fiber, item):
        value = machine.value(item, item.args[-1], thread, "u64" if place.kind == "b64" else "u32")
        if value >> 8 * place.width:
            machine.fault("tensormap", item, f"{name} {value:#x} is out of range")
        data = _bytes(machine, item, item.args[0], thread)
        put(data, name, index, value)


def _bytes(machine: Machine, item: Instruction, operand: Mem, thread: int) -> np.ndarray:
    """The 128 bytes a thread is about to change, in shared or in global memory."""
    if "global" in item.mods:
        segment, start = _global(machine, item, machine.address(item, operand, thread, "u64"))
        return segment.data[start : start + MAP_BYTES]
    return _shared_bytes(machine, item, operand, thread, write=True)


def _shared_bytes(
    machine: Machine, item: Instruction, operand: Mem, thread: int, *, write: bool = False
) -> np.ndarray:
    address = machine.address(item, operand, thread)
    offset = machine.own_offset(item, address, thread, MAP_BYTES)
    if offset % MAP_BYTES:
        machine.fault("align", item, f"tensor map at {offset:#x} is not {MAP_BYTES}-byte aligned")
    cta = thread // machine.block
    if machine.races:
        shadow = machine.shadows[cta]
        cells = shadow.byte_cells(np.arange(offset, offset + MAP_BYTES))
        warps = np.full(len(cells), thread // 32)
        shadow.generic_read(cells, warps, item.pc)
        if write:
            shadow.generic_write(cells, warps, item.pc)
    return machine.shared[cta][offset : offset + MAP_BYTES]


def _global(machine: Machine, item: Instruction, address: int) -> tuple[Segment, int]:
    segment = machine.global_memory.find(address, address + MAP_BYTES)
    if segment is None:
        where = machine.global_memory.describe(address)
        machine.fault("bounds", item, f"{MAP_BYTES} bytes of a tensor map at {where}")
    if address % 64:
        machine.fault("align", item, f"tensor map at {address:#x} is not 64-byte aligned")
    return segment, address - segment.start


# ---- copies and fences
def _decode_copy(item: Instruction) -> None:
    if item.args[2].value != MAP_BYTES:
        raise refuse(item, f"a size of {MAP_BYTES} bytes is wanted")


def _copy(machine: Machine, fiber: Fiber, item: Instruction):
    """tensormap.cp_fenceproxy, once a warp: 9.7.13.8."""
    outcome = whole_warps(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    for warp in range(*fiber.warps):
        thread = warp * 32
        source = _shared_bytes(machine, item, item.args[1], thread)
        address = machine.address(item, item.args[0], thread, "u64")
        segment, start = _global(machine, item, address)
        if not segment.writeable:
            raise refuse(item, f"argument {segment.name_near(address)} is read-only")
        segment.data[start : start + MAP_BYTES] = source
        _claim(machine, item, segment, start, thread)
        time = int(machine.clocks.know[warp, 0, warp])
        machine.map_states[address] = MapState(warp, time, item.pc)
        machine.clocks.tick(warp, warp + 1)
    return NEXT


def _claim(machine: Machine, item: Instruction, segment: Segment, start: int, thread: int) -> None:
    unit = segment.item_bytes
    index = np.arange(start // unit, (start + MAP_BYTES) // unit)
    cta = machine.cta_numbers[thread // machine.block]
    if machine.races and not machine.global_memory.claim(segment, index, cta):
        machine.report("global-race", item, f"CTA {cta} stores a tensor map where another CTA of "
                       "this launch has stored")  # fmt: skip


def _fence(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """fence.proxy.tensormap::generic: writes before it reach TMA's reads of the map. 9.7.13.4."""
    if "release" in item.mods:
        return
    for thread in machine.active(fiber, item):
        state = machine.map_states.get(machine.address(item, item.args[0], thread, "u64"))
        warp = thread // 32
        know = machine.clocks.know[warp, 0]
        if state is not None and (not machine.races or know[state.warp] >= state.time):
            mark = (warp, int(know[warp]))
            if mark not in state.fences:
                state.fences.append(mark)
    machine.clocks.tick(*fiber.warps)


def _decode_fence(item: Instruction) -> None:
    acquires = "acquire" in item.mods
    if len(item.args) != (2 if acquires else 0):
        raise refuse(item, "an address and a size go with .acquire, nothing with .release")
    if acquires and item.args[1].value != MAP_BYTES:
        raise refuse(item, f"a size of {MAP_BYTES} bytes is wanted")


# ---- what TMA sees
def built_map(machine: Machine, item: Instruction, address: int, thread: int) -> EncodedMap:
    """The tensor map at a global address, checked for its fence."""
    state = machine.map_states.get(address)
    if state is None:
        where = machine.global_memory.describe(address)
        machine.fault("tensormap", item, f"no tensor map was copied to {where}")
    know = machine.clocks.know[thread // 32, 0]
    if machine.races and not any(know[warp] >= time for warp, time in state.fences):
        machine.report("fence", item, "a tensor map written by the kernel is used with no "
                       "fence.proxy.tensormap::generic.acquire in between", state.pc)  # fmt: skip
    segment, start = _global(machine, item, address)
    data = segment.data[start : start + MAP_BYTES]
    key = ("tensormap", data.tobytes())
    found = machine.cache.get(key)
    if found is None:
        try:
            found = machine.cache[key] = decode(machine, data)
        except MachineError as error:
            machine.fault("tensormap", item, str(error))
    return found


def decode(machine: Machine, data: np.ndarray) -> EncodedMap:
    """The map that 128 bytes describe.

    Raises:
        MachineError: a field outside what the driver would encode, or not implemented here.
    """
    one = {name: get(data, name)[0] for name, place in FIELDS.items() if place.entries == 1}
    rank = one["rank"] + 1
    if one["elemtype"] not in ELEMENTS or one["swizzle_mode"] not in SWIZZLES:
        raise MachineError(f"tensor map: element type {one['elemtype']} or swizzle mode "
                           f"{one['swizzle_mode']} not implemented")  # fmt: skip
    if one["interleave_layout"] or one["fill_mode"] or one["swizzle_atomicity"]:
        raise MachineError("tensor map: interleave, NaN fill and swizzle atomicity not implemented")
    if rank > 5 or get(data, "element_stride")[:rank] != [1] * rank:
        raise MachineError(f"tensor map: rank at most 5 and element strides 1, got rank {rank}")
    kind = ELEMENTS[one["elemtype"]]
    item_bytes = _ITEM_BYTES.get(kind, 4)
    extents = get(data, "global_dim")[:rank]
    if kind.startswith("b4"):  # two in a byte
        extents[0] //= 2
    strides = [item_bytes, *get(data, "global_stride")[: rank - 1]]
    name, array = _array(machine, one["global_address"], item_bytes, extents, strides)
    box = tuple(get(data, "box_dim")[:rank])
    source = TensorMap(array, box, SWIZZLES[one["swizzle_mode"]], kind)
    return EncodedMap(name, source, machine.global_memory)


def _array(machine: Machine, address: int, item_bytes: int, extents, strides):
    """Argument and strided view of global memory, axes outermost first."""
    if not all(extents) or address % 16:
        raise MachineError("tensor map: extents of at least 1 and an address that is a multiple "
                           f"of 16, got {extents}, {address:#x}")  # fmt: skip
    last = sum((n - 1) * stride for n, stride in zip(extents, strides, strict=True)) + item_bytes
    segment = machine.global_memory.find(address, address + last)
    if segment is None:
        where = machine.global_memory.describe(address)
        raise MachineError(f"tensor map: {last} bytes from {where} leave the allocation")
    start = address - segment.start
    flat = segment.data[start : start + last].view(f"u{item_bytes}")
    array = np.lib.stride_tricks.as_strided(flat, extents[::-1], strides[::-1])
    return segment.name_near(address), array


_FIELDS = "(" + ",".join(f".{name}" for name in FIELDS) + ")"
_SCOPE = "(.cta,.cluster,.gpu,.sys)"
_COPY = "tensormap.cp_fenceproxy.global.shared::cta"
TABLE = (
    Row(f"tensormap.replace.tile{_FIELDS}{{.global,.shared::cta}}.b1024(.b32,.b64)", "m r r?",
        _replace, "9.7.9.28", decode=_decode_replace),
    Row(f"{_COPY}.tensormap::generic.release{_SCOPE}.sync.aligned", "m m i", _copy, "9.7.13.8",
        aligned=True, decode=_decode_copy),
    Row(f"fence.proxy.tensormap::generic(.acquire,.release){_SCOPE}", "m? i?", _fence, "9.7.13.4",
        decode=_decode_fence),
)  # fmt: skip
