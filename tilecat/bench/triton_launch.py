"""A Triton kernel with two tensors and an int, whose launch costs what Triton's launches cost."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def _copy(x, y, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    tl.store(y + offsets, tl.load(x + offsets, mask=inside), mask=inside)


def copy(x: Any, y: Any) -> None:
    """Y = x for contiguous tensors of one size; asynchronous."""
    _copy[(1,)](x, y, x.numel(), BLOCK=1024)
