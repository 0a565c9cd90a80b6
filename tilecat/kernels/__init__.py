"""The kernels that ship with tilecat, written in its language, and what there is to know of each.

KERNELS is the list: one `KernelSpec` a kernel.
"""

from . import epilogues
from .product_specs import PRODUCTS
from .recurrence_specs import RECURRENCES
from .row_specs import ROWS
from .spec import Config, KernelSpec, Shape

KERNELS: tuple[KernelSpec, ...] = (*PRODUCTS, *RECURRENCES, *ROWS)

__all__ = ["KERNELS", "Config", "KernelSpec", "Shape", "epilogues"]
