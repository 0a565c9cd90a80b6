"""Block-scale and 4- and 6-bit floats as bytes: e8m0, e2m1, e2m3, e3m2 by integer arithmetic.

Chips with conversion instructions for them use those; here they are storage, converted exactly.
OCP Microscaling Formats (MX) Specification 1.0, sections 5.3 and 5.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import dtypes
from ..dtypes import DType
from ..errors import DTypeError, LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, Value, attribute, operand
from ..layouts.registers import Fragment, fragment_of
from ..ptx import instructions as ptx
from ..tiles import RegTileType, TileType
from .elements import pack, unpack
from .map_programs import Steps, program

STORED = ("e8m0", "e2m1", "e2m3", "e3m2")
_BIAS = {"e2m1": 1, "e2m3": 1, "e3m2": 3}
# code 0 is 2**-127, code 255 NaN; rounding up, as scales must not be too small.
_FROM_E8M0 = program(
    """
    i = shl.b32 a 23
    p = setp.eq.s32 a 0
    i = selp.b32 0x00400000 i p
    p = setp.eq.s32 a 255
    i = selp.b32 0x7fffffff i p
    d = mov.b32 i
    """
)
_TO_E8M0 = program(
    """
    i = mov.b32 a
    i = and.b32 i 0x7fffffff
    p = setp.le.s32 i 0x00400000
    ih = add.s32 i 0x007fffff
    ih = shr.u32 ih 23
    ih = min.s32 ih 254
    ih = selp.b32 0 ih p
    p = setp.neu.f32 a a
    d = selp.b32 255 ih p
    """
)


def _decoding(dtype: DType) -> Steps:
    """Code to f32: the bits as an f32 with too small an exponent, times what is missing."""
    if dtype.name == "e8m0":
        return _FROM_E8M0
    sign, shift = dtype.bits - 1, 23 - dtype.mantissa_bits
    return program(
        f"""
        i = and.b32 a {(1 << sign) - 1}
        i = shl.b32 i {shift}
        x = mov.b32 i
        x = mul.rn.f32 x {2.0 ** (127 - _BIAS[dtype.name])!r}
        i = shr.u32 a {sign}
        i = shl.b32 i 31
        ih = mov.b32 x
        i = or.b32 i ih
        d = mov.b32 i
        """
    )


def _encoding(dtype: DType) -> Steps:
    """F32 to code: nearest even, saturated; NaN to the largest value (PTX ISA, cvt)."""
    if dtype.name == "e8m0":
        return _TO_E8M0
    mantissa, bias, sign = dtype.mantissa_bits, _BIAS[dtype.name], dtype.bits - 1
    shift = 23 - mantissa
    # An f32 of this size has its last bit where the subnormals of the format have theirs.
    magic = 2.0 ** (24 - bias - mantissa)
    return program(
        f"""
        x = abs.f32 a
        x = min.f32 x {float(dtype.max_value)!r}
        i = mov.b32 x
        ih = shr.u32 i {shift}
        ih = and.b32 ih 1
        i = add.s32 i ih
        i = add.s32 i {(1 << (shift - 1)) - 1}
        i = shr.u32 i {shift}
        i = sub.s32 i {(127 - bias) << mantissa}
        y = add.rn.f32 x magic
        ih = mov.b32 y
        im = mov.b32 magic
        ih = sub.s32 ih im
        p = setp.lt.f32 x {2.0 ** (1 - bias)!r}
        i = selp.b32 ih i p
        ih = mov.b32 a
        ih = shr.u32 ih 31
        ih = shl.b32 ih {sign}
        p = setp.neu.f32 a a
        ih = selp.b32 0 ih p
        d = or.b32 i ih
        """,
        magic=magic,
    )


def _apply(w: Any, steps: Steps, source: str, target: str) -> None:
    names = {"a": source, "d": target}
    for opcode, pattern, *held in steps:
        sources = [names.get(p, p) for p in pattern.split()]
        name = held[0] if held else "d"
        if name not in names:
            names[name] = w.new({"p": "pred", "i": "b32"}.get(name[0], "f32"), "t")
        w.line(ptx.alu(opcode, names[name], *sources))


@dataclass(eq=False)
class ConvertCodes(Op):
    """u8 codes to f32 (`decode`), or floats to u8 codes (`encode`), each in its place.

    Args:
        tile: a u8 tile, or a tile of floats.
        dtype: what the codes stand for.
        name: "decode" or "encode".
    """

    verb: ClassVar[str] = "{name}"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    tile: Value = operand()
    dtype: DType = attribute()
    name: str = attribute()

    def infer(self) -> tuple[TileType, ...]:
        """A tile of f32, or of u8."""
        kind = self.tile.type
        if getattr(self.dtype, "name", None) not in STORED:
            raise DTypeError(
                f"{self.name}: codes of {', '.join(STORED)}, got {self.dtype!r}",
                hint="8-bit floats are tiles of their own: tc.cast(x, tc.e4m3)",
            )
        if not isinstance(kind, RegTileType):
            raise LayoutError(f"{self.name}: wanted a register tile, got {kind}")
        if self.name == "decode" and kind.dtype != dtypes.u8:
            raise DTypeError(f"decode: codes are u8, got {kind}")
        if self.name == "encode" and not kind.dtype.is_float:
            raise DTypeError(f"encode: wanted floats, got {kind}", hint="tc.cast(x, tc.f32)")
        return (kind.cast(dtypes.f32 if self.name == "decode" else dtypes.u8),)

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile, writes the result."""
        return (Effect(Access.READ, self.tile), Effect(Access.WRITE, self.result))

    def emit(self, w: Any) -> None:
        """Integer arithmetic on each element."""
        kind, result = self.tile.type, self.result.type
        assert isinstance(kind, RegTileType) and isinstance(result, RegTileType), "inferred"
        decode = self.name == "decode"
        steps = _decoding(self.dtype) if decode else _encoding(self.dtype)
        elements = unpack(w, kind, w.regs(self.tile))
        made = [w.new("f32" if decode else "b32", "x") for _ in elements]
        for source, target in zip(elements, made, strict=True):
            _apply(w, steps, source, target)
        pack(w, result.dtype, made, w.regs(self.result))


