"""Bank conflicts of tile moves: the static count beside the hardware's counter.

    python benchmarks/bank_conflicts.py metrics
    ncu --clock-control none --csv --metrics METRICS \\
        python benchmarks/bank_conflicts.py run > ncu.csv
    python benchmarks/bank_conflicts.py report ncu.csv OUT.json

One kernel a tile: registers to shared memory and back, REPEATS times by one warpgroup. The
counter also counts arbitration with other traffic; here there is none.
"""

import csv
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import tilecat as tc
from tilecat import bf16, f16, f32, gl, rt, s32, st
from tilecat.check import shared_accesses
from tilecat.tiles import SharedTileType

CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
REPEATS = 100
PLAIN = SharedTileType(bf16, 64, 64, "row", 0)  # no swizzle, to see the counter move
TILES = (
    *(st[bf16, 64, cols] for cols in (16, 32, 64, 96, 128, 256)),
    *(st[f16, 64, cols, "col"] for cols in (16, 64, 128)),
    st[f16, 64, 64],
    *(st[f32, 64, cols] for cols in (16, 32, 64, 128)),
    st[f32, 64, 64, "col"],
    st[s32, 64, 64],
    PLAIN,
)


def kernel_of(kind: SharedTileType) -> Any:
    """A kernel that moves one tile to shared memory and back, many times."""

    @tc.kernel
    def through_shared(A: gl[kind.dtype, "M", "N"], B: gl[kind.dtype, "M", "N"]):
        tile = tc.shared(kind)
        with tc.warpgroup():
            held = tc.load(A[0, 0], rt[kind.dtype, 64, kind.cols])
            for _ in tc.range(REPEATS):
                tc.store(tile, held)
                tc.sync()
                back = tc.load(tile)
                tc.inline("mov.b32 $0, $1;", held, back, writes=(0,))
                tc.sync()
            tc.store(B[0, 0], held)

    return through_shared


def static(kind: SharedTileType) -> tuple[int, int]:
    """(wavefronts beyond the ideal, wavefronts) of a launch: 4 warps, REPEATS rounds."""
    requests = [q for a in shared_accesses(kernel_of(kind).compile().kernel) for q in a.requests]
    extra = sum(q.wavefronts - q.ideal for q in requests)
    return 4 * REPEATS * extra, 4 * REPEATS * sum(q.wavefronts for q in requests)


def run() -> None:
    """Launches every kernel once, and checks what comes back."""
    import torch

    for kind in TILES:
        whole = np.random.default_rng(0).integers(-100, 100, (64, kind.cols))
        a = torch.tensor(whole, dtype=getattr(torch, kind.dtype.torch), device="cuda")
        b = torch.zeros_like(a)
        kernel_of(kind)(a, b, grid=1)
        torch.cuda.synchronize()
        if not torch.equal(a, b):
            raise SystemExit(f"{kind}: wrong numbers")


def report(source: str, target: str) -> None:
    """Puts the counters beside the static counts; writes a results file, prints a table."""
    lines = Path(source).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    counters: dict[int, dict[str, int]] = {}
    device = ""
    for row in csv.DictReader(lines[start:]):
        if row["Kernel Name"].startswith("through_shared"):
            value = int(row["Metric Value"].replace(",", ""))
            counters.setdefault(int(row["ID"]), {})[row["Metric Name"]] = value
            device = f"compute capability {row['CC']}"
    rows = []
    for kind, found in zip(TILES, counters.values(), strict=True):
        extra, wavefronts = static(kind)
        name = str(kind) + ("" if kind is not PLAIN else " without swizzle")
        rows.append(
            {
                "tile": name, "static_conflicts": extra, "static_wavefronts": wavefronts,
                "counted_conflicts": found[CONFLICTS], "counted_wavefronts": found[WAVEFRONTS],
            }
        )  # fmt: skip
        print(*rows[-1].values(), sep="\t")
    data = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "device": device,
        "method": __doc__, "repeats": REPEATS, "rows": rows,
    }  # fmt: skip
    Path(target).write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["metrics"]:
            print(f"{CONFLICTS},{WAVEFRONTS}")
        case ["run"]:
            run()
        case ["report", source, target]:
            report(source, target)
        case _:
            raise SystemExit(__doc__)
