"""The two stages of a tuning: compile candidates in parallel, then measure them problem by problem.

A candidate that a check refuses is pruned; one that is wrong, fails, hangs or takes its worker with
it is reported and skipped; the rest of its problem goes on in a new worker.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..kernels import Shape
from .pool import COMMAND, Worker, WorkerLost

Report = Callable[[float, float], None]
START_S = 180.0  # a worker's imports (PyTorch's on a cold disk), operands, the float64 reference
COMPILE_S = 60.0
CANDIDATE_S = 10.0  # a candidate's first run: loading and a few calls
MAX_LOST = 12  # workers that one problem may lose
SOAK_CALLS = 20  # of each candidate, after a worker was lost while many were timed


@dataclass
class Compiled:
    """What stage one found in one layout.

    Args:
        usable: facts by candidate: registers, shared_bytes.
        pruned: reasons by candidate.
    """

    usable: dict[str, dict[str, int]] = field(default_factory=dict)
    pruned: dict[str, str] = field(default_factory=dict)


def compile_all(
    jobs: Sequence[dict[str, Any]],
    processes: int,
    report: Report,
    command: Sequence[str] = COMMAND,
    deadline: float = float("inf"),
) -> dict[str, Compiled]:
    """Compiles families of candidates into the disk cache, in several processes.

    Args:
        jobs: for `worker.compile_family`.
        processes: workers at a time.
        report: takes jobs done and jobs in all.
        command: of a worker.
        deadline: of `time.monotonic`, after which no process takes another job; what is left is not
            usable.

    Returns:
        What was found, by layout.
    """
    found = {job["layout"]: Compiled() for job in jobs}
    waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    lock, done = threading.Lock(), 0

    def work() -> None:
        nonlocal done
        worker = Worker(command)
        try:
            while True:
                job = waiting.get_nowait()
                answers = _compile(worker, job)
                with lock:
                    _take(found[job["layout"]], answers)
                    done += 1
                    report(done, len(jobs))
                if time.monotonic() > deadline:
                    break
        except queue.Empty:
            pass
        finally:
            worker.close()

    threads = [threading.Thread(target=work) for _ in range(max(1, min(processes, len(jobs))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _compile(worker: Worker, job: dict[str, Any]) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    left = dict(job["candidates"])
    while left:
        try:
            for answer in worker.run({**job, "candidates": left}, lambda _: COMPILE_S):
                answers.append(answer)
                left.pop(answer["id"], None)
            break
        except WorkerLost as lost:
            name = next(iter(left))  # they come in order
            left.pop(name)
            answers.append({"id": name, "pruned": str(lost)})
    return answers


def _take(compiled: Compiled, answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        name = answer.pop("id")
        if "pruned" in answer:
            compiled.pruned[name] = answer["pruned"]
        else:
            compiled.usable[name] = answer


@dataclass
class Problem:
    """One shape in one layout, and what was found.

    Args:
        shape: the problem.
        layout: of the operands.
        candidates: parameters by id, the most promising first.
        cost_s: estimated seconds to measure them all.
        found: `error` (by candidate, of the result), `failed` (reasons), `screen_us` and
            `times_us` (peers too), or `skipped`, a reason.
        lost: candidates that hung or took their worker with them.
    """

    shape: Shape
    layout: str
    candidates: dict[str, dict[str, Any]]
    cost_s: float = 1.0
    found: dict[str, Any] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    @property
    def label(self) -> str:
        """Shape and layout."""
        return f"{self.shape.name} {self.layout}".strip()

    def row(self) -> dict[str, Any]:
        """For the results file."""
        return {
            "shape": self.shape.name, "extents": self.shape.extents, "layout": self.layout,
            **self.found,
        }  # fmt: skip


def prepare(worker: Worker, problem: Problem, job: dict[str, Any]) -> threading.Thread:
    """Has a worker start and make a problem's operands, in a thread of its own.

    What goes wrong there does so again when the problem is measured, which says so.

    Args:
        worker: nobody else's until the thread has ended.
        problem: the first that it measures.
        job: kernel, dtype.
    """

    def work() -> None:
        with contextlib.suppress(WorkerLost):
            list(worker.run({"do": "prepare", **_asked(problem), **job}, lambda _: START_S))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _asked(problem: Problem) -> dict[str, Any]:
    shape = problem.shape
    return {"shape": shape.name, "items": shape.items, "layout": problem.layout}


def measure_problem(worker: Worker, problem: Problem, job: dict[str, Any]) -> None:
    """Measures one problem; its `found` says what came of it, whatever happens to the worker.

    Args:
        worker: runs it; restarted when it is lost.
        problem: with candidates.
        job: kernel, dtype, seconds (for first runs, and as many for times), keep.
    """
    problem.found = {"error": {}, "failed": {}, "screen_us": {}, "times_us": {}}
    failed, calls, lost_count = problem.found["failed"], 2, 0
    while True:
        left = {name: p for name, p in problem.candidates.items() if name not in failed}
        request = {
            "do": "measure", **_asked(problem), "calls": calls, "candidates": left, **job,
        }  # fmt: skip
        last: dict[str, Any] = {}
        try:
            for last in worker.run(request, lambda answer: _patience(answer, job["seconds"])):
                _note(problem.found, last)
            return
        except WorkerLost as lost:
            lost_count += 1
            if "trying" in last:
                failed[last["trying"]] = str(lost)
                problem.lost.add(last["trying"])
            elif "failed" in last:
                problem.lost.add(last["failed"])
            else:  # nobody to blame: run each for longer, then give up
                if calls == SOAK_CALLS:
                    problem.found["skipped"] = str(lost)
                    return
                calls = SOAK_CALLS
            if lost_count == MAX_LOST:
                problem.found["skipped"] = f"lost {lost_count} workers; the last {lost}"
                return


def _patience(answer: dict[str, Any], seconds: float) -> float:
    if not answer:
        return START_S
    return 60.0 + 3 * seconds if "timing" in answer else CANDIDATE_S


def _note(found: dict[str, Any], answer: dict[str, Any]) -> None:
    if "checked" in answer:
        found["error"][answer["checked"]] = answer["error"]
    elif "failed" in answer:
        found["failed"][answer["failed"]] = answer["reason"]
    elif "screen" in answer:
        found["screen_us"] = answer["screen"]
    elif "times" in answer:
        found["times_us"] = answer["times"]
