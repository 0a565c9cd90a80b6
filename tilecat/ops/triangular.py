"""Inverse of a unit lower triangular matrix, in f32, by substitution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .. import dtypes
from ..errors import DTypeError, LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, SharedRequest, Value, operand
from ..ptx import instructions as ptx
from ..tiles import RegTileType, TileType
from .reduce import exchange_requests

PANEL = 16  # rows of a warp that are solved together
STRIDE_ELEMS = 72  # of a panel in shared memory: rows of eight lanes fall into other banks
SCRATCH_BYTES = 4 * PANEL * STRIDE_ELEMS
SIZES = (16, 32, 64)


@dataclass(eq=False)
class TriangularInverse(Op):
    """`(I + strictly lower part of A)**-1`.

    Row k of the result is final when the rows above it have been taken off; then it is taken off
    the rows below it, times their A[i, k]. A warp does so with shuffles. In a warpgroup each warp
    solves its 16 rows in turn, and passes them to the warps below through shared memory.

    Substitution is the form whose error does not grow with the condition of the powers of A
    (doubling by squares loses all digits on correlated rows).
    """

    verb: ClassVar[str] = "tril_inverse"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    tile: Value = operand()
    scratch: Value | None = operand(default=None)

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
        return (Effect(Access.READ, self.tile), Effect(Access.WRITE, self.result))

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """Each store and load of a panel, of two elements a lane."""
        if self.scratch is None:
            return ()
        half = np.arange(16)  # 8 bytes a lane: two passes of half a warp
        store, load = exchange_requests(
            4 * (half // 4 * STRIDE_ELEMS + 2 * (half % 4)), 8 * (np.arange(32) % 4)
        )
        return (store, load)

    def emit(self, w: Any) -> None:
        """Identity, then row by row."""
        kind = self.tile.type
        assert isinstance(kind, RegTileType), "checked in infer"
        solver = _Solver(w, kind, w.regs(self.tile), w.regs(self.result))
        solver.start()
        if self.scratch is None:
            for k in range(kind.rows - 1):
                solver.eliminate(k, solver.row(k, k // PANEL), range(kind.rows // PANEL))
            return
        for panel in range(kind.rows // PANEL):
            self._panel(w, solver, panel)

    def _panel(self, w: Any, solver: _Solver, panel: int) -> None:
        """Warp `panel` solves its rows and publishes them; the warps below take them off."""
        assert self.scratch is not None, "the caller looked"
        first, last = PANEL * panel, solver.kind.rows // PANEL - 1
        base, warp = w.scratch(self.scratch), w.warp()
        mine, below = w.new("pred", "mine"), w.new("pred", "below")
        w.line(ptx.alu("setp.eq.u32", mine, warp, panel))
        w.line(ptx.alu("setp.gt.u32", below, warp, panel))
        with _only(w, mine):
            for k in range(first, first + PANEL - 1):
                solver.eliminate(k, solver.row(k, 0), (0,), panel)
            if panel < last:
                solver.publish(base, panel)
        if panel == last:
            return
        w.sync_warpgroup()
        with _only(w, below):
            for k in range(first, first + PANEL):
                solver.eliminate(k, solver.published(base, k), (0,), None)
        w.sync_warpgroup()


class _only:
    """Code for the warps where a predicate holds."""

    def __init__(self, w: Any, test: str):
        self.w, self.test, self.end = w, test, w.label("rows")
        self.inner: Any = None

    def __enter__(self) -> None:
        self.w.line(f"@!{self.test} {ptx.bra(self.end)}")
        self.inner = self.w.nested()
        self.inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.inner.__exit__(*error)
        self.w.mark(self.end)


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
        lane = w.local(
            ("row lane", part), "b32", "holder", lambda r: self._lane(r, 3, 4 * part)
        )
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

    def eliminate(self, k: int, row: list[str], blocks: Any, panel: int | None = 0) -> None:
        """`X[i] -= A[i, k] X[k]` for the rows i of these blocks that may lie below k.

        `panel`: rows of block b start at 16 (b + panel); None: all of them lie below.
        """
        w = self.w
        lane = w.local(
            ("column lane", k % 8 // 2), "b32", "holder", lambda r: self._lane(r, 28, k % 8 // 2)
        )
        for block in blocks:
            for half in range(2):
                end = PANEL * (block + (panel or 0)) + 8 * half + 7
                if panel is not None and end <= k:
                    continue
                factor = w.new("f32", "factor")
                source = self.a[self.place(block, k // 8, half, k % 2)]
                w.line(ptx.shfl_idx(factor, source, lane))
                w.line(ptx.alu("neg.f32", factor, factor))
                for index, value in enumerate(row):
                    target = self.x[self.place(block, index // 2, half, index % 2)]
                    w.line(ptx.alu("fma.rn.f32", target, factor, value, target))

    def publish(self, base: str, panel: int) -> None:
        """Stores this warp's rows, as far as they are not zero."""
        w, at, row = self.w, self.w.new("b32", "at"), self.w.new("b32", "row")
        w.line(ptx.alu("shr.u32", row, w.lane(), 2))
        w.line(ptx.alu("mad.lo.u32", at, row, 4 * STRIDE_ELEMS, base))
        w.line(ptx.alu("mad.lo.u32", at, w.lane_col(2), 4, at))
        for step in range(2 * panel + 2):
            for half in range(2):
                pair = [self.x[self.place(0, step, half, e)] for e in range(2)]
                offset = 4 * (8 * half * STRIDE_ELEMS + 8 * step)
                w.line(ptx.st_shared("v2.f32", f"{at}+{offset}", ptx.vector(pair)))

    def published(self, base: str, k: int) -> list[str]:
        """The columns of row k that this lane has, from shared memory."""
        w = self.w
        at = w.local(
            ("panel", base), "b32", "at",
            lambda r: w.line(ptx.alu("mad.lo.u32", r, w.lane_col(2), 4, base)),
        )  # fmt: skip
        found = []
        for step in range(k // 8 + 1):
            pair = [w.new("f32", "above"), w.new("f32", "above")]
            offset = 4 * (k % PANEL * STRIDE_ELEMS + 8 * step)
            w.line(ptx.ld_shared("v2.f32", ptx.vector(pair), f"{at}+{offset}"))
            found += pair
        return found
