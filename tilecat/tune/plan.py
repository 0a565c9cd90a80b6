"""What is to be measured: problems by name, candidates of a space, what fits a time budget."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from typing import Any

from ..dtypes import by_name
from ..errors import LayoutError
from ..kernels import KernelSpec, Shape
from ..kernels.space import Space
from .problems import TUNABLES, Tunable
from .stages import Compiled, Problem

MIN_CANDIDATES = 4
# Candidates of a problem, the most promising by the models. In benchmarks/results/tune-matmul.json
# the best of so many is within 2 % of the best of all.
MOST_CANDIDATES = 160
# Seconds of a candidate besides its runs (its trace, a first call, the check of its result: some
# 25 ms a candidate at 6144^3 beside an H200, 2026-11), its runs in a problem, and what stands
# beside each: idling, the flush. Estimates, to share out a budget.
_CHECK_S, _CALLS, _CALL_S = 0.025, 9, 0.0003


def tunable_of(kernel: str, target: str) -> tuple[Tunable, Space]:
    """The kernel and its space on the target.

    Raises:
        LayoutError: it has none.
    """
    found = TUNABLES.get(kernel)
    space = dict(found.spec.spaces).get(target) if found else None
    if found is None or space is None:
        known = ", ".join(
            f"{name} on {arch}" for name, t in TUNABLES.items() for arch, _ in t.spec.spaces
        )
        raise LayoutError(
            f"tune: a kernel with a space to tune in, got {kernel!r} on {target}",
            hint=f"there are {known}",
        )
    return found, space


def item_bytes(dtype: str) -> int:
    """Bytes an element."""
    return by_name(dtype).bits // 8


def shapes_of(spec: KernelSpec, names: Sequence[str]) -> list[Shape]:
    """Problems by name: a standard one, `4096^3`, or extents in the kernel's order, `640x512x64`.

    Raises:
        LayoutError: neither.
    """
    return [_shape(spec, name) for name in names] if names else list(spec.shapes)


def _shape(spec: KernelSpec, name: str) -> Shape:
    for shape in spec.shapes:
        if shape.name == name:
            return shape
    axes = [axis for axis, _ in spec.small]
    power = re.fullmatch(r"(\d+)\^(\d+)", name)
    numbers = [power[1]] * int(power[2]) if power else name.split("x")
    if len(numbers) != len(axes) or not all(n.isdecimal() and int(n) > 0 for n in numbers):
        raise LayoutError(
            f"tune: a problem of {spec.name} is named by its extents {' x '.join(axes)}, "
            f"got {name!r}",
            hint="x".join(str(256 * (at + 1)) for at in range(len(axes))),
        )
    return Shape(name, tuple(zip(axes, map(int, numbers), strict=True)), "own")


def layouts_of(tunable: Tunable, names: Sequence[str]) -> list[str]:
    """Layouts by name; none for the usual ones.

    Raises:
        LayoutError: one that the kernel does not have.
    """
    for name in names:
        if name not in tunable.layouts:
            raise LayoutError(
                f"tune: {tunable.spec.name} has no layout {name!r}",
                hint=f"there are {', '.join(tunable.layouts)}",
            )
    return list(names or tunable.usual)


def candidate_id(params: dict[str, Any]) -> str:
    """One name a candidate: `tile_m=128 tile_n=256 ...`."""
    return " ".join(f"{name}={value}" for name, value in params.items())


def promising(
    space: Space, shapes: Sequence[Shape], dtype: str, within: float
) -> dict[str, dict[str, Any]]:
    """Candidates that the models leave for one of these shapes at least: parameters by id.

    The most promising first: in the order of the place that each has for its best shape.
    """
    width = item_bytes(dtype)
    every = [params for family in space.families(width) for params in family]
    places: list[tuple[int, dict[str, Any]]] = []
    for shape in dict.fromkeys(shapes):
        ranked = space.ranked(every, shape.extents, width, within=within)
        places += enumerate(ranked[:MOST_CANDIDATES])
    places.sort(key=lambda place: place[0])
    return {candidate_id(params): params for _, params in places}


def compile_jobs(
    kernel: str, space: Space, layouts: Sequence[str], dtype: str, target: str,
    only: Collection[str],
) -> list[dict[str, Any]]:  # fmt: skip
    """One job of `worker.compile_family` for each family of candidates in each layout.

    The families of the first candidates come first: time may not suffice for all.

    Args:
        kernel: its name.
        space: of the kernel.
        layouts: of the operands.
        dtype: of the inputs.
        target: architecture.
        only: ids of candidates, the most promising first; the others are left out.
    """
    places = {name: place for place, name in enumerate(only)}
    made = [
        {candidate_id(params): params for params in family}
        for family in space.families(item_bytes(dtype))
    ]
    chosen = [{name: p for name, p in family.items() if name in places} for family in made]
    families = [family for family in chosen if family]
    families.sort(key=lambda family: min(places[name] for name in family))
    return [
        {
            "do": "compile", "kernel": kernel, "layout": layout, "dtype": dtype, "target": target,
            "depths": space.depths, "candidates": family,
        }
        for family in families
        for layout in layouts
    ]  # fmt: skip


def problem_of(
    space: Space,
    shape: Shape,
    layout: str,
    candidates: dict[str, dict[str, Any]],
    dtype: str,
    within: float,
) -> Problem:
    """A problem with its candidates by modelled time.

    Args:
        space: of the kernel.
        shape: the problem.
        layout: of the operands.
        candidates: parameters by id, those that compiled.
        dtype: of the inputs.
        within: factor of the least modelled time that a candidate may take.
    """
    width, extents = item_bytes(dtype), shape.extents
    ranked = space.ranked(list(candidates.values()), extents, width, within=within)
    ranked = ranked[:MOST_CANDIDATES]
    problem = Problem(shape, layout, {candidate_id(params): params for params in ranked})
    micros = [space.micros(params, extents, width) for params in ranked]
    problem.cost_s = sum(_CHECK_S + _CALLS * (us / 1e6 + _CALL_S) for us in micros)
    return problem


def fit(problem: Problem, share_s: float) -> None:
    """Drops the least promising candidates of a problem until its cost fits a share of seconds."""
    if problem.cost_s <= share_s:
        return
    count = len(problem.candidates)
    keep = max(MIN_CANDIDATES, math.floor(count * share_s / problem.cost_s))
    problem.candidates = dict(list(problem.candidates.items())[:keep])


def compile_report(
    jobs: Sequence[dict[str, Any]], compiled: dict[str, Compiled]
) -> dict[str, dict[str, Any]]:
    """For the results file, by layout: facts of usable candidates, reasons of the others."""
    seen = {name for job in jobs for name in job["candidates"]}
    return {
        layout: {
            "considered": len(seen), "usable": found.usable, "pruned": found.pruned,
        }
        for layout, found in compiled.items()
    }  # fmt: skip
