"""Maps on register tiles and vectors: fills, unary, binary, ternary, masks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ..errors import DTypeError, LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import RegTileType, RegVecType, ScalarType, TileType
from .elements import PACK, computed_in, pack, register_kind, unpack
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
        integer: its s32 instructions; none: not defined on integers.
        packed: opcode on pairs of 16-bit floats, before `.bf16x2` or `.f16x2`; none: in f32.
    """

    arity: int
    steps: tuple[tuple[str, str], ...]
    doc: str
    integer: tuple[tuple[str, str], ...] = ()
    packed: str = ""


MAPS: dict[str, MapRow] = {
    "copy": MapRow(1, (("mov.f32", "a"),), "a", (("mov.b32", "a"),)),
    "neg": MapRow(1, (("neg.f32", "a"),), "-a", (("neg.s32", "a"),), "neg"),
    "abs": MapRow(1, (("abs.f32", "a"),), "|a|", (("abs.s32", "a"),), "abs"),
    "relu": MapRow(1, (("max.f32", "a 0f00000000"),), "max(a, 0)", (("max.s32", "a 0"),)),
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
    "add": MapRow(2, (("add.rn.f32", "a b"),), "a + b", (("add.s32", "a b"),), "add.rn"),
    "sub": MapRow(2, (("sub.rn.f32", "a b"),), "a - b", (("sub.s32", "a b"),), "sub.rn"),
    "mul": MapRow(2, (("mul.rn.f32", "a b"),), "a * b", (("mul.lo.s32", "a b"),), "mul.rn"),
    "div": MapRow(2, (("div.full.ftz.f32", "a b"),), "a / b; 2 ulp"),
    "maximum": MapRow(
        2,
        (("max.f32", "a b"),),
        "the larger; a NaN operand is ignored",
        (("max.s32", "a b"),),
        "max",
    ),
    "minimum": MapRow(
        2,
        (("min.f32", "a b"),),
        "the smaller; a NaN operand is ignored",
        (("min.s32", "a b"),),
        "min",
    ),
    "fma": MapRow(
        3,
        (("fma.rn.f32", "a b c"),),
        "a * b + c, rounded once",
        (("mad.lo.s32", "a b c"),),
        "fma.rn",
    ),
}


@lru_cache(maxsize=4096)
def element_sources(tile: RegTileType, vector: RegVecType) -> tuple[int, ...]:
    """For each element a thread holds of a tile, the index of the vector's value that meets it.

    Read off the two layouts at thread 0; the other threads are shifted alike.
    """
    axis = 0 if tile.vector("row").axis == vector.axis else 1
    places = tile.layout.row_col(0, np.arange(tile.elements))[axis]
    values = vector.layout.position(0, np.arange(vector.registers))
    index = {int(position): i for i, position in enumerate(values)}
    return tuple(index[int(place)] for place in places)


def broadcast(name: str, sources: tuple[Operand, ...]) -> RegType:
    """Type of an element-wise result: the first tile among the operands, else the first vector.

    Raises:
        LayoutError: shapes or layouts that do not meet.
        DTypeError: two tile dtypes, or an integer with a float.
    """
    kinds = [v.type for v in sources if isinstance(v, Value)]
    for kind in kinds:
        if not isinstance(kind, RegTileType | RegVecType | ScalarType):
            raise LayoutError(
                f"{name}: operands are register tiles, vectors or scalars, got {kind}",
                hint="load the tile into registers first",
            )
    tiles = [k for k in kinds if isinstance(k, RegTileType)]
    vectors = [k for k in kinds if isinstance(k, RegVecType)]
    if not tiles and not vectors:
        raise LayoutError(f"{name}: wants a tile or vector among its operands")
    whole: RegType = tiles[0] if tiles else vectors[0]
    for kind in tiles + vectors:
        _check_fits(name, kind, whole)
    for kind in kinds:
        assert isinstance(kind, RegTileType | RegVecType | ScalarType), "checked above"
        if kind.dtype.is_float != whole.dtype.is_float:
            raise DTypeError(
                f"{name}: integers and floats do not mix, got {whole} and {kind}",
                hint="convert one with tc.cast or .to()",
            )
    for value in sources:
        if isinstance(value, float) and not whole.dtype.is_float:
            raise DTypeError(f"{name}: an integer tile takes an int, got {value!r} with {whole}")
    return whole


