"""Registers of the roles: how the CTA's share of the SM's registers is split by `setmaxnreg`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..arch import Arch
from ..errors import ResourceError
from .ring import WARPGROUP_THREADS

STEP = 8  # PTX ISA 9.7.19.5, setmaxnreg: a multiple of 8


@dataclass(frozen=True)
class Demand:
    """One role's.

    Args:
        name: the role.
        warpgroups: how many.
        registers: a thread; None for a share of what the others leave.
    """

    name: str
    warpgroups: int
    registers: int | None = None


def split(
    arch: Arch, demands: Sequence[Demand], *, service: int = 1, blocks: int = 1
) -> tuple[int, dict[str, int]]:
    """Registers a thread of the warpgroups that only move data, and of each role.

    All warps of a CTA together have what its launch takes: every thread as many as the SM's
    registers allow, a multiple of 8. Those who move data keep 40 (32 beside three warpgroups of
    roles, whose share is a multiple of 8 then; 24, the least there is, beside more). Where the
    launch gives each thread all it can have, nothing is moved: (0, {}).

    Args:
        arch: the target, for its limits.
        demands: the roles.
        service: warpgroups that only move data.
        blocks: CTAs an SM.

    Raises:
        ResourceError: the demands exceed the registers, or are no legal `setmaxnreg` count.
    """
    warpgroups = sum(d.warpgroups for d in demands)
    threads = (warpgroups + service) * WARPGROUP_THREADS
    launch = arch.limit("registers_per_sm") // blocks // threads
    if launch >= arch.limit("registers_per_thread") and not any(d.registers for d in demands):
        return 0, {}
    launch = min(launch // STEP * STEP, arch.limit("registers_per_thread") // STEP * STEP)
    mover = {1: 40, 2: 40, 3: 32}.get(warpgroups, arch.limit("setmaxnreg_min"))
    pool = (launch * (warpgroups + service) - mover * service) if launch else 0
    for demand in demands:
        _check(arch, demand)
    left = pool - sum((d.registers or 0) * d.warpgroups for d in demands)
    free = sum(d.warpgroups for d in demands if d.registers is None)
    low, high = arch.limit("setmaxnreg_min"), arch.limit("setmaxnreg_max")
    share = min(left // free // STEP * STEP, high) if free else 0
    if left < 0 or (free and share < low):
        shown = ", ".join(
            f"{d.name}: {d.warpgroups} x {d.registers or 'a share'}" for d in demands
        )
        raise ResourceError(
            f"registers: the roles' warpgroups have {pool} together, a thread of each, "
            f"got {shown}",
            hint="give roles fewer registers, or make them of fewer warpgroups",
        )
    return mover, {d.name: share if d.registers is None else d.registers for d in demands}


def _check(arch: Arch, demand: Demand) -> None:
    count = demand.registers
    low, high = arch.limit("setmaxnreg_min"), arch.limit("setmaxnreg_max")
    if count is None:
        return
    legal = isinstance(count, int) and not isinstance(count, bool) and low <= count <= high
    if not legal or count % STEP:
        raise ResourceError(
            f"registers: of a role are a multiple of {STEP} from {low} to {high}, "
            f"got {demand.name}={count!r}",
            hint=f"registers={max(low, min(high, round(count / STEP) * STEP))}"
            if legal
            else "",
        )
