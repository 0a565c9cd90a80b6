"""Bulk asynchronous stores and reductions to global memory, and their groups.

PTX ISA 9.7.9.25, 9.7.9.27.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.bulk import (
    DIMS,
    HINT,
    SWIZZLE_ALIGN,
    flat_side,
    global_range,
    read_map,
    tile_chunks,
)
from tilecat.sim.fibers import Fiber
from tilecat.sim.global_memory import EncodedMap, Segment
from tilecat.sim.parse import Instruction
from tilecat.sim.program import refuse
from tilecat.sim.report import RANK_SHIFT
from tilecat.sim.table import Row
from tilecat.sim.tensor_elements import REDUCTIONS, typed

if TYPE_CHECKING:
    from tilecat.sim.core import Machine


@dataclass
class BulkGroups:
    """Bulk groups of one thread: open stores, committed groups, how many are waited for."""

    agent: int
    pc: int
    open: list[Store] = field(default_factory=list)
    groups: list[list[Store]] = field(default_factory=list)
    waited: int = 0


@dataclass
class Store:
    """One bulk store or reduction: what it reads and how it is done."""

    cta: int
    chunks: np.ndarray
    chunk_set: slice | np.ndarray
    write: object
    snapshot: np.ndarray
    pc: int
    agent: int
    time: int
    done: bool = False

    def run(self, machine: Machine) -> None:
        """Do it, once."""
        if self.done:
            return
        self.done = True
        if machine.races:
            shadow = machine.shadows[self.cta]
            shadow.async_read(self.chunk_set, self.agent, self.time, self.snapshot, self.pc)
        self.write(machine.chunks[self.cta][self.chunks])


def reset(machine: Machine) -> None:
    """Start of a cluster."""
    machine.bulk_groups = {}


# ---- stores and reductions
def _groups(machine: Machine, thread: int, item: Instruction) -> BulkGroups:
    groups = machine.bulk_groups.get(thread)
    if groups is None:
        name = machine.reporter.threads(thread, thread)
        agent = machine.clocks.agent(f"bulk stores of {name}")
        groups = machine.bulk_groups[thread] = BulkGroups(agent, item.pc)
    return groups


def issue_store(
    machine: Machine, item: Instruction, thread: int, chunks, chunk_set, write
) -> None:
    """Start a store of chunks of shared memory; `write` gets their data."""
    groups = _groups(machine, thread, item)
    warp, cta = thread // 32, thread // machine.block
    store = Store(cta, chunks, chunk_set, write, machine.clocks.snapshot(warp, warp + 1), item.pc,
                  groups.agent, len(groups.groups) + 1)  # fmt: skip
    if machine.races:
        shadow = machine.shadows[cta]
        shadow.will_read(shadow.chunk_cells(chunk_set, False), store.agent, store.time, item.pc)
    groups.open.append(store)
    groups.pc = item.pc
    machine.clocks.tick(warp, warp + 1)
    machine.start(partial(store.run, machine), wait_runs_it=True)


def _inside(encoded: EncodedMap, coords: tuple, chunks: np.ndarray, chunk_set):
    """The chunks of a box that lie inside the tensor, at least in part."""
    clipped = encoded.clip(coords)
    if clipped is None:
        return None, chunks[:0], chunks[:0]
    inner, outer = clipped
    shape = encoded.box[::-1]
    if all(s.stop - s.start == extent for s, extent in zip(inner, shape, strict=True)):
        return clipped, chunks, chunk_set
    per_row = encoded.row_bytes // 16
    grid = chunks.reshape(*shape[:-1], per_row)
    last = inner[-1]
    columns = slice(last.start * encoded.item_bytes // 16, -(-last.stop * encoded.item_bytes // 16))
    return clipped, chunks, grid[(*inner[:-1], columns)].ravel()


def check_end(machine: Machine, item: Instruction, encoded: EncodedMap, clipped) -> None:
    """An H200 writes whole 16 bytes of a box's row that meets the end: tests/gpu/test_launch.py."""
    extent = encoded.array.shape[-1]
    beyond = -extent * encoded.item_bytes % 16
    if beyond and clipped is not None and clipped[1][-1].stop == extent:
        machine.report("bounds", item, f"tensor map {encoded.name}: a store meets the end of the "
                       f"innermost axis, {extent * encoded.item_bytes} bytes, which is no multiple "
                       f"of 16: it also writes the {beyond} bytes behind it")  # fmt: skip


