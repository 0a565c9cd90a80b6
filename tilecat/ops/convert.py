"""Conversions of element types in registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..dtypes import DType
from ..errors import DTypeError, LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, Value, attribute, operand
from ..layouts import permuted_indices
from ..ptx import instructions as ptx
from ..tiles import RegTileType, RegVecType, TileType
from .elements import PACK, UNPACK_FP8, computed_in, pack, register_kind, unpack, widen_fp8

CASTABLE = ("f32", "tf32", "bf16", "f16", "e4m3", "e5m2", "s32", "u32", "s8", "u8")


@dataclass(eq=False)
class Cast(Op):
    """`out = dtype(x)`; every element stays in its thread.

    Where the dtype's own fragment is another, the result keeps that of `x`; `permuted` gives it
    its own, with permuted columns (`layouts.permuted_indices`).

    Conditions give 1 and 0. Floats round to nearest even (tf32: to nearest, ties away), 8-bit types
    saturate, a float to an integer rounds to nearest even and saturates.
    """

    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    any_fragment: ClassVar[bool] = True
    tile: Value = operand()
    dtype: DType = attribute()
    out: Value | None = operand(default=None)
    permuted: bool = attribute(default=False)

    def infer(self) -> tuple[TileType, ...]:
        """The same shape in the new dtype."""
        kind = self.tile.type
        if not isinstance(kind, RegTileType | RegVecType):
            raise LayoutError(f"cast: wanted a register tile or vector, got {kind}")
        if getattr(self.dtype, "name", None) not in CASTABLE:
            raise DTypeError(f"cast: to {', '.join(CASTABLE)}, got {self.dtype}")
        if isinstance(kind, RegVecType):
            packed = kind.run > 1 and self.dtype.name in PACK
            if self.dtype.bits != 32 and not packed:
                raise DTypeError(f"cast: a vector has 32-bit elements, got {self.dtype.name}")
            result: TileType = kind.cast(self.dtype)
        else:
            result = self._tile(kind)
        if self.out is None:
            return (result,)
        if self.out.type != result:
            raise LayoutError(f"cast: out is {result}, got {self.out.type}")
        return ()

    def _tile(self, kind: RegTileType) -> RegTileType:
        if not self.permuted:
            return kind.cast(self.dtype)
        result = RegTileType(self.dtype, kind.rows, kind.cols, kind.warps, kind.order)
        period = max(kind.layout.fragment.step, result.layout.fragment.step)
        along = kind.cols if kind.order == "row" else kind.rows
        if along % period:
            raise LayoutError(
                f"permuted_k: K is a multiple of {period} between {kind.dtype} and {self.dtype}, "
                f"got {kind}",
                hint="tc.regroup(tc.cast(x, dtype)) moves elements between lanes instead",
            )
        return result

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile, writes the result."""
        target = self.out if self.out is not None else self.result
        return (Effect(Access.READ, self.tile), Effect(Access.WRITE, target))

    def emit(self, w: Any) -> None:
        """Unpacks, converts between f32 and s32 where needed, packs; 8-bit floats become f16."""
        target = self.out if self.out is not None else self.result
        kind = self.tile.type
        assert isinstance(kind, RegTileType | RegVecType), "checked in infer"
        if kind.dtype.name in UNPACK_FP8 and self.dtype.name == "f16" and not self.permuted:
            widen_fp8(w, kind.dtype.name, w.regs(self.tile), w.regs(target))
            return
        elements = unpack(w, kind, w.regs(self.tile))
        convert(w, kind.dtype, self.dtype, elements)
        if self.permuted:
            assert isinstance(target.type, RegTileType), "inferred"
            assert isinstance(kind, RegTileType), "inferred"
            places = permuted_indices(kind.layout, target.type.layout)
            elements = [elements[place] for place in places]
        pack(w, self.dtype, elements, w.regs(target))


def convert(w: Any, source: DType, target: DType, elements: list[str]) -> None:
    """Replaces 32-bit elements of one type by those of another: f32, s32 or u32."""
    have, want = computed_in(source), computed_in(target)
    if have.kind == "pred":
        kind = register_kind(want)
        one = ptx.f32_literal(1.0) if want.is_float else "1"
        zero = ptx.f32_literal(0.0) if want.is_float else "0"
        for index, element in enumerate(elements):
            elements[index] = w.new(kind, "number")
            w.line(ptx.alu(f"selp.{kind}", elements[index], one, zero, element))
        return
    if have == want:
        return
    for index, element in enumerate(elements):
        result = w.new(register_kind(want), "converted")
        if want.is_float:
            opcode = "cvt.rn.f32.u32" if source.name == "u32" else "cvt.rn.f32.s32"
        else:
            opcode = "cvt.rni.u32.f32" if target.name == "u32" else "cvt.rni.s32.f32"
        w.line(ptx.alu(opcode, result, element))
        elements[index] = result
