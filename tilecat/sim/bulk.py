"""Bulk asynchronous copies, tensor (TMA) and flat. PTX ISA 9.7.9.25, 9.7.9.27."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.alu_types import PARAM_WINDOW
from tilecat.sim.fibers import Fiber
from tilecat.sim.global_memory import EncodedMap, Segment
from tilecat.sim.mbarrier import check_alive, find
from tilecat.sim.parse import Imm, Instruction, Mem, Vec
from tilecat.sim.program import refuse
from tilecat.sim.report import OFFSET_MASK, RANK_SHIFT
from tilecat.sim.table import Row
from tilecat.sim.tensor_elements import REDUCTIONS, typed
from tilecat.sim.tensormap import built_map

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

# Swizzle: bits of the 16-byte chunk number XORed with address bits from bit 7 on; the pattern
# repeats after 8 rows of 128, 4 of 128, 2 of 128 bytes. PTX ISA 5.5.7.
_SWIZZLE_MASK = {0: 0, 32: 1, 64: 3, 128: 7}
_SWIZZLE_ALIGN = {0: 128, 32: 256, 64: 512, 128: 1024}


def swizzled(address: np.ndarray, swizzle_bytes: int) -> np.ndarray:
    """Where a byte of an unswizzled tile lies."""
    mask = _SWIZZLE_MASK[swizzle_bytes]
    return address ^ ((address >> 7 & mask) << 4) if mask else address


def as_slice(chunks: np.ndarray) -> slice | np.ndarray:
    """The same chunks as a slice if they are contiguous."""
    flat = np.unique(chunks)
    first, last = int(flat[0]), int(flat[-1])
    return slice(first, last + 1) if last - first + 1 == len(flat) else flat


def tile_chunks(machine: Machine, offset: int, rows: int, row_bytes: int, swizzle_bytes: int):
    """16-byte chunks of a box in shared memory: in the box's order, and as a set."""
    key = ("tile", offset, rows, row_bytes, swizzle_bytes)
    found = machine.cache.get(key)
    if found is None:
        start = offset + np.arange(rows)[:, None] * row_bytes
        places = swizzled(start + np.arange(row_bytes // 16) * 16, swizzle_bytes)
        chunks = (places >> 4).ravel()
        found = machine.cache[key] = (chunks, as_slice(chunks))
    return found


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


# ---- loads
@dataclass
class Load:
    """One bulk load: who issued it, what it knew, where it goes and what it completes on."""

    item: Instruction
    thread: int
    ctas: list[int]
    chunks: np.ndarray
    chunk_set: slice | np.ndarray
    fetch: object
    barrier_offset: int
    barrier_cta: int | None
    num_bytes: int
    snapshot: np.ndarray

    def run(self, machine: Machine) -> None:
        """Write shared memory and complete bytes on the mbarrier of every destination."""
        data, item = self.fetch(), self.item
        for cta in self.ctas:
            key = (cta if self.barrier_cta is None else self.barrier_cta, self.barrier_offset)
            barrier = machine.mbarriers.get(key)
            if barrier is None:
                name = machine.reporter.barrier(*key)
                machine.fault("mbarrier", item, f"a copy completes on {name}, "
                              "which is not initialised")  # fmt: skip
            if not machine.alive[cta]:
                machine.report(
                    "exit", item, f"a copy writes shared memory of CTA {cta}, which has exited"
                )
            agent, time = barrier.loads_agent(machine), barrier.phase + 1
            barrier.issued, barrier.issued_pc = max(barrier.issued, time), item.pc
            if machine.races:
                shadow = machine.shadows[cta]
                shadow.async_write(self.chunk_set, agent, time, self.snapshot, item.pc)
                barrier.current.values[:, agent] = time
            machine.chunks[cta][self.chunks] = data
            barrier.expect(machine, item, -self.num_bytes)
            barrier.advance(machine)
        machine.stats["bytes loaded"] += self.num_bytes


def _map(machine: Machine, item: Instruction, operand: Mem, thread: int):
    """The tensor map and coordinates of `[map, {c0, ...}]`."""
    address = machine.address(item, Mem(operand.base, operand.offset), thread, "u64")
    kept: EncodedMap | None = machine.maps.get(address - PARAM_WINDOW)
    found = kept or built_map(machine, item, address, thread)
    if not operand.extra:
        return found, ()
    coords = tuple(machine.value(item, c, thread, "s32") for c in operand.extra[0].items)
    if len(coords) != found.rank:
        machine.fault("bounds", item, f"{len(coords)} coordinates for tensor map "
                      f"{found.name} of rank {found.rank}")  # fmt: skip
    if found.swizzle and coords[0] * found.item_bytes % 16:  # measured: tests/gpu/test_launch.py
        machine.fault("align", item, f"tensor map {found.name} swizzles, and the innermost "
                      f"coordinate {coords[0]} is no multiple of 16 bytes")  # fmt: skip
    return found, coords


def _destinations(machine: Machine, item: Instruction, thread: int, address: int) -> list[int]:
    if "multicast::cluster" not in item.mods:
        return [address >> RANK_SHIFT]
    mask = machine.value(item, item.args[item.info["mask"]], thread, item.info["mask_kind"])
    if mask >> machine.ctas or not mask:
        machine.fault("bounds", item, f"multicast mask {mask:#x} for a cluster of {machine.ctas}")
    return [cta for cta in range(machine.ctas) if mask >> cta & 1]


def _issue_load(
    machine: Machine, item: Instruction, thread: int, dst: int, barrier: int, tile: tuple,
    fetch: object, num_bytes: int,
) -> None:  # fmt: skip
    multicast = "multicast::cluster" in item.mods
    ctas = _destinations(machine, item, thread, dst)
    mine = thread // machine.block
    remote = multicast or "shared::cluster" in item.mods and machine.ctas > 1
    found = find(machine, item, barrier, thread, remote=remote, by_async=True)
    space = next(mod for mod in item.mods if mod.startswith("shared"))  # the destination's
    if space == "shared::cta" and dst >> RANK_SHIFT != mine:
        machine.fault("bounds", item, f"shared::cta destination {dst:#x} in another CTA")
    if not multicast and barrier >> RANK_SHIFT != dst >> RANK_SHIFT:
        machine.fault("bounds", item, "the mbarrier lies in another CTA than the destination")
    found.issued = max(found.issued, found.phase + 1)
    found.issued_pc = item.pc
    warp = thread // 32
    for cta in ctas:
        if cta != mine:
            check_alive(machine, item, cta, warp)
    load = Load(item, thread, ctas, *tile, fetch, barrier & OFFSET_MASK,
                None if multicast else barrier >> RANK_SHIFT, num_bytes,
                machine.clocks.snapshot(warp, warp + 1))  # fmt: skip
    machine.clocks.tick(warp, warp + 1)
    machine.start(partial(load.run, machine))


def _tensor_load(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """cp.async.bulk.tensor global to shared: 9.7.9.27.1.2."""
    for thread in machine.active(fiber, item):
        encoded, coords = _map(machine, item, item.args[1], thread)
        dst = machine.address(item, item.args[0], thread)
        offset = machine.checked_offset(item, dst, encoded.num_bytes)
        align = _SWIZZLE_ALIGN[encoded.swizzle]
        if offset % align:
            where = machine.reporter.shared(dst >> RANK_SHIFT, offset)
            machine.report("align", item, f"destination {where} of a {encoded.swizzle}-byte "
                           f"swizzle is not {align}-byte aligned")  # fmt: skip
        barrier = machine.address(item, item.args[2], thread)
        tile = tile_chunks(machine, offset, encoded.rows, encoded.row_bytes, encoded.swizzle)
        fetch = partial(encoded.load, coords)
        _issue_load(machine, item, thread, dst, barrier, tile, fetch, encoded.num_bytes)


def _flat(machine: Machine, item: Instruction, thread: int, shared: Mem, size: object):
    """Offset and size of a flat copy's shared side, aligned to 16 bytes."""
    address = machine.address(item, shared, thread)
    num_bytes = machine.value(item, size, thread)
    if num_bytes % 16 or num_bytes == 0:
        machine.fault("align", item, f"size a multiple of 16 bytes, got {num_bytes}")
    offset = machine.checked_offset(item, address, num_bytes)
    if offset % 16:
        machine.fault("align", item, f"shared address {address:#x} is not 16-byte aligned")
    return address, offset, num_bytes


def _global_range(machine: Machine, item: Instruction, address: int, num_bytes: int) -> Segment:
    if address % 16:
        machine.fault("align", item, f"global address {address:#x} is not 16-byte aligned")
    segment = machine.global_memory.find(address, address + num_bytes)
    if segment is None:
        where = machine.global_memory.describe(address)
        machine.fault("bounds", item, f"{num_bytes} bytes from {where}")
    return segment


def _flat_load(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """cp.async.bulk global to shared: 9.7.9.25.4.1."""
    for thread in machine.active(fiber, item):
        dst, offset, num_bytes = _flat(machine, item, thread, item.args[0], item.args[2])
        source = machine.address(item, item.args[1], thread, "u64")
        segment = _global_range(machine, item, source, num_bytes)
        start = source - segment.start
        barrier = machine.address(item, item.args[3], thread)
        tile = tile_chunks(machine, offset, 1, num_bytes, 0)
        fetch = partial(_copy_bytes, segment.data[start : start + num_bytes])
        _issue_load(machine, item, thread, dst, barrier, tile, fetch, num_bytes)


def _copy_bytes(data: np.ndarray) -> np.ndarray:
    return data.copy().view("c16")


def _push(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """cp.async.bulk shared to another CTA's shared memory: 9.7.9.25.4.1."""
    for thread in machine.active(fiber, item):
        dst, offset, num_bytes = _flat(machine, item, thread, item.args[0], item.args[2])
        source, start, _ = _flat(machine, item, thread, item.args[1], item.args[2])
        mine = thread // machine.block
        if source >> RANK_SHIFT != mine:
            machine.fault("bounds", item, f"shared::cta source {source:#x} in another CTA")
        barrier = machine.address(item, item.args[3], thread)
        tile = tile_chunks(machine, offset, 1, num_bytes, 0)
        from_set = tile_chunks(machine, start, 1, num_bytes, 0)[1]
        warp = thread // 32
        agent = find(machine, item, barrier, thread, remote=True, by_async=True).loads_agent(
            machine
        )
        snapshot = machine.clocks.snapshot(warp, warp + 1)
        fetch = partial(_read_push, machine, mine, from_set, agent, barrier, snapshot, item.pc)
        _issue_load(machine, item, thread, dst, barrier, tile, fetch, num_bytes)


def _read_push(machine: Machine, cta: int, chunks, agent: int, barrier: int, snapshot, pc: int):
    if machine.races:
        phase = machine.mbarriers[(barrier >> RANK_SHIFT, barrier & OFFSET_MASK)].phase
        machine.shadows[cta].async_read(chunks, agent, phase + 1, snapshot, pc)
    return machine.chunks[cta][chunks].copy()


# ---- stores and reductions
def _groups(machine: Machine, thread: int, item: Instruction) -> BulkGroups:
    groups = machine.bulk_groups.get(thread)
    if groups is None:
        name = machine.reporter.threads(thread, thread)
        agent = machine.clocks.agent(f"bulk stores of {name}")
        groups = machine.bulk_groups[thread] = BulkGroups(agent, item.pc)
    return groups


def _issue_store(
    machine: Machine, item: Instruction, thread: int, chunks, chunk_set, write
) -> None:
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


def _write_box(machine, encoded, clipped, thread, pc, operation, data) -> None:
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
        encoded, coords = _map(machine, item, item.args[0], thread)
        address = machine.address(item, item.args[1], thread)
        offset = machine.own_offset(item, address, thread, encoded.num_bytes)
        align = _SWIZZLE_ALIGN[encoded.swizzle]
        if offset % align:
            where = machine.reporter.shared(address >> RANK_SHIFT, offset)
            machine.report("align", item, f"source {where} of a {encoded.swizzle}-byte swizzle is "
                           f"not {align}-byte aligned")  # fmt: skip
        chunks, chunk_set = tile_chunks(
            machine, offset, encoded.rows, encoded.row_bytes, encoded.swizzle
        )
        clipped, chunks, chunk_set = _inside(encoded, coords, chunks, chunk_set)
        write = partial(_write_box, machine, encoded, clipped, thread, item.pc, operation)
        _issue_store(machine, item, thread, chunks, chunk_set, write)


def _flat_store(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """cp.async.bulk, cp.reduce.async.bulk shared to global: 9.7.9.25.4.1, 9.7.9.25.4.2."""
    for thread in machine.active(fiber, item):
        address, offset, num_bytes = _flat(machine, item, thread, item.args[1], item.args[2])
        machine.own_offset(item, address, thread, num_bytes)
        target = machine.address(item, item.args[0], thread, "u64")
        segment = _global_range(machine, item, target, num_bytes)
        chunks, chunk_set = tile_chunks(machine, offset, 1, num_bytes, 0)
        start = target - segment.start
        write = partial(_write_flat, machine, item, segment, start, thread)
        _issue_store(machine, item, thread, chunks, chunk_set, write)


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


def _prefetch(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """Prefetches change no value: 9.7.9.15, 9.7.9.25.4.3, 9.7.9.27.1.4. Maps are checked."""
    if "tensormap" in item.mods or "tensor" in item.mods:
        for thread in machine.active(fiber, item):
            _map(machine, item, item.args[0], thread)


def check_exit(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """A CTA's shared memory must outlive the stores that read it."""
    for thread, groups in machine.bulk_groups.items():
        if fiber.lo <= thread < fiber.hi and (groups.open or groups.waited < len(groups.groups)):
            who = machine.reporter.threads(thread, thread)
            machine.report("exit", item, f"{who} exits while its bulk stores may still read shared "
                           "memory: no cp.async.bulk.wait_group covers it", groups.pc)  # fmt: skip


def _decode_load(item: Instruction) -> dict:
    """Positions of the optional multicast mask; a cache policy may follow it."""
    count = 3 if isinstance(item.args[2], Mem) else 4
    multicast, hint = "multicast::cluster" in item.mods, "L2::cache_hint" in item.mods
    if len(item.args) != count + multicast + hint:
        raise refuse(item, "operands do not fit the modifiers")
    if "tensor" in item.mods and (len(item.args[1].extra) != 1 or
                                  not isinstance(item.args[1].extra[0], Vec)):  # fmt: skip
        raise refuse(item, "[map, {coordinates}] is wanted")
    if "tensor" in item.mods and len(item.args[1].extra[0].items) != int(item.mods[4][0]):
        raise refuse(item, "as many coordinates as dimensions are wanted")
    constant_mask = multicast and isinstance(item.args[count], Imm)
    return {"mask": count, "mask_kind": "u32" if constant_mask else "u16"}


def _decode_store(item: Instruction) -> dict:
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


_DIMS = "(.1d,.2d,.3d,.4d,.5d)"
_BYTES = ".mbarrier::complete_tx::bytes"
_OPS = "(.add,.min,.max,.and,.or,.xor)"
_HINT = "{.L2::cache_hint}"
_REDUCE = f"cp.reduce.async.bulk.global.shared::cta.bulk_group{_HINT}"
_TO_SHARED = "(.shared::cluster,.shared::cta).global"
TABLE = (
    Row(f"cp.async.bulk.tensor{_DIMS}(.shared::cluster,.shared::cta).global{{.tile}}{_BYTES}"
        f"{{.multicast::cluster}}{_HINT}", "m m m r? r?", _tensor_load, "9.7.9.27.1.2",
        decode=_decode_load),
    Row(f"cp.async.bulk.tensor{_DIMS}.global.shared::cta{{.tile}}.bulk_group{_HINT}", "m m r?",
        _tensor_store, "9.7.9.27.1.2", decode=_decode_store),
    Row(f"cp.reduce.async.bulk.tensor{_DIMS}.global.shared::cta{_OPS}{{.tile}}.bulk_group{_HINT}",
        "m m r?", _tensor_store, "9.7.9.27.1.3", decode=_decode_store),
    Row(f"cp.async.bulk{_TO_SHARED}{_BYTES}{{.multicast::cluster}}{_HINT}",
        "m m r m r? r?", _flat_load, "9.7.9.25.4.1", decode=_decode_load),
    Row(f"cp.async.bulk.shared::cluster.shared::cta{_BYTES}", "m m r m", _push, "9.7.9.25.4.1"),
    Row(f"cp.async.bulk.global.shared::cta.bulk_group{_HINT}", "m m r r?", _flat_store,
        "9.7.9.25.4.1", decode=_decode_store),
    Row(f"{_REDUCE}{_OPS}"
        "(.u32,.s32,.u64,.s64,.f32,.f64,.b32,.b64)", "m m r r?", _flat_store, "9.7.9.25.4.2",
        decode=_decode_store),
    Row(f"{_REDUCE}(.add.noftz,.min,.max)(.f16,.bf16)",
        "m m r r?", _flat_store, "9.7.9.25.4.2", decode=_decode_store),
    Row("cp.async.bulk.commit_group", "", _commit, "9.7.9.25.3.1"),
    Row("cp.async.bulk.wait_group{.read}", "i", _wait_group, "9.7.9.25.3.2", decode=_decode_wait),
    Row(f"cp.async.bulk.prefetch.tensor{_DIMS}.L2.global{{.tile}}{_HINT}", "m r?", _prefetch,
        "9.7.9.27.1.4"),
    Row(f"cp.async.bulk.prefetch.L2.global{_HINT}", "m r r?", _prefetch, "9.7.9.25.4.3"),
    Row("prefetch{.param}.tensormap", "m", _prefetch, "9.7.9.15"),
)  # fmt: skip
