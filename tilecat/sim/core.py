"""The machine: one cluster of CTAs at a time, its state, and the scheduler of fibers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import numpy as np

from tilecat.addresses import AddressTable
from tilecat.sim import (
    barriers,
    bulk_stores,
    carry,
    cp_async,
    launch_control,
    local_memory,
    mbarrier,
    tensor_access,
    tensor_alloc,
    tensor_core,
    tensormap,
    wgmma,
)
from tilecat.sim.clocks import Clocks, Shadow
from tilecat.sim.fibers import Fiber, arrive, cut, diverge, merge
from tilecat.sim.global_memory import GlobalMemory
from tilecat.sim.parse import Imm, Instruction, Mem
from tilecat.sim.program import Program, refuse
from tilecat.sim.registers import Registers, Segment, bind, predicate, view
from tilecat.sim.report import OFFSET_MASK, RANK_SHIFT, Reporter
from tilecat.sim.table import AGAIN, BLOCK, NEXT, SPLIT

# The first kilobyte of a CTA's shared memory belongs to the system (measured in SASS:
# `SR_CgaCtaId; ULEA .., 0x400, 0x18`).
RESERVED_BYTES = 0x400
_TABLE_ALIGN = 1024
_MAX_IDLE_POLLS = 2000
_PATIENCE = 100  # fruitless looks at global memory before another cluster runs
POLICIES = ("eager", "late", "random", "random")


class MachineStop(Exception):
    """Ends the cluster that runs: it cannot go on after a report."""


class Machine:
    """One launch. CTAs of a cluster run together, clusters one after the other.

    Args:
        program: what to run.
        grid: CTAs, x y z.
        cluster: CTAs of a cluster, x y z.
        block: threads, x y z.
        param_bytes: the parameter block.
        maps: tensor maps by their parameter's offset.
        globals_: global memory.
        smem_bytes: dynamic shared memory.
        table: names for addresses.
        seed: 0 modulo 4 runs asynchronous work at once, 1 as late as possible, 2 and 3 at random.
        races: whether happens-before is kept.
        limit: most instructions of a cluster before it counts as endless.
    """

    def __init__(
        self, program: Program, *, grid: tuple[int, int, int], cluster: tuple[int, int, int],
        block: tuple[int, int, int], param_bytes: np.ndarray, maps: dict, globals_: GlobalMemory,
        smem_bytes: int, table: AddressTable | None, seed: int, races: bool, limit: int,
    ):  # fmt: skip
        self.program, self.grid, self.cluster, self.block_shape = program, grid, cluster, block
        self.param_bytes, self.maps, self.global_memory = param_bytes, maps, globals_
        self.policy, self.races, self.limit = POLICIES[seed % 4], races, limit
        self.random = np.random.default_rng(seed)
        self.from_top = seed % 2 == 1  # tensor memory is given from its last columns on
        self.ctas, self.block = int(np.prod(cluster)), int(np.prod(block))
        self.num_threads = self.ctas * self.block
        self.registers = Registers(program.module.bank_sizes, self.num_threads)
        self.bound: dict[tuple[int, int, int], Segment] = {}
        self.counts = [0] * len(program.instructions)
        self.stats: Counter[str] = Counter()
        self.cache: dict = {}
        # Another cluster runs while this one polls; False if none can change anything.
        self.run_other: Callable[[], bool] = lambda: False
        self.changed: Callable[[], None] = lambda: None  # what is polled has changed
        # Number of a cluster that has not begun, and now never will.
        self.cancel_launch: Callable[[], int | None] = lambda: None
        self.conflicts: dict[int, tuple[int, int]] = {}
        self.param_offsets = {param.name: param.offset for param in program.module.params}
        self._layout_shared(smem_bytes)
        local_memory.layout(self)
        self._layout_specials()
        self.reporter = Reporter(program.place, table, self.shared_base, self.block)
        self.clocks = Clocks(self.num_threads // 32, races, self.ctas)
        self.shared = [np.zeros(self.shared_bytes, np.uint8) for _ in range(self.ctas)]
        self.chunks = [array.view("c16") for array in self.shared]
        self.shadows = [Shadow(self.clocks, self.shared_bytes, cta) for cta in range(self.ctas)]
        for shadow in self.shadows:
            shadow.on_conflict = self.conflict
            shadow.on_barrier = partial(mbarrier.overwritten, self)

    def _layout_shared(self, smem_bytes: int) -> None:
        """Static variables, then the dynamic array. PTX ISA 5.1.7."""
        offset, places = RESERVED_BYTES, {}
        for variable in self.program.module.shared:
            if not variable.extern:
                offset = -(-offset // variable.align) * variable.align
                places[variable.name] = offset
                offset += variable.num_bytes
        dynamic = offset
        for variable in self.program.module.shared:
            if variable.extern:
                dynamic = -(-offset // variable.align) * variable.align
                places[variable.name] = dynamic
        self.shared_base = -(-dynamic // _TABLE_ALIGN) * _TABLE_ALIGN
        self.shared_bytes = -(-(dynamic + smem_bytes) // 16) * 16
        self.dynamic_bytes = smem_bytes
        rank = np.arange(self.num_threads, dtype=np.uint32) // self.block
        self.symbols = {}
        for name, place in places.items():
            narrow = (rank << np.uint32(RANK_SHIFT)) + np.uint32(place)
            self.symbols[name] = (narrow, narrow.astype(np.uint64))

    def _layout_specials(self) -> None:
        """Special registers that do not change from cluster to cluster. PTX ISA chapter 10."""
        thread = np.arange(self.num_threads, dtype=np.uint32)
        local, lane = thread % self.block, thread % 32
        x, y, _ = self.block_shape
        one = np.uint32(1)
        below = (one << lane) - one
        values = {
            "%tid.x": local % x, "%tid.y": local // x % y, "%tid.z": local // (x * y),
            "%laneid": lane, "%warpid": local // 32, "%nwarpid": thread * 0 + self.block // 32,
            "%cluster_ctarank": thread // self.block,
            "%cluster_nctarank": thread * 0 + self.ctas, "%gridid": thread * 0,
            "%is_explicit_cluster": thread * 0 + (self.ctas > 1),
            "%smid": thread * 0, "%nsmid": thread * 0 + int(np.prod(self.grid)),
            "%lanemask_lt": below, "%lanemask_eq": one << lane,
            "%lanemask_le": below | one << lane, "%lanemask_gt": ~(below | one << lane),
            "%lanemask_ge": ~below, "%dynamic_smem_size": thread * 0 + self.dynamic_bytes,
            "%total_smem_size": thread * 0 + self.shared_bytes - RESERVED_BYTES,
        }  # fmt: skip
        rank = thread // self.block
        cx, cy, cz = self.cluster
        inside = {"x": rank % cx, "y": rank // cx % cy, "z": rank // (cx * cy)}
        for axis, grid, cluster, block in zip("xyz", self.grid, self.cluster, self.block_shape,
                                              strict=True):  # fmt: skip
            values[f"%ntid.{axis}"] = thread * 0 + block
            values[f"%nctaid.{axis}"] = thread * 0 + grid
            values[f"%nclusterid.{axis}"] = thread * 0 + grid // cluster
            values[f"%cluster_nctaid.{axis}"] = thread * 0 + cluster
            values[f"%cluster_ctaid.{axis}"] = inside[axis]
            values[f"%ctaid.{axis}"] = thread * 0
            values[f"%clusterid.{axis}"] = thread * 0
        self.specials = {name: value.astype(np.uint32) for name, value in values.items()}

    def position(self, index: int) -> tuple[int, int, int]:
        """Place of a cluster in the grid of clusters."""
        x, y, _ = (grid // cluster for grid, cluster in zip(self.grid, self.cluster, strict=True))
        return index % x, index // x % y, index // (x * y)

    def _place_cluster(self, index: int) -> None:
        position = self.position(index)
        for axis, place, cluster in zip("xyz", position, self.cluster, strict=True):
            self.specials[f"%clusterid.{axis}"][:] = place
            within = self.specials[f"%cluster_ctaid.{axis}"]
            np.add(within, np.uint32(place * cluster), self.specials[f"%ctaid.{axis}"])
        x, y, z = (self.specials[f"%ctaid.{axis}"].astype(np.int64) for axis in "xyz")
        flat = x + self.grid[0] * (y + self.grid[1] * z)
        self.cta_numbers = flat[:: self.block].tolist()

    def _reset(self, index: int) -> None:
        self._place_cluster(index)
        self.registers.reset()
        self.clocks.reset()
        for array, shadow in zip(self.shared, self.shadows, strict=True):
            array[:] = 0xFF
            shadow.reset()
        self.fibers = [
            Fiber(cta * self.block, (cta + 1) * self.block, 0) for cta in range(self.ctas)
        ]
        self.blocked: dict[Fiber, None] = {}
        self.polling: list[Fiber] = []
        self.gathering: dict[tuple, list[Fiber]] = {}
        self.queue: list[Callable[[], None]] = []
        self.alive = [self.block] * self.ctas
        self.executed = self.idle_polls = 0
        self.watched: dict[tuple[int, int], tuple[bytes, int]] = {}
        barriers.reset(self)
        bulk_stores.reset(self)
        cp_async.reset(self)
        tensormap.reset(self)
        local_memory.reset(self)
        carry.reset(self)
        wgmma.reset(self)
        tensor_alloc.reset(self)
        tensor_access.reset(self)
        tensor_core.reset(self)
        launch_control.reset(self)

    # ---- running
    def run_cluster(self, index: int) -> None:
        """Run the CTAs of one cluster to their end, or to a report they cannot survive."""
        self._reset(index)
        try:
            with np.errstate(all="ignore"):
                self._schedule()
            if self.blocked or any(self.alive):
                barriers.report_deadlock(self)
        except MachineStop:
            pass
        finally:
            self.stats["instructions"] += self.executed

    def _schedule(self) -> None:
        random = self.policy == "random"
        while self.fibers or self.queue or self.polling:
            if not self.fibers or random and self.queue and self.random.random() < 0.3:
                if self.queue:
                    self.run_queued()
                if not self.fibers:
                    self.fibers, self.polling = self.polling, []
                continue
            if len(self.fibers) > 1:
                merge(self)
            index = int(self.random.integers(len(self.fibers))) if random else 0
            self._run_fiber(self.fibers.pop(index))

    def run_queued(self) -> None:
        """Do one piece of asynchronous work."""
        index = int(self.random.integers(len(self.queue))) if self.policy == "random" else 0
        self.idle_polls = 0
        self.queue.pop(index)()

    def start(self, work: Callable[[], None], wait_runs_it: bool = False) -> None:
        """Asynchronous work: at once, later, or (late policy) when a wait runs it."""
        if self.policy == "eager":
            work()
        elif self.policy == "random" or not wait_runs_it:
            self.queue.append(work)

    def _run_fiber(self, fiber: Fiber) -> None:
        items, bound, counts = self.program.instructions, self.bound, self.counts
        while True:
            join = fiber.join
            if join is not None and fiber.pc == join.pc:
                return arrive(self, fiber)
            item = items[fiber.pc]
            kind = item.kind
            if kind == "alu" or kind == "param":
                segment = bound.get((fiber.lo, fiber.hi, fiber.pc)) or self._segment(fiber)
                if self.warpgroups:
                    wgmma.touch(self, fiber, segment.mask, segment.start, segment.end)
                for call in segment.calls:
                    call()
                segment.runs += 1
                self.executed += segment.end - segment.start
                fiber.pc = segment.end
                continue
            self.executed += 1
            counts[fiber.pc] += 1
            if kind == "system":
                if not self._system(fiber, item):
                    return
            elif kind == "branch":
                if not self._branch(fiber, item):
                    return
            elif kind == "table":
                if not self._branch_table(fiber, item):
                    return
            else:
                barriers.leave(self, fiber, item)
                return

    def _segment(self, fiber: Fiber) -> Segment:
        items, leaders = self.program.instructions, self.program.leaders
        end, calls, mask = fiber.pc, [], 0
        while items[end].kind in ("alu", "param") and (end == fiber.pc or end not in leaders):
            calls += bind(self, items[end], fiber.lo, fiber.hi)
            mask |= items[end].mask
            end += 1
        segment = Segment(calls, fiber.pc, end, mask)
        self.bound[(fiber.lo, fiber.hi, fiber.pc)] = segment
        return segment

    def _system(self, fiber: Fiber, item: Instruction) -> bool:
        """Run one table row; False if the fiber stops here for now."""
        row = item.row
        if item.predicate is not None and row.aligned:
            mask = self.active_mask(fiber, item)
            if not mask.any():
                fiber.pc += 1
                return True
            if not mask.all():
                cut(self, fiber, mask)
                return False
        if self.warpgroups and row.family != "wgmma":
            wgmma.touch(self, fiber, item.mask, fiber.pc, fiber.pc + 1)
        outcome = row.run(self, fiber, item)
        if outcome is NEXT:
            fiber.pc += 1
            if self.policy == "random" and self.random.random() < 0.05:
                self.fibers.append(fiber)
                return False
            return True
        if outcome == BLOCK:
            self.blocked[fiber] = None
        elif outcome == AGAIN:
            fiber.pc += 1
            self._poll(fiber, item)
        elif outcome != SPLIT:
            raise AssertionError(f"handler of {item.op} returned {outcome!r}")
        return False

    def _poll(self, fiber: Fiber, item: Instruction) -> None:
        """A fiber looked at something that may change: let others run first."""
        self.idle_polls += 1
        others = len(self.fibers) + len(self.polling)
        if self.idle_polls > _MAX_IDLE_POLLS + _PATIENCE * others:
            self.fault("deadlock", item, f"{self.reporter.threads(fiber.lo, fiber.hi - 1)} "
                       "poll for ever: nothing else can run")  # fmt: skip
        self.polling.append(fiber)

    def watch(self, fiber: Fiber, item: Instruction, seen: bytes) -> None:
        """A fiber looked at global memory: if it never changes, other clusters must run first."""
        key = (item.pc, fiber.lo)
        last, count = self.watched.get(key, (b"", 0))
        count = count + 1 if last == seen else 0
        if not count:
            self.changed()
        if count == _PATIENCE and self.run_other():
            count = self.idle_polls = 0
        if count > 4 * _PATIENCE:
            who = self.reporter.threads(fiber.lo, fiber.hi - 1)
            self.fault("deadlock", item, f"{who} poll global "
                       "memory for ever: no CTA that can still run changes it")  # fmt: skip
        self.watched[key] = (seen, count)

    def _branch(self, fiber: Fiber, item: Instruction) -> bool:
        if self.executed > self.limit:
            self.fault("limit", item, f"{self.executed} instructions executed in one cluster: "
                       "endless loop?")  # fmt: skip
        if item.predicate is None:
            fiber.pc = item.target
            return True
        mask = self.active_mask(fiber, item)
        taken = int(np.count_nonzero(mask))
        if taken == len(mask):
            fiber.pc = item.target
        elif taken == 0:
            fiber.pc += 1
        else:
            targets = np.where(mask, item.target, item.pc + 1)
            diverge(self, fiber, targets, self.program.joins[item.pc])
            return False
        return True

    def _branch_table(self, fiber: Fiber, item: Instruction) -> bool:
        """brx.idx: 9.7.12.3."""
        index = self.values(item, item.args[0], "u32", fiber.lo, fiber.hi)
        if (index >= len(item.info)).any():
            self.fault(
                "bounds", item, f"branch index {int(index.max())}, table of {len(item.info)}"
            )
        targets = np.array(item.info)[index]
        if (targets == targets[0]).all():
            fiber.pc = int(targets[0])
            return True
        diverge(self, fiber, targets, self.program.joins[item.pc])
        return False

    # ---- operands
    def values(self, item: Instruction, operand: object, kind: str, lo: int, hi: int) -> np.ndarray:
        """An operand of threads [lo, hi), one element a thread."""
        array = view(self, item, operand, kind, lo, hi)
        return np.broadcast_to(array, hi - lo) if len(array) != hi - lo else array

    def value(
        self, item: Instruction, operand: object, thread: int, kind: str = "u32"
    ) -> int | float:
        """An operand of one thread."""
        if isinstance(operand, Imm) and not isinstance(operand.value, float):
            return operand.value
        found = view(self, item, operand, kind, thread, thread + 1)
        if len(found) != 1:  # a register of another width
            raise refuse(item, f"an operand of type {kind} is wanted")
        return found[0].item()

    def truth(self, operand: object, thread: int) -> bool:
        """A predicate operand of one thread."""
        if isinstance(operand, Imm):
            return bool(operand.value)
        return bool(predicate(self, operand, thread, thread + 1)[0])

    def address(self, item: Instruction, operand: Mem, thread: int, kind: str = "u32") -> int:
        """An address operand of one thread."""
        bits = 64 if kind == "u64" else 32
        return (self.value(item, operand.base, thread, kind) + operand.offset) & ((1 << bits) - 1)

    def addresses(self, item: Instruction, operand: Mem, lo: int, hi: int, kind: str = "u32"):
        """An address operand of threads [lo, hi) as int64."""
        base = self.values(item, operand.base, kind, lo, hi).astype(np.int64)
        found = base + operand.offset
        return found if kind == "u64" else found & 0xFFFFFFFF

    def active_mask(self, fiber: Fiber, item: Instruction) -> np.ndarray:
        """Which threads the instruction's predicate lets through."""
        if item.predicate is None:
            return np.ones(fiber.hi - fiber.lo, bool)
        mask = self.registers.raw(item.predicate, fiber.lo, fiber.hi)
        return ~mask if item.negated else mask

    def active(self, fiber: Fiber, item: Instruction) -> list[int]:
        """The threads the instruction's predicate lets through."""
        if item.predicate is None:
            return list(range(fiber.lo, fiber.hi))
        return (fiber.lo + np.nonzero(self.active_mask(fiber, item))[0]).tolist()

    # ---- reports
    def report(self, kind: str, item: Instruction | int, message: str, other: int = -1) -> None:
        """Record a report and go on."""
        self.reporter.add(kind, item if isinstance(item, int) else item.pc, message, other)

    def fault(self, kind: str, item: Instruction | int, message: str, other: int = -1) -> NoReturn:
        """Record a report that ends the cluster."""
        self.report(kind, item, message, other)
        raise MachineStop

    @staticmethod
    def unsupported(item: Instruction, why: str) -> NoReturn:
        """Refuse something the machine does not implement."""
        raise refuse(item, why)

    def own_offset(self, item: Instruction, address: int, thread: int, num_bytes: int = 1) -> int:
        """Offset of a shared::cta address of a thread, checked."""
        if address >> RANK_SHIFT != thread // self.block:
            self.fault("bounds", item, f"shared::cta address {address:#x} names another CTA")
        return self.checked_offset(item, address, num_bytes)

    def checked_offset(self, item: Instruction, address: int, num_bytes: int) -> int:
        """Offset of a shared::cluster address whose bytes lie in the CTA's allocation."""
        rank, offset = address >> RANK_SHIFT, address & OFFSET_MASK
        if rank >= self.ctas:
            self.fault("bounds", item, f"shared address {address:#x}: no CTA {rank} in the cluster")
        if offset < RESERVED_BYTES or offset + num_bytes > self.shared_bytes:
            self.fault("bounds", item, f"shared bytes [{offset:#x}, {offset + num_bytes:#x}) "
                       f"outside [{RESERVED_BYTES:#x}, {self.shared_bytes:#x})")  # fmt: skip
        return offset

    def agent_name(self, agent: int) -> str:
        """Who an agent is: threads by role and warp, async agents by what they do."""
        if agent < self.clocks.warps:
            return self.reporter.threads(agent * 32, agent * 32 + 31)
        return self.clocks.names[agent]

    def conflict(
        self, shadow: Shadow, cell: int, agent: int, other: int, pc: int, other_pc: int,
        kind: str, note: str,
    ) -> None:  # fmt: skip
        """A pair of accesses to shared memory that nothing orders."""
        where = self.reporter.shared(shadow.cta, int(shadow.address[cell]))
        who, second = self.agent_name(agent), self.agent_name(other)
        if kind == "read" and other == self.clocks.nobody:
            self.report("uninitialised", pc, f"{who} reads {where}, which nothing has written")
            return
        verb = "reads" if kind == "read" else "writes"
        before = "still being read" if kind == "overwrite" else "written"
        why = "with no order between"
        if note == "proxy":
            why = "ordered, but generic writes reach the async proxy only through fence.proxy.async"
        message = f"{who} {verb} {where}, {before} by {second}, {why}"
        self.report("fence" if note else "race", pc, message, other_pc)
