"""Happens-before: vector clocks, two a warp, and the shadow of shared memory.

A clock has one column an agent. Agents are warps, then "nobody" (who wrote what nobody wrote),
then the start of each CTA (at time 1 it has started), then asynchronous agents: the loads of an
mbarrier, the bulk stores of a thread, the wgmma of a warpgroup. Row 0 of a clock is what is known
to have happened; row 1 what is known to have been made visible to the async proxy by
fence.proxy.async (PTX ISA 8.2.3.1, 9.7.13.4). Beside them a warp has what its tcgen05 operations
are ordered after: what it knew at its last tcgen05.fence::after_thread_sync, of tcgen05.ld and .st
of others what they had put before a tcgen05.fence::before_thread_sync (PTX ISA 9.4, 9.7.17.6.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

GENERIC, ASYNC = 0, 1
CHUNK_BYTES = 16
_SPARE_AGENTS = 24


class SyncClock:
    """The clock a synchronisation object carries."""

    __slots__ = ("values",)

    def __init__(self, width: int):
        self.values = np.zeros((2, width), np.int32)


class Clocks:
    """What every warp of a cluster knows."""

    def __init__(self, warps: int, enabled: bool, ctas: int = 1):
        self.warps, self.nobody, self.enabled, self.ctas = warps, warps, enabled, ctas
        self.width = warps + 1 + ctas + _SPARE_AGENTS
        self.know = np.zeros((warps, 2, self.width), np.int32)
        self.tensor = np.zeros((warps, self.width), np.int32)
        self.reset()

    def reset(self) -> None:
        """Start of a cluster: nobody knows anything."""
        self.know[:] = 0
        self.tensor[:] = 0
        self.published = np.arange(self.width)
        diagonal = np.arange(self.warps)
        self.know[diagonal, 0, diagonal] = 1
        self.know[diagonal, 0, self.start(diagonal * self.ctas // self.warps)] = 1
        self.count = self.warps + 1 + self.ctas
        self.names: dict[int, str] = {self.nobody: "nobody"}
        self.sync: list[SyncClock] = []
        self.version = 0

    def start(self, cta: Any) -> Any:
        """Column of the start of a CTA."""
        return self.nobody + 1 + cta

    def new(self) -> SyncClock:
        """A clock for a synchronisation object; it grows with the number of agents."""
        clock = SyncClock(self.width)
        self.sync.append(clock)
        return clock

    def agent(self, name: str) -> int:
        """Column of a new asynchronous agent."""
        if self.count == self.width:
            extra = self.width
            self.know = np.pad(self.know, ((0, 0), (0, 0), (0, extra)))
            self.tensor = np.pad(self.tensor, ((0, 0), (0, extra)))
            self.published = np.concatenate([self.published, self.width + np.arange(extra)])
            for clock in self.sync:
                clock.values = np.pad(clock.values, ((0, 0), (0, extra)))
            self.width += extra
        self.names[self.count] = name
        self.count += 1
        return self.count - 1

    def snapshot(self, first: int, last: int) -> np.ndarray:
        """What warps [first, last) all know now."""
        return self.know[first:last].min(0)

    def padded(self, snapshot: np.ndarray) -> np.ndarray:
        """A snapshot taken before later agents existed."""
        missing = self.width - snapshot.shape[1]
        return np.pad(snapshot, ((0, 0), (0, missing))) if missing else snapshot

    def tick(self, first: int, last: int) -> None:
        """Later accesses of warps [first, last) are told from earlier ones."""
        if self.enabled:
            diagonal = np.arange(first, last)
            self.know[diagonal, 0, diagonal] += 1
            self.version += 1

    def release(self, first: int, last: int, clock: SyncClock) -> None:
        """Warps [first, last) publish what they know."""
        if self.enabled:
            known = self.know[first] if last - first == 1 else self.know[first:last].max(0)
            np.maximum(clock.values, known, out=clock.values)
            self.tick(first, last)

    def acquire(self, first: int, last: int, clock: SyncClock) -> None:
        """Warps [first, last) learn what was published."""
        if self.enabled:
            part = self.know[first:last]
            np.maximum(part, clock.values, out=part)
            self.version += 1

    def learn(self, first: int, last: int, agent: int, time: int, fenced: bool = False) -> None:
        """Warps [first, last) learn that an agent has reached `time`."""
        part = self.know[first:last, : 2 if fenced else 1, agent]
        np.maximum(part, time, out=part)
        self.version += 1

    def fence_tensor(self, first: int, last: int) -> None:
        """tcgen05.fence::after_thread_sync: `published` says in which column to look."""
        part = self.tensor[first:last]
        np.maximum(part, self.know[first:last, GENERIC][:, self.published], out=part)
        self.version += 1

    def fence(self, first: int, last: int) -> None:
        """fence.proxy.async: what the warps know becomes visible to the async proxy."""
        if self.enabled:
            part = self.know[first:last]
            np.maximum(part[:, ASYNC], part[:, GENERIC], out=part[:, ASYNC])
            self.tick(first, last)


class Shadow:
    """Last write and last reads of every 16-byte chunk of one CTA's shared memory.

    A chunk touched unevenly is split: sixteen more cells, one a byte, take its place until an
    access covers all of it again. Times are the agents' clocks.
    """

    def __init__(self, clocks: Clocks, num_bytes: int, cta: int):
        self.clocks, self.cta = clocks, cta
        self.num_chunks = num_bytes // CHUNK_BYTES
        self.address = np.arange(self.num_chunks) * CHUNK_BYTES
        self._allocate(self.num_chunks, 4)
        self.fine_base = np.full(self.num_chunks, -1)
        self.is_fine = np.zeros(self.num_chunks, bool)
        self.on_conflict: Callable | None = None
        self.on_barrier: Callable | None = None
        self.barriers = np.zeros(self.num_chunks, bool)  # chunks with a live mbarrier
        self.dirty = True
        self.reset()

    def _allocate(self, cells: int, readers: int) -> None:
        self.writer = np.zeros(cells, np.int32)
        self.time = np.ones(cells, np.int32)
        self.by_async = np.zeros(cells, bool)
        self.write_pc = np.full(cells, -1, np.int32)
        self.read_pc = np.full(cells, -1, np.int32)
        self.reads = np.zeros((readers, cells), np.int32)

    def reset(self) -> None:
        """Start of a CTA: uninitialised, unread."""
        if self.dirty:
            self.writer[:] = self.clocks.nobody
            self.time[:] = 1
            self.by_async[:] = False
            self.reads[:] = 0
            self.fine_base[:] = -1
            self.is_fine[:] = False
        self.dirty = False
        self.any_fine = False
        self.barriers[:] = False
        self.any_barrier = False
        self.atomic_pcs: set[int] = set()
        self.used = self.num_chunks
        self.reader_row: dict[int, int] = {}
        self.readers = np.zeros(0, np.int64)

    def row(self, agent: int) -> int:
        """Row of `reads` that belongs to an agent."""
        found = self.reader_row.get(agent)
        if found is None:
            found = self.reader_row[agent] = len(self.reader_row)
            self.readers = np.append(self.readers, agent)
            if found == len(self.reads):
                self.reads = np.concatenate([self.reads, np.zeros_like(self.reads)])
        return found

    def _grow(self, cells: int) -> None:
        old = (self.writer, self.time, self.by_async, self.write_pc, self.read_pc, self.reads)
        size, address = len(self.writer), self.address
        self._allocate(max(2 * size, cells), len(self.reads))
        new = (self.writer, self.time, self.by_async, self.write_pc, self.read_pc, self.reads)
        for target, source in zip(new, old, strict=True):
            target[..., :size] = source
        self.address = np.zeros(len(self.writer), np.int64)
        self.address[:size] = address

    def _refine(self, chunks: np.ndarray) -> None:
        """Give whole chunks one cell a byte, with the history they have as chunks."""
        fresh = chunks[self.fine_base[chunks] < 0]
        if len(fresh):
            need = self.used + CHUNK_BYTES * len(fresh)
            if need > len(self.writer):
                self._grow(need)
            self.fine_base[fresh] = self.used + CHUNK_BYTES * np.arange(len(fresh))
            self.used = need
        cells = (self.fine_base[chunks][:, None] + np.arange(CHUNK_BYTES)).ravel()
        source = np.repeat(chunks, CHUNK_BYTES)
        for array in (self.writer, self.time, self.by_async, self.write_pc, self.read_pc):
            array[cells] = array[source]
        self.reads[:, cells] = self.reads[:, source]
        offsets = np.tile(np.arange(CHUNK_BYTES), len(chunks))
        self.address[cells] = source * CHUNK_BYTES + offsets
        self.is_fine[chunks] = True
        self.any_fine = True

    def byte_cells(self, addresses: np.ndarray) -> np.ndarray:
        """Cells of single bytes; their chunks are split if they are not yet."""
        chunks = addresses // CHUNK_BYTES
        coarse = np.unique(chunks[~self.is_fine[chunks]])
        if len(coarse):
            self._refine(coarse)
        return self.fine_base[chunks] + addresses % CHUNK_BYTES

    def chunk_cells(self, chunks: slice | np.ndarray, write: bool) -> slice | np.ndarray:
        """Cells of whole chunks; a write joins split chunks again after checking them."""
        if not self.any_fine:
            return chunks
        index = np.arange(chunks.start, chunks.stop) if isinstance(chunks, slice) else chunks
        fine = self.is_fine[index]
        if not fine.any():
            return chunks
        split = (self.fine_base[index[fine]][:, None] + np.arange(CHUNK_BYTES)).ravel()
        return np.concatenate([index[~fine], split])

    def _join(self, chunks: slice | np.ndarray) -> None:
        if self.any_fine:
            self.is_fine[chunks] = False
            self.any_fine = bool(self.is_fine.any())

    def _overwritten(self, cells, agent: int, pc: int, known: np.ndarray, note: str) -> None:
        """Reads of these cells that nothing orders before this write."""
        count = len(self.readers)
        if not count:
            return
        late = self.reads[:count, cells] > known[self.readers][:, None]
        if agent in self.reader_row:
            late[self.reader_row[agent]] = False
        if late.any():
            column = int(np.argmax(late.any(0)))
            reader = int(self.readers[np.argmax(late[:, column])])
            cell = self._cell(cells, column)
            self.on_conflict(
                self, cell, agent, reader, pc, int(self.read_pc[cell]), "overwrite", note
            )

    @staticmethod
    def _cell(cells, index: int) -> int:
        return cells.start + index if isinstance(cells, slice) else int(cells[index])

    def _unordered(self, cells, bad: np.ndarray, agent: int, pc: int, kind: str, note: str) -> None:
        cell = self._cell(cells, int(np.argmax(bad)))
        writer = int(self.writer[cell])
        self.on_conflict(self, cell, agent, writer, pc, int(self.write_pc[cell]), kind, note)

    def mark_barriers(self, offsets: list[int]) -> None:
        """Where mbarriers are live: nothing else may write there."""
        self.barriers[:] = False
        self.barriers[[offset // CHUNK_BYTES for offset in offsets]] = True
        self.any_barrier = bool(offsets)

    def _check_barriers(self, cells, pc: int) -> None:
        start = self.address[cells]
        hit = self.barriers[start // CHUNK_BYTES]
        if hit.any():
            index = np.arange(cells.start, cells.stop) if isinstance(cells, slice) else cells
            width = np.where(index < self.num_chunks, CHUNK_BYTES, 1)
            self.on_barrier(self, start[hit], width[hit], pc)

    def _record_write(self, cells, agent, time, by_async: bool, pc: int) -> None:
        if self.any_barrier:
            self._check_barriers(cells, pc)
        self.writer[cells] = agent
        self.time[cells] = time
        self.by_async[cells] = by_async
        self.write_pc[cells] = pc
        if self.reader_row:
            self.reads[: len(self.readers), cells] = 0

    def async_write(self, chunks, agent: int, time: int, snapshot: np.ndarray, pc: int) -> None:
        """An async agent writes whole chunks; `snapshot` is what its issuer knew."""
        self.dirty = True
        cells = self.chunk_cells(chunks, True)
        known = self.clocks.padded(snapshot)
        writer, when = self.writer[cells], self.time[cells]
        bound = np.where(self.by_async[cells], known[GENERIC][writer], known[ASYNC][writer])
        bad = (
            (when > bound) & (writer != self.clocks.nobody) & ~((writer == agent) & (when == time))
        )
        if bad.any():
            fenced = (when[bad] <= known[GENERIC][writer[bad]]).all()
            self._unordered(cells, bad, agent, pc, "write", "proxy" if fenced else "")
        self._overwritten(cells, agent, pc, known[GENERIC], "")
        self._join(chunks)
        self._record_write(chunks, agent, time, True, pc)

    def async_read(self, chunks, agent: int, time: int, snapshot: np.ndarray, pc: int) -> None:
        """An async agent reads whole chunks."""
        self.dirty = True
        cells = self.chunk_cells(chunks, False)
        known = self.clocks.padded(snapshot)
        writer, when = self.writer[cells], self.time[cells]
        bound = np.where(self.by_async[cells], known[GENERIC][writer], known[ASYNC][writer])
        bad = when > bound
        if bad.any():
            fenced = (when[bad] <= known[GENERIC][writer[bad]]).all()
            self._unordered(cells, bad, agent, pc, "read", "proxy" if fenced else "")
        self.will_read(cells, agent, time, pc)

    def will_read(self, cells, agent: int, time: int, pc: int) -> None:
        """Note a read that may happen from now until the agent reaches `time`."""
        row = self.row(agent)
        self.reads[row, cells] = time
        self.read_pc[cells] = pc

    def copy_write(
        self, cells: np.ndarray, agent: int, time: int, known: np.ndarray, pc: int
    ) -> None:
        """A copy by the generic proxy (cp.async) writes cells; `known` is its issuer's clock."""
        self.dirty = True
        writer, when = self.writer[cells], self.time[cells]
        bad = (when > known[GENERIC][writer]) & (writer != self.clocks.nobody)
        bad &= ~((writer == agent) & (when == time))
        if bad.any():
            self._unordered(cells, bad, agent, pc, "write", "")
        self._overwritten(cells, agent, pc, known[GENERIC], "")
        self._record_write(cells, agent, time, False, pc)

    def copy_write_chunks(
        self, chunks: np.ndarray, agent: int, time: int, known: np.ndarray, pc: int
    ) -> None:
        """The same for whole chunks; split ones are chunks again."""
        cells = self.chunk_cells(chunks, True)
        self.copy_write(cells, agent, time, known, pc)
        if cells is not chunks:
            self._join(chunks)
            self._record_write(chunks, agent, time, False, pc)

    def check_initialised(self, cells: np.ndarray, agent: int, pc: int) -> None:
        """An agent that combines what is there with what it brings."""
        bad = self.writer[cells] == self.clocks.nobody
        if bad.any():
            self._unordered(cells, bad, agent, pc, "read", "")

    def check_unwritten(self, cells: np.ndarray, agent: int, time: int, pc: int) -> None:
        """What an agent writes it has not written yet in this phase: nothing orders the two."""
        bad = (self.writer[cells] == agent) & (self.time[cells] == time)
        if bad.any():
            self._unordered(cells, bad, agent, pc, "write", "")

    def note_write(self, cells: np.ndarray, agent: int, time: int, pc: int) -> None:
        """A write through the generic proxy, checked by the caller."""
        self._record_write(cells, agent, time, False, pc)

    def generic_read(self, cells: np.ndarray, warps: np.ndarray, pc: int) -> None:
        """Threads of `warps` (one a cell) read cells."""
        know = self.clocks.know
        self.dirty = True
        writer = self.writer[cells]
        bad = self.time[cells] > know[warps, GENERIC, writer]
        if bad.any():
            agent = int(warps[int(np.argmax(bad))])
            self._unordered(cells, bad, agent, pc, "read", "")
        present = np.unique(warps)
        rows = np.zeros(self.clocks.warps, np.int64)
        rows[present] = [self.row(int(warp)) for warp in present]
        self.reads[rows[warps], cells] = know[warps, GENERIC, warps]
        self.read_pc[cells] = pc

    def generic_write(
        self,
        cells: np.ndarray,
        warps: np.ndarray,
        pc: int,
        same_bytes: Callable[[], bool] | None = None,
    ) -> None:
        """Threads of `warps` (one a cell) write cells.

        Two warps that write the same bytes to one place do not count as a race: compilers keep
        replicated values this way.
        """
        know = self.clocks.know
        self.dirty = True
        writer = self.writer[cells]
        bad = (self.time[cells] > know[warps, GENERIC, writer]) & (writer != self.clocks.nobody)
        replicas = ~self.by_async[cells] & (writer < self.clocks.warps)
        if bad.any() and not (same_bytes and replicas[bad].all() and same_bytes()):
            agent = int(warps[int(np.argmax(bad))])
            self._unordered(cells, bad, agent, pc, "write", "")
        count = len(self.readers)
        if count:
            late = self.reads[:count, cells] > know[warps[:, None], GENERIC, self.readers].T
            late &= self.readers[:, None] != warps
            if late.any():
                column = int(np.argmax(late.any(0)))
                reader = int(self.readers[np.argmax(late[:, column])])
                cell = int(cells[column])
                self.on_conflict(self, cell, int(warps[column]), reader, pc,
                                 int(self.read_pc[cell]), "overwrite", "")  # fmt: skip
        self._record_write(cells, warps, know[warps, GENERIC, warps], False, pc)

    def join_written(self, chunks: np.ndarray, warps: np.ndarray, pc: int) -> None:
        """Split chunks that one warp has just written whole are chunks again."""
        self._join(chunks)
        self._record_write(chunks, warps, self.clocks.know[warps, GENERIC, warps], False, pc)

    def atomic(self, cells: np.ndarray, warp: int, pc: int) -> None:
        """An atomic by a warp: ordered against plain accesses, not against other atomics."""
        plain = ~np.isin(self.write_pc[cells], list(self.atomic_pcs))
        self.atomic_pcs.add(pc)
        warps = np.full(len(cells), warp)
        if plain.any():
            self.generic_read(cells[plain], warps[plain], pc)
            self.generic_write(cells[plain], warps[plain], pc)
        if not plain.all():
            rest = cells[~plain]
            self._record_write(rest, warp, self.clocks.know[warp, GENERIC, warp], False, pc)
