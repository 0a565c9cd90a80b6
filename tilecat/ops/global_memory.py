"""Registers from and to global memory: any strides, any address, any part of a tensor.

A tile whose elements lie together in memory as in registers moves 4 to 16 bytes an access where it
is wholly inside the tensor; else, and at edges, element by element under a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .. import dtypes
from ..errors import DTypeError, LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, TensorArg, Value, attribute, operand
from ..ptx import instructions as ptx
from ..tiles import RegTileType, RegVecType, SharedVecType, TileType
from .places import (
    BROADCAST,
    Bounds,
    Place,
    Steps,
    fits_vector,
    half_register,
    held,
    narrow,
    owner,
    place_of,
    widen,
)
from .ranges import span
from .scalar import Operand, require_s32
from .vector_runs import fill_word, in_masked_runs, load_runs, run_of, store_runs


def check_place(name: str, kind: TileType, arg: TensorArg, coords: tuple[Operand, ...]) -> None:
    """A tile or vector and the tensor it meets have one dtype and enough axes.

    Raises:
        DTypeError: two dtypes, or coordinates that are not integers.
        LayoutError: not registers, or a tile in a tensor of one axis.
    """
    if not isinstance(kind, RegTileType | RegVecType):
        raise LayoutError(f"{name}: between registers and a tensor, got {kind}")
    if kind.dtype != arg.type.dtype and not fits_vector(kind, arg.type.dtype):
        raise DTypeError(
            f"{name}: {arg.name} holds {arg.type.dtype}, got {kind}",
            hint="convert in registers: tc.cast(x, dtype)",
        )
    if any(isinstance(c, Value) and isinstance(c.type, SharedVecType) for c in coords):
        raise LayoutError(
            f"{name}: registers are gathered by a vector in registers, got one in shared memory",
            hint="tc.load(index)",
        )
    require_s32(name, *(c for c in coords if not _is_index(c)))
    for coord in coords:
        if isinstance(coord, Value) and isinstance(coord.type, RegVecType):
            _check_index(name, kind, coord.type)


def _is_index(coord: Operand) -> bool:
    return isinstance(coord, Value) and isinstance(coord.type, RegVecType)


def _check_index(name: str, kind: RegTileType | RegVecType, index: RegVecType) -> None:
    if index.dtype != dtypes.s32:
        raise DTypeError(f"{name}: an index vector holds s32, got {index}")
    legal: tuple[RegVecType, ...] = (kind,) if isinstance(kind, RegVecType) else ()
    if isinstance(kind, RegTileType):
        legal = (kind.vector("row"), kind.vector("col"))
    if _spread(index) not in map(_spread, legal):
        raise LayoutError(
            f"{name}: an index vector goes with the rows or columns of what it loads, "
            f"got {index} with {kind}",
            hint=f"one of {', '.join(str(v) for v in legal)}, of s32",
        )


def _spread(vector: RegVecType) -> tuple[object, ...]:
    """How a vector lies over the threads, whatever its dtype."""
    held = vector.layout.fragment
    run = held.run if vector.axis == "col" else 0
    return (vector.length, vector.axis, vector.warps, run, held.lanes)


def default_axes(kind: RegTileType | RegVecType, arg: TensorArg) -> tuple[int, ...]:
    """The axes a tile (the last two) or a vector (the last) covers unless told otherwise."""
    rank = arg.type.rank
    return (rank - 2, rank - 1) if isinstance(kind, RegTileType) else (rank - 1,)


def _runs_of(dtype: dtypes.DType) -> tuple[int, int]:
    """Elements of the widest access (`ld.global.v4.b32`) and of a register."""
    return 128 // dtype.bits, 32 // dtype.bits


def _adjacent(kind: RegTileType, run: int) -> bool:
    """Whether every run of elements of a thread lies in order along the tile's own order."""
    if kind.elements % run:
        return False
    places = kind.layout.row_col(0, np.arange(kind.elements))
    along, across = (places[1], places[0]) if kind.order == "row" else places
    along, across = along.reshape(-1, run), across.reshape(-1, run)
    ordered = (along - along[:, :1] == np.arange(run)).all() and (along[:, 0] % run == 0).all()
    return bool(ordered and (across == across[:, :1]).all())


