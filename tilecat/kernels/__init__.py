"""The kernels that ship with tilecat, written in its language, and what there is to know of each.

KERNELS is the list: one `KernelSpec` a kernel.
"""

from . import epilogues
from .spec import KERNELS, Config, KernelSpec, Shape

__all__ = ["KERNELS", "Config", "KernelSpec", "Shape", "epilogues"]
