"""Bank conflicts of attention's kernels: the static count beside the hardware's counters.

    python benchmarks/bank_conflicts_attention.py metrics
    ncu --clock-control none --csv -k regex:^attention_ --metrics METRICS \\
        python benchmarks/bank_conflicts_attention.py run > ncu.csv
    python benchmarks/bank_conflicts_attention.py report ncu.csv OUT.json

A forward and a backward of each head dim, causal and not: B 2, 8 heads, N 1024. The static count is
of the accesses of threads to shared tiles in the text, each once: conflicts are wavefronts beyond
the ideal number. The counters are of a launch. Those whose names have `sass` come from the
instructions: conflicts of `ldmatrix` and `stmatrix`, wavefronts and instructions of plain accesses.
The other counter of conflicts also counts wavefronts that wait for TMA or for the tensor cores, so
that it does not stand at 0 where the others do.
"""

import csv
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import tilecat as tc
from tilecat import attention_backward_call, attention_call, bf16
from tilecat.check import shared_accesses

CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
BY_OP = tuple(f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum" for op in ("ld", "st"))
SASS = (
    *(f"sm__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum"
      for op in ("ldsm", "stsm")),
    *(f"sm__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum" for op in ("ld", "st")),
    *(f"smsp__inst_executed_op_shared_{op}.sum" for op in ("ld", "st")),
)  # fmt: skip
KERNELS = ("attention_forward", "attention_delta", "attention_backward", "attention_dq")
DIMS = (64, 96, 128, 192, 256)
BATCH, HEADS, LENGTH = 2, 8, 1024
CALLS = tuple((dim, causal) for dim in DIMS for causal in (False, True))


def static(dim: int, causal: bool) -> list[dict[str, Any]]:
    """Of each launch of a forward and a backward: kernel, accesses, conflicts, wavefronts."""
    found: list[dict[str, Any]] = []
    for module in (attention_call, attention_backward_call):
        launch = module.Launch

        class Counted(launch):  # type: ignore[misc,valid-type]
            """Compiles in place of a run."""

            def run(self) -> None:
                made = self.kernel.compile(*self.tensors, *self.rest, **self.params)
                accesses = shared_accesses(made.kernel)
                requests = [q for access in accesses for q in access.requests]
                found.append(
                    {
                        "kernel": self.kernel.__name__,
                        "static_accesses": len(accesses),
                        "static_conflicts": sum(q.wavefronts - q.ideal for q in requests),
                        "static_wavefronts": sum(q.wavefronts for q in requests),
                    }
                )

        module.Launch = Counted  # type: ignore[misc]
    x = np.zeros((BATCH, HEADS, LENGTH, dim), bf16.numpy)
    out, lse = tc.attention(x, x, x, causal=causal, return_lse=True)
    tc.attention_backward(x, x, x, x, out, lse, causal=causal)
    for module in (attention_call, attention_backward_call):
        module.Launch = module.Launch.__base__  # type: ignore[misc]
    return found


def run() -> None:
    """Launches each call once."""
    import torch

    for dim, causal in CALLS:
        shape = (BATCH, HEADS, LENGTH, dim)
        q, k, v, dout = (torch.randn(shape, device="cuda").bfloat16() for _ in range(4))
        out, lse = tc.attention(q, k, v, causal=causal, return_lse=True)
        made = tc.attention_backward(dout, q, k, v, out, lse, causal=causal)
        torch.cuda.synchronize()
        if not all(bool(torch.isfinite(x).all()) for x in (out, *made)):
            raise SystemExit(f"D{dim} causal={causal}: not finite")


def counted(source: str) -> tuple[list[dict[str, Any]], str]:
    """Of each launch of ours: its kernel and its counters; and the device."""
    lines = Path(source).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    found: dict[int, dict[str, Any]] = {}
    device = ""
    for row in csv.DictReader(lines[start:]):
        name = row["Kernel Name"].partition("(")[0]
        if name in KERNELS:
            launch = found.setdefault(int(row["ID"]), {"kernel": name})
            value = row["Metric Value"].replace(",", "")
            launch[row["Metric Name"]] = int(float(value)) if value != "n/a" else None
            device = f"compute capability {row['CC']}"
    return list(found.values()), device


def report(source: str, target: str) -> None:
    """Puts the counters beside the static counts; writes a results file, prints a table."""
    launches, device = counted(source)
    rows, rest = [], iter(launches)
    for dim, causal in CALLS:
        for mine in static(dim, causal):
            theirs = next(rest)
            if theirs["kernel"] != mine["kernel"]:
                raise SystemExit(f"D{dim}: launched {theirs['kernel']}, counted {mine['kernel']}")
            share = theirs[CONFLICTS] / max(theirs[WAVEFRONTS], 1)
            rows.append({"dim": dim, "causal": causal, **mine, **theirs, "share": round(share, 5)})
            print(*rows[-1].values(), sep="\t")
    data = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "device": device,
        "method": __doc__, "rows": rows,
    }  # fmt: skip
    Path(target).write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["metrics"]:
            print(",".join((CONFLICTS, WAVEFRONTS, *BY_OP, *SASS)))
        case ["run"]:
            run()
        case ["report", source, target]:
            report(source, target)
        case _:
            raise SystemExit(__doc__)
