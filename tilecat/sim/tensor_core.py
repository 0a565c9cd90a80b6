"""The queue of a tensor core: tcgen05.mma and .cp in the order of their issue, and .commit.

PTX ISA 9.4, 9.7.17.6, 9.7.17.12. What a thread has issued is complete when a mbarrier has the
arrival of a tcgen05.commit that followed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tilecat.sim.alu_types import SHARED_WINDOW
from tilecat.sim.clocks import ASYNC, GENERIC
from tilecat.sim.fibers import WARP, Fiber
from tilecat.sim.mbarrier import check_there, find
from tilecat.sim.parse import Instruction
from tilecat.sim.report import OFFSET_MASK, RANK_SHIFT
from tilecat.sim.table import Row
from tilecat.sim.tensor_alloc import members
from tilecat.sim.tensor_memory import Known, knowledge

if TYPE_CHECKING:
    from tilecat.sim.core import Machine


class Work(Protocol):
    """Something that a tensor core does."""

    def run(self, machine: Machine) -> None:
        """Do it."""


@dataclass
class TensorCore:
    """Work of a CTA or of a pair that is not done yet, and what its collector buffers hold."""

    number: int
    queue: deque[Work] = field(default_factory=deque)
    collectors: dict[str, tuple] = field(default_factory=dict)


@dataclass
class Stream:
    """What one thread gives to a tensor core.

    Args:
        core: the tensor core.
        agent: column of the clocks: its time is the number of commits that have completed, such
            aside that nothing new precedes.
        a_agent: the same for reads of A from shared memory, which can be known earlier.
        commits: commits so far.
        open: operations since the last commit.
        a_open: operations since the last commit of either kind.
        pc: the last of them.
    """

    core: TensorCore
    agent: int
    a_agent: int
    commits: int = 0
    a_commits: int = 0
    open: int = 0
    a_open: int = 0
    pc: int = -1


@dataclass(frozen=True)
class Issue:
    """Who issued a piece of work, when, and with which knowledge."""

    item: Instruction
    thread: int
    ctas: tuple[int, ...]
    core: int
    agent: int
    a_agent: int
    time: int
    a_time: int
    known: Known
    snapshot: np.ndarray
    clock: int


def reset(machine: Machine) -> None:
    """Start of a cluster."""
    machine.tensor_cores, machine.tensor_streams = {}, {}
    machine.tensor_snapshot = (-1, -1, None)


def stream_of(machine: Machine, item: Instruction, thread: int) -> Stream:
    """The stream of a thread."""
    found = machine.tensor_streams.get(thread)
    if found is None:
        first = members(machine, item, thread // machine.block)[0]
        core = machine.tensor_cores.setdefault(first, TensorCore(first))
        who = machine.reporter.threads(thread, thread)
        agent = machine.clocks.agent(f"tcgen05 operations of {who}")
        a_agent = machine.clocks.agent(f"reads of A by tcgen05.mma of {who}")
        found = machine.tensor_streams[thread] = Stream(core, agent, a_agent)
    return found


def issue(machine: Machine, item: Instruction, thread: int) -> tuple[Stream, Issue]:
    """Note that a thread gives work to its tensor core."""
    ctas = members(machine, item, thread // machine.block)
    warp = thread // WARP
    for cta in ctas:
        if cta != thread // machine.block:
            check_there(machine, item, cta, warp)
    stream = stream_of(machine, item, thread)
    stream.open += 1
    stream.a_open += 1
    stream.pc = item.pc
    return stream, Issue(
        item, thread, ctas, stream.core.number, stream.agent, stream.a_agent, stream.commits + 1,
        stream.a_commits + 1, *_snapshot(machine, warp),
    )  # fmt: skip


def _snapshot(machine: Machine, warp: int) -> tuple[Known, np.ndarray, int]:
    """What a warp knows, and its time: the same objects until somebody learns something.

    What the warp does itself after this is later than what it gave to the tensor core.
    """
    version, number, found = machine.tensor_snapshot
    if version != machine.clocks.version or number != warp:
        clock = int(machine.clocks.know[warp, GENERIC, warp])
        found = knowledge(machine, warp), machine.clocks.snapshot(warp, warp + 1), clock
        machine.clocks.tick(warp, warp + 1)
        machine.tensor_snapshot = (machine.clocks.version, warp, found)
    return found


# ---- commit
@dataclass
class Commit:
    """An arrival that follows the work before it in the queue."""

    item: Instruction
    thread: int
    targets: tuple[tuple[int, int], ...]
    stream: Stream
    time: int
    a_time: int
    only_a: bool
    snapshot: np.ndarray
    done: bool = False

    def run(self, machine: Machine) -> None:
        """Arrive on the mbarrier of every target; who waits learns what the thread's work knew."""
        self.done = True
        for key in self.targets:
            barrier = machine.mbarriers.get(key)
            if barrier is None:
                name = machine.reporter.barrier(*key)
                machine.fault("mbarrier", self.item, f"tcgen05.commit arrives on {name}, which is "
                              "not initialised")  # fmt: skip
            if not machine.alive[key[0]]:
                machine.report("exit", self.item, f"tcgen05.commit arrives on an mbarrier of CTA "
                               f"{key[0]}, which has exited")  # fmt: skip
            if machine.races:
                self._publish(machine, barrier.current.values)
            barrier.arrive(machine, self.item, 1)

    def _publish(self, machine: Machine, values: np.ndarray) -> None:
        """Of the thread's own writes only those it has fenced for the async proxy count."""
        known = machine.clocks.padded(self.snapshot).copy()
        warp = self.thread // WARP
        known[GENERIC, warp] = known[ASYNC, warp]
        np.maximum(values, known, out=values)
        values[:, self.stream.a_agent] = np.maximum(values[:, self.stream.a_agent], self.a_time)
        if not self.only_a:
            values[:, self.stream.agent] = np.maximum(values[:, self.stream.agent], self.time)