@dataclass(eq=False)
class GlobalAccess(Op):
    """Base of accesses of `arg` by registers.

    Args:
        coords: element coordinates, outermost first; a vector of s32 gives each row, column or
            element its own.
        arg: the tensor, whose dtype is the registers'.
        axes: axes of the tensor that the rows and columns (or the vector) lie along.
        bounds: first coordinate inside and first beyond, for every axis; empty: the tensor's.
        together: elements of the contiguous axis that start at a multiple of their number, so
            that they may move in one access; 1 if nothing is known.
        reverse: axes of the tensor along which elements lie backwards from `coords`.
        first: its lines are the first to leave the caches.
    """

    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    any_fragment: ClassVar[bool] = True
    coords: tuple[Operand, ...] = operand()
    arg: TensorArg = attribute()
    axes: tuple[int, ...] = attribute(default=(), kw_only=True)
    bounds: Bounds = operand(default=(), kw_only=True)
    together: int = attribute(default=1, kw_only=True)
    reverse: tuple[int, ...] = attribute(default=(), kw_only=True)
    first: bool = attribute(default=False, kw_only=True)

    @property
    def needs_layout(self) -> bool:
        """Whether its text depends on how the tensor lies."""
        return False

    def place(
        self, w: Any, kind: RegTileType | RegVecType, near: int | None = None
    ) -> tuple[Place, list[Steps]]:  # fmt: skip
        """Where its elements lie; `near`: the axis whose stride is 1."""
        axes = self.axes or default_axes(kind, self.arg)
        return place_of(w, kind, self.arg, self.coords, axes, self.bounds, self.reverse, near)

    def run(self, kind: RegTileType | RegVecType) -> int:
        """Elements of a thread that one access moves where all are inside: at most 16 bytes.

        The most that lie in order in the thread's registers as in memory, and start at a multiple
        of their number; 1 where that is not known, or less than a register.
        """
        if isinstance(kind, RegVecType):
            return 1 if kind.run == 1 else run_of(self, kind, element_dtype(self.arg))
        near = self.arg.contiguous
        cut = self.bounds[2 * near : 2 * near + 2] if self.bounds else (None, None)
        if not self.arg.tma or tuple(cut) != (None, None):
            return 1
        axes, (most, least) = self.axes or default_axes(kind, self.arg), _runs_of(kind.dtype)
        along = axes[1 if kind.order == "row" else 0]
        fits = along == self.arg.contiguous and BROADCAST not in axes and along not in self.reverse
        if not fits or self.gathered:
            return 1
        run = most
        while run > 1 and (self.together % run or not _adjacent(kind, run)):
            run //= 2
        return run if run >= least else 1

    @property
    def gathered(self) -> bool:
        """Whether a vector gives elements their coordinates."""
        return any(map(_is_index, self.coords))

    @property
    def registers_type(self) -> RegTileType | RegVecType:
        """Of what it moves."""
        kind = self.tile.type if hasattr(self, "tile") else self.kind  # type: ignore[attr-defined]
        assert isinstance(kind, RegTileType | RegVecType), "checked in infer"
        return kind

    @property
    def width_bytes(self) -> int:
        """Bytes of an access of a tile that is wholly inside, or of a vector's."""
        return self.run(self.registers_type) * element_dtype(self.arg).nbytes

    def surely_inside(self, w: Any) -> bool:
        """Whether what is known of extents and places leaves no element outside."""
        kind, static = self.registers_type, self.arg.static
        if self.bounds or self.reverse or not static:
            return False
        vector = kind if isinstance(kind, RegVecType) else None
        if vector and vector.axis == "plain" and vector.length % (32 * vector.warps):
            return False  # threads of the last round lie beyond the vector
        shape = kind.shape if isinstance(kind, RegTileType) else (kind.length,)
        extents = dict(zip(self.axes or default_axes(kind, self.arg), shape, strict=True))
        for dim, (coord, limit) in enumerate(zip(self.coords, static, strict=True)):
            known = span(coord, w.threads)
            if limit is None or known is None:
                return False
            if known[0] < 0 or known[1] > limit - extents.get(dim, 1):
                return False
        return True

    def all_inside(self, w: Any, kind: RegTileType) -> str:
        """Predicate: no element of the tile lies outside the tensor; one value a scope."""
        axes, found = self.axes or default_axes(kind, self.arg), None
        extents = dict(zip(axes, kind.shape, strict=True))
        for dim, coord in enumerate(self.coords):
            start, test = w.src(coord, "s32"), w.new("pred", "fits")
            if dim in self.reverse:
                last = w.new("b32", "last")
                w.line(ptx.alu("sub.s32", last, start, extents[dim] - 1))
                w.line(ptx.alu("setp.ge.s32", test, last, 0))
                found = w.both(found, test)
                test = w.new("pred", "fits")
                w.line(ptx.alu("setp.lt.s32", test, start, w.extent(self.arg, dim)))
            elif dim in extents:
                last = w.new("b32", "last")
                w.line(ptx.alu("add.s32", last, start, extents[dim]))
                w.line(ptx.alu("setp.le.s32", test, last, w.extent(self.arg, dim)))
                found = w.both(found, test)
                test = w.new("pred", "fits")
                w.line(ptx.alu("setp.ge.s32", test, start, 0))
            else:
                w.line(ptx.alu("setp.lt.u32", test, start, w.extent(self.arg, dim)))
            found = w.both(found, test)
            found = self._inside_bounds(w, found, dim, extents.get(dim, 1))
        return str(found)

    def _inside_bounds(self, w: Any, found: Any, dim: int, extent: int) -> Any:
        """Predicate: `found`, and elements along an axis lie inside the view's own part of it."""
        low, high = self.bounds[2 * dim : 2 * dim + 2] if self.bounds else (None, None)
        back = extent - 1 if dim in self.reverse else 0
        for bound, step, test in ((low, -back, "ge"), (high, extent - back, "le")):
            if bound is None:
                continue
            place, inside = w.new("b32", "edge"), w.new("pred", "fits")
            w.line(ptx.alu("add.s32", place, w.src(self.coords[dim], "s32"), step))
            w.line(ptx.alu(f"setp.{test}.s32", inside, place, w.src(bound, "s32")))
            found = w.both(found, inside)
        return found

    def in_runs(
        self, w: Any, kind: RegTileType, registers: tuple[str, ...],
        move: Callable[[str, str, str], str],
    ) -> tuple[bool, str | None]:  # fmt: skip
        """Whole runs of elements for a tile that is inside; the label behind the slow way.

        No label where there is no slow way, and nothing written where there are no runs.

        Args:
            w: the writer.
            kind: the tile's type.
            registers: its registers.
            move: text of an access, from type suffix, address and registers.
        """
        run = self.run(kind)
        if run == 1:
            return False, None
        if self.surely_inside(w):
            with w.nested():
                self._runs(w, kind, registers, move)
            return True, None
        end, slow = w.label("moved"), w.label("edge")
        w.line(ptx.bra(slow), pred=f"!{self.all_inside(w, kind)}")
        with w.nested():
            self._runs(w, kind, registers, move)
        w.line(ptx.bra(end))
        w.mark(slow)
        return False, str(end)

    def _runs(
        self, w: Any, kind: RegTileType, registers: tuple[str, ...],
        move: Callable[[str, str, str], str],
    ) -> None:  # fmt: skip
        run, (place, steps) = self.run(kind), self.place(w, kind)
        per = run * kind.dtype.bits // 32
        suffix = memory_kind(kind.dtype) if kind.dtype.bits == 32 else "b32"
        for index in range(0, len(registers), per):
            part = registers[index : index + per]
            address = self.near(w, place, steps[run * index // per])
            text = (f"v{per}.{suffix}", ptx.vector(part)) if per > 1 else (suffix, part[0])
            w.line(move(text[0], address, text[1]))

    def near(self, w: Any, place: Place, steps: Steps) -> str:
        """An address whose step along the contiguous axis is the instruction's immediate."""
        near = self.arg.contiguous
        far = {dim: step for dim, step in steps.items() if dim != near}
        key = tuple(far.items())
        base = w.local(("row", place.base, key), "b64", "row", lambda r: w.line(
            ptx.alu("mov.b64", r, place.address(far))
        ))  # fmt: skip
        step = steps[near]
        assert isinstance(step, int), "not gathered"
        return f"{base}+{step * place.nbytes}" if step else str(base)


@dataclass(eq=False)
class LoadGlobal(GlobalAccess):
    """A new tile or vector with the elements of `arg` at `coords`; `fill` outside the tensor.

    Args:
        kind: its type.
        fill: what elements outside are.
    """

    verb: ClassVar[str] = "load"
    kind: RegTileType | RegVecType = attribute(kw_only=True)
    fill: float = attribute(default=0.0, kw_only=True)

    def infer(self) -> tuple[TileType, ...]:
        """The type given."""
        check_place("load", self.kind, self.arg, self.coords)
        in_masked_runs(self, self.kind)  # asks how the tensor lies: the trace depends on it
        self.run(self.kind)
        return (self.kind,)

    @property
    def loads(self) -> TensorArg:
        """The tensor."""
        return self.arg

    @property
    def needs_layout(self) -> bool:
        """A tile moves in runs where it can, and so do a vector's."""
        return has_runs(self.kind)

    def effects(self) -> tuple[Effect, ...]:
        """Writes the registers."""
        return (Effect(Access.WRITE, self.result),)

    def emit(self, w: Any) -> None:
        """`ld.global`, of runs of elements where they lie together, else of each."""
        registers, kind = w.regs(self.result), self.kind
        done, end = False, None
        if (run := self.run(kind)) > 1 and in_masked_runs(self, kind):
            dtype = element_dtype(self.arg)
            fill = fill_word(number_text(self.fill, dtype), dtype)
            load_runs(self, w, run, dtype, registers, fill)
            return
        if isinstance(kind, RegTileType):
            done, end = self.in_runs(w, kind, registers, lambda suffix, at, part: ptx.ld_global(
                suffix, part, at, first=self.first))  # fmt: skip
        if done:
            return
        with w.nested() if end is not None else nullcontext():
            self._elements(w, registers)
        if end is not None:
            w.mark(end)

    def _elements(self, w: Any, registers: tuple[str, ...]) -> None:
        kind = self.kind
        place, steps = self.place(w, kind)
        per = 32 // kind.dtype.bits
        for index, register in enumerate(registers):
            mine = steps[per * index : per * (index + 1)]
            if self.kind.dtype != self.arg.type.dtype:
                half = half_register(w, element_dtype(self.arg))
                self._load(w, place, mine[0], half)
                widen(w, register, half, element_dtype(self.arg))
                continue
            if per == 1:
                self._load(w, place, mine[0], register)
                continue
            parts = [w.new("b16" if per == 2 else "b32", "part") for _ in mine]
            for part, step in zip(parts, mine, strict=True):
                self._load(w, place, step, part)
            join(w, register, parts)

    def _load(self, w: Any, place: Place, step: Steps, register: str) -> None:
        dtype = element_dtype(self.arg)
        kind = memory_kind(dtype)
        if self.surely_inside(w):
            w.line(ptx.ld_global(kind, register, place.address(step), first=self.first))
            return
        value = number_text(self.fill, dtype)
        w.line(ptx.alu(f"mov.{'b32' if kind == 'b8' else kind}", register, value))
        w.line(ptx.ld_global(kind, register, place.address(step), first=self.first),
               pred=place.mask(step))  # fmt: skip


def has_runs(kind: RegTileType | RegVecType) -> bool:
    """Whether several elements may move in one access, if the tensor lies so."""
    return not isinstance(kind, RegVecType) or kind.run > 1


def number_text(value: float, dtype: dtypes.DType) -> str:
    """An immediate that holds a value of a dtype."""
    if dtype.name == "f32":
        return ptx.f32_literal(value)
    if not dtype.is_float:
        return str(int(value))
    with np.errstate(over="ignore"):
        return str(int(np.asarray(value, dtype.numpy).view(f"u{dtype.nbytes}")))


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
class StoreGlobal(GlobalAccess):
    """`arg[coords...] = tile`; elements outside the tensor are not written.

    Args:
        tile: a register tile, or a whole vector.
    """

    verb: ClassVar[str] = "store"
    tile: Value = operand(kw_only=True)

    @property
    def stores(self) -> TensorArg:
        """The tensor."""
        return self.arg

    @property
    def needs_layout(self) -> bool:
        """A tile moves in runs where it can, and so do a vector's."""
        return has_runs(self.registers_type)

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; the tile must have the tensor's dtype."""
        if isinstance(self.tile.type, RegVecType) and self.tile.type.partial:
            raise LayoutError(f"store: wanted a whole vector, got {self.tile.type}")
        check_place("store", self.tile.type, self.arg, self.coords)
        in_masked_runs(self, self.registers_type)  # asks how the tensor lies
        self.run(self.registers_type)
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile."""
        return (Effect(Access.READ, self.tile),)

    def emit(self, w: Any) -> None:
        """`st.global`, of runs of elements or of each; copies of a value are stored once."""
        tile, registers, done, end = self.tile.type, w.regs(self.tile), False, None
        assert isinstance(tile, RegTileType | RegVecType), "checked in infer"
        if (run := self.run(tile)) > 1 and in_masked_runs(self, tile):
            store_runs(self, w, run, element_dtype(self.arg), registers)
            return
        if isinstance(tile, RegTileType):
            done, end = self.in_runs(w, tile, registers, lambda *text: ptx.st_global(
                *text, first=self.first))  # fmt: skip
        if done:
            return
        with w.nested() if end is not None else nullcontext():
            self._elements(w, tile, registers)
        if end is not None:
            w.mark(end)

    def _elements(
        self, w: Any, tile: RegTileType | RegVecType, registers: tuple[str, ...]
    ) -> None:
        place, steps = self.place(w, tile)
        kind, mine = memory_kind(element_dtype(self.arg)), owner(w, tile)
        per, sure = 32 // tile.dtype.bits, self.surely_inside(w)
        for index, register in enumerate(registers):
            parts = split(w, register, per)
            if tile.dtype != self.arg.type.dtype:
                parts = [narrow(w, register, element_dtype(self.arg))]
            for part, step in zip(parts, steps[per * index :], strict=False):
                mask = w.both(None if sure else place.mask(step), mine)
                mask = w.both(mask, held(w, tile, index))
                w.line(ptx.st_global(kind, place.address(step), part, first=self.first), pred=mask)


def memory_kind(dtype: dtypes.DType) -> str:
    """Type of one element in `ld` and `st`: that of its register."""
    return "f32" if dtype.name == "f32" else f"b{dtype.bits}"


def element_dtype(arg: TensorArg) -> dtypes.DType:
    """A tensor's element type."""
    assert isinstance(arg.type.dtype, dtypes.DType), "resolved before tracing"
    return arg.type.dtype
