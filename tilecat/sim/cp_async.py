"""Per-thread asynchronous copies, global to shared: cp.async. PTX ISA 9.7.9.25.3.

A copy reads and writes through the generic proxy, at any time until its thread waits for its
group (or an mbarrier that tracks it completes). Groups are counted a thread; happens-before keeps
one agent a warp, "its copies", whose time is the epoch of the issuing threads. An epoch ends at
every commit and every cp.async.mbarrier.arrive. What a wait tells the warp is the least epoch that
all its threads with copies have waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.conflicts import Pattern, pattern_of
from tilecat.sim.fibers import Fiber
from tilecat.sim.mbarrier import MBarrier, find
from tilecat.sim.memory import shared_cta, threads_of
from tilecat.sim.parse import Imm, Instruction, Reg
from tilecat.sim.program import refuse
from tilecat.sim.table import Row

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

_SIZES = {"ca": (4, 8, 16), "cg": (16,)}


@dataclass(eq=False)
class Copy:
    """One instruction of one warp: where each thread reads and writes, and what the warp knew."""

    threads: np.ndarray
    epochs: np.ndarray
    cta: int
    offsets: np.ndarray
    pattern: Pattern
    sources: list[np.ndarray]
    num_bytes: int
    snapshot: np.ndarray
    pc: int
    done: bool = False


@dataclass
class WarpCopies:
    """Copies of one warp that have not been done, and the epochs of its 32 threads."""

    agent: int
    pending: list[Copy] = field(default_factory=list)
    epoch: np.ndarray = field(default_factory=lambda: np.ones(32, np.int64))
    issued: np.ndarray = field(default_factory=lambda: np.zeros(32, np.int64))
    waited: np.ndarray = field(default_factory=lambda: np.zeros(32, np.int64))
    commits: list[list[int]] = field(default_factory=lambda: [[] for _ in range(32)])

    def known(self) -> int:
        """The epoch up to which every copy of the warp has been waited for."""
        open_ = self.issued > self.waited
        return int(self.waited[open_].min()) if open_.any() else int(self.issued.max())


def reset(machine: Machine) -> None:
    """Start of a cluster."""
    machine.copies = {}


def _copies(machine: Machine, warp: int) -> WarpCopies:
    found = machine.copies.get(warp)
    if found is None:
        name = machine.reporter.threads(warp * 32, warp * 32 + 31)
        agent = machine.clocks.agent(f"cp.async of {name}")
        found = machine.copies[warp] = WarpCopies(agent)
    return found


# ---- the copy
def _decode(item: Instruction) -> dict:
    """Copy size, and where the optional source size or ignore-src predicate stands."""
    size, hint = item.args[2], "L2::cache_hint" in item.mods
    allowed = _SIZES["cg" if "cg" in item.mods else "ca"]
    if not isinstance(size, Imm) or size.value not in allowed:
        raise refuse(item, f"a copy of {allowed} bytes is wanted")
    rest = item.args[3 : len(item.args) - hint]
    if len(rest) > 1 or hint and len(item.args) < 4:
        raise refuse(item, "operands do not fit the modifiers")
    ignore = bool(rest) and isinstance(rest[0], Reg) and rest[0].bank == "P"
    return {"bytes": size.value, "source": rest[0] if rest else None, "ignore": ignore}


def _source_bytes(machine: Machine, fiber: Fiber, item: Instruction, threads: np.ndarray):
    """Bytes a thread reads; the rest of its copy is zeros. 9.7.9.25.3.2."""
    size, operand = item.info["bytes"], item.info["source"]
    if operand is None:
        return np.full(len(threads), size)
    if item.info["ignore"]:
        skip = machine.registers.raw(operand, fiber.lo, fiber.hi)[threads - fiber.lo]
        return np.where(skip, 0, size)
    asked = machine.values(item, operand, "u32", fiber.lo, fiber.hi)[threads - fiber.lo]
    if (asked > size).any():
        machine.fault("bounds", item, f"source size at most {size} bytes, got {int(asked.max())}")
    return asked.astype(np.int64)


def _sources(machine: Machine, item: Instruction, addresses: np.ndarray, counts: np.ndarray):
    """Views of global memory, one a thread."""
    size, found = item.info["bytes"], []
    for address, count in zip(addresses.tolist(), counts.tolist(), strict=True):
        if count and address % size:
            machine.fault("align", item, f"address {address:#x} is not aligned to {size} bytes")
        segment = machine.global_memory.find(address, address + count) if count else None
        if count and segment is None:
            machine.report("bounds", item, f"{count} bytes at "
                           f"{machine.global_memory.describe(address)}")  # fmt: skip
        start = address - segment.start if segment else 0
        found.append(segment.data[start : start + count] if segment else np.zeros(0, np.uint8))
    return found


def _copy(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """cp.async: 9.7.9.25.3.2."""
    size, threads = item.info["bytes"], threads_of(machine, fiber, item)
    if not len(threads):
        return
    picked = threads - fiber.lo
    targets = machine.addresses(item, item.args[0], fiber.lo, fiber.hi)[picked]
    addresses = machine.addresses(item, item.args[1], fiber.lo, fiber.hi, "u64")[picked]
    if (targets % size).any():
        machine.fault("align", item, f"a shared address is not aligned to {size} bytes")
    counts = _source_bytes(machine, fiber, item, threads)
    sources = _sources(machine, item, addresses, counts)
    cta, offsets = shared_cta(machine, fiber, item, "shared::cta", targets, size)
    for warp in np.unique(threads // 32).tolist():
        part = np.nonzero(threads // 32 == warp)[0]
        _issue(machine, item, warp, threads[part], cta, offsets[part], [sources[k] for k in part])
    machine.stats["bytes copied"] += int(counts.sum())


def _issue(machine: Machine, item: Instruction, warp: int, threads, cta, offsets, sources) -> None:
    copies, lanes, size = _copies(machine, warp), threads % 32, item.info["bytes"]
    copies.issued[lanes] = copies.epoch[lanes]
    pattern = pattern_of(machine, offsets, threads, size)
    copy = Copy(threads, copies.epoch[lanes], cta, offsets, pattern, sources, size,
                machine.clocks.snapshot(warp, warp + 1), item.pc)  # fmt: skip
    copies.pending.append(copy)
    machine.clocks.tick(warp, warp + 1)
    machine.start(partial(_run, machine, copies, copy), wait_runs_it=True)


def _run(machine: Machine, copies: WarpCopies, copy: Copy) -> None:
    """Do a copy, once."""
    if copy.done:
        return
    copy.done = True
    copies.pending.remove(copy)
    if machine.races:
        _observe(machine, copies.agent, copy)
    data = np.zeros((len(copy.threads), copy.num_bytes), np.uint8)
    for row, source in zip(data, copy.sources, strict=True):
        row[: len(source)] = source
    machine.shared[copy.cta][copy.offsets[:, None] + np.arange(copy.num_bytes)] = data


def _observe(machine: Machine, agent: int, copy: Copy) -> None:
    """The copy's write, ordered after what the issuing warp knew."""
    shadow, pattern, time = machine.shadows[copy.cta], copy.pattern, int(copy.epochs.max())
    known = machine.clocks.padded(copy.snapshot)
    if len(pattern.chunks):
        shadow.copy_write_chunks(pattern.chunks, agent, time, known, copy.pc)
    if len(pattern.bytes):
        cells = shadow.byte_cells(pattern.bytes)
        shadow.copy_write(cells, agent, time, known, copy.pc)


