"""Bulk asynchronous copies to shared memory, tensor (TMA) and flat. PTX ISA 9.7.9.25, 9.7.9.27."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.alu_types import PARAM_WINDOW
from tilecat.sim.fibers import Fiber
from tilecat.sim.global_memory import EncodedMap, Segment
from tilecat.sim.mbarrier import check_there, find
from tilecat.sim.parse import Imm, Instruction, Mem, Vec
from tilecat.sim.program import refuse
from tilecat.sim.report import OFFSET_MASK, RANK_SHIFT
from tilecat.sim.table import Row
from tilecat.sim.tensormap import built_map

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

# Swizzle: bits of the 16-byte chunk number XORed with address bits from bit 7 on; the pattern
# repeats after 8 rows of 128, 4 of 128, 2 of 128 bytes. PTX ISA 5.5.7.
_SWIZZLE_MASK = {0: 0, 32: 1, 64: 3, 128: 7}
SWIZZLE_ALIGN = {0: 128, 32: 256, 64: 512, 128: 1024}


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


# ---- loads
@dataclass
class Load:
    """One bulk load: who issued it, what it knew, where it goes and what it completes on."""

    item: Instruction
    thread: int
    ctas: list[tuple[int, int]]  # destination, and whose mbarrier it completes on
    chunks: np.ndarray
    chunk_set: slice | np.ndarray
    fetch: object
    barrier_offset: int
    num_bytes: int
    snapshot: np.ndarray

    def run(self, machine: Machine) -> None:
        """Write shared memory and complete bytes on the mbarrier of every destination."""
        data, item = self.fetch(), self.item
        for cta, owner in self.ctas:
            key = (owner, self.barrier_offset)
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
                barrier.current.values[0, machine.clocks.start(self.thread // machine.block)] = 1
            machine.chunks[cta][self.chunks] = data
            barrier.expect(machine, item, -self.num_bytes)
            barrier.advance(machine)
        machine.stats["bytes loaded"] += self.num_bytes


def map_of(machine: Machine, item: Instruction, operand: Mem, thread: int) -> EncodedMap:
    """The tensor map of `[map, {c0, ...}]`."""
    address = machine.address(item, Mem(operand.base, operand.offset), thread, "u64")
    kept: EncodedMap | None = machine.maps.get(address - PARAM_WINDOW)
    return kept or built_map(machine, item, address, thread)


def read_map(machine: Machine, item: Instruction, operand: Mem, thread: int):
    """The tensor map and coordinates of `[map, {c0, ...}]`."""
    found = map_of(machine, item, operand, thread)
    if not operand.extra:
        return found, ()
    coords = tuple(machine.value(item, c, thread, "s32") for c in operand.extra[0].items)
    if len(coords) != found.rank:
        machine.fault("bounds", item, f"{len(coords)} coordinates for tensor map "
                      f"{found.name} of rank {found.rank}")  # fmt: skip
    check_column(machine, item, found, coords[0])
    return found, found.item_coords(coords)


def check_column(machine: Machine, item: Instruction, encoded: EncodedMap, column: int) -> None:
    """A box begins at a multiple of 16 bytes: measured, tests/gpu/test_launch.py."""
    if column * encoded.item_bytes % (16 * encoded.pack):
        machine.fault("align", item, f"tensor map {encoded.name}: the innermost coordinate "
                      f"{column} is no multiple of 16 bytes")  # fmt: skip


def _destinations(machine: Machine, item: Instruction, thread: int, address: int) -> list[int]:
    if not _is_multicast(item):
        return [address >> RANK_SHIFT]
    if "multicast::cluster::all" in item.mods:
        return list(range(machine.ctas))
    mask = machine.value(item, item.args[item.info["mask"]], thread, item.info["mask_kind"])
    if mask >> machine.ctas or not mask:
        machine.fault("bounds", item, f"multicast mask {mask:#x} for a cluster of {machine.ctas}")
    return [cta for cta in range(machine.ctas) if mask >> cta & 1]


def _is_multicast(item: Instruction) -> bool:
    return any(mod.startswith("multicast::cluster") for mod in item.mods)


def _owners(machine: Machine, item: Instruction, ctas: list[int], barrier: int) -> list[int]:
    """Whose mbarrier each destination completes on: its own. 9.7.9.27.1.2.

    With .cta_group::2 that of its pair whose rank is even or odd as the given mbarrier's is.
    """
    rank = barrier >> RANK_SHIFT
    pairs = "cta_group::2" in item.mods
    owners = [cta & ~1 | rank & 1 for cta in ctas] if pairs else ctas
    if not _is_multicast(item) and owners != [rank]:
        machine.fault("bounds", item, "the mbarrier lies in another CTA than the destination")
    return owners


def issue_load(
    machine: Machine, item: Instruction, thread: int, dst: int, barrier: int, tile: tuple,
    fetch: object, num_bytes: int,
) -> None:  # fmt: skip
    """Start what `fetch` brings, completing on an mbarrier of every destination."""
    ctas = _destinations(machine, item, thread, dst)
    mine = thread // machine.block
    remote = _is_multicast(item) or "shared::cluster" in item.mods and machine.ctas > 1
    found = find(machine, item, barrier, thread, remote=remote, by_async=True)
    space = next(mod for mod in item.mods if mod.startswith("shared"))  # the destination's
    if space == "shared::cta" and dst >> RANK_SHIFT != mine:
        machine.fault("bounds", item, f"shared::cta destination {dst:#x} in another CTA")
    owners = _owners(machine, item, ctas, barrier)
    found.issued = max(found.issued, found.phase + 1)
    found.issued_pc = item.pc
    warp = thread // 32
    for cta in ctas:
        if cta != mine:
            check_there(machine, item, cta, warp)
    load = Load(item, thread, list(zip(ctas, owners, strict=True)), *tile, fetch,
                barrier & OFFSET_MASK, num_bytes,
                machine.clocks.snapshot(warp, warp + 1))  # fmt: skip
    machine.clocks.tick(warp, warp + 1)
    machine.start(partial(load.run, machine))


def _tensor_load(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """cp.async.bulk.tensor global to shared: 9.7.9.27.1.2."""
    for thread in machine.active(fiber, item):
        encoded, coords = read_map(machine, item, item.args[1], thread)
        dst = machine.address(item, item.args[0], thread)
        offset = machine.checked_offset(item, dst, encoded.num_bytes)
        align = SWIZZLE_ALIGN[encoded.swizzle]
        if offset % align:
            where = machine.reporter.shared(dst >> RANK_SHIFT, offset)
            machine.report("align", item, f"destination {where} of a {encoded.swizzle}-byte "
                           f"swizzle is not {align}-byte aligned")  # fmt: skip
        barrier = machine.address(item, item.args[2], thread)
        tile = tile_chunks(machine, offset, encoded.rows, encoded.row_bytes, encoded.swizzle)
        fetch = partial(encoded.load, coords)
        issue_load(machine, item, thread, dst, barrier, tile, fetch, encoded.counted_bytes)


def flat_side(machine: Machine, item: Instruction, thread: int, shared: Mem, size: object):
    """Offset and size of a flat copy's shared side, aligned to 16 bytes."""
    address = machine.address(item, shared, thread)
    num_bytes = machine.value(item, size, thread)
    if num_bytes % 16 or num_bytes == 0:
        machine.fault("align", item, f"size a multiple of 16 bytes, got {num_bytes}")
    offset = machine.checked_offset(item, address, num_bytes)
    if offset % 16:
        machine.fault("align", item, f"shared address {address:#x} is not 16-byte aligned")
    return address, offset, num_bytes


