"""Maps on register tiles and vectors: fills, unary, binary, ternary, masks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from .. import dtypes
from ..errors import DTypeError, LayoutError
from ..ir import Access, Effect, Op, Scope, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import RegTileType, RegVecType, ScalarType, TileType
from .scalar import Operand, require_s32

RegType = RegTileType | RegVecType
_LOG2_E = ptx.f32_literal(math.log2(math.e))
_LN_2 = ptx.f32_literal(math.log(2.0))


@dataclass(frozen=True)
class MapRow:
    """An element-wise function: its operand count and its f32 instructions.

    Args:
        arity: operands.
        steps: (opcode, sources) in order; `d` is the result, `a` `b` `c` the operands, anything
            else an immediate.
        doc: the formula, and the error bound of approximate instructions (PTX ISA 9.7.3).
    """

    arity: int
    steps: tuple[tuple[str, str], ...]
    doc: str


MAPS: dict[str, MapRow] = {
    "copy": MapRow(1, (("mov.f32", "a"),), "a"),
    "neg": MapRow(1, (("neg.f32", "a"),), "-a"),
    "abs": MapRow(1, (("abs.f32", "a"),), "|a|"),
    "relu": MapRow(1, (("max.f32", "a 0f00000000"),), "max(a, 0)"),
    "exp2": MapRow(1, (("ex2.approx.ftz.f32", "a"),), "2**a; 2 ulp"),
    "exp": MapRow(
        1,
        (("mul.rn.f32", f"a {_LOG2_E}"), ("ex2.approx.ftz.f32", "d")),
        "e**a as 2**(a log2 e); 2 ulp plus the product's rounding times |a|",
    ),
    "log2": MapRow(1, (("lg2.approx.ftz.f32", "a"),), "log2 a; absolute 2**-22 near 1"),
    "log": MapRow(
        1,
        (("lg2.approx.ftz.f32", "a"), ("mul.rn.f32", f"d {_LN_2}")),
        "ln a as log2(a) ln 2; absolute 2**-22 near 1",
    ),
    "rcp": MapRow(1, (("rcp.approx.ftz.f32", "a"),), "1/a; 1 ulp"),
    "sqrt": MapRow(1, (("sqrt.approx.ftz.f32", "a"),), "square root; relative 2**-23"),
    "rsqrt": MapRow(1, (("rsqrt.approx.ftz.f32", "a"),), "1/sqrt(a); relative 2**-22.9"),
    "tanh": MapRow(1, (("tanh.approx.f32", "a"),), "tanh a; relative 2**-11"),
    "add": MapRow(2, (("add.rn.f32", "a b"),), "a + b"),
    "sub": MapRow(2, (("sub.rn.f32", "a b"),), "a - b"),
    "mul": MapRow(2, (("mul.rn.f32", "a b"),), "a * b"),
    "div": MapRow(2, (("div.full.ftz.f32", "a b"),), "a / b; 2 ulp"),
    "maximum": MapRow(2, (("max.f32", "a b"),), "the larger; a NaN operand is ignored"),
    "minimum": MapRow(2, (("min.f32", "a b"),), "the smaller; a NaN operand is ignored"),
    "fma": MapRow(3, (("fma.rn.f32", "a b c"),), "a * b + c, rounded once"),
}


def element_source(kind: TileType, index: int) -> int:
    """Which register of an operand goes with element `index` of a tile.

    Element i of a thread is row r + 8 h, column 8 j + 2 q + e with i = 4 j + 2 h + e: a row
    vector's register is h, a column vector's 2 j + e.
    """
    if isinstance(kind, RegVecType):
        return index >> 1 & 1 if kind.axis == "row" else 2 * (index >> 2) + (index & 1)
    return index


def broadcast(name: str, sources: tuple[Operand, ...]) -> RegType:
    """Type of an element-wise result: the tile among the operands, else the vector.

    Raises:
        LayoutError: shapes that do not broadcast.
        DTypeError: an element type other than f32.
    """
    kinds = [v.type for v in sources if isinstance(v, Value)]
    tiles = [k for k in kinds if isinstance(k, RegTileType)]
    vectors = [k for k in kinds if isinstance(k, RegVecType)]
    for kind in kinds:
        if not isinstance(kind, RegTileType | RegVecType | ScalarType):
            raise LayoutError(
                f"{name}: operands are register tiles, vectors or scalars, got {kind}",
                hint="load the tile into registers first",
            )
        if kind.dtype != dtypes.f32:
            raise DTypeError(
                f"{name}: element-wise arithmetic is f32, got {kind}",
                hint="convert with tc.cast(x, tc.f32)",
            )
    if not tiles and not vectors:
        raise LayoutError(f"{name}: wants a tile or vector among its operands")
    whole: RegType = tiles[0] if tiles else vectors[0]
    for kind in tiles + vectors:
        _check_fits(name, kind, whole)
    return whole


def _check_fits(name: str, kind: RegType, whole: RegType) -> None:
    if isinstance(whole, RegTileType) and isinstance(kind, RegVecType):
        wanted = whole.rows if kind.axis == "row" else whole.cols
        if kind.length != wanted:
            raise LayoutError(
                f"{name}: a {kind.axis} vector has one value a {kind.axis} of the tile, "
                f"got {kind} with {whole}"
            )
        if kind.partial:
            raise LayoutError(
                f"{name}: a partial sum cannot be used on a tile, got {kind}",
                hint="finish it with tc.total(v)",
            )
        return
    same = kind == whole or (
        isinstance(kind, RegVecType)
        and isinstance(whole, RegVecType)
        and (kind.axis, kind.length) == (whole.axis, whole.length)
    )
    if not same:
        raise LayoutError(f"{name}: shapes and layouts must agree, got {whole} and {kind}")


@dataclass(eq=False)
class Map(Op):
    """`out[i] = f(a[i], ...)` on tiles and vectors; vectors and scalars broadcast."""

    verb: ClassVar[str] = "{name}"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    name: str = attribute()
    sources: tuple[Operand, ...] = operand()
    out: Value | None = operand(default=None)

    def infer(self) -> tuple[TileType, ...]:
        """The broadcast type, unless written to `out`, which must have it."""
        kind = broadcast(self.name, self.sources)
        partial = any(
            isinstance(v, Value) and isinstance(v.type, RegVecType) and v.type.partial
            for v in self.sources
        )
        if isinstance(kind, RegVecType):
            kind = RegVecType(kind.dtype, kind.length, kind.axis, partial)
        if self.out is None:
            return (kind,)
        if self.out.type != kind:
            raise LayoutError(f"{self.name}: out has the result's type {kind}, got {self.out.type}")
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads the sources, writes the result."""
        reads = [
            Effect(Access.READ, v)
            for v in self.sources
            if isinstance(v, Value) and not isinstance(v.type, ScalarType)
        ]
        target = self.out if self.out is not None else self.result
        return (*reads, Effect(Access.WRITE, target))

    def emit(self, w: Any) -> None:
        """The row's instructions, once an element."""
        target = self.out if self.out is not None else self.result
        dst = w.regs(target)
        sources = [
            w.regs(v) if isinstance(v, Value) and not isinstance(v.type, ScalarType) else v
            for v in self.sources
        ]
        kinds = [v.type if isinstance(v, Value) else None for v in self.sources]
        vector = isinstance(target.type, RegVecType)
        for index, d in enumerate(dst):
            names = {"d": d}
            for letter, source, kind in zip("abc", sources, kinds, strict=False):
                if isinstance(source, tuple):
                    assert kind is not None, "register operands have types"
                    names[letter] = source[index if vector else element_source(kind, index)]
                else:
                    names[letter] = w.src(source, "f32")
            for opcode, pattern in MAPS[self.name].steps:
                w.line(ptx.alu(opcode, d, *(names.get(p, p) for p in pattern.split())))


