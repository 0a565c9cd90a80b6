"""How far tokens of Mamba-2 step: what its scan and its gradients do with dt."""

from __future__ import annotations

from typing import Any

import tilecat as tc
from tilecat import rv, s32

from .chunk_tasks import CHUNK


def steps_of(dt: Any, softplus: bool, limits: Any) -> Any:
    """`clamp(softplus(dt))`, or without one or both.

    Args:
        dt: vectors, the bias added. softplus: whether. limits: a pair to clamp to, or None.
    """
    steps = tc.softplus(dt) if softplus else dt
    if limits is not None:
        steps = tc.minimum(tc.maximum(steps, limits[0], nan=True), limits[1], nan=True)
    return steps


def goes_on(sequences: Any, batch: Any, row: Any, index: Any, axis: str) -> Any:
    """Whether tokens of a chunk are of the sequence of the token before.

    Args:
        sequences: which one a token belongs to, s32 [B, T].
        batch, row: where the chunk lies. index: its tokens' numbers in it, along `axis`.
    """
    mine, before = (
        tc.load(sequences.at(batch, row - i), rv[s32, CHUNK, axis]) for i in (0, 1)
    )
    before = tc.select(index + row > 0, before, mine)
    return before == mine
