"""Run-time scalars as users write them: operators record ops, Python numbers fold away."""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import gcd
from typing import Any

import numpy as np

from .. import dtypes
from ..builder import add
from ..dtypes import DType
from ..errors import DTypeError, ScopeError
from ..ir import Value
from ..ops.elementwise import MapScalar
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
    common_dtype,
)
from ..tiles import ScalarType


def _divide(a: Any, b: Any) -> Any:
    """As the hardware divides: integers truncate toward zero."""
    if b == 0:
        raise DTypeError(f"//: division by zero, got {a!r} // {b!r}")
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _shift_count(count: int) -> int:
    if not 0 <= count < 32:
        raise DTypeError(f"shift: a count is 0 to 31, got {count}")
    return count


_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divide,
    "rem": lambda a, b: a - _divide(a, b) * b,
    "mulhi": lambda a, b: a * b >> 32,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << _shift_count(b),
    "shr": lambda a, b: a >> _shift_count(b),
}
# name -> the int that leaves the other operand as it is, on the right (and the left)
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "div": 1, "shl": 0, "shr": 0}
_COMMUTES = {"add", "mul", "and", "or", "xor"}
_REFLECTED = {"add": "__radd__", "sub": "__rsub__", "mul": "__rmul__", "div": "__rtruediv__"}
_CONDITIONS = {"and", "or", "xor"}
_OPERATORS = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.divide: operator.truediv,
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
    np.equal: operator.eq,
    np.not_equal: operator.ne,
    np.bitwise_and: operator.and_,
    np.bitwise_or: operator.or_,
    np.bitwise_xor: operator.xor,
}


class TileOperand:
    """Base of tiles and vectors: a scalar leaves arithmetic with them to their own operators."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_options: Any) -> Any:
        """A NumPy number on the left of an operator is a number; NumPy's functions are an error."""
        left = inputs[0]
        number = isinstance(left, np.generic | np.ndarray) and left.ndim == 0
        if number and method == "__call__" and ufunc in _OPERATORS:
            return _OPERATORS[ufunc](left.item(), *inputs[1:])
        raise ScopeError(
            f"np.{ufunc.__name__}: NumPy does not compute with tiles, got {self!r}",
            hint="tilecat's own functions do: tc.exp(x), tc.maximum(a, b), a + b, ...",
        )


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
        if isinstance(value, int) and value.bit_length() > 64:
            raise DTypeError(f"{what}: an integer has at most 64 bits, got {value.bit_length()}")
        return value
    if isinstance(value, np.generic) and isinstance(value.item(), bool | int | float):
        return value.item()  # type: ignore[no-any-return]
    raise DTypeError(
        f"{what}: wanted a run-time scalar or a Python number, "
        f"got {value!r} ({type(value).__name__})"
    )


def named(value: Any, name: str) -> Any:
    """`value`, whose register is called `name` unless it has a name already."""
    if isinstance(value, Scalar) and not value.value.name:
        value.value.name = name
    return value


def binary(name: str, a: Any, b: Any) -> Any:
    """`a OP b`: folded when both are numbers or one is neutral, recorded otherwise."""
    x, y = operand_of(a, name), operand_of(b, name)
    if not isinstance(x, Value) and not isinstance(y, Value):
        return _FOLD[name](x, y)
    if not isinstance(x, Value) and name in _COMMUTES:
        x, y = y, x
    if isinstance(x, Value) and not isinstance(y, Value):
        if isinstance(y, bool) and name in _CONDITIONS:
            return _with_bool(name, x, y)
        if (folded := _with_number(name, x, y)) is not None:
            return folded
    return Scalar(add(Binary(name, x, y)).result)


def _with_bool(name: str, x: Value, y: bool) -> Any:
    """`p OP True` and `p OP False` need no instruction, or a negation."""
    common_dtype(name, x, y)
    if name == "xor":
        return Scalar(add(Not(x)).result) if y else Scalar(x)
    return y if y == (name == "or") else Scalar(x)


