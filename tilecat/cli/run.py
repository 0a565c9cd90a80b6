"""`tilecat sim` and `run`: a kernel on the PTX machine or the GPU, against its reference."""

from __future__ import annotations

import time
from typing import Any

import click
import numpy as np
from rich.text import Text

from ..driver import KernelFunction
from ..dtypes import DType, by_name
from ..errors import ResourceError
from ..kernels import KernelSpec
from ..kernels.spec import rounding
from ..tiles import GlobalType
from . import find, report
from .app import LIBRARY_ERROR, console, main, progress_bar

SIM_HELP = """Run a kernel on the PTX machine, on the CPU: the text a GPU would get, all checks on.

A shipped kernel gets normal random inputs and is compared with its float64 reference. Your own
(FILE.py:NAME) gets random numbers in every array, and the machine's reports are what is looked at.

\b
Examples:
  tilecat sim matmul
  tilecat sim matmul --shape M=300,N=500,K=72 --dtype f16 --seeds 10
  tilecat sim attention --shape Lq=100,Lk=300,D=128 -v
  tilecat sim my_kernels.py:scale --shape M=256,N=64 --scalar factor=2.0

Exit code: 0 if the result is right and nothing is reported, else 1.
"""
RUN_HELP = """Run a kernel on the GPU and compare with its float64 reference. Needs PyTorch.

\b
Examples:
  tilecat run matmul --shape M=1024,N=1024,K=1024
  tilecat run attention --shape D=128 --dtype f16
"""


def _random_args(
    kernel: KernelFunction, extents: dict[str, int], scalars: dict[str, Any], dtype: str, seed: int
) -> list[Any]:
    """Random arrays and the given scalars for a user's own kernel.

    Raises:
        click.UsageError: an extent or a scalar is missing.
    """
    rng = np.random.default_rng(seed)
    args: list[Any] = []
    for name, kind in kernel.signature.args:
        if not isinstance(kind, GlobalType):
            if name not in scalars:
                raise click.UsageError(f"--scalar {name}=VALUE is missing ({kind.name})")
            args.append(scalars[name])
            continue
        missing = [d for d in kind.dims if isinstance(d, str) and d not in extents]
        if missing:
            raise click.UsageError(f"--shape {missing[0]}=EXTENT is missing ({name} is {kind})")
        shape = tuple(d if isinstance(d, int) else extents[d] for d in kind.dims)
        row = kind.dtype if isinstance(kind.dtype, DType) else kind.dtype.check(by_name(dtype))
        args.append(rng.standard_normal(shape).astype(row.numpy))
    return args


def _arguments(
    kernel: KernelFunction,
    spec: KernelSpec | None,
    shape: dict[str, int],
    scalars: dict[str, Any],
    dtype: str,
    seed: int,
) -> list[Any]:
    if spec is None:
        return _random_args(kernel, shape, scalars, dtype, seed)
    if scalars:
        raise click.UsageError(f"{spec.name} sets its scalars itself; --scalar is for your own")
    return spec.example(shape, dtype=dtype, seed=seed)


def _verdict(spec: KernelSpec | None, args: list[Any], dtype: str) -> tuple[bool, str]:
    """Whether the outputs are right, and how far they are from the reference."""
    if spec is None:
        return True, "no reference"
    error, limit = spec.error(args), rounding(dtype)
    words = "right" if error <= limit else "WRONG"
    return error <= limit, f"{words}: relative error {error:.2e} (at most {limit:.2e})"


@main.command("sim", help=SIM_HELP, short_help="Run a kernel on the PTX machine.")
@click.argument("kernel")
@click.option("--shape", multiple=True, callback=find.extents, metavar="NAME=EXTENT",
              help="Extents; repeat, or join by commas.")  # fmt: skip
@click.option("--scalar", "scalars", multiple=True, callback=find.assignments,
              metavar="NAME=VALUE", help="Scalar arguments of your own kernel.")  # fmt: skip
@click.option("--target", type=click.Choice(find.TARGETS), default=find.TARGETS[0],
              show_default=True)  # fmt: skip
