"""Linear maps over GF(2): the bits of an index to the bits of an offset, by XOR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import xor
from typing import Any

import numpy as np

from ..errors import LayoutError


@dataclass(frozen=True, repr=False)
class LinearMap:
    """y = XOR of columns[b] over the set bits b of x.

    Example: the 32-byte swizzle on a 256-byte pattern flips bit 4 where bit 7 is set:
    `LinearMap(8, 8, (1, 2, 4, 8, 16, 32, 64, 128 ^ 16))`, which takes 0x80 to 0x90.

    Args:
        in_bits: bits of x.
        out_bits: bits of y.
        columns: image of each bit of x, lowest first.
    """

    in_bits: int
    out_bits: int
    columns: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the columns."""
        if len(self.columns) != self.in_bits:
            raise LayoutError(
                f"LinearMap: one column an input bit, got in_bits={self.in_bits} "
                f"(int), {len(self.columns)} columns"
            )
        if any(column >> self.out_bits for column in self.columns):
            raise LayoutError(
                f"LinearMap: columns must fit out_bits={self.out_bits}, "
                f"got columns={self.columns} (tuple)"
            )

    @classmethod
    def identity(cls, bits: int) -> LinearMap:
        """The map y = x."""
        return cls(bits, bits, tuple(1 << bit for bit in range(bits)))

    @classmethod
    def of(cls, function: Callable[[int], int], in_bits: int, out_bits: int) -> LinearMap:
        """The linear map that agrees with `function`, checked on every x.

        Raises:
            LayoutError: `function` is not linear.
        """
        result = cls(in_bits, out_bits, tuple(int(function(1 << bit)) for bit in range(in_bits)))
        for x in range(1 << in_bits):
            if result(x) != function(x):
                raise LayoutError(
                    f"LinearMap: the function is not linear over GF(2), f({x})="
                    f"{function(x)}, the XOR of its bits' images is {result(x)}"
                )
        return result

    def __call__(self, x: Any) -> Any:
        """The image of x, an int or an integer array."""
        if isinstance(x, int | np.integer):
            self._check_domain(int(x), int(x))
            bits = (column for bit, column in enumerate(self.columns) if x >> bit & 1)
            return reduce(xor, bits, 0)
        x = np.asarray(x)
        if x.size:
            self._check_domain(int(x.min()), int(x.max()))
        y = np.zeros(x.shape, np.int64)
        for bit, column in enumerate(self.columns):
            y ^= (x >> bit & 1) * column
        return y

    def _check_domain(self, low: int, high: int) -> None:
        if low < 0 or high >> self.in_bits:
            raise LayoutError(
                f"LinearMap: x must be in [0, {1 << self.in_bits}), got x from {low} to {high}"
            )

    def compose(self, inner: LinearMap) -> LinearMap:
        """The map from x to self(inner(x)).

        Raises:
            LayoutError: the bits do not match.
        """
        if inner.out_bits != self.in_bits:
            raise LayoutError(
                f"LinearMap: compose needs inner.out_bits = outer.in_bits, "
                f"got {inner.out_bits} and {self.in_bits} (int)"
            )
        columns = tuple(self(column) for column in inner.columns)
        return LinearMap(inner.in_bits, self.out_bits, columns)

    __matmul__ = compose

    @property
    def rank(self) -> int:
        """Dimension of the image: 2**rank different values."""
        return len(_reduced(self.columns))

    @property
    def is_injective(self) -> bool:
        """Whether no two x share a y."""
        return self.rank == self.in_bits

    def inverse(self) -> LinearMap:
        """The map g with g(self(x)) = x, by elimination.

        Raises:
            LayoutError: not square, or singular.
        """
        if self.in_bits != self.out_bits:
            raise LayoutError(
                f"LinearMap: inverse needs as many input as output bits, "
                f"got {self.in_bits} and {self.out_bits} (int)"
            )
        # Each row pairs an image with the input that makes it.
        rows = [(column, 1 << bit) for bit, column in enumerate(self.columns)]
        for bit in range(self.out_bits):
            pivot = next((i for i in range(bit, len(rows)) if rows[i][0] >> bit & 1), None)
            if pivot is None:
                raise LayoutError(f"LinearMap: singular, rank {self.rank} of {self.in_bits} bits")
            rows[bit], rows[pivot] = rows[pivot], rows[bit]
            image, source = rows[bit]
            rows = [
                (a ^ image, s ^ source) if i != bit and a >> bit & 1 else (a, s)
                for i, (a, s) in enumerate(rows)
            ]
        return LinearMap(self.out_bits, self.in_bits, tuple(source for _, source in rows))

    def __repr__(self) -> str:
        """`LinearMap(1->0x1, 2->0x12)`: the image of each input bit."""
        images = ", ".join(f"{1 << bit:#x}->{column:#x}" for bit, column in enumerate(self.columns))
        return f"LinearMap({self.in_bits} to {self.out_bits} bits: {images})"


def _reduced(vectors: tuple[int, ...]) -> tuple[int, ...]:
    """A basis of the span of `vectors`."""
    basis: list[int] = []
    for vector in vectors:
        for known in basis:
            vector = min(vector, vector ^ known)
        if vector:
            basis.append(vector)
    return tuple(basis)
