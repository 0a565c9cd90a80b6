"""What a run of the PTX machine says: reports, bank conflicts, counts, and names for addresses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tilecat.addresses import AddressTable
from tilecat.errors import Loc

# Shared addresses in a cluster are `rank << 24 | offset`: 24 bits of offset (SASS of
# `mov.u32 r, smem`, SR_CgaCtaId; observed, not in the manual).
RANK_SHIFT = 24
OFFSET_MASK = (1 << RANK_SHIFT) - 1


@dataclass(frozen=True)
class Place:
    """An instruction as its reader sees it: PTX line and text, and the user's line if known."""

    line: int
    text: str
    source: Loc | None = None

    def __str__(self) -> str:
        """`PTX line 12: text`, and the user's line under it."""
        shown = f"PTX line {self.line}: {self.text[:110]}"
        if self.source is None:
            return shown
        user = self.source.text.strip()
        return f"{shown}\n     --> {self.source}" + (f": {user[:90]}" if user else "")


@dataclass(frozen=True)
class Report:
    """One broken rule.

    Args:
        kind: race, uninitialised, fence, deadlock, mbarrier, wgmma, tcgen05, exit, global-race,
            bounds, align, barrier, registers, limit; tcgen05-fence if an order lacks nothing but
            a tcgen05.fence, which compilers leave out where the hardware needs none.
        message: who did what to which tile or barrier.
        line: PTX line, 0 if the report belongs to no instruction.
        text: the PTX instruction.
        source: the user's line, from `.loc`.
        other: the other instruction of a pair.
    """

    kind: str
    message: str
    line: int
    text: str
    source: Loc | None = None
    other: Place | None = None

    def __str__(self) -> str:
        """At most about eight lines: the rule, then both places."""
        lines = [f"{self.kind}: {self.message}"]
        if self.line:
            lines.append(f"  at {Place(self.line, self.text, self.source)}")
        if self.other is not None:
            lines.append(f"  vs {self.other}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Conflict:
    """The worst request of one shared-memory instruction.

    Args:
        line: PTX line.
        text: the PTX instruction.
        source: the user's line.
        wavefronts: wavefronts its worst request takes.
        ideal: wavefronts of a request of this width without conflicts.
    """

    line: int
    text: str
    source: Loc | None
    wavefronts: int
    ideal: int

    @property
    def ways(self) -> float:
        """Wavefronts over the ideal: 1 without conflicts, 8 for an 8-way one."""
        return self.wavefronts / self.ideal


@dataclass(frozen=True)
class Result:
    """Outcome of a run.

    Args:
        reports: every broken rule, once an instruction pair.
        stats: executed instructions by family, mma by shape, async bytes.
        conflicts: one entry per shared-memory instruction executed.
        instructions: instructions executed, one for all threads that ran it together.
    """

    reports: tuple[Report, ...]
    stats: Counter[str]
    conflicts: tuple[Conflict, ...]
    instructions: int

    def __str__(self) -> str:
        """The reports, or that there are none."""
        return "\n".join(str(report) for report in self.reports) or "no reports"


@dataclass
class Reporter:
    """Collects reports, each (kind, instruction, other instruction) once, and names addresses."""

    place: Callable[[int], Place]
    table: AddressTable | None
    shared_base: int
    block: int
    found: dict[tuple, Report] = field(default_factory=dict)

    def add(self, kind: str, pc: int, message: str, other: int = -1) -> None:
        """Record a report at instruction `pc`, against instruction `other` if not negative."""
        key = (kind, pc, other)
        if key in self.found:
            return
        place, second = self.place(pc), self.place(other) if other >= 0 else None
        self.found[key] = Report(kind, message, place.line, place.text, place.source, second)

    def shared(self, cta: int, offset: int) -> str:
        """Name of a shared byte: tile, stage and offset in it, or the raw offset."""
        relative = offset - self.shared_base
        where = f"of CTA {cta}"
        tile = self.table.range_at(relative) if self.table else None
        if tile is None:
            return f"shared memory {where} at {relative:+#x}"
        return f"{tile} (shared memory {where}, byte {relative - tile.start} of the tile)"

    def barrier(self, cta: int, offset: int) -> str:
        """Name of an mbarrier."""
        relative = offset - self.shared_base
        name = self.table.barrier_at(relative) if self.table else None
        label = f"mbarrier {name.name}" if name else f"mbarrier at {relative:+#x}"
        return f"{label} of CTA {cta}"

    def threads(self, first: int, last: int) -> str:
        """Name of threads [first, last] of the cluster: role, warps and CTA."""
        cta, low, high = first // self.block, first % self.block, last % self.block
        role = self.table.role_of(low) if self.table else None
        warps = (
            f"warp {low // 32}" if low // 32 == high // 32 else f"warps {low // 32}-{high // 32}"
        )
        if (high - low + 1) % 32:
            warps = f"thread {low}" if low == high else f"threads {low}-{high}"
        label = f"{warps} of CTA {cta}"
        return f"{role.name} ({label})" if role else label
