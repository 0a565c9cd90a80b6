"""mbarrier objects. PTX ISA 9.7.13.15."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.fibers import Fiber, cut
from tilecat.sim.parse import Instruction, Mem, Sink
from tilecat.sim.report import OFFSET_MASK, RANK_SHIFT
from tilecat.sim.table import AGAIN, BLOCK, NEXT, Row

if TYPE_CHECKING:
    from tilecat.sim.clocks import Shadow
    from tilecat.sim.core import Machine

MAX_COUNT = (1 << 20) - 1
BYTES = 8
_TIME_RUNS_OUT = 0.05


class MBarrier:
    """State of one mbarrier: phase, pending arrivals and bytes, and the clocks it carries."""

    def __init__(self, machine: Machine, key: tuple[int, int], count: int, warp: int, pc: int):
        self.key, self.count, self.pending, self.bytes, self.phase = key, count, count, 0, 0
        self.done, self.current = machine.clocks.new(), machine.clocks.new()
        self.waiters: list[Fiber] = []
        self.init_warp, self.init_pc, self.fenced = warp, pc, False
        self.published = 0  # the cluster barrier's phase that makes the fenced init visible
        self.init_time = int(machine.clocks.know[warp, 0, warp])
        self.agent: int | None = None
        self.issued, self.issued_pc = 0, -1

    def name(self, machine: Machine) -> str:
        """Its name, or its address."""
        return machine.reporter.barrier(*self.key)

    def state(self, machine: Machine) -> str:
        """What its waiters wait for."""
        arrived = self.count - self.pending
        return (f"{self.name(machine)}, phase {self.phase}: {arrived} of {self.count} arrivals, "
                f"{self.bytes} bytes missing")  # fmt: skip

    def loads_agent(self, machine: Machine) -> int:
        """The agent whose time is the phase that its loads complete."""
        if self.agent is None:
            self.agent = machine.clocks.agent(f"async copies that complete on {self.name(machine)}")
        return self.agent

    def arrive(self, machine: Machine, item: Instruction, count: int) -> None:
        """Count arrivals; the phase may end."""
        if count > self.pending:
            machine.fault("mbarrier", item, f"{self.name(machine)}: {count} arrivals, but only "
                          f"{self.pending} of {self.count} pending")  # fmt: skip
        self.pending -= count
        self.advance(machine)

    def expect(self, machine: Machine, item: Instruction, num_bytes: int) -> None:
        """Raise the transaction count."""
        self.bytes += num_bytes
        if abs(self.bytes) > MAX_COUNT:
            machine.fault("mbarrier", item, f"{self.name(machine)}: transaction count {self.bytes} "
                          f"leaves +-{MAX_COUNT}")  # fmt: skip

    def advance(self, machine: Machine) -> None:
        """End the phase if nothing is pending."""
        if self.pending or self.bytes:
            return
        self.phase += 1
        self.pending = self.count
        machine.idle_polls = 0
        np.maximum(self.done.values, self.current.values, out=self.done.values)
        self.current.values[:] = 0
        for fiber in self.waiters:
            machine.blocked.pop(fiber)
            machine.fibers.append(fiber)
        self.waiters = []


def find(
    machine: Machine, item: Instruction, address: int, thread: int, *, remote: bool = False,
    by_async: bool = False,
) -> MBarrier:  # fmt: skip
    """The mbarrier at an address, checked for init, order after init, and its fence."""
    key = (address >> RANK_SHIFT, address & OFFSET_MASK)
    away = key[0] != thread // machine.block
    if away and not remote:
        machine.fault("mbarrier", item, f"shared::cta address {address:#x} names an mbarrier of "
                      f"CTA {key[0]} of the cluster")  # fmt: skip
    barrier = machine.mbarriers.get(key)
    if barrier is None:
        machine.fault("mbarrier", item, f"{machine.reporter.barrier(*key)} is used before its init")
    if machine.races:
        warp = thread // 32
        told = 0 < barrier.published <= machine.cluster_barrier.waited[warp]
        if not told and machine.clocks.know[warp, 0, barrier.init_warp] < barrier.init_time:
            message = f"{barrier.name(machine)} used with no order after its init"
            machine.report("race", item, message, barrier.init_pc)
    # fence.mbarrier_init makes the init visible in the cluster (9.7.13.4): needed for clusters.
    if away and not barrier.fenced or by_async and machine.ctas > 1 and not barrier.fenced:
        message = f"{barrier.name(machine)} used by another CTA or the async proxy of a cluster "
        message += "without fence.mbarrier_init"
        machine.report("fence", item, message, barrier.init_pc)
    return barrier


def _init(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    for thread in machine.active(fiber, item):
        address = machine.address(item, item.args[0], thread)
        offset = machine.own_offset(item, address, thread, 8)
        count = machine.value(item, item.args[1], thread)
        if offset % 8:
            machine.fault("align", item, f"mbarrier at {offset:#x} is not 8-byte aligned")
        if not 1 <= count <= MAX_COUNT:
            machine.fault("mbarrier", item, f"count 1 to {MAX_COUNT}, got {count}")
        key = (thread // machine.block, offset)
        old = machine.mbarriers.get(key)
        if old is not None:
            machine.report("mbarrier", item, f"init of {old.state(machine)}, which is valid: an "
                           "mbarrier.inval comes first", old.init_pc)  # fmt: skip
        machine.mbarriers[key] = MBarrier(machine, key, count, thread // 32, item.pc)
        _mark(machine, key[0])


def _inval(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    for thread in machine.active(fiber, item):
        barrier = find(machine, item, machine.address(item, item.args[0], thread), thread)
        if barrier.waiters or barrier.bytes:
            machine.report("mbarrier", item, f"inval of {barrier.state(machine)}, which is in use")
        del machine.mbarriers[barrier.key]
        _mark(machine, barrier.key[0])
        if machine.races:  # the bytes may be used for anything, after this
            shadow, offset = machine.shadows[barrier.key[0]], barrier.key[1]
            cells = shadow.byte_cells(np.arange(offset, offset + BYTES))
            shadow.generic_write(cells, np.full(BYTES, thread // 32), item.pc)


def _mark(machine: Machine, cta: int) -> None:
    offsets = [offset for owner, offset in machine.mbarriers if owner == cta]
    machine.shadows[cta].mark_barriers(offsets)


def overwritten(machine: Machine, shadow: Shadow, start, width, pc: int) -> None:
    """Something writes bytes [start, start + width) near live mbarriers. 9.7.13.15.10."""
    for (cta, offset), barrier in machine.mbarriers.items():
        if cta == shadow.cta and ((start < offset + BYTES) & (start + width > offset)).any():
            message = f"a write over {barrier.name(machine)}, which has not been invalidated"
            machine.report("mbarrier", pc, message, barrier.init_pc)


def _arrive(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """mbarrier.arrive, .arrive.expect_tx, .arrive_drop: 9.7.13.15.13, 9.7.13.15.14."""
    has_state = not isinstance(item.args[0], Sink)
    remote = "shared::cluster" in item.mods
    expects, drop = "expect_tx" in item.mods, "arrive_drop" in item.mods
    if has_state and remote:
        machine.unsupported(item, "a remote arrive has no state: the destination must be _")
    for thread, address in _each(machine, fiber, item, item.args[1]):
        barrier = find(machine, item, address, thread, remote=remote)
        operand = machine.value(item, item.args[2], thread) if len(item.args) > 2 else 1
        if has_state:
            machine.registers.raw(item.args[0], thread, thread + 1)[0] = barrier.phase
        if barrier.key[0] != thread // machine.block:
            note_remote(machine, item, barrier.key[0], thread // 32)
        if "relaxed" not in item.mods:
            machine.clocks.release(thread // 32, thread // 32 + 1, barrier.current)
        if expects:
            barrier.expect(machine, item, operand)
        if drop:
            barrier.count -= 1 if expects else operand
        if barrier.count < 0:
            machine.fault("mbarrier", item, f"{barrier.name(machine)}: more dropped than its count")
        barrier.arrive(machine, item, 1 if expects else operand)


def _each(machine: Machine, fiber: Fiber, item: Instruction, operand: Mem) -> list[tuple[int, int]]:
    """Threads and the addresses they name; with a mask one in each of its CTAs. PTX ISA 9.4."""
    named = [(t, machine.address(item, operand, t)) for t in machine.active(fiber, item)]
    if "multicast::cluster::32b" not in item.mods:
        return named
    out = []
    for thread, address in named:
        mask = machine.value(item, item.args[-1], thread)
        if mask >> machine.ctas or not mask:
            machine.fault("bounds", item, f"mask {mask:#x} for a cluster of {machine.ctas}")
        out += [(thread, cta << RANK_SHIFT | address & OFFSET_MASK)
                for cta in range(machine.ctas) if mask >> cta & 1]  # fmt: skip
    return out


def check_there(machine: Machine, item: Instruction, cta: int, warp: int) -> None:
    """Shared memory of a CTA is there from when it has started until it has exited.

    The start must be known: CUDA programming guide, "Distributed shared memory".
    """
    who = machine.reporter.threads(warp * 32, warp * 32 + 31)
    if not machine.alive[cta]:
        machine.report("exit", item, f"{who} uses shared memory of CTA {cta}, which has exited")
    if not machine.races or machine.clocks.know[warp, 0, machine.clocks.start(cta)]:
        return
    mine, other = (machine.cta_numbers[n] for n in (warp * 32 // machine.block, cta))
    if not machine.global_memory.order.of(mine).known.get(other):
        machine.report("start", item, f"{who} uses shared memory of CTA {cta}, which may not have "
                       "started: a barrier of the cluster comes first")  # fmt: skip


def note_remote(machine: Machine, item: Instruction, cta: int, warp: int) -> None:
    """A warp touches another CTA's shared memory: that CTA must still be there."""
    check_there(machine, item, cta, warp)
    time = int(machine.clocks.know[warp, 0, warp])
    machine.remote.setdefault(cta, {})[warp] = (time, item.pc)


