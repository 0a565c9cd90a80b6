"""What attention does to its scores: functions of a tile of scores, and masks of one.

A `score_mod` is `f(s, at, *args)`: s an f32 register tile of scores (scaled, soft-capped), `at`
where it lies, args its run-time arguments, tensors or numbers. Rows of the tile are queries, in the
backward keys: `at` knows. It gives the tile that takes the place of s, element by element; the
backward differentiates it (`tc.derivative`). A `mask_mod` is `f(at, *args)` and gives a condition,
a comparison of tiles or vectors: where it does not hold, the key is invisible to the query.

    def near(at, distance):
        return abs(at.queries - at.keys) <= distance

    tc.attention(q, k, v, score_mod=(tc.score_mods.alibi, slopes), mask_mod=(near, 512))

A function is traced for the numbers it finds by itself, in its closure and its module: others are
another kernel, so numbers that change are its arguments. Attributes of objects are not looked at.
Those here are ready-made. Queries and keys outside the tensors are computed too, and not seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilecat as tc
from tilecat import f32, rt, rv

from ..language.scalars import minimum_of

__all__ = ["At", "alibi", "bias", "key_bias", "same_document", "seen", "seen_keys"]


@dataclass(frozen=True, eq=False)
class At:
    """Where a tile of scores lies.

    Args:
        scores: the tile, for its shape; not to be read by a mask_mod.
        batch, head: s32 scalars; head counts those of q.
        row: position of its first query in the sequence, an s32 scalar.
        col: position of its first key.
        first_row, first_col: the same in the tensors: sequences of a packed batch begin further on.
        transposed: whether the tile has a row a key, as in the backward.
    """

    scores: Any
    batch: Any
    head: Any
    row: Any
    col: Any
    first_row: Any
    first_col: Any
    transposed: bool = False

    @property
    def queries(self) -> Any:
        """Positions of the queries, an s32 vector along their axis of the tile; it broadcasts."""
        index = tc.col_index if self.transposed else tc.row_index
        return index(self.scores) + self.row

    @property
    def keys(self) -> Any:
        """Positions of the keys, an s32 vector along their axis of the tile."""
        index = tc.row_index if self.transposed else tc.col_index
        return index(self.scores) + self.col

    def tile(self, tensor: Any) -> Any:
        """The elements of a tensor [..., Lq, Lk] at this place, as an f32 tile.

        In front it has the axes of batch and heads, or the latter, or none; 1 long they broadcast.
        """
        place = self._place(tensor)
        kind = rt[tensor.dtype, *self.scores.type.shape]
        return tc.regroup(tc.cast(tc.load(place, kind), f32))

    def add(self, tensor: Any, tile: Any) -> None:
        """Adds a tile to the elements of an f32 tensor [..., Lq, Lk] at this place, as `tile`."""
        tc.atomic_add(self._place(tensor), tile)

    def add_keys(self, tensor: Any, tile: Any) -> None:
        """Adds a tile, summed over its queries, to the elements of an f32 tensor [..., Lk]."""
        sums = tc.row_sum(tile) if self.transposed else tc.col_sum(tile)
        tc.atomic_add(tensor.at(*self._plane(tensor, 1), self.first_col), sums)

    def _place(self, tensor: Any) -> Any:
        """Where the tile lies in a tensor [..., Lq, Lk]."""
        plane, place = self._plane(tensor, 2), (self.first_row, self.first_col)
        if self.transposed:
            axes = range(tensor.rank - 2)
            tensor, place = tensor.permute(*axes, tensor.rank - 1, tensor.rank - 2), place[::-1]
        return tensor.at(*plane, *place)

    def of_queries(self, tensor: Any) -> Any:
        """The elements of a tensor [..., Lq] at these queries, a vector: f32, or s32 of s32."""
        place = tensor.at(*self._plane(tensor, 1), self.first_row)
        return tc.load(place, self._vector(tensor, self.transposed))

    def of_keys(self, tensor: Any) -> Any:
        """The elements of a tensor [..., Lk] at these keys, a vector: f32, or s32 of s32."""
        place = tensor.at(*self._plane(tensor, 1), self.first_col)
        return tc.load(place, self._vector(tensor, not self.transposed))

    def _vector(self, tensor: Any, along_cols: bool) -> Any:
        """The type of a vector of a tensor's elements."""
        rows, cols = self.scores.type.shape
        return rv[_held(tensor), cols, "col"] if along_cols else rv[_held(tensor), rows]

    def of_head(self, tensor: Any) -> Any:
        """The element of an f32 or s32 tensor [H] or [B, H] at this head; a number is itself."""
        if not hasattr(tensor, "rank"):
            return tensor
        return tc.load(tensor[self._plane(tensor, 0)], tensor.dtype)

    def _plane(self, tensor: Any, inner: int) -> tuple[Any, ...]:
        """Coordinates on the leading axes, those of extent 1 broadcast."""
        count = getattr(tensor, "rank", -1) - inner
        tc.require(
            0 <= count <= 2,
            f"attention: a tensor of scores has {inner} to {inner + 2} axes here, batch and heads "
            f"in front, got {tensor!r}",
            hint="score_mod=(f, tensor): an argument of f, not an array it finds by itself",
        )
        coords = (self.batch, self.head)[2 - count :]
        return tuple(minimum_of(c, tensor.size(axis) - 1) for axis, c in enumerate(coords))


def _held(tensor: Any) -> Any:
    """The dtype of vectors of a tensor."""
    return f32 if tensor.dtype.is_float else tensor.dtype


def alibi(s: Any, at: At, slopes: Any) -> Any:
    """`s - slope |query - key|`, slopes f32 [H] or [B, H] (Press et al., ALiBi)."""
    distance = abs(at.queries - at.keys)
    return s - tc.cast(distance, f32) * at.of_head(slopes)


def bias(s: Any, at: At, values: Any) -> Any:
    """`s + values`, of [..., Lq, Lk]."""
    return s + at.tile(values)


def key_bias(s: Any, at: At, values: Any) -> Any:
    """`s + values`, of [..., Lk]: equal for all queries."""
    return s + at.of_keys(values)


def same_document(at: At, of_query: Any, of_key: Any) -> Any:
    """Whether query and key have the same number, s32 of [Lq] and [Lk] (or [B, 1, Lq], ...)."""
    return at.of_queries(of_query) == at.of_keys(of_key)


def seen(at: At, mask: Any) -> Any:
    """Where a u8 tensor [..., Lq, Lk] (of bools, `mask.view(torch.uint8)`) is not 0."""
    return at.tile(mask) > 0.0


def seen_keys(at: At, mask: Any) -> Any:
    """Where an s32 tensor [..., Lk] is not 0: equal for all queries."""
    return at.of_keys(mask) != 0
