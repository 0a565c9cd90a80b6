"""When the tasks of a GEMM begin and end, in cycles and in time: rates of `tilecat.model`.

    python benchmarks/gemm_stamps.py OUT.json      # on a GPU

The kernel is the GEMM of docs/guide.md; at the begin and at the end of each task's main loop one
thread writes %clock, %globaltimer and %smid into a table. So a task's cycles, the cycles between
two tasks, the clock of each SM at each time, and how far CTAs are apart are known of one launch.
The L2 is overwritten before each launch; the last of several is kept.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import tilecat as tc
from tilecat import bf16, f32, gl, s32, st

ORDERS = {
    "row": lambda rows, cols, _: tc.row_major(rows, cols),
    "grouped": lambda rows, cols, group: tc.grouped(rows, cols, rows=group),
}
BEGIN, END, SLOTS = 0, 3, 8  # columns of the table: time, cycles, SM; and again
# M, N, K, order, group, tile, stages, in turn
CASES: tuple[tuple[Any, ...], ...] = (
    *((4096, 4096, 4096, "grouped", 8, (128, 256), s, False) for s in (1, 2, 3, 4)),
    (6144, 6144, 6144, "grouped", 8, (128, 256), 4, False),
    (8192, 8192, 8192, "grouped", 8, (128, 256), 4, False),
    (8192, 8192, 8192, "row", 8, (128, 256), 4, False),
    (12288, 12288, 12288, "grouped", 8, (128, 256), 4, False),
    (16384, 16384, 2048, "row", 8, (128, 256), 4, False),
    (16384, 16384, 2048, "grouped", 16, (128, 256), 4, False),
    (16384, 16384, 16384, "grouped", 8, (128, 256), 4, False),
    *((16384, 16384, 16384, "row", 8, (128, 256), s, False) for s in (2, 3, 4)),
    *((4096, 4096, 512, "grouped", 8, (128, 256), s, False) for s in (1, 2, 3, 4)),
    (8192, 8192, 512, "grouped", 8, (128, 256), 1, False),
    (8192, 8192, 512, "grouped", 8, (128, 256), 4, False),
    (8192, 8192, 512, "grouped", 8, (128, 128), 6, False),
    (2048, 2048, 2048, "grouped", 8, (128, 128), 6, False),
    (3072, 3072, 3072, "grouped", 8, (128, 192), 4, False),
    *((4096, 4096, k, "grouped", 8, (128, 128), 6, False) for k in (64, 128, 256, 512, 1024)),
    *((4096, 4096, 4096, "grouped", 8, tile, s, False) for tile, s in (
        ((64, 64), 1), ((64, 64), 2), ((64, 64), 4), ((64, 64), 8), ((64, 128), 8),
        ((64, 256), 5), ((128, 64), 8), ((128, 128), 6))),
    (8192, 8192, 8192, "grouped", 8, (64, 64), 8, False),
    (8192, 8192, 8192, "grouped", 8, (64, 128), 8, False),
    (1024, 1024, 1024, "grouped", 8, (64, 128), 6, False),
    (1000, 1016, 520, "grouped", 8, (64, 128), 6, False),
    *((4096, 4096, k, "grouped", 8, (128, 128), 5, True) for k in (64, 128, 256, 512)),
    (4096, 4096, 64, "grouped", 8, (128, 64), 5, True),
    (8192, 8192, 512, "grouped", 8, (128, 128), 5, True),
    (8192, 8192, 512, "grouped", 8, (128, 192), 4, True),
    (3072, 3072, 3072, "grouped", 8, (128, 192), 4, True),
    (4352, 4352, 4352, "grouped", 8, (128, 192), 4, True),
    (8192, 8192, 8192, "grouped", 8, (128, 128), 5, True),
    (12288, 12288, 12288, "grouped", 8, (128, 192), 4, True),
)  # fmt: skip


def stamp(table: Any, task: Any, first: int) -> None:
    """Writes the time, the SM's cycles and its number; one thread of the scope."""
    for place, text in enumerate(("%globaltimer_lo", "%clock", "%smid")):
        value = tc.var(0)
        tc.inline(f"mov.u32 $0, {text};", value, writes=(0,))
        tc.store(table[task, first + place], value)


@tc.kernel
def stamped(A: gl[bf16, "M", "K"], B: gl[bf16, "K", "N"], C: gl[bf16, "M", "N"],
            T: gl[s32, "tasks", SLOTS], *, tile_m, tile_n, stages, group=8, order="grouped",
            turns=False):  # fmt: skip
    """C = A @ B, with a table of stamps a task."""
    n = tile_m // 64
    tasks = ORDERS[order](tc.cdiv(A.rows, tile_m), tc.cdiv(B.cols, tile_n), group)
    pipe = tc.lcf(consumers=2 if turns else n, stages=stages, tasks=tasks,
                  steps=tc.cdiv(A.cols, 64), pingpong="tasks" if turns else False)  # fmt: skip
    a, b = pipe.input(st[bf16, 64, 64], count=n), pipe.input(st[bf16, 64, tile_n])
    c = pipe.output(st[bf16, 64, tile_n])
    sums = [pipe.accumulator(f32, 64, tile_n) for _ in range(n if turns else 1)]
    rows = (lambda: range(n)) if turns else (lambda: (pipe.consumer,))

    @pipe.load
    def _(task, k):
        for i in range(n):
            tc.load_async(a[i], A[task.row * n + i, k])
        tc.load_async(b, B[k, task.col])

    @pipe.start
    def _(task):
        with tc.when(turns or pipe.consumer == 0):
            stamp(T, task.index, BEGIN)

    @pipe.compute
    def _(task, k):
        for row, acc in zip(rows(), sums, strict=True):
            tc.mma_AB(acc, a[row], b)

    @pipe.finish
    def _(task):
        with tc.when(turns or pipe.consumer == 0):
            stamp(T, task.index, END)
        for row, acc in zip(rows(), sums, strict=True):
            c.store(C[task.row * n + row, task.col], acc)


