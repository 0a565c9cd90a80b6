"""Markdown tables of results files that hold problems: one row a problem, from `problems`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results_tables import RESULTS, Source, caption, markdown


@dataclass(frozen=True)
class Part:
    """Some problems of a results file.

    Args:
        file: its name without `.json`.
        title: of the table.
        starts: what labels of its problems begin with.
    """

    file: str
    title: str
    starts: tuple[str, ...] = ("",)


PARTS = {
    "linear_attention": Part(
        "sequence", "Linear attention and simple GLA", ("linear_attention", "simple_gla")
    ),
    "ssd": Part("sequence", "Mamba-2", ("ssd",)),
    "delta_rule": Part("sequence", "Gated delta rule", ("gated_delta_rule", "delta_rule")),
    "based": Part("sequence", "Based", ("based",)),
    "hedgehog": Part("sequence", "Hedgehog", ("hedgehog",)),
    "fft_conv": Part("fft_conv", "Long convolution by FFT"),
    "rotary": Part("memory_bound", "Rotary", ("rotary",)),
    "norms": Part("memory_bound", "Dropout, residual, norm", ("dropout", "layernorm", "rms")),
    "cross_entropy": Part("memory_bound", "Cross-entropy", ("cross-entropy",)),
    "gemm_family": Part("gemm_family", "Kinds of products"),
}
NOTHING = "No results file has it yet.\n"


def problems(name: str, folder: Path = RESULTS) -> str:
    """The table of one part, with its caption."""
    part = PARTS[name]
    path = folder / f"{part.file}.json"
    data = json.loads(path.read_text()) if path.is_file() else {"problems": ()}
    rows = [row for row in data["problems"] if row["label"].startswith(part.starts)]
    measured = [row for row in rows if "times_us" in row]
    if not measured:
        return NOTHING
    told = caption(Source(path, data["environment"], tuple(measured)))
    lost = [f"{r['label']}: {r.get('failed') or r.get('skipped')}" for r in rows
            if "failed" in r or "skipped" in r]  # fmt: skip
    lines = [f"**{part.title}** ({told})", "", *table(measured)]
    lines += ["", f"Not measured: {'; '.join(lost)}."] if lost else []
    return "\n".join(lines) + "\n"


def every_problem(folder: Path = RESULTS) -> str:
    """The tables of all parts that were measured."""
    found = (problems(name, folder) for name in PARTS)
    return "\n".join(text for text in found if text != NOTHING)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Problems against what was timed, ratios to peers, shares of a floor, errors."""
    names = list(dict.fromkeys(name for row in rows for name in row["times_us"]))
    peers = list(dict.fromkeys(name for row in rows for name in _ratios(row)))
    cells = []
    for row in rows:
        ratios, times = _ratios(row), row["times_us"]
        line = [row["label"], *(_time(times[name]) if name in times else "" for name in names)]
        line += [f"{ratios[peer]:.2f}x" if peer in ratios else "" for peer in peers]
        cells.append(line + [_further(row, key) for key in _FURTHER if _any(rows, key)])
    columns = ["microseconds", *names, *(f"faster than {peer}" for peer in peers)]
    return markdown(columns + [_FURTHER[key] for key in _FURTHER if _any(rows, key)], cells)


# Of tilecat's call: keys of a row, and what their columns are called.
_FURTHER = {
    "tb_per_s": "TB/s", "tflops": "TFLOP/s", "share_of_floor": "of the copy rate",
    "share_of_copy": "of the copy rate", "error": "error",
}  # fmt: skip


def _any(rows: list[dict[str, Any]], key: str) -> bool:
    return any(key in row for row in rows)


def _further(row: dict[str, Any], key: str) -> str:
    """A rate of the first call, a share or an error."""
    value = row.get(key, "")
    if isinstance(value, dict):
        value = next(iter(value.values()))
        return f"{value:.2f}" if key == "tb_per_s" else f"{value:.0f}"
    return f"{value:.1e}" if key == "error" and value != "" else f"{value:.2f}" if value else ""


def _ratios(row: dict[str, Any]) -> dict[str, float]:
    """How many times faster than each peer; a copy is a floor: smaller than 1."""
    found = row.get("ratio", {})
    copy = found if isinstance(found.get("median"), float) else None
    pairs = {"torch.fft": row.get("ratio_to_torch"), "copy": copy, **({} if copy else found)}
    return {name: value["median"] for name, value in pairs.items() if value}


def _time(times: dict[str, float]) -> str:
    spread = 50 * (times["p90"] - times["p10"]) / times["median"]
    value = times["median"]
    return f"{value:,.0f} ± {spread:.0f}%" if value >= 100 else f"{value:.1f} ± {spread:.0f}%"
