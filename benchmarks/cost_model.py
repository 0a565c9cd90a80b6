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
# What tc.matmul takes for the problems of the table: the winners that are shipped. Left out: M = 1
# and 16, where A and B change places, and what shares K.
WINNERS = ROOT / "tilecat" / "kernels" / "tuned" / "matmul-h200.json"
NAMES = "tile_m", "tile_n", "tile_k", "stages", "group"
# Rows that rates were read off; all others are predictions.
CALIBRATION = {"stages 1", "stages 2", "1024^3 NN", "4096x4096x64 NN"}


def winners() -> dict[Any, tuple[int, ...]]:
    """Tiles, stages, group and whether consumers take turns, by layout and extents."""
    found = {}
    for row in json.loads(WINNERS.read_text(encoding="utf-8"))["problems"]:
        params, extents = row["params"], tuple(row["extents"][axis] for axis in "MNK")
        if extents[0] > 16 and not {"split_k", "stream_k"} & set(params):
            config = (*(params[name] for name in NAMES), params.get("pingpong", 0))
            found[row["layout"], extents] = config
    return found


def rows() -> list[dict[str, Any]]:
    """Name, extents, configuration and measured microseconds of every row."""
    found, chosen = [], winners()
    for row in json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]:
        if row["table"] not in ("depth", "order", "gemm") or set(row["extents"]) != set("MNK"):
            continue
        m, n, k = (row["extents"][axis] for axis in "MNK")
        times = {name: time["median"] for name, time in row["times_us"].items()}
        if row["table"] == "depth":
            some = [(f"stages {s}", (*BIG, s, 8, 0)) for s in (1, 2, 3, 4)]
        elif row["table"] == "order":
            some = [("row-major", (*BIG, 4, 1, 0)), ("groups of 8", (*BIG, 4, 8, 0))]
        elif (row["layout"], (m, n, k)) in chosen:
            some = [(row["label"], chosen[row["layout"], (m, n, k)])]
        else:
            continue
        for name, config in some:
            us = times["tilecat" if row["table"] == "gemm" else name]
            found.append({"table": row["table"], "name": name, "extents": (m, n, k),
                          "config": config, "measured_us": us})  # fmt: skip
    return found


def replayed(row: dict[str, Any]) -> Prediction:
    """The prediction of a row."""
    tile_m, tile_n, tile_k, stages, group, turns = row["config"]
    problem = Problem(*row["extents"], tile_m, tile_n, tile_k)
    return predict(problem, Config(stages=stages, group=group, pingpong=bool(turns)), H200)


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
        *tile, stages, _, turns = row["config"]
        lines.append(
            f"| {row['table']} | {row['name']}{' (calibration)' if used else ''} "
            f"| {'x'.join(map(str, tile))}, {stages}{' in turn' * turns} "
            f"| {row['measured_us']:.4g} "
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
