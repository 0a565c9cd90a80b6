"""`tilecat machine`: run anybody's PTX on the CPU and say what it does wrong."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table
from rich.text import Text

from ..errors import Loc
from ..sim import Result, parse, run
from .app import LIBRARY_ERROR, console, main, make_table, progress_bar
from .launch import Description, Launch, LaunchError, as_grid, extents

HELP = """Run PTX on the CPU with every check on, without a GPU and without tilecat's compiler.

FILE.ptx holds one kernel. The machine executes its threads, TMA, tensor cores and barriers, and
reports races, missing fences, uninitialised reads, deadlocks, misuse of barriers and accesses
outside the arrays; then shared-memory bank conflicts and instruction counts. Instructions
outside its subset are refused, never skipped.

\b
The launch is described by options, by a file (--launch), or both:
  --array NAME=DTYPE:SHAPE[:FILL]   an array of numbers; fills: normal (default),
                                    uniform, integers, arange, zeros, ones, nan
  --array NAME=FILE.npy[:DTYPE]     an array from a file
  --arg NAME                        a pointer to an array
  --arg map:NAME:BOX[:SWIZZLE]      a tensor map; BOX innermost first, in elements;
                                    SWIZZLE 0, 32, 64 or 128 bytes
  --arg NUMBER                      a scalar
One --arg a parameter of the kernel, in its order. Arrays are read and written in place.

\b
The same as a file (.toml, or .json with the same keys):
  grid = [4, 1, 1]
  smem_bytes = 50176
  seed = 0
  [arrays.A]
  dtype = "bf16"
  shape = [512, 512]
  fill = "normal"
  [arrays.C]
  file = "c.npy"
  [[args]]
  map = "A"
  box = [64, 128]
  swizzle_bytes = 128
  [[args]]
  pointer = "C"
  [[args]]
  value = 512

\b
Examples:
  tilecat machine add.ptx --array X=f32:1024 --array Y=f32:1024:zeros \\
      --arg X --arg Y --arg 1024 --grid 4 --save Y=y.npy
  tilecat machine gemm.ptx --launch gemm.toml --seed 3 --json

Exit code: 0 without reports, 1 with reports or if the text is refused, 2 for a wrong command.
"""


def _saves(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Path]:
    pairs = [value.partition("=") for value in values]
    for name, equals, file in pairs:
        if not equals or not name or not file:
            raise click.BadParameter(f"NAME=FILE.npy is wanted, got {name!r}")
    return {name: Path(file) for name, _, file in pairs}


def _grid(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple | None:
    return None if value is None else as_grid(extents(value, "--grid"))


@main.command("machine", help=HELP, short_help="Run any PTX file on the CPU, all checks on.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--launch", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Launch description, .toml or .json.")  # fmt: skip
@click.option("--array", "arrays", multiple=True, metavar="NAME=...", help="An array.")
@click.option("--arg", "args", multiple=True, metavar="ARG", help="The next argument.")
@click.option("--grid", callback=_grid, metavar="X[xYxZ]", help="CTAs an axis; default 1.")
@click.option("--smem", type=click.IntRange(0), help="Dynamic shared memory, bytes; default 0.")
@click.option("--seed", type=click.IntRange(0), help="Numbers and schedule; default 0.")
@click.option("--races/--no-races", default=True, help="Look for races (default) or not.")
@click.option("--limit", type=click.IntRange(1), help="Stop after so many instructions.")
@click.option("--overlook", multiple=True, metavar="KIND",
              help="Leave out a kind of report, as tcgen05-fence.")  # fmt: skip
@click.option("--save", multiple=True, callback=_saves, metavar="NAME=FILE.npy",
              help="Write an array after the run.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def machine_command(
    file: Path,
    launch: Path | None,
    arrays: tuple[str, ...],
    args: tuple[str, ...],
    grid: tuple[int, int, int] | None,
    smem: int | None,
    seed: int | None,
    races: bool,
    limit: int | None,
    overlook: tuple[str, ...],
    save: dict[str, Path],
    as_json: bool,
) -> None:
    """Run a PTX file."""
    described = Description.from_file(launch) if launch else Description()
    described = described.with_options(arrays, args, grid=grid, smem_bytes=smem, seed=seed)
    made = described.make()
    missing = [name for name in save if name not in made.arrays]
    if missing:
        raise LaunchError(f"--save: no array {missing[0]!r}; there are {', '.join(made.arrays)}")
    result, seconds = _run(file, made, seed=described.seed, races=races, limit=limit)
    kept = tuple(report for report in result.reports if report.kind not in overlook)
    result = replace(result, reports=kept)
    for name, path in save.items():
        np.save(path, _plain(made.arrays[name]))
    if as_json:
        click.echo(json.dumps(as_data(result, made, seconds), indent=2))
    else:
        show(result, made, seconds)
    if result.reports:
        raise SystemExit(LIBRARY_ERROR)


def _run(file: Path, launch: Launch, **how: Any) -> tuple[Result, float]:
    program = parse(file.read_text(encoding="utf-8", errors="replace"))
    module = program.module
    wanted = module.params
    if len(wanted) != len(launch.args):
        listed = ", ".join(f"{p.name} (.{p.type}, {p.num_bytes} bytes)" for p in wanted) or "none"
        raise LaunchError(
            f"{file}: kernel {module.name} takes {len(wanted)} arguments, got "
            f"{len(launch.args)}; its parameters: {listed}"
        )
    with progress_bar(f"running {module.name}", "CTAs") as update:
        start = time.perf_counter()
        result = run(
            program,
            grid=launch.grid,
            args=list(launch.args),
            smem_bytes=launch.smem_bytes,
            progress=update,
            **how,
        )
    return result, time.perf_counter() - start


def _plain(array: np.ndarray) -> np.ndarray:
    """An array as .npy files can hold it: ml_dtypes' types as unsigned integers of their width."""
    known = array.dtype.kind in "fiub" and array.dtype.isbuiltin == 1
    return array if known else array.view(f"u{array.dtype.itemsize}")


