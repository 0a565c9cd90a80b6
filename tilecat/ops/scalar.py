"""Scalar arithmetic, special registers, extents of arguments, mutable scalars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import dtypes
from ..errors import DTypeError
from ..ir import Access, Effect, Op, ScalarArg, TensorArg, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import ScalarType, TileType

Operand = Value | int | float | bool

# name -> PTX opcode by dtype. Integer division truncates, as PTX's does.
BINARY: dict[str, dict[str, str]] = {
    "add": {"s32": "add.s32", "u32": "add.u32", "f32": "add.rn.f32", "s64": "add.s64"},
    "sub": {"s32": "sub.s32", "u32": "sub.u32", "f32": "sub.rn.f32", "s64": "sub.s64"},
    "mul": {"s32": "mul.lo.s32", "u32": "mul.lo.u32", "f32": "mul.rn.f32", "s64": "mul.lo.s64"},
    "div": {"s32": "div.s32", "u32": "div.u32", "f32": "div.rn.f32"},
    "rem": {"s32": "rem.s32", "u32": "rem.u32"},
    "mulhi": {"u32": "mul.hi.u32"},
    "min": {"s32": "min.s32", "u32": "min.u32", "f32": "min.f32"},
    "max": {"s32": "max.s32", "u32": "max.u32", "f32": "max.f32"},
    "and": {"s32": "and.b32", "u32": "and.b32", "pred": "and.pred"},
    "or": {"s32": "or.b32", "u32": "or.b32", "pred": "or.pred"},
    "xor": {"s32": "xor.b32", "u32": "xor.b32", "pred": "xor.pred"},
    "shl": {"s32": "shl.b32", "u32": "shl.b32"},
    "shr": {"s32": "shr.s32", "u32": "shr.u32"},
}
# Numbers a 32-bit scalar can hold; u32 takes negative ones as their bits.
RANGES = {"s32": (-(2**31), 2**31 - 1), "u32": (-(2**31), 2**32 - 1)}


def scalar_dtype(value: Operand) -> dtypes.DType | None:
    """The dtype of a scalar operand; None for a Python number, which takes the other's."""
    if isinstance(value, Value):
        assert isinstance(value.type, ScalarType), f"not a scalar: {value!r}"
        return value.type.dtype
    return None


def common_dtype(name: str, *values: Operand) -> dtypes.DType:
    """The one dtype of several scalar operands.

    Raises:
        DTypeError: two run-time operands differ, or a float meets an integer.
    """
    found = [d for d in map(scalar_dtype, values) if d is not None]
    if any(d != found[0] for d in found):
        raise DTypeError(
            f"{name}: scalar operands have one dtype, got "
            + " and ".join(f"{d.name}" for d in found),
            hint="convert one with .to(dtype)",
        )
    for value in values:
        if not isinstance(value, Value):
            _check_number(name, value, found[0])
    return found[0]


def _check_number(name: str, value: int | float, dtype: dtypes.DType) -> None:
    """A Python number that goes with a run-time scalar must be one of its dtype."""
    if dtype == dtypes.pred:
        if not isinstance(value, bool):
            raise DTypeError(
                f"{name}: a condition goes with a condition or a bool, got {value!r}",
                hint="compare first: x != 0",
            )
        return
    if isinstance(value, float) and not dtype.is_float:
        raise DTypeError(
            f"{name}: an integer scalar takes an int, got {value!r} with {dtype.name}",
            hint="convert the scalar with .to(tc.f32)",
        )
    if dtype.name in RANGES and not RANGES[dtype.name][0] <= value <= RANGES[dtype.name][1]:
        low, high = RANGES[dtype.name]
        raise DTypeError(f"{name}: an {dtype.name} is {low} to {high}, got {value}")


