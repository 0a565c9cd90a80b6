"""Results as tables in the terminal, and as a plot."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Rows = list[dict[str, Any]]


def by_table(rows: Rows) -> dict[str, Rows]:
    """Rows of each table, in the order the tables came."""
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(row["table"], []).append(row)
    return found


def geomeans(rows: Rows) -> dict[str, dict[str, float]]:
    """Geometric mean of each ratio, over the rows of the comparison list, by table and layout."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row.get("group", "peers") != "peers" or row["table"] not in {"gemm", "attention"}:
            continue
        key = " ".join(filter(None, (row["table"], row.get("layout"))))
        for peer, value in row.get("ratio", {}).items():
            found.setdefault(key, {}).setdefault(peer, []).append(value["median"])
    return {
        key: {peer: round(_geomean(values), 4) for peer, values in peers.items()}
        for key, peers in found.items()
    }


def _geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def show(rows: Rows, console: Console) -> None:
    """Prints a table of each part of a run, and the geometric means of the ratios."""
    makers = {"host": _host_table, "depth": _variant_table, "order": _variant_table}
    makers["configs"] = _config_table
    for name, members in by_table(rows).items():
        console.print(makers.get(name, _speed_table)(name, members))
    for name, peers in geomeans(rows).items():
        means = ", ".join(f"{value:.3f} against {peer}" for peer, value in peers.items())
        console.print(f"geometric mean, {name}: {means}")


def _speed_table(name: str, rows: Rows) -> Table:
    columns = list(dict.fromkeys(key for row in rows for key in row.get("tflops", {})))
    peers = list(dict.fromkeys(key for row in rows for key in row.get("ratio", {})))
    table = Table(title=f"{name}: TFLOP/s (median, spread p10 to p90), and times faster than")
    table.add_column("problem")
    for column in [*columns, *(f"/ {peer}" for peer in peers), "error"]:
        table.add_column(column, justify="right")
    for row in rows:
        if "tflops" not in row:
            table.add_row(row["label"], _reason(row))
            continue
        speeds = [_speed(row, column) for column in columns]
        ratios = [_ratio(row["ratio"].get(peer)) for peer in peers]
        table.add_row(row["label"], *speeds, *ratios, f"{row.get('error', 0):.1e}")
    return table


def _speed(row: dict[str, Any], column: str) -> str:
    times = row["times_us"].get(column)
    if times is None:
        return "-"
    spread = (times["p90"] - times["p10"]) / times["median"]
    return f"{row['tflops'][column]:.0f} ±{50 * spread:.0f}%"


def _ratio(value: dict[str, float] | None) -> str:
    return "-" if value is None else f"{value['median']:.3f}"


def _reason(row: dict[str, Any]) -> str:
    return str(row.get("failed") or row.get("skipped"))


def _variant_table(name: str, rows: Rows) -> Table:
    """One problem, one line a variant: for tables whose point is the variants."""
    table = Table(title=f"{name}: variants at one problem (median, spread p10 to p90)")
    for column in ("problem", "variant", "TFLOP/s", "microseconds"):
        table.add_column(column, justify="right" if column[0] in "Tm" else "left")
    for row in rows:
        if "tflops" not in row:
            table.add_row(row["label"], _reason(row))
        for column, times in row.get("times_us", {}).items():
            table.add_row(row["label"], column, _speed(row, column), f"{times['median']:.1f}")
    return table


def _config_table(name: str, rows: Rows) -> Table:
    """Each configuration's speed over torch.mm's, the best one in bold."""
    columns = [key for row in rows for key in row.get("tflops", {}) if key != "torch.mm"]
    table = Table(title=f"{name}: times faster than torch.mm, by tile M x N")
    for column in ["problem", *dict.fromkeys(columns)]:
        table.add_column(column, justify="left" if column == "problem" else "right")
    for row in rows:
        if "tflops" not in row:
            table.add_row(row["label"], _reason(row))
            continue
        times = {key: value["median"] for key, value in row["times_us"].items()}
        peer = times.pop("torch.mm")
        best = min(times.values())
        cells = [
            f"[bold]{peer / us:.3f}[/bold]" if us == best else f"{peer / us:.3f}"
            for us in times.values()
        ]
        table.add_row(row["label"], *cells)
    return table


def _host_table(name: str, rows: Rows) -> Table:
    table = Table(title=f"{name} time of a call, microseconds (median of batches)")
    table.add_column("call")
    table.add_column("us", justify="right")
    for row in rows:
        for name, micros in row.get("host_us", {row["label"]: row.get("failed", "-")}).items():
            table.add_row(name, f"{micros:.2f}" if isinstance(micros, float) else str(micros))
    return table


def plot(rows: Rows, device: str, path: Path) -> Path | None:
    """Bars of TFLOP/s by problem, one panel a table; None without matplotlib.

    Args:
        rows: of one run.
        device: for the title.
        path: of the image.
    """
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    parts = [(name, [r for r in found if "tflops" in r]) for name, found in by_table(rows).items()]
    parts = [(name, found) for name, found in parts if found]
    if not parts:
        return None
    widest = max(len(found) for _, found in parts)
    size = (max(6.0, 0.45 * widest + 2), 3.2 * len(parts))
    figure, axes = pyplot.subplots(len(parts), 1, figsize=size, squeeze=False)
    for axis, (name, found) in zip(axes[:, 0], parts, strict=True):
        _bars(axis, name, found)
    figure.suptitle(f"{device}, bf16, TFLOP/s: median, whiskers p10 to p90", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _bars(axis: Any, name: str, rows: Rows) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row["tflops"]))
    width = 0.8 / len(columns)
    for number, column in enumerate(columns):
        bars = list(_bar_values(rows, column))
        places = [at + (number - (len(columns) - 1) / 2) * width for at, *_ in bars]
        heights = [height for _, height, _, _ in bars]
        errors = [[low for _, _, low, _ in bars], [high for _, _, _, high in bars]]
        axis.bar(places, heights, width, yerr=errors, label=column, error_kw={"linewidth": 0.6})
    axis.set_xticks(range(len(rows)), [row["label"] for row in rows], rotation=60, fontsize=7)
    axis.set_title(name, fontsize=9)
    axis.legend(fontsize=7)


def _bar_values(rows: Rows, column: str) -> Iterator[tuple[int, float, float, float]]:
    """Position, TFLOP/s, and how far below and above it the spread reaches."""
    for at, row in enumerate(rows):
        times = row["times_us"].get(column)
        if times is not None:
            slow, middle, fast = (
                row["flops"] / times[key] / 1e6 for key in ("p90", "median", "p10")
            )
            yield at, middle, max(middle - slow, 0.0), max(fast - middle, 0.0)
