"""Conversions of element types in registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..dtypes import DType
from ..errors import DTypeError, LayoutError
from ..ir import Access, Effect, Op, Scope, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import RegTileType, TileType

# f32 pair -> packed pair, high element first (PTX ISA 9.7.9.21)
PACK = {"bf16": "cvt.rn.bf16x2.f32", "f16": "cvt.rn.f16x2.f32"}


@dataclass(eq=False)
class Cast(Op):
    """`out = dtype(tile)`, rounded to nearest even; the fragment stays where it is."""

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    tile: Value = operand()
    dtype: DType = attribute()
    out: Value | None = operand(default=None)

    def infer(self) -> tuple[TileType, ...]:
        """The tile's shape in the new dtype."""
        kind = self.tile.type
        if not isinstance(kind, RegTileType):
            raise LayoutError(f"cast: wanted a register tile, got {kind}")
        pair = (kind.dtype.name, self.dtype.name)
        if pair not in {*(("f32", d) for d in PACK), *((d, "f32") for d in PACK)}:
            raise DTypeError(
                f"cast: f32 to bf16 or f16 and back, got {pair[0]} to {pair[1]}",
                hint="go through f32",
            )
        if kind.cols % 16:
            raise LayoutError(f"cast: 16-bit tiles have a multiple of 16 columns, got {kind}")
        result = RegTileType(self.dtype, kind.rows, kind.cols)
        if self.out is None:
            return (result,)
        if self.out.type != result:
            raise LayoutError(f"cast: out is {result}, got {self.out.type}")
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile, writes the result."""
        target = self.out if self.out is not None else self.result
        return (Effect(Access.READ, self.tile), Effect(Access.WRITE, target))

    def emit(self, w: Any) -> None:
        """One `cvt` a pair of elements, or two to unpack."""
        target = self.out if self.out is not None else self.result
        source, dst = w.regs(self.tile), w.regs(target)
        if self.dtype.name in PACK:
            pack(w, self.dtype.name, source, dst)
            return
        kind = self.tile.type
        assert isinstance(kind, RegTileType), "checked in infer"
        for index, packed in enumerate(source):
            low, high = dst[2 * index], dst[2 * index + 1]
            if kind.dtype.name == "bf16":
                unpack_bf16(w, packed, low, high)
            else:
                unpack_f16(w, packed, low, high)


def pack(w: Any, name: str, source: tuple[str, ...], dst: tuple[str, ...]) -> None:
    """Rounds pairs of f32 registers into packed 16-bit registers."""
    for index, register in enumerate(dst):
        w.line(ptx.alu(PACK[name], register, source[2 * index + 1], source[2 * index]))


def unpack_bf16(w: Any, packed: str, low: str, high: str) -> None:
    """A bf16 is the upper half of an f32."""
    bits = w.new("b32", "bits")
    w.line(ptx.alu("shl.b32", bits, packed, 16))
    w.line(ptx.alu("mov.b32", low, bits))
    w.line(ptx.alu("and.b32", bits, packed, "0xffff0000"))
    w.line(ptx.alu("mov.b32", high, bits))


def unpack_f16(w: Any, packed: str, low: str, high: str) -> None:
    """Splits the pair and converts each half."""
    first, second = w.new("b16", "low"), w.new("b16", "high")
    w.line(ptx.alu("mov.b32", ptx.vector((first, second)), packed))
    w.line(ptx.alu("cvt.f32.f16", low, first))
    w.line(ptx.alu("cvt.f32.f16", high, second))
