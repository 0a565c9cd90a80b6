"""`tilecat list`, `check` and `emit`: kernels as text, without running them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from rich.text import Text

from ..arch import DEFAULT_TARGET
from ..driver import STAGES, Compiled, KernelFunction
from ..errors import TileError
from ..kernels import KERNELS, KernelSpec
from . import find, report
from .app import LIBRARY_ERROR, console, main, make_table

LIST_HELP = """The kernels that ship with tilecat; with a NAME, its configurations and shapes.

\b
Examples:
  tilecat list
  tilecat list attention
"""
CHECK_HELP = """Trace, check, emit and assemble kernels, without a GPU and without running them.

KERNEL is a name of `tilecat list` or FILE.py:NAME; without one, every shipped kernel in every
configuration, for every target.

\b
Examples:
  tilecat check
  tilecat check matmul -p stages=9
  tilecat check my_kernels.py:softmax --target sm_90a

Exit code: 0 if every kernel passes, 1 if one does not.
"""
EMIT_HELP = """Print what the compiler makes of a kernel, after the stage named.

\b
  ir     what tracing recorded
  ptx    the text that the GPU and the PTX machine both run
  sass   the machine code, disassembled (ptxas and nvdisasm)

\b
Examples:
  tilecat emit matmul --stage ptx --target sm_90a
  tilecat emit attention --config D64 --stage sass -o attention.sass
  tilecat emit my_kernels.py:softmax --stage ir
"""


@main.command("list", help=LIST_HELP, short_help="Kernels, configurations, shapes.")
@click.argument("name", required=False)
def list_command(name: str | None) -> None:
    """Print the kernels, or one of them."""
    out = console()
    if name is None:
        table = make_table("kernel", "what", "arguments", "configurations", title="kernels")
        for spec in KERNELS:
            what = (spec.kernel.__doc__ or "").strip().partition("\n")[0]
            names = "\n".join(config.name for config in spec.configs)
            args = "\n".join(f"{arg}: {kind}" for arg, kind in spec.kernel.signature.args)
            table.add_row(*map(Text, (spec.name, what, args, names)))
        out.print(table)
        return
    spec = find.spec_of(name)
    out.print(Text(spec.kernel.signature.describe()))
    table = make_table("configuration", "parameters", title="configurations")
    for config in spec.configs:
        table.add_row(*map(Text, (config.name, _pairs(config.params))))
    out.print(table)
    table = make_table("shape", "extents", "group", title="shapes", right=("GFLOP", "MB (16 bit)"))
    for shape in spec.shapes:
        work = f"{spec.flops(shape.extents) / 1e9:,.1f}"
        size = f"{spec.num_bytes(shape.extents, 2) / 1e6:,.1f}"
        table.add_row(*map(Text, (shape.name, _pairs(shape.extents), shape.group)), work, size)
    out.print(table)


def _pairs(values: dict) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _variants(
    name: str | None, config: str | None, params: dict
) -> Iterator[tuple[str, KernelFunction, dict]]:
    """(label, kernel, parameters) of what is to be checked."""
    if name is not None and (config or params or ":" in name):
        kernel, spec = find.kernel_of(name)
        chosen = find.parameters(spec, config, None, params)
        yield f"{kernel.__name__} {_pairs(chosen)}".strip(), kernel, chosen
        return
    specs: tuple[KernelSpec, ...] = KERNELS if name is None else (find.spec_of(name),)
    for spec in specs:
        for row in spec.configs:
            yield f"{spec.name} {row.name}", spec.kernel, {**row.params, **params}


@main.command("check", help=CHECK_HELP, short_help="Trace, check and assemble kernels.")
@click.argument("kernel", required=False)
@click.option("--target", "wanted", multiple=True, type=click.Choice(find.TARGETS),
              help=f"Repeat for more; default {DEFAULT_TARGET}.")  # fmt: skip
@find.kernel_options
def check_command(
    kernel: str | None, wanted: tuple[str, ...], dtype: str, config: str | None, params: dict
) -> None:
    """Print one line a kernel and target; facts of the kernel if there is only one."""
    out = console()
    passed: list[tuple[str, Compiled]] = []
    failed = 0
    for label, function, chosen in _variants(kernel, config, params):
        for target in wanted or (DEFAULT_TARGET,):
            try:
                compiled = find.traced(function, chosen, dtype, target)
                used = compiled.resources
            except TileError as error:
                failed += 1
                out.print(Text(f"no   {label} {dtype} {target}", "red"))
                out.print(Text(str(error)), soft_wrap=True)
                continue
            passed.append((label, compiled))
            facts = f"{used.registers} registers, {used.shared_bytes:,} bytes of shared memory"
            out.print(Text(f"yes  {label} {dtype} {target}: {facts}"), soft_wrap=True)
    if len(passed) == 1 and not failed:
        report.show(out, *passed[0])
    if failed:
        raise SystemExit(LIBRARY_ERROR)


@main.command("emit", help=EMIT_HELP, short_help="Print IR, PTX or SASS.")
@click.argument("kernel")
@click.option("--stage", type=click.Choice(STAGES), default="ptx", show_default=True)
@click.option("--target", type=click.Choice(find.TARGETS), default=find.TARGETS[0],
              show_default=True)  # fmt: skip
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path),
              help="Write to a file.")  # fmt: skip
@find.kernel_options
def emit_command(
    kernel: str,
    stage: str,
    target: str,
    output: Path | None,
    dtype: str,
    config: str | None,
    params: dict,
) -> None:
    """Print or write one stage's text."""
    function, spec = find.kernel_of(kernel)
    chosen = find.parameters(spec, config, None, params)
    text = getattr(find.traced(function, chosen, dtype, target), stage)
    if output is None:
        click.echo(text)
    else:
        output.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
