"""Clusters of a launch: one after the other, and in turns where they wait for one another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Semaphore, Thread

from tilecat.sim.core import Machine


class Clusters:
    """Runs all clusters of a grid, one at a time.

    A cluster that polls global memory in vain stands aside: another begins, or one that stood
    aside before goes on. Each has a thread of its own for that; a single one of them runs.

    Args:
        first: a machine, in which the others count and report.
        waiting: numbers of the clusters, in the order in which they begin.
        another: makes a machine like the first.
        progress: called with (CTAs done, all CTAs) after every cluster.
    """

    def __init__(
        self, first: Machine, waiting: list[int], another: Callable[[Machine], Machine],
        progress: Callable[[int, int], None] | None,
    ):  # fmt: skip
        self.first, self.waiting, self.another = first, deque(waiting), another
        self.progress, self.total, self.done = progress, len(waiting) * first.ctas, 0
        self.aside: deque[Semaphore] = deque()
        self.spare: list[Machine] = []
        self.in_vain = 0  # how often one stood aside since anything changed
        self.error: BaseException | None = None

    def run(self) -> None:
        """All of them.

        Raises:
            BaseException: what any of them raised.
        """
        try:
            while self.waiting or self.aside:
                if self.waiting:
                    self._run(self.first)
                else:
                    self._let(self.aside.popleft().release)
        except BaseException as error:
            self.error = error  # of those that stand aside too: their threads end
            self._end_all()
            raise

    def _end_all(self) -> None:
        while self.aside:
            self.aside.popleft().release()

    def _run(self, machine: Machine) -> None:
        machine.run_other, machine.changed = self._run_other, self._changed
        machine.cancel_launch = self._cancel
        machine.run_cluster(self.waiting.popleft())
        self.done += machine.ctas
        self.in_vain = 0
        if self.progress is not None:
            self.progress(self.done, self.total)

    def _cancel(self) -> int | None:
        """The cluster that would begin next does not: somebody does its work. 9.7.14.18."""
        if not self.waiting:
            return None
        self.done += self.first.ctas
        return self.waiting.popleft()

    def _changed(self) -> None:
        self.in_vain = 0

    def _run_other(self) -> bool:
        """Stands aside; False if no other can change anything."""
        if self.waiting:
            self.in_vain = 0
            self._let(Thread(target=self._run_aside, daemon=True).start)
            return True
        self.in_vain += 1
        if self.in_vain > 2 * len(self.aside):
            return False
        self._let(self.aside.popleft().release)
        return True

    def _let(self, go: Callable[[], None]) -> None:
        """Another thread goes on; this one does when its time has come."""
        mine = Semaphore(0)
        self.aside.append(mine)
        go()
        mine.acquire()
        if self.error is not None:
            raise self.error

    def _run_aside(self) -> None:
        """A thread: one cluster, then whoever has stood aside the longest."""
        try:
            machine = self.spare.pop() if self.spare else self.another(self.first)
            self._run(machine)
            self.spare.append(machine)
        except BaseException as error:
            self.error = error
        if self.aside:
            self.aside.popleft().release()
