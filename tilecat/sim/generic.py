"""Loads, stores and atomics at generic addresses: global or shared, also of another CTA.

PTX ISA 5.1, 9.7.9.8, 9.7.9.11, 9.7.13.5. An access of several spaces is done in parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilecat.sim import atomics, memory
from tilecat.sim.alu_types import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from tilecat.sim.fibers import Fiber, cut
from tilecat.sim.parse import TYPE_BYTES, Instruction, Vec
from tilecat.sim.program import refuse
from tilecat.sim.report import OFFSET_MASK, RANK_SHIFT
from tilecat.sim.table import Row

if TYPE_CHECKING:
    from tilecat.sim.core import Machine

_WINDOW_BYTES = 1 << 32
GLOBAL, SHARED = 0, 1


def _decode_access(item: Instruction) -> tuple[Instruction, Instruction]:
    """The instruction as one on global memory, and as one on the cluster's shared memory."""
    data, mem = item.args if item.mods[0] == "ld" else item.args[::-1]
    count = next((int(mod[1:]) for mod in item.mods if mod in ("v2", "v4")), 1)
    registers, kind = tuple(data.items) if isinstance(data, Vec) else (data,), item.mods[-1]
    if len(registers) != count or mem.extra or TYPE_BYTES[kind] * count > 16:
        raise refuse(item, f"{count} registers, of at most 16 bytes, are wanted")
    polls = item.mods[0] == "ld" and any(m in item.mods for m in ("acquire", "relaxed", "volatile"))
    forms = (
        memory.Access(space, kind, TYPE_BYTES[kind], registers, mem, polls)
        for space in ("global", "shared::cluster")
    )
    return tuple(replace(item, info=form) for form in forms)


def _decode_atomic(item: Instruction) -> tuple[Instruction, Instruction]:
    form = atomics.decode(item)
    if len(form.operands[0]) > 1:
        raise refuse(item, "a vector of generic addresses is not implemented")
    return replace(item, info=form), replace(item, info=replace(form, shared="shared::cluster"))


def _run(run: Callable, machine: Machine, fiber: Fiber, item: Instruction):
    """Find the space every thread's address lies in, and do the access there."""
    form = item.info[GLOBAL].info
    addresses = machine.addresses(item, form.mem, fiber.lo, fiber.hi, "u64")
    space = (addresses >= SHARED_WINDOW) & (addresses < SHARED_WINDOW + _WINDOW_BYTES)
    for window in (LOCAL_WINDOW, PARAM_WINDOW):
        if ((addresses >= window) & (addresses < window + _WINDOW_BYTES)).any():
            raise refuse(item, "generic addresses of local memory and parameters not implemented")
    active = machine.active_mask(fiber, item)
    if not active.any():
        return None
    if (space[active] != space[active][0]).any():
        return cut(machine, fiber, np.where(active, space, False))
    return run(machine, fiber, item.info[SHARED if space[active][0] else GLOBAL])


def _mapa(machine: Machine, fiber: Fiber, item: Instruction) -> None:
    """mapa.u64: a generic shared address in another CTA of the cluster. 9.7.9.23."""
    lo, hi = fiber.lo, fiber.hi
    address = machine.values(item, item.args[1], "u64", lo, hi)
    rank = machine.values(item, item.args[2], "u32", lo, hi)
    active = machine.active_mask(fiber, item)
    if (rank[active] >= machine.ctas).any():
        machine.fault("bounds", item, f"rank {int(rank.max())} in a cluster of {machine.ctas}")
    place = np.uint64(SHARED_WINDOW) | (address & np.uint64(OFFSET_MASK))
    value = place | rank.astype(np.uint64) << np.uint64(RANK_SHIFT)
    np.copyto(machine.registers.raw(item.args[0], lo, hi), value, where=active)


_LD = "{.weak,.volatile,.relaxed,.acquire}{.cta,.cluster,.gpu,.sys}"
_ST = "{.weak,.volatile,.relaxed,.release}{.cta,.cluster,.gpu,.sys}"
_TYPES = "{.v2,.v4}(" + ",".join(f".{kind}" for kind in sorted(TYPE_BYTES)) + ")"
TABLE = (
    Row(f"ld{_LD}{_TYPES}", "dv m", partial(_run, memory.load), "9.7.9.8", decode=_decode_access),
    Row(f"st{_ST}{_TYPES}", "m rv", partial(_run, memory.store), "9.7.9.11", decode=_decode_access),
    Row(f"red{atomics.ORDER}{atomics.FORM}", "m r", partial(_run, atomics.run), "9.7.13.6",
        decode=_decode_atomic),
    Row(f"atom{atomics.ORDER}{atomics.FORM}", "d m r r?", partial(_run, atomics.run), "9.7.13.5",
        decode=_decode_atomic),
    Row("mapa.u64", "d r r", _mapa, "9.7.9.23"),
)  # fmt: skip
