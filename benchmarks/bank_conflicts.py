"""Bank conflicts of tile moves: the static count beside the hardware's counter.

    python benchmarks/bank_conflicts.py metrics
    ncu --clock-control none --csv --metrics METRICS \\
        python benchmarks/bank_conflicts.py run > ncu.csv
    python benchmarks/bank_conflicts.py report ncu.csv OUT.json

One kernel a tile: registers to shared memory and back, REPEATS times by one warpgroup; or, where
ATOMIC has the tile, added to the shared tile by atomics. The counter also counts arbitration with
other traffic; here there is none.
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


ATOMIC = (st[s32, 64, 32], st[s32, 64, 64], st[s32, 64, 64, "col"], st[f32, 64, 64])


def atomic_kernel_of(kind: SharedTileType) -> Any:
    """A kernel that adds zeros to a shared tile, many times."""

    @tc.kernel
    def through_shared(A: gl[kind.dtype, "M", "N"], B: gl[kind.dtype, "M", "N"]):
        tile = tc.shared(kind)
        with tc.warpgroup():
            held = tc.load(A[0, 0], rt[kind.dtype, 64, kind.cols])
            tc.store(tile, held)
            tc.sync()
            nothing = tc.zeros(rt[kind.dtype, 64, kind.cols])
            for _ in tc.range(REPEATS):
                tc.atomic_add(tile, nothing)
            tc.sync()
            tc.store(B[0, 0], tc.load(tile))

    return through_shared


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


KERNELS = [(kind, kernel_of(kind), "") for kind in TILES]
KERNELS += [(kind, atomic_kernel_of(kind), " by atomics") for kind in ATOMIC]


def static(kernel: Any) -> tuple[int, int]:
    """(wavefronts beyond the ideal, wavefronts) of a launch: 4 warps, REPEATS rounds."""
    accesses = shared_accesses(kernel.compile().kernel)
    atomic = any(a.op == "AtomicShared" for a in accesses)
    extra = total = 0
    for access in accesses:
        rounds = 1 if atomic and access.op != "AtomicShared" else REPEATS
        extra += 4 * rounds * sum(q.wavefronts - q.ideal for q in access.requests)
        total += 4 * rounds * sum(q.wavefronts for q in access.requests)
    return extra, total


def run() -> None:
    """Launches every kernel once, and checks what comes back."""
    import torch

    for kind, kernel, how in KERNELS:
        whole = np.random.default_rng(0).integers(-100, 100, (64, kind.cols))
        a = torch.tensor(whole, dtype=getattr(torch, kind.dtype.torch), device="cuda")
        b = torch.zeros_like(a)
        kernel(a, b, grid=1)
        torch.cuda.synchronize()
        if not torch.equal(a, b):
            raise SystemExit(f"{kind}{how}: wrong numbers")


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
    for (kind, kernel, how), found in zip(KERNELS, counters.values(), strict=True):
        extra, wavefronts = static(kernel)
        name = str(kind) + how + ("" if kind is not PLAIN else " without swizzle")
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
