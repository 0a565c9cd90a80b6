"""The replay of the GEMM beside the times measured on an H200, and for a B200, as tables of a page.

    python benchmarks/cost_model.py                   # prints the tables
    python benchmarks/cost_model.py --write           # puts them into docs/cost-model.md, and those
                                                      # of rubin_steps.py into the page on Rubin
    python benchmarks/cost_model.py --trace OUT.json  # the timeline of 4096^3, for Perfetto

Times are those of the tables depth, order, grid and gemm of benchmarks/results/h200.json.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import rubin_steps

from tilecat.arch import arch_of
from tilecat.model.l2 import Problem
from tilecat.model.rates import B200, H200
from tilecat.model.replay import Config, Prediction, predict, write_trace
from tilecat.model.tensor import Shape, predict_tensor, roof

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "h200.json"
PAGE = ROOT / "docs" / "cost-model.md"
BIG = (128, 256, 64)
# What tc.matmul takes for the problems of the table: the winners that are shipped. Left out: M = 1
# and 16, where A and B change places, and what shares K.
WINNERS = ROOT / "tilecat" / "kernels" / "tuned" / "matmul-h200.json"
NAMES = "tile_m", "tile_n", "tile_k", "stages", "group"
# No rate was read off these times; but clocks were stamped in kernels of these rows
# (benchmarks/results/gemm_stamps.json). All other rows are predictions.
CALIBRATION = {"stages 1", "stages 2", "stages 3", "stages 4", "groups of 8"}
GRID = {"a CTA a task": False, "persistent": True}


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
        if row["table"] not in ("depth", "order", "grid", "gemm"):
            continue
        if set(row["extents"]) != set("MNK"):  # attention has a row of the table order
            continue
        extents = tuple(row["extents"][axis] for axis in "MNK")
        times = {name: time["median"] for name, time in row["times_us"].items()}
        for name, time, config in configurations(row, chosen.get((row.get("layout"), extents))):
            found.append({"table": row["table"], "name": name, "extents": extents,
                          "config": config, "measured_us": times[time]})  # fmt: skip
    return found


def configurations(row: dict[str, Any], winner: tuple[int, ...] | None) -> list[tuple[Any, ...]]:
    """Name, column of the results, and (tile, stages, group, turns, order, persistent)."""
    if row["table"] == "depth":
        some = [f"stages {s}" for s in (1, 2, 3, 4)]
        return [(name, name, (*BIG, int(name[-1]), 8, 0, "grouped", True)) for name in some]
    if row["table"] == "order":
        some = {"row-major": (1, 0, "row", True), "groups of 8": (8, 0, "grouped", True)}
        return [(name, name, (*BIG, 4, *rest)) for name, rest in some.items()]
    if row["table"] == "grid":
        return [(f"{row['label']} {name}", name, (*BIG, 4, 8, 0, "grouped", always))
                for name, always in GRID.items()]  # fmt: skip
    if winner is None:
        return []
    return [(row["label"], "tilecat", (*winner, "grouped", True))]


def replayed(row: dict[str, Any]) -> Prediction:
    """The prediction of a row."""
    tile_m, tile_n, tile_k, stages, group, turns, order, persistent = row["config"]
    problem = Problem(*row["extents"], tile_m, tile_n, tile_k)
    config = Config(stages, group, order, persistent=persistent, pingpong=bool(turns))
    return predict(problem, config, H200)


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
        errors.setdefault("clock stamped" if used else row["table"] + layout, []).append(abs(off))
        *tile, stages, _, turns, _, _ = row["config"]
        lines.append(
            f"| {row['table']} | {row['name']}{' (clock)' if used else ''} "
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


PAIR, SINGLE = {"pair": True, "stages": 6}, {"stages": 4}
KINDS = (("bf16", "f16", PAIR), ("bf16, single CTAs", "f16", SINGLE),
         ("FP8", "f8f6f4", PAIR),
         ("NVFP4", "mxf4nvf4", {**PAIR, "stages": 5, "buffers": 1}))  # fmt: skip
SIZES = ((4096, 4096, 4096), (8192, 8192, 8192), (16384, 16384, 16384), (4096, 4096, 512),
         (8192, 8192, 512), (8192, 1024, 8192))  # fmt: skip


def b200() -> str:
    """TFLOP/s for a B200 as Markdown; the share of the announced rate in brackets."""
    arch = arch_of("sm_100a")
    lines = ["| M x N x K | " + " | ".join(name for name, _, _ in KINDS) + " |",
             "|---|" + "---:|" * len(KINDS)]  # fmt: skip
    for m, n, k in SIZES:
        cells = []
        for _, kind, params in KINDS:
            shape = Shape(kind=kind, **params)
            shape.check(arch)
            found = predict_tensor(m, n, k, shape, B200)
            cells.append(f"{found.tflops:,.0f} ({found.tflops / roof(kind, arch):.0%})")
        lines.append(f"| {m} x {n} x {k} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def rates() -> str:
    """Rates of all GPUs as Markdown, how each is known, and where from."""
    lines = ["| rate | GPU | value | known | from |", "|---|---|---:|---|---|"]
    for name in (source.name for source in H200.sources):
        for gpu, some in (("H200", H200), ("B200", B200), ("VR200", rubin_steps.VR200)):
            source = next(x for x in some.sources if x.name == name)
            value = getattr(some, name)
            text = f"{value:.4g}" if not isinstance(value, tuple) else "0.991 to 1.007"
            lines.append(f"| `{name}` | {gpu} | {text} | {source.known} | {source.text} |")
    return "\n".join(lines) + "\n"


def put(page: Path, name: str, text: str) -> None:
    """Puts a text between the marks of a page."""
    old = page.read_text(encoding="utf-8")
    pattern = f"(<!-- {name} -->\n).*?(<!-- end {name} -->\n)"
    new, count = re.subn(pattern, lambda m: m[1] + text + m[2], old, flags=re.S)
    if count != 1:
        raise SystemExit(f"{page}: the marks of {name} stand there {count} times")
    page.write_text(new, encoding="utf-8")


PARTS = (("replay", PAGE, table), ("b200", PAGE, b200), ("rates", PAGE, rates))


def write() -> None:
    """Refreshes both pages."""
    for name, page, text in PARTS:
        put(page, name, text())
    for name, text in rubin_steps.PARTS:
        put(rubin_steps.PAGE, name, text())


def main(arguments: list[str]) -> None:
    """See the top of the file."""
    if arguments[:1] == ["--write"]:
        write()
    elif arguments[:1] == ["--trace"] and len(arguments) == 2:
        found = predict(Problem(4096, 4096, 4096, *BIG), Config(), H200)
        write_trace(found, Path(arguments[1]))
    elif not arguments:
        print(*(text() for _, _, text in PARTS), sep="\n", end="")
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
