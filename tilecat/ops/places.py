"""Where elements lie in a global tensor: addresses, masks, and bounds narrower than the tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dtypes import DType, f32, s32, u8
from ..ir import TensorArg, Value
from ..ptx import instructions as ptx
from ..ptx import transfers
from ..tiles import RegTileType, RegVecType, TileType
from .conditions import vector_start
from .elementwise import element_sources
from .scalar import Operand

TMA_UNIT = 16  # bytes that addresses and strides of a tensor map are multiples of
BROADCAST = -1  # in place of a tensor's axis: the tile's elements along it are equal
# First coordinate inside and first beyond, for every axis of a tensor; None: the tensor's own.
Bounds = tuple[Operand | None, ...]


def item_bytes(arg: TensorArg) -> int:
    """Bytes of an element of a tensor."""
    assert isinstance(arg.type.dtype, DType), "resolved before tracing"
    return arg.type.dtype.nbytes


def tma_reaches(arg: TensorArg, together: int) -> bool:
    """Whether TMA can move a tile that begins at a multiple of `together` elements.

    An H200 takes a load, a store or a prefetch that begins elsewhere along the contiguous axis
    than at a multiple of 16 bytes for an illegal instruction (tests/gpu/test_launch.py).
    """
    return together * item_bytes(arg) % TMA_UNIT == 0


def number(w: Any, value: Operand) -> str:
    """A register that holds an s32 operand."""
    if isinstance(value, Value):
        return str(w.src(value))
    register = w.new("b32", "number")
    w.line(ptx.alu("mov.b32", register, int(value)))
    return str(register)


def cache_policy(w: Any, name: str) -> str | None:
    """Register with an L2 cache policy; None for none."""
    if not name:
        return None
    return str(
        w.invariant(
            ("policy", name), "b64", name, lambda r: w.line(transfers.create_policy(r, name))
        )
    )


def element_address(w: Any, arg: TensorArg, coords: tuple[Operand, ...]) -> str:
    """Register with the global address of one element."""
    address = str(w.pointer(arg))
    for dim, coord in enumerate(coords):
        if not isinstance(coord, Value) and coord == 0:
            continue
        part, further = w.new("b64", "part"), w.new("b64", "at")
        w.line(ptx.alu("cvt.s64.s32", part, number(w, coord)))
        w.line(ptx.alu("mul.lo.s64", part, part, w.stride(arg, dim)))
        w.line(ptx.alu("mad.lo.s64", further, part, item_bytes(arg), address))
        address = further
    return address


@dataclass(frozen=True)
class Window:
    """Coordinates of one axis that are inside: `coord - low`, unsigned, is less than `count`."""

    low: str | None
    count: str


def window(w: Any, arg: TensorArg, dim: int, bounds: Bounds) -> Window:
    """What is inside along an axis: the tensor, cut to the bounds if there are any."""
    low, high = bounds[2 * dim : 2 * dim + 2] if bounds else (None, None)
    extent = str(w.extent(arg, dim))
    if low is None and high is None:
        return Window(None, extent)

    def build(count: str) -> None:
        w.line(ptx.alu("mov.b32", count, extent if high is None else w.src(high, "s32")))
        if high is not None:
            w.line(ptx.alu("min.s32", count, count, extent))
        if low is not None:
            w.line(ptx.alu("sub.s32", count, count, w.src(low, "s32")))
        w.line(ptx.alu("max.s32", count, count, 0))

    count = w.new("b32", "inside")
    build(count)
    return Window(None if low is None or low == 0 else number(w, low), count)


def inside(w: Any, coord: str, where: Window) -> str:
    """Predicate: a coordinate is inside a window. Negative coordinates are not."""
    test = w.new("pred", "inside")
    if where.low is not None:
        moved = w.new("b32", "moved")
        w.line(ptx.alu("sub.s32", moved, coord, where.low))
        coord = moved
    w.line(ptx.alu("setp.lt.u32", test, coord, where.count))
    return str(test)


@dataclass(frozen=True)
class Axis:
    """One axis that the lanes of a scope spread over.

    Args:
        coord: register with this lane's first coordinate.
        where: what is inside.
        stride: in elements, register.
    """

    coord: str
    where: Window
    stride: str


# For each axis, how much further on than the lane's first an element lies; or its register there.
Steps = dict[int, int | str]


class Place:
    """Addresses and masks of the elements that this thread holds.

    Args:
        w: the writer.
        arg: the tensor.
        coords: first element along each axis; None for an axis whose coordinates are in `steps`.
        spread: for axes that the lanes spread over, the register with the lane's first step.
        bounds: narrower than the tensor, or empty.
        near: the axis whose stride is known to be 1; None if none is.
    """

    def __init__(
        self, w: Any, arg: TensorArg, coords: tuple[Operand | None, ...], spread: dict[int, str],
        bounds: Bounds = (), near: int | None = None,
    ):  # fmt: skip
        self.w = w
        self.arg = arg
        self.nbytes = item_bytes(arg)
        self.base = w.new("b64", "address")
        self.axes: dict[int, Axis] = {}
        self.rest: str | None = None
        self._masks: dict[tuple[int, int | str], str] = {}
        self._rows: dict[tuple[int, str], str] = {}
        w.line(ptx.alu("mov.b64", self.base, w.pointer(arg)))
        for dim, coord in enumerate(coords):
            where = window(w, arg, dim, bounds)
            if coord is None:
                self.axes[dim] = Axis("", where, w.stride(arg, dim))
                continue
            register = w.src(coord, "s32")
            if dim in spread:
                first = w.new("b32", "first")
                w.line(ptx.alu("add.s32", first, spread[dim], register))
                register = first
                self.axes[dim] = Axis(first, where, w.stride(arg, dim))
            else:
                self.rest = w.both(self.rest, inside(w, register, where))
            if dim == near:
                w.line(ptx.alu("mad.wide.s32", self.base, register, self.nbytes, self.base))
                continue
            part = w.new("b64", "part")
            w.line(ptx.alu("cvt.s64.s32", part, register))
            w.line(ptx.alu("mul.lo.s64", part, part, w.stride(arg, dim)))
            w.line(ptx.alu("mad.lo.s64", self.base, part, self.nbytes, self.base))

    def address(self, steps: Steps) -> str:
        """Address of the element `steps` further along each axis."""
        w, address = self.w, self.base
        for dim, step in steps.items():
            if isinstance(step, str):
                address = self._indexed(dim, step, address)
            elif step:
                further = w.new("b64", "at")
                stride = self.axes[dim].stride
                w.line(ptx.alu("mad.lo.s64", further, stride, step * self.nbytes, address))
                address = further
        return address

    def _indexed(self, dim: int, index: str, address: str) -> str:
        w, key = self.w, (dim, index)
        if key not in self._rows:
            part = w.new("b64", "row")
            w.line(ptx.alu("cvt.s64.s32", part, index))
            w.line(ptx.alu("mul.lo.s64", part, part, self.axes[dim].stride))
            w.line(ptx.alu("mul.lo.s64", part, part, self.nbytes))
            self._rows[key] = part
        further = w.new("b64", "at")
        w.line(ptx.alu("add.s64", further, address, self._rows[key]))
        return str(further)

    def mask(self, steps: Steps) -> str | None:
        """Predicate: the element lies inside. Negative coordinates do not."""
        found = self.rest
        for place in steps.items():
            if place not in self._masks:
                self._masks[place] = self._axis_mask(*place)
            found = self.w.both(found, self._masks[place])
        return found

    def _axis_mask(self, dim: int, step: int | str) -> str:
        w, axis = self.w, self.axes[dim]
        coord = step if isinstance(step, str) else w.add(axis.coord, step)
        return inside(w, coord, axis.where)


def place_of(
    w: Any, kind: RegTileType | RegVecType, arg: TensorArg, coords: tuple[Operand, ...],
    axes: tuple[int, ...], bounds: Bounds = (), reverse: tuple[int, ...] = (),
    near: int | None = None,
) -> tuple[Place, list[Steps]]:  # fmt: skip
    """Where a tile or vector lies, and each element's steps from the thread's first.

    Read off the layouts at thread 0; the other threads' elements are shifted alike. A coordinate
    that is a vector gives each row or column (or element) a coordinate of its own.
    """
    spread, steps = _lanes(w, kind, axes)
    for dim in reverse:
        _turn_back(w, dim, spread, steps)
    starts: list[Operand | None] = list(coords)
    for dim, coord in enumerate(coords):
        if isinstance(coord, Value) and isinstance(coord.type, RegVecType):
            registers = w.regs(coord)
            sources = _sources(kind, coord.type)
            for step, source in zip(steps, sources, strict=True):
                step[dim] = registers[source]
            spread.pop(dim, None)
            starts[dim] = None
    return Place(w, arg, tuple(starts), spread, bounds, near), steps


def _turn_back(w: Any, dim: int, spread: dict[int, str], steps: list[Steps]) -> None:
    """Elements along an axis lie before the first one."""
    back = w.new("b32", "back")
    w.line(ptx.alu("sub.s32", back, 0, spread[dim]))
    spread[dim] = str(back)
    for step in steps:
        far = step[dim]
        assert isinstance(far, int), "not gathered"
        step[dim] = -far


def _lanes(
    w: Any, kind: RegTileType | RegVecType, axes: tuple[int, ...]
) -> tuple[dict[int, str], list[Steps]]:
    if isinstance(kind, RegTileType):
        rows_axis, cols_axis = axes
        spread = {rows_axis: w.lane_position(kind, "row"), cols_axis: w.lane_position(kind, "col")}
        rows, cols = kind.layout.row_col(0, np.arange(kind.elements))
        steps: list[Steps] = [
            {rows_axis: int(r), cols_axis: int(c)} for r, c in zip(rows, cols, strict=True)
        ]
    else:
        spread = {axes[0]: vector_start(w, kind)}
        positions = kind.layout.position(0, np.arange(kind.elements))
        steps = [{axes[0]: int(p)} for p in positions]
    spread.pop(BROADCAST, None)
    for step in steps:
        step.pop(BROADCAST, None)
    return spread, steps


def _sources(kind: RegTileType | RegVecType, index: RegVecType) -> list[int]:
    """For each element a thread holds, the register of its index."""
    if isinstance(kind, RegTileType):
        return [int(i) for i in element_sources(kind, index)]
    return list(range(kind.elements))


def owner(w: Any, kind: RegTileType | RegVecType) -> str | None:
    """Predicate: this thread's copy of a vector's values is the one that is stored."""
    if isinstance(kind, RegTileType) or kind.axis == "plain":
        return None
    held = kind.layout.fragment
    if kind.axis == "row" and not held.of_mma:
        return _first_of_row(w, sum(held.lanes_of_a_row))
    mine = w.new("pred", "owner")
    if kind.axis == "row":
        w.line(ptx.alu("setp.eq.u32", mine, w.lane_col(1), 0))
    else:
        w.line(ptx.alu("setp.lt.u32", mine, w.rank(kind.warps), 4))
    return str(mine)


def _first_of_row(w: Any, mask: int) -> str | None:
    """Predicate: the first of the lanes that share a row; None where none do."""
    if not mask:
        return None
    mine, part = w.new("pred", "owner"), w.new("b32", "part")
    w.line(ptx.alu("and.b32", part, w.lane(), mask))
    w.line(ptx.alu("setp.eq.u32", mine, part, 0))
    return str(mine)


def held(w: Any, kind: RegTileType | RegVecType, index: int) -> str | None:
    """Predicate: this thread's value `index` exists; the last round of a plain vector may not."""
    if isinstance(kind, RegTileType) or kind.axis != "plain" or kind.run > 1:
        return None
    threads = 32 * kind.warps
    left = kind.length - index * threads
    if left >= threads:
        return None
    test = w.new("pred", "held")
    w.line(ptx.alu("setp.lt.u32", test, w.rank(kind.warps), left))
    return str(test)


