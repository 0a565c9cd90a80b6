"""Cluster launch control, and moves of its 128-bit responses. PTX ISA 9.4, 9.7.14.18, 9.7.14.19.

A cluster that has begun asks for one that has not, which then never begins. The 16 bytes of a
response are opaque to a kernel; here they are 1 and the first CTA's x, y and z, or zeros.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim.bulk import issue_load, tile_chunks
from tilecat.sim.fibers import WARP, Fiber
from tilecat.sim.mbarrier import find
from tilecat.sim.parse import Instruction, Reg, Sink
from tilecat.sim.program import refuse
from tilecat.sim.table import Row

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

BYTES = 16
_FAILS = 0.25  # how often, at random seeds, the system itself has begun what was left


def reset(machine: Machine) -> None:
    """Start of a cluster: nothing was asked for."""
    machine.launch_refusals = []


def _try_cancel(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """clusterlaunchcontrol.try_cancel: 9.7.14.18."""
    for thread in machine.active(fiber, item):
        address = machine.address(item, item.args[0], thread)
        offset = machine.own_offset(item, address, thread, BYTES)
        if offset % BYTES:
            machine.fault("align", item, f"response at {address:#x} is not {BYTES}-byte aligned")
        barrier = machine.address(item, item.args[1], thread)
        _check_again(machine, item, thread)
        found = find(machine, item, barrier, thread, by_async=True)
        agent, time = found.loads_agent(machine), found.phase + 1
        fetch = partial(_response, machine, agent, time, item.pc)
        tile = tile_chunks(machine, offset, 1, BYTES, 0)
        issue_load(machine, item, thread, address, barrier, tile, fetch, BYTES)


def _check_again(machine: Machine, item: Instruction, thread: int) -> None:
    """Who has seen a request fail must not ask again."""
    for agent, time, pc in machine.launch_refusals:
        if machine.races and machine.clocks.know[thread // WARP, 0, agent] >= time:
            machine.report("launch-control", item, "a request after one that failed", pc)


def _response(machine: Machine, agent: int, time: int, pc: int) -> np.ndarray:
    random = machine.policy == "random" and machine.random.random() < _FAILS
    index = None if random else machine.cancel_launch()
    words = np.zeros(4, np.uint32)
    if index is None:
        machine.launch_refusals.append((agent, time, pc))
    else:
        first = [n * size for n, size in zip(machine.position(index), machine.cluster, strict=True)]
        words[:] = 1, *first
    return words.view("c16")


# ---- responses
def _words(machine: Machine, fiber: Fiber, register: Reg) -> np.ndarray:
    """A response a thread, (threads, 4)."""
    halves = [machine.registers.raw(half, fiber.lo, fiber.hi) for half in register.halves]
    return np.stack(halves, 1).view(np.uint32)


def _is_canceled(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """clusterlaunchcontrol.query_cancel.is_canceled: 9.7.14.19."""
    answer = _words(machine, fiber, item.args[1])[:, 0] == 1
    active = machine.active_mask(fiber, item)
    np.copyto(machine.registers.raw(item.args[0], fiber.lo, fiber.hi), answer, where=active)


def _first_cta(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """clusterlaunchcontrol.query_cancel.get_first_ctaid: 9.7.14.19."""
    words, active = _words(machine, fiber, item.args[1]), machine.active_mask(fiber, item)
    if (words[active, 0] != 1).any():
        machine.report("launch-control", item, "the first CTA of a request that failed")
    axis = {"get_first_ctaid::x": 1, "get_first_ctaid::y": 2, "get_first_ctaid::z": 3}
    if item.mods[2] in axis:
        targets = {axis[item.mods[2]]: item.args[0]}
    else:
        targets = dict(enumerate(item.args[0].items, 1))
    for column, register in targets.items():
        if isinstance(register, Reg):
            value = words[:, column] if column < 4 else np.uint32(0xDEADDEAD)
            target = machine.registers.raw(register, fiber.lo, fiber.hi)
            np.copyto(target, value, where=active)


def _check_vector(item: Instruction) -> None:
    items = item.args[0].items
    if len(items) != 4 or any(
        not isinstance(r, Sink) and not (isinstance(r, Reg) and r.bank == "R") for r in items
    ):
        raise refuse(item, "four registers of 32 bits, or _, are wanted")


def _check_word(item: Instruction) -> None:
    if not isinstance(item.args[0], Reg) or item.args[0].bank != "R":
        raise refuse(item, "a 32-bit register is wanted")


# ---- moves of 128 bits
def _move(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """mov.b128: 9.7.9.2."""
    target, source = item.info
    active = machine.active_mask(fiber, item)
    values = [machine.registers.raw(reg, fiber.lo, fiber.hi).copy() for reg in source]
    for register, value in zip(target, values, strict=True):
        if isinstance(register, Reg):
            np.copyto(machine.registers.raw(register, fiber.lo, fiber.hi), value, where=active)


def _check_move(item: Instruction) -> tuple[tuple, tuple]:
    parts = [arg.halves if isinstance(arg, Reg) else arg.items for arg in item.args]
    for index, part in enumerate(parts):
        good = (isinstance(r, Reg) and r.bank == "D" or isinstance(r, Sink) and not index
                for r in part)  # fmt: skip
        if len(part) != 2 or not all(good):
            raise refuse(item, "two registers of 64 bits are wanted")
    return tuple(parts[0]), tuple(parts[1])


_CANCEL = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
_QUERY = "clusterlaunchcontrol.query_cancel"
TABLE = (
    Row(f"{_CANCEL}.b128", "m m", _try_cancel, "9.7.14.18", needs="launch-control"),
    Row(f"{_CANCEL}.multicast::cluster::all.b128", "m m", _try_cancel, "9.7.14.18",
        needs="tcgen05"),
    Row(f"{_QUERY}.is_canceled.pred.b128", "p w", _is_canceled, "9.7.14.19",
        needs="launch-control"),
    Row(f"{_QUERY}.get_first_ctaid.v4.b32.b128", "v w", _first_cta, "9.7.14.19",
        decode=_check_vector, needs="launch-control"),
    Row(f"{_QUERY}(.get_first_ctaid::x,.get_first_ctaid::y,.get_first_ctaid::z).b32.b128", "d w",
        _first_cta, "9.7.14.19", decode=_check_word, needs="launch-control"),
    Row("mov.b128", "vw vw", _move, "9.7.9.2", decode=_check_move),
)  # fmt: skip
