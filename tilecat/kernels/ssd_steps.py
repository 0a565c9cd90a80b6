"""How far tokens of Mamba-2 step: what its scan and its gradients do with dt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tilecat as tc
from tilecat import f32, s32


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps `clamp(softplus(dt + bias))`, and where sequences begin.

    Args:
        dt: [B, H, T]. A: f32 [H].
        bias: f32 [H], or None. softplus: whether. limits: a pair to clamp to, or None.
        sequences: which sequence a token belongs to, s32 [B, T], or None.
    """

    dt: Any
    A: Any
    bias: Any
    softplus: bool
    limits: Any
    sequences: Any

    def of_head(self, head: Any) -> tuple[Any, Any]:
        """A and the bias of a head."""
        return tc.load(self.A[head], f32), (
            0.0 if self.bias is None else tc.load(self.bias[head], f32)
        )

    def of(self, dt: Any) -> Any:
        """Steps of a vector of dt with the bias."""
        steps = tc.softplus(dt) if self.softplus else dt
        if self.limits is not None:
            low, high = self.limits
            steps = tc.minimum(tc.maximum(steps, low, nan=True), high, nan=True)
        return steps

    def going_on(self, x: Any, other: float, batch: Any, row: Any) -> Any:
        """A vector of tokens, but `other` of those of another sequence than the token before.

        Args:
            batch, row: where its first token lies.
        """
        if self.sequences is None:
            return x
        kind = replace(x.type, dtype=s32)
        mine, before = (tc.load(self.sequences.at(batch, row - i), kind) for i in (0, 1))
        before = tc.select(tc.row_index(x) + row > 0, before, mine)
        return tc.select(before == mine, x, other)

    def back(self, x: Any, dt: Any) -> Any:
        """The gradient of dt with the bias, from that of the steps."""
        if self.limits is not None:
            (low, high), plain = self.limits, tc.softplus(dt) if self.softplus else dt
            x = tc.select(plain < low, 0.0, tc.select(plain > high, 0.0, x))
        return x * tc.sigmoid(dt) if self.softplus else x
