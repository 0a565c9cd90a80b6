"""States at every 256th token, kept by one scan for another that meets them in reversed time.

The gradient of a gate is the inner product of the state before its token and of that state's
gradient. Two scans of a backward hold the one and the other: the first stores its state where a
block of tokens begins, the second multiplies its own by that (`gate_gradients` does the rest).

    first scan       S[0]    S[256] stored    S[512] stored ...
    second, back         ... <S[512], dS[512]>    <S[256], dS[256]>
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilecat as tc

from .chunk_scan import CHUNK, At, ChunkScan

EVERY = 4 * CHUNK  # tokens of a block
PIECE = 32  # columns of a state that are multiplied at a time, for want of registers


def number_of(before: Any, sequence: Any) -> Any:
    """Where the checkpoints of a sequence begin, with so many tokens before it.

    Blocks do not cross sequences: one of n tokens has ceil(n / 256), and its successor's number is
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
        with tc.when((tokens % EVERY == 0) & (tokens > 0) & (row < task.end)):
            total = 0.0
            for i, part in enumerate(state):
                for c in range(0, part.type.cols, PIECE):
                    piece = part[:, c : c + PIECE]
                    place = self.states.at(block, head, col, i * part.type.cols + c)
                    if self.products is None:
                        tc.store(place, piece)
                    else:
                        total = total + tc.tile_sum(piece * tc.load(place, piece.type))
            if self.products is not None:
                tc.store(self.products[block, head, col // CHUNK], total * self.unit)
