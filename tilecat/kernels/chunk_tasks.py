"""Chunks of sequences: tasks, where the chunk of a step lies, and states before and after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tilecat as tc
from tilecat import f32, rt

from ..language.scalars import minimum_of

CHUNK = 64  # tokens; rows of S^T a warpgroup, too
WHOLE = 128  # features that a warpgroup holds as an operand at a time


def flops_of(tokens: int, dim: int, columns: int, features: int | None = None) -> int:
    """Of a scan: scores and their sums, and the state's two products.

    Args:
        tokens: times heads. dim: columns of Q and K. columns: of V.
        features: rows of the state; None: as many as Q has columns.
    """
    rows = dim if features is None else features
    return tokens * (2 * CHUNK * (dim + columns) + 4 * rows * columns)


@dataclass(frozen=True, eq=False)
class At:
    """Where a chunk lies: its first token in the tensors, tokens of it, its number.

    member: which it is of the chunks of a step.
    """

    row: Any
    rows: Any
    number: Any
    member: Any = 0


def tasks_of(
    heads: Any, batch: Any, length: Any, blocks: Any = 1, starts: Any = None, segment: Any = None,
    cluster: int = 1,
) -> Any:  # fmt: skip
    """A task is a sequence, some heads (`task.head`, their number) and a block of columns of V.

    Its tokens are those from `task.first` to `task.last`, of a sequence from `task.origin` to
    `task.end`; `task.state` is where its states lie.

    Args:
        heads: how many parts the heads of a sequence are cut into.
        batch: sequences; of a packed batch 1.
        length: tokens of a sequence.
        blocks: of columns.
        starts: of a packed batch, s32 [sequences + 1].
        segment: tokens of a segment, whole chunks: each of a sequence is a task; None: one.
        cluster: CTAs that take neighbouring blocks of columns, and a step as many chunks.
    """
    sequences = batch if starts is None else starts.size(0) - 1
    segments = 1 if segment is None else tc.cdiv(length, segment)

    def locate(t: Any) -> dict[str, Any]:
        part, block = t // blocks, t % blocks
        if cluster > 1:
            block = block * cluster + tc.cluster_rank()
        state, head = part // heads, part % heads
        sequence, first, last = state, 0, length
        if starts is not None:
            first = tc.load(starts[sequence], tc.s32)
            last = tc.load(starts[sequence + 1], tc.s32)
        origin, end = first, last
        if segment is not None:
            sequence, first = state // segments, state % segments * segment
            last = minimum_of(first + segment, length)
        return {
            "sequence": sequence, "state": state, "head": head, "block": block, "first": first,
            "batch": 0 if starts is not None else sequence, "last": last, "origin": origin,
            "end": end, "steps": tc.cdiv(last - first, CHUNK * cluster),
        }  # fmt: skip

    return tc.custom_order(
        sequences * segments * heads * blocks, locate, cluster=cluster, cluster_cols=cluster
    )


def chunk_of(task: Any, step: Any, reverse: bool) -> At:
    """The chunk of a step; in reversed time the last comes first."""
    number = task.steps - 1 - step if reverse else step
    row = task.first + number * CHUNK
    return At(row, minimum_of(task.last - row, CHUNK), number)


class Chunks:
    """The chunks of a task in the order of time, and its states, in tensors.

    Args:
        heads, slices, turns, reverse: of `ChunkScan`.
    """

    score: Any  # the role that takes chunks in turn
    state: Any  # the role that holds S^T

    def __init__(self, heads: int, slices: int, turns: int, reverse: bool):
        self.heads, self.slices, self.turns, self.reverse = heads, slices, turns, reverse

    def at(self, task: Any, step: Any) -> At:
        """The chunk of a step."""
        return chunk_of(task, step, self.reverse)

    def chunks_of(self, task: Any, step: Any, *tiles: Any) -> Iterator[tuple[At, Any]]:
        """State role: the chunks of a step (one), whose tiles come in turn; which P is whose."""
        index = self.state.consumer
        yield self.at(task, step), index // self.slices if self.slices > 1 else index

    def first(self, task: Any) -> At:
        """Score role, in `start`: the first chunk that is this warpgroup's."""
        if self.turns == 1:
            return self.at(task, 0)
        ahead = self.score.consumer - self.score.turn.get() + self.turns
        return self.at(task, ahead % self.turns)

    def following(self, at: At) -> Any:
        """Score role: the first token of its chunk after this one; there may be none."""
        return at.row + (-CHUNK if self.reverse else CHUNK) * self.turns

    def place(self, task: Any, index: Any) -> tuple[Any, Any]:
        """Head and first column of V of a warpgroup of the state role."""
        head = task.head * self.heads + index // self.slices
        return head, (task.block * self.slices + index % self.slices) * CHUNK

    def load(
        self, tiles: Any, tensor: Any, task: Any, at: At, *, columns: bool = False, group: Any = 1
    ) -> None:
        """Producer: tiles of a chunk, one a head; or (`columns`) one a warpgroup.

        group: how many heads share one of the tensor's.
        """
        for index in range(tiles.count):
            head, col = self.place(task, index if columns else index * self.slices)
            head = head if isinstance(group, int) and group == 1 else head // group
            tc.load_async(tiles[index], tensor.at(task.batch, head, at.row, col if columns else 0))

    def totals_of(self, features: int) -> list[Any]:
        """S^T of a warpgroup, in parts of its columns."""
        whole = features <= WHOLE or features % CHUNK  # 160 of Based are no parts of 64
        width = features if whole else CHUNK if features % WHOLE else WHOLE
        return [tc.empty(rt[f32, CHUNK, width]) for _ in range(features // width)]

    def begin(self, task: Any, totals: Any, start: Any, unit: Any) -> None:
        """State role: S before a task."""
        head, col = self.place(task, self.state.consumer)
        for i, total in enumerate(totals):
            if start is None:
                tc.fill(total, 0.0)
                continue
            state = tc.load(start.at(task.state, head, col, i * total.type.cols), total.type)
            tc.copy(total, state if unit is None else state / unit)

    def finish(self, task: Any, totals: Any, end: Any, unit: Any) -> None:
        """State role: S after a task."""
        head, col = self.place(task, self.state.consumer)
        for i, total in enumerate(totals if end is not None else ()):
            state = total if unit is None else total * unit
            tc.store(end.at(task.state, head, col, i * total.type.cols), state)
