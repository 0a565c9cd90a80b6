"""Registers of the roles: how the CTA's share of the SM's registers is split by `setmaxnreg`.

What a role needs is at first estimated from its tiles. Where roles differ and ptxas is there, it
is asked: each role is assembled alone, without a limit, and gets what ptxas then takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..arch import Arch
from ..check import CheckedKernel
from ..codegen.emit import generate
from ..errors import ResourceError
from ..ir import Block, Kernel, Op
from ..ops.control import RoleSection
from ..ops.mma import Mma
from ..ops.views import storage
from ..runtime import cache as disk
from ..runtime import compile as runtime_compile
from ..tiles import RegTileType
from .ring import WARPGROUP_THREADS

STEP = 8  # PTX ISA 9.7.19.5, setmaxnreg: a multiple of 8
BESIDE_TILES = 32  # registers of addresses, phases and loops, in the first estimate


@dataclass(frozen=True)
class Demand:
    """One role's.

    Args:
        name: the role.
        warpgroups: how many.
        registers: a thread, as the kernel's author says; None for what it needs, and a share.
        needs: a thread, estimated or as ptxas says.
    """

    name: str
    warpgroups: int
    registers: int | None = None
    needs: int = 0


@dataclass(frozen=True)
class Budget:
    """What a CTA has to share.

    Args:
        arch: the target.
        demands: of the roles.
        movers: threads that only move data: whole warpgroups, or a warp, which shares nothing.
        blocks: CTAs an SM.
    """

    arch: Arch
    demands: tuple[Demand, ...]
    movers: int = WARPGROUP_THREADS
    blocks: int = 1

    @property
    def warpgroups(self) -> int:
        """Of all roles."""
        return sum(d.warpgroups for d in self.demands)

    @property
    def launch(self) -> int:
        """Registers a thread that the launch gives: what the SM has, a multiple of 8."""
        return min(self._most, self.arch.limit("registers_per_thread")) // STEP * STEP

    @property
    def enough(self) -> bool:
        """Whether the launch gives each thread all it can have, or `setmaxnreg` cannot be used."""
        plain = not any(d.registers for d in self.demands)
        alone = self.movers % WARPGROUP_THREADS != 0
        return plain and (alone or self._most >= self.arch.limit("registers_per_thread"))

    @property
    def _most(self) -> int:
        """Registers a thread if all threads of the SM's CTAs have as many."""
        threads = self.warpgroups * WARPGROUP_THREADS + self.movers
        return self.arch.limit("registers_per_sm") // self.blocks // threads

    @property
    def mover(self) -> int:
        """Registers of who only moves data.

        40; 32 beside three warpgroups, whose share is a multiple of 8 then; the least where only
        that leaves what the roles ask for, and else.
        """
        least = self.arch.limit("setmaxnreg_min")
        usual = {1: 40, 2: 40, 3: 32}.get(self.warpgroups, least)
        asked = sum((d.registers or 0) * d.warpgroups for d in self.demands)
        fits = self._pool(usual) < asked <= self._pool(least)
        return least if fits else usual

    def _pool(self, mover: int) -> int:
        """What the roles have together, a thread of each warpgroup."""
        service = self.movers // WARPGROUP_THREADS
        return self.launch * (self.warpgroups + service) - mover * service

    def split(self) -> dict[str, int]:
        """Registers a thread of each role: what is asked for or needed, and the rest evenly.

        Raises:
            ResourceError: the demands exceed the registers, or are no legal `setmaxnreg` count.
        """
        low, high = self.arch.limit("setmaxnreg_min"), self.arch.limit("setmaxnreg_max")
        for demand in self.demands:
            _check(demand, low, high)
        pool = self._pool(self.mover)
        needs = {d.name: min(_rounded(max(d.needs, low)), high) for d in self.demands}
        got = {d.name: d.registers or needs[d.name] for d in self.demands}
        left = pool - sum(got[d.name] * d.warpgroups for d in self.demands)
        if left < 0:
            shown = ", ".join(
                f"{d.name}: {d.warpgroups} x {got[d.name]}" + (" (needed)" * (not d.registers))
                for d in self.demands
            )
            raise ResourceError(
                f"registers: the {self.warpgroups} warpgroups of the roles have {pool} together, "
                f"a thread of each, got {shown}: {-left} too many",
                hint="use smaller tiles or fewer warpgroups",
            )
        free = [d for d in self.demands if d.registers is None]
        while free:
            for demand in sorted(free, key=lambda d: got[d.name]):
                if got[demand.name] >= high or left < STEP * demand.warpgroups:
                    free.remove(demand)
                else:
                    got[demand.name] += STEP
                    left -= STEP * demand.warpgroups
        return got