def require_s32(name: str, *values: Operand) -> None:
    """Indices, counts and coordinates are s32 scalars or ints.

    Raises:
        DTypeError: anything else.
    """
    for value in values:
        if isinstance(value, Value):
            if value.type != ScalarType(dtypes.s32):
                raise DTypeError(
                    f"{name}: wants an s32 scalar or an int, got {value.type}",
                    hint="convert it: x.to(tc.s32)",
                )
        elif isinstance(value, bool) or not isinstance(value, int):
            raise DTypeError(
                f"{name}: wants an s32 scalar or an int, got {value!r} ({type(value).__name__})"
            )
        else:
            _check_number(name, value, dtypes.s32)


@dataclass(eq=False)
class SpecialRegister(Op):
    """A special register: `%tid.x`, `%ctaid.x`, `%nctaid.x` (PTX ISA section 10)."""

    pure: ClassVar[bool] = True
    name: str = attribute()

    def infer(self) -> tuple[TileType, ...]:
        """One s32."""
        return (ScalarType(dtypes.s32),)

    @property
    def name_hint(self) -> str:
        """Without the percent sign and the axis: `ctaid`."""
        return f"{self.name.strip('%').partition('.')[0]}_x"

    def emit(self, w: Any) -> None:
        """`mov.u32 r, %name;`."""
        numbered = self.name == "%tid.x" and w.kernel.facts.get("paired_threads")
        w.line(ptx.alu("mov.u32", w.define(self.result), w.tid() if numbered else self.name))


@dataclass(eq=False)
class WarpgroupIndex(Op):
    """Number of the warpgroup in its CTA.

    Goes through a shuffle from lane 0, which tells ptxas (13.5) that the number, and every matrix
    descriptor made from it, is uniform in a warp: the GEMM's main loop then moves nothing from
    per-thread to uniform registers (0 R2UR instead of 8).
    """

    pure: ClassVar[bool] = True

    def infer(self) -> tuple[TileType, ...]:
        """One s32."""
        return (ScalarType(dtypes.s32),)

    def emit(self, w: Any) -> None:
        """Lane 0's `%tid.x >> 7`."""
        register = w.define(self.result)
        w.line(ptx.shfl_idx(register, w.warpgroup(), 0))


@dataclass(eq=False)
class WarpIndex(Op):
    """Number of the warp in its CTA, uniform in the warp (see `WarpgroupIndex`)."""

    pure: ClassVar[bool] = True

    def infer(self) -> tuple[TileType, ...]:
        """One s32."""
        return (ScalarType(dtypes.s32),)

    def emit(self, w: Any) -> None:
        """Lane 0's `%tid.x >> 5`."""
        register = w.define(self.result)
        w.line(ptx.alu("shr.u32", register, w.tid(), 5))
        w.line(ptx.shfl_idx(register, register, 0))


@dataclass(eq=False)
class Extent(Op):
    """The run-time extent of an axis of a tensor argument, in elements."""

    pure: ClassVar[bool] = True
    arg: TensorArg = attribute()
    dim: int = attribute()

    def infer(self) -> tuple[TileType, ...]:
        """One s32."""
        return (ScalarType(dtypes.s32),)

    @property
    def name_hint(self) -> str:
        """Argument and axis: `A_M`."""
        return f"{self.arg.name}_{self.arg.type.dims[self.dim]}"

    def emit(self, w: Any) -> None:
        """`ld.param.u32`, once a kernel."""
        w.alias(self.result, w.extent(self.arg, self.dim))


@dataclass(eq=False)
class ScalarArgument(Op):
    """The value of a scalar argument."""

    pure: ClassVar[bool] = True
    arg: ScalarArg = attribute()

    def infer(self) -> tuple[TileType, ...]:
        """One scalar of the argument's dtype."""
        return (ScalarType(dtypes.by_name(self.arg.dtype)),)

    @property
    def name_hint(self) -> str:
        """The argument's name."""
        return self.arg.name

    def emit(self, w: Any) -> None:
        """`ld.param`, once a kernel."""
        w.alias(self.result, w.scalar_argument(self.arg))


