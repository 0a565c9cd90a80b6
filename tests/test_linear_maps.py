"""Linear maps over GF(2): evaluation, composition and inverse, on random maps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as hs

from tilecat.errors import LayoutError
from tilecat.layouts import LinearMap


@hs.composite
def maps(draw, in_bits=None, out_bits=None):
    """A random map."""
    rows = draw(hs.integers(1, 10)) if in_bits is None else in_bits
    bits = draw(hs.integers(1, 10)) if out_bits is None else out_bits
    columns = draw(hs.lists(hs.integers(0, 2**bits - 1), min_size=rows, max_size=rows))
    return LinearMap(rows, bits, tuple(columns))


@hs.composite
def invertible_maps(draw):
    """A random invertible map: additions of one bit's image to another's, and swaps."""
    bits = draw(hs.integers(1, 12))
    columns = [1 << b for b in range(bits)]
    pairs = hs.tuples(hs.integers(0, bits - 1), hs.integers(0, bits - 1), hs.booleans())
    for a, b, swap in draw(hs.lists(pairs, max_size=40)):
        if swap:
            columns[a], columns[b] = columns[b], columns[a]
        elif a != b:
            columns[a] ^= columns[b]
    return LinearMap(bits, bits, tuple(columns))


@given(maps())
def test_map_is_the_xor_of_its_columns(f: LinearMap):
    x = np.arange(1 << f.in_bits)
    bits = x[:, None] >> np.arange(f.in_bits) & 1
    wanted = np.bitwise_xor.reduce(bits * np.array(f.columns), axis=1)
    np.testing.assert_array_equal(f(x), wanted)
    assert [f(int(v)) for v in x[:64]] == wanted[:64].tolist()
    images = len(set(wanted.tolist()))
    assert images == 2**f.rank
    assert f.is_injective == (images == len(x))


@given(hs.data())
def test_compose_is_one_after_the_other(data):
    inner = data.draw(maps())
    outer = data.draw(maps(in_bits=inner.out_bits))
    x = np.arange(1 << inner.in_bits)
    np.testing.assert_array_equal((outer @ inner)(x), outer(inner(x)))
    np.testing.assert_array_equal(outer.compose(inner)(x), outer(inner(x)))


@given(invertible_maps())
def test_inverse_undoes_the_map_on_both_sides(f: LinearMap):
    assert f.inverse() @ f == LinearMap.identity(f.in_bits) == f @ f.inverse()


def test_map_docstring_example_and_repr():
    f = LinearMap(8, 8, (1, 2, 4, 8, 16, 32, 64, 128 ^ 16))
    assert f(0x80) == 0x90
    assert repr(LinearMap(2, 3, (1, 6))) == "LinearMap(2 to 3 bits: 0x1->0x1, 0x2->0x6)"
    assert LinearMap.of(lambda x: x ^ (x >> 3 << 1), 4, 4).columns == (1, 2, 4, 10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearMap(2, 2, (1, 1)).inverse(), "LinearMap: singular, rank 1 of 2 bits"),
        (
            lambda: LinearMap(2, 3, (1, 2)).inverse(),
            "LinearMap: inverse needs as many input as output bits, got 2 and 3 (int)",
        ),
        (
            lambda: LinearMap.identity(2) @ LinearMap.identity(3),
            "LinearMap: compose needs inner.out_bits = outer.in_bits, got 3 and 2 (int)",
        ),
        (lambda: LinearMap.identity(2)(4), "LinearMap: x must be in [0, 4), got x from 4 to 4"),
        (
            lambda: LinearMap(1, 1, (2,)),
            "LinearMap: columns must fit out_bits=1, got columns=(2,) (tuple)",
        ),
        (
            lambda: LinearMap.of(lambda x: x * x, 2, 4),
            "LinearMap: the function is not linear over GF(2), f(3)=9, the XOR of its bits' "
            "images is 5",
        ),
    ],
)
def test_map_errors(make, message):
    with pytest.raises(LayoutError) as error:
        make()
    assert error.value.message == message
