"""Long sequences of few heads: what calls of scans cut into segments, and launch for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .kernels.chunk_tasks import CHUNK
from .kernels.segments import join_segments
from .operators import num_sms
from .ready import Launch
from .runtime.arrays import allocator, view

LONG = 4096  # tokens of a sequence that is cut, at least
SHORT = 512  # of a segment, at least
# Segments of a sequence, at least, where a CTA has 64 columns of V and where it has 128: operands
# are read 5/3 times as often, and a CTA takes up to an 80th or a 40th of the memory's rate (an
# H200; docs/design/chunk-scan.md).
FEWEST = (3, 5)


@dataclass(frozen=True, eq=False)
class Segments:
    """How sequences are cut.

    Args:
        tokens: of a segment, whole chunks; 0: they are not.
        count: segments of a sequence.
        states: f32, of all segments, H, columns of V, F; None until it is made.
        fades: f32, of all segments, H; None without decays.
    """

    tokens: int = 0
    count: int = 1
    states: Any = None
    fades: Any = None

    def makers(
        self, like: Any, sequences: int, heads: int, state: tuple[int, int], decayed: bool
    ) -> list[Callable[[], Any]]:
        """They allocate both arrays, those that there are, beside an array."""
        rows = sequences * self.count
        shapes = [(rows, heads, *state), (rows, heads)][: self.tokens and 1 + decayed]
        return [allocator(like, shape, "f32") for shape in shapes]

    def holding(self, made: Sequence[Any]) -> Segments:
        """With what `makers` made."""
        return replace(self, **dict(zip(("states", "fades"), made, strict=False)))

    def launches(
        self, scan: Callable[..., Launch], start: Any, end: Any, *, reverse: bool = False,
        turned: bool = False,
    ) -> tuple[Launch, ...]:  # fmt: skip
        """A scan, whole, or local states, what they add up to, and the scan of each segment.

        Args:
            scan: makes a launch of states before and after, perhaps of local states.
            start, end: states before and after the sequences, or None.
            reverse: in reversed time.
            turned: states of the scan are F x columns of V.
        """
        if not self.tokens:
            return (scan(start, end),)
        ends = [x.swapaxes(2, 3) if turned else x for x in (start, end) if x is not None]
        fades = () if self.fades is None else (self.fades,)
        wanted = {"fades": bool(fades), "start": start is not None, "end": end is not None,
                  "reverse": reverse}  # fmt: skip
        states = self.states.swapaxes(2, 3) if turned else self.states
        return (
            scan(None, states, local=True),
            Launch(join_segments, (self.states,), (self.count, *fades, *ends), wanted),
            scan(states, None),
        )


def cut(like: Any, units: int, features: int, columns: int, length: int) -> Segments:
    """How long sequences of few heads are cut.

    Args:
        like: an array, for the device.
        units: sequences times heads.
        features, columns: of a state.
        length: tokens of a sequence; 0: it may not be cut.
    """
    blocks = -(-columns // CHUNK)
    tasks = units * (-(-blocks // 2) if features <= 128 else blocks)
    count = min(num_sms(view(like).device) // max(tasks, 1), length // SHORT)
    if length < LONG or count < FEWEST[blocks > 1]:
        return Segments()
    tokens = -(-length // (count * CHUNK)) * CHUNK
    return Segments(tokens, -(-length // tokens))
