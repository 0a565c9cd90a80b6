"""Every kernel that ships with tilecat: one `KernelSpec` each."""

from .product_specs import PRODUCTS
from .recurrence_specs import RECURRENCES
from .row_specs import ROWS
from .spec import KernelSpec

KERNELS: tuple[KernelSpec, ...] = (*PRODUCTS, *RECURRENCES, *ROWS)