@dataclass(eq=False)
class Binary(Op):
    """`d = a OP b` on scalars."""

    verb: ClassVar[str] = "{name}"
    pure: ClassVar[bool] = True
    name: str = attribute()
    a: Operand = operand()
    b: Operand = operand()

    def infer(self) -> tuple[TileType, ...]:
        """The operands' dtype; DTypeError where the operation has none."""
        dtype = common_dtype(self.name, self.a, self.b)
        if dtype.name not in BINARY[self.name]:
            raise DTypeError(
                f"{self.name}: not defined on {dtype.name} scalars, "
                f"wanted {' or '.join(BINARY[self.name])}"
            )
        return (ScalarType(dtype),)

    def emit(self, w: Any) -> None:
        """One instruction."""
        dtype = self.result.type.dtype.name  # type: ignore[union-attr]
        a, b = w.src(self.a, dtype), w.src(self.b, dtype)
        w.line(ptx.alu(BINARY[self.name][dtype], w.define(self.result), a, b))


@dataclass(eq=False)
class Compare(Op):
    """`p = a CMP b` on scalars."""

    verb: ClassVar[str] = "{name}"
    pure: ClassVar[bool] = True
    name: str = attribute()
    a: Operand = operand()
    b: Operand = operand()

    def infer(self) -> tuple[TileType, ...]:
        """One predicate; conditions themselves are not compared."""
        dtype = common_dtype(self.name, self.a, self.b)
        if dtype == dtypes.pred:
            raise DTypeError(
                f"{self.name}: conditions are not compared, got two of {dtype.name}",
                hint="combine them with &, |, ^ and ~",
            )
        return (ScalarType(dtypes.pred),)

    def emit(self, w: Any) -> None:
        """`setp`."""
        dtype = common_dtype(self.name, self.a, self.b).name
        a, b = w.src(self.a, dtype), w.src(self.b, dtype)
        w.line(ptx.alu(f"setp.{self.name}.{dtype}", w.define(self.result), a, b))


@dataclass(eq=False)
class Not(Op):
    """`p = !a`."""

    pure: ClassVar[bool] = True
    a: Value = operand()

    def infer(self) -> tuple[TileType, ...]:
        """One predicate; DTypeError on anything else."""
        dtype = common_dtype("~", self.a)
        if dtype != dtypes.pred:
            raise DTypeError(
                f"~: negates a condition, got a scalar of {dtype.name}", hint="x ^ -1 flips bits"
            )
        return (ScalarType(dtypes.pred),)

    def emit(self, w: Any) -> None:
        """`not.pred`."""
        w.line(ptx.alu("not.pred", w.define(self.result), w.src(self.a)))


@dataclass(eq=False)
class Select(Op):
    """`d = a if p else b` on scalars."""

    pure: ClassVar[bool] = True
    p: Value = operand()
    a: Operand = operand()
    b: Operand = operand()

    def infer(self) -> tuple[TileType, ...]:
        """The operands' dtype; s32 for two Python ints, f32 for floats."""
        if common_dtype("select", self.p) != dtypes.pred:
            raise DTypeError(
                f"select: the first operand is a condition, got {self.p!r}",
                hint="tc.select(a < b, a, b)",
            )
        if not isinstance(self.a, Value) and not isinstance(self.b, Value):
            is_float = isinstance(self.a, float) or isinstance(self.b, float)
            return (ScalarType(dtypes.f32 if is_float else dtypes.s32),)
        dtype = common_dtype("select", self.a, self.b)
        if dtype == dtypes.pred:
            raise DTypeError(
                "select: chooses between numbers, got two conditions", hint="(p & a) | (~p & b)"
            )
        return (ScalarType(dtype),)

    def emit(self, w: Any) -> None:
        """`selp`."""
        dtype = self.result.type.dtype.name  # type: ignore[union-attr]
        a, b = w.src(self.a, dtype), w.src(self.b, dtype)
        w.line(ptx.alu(f"selp.{dtype}", w.define(self.result), a, b, w.src(self.p)))


