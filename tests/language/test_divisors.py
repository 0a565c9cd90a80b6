"""Divisors with a reciprocal: exact for every dividend from 0 up, as scalars and as ints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from language.bodies import N, ops, run
from tilecat import select
from tilecat.language.divisors import Divisor
from tilecat.ops.scalar import Binary

LARGEST = 2**31 - 1
DIVISORS = (1, 2, 3, 5, 7, 8, 64, 641, 4095, 65535, 65537, 2**30 - 1, 2**30, LARGEST - 1, LARGEST)


def dividends(b: int) -> list[int]:
    """Beside multiples of b, small and large, and at both ends."""
    last = LARGEST // b * b
    some = {0, 1, b - 1, b, b + 1, 2 * b - 1, 2 * b, last - 1, last, last + 1, LARGEST - 1, LARGEST}
    return sorted(t for t in some if 0 <= t <= LARGEST)


@pytest.mark.parametrize("b", DIVISORS)
def test_quotients_are_exact_at_run_time(b: int):
    def wrong(k: Any) -> Any:
        divide, zero, count = Divisor(k.n + (b - N)), k.n - N, 0
        for t in dividends(b):
            count = count + select(divide(zero + t) == t // b, 0, 1)
        return count

    np.testing.assert_array_equal(run(wrong), 0)


def test_the_reciprocal_is_taken_once_and_nothing_else_is_divided():
    def body(k: Any) -> Any:
        divide = Divisor(k.n)
        return divide(k.n + 1) + divide(k.n + 2) + divide(k.n + 3)

    names = [op.name for op in ops(body, Binary)]
    assert names.count("div") == 1 and names.count("mulhi") == 3


@pytest.mark.parametrize("b", [1, 6, 8])
def test_by_an_int_as_ints_are_divided(b: int):
    assert [Divisor(b)(t) for t in range(20)] == [t // b for t in range(20)]
    np.testing.assert_array_equal(run(lambda k: Divisor(b)(k.n + 30)), (N + 30) // b)