@dataclass(eq=False)
class AllocRegisters(Op):
    """A new register tile or vector, undefined until written."""

    kind: RegType = attribute()

    def infer(self) -> tuple[TileType, ...]:
        """The type given."""
        return (self.kind,)

    def emit(self, w: Any) -> None:
        """Nothing: registers are named where they are used."""


@dataclass(eq=False)
class Fill(Op):
    """A new tile or vector (or `out`) with every element `value`."""

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    kind: RegType = attribute()
    value: Operand = operand()
    out: Value | None = operand(default=None)

    def infer(self) -> tuple[TileType, ...]:
        """The type given; the value must be one of its dtype, and 0 for a 16-bit one."""
        dtype = self.kind.dtype
        if isinstance(self.value, Value):
            if self.value.type != ScalarType(dtype):
                raise DTypeError(f"fill: wants a scalar of {dtype.name}, got {self.value.type}")
        elif dtype.bits == 16 and self.value != 0:
            raise DTypeError(
                f"fill: a {dtype.name} tile can only be filled with 0, got {self.value!r}",
                hint=f"fill an f32 tile and convert it: tc.cast(x, tc.{dtype.name})",
            )
        elif not dtype.is_float and not isinstance(self.value, int):
            raise DTypeError(f"fill: a {dtype.name} tile takes an int, got {self.value!r}")
        return (self.kind,) if self.out is None else ()

    def effects(self) -> tuple[Effect, ...]:
        """Writes the tile."""
        target = self.out if self.out is not None else self.result
        return (Effect(Access.WRITE, target),)

    def emit(self, w: Any) -> None:
        """One `mov` a register."""
        target = self.out if self.out is not None else self.result
        registers = w.regs(target)
        if self.kind.dtype.bits == 32:
            source = w.src(self.value, self.kind.dtype.name)
            opcode = "mov.f32" if self.kind.dtype.is_float else "mov.b32"
        else:
            source, opcode = "0", "mov.b32"
        for register in registers:
            w.line(ptx.alu(opcode, register, source))


