"""Named and cluster barriers, fences, setmaxnreg, exit rules, deadlocks. PTX ISA 9.7.13."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim import bulk_stores, tensor_alloc, tensor_core, wgmma
from tilecat.sim.clocks import SyncClock
from tilecat.sim.fibers import Fiber, cut, whole_warps
from tilecat.sim.mbarrier import MBarrier
from tilecat.sim.parse import Imm, Instruction
from tilecat.sim.program import refuse
from tilecat.sim.table import AGAIN, BLOCK, NEXT, Row

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

_REGISTERS_A_CTA = 65536  # 32-bit registers of an SM, CUDA programming guide, table of capabilities
_MAX_REGISTERS = 256


@dataclass
class NamedBarrier:
    """Barrier `id` of a CTA: how many threads have come, of how many."""

    number: int
    wanted: int
    clock: SyncClock
    of_all: bool = False
    arrived: int = 0
    waiting: list[Fiber] = field(default_factory=list)
    votes: list[tuple[Fiber, np.ndarray]] = field(default_factory=list)
    came: list[tuple[int, int, int]] = field(default_factory=list)
    came_before: list[tuple[int, int, int]] = field(default_factory=list)

    def finish(self) -> None:
        """All have come: the next use begins."""
        self.arrived, self.waiting = 0, []
        self.came, self.came_before = [], self.came


@dataclass
class ClusterBarrier:
    """The barrier of all threads of a cluster."""

    collecting: SyncClock
    released: SyncClock
    arrivals: np.ndarray
    waited: np.ndarray  # the last phase that each warp has waited for
    arrived: int = 0
    phase: int = 0
    waiting: list[Fiber] = field(default_factory=list)


def reset(machine: Machine) -> None:
    """Start of a cluster."""
    clocks = machine.clocks
    machine.mbarriers = {}
    machine.gave_up = set()
    machine.named = {}
    machine.remote, machine.pushes = {}, {}
    machine.cluster_barrier = ClusterBarrier(
        clocks.new(), clocks.new(), np.zeros(machine.num_threads, np.int64),
        np.zeros(machine.num_threads // 32, np.int64),
    )  # fmt: skip
    machine.exit_clocks = [clocks.new() for _ in range(machine.ctas)]
    directives = machine.program.module.directives
    # .minnctapersm (11.4.4): so many CTAs fit on an SM, each with its share of the registers.
    room = _REGISTERS_A_CTA // directives.get("minnctapersm", (1,))[0]
    start = directives.get("maxnreg", (0,))[0] or min(
        room // machine.block // 8 * 8, _MAX_REGISTERS
    )
    machine.warp_registers = np.full(machine.num_threads // 32, start)
    machine.free_registers = [room - start * machine.block] * machine.ctas
    machine.register_waiters = []


# ---- named barriers
def _bar(machine: Machine, fiber: Fiber, item: Instruction):
    """bar.sync, bar.arrive, barrier.sync, barrier.arrive, .red: 9.7.13.1."""
    outcome = whole_warps(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    reduction = "red" in item.mods
    operands = item.args[1:-1] if reduction else item.args
    numbers = machine.values(item, operands[0], "u32", fiber.lo, fiber.hi)
    if (numbers != numbers[0]).any():
        return cut(machine, fiber, numbers.astype(np.int64))
    number, cta = int(numbers[0]), fiber.lo // machine.block
    wanted = machine.value(item, operands[1], fiber.lo) if len(operands) > 1 else machine.alive[cta]
    if number > 15 or wanted % 32 or not 0 < wanted <= machine.block:
        machine.fault("barrier", item, f"barrier 0 to 15 and a multiple of 32 threads of the "
                      f"{machine.block}, got barrier {number}, {wanted} threads")  # fmt: skip
    votes = None
    if reduction:
        source = machine.registers.raw(item.args[-1], fiber.lo, fiber.hi)
        votes = source.copy()
    return _come(machine, fiber, item, number, wanted, votes)


def _come(machine: Machine, fiber: Fiber, item: Instruction, number: int, wanted: int, votes):
    key = (fiber.lo // machine.block, number)
    barrier = machine.named.get(key)
    if barrier is None:
        barrier = machine.named[key] = NamedBarrier(number, wanted, machine.clocks.new())
    if barrier.arrived and barrier.wanted != wanted:
        machine.report("barrier", item, f"barrier {number} of {wanted} threads here, of "
                       f"{barrier.wanted} threads elsewhere")  # fmt: skip
    barrier.wanted, barrier.of_all = wanted, len(item.args) == 1
    barrier.arrived += fiber.hi - fiber.lo
    _check_reuse(machine, barrier, fiber, item)
    machine.clocks.release(*fiber.warps, barrier.clock)
    if barrier.arrived > wanted:
        machine.fault("barrier", item, f"{barrier.arrived} threads come to barrier {number}, which "
                      f"is for {wanted}")  # fmt: skip
    stays = "arrive" not in item.mods
    if votes is not None:
        barrier.votes.append((fiber, votes))
    if barrier.arrived < wanted:
        if not stays:
            return NEXT
        fiber.waits_for = barrier
        barrier.waiting.append(fiber)
        return BLOCK
    _open(machine, barrier, item)
    if stays:
        machine.clocks.acquire(*fiber.warps, barrier.clock)
    barrier.clock.values[:] = 0
    return NEXT


def _check_reuse(machine: Machine, barrier: NamedBarrier, fiber: Fiber, item: Instruction) -> None:
    """Who comes must know that all came to the barrier's last use: else it could count there."""
    if not machine.races:
        return
    first, last = fiber.warps
    for warp, time, pc in barrier.came_before:
        if machine.clocks.know[first:last, 0, warp].min() < time:
            who = machine.reporter.threads(fiber.lo, fiber.hi - 1)
            before = machine.reporter.threads(warp * 32, warp * 32 + 31)
            message = (
                f"{who} come to barrier {barrier.number} with no order after its last use by "
                f"{before}, where they might be counted"
            )
            machine.report("barrier", item, message, pc)
            break
    for warp in range(first, last):
        barrier.came.append((warp, int(machine.clocks.know[warp, 0, warp]), item.pc))