def _commit(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """tcgen05.commit: 9.7.17.12.1."""
    only_a = any(mod.startswith("sync_restrict") for mod in item.mods)
    for thread in machine.active(fiber, item):
        stream = stream_of(machine, item, thread)
        stream.a_commits += stream.a_open > 0
        stream.a_open = 0
        if not only_a:
            stream.commits += stream.open > 0
            stream.open = 0
        known = _snapshot(machine, thread // WARP)[1]
        commit = Commit(item, thread, _targets(machine, item, thread), stream, stream.commits,
                        stream.a_commits, only_a, known)  # fmt: skip
        stream.core.queue.append(commit)
        machine.start(partial(_drain, machine, stream.core, commit))


def _targets(machine: Machine, item: Instruction, thread: int) -> tuple[tuple[int, int], ...]:
    """CTA and offset of every mbarrier that a commit arrives on."""
    if "shared::cluster" in item.mods:
        address = machine.address(item, item.args[0], thread)
    else:
        address = machine.address(item, item.args[0], thread, "u64") - SHARED_WINDOW
        if not 0 <= address < 1 << 32:
            machine.fault("bounds", item, "a generic address outside the window of shared memory")
    offset, mine = address & OFFSET_MASK, thread // machine.block
    ctas = [address >> RANK_SHIFT]
    if len(item.args) > 1:
        wide = "multicast::cluster::32b" in item.mods
        mask = machine.value(item, item.args[1], thread, "u32" if wide else "u16")
        if mask >> machine.ctas or not mask:
            machine.fault("bounds", item, f"multicast mask {mask:#x} for a cluster of "
                          f"{machine.ctas}")  # fmt: skip
        ctas = [cta for cta in range(machine.ctas) if mask >> cta & 1]
    for cta in ctas:
        find(machine, item, cta << RANK_SHIFT | offset, thread, remote=cta != mine)
        if cta != mine:
            check_there(machine, item, cta, thread // WARP)
    return tuple((cta, offset) for cta in ctas)


def _drain(machine: Machine, core: TensorCore, commit: Commit) -> None:
    """Do everything up to a commit, in order."""
    machine.idle_polls = 0
    while not commit.done:
        core.queue.popleft().run(machine)


# ---- exit
def check_exit(machine: Machine, item: Instruction, cta: int, known: np.ndarray) -> None:
    """No work may use a CTA that has exited: somebody must know that it is complete."""
    for thread, stream in machine.tensor_streams.items():
        if cta not in members(machine, machine.program.instructions[stream.pc],
                              thread // machine.block):  # fmt: skip
            continue
        who = machine.reporter.threads(thread, thread)
        if stream.open:
            machine.report("exit", item, f"CTA {cta} exits with tcgen05 operations of {who} that "
                           "no tcgen05.commit follows", stream.pc)  # fmt: skip
        elif stream.commits > known[stream.agent]:
            machine.report("exit", item, f"CTA {cta} exits while tcgen05 operations of {who} may "
                           "be in flight: nobody has waited for their tcgen05.commit",
                           stream.pc)  # fmt: skip


_COMMIT = "tcgen05.commit(.cta_group::1,.cta_group::2).mbarrier::arrive::one"
_EARLY = f"{_COMMIT}.sync_restrict::shared::read::mma::a.shared::cluster"
TABLE = (
    Row(f"{_COMMIT}{{.shared::cluster}}.b64", "m", _commit, "9.7.17.12.1", needs="tcgen05"),
    Row(f"{_COMMIT}{{.shared::cluster}}.multicast::cluster{{::16b}}.b64", "m r", _commit,
        "9.7.17.12.1", needs="tcgen05"),
    Row(f"{_COMMIT}.shared::cluster.multicast::cluster::32b.b64", "m r", _commit, "9.7.17.12.1",
        needs="mask-32b"),
    Row(f"{_EARLY}.b64", "m", _commit, "9.7.17.12.1", needs="early-a"),
    Row(f"{_EARLY}.multicast::cluster{{::16b,::32b}}.b64", "m r", _commit, "9.7.17.12.1",
        needs="early-a"),
)  # fmt: skip
