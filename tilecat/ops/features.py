"""Features of a degree two Taylor expansion of exp: products of a row's elements."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

from ..dtypes import bf16, f16, f32
from ..errors import LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, Value, operand
from ..ptx import instructions as ptx
from ..tiles import RegTileType, TileType
from .elements import pack, unpack

DIM = 16  # elements of a row: those of a quad of lanes, four each
LANES = 4
HELD = DIM // LANES
FEATURES = 160  # 1, 16 elements, 136 products; zeros up to a multiple of 16 columns, 40 a lane
# Of the products of two lanes' elements i and j each lane makes those with i < j, and of those with
# i = j the lower lane the first half.
CROSS = tuple((i, j) for i in range(HELD) for j in range(i + 1, HELD))
OWN = tuple((i, j) for i in range(HELD) for j in range(i, HELD))


def element_of(lane: int, index: int) -> int:
    """Column of element `index` that a lane of a quad holds: 2q, 2q + 1, 8 + 2q, 9 + 2q."""
    return 8 * (index // 2) + 2 * lane + index % 2


def feature_order() -> tuple[tuple[int, ...], ...]:
    """What each of the 160 columns is: (i, j) the product of two elements, (i,), () one.

    (-1,) is zero. Column 8 s + 2 q + e is number 2 s + e of what lane q makes.
    """
    columns: list[tuple[int, ...]] = [(-1,)] * FEATURES
    for lane in range(LANES):
        made: list[tuple[int, ...]] = [
            (element_of(lane, i), element_of(lane, j)) for i, j in OWN
        ]
        for distance in range(1, LANES):
            other = lane ^ distance
            pairs = [*CROSS, *((i, i) for i in _same(_is_second(lane, distance)))]
            made += [(element_of(lane, i), element_of(other, j)) for i, j in pairs]
        made += [(element_of(lane, i),) for i in range(HELD)]
        made.append(() if lane == 0 else (-1,))
        for number, what in enumerate(made):
            step, e = divmod(number, 2)
            columns[8 * step + 2 * lane + e] = tuple(sorted(what))
    return tuple(columns)


def _is_second(lane: int, distance: int) -> bool:
    """Whether a lane is the upper of two: by the lowest bit in which they differ."""
    return bool(lane & distance & -distance)


def _same(second: bool) -> tuple[int, int]:
    """Elements of which a lane makes the product with the other's same one."""
    return (2, 3) if second else (0, 1)


