"""Which transform computes a convolution of a length."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import LayoutError

# Rows and columns of a sequence by its length; longer ones are made of the last (`outer` of them).
SHAPES = {1024: (32, 32), 2048: (32, 64), 4096: (64, 64)}
LARGEST = max(SHAPES)
OUTER = (2, 4, 8)
LENGTHS = (*SHAPES, *(LARGEST * count for count in OUTER))
LONGEST = LENGTHS[-1]


@dataclass(frozen=True)
class Plan:
    """A transform.

    Args:
        length: of the transform.
        weighted: whether it is causal by weights; else circular.
        period: 0, or the length of a circular convolution within a longer transform.
    """

    length: int
    weighted: bool
    period: int = 0

    @property
    def outer(self) -> int:
        """Transforms of `LARGEST` that it is made of."""
        return max(self.length // LARGEST, 1)

    @property
    def rows(self) -> int:
        """Of a sequence as a matrix."""
        return SHAPES[self.length // self.outer][0]

    @property
    def cols(self) -> int:
        """Its columns."""
        return SHAPES[self.length // self.outer][1]

    @property
    def in_registers(self) -> bool:
        """Whether spectra lie as registers hold them: shared memory has no room for them."""
        return self.outer > OUTER[0]

    def whole(self, length: int) -> int:
        """Elements of whole rows."""
        return -(-length // self.cols) * self.cols


def plan_of(name: str, length: int, causal: bool) -> Plan:
    """The plan for sequences of a length.

    Raises:
        LayoutError: there is none.
    """
    if causal:
        return Plan(next(size for size in LENGTHS if size >= length), True)
    if length in LENGTHS:
        return Plan(length, False)
    if 2 * length - 1 > LONGEST:
        raise LayoutError(
            f"{name}: circular lengths are at most {LONGEST // 2}, or a plan's: "
            f"{', '.join(map(str, LENGTHS))}, got L={length}",
            hint=f"causal=True, or L={min(LENGTHS, key=lambda size: abs(size - length))}",
        )
    return Plan(next(size for size in LENGTHS if size >= 2 * length - 1), False, length)
