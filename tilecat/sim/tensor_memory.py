"""Tensor memory: words, what has been written, and who has touched what in which order.

PTX ISA 9.4, 9.7.17.1 (the memory), 9.7.17.6 (its consistency model). Sections of all `tensor_`
modules are those of PTX ISA 9.4.

Accesses are operations of agents: the loads and the stores of a warp, each complete at its
tcgen05.wait; what a thread gives to the tensor core, complete at a tcgen05.commit. The shadow keeps
the last operation that wrote, and of every agent the last that read, each 16 lanes of a column.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.clocks import GENERIC
from tilecat.sim.parse import Instruction

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

LANES, GROUP = 128, 16  # lanes of tensor memory; lanes that one shadow cell stands for
LANE_SHIFT, COLUMN_MASK = 16, 0xFFFF
_POISON = 0x7FDEADDE

Region = tuple[slice, slice]  # groups of 16 lanes, columns


@dataclass(frozen=True)
class Known:
    """What an operation knows: what has happened, and which of it tcgen05 fences order it after."""

    generic: np.ndarray
    tensor: np.ndarray

    def wide(self, width: int) -> Known:
        """The same, after more agents have come."""
        missing = width - len(self.generic)
        if not missing:
            return self
        return Known(np.pad(self.generic, (0, missing)), np.pad(self.tensor, (0, missing)))


@dataclass(frozen=True)
class Operation:
    """One access: its agent and that agent's time, where it stands, and what pipelines with it.

    Args:
        agent: column of the clocks.
        time: the agent's time when it is complete.
        pc: the instruction.
        kind: ld, st, mma, cp, or nobody.
        core: the tensor core that executes it, or -1.
        signature: mma of equal signature (shape, kind, accumulator) execute in order.
        warp: who issued it.
        clock: that warp's time then.
    """

    agent: int
    time: int
    pc: int
    kind: str
    core: int = -1
    signature: tuple = ()
    warp: int = -1
    clock: int = 0


@dataclass
class Operations:
    """All operations of a cluster by number; number 0 is nobody's."""

    nobody: int
    items: list[Operation] = field(default_factory=list)
    agents: np.ndarray = field(default_factory=lambda: np.zeros(256, np.int32))
    times: np.ndarray = field(default_factory=lambda: np.zeros(256, np.int32))

    def __post_init__(self) -> None:
        self.add(Operation(self.nobody, 0, -1, "nobody"))

    def add(self, operation: Operation) -> int:
        """Number of a new operation."""
        number = len(self.items)
        if number == len(self.agents):
            self.agents = np.concatenate([self.agents, np.zeros_like(self.agents)])
            self.times = np.concatenate([self.times, np.zeros_like(self.times)])
        self.items.append(operation)
        self.agents[number], self.times[number] = operation.agent, operation.time
        return number


@dataclass
class Allocation:
    """Columns that a warp has allocated."""

    start: int
    columns: int
    exclusive: bool
    pc: int


