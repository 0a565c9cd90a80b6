"""Run-time scalars as users write them: operators record ops, Python numbers fold away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import dtypes
from ..builder import add
from ..dtypes import DType
from ..errors import DTypeError, ScopeError
from ..ir import Value
from ..ops.scalar import (
    Binary,
    Compare,
    ConvertScalar,
    GetVar,
    NewVar,
    Not,
    Operand,
    Select,
    SetVar,
    Unary,
)
from ..tiles import ScalarType

ScalarLike = "Scalar | int | float"

_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a // b if isinstance(a, int) and isinstance(b, int) else a / b,
    "rem": lambda a, b: a % b,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
}
# name -> the number that leaves the other operand as it is, on the right (and the left)
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "div": 1, "shl": 0, "shr": 0}
_COMMUTES = {"add", "mul"}


def operand_of(value: Any, what: str = "operand") -> Operand:
    """The IR operand behind a user's scalar or number.

    Raises:
        DTypeError: anything else.
    """
    if isinstance(value, Var):
        return value.get().value
    if isinstance(value, Scalar):
        return value.value
    if isinstance(value, bool | int | float):
        return value
    raise DTypeError(
        f"{what}: wanted a run-time scalar or a Python number, "
        f"got {value!r} ({type(value).__name__})"
    )


def binary(name: str, a: Any, b: Any) -> Any:
    """`a OP b`: folded when both are numbers or one is neutral, recorded otherwise."""
    x, y = operand_of(a, name), operand_of(b, name)
    if not isinstance(x, Value) and not isinstance(y, Value):
        return _FOLD[name](x, y)
    if not isinstance(y, Value) and _NEUTRAL.get(name) == y:
        return a.get() if isinstance(a, Var) else a
    if not isinstance(x, Value) and name in _COMMUTES and _NEUTRAL[name] == x:
        return b.get() if isinstance(b, Var) else b
    if name == "mul" and (strength := _as_shift(x, y)) is not None:
        return Scalar(add(Binary("shl", *strength)).result)
    return Scalar(add(Binary(name, x, y)).result)


def _as_shift(x: Operand, y: Operand) -> tuple[Operand, int] | None:
    if not isinstance(x, Value):
        x, y = y, x
    assert isinstance(x, Value) and isinstance(x.type, ScalarType), "one operand is run-time"
    whole = isinstance(y, int) and not isinstance(y, bool) and y > 0 and y & (y - 1) == 0
    if whole and not x.type.dtype.is_float:
        return x, int(y).bit_length() - 1  # type: ignore[arg-type]
    return None


def compare(name: str, a: Any, b: Any) -> Any:
    """`a CMP b`."""
    x, y = operand_of(a, name), operand_of(b, name)
    if not isinstance(x, Value) and not isinstance(y, Value):
        tests = {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}
        return tests[name]
    return Scalar(add(Compare(name, x, y)).result)


class Scalar:
    """A run-time scalar: s32 for indices, f32, or a predicate from a comparison.

    `//` and `%` truncate toward zero, as the hardware's do.
    """

    __slots__ = ("value",)

    def __init__(self, value: Value):
        self.value = value

    @property
    def dtype(self) -> DType:
        """Its dtype."""
        assert isinstance(self.value.type, ScalarType), "a scalar"
        return self.value.type.dtype

    def __repr__(self) -> str:
        """`Scalar(s32)`."""
        return f"Scalar({self.dtype.name})"

    def to(self, dtype: DType) -> Scalar:
        """Converts: s32 or u32 to f32 (nearest even), f32 to an integer (truncates)."""
        if dtype == self.dtype:
            return self
        source = operand_of(self)
        assert isinstance(source, Value), "a run-time scalar"
        return Scalar(add(ConvertScalar(source, dtype)).result)

    def __bool__(self) -> bool:
        """An error: Python cannot branch on a value known only at run time."""
        raise ScopeError(
            f"if: a run-time value cannot decide a Python branch, got {self!r}",
            hint="write `with tc.when(condition):`, or tc.select(condition, a, b)",
        )

    def __index__(self) -> int:
        """An error: the value is not known while tracing."""
        raise ScopeError(
            f"index: a run-time value is not a Python int, got {self!r}",
            hint="loop with tc.range(n); tile extents come from keyword parameters",
        )

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Any) -> Any:
        return binary("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return binary("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return binary("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return binary("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return _tile_or(other, "__rmul__", self) or binary("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return binary("mul", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return binary("div", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return binary("div", other, self)

    def __truediv__(self, other: Any) -> Any:
        if not self.dtype.is_float:
            raise DTypeError("/: integer scalars divide with //", hint="a // b, or a.to(tc.f32) / b")
        return binary("div", self, other)

    def __mod__(self, other: Any) -> Any:
        return binary("rem", self, other)

    def __and__(self, other: Any) -> Any:
        return binary("and", self, other)

    def __or__(self, other: Any) -> Any:
        return binary("or", self, other)

    def __xor__(self, other: Any) -> Any:
        return binary("xor", self, other)

    def __lshift__(self, other: Any) -> Any:
        return binary("shl", self, other)

    def __rshift__(self, other: Any) -> Any:
        return binary("shr", self, other)

    def __neg__(self) -> Any:
        if self.dtype.is_float:
            return _unary("neg", self)
        return binary("sub", 0, self)

    def __invert__(self) -> Any:
        source = operand_of(self)
        assert isinstance(source, Value), "a run-time scalar"
        return Scalar(add(Not(source)).result)

    def __eq__(self, other: Any) -> Any:
        return compare("eq", self, other)

    def __ne__(self, other: Any) -> Any:
        return compare("ne", self, other)

    def __lt__(self, other: Any) -> Any:
        return compare("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return compare("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return compare("gt", self, other)

    def __ge__(self, other: Any) -> Any:
        return compare("ge", self, other)


def _tile_or(other: Any, method: str, scalar: Scalar) -> Any:
    if isinstance(other, Scalar | int | float):
        return None
    return getattr(other, method)(scalar)


class Var(Scalar):
    """A mutable run-time scalar: reads give its value now, `set` and `+=` write it."""

    __slots__ = ()

    def get(self) -> Scalar:
        """Its value now, unchanged by later writes."""
        return Scalar(add(GetVar(self.value)).result)

    def set(self, value: Any) -> None:
        """Writes it."""
        add(SetVar(self.value, operand_of(value, "var.set")))

    def __iadd__(self, other: Any) -> Var:
        self.set(self + other)
        return self

    def __isub__(self, other: Any) -> Var:
        self.set(self - other)
        return self

    def __imul__(self, other: Any) -> Var:
        self.set(self * other)
        return self

    def __ixor__(self, other: Any) -> Var:
        self.set(self ^ other)
        return self


def _unary(name: str, value: Any) -> Scalar:
    return Scalar(add(Unary(name, operand_of(value, name))).result)


def unary(name: str, value: Scalar) -> Scalar:
    """exp2, log2, rcp, neg or abs of an f32 scalar."""
    return _unary(name, value)


def var(initial: Any, dtype: DType | None = None) -> Var:
    """A mutable run-time scalar with a first value.

    Args:
        initial: number or scalar.
        dtype: s32 for an int, f32 for a float, unless given.
    """
    start = operand_of(initial, "var")
    if dtype is None:
        if isinstance(start, Value):
            assert isinstance(start.type, ScalarType), "a scalar"
            dtype = start.type.dtype
        else:
            dtype = dtypes.f32 if isinstance(start, float) else dtypes.s32
    return Var(add(NewVar(start, dtype)).result)


def select(condition: Any, a: Any, b: Any) -> Any:
    """`a if condition else b`, at run time."""
    if isinstance(condition, bool):
        return a if condition else b
    p = operand_of(condition, "select")
    assert isinstance(p, Value), "a run-time condition"
    return Scalar(add(Select(p, operand_of(a, "select"), operand_of(b, "select"))).result)


def minimum_of(a: Any, b: Any) -> Any:
    """The smaller of two scalars."""
    return binary("min", a, b)


def cdiv(a: Any, b: Any) -> Any:
    """`ceil(a / b)` for non-negative integers."""
    return binary("div", binary("add", a, binary("sub", b, 1)), b)
