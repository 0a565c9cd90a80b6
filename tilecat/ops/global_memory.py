"""Registers from and to global memory, element by element: any strides, any address, slow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import DTypeError, LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, TensorArg, Value, attribute, operand
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

    Read off the layouts at thread 0; the other threads' elements are shifted alike.
    """
    last = arg.type.rank - 1
    if isinstance(kind, RegTileType):
        first = {last - 1: w.lane_position(kind, "row"), last: w.lane_position(kind, "col")}
        rows, cols = kind.layout.row_col(0, np.arange(kind.elements))
        steps = [{last - 1: int(r), last: int(c)} for r, c in zip(rows, cols, strict=True)]
        return _Place(w, arg, coords, first), steps
    if kind.axis == "row":
        start = w.lane_row(kind.warps)
    elif kind.axis == "col":
        start = w.lane_col(kind.layout.fragment.run)
    else:
        start = w.rank(kind.warps)
    positions = kind.layout.position(0, np.arange(kind.registers))
    return _Place(w, arg, coords, {last: start}), [{last: int(p)} for p in positions]


def owner(w: Any, kind: RegTileType | RegVecType) -> str | None:
    """Predicate: this thread's copy of a vector's values is the one that is stored."""
    if isinstance(kind, RegTileType) or kind.axis == "plain":
        return None
    mine = w.new("pred", "owner")
    if kind.axis == "row":
        w.line(ptx.alu("setp.eq.u32", mine, w.lane_col(1), 0))
    else:
        w.line(ptx.alu("setp.lt.u32", mine, w.rank(kind.warps), 4))
    return str(mine)


@dataclass(eq=False)
class LoadGlobal(Op):
    """A new tile or vector with the elements of `arg` at `coords`; zero outside the tensor.

    Args:
        kind: its type.
        coords: element coordinates, outermost first.
        arg: the tensor, whose dtype is the tile's.
    """

    verb: ClassVar[str] = "load"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
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
        per = 32 // self.kind.dtype.bits
        for index, register in enumerate(w.regs(self.result)):
            mine = steps[per * index : per * (index + 1)]
            if per == 1:
                self._load(w, place, mine[0], register)
                continue
            parts = [w.new("b16" if per == 2 else "b32", "part") for _ in mine]
            for part, step in zip(parts, mine, strict=True):
                self._load(w, place, step, part)
            join(w, register, parts)

    def _load(self, w: Any, place: _Place, step: dict[int, int], register: str) -> None:
        kind = memory_kind(self.kind)
        zero = ptx.f32_literal(0.0) if kind == "f32" else 0
        w.line(ptx.alu(f"mov.{'b32' if kind == 'b8' else kind}", register, zero))
        w.line(ptx.ld_global(kind, register, place.address(step)), pred=place.mask(step))


def join(w: Any, register: str, parts: list[str]) -> None:
    """Packs two 16-bit registers, or four bytes in 32-bit ones, into a register."""
    if len(parts) == 2:
        w.line(ptx.alu("mov.b32", register, ptx.vector(parts)))
        return
    w.line(ptx.alu("and.b32", register, parts[0], 255))
    for index, part in enumerate(parts[1:], 1):
        w.line(ptx.alu("and.b32", part, part, 255))
        w.line(ptx.alu("shl.b32", part, part, 8 * index))
        w.line(ptx.alu("or.b32", register, register, part))


def split(w: Any, register: str, count: int) -> list[str]:
    """The two 16-bit halves of a register, or its four bytes in 32-bit registers."""
    if count == 1:
        return [register]
    if count == 2:
        halves = [w.new("b16", "low"), w.new("b16", "high")]
        w.line(ptx.alu("mov.b32", ptx.vector(halves), register))
        return halves
    found = [w.new("b32", "byte") for _ in range(4)]
    for index, part in enumerate(found):
        w.line(ptx.alu("shr.u32", part, register, 8 * index))
    return found


@dataclass(eq=False)
class StoreGlobal(Op):
    """`arg[coords...] = tile`; elements outside the tensor are not written.

    Args:
        tile: a register tile, or a whole vector.
        coords: element coordinates, outermost first.
        arg: the tensor, whose dtype is the tile's.
    """

    verb: ClassVar[str] = "store"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    tile: Value = operand()
    coords: tuple[Operand, ...] = operand()
    arg: TensorArg = attribute()

    @property
    def stores(self) -> TensorArg:
        """The tensor."""
        return self.arg

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; the tile must have the tensor's dtype."""
        if isinstance(self.tile.type, RegVecType) and self.tile.type.partial:
            raise LayoutError(f"store: wanted a whole vector, got {self.tile.type}")
        check_place("store", self.tile.type, self.arg, self.coords)
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile."""
        return (Effect(Access.READ, self.tile),)

    def emit(self, w: Any) -> None:
        """One predicated `st.global` an element; copies of a vector's values are stored once."""
        tile = self.tile.type
        assert isinstance(tile, RegTileType | RegVecType), "checked in infer"
        place, steps = place_of(w, tile, self.arg, self.coords)
        kind, mine = memory_kind(tile), owner(w, tile)
        per = 32 // tile.dtype.bits
        for index, register in enumerate(w.regs(self.tile)):
            for part, step in zip(split(w, register, per), steps[per * index :], strict=False):
                mask = w.both(place.mask(step), mine)
                w.line(ptx.st_global(kind, place.address(step), part), pred=mask)


def memory_kind(kind: RegTileType | RegVecType) -> str:
    """Type of one element in `ld` and `st`: that of its register."""
    return "f32" if kind.dtype.name == "f32" else f"b{kind.dtype.bits}"