def _with_number(name: str, x: Value, y: int | float) -> Any:
    """`x + 0`, `x * 1`, `x * 2**n` and their like, of integers; None: nothing to gain.

    Floats keep every operation: x + 0.0 is not x where x is -0.0.
    """
    if common_dtype(name, x, y).is_float:
        return Scalar(x) if name in ("mul", "div") and y == 1 else None
    if name in ("div", "rem") and y == 0:
        raise DTypeError(f"{'//' if name == 'div' else '%'}: division by zero, got {y!r}")
    if name in ("shl", "shr"):
        _shift_count(int(y))
    if _NEUTRAL.get(name) == y:
        return Scalar(x)
    if y > 1 and int(y) & (int(y) - 1) == 0:
        return _with_power_of_two(name, x, int(y))
    return None


def _with_power_of_two(name: str, x: Value, y: int) -> Any:
    """`x * y`, `x / y`, `x % y` by shifts: ptxas (13.5) divides by any number in 20 instructions.

    A negative dividend goes up by y - 1 first: the shift rounds down, division toward zero.
    """
    log, dtype = y.bit_length() - 1, common_dtype(name, x, y)
    if name == "mul":
        return Scalar(add(Binary("shl", x, log)).result)
    if name == "rem" and dtype == dtypes.u32:
        return Scalar(add(Binary("and", x, y - 1)).result)
    if name != "div" or dtype not in (dtypes.s32, dtypes.u32):
        return None
    if dtype == dtypes.s32:
        sign = add(Binary("shr", x, 31)).result
        x = add(Binary("add", x, add(Binary("and", sign, y - 1)).result)).result
    return Scalar(add(Binary("shr", x, log)).result)


