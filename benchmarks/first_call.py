"""A first call in a new process, where its time goes: cold and warm cache of kernels.

    python benchmarks/first_call.py OUT.json [PROCESSES]

PyTorch is imported and the GPU's context made before the clock starts. `total` is from there to the
end of the first product: importing tilecat, tracing, checking, writing PTX, ptxas (or the cache),
loading, launching, running. Python's own bytecode is cached, as it is after any first start. Each
process checks its result against float64.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

SHAPES = ((1544, 2056, 776), (72, 4104, 1032), (8, 3080, 1544))  # in no table of winners
MILLIS = ("import", "trace", "check", "generate", "assemble", "load", "first_call", "total",
          "second_call")  # fmt: skip


def timed(spent: dict[str, float], owner: Any, function: str, name: str) -> None:
    """Has a function add its seconds to `spent[name]`."""
    inner: Callable[..., Any] = getattr(owner, function)

    def outer(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return inner(*args, **options)
        finally:
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - started

    setattr(owner, function, outer)


def child(m: int, n: int, k: int) -> dict[str, Any]:
    """One process: milliseconds of its first product, and its error."""
    import torch

    a, b = (torch.randn(*s, device="cuda", dtype=torch.bfloat16) for s in ((m, k), (k, n)))
    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    spent: dict[str, float] = {}
    started = time.perf_counter()
    import tilecat as tc

    spent["import"] = time.perf_counter() - started
    from tilecat import driver
    from tilecat.runtime import compile as assembler
    from tilecat.runtime import launch

    for function in ("trace", "check", "generate"):
        timed(spent, driver, function, function)
    timed(spent, assembler, "assemble", "assemble")
    timed(spent, launch, "_load", "load")
    for name in ("first_call", "second_call"):
        begun = time.perf_counter()
        tc.matmul(a, b, out)
        torch.cuda.synchronize()
        spent[name] = time.perf_counter() - begun
        spent.setdefault("total", time.perf_counter() - started)
    exact = a.double() @ b.double()
    error = float((out.double() - exact).norm() / exact.norm())
    return {"error": error, "ms": {name: round(1000 * spent[name], 2) for name in MILLIS}}


def run(shape: tuple[int, ...], cache: str) -> dict[str, Any]:
    """A new process on a shape with its kernels in a cache folder."""
    environment = {**os.environ, "TILECAT_CACHE_DIR": cache, "TILECAT_AUTOTUNE": "0"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, __file__, "child", *map(str, shape)]
    done = subprocess.run(
        command, env=environment, check=True, text=True, stdout=subprocess.PIPE, timeout=120
    )
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert row["error"] < 2**-8, f"wrong result: {row['error']}"
    return row


def measure(shape: tuple[int, ...], processes: int) -> dict[str, Any]:
    """Medians and worst of processes with an empty cache and with a full one."""
    found: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(processes):
        with tempfile.TemporaryDirectory() as cache:
            found["cold"].append(run(shape, cache)["ms"])
            found["warm"].append(run(shape, cache)["ms"])
    summary = {
        kind: {name: {"median": statistics.median(row[name] for row in rows),
                      "worst": max(row[name] for row in rows)} for name in MILLIS}
        for kind, rows in found.items()
    }  # fmt: skip
    return {"label": "x".join(map(str, shape)), "extents": dict(zip("MNK", shape, strict=True)),
            "ms": summary}  # fmt: skip


def main(target: str, processes: int = 7) -> None:
    """Measures each shape and writes the results file."""
    import torch

    from tilecat.bench import record

    path = record.path_for("", target, overwrite=False)
    facts = record.environment(torch)
    with tempfile.TemporaryDirectory() as cache:
        run(SHAPES[0], cache)  # bytecode, and files of the wheels in the page cache
    rows: list[dict[str, Any]] = []
    for shape in SHAPES:
        rows.append(measure(shape, processes))
        medians = {kind: {name: taken["median"] for name, taken in times.items()}
                   for kind, times in rows[-1]["ms"].items()}  # fmt: skip
        print(rows[-1]["label"], medians, flush=True)
        record.write(path, {"environment": facts, "smi": record.smi(), "method": __doc__,
                            "processes": processes, "problems": rows})  # fmt: skip
    print(f"results: {path}")


if __name__ == "__main__":
    if sys.argv[1] == "child":
        print(json.dumps(child(*map(int, sys.argv[2:5]))))
    else:
        main(sys.argv[1], *map(int, sys.argv[2:3]))
