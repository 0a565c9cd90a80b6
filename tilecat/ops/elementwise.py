"""Maps on register tiles and vectors: fills, unary, binary, ternary, masks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ..dtypes import DType
from ..errors import DTypeError, LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import RegTileType, RegVecType, ScalarType, TileType
from .elements import (
    PACK,
    computed_in,
    pack,
    register_kind,
    require_numbers,
    unpack,
    whole_registers,
)
from .map_rows import MAPS, MapRow
from .scalar import Operand, common_dtype

RegType = RegTileType | RegVecType
_TEMPORARY = {"p": "pred", "i": "b32"}  # kind of a temporary by its first letter


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


def vector_of(kind: RegVecType, dtype: DType) -> RegVecType:
    """A vector of another dtype in the same places."""
    return kind.cast(dtype)


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
    whole: RegType = tiles[0] if tiles else _outer(name, vectors)
    for kind in tiles + vectors:
        check_fits(name, kind, whole)
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
    return " or ".join(map(str, meant))


def _outer(name: str, vectors: Sequence[RegVecType]) -> RegType:
    """A row vector and a column vector make a tile; vectors of one axis one of theirs."""
    sides = {v.axis: v for v in reversed(vectors)}
    if set(sides) != {"row", "col"}:
        return vectors[0]
    row, col = sides["row"], sides["col"]
    lanes = {vector.layout.fragment.lanes for vector in (row, col)}
    if row.dtype != col.dtype or row.warps != col.warps or len(lanes) > 1:
        raise LayoutError(
            f"{name}: a row vector and a column vector that make a tile have one dtype and one "
            f"scope, got {row} and {col}"
        )
    return RegTileType(row.dtype, row.length, col.length, row.warps, "row", col.kept)


def check_fits(name: str, kind: RegType, whole: RegType) -> None:
    """An operand meets every element of a tile or vector.

    Raises:
        LayoutError: its shape or its layout differs.
        DTypeError: tiles of two dtypes.
    """
    if isinstance(whole, RegTileType) and isinstance(kind, RegVecType):
        fits = [whole.vector(axis) for axis in ("row", "col")]
        wanted = next((v for v in fits if v.axis == kind.axis), None)
        if wanted is None or kind.length != wanted.length or kind.warps != whole.warps:
            raise LayoutError(
                f"{name}: a {kind.axis} vector has one value a {kind.axis} of the tile, "
                f"got {kind} with {whole}",
                hint=_fitting_vector(kind, fits),
            )
        mine, held = kind.layout.fragment, wanted.layout.fragment
        if mine.lanes != held.lanes or kind.axis == "col" and mine != held:
            raise LayoutError(
                f"{name}: the vector lies with tiles of another fragment, got {kind} with {whole}",
                hint=f"a vector that fits has the type tc.vector_type(x, '{kind.axis}')",
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
    any_fragment: ClassVar[bool] = True
    name: str = attribute()
    sources: tuple[Operand, ...] = operand()
    out: Value | None = operand(default=None)

    def infer(self) -> tuple[TileType, ...]:
        """The broadcast type, unless written to `out`, which must have it."""
        kind = broadcast(self.name, self.sources)
        check_defined(self.name, kind)
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
        if self.name == "copy" and [getattr(v, "type", None) for v in self.sources] == [kind]:
            register = register_kind(kind.dtype) if whole_registers(kind.dtype) else "b32"
            for d, held in zip(dst, w.regs(self.sources[0]), strict=True):
                w.line(ptx.alu(f"mov.{register}", d, held))
            return
        if self._in_pairs():
            sources = [w.regs(v) for v in self.sources]
            opcode = f"{MAPS[self.name].packed}.{kind.dtype.name}x2"
            for d, *operands in zip(dst, *sources, strict=True):
                w.line(ptx.alu(opcode, d, *operands))
            return
        kept, count = whole_registers(kind.dtype), element_count(kind)
        results = dst if kept else [w.new(register_kind(kind.dtype), "x") for _ in range(count)]
        apply(w, MAPS[self.name], kind, element_operands(w, kind, self.sources), results)
        pack(w, kind.dtype, results, dst)

    def _in_pairs(self) -> bool:
        kinds = [v.type if isinstance(v, Value) else None for v in self.sources]
        packed = MAPS[self.name].packed
        return bool(packed) and all(
            isinstance(k, RegTileType | RegVecType) and k.dtype.name in PACK for k in kinds
        )


@dataclass(eq=False)
class MapScalar(Op):
    """`d = f(a, ...)` on one thread's own values: the rows of tiles, on run-time scalars."""

    verb: ClassVar[str] = "{name}"
    pure: ClassVar[bool] = True
    name: str = attribute()
    sources: tuple[Operand, ...] = operand()

    def infer(self) -> tuple[TileType, ...]:
        """A scalar of the operands' dtype."""
        kind = ScalarType(common_dtype(self.name, *self.sources))
        if not whole_registers(kind.dtype) or kind.dtype.kind == "pred":
            raise DTypeError(f"{self.name}: wanted f32, s32 or u32 scalars, got {kind}")
        check_defined(self.name, kind)
        return (kind,)

    def emit(self, w: Any) -> None:
        """The row's instructions."""
        kind = self.result.type
        assert isinstance(kind, ScalarType), "inferred"
        operands = [[w.src(v, computed_in(kind.dtype).name)] for v in self.sources]
        apply(w, MAPS[self.name], kind, operands, [w.define(self.result)])