def divisor(value: Any) -> int:
    """A number that divides a coordinate, as far as tracing knows; 0, which all divide, of 0."""
    found = value.value if isinstance(value, Scalar) else value
    if isinstance(found, int):
        return abs(found)
    if not isinstance(found, Value) or not isinstance(found.op, Binary):
        return 1
    a, b = divisor(found.op.a), found.op.b
    match found.op.name:
        case "mul":
            return a * divisor(b)
        case "shl" if isinstance(b, int):
            return a << b
        case "add" | "sub" | "rem" | "min" | "max":
            return gcd(a, divisor(b))
    return 1


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
        if not isinstance(dtype, DType):
            raise DTypeError(f"to: a dtype, got {dtype!r} ({type(dtype).__name__})")
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

    def __float__(self) -> float:
        """An error: the value is not known while tracing."""
        raise ScopeError(
            f"float: a run-time value is not a Python number, got {self!r}",
            hint="use it in tilecat's own arithmetic; tc.exp2, tc.log2 and the like take scalars",
        )

    __int__ = __index__
    __hash__ = None  # type: ignore[assignment]

    # NumPy numbers on the left leave the operation to the scalar.
    __array_ufunc__ = None

    def _with(self, name: str, other: Any, *, swapped: bool = False) -> Any:
        if isinstance(other, TileOperand) and hasattr(other, _REFLECTED.get(name, "")):
            return NotImplemented
        return binary(name, other, self) if swapped else binary(name, self, other)

    def __add__(self, other: Any) -> Any:
        return self._with("add", other)

    def __radd__(self, other: Any) -> Any:
        return self._with("add", other, swapped=True)

    def __sub__(self, other: Any) -> Any:
        return self._with("sub", other)

    def __rsub__(self, other: Any) -> Any:
        return self._with("sub", other, swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self._with("mul", other)

    def __rmul__(self, other: Any) -> Any:
        return self._with("mul", other, swapped=True)

    def __floordiv__(self, other: Any) -> Any:
        self._whole("//")
        return self._with("div", other)

    def __rfloordiv__(self, other: Any) -> Any:
        self._whole("//")
        return self._with("div", other, swapped=True)

    def __truediv__(self, other: Any) -> Any:
        self._floating()
        return self._with("div", other)

    def __rtruediv__(self, other: Any) -> Any:
        self._floating()
        return self._with("div", other, swapped=True)

    def __mod__(self, other: Any) -> Any:
        return self._with("rem", other)

    def __rmod__(self, other: Any) -> Any:
        return self._with("rem", other, swapped=True)

    def __and__(self, other: Any) -> Any:
        return self._with("and", other)

    def __rand__(self, other: Any) -> Any:
        return self._with("and", other, swapped=True)

    def __or__(self, other: Any) -> Any:
        return self._with("or", other)

    def __ror__(self, other: Any) -> Any:
        return self._with("or", other, swapped=True)

    def __xor__(self, other: Any) -> Any:
        return self._with("xor", other)

    def __rxor__(self, other: Any) -> Any:
        return self._with("xor", other, swapped=True)

    def __lshift__(self, other: Any) -> Any:
        return self._with("shl", other)

    def __rshift__(self, other: Any) -> Any:
        return self._with("shr", other)

    def _whole(self, name: str) -> None:
        if self.dtype.is_float:
            raise DTypeError(f"{name}: is for integer scalars, got {self!r}", hint="a / b")

    def _floating(self) -> None:
        if not self.dtype.is_float:
            raise DTypeError(
                f"/: integer scalars divide with //, got {self!r}",
                hint="a // b, or a.to(tc.f32) / b",
            )

    def __neg__(self) -> Any:
        if self.dtype.is_float:
            return map_scalars("neg", self)
        return binary("sub", 0, self)

    def __abs__(self) -> Any:
        return map_scalars("abs", self)

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


def map_scalars(name: str, *values: Any) -> Scalar:
    """An element-wise function of run-time scalars, on each thread's own values."""
    return Scalar(add(MapScalar(name, tuple(operand_of(v, name) for v in values))).result)


def var(initial: Any, dtype: DType | None = None, *, name: str = "") -> Var:
    """A mutable run-time scalar with a first value.

    Args:
        initial: number or scalar.
        dtype: s32 for an int, f32 for a float, unless given: f32, s32 or u32.
        name: of its register; the name the line assigns to if empty.
    """
    start = operand_of(initial, "var")
    if dtype is None:
        if isinstance(start, Value):
            assert isinstance(start.type, ScalarType), "a scalar"
            dtype = start.type.dtype
        else:
            dtype = dtypes.f32 if isinstance(start, float) else dtypes.s32
    if dtype not in (dtypes.f32, dtypes.s32, dtypes.u32):
        raise DTypeError(f"var: holds f32, s32 or u32, got {dtype}")
    return named(Var(add(NewVar(start, dtype)).result), name)  # type: ignore[no-any-return]


def select(condition: Any, a: Any, b: Any) -> Any:
    """`a if condition else b`, at run time."""
    p = operand_of(condition, "select")
    if isinstance(p, bool):
        return a if p else b
    if not isinstance(p, Value):
        raise DTypeError(
            f"select: the first operand is a condition, got {condition!r}",
            hint="tc.select(a < b, a, b)",
        )
    return Scalar(add(Select(p, operand_of(a, "select"), operand_of(b, "select"))).result)


def minimum_of(a: Any, b: Any) -> Any:
    """The smaller of two scalars."""
    return binary("min", a, b)


def cdiv(a: Any, b: Any) -> Any:
    """`ceil(a / b)` for non-negative integers."""
    base = a.value.name if isinstance(a, Scalar) else ""
    most = binary("add", a, binary("sub", b, 1))
    if isinstance(most, Scalar) and isinstance(b, int) and b > 0 and b & (b - 1) == 0:
        return named(binary("shr", most, b.bit_length() - 1), f"{base}_blocks")
    return named(binary("div", most, b), f"{base}_blocks")
