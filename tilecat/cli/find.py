"""What the user means: kernels by name or as FILE.py:NAME, targets, extents, parameters."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..arch import ARCHS
from ..driver import Compiled, KernelFunction
from ..dtypes import by_name
from ..kernels import KERNELS, KernelSpec

TARGETS = tuple(arch.target for arch in ARCHS)
DTYPES = ("bf16", "f16")
WORDS = {"true": True, "false": False}


def spec_of(name: str) -> KernelSpec:
    """A shipped kernel.

    Raises:
        click.BadParameter: there is none of that name.
    """
    for spec in KERNELS:
        if spec.name == name:
            return spec
    known = ", ".join(spec.name for spec in KERNELS)
    raise click.BadParameter(
        f"no kernel {name!r}; there are {known}, and your own as FILE.py:NAME", param_hint="KERNEL"
    )


def load(path: Path) -> Any:
    """A Python file as a module; of a package, so that its relative imports work.

    Raises:
        click.BadParameter: it is no Python file.
    """
    root, names = path.resolve().parent, [path.stem]
    while (root / "__init__.py").is_file():
        names, root = [root.name, *names], root.parent
    if len(names) > 1 and str(root) not in sys.path:
        sys.path.append(str(root))
    name = ".".join(names)
    made = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or made is None or made.loader is None:
        raise click.BadParameter(f"no Python file {str(path)!r}", param_hint="KERNEL")
    module = importlib.util.module_from_spec(made)
    sys.modules.setdefault(name, module)
    made.loader.exec_module(module)
    return module


def kernel_of(name: str) -> tuple[KernelFunction, KernelSpec | None]:
    """A shipped kernel and its spec, or the kernel NAME of FILE.py.

    Raises:
        click.BadParameter: there is none.
    """
    file, colon, attribute = name.rpartition(":")
    if not colon:
        spec = spec_of(name)
        return spec.kernel, spec
    values = vars(load(Path(file)))
    found = values.get(attribute)
    if not isinstance(found, KernelFunction):
        kernels = [key for key, value in values.items() if isinstance(value, KernelFunction)]
        raise click.BadParameter(
            f"{file} has no kernel {attribute!r}; it has {', '.join(kernels) or 'none'}",
            param_hint="KERNEL",
        )
    return found, None


def assignments(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict:
    """`tile_m=128`, `M=512,N=512` as a dictionary; values as Python literals, else words.

    `true` and `false` are True and False: as words, both would be true.

    Raises:
        click.BadParameter: not NAME=VALUE.
    """
    found: dict[str, Any] = {}
    for item in filter(None, ",".join(values).split(",")):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key.isidentifier() or not value:
            raise click.BadParameter(f"NAME=VALUE is wanted, got {item!r}")
        try:
            found[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[key] = WORDS.get(value.lower(), value)
    return found


def extents(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """`M=512,N=512` as a dictionary of whole numbers.

    Raises:
        click.BadParameter: not that.
    """
    found = assignments(ctx, param, values)
    for key, value in found.items():
        if type(value) is not int or value < 0:
            raise click.BadParameter(f"{key} must be a whole number, got {value!r}")
    return found


def parameters(
    spec: KernelSpec | None, config: str | None, shape: dict | None, given: dict
) -> dict:
    """Compile-time parameters: of the configuration, then what the user says.

    Raises:
        click.BadParameter: an unknown configuration or extent.
    """
    if spec is None:
        if config is not None:
            raise click.BadParameter("your own kernel has no configurations", param_hint="--config")
        return given
    names = [row.name for row in spec.configs]
    if config is not None and config not in names:
        there = "; ".join(names)
        raise click.BadParameter(f"no {config!r}; there are {there}", param_hint="--config")
    small = dict(spec.small)
    unknown = [name for name in shape or {} if name not in small]
    if unknown:
        there = ", ".join(small)
        raise click.BadParameter(
            f"no extent {unknown[0]!r}; there are {there}", param_hint="--shape"
        )
    wanted = None if shape is None else {**small, **shape}
    return {**spec.config(wanted, config).params, **given}


def traced(kernel: KernelFunction, params: dict, dtype: str, target: str) -> Compiled:
    """A kernel traced, checked and emitted, not yet assembled.

    One of ours that takes more arguments than it names has those of its example.
    """
    spec = next((spec for spec in KERNELS if spec.kernel is kernel), None)
    args = []
    if spec is not None and kernel.signature.rest:
        named = {name for name, _ in spec.small}
        args = spec.example({k: v for k, v in params.items() if k in named}, dtype=dtype)
    return kernel.traced(*args, target=target, dtype=by_name(dtype), **params)


_OPTIONS = (
    click.option("--param", "-p", "params", multiple=True, callback=assignments,
                 metavar="NAME=VALUE", help="Compile-time parameter; repeat, or join by commas."),
    click.option("--config", metavar="NAME", help="A named configuration (`tilecat list NAME`)."),
    click.option("--dtype", type=click.Choice(DTYPES), default="bf16", show_default=True,
                 help="Element type of kernels that take several."),
)  # fmt: skip


def kernel_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --dtype, --config and --param."""
    for option in _OPTIONS:
        command = option(command)
    return command
