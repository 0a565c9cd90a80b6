"""The runtime's slow imports, each behind a function, so that `import tilecat` stays quick.

Everything else in the package imports at the top of its file. These modules do too, but pull in
packages that a call which hits the disk cache, or a machine without a GPU, never needs. Cost on top
of NumPy, measured on a 2-core AMD EPYC with Python 3.11: cuda.pathfinder 40 ms, filelock 30 ms,
cuda.bindings.driver 20 ms.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from ..errors import ResourceError


def assembler() -> ModuleType:
    """`runtime.assembler`: runs programs of NVIDIA's wheels, holds locks (pathfinder, filelock)."""
    return _load("assembler")


def launch() -> ModuleType:
    """`runtime.launch`: launches on the GPU (cuda.bindings.driver)."""
    return _load("launch")


def driver() -> ModuleType:
    """`runtime.driver`: the CUDA driver's functions (cuda.bindings.driver)."""
    return _load("driver")


def machine() -> ModuleType:
    """`runtime.machine`: runs a module on the PTX machine (tilecat.sim)."""
    return _load("machine")


@cache
def _load(name: str) -> ModuleType:
    try:
        return import_module(f"{__package__}.{name}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "tilecat":
            raise
        raise ResourceError(
            f"runtime: a package is missing on this machine, got {error}",
            hint="the CUDA packages have wheels for Linux and Windows; elsewhere kernels run on "
            "NumPy arrays and CPU tensors, by the PTX machine",
        ) from error