@dataclass(eq=False)
class TaylorFeatures(Op):
    """`f(c x)` of each row x of 16, with `f(x).f(y) = 1 + x.y + (x.y)^2 / 2`.

    Args:
        tile: 16 bits, row order.
        factor: c, an f32 scalar or a number.
    """

    verb: ClassVar[str] = "taylor_features"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    tile: Value = operand()
    factor: Value | float = operand()

    def infer(self) -> tuple[TileType, ...]:
        """160 columns of the tile's dtype."""
        kind = self.tile.type
        if not isinstance(kind, RegTileType) or kind.order != "row" or kind.cols != DIM or (
            kind.dtype not in (bf16, f16)
        ):
            raise LayoutError(
                f"taylor_features: wanted a register tile of bf16 or f16 with {DIM} columns, in "
                f"row order, got {kind}"
            )
        return (RegTileType(kind.dtype, kind.rows, FEATURES, kind.warps),)

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile, writes the result."""
        return (Effect(Access.READ, self.tile), Effect(Access.WRITE, self.result))

    def emit(self, w: Any) -> None:
        """Rows one after another."""
        kind = self.tile.type
        assert isinstance(kind, RegTileType), "checked in infer"
        source, target = w.regs(self.tile), w.regs(self.result)
        maker = _Maker(w, kind, w.src(self.factor, "f32"))
        for row in range(len(source) // 2):
            block, half = divmod(row, 2)
            words = [source[4 * block + half], source[4 * block + 2 + half]]
            first = block * FEATURES // 4 + half
            maker.row(words, target[first : first + FEATURES // 4 : 2])


@dataclass(eq=False)
class TaylorGradient(Op):
    """`c sum over f of g_f (d phi_f / d x)(c x)` of each row x of 16, g its features' gradient.

    Args:
        gradient: f32, a row's 160 features in the order of `TaylorFeatures`.
        tile: the rows, 16 bits, row order.
        factor: c, an f32 scalar or a number.
    """

    verb: ClassVar[str] = "taylor_gradient"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    gradient: Value = operand()
    tile: Value = operand()
    factor: Value | float = operand()

    def infer(self) -> tuple[TileType, ...]:
        """The rows' shape, in f32."""
        given, kind = self.gradient.type, self.tile.type
        if not isinstance(kind, RegTileType) or kind.order != "row" or kind.cols != DIM or (
            kind.dtype not in (bf16, f16)
        ):
            raise LayoutError(
                f"taylor_gradient: wanted a register tile of bf16 or f16 with {DIM} columns, in "
                f"row order, got {kind}"
            )
        wanted = RegTileType(f32, kind.rows, FEATURES, kind.warps)
        if given != wanted:
            raise LayoutError(
                f"taylor_gradient: the gradient of features of {kind} is {wanted}, got {given}"
            )
        return (RegTileType(f32, kind.rows, DIM, kind.warps),)

    def effects(self) -> tuple[Effect, ...]:
        """Reads both tiles, writes the result."""
        return (
            Effect(Access.READ, self.gradient), Effect(Access.READ, self.tile),
            Effect(Access.WRITE, self.result),
        )  # fmt: skip

    def emit(self, w: Any) -> None:
        """Rows one after another."""
        kind = self.tile.type
        assert isinstance(kind, RegTileType), "checked in infer"
        given, source, target = w.regs(self.gradient), w.regs(self.tile), w.regs(self.result)
        maker = _Differentiator(w, kind, w.src(self.factor, "f32"))
        for row in range(len(source) // 2):
            block, half = divmod(row, 2)
            words = [source[4 * block + half], source[4 * block + 2 + half]]
            maker.row(
                _of_row(given, block * FEATURES // 2, half, FEATURES // LANES), words,
                _of_row(target, block * DIM // 2, half, HELD),
            )  # fmt: skip


def _of_row(registers: tuple[str, ...], first: int, half: int, count: int) -> list[str]:
    """A lane's f32 elements of a row: of each 8 columns two, two further of the row 8 below."""
    return [registers[first + 4 * (n // 2) + 2 * half + n % 2] for n in range(count)]


@dataclass(frozen=True)
class _Maker:
    """Makes the features of rows."""

    w: Any
    kind: RegTileType
    factor: str

    def row(self, words: list[str], target: tuple[str, ...]) -> None:
        """A lane's features of a row, of its elements and those of the other lanes of the quad."""
        own = self._elements(words)
        made = []
        for i, j in OWN:
            left = own[i]
            if i == j:
                left = self._times(own[i], ptx.f32_literal(sqrt(0.5)))
            made.append(self._times(left, own[j]))
        for distance in range(1, LANES):
            other = self._elements([self._from(word, distance) for word in words])
            made += [self._times(own[i], other[j]) for i, j in CROSS]
            second = self._second(distance)
            for low, high in zip(_same(False), _same(True), strict=True):
                pair = [self._selected(x[high], x[low], second) for x in (own, other)]
                made.append(self._times(*pair))
        one = self._selected(ptx.f32_literal(0.0), ptx.f32_literal(1.0), self._not_first())
        made += [*own, one, ptx.f32_literal(0.0)]
        pack(self.w, self.kind.dtype, made, target)

    def _elements(self, words: list[str]) -> list[str]:
        """Four elements in f32, times the factor."""
        kind = RegTileType(self.kind.dtype, DIM, DIM, 1)
        return [self._times(x, self.factor) for x in unpack(self.w, kind, words)]

    def _times(self, a: str, b: str) -> str:
        product: str = self.w.new("f32", "product")
        self.w.line(ptx.alu("mul.rn.f32", product, a, b))
        return product

    def _from(self, word: str, distance: int, kind: str = "b32") -> str:
        got: str = self.w.new(kind, "other")
        self.w.line(ptx.shfl_bfly(got, word, distance))
        return got

    def _selected(self, a: str, b: str, test: str) -> str:
        made: str = self.w.new("f32", "selected")
        self.w.line(ptx.alu("selp.f32", made, a, b, test))
        return made

    def _second(self, distance: int) -> str:
        return self._lane_test(distance & -distance)

    def _not_first(self) -> str:
        return self._lane_test(LANES - 1)

    def _lane_test(self, mask: int) -> str:
        """Predicate: some of these bits of the lane are set."""

        def build(test: str) -> None:
            part = self.w.new("b32", "part")
            self.w.line(ptx.alu("and.b32", part, self.w.lane(), mask))
            self.w.line(ptx.alu("setp.ne.u32", test, part, 0))

        test: str = self.w.local(("lane mask", mask), "pred", "second", build)
        return test


@dataclass(frozen=True)
class _Differentiator(_Maker):
    """Goes back from features of rows, in the order in which `_Maker` makes them."""

    def row(self, given: list[str], words: list[str], target: list[str]) -> None:  # type: ignore[override]
        """A lane's gradients of its elements: of its features, and of those of the other lanes."""
        own, left = self._elements(words), iter(given)
        sums: list[str | None] = [None] * HELD
        for i, j in OWN:
            g = next(left)
            if i == j:
                g = self._times(g, ptx.f32_literal(sqrt(2.0)))
            else:
                self._add(sums, j, g, own[i])
            self._add(sums, i, g, own[j])
        for distance in range(1, LANES):
            other = self._elements([self._from(word, distance) for word in words])
            away = self._between(left, (own, other), sums, distance)
            for i, share in enumerate(away):
                self._add(sums, i, self._from(share, distance, "f32"), None)
        for i, x in enumerate(sums):
            total = self._sum(x, next(left), None)
            self.w.line(ptx.alu("mul.rn.f32", target[i], total, self.factor))

    def _between(
        self, left: Any, elements: tuple[list[str], list[str]], sums: list[Any], distance: int
    ) -> list[Any]:
        """Adds products with another lane's elements to this one's; gives what is the other's."""
        own, other = elements
        away: list[str | None] = [None] * HELD
        for i, j in CROSS:
            g = next(left)
            self._add(sums, i, g, other[j])
            self._add(away, j, g, own[i])
        second = self._second(distance)
        for pair in zip(_same(False), _same(True), strict=True):
            g = next(left)
            for number, index in enumerate(pair):
                held = (ptx.f32_literal(0.0), g) if number else (g, ptx.f32_literal(0.0))
                share = self._selected(held[1], held[0], second)
                self._add(sums, index, share, other[index])
                self._add(away, index, share, own[index])
        return away

    def _add(self, sums: list[Any], index: int, a: str, b: str | None) -> None:
        sums[index] = self._sum(sums[index], a, b)

    def _sum(self, before: str | None, a: str, b: str | None) -> str:
        """`before + a b`."""
        made: str = self.w.new("f32", "sum")
        if before is None:
            assert b is not None, "the first is a product"
            self.w.line(ptx.alu("mul.rn.f32", made, a, b))
        elif b is None:
            self.w.line(ptx.alu("add.rn.f32", made, before, a))
        else:
            self.w.line(ptx.alu("fma.rn.f32", made, a, b, before))
        return made