def element_count(kind: RegType) -> int:
    """Elements of a tile or vector a thread holds."""
    return kind.elements


def element_operands(w: Any, kind: RegType, sources: Sequence[Operand]) -> list[list[str]]:
    """For each source, the 32-bit (or predicate) register that meets each element of `kind`."""
    count, found = element_count(kind), []
    for value in sources:
        source = value.type if isinstance(value, Value) else None
        if isinstance(source, RegTileType) or isinstance(kind, RegVecType) and source == kind:
            found.append(unpack(w, source, w.regs(value)))  # type: ignore[arg-type]
        elif isinstance(source, RegVecType):
            registers = w.regs(value)
            if isinstance(kind, RegTileType):
                registers = [registers[i] for i in element_sources(kind, source)]
            found.append(list(registers))
        else:
            found.append([w.src(value, computed_in(kind.dtype).name)] * count)
    return found


def check_defined(name: str, kind: RegType | ScalarType) -> None:
    """The function has a meaning on the dtype.

    Raises:
        DTypeError: it has none.
    """
    row, dtype = MAPS[name], kind.dtype
    if dtype.kind == "pred":
        if not row.condition:
            raise DTypeError(
                f"{name}: not defined on conditions, got {kind}",
                hint="tc.select(condition, a, b) makes numbers of them",
            )
    elif dtype.is_float and not row.steps:
        raise DTypeError(f"{name}: not defined on floats, got {kind}")
    elif not dtype.is_float and not row.integer:
        raise DTypeError(
            f"{name}: not defined on integers, got {kind}",
            hint="convert to a float: "
            + ("x.to(tc.f32)" if isinstance(kind, ScalarType) else "tc.cast(x, tc.f32)"),
        )


def apply(
    w: Any, row: MapRow, kind: RegType | ScalarType, operands: Sequence[Sequence[str]],
    results: Sequence[str],
) -> None:  # fmt: skip
    """A row's instructions on 32-bit elements, or on conditions."""
    steps = row.steps if kind.dtype.is_float else row.integer
    if kind.dtype.kind == "pred":
        steps = ((row.condition, " ".join("abc"[: row.arity])),)
    for index, d in enumerate(results):
        names = {"d": d}
        names.update({letter: o[index] for letter, o in zip("abc", operands, strict=False)})
        for opcode, pattern, *target in steps:
            sources = [names.get(p, p) for p in pattern.split()]
            held = target[0] if target else "d"
            if held not in names:
                names[held] = w.new(_TEMPORARY.get(held[0], "f32"), "t")
            if kind.dtype.name == "u32":
                opcode = opcode.replace(".s32", ".u32")
            w.line(ptx.alu(opcode, names[held], *sources))


@dataclass(eq=False)
class AllocRegisters(Op):
    """A new register tile or vector, undefined until written."""

    any_fragment: ClassVar[bool] = True
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
    any_fragment: ClassVar[bool] = True
    kind: RegType = attribute()
    value: Operand = operand()
    out: Value | None = operand(default=None)

    def infer(self) -> tuple[TileType, ...]:
        """The type given; the value must be one its dtype is computed in."""
        dtype = self.kind.dtype
        require_numbers("fill", dtype)
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
        if not whole_registers(dtype):
            first = registers[0]
            element = w.new(register_kind(dtype), "value")
            w.line(ptx.alu(opcode, element, source))
            pack(w, dtype, [element] * (32 // dtype.bits), registers[:1])
            source, opcode, registers = first, "mov.b32", registers[1:]
        for register in registers:
            w.line(ptx.alu(opcode, register, source))


@dataclass(eq=False)
class Spread(Op):
    """`out[r, c] = vector[r]`, or `vector[c]`: a tile of equal columns, or of equal rows."""

    verb: ClassVar[str] = "broadcast"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    any_fragment: ClassVar[bool] = True
    vector: Value = operand()
    out: Value = operand()

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; the vector goes with the tile."""
        kind, vector = self.out.type, self.vector.type
        assert isinstance(kind, RegTileType), "the function looked"
        assert isinstance(vector, RegVecType), "the function looked"
        check_fits("broadcast", vector, kind)
        if vector.dtype.is_float != kind.dtype.is_float:
            raise DTypeError(
                f"broadcast: integers and floats do not mix, got {kind} and {vector}",
                hint="convert one with tc.cast or .to()",
            )
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads the vector, writes the tile."""
        return (Effect(Access.READ, self.vector), Effect(Access.WRITE, self.out))

    def emit(self, w: Any) -> None:
        """One `mov` an element, or one conversion a register."""
        kind = self.out.type
        assert isinstance(kind, RegTileType), "inferred"
        (elements,) = element_operands(w, kind, (self.vector,))
        pack(w, kind.dtype, elements, w.regs(self.out))
