"""The tuner: which compile-time parameters make a kernel fast, by measuring them.

    tune("matmul", ("4096^3", "640x512x64"), out="found.json", budget_s=60)

Candidates come from the kernel's `Space`; a model of their time, one of the L2 and the checks of
the compiler prune them; the rest is compiled in parallel and measured in a worker process,
interleaved with the peer, the L2 flushed. One results file, written anew after every problem.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import gemm_winners
from ..arch import DEFAULT_TARGET
from ..bench import record
from ..errors import ResourceError
from ..kernels import Shape
from ..kernels.space import Space
from ..runtime import cache
from ..testing import FLUSH_BYTES, require_gpu
from .plan import (
    compile_jobs,
    compile_report,
    fit,
    layouts_of,
    problem_of,
    promising,
    shapes_of,
    tunable_of,
)
from .pool import COMMAND, Worker
from .stages import Compiled, Problem, compile_all, measure_problem, prepare
from .winners import winners

WITHIN = 2.0  # candidates up to this factor of the least modelled time are measured
KEEP = 12  # candidates measured well
COMPILE_SHARE = 0.4  # of what is left of the budget at most
METHOD = (
    "Random normal inputs; every candidate's result is checked against float64 before it is timed; "
    "a round calls all candidates and the peer once each, each round starting with another; before "
    f"each call the device idles 0.1 ms and {FLUSH_BYTES >> 20} MB are written (L2 flush); CUDA "
    "events around each call; microseconds. screen_us: medians of a few rounds of all; times_us: "
    "median and quantiles of the fastest and the peer, in rounds of their own."
)


def no_progress(what: str, done: float, total: float) -> None:
    """Shows nothing."""


@dataclass(frozen=True)
class Settings:
    """How a tuner works.

    Args:
        budget_s: seconds for everything: the least promising candidates go without, then problems.
        processes: that compile at a time; None for one a core.
        within: candidates up to this factor of the least modelled time are measured.
        say: takes a line of text for the user.
        progress: takes what is done (`compiling`, `measuring`), how much, and how much in all.
        command: of a worker process.
    """

    budget_s: float = 440.0
    processes: int | None = None
    within: float = WITHIN
    say: Callable[[str], None] = print
    progress: Callable[[str, float, float], None] = no_progress
    command: Sequence[str] = COMMAND


def tune(
    kernel: str,
    shapes: Sequence[str] = (),
    *,
    layouts: Sequence[str] = (),
    dtype: str = "bf16",
    target: str = DEFAULT_TARGET,
    out: str | Path | None = None,
    overwrite: bool = False,
    settings: Settings | None = None,
) -> Path:
    """Measures candidates of a kernel on problems; returns the results file.

    Args:
        kernel: its name.
        shapes: names of standard problems, or extents (`640x512x64`); none for all standard ones.
        layouts: of the operands; none for the usual ones.
        dtype: of the inputs.
        target: architecture, one the kernel has a space for.
        out: the results file; None keeps winners in the user's cache, and results beside them.
        overwrite: whether an old results file may be replaced.
        settings: budget and more.

    Raises:
        ResourceError: no PyTorch or GPU; an old results file of that name; no cache, and no out.
        LayoutError: an unknown kernel, shape or layout; no space for the target.
    """
    started, chosen = time.monotonic(), settings or Settings()
    tunable, space = tunable_of(kernel, target)
    wanted = layouts_of(tunable, layouts)
    problems = [(s, layout) for s in shapes_of(tunable.spec, shapes) for layout in wanted]
    path = _results_path(kernel, out, overwrite)
    job = {"kernel": kernel, "dtype": dtype}
    worker = Worker(chosen.command)
    ahead = prepare(worker, Problem(*problems[0], {}), job)
    try:
        results: dict[str, Any] = {
            "kernel": kernel, "target": target, "dtype": dtype,
            "environment": record.environment(require_gpu()), "smi": record.smi(),
            "method": METHOD, "budget_s": chosen.budget_s, "within": chosen.within,
        }  # fmt: skip
        made = _compiled(results, problems, space, started, chosen)

        def save() -> None:
            results["problems"] = [problem.row() for problem in made if problem.found]
            results["seconds"] = round(time.monotonic() - started, 1)
            record.write(path, results)

        save()
        ahead.join()
        measure_all(made, job, started + chosen.budget_s, chosen, save, worker)
    finally:
        ahead.join()
        worker.close()
    chosen.say(f"results: {path}")
    if out is None:
        _keep(results, chosen)
    return path


def _compiled(
    results: dict[str, Any],
    problems: Sequence[tuple[Shape, str]],
    space: Space,
    started: float,
    settings: Settings,
) -> list[Problem]:
    """The problems with the candidates that compiled; notes in the results what did not.

    Args:
        results: kernel, dtype, target; takes `candidates` and `compile_s`.
        problems: shapes and layouts.
        space: of the kernel.
        started: by `time.monotonic`.
        settings: of the run.
    """
    dtype, within = results["dtype"], settings.within
    few = promising(space, [shape for shape, _ in problems], dtype, within)
    layouts = list(dict.fromkeys(layout for _, layout in problems))
    jobs = compile_jobs(results["kernel"], space, layouts, dtype, results["target"], few)
    compiled = _compile_stage(jobs, started, settings)
    results["candidates"] = compile_report(jobs, compiled)
    results["compile_s"] = round(time.monotonic() - started, 1)
    settings.say(_compiled_line(results))
    return [
        problem_of(
            space, shape, layout, {n: few[n] for n in compiled[layout].usable}, dtype, within
        )
        for shape, layout in problems
    ]  # fmt: skip


def _keep(results: dict[str, Any], settings: Settings) -> None:
    found = winners(results)
    if found["problems"]:
        settings.say(f"winners: {gemm_winners.keep(found)}")


def _results_path(kernel: str, out: str | Path | None, overwrite: bool) -> Path:
    """The user's file, or one beside the winners, which every run replaces."""
    if out is not None:
        return record.path_for(f"tune-{kernel}", out, overwrite)
    if not cache.max_bytes():
        raise ResourceError(
            "tune: winners are kept in the cache, which TILECAT_CACHE_BYTES=0 turns off",
            hint="--out FILE writes what is measured, and keeps nothing",
        )
    return gemm_winners.folder() / f"tune-{kernel}.json"