# ---- groups
def _lanes_by_warp(machine: Machine, fiber: Fiber, item: Instruction):
    threads = threads_of(machine, fiber, item)
    for warp in np.unique(threads // 32).tolist():
        if warp in machine.copies:
            yield warp, machine.copies[warp], threads[threads // 32 == warp] % 32


def _commit(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """cp.async.commit_group: 9.7.9.25.3.3. Threads without copies get empty groups too."""
    threads = threads_of(machine, fiber, item)
    for warp in np.unique(threads // 32).tolist():
        copies = _copies(machine, warp)
        for lane in (threads[threads // 32 == warp] % 32).tolist():
            copies.commits[lane].append(int(copies.epoch[lane]))
            copies.epoch[lane] += 1


def _finish(machine: Machine, warp: int, copies: WarpCopies, lanes: np.ndarray, upto: np.ndarray):
    """Threads `lanes` have waited for their copies up to the epochs `upto`."""
    limit = np.zeros(32, np.int64)
    limit[lanes] = upto
    for copy in list(copies.pending):
        if (copy.epochs <= limit[copy.threads % 32]).any():
            _run(machine, copies, copy)
    copies.waited[lanes] = np.maximum(copies.waited[lanes], upto)
    machine.clocks.learn(warp, warp + 1, copies.agent, copies.known())


def _wait_group(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """cp.async.wait_group N: all but the N newest groups of the thread. 9.7.9.25.3.4."""
    newest = item.args[0].value
    for warp, copies, lanes in _lanes_by_warp(machine, fiber, item):
        groups = [copies.commits[lane] for lane in lanes.tolist()]
        upto = [group[-1 - newest] if len(group) > newest else 0 for group in groups]
        _finish(machine, warp, copies, lanes, np.array(upto))


def _wait_all(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """cp.async.wait_all: a commit and a wait for every group. 9.7.9.25.3.4."""
    for warp, copies, lanes in _lanes_by_warp(machine, fiber, item):
        for lane in lanes.tolist():
            copies.commits[lane].append(int(copies.epoch[lane]))
        _finish(machine, warp, copies, lanes, copies.epoch[lanes].copy())
        copies.epoch[lanes] += 1


# ---- mbarriers
def _arrive(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """cp.async.mbarrier.arrive: the arrival comes when the thread's copies so far are done.

    Without .noinc the pending count is raised by one first. 9.7.13.15.15.
    """
    for thread in threads_of(machine, fiber, item).tolist():
        barrier = find(machine, item, machine.address(item, item.args[0], thread), thread)
        copies, lane = _copies(machine, thread // 32), thread % 32
        if "noinc" not in item.mods:
            barrier.pending += 1
        mine = [copy for copy in copies.pending if (copy.threads % 32 == lane).any()]
        epoch = int(copies.epoch[lane])
        copies.epoch[lane] += 1
        machine.start(partial(_arrived, machine, item, barrier, copies, mine, epoch))


def _arrived(
    machine: Machine, item: Instruction, barrier: MBarrier, copies: WarpCopies, mine: list[Copy],
    epoch: int,
) -> None:  # fmt: skip
    for copy in mine:
        _run(machine, copies, copy)
    if machine.races:
        column = barrier.current.values[0]
        column[copies.agent] = max(int(column[copies.agent]), epoch)
    barrier.arrive(machine, item, 1)


_L2 = "{.L2::cache_hint}{.L2::64B,.L2::128B,.L2::256B}"
_SHARED = "(.shared,.shared::cta)"
TABLE = (
    Row(f"cp.async(.ca,.cg){_SHARED}.global{_L2}", "m m i rp? r?", _copy, "9.7.9.25.3.2",
        decode=_decode),
    Row("cp.async.commit_group", "", _commit, "9.7.9.25.3.3"),
    Row("cp.async.wait_group", "i", _wait_group, "9.7.9.25.3.4"),
    Row("cp.async.wait_all", "", _wait_all, "9.7.9.25.3.4"),
    Row("cp.async.mbarrier.arrive{.noinc}{.shared,.shared::cta}.b64", "m", _arrive,
        "9.7.13.15.15"),
)  # fmt: skip
