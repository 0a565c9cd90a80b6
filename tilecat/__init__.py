"""tilecat: a tile language for GPU kernels, embedded in Python."""

from __future__ import annotations

from .driver import KernelFunction, kernel
from .dtypes import DType, DTypeVar, bf16, f16, f32, s32, u32
from .errors import (
    ArchError,
    DTypeError,
    LayoutError,
    Loc,
    MachineError,
    ResourceError,
    ScopeError,
    SyncError,
    TileError,
)
from .language.control import one_thread, otherwise, when
from .language.control import range_ as range
from .language.functions import (
    absolute,
    cast,
    copy,
    empty,
    exp,
    exp2,
    fill,
    fma,
    full,
    inline,
    load,
    log,
    log2,
    mask_cols,
    mask_rows,
    maximum,
    minimum,
    mma_AB,
    mma_ABt,
    mma_wait,
    mul,
    rcp,
    relu,
    require,
    row_max,
    row_min,
    row_sum,
    rsqrt,
    sqrt,
    store,
    tanh,
    total,
    zeros,
)
from .language.scalars import cdiv, select, var
from .pipeline.ring import load_async
from .pipeline.scheduler import Schedule, grouped, row_major, sequence_first
from .pipeline.templates import lcf
from .tiles import gl, rt, rv, st

# isort: split
# Kernels are written against the names above.
from .operators import attention, matmul

__version__ = "0.1.0"
