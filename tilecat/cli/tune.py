"""`tilecat tune`: find the fastest parameters of a kernel on this GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click

from .. import tune
from ..tune.problems import TUNABLES
from . import find
from .app import console, main, progress_bar

HELP = """Find the fastest compile-time parameters of a kernel on this GPU, by measuring.

Candidates are pruned by the compiler's checks and a model, compiled in parallel, checked against
float64 and timed beside PyTorch with the L2 flushed. A candidate that fails or hangs is killed,
reported and skipped. The results file is written anew after every problem. Without --out the
winners are kept in the user's cache, where tc.matmul finds them before those it comes with.

\b
Examples:
  tilecat tune matmul
  tilecat tune matmul --shapes 4096^3,640x512x64 --layout NT --budget 60
"""


@main.command("tune", help=HELP, short_help="Find a kernel's fastest parameters on this GPU.")
@click.argument("kernel", type=click.Choice(tuple(TUNABLES)))
@click.option("--shapes", default="", metavar="NAMES",
              help="Comma-separated; default: every standard problem of the kernel.")  # fmt: skip
@click.option("--layout", "layouts", multiple=True, metavar="NAME",
              help="E.g. NN; repeat for more; default all.")  # fmt: skip
@click.option("--dtype", default="bf16", show_default=True)
@click.option("--target", default=find.TARGETS[0], show_default=True)
@click.option("--budget", type=click.FloatRange(5), default=440.0, show_default=True,
              help="Seconds for everything.")  # fmt: skip
@click.option("--within", type=click.FloatRange(1), default=tune.WITHIN, show_default=True,
              help="Measure candidates up to this factor of the least modelled time.")  # fmt: skip
@click.option("--processes", type=click.IntRange(1), help="That compile; default one a core.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path),
              help="Results file; default: keep the winners in the user's cache.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an old results file.")
def tune_command(
    kernel: str, shapes: str, layouts: tuple[str, ...], dtype: str, target: str, budget: float,
    within: float, processes: int | None, out: Path | None, overwrite: bool,
) -> None:  # fmt: skip
    """Tune and write."""
    names = tuple(name.strip() for name in shapes.split(",") if name.strip())
    printer = console()
    with ExitStack() as stack:
        settings = tune.Settings(
            budget_s=budget,
            processes=processes,
            within=within,
            say=lambda line: printer.print(line, markup=False, soft_wrap=True),
            progress=_bars(stack),
        )
        tune.tune(
            kernel, names, layouts=layouts, dtype=dtype, target=target, out=out,
            overwrite=overwrite, settings=settings,
        )  # fmt: skip


def _bars(stack: ExitStack) -> Callable[[str, float, float], None]:
    """One bar at a time: the next stage's ends the one before."""
    shown: dict[str, Callable[..., None]] = {}

    def update(what: str, done: float, total: float) -> None:
        if what not in shown:
            stack.close()
            shown[what] = stack.enter_context(progress_bar(what, "done"))
        shown[what](done, total)

    return update
