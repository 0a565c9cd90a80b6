"""A tuner's worker process: takes jobs on stdin, one JSON line each, and answers on stdout.

    python -m tilecat.tune.worker

What a candidate does to this process (a hang, a lost context, a crash) happens to nobody else: the
parent (`tilecat.tune.pool`) sees the last line and knows whose fault it was.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..errors import TileError
from ..kernels import Shape
from ..testing import Times, do_bench, require_gpu
from .plan import MIN_CANDIDATES
from .problems import TUNABLES, Ready

Job = dict[str, Any]
Answers = Iterator[dict[str, Any]]
SCREEN_ROUNDS = 5
FINAL_ROUNDS = 40


class ContextLost(Exception):
    """The GPU's context is gone with everything in it: only a new process helps."""


def compile_family(job: Job) -> Answers:
    """Traces, checks and assembles candidates that differ in the ring's depth, deepest first.

    Args:
        job: kernel, layout, dtype, target, candidates (parameters by id), depths.

    Yields:
        For each: id and registers, shared_bytes; or id and pruned, the reason.
    """
    tunable = TUNABLES[job["kernel"]]
    args = tunable.example(job["layout"], job["dtype"])
    made = 0
    for name, params in job["candidates"].items():
        if made == job["depths"]:
            return
        try:
            further = tunable.further(args, params)
            compiled = tunable.spec.kernel.compile(*args, *further, target=job["target"], **params)
        except TileError as error:
            yield {"id": name, "pruned": f"{error.kind}: {error.message}"}
            continue
        made += 1
        used = compiled.resources
        yield {"id": name, "registers": used.registers, "shared_bytes": used.shared_bytes}


@functools.lru_cache(maxsize=1)
def _problem(kernel: str, shape: Shape, layout: str, dtype: str) -> Ready:
    return TUNABLES[kernel].ready(require_gpu(), shape, layout, dtype)


def _problem_of(job: Job) -> Ready:
    shape = Shape(job["shape"], tuple((name, extent) for name, extent in job["items"]))
    return _problem(job["kernel"], shape, job["layout"], job["dtype"])


def prepare(job: Job) -> Answers:
    """Makes a problem's operands and right result, for the `measure` that comes next.

    Args:
        job: kernel, shape, items, layout, dtype.
    """
    _problem_of(job)
    yield from ()


def measure(job: Job) -> Answers:
    """Runs, checks and times candidates on one problem, interleaved with the peer.

    Args:
        job: kernel, shape, items, layout, dtype, candidates (the most promising first), seconds
            (for first runs, after which no further candidate is tried, and as many for times), keep
            (how many are measured well), calls (before a candidate counts as sound).

    Yields:
        `trying` before a candidate first runs, then `checked` with its error, or `failed` with a
        reason; `timing` before times are taken; `screen` and `times`: microseconds by id.
    """
    torch = require_gpu()
    tunable = TUNABLES[job["kernel"]]
    ready = _problem_of(job)
    kernel = tunable.spec.kernel
    functions: dict[str, Callable[[], Any]] = {}
    until = time.monotonic() + job["seconds"]
    for name, params in job["candidates"].items():
        if time.monotonic() > until and len(functions) >= MIN_CANDIDATES:
            break
        yield {"trying": name}
        further = tunable.further(ready.args, params)
        call = functools.partial(kernel, *ready.args, *further, **params)
        answer = _checked(torch, name, call, ready, job["calls"])
        yield answer
        if "failed" in answer:
            _require_context(torch)
        else:
            functions[name] = call
    yield from timed(functions, ready.peers, job["seconds"], job["keep"], do_bench)


def _checked(
    torch: Any, name: str, call: Callable[[], Any], ready: Ready, calls: int
) -> dict[str, Any]:
    try:
        ready.clear()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        return {"checked": name, "error": float(f"{ready.check():.4g}")}
    except (TileError, RuntimeError) as error:  # torch raises RuntimeError
        first = (str(error).splitlines() or [""])[0]
        return {"failed": name, "reason": first}


def _require_context(torch: Any) -> None:
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise ContextLost(str(error)) from error


def timed(
    functions: Mapping[str, Callable[[], Any]],
    peers: Mapping[str, Callable[[], Any]],
    seconds: float,
    keep: int,
    bench: Callable[..., tuple[Times, ...]],
) -> Answers:
    """A few rounds of all, then many of the fastest; peers run in every round.

    Args:
        functions: candidates by id.
        peers: functions to compare with, by name.
        seconds: to spend, on each half one half.
        keep: how many candidates come to the second half.
        bench: as `testing.do_bench`.
    """
    if not functions:
        return
    yield {"timing": "screen"}
    every = {**peers, **functions}
    times = bench(list(every.values()), warmup=1, repeats=SCREEN_ROUNDS, budget_s=seconds / 2)
    medians = {name: taken.median_us for name, taken in zip(every, times, strict=True)}
    yield {"screen": {name: float(f"{us:.5g}") for name, us in medians.items()}}
    best = sorted(functions, key=medians.__getitem__)[:keep]
    finalists = {**peers, **{name: functions[name] for name in best}}
    yield {"timing": "final"}
    times = bench(list(finalists.values()), warmup=1, repeats=FINAL_ROUNDS, budget_s=seconds / 2)
    yield {"times": {n: taken.summary() for n, taken in zip(finalists, times, strict=True)}}


HANDLERS: dict[str, Callable[[Job], Answers]] = {
    "compile": compile_family, "prepare": prepare, "measure": measure,
}  # fmt: skip


def serve(handlers: Mapping[str, Callable[[Job], Answers]]) -> None:
    """Answers jobs until stdin ends; each job's answers end with `{"end": true}`.

    Args:
        handlers: by the job's `do`. What they print goes to stderr.
    """
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            job = json.loads(line)
            try:
                for answer in handlers[job["do"]](job):
                    answers.write(json.dumps(answer) + "\n")
                    answers.flush()
            except TileError as error:  # its text's last lines are a place in this file
                sys.exit(f"{error.kind}: {error.message}")
            answers.write('{"end": true}\n')
            answers.flush()


if __name__ == "__main__":
    serve(HANDLERS)