def _compile_stage(
    jobs: list[dict[str, Any]], started: float, settings: Settings
) -> dict[str, Compiled]:
    now = time.monotonic()  # PyTorch's import and the models may have taken seconds
    return compile_all(
        jobs,
        settings.processes or os.cpu_count() or 1,
        lambda done, total: settings.progress("compiling", done, total),
        settings.command,
        now + COMPILE_SHARE * (started + settings.budget_s - now),
    )


def _compiled_line(results: dict[str, Any]) -> str:
    parts = [
        f"{layout}: {len(found['usable'])} of {found['considered']} candidates compiled"
        for layout, found in results["candidates"].items()
    ]
    return f"{', '.join(parts)} ({results['compile_s']} s)"


def measure_all(
    problems: list[Problem],
    job: dict[str, Any],
    deadline: float,
    settings: Settings,
    save: Callable[[], None],
    worker: Worker | None = None,
) -> None:
    """Measures problems in order, each in its share of what is left of the time.

    A candidate that cost a worker in one problem is not tried in another.

    Args:
        problems: with candidates.
        job: kernel and dtype.
        deadline: of `time.monotonic`.
        settings: of the run.
        save: called after each problem.
        worker: that measures, closed when all is done; None for a new one.
    """
    cost = sum(problem.cost_s for problem in problems)
    worker, lost = worker or Worker(settings.command), set[str]()
    try:
        for number, problem in enumerate(problems):
            settings.progress("measuring", number, len(problems))
            left = deadline - time.monotonic()
            share = left * problem.cost_s / cost if cost > 0 else 0.0  # nobody has candidates
            cost -= problem.cost_s
            for name in lost & set(problem.candidates):
                del problem.candidates[name]
            if left <= 0 or not problem.candidates:
                problem.found = {"skipped": "out of time" if left <= 0 else "no candidate"}
            else:
                fit(problem, share)
                seconds = share / 2
                measure_problem(worker, problem, {**job, "seconds": seconds, "keep": KEEP})
                lost |= problem.lost
            settings.say(line_of(problem))
            save()
    finally:
        worker.close()
    settings.progress("measuring", len(problems), len(problems))


def line_of(problem: Problem) -> str:
    """A problem's best candidate and the peer, as one line."""
    head = f"{problem.label:24}"
    if "skipped" in problem.found:
        return f"{head} skipped: {problem.found['skipped']}"
    ours, peers = split_times(problem.found["times_us"])
    failures = len(problem.found["failed"])
    tail = f"  {failures} of {len(problem.candidates)} failed" * (failures > 0)
    if not ours:
        return f"{head} no candidate was measured{tail}"
    best = min(ours, key=ours.__getitem__)
    parts = [f"{ours[best]:.1f} us  {best}"]
    parts += [f"/{name} {us / ours[best]:.3f}" for name, us in peers.items()]
    return f"{head} {'  '.join(parts)}{tail}"


def split_times(times: dict[str, dict[str, float]]) -> tuple[dict[str, float], dict[str, float]]:
    """Medians of candidates, whose ids have a `=`, and of peers."""
    medians = {name: summary["median"] for name, summary in times.items()}
    ours = {name: us for name, us in medians.items() if "=" in name}
    return ours, {name: us for name, us in medians.items() if "=" not in name}


__all__ = ["Settings", "tune"]