class TensorMemory:
    """Tensor memory of one CTA."""

    def __init__(self, columns: int, cta: int):
        self.columns, self.cta = columns, cta
        self.words = np.full((LANES, columns), _POISON, np.uint32)
        self.written = np.zeros((LANES, columns), bool)
        self.live = np.zeros(columns, bool)
        self.writes = np.zeros((LANES // GROUP, columns), np.int32)
        self.reads: dict[int, np.ndarray] = {}
        self.allocations: dict[int, Allocation] = {}
        self.permit = True
        self.last_columns = columns

    def claim(self, allocation: Allocation) -> None:
        """Columns become somebody's: poisoned, unwritten."""
        columns = slice(allocation.start, allocation.start + allocation.columns)
        self.allocations[allocation.start] = allocation
        self.words[:, columns] = _POISON
        self.written[:, columns] = False
        self.live[columns] = True
        self.writes[:, columns] = 0
        for array in self.reads.values():
            array[:, columns] = 0

    def release(self, allocation: Allocation) -> None:
        """Columns become nobody's."""
        del self.allocations[allocation.start]
        self.live[allocation.start : allocation.start + allocation.columns] = False


def region(first_lane: int, num_lanes: int, column: int, num_columns: int) -> Region:
    """A rectangle of lanes (multiples of 16) and columns."""
    groups = slice(first_lane // GROUP, (first_lane + num_lanes) // GROUP)
    return groups, slice(column, column + num_columns)


def check_live(
    machine: Machine, item: Instruction, memory: TensorMemory, column: int, num_columns: int,
    what: str,
) -> None:  # fmt: skip
    """Columns must be inside live allocations: 9.7.17.1.2."""
    if (
        column + num_columns > memory.columns
        or not memory.live[column : column + num_columns].all()
    ):
        held = ", ".join(f"[{a.start}, {a.start + a.columns})" for a in memory.allocations.values())
        machine.fault("tcgen05", item, f"{what}: columns [{column}, {column + num_columns}) of "
                      f"tensor memory of CTA {memory.cta} are not all allocated, held are "
                      f"{held or 'none'}")  # fmt: skip


def check_written(
    machine: Machine, item: Instruction, memory: TensorMemory, lanes: object, columns: object,
    who: str,
) -> None:  # fmt: skip
    """Words that are read must have been written."""
    written = memory.written[lanes, columns]
    if not machine.races or written.all():
        return
    place = np.argwhere(~written)[0]
    grid = np.indices((LANES, memory.columns))
    lane, column = (int(axis[lanes, columns][tuple(place)]) for axis in grid)
    machine.report("uninitialised", item, f"{who} reads lane {lane}, column {column} of tensor "
                   f"memory of CTA {memory.cta}, which nothing has written")  # fmt: skip


# ---- order
def read(machine: Machine, memory: TensorMemory, area: Region, number: int, known: Known) -> None:
    """Operation `number` reads a region."""
    if not machine.races:
        return
    operation = machine.tensor_operations.items[number]
    _check(machine, memory, area, memory.writes, number, known, "reads", "written")
    array = memory.reads.get(operation.agent)
    if array is None:
        array = memory.reads[operation.agent] = np.zeros_like(memory.writes)
    array[area] = number


def write(machine: Machine, memory: TensorMemory, area: Region, number: int, known: Known) -> None:
    """Operation `number` writes a region."""
    if not machine.races:
        return
    _check(machine, memory, area, memory.writes, number, known, "writes", "written")
    for array in memory.reads.values():
        _check(machine, memory, area, array, number, known, "writes", "still being read")
        array[area] = 0
    memory.writes[area] = number


def _check(
    machine: Machine, memory: TensorMemory, area: Region, cells: np.ndarray, number: int,
    known: Known, verb: str, before: str,
) -> None:  # fmt: skip
    """Earlier operations must be ordered before this one. 9.7.17.6."""
    operations, earlier = machine.tensor_operations, cells[area]
    known = known.wide(machine.clocks.width)
    late = operations.times[earlier] > known.tensor[operations.agents[earlier]]
    if not late.any():
        return
    current = operations.items[number]
    for other in np.unique(earlier[late]).tolist():
        old = operations.items[other]
        if _pipelined(old, current, before, known):
            continue
        fenced = old.time <= known.generic[old.agent]
        who, second = machine.agent_name(current.agent), machine.agent_name(old.agent)
        why = "with no order between"
        if fenced:
            why = ("ordered, but for tcgen05 only with tcgen05.fence::before_thread_sync before, "
                   "and tcgen05.fence::after_thread_sync after what orders them")  # fmt: skip
        column = area[1].start + int(np.nonzero((earlier == other).any(0))[0][0])
        held = next((a for a in memory.allocations.values()
                     if a.start <= column < a.start + a.columns), None)  # fmt: skip
        where = f"column {column}" if held is None else f"allocated column {column - held.start}"
        machine.report("tcgen05-fence" if fenced else "race", current.pc, f"{who} {verb} {where} "
                       f"of tensor memory of CTA {memory.cta}, {before} by {second}, {why}",
                       old.pc)  # fmt: skip


def _pipelined(old: Operation, new: Operation, before: str, known: Known) -> bool:
    """Pairs that a tensor core executes in the order of their issue. 9.7.17.6.2.

    The manual names mma after an equal mma, mma after cp; a cp that overwrites scales which
    earlier mma read is in order too in what CUTLASS and Triton make.
    """
    if old.core < 0 or old.core != new.core:
        return False
    if old.agent != new.agent and known.tensor[old.warp] < old.clock:
        return False
    if old.kind == "mma" and new.kind == "mma":
        return old.signature == new.signature
    return not (old.kind == "mma" and new.kind == "cp" and before == "written")


def names(machine: Machine, item: Instruction, address: int) -> tuple[int, int]:
    """Lane and column of a tensor-memory address, 9.7.17.1.1."""
    lane, column = address >> LANE_SHIFT, address & COLUMN_MASK
    if lane >= LANES:
        machine.fault("tcgen05", item, f"tensor-memory address {address:#010x}: lane {lane} of "
                      f"{LANES}")  # fmt: skip
    return lane, column


def knowledge(machine: Machine, warp: int) -> Known:
    """What a warp knows now; the same object until it learns something."""
    version, kept_warp, kept = machine.tensor_known
    if version != machine.clocks.version or kept_warp != warp:
        kept = Known(machine.clocks.know[warp, GENERIC].copy(), machine.clocks.tensor[warp].copy())
        machine.tensor_known = (machine.clocks.version, warp, kept)
    return kept
