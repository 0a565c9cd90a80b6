"""`tilecat model`: how long a GEMM takes on a GPU that may not be at hand, and its timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.text import Text

from ..model.rates import GPUS, rates_of
from ..model.replay import Prediction, write_trace
from ..model.traced import Traced, predict_traced, traced
from . import find
from .app import console, main, make_table

TARGETS = tuple(GPUS)
MODEL_HELP = """Replay a GEMM's roles on the rates of a GPU: time, what bounds it, and a timeline.

The kernel is traced; its rings, bytes, roles and instructions are what is replayed. Rates of an
H200 are measured and read off measurements; those of B200 and Rubin are announced or assumed
(`--rates` prints each with its source).

\b
Examples:
  tilecat model matmul --shape M=4096,N=4096,K=4096
  tilecat model matmul --target sm_100a --shape M=8192,N=8192,K=8192 -p stages=4
  tilecat model matmul --target sm_107a --trace timeline.json
"""
EXTENTS = {"M": 4096, "N": 4096, "K": 4096}


@main.command("model", help=MODEL_HELP, short_help="Predict a GEMM's time on a GPU.")
@click.argument("kernel", default="matmul")
@click.option("--shape", multiple=True, callback=find.extents, metavar="NAME=EXTENT",
              help="M, N and K; 4096 if not given.")  # fmt: skip
@click.option("--target", type=click.Choice(TARGETS), default=TARGETS[0], show_default=True)
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path),
              help="Write the timeline, for ui.perfetto.dev.")  # fmt: skip
@click.option("--rates", is_flag=True, help="Print the GPU's rates and their sources.")
@find.kernel_options
def model_command(
    kernel: str,
    shape: dict[str, int] | None,
    target: str,
    trace: Path | None,
    rates: bool,
    dtype: str,
    config: str | None,
    params: dict[str, Any],
) -> None:
    """Trace, replay, print."""
    unknown = [name for name in shape or {} if name not in EXTENTS]
    if unknown:
        raise click.BadParameter(f"no extent {unknown[0]!r}; there are M, N, K",
                                 param_hint="--shape")  # fmt: skip
    out = console()
    function, spec = find.kernel_of(kernel)
    chosen = find.parameters(spec, config, None, params)
    found = traced(find.traced(function, chosen, dtype, target))
    extents = {**EXTENTS, **(shape or {})}
    predicted = predict_traced(found, *(extents[axis] for axis in "MNK"))
    _show(out, found, predicted, extents)
    if rates:
        _show_rates(out, target)
    if trace is not None:
        write_trace(predicted, trace)
        out.print(Text(f"timeline: {trace}"), soft_wrap=True)


def _show(out: Any, found: Traced, predicted: Prediction, extents: dict[str, int]) -> None:
    name, rates = rates_of(found.target)
    size = " x ".join(f"{extents[axis]:,}" for axis in "MNK")
    title = f"{found.kernel} {size} on {name} ({found.target}), modelled"
    table = make_table("what", "value", title=title)
    rings = ", ".join(f"{ring.name} {ring.stage_bytes:,}" for ring in found.rings)
    busy = predicted.mma_cycles / predicted.cycles
    memory = predicted.memory_bytes / rates.memory_bytes_second / predicted.seconds
    loads = predicted.loaded_bytes / rates.load_bytes_second / predicted.seconds
    rows = [
        ("time", f"{predicted.seconds * 1e6:,.1f} us, {predicted.tflops:,.0f} TFLOP/s"),
        ("clock", f"{predicted.clock_hz / 1e9:.2f} GHz"),
        ("tile", f"{found.tile_m} x {found.tile_n} x {found.tile_k}"),
        ("instruction", found.instruction),
        ("stages", f"{found.rings[0].stages} of {found.stage_bytes:,} bytes ({rings})"),
        ("consumers", f"{found.consumers} warpgroups"),
        ("tasks of the busiest CTA", f"{predicted.tasks}"),
        ("tensor cores", f"{busy:.0%} of the time"),
        ("loads out of L2", f"{loads:.0%} of an SM's rate"),
        ("device memory", f"{predicted.memory_bytes / 1e9:,.2f} GB, {memory:.0%} of its rate"),
    ]
    for row in rows:
        table.add_row(*map(Text, row))
    out.print(table)


def _show_rates(out: Any, target: str) -> None:
    name, rates = rates_of(target)
    table = make_table("rate", "value", "known", "source", title=f"rates of {name}")
    for source in rates.sources:
        value = getattr(rates, source.name)
        value = "..." if isinstance(value, tuple) else f"{value:.4g}"
        table.add_row(*map(Text, (source.name, value, source.known, source.text)))
    out.print(table)
