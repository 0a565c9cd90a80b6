"""Results as tables in the terminal."""

from __future__ import annotations

import math
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


SUMMED = frozenset(("gemm", "attention", "backward", "decode", "varlen"))


def summaries(rows: Rows) -> dict[str, dict[str, dict[str, Any]]]:
    """Of each ratio: geometric mean, the lowest and its problem, how many; by table and layout.

    Problems that the caller made up (`group` "own") are left out.
    """
    found: dict[str, dict[str, list[tuple[float, str]]]] = {}
    for row in rows:
        if row.get("group") == "own" or row["table"] not in SUMMED:
            continue
        for key in dict.fromkeys((row["table"], f"{row['table']} {row.get('layout', '')}".strip())):
            for peer, value in row.get("ratio", {}).items():
                pair = (value["median"], row["label"])
                found.setdefault(key, {}).setdefault(peer, []).append(pair)
    return {
        key: {peer: _summary(pairs) for peer, pairs in peers.items()}
        for key, peers in found.items()
    }


def _summary(pairs: list[tuple[float, str]]) -> dict[str, Any]:
    mean = math.exp(sum(math.log(value) for value, _ in pairs) / len(pairs))
    lowest, label = min(pairs)
    return {"geomean": round(mean, 4), "lowest": lowest, "of": label, "problems": len(pairs)}


def show(rows: Rows, console: Console) -> None:
    """Prints a table of each part of a run, the geometric mean and the lowest of its ratios."""
    makers = {"host": _host_table, "depth": _variant_table, "order": _variant_table}
    makers["configs"] = _config_table
    for name, members in by_table(rows).items():
        console.print(makers.get(name, _speed_table)(name, members))
    for name, peers in summaries(rows).items():
        for peer, said in peers.items():
            console.print(
                f"{name} against {peer}: geometric mean {said['geomean']:.3f} over "
                f"{said['problems']} problems, lowest {said['lowest']:.3f} ({said['of']})"
            )


def _speed_table(name: str, rows: Rows) -> Table:
    columns = list(dict.fromkeys(key for row in rows for key in row.get("tflops", {})))
    peers = list(dict.fromkeys(key for row in rows for key in row.get("ratio", {})))
    table = Table(title=f"{name}: TFLOP/s (median, spread p10 to p90), and times faster than")
    table.add_column("problem")
    for column in [*columns, *(f"/ {peer}" for peer in peers), "roof", "error"]:
        table.add_column(column, justify="right")
    for row in rows:
        if "tflops" not in row:
            table.add_row(row["label"], _reason(row))
            continue
        speeds = [_speed(row, column) for column in columns]
        ratios = [_ratio(row["ratio"].get(peer)) for peer in peers]
        roof = f"{row['roof_tflops']:.0f}" if "roof_tflops" in row else "-"
        table.add_row(row["label"], *speeds, *ratios, roof, f"{row.get('error', 0):.1e}")
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