# (from, to) -> PTX opcode
CONVERSIONS = {
    ("s32", "f32"): "cvt.rn.f32.s32",
    ("u32", "f32"): "cvt.rn.f32.u32",
    ("f32", "s32"): "cvt.rzi.s32.f32",
    ("f32", "u32"): "cvt.rzi.u32.f32",
    ("s32", "u32"): "mov.b32",
    ("u32", "s32"): "mov.b32",
}


@dataclass(eq=False)
class ConvertScalar(Op):
    """`d = dtype(a)`: int to float rounds to nearest even, float to int truncates."""

    verb: ClassVar[str] = "to"
    pure: ClassVar[bool] = True
    a: Value = operand()
    dtype: dtypes.DType = attribute()

    def infer(self) -> tuple[TileType, ...]:
        """One scalar of the dtype."""
        source = common_dtype("to", self.a)
        if (source.name, self.dtype.name) not in CONVERSIONS:
            raise DTypeError(f"to: no scalar conversion from {source.name} to {self.dtype.name}")
        return (ScalarType(self.dtype),)

    def emit(self, w: Any) -> None:
        """`cvt`."""
        source = common_dtype("to", self.a)
        opcode = CONVERSIONS[source.name, self.dtype.name]
        w.line(ptx.alu(opcode, w.define(self.result), w.src(self.a)))


@dataclass(eq=False)
class NewVar(Op):
    """A mutable scalar place (`tc.var`), with its first value."""

    initial: Operand = operand()
    dtype: dtypes.DType = attribute()

    def infer(self) -> tuple[TileType, ...]:
        """One scalar place; its first value has its dtype."""
        if isinstance(self.initial, Value) and common_dtype("var", self.initial) != self.dtype:
            raise DTypeError(
                f"var: the first value has the place's dtype {self.dtype.name}, "
                f"got {self.initial.type}",
                hint=f"convert it: x.to(tc.{self.dtype.name})",
            )
        if not isinstance(self.initial, Value):
            _check_number("var", self.initial, self.dtype)
        return (ScalarType(self.dtype),)

    def emit(self, w: Any) -> None:
        """`mov` into its register."""
        kind = self.dtype.name
        w.line(ptx.alu(f"mov.{_move(kind)}", w.define(self.result), w.src(self.initial, kind)))


@dataclass(eq=False)
class GetVar(Op):
    """The value of a mutable scalar now."""

    var: Value = operand()

    def infer(self) -> tuple[TileType, ...]:
        """One scalar."""
        return (self.var.type,)

    def effects(self) -> tuple[Effect, ...]:
        """Reads the place."""
        return (Effect(Access.READ, self.var),)

    @property
    def name_hint(self) -> str:
        """The place's name."""
        return self.var.name

    def emit(self, w: Any) -> None:
        """`mov` from its register: later writes leave this value alone."""
        kind = self.var.type.dtype.name  # type: ignore[union-attr]
        w.line(ptx.alu(f"mov.{_move(kind)}", w.define(self.result), w.src(self.var)))


@dataclass(eq=False)
class SetVar(Op):
    """Writes a mutable scalar."""

    var: Value = operand()
    value: Operand = operand()

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; the dtypes must agree."""
        common_dtype("var.set", self.var, self.value)
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Writes the place."""
        return (Effect(Access.WRITE, self.var),)

    def emit(self, w: Any) -> None:
        """`mov` into its register."""
        kind = self.var.type.dtype.name  # type: ignore[union-attr]
        w.line(ptx.alu(f"mov.{_move(kind)}", w.src(self.var), w.src(self.value, kind)))


def _move(kind: str) -> str:
    return {"s32": "b32", "u32": "b32", "s64": "b64", "u64": "b64"}.get(kind, kind)
