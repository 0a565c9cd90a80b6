"""tcgen05.cp: shared memory to tensor memory. PTX ISA 9.4, 9.7.17.9.2.

Not implemented, as the manual gives them as figures only: the lanes of .4x256b, decompression of
4 and 6 bits, and tcgen05.shift.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.fibers import WARP, Fiber
from tilecat.sim.operands import check_tile
from tilecat.sim.parse import Instruction
from tilecat.sim.table import Row
from tilecat.sim.tensor_core import Issue, issue
from tilecat.sim.tensor_memory import LANES, Operation, check_live, names, region, write
from tilecat.sim.tensor_operands import Operand, operand

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

# Rows of shared memory by lanes of tensor memory: 9.7.17.9.2. A warp is 32 lanes.
_HALVES = {"warpx2::02_13": (0, 0, 1, 1), "warpx2::01_23": (0, 1, 0, 1)}


@dataclass
class Copy:
    """One copy in the queue."""

    issue: Issue
    column: int
    source: Operand
    rows: np.ndarray

    def run(self, machine: Machine) -> None:
        """Do it, in every CTA of the group."""
        issued, item = self.issue, self.issue.item
        number = machine.tensor_operations.add(
            Operation(issued.agent, issued.time, item.pc, "cp", issued.core,
                      warp=issued.thread // WARP, clock=issued.clock)  # fmt: skip
        )
        for cta in issued.ctas:
            memory = machine.tensor_memory[cta]
            if machine.races:
                machine.shadows[cta].async_read(
                    np.unique(self.source.chunks), issued.agent, issued.time, issued.snapshot,
                    item.pc,
                )  # fmt: skip
            data = machine.chunks[cta][self.source.chunks][..., None].view(np.uint32)
            words = data.reshape(len(data), -1)[self.rows]
            columns = slice(self.column, self.column + words.shape[1])
            check_live(machine, item, memory, self.column, words.shape[1], "tcgen05.cp")
            area = region(0, LANES, self.column, words.shape[1])
            write(machine, memory, area, number, issued.known)
            memory.words[:, columns] = words
            memory.written[:, columns] = True


def _rows(item: Instruction) -> np.ndarray:
    """Which row of the source every lane gets."""
    lane = np.arange(LANES)
    for multicast, halves in _HALVES.items():
        if multicast in item.mods:
            return lane % 32 + 32 * np.array(halves)[lane // 32]
    return lane % item.info[0]


def _copy(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """One thread issues it."""
    rows, num_bytes = item.info
    for thread in machine.active(fiber, item):
        stream, issued = issue(machine, item, thread)
        lane, column = names(machine, item, machine.address(item, item.args[0], thread))
        if lane:
            machine.fault("tcgen05", item, f"tcgen05.cp begins at lane 0, got lane {lane}")
        bits = machine.value(item, item.args[1], thread, "u64")
        source = operand(machine, item, bits, "tcgen05.cp", rows=rows, k_bytes=num_bytes)
        check_tile(machine, item, source, "tcgen05.cp: the matrix descriptor")
        stream.core.queue.append(Copy(issued, column, source, _rows(item)))
        machine.stats[f"tcgen05.cp {item.mods[3]}"] += 1


def _decode(item: Instruction) -> tuple[int, int]:
    """Rows, and bytes of a row."""
    rows, bits = item.mods[3].rstrip("b").split("x")
    return int(rows), int(bits) // 8


_CP = "tcgen05.cp(.cta_group::1,.cta_group::2)"
TABLE = (
    Row(f"{_CP}(.128x256b,.128x128b)", "m r", _copy, "9.7.17.9.2", decode=_decode,
        needs="tcgen05"),
    Row(f"{_CP}.64x128b(.warpx2::02_13,.warpx2::01_23)", "m r", _copy, "9.7.17.9.2",
        decode=_decode, needs="tcgen05"),
    Row(f"{_CP}.32x128b.warpx4", "m r", _copy, "9.7.17.9.2", decode=_decode, needs="tcgen05"),
)  # fmt: skip
