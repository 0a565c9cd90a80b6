"""Discrete events: processes that sleep and wait for counts, and servers that take turns."""

from __future__ import annotations

import heapq
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ..errors import SyncError


@dataclass(frozen=True)
class Span:
    """What a unit did, cycles.

    Args:
        unit: row of the timeline, `TMA`, `tensor cores`, `consumer 0`.
        name: what it did.
        start: when it began.
        end: when it was done.
    """

    unit: str
    name: str
    start: float
    end: float


@dataclass
class Count:
    """A number that grows, as the arrivals on an mbarrier over all its phases.

    Args:
        name: for the report of a deadlock.
        value: arrivals until now.
        waiters: (number, process) of those that wait for more.
    """

    name: str
    value: int = 0
    waiters: list[tuple[int, Process]] = field(default_factory=list)


# Yields cycles to sleep, or a count and the number to wait for.
Process = Generator["float | tuple[Count, int]", None, None]


class Events:
    """The time, and what happens next; at one time, in the order of the asking."""

    def __init__(self) -> None:
        self.now = 0.0
        self.spans: list[Span] = []
        self._queue: list[tuple[float, int, Any]] = []
        self._order = count()

    def start(self, process: Process) -> None:
        """Runs a process from now on."""
        self._at(self.now, process)

    def arrive_at(self, time: float, where: Count) -> None:
        """One arrival, at a time to come."""
        self._at(time, where)

    def arrive(self, where: Count) -> None:
        """One arrival now: wakes who waits for it."""
        where.value += 1
        waiting, where.waiters = where.waiters, []
        for number, process in waiting:
            if where.value >= number:
                self._at(self.now, process)
            else:
                where.waiters.append((number, process))

    def span(self, unit: str, name: str, start: float, end: float) -> None:
        """Puts work on the timeline."""
        if end > start:
            self.spans.append(Span(unit, name, start, end))

    def run(self, counts: tuple[Count, ...] = ()) -> float:
        """All events, and the time of the last.

        Args:
            counts: that nobody may wait for at the end.

        Raises:
            SyncError: a process waits for an arrival that never comes.
        """
        while self._queue:
            self.now, _, what = heapq.heappop(self._queue)
            if isinstance(what, Count):
                self.arrive(what)
            else:
                self._step(what)
        for where in counts:
            for number, _ in where.waiters:
                raise SyncError(f"replay: waits for {number} arrivals on {where.name}, "
                                f"got {where.value}")  # fmt: skip
        return self.now

    def _at(self, time: float, what: Any) -> None:
        heapq.heappush(self._queue, (time, next(self._order), what))

    def _step(self, process: Process) -> None:
        for wish in process:
            if not isinstance(wish, tuple):
                return self._at(self.now + wish, process)
            where, number = wish
            if where.value < number:
                where.waiters.append((number, process))
                return


class Server:
    """A unit that does one thing at a time, in the order of the asking."""

    def __init__(self, events: Events, name: str):
        self.events, self.name = events, name
        self.free_at = self.busy = 0.0

    def serve(self, what: str, cycles: float) -> float:
        """Queues work of so many cycles; the time at which it is done."""
        start = max(self.events.now, self.free_at)
        self.free_at = start + cycles
        self.busy += cycles
        self.events.span(self.name, what, start, self.free_at)
        return self.free_at
