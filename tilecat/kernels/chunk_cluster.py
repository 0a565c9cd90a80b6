"""A scan of chunks by two CTAs: each has columns of V, and makes the scores of every second chunk.

Scores do not depend on columns of V, so CTAs that have other columns of one head would make the
same. Here a step is a chunk for each CTA of a cluster: CTA r makes P and factors of chunk r of
the step and sends them to the others (`pipe.ring(..., gather=True)`); the state role takes the
step's chunks one after another, its inputs stage by stage. What scores read is loaded for them
alone, ahead of the state's inputs.

    CTA 0   score  P [0] | P [2]       | P [4]
            state        | S [0] S [1] | S [2] S [3]
    CTA 1   score  P [1] | P [3]       | P [5]
            state        | S [0] S [1] | S [2] S [3]

A step may have chunks behind the last of the sequence: they have no tokens, and change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import tilecat as tc
from tilecat import f32, st, sv

from .chunk_scan import ChunkScan
from .chunk_tasks import CHUNK, At, chunk_of

CTAS = 2  # of a cluster
VECTOR = sv[f32, CHUNK]


class ClusterScan(ChunkScan):
    """The scan of a cluster, forward in time, one head a task; `tasks_of(..., cluster=CTAS)`."""

    def rings(self) -> None:
        """Of P and Y, and of a and b."""
        kind = st[self.dtype, CHUNK, CHUNK]
        self.p = self.pipe.ring(kind, writer=self.score, count=CTAS, stages=self.depth,
                                gather=True)  # fmt: skip
        self.y = self.pipe.ring(kind, writer=self.state, stages=self.outputs)
        self.a, self.b = (self.gathered(VECTOR) for _ in range(2))

    def gathered(self, kind: Any) -> Any:
        """Tiles or vectors beside P, one a chunk of a step: `at.member` is the chunk's."""
        return self.pipe.ring(kind, writer=self.score, count=CTAS, beside=self.p, gather=True)

    def at(self, task: Any, step: Any) -> At:
        """The chunk of a step that this CTA makes scores of."""
        rank = tc.cluster_rank()
        return replace(chunk_of(task, step * CTAS + rank, False), member=rank)

    def following(self, at: At) -> Any:
        """Score role: the first token of its chunk after this one; there may be none."""
        return at.row + CHUNK * self.turns * CTAS

    def step_of(self, task: Any, at: At, *rings: Any) -> Iterator[At]:
        """The chunks of a step; each a stage of the rings."""
        for member in range(CTAS):
            yield replace(chunk_of(task, at.number - at.member + member, False), member=member)
            for ring in rings if member + 1 < CTAS else ():
                ring.next()

    def chunks_of(self, task: Any, step: Any, *tiles: Any) -> Iterator[tuple[At, Any]]:
        """State role: the chunks of a step, and which tile of P is whose."""
        for member in self.state.stages(CTAS, *tiles, self.y):
            at = chunk_of(task, step * CTAS + member, False)
            yield replace(at, member=member), member

    def _store(self, task: Any, at: At, out: Any, ring: Any = None) -> None:
        for one in self.step_of(task, at, self.y):
            super()._store(task, one, out)
