"""Fibers: runs of threads at one instruction, their divergence and reconvergence.

Warps that stand at one instruction run as one fiber. A branch cuts a fiber; a warp that diverges
becomes runs of lanes, which meet again at the branch's nearest post-dominator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.parse import Instruction
from tilecat.sim.table import BLOCK, SPLIT

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

WARP, WARPGROUP = 32, 128


class Join:
    """Where the pieces of a warp meet: instruction, how many are still out, who has come."""

    __slots__ = ("pc", "parent", "missing", "arrived")

    def __init__(self, pc: int, parent: Join | None, missing: int):
        self.pc, self.parent, self.missing = pc, parent, missing
        self.arrived: list[tuple[int, int]] = []


class Fiber:
    """Threads [lo, hi) of the cluster at instruction `pc`; `waits_for` says why it is blocked."""

    __slots__ = ("lo", "hi", "pc", "join", "waits_for", "alone_at")

    def __init__(self, lo: int, hi: int, pc: int, join: Join | None = None):
        self.lo, self.hi, self.pc, self.join = lo, hi, pc, join
        self.waits_for: object = None
        self.alone_at = -1

    @property
    def warps(self) -> tuple[int, int]:
        """Warps [first, last) of the cluster that it touches."""
        return self.lo // WARP, -(-self.hi // WARP)


def _runs(keys: np.ndarray) -> list[tuple[int, int]]:
    """Runs of equal rows."""
    changes = np.diff(keys, axis=0) != 0
    if changes.ndim > 1:
        changes = changes.any(1)
    cuts = [0, *(np.nonzero(changes)[0] + 1).tolist(), len(keys)]
    return list(zip(cuts, cuts[1:], strict=False))


def _by_warp(fiber: Fiber, keys: np.ndarray) -> list[list[tuple[int, int]]]:
    """Pieces of equal key, grouped by warp where a warp is mixed; whole warps stay together."""
    pieces: dict[int, list[tuple[int, int]]] = {}
    for start, stop in _runs(keys):
        lo, stop = fiber.lo + start, fiber.lo + stop
        while lo < stop:
            warp = lo // WARP
            hi = min(stop, (warp + 1) * WARP)
            pieces.setdefault(warp, []).append((lo, hi))
            lo = hi
    groups: list[list[tuple[int, int]]] = []
    for group in pieces.values():
        last = groups[-1] if groups else []
        same = len(group) == len(last) == 1 and last[0][1] == group[0][0]
        if same and np.array_equal(keys[last[0][0] - fiber.lo], keys[group[0][0] - fiber.lo]):
            last[0] = (last[0][0], group[0][1])
        else:
            groups.append(group)
    return groups


def diverge(machine: Machine, fiber: Fiber, targets: np.ndarray, join_pc: int) -> None:
    """Send every thread to its target instruction; mixed warps meet again at `join_pc`."""
    for group in _by_warp(fiber, targets):
        join = Join(join_pc, fiber.join, len(group)) if len(group) > 1 else fiber.join
        for lo, hi in group:
            machine.fibers.append(Fiber(lo, hi, int(targets[lo - fiber.lo]), join))


def cut(machine: Machine, fiber: Fiber, keys: np.ndarray) -> int:
    """Cut a fiber where `keys` change, to execute one instruction in pieces."""
    for group in _by_warp(fiber, keys):
        join = Join(fiber.pc + 1, fiber.join, len(group)) if len(group) > 1 else fiber.join
        for lo, hi in group:
            piece = Fiber(lo, hi, fiber.pc, join)
            piece.alone_at = fiber.pc
            machine.fibers.append(piece)
    return SPLIT


def arrive(machine: Machine, fiber: Fiber) -> None:
    """A piece of a warp has come to its join; the last one goes on with all threads."""
    join = fiber.join
    join.arrived.append((fiber.lo, fiber.hi))
    join.missing -= 1
    if join.missing == 0:
        lo = min(piece[0] for piece in join.arrived)
        hi = max(piece[1] for piece in join.arrived)
        machine.fibers.append(Fiber(lo, hi, join.pc, join.parent))


def merge(machine: Machine) -> None:
    """Neighbouring fibers at one instruction become one; at random seeds, not always."""
    machine.fibers.sort(key=lambda fiber: fiber.lo)
    out = [machine.fibers[0]]
    random = machine.policy == "random"
    for fiber in machine.fibers[1:]:
        last = out[-1]
        joinable = (
            last.hi == fiber.lo and last.pc == fiber.pc and fiber.alone_at != fiber.pc
            and last.join is None and fiber.join is None and fiber.lo % WARP == 0
            and last.lo % WARP == 0 and fiber.lo % machine.block
        )  # fmt: skip
        if joinable and random and fiber.lo % WARPGROUP == 0 and machine.random.random() < 0.5:
            joinable = False
        if joinable:
            last.hi = fiber.hi
        else:
            out.append(fiber)
    machine.fibers = out


def _assemble(machine: Machine, fiber: Fiber, key: tuple, wanted: int, what: str) -> int | None:
    """Wait until `wanted` threads stand here, then go on with all of them in one fiber."""
    waiting = machine.gathering.setdefault(key, [])
    waiting.append(fiber)
    if sum(piece.hi - piece.lo for piece in waiting) < wanted:
        fiber.waits_for = what
        return BLOCK
    del machine.gathering[key]
    pieces = sorted(waiting, key=lambda piece: piece.lo)
    contiguous = all(
        a.hi == b.lo and a.join is b.join for a, b in zip(pieces, pieces[1:], strict=False)
    )
    if not contiguous:
        item = machine.program.instructions[fiber.pc]
        machine.unsupported(item, "threads that diverged at different branches meet here")
    for piece in waiting:
        if piece is not fiber:
            machine.blocked.pop(piece)
    if fiber.join is not None:
        fiber.join.missing -= len(pieces) - 1
    fiber.lo, fiber.hi = pieces[0].lo, pieces[-1].hi
    return None


def whole_warps(machine: Machine, fiber: Fiber, item: Instruction, lanes: int = 0xFFFFFFFF):
    """Wait until all threads of the warp named by `lanes` are here. PTX ISA 9.7.9.6, 9.7.13."""
    if fiber.lo % WARP == 0 and fiber.hi % WARP == 0 and lanes == 0xFFFFFFFF:
        return None
    warp = fiber.lo // WARP
    if warp != (fiber.hi - 1) // WARP:
        return cut(machine, fiber, np.arange(fiber.lo, fiber.hi) // WARP)
    mine = ((1 << (fiber.hi - fiber.lo)) - 1) << (fiber.lo % WARP)
    if mine & ~lanes:
        machine.fault("warp", item, f"lanes {mine & ~lanes:#x} execute this but are not in its "
                      f"member mask {lanes:#x}")  # fmt: skip
    if mine == lanes:
        return None
    what = f"the other lanes of its warp (member mask {lanes:#x})"
    return _assemble(machine, fiber, (warp, fiber.pc, lanes), lanes.bit_count(), what)


def whole_warpgroups(machine: Machine, fiber: Fiber, item: Instruction):
    """Cut at warpgroup borders, then wait for all four warps. PTX ISA 9.7.15."""
    outcome = whole_warps(machine, fiber, item)
    if outcome is not None or (fiber.lo % WARPGROUP == 0 and fiber.hi % WARPGROUP == 0):
        return outcome
    if fiber.lo // WARPGROUP != (fiber.hi - 1) // WARPGROUP:
        return cut(machine, fiber, np.arange(fiber.lo, fiber.hi) // WARPGROUP)
    key = ("warpgroup", fiber.lo // WARPGROUP, fiber.pc)
    return _assemble(machine, fiber, key, WARPGROUP, "the other warps of its warpgroup")
