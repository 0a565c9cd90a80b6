"""Scales of tcgen05.mma in tensor memory. PTX ISA 9.4, 9.7.17.10.7.

A word of row r holds four scales of consecutive blocks of K: lane r % 32 of every quarter, column
r / 32. The index in the instruction descriptor names the first byte; what is over goes on in the
words of the next columns (the manual shows figures; so Triton has them for 3, 6 and 8 scales).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from tilecat.sim.parse import Instruction
from tilecat.sim.tensor_memory import LANES, Known, check_live, check_written, read, region

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

_QUARTERS, _QUARTER = 4, 32
_WORD = 4  # scales in a word

# The sign bit of ue4m3 is none: 8 bits of which 7 count.
_UE4M3 = np.arange(128, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
_UE8M0 = np.where(np.arange(256) == 255, np.nan, 2.0 ** (np.arange(256.0) - 127))


def fetch(
    machine: Machine, item: Instruction, cta: int, column: int, *, rows: int, count: int,
    index: int, kind: str, number: int, known: Known,
) -> np.ndarray:  # fmt: skip
    """Scales of an operand, (rows, count).

    Args:
        machine: the machine.
        item: the mma.
        cta: whose tensor memory.
        column: first column.
        rows: rows of A, or columns of B.
        count: scales a row.
        index: byte of the first.
        kind: ue8m0 or ue4m3.
        number: the operation that reads.
        known: what it knows.
    """
    memory = machine.tensor_memory[cta]
    width = -(-rows // _QUARTER)
    words = -(-(index + count) // _WORD)
    check_live(machine, item, memory, column, width * words, "scales")
    read(machine, memory, region(0, LANES, column, width * words), number, known)
    row, k = np.arange(rows)[:, None], index + np.arange(count)
    columns = column + row // _QUARTER + k // _WORD * width
    lanes = row % _QUARTER + 0 * k
    check_written(machine, item, memory, lanes, columns, "tcgen05.mma (its scales)")
    found = memory.words[lanes, columns] >> (8 * (k % _WORD)).astype(np.uint32) & np.uint32(0xFF)
    for quarter in range(1, _QUARTERS):
        other = memory.words[lanes + _QUARTER * quarter, columns]
        other = other >> (8 * (k % _WORD)).astype(np.uint32) & np.uint32(0xFF)
        if (other != found).any():
            machine.report("tcgen05", item, f"scales at column {column} of tensor memory of CTA "
                           f"{cta}: lanes {_QUARTER * quarter} on do not repeat lanes 0 to "
                           f"{_QUARTER - 1}")  # fmt: skip
            break
    if kind == "ue8m0":
        return _UE8M0[found]
    if (found > 127).any():
        machine.report("tcgen05", item, f"scales at column {column}: a ue4m3 has bit 7 set")
    return _UE4M3[found & 127]