def _open(machine: Machine, barrier: NamedBarrier, item: Instruction) -> None:
    machine.idle_polls = 0
    for fiber in barrier.waiting:
        machine.blocked.pop(fiber)
        machine.clocks.acquire(*fiber.warps, barrier.clock)
        fiber.pc += 1
        machine.fibers.append(fiber)
    barrier.finish()
    if barrier.votes:
        flat = np.concatenate([votes for _, votes in barrier.votes])
        for fiber, _ in barrier.votes:
            dst = machine.registers.raw(item.args[0], fiber.lo, fiber.hi)
            if "popc" in item.mods:
                dst[:] = int(flat.sum())
            else:
                dst[:] = flat.all() if "and" in item.mods else flat.any()
        barrier.votes = []


# ---- the cluster's barrier
def _cluster_arrive(machine: Machine, fiber: Fiber, item: Instruction):
    """barrier.cluster.arrive: 9.7.13.2."""
    outcome = whole_warps(machine, fiber, item) if "aligned" in item.mods else NEXT
    if outcome is not NEXT:
        return outcome
    barrier = machine.cluster_barrier
    if (barrier.arrivals[fiber.lo : fiber.hi] > barrier.phase).any():
        machine.fault(
            "barrier", item, "second arrive at the cluster barrier without a wait between"
        )
    barrier.arrivals[fiber.lo : fiber.hi] = barrier.phase + 1
    barrier.arrived += fiber.hi - fiber.lo
    barrier.collecting.values[0, machine.clocks.start(fiber.lo // machine.block)] = 1
    if "relaxed" not in item.mods:
        machine.clocks.release(*fiber.warps, barrier.collecting)
    for mbarrier in machine.mbarriers.values():  # a fence of inits goes with a relaxed arrive too
        if mbarrier.fenced and not mbarrier.published and mbarrier.init_warp in range(*fiber.warps):
            mbarrier.published = barrier.phase + 1
    _cluster_advance(machine)
    return NEXT


def _cluster_advance(machine: Machine) -> None:
    barrier = machine.cluster_barrier
    if not barrier.arrived or barrier.arrived < sum(machine.alive):
        return
    barrier.arrived, barrier.phase = 0, barrier.phase + 1
    machine.idle_polls = 0
    barrier.released.values[:] = barrier.collecting.values
    machine.global_memory.order.meet(machine.cta_numbers)
    for fiber in barrier.waiting:
        machine.blocked.pop(fiber)
        machine.fibers.append(fiber)
    barrier.waiting = []


def _cluster_wait(machine: Machine, fiber: Fiber, item: Instruction):
    """barrier.cluster.wait: 9.7.13.2."""
    outcome = whole_warps(machine, fiber, item) if "aligned" in item.mods else NEXT
    if outcome is not NEXT:
        return outcome
    barrier = machine.cluster_barrier
    wanted = barrier.arrivals[fiber.lo : fiber.hi]
    if (wanted == 0).any() or barrier.waited[slice(*fiber.warps)].max() >= wanted.min():
        machine.fault("barrier", item, "wait at the cluster barrier without an arrive before it")
    if barrier.phase >= wanted.max():
        machine.clocks.acquire(*fiber.warps, barrier.released)
        barrier.waited[slice(*fiber.warps)] = barrier.phase
        return NEXT
    fiber.waits_for = barrier
    barrier.waiting.append(fiber)
    return BLOCK


# ---- fences
def _fence_async(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """fence.proxy.async: generic accesses before it reach the async proxy. 9.7.13.4."""
    for first, last in _active_warps(machine, fiber, item):
        machine.clocks.fence(first, last)
        _mark_fenced(machine, first, last)


def _fence_init(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """fence.mbarrier_init.release.cluster: 9.7.13.4."""
    for first, last in _active_warps(machine, fiber, item):
        _mark_fenced(machine, first, last)


def _active_warps(machine: Machine, fiber: Fiber, item: Instruction) -> list[tuple[int, int]]:
    if item.predicate is None:
        return [fiber.warps]
    threads = np.array(machine.active(fiber, item), np.int64)
    return [(int(warp), int(warp) + 1) for warp in np.unique(threads // 32)]


def _mark_fenced(machine: Machine, first: int, last: int) -> None:
    for barrier in machine.mbarriers.values():
        if first <= barrier.init_warp < last:
            barrier.fenced = True


def _fence_memory(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """fence, membar: orders what other CTAs see of this one. 9.7.13.4."""
    if "cta" not in item.mods and machine.active(fiber, item):
        cta = machine.cta_numbers[fiber.lo // machine.block]
        machine.global_memory.order.fence(cta)


def _nothing(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """Ordering or a hint that the machine's sequential execution already gives."""


def _sleep(machine: Machine, fiber: Fiber, item: Instruction) -> int:
    """nanosleep: 9.7.18.1. Others run first."""
    return AGAIN


def _trap(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """trap: 9.7.18.5."""
    threads = machine.active(fiber, item)
    if threads:
        who = machine.reporter.threads(threads[0], threads[-1])
        machine.fault("trap", item, f"{who} execute a trap")


# ---- setmaxnreg
def _setmaxnreg(machine: Machine, fiber: Fiber, item: Instruction):
    """setmaxnreg: 9.7.18.6. Registers come from and go to a pool of the CTA."""
    outcome = whole_warps(machine, fiber, item)
    if outcome is not NEXT:
        return outcome
    count, (first, last), cta = item.args[0].value, fiber.warps, fiber.lo // machine.block
    held = machine.warp_registers[first:last]
    wrong = (held > count) if "inc" in item.mods else (held < count)
    if wrong.any():
        machine.report("registers", item, f"setmaxnreg to {count} registers from {int(held[0])}")
    need = int((count - held).sum()) * 32
    if need > machine.free_registers[cta]:
        fiber.waits_for = (
            f"registers: {need} wanted, {machine.free_registers[cta]} free in CTA {cta}"
        )
        machine.register_waiters.append(fiber)
        return BLOCK
    machine.free_registers[cta] -= need
    held[:] = count
    for waiter in machine.register_waiters:
        machine.blocked.pop(waiter)
        machine.fibers.append(waiter)
    machine.register_waiters = []
    return NEXT


def _check_registers(item: Instruction) -> None:
    count = item.args[0].value
    if not isinstance(item.args[0], Imm) or count % 8 or not 24 <= count <= 256:
        raise refuse(item, "a multiple of 8 from 24 to 256 is wanted")


# ---- the end
def leave(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """Threads exit: nothing asynchronous may still use what they leave. PTX ISA 9.7.12.7."""
    bulk_stores.check_exit(machine, fiber, item)
    wgmma.check_exit(machine, fiber, item)
    cta = fiber.lo // machine.block
    machine.idle_polls = 0
    machine.alive[cta] -= fiber.hi - fiber.lo
    clock = machine.exit_clocks[cta]
    if machine.races:
        known = machine.clocks.know[slice(*fiber.warps)].max(0)
        np.maximum(clock.values, known, out=clock.values)
    if machine.alive[cta] == 0:
        tensor_alloc.check_exit(machine, item, cta)
    if machine.alive[cta] == 0 and machine.races:
        _check_cta_exit(machine, item, cta, clock.values[0])
        tensor_core.check_exit(machine, item, cta, clock.values[0])
    _cluster_advance(machine)
    for (owner, _), barrier in machine.named.items():
        # Without a count all threads take part; those that left count as arrived.
        if owner == cta and barrier.of_all and 0 < barrier.arrived >= machine.alive[cta]:
            _open(machine, barrier, item)
            barrier.clock.values[:] = 0


def _check_cta_exit(machine: Machine, item: Instruction, cta: int, known: np.ndarray) -> None:
    for warp, (time, pc) in machine.remote.get(cta, {}).items():
        if time > known[warp]:
            who = machine.reporter.threads(warp * 32, warp * 32 + 31)
            machine.report("exit", item, f"CTA {cta} may exit before the remote access of {who} "
                           "lands", pc)  # fmt: skip
    for agent, time, pc in machine.pushes.get(cta, ()):
        if time > known[agent]:
            message = f"CTA {cta} exits while its copy to a peer may still read its shared memory: "
            machine.report("exit", item, f"{message}nobody has told it that the copy is done", pc)
    for barrier in machine.mbarriers.values():
        if barrier.key[0] != cta or barrier.agent is None:
            continue
        if barrier.issued > known[barrier.agent]:
            machine.report("exit", item, f"CTA {cta} exits while copies into it that complete on "
                           f"{barrier.name(machine)} may be in flight: nobody has waited for its "
                           f"phase {barrier.issued - 1}", barrier.issued_pc)  # fmt: skip


def _wait_text(machine: Machine, fiber: Fiber) -> str:
    waited = fiber.waits_for
    if isinstance(waited, MBarrier):
        return waited.state(machine)
    if isinstance(waited, NamedBarrier):
        return f"barrier {waited.number}: {waited.arrived} of {waited.wanted} threads have come"
    if isinstance(waited, ClusterBarrier):
        return f"the cluster barrier: {waited.arrived} of {sum(machine.alive)} threads have come"
    return str(waited)


def report_deadlock(machine: Machine) -> None:
    """Nothing can run: who waits for what."""
    items = machine.program.instructions
    fibers = sorted(machine.blocked, key=lambda fiber: fiber.lo)
    lines = [
        f"{machine.reporter.threads(fiber.lo, fiber.hi - 1)} at PTX line {items[fiber.pc].line} "
        f"wait for {_wait_text(machine, fiber)}"
        for fiber in fibers
    ]
    shown = lines[:6] + ([f"and {len(lines) - 6} more"] if len(lines) > 6 else [])
    if not lines:
        shown = ["threads that diverged wait for each other"]
    pc = fibers[0].pc if fibers else len(items)
    machine.report("deadlock", pc, "nothing can run:\n    " + "\n    ".join(shown))


_FENCE_SCOPES = "{.acq_rel,.sc,.acquire,.release}(.cta,.cluster,.gpu,.sys)"
TABLE = (
    Row("bar{.cta}.red.popc{.aligned}.u32", "d r r p", _bar, "9.7.13.1", aligned=True),
    Row("bar{.cta}.red(.and,.or){.aligned}.pred", "p r r p", _bar, "9.7.13.1", aligned=True),
    Row("barrier{.cta}.red.popc{.aligned}.u32", "d r r p", _bar, "9.7.13.1", aligned=True),
    Row("barrier{.cta}.red(.and,.or){.aligned}.pred", "p r r p", _bar, "9.7.13.1", aligned=True),
    Row("barrier{.cta}(.sync,.arrive){.aligned}", "r r?", _bar, "9.7.13.1", aligned=True),
    Row("bar{.cta}(.sync,.arrive){.aligned}", "r r?", _bar, "9.7.13.1", aligned=True),
    Row("barrier.cluster.arrive{.release,.relaxed}{.aligned}", "", _cluster_arrive, "9.7.13.2",
        aligned=True),
    Row("barrier.cluster.wait{.acquire}{.aligned}", "", _cluster_wait, "9.7.13.2", aligned=True),
    Row("fence.proxy.async{.shared::cta,.shared::cluster,.global}", "", _fence_async, "9.7.13.4"),
    Row("fence.proxy.async::generic(.acquire,.release).sync_restrict(::shared::cluster,"
        "::shared::cta).cluster", "", _fence_async, "9.7.13.4"),
    Row("fence.mbarrier_init.release.cluster", "", _fence_init, "9.7.13.4"),
    Row(f"fence{_FENCE_SCOPES}", "", _fence_memory, "9.7.13.4"),
    Row("membar(.cta,.gl,.sys)", "", _fence_memory, "9.7.13.4"),
    Row("fence.proxy.alias", "", _nothing, "9.7.13.4"),
    Row("nanosleep.u32", "r", _sleep, "9.7.18.1"),
    Row("griddepcontrol(.launch_dependents,.wait)", "", _nothing, "9.7.13.13"),
    Row("trap", "", _trap, "9.7.18.5"),
    Row("setmaxnreg(.inc,.dec).sync.aligned.u32", "i", _setmaxnreg, "9.7.18.6", aligned=True,
        decode=_check_registers, needs="setmaxnreg"),
)  # fmt: skip
