"""Inverse of a unit lower triangular matrix, in f32, by substitution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .. import dtypes
from ..errors import DTypeError, LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, SharedRequest, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import RegTileType, SharedTileType, TileType
from . import triangular_blocks as blocks

PANEL = 16  # rows of a fragment
SIZES = (16, 32, 64)


@dataclass(eq=False)
class TriangularInverse(Op):
    """`(I + strictly lower part of A)**-1`.

    Row k of the result is final when the rows above it have been taken off; then it is taken off
    the rows below it, times their A[i, k]. A warp does so with shuffles. A warpgroup does so with
    blocks of 16 rows, whose products are of bf16 parts of f32 (`BlockSolver`).

    Substitution is the form whose error does not grow with the condition of the powers of A
    (doubling by squares loses all digits on correlated rows).
    """

    verb: ClassVar[str] = "tril_inverse"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    tile: Value = operand()
    scratch: Value | None = operand(default=None)
    parts: int = attribute(default=3)

    def infer(self) -> tuple[TileType, ...]:
        """The tile's type."""
        kind = self.tile.type
        if not isinstance(kind, RegTileType) or kind.dtype != dtypes.f32:
            raise DTypeError(
                f"tril_inverse: wanted an f32 register tile, got {kind}",
                hint="tc.cast(x, tc.f32): rounding before the inverse loses digits",
            )
        if kind.order != "row" or kind.rows != kind.cols or kind.rows not in SIZES:
            raise LayoutError(
                f"tril_inverse: wanted a square tile of 16, 32 or 64 rows in row order, got {kind}"
            )
        return (kind,)

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile, writes the result."""
        mine = (Effect(Access.READ, self.tile), Effect(Access.WRITE, self.result))
        if self.scratch is None or not self.borrows:
            return mine
        return (*mine, Effect(Access.WRITE, self.scratch))

    @property
    def borrows(self) -> bool:
        """Whether the scratch is a shared tile of the kernel's."""
        return self.scratch is not None and isinstance(self.scratch.type, SharedTileType)

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """Each store and load of a panel, of two elements a lane."""
        if self.scratch is None:
            return ()
        return blocks.requests()

    def emit(self, w: Any) -> None:
        """Identity, then row by row."""
        kind = self.tile.type
        assert isinstance(kind, RegTileType), "checked in infer"
        tile, result = w.regs(self.tile), w.regs(self.result)
        if self.scratch is not None:
            borrowed = self.borrows
            base = w.materialize(w.address(self.scratch)) if borrowed else w.scratch(self.scratch)
            blocks.BlockSolver(w, tile, result, base, self.parts).emit()
            return
        solver = _Solver(w, kind, tile, result)
        solver.start()
        for k in range(kind.rows - 1):
            solver.eliminate(k, solver.row(k, k // PANEL))


@dataclass
class _Solver:
    """Registers of A and of the result X: index [block of 16 rows, step of 8 columns, half, e]."""

    w: Any
    kind: RegTileType
    a: tuple[str, ...]
    x: tuple[str, ...]

    def place(self, block: int, step: int, half: int, e: int) -> int:
        """Index of an element of this thread."""
        return block * (self.kind.cols // 2) + 4 * step + 2 * half + e

    def start(self) -> None:
        """X is the identity; A keeps what is strictly below the diagonal."""
        w, kind = self.w, self.kind
        rows, cols = kind.layout.row_col(0, np.arange(kind.elements))
        distance, held = w.new("b32", "distance"), list(self.a)
        w.line(ptx.alu("sub.s32", distance, w.lane_row(kind.warps), w.lane_col(2)))
        one, zero = ptx.f32_literal(1.0), ptx.f32_literal(0.0)
        for index, gap in enumerate((cols - rows).tolist()):
            test, lower = w.new("pred", "diagonal"), w.new("pred", "lower")
            w.line(ptx.alu("setp.eq.s32", test, distance, gap))
            w.line(ptx.alu("selp.f32", self.x[index], one, zero, test))
            w.line(ptx.alu("setp.gt.s32", lower, distance, gap))
            held[index] = w.new("f32", "lower")
            w.line(ptx.alu("selp.f32", held[index], self.a[index], zero, lower))
        self.a = tuple(held)

    def row(self, k: int, block: int) -> list[str]:
        """The columns of X's row k that this lane has, from the lanes that hold the row."""
        w, part, half = self.w, k % 8, k % PANEL // 8
        lane = w.local(("row lane", part), "b32", "holder", lambda r: self._lane(r, 3, 4 * part))
        found = []
        for step in range(k // 8 + 1):
            for e in range(2):
                found.append(w.new("f32", "above"))
                source = self.x[self.place(block, step, half, e)]
                w.line(ptx.shfl_idx(found[-1], source, lane))
        return found

    def _lane(self, register: str, mask: int, constant: int) -> None:
        self.w.line(ptx.alu("and.b32", register, self.w.lane(), mask))
        self.w.line(ptx.alu("or.b32", register, register, constant))

    def eliminate(self, k: int, row: list[str]) -> None:
        """`X[i] -= A[i, k] X[k]` for the rows i that may lie below k."""
        w = self.w
        lane = w.local(
            ("column lane", k % 8 // 2), "b32", "holder", lambda r: self._lane(r, 28, k % 8 // 2)
        )
        for block in range(self.kind.rows // PANEL):
            for half in range(2):
                if PANEL * block + 8 * half + 7 <= k:
                    continue
                factor = w.new("f32", "factor")
                source = self.a[self.place(block, k // 8, half, k % 2)]
                w.line(ptx.shfl_idx(factor, source, lane))
                w.line(ptx.alu("neg.f32", factor, factor))
                for index, value in enumerate(row):
                    target = self.x[self.place(block, index // 2, half, index % 2)]
                    w.line(ptx.alu("fma.rn.f32", target, factor, value, target))
