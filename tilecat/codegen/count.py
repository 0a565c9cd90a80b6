"""A number of tasks as the host counts it, from the extents and numbers given to a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ScopeError
from ..ir import Value
from ..language.scalars import binary
from ..ops.scalar import Binary, Extent, Operand, ScalarArgument


@dataclass(frozen=True)
class GivenExtent:
    """The extent of axis `dim` of tensor argument `arg`."""

    arg: int
    dim: int


@dataclass(frozen=True)
class GivenNumber:
    """Scalar argument `arg`."""

    arg: int


@dataclass(frozen=True)
class Term:
    """`a OP b` of s32: the op's name in `ops.scalar.BINARY`."""

    name: str
    a: Count
    b: Count


Count = int | GivenExtent | GivenNumber | Term


def count_of(value: Operand, what: str) -> Count:
    """The expression that a traced s32 was made by.

    Args:
        value: an s32, or an int.
        what: it is, for the error.

    Raises:
        ScopeError: something else than arithmetic of extents, scalar arguments and numbers.
    """
    if not isinstance(value, Value):
        return int(value)
    match value.op:
        case Extent(arg=arg, dim=dim):
            return GivenExtent(arg.index, dim)
        case ScalarArgument(arg=arg):
            return GivenNumber(arg.index)
        case Binary(name=name, a=a, b=b):
            return Term(name, count_of(a, what), count_of(b, what))
    raise ScopeError(
        f"{what}: the host counts the tasks, by arithmetic of extents and scalar arguments, got "
        f"{value!r}, which the device computes",
        hint="persistent=True, whose grid depends on no number of tasks",
    )


def counted(count: Count, args: Sequence[Any]) -> int:
    """The number, for these arguments.

    Args:
        count: the expression.
        args: one entry a kernel argument: an ArrayView, or a number.
    """
    match count:
        case GivenExtent(arg, dim):
            return int(args[arg].shape[dim])
        case GivenNumber(arg):
            return int(args[arg])
        case Term(name, a, b):
            return int(binary(name, counted(a, args), counted(b, args)))
    return count