# Bits of a code -> codes of a group and the bytes they fill.
GROUPS = {4: (2, 1), 6: (4, 3)}


@dataclass(eq=False)
class PackCodes(Op):
    """Adjacent 4- or 6-bit codes in whole bytes, the first in the lowest bits; and back.

    Args:
        tile: a u8 tile of codes, or of packed bytes.
        bits: 4 (two codes a byte) or 6 (four in three bytes).
        reverse: unpack.
    """

    verb: ClassVar[str] = "{label}"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    tile: Value = operand()
    bits: int = attribute()
    reverse: bool = attribute(default=False)

    @property
    def label(self) -> str:
        """The verb: pack4, unpack6."""
        return f"{'unpack' if self.reverse else 'pack'}{self.bits}"

    @property
    def sizes(self) -> tuple[int, int]:
        """Elements of a group before and after."""
        codes, num_bytes = GROUPS[self.bits]
        return (num_bytes, codes) if self.reverse else (codes, num_bytes)

    def infer(self) -> tuple[TileType, ...]:
        """Fewer, or more, columns; each lane keeps what it has."""
        kind, (before, after) = self.tile.type, self.sizes
        if not isinstance(kind, RegTileType) or kind.dtype != dtypes.u8 or kind.order != "row":
            raise LayoutError(f"{self.label}: wanted a u8 register tile in row order, got {kind}")
        held = kind.layout.fragment.run
        run, cols = held * after // before, kind.cols * after // before
        if held % before or run > 8 or cols % (4 * run):
            raise LayoutError(
                f"{self.label}: a lane has no {before} adjacent columns (or too many), got {kind}",
                hint="tc.packed6_type(tc.rt[tc.u8, rows, codes]) is the type to load"
                if self.label == "unpack6"
                else "tc.regroup(x) gives a tile the lanes of its dtype",
            )
        return (laid_out(kind, cols, run),)

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile, writes the result."""
        return (Effect(Access.READ, self.tile), Effect(Access.WRITE, self.result))

    def emit(self, w: Any) -> None:
        """The bits of a group in one register, then its parts."""
        kind, (before, after) = self.tile.type, self.sizes
        assert isinstance(kind, RegTileType), "checked in infer"
        elements, made = unpack(w, kind, w.regs(self.tile)), []
        took, gives = (8, self.bits) if self.reverse else (self.bits, 8)
        for first in range(0, len(elements), before):
            word = elements[first]
            for place in range(1, before):
                part, joined = w.new("b32", "part"), w.new("b32", "word")
                w.line(ptx.alu("shl.b32", part, elements[first + place], took * place))
                w.line(ptx.alu("or.b32", joined, word, part))
                word = joined
            for place in range(after):
                made.append(w.new("b32", "code"))
                w.line(ptx.alu("bfe.u32", made[-1], word, gives * place, gives))
        pack(w, dtypes.u8, made, w.regs(self.result))


def laid_out(kind: RegTileType, cols: int, run: int) -> RegTileType:
    """A u8 tile of other columns, of which a lane holds `run` adjacent ones."""
    kept = None if Fragment(run) == fragment_of(dtypes.u8) else Fragment(run)
    return RegTileType(dtypes.u8, kind.rows, cols, kind.warps, "row", kept)
