"""Registers from and to global memory, element by element: any strides, any address, slow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import DTypeError, LayoutError
from ..ir import Access, Effect, Op, Scope, TensorArg, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import RegTileType, RegVecType, TileType
from .scalar import Operand, require_s32


def check_place(name: str, kind: TileType, arg: TensorArg, coords: tuple[Operand, ...]) -> None:
    """A tile or vector and the tensor it meets have one dtype and enough axes.

    Raises:
        DTypeError: two dtypes, or coordinates that are not integers.
        LayoutError: not registers, or a tile in a tensor of one axis.
    """
    if not isinstance(kind, RegTileType | RegVecType):
        raise LayoutError(f"{name}: between registers and a tensor, got {kind}")
    if kind.dtype != arg.type.dtype:
        raise DTypeError(
            f"{name}: {arg.name} holds {arg.type.dtype}, got {kind}",
            hint="convert in registers: tc.cast(x, dtype)",
        )
    if isinstance(kind, RegTileType) and arg.type.rank < 2:
        raise LayoutError(f"{name}: a tile covers two axes, got {arg.name}: {arg.type}")
    require_s32(name, *coords)


@dataclass(frozen=True)
class _Axis:
    """One axis that the lanes of a warpgroup spread over.

    Args:
        coord: register with this lane's first coordinate.
        extent: of the tensor, register or number.
        stride: in elements, register.
    """

    coord: str
    extent: str
    stride: str


class _Place:
    """Addresses and masks of the elements that this thread holds."""

    def __init__(self, w: Any, arg: TensorArg, coords: tuple[Operand, ...], spread: dict[int, str]):
        self.w = w
        assert not isinstance(arg.type.dtype, str), "resolved before tracing"
        self.nbytes = arg.type.dtype.bits // 8  # type: ignore[union-attr]
        self.base = w.new("b64", "address")
        self.axes: dict[int, _Axis] = {}
        self.rest: str | None = None
        self._masks: dict[tuple[int, int], str] = {}
        w.line(ptx.alu("mov.b64", self.base, w.pointer(arg)))
        for dim, coord in enumerate(coords):
            register = w.src(coord, "s32")
            if dim in spread:
                first = w.new("b32", "first")
                w.line(ptx.alu("add.s32", first, spread[dim], register))
                register = first
                self.axes[dim] = _Axis(first, w.extent(arg, dim), w.stride(arg, dim))
            else:
                self._inside(register, w.extent(arg, dim))
            part = w.new("b64", "part")
            w.line(ptx.alu("cvt.s64.s32", part, register))
            w.line(ptx.alu("mul.lo.s64", part, part, w.stride(arg, dim)))
            w.line(ptx.alu("mad.lo.s64", self.base, part, self.nbytes, self.base))

    def _inside(self, coord: str, extent: str) -> None:
        test = self.w.new("pred", "inside")
        self.w.line(ptx.alu("setp.lt.u32", test, coord, extent))
        self.rest = self.w.both(self.rest, test)

    def address(self, steps: dict[int, int]) -> str:
        """Address of the element `steps` further along each axis."""
        w, address = self.w, self.base
        for dim, step in steps.items():
            if step:
                further = w.new("b64", "at")
                stride = self.axes[dim].stride
                w.line(ptx.alu("mad.lo.s64", further, stride, step * self.nbytes, address))
                address = further
        return address

    def mask(self, steps: dict[int, int]) -> str | None:
        """Predicate: the element lies inside the tensor. Negative coordinates do not."""
        found = self.rest
        for place in steps.items():
            if place not in self._masks:
                self._masks[place] = self._axis_mask(*place)
            found = self.w.both(found, self._masks[place])
        return found

    def _axis_mask(self, dim: int, step: int) -> str:
        w, axis = self.w, self.axes[dim]
        coord = w.add(axis.coord, step)
        inside = w.new("pred", "inside")
        w.line(ptx.alu("setp.lt.u32", inside, coord, axis.extent))
        return str(inside)


def place_of(
    w: Any, kind: RegTileType | RegVecType, arg: TensorArg, coords: tuple[Operand, ...]
) -> tuple[_Place, list[dict[int, int]]]:
    """Where a tile or vector lies, and each element's steps from the thread's first.

    Element i of a tile is row r + 8 h, column 8 j + 2 q + e with i = 4 j + 2 h + e, as in
    `elementwise.element_source`; a row vector has the h, a column vector the 2 j + e.
    """
    last = arg.type.rank - 1
    if isinstance(kind, RegTileType):
        place = _Place(w, arg, coords, {last - 1: w.lane_row(), last: w.lane_col()})
        steps = [
            {last - 1: 8 * (i >> 1 & 1), last: 8 * (i >> 2) + (i & 1)} for i in range(kind.elements)
        ]
    elif kind.axis == "row":
        place = _Place(w, arg, coords, {last: w.lane_row()})
        steps = [{last: 8 * i} for i in range(kind.registers)]
    else:
        place = _Place(w, arg, coords, {last: w.lane_col()})
        steps = [{last: 8 * (i >> 1) + (i & 1)} for i in range(kind.registers)]
    return place, steps


@dataclass(eq=False)
class LoadGlobal(Op):
    """A new tile or vector with the elements of `arg` at `coords`; zero outside the tensor.

    Args:
        kind: its type.
        coords: element coordinates, outermost first.
        arg: the tensor, whose dtype is the tile's.
    """

    verb: ClassVar[str] = "load"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    kind: RegTileType | RegVecType = attribute()
    coords: tuple[Operand, ...] = operand()
    arg: TensorArg = attribute()

    def infer(self) -> tuple[TileType, ...]:
        """The type given."""
        check_place("load", self.kind, self.arg, self.coords)
        return (self.kind,)

    def effects(self) -> tuple[Effect, ...]:
        """Writes the registers."""
        return (Effect(Access.WRITE, self.result),)

    def emit(self, w: Any) -> None:
        """One predicated `ld.global` an element."""
        place, steps = place_of(w, self.kind, self.arg, self.coords)
        if self.kind.dtype.bits == 32:
            for register, step in zip(w.regs(self.result), steps, strict=True):
                self._load(w, place, step, register)
            return
        for index, register in enumerate(w.regs(self.result)):
            pair = (w.new("b16", "low"), w.new("b16", "high"))
            for half, step in zip(pair, steps[2 * index :], strict=False):
                self._load(w, place, step, half)
            w.line(ptx.alu("mov.b32", register, ptx.vector(pair)))

    def _load(self, w: Any, place: _Place, step: dict[int, int], register: str) -> None:
        kind = memory_kind(self.kind)
        zero = ptx.f32_literal(0.0) if kind == "f32" else 0
        w.line(ptx.alu(f"mov.{kind}", register, zero))
        w.line(ptx.ld_global(kind, register, place.address(step)), pred=place.mask(step))


@dataclass(eq=False)
class StoreGlobal(Op):
    """`arg[coords...] = tile`; elements outside the tensor are not written.

    Args:
        tile: a register tile.
        coords: element coordinates, outermost first.
        arg: the tensor, whose dtype is the tile's.
    """

    verb: ClassVar[str] = "store"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    tile: Value = operand()
    coords: tuple[Operand, ...] = operand()
    arg: TensorArg = attribute()

    @property
    def stores(self) -> TensorArg:
        """The tensor."""
        return self.arg

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; the tile must have the tensor's dtype."""
        check_place("store", self.tile.type, self.arg, self.coords)
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile."""
        return (Effect(Access.READ, self.tile),)

    def emit(self, w: Any) -> None:
        """One predicated `st.global` an element."""
        tile = self.tile.type
        assert isinstance(tile, RegTileType), "a tile: vectors have StoreVector"
        place, steps = place_of(w, tile, self.arg, self.coords)
        kind = memory_kind(tile)
        for index, register in enumerate(w.regs(self.tile)):
            parts = [register]
            if tile.packed:
                parts = [w.new("b16", "low"), w.new("b16", "high")]
                w.line(ptx.alu("mov.b32", ptx.vector(parts), register))
            for part, step in zip(parts, steps[index * len(parts) :], strict=False):
                w.line(ptx.st_global(kind, place.address(step), part), pred=place.mask(step))


def memory_kind(kind: RegTileType | RegVecType) -> str:
    """Type of one element in `ld` and `st`: that of its register."""
    return "f32" if kind.dtype.name == "f32" else f"b{kind.dtype.bits}"
