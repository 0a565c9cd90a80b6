"""Every test of tests/gpu on this GPU, in several processes: counts and failures by test.

    python benchmarks/conformance_gpu.py OUT.json [PROCESSES [SECONDS]]

The cases are those of the CASES tables that run on the PTX machine, against the same references.
After SECONDS no further test starts, and the file says how many did not.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHARD, OF, END, OUT = (
    os.environ.get(f"CONFORMANCE_{name}", "0") for name in ("SHARD", "OF", "END", "OUT")
)


# ---- as a plugin of pytest, in each process
def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keeps this process's share, in an order that spreads long tests."""
    random.Random(0).shuffle(items)
    items[:] = items[int(SHARD) :: int(OF)]
    _note(["collected", len(items)])


def pytest_runtest_logreport(report: Any) -> None:
    """One line a finished test, so that what was done outlives a stop."""
    if report.when == "call" or report.outcome != "passed":
        text = str(report.longrepr)[-600:] if report.failed else ""
        _note([report.nodeid, report.outcome, text])


def pytest_runtest_teardown(item: Any) -> None:
    """No further test after the deadline."""
    if time.time() > float(END):
        item.session.shouldstop = "out of time"


def _note(row: list[Any]) -> None:
    with open(OUT, "a") as file:
        file.write(json.dumps(row) + "\n")


# ---- as a script
def main(target: str, processes: int = 8, seconds: float = 480) -> int:
    """Runs the processes and writes the results file; exit code 1 if a test failed."""
    import torch

    from tilecat.bench import record

    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{n}.jsonl" for n in range(processes)]
        running = []
        for number, file in enumerate(files):
            values = {"SHARD": number, "OF": processes, "END": start + seconds, "OUT": file}
            path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
            env = os.environ | {f"CONFORMANCE_{k}": str(v) for k, v in values.items()}
            command = [
                sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu", "-q",
                "-p", "conformance_gpu", "-p", "no:cacheprovider",
            ]  # fmt: skip
            running.append(
                subprocess.Popen(
                    command, cwd=ROOT, env=env | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                    stdout=subprocess.DEVNULL,
                )
            )  # fmt: skip
        for process in running:
            process.wait()
        texts = [file.read_text() for file in files if file.exists()]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    collected = sum(row[1] for row in rows if row[0] == "collected")
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    failures = {}
    for name, outcome, text in (row for row in rows if row[0] != "collected"):
        counts[name.split("[")[0].removeprefix("tests/gpu/")][outcome] += 1
        if outcome == "failed":
            failures[name] = text
    total = sum(counts.values(), Counter())
    results = {
        **record.environment(torch), "method": __doc__,
        "seconds": round(time.time() - start, 1), "processes": processes, "collected": collected,
        "total": dict(total), "not_run": collected - total.total(),
        "tests": {name: dict(found) for name, found in sorted(counts.items())},
        "failures": failures,
    }  # fmt: skip
    record.write(Path(target), results)
    print(f"{collected} collected, {dict(total)} in {results['seconds']} s: {target}")
    for name in list(failures)[:40]:
        print("failed:", name)
    return 1 if failures or not collected else 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3, 4):
        raise SystemExit(__doc__)
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:4])))
