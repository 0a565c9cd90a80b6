"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def at_first_use(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`, which imports a name and keeps it.

    Args:
        package: its `__name__`.
        modules: the module that has a name, from the package: `{"ssd": "ssd_call"}`. A module
            without such a name is the value itself.
    """

    def found(name: str) -> Any:
        if name not in modules:
            owner = sys.modules.get(package)
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=owner
            )
        module = import_module(f"{package}.{modules[name]}")
        value = getattr(module, name, module)
        setattr(sys.modules[package], name, value)
        return value

    return found