def _fitting_vector(kind: RegVecType, fits: list[RegVecType]) -> str:
    """The vectors a tile goes with; of the length given, if there is one."""
    meant = [v for v in fits if v.length == kind.length] or fits
    return " or ".join(f"{v} ({v.axis} vector)" for v in meant)


def _check_fits(name: str, kind: RegType, whole: RegType) -> None:
    if isinstance(whole, RegTileType) and isinstance(kind, RegVecType):
        fits = [whole.vector(axis) for axis in ("row", "col")]
        wanted = next((v for v in fits if v.axis == kind.axis), None)
        if wanted is None or kind.length != wanted.length or kind.warps != whole.warps:
            raise LayoutError(
                f"{name}: a {kind.axis} vector has one value a {kind.axis} of the tile, "
                f"got {kind} with {whole}",
                hint=_fitting_vector(kind, fits),
            )
        if kind.partial:
            raise LayoutError(
                f"{name}: a partial sum cannot be used on a tile, got {kind}",
                hint="finish it with tc.total(v)",
            )
        return
    if isinstance(kind, RegTileType) and isinstance(whole, RegTileType):
        if kind.dtype != whole.dtype:
            raise DTypeError(
                f"{name}: tiles have one dtype, got {whole} and {kind}",
                hint=f"convert one: tc.cast(x, tc.{whole.dtype.name})",
            )
        if kind.order != whole.order and kind.shape == whole.shape:
            raise LayoutError(
                f"{name}: tiles have one layout, got {whole} and {kind}",
                hint="bring one to the other's order with tc.swap_layout",
            )
        same = kind == whole
    else:
        assert isinstance(kind, RegVecType) and isinstance(whole, RegVecType), "a vector"
        same = kind.whole == whole.whole
    if not same:
        raise LayoutError(f"{name}: shapes and layouts must agree, got {whole} and {kind}")


@dataclass(eq=False)
class Map(Op):
    """`out[i] = f(a[i], ...)` on tiles and vectors; vectors and scalars broadcast.

    Floats narrower than 32 bits are computed in f32 and rounded once, but for the operations
    that have an instruction on pairs; integers in s32, saturated to 8 bits.
    """

    verb: ClassVar[str] = "{name}"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    name: str = attribute()
    sources: tuple[Operand, ...] = operand()
    out: Value | None = operand(default=None)

    def infer(self) -> tuple[TileType, ...]:
        """The broadcast type, unless written to `out`, which must have it."""
        kind = broadcast(self.name, self.sources)
        if not kind.dtype.is_float and not MAPS[self.name].integer:
            raise DTypeError(
                f"{self.name}: not defined on integers, got {kind}",
                hint="convert to a float: tc.cast(x, tc.f32)",
            )
        if isinstance(kind, RegVecType):
            shares = [
                v.type.partial
                for v in self.sources
                if isinstance(v, Value) and isinstance(v.type, RegVecType)
            ]
            kind = dataclasses.replace(kind, partial=any(shares))
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
        return (*reads, Effect(Access.WRITE, self.target))

    @property
    def target(self) -> Value:
        """The place written."""
        return self.out if self.out is not None else self.result

    def emit(self, w: Any) -> None:
        """The row's instructions, once an element or once a pair."""
        kind, dst = self.target.type, w.regs(self.target)
        assert isinstance(kind, RegTileType | RegVecType), "inferred"
        if self._in_pairs():
            sources = [w.regs(v) for v in self.sources]
            opcode = f"{MAPS[self.name].packed}.{kind.dtype.name}x2"
            for d, *operands in zip(dst, *sources, strict=True):
                w.line(ptx.alu(opcode, d, *operands))
            return
        kept = isinstance(kind, RegVecType) or kind.dtype.name in ("f32", "s32", "u32")
        count = kind.registers if isinstance(kind, RegVecType) else kind.elements
        results = dst if kept else [w.new(register_kind(kind.dtype), "x") for _ in range(count)]
        apply(w, MAPS[self.name], kind, self._operands(w, kind, count), results)
        pack(w, kind.dtype, results, dst)

    def _in_pairs(self) -> bool:
        kinds = [v.type if isinstance(v, Value) else None for v in self.sources]
        packed = MAPS[self.name].packed
        return bool(packed) and all(
            isinstance(k, RegTileType) and k.dtype.name in PACK for k in kinds
        )

    def _operands(self, w: Any, kind: RegType, count: int) -> list[list[str]]:
        found = []
        for value in self.sources:
            source = value.type if isinstance(value, Value) else None
            if isinstance(source, RegTileType) or source == kind:
                found.append(unpack(w, source, w.regs(value)))  # type: ignore[arg-type]
            elif isinstance(source, RegVecType):
                registers = w.regs(value)
                if isinstance(kind, RegTileType):
                    registers = [registers[i] for i in element_sources(kind, source)]
                found.append(list(registers))
            else:
                found.append([w.src(value, computed_in(kind.dtype).name)] * count)
        return found


