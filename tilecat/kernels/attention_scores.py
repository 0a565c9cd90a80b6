"""What attention's kernels know of scores: which keys a query sees, and what changes a score."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import tilecat as tc

from ..language.scalars import binary, minimum_of, select
from .epilogues import Step
from .score_mods import At

LOG2_E = math.log2(math.e)
ORDERS = ("sequence", "longest")
FAR = 1 << 28  # keys from a query to an edge that is not there; lengths are at most so long


def maximum_of(a: Any, b: Any) -> Any:
    """The larger of two scalars."""
    return binary("max", a, b)


def clamp(x: Any, low: Any, high: Any) -> Any:
    """A scalar between two others; low where they cross."""
    return maximum_of(minimum_of(x, high), low)


def taken(args: list[Any], count: int, what: str) -> tuple[Any, ...]:
    """The first of a kernel's further arguments, which are taken.

    Raises:
        LayoutError: there are fewer.
    """
    tc.require(
        len(args) >= count,
        f"attention: {what} {'comes' if count == 1 else 'come'} with {count} arguments behind the "
        f"scale, got {len(args)}",
        hint="tc.attention brings them",
    )
    found = tuple(args[:count])
    del args[:count]
    return found


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
        found = iter(taken(args, self.left + self.right, "edges"))
        left, right = (next(found) if there else FAR for there in (self.left, self.right))
        return Sight(self, tile_k, left, right, queries, keys)


@dataclass(frozen=True, eq=False)
class Sight:
    """Keys that the queries of a sequence see.

    Args:
        edges: known while tracing.
        tile_k: keys a block.
        left, right: furthest distances from a query's own key.
        queries, keys: of the sequence, s32 scalars; of a packed batch, of all.
        first_query, first_key: where they begin in the tensors.
    """

    edges: Edges
    tile_k: int
    left: Any
    right: Any
    queries: Any
    keys: Any
    first_query: Any = 0
    first_key: Any = 0

    @property
    def shift(self) -> Any:
        """A query's own key less its position."""
        return self.keys - self.queries if self.edges.from_end else 0

    def of(self, task: Any) -> Sight:
        """That of a task's sequence."""
        coords = {n: v for n, v in task.coords if n in ("queries", "keys", "first_query",
                                                        "first_key")}  # fmt: skip
        return replace(self, **coords)

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

    def seen_by(self, first: Any, last: Any, rows: int) -> tuple[Any, Any]:
        """The first block of `rows` queries that sees some key first <= j < last, and one behind.

        None where they are equal.
        """
        low, end = 0, self.queries
        if self.edges.right:
            low = maximum_of(first - self.shift - self.right, 0)
        if self.edges.left:
            end = maximum_of(minimum_of(end, last - self.shift + self.left), 0)
        block = low // rows
        return block, maximum_of(tc.cdiv(end, rows), block)

    def seen_whole_by(self, first: Any, last: Any, rows: int) -> tuple[Any, Any]:
        """The first block of queries that see all of these keys, and that behind the last."""
        low, end = 0, tc.cdiv(self.queries, rows)
        if self.edges.right:
            low = tc.cdiv(maximum_of(last - 1 - self.shift - self.right, 0), rows)
        if self.edges.left:
            stop = maximum_of(first - self.shift + self.left + 1, 0)
            end = minimum_of(end, stop // rows)
        return low, end

    def place(self, task: Any, tall: int, consumer: Any) -> tuple[Any, Any, Any]:
        """Where a consumer's queries begin in Q: batch, head, row."""
        first = self.of(task).first_query
        return task.batch, task.head, first + task.tile * tall + consumer * 64

    def mask(self, s: Any, row: Any, col: Any, *, ends: bool) -> None:
        """Hides keys beyond the edges, and with `ends` those beyond the sequence.

        Of a tile with a row a key, `s.T` is meant.
        """
        if ends:
            with tc.when(self.keys - col < self.tile_k):
                tc.mask_cols(s, self.keys - col, -math.inf)
        if self.edges.right:
            tc.tril(s, row + self.shift + self.right - col, -math.inf)
        if self.edges.left:
            tc.triu(s, row + self.shift - self.left - col, -math.inf)

    def within(self, tasks: tc.Schedule, tall: int) -> tc.Schedule:
        """Tasks of `tall` queries, whose coordinates say which key blocks they take.

        Steps run backwards from `behind`.
        """

        def locate(t: Any) -> tuple[tuple[str, Any], ...]:
            task = tasks.task(t)
            mine, first = self.of(task), task.tile * tall
            low, behind = mine.blocks(first, minimum_of(first + tall, mine.queries))
            if "queries" in dict(task.coords):  # beyond its sequence a tile has next to nothing
                behind = select(first < mine.queries, behind, low + 1)
            return (*task.coords, ("behind", behind), ("steps", behind - low))

        return replace(tasks, locate=locate)


def tasks_of(
    order: str, args: list[Any], Q: Any, tall: int, starts: tuple[Any, ...]
) -> tc.Schedule:
    """Tiles of `tall` queries: sequence first, or longest first.

    Args:
        args: the first of which are taken, if longest first: planes, turned; if packed, heads
            that are taken together.
        starts: of the sequences of a packed batch, which has an order of its own; or empty.
    """
    tc.require(order in ORDERS, f"attention: order is one of {', '.join(ORDERS)}, got {order!r}")
    if starts:
        together = taken(args, order == "longest", "tasks in the order 'longest'")
        return packed(*starts, Q.size(2), Q.size(1), tall, *together)
    size = tc.cdiv(Q.size(2), tall), Q.size(1), Q.size(0)
    if order == "sequence":
        return tc.sequence_first(*size)
    planes, turned = taken(args, 2, "tasks in the order 'longest'")
    return tc.longest_first(*size, planes=planes, turned=turned & 1)


def packed(
    starts: Any, key_starts: Any, total: Any, heads: Any, tall: int, together: Any = None
) -> tc.Schedule:
    """Tasks of a packed batch: of a head the tiles of each sequence, then the next head.

    Coordinates: tile, head, batch (0), sequence, and of that queries, keys, first_query, first_key.

    Args:
        starts, key_starts: where sequences of queries and of keys begin, s32, one more than there
            are.
        total: queries of all.
        heads: how many.
        tall: queries of a tile.
        together: heads of which the same tile is taken one after another, the last tiles first:
            those of causal tasks that take longest, and what remains at the end are short ones.
    """
    tiles = tc.ragged(starts, total, chunk=tall)
    tasks = tc.batched(tiles, heads)

    def placed(t: Any) -> tuple[Any, Any]:
        """Number of a tile, and head."""
        if together is None:
            head = t // tiles.count
            return t - head * tiles.count, head
        most = minimum_of(together, heads)
        first = t // (tiles.count * most) * most
        inside, some = t - first * tiles.count, minimum_of(most, heads - first)
        level = inside // some
        return tiles.count - 1 - level, first + inside - level * some

    def locate(t: Any) -> tuple[tuple[str, Any], ...]:
        number, head = placed(t)
        task = tiles.task(number)
        first, last = (tc.load(key_starts[task.sequence + i], tc.s32) for i in range(2))
        return (
            ("tile", task.chunk), ("head", head), ("batch", 0), ("sequence", task.sequence),
            ("queries", task.last - task.first), ("first_query", task.first),
            ("keys", last - first), ("first_key", first),
        )  # fmt: skip

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

    def times(self, factor: Any) -> Scores:
        """Of products that are to be multiplied by a factor, an f32 scalar, or 1.0."""
        return self if isinstance(factor, float) else replace(self, scale=self.scale * factor)

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

    @property
    def sloped(self) -> bool:
        """Whether the slope of scores over products is more than the scale."""
        return self.mods.softcap or self.mods.score is not None

    def slopes(self, s: Any, at: At) -> tuple[Any, Any]:
        """As `apply`; what the soft cap grows by where its score does, and what the step does.

        Numbers, vectors or tiles: 1.0 where there is nothing.

        Raises:
            LayoutError: a score_mod that is not differentiable.
        """
        of_cap: Any = 1.0
        of_step: Any = 1.0
        if self.mods.softcap:
            cap = self.cap[0]
            tc.tanh(tc.mul(s, self.scale / cap, out=s), out=s)
            of_cap = tc.fma(s, -s, 1.0)
            tc.mul(s, cap, out=s)
        elif self.change:
            tc.mul(s, self.scale, out=s)
        if self.mods.score is not None:
            function, args = self.mods.score.function, self.score_args
            y, of_step = tc.derivative(lambda x: function(x, at, *args), s)
            tc.copy(s, y)
        return of_cap, of_step

    def hide(self, s: Any, at: At) -> None:
        """Scores of keys that the user's mask hides become -inf."""
        if self.mods.mask is not None:
            seen = self.mods.mask.function(at, *self.mask_args)
            tc.select(seen, s, -math.inf, out=s)

    def sink(self, at_head: Any) -> Any:
        """The sink of a head as an exponent of two."""
        return tc.load(self.sinks[0][at_head], tc.f32) * LOG2_E
