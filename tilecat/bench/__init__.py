"""`tilecat bench`: checked, interleaved measurements against torch, and a results file.

    run(("gemm", "attention"), out="benchmarks/results/h200.json", budget_s=300)

Every row: the result is checked first against float64; then its functions run interleaved, the L2
flushed by a 256 MB write before each call, CUDA events around it; medians, quantiles, and ratios
taken in the same rounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from ..errors import LayoutError
from ..kernels import KernelSpec, Shape
from ..testing import FLUSH_BYTES, require_gpu
from . import attention, attention_backward, attention_decode, gemm, host, record, show
from .plot import plot
from .roof import put_over, roof_of
from .session import Session, Task

TABLES = ("gemm", "attention", "backward", "decode", "varlen", "depth", "grid", "order", "host",
          "configs")  # fmt: skip
ALL = ("host", "depth", "grid", "order", "gemm", "attention")  # the quick and telling ones first
METHOD = (
    "Random normal bf16 inputs; result checked against float64 before it is timed; functions of a "
    "row interleaved, each round starting with another, after 0.25 s of rounds that do not count "
    "(power lowers the clock meanwhile); before each call the device idles 0.1 ms "
    f"and {FLUSH_BYTES >> 20} MB are written (L2 flush); CUDA events around each call on the "
    "current stream; microseconds, median and quantiles over rounds; ratio = peer's time over ours."
)


def run(
    tables: tuple[str, ...] = ("all",),
    *,
    out: str | Path | None = None,
    shapes: tuple[str, ...] = (),
    repeats: int = 30,
    warmup: int = 3,
    budget_s: float = 480.0,
    overwrite: bool = False,
    commit: str | None = None,
    with_plot: bool = True,
    console: Console | None = None,
    progress: Callable[[float, float], None] | None = None,
) -> Path:
    """Measures, prints, writes a JSON file (and a plot beside it); returns the file.

    Args:
        tables: names of TABLES, or `all` (every one but `configs`).
        out: the file; None for benchmarks/results/DEVICE-TABLES.json.
        shapes: names of standard problems (`4096^3`, `D128 B16 N3072`) or new ones of these forms
            (`640x512x64`); none for the whole list.
        repeats: rounds a row.
        warmup: rounds before them.
        budget_s: seconds for all rows; rounds are trimmed, then rows skipped, to keep it.
        overwrite: whether an old results file may be replaced.
        commit: git revision to record where the working tree has none.
        with_plot: whether to draw a plot too, where matplotlib is installed.
        console: where to print.
        progress: takes rows done and rows in all.

    Raises:
        ResourceError: no PyTorch or GPU; an old results file of that name.
        LayoutError: an unknown table or shape.
    """
    wanted = chosen_tables(tables)
    tasks = make_tasks(wanted, shapes)
    torch = require_gpu()
    console = console or Console(highlight=False)
    path = record.path_for(record.name_of(torch.cuda.get_device_name(), tables), out, overwrite)
    session = Session(torch, repeats, warmup, budget_s)
    session.say = lambda line: console.print(line, markup=False, soft_wrap=True)
    session.report = progress or session.report
    torch.manual_seed(0)
    facts = record.environment(torch, commit)
    before = record.smi()
    session.run(tasks)
    results: dict[str, Any] = {
        "environment": facts,
        "smi": {"before": before, "under load": record.smi_under_load(torch)},
        "method": METHOD,
        "settings": {"repeats": repeats, "warmup": warmup, "budget_s": budget_s},
        **_read(session.rows, facts["device"]),
    }
    record.write(path, results)
    show.show(session.rows, console)
    console.print(f"results: {path}")
    if with_plot:
        _plot(session.rows, facts["device"], path, console)
    return path


def _read(rows: list[dict[str, Any]], device: str) -> dict[str, Any]:
    """Rows, each with its roof, and what they come to."""
    roof = roof_of(device)
    put_over(rows, roof)
    return {"roof": roof and asdict(roof), "summary": show.summaries(rows), "rows": rows}


def _plot(rows: list[dict[str, Any]], device: str, path: Path, console: Console) -> None:
    drawn = plot(rows, device, path.with_suffix(".png"))
    console.print(f"plot: {drawn}" if drawn else "no plot: nothing to draw, or no matplotlib")


def chosen_tables(tables: tuple[str, ...]) -> tuple[str, ...]:
    """The tables to measure, in their order, `all` spelled out.

    Raises:
        LayoutError: an unknown one.
    """
    found: list[str] = []
    for table in tables or ("all",):
        if table != "all" and table not in TABLES:
            raise LayoutError(f"bench: no table {table!r}", hint=f"all, or {', '.join(TABLES)}")
        found += ALL if table == "all" else (table,)
    return tuple(dict.fromkeys(found))


def make_tasks(tables: tuple[str, ...], shapes: tuple[str, ...] = ()) -> list[Task]:
    """Rows of the tables, restricted to shapes where a table has a list of them.

    Raises:
        LayoutError: a shape that no table understands.
    """
    products = tuple(found for name in shapes if (found := _gemm_shape(name)))
    heads = tuple(found for name in shapes if (found := _attention_shape(name)))
    for name in shapes:
        if not (_gemm_shape(name) or _attention_shape(name)):
            raise LayoutError(
                f"bench: no shape {name!r}", hint="e.g. 4096^3, 640x512x64, 'D128 B16 N3072'"
            )
    makers: dict[str, Callable[[], list[Task]]] = {
        "gemm": lambda: gemm.gemm_tasks(products if shapes else gemm.SPEC.shapes),
        "configs": lambda: gemm.config_tasks(products if shapes else gemm.SPEC.shapes),
        "attention": lambda: attention.attention_tasks(heads if shapes else attention.SPEC.shapes),
        "backward": lambda: attention_backward.backward_tasks(
            heads if shapes else attention.SPEC.shapes
        ),
        "decode": attention_decode.decode_tasks,
        "varlen": attention_decode.varlen_tasks,
        "depth": gemm.depth_tasks,
        "grid": gemm.grid_tasks,
        "order": lambda: gemm.order_tasks() + attention.order_tasks(),
        "host": host.host_tasks,
    }
    return [task for table in tables for task in makers[table]()]


def _standard(spec: KernelSpec, name: str) -> Shape | None:
    return next((shape for shape in spec.shapes if shape.name == name), None)


def _gemm_shape(name: str) -> Shape | None:
    numbers = re.fullmatch(r"(\d+)\^3|(\d+)x(\d+)x(\d+)", name)
    if numbers is None:
        return None
    m, n, k = (int(numbers[1] or numbers[at]) for at in (2, 3, 4))
    return _standard(gemm.SPEC, name) or Shape(name, (("M", m), ("N", n), ("K", k)), "own")


def _attention_shape(name: str) -> Shape | None:
    numbers = re.fullmatch(r"D(\d+) B(\d+) N(\d+)", name)
    if numbers is None:
        return None
    dim, batch, length = map(int, numbers.groups())
    items = (("B", batch), ("H", 16), ("Hkv", 16), ("Lq", length), ("Lk", length), ("D", dim))
    return _standard(attention.SPEC, name) or Shape(name, items, "own")
