"""Elements of arrays that reductions combine. PTX ISA 9.7.9.25.4.2, 9.7.9.27.1.3."""

from __future__ import annotations

import numpy as np

from tilecat.sim.alu_types import NUMPY

# Names of element types beside PTX's own.
_ALIASES = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64", "int32": "s32",
    "uint32": "u32", "int64": "s64", "uint64": "u64", "i32": "s32", "i64": "s64",
}  # fmt: skip

REDUCTIONS = {
    "add": np.add, "min": np.fmin, "max": np.fmax, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def typed(array: np.ndarray, kind: str) -> np.ndarray:
    """The array's bits as elements of a type."""
    dtype = NUMPY[_ALIASES.get(kind, kind)]
    return array.view(dtype)
