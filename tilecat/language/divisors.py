"""Divisors whose reciprocal is taken once: a division is then two products and a comparison."""

from __future__ import annotations

from typing import Any

from .. import dtypes
from .scalars import Scalar, binary, named, select

_MOST = 2**32 - 1


class Divisor:
    """`Divisor(b)(t)` is `t // b` of t from 0 up; where it is made, the reciprocal of b is taken.

    ptxas (13.5) divides in 20 instructions that wait for each other. With m = (2^32 - 1) // b the
    upper half of t m is t // b, or one less, for every t below 2^31: m is short of 2^32 / b by
    less than 1 + 1 / b, so the product is short of t / b by less than t / 2^32 (1 + 1 / b) <= 1.

    Example: b = 3, m = 1431655765, t = 3: the upper half is 0, the rest is 3 >= b, so 1.

    Args:
        b: an s32 scalar from 1 up (a smaller one, of tasks that nobody has, gives any number), or
            an int, whose quotients are ordinary ones.
    """

    def __init__(self, b: Any):
        self.b = b
        self._reciprocal = None
        if isinstance(b, Scalar):
            self._reciprocal = named(binary("div", _MOST, b.to(dtypes.u32)), "reciprocal")

    def __call__(self, t: Any) -> Any:
        """`t // b`, a scalar, or an int of two ints."""
        if not isinstance(t, Scalar) or self._reciprocal is None:
            return _by_number(t, self.b)
        low = binary("mulhi", t.to(dtypes.u32), self._reciprocal).to(dtypes.s32)
        return low + select(t - low * self.b >= self.b, 1, 0)


def _by_number(t: Any, b: Any) -> Any:
    """Of t from 0 up a power of two is one shift."""
    power = isinstance(b, int) and b > 0 and b & (b - 1) == 0
    return binary("shr", t, b.bit_length() - 1) if power else binary("div", t, b)
