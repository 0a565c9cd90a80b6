"""Families of the language reference, each with its names and examples."""

from .basics import BASICS, CONTROL, ERRORS, TYPES
from .formats import FORMATS
from .frame import Example, Family, run
from .maps import COMPLEX, MAPS, MASKS, PRODUCTS, REDUCTIONS
from .memory import COPIES, TMA, VIEWS
from .pipelines import ESCAPE, OPERATORS, PIPELINES
from .recurrences import RECURRENCES
from .rows import ROWS
from .scans import NARROW, SCANS
from .synchronisation import CLUSTERS, SYNCHRONISATION
from .tensor import TENSOR

FAMILIES: tuple[Family, ...] = (
    BASICS, TYPES, CONTROL, MAPS, MASKS, REDUCTIONS, SCANS, NARROW, PRODUCTS, COMPLEX, COPIES, TMA,
    VIEWS, SYNCHRONISATION, CLUSTERS, TENSOR, PIPELINES, ESCAPE, OPERATORS, RECURRENCES,
    ROWS, FORMATS, ERRORS,
)  # fmt: skip

__all__ = ["FAMILIES", "Example", "Family", "run"]