def row_of(case: tuple[Any, ...], stamps: np.ndarray, us: list[float], sms: int) -> dict[str, Any]:
    """What the stamps of a launch say.

    Args:
        case: of CASES.
        stamps: tasks x SLOTS, in the order of the tasks.
        us: microseconds between events around each launch.
        sms: CTAs of the launch.
    """
    m, n, k, order, group, tile, stages, turns = case
    stamps = stamps.astype(np.int64)
    begin, end = stamps[:, BEGIN], stamps[:, END]
    cycles = (stamps[:, END + 1] - stamps[:, BEGIN + 1]) % 2**32
    steps, apart = -(-k // 64), sms * (2 if turns else 1)
    clocks = clocks_of(stamps)
    row = {
        "m": m, "n": n, "k": k, "order": order, "group": group, "tile": list(tile),
        "stages": stages, "in_turn": turns, "us": float(np.median(us)),
        "first_begin_to_last_end_us": float(end.max() - begin.min()) / 1e3,
        "ghz": [round(float(np.quantile(clocks, q)), 4) for q in (0, 0.5, 1)],
        "cycles_a_step_first_task": round(float(np.median(cycles[:sms]) / steps), 1),
    }  # fmt: skip
    if len(stamps) > apart:
        later = cycles[sms:] / steps
        row["cycles_a_step_later"] = [round(float(np.percentile(later, p)), 1) for p in (5, 50, 95)]
        between = (stamps[apart:, BEGIN + 1] - stamps[:-apart, END + 1]) % 2**32
        row["cycles_between_tasks"] = float(np.median(between))
        ghz = cycles / np.maximum(end - begin, 1)
        count = len(stamps) // sms
        row["ghz_by_task"] = [round(float(np.median(ghz[i * sms : (i + 1) * sms])), 3)
                              for i in range(min(count, 64))]  # fmt: skip
        row["ctas_apart_steps"] = [
            round(float(np.ptp(end[i * sms : (i + 1) * sms]) / np.median(end - begin) * steps), 1)
            for i in range(min(count, 64))
        ]
    on = stamps[:sms, BEGIN + 2]
    sm_clock = dict(zip(np.unique(stamps[:, BEGIN + 2]).tolist(), clocks.tolist(), strict=True))
    mine = np.array([sm_clock[sm] for sm in on.tolist()])
    row["relative_clock_by_cta"] = [round(float(x), 4) for x in mine / mine.mean()]
    return row


def clocks_of(stamps: np.ndarray) -> np.ndarray:
    """Cycles a nanosecond of each SM that took part, from its first stamp to its last."""
    found = []
    for sm in np.unique(stamps[:, BEGIN + 2]):
        mine = stamps[stamps[:, BEGIN + 2] == sm]
        first, last = mine[np.argmin(mine[:, BEGIN])], mine[np.argmax(mine[:, END])]
        cycles = (last[END + 1] - first[BEGIN + 1]) % 2**32
        found.append(cycles / max(last[END] - first[BEGIN], 1))
    return np.array(found)


def measure(case: tuple[Any, ...], torch: Any, sms: int) -> dict[str, Any]:
    """Launches a case several times; its row."""
    m, n, k, order, group, (tile_m, tile_n), stages, turns = case
    a, b = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in ((m, k), (k, n)))
    c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    flush = torch.empty(64 << 20, dtype=torch.float32, device="cuda")
    table = torch.zeros((-(-m // tile_m) * -(-n // tile_n), SLOTS), device="cuda",
                        dtype=torch.int32)  # fmt: skip
    us = []
    for number in range(6 if 2 * m * n * k > 1e12 else 24):
        flush.fill_(number)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        stamped(a, b, c, table, tile_m=tile_m, tile_n=tile_n, stages=stages, group=group,
                order=order, turns=turns)  # fmt: skip
        end.record()
        torch.cuda.synchronize()
        us.append(begin.elapsed_time(end) * 1e3)
    wanted = a[:64].float() @ b.float()
    if not (c[:64].float() - wanted).norm() < 2**-7 * wanted.norm():
        raise SystemExit(f"{case}: wrong numbers")
    return row_of(case, table.cpu().numpy(), us[2:], sms)


def write(rows: list[dict[str, Any]], device: str, target: Path) -> None:
    """Writes the results file."""
    data = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "device": device,
            "method": __doc__, "rows": rows}  # fmt: skip
    lines = json.dumps(data, indent=None)
    target.write_text(lines.replace('{"m"', '\n{"m"') + "\n", encoding="utf-8")


def main(target: str) -> None:
    """See the top of the file."""
    import torch

    device = torch.cuda.get_device_properties(0)
    rows = [measure(case, torch, device.multi_processor_count) for case in CASES]
    write(rows, f"{device.name}, {device.multi_processor_count} SMs", Path(target))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
