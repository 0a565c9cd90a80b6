"""Names for addresses: what the generator knows about its own text, for reports and inspection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import Loc


@dataclass(frozen=True)
class SharedRange:
    """One tile (or one stage of a ring) in shared memory.

    Args:
        start: first byte, from the kernel's shared base.
        num_bytes: its size.
        name: the user's name for it.
        dtype: element type's name.
        rows: tile rows.
        cols: tile columns.
        stage: stage of its ring, or None.
    """

    start: int
    num_bytes: int
    name: str
    dtype: str
    rows: int
    cols: int
    stage: int | None = None

    def __str__(self) -> str:
        """`name[stage]`."""
        return self.name if self.stage is None else f"{self.name}[stage {self.stage}]"


@dataclass(frozen=True)
class BarrierName:
    """One mbarrier: byte offset from the shared base, name, arrivals a phase, bytes a phase."""

    offset: int
    name: str
    count: int
    expected_bytes: int = 0


@dataclass(frozen=True)
class ThreadRole:
    """Threads `first` to `last` (inclusive) of a CTA and what they do."""

    first: int
    last: int
    name: str


@dataclass(frozen=True)
class AddressTable:
    """All the generator can name: shared ranges, mbarriers, roles of threads, source files."""

    shared: tuple[SharedRange, ...] = ()
    barriers: tuple[BarrierName, ...] = ()
    roles: tuple[ThreadRole, ...] = ()
    files: tuple[tuple[int, str], ...] = ()

    def range_at(self, offset: int) -> SharedRange | None:
        """The range that holds a byte offset, or None."""
        return next((r for r in self.shared if r.start <= offset < r.start + r.num_bytes), None)

    def barrier_at(self, offset: int) -> BarrierName | None:
        """The mbarrier at a byte offset, or None."""
        return next((b for b in self.barriers if b.offset == offset), None)

    def role_of(self, thread: int) -> ThreadRole | None:
        """The role of a thread of the CTA, or None."""
        return next((r for r in self.roles if r.first <= thread <= r.last), None)


@dataclass(frozen=True)
class DebugSite:
    """A place that writes to the debug buffer.

    Args:
        kind: "print", "assert" or "wait".
        text: the user's label or message; for a wait, the mbarrier's name.
        type: of the value printed: a register tile's, a vector's or a scalar's; else None.
        loc: the user's line.
    """

    kind: str
    text: str
    type: Any = None
    loc: Loc | None = None
