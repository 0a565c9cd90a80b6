"""Factors of 8-bit heads: what the elements of q, k and v are to be multiplied by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilecat as tc

from .attention_scores import taken

BLOCK = 128  # rows that share a factor, where each block has its own
# P is stored times 2**8: e4m3 has 448 as its largest number, and 2**-9 as its smallest.
LIFT = 8


@dataclass(frozen=True, eq=False)
class Factors:
    """Tensors f32 [B, H] and [B, Hkv], or [B, H, blocks of 128 rows]; none: all are 1.

    Args:
        tensors: of q, k and v; or empty.
        group: heads that share keys and values.
    """

    tensors: tuple[Any, ...] = ()
    group: Any = 1

    @classmethod
    def take(cls, args: list[Any], group: Any) -> Factors:
        """Those of q, k and v, the first of some arguments, which are taken."""
        return cls(taken(args, 3, "factors of q, k and v"), group)

    @property
    def by_block(self) -> bool:
        """Whether blocks of rows have factors of their own."""
        return bool(self.tensors) and self.tensors[0].rank == 3

    def _load(self, which: int, task: Any, row: Any) -> Any:
        head = task.head // self.group if which else task.head
        place = (task.batch, head, row // BLOCK)[: self.tensors[which].rank]
        return tc.load(self.tensors[which][place], tc.f32)

    def of_query(self, task: Any, row: Any) -> Any:
        """That of a tile's queries; and of all keys, where blocks have none of their own."""
        if not self.tensors:
            return 1.0
        query = self._load(0, task, row)
        return query if self.by_block else query * self._load(1, task, 0)

    def of_keys(self, task: Any, col: Any) -> Any:
        """That of a block of keys, beside `of_query`."""
        return self._load(1, task, col) if self.by_block else 1.0

    def first(self, task: Any) -> Any:
        """That of the values that O is a sum of, until `turn` changes it."""
        if not self.tensors:
            return 1.0
        return tc.var(1.0) if self.by_block else self._load(2, task, 0)

    def turn(self, held: Any, task: Any, col: Any, shrink: Any) -> Any:
        """What O must shrink by, where it becomes a sum of values of the next block.

        Args:
            held: what `first` gave, of the block before; then of the next.
        """
        before, now = held.get(), self._load(2, task, col)
        held.set(now)
        return shrink * (before / now)
