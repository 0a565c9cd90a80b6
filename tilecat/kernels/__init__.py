"""The kernels that ship with tilecat, written in its language, and what there is to know of each.

KERNELS is the list: one `KernelSpec` a kernel. It imports every kernel, when it is first used: who
calls one of them does not wait for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..later import at_first_use

if TYPE_CHECKING:
    from . import epilogues
    from .catalogue import KERNELS
    from .spec import Config, KernelSpec, Shape

_MODULES = {"KERNELS": "catalogue", "Config": "spec", "KernelSpec": "spec", "Shape": "spec"}

__all__ = ["KERNELS", "Config", "KernelSpec", "Shape", "epilogues"]

__getattr__ = at_first_use(__name__, _MODULES)
