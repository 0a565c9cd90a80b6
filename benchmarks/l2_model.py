"""Bytes that the GEMM reads from device memory: the model of the L2 beside the GPU's counter.

    ncu --clock-control none --print-units base --csv -k regex:^matmul \\
        --metrics dram__bytes_read.sum python benchmarks/l2_model.py run > ncu.csv
    python benchmarks/l2_model.py report ncu.csv OUT.json

Each (shape, order) is launched twice, bf16, tiles of 128 x 256 x 64, one CTA an SM; the second
launch counts. ncu empties the caches before each, as the model begins.
"""

import csv
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tilecat.kernels.gemm import matmul
from tilecat.model.l2 import Problem
from tilecat.model.loads import memory_traffic
from tilecat.model.rates import H200
from tilecat.model.replay import pace_of

COUNTER = "dram__bytes_read.sum"
TILES = {"tile_m": 128, "tile_n": 256, "tile_k": 64}
# M, N, K, order, rows of a group
PAIRS = (
    (4096, 4096, 4096, "row", 8),
    (4096, 4096, 4096, "grouped", 8),
    (8192, 8192, 8192, "row", 8),
    (8192, 8192, 8192, "column", 8),
    (8192, 8192, 8192, "grouped", 8),
    (8192, 8192, 8192, "grouped", 16),
    (8192, 8192, 8192, "snake", 8),
    (16384, 16384, 2048, "row", 8),
    (16384, 16384, 2048, "grouped", 16),
    (16384, 16384, 16384, "row", 8),
    (16384, 16384, 16384, "grouped", 8),
)


def predicted(m: int, n: int, k: int, order: str, group: int) -> dict[str, int]:
    """The model's bytes: read, and the least there are."""
    problem = Problem(m, n, k, **TILES)
    found = memory_traffic(problem, order, group, H200.sms, H200.l2_bytes, pace_of(problem, H200))
    return {"predicted_bytes": found.read_bytes, "least_bytes": found.least_bytes}


def run() -> None:
    """Launches every pair twice, and compares the result with torch's."""
    import torch

    device = torch.cuda.get_device_properties(0)
    print(f"device: {device.name}, {device.multi_processor_count} SMs, L2 {device.L2_cache_size}")
    if device.multi_processor_count != H200.sms:
        raise SystemExit(f"the model is of {H200.sms} SMs, here are {device.multi_processor_count}")
    shapes: dict[tuple[int, int, int], tuple[Any, Any, Any]] = {}
    for m, n, k, order, group in PAIRS:
        if (m, n, k) not in shapes:
            shapes.clear()
            a, b = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in ((m, k), (k, n)))
            shapes[m, n, k] = a, b, a @ b
        a, b, wanted = shapes[m, n, k]
        c = torch.full_like(wanted, float("nan"))
        for _ in range(2):
            matmul(a, b, c, order=order, group=group, stages=4, **TILES)
        torch.cuda.synchronize()
        far = float((c.float() - wanted.float()).norm() / wanted.float().norm())
        if not far < 2**-7:
            raise SystemExit(f"{m}x{n}x{k} {order}: wrong numbers, {far:.2e} from torch's")


def report(source: str, target: str) -> None:
    """Puts the counters beside the model; writes a results file, prints a table."""
    lines = Path(source).read_text().splitlines()
    device = next((line[8:] for line in lines if line.startswith("device: ")), "")
    quoted = [line for line in lines if line.startswith('"')]  # beside ncu's and run's own lines
    counted = [
        int(float(row["Metric Value"].replace(",", "")))
        for row in csv.DictReader(quoted)
        if row["Metric Name"] == COUNTER
    ]
    if len(counted) != 2 * len(PAIRS):
        raise SystemExit(
            f"{source}: {COUNTER} of {2 * len(PAIRS)} launches is wanted, got {len(counted)}"
        )
    rows = []
    for pair, measured in zip(PAIRS, counted[1::2], strict=True):
        m, n, k, order, group = pair
        said = predicted(*pair)
        row = {"m": m, "n": n, "k": k, "order": order, "group": group, **said}
        row |= {"measured_bytes": measured, "ratio": round(said["predicted_bytes"] / measured, 3)}
        rows.append(row)
        print(*row.values(), sep="\t")
    data = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "device": device,
        "method": __doc__, **TILES, "rows": rows,
    }  # fmt: skip
    Path(target).write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run"]:
            run()
        case ["report", source, target]:
            report(source, target)
        case _:
            raise SystemExit(__doc__)
