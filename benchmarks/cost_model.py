"""The replay of the GEMM beside the times measured on an H200, as the table of a page.

    python benchmarks/cost_model.py                    # prints the table
    python benchmarks/cost_model.py --write            # puts it into docs/cost-model.md
    python benchmarks/cost_model.py --trace OUT.json   # the timeline of 4096^3, for Perfetto

Times are those of the tables depth, order and gemm of benchmarks/results/h200.json.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from tilecat.model.l2 import Problem
from tilecat.model.rates import H200
from tilecat.model.replay import Config, Prediction, predict, write_trace

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "h200.json"
PAGE = ROOT / "docs" / "cost-model.md"
MARKS = "<!-- replay -->\n", "<!-- end -->\n"
BIG = (128, 256, 64)
# Shape -> tiles, stages, group, of NN and of NT: what tc.matmul took when the table was measured
# (the winners of commit dfbf425). Left out: M = 1 and 16, where A and B change places.
LAYOUTS = "NN", "NT"
MEASURED = {
    "1024^3": ((64, 128, 64, 7, 4), (64, 128, 64, 8, 4)),
    "2048^3": ((128, 128, 64, 6, 8), (128, 128, 64, 6, 8)),
    "3072^3": ((192, 128, 64, 4, 4), (128, 192, 64, 4, 16)),
    "4096^3": ((128, 256, 64, 4, 16), (128, 256, 64, 4, 16)),
    "4352^3": ((128, 192, 64, 4, 16), (128, 192, 64, 4, 16)),
    "6144^3": ((128, 256, 64, 4, 16), (128, 192, 64, 4, 16)),
    "8192^3": ((128, 192, 64, 4, 16), (128, 192, 64, 4, 16)),
    "12288^3": ((128, 256, 64, 4, 8), (192, 128, 64, 4, 4)),
    "16384^3": ((128, 192, 64, 4, 8), (128, 192, 64, 4, 4)),
    "4096x4096x64": ((128, 128, 64, 6, 8), (128, 128, 64, 6, 8)),
    "4096x4096x128": ((128, 128, 64, 6, 8), (128, 128, 64, 6, 8)),
    "4096x4096x256": ((128, 128, 64, 6, 8), (128, 128, 64, 6, 8)),
    "8192x8192x512": ((192, 128, 64, 4, 4), (192, 128, 64, 4, 4)),
    "8192x1024x8192": ((128, 256, 64, 4, 16), (128, 256, 64, 4, 16)),
    "8448x8448x4096": ((128, 192, 64, 4, 16), (192, 128, 64, 4, 8)),
    "1000x1016x520": ((64, 128, 64, 7, 16), (64, 128, 64, 7, 16)),
    "64x8192x8192": ((64, 64, 128, 6, 4), (64, 64, 128, 6, 4)),
    "128x8192x8192": ((64, 128, 64, 8, 4), (64, 128, 64, 8, 4)),
}
# Rows that rates were read off; all others are predictions.
CALIBRATION = {"stages 1", "stages 2", "1024^3 NN", "4096x4096x64 NN"}


def rows() -> list[dict[str, Any]]:
    """Name, extents, configuration and measured microseconds of every row."""
    found = []
    for row in json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]:
        if row["table"] not in ("depth", "order", "gemm"):
            continue
        m, n, k = (row["extents"][axis] for axis in "MNK")
        times = {name: time["median"] for name, time in row["times_us"].items()}
        if row["table"] == "depth":
            some = [(f"stages {s}", (*BIG, s, 8)) for s in (1, 2, 3, 4)]
        elif row["table"] == "order":
            some = [("row-major", (*BIG, 4, 1)), ("groups of 8", (*BIG, 4, 8))]
        elif row["shape"] in MEASURED:
            some = [(row["label"], MEASURED[row["shape"]][LAYOUTS.index(row["layout"])])]
        else:
            continue
        for name, config in some:
            us = times["tilecat" if row["table"] == "gemm" else name]
            found.append({"table": row["table"], "name": name, "extents": (m, n, k),
                          "config": config, "measured_us": us})  # fmt: skip
    return found


def replayed(row: dict[str, Any]) -> Prediction:
    """The prediction of a row."""
    tile_m, tile_n, tile_k, stages, group = row["config"]
    problem = Problem(*row["extents"], tile_m, tile_n, tile_k)
    return predict(problem, Config(stages=stages, group=group), H200)


def error(row: dict[str, Any]) -> float:
    """Predicted time over measured, less 1."""
    return replayed(row).seconds * 1e6 / row["measured_us"] - 1


def table() -> str:
    """All rows as Markdown, and the largest errors."""
    lines = ["| table | row | tile, stages | measured us | predicted us | error | clock, GHz |",
             "|---|---|---|---:|---:|---:|---:|"]  # fmt: skip
    errors: dict[str, list[float]] = {}
    for row in rows():
        found = replayed(row)
        off = found.seconds * 1e6 / row["measured_us"] - 1
        used = row["name"] in CALIBRATION
        layout = row["name"][-3:] if row["table"] == "gemm" else ""
        errors.setdefault("calibration" if used else row["table"] + layout, []).append(abs(off))
        *tile, stages, _ = row["config"]
        lines.append(
            f"| {row['table']} | {row['name']}{' (calibration)' if used else ''} "
            f"| {'x'.join(map(str, tile))}, {stages} | {row['measured_us']:.4g} "
            f"| {found.seconds * 1e6:.4g} | {off:+.1%} | {found.clock_hz / 1e9:.2f} |"
        )
    lines.append("")
    for name, some in errors.items():
        good = sum(x <= 0.15 for x in some)
        mean, worst = sum(some) / len(some), max(some)
        lines.append(
            f"- {name}: {good} of {len(some)} within 15 %, mean {mean:.1%}, worst {worst:.1%}"
        )
    return "\n".join(lines) + "\n"


def write() -> None:
    """Puts the table between the marks of the page."""
    text = PAGE.read_text(encoding="utf-8")
    pattern = f"({re.escape(MARKS[0])}).*?({re.escape(MARKS[1])})"
    PAGE.write_text(re.sub(pattern, lambda m: m[1] + table() + m[2], text, flags=re.S), "utf-8")


def main(arguments: list[str]) -> None:
    """See the top of the file."""
    if arguments[:1] == ["--write"]:
        write()
    elif arguments[:1] == ["--trace"] and len(arguments) == 2:
        found = predict(Problem(4096, 4096, 4096, *BIG), Config(), H200)
        write_trace(found, Path(arguments[1]))
    elif not arguments:
        print(table(), end="")
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
