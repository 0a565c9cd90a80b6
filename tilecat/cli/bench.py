"""`tilecat bench`: measure on a GPU beside PyTorch, and keep the results as a file."""

from __future__ import annotations

from pathlib import Path

import click

from .. import bench
from .app import console, main, progress_bar

HELP = f"""Measure kernels on a GPU beside PyTorch; print tables and write a JSON file.

TABLES are {", ".join(bench.TABLES)}; without any, all but configs and backward. Every result is
checked before it is timed; the functions of a row are timed interleaved, with the L2 flushed.
The file has device, clocks, versions, date, medians and spread.

\b
Examples:
  tilecat bench
  tilecat bench gemm attention --out benchmarks/results/h200.json
  tilecat bench gemm --shape 4096^3 --shape 640x512x64
  tilecat bench attention --shape "D128 B16 N3072" --repeats 100
"""


@main.command("bench", help=HELP, short_help="Measure on a GPU beside PyTorch.")
@click.argument("tables", nargs=-1, type=click.Choice((*bench.TABLES, "all")))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path),
              help="Results file; default benchmarks/results/DEVICE-TABLES.json.")  # fmt: skip
@click.option("--shape", "shapes", multiple=True, metavar="NAME",
              help="Only these, as `tilecat list` names them, or new ones.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1), default=30, show_default=True,
              help="Rounds a row.")  # fmt: skip
@click.option("--warmup", type=click.IntRange(0), default=3, show_default=True)
@click.option("--budget", type=click.FloatRange(1), default=480.0, show_default=True,
              help="Seconds in all; rounds are trimmed, then rows skipped.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an old results file.")
@click.option("--plot/--no-plot", default=True, help="Draw a plot too (needs matplotlib).")
def bench_command(
    tables: tuple[str, ...],
    out: Path | None,
    shapes: tuple[str, ...],
    repeats: int,
    warmup: int,
    budget: float,
    overwrite: bool,
    plot: bool,
) -> None:
    """Measure and write."""
    with progress_bar("measuring", "rows") as update:
        bench.run(
            tables or ("all",),
            out=out,
            shapes=shapes,
            repeats=repeats,
            warmup=warmup,
            budget_s=budget,
            overwrite=overwrite,
            with_plot=plot,
            console=console(),
            progress=update,
        )
