"""Markdown tables of what was measured, from the files that `tilecat bench` writes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilecat.bench.show import summaries

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TITLES = {
    "gemm": "Matrix product, bf16, beside cuBLAS (`torch.mm`)",
    "attention": "Attention forward, bf16, 16 heads, beside PyTorch's SDPA backends",
    "backward": "Attention backward, bf16, 16 heads, beside PyTorch's SDPA backends",
    "decode": "Attention of one query a head over caches, beside a copy of as many bytes",
    "varlen": "Attention of packed batches, beside equal lengths",
    "depth": "Depth of the ring",
    "grid": "One task a CTA, or a persistent grid",
    "order": "Order of the tasks",
    "host": "Host time of a call, microseconds",
    "steps": "A product in nine steps",
    "attention_steps": "Attention in seven steps",
    "attention_operator": "Attention through the torch operator, bf16, 16 heads",
    "torch_host": "Host time of a call through the torch operators, microseconds",
}
# What the README shows of each table; docs/measurements.md has every row.
HEADLINES = {
    "gemm": ("4096^3 NN", "8192^3 NN", "16384^3 NN"),
    "attention": ("D64 B16 N3072", "D128 B16 N3072", "D128 B4 N12288"),
    "backward": ("D64 B16 N3072", "D128 B16 N3072", "D128 B4 N12288"),
    "depth": ("4096^3",),
    "order": ("16384^3",),
    "host": None,
}
# The same tables of ThunderKittens on an H100 SXM (arXiv 2410.20399 and its repository).
PUBLISHED = {
    "depth": "stages 1 to 4: 260, 484, 683, 760",
    "grid": "K from 64 to 1024: a CTA a task 93, 161, 271, 414, 565; persistent 108, 184, 309, "
    "450, 600; cuBLAS then 69, 133, 242, 407, 633",
    "order": "row-major 392, groups of 8 805; attention of D 128: batch first 494, sequence "
    "first 600",
}
NOTHING = (
    "Nothing has been measured yet: on a machine with an H100 or H200, `make bench` writes its\n"
    "results into `benchmarks/results`, and the tables here are made from them.\n"
)


@dataclass(frozen=True)
class Source:
    """The newest rows of one table, and the file they are from."""

    path: Path
    environment: dict[str, Any]
    rows: tuple[dict[str, Any], ...]


def newest(folder: Path = RESULTS) -> dict[str, Source]:
    """The newest rows of each table."""
    found: dict[str, Source] = {}
    files = [(path, json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    files = [(path, data) for path, data in files if "rows" in data and "environment" in data]
    for path, data in sorted(files, key=lambda item: item[1]["environment"]["date"]):
        for table in TITLES:
            rows = tuple(row for row in data["rows"] if row["table"] == table)
            if any("tflops" in row or "host_us" in row for row in rows):
                found[table] = Source(path, data["environment"], rows)
    return {table: found[table] for table in TITLES if table in found}


def caption(source: Source) -> str:
    """Where and when: device, date, versions, file."""
    facts = source.environment
    packages = facts.get("packages", {})
    versions = [f"{name} {packages[name]}" for name in ("torch", "triton") if name in packages]
    versions += [f"cuDNN {facts['cudnn']}"] if facts.get("cudnn") else []
    try:
        file = source.path.relative_to(ROOT).as_posix()
    except ValueError:
        file = source.path.name
    return f"{facts['device']}, {facts['date'][:10]}, {', '.join(versions)}; `{file}`"


def markdown(columns: list[str], rows: list[list[str]]) -> list[str]:
    """A table; every column but the first to the right."""
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def speeds(rows: list[dict[str, Any]]) -> list[str]:
    """Problems against columns: TFLOP/s with spread, times faster than each peer, the roof."""
    measured = [row for row in rows if "tflops" in row]
    names = list(dict.fromkeys(name for row in measured for name in row["tflops"]))
    peers = list(dict.fromkeys(name for row in measured for name in row.get("ratio", {})))
    cells = []
    for row in measured:
        line = [row["label"], *(_speed(row, name) for name in names)]
        ratios = [row.get("ratio", {}).get(peer) for peer in peers]
        line += [f"{r['median']:.2f}x" if r else "" for r in ratios]
        cells.append(line + [f"{row[key]:.0f}" for key in ("roof_tflops",) if key in row])
    roof = ["roof"] * any("roof_tflops" in row for row in measured)
    columns = ["TFLOP/s", *names, *(f"faster than {peer}" for peer in peers), *roof]
    return markdown(columns, cells)


def _speed(row: dict[str, Any], name: str) -> str:
    if name not in row["tflops"]:
        return ""
    times = row["times_us"][name]
    spread = 50 * (times["p90"] - times["p10"]) / times["median"]
    return f"{row['tflops'][name]:.0f} ± {spread:.0f}%"


def variants(rows: list[dict[str, Any]]) -> list[str]:
    """One line a problem, one column a variant."""
    measured = [row for row in rows if "tflops" in row]
    names = list(dict.fromkeys(name for row in measured for name in row["tflops"]))
    cells = [[row["label"], *(_speed(row, name) for name in names)] for row in measured]
    return markdown(["TFLOP/s", *names], cells)


def steps(rows: list[dict[str, Any]]) -> list[str]:
    """One line a variant, one column a problem."""
    measured = [row for row in rows if "tflops" in row]
    labels = [row["label"] for row in measured] if len(measured) > 1 else ["TFLOP/s"]
    names = list(dict.fromkeys(name for row in measured for name in row["tflops"]))
    lines = [[name, *(_speed(row, name) for row in measured)] for name in names]
    return markdown(["TFLOP/s" if len(measured) > 1 else "step", *labels], lines)


def comparison(rows: list[dict[str, Any]]) -> list[str]:
    """Speeds, and the worst error in that of the first peer."""
    measured = [row for row in rows if "tflops" in row]
    lines = speeds(measured)
    peer = next(iter(measured[0]["ratio"]))
    lines[0] += f" error / {peer}'s |"
    lines[1] += "---:|"
    for at, row in enumerate(measured, 2):
        pairs = zip(row["errors"]["tilecat"], row["errors"][peer], strict=True)
        lines[at] += f" {max(mine / other for mine, other in pairs):.2f} |"
    return [*lines, "", *_means(measured)]


def _means(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Geometric means by direction and peer, and the lowest."""
    for kind in ("forward", "backward"):
        chosen = [row for row in rows if row["label"].endswith(kind)]
        for peer in chosen[0]["ratio"] if chosen else ():
            ratios = {row["label"]: row["ratio"][peer]["median"] for row in chosen}
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            least = min(ratios, key=ratios.__getitem__)
            yield (f"- {kind}, {peer}: {mean:.2f}x over {len(ratios)} problems, the lowest "
                   f"{ratios[least]:.2f}x ({least})")  # fmt: skip


