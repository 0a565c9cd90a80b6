"""Kernels by name: those that ship, and a user's own as FILE.py:NAME."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

import click

from ..arch import ARCHS
from ..driver import KernelFunction
from ..kernels import KERNELS, KernelSpec


def spec_of(name: str) -> KernelSpec:
    """A shipped kernel.

    Raises:
        click.BadParameter: there is none of that name.
    """
    for spec in KERNELS:
        if spec.name == name:
            return spec
    known = ", ".join(spec.name for spec in KERNELS)
    raise click.BadParameter(f"no kernel {name!r}; there are {known}")


def kernel_of(name: str) -> KernelFunction:
    """A shipped kernel, or the kernel NAME of FILE.py.

    Raises:
        click.BadParameter: there is none.
    """
    file, colon, attribute = name.rpartition(":")
    if not colon:
        return spec_of(name).kernel
    path = Path(file)
    if not path.is_file():
        raise click.BadParameter(f"no file {file!r}")
    made = importlib.util.spec_from_file_location(path.stem, path)
    if made is None or made.loader is None:
        raise click.BadParameter(f"{file!r} is no Python file")
    module = importlib.util.module_from_spec(made)
    sys.modules.setdefault(path.stem, module)
    made.loader.exec_module(module)
    found = getattr(module, attribute, None)
    if not isinstance(found, KernelFunction):
        kernels = [key for key, value in vars(module).items() if isinstance(value, KernelFunction)]
        raise click.BadParameter(
            f"{file} has no kernel {attribute!r}; it has {', '.join(kernels) or 'none'}"
        )
    return found


def targets(wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The targets asked for, or all.

    Raises:
        click.BadParameter: an unknown one.
    """
    known = tuple(arch.target for arch in ARCHS)
    for target in wanted:
        if target not in known:
            raise click.BadParameter(f"no target {target!r}; there are {', '.join(known)}")
    return wanted or known


def assignments(values: tuple[str, ...], what: str) -> dict[str, Any]:
    """`tile_m=128`, `M=512,N=512` as a dictionary; values as Python literals, else words.

    Raises:
        click.BadParameter: not NAME=VALUE.
    """
    found: dict[str, Any] = {}
    for item in ",".join(values).split(","):
        if not item:
            continue
        key, equals, value = item.partition("=")
        if not equals or not key.strip().isidentifier() or not value:
            raise click.BadParameter(f"{what}: NAME=VALUE is wanted, got {item!r}")
        try:
            found[key.strip()] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[key.strip()] = value.strip()
    return found