# Elements of two bytes that an f32 register vector takes and gives, and how each is made of f32.
HALVES = {"bf16": "cvt.rn.bf16.f32", "f16": "cvt.rn.f16.f32"}


def fits_vector(kind: TileType, dtype: object) -> bool:
    """Whether a register vector takes elements of a dtype: its own, halves as f32, u8 as s32."""
    if not isinstance(kind, RegVecType) or kind.packed:
        return False
    if kind.dtype == s32 and dtype == u8:
        return True
    return kind.dtype == dtype or kind.dtype == f32 and getattr(dtype, "name", "") in HALVES


def half_register(w: Any, dtype: DType) -> str:
    """A register for an element in memory that is narrower than the vector's."""
    return str(w.new("b32" if dtype == u8 else "b16", "byte" if dtype == u8 else "half"))


def widen(w: Any, register: str, half: str, dtype: DType) -> None:
    """`register = half`, exact: a bf16 is the upper half of an f32; a byte stays as it is."""
    if dtype == u8:
        w.line(ptx.alu("mov.b32", register, half))
        return
    if dtype.name == "f16":
        w.line(ptx.alu("cvt.f32.f16", register, half))
        return
    zero, bits = w.new("b16", "zero"), w.new("b32", "bits")
    w.line(ptx.alu("mov.b16", zero, 0))
    w.line(ptx.alu("mov.b32", bits, ptx.vector([zero, half])))
    w.line(ptx.alu("mov.b32", register, bits))


def narrow(w: Any, register: str, dtype: DType) -> str:
    """A half rounded to nearest even from an f32 register; of an s32 its low byte."""
    if dtype == u8:
        return register
    half = w.new("b16", "half")
    w.line(ptx.alu(HALVES[dtype.name], half, register))
    return str(half)