def host(rows: list[dict[str, Any]]) -> list[str]:
    """Calls and their host time."""
    pairs = [pair for row in rows for pair in row.get("host_us", {}).items()]
    return markdown(["call", "microseconds"], [[name, f"{us:.1f}"] for name, us in pairs])


def summary(table: str, rows: list[dict[str, Any]]) -> str:
    """Geometric means of the ratios and the lowest, over all problems of the comparison list."""
    return "; ".join(
        f"{said['geomean']:.2f}x {peer} over {said['problems']} problems, the lowest "
        f"{said['lowest']:.2f}x ({said['of']})"
        for peer, said in summaries(rows).get(table, {}).items()
    )


def _part(table: str, source: Source, labels: tuple[str, ...] | None) -> Iterator[str]:
    rows = [r for r in source.rows if labels is None or r["label"] in labels or table == "host"]
    makers = {"gemm": speeds, "attention": speeds, "backward": speeds, "decode": speeds,
              "varlen": speeds, "grid": speeds, "host": host, "steps": steps,
              "attention_steps": steps, "attention_operator": comparison,
              "torch_host": host}  # fmt: skip
    yield f"**{TITLES[table]}** ({caption(source)})"
    yield ""
    yield from makers.get(table, variants)(rows)
    if mean := summary(table, list(source.rows)):
        yield ""
        yield f"Geometric mean of the whole list: {mean}."
    drawing = source.path.with_suffix(".png")
    if table == "gemm" and labels is None and drawing.is_file():
        yield ""
        yield f"![TFLOP/s by size](../benchmarks/results/{drawing.name})"
    if table in PUBLISHED and labels is None:
        yield ""
        yield f"Published, of ThunderKittens on an H100 (arXiv 2410.20399): {PUBLISHED[table]}."
    lost = [f"{r['label']}: {r.get('failed') or r.get('skipped')}" for r in source.rows
            if "failed" in r or "skipped" in r]  # fmt: skip
    if lost and labels is None:
        yield ""
        yield f"Not measured: {'; '.join(lost)}."
    yield ""


def tables(folder: Path = RESULTS, *, every_row: bool, only: str | None = None) -> str:
    """All that was measured, or its headlines, or one table."""
    lines: list[str] = []
    for table, source in newest(folder).items():
        if table == only or only is None and (every_row or table in HEADLINES):
            labels = None if every_row or only else HEADLINES[table]
            lines += _part(table, source, labels)
    return "\n".join(lines).rstrip() + "\n" if lines else NOTHING