def write_box(machine, encoded, clipped, thread, pc, operation, data) -> None:
    """Put a box from shared memory into the tensor, or combine it with what is there."""
    if clipped is None:
        return
    inner, outer = clipped
    box = data.view(encoded.array.dtype).reshape(encoded.box[::-1])[inner]
    part = encoded.array[outer]
    if not part.flags.writeable:
        raise refuse(machine.program.instructions[pc], f"argument {encoded.name} is read-only")
    machine.stats["bytes stored"] += box.nbytes
    if operation is None:
        _claim(machine, encoded.name, part, thread, pc)
        part[...] = box
        return
    both = typed(part, encoded.dtype), typed(np.ascontiguousarray(box), encoded.dtype)
    both[0][...] = REDUCTIONS[operation](*both)


def _claim(machine: Machine, name: str, part: np.ndarray, thread: int, pc: int) -> None:
    if not machine.races:
        return
    cta = machine.cta_numbers[thread // machine.block]
    if not machine.global_memory.claim_view(part, cta):
        machine.report("global-race", pc, f"CTA {cta} stores elements of argument {name} that "
                       "another CTA of this launch has stored")  # fmt: skip


def _tensor_store(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """cp.async.bulk.tensor, cp.reduce.async.bulk.tensor to global: 9.7.9.27.1.2, 9.7.9.27.1.3."""
    operation = item.info["operation"]
    for thread in machine.active(fiber, item):
        encoded, coords = read_map(machine, item, item.args[0], thread)
        if encoded.padded:  # cuTensorMapEncodeTiled: 16U4_ALIGN16B is "Load only"
            machine.fault("tensormap", item, f"tensor map {encoded.name}: {encoded.dtype} can only "
                          "be loaded")  # fmt: skip
        if coords[0] < 0:  # measured: tests/gpu/test_launch.py
            machine.fault("bounds", item, f"tensor map {encoded.name}: a store begins at the "
                          f"negative innermost coordinate {coords[0]}")  # fmt: skip
        address = machine.address(item, item.args[1], thread)
        offset = machine.own_offset(item, address, thread, encoded.num_bytes)
        align = SWIZZLE_ALIGN[encoded.swizzle]
        if offset % align:
            where = machine.reporter.shared(address >> RANK_SHIFT, offset)
            machine.report("align", item, f"source {where} of a {encoded.swizzle}-byte swizzle is "
                           f"not {align}-byte aligned")  # fmt: skip
        chunks, chunk_set = tile_chunks(
            machine, offset, encoded.rows, encoded.row_bytes, encoded.swizzle
        )
        clipped, chunks, chunk_set = _inside(encoded, coords, chunks, chunk_set)
        check_end(machine, item, encoded, clipped)
        write = partial(write_box, machine, encoded, clipped, thread, item.pc, operation)
        issue_store(machine, item, thread, chunks, chunk_set, write)


def _flat_store(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """cp.async.bulk, cp.reduce.async.bulk shared to global: 9.7.9.25.4.1, 9.7.9.25.4.2."""
    for thread in machine.active(fiber, item):
        address, offset, num_bytes = flat_side(machine, item, thread, item.args[1], item.args[2])
        machine.own_offset(item, address, thread, num_bytes)
        target = machine.address(item, item.args[0], thread, "u64")
        segment = global_range(machine, item, target, num_bytes)
        chunks, chunk_set = tile_chunks(machine, offset, 1, num_bytes, 0)
        start = target - segment.start
        write = partial(_write_flat, machine, item, segment, start, thread)
        issue_store(machine, item, thread, chunks, chunk_set, write)


def _write_flat(
    machine: Machine, item: Instruction, segment: Segment, start: int, thread: int, data
):
    part = segment.data[start : start + data.nbytes]
    operation, kind = item.info["operation"], item.info["kind"]
    if not segment.writeable:
        raise refuse(item, f"argument {segment.name_near(segment.start + start)} is read-only")
    machine.stats["bytes stored"] += data.nbytes
    if operation is None:
        index = np.arange(start, start + data.nbytes, segment.item_bytes) // segment.item_bytes
        cta = machine.cta_numbers[thread // machine.block]
        if machine.races and not machine.global_memory.claim(segment, index, cta):
            name = segment.name_near(segment.start + start)
            machine.report("global-race", item, f"CTA {cta} stores elements of argument {name} "
                           "that another CTA of this launch has stored")  # fmt: skip
        part[...] = data.view(np.uint8)
        return
    old = typed(part, kind)
    old[...] = REDUCTIONS[operation](old, typed(data.view(np.uint8), kind))


# ---- groups
def _commit(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """cp.async.bulk.commit_group: 9.7.9.25.3.1."""
    for thread in machine.active(fiber, item) if machine.bulk_groups else ():
        groups = machine.bulk_groups.get(thread)
        if groups is not None:
            groups.groups.append(groups.open)
            groups.open = []


def _wait_group(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """cp.async.bulk.wait_group: 9.7.9.25.3.2."""
    for thread in machine.active(fiber, item) if machine.bulk_groups else ():
        groups = machine.bulk_groups.get(thread)
        if groups is None:
            continue
        upto = len(groups.groups) - item.args[0].value
        for group in groups.groups[groups.waited : max(upto, 0)]:
            for store in group:
                store.run(machine)
        groups.waited = max(groups.waited, upto)
        warp = thread // 32
        machine.clocks.learn(warp, warp + 1, groups.agent, groups.waited)


def check_exit(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """A CTA's shared memory must outlive the stores that read it."""
    for thread, groups in machine.bulk_groups.items():
        if fiber.lo <= thread < fiber.hi and (groups.open or groups.waited < len(groups.groups)):
            who = machine.reporter.threads(thread, thread)
            machine.report("exit", item, f"{who} exits while its bulk stores may still read shared "
                           "memory: no cp.async.bulk.wait_group covers it", groups.pc)  # fmt: skip


def decode_store(item: Instruction) -> dict:
    """What a store combines by, and its type."""
    hint = "L2::cache_hint" in item.mods
    tensor = "tensor" in item.mods
    if len(item.args) != (2 if tensor else 3) + hint:
        raise refuse(item, "operands do not fit the modifiers")
    if tensor and len(item.args[0].extra) != 1:
        raise refuse(item, "[map, {coordinates}] is wanted")
    operation = next((mod for mod in item.mods if mod in REDUCTIONS), None)
    return {"operation": operation, "kind": item.mods[-1]}


def _decode_wait(item: Instruction) -> None:
    if item.args[0].value < 0:
        raise refuse(item, "a count of at least 0 is wanted")


_OPS = "(.add,.min,.max,.and,.or,.xor)"
_REDUCE = f"cp.reduce.async.bulk.global.shared::cta.bulk_group{HINT}"
TABLE = (
    Row(f"cp.async.bulk.tensor{DIMS}.global.shared::cta{{.tile}}.bulk_group{HINT}", "m m r?",
        _tensor_store, "9.7.9.27.1.2", decode=decode_store),
    Row(f"cp.reduce.async.bulk.tensor{DIMS}.global.shared::cta{_OPS}{{.tile}}.bulk_group{HINT}",
        "m m r?", _tensor_store, "9.7.9.27.1.3", decode=decode_store),
    Row(f"cp.async.bulk.global.shared::cta.bulk_group{HINT}", "m m r r?", _flat_store,
        "9.7.9.25.4.1", decode=decode_store),
    Row(f"{_REDUCE}{_OPS}"
        "(.u32,.s32,.u64,.s64,.f32,.f64,.b32,.b64)", "m m r r?", _flat_store, "9.7.9.25.4.2",
        decode=decode_store),
    Row(f"{_REDUCE}(.add.noftz,.min,.max)(.f16,.bf16)",
        "m m r r?", _flat_store, "9.7.9.25.4.2", decode=decode_store),
    Row("cp.async.bulk.commit_group", "", _commit, "9.7.9.25.3.1"),
    Row("cp.async.bulk.wait_group{.read}", "i", _wait_group, "9.7.9.25.3.2", decode=_decode_wait),
)  # fmt: skip
