"""Kernels of templates under several schedules of the PTX machine, and without each of their
synchronisation instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mutation.deletions import Mutant, deletions

import tilecat as tc
from tilecat import sim
from tilecat.arch import DEFAULT_TARGET
from tilecat.binding import bind
from tilecat.errors import MachineError
from tilecat.runtime import machine
from tilecat.runtime.arrays import view

SEEDS = (0, 1, 2)  # asynchronous work at once, as late as possible, at random
LIMIT = 60_000
NO_OUTPUT = np.zeros(0, np.uint32)  # these kernels print nothing
# Right programs in one CTA, and what only ptxas sees: see mutation/equivalents.py.
EQUIVALENT = ("fence.mbarrier_init", "setmaxnreg.inc", "setmaxnreg.dec")
Make = Callable[[], list[Any]]
Check = Callable[[list[Any]], None]


def check_schedules(
    kernel: tc.KernelFunction, make: Make, check: Check, *, grid: int = 2,
    seeds: tuple[int, ...] = SEEDS, **params: Any,
) -> None:  # fmt: skip
    """Runs at each seed: no report, right numbers.

    Args:
        kernel: it.
        make: fresh arguments.
        check: asserts that they hold the results.
        grid: CTAs.
        seeds: schedules.
        params: compile-time parameters.
    """
    for seed in seeds:
        args = make()
        result = kernel.simulate(*args, grid=grid, seed=seed, **params)
        assert not result.reports, f"seed {seed}: {result.reports[0]}"
        check(args)


def silent(
    kernel: tc.KernelFunction, make: Make, check: Check, *, grid: int = 2,
    seeds: tuple[int, ...] = (0,), **params: Any,
) -> list[str]:  # fmt: skip
    """Deletions of synchronisation that neither a report nor a wrong number shows."""
    views = [view(x) if isinstance(x, np.ndarray) else x for x in make()]
    bound = bind(kernel.signature, views, params)
    module = kernel.specialize(bound.specialization, DEFAULT_TARGET).module

    def found(mutant: Mutant, seed: int) -> bool:
        args = make()
        shown = [view(x) if isinstance(x, np.ndarray) else x for x in args]
        try:
            result = sim.run(
                mutant.text, grid=grid, smem_bytes=module.smem_bytes, table=module.table,
                args=[machine.argument(p, shown, NO_OUTPUT) for p in module.params],
                seed=seed, limit=LIMIT,
            )  # fmt: skip
            check(args)
        except (MachineError, AssertionError):
            return True
        return bool(result.reports)

    def left() -> Iterator[str]:
        for mutant in deletions(module.text):
            if mutant.group in EQUIVALENT and module.cluster == 1:
                continue
            if not any(found(mutant, seed) for seed in seeds):
                yield mutant.name

    return list(left())
