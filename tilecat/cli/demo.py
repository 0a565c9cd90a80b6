"""`tilecat demo`: the real-input example, then what each kernel that ran in it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.text import Text

from ..driver import Compiled, KernelFunction
from ..errors import ResourceError
from ..ir import TensorArg
from ..kernels import KERNELS, KernelSpec
from ..runtime.arrays import view
from ..sim import Result
from . import find, report
from .app import console, main

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sentence_embeddings.py"
HELP = """Sentence embeddings by a real model, every product and attention by tilecat kernels.

On a GPU if there is one, else on the CPU in the PTX machine, which executes the very text a GPU
would get. Prints similarities beside the float32 reference's; then of each kernel that ran: roles,
stages, shared memory, registers, spills, matrix instructions, bank conflicts, and where its PTX is.

\b
Examples:
  tilecat demo
  tilecat demo --sentence "A cat sleeps." --sentence "A kitten naps."

Exit code: 0 if every embedding's cosine with the reference is at least 0.999, else 1.
"""


def variants(kernel: KernelFunction) -> list[Compiled]:
    """What has been compiled of a kernel in this process."""
    return list(kernel._compiled.values())


def tensors(compiled: Compiled) -> list[TensorArg]:
    """The tensor arguments of a variant, in order."""
    return [arg for arg in compiled.kernel.args if isinstance(arg, TensorArg)]


def sample_run(spec: KernelSpec, compiled: Compiled) -> Result:
    """A small problem for one variant, on the PTX machine, for its bank conflicts."""
    small, params = dict(spec.small), compiled.kernel.params
    shape = {name: value for name, value in params.items() if name in small}
    args: list[Any] = spec.example(shape, dtype=tensors(compiled)[0].type.dtype.name)
    for tensor in tensors(compiled):
        args[tensor.index] = view(_placed(args[tensor.index], tensor.order))
    return compiled.simulate(args)


def _placed(array: np.ndarray, order: str) -> np.ndarray:
    """The array, column-major in its last two axes if the variant has it so."""
    if order != "col":
        return array
    return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)


def label(spec: KernelSpec, compiled: Compiled) -> str:
    """The kernel with its parameters, and which arrays are transposed or out of TMA's reach."""
    words = [f"{name}={value}" for name, value in compiled.kernel.params.items()]
    for tensor in tensors(compiled):
        words += [f"{tensor.name} transposed"] if tensor.order == "col" else []
        words += [] if tensor.tma else [f"{tensor.name} without TMA"]
    return f"{spec.name} {tensors(compiled)[0].type.dtype.name}: {', '.join(words)}"


def show_kernels(out: Console) -> None:
    """Facts of every kernel variant that ran."""
    for spec in KERNELS:
        for number, compiled in enumerate(variants(spec.kernel)):
            path = report.save_ptx(compiled.module, f"{spec.name}-{number}")
            result = sample_run(spec, compiled)
            report.show(out, label(spec, compiled), compiled, [result], path)
            out.print()
            for item in result.reports:
                out.print(Text(str(item), "red"), soft_wrap=True)


@main.command("demo", help=HELP, short_help="A real model by tilecat kernels.")
@click.option("--device", type=click.Choice(("cpu", "cuda")), help="Default: a GPU if any.")
@click.option("--dtype", type=click.Choice(find.DTYPES), help="Of the operands; default f16.")
@click.option("--sentence", "sentences", multiple=True, help="Your own; repeat for more.")
@click.option("--kernels/--no-kernels", default=True, help="Show the kernels (default) or not.")
def demo_command(
    device: str | None, dtype: str | None, sentences: tuple[str, ...], kernels: bool
) -> None:
    """Run the example with its own options."""
    if not EXAMPLE.is_file():
        raise ResourceError(
            f"demo: the example is part of the source tree, got no file {EXAMPLE}",
            hint="clone the repository, then `make demo`",
        )
    words: list[str] = []
    for name, value in (("--device", device), ("--dtype", dtype)):
        words += [name, value] if value else []
    for sentence in sentences:
        words += ["--sentence", sentence]
    example: Any = find.load(EXAMPLE)
    status = example.main(words)
    if kernels and status == 0:
        show_kernels(console())
    if status:
        raise SystemExit(status)
