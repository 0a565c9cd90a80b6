"""Random tiles: Philox 4x32-10, keyed by seed, row and column, the same on every layout.

J. Salmon, M. Moraes, R. Dror, D. Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import RegTileType, RegVecType, TileType
from .conditions import vector_start
from .relayout import lane_test
from .scalar import Operand, require_s32

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
WORDS = 4  # numbers of one counter: those of four adjacent columns


@dataclass(eq=False)
class RandomBits(Op):
    """`out[r, c]`: word `c mod 4` of Philox(counter = (c // 4, r, offset, 0), key = (seed, 0)).

    Args:
        kind: a u32 tile, or an f32 one for numbers in [0, 1), the top 24 bits times 2**-24; or a
            plain vector of such, columns of one row, in runs of 4 or 8.
        seed: the key.
        row: added to the tile's rows.
        col: added to its columns; a multiple of 4.
        offset: another stream of the same seed.
    """

    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    kind: RegTileType | RegVecType = attribute()
    seed: Operand = operand()
    row: Operand = operand()
    col: Operand = operand()
    offset: Operand = operand()

    def infer(self) -> tuple[TileType, ...]:
        """The tile."""
        require_s32("random_bits", self.seed, self.row, self.col, self.offset)
        if not isinstance(self.col, Value) and self.col % WORDS:
            raise LayoutError(
                f"random_bits: the first column is a multiple of {WORDS}, got col={self.col}"
            )
        if isinstance(self.kind, RegVecType) and self.kind.run % WORDS:
            raise LayoutError(
                f"random_bits: a vector has its values in runs of 4 or 8, got {self.kind}",
                hint=f'rv[{self.kind.dtype.name}, {-(-self.kind.length // 128) * 128}, "plain", 4]',
            )
        return (self.kind,)

    def effects(self) -> tuple[Effect, ...]:
        """Writes the tile."""
        return (Effect(Access.WRITE, self.result),)

    def emit(self, w: Any) -> None:
        """Ten rounds for every four columns that meet this thread."""
        kind, dst = self.kind, w.regs(self.result)
        rows, cols, first, run = self._places(w)
        keys, words = self._keys(w), {}
        offset = w.src(self.offset, "s32")
        for index, (row, col) in enumerate(zip(rows, cols, strict=True)):
            group = (row, col - col % run)
            if group not in words:
                counter = [
                    _sum(w, first[1], self.col, group[1], shift=2),
                    _sum(w, first[0], self.row, row), offset, "0",
                ]  # fmt: skip
                words[group] = _philox(w, counter, keys)
            word = self._word(w, words[group], col % run)
            if not kind.dtype.is_float:
                w.line(ptx.alu("mov.b32", dst[index], word))
                continue
            w.line(ptx.alu("shr.u32", word, word, 8))
            w.line(ptx.alu("cvt.rn.f32.u32", dst[index], word))
            w.line(ptx.alu("mul.rn.f32", dst[index], dst[index], ptx.f32_literal(2.0**-24)))

    def _places(self, w: Any) -> tuple[list[int], list[int], tuple[str, str], int]:
        """Row, column of each element from the thread's first, that, columns of a counter."""
        kind = self.kind
        if isinstance(kind, RegVecType):
            cols = kind.layout.position(0, np.arange(kind.elements)).tolist()
            return [0] * len(cols), cols, ("0", vector_start(w, kind)), WORDS
        rows, cols = kind.layout.row_col(0, np.arange(kind.elements))
        first = w.lane_position(kind, "row"), w.lane_position(kind, "col")
        run = min(kind.layout.fragment.run, WORDS) if kind.order == "row" else 1
        return rows.tolist(), cols.tolist(), first, run

    def _keys(self, w: Any) -> list[tuple[str, str]]:
        """The key of each round."""
        seed, found = w.src(self.seed, "s32"), []
        for index in range(ROUNDS):
            low = w.new("b32", "key")
            weyl = [constant * index & 0xFFFFFFFF for constant in WEYL]
            w.line(ptx.alu("add.u32", low, seed, f"0x{weyl[0]:x}"))
            found.append((low, f"0x{weyl[1]:x}"))
        return found

    def _word(self, w: Any, words: Sequence[str], inside: int) -> str:
        """The word of an element: by its column, which the lane decides but for `inside`."""
        kind, made = self.kind, str(w.new("b32", "word"))
        run = kind.run if isinstance(kind, RegVecType) else kind.layout.fragment.run
        along = isinstance(kind, RegVecType) or kind.order == "row"
        if along and run % WORDS == 0:
            w.line(ptx.alu("mov.b32", made, words[inside]))
        elif along and run == 2:
            w.line(ptx.alu("selp.b32", made, words[2 + inside], words[inside], lane_test(w, 0)))
        else:
            bit = 0 if along else 2  # lane bits that hold the column
            odd, upper = lane_test(w, bit), lane_test(w, bit + 1)
            low, high = w.new("b32", "low"), w.new("b32", "high")
            w.line(ptx.alu("selp.b32", low, words[1], words[0], odd))
            w.line(ptx.alu("selp.b32", high, words[3], words[2], odd))
            w.line(ptx.alu("selp.b32", made, high, low, upper))
        return made


def _sum(w: Any, lane: str, first: Operand, place: int, shift: int = 0) -> str:
    """`(first + lane + place) >> shift`."""
    total = str(w.new("b32", "count"))
    w.line(ptx.alu("add.u32", total, lane, w.src(first, "s32")))
    w.line(ptx.alu("add.u32", total, total, place))
    if shift:
        w.line(ptx.alu("shr.u32", total, total, shift))
    return total


def _philox(w: Any, counter: Sequence[str], keys: Sequence[tuple[str, str]]) -> list[str]:
    held = list(counter)
    for low, high in keys:
        mixed = []
        for source, other, key, multiplier in (
            (held[2], held[1], low, MULTIPLIERS[1]), (held[0], held[3], high, MULTIPLIERS[0]),
        ):  # fmt: skip
            top, bottom = w.new("b32", "top"), w.new("b32", "bottom")
            w.line(ptx.alu("mul.hi.u32", top, source, f"0x{multiplier:x}"))
            w.line(ptx.alu("mul.lo.u32", bottom, source, f"0x{multiplier:x}"))
            w.line(ptx.alu("xor.b32", top, top, other))
            w.line(ptx.alu("xor.b32", top, top, key))
            mixed += [top, bottom]
        held = mixed
    return held
