"""Results as a plot: TFLOP/s of each problem beside its peers, under its roof."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .show import Rows, by_table

ROOF = {"color": "black", "linewidth": 1.2}
LOG_FROM = 20.0  # times the slowest that the fastest is, from which bars are logarithmic
STYLES = {"NN": "-", "NT": "--"}


def plot(rows: Rows, device: str, path: Path) -> Path | None:
    """A panel of cubes by their size, then bars of each table's problems; None without matplotlib.

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
    cubes = [row for name, found in parts if name == "gemm" for row in found if _size(row)]
    panels = len(parts) + bool(cubes)
    size = (max(6.0, 0.45 * max(len(found) for _, found in parts) + 2), 3.2 * panels)
    figure, axes = pyplot.subplots(panels, 1, figsize=size, squeeze=False)
    if cubes:
        _by_size(axes[0, 0], cubes)
    for axis, (name, found) in zip(axes[-len(parts) :, 0], parts, strict=True):
        _bars(axis, name, found)
    figure.suptitle(f"{device}, bf16, TFLOP/s: median, whiskers p10 to p90", fontsize=10)
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _size(row: dict[str, Any]) -> int:
    """N of a problem N^3, else 0."""
    match = re.fullmatch(r"(\d+)\^3", row.get("shape", ""))
    return int(match[1]) if match else 0


def _by_size(axis: Any, rows: Rows) -> None:
    """A line for each function and layout over the sizes of cubes, and the roof."""
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in sorted(rows, key=_size):
        for column, speed in row["tflops"].items():
            lines.setdefault((column, row["layout"]), []).append((_size(row), speed))
    colours = {column: f"C{n}" for n, column in enumerate(dict.fromkeys(c for c, _ in lines))}
    for (column, layout), points in lines.items():
        style = {"color": colours[column], "linestyle": STYLES.get(layout, ":"), "marker": "."}
        axis.plot(*zip(*points, strict=True), label=f"{column}, {layout}", **style)
    roofs = {_size(row): row["roof_tflops"] for row in rows if "roof_tflops" in row}
    if roofs:
        axis.plot(sorted(roofs), [roofs[n] for n in sorted(roofs)], label="roof", **ROOF)
    axis.set_xscale("log")
    axis.set_xticks(sorted({_size(row) for row in rows}), minor=False)
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.minorticks_off()
    axis.set_ylim(bottom=0)
    axis.set_title("gemm, M = N = K", fontsize=9)
    axis.legend(fontsize=7)


def _bars(axis: Any, name: str, rows: Rows) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row["tflops"]))
    width = 0.8 / len(columns)
    for number, column in enumerate(columns):
        bars = list(_bar_values(rows, column))
        places = [at + (number - (len(columns) - 1) / 2) * width for at, *_ in bars]
        heights = [height for _, height, _, _ in bars]
        errors = [[low for _, _, low, _ in bars], [high for _, _, _, high in bars]]
        axis.bar(places, heights, width, yerr=errors, label=column, error_kw={"linewidth": 0.6})
    roofs = [(at, row["roof_tflops"]) for at, row in enumerate(rows) if "roof_tflops" in row]
    if roofs:
        axis.hlines([top for _, top in roofs], [at - 0.45 for at, _ in roofs],
                    [at + 0.45 for at, _ in roofs], label="roof", **ROOF)  # fmt: skip
    speeds = [speed for row in rows for speed in row["tflops"].values()]
    if max(speeds) > LOG_FROM * min(speeds):
        axis.set_yscale("log")
    axis.set_xticks(range(len(rows)), [row["label"] for row in rows], rotation=60, fontsize=7)
    axis.set_title(name, fontsize=9)
    axis.legend(fontsize=7, loc="lower right")


def _bar_values(rows: Rows, column: str) -> Iterator[tuple[int, float, float, float]]:
    """Position, TFLOP/s, and how far below and above it the spread reaches."""
    for at, row in enumerate(rows):
        times = row["times_us"].get(column)
        if times is not None:
            slow, middle, fast = (
                row["flops"] / times[key] / 1e6 for key in ("p90", "median", "p10")
            )
            yield at, middle, max(middle - slow, 0.0), max(fast - middle, 0.0)
