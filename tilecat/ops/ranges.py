"""What is known, while text is written, of the values that a scalar can have."""

from __future__ import annotations

import operator
from itertools import product

from ..ir import Value
from .scalar import RANGES, Binary, Operand, WarpgroupIndex, WarpIndex

# Whose extrema over two ranges are at ends of them.
_MONOTONE = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "shl": operator.lshift,
}  # fmt: skip


def span(value: Operand, threads: int) -> tuple[int, int] | None:
    """Least and greatest value of an s32 made of constants and numbers of warps, None of others.

    In a CTA of 128 threads `tc.warp_id() * 16 + 8` is 8 to 56.

    Args:
        value: the scalar, or a Python int.
        threads: those of a CTA.
    """
    if not isinstance(value, Value):
        return (value, value) if isinstance(value, int) else None
    op = value.op
    if isinstance(op, WarpIndex | WarpgroupIndex):
        return 0, (threads - 1) // (32 if isinstance(op, WarpIndex) else 128)
    if not isinstance(op, Binary) or op.name not in _MONOTONE:
        return None
    left, right = span(op.a, threads), span(op.b, threads)
    if left is None or right is None or op.name == "shl" and not 0 <= right[0] <= right[1] < 32:
        return None
    ends = [_MONOTONE[op.name](a, b) for a, b in product(left, right)]
    low, high = RANGES["s32"]
    return (min(ends), max(ends)) if low <= min(ends) and max(ends) <= high else None
