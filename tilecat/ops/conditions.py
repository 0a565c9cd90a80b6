"""Conditions element by element: comparisons, selection, and the indices they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .. import dtypes
from ..errors import DTypeError, LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import RegTileType, RegVecType, ScalarType, TileType
from .elements import pack, register_kind, whole_registers
from .elementwise import (
    RegType,
    broadcast,
    check_fits,
    element_count,
    element_operands,
    vector_of,
)
from .scalar import Operand, common_dtype


def as_dtype(kind: RegType, dtype: dtypes.DType) -> RegType:
    """The same places, of another dtype."""
    if isinstance(kind, RegTileType):
        return kind.cast(dtype)
    return vector_of(kind, dtype)


def _reads(*values: Operand) -> tuple[Effect, ...]:
    return tuple(
        Effect(Access.READ, v)
        for v in values
        if isinstance(v, Value) and not isinstance(v.type, ScalarType)
    )


@dataclass(eq=False)
class CompareElements(Op):
    """`out[i] = a[i] CMP b[i]`, a tile or vector of conditions; vectors and scalars broadcast.

    A comparison with NaN is false, but for `ne`, which is true.
    """

    verb: ClassVar[str] = "{name}"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    any_fragment: ClassVar[bool] = True
    name: str = attribute()
    a: Operand = operand()
    b: Operand = operand()

    def infer(self) -> tuple[TileType, ...]:
        """Conditions of the broadcast type."""
        kind = broadcast(self.name, (self.a, self.b))
        if kind.dtype.kind == "pred":
            raise DTypeError(
                f"{self.name}: conditions are not compared, got {kind}",
                hint="combine them with &, |, ^ and ~",
            )
        return (as_dtype(kind, dtypes.pred),)

    def effects(self) -> tuple[Effect, ...]:
        """Reads both, writes the result."""
        return (*_reads(self.a, self.b), Effect(Access.WRITE, self.result))

    def emit(self, w: Any) -> None:
        """One `setp` an element."""
        kind = broadcast(self.name, (self.a, self.b))
        test, suffix = self.name, "u32" if kind.dtype.name == "u32" else "s32"
        if kind.dtype.is_float:
            suffix = "f32"
        if test == "ne" and kind.dtype.is_float:
            test = "neu"
        operands = element_operands(w, kind, (self.a, self.b))
        for dst, a, b in zip(w.regs(self.result), *operands, strict=True):
            w.line(ptx.alu(f"setp.{test}.{suffix}", dst, a, b))


@dataclass(eq=False)
class SelectElements(Op):
    """`out[i] = a[i] if p[i] else b[i]`; vectors and scalars broadcast.

    Args:
        p: conditions: a tile or vector, or a scalar.
        a: where they hold.
        b: where they do not.
        kind: type of the result where a and b are both scalars.
        out: where it goes, if not to a new tile.
    """

    verb: ClassVar[str] = "select"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    any_fragment: ClassVar[bool] = True
    p: Operand = operand()
    a: Operand = operand()
    b: Operand = operand()
    out: Value | None = operand(default=None)

    def infer(self) -> tuple[TileType, ...]:
        """The broadcast type of a and b, over the shape of the conditions."""
        kind = self.kind
        if self.out is None:
            return (kind,)
        if self.out.type != kind:
            raise LayoutError(f"select: out has the result's type {kind}, got {self.out.type}")
        return ()

    @property
    def kind(self) -> RegType:
        """Type of the result."""
        shape = self.p.type if isinstance(self.p, Value) else None
        numbers = [v for v in (self.a, self.b) if _in_registers(v)]
        if isinstance(shape, RegTileType | RegVecType | ScalarType) and shape.dtype.kind == "pred":
            return self._kind(shape, numbers)
        raise DTypeError(
            f"select: the first operand is conditions, got {self.p!r}",
            hint="tc.select(x < y, x, y)",
        )

    def _kind(self, shape: RegType | ScalarType, numbers: list[Any]) -> RegType:
        if not numbers:
            assert not isinstance(shape, ScalarType), "the caller looked"
            whole = as_dtype(shape, _number(self.a, self.b))
        else:
            whole = broadcast("select", (self.a, self.b))
            if isinstance(shape, RegTileType) and isinstance(whole, RegVecType):
                whole = shape.cast(whole.dtype)
        if whole.dtype.kind == "pred":
            raise DTypeError(
                f"select: chooses between numbers, got conditions {whole}",
                hint="(p & a) | (~p & b)",
            )
        if not isinstance(shape, ScalarType):
            check_condition("select", shape, whole)
        for value in numbers:
            check_fits("select", value.type, whole)
        return whole

    def effects(self) -> tuple[Effect, ...]:
        """Reads all three, writes the result."""
        target = self.out if self.out is not None else self.result
        return (*_reads(self.p, self.a, self.b), Effect(Access.WRITE, target))

    def emit(self, w: Any) -> None:
        """One `selp` an element."""
        target = self.out if self.out is not None else self.result
        kind = self.kind
        (conditions,) = element_operands(w, as_dtype(kind, dtypes.pred), (self.p,))
        a, b = element_operands(w, kind, (self.a, self.b))
        register, dst = register_kind(kind.dtype), w.regs(target)
        kept, count = whole_registers(kind.dtype), element_count(kind)
        results = dst if kept else [w.new(register, "x") for _ in range(count)]
        for d, x, y, p in zip(results, a, b, conditions, strict=True):
            w.line(ptx.alu(f"selp.{register}", d, x, y, p))
        pack(w, kind.dtype, results, dst)


def _in_registers(value: Operand) -> bool:
    return isinstance(value, Value) and not isinstance(value.type, ScalarType)


def _number(*values: Operand) -> dtypes.DType:
    """The dtype of a choice between two scalars."""
    if any(isinstance(value, Value) for value in values):
        return common_dtype("select", *values)
    return dtypes.f32 if any(isinstance(v, float) for v in values) else dtypes.s32


def check_condition(name: str, shape: RegType, whole: RegType) -> None:
    """The conditions lie where the numbers do, or are a vector of the tile's.

    Raises:
        LayoutError: they do not.
    """
    wanted = as_dtype(whole, dtypes.pred)
    if isinstance(shape, RegVecType) and isinstance(whole, RegTileType):
        check_fits(name, shape, whole)
    elif shape != wanted:
        raise LayoutError(f"{name}: conditions lie as the numbers do, got {shape} with {whole}")


@dataclass(eq=False)
class Indices(Op):
    """`out[i] = i`: the rows or columns of a tile as an s32 vector that goes with it."""

    verb: ClassVar[str] = "{axis}_index"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    any_fragment: ClassVar[bool] = True
    kind: RegVecType = attribute()
    axis: str = attribute()

    def infer(self) -> tuple[TileType, ...]:
        """The vector."""
        return (self.kind,)

    def effects(self) -> tuple[Effect, ...]:
        """Writes the vector."""
        return (Effect(Access.WRITE, self.result),)

    def emit(self, w: Any) -> None:
        """The lane's first index, plus a constant a register."""
        start, places = vector_start(w, self.kind), vector_places(self.kind)
        for register, place in zip(w.regs(self.result), places, strict=True):
            w.line(ptx.alu("add.s32", register, start, place))


def vector_places(kind: RegVecType) -> list[int]:
    """The positions thread 0 holds, by register; other threads are shifted alike."""
    return [int(i) for i in kind.layout.position(0, np.arange(kind.elements))]


def vector_start(w: Any, kind: RegVecType) -> str:
    """The first position of a vector this thread holds."""
    if kind.axis == "plain":
        return plain_start(w, kind)
    return str(w.lane_position(kind, kind.axis))


def plain_start(w: Any, kind: RegVecType) -> str:
    """Position of the first value of a plain vector this thread holds: its rank times a run."""
    rank = str(w.rank(kind.warps))
    if kind.run == 1:
        return rank

    def build(register: str) -> None:
        w.line(ptx.alu("mul.lo.u32", register, rank, kind.run))

    return str(w.local(("run", kind.warps, kind.run), "b32", "first_of_run", build))
