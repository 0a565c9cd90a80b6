"""One run of measurements: its time budget, its rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import TileError
from ..kernels import KernelSpec, Shape
from ..testing import Times, do_bench, ratio

Report = Callable[[float, float], None]
WARM_S = 0.25  # of rounds before those that count: an H200's clock has settled


@dataclass(frozen=True)
class Task:
    """One row to measure, made when its turn comes.

    Args:
        table: the table it belongs to.
        label: what the row is called there.
        measure: takes the session, returns the row's numbers.
        weight: its share of the time budget, relative to others.
    """

    table: str
    label: str
    measure: Callable[[Session], dict[str, Any]]
    weight: float = 1.0


@dataclass
class Session:
    """Settings of a run and what it has found.

    Args:
        torch: the module.
        repeats: rounds a row at most.
        warmup: rounds before them.
        budget_s: seconds for the whole run; rows get fewer rounds as it runs out.
        say: takes a line of text for the user.
        report: takes rows done and rows in all.
    """

    torch: Any
    repeats: int = 30
    warmup: int = 3
    budget_s: float = 480.0
    say: Callable[[str], None] = print
    report: Report = lambda done, total: None
    rows: list[dict[str, Any]] = field(default_factory=list)
    share_s: float = 0.0

    def run(self, tasks: list[Task]) -> None:
        """Measures the tasks in order; a failed one leaves a row that says why.

        A row's rounds end with its share of what is left of the budget. When nothing is left, the
        remaining rows are skipped and say so.
        """
        started = time.perf_counter()
        weight = sum(task.weight for task in tasks)
        for number, task in enumerate(tasks):
            self.report(number, len(tasks))
            left = self.budget_s - (time.perf_counter() - started)
            self.share_s = left * task.weight / weight
            weight -= task.weight
            row = {"table": task.table, "label": task.label}
            row |= {"skipped": "out of time"} if left <= 0 else self._measured(task)
            self.rows.append(row)
            self.say(line_of(row))
        self.report(len(tasks), len(tasks))

    def _measured(self, task: Task) -> dict[str, Any]:
        started = time.perf_counter()
        try:
            found = task.measure(self)
        except (TileError, RuntimeError, ValueError) as error:  # torch raises RuntimeError
            first = (str(error).splitlines() or [""])[0]
            found = {"failed": f"{type(error).__name__}: {first}"}
        self.torch.cuda.empty_cache()
        return {**found, "seconds": round(time.perf_counter() - started, 2)}

    def compare(
        self,
        functions: Mapping[str, Callable[[], Any]],
        spec: KernelSpec,
        shape: Shape,
        *,
        ours: str = "tilecat",
    ) -> dict[str, Any]:
        """Times functions interleaved: microseconds, TFLOP/s, and peers' times over ours.

        Args:
            functions: by name.
            spec: the kernel, for its operations and bytes.
            shape: the problem.
            ours: the function that the others are compared with.
        """
        times = do_bench(
            list(functions.values()),
            warmup=self.warmup,
            warm_s=min(WARM_S, self.share_s / 4),
            repeats=self.repeats,
            budget_s=self.share_s / 2,
        )
        flops = spec.flops(shape.extents)
        named: dict[str, Times] = dict(zip(functions, times, strict=True))
        return {
            "flops": flops,
            "bytes": spec.num_bytes(shape.extents, 2),
            "times_us": {name: taken.summary() for name, taken in named.items()},
            "tflops": {
                name: float(f"{flops / taken.median_us / 1e6:.4g}") for name, taken in named.items()
            },
            "ratio": {
                name: ratio(taken, named[ours]) for name, taken in named.items() if name != ours
            },
        }


def line_of(row: dict[str, Any]) -> str:
    """One row as one line."""
    head = f"{row['table']:10} {row['label']:28}"
    for key in ("failed", "skipped"):
        if key in row:
            return f"{head} {key}: {row[key]}"
    if "host_us" in row:
        return head + "  ".join(f"{name} {us:.2f} us" for name, us in row["host_us"].items())
    parts = [f"{name} {value:.0f}" for name, value in row["tflops"].items()]
    parts += [f"/{name} {value['median']:.3f}" for name, value in row["ratio"].items()]
    return f"{head} {'  '.join(parts)}  error {row.get('error', 0):.1e}"