def apply(
    w: Any, row: MapRow, kind: RegType, operands: Sequence[Sequence[str]], results: Sequence[str]
) -> None:
    """A row's instructions on 32-bit elements."""
    steps = row.steps if kind.dtype.is_float else row.integer
    for index, d in enumerate(results):
        names = {"d": d}
        names.update({letter: o[index] for letter, o in zip("abc", operands, strict=False)})
        for opcode, pattern in steps:
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

    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    kind: RegType = attribute()
    value: Operand = operand()
    out: Value | None = operand(default=None)

    def infer(self) -> tuple[TileType, ...]:
        """The type given; the value must be one its dtype is computed in."""
        dtype = self.kind.dtype
        if isinstance(self.value, Value):
            wanted = dtype if dtype.bits == 32 else computed_in(dtype)
            if self.value.type != ScalarType(wanted):
                raise DTypeError(f"fill: wants a scalar of {wanted.name}, got {self.value.type}")
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
        dtype = self.kind.dtype
        source = w.src(self.value, computed_in(dtype).name)
        opcode = f"mov.{register_kind(dtype)}"
        if dtype.name not in ("f32", "s32", "u32"):
            first = registers[0]
            element = w.new(register_kind(dtype), "value")
            w.line(ptx.alu(opcode, element, source))
            pack(w, dtype, [element] * (32 // dtype.bits), registers[:1])
            source, opcode, registers = first, "mov.b32", registers[1:]
        for register in registers:
            w.line(ptx.alu(opcode, register, source))


@dataclass(eq=False)
class MaskTail(Op):
    """Elements at rows or columns `>= limit` become `value`, in place.

    Args:
        tile: a register tile of floats.
        limit: first masked index; any integer (nothing is masked beyond the tile, everything
            below 1).
        value: what masked elements become, e.g. -inf before a softmax.
        axis: "col" or "row".
    """

    verb: ClassVar[str] = "mask_{axis}s"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    tile: Value = operand()
    limit: Operand = operand()
    value: float = attribute()
    axis: str = attribute(default="col")

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; the tile must be a register tile of floats."""
        if not isinstance(self.tile.type, RegTileType) or not self.tile.type.dtype.is_float:
            raise LayoutError(
                f"mask_{self.axis}s: wanted a register tile of floats, got {self.tile.type}"
            )
        require_s32(f"mask_{self.axis}s", self.limit)
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads and writes the tile."""
        return (Effect(Access.READ, self.tile), Effect(Access.WRITE, self.tile))

    def emit(self, w: Any) -> None:
        """One `setp` a column (or row) and one `selp` an element, against the lane's own limit."""
        mine = w.new("b32", "limit")
        kind = self.tile.type
        assert isinstance(kind, RegTileType), "checked in infer"
        first = w.lane_position(kind, self.axis)
        places = kind.layout.row_col(0, np.arange(kind.elements))[self.axis == "col"]
        w.line(ptx.alu("sub.s32", mine, w.src(self.limit, "s32"), first))
        fill = ptx.f32_literal(self.value)
        keep: dict[int, str] = {}
        elements = unpack(w, kind, w.regs(self.tile))
        results = elements if not kind.packed else [w.new("f32", "x") for _ in elements]
        for element, result, place in zip(elements, results, places, strict=True):
            position = int(place)
            if position not in keep:
                keep[position] = w.new("pred", "keep")
                w.line(ptx.alu("setp.gt.s32", keep[position], mine, position))
            w.line(ptx.alu("selp.f32", result, element, fill, keep[position]))
        pack(w, kind.dtype, results, w.regs(self.tile))
