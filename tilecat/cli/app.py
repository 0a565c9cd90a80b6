"""The `tilecat` command: one group, its error texts, and its console."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..errors import TileError

_CLICK = Path(click.__file__).resolve().parent
LIBRARY_ERROR = 1  # click's own usage errors end with 2
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def package_version(name: str = "tilecat") -> str:
    """An installed package's version, or that it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


class LibraryError(click.ClickException):
    """An error of the library, shown as its text without a traceback."""

    exit_code = LIBRARY_ERROR

    def __init__(self, error: TileError):
        place = error.loc
        # Outside any kernel the innermost frame that is not ours is click's: no place to look at.
        if place is not None and _CLICK in Path(place.file).parents:
            hint = f"\nhint: {error.hint}" if error.hint else ""
            super().__init__(f"{error.kind}: {error.message}{hint}")
        else:
            super().__init__(str(error))

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the text to stderr."""
        click.echo(self.format_message(), err=True, file=file)


class Commands(click.Group):
    """A group whose commands may raise the library's errors."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; library errors become exit code 1 and a text."""
        try:
            return super().invoke(ctx)
        except TileError as error:
            raise LibraryError(error) from error
        except MemoryError as error:
            raise click.ClickException(f"not enough memory: {error}") from error
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            raise click.ClickException(f"{error.strerror or error}{where}") from error


def console() -> Console:
    """Where results are printed; as wide as the text when the output is a file."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=120)


def make_table(*columns: str, title: str, right: tuple[str, ...] = ()) -> Table:
    """A table with a title; columns named in `right` hold numbers, and stand last."""
    made = Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in right:
        made.add_column(name, justify="right")
    return made


@contextmanager
def progress_bar(what: str, unit: str) -> Iterator[Callable[..., None]]:
    """A bar on stderr while something long runs.

    Yields:
        A function of what is done and what there is to do (None if nobody knows).
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} " + unit),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def update(done: float, total: float | None = None) -> None:
            bar.update(task, completed=done, total=total)

        yield update


@click.group(
    cls=Commands,
    context_settings=CONTEXT,
    epilog="\b\nExamples:\n"
    "  tilecat doctor\n"
    "  tilecat list\n"
    "  tilecat sim matmul --shape M=512,N=512,K=512\n"
    "  tilecat emit matmul --stage ptx --target sm_90a\n"
    "  tilecat machine kernel.ptx --array A=f32:1024 --arg A --grid 8\n"
    "\nEvery command has its own --help with examples.",
)
@click.version_option(package_version(), message="tilecat %(version)s")
def main() -> None:
    """Tiles for GPU kernels: check, simulate, compile, run and measure them."""
