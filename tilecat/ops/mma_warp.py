"""Matrix multiply-accumulate by a warp, on register tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..arch import MMA_SYNC
from ..errors import LayoutError, ScopeError
from ..ir import Access, Effect, Op, Scope, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import RegTileType, TileType
from .mma import (
    check_extents,
    check_registers,
    check_saturation,
    check_shapes,
    find_form,
)

COLUMNS = 8  # N of every mma.sync: PTX ISA 9.7.14.5.14


@dataclass(eq=False)
class WarpMma(Op):
    """`acc = A @ B + acc` (or `acc = A @ B`) on register tiles of one warp, complete at once.

    Args:
        acc: M x N accumulator, M and N multiples of 16.
        a: M x K tile in row order.
        b: K x N tile in column order.
        accumulate: True, False, or a run-time predicate.
        saturate: s32 sums do not wrap.
    """

    verb: ClassVar[str] = "{name}"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARP,)
    name: str = attribute()
    acc: Value = operand()
    a: Value = operand()
    b: Value = operand()
    accumulate: Value | bool = operand()
    saturate: bool = attribute(default=False)

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; shapes, dtypes and layouts must fit an instruction."""
        acc, a, b = self.acc.type, self.a.type, self.b.type
        for operand_name, kind in (("acc", acc), ("A", a), ("B", b)):
            if not isinstance(kind, RegTileType):
                raise LayoutError(
                    f"{self.name}: the operands of a warp's mma are register tiles, "
                    f"got {operand_name.lower()}={kind}",
                    hint=f"{operand_name.lower()} = tc.load(tile, "
                    f'order="{"col" if operand_name == "B" else "row"}")',
                )
        assert isinstance(acc, RegTileType), "checked above"
        assert isinstance(a, RegTileType) and isinstance(b, RegTileType), "checked above"
        form = find_form(self.name, MMA_SYNC, a, b, acc)
        check_shapes(self.name, acc, a, b)
        check_extents(self.name, form, acc, a.cols)
        check_saturation(self.name, form, self.saturate)
        for operand_name, kind, order in (("acc", acc, "row"), ("A", a, "row"), ("B", b, "col")):
            check_registers(self.name, operand_name, kind, order, 1)
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads A and B (and the accumulator), writes the accumulator."""
        reads = [self.a, self.b] + ([] if self.accumulate is False else [self.acc])
        return (*(Effect(Access.READ, v) for v in reads), Effect(Access.WRITE, self.acc))

    def emit(self, w: Any) -> None:
        """One `mma.sync` for 16 rows, 8 columns and a K step.

        Of the 16 columns at registers 4t .. 4t+3 of B, t its K step, registers 4t and 4t+2 are
        the first 8, the others the second: B is the transpose of an A (`RegisterLayout`).
        """
        acc, a = self.acc.type, self.a.type
        assert isinstance(acc, RegTileType) and isinstance(a, RegTileType), "checked in infer"
        form = w.mma_form(self, find_form(self.name, MMA_SYNC, a, self.b.type, acc))
        dst, left, right = (w.regs(value) for value in (self.acc, self.a, self.b))
        held = w.start_from(dst, "f32" if acc.dtype.name == "f32" else "b32", self.accumulate)
        steps, tiles = a.cols // form.k, acc.cols // COLUMNS
        size = len(dst) * form.m // (acc.rows * tiles)  # registers of one 16 x 8 accumulator
        types = f"{form.accumulator}.{form.a}.{form.b}.{form.accumulator}"
        types = f"satfinite.{types}" if self.saturate else types
        for step in range(steps):
            for row in range(acc.rows // form.m):
                first = 4 * (steps * row + step)
                for col in range(tiles):
                    second = 4 * (steps * (col // 2) + step) + col % 2
                    at = slice(size * (tiles * row + col), size * (tiles * row + col + 1))
                    w.line(
                        ptx.mma_sync(
                            f"m{form.m}n{COLUMNS}k{form.k}", types, dst[at],
                            left[first : first + 4], right[second : second + 3 : 2],
                            dst[at] if step else held[at],
                        )
                    )  # fmt: skip


def require_no_signs(name: str, signs: tuple[int, int]) -> None:
    """A warp's mma has no signs.

    Raises:
        ScopeError: one is given.
    """
    if signs != (1, 1):
        raise ScopeError(
            f"{name}: negate_a and negate_b are of a warpgroup's mma, got scope=warp",
            hint=f"negate the tile: tc.{name}(acc, -a, b)",
        )
