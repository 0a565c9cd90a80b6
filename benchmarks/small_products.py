"""Where the time of a small product goes, and what a large C costs alone: stamps, and floors.

    python benchmarks/small_products.py OUT.json      # on a GPU with PyTorch

`steps`: one task a CTA; a thread notes %globaltimer where its CTA begins, before its first load,
when the first stage is full, after the last product, and after its stores are under way. Medians
over CTAs and launches, nanoseconds from the first CTA's begin; `event_us` is the time between
events around a launch. `floors`: a kernel that does nothing, one that stores tiles of zeros by TMA
and neither loads nor multiplies, torch's zero_ of as many bytes, and the product, interleaved.
Before each launch the device idles and the L2 is overwritten.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import tilecat as tc
from tilecat import bf16, f32, gl, inout, rt, s32, st
from tilecat.testing import do_bench

NAMES = ("begin", "first_load", "first_full", "last_product", "stored")
# M, N, K, tile, stages
CASES = (
    (1000, 1016, 520, (64, 128), 6), (1024, 1024, 1024, (64, 128), 8),
    (1024, 1024, 64, (64, 128), 8), (4096, 4096, 64, (128, 128), 6),
)  # fmt: skip
LAUNCHES = 24


def note(table: Any, task: Any, place: str) -> None:
    """Writes the time into a task's row; one thread of the scope."""
    value = tc.var(0)
    tc.inline("mov.u32 $0, %globaltimer_lo;", value, writes=(0,))
    tc.store(table[task, NAMES.index(place)], value)


@tc.kernel
def noted(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "M", "N"],
          T: gl[s32, "tasks", 8], *, tile_m, tile_n, stages):  # fmt: skip
    """C = A @ B, with the times of each task's steps."""
    begin = tc.var(0)
    tc.inline("mov.u32 $0, %globaltimer_lo;", begin, writes=(0,))
    n = tile_m // 64
    tasks = tc.grouped(tc.cdiv(A.rows, tile_m), tc.cdiv(B.cols, tile_n), rows=8)
    pipe = tc.lcf(consumers=n, stages=stages, tasks=tasks, steps=tc.cdiv(A.cols, 64))
    a, b = pipe.input(st[bf16, 64, 64], count=n), pipe.input(st[bf16, 64, tile_n])
    c, acc = pipe.output(st[bf16, 64, tile_n]), pipe.accumulator(f32, 64, tile_n)

    @pipe.load
    def _(task, k):
        with tc.when(k == 0):
            note(T, task.index, "first_load")
        for i in range(n):
            tc.load_async(a[i], A[task.row * n + i, k])
        tc.load_async(b, B[k, task.col])

    @pipe.compute
    def _(task, k):
        with tc.when((k == 0) & (pipe.consumer == 0)):
            note(T, task.index, "first_full")
        tc.mma_AB(acc, a[pipe.consumer], b)

    @pipe.finish
    def _(task):
        with tc.when(pipe.consumer == 0):
            note(T, task.index, "last_product")
        c.store(C[task.row * n + pipe.consumer, task.col], acc)
        with tc.when(pipe.consumer == 0):
            note(T, task.index, "stored")
            tc.store(T[task.index, NAMES.index("begin")], begin)


@tc.kernel
def stores(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "M", "N"], *, less=0):
    """The product of 128 x 128 tiles; with `less` steps of K fewer, zeros: stores alone."""
    tasks = tc.grouped(tc.cdiv(A.rows, 128), tc.cdiv(B.cols, 128), rows=8)
    pipe = tc.lcf(consumers=2, stages=6, tasks=tasks, steps=tc.cdiv(A.cols, 64) - less)
    a, b = pipe.input(st[bf16, 64, 64], count=2), pipe.input(st[bf16, 64, 128])
    c, acc = pipe.output(st[bf16, 64, 128]), pipe.accumulator(f32, 64, 128)

    @pipe.load
    def _(task, k):
        for i in range(2):
            tc.load_async(a[i], A[task.row * 2 + i, k])
        tc.load_async(b, B[k, task.col])

    @pipe.compute
    def _(task, k):
        tc.mma_AB(acc, a[pipe.consumer], b)

    @pipe.finish
    def _(task):
        c.store(C[task.row * 2 + pipe.consumer, task.col], acc)


@tc.kernel
def nothing(C: inout[bf16, "M", "N"]):
    """A launch."""
    with tc.warpgroup(), tc.when(tc.cta_id() < 0):
        tc.store(C[0, 0], tc.zeros(rt[bf16, 64, 64]))


def operands(torch: Any, m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    """Normal random A and B, and C of NaN."""
    options = {"device": "cuda", "dtype": torch.bfloat16}
    a, b = torch.randn(m, k, **options), torch.randn(k, n, **options)
    return a, b, torch.full((m, n), float("nan"), **options)


def steps_of(torch: Any, case: tuple[Any, ...]) -> dict[str, Any]:
    """Medians of a case's stamps."""
    m, n, k, (tile_m, tile_n), stages = case
    a, b, c = operands(torch, m, n, k)
    table = torch.zeros((-(-m // tile_m) * -(-n // tile_n), 8), device="cuda", dtype=torch.int32)
    flush, found, micros = torch.empty(64 << 20, device="cuda"), [], []
    for number in range(LAUNCHES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(200_000)
        flush.fill_(number)
        begin.record()
        noted(a, b, c, table, tile_m=tile_m, tile_n=tile_n, stages=stages)
        end.record()
        torch.cuda.synchronize()
        micros.append(begin.elapsed_time(end) * 1e3)
        first = table.cpu().numpy().astype(np.int64)[:132, : len(NAMES)]  # tasks of the first wave
        found.append(first - first[:, 0].min())
    wanted = a[:64].double() @ b.double()
    if not float((c[:64].double() - wanted).norm() / wanted.norm()) < 2**-7:
        raise SystemExit(f"{case}: wrong numbers")
    medians = np.median(np.concatenate(found[4:]), axis=0)
    return {"m": m, "n": n, "k": k, "tile": [tile_m, tile_n], "stages": stages,
            "event_us": float(np.median(micros[4:])),
            "ns": dict(zip(NAMES, medians.tolist(), strict=True))}  # fmt: skip


def floors(torch: Any) -> dict[str, Any]:
    """4096 x 4096 x 64: times of what is less than the product, beside it."""
    a, b, c = operands(torch, 4096, 4096, 64)
    d = torch.empty_like(c)
    functions = {
        "a launch": lambda: nothing(c),
        "C stored by TMA": lambda: stores(a, b, c, less=1),
        "torch zero_ of C": lambda: c.zero_(),
        "these tiles": lambda: stores(a, b, c),
        "tc.matmul": lambda: tc.matmul(a, b, out=c),
        "torch.mm": lambda: torch.mm(a, b, out=d),
    }
    times = do_bench(list(functions.values()), repeats=60, warm_s=0.1)
    return {name: taken.summary() for name, taken in zip(functions, times, strict=True)}


def main(target: str) -> None:
    """See the top of the file."""
    import torch

    device = torch.cuda.get_device_properties(0)
    data = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": f"{device.name}, {device.multi_processor_count} SMs", "method": __doc__,
        "steps": [steps_of(torch, case) for case in CASES], "floors_us": floors(torch),
    }  # fmt: skip
    Path(target).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(data["steps"]), json.dumps(data["floors_us"]), sep="\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