def _expect_tx(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """mbarrier.expect_tx, .complete_tx: 9.7.13.15.11, 9.7.13.15.12."""
    completes = "complete_tx" in item.mods
    for thread, address in _each(machine, fiber, item, item.args[0]):
        barrier = find(machine, item, address, thread, remote="shared::cluster" in item.mods)
        num_bytes = machine.value(item, item.args[1], thread)
        barrier.expect(machine, item, -num_bytes if completes else num_bytes)
        if completes:
            barrier.advance(machine)


def _wait(machine: Machine, fiber: Fiber, item: Instruction):
    """mbarrier.try_wait, .test_wait, with a parity or a state: 9.7.13.15.16."""
    parity = "parity" in item.mods
    lo, hi = fiber.lo, fiber.hi
    if item.predicate is not None:
        mask = machine.active_mask(fiber, item)
        if not mask.any():
            return NEXT
        if not mask.all():
            return cut(machine, fiber, mask)
    addresses = machine.addresses(item, item.args[1], lo, hi)
    phases = machine.values(item, item.args[2], "u32" if parity else "u64", lo, hi)
    if hi - lo > 1 and not ((addresses == addresses[0]).all() and (phases == phases[0]).all()):
        return cut(machine, fiber, np.stack([addresses, phases.astype(np.int64)], 1))
    barrier = find(machine, item, int(addresses[0]), lo)
    result = machine.registers.raw(item.args[0], lo, hi)
    done = (barrier.phase & 1) != (int(phases[0]) & 1) if parity else barrier.phase > int(phases[0])
    if done:
        result[:] = True
        if "relaxed" not in item.mods:
            machine.clocks.acquire(*fiber.warps, barrier.done)
        return NEXT
    if "test_wait" in item.mods:
        result[:] = False
        return AGAIN
    if _gives_up(machine, item):
        result[:] = False
        return AGAIN
    fiber.waits_for = barrier
    barrier.waiters.append(fiber)
    return BLOCK


def _gives_up(machine: Machine, item: Instruction) -> bool:
    """Whether a try_wait that would block returns false: its time limit is the system's.

    So each does the first time; a program must look at the result. 9.7.13.15.16.
    """
    first = item.pc not in machine.gave_up
    machine.gave_up.add(item.pc)
    return first or machine.policy == "random" and machine.random.random() < _TIME_RUNS_OUT


_ORDER = "{.release,.relaxed}{.cta,.cluster}"
# PTX ISA 9.4: one of its kind in every CTA of a mask.
_ALL = f"{_ORDER}.shared::cluster.multicast::cluster::32b.b64"
TABLE = (
    Row("mbarrier.init(.shared,.shared::cta).b64", "m r", _init, "9.7.13.15.9"),
    Row("mbarrier.inval(.shared,.shared::cta).b64", "m", _inval, "9.7.13.15.10"),
    Row(f"mbarrier.arrive{_ORDER}(.shared,.shared::cta,.shared::cluster).b64", "d m r?", _arrive,
        "9.7.13.15.13"),
    Row(f"mbarrier.arrive.expect_tx{_ORDER}(.shared,.shared::cta,.shared::cluster).b64", "d m r",
        _arrive, "9.7.13.15.13"),
    Row(f"mbarrier.arrive_drop{_ORDER}(.shared,.shared::cta,.shared::cluster).b64", "d m r?",
        _arrive, "9.7.13.15.14"),
    Row(f"mbarrier.arrive_drop.expect_tx{_ORDER}(.shared,.shared::cta,.shared::cluster).b64",
        "d m r", _arrive, "9.7.13.15.14"),
    Row("mbarrier.expect_tx{.relaxed}{.cta,.cluster}(.shared,.shared::cta,.shared::cluster).b64",
        "m r", _expect_tx, "9.7.13.15.11"),
    Row("mbarrier.complete_tx{.relaxed}{.cta,.cluster}(.shared,.shared::cta,.shared::cluster).b64",
        "m r", _expect_tx, "9.7.13.15.12"),
    Row(f"mbarrier(.arrive,.arrive_drop){_ALL}", "d m r r", _arrive, "9.7.14.16.13",
        needs="mask-32b"),
    Row(f"mbarrier(.arrive,.arrive_drop).expect_tx{_ALL}", "d m r r", _arrive, "9.7.14.16.13",
        needs="mask-32b"),
    Row(f"mbarrier(.expect_tx,.complete_tx){_ALL}", "m r r", _expect_tx, "9.7.14.16.11",
        needs="mask-32b"),
    Row("mbarrier.try_wait{.parity}{.acquire,.relaxed}{.cta,.cluster}(.shared,.shared::cta).b64",
        "p m r r?", _wait, "9.7.13.15.16"),
    Row("mbarrier.test_wait{.parity}{.acquire,.relaxed}{.cta,.cluster}(.shared,.shared::cta).b64",
        "p m r", _wait, "9.7.13.15.16"),
)  # fmt: skip