@dataclass(eq=False)
class MaskTail(Op):
    """Elements at rows or columns `>= limit` become `value`, in place.

    Args:
        tile: an f32 register tile.
        limit: first masked index; any integer (nothing is masked beyond the tile, everything
            below 1).
        value: what masked elements become, e.g. -inf before a softmax.
        axis: "col" or "row".
    """

    verb: ClassVar[str] = "mask_{axis}s"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    tile: Value = operand()
    limit: Operand = operand()
    value: float = attribute()
    axis: str = attribute(default="col")

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; the tile must be an f32 register tile."""
        if not isinstance(self.tile.type, RegTileType) or self.tile.type.dtype != dtypes.f32:
            raise LayoutError(
                f"mask_{self.axis}s: wanted an f32 register tile, got {self.tile.type}"
            )
        require_s32(f"mask_{self.axis}s", self.limit)
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads and writes the tile."""
        return (Effect(Access.READ, self.tile), Effect(Access.WRITE, self.tile))

    def emit(self, w: Any) -> None:
        """One `setp` a column (or row) and one `selp` an element, against the lane's own limit."""
        mine = w.new("b32", "limit")
        first = w.lane_col() if self.axis == "col" else w.lane_row()
        w.line(ptx.alu("sub.s32", mine, w.src(self.limit, "s32"), first))
        fill = ptx.f32_literal(self.value)
        keep: dict[int, str] = {}
        for index, register in enumerate(w.regs(self.tile)):
            position = 8 * (index >> 1 & 1)
            if self.axis == "col":
                position = 8 * (index >> 2) + (index & 1)
            if position not in keep:
                keep[position] = w.new("pred", "keep")
                w.line(ptx.alu("setp.gt.s32", keep[position], mine, position))
            w.line(ptx.alu("selp.f32", register, register, fill, keep[position]))