def global_range(machine: Machine, item: Instruction, address: int, num_bytes: int) -> Segment:
    """The segment of a flat copy's global side, aligned to 16 bytes."""
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
        dst, offset, num_bytes = flat_side(machine, item, thread, item.args[0], item.args[2])
        source = machine.address(item, item.args[1], thread, "u64")
        segment = global_range(machine, item, source, num_bytes)
        start = source - segment.start
        barrier = machine.address(item, item.args[3], thread)
        tile = tile_chunks(machine, offset, 1, num_bytes, 0)
        fetch = partial(_copy_bytes, segment.data[start : start + num_bytes])
        issue_load(machine, item, thread, dst, barrier, tile, fetch, num_bytes)


def _copy_bytes(data: np.ndarray) -> np.ndarray:
    return data.copy().view("c16")


def _push(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """cp.async.bulk shared to another CTA's shared memory: 9.7.9.25.4.1."""
    for thread in machine.active(fiber, item):
        dst, offset, num_bytes = flat_side(machine, item, thread, item.args[0], item.args[2])
        source, start, _ = flat_side(machine, item, thread, item.args[1], item.args[2])
        mine = thread // machine.block
        if source >> RANK_SHIFT != mine:
            machine.fault("bounds", item, f"shared::cta source {source:#x} in another CTA")
        barrier = machine.address(item, item.args[3], thread)
        tile = tile_chunks(machine, offset, 1, num_bytes, 0)
        from_set = tile_chunks(machine, start, 1, num_bytes, 0)[1]
        warp = thread // 32
        found = find(machine, item, barrier, thread, remote=True, by_async=True)
        agent = found.loads_agent(machine)
        machine.pushes.setdefault(mine, []).append((agent, found.phase + 1, item.pc))
        snapshot = machine.clocks.snapshot(warp, warp + 1)
        fetch = partial(_read_push, machine, mine, from_set, agent, barrier, snapshot, item.pc)
        issue_load(machine, item, thread, dst, barrier, tile, fetch, num_bytes)


def _read_push(machine: Machine, cta: int, chunks, agent: int, barrier: int, snapshot, pc: int):
    if machine.races:
        phase = machine.mbarriers[(barrier >> RANK_SHIFT, barrier & OFFSET_MASK)].phase
        machine.shadows[cta].async_read(chunks, agent, phase + 1, snapshot, pc)
    return machine.chunks[cta][chunks].copy()


def _prefetch(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """Prefetches change no value: 9.7.9.15, 9.7.9.25.4.3, 9.7.9.27.1.4. Maps are checked."""
    if "tensormap" in item.mods or "tensor" in item.mods:
        for thread in machine.active(fiber, item):
            read_map(machine, item, item.args[0], thread)


def decode_load(item: Instruction) -> dict:
    """Positions of the optional multicast mask; a cache policy may follow it."""
    count = 3 if isinstance(item.args[2], Mem) else 4
    multicast, hint = _is_multicast(item), "L2::cache_hint" in item.mods
    if len(item.args) != count + multicast + hint:
        raise refuse(item, "operands do not fit the modifiers")
    if "tensor" in item.mods and (len(item.args[1].extra) != 1 or
                                  not isinstance(item.args[1].extra[0], Vec)):  # fmt: skip
        raise refuse(item, "[map, {coordinates}] is wanted")
    coords = 5 if "tile::gather4" in item.mods else item.mods[4][0]
    if "tensor" in item.mods and len(item.args[1].extra[0].items) != int(coords):
        raise refuse(item, "as many coordinates as dimensions are wanted")
    wide = multicast and isinstance(item.args[count], Imm) or (
        "multicast::cluster::32b" in item.mods
    )
    return {"mask": count, "mask_kind": "u32" if wide else "u16"}


DIMS = "(.1d,.2d,.3d,.4d,.5d)"
HINT = "{.L2::cache_hint}"
_BYTES = ".mbarrier::complete_tx::bytes"
_PAIR = f"cp.async.bulk.tensor{DIMS}.shared::cluster.global{{.tile}}{_BYTES}"
_TO_SHARED = "(.shared::cluster,.shared::cta).global"
TABLE = (
    Row(f"cp.async.bulk.tensor{DIMS}(.shared::cluster,.shared::cta).global{{.tile}}{_BYTES}"
        f"{{.multicast::cluster}}{HINT}", "m m m r? r?", _tensor_load, "9.7.9.27.1.2",
        decode=decode_load),
    Row(f"{_PAIR}{{.multicast::cluster,.multicast::cluster::16b}}(.cta_group::1,.cta_group::2)"
        f"{HINT}", "m m m r? r?", _tensor_load, "9.7.9.27.1.2", decode=decode_load,
        needs="tcgen05"),
    Row(f"{_PAIR}.multicast::cluster::32b{{.cta_group::1,.cta_group::2}}{HINT}", "m m m r r?",
        _tensor_load, "9.7.9.27.1.2", decode=decode_load, needs="mask-32b"),
    Row(f"cp.async.bulk.shared::cluster.global{_BYTES}.multicast::cluster::32b{HINT}",
        "m m r m r r?", _flat_load, "9.7.9.25.4.1", decode=decode_load, needs="mask-32b"),
    Row(f"cp.async.bulk{_TO_SHARED}{_BYTES}{{.multicast::cluster}}{HINT}",
        "m m r m r? r?", _flat_load, "9.7.9.25.4.1", decode=decode_load),
    Row(f"cp.async.bulk.shared::cluster.shared::cta{_BYTES}", "m m r m", _push, "9.7.9.25.4.1"),
    Row(f"cp.async.bulk.prefetch.tensor{DIMS}.L2.global{{.tile}}{HINT}", "m r?", _prefetch,
        "9.7.9.27.1.4"),
    Row(f"cp.async.bulk.prefetch.L2.global{HINT}", "m r r?", _prefetch, "9.7.9.25.4.3"),
    Row("prefetch{.param}.tensormap", "m", _prefetch, "9.7.9.15"),
)  # fmt: skip