def summary(array: np.ndarray) -> dict[str, Any]:
    """Shape, dtype, range and NaNs of an array."""
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "min": float(finite.min()) if finite.size else None,
        "max": float(finite.max()) if finite.size else None,
        "mean": float(finite.mean()) if finite.size else None,
        "not_finite": int(numbers.size - finite.size),
    }


def _where(loc: Loc | None) -> str | None:
    return None if loc is None else str(loc)


def as_data(result: Result, launch: Launch, seconds: float) -> dict[str, Any]:
    """A result as JSON takes it."""
    return {
        "reports": [
            {"kind": r.kind, "message": r.message, "ptx_line": r.line, "ptx": r.text,
             "source": _where(r.source)}
            for r in result.reports
        ],
        "bank_conflicts": [
            {"ptx_line": c.line, "ptx": c.text, "source": _where(c.source),
             "wavefronts": c.wavefronts, "ideal": c.ideal}
            for c in result.conflicts
        ],
        "stats": dict(result.stats),
        "instructions": result.instructions,
        "seconds": seconds,
        "arrays": {name: summary(array) for name, array in launch.arrays.items()},
    }  # fmt: skip


def conflict_table(result: Result) -> Table:
    """Shared-memory accesses with their wavefronts."""
    table = make_table(
        "PTX line",
        "access",
        "source",
        title="shared-memory accesses",
        right=("wavefronts", "ideal", "ways"),
    )
    for row in result.conflicts:
        style = "red" if row.wavefronts > row.ideal else ""
        numbers = (str(row.wavefronts), str(row.ideal), f"{row.wavefronts / row.ideal:g}")
        cells = (Text(row.text[:60]), Text(_where(row.source) or ""))
        table.add_row(str(row.line), *cells, *numbers, style=style)
    return table


def stats_table(result: Result) -> Table:
    """Executed instructions by family."""
    table = make_table("what", title="executed", right=("count",))
    for name, count in sorted(result.stats.items()):
        table.add_row(Text(name), f"{count:,}")
    return table


def array_table(launch: Launch) -> Table:
    """The arrays after the run."""
    right = ("min", "max", "mean", "not finite")
    table = make_table("array", "dtype", "shape", title="arrays after the run", right=right)
    for name, array in launch.arrays.items():
        row = summary(array)
        shape = "x".join(map(str, row["shape"]))
        numbers = ["-" if row[k] is None else f"{row[k]:.6g}" for k in right[:3]]
        table.add_row(name, row["dtype"], shape, *numbers, str(row["not_finite"]))
    return table


def show(result: Result, launch: Launch, seconds: float) -> None:
    """Print a result: reports, conflicts, counts, arrays."""
    out = console()
    for report in result.reports:
        out.print(str(report), style="red", markup=False, soft_wrap=True)
    if result.conflicts:
        out.print(conflict_table(result))
    out.print(stats_table(result))
    if launch.arrays:
        out.print(array_table(launch))
    out.print(
        f"{len(result.reports)} reports; {result.instructions:,} instructions in {seconds:.2f} s"
    )