@click.option("--grid", type=click.IntRange(1), help="CTAs; default 4, in whole clusters.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of numbers and schedule.")
@click.option("--seeds", type=click.IntRange(1), default=1, help="Run so many seeds.")
@click.option("--races/--no-races", default=True, help="Look for races (default) or not.")
@click.option("--verbose", "-v", is_flag=True, help="Roles, tiles, registers, bank conflicts.")
@find.kernel_options
def sim_command(
    kernel: str,
    shape: dict[str, int],
    scalars: dict[str, Any],
    target: str,
    grid: int | None,
    seed: int,
    seeds: int,
    races: bool,
    verbose: bool,
    dtype: str,
    config: str | None,
    params: dict[str, Any],
) -> None:
    """Simulate with one seed or several."""
    out = console()
    function, spec = find.kernel_of(kernel)
    chosen = find.parameters(spec, config, shape, params)
    results, bad = [], 0
    for number in range(seed, seed + seeds):
        args = _arguments(function, spec, shape, scalars, dtype, number)
        start = time.perf_counter()
        label = f"{function.__name__}, seed {number}"
        with progress_bar(label, "CTAs") as update:
            result = function.simulate(
                *args, target=target, grid=grid, seed=number, races=races, progress=update, **chosen
            )
        seconds = time.perf_counter() - start
        good, words = _verdict(spec, args, dtype)
        results.append(result)
        bad += not good or bool(result.reports)
        for item in result.reports:
            out.print(Text(str(item), "red"), soft_wrap=True)
        out.print(
            f"seed {number}: {words}; {len(result.reports)} reports; "
            f"{result.instructions:,} instructions, {seconds:.2f} s",
            soft_wrap=True,
        )
    if verbose:
        report.show(out, function.__name__, find.traced(function, chosen, dtype, target), results)
    if bad:
        raise SystemExit(LIBRARY_ERROR)


def _torch() -> Any:
    """PyTorch with a GPU.

    Raises:
        ResourceError: no PyTorch, or no GPU.
    """
    hint = "`tilecat sim` runs the same kernel on the CPU"
    try:
        import torch
    except ImportError as error:
        raise ResourceError(f"run: needs PyTorch for arrays on the GPU, got {error}",
                            hint=f"pip install 'tilecat[torch]'; {hint}") from error  # fmt: skip
    if not torch.cuda.is_available():
        raise ResourceError("run: needs a CUDA GPU, got none that PyTorch sees", hint=hint)
    return torch


def to_gpu(torch: Any, value: Any) -> Any:
    """A NumPy array as a CUDA tensor; numbers as they are."""
    if not isinstance(value, np.ndarray):
        return value
    words = value.view(f"i{value.dtype.itemsize}")
    return torch.from_numpy(words).cuda().view(getattr(torch, value.dtype.name))


def to_cpu(torch: Any, value: Any, like: Any) -> Any:
    """A CUDA tensor as a NumPy array of the type of `like`; numbers as they are."""
    if not isinstance(like, np.ndarray):
        return like
    data = value.contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
    return data.view(like.dtype).reshape(like.shape)


@main.command("run", help=RUN_HELP, short_help="Run a kernel on the GPU.")
@click.argument("kernel")
@click.option("--shape", multiple=True, callback=find.extents, metavar="NAME=EXTENT",
              help="Extents; repeat, or join by commas.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the numbers.")
@find.kernel_options
def run_command(
    kernel: str,
    shape: dict[str, int],
    seed: int,
    dtype: str,
    config: str | None,
    params: dict[str, Any],
) -> None:
    """Launch once and compare."""
    function, spec = find.kernel_of(kernel)
    torch = _torch()
    chosen = find.parameters(spec, config, shape, params)
    host = _arguments(function, spec, shape, {}, dtype, seed)
    args = [to_gpu(torch, value) for value in host]
    function(*args, **chosen)
    torch.cuda.synchronize()
    back = [to_cpu(torch, value, like) for value, like in zip(args, host, strict=True)]
    good, words = _verdict(spec, back, dtype)
    console().print(f"{function.__name__} on {torch.cuda.get_device_name()}: {words}")
    if not good:
        raise SystemExit(LIBRARY_ERROR)
