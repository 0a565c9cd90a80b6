"""States at every 512th token, kept by one scan for another that meets them in reversed time.

The gradient of a gate is the inner product of the state before its token and of that state's
gradient. Two scans of a backward hold the one and the other: the first stores its state where a
block of tokens begins, the second multiplies its own by that (`gate_gradients` does the rest).

    first scan       S[0]    S[512] stored    S[1024] stored ...
    second, back         ... <S[1024], dS[1024]>    <S[512], dS[512]>
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilecat as tc
from tilecat import f32, rt

from .chunk_scan import ChunkScan
from .chunk_tasks import CHUNK, At

EVERY = 8 * CHUNK  # tokens of a block
PIECE = 32  # columns of a state that are multiplied at a time, for want of registers


def number_of(before: Any, sequence: Any) -> Any:
    """Where the checkpoints of a sequence begin, with so many tokens before it.

    Blocks do not cross sequences: one of n tokens has ceil(n / 512), and its successor's number is
    higher by at least that.
    """
    return before // EVERY + sequence


@dataclass(eq=False)
class Checkpoints:
    """Of one scan.

    Args:
        scan: the core. length: tokens of a batch entry.
        states: f32 [checkpoints, H, columns of V, F].
        products: f32 [checkpoints, H, blocks of 64 columns]: `unit` times the inner products of
            the scan's own states and those; None: its own are stored.
        unit: see there.
    """

    scan: ChunkScan
    length: Any
    states: Any
    products: Any = None
    unit: Any = 1.0

    def passing(self, task: Any, at: At, index: Any, state: Any) -> None:
        """State role, where S lies between two chunks: stores it, or multiplies by what was."""
        row = at.row + CHUNK * self.scan.reverse  # the first token behind S
        tokens = row - task.origin
        block = number_of(task.batch * self.length + task.origin, task.sequence) + tokens // EVERY
        head, col = self.scan.place(task, index)
        rest = tokens % EVERY
        with tc.when((rest == 0) & (tokens > 0) & (row < task.end)):
            # + rest, which is 0: else what masks columns is kept in registers all the time.
            total = None if self.products is None else tc.zeros(rt[f32, CHUNK, PIECE])
            for i, part in enumerate(state):
                for c in range(0, part.type.cols, PIECE):
                    piece = part[:, c : c + PIECE]
                    place = self.states.at(block, head, col, i * part.type.cols + c + rest)
                    if total is None:
                        tc.store(place, piece)
                    else:
                        tc.fma(piece, tc.load(place, piece.type), total, out=total)
            if total is not None:
                tc.store(self.products[block, head, col // CHUNK], tc.tile_sum(total) * self.unit)