def _rounded(count: int) -> int:
    return -(-count // STEP) * STEP


def _check(demand: Demand, low: int, high: int) -> None:
    count = demand.registers
    if count is None:
        return
    number = isinstance(count, int) and not isinstance(count, bool)
    if not number or not low <= count <= high or count % STEP:
        nearest = max(low, min(high, count // STEP * STEP)) if number else high
        raise ResourceError(
            f"registers: of a role are a multiple of {STEP} from {low} to {high}, "
            f"got {demand.name}={count!r}",
            hint=f"registers={nearest}",
        )


def sections_of(kernel: Kernel) -> dict[str, RoleSection]:
    """The sections of a kernel, by role."""
    return {op.name: op for op in kernel.body.ops if isinstance(op, RoleSection)}


def give(kernel: Kernel, budget: Budget) -> None:
    """Writes a budget into the kernel's sections."""
    shares = budget.split()
    for name, section in sections_of(kernel).items():
        section.registers = shares.get(name, budget.mover)
        section.grow = section.registers >= budget.launch
    kernel.facts["registers"] = {name: op.registers for name, op in sections_of(kernel).items()}


def estimated(kernel: Kernel, demands: Sequence[Demand]) -> tuple[Demand, ...]:
    """Demands with what the tiles of each role's products take."""
    sections = sections_of(kernel)
    return tuple(replace(d, needs=_tiles(sections[d.name].body) + BESIDE_TILES) for d in demands)


def _tiles(block: Block) -> int:
    found = {}
    for op in block.walk():
        if isinstance(op, Mma):
            for value in op.operands():
                if isinstance(value.type, RegTileType):
                    tile = storage(value)[0]
                    found[id(tile)] = tile.type.registers  # type: ignore[union-attr]
    return sum(found.values())


def fit(checked: CheckedKernel, budget: Budget) -> None:
    """Gives each role what ptxas says that it takes; leaves the estimate where there is no ptxas.

    Raises:
        ResourceError: together it is more than a CTA has.
    """
    try:
        runtime_compile.ptxas(disk.current())
    except ResourceError:
        return
    found = [replace(d, needs=_taken(checked, d.name)) for d in budget.demands]
    give(checked.kernel, replace(budget, demands=tuple(found)))


def _taken(checked: CheckedKernel, name: str) -> int:
    """Registers a thread of a role assembled alone, in a CTA small enough for any number."""
    kernel = checked.kernel
    section = sections_of(kernel)[name]
    ops: list[Op] = [op for op in kernel.body.ops if not isinstance(op, RoleSection)]
    alone = Block()
    alone.ops = [*ops, replace_section(section)]
    small = replace(kernel, body=alone, threads=WARPGROUP_THREADS, cluster=1)
    module = generate(replace(checked, kernel=small))
    return runtime_compile.assemble(module).registers


def replace_section(section: RoleSection) -> RoleSection:
    """The same code for all threads, with the registers of the launch."""
    alone = replace(section, registers=None, rest=True)
    alone.loc, alone.scope = section.loc, section.scope
    return alone
