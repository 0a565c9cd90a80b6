"""Four rows of a matrix by TMA: .tile::gather4 and .tile::scatter4. PTX ISA 5.5.3.4, 9.7.9.27."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.bulk import (
    HINT,
    SWIZZLE_ALIGN,
    check_column,
    decode_load,
    issue_load,
    map_of,
    tile_chunks,
)
from tilecat.sim.bulk_stores import check_end, decode_store, issue_store, write_box
from tilecat.sim.fibers import Fiber
from tilecat.sim.global_memory import EncodedMap
from tilecat.sim.parse import Instruction, Mem, Vec
from tilecat.sim.program import refuse
from tilecat.sim.report import RANK_SHIFT
from tilecat.sim.table import Row

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

_ROWS = 4


def _read(machine: Machine, item: Instruction, operand: Mem, thread: int):
    """The map and the places of its boxes of one row: `[map, {column, row, row, row, row}]`."""
    found = map_of(machine, item, operand, thread)
    if found.rank != 2 or found.box[1] != 1:
        machine.fault("bounds", item, f"tensor map {found.name}: rows are those of a matrix, in "
                      f"boxes of one row, got rank {found.rank}, box {found.box}")  # fmt: skip
    if found.swizzle not in (0, found.row_bytes):
        raise refuse(item, "an inner box narrower than the swizzle is not implemented")
    column, *rows = (machine.value(item, c, thread, "s32") for c in operand.extra[0].items)
    check_column(machine, item, found, column)
    return found, [found.item_coords((column, row)) for row in rows]


def _tile(machine: Machine, item: Instruction, encoded: EncodedMap, address: int, offset: int):
    """Chunks of the four rows in shared memory.

    Swizzles go by address bits, so that four rows of 128 bytes may be the second half of eight.
    """
    align = min(SWIZZLE_ALIGN[encoded.swizzle], _ROWS * encoded.row_bytes)
    if offset % align:
        where = machine.reporter.shared(address >> RANK_SHIFT, offset)
        machine.report("align", item, f"{where} of a {encoded.swizzle}-byte swizzle is not "
                       f"{align}-byte aligned")  # fmt: skip
    return tile_chunks(machine, offset, _ROWS, encoded.row_bytes, encoded.swizzle)


def _fetch(encoded: EncodedMap, places: list) -> np.ndarray:
    return np.concatenate([encoded.load(place) for place in places])


def _gather(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """cp.async.bulk.tensor with .tile::gather4: 9.7.9.27.1.2."""
    for thread in machine.active(fiber, item):
        encoded, places = _read(machine, item, item.args[1], thread)
        dst = machine.address(item, item.args[0], thread)
        offset = machine.checked_offset(item, dst, _ROWS * encoded.num_bytes)
        tile = _tile(machine, item, encoded, dst, offset)
        barrier = machine.address(item, item.args[2], thread)
        fetch = partial(_fetch, encoded, places)
        issue_load(machine, item, thread, dst, barrier, tile, fetch,
                   _ROWS * encoded.counted_bytes)  # fmt: skip


def _write(machine: Machine, encoded: EncodedMap, clipped: list, thread: int, pc: int, data):
    for inside, row in zip(clipped, np.split(data, _ROWS), strict=True):
        write_box(machine, encoded, inside, thread, pc, None, row)


def _scatter(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """cp.async.bulk.tensor with .tile::scatter4: 9.7.9.27.1.2. The rows are read as a whole."""
    for thread in machine.active(fiber, item):
        encoded, places = _read(machine, item, item.args[0], thread)
        if encoded.padded or min(min(place) for place in places) < 0:
            machine.fault("bounds", item, f"tensor map {encoded.name}: {encoded.dtype} can only be "
                          "loaded, and stores begin at no negative coordinate")  # fmt: skip
        address = machine.address(item, item.args[1], thread)
        offset = machine.own_offset(item, address, thread, _ROWS * encoded.num_bytes)
        chunks, chunk_set = _tile(machine, item, encoded, address, offset)
        clipped = [encoded.clip(place) for place in places]
        for inside in clipped:
            check_end(machine, item, encoded, inside)
        write = partial(_write, machine, encoded, clipped, thread, item.pc)
        issue_store(machine, item, thread, chunks, chunk_set, write)


def _decode_scatter(item: Instruction) -> dict:
    found, extra = decode_store(item), item.args[0].extra[0]
    if not isinstance(extra, Vec) or len(extra.items) != 1 + _ROWS:
        raise refuse(item, "[map, {column, four rows}] is wanted")
    return found


_LOAD = "cp.async.bulk.tensor.2d"
_BYTES = ".global.tile::gather4.mbarrier::complete_tx::bytes"
_TO_MANY = f"{_LOAD}.shared::cluster{_BYTES}"
TABLE = (
    Row(f"{_LOAD}.shared::cta{_BYTES}{HINT}", "m m m r?", _gather, "9.7.9.27.1.2",
        decode=decode_load, needs="since-100"),
    Row(f"{_TO_MANY}{{.multicast::cluster,.multicast::cluster::16b}}{{.cta_group::1,.cta_group::2}}"
        f"{HINT}", "m m m r? r?", _gather, "9.7.9.27.1.2", decode=decode_load, needs="tcgen05"),
    Row(f"{_LOAD}.global.shared::cta.tile::scatter4.bulk_group{HINT}", "m m r?", _scatter,
        "9.7.9.27.1.2", decode=_decode_scatter, needs="tcgen05"),
)  # fmt: skip
