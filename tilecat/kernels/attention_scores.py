"""What attention's kernels know of scores: which keys a query sees, and what changes a score."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import tilecat as tc

from ..language.scalars import binary, minimum_of
from .epilogues import Step
from .score_mods import At

LOG2_E = math.log2(math.e)
FAR = 1 << 28  # keys from a query to an edge that is not there; lengths are at most so long


def maximum_of(a: Any, b: Any) -> Any:
    """The larger of two scalars."""
    return binary("max", a, b)


@dataclass(frozen=True)
class Edges:
    """Which keys a query sees, as far as tracing knows: query i lies at key i + shift.

    Args:
        left: whether it sees no key further before its own than an argument says.
        right: the same of keys behind its own; causal: the argument is 0.
        from_end: whether the last query lies at the last key (bottom-right), or the first query
            at the first key.
    """

    left: bool = False
    right: bool = False
    from_end: bool = False

    def sight(self, args: list[Any], tile_k: int, queries: Any, keys: Any) -> Sight:
        """With the arguments, the first of which are taken."""
        left = args.pop(0) if self.left else FAR
        right = args.pop(0) if self.right else FAR
        shift = keys - queries if self.from_end else 0
        return Sight(self, tile_k, keys, left, right, shift)


@dataclass(frozen=True, eq=False)
class Sight:
    """Keys that queries of one sequence see.

    Args:
        edges: known while tracing.
        tile_k: keys a block.
        keys: of the sequence, an s32 scalar.
        left, right: furthest distances from a query's own key.
        shift: a query's own key less its position.
    """

    edges: Edges
    tile_k: int
    keys: Any
    left: Any
    right: Any
    shift: Any

    def blocks(self, first: Any, last: Any) -> tuple[Any, Any]:
        """The first key block that some query first <= i < last sees, and that behind the last.

        One at least: where they see none, one that is masked whole.
        """
        low, end = 0, self.keys
        if self.edges.left:
            low = maximum_of(first + self.shift - self.left, 0) // self.tile_k
        if self.edges.right:
            end = maximum_of(minimum_of(end, last + self.shift + self.right), 0)
        return low, maximum_of(tc.cdiv(end, self.tile_k), low + 1)

    def whole(self, first: Any, last: Any) -> tuple[Any, Any]:
        """The first key block that all of these queries see whole, and that behind the last."""
        low, end = 0, self.keys
        if self.edges.left:
            start = maximum_of(last - 1 + self.shift - self.left, 0)
            low = tc.cdiv(start, self.tile_k)
        if self.edges.right:
            end = maximum_of(minimum_of(end, first + 1 + self.shift + self.right), 0)
        return low, end // self.tile_k

    def mask(self, s: Any, row: Any, col: Any, *, ends: bool) -> None:
        """Hides keys beyond the edges, and with `ends` those beyond the sequence."""
        if ends:
            with tc.when(self.keys - col < self.tile_k):
                tc.mask_cols(s, self.keys - col, -math.inf)
        if self.edges.right:
            tc.tril(s, row + self.shift + self.right - col, -math.inf)
        if self.edges.left:
            tc.triu(s, row + self.shift - self.left - col, -math.inf)

    def within(self, tasks: tc.Schedule, tall: int, queries: Any) -> tc.Schedule:
        """Tasks of `tall` queries, whose coordinates say which key blocks they take.

        Steps run backwards from `behind`.
        """

        def locate(t: Any) -> tuple[tuple[str, Any], ...]:
            coords = tasks.locate(t)
            first = dict(coords)["tile"] * tall
            low, behind = self.blocks(first, minimum_of(first + tall, queries))
            return (*coords, ("behind", behind), ("steps", behind - low))

        return replace(tasks, locate=locate)


@dataclass(frozen=True)
class Mods:
    """What changes scores, as far as tracing knows.

    Args:
        softcap: whether scores are `cap tanh(score / cap)`, with an argument cap.
        score: a step that changes tiles of scores, or None.
        mask: a step that gives a condition, or None.
        sinks: whether each head has a further score, without a value, an argument f32 [H].
    """

    softcap: bool = False
    score: Step | None = None
    mask: Step | None = None
    sinks: bool = False

    def take(self, args: list[Any], scale: Any) -> Scores:
        """With the arguments, which must be as many.

        Raises:
            LayoutError: they are not.
        """
        counts = [self.softcap, self.sinks, *(f.count if f else 0 for f in (self.score, self.mask))]
        tc.require(
            len(args) == sum(counts),
            f"attention: edges and mods come with {sum(counts)} arguments behind the scale here, "
            f"got {len(args)}",
            hint="tc.attention brings them",
        )
        parts = []
        for count in counts:
            parts.append(args[:count])
            del args[:count]
        return Scores(self, scale, *parts)


@dataclass(frozen=True, eq=False)
class Scores:
    """Mods with their arguments."""

    mods: Mods
    scale: Any
    cap: list[Any]
    sinks: list[Any]
    score_args: list[Any]
    mask_args: list[Any]

    @property
    def change(self) -> bool:
        """Whether a score is more than a multiple of a product."""
        return self.mods.softcap or self.mods.score is not None

    @property
    def unit(self) -> Any:
        """What makes an exponent of two of what `apply` leaves."""
        return LOG2_E if self.change else self.scale * LOG2_E

    def apply(self, s: Any, at: At) -> None:
        """Scores of products, in place; scaled only where they change."""
        if not self.change:
            return
        if self.mods.softcap:
            cap = self.cap[0]  # cap tanh(x / cap), off by 2**-22 cap, since exp2 and rcp are
            tc.exp2(tc.mul(s, self.scale / cap * (2 * LOG2_E), out=s), out=s)
            tc.fma(tc.rcp(s + 1.0), -2.0 * cap, cap, out=s)
        else:
            tc.mul(s, self.scale, out=s)
        if self.mods.score is not None:
            tc.copy(s, self.mods.score.function(s, at, *self.score_args))

    def hide(self, s: Any, at: At) -> None:
        """Scores of keys that the user's mask hides become -inf."""
        if self.mods.mask is not None:
            seen = self.mods.mask.function(at, *self.mask_args)
            tc.select(seen, s, -math.inf, out=s)

    def sink(self, at_head: Any) -> Any:
        """The sink of a head as an exponent of two."""
        return tc.load(self.sinks[0][at_head], tc.f32) * LOG2_E
