"""Copies between global and shared memory by threads: any strides, any bounds, any fill.

Where the contiguous axes of the tile and of the tensor agree and lie on 16-byte units, a thread
moves 16 bytes at a time, and `cp.async` does so without registers; else it moves elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ..errors import DTypeError, LayoutError, SyncError
from ..ir import Access, Effect, Op, Scope, SharedRequest, TensorArg, Value, attribute, operand
from ..layouts import bank_conflicts, ideal_wavefronts
from ..layouts.banks import WARP
from ..ptx import instructions as ptx
from ..ptx import transfers
from ..tiles import SharedTileType, SharedVecType
from .global_memory import number_text
from .global_scalars import all_inside
from .places import Bounds, Window, element_address, inside, item_bytes, window
from .scalar import Operand, require_s32
from .tma import TileTransfer

CHUNK_BYTES = 16  # the widest access of a thread, and what a swizzle moves as one


def contiguous_axis(tile: SharedTileType | SharedVecType) -> int:
    """Which tile axis (0 rows, 1 columns) is contiguous in shared memory."""
    return 0 if isinstance(tile, SharedVecType) or tile.order == "col" else 1


@lru_cache(maxsize=256)
def copy_request(
    tile: SharedTileType | SharedVecType, instruction: str, num_bytes: int
) -> SharedRequest:
    """The worst request of a copy in which lanes take adjacent units of a line."""
    per = num_bytes // tile.dtype.nbytes
    item = np.arange(tile.rows * tile.cols // per) * per
    if isinstance(tile, SharedVecType):
        offsets = item * tile.dtype.nbytes
    else:
        slow, fast = np.divmod(item, tile.layout.contiguous)
        row, col = (slow, fast) if tile.order == "row" else (fast, slow)
        offsets = tile.layout.byte_offset(row, col)
    lanes = min(WARP, item.size)
    worst = max(
        bank_conflicts(offsets[first : first + WARP], num_bytes)
        for first in range(0, item.size, WARP)
    )
    return SharedRequest(instruction, num_bytes, worst, ideal_wavefronts(lanes, num_bytes))


@dataclass(frozen=True)
class Spot:
    """Where a thread's unit of an iteration lies.

    Args:
        shared: address in shared memory, register.
        address: address in global memory, register.
        inside: predicate: every axis but the contiguous one is inside.
        left: elements of the unit that are inside, a register; None for single elements, whose
            predicate covers all axes.
    """

    shared: str
    address: str
    inside: str
    left: str | None


@dataclass(eq=False)
class ThreadCopy(TileTransfer):
    """Base of copies in which each thread of the scope takes every n-th unit of the tile.

    Args:
        bounds: first coordinate inside and first beyond, for every axis; empty: the tensor's.
            A coordinate that is a shared vector of s32 gives each row (or column) its own.
        chunks: 16-byte units; else elements.
        reverse: axes of the tensor along which elements lie backwards from `coords`.
    """

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP, Scope.WARP)
    bounds: Bounds = operand(default=(), kw_only=True)
    chunks: bool = attribute(default=False, kw_only=True)
    reverse: tuple[int, ...] = attribute(default=(), kw_only=True)

    @property
    def unit(self) -> int:
        """Elements a thread moves at a time."""
        return CHUNK_BYTES // self.tile_type.dtype.nbytes if self.chunks else 1

    def emit(self, w: Any) -> None:
        """A loop of one move a thread."""
        kind, unit = self.tile_type, self.unit
        count = kind.rows * kind.cols // self.parts // unit
        threads = 32 if self.scope is Scope.WARP else 128
        inner_axis = contiguous_axis(kind)
        inner = kind.shape[inner_axis] // unit
        item, done = w.new("b32", "item"), w.new("pred", "done")
        loop = w.label("copy")
        w.line(ptx.alu("and.b32", item, w.tid(), threads - 1))
        windows = [window(w, self.arg, d, self.bounds) for d in range(self.arg.type.rank)]
        end = self._skip_idle(w, item, count, threads)
        w.mark(loop)
        with w.nested():
            fast, slow = w.new("b32", "fast"), w.new("b32", "slow")
            w.line(ptx.alu("div.u32", slow, item, inner))
            w.line(ptx.alu("rem.u32", fast, item, inner))
            if unit > 1:
                w.line(ptx.alu("mul.lo.u32", fast, fast, unit))
            shared = self._shared_address(w, slow, fast)
            local = (fast,) if isinstance(kind, SharedVecType) else (slow, fast)
            local = local if inner_axis == len(local) - 1 else local[::-1]
            self.move(w, self._spot(w, shared, local, windows, inner_axis))
        w.line(ptx.alu("add.u32", item, item, threads))
        w.line(ptx.alu("setp.lt.u32", done, item, count))
        w.line(ptx.bra(loop), pred=done)
        if end is not None:
            w.mark(end)

    @staticmethod
    def _skip_idle(w: Any, item: str, count: int, threads: int) -> str | None:
        """Threads without a unit jump over the loop, where there are such."""
        if count >= threads:
            return None
        end, idle = w.label("copied"), w.new("pred", "idle")
        w.line(ptx.alu("setp.ge.u32", idle, item, count))
        w.line(ptx.bra(end), pred=idle)
        return str(end)

    def move(self, w: Any, spot: Spot) -> None:
        """Moves a thread's unit."""
        raise NotImplementedError(type(self).__name__)

    def _shared_address(self, w: Any, slow: str, fast: str) -> str:
        tile, nbytes = self.tile_type, self.tile_type.dtype.nbytes
        start = w.address(self.tile)
        if self.parts > 1:
            start = w.offset(start, self.part, self.part_bytes())
        base = w.new("b32", "element")
        if isinstance(tile, SharedVecType):
            w.line(ptx.alu("mad.lo.u32", base, fast, nbytes, w.materialize(start)))
            return str(base)
        layout = tile.layout
        panel, byte = w.new("b32", "panel"), w.new("b32", "byte")
        width = layout.panel_elems
        w.line(ptx.alu("div.u32", panel, fast, width))
        w.line(ptx.alu("rem.u32", byte, fast, width))
        w.line(ptx.alu("mul.lo.u32", byte, byte, nbytes))
        w.line(ptx.alu("mad.lo.u32", byte, slow, width * nbytes, byte))
        if layout.swizzle_bytes:
            bits = w.new("b32", "swizzle")
            w.line(ptx.alu("shr.u32", bits, byte, 3))
            w.line(ptx.alu("and.b32", bits, bits, (layout.swizzle_bytes // 16 - 1) << 4))
            w.line(ptx.alu("xor.b32", byte, byte, bits))
        w.line(ptx.alu("mad.lo.u32", byte, panel, layout.panel_bytes, byte))
        w.line(ptx.alu("add.u32", base, byte, w.materialize(start)))
        return str(base)

    def _spot(
        self, w: Any, shared: str, local: tuple[str, ...], windows: list[Window], inner_axis: int
    ) -> Spot:
        axes = self.tile_axes
        ok, left = w.new("pred", "inside"), None
        offset, part = w.new("b64", "offset"), w.new("b64", "part")
        w.line(ptx.alu("mov.b64", offset, 0))
        w.line(ptx.alu("setp.eq.u32", ok, 0, 0))
        for dim, start in enumerate(self.coords):
            if isinstance(start, Value) and isinstance(start.type, SharedVecType):
                coord = self._indexed(w, start, local[axes.index(dim)])
            elif dim in axes:
                coord = w.src(start, "s32")
                full = w.new("b32", "coord")
                step = "sub.s32" if dim in self.reverse else "add.s32"
                w.line(ptx.alu(step, full, coord, local[axes.index(dim)]))
                coord = full
            else:
                coord = w.src(start, "s32")
            if self.chunks and dim == axes[inner_axis]:
                left = self._left(w, coord, windows[dim])
            else:
                w.line(ptx.alu("and.pred", ok, ok, inside(w, coord, windows[dim])))
            w.line(ptx.alu("cvt.s64.s32", part, coord))
            w.line(ptx.alu("mad.lo.s64", offset, part, w.stride(self.arg, dim), offset))
        address = w.new("b64", "address")
        w.line(ptx.alu("mad.lo.s64", address, offset, item_bytes(self.arg), w.pointer(self.arg)))
        return Spot(shared, str(address), str(ok), left)

    @staticmethod
    def _indexed(w: Any, index: Value, position: str) -> str:
        """The coordinate that a shared vector gives a row or column."""
        place, coord = w.new("b32", "place"), w.new("b32", "coord")
        w.line(ptx.alu("mad.lo.u32", place, position, 4, w.materialize(w.address(index))))
        w.line(ptx.ld_shared("b32", coord, place))
        return str(coord)

    def reads_index(self) -> tuple[Effect, ...]:
        """Reads of the shared vectors that give coordinates."""
        vectors = (c for c in self.coords if isinstance(c, Value))
        return tuple(
            Effect(Access.READ, c) for c in vectors if isinstance(c.type, SharedVecType)
        )

    def _left(self, w: Any, coord: str, where: Window) -> str:
        """Elements of a unit that are inside: 0 to `unit`; bounds start on whole units."""
        left, test = w.new("b32", "left"), w.new("pred", "negative")
        if where.low is not None:
            moved = w.new("b32", "moved")
            w.line(ptx.alu("sub.s32", moved, coord, where.low))
            coord = moved
        w.line(ptx.alu("sub.s32", left, where.count, coord))
        w.line(ptx.alu("min.s32", left, left, self.unit))
        w.line(ptx.alu("max.s32", left, left, 0))
        w.line(ptx.alu("setp.lt.s32", test, coord, 0))
        w.line(ptx.alu("selp.b32", left, 0, left, test))
        return str(left)


@dataclass(eq=False)
class CopyByThreads(ThreadCopy):
    """Copies a tile; elements outside load as `fill` and are not stored.

    Args:
        store: from the tile to the tensor.
        fill: what elements outside are.
    """

    verb: ClassVar[str] = "copy"
    store: bool = attribute(default=False)
    fill: float = attribute(default=0.0, kw_only=True)

    @property
    def stores(self) -> TensorArg | None:
        """The tensor, if it is the target."""
        return self.arg if self.store else None

    @property
    def loads(self) -> TensorArg | None:
        """The tensor, if it is the source."""
        return None if self.store else self.arg

    def effects(self) -> tuple[Effect, ...]:
        """Accesses the tile through the generic proxy."""
        mine = Effect(Access.READ if self.store else Access.WRITE, self.tile)
        return (*self.reads_index(), mine)

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """Its `ld.shared` or `st.shared`, at the iteration with the most conflicts."""
        num_bytes = self.unit * self.tile_type.dtype.nbytes
        return (
            copy_request(self.tile_type, "ld.shared" if self.store else "st.shared", num_bytes),
        )

    def move(self, w: Any, spot: Spot) -> None:
        """One `ld` and one `st`; a 16-byte unit that lies across an edge goes by elements."""
        if spot.left is None:
            self._element(w, spot.shared, spot.address, spot.inside)
            return
        edge, end, part = w.label("edge"), w.label("moved"), w.new("pred", "part")
        w.line(ptx.alu("setp.lt.s32", part, spot.left, self.unit))
        outside = w.new("pred", "outside")
        w.line(ptx.alu("not.pred", outside, spot.inside))
        w.line(ptx.alu("or.pred", part, part, outside))
        w.line(ptx.bra(edge), pred=part)
        words = ptx.vector([w.new("b32", "word") for _ in range(4)])
        if self.store:
            w.line(ptx.ld_shared("v4.b32", words, spot.shared))
            w.line(ptx.st_global("v4.b32", spot.address, words))
        else:
            w.line(ptx.ld_global("v4.b32", words, spot.address))
            w.line(ptx.st_shared("v4.b32", spot.shared, words))
        w.line(ptx.bra(end))
        w.mark(edge)
        nbytes = self.tile_type.dtype.nbytes
        for element in range(self.unit):
            there = w.new("pred", "there")
            w.line(ptx.alu("setp.gt.s32", there, spot.left, element))
            w.line(ptx.alu("and.pred", there, there, spot.inside))
            byte = element * nbytes
            self._element(w, f"{spot.shared}+{byte}", f"{spot.address}+{byte}", there)
        w.mark(end)

    def _element(self, w: Any, shared: str, address: str, there: str) -> None:
        kind = f"b{self.tile_type.dtype.bits}"
        data = w.new(kind if kind != "b8" else "b32", "element")
        if self.store:
            w.line(ptx.ld_shared(kind, data, shared))
            w.line(ptx.st_global(kind, address, data), pred=there)
            return
        value = 0
        if self.fill:
            text = number_text(self.fill, self.tile_type.dtype)
            value = f"0x{text[2:]}" if text.startswith("0f") else text  # type: ignore[assignment]
        w.line(ptx.alu(f"mov.{kind if kind != 'b8' else 'b32'}", data, value))
        w.line(ptx.ld_global(kind, data, address), pred=there)
        w.line(ptx.st_shared(kind, shared, data))


@dataclass(eq=False)
class CopyAsync(ThreadCopy):
    """Asynchronous copy of a tile by its threads; elements outside are zero.

    Elements of 32 bits of a vector may be copied one by one, `cp.async` moving at least 4 bytes.
    """

    verb: ClassVar[str] = "copy_async"

    def infer(self) -> tuple[Any, ...]:
        """Nothing; whole 16-byte units."""
        kind = self.tile_type
        if not self.chunks and not (isinstance(kind, SharedVecType) and kind.dtype.bits == 32):
            raise LayoutError(
                f"copy_async: copies 16-byte units whose place in {self.arg.name} is a multiple "
                f"of 16 bytes, in one order with the tile, got {self.tile_type}",
                hint="tc.copy(tile, A[row, col]) copies any elements, by plain loads and stores",
            )
        return ()

    @property
    def loads(self) -> TensorArg:
        """The tensor."""
        return self.arg

    def effects(self) -> tuple[Effect, ...]:
        """Writes the tile, later."""
        return (*self.reads_index(), Effect(Access.ASYNC_WRITE, self.tile))

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """Its writes to shared memory."""
        return (copy_request(self.tile_type, "cp.async", self.unit_bytes),)

    @property
    def unit_bytes(self) -> int:
        """Bytes a thread moves at a time."""
        return self.unit * self.tile_type.dtype.nbytes

    def move(self, w: Any, spot: Spot) -> None:
        """`cp.async` of 16 bytes, or of an element; what is outside is not read."""
        size: Any = self.unit_bytes
        if spot.left is not None:
            size = w.new("b32", "size")
            w.line(ptx.alu("mul.lo.u32", size, spot.left, self.tile_type.dtype.nbytes))
        found = w.new("b32", "size")
        w.line(ptx.alu("selp.b32", found, size, 0, spot.inside))
        size = found
        address, none = w.new("b64", "source"), w.new("pred", "none")
        w.line(ptx.alu("setp.eq.u32", none, size, 0))
        w.line(ptx.alu("selp.b64", address, w.pointer(self.arg), spot.address, none))
        w.line(transfers.cp_async(spot.shared, address, self.unit_bytes, size))


@dataclass(eq=False)
class CopyGroup(Op):
    """Closes the threads' group of `copy_async`, or waits for all but `pending` groups."""

    verb: ClassVar[str] = "copy_wait"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP, Scope.WARP)
    pending: int | None = attribute(default=None)

    def infer(self) -> tuple[Any, ...]:
        """Nothing; a count."""
        if self.pending is not None and self.pending < 0:
            raise SyncError(f"copy_wait: pending is an int >= 0, got {self.pending}")
        return ()

    def emit(self, w: Any) -> None:
        """`cp.async.commit_group` or `cp.async.wait_group`."""
        commit = self.pending is None
        w.line(
            transfers.cp_async_commit() if commit else transfers.cp_async_wait(self.pending or 0)
        )


@dataclass(eq=False)
class CopyElement(Op):
    """Asynchronous copy of one 32-bit element to a shared vector, by one thread of the scope.

    Args:
        vector: the shared vector.
        index: of the element in it.
        coords: of the element in the tensor, outermost first; outside it is zero.
        arg: the tensor.
        bounds: as in `GlobalAccess`.
    """

    verb: ClassVar[str] = "copy_async"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.THREAD, Scope.WARPGROUP, Scope.WARP)
    vector: Value = operand()
    index: Operand = operand()
    coords: tuple[Operand, ...] = operand()
    arg: TensorArg = attribute()
    bounds: Bounds = operand(default=())

    def infer(self) -> tuple[Any, ...]:
        """Nothing; one 32-bit dtype."""
        require_s32("copy_async", *self.coords, self.index)
        kind = self.vector.type
        assert isinstance(kind, SharedVecType), "checked by the caller"
        if kind.dtype.bits != 32 or kind.dtype != self.arg.type.dtype:
            raise DTypeError(
                "copy_async: an element is of 32 bits and of one dtype in the vector and the "
                f"tensor, got {kind} and {self.arg.name} of {self.arg.type.dtype}"
            )
        return ()

    @property
    def loads(self) -> TensorArg:
        """The tensor."""
        return self.arg

    def effects(self) -> tuple[Effect, ...]:
        """Writes the vector, later."""
        return (Effect(Access.ASYNC_WRITE, self.vector),)

    def emit(self, w: Any) -> None:
        """`cp.async` of 4 bytes; an element outside is not read."""
        source = element_address(w, self.arg, self.coords)
        mask = all_inside(w, self.arg, self.coords, self.bounds)
        size, address = w.new("b32", "size"), w.new("b64", "source")
        w.line(ptx.alu("selp.b32", size, 4, 0, mask))
        w.line(ptx.alu("selp.b64", address, source, w.pointer(self.arg), mask))
        place = w.text(w.offset(w.address(self.vector), self.index, 4))
        w.line(transfers.cp_async(place, address, 4, size), pred=w.elected(self.scope))


@dataclass(eq=False)
class CopyArrive(Op):
    """Each thread arrives on `barriers[index]` once its copies so far are done.

    Args:
        barriers: the mbarriers.
        index: which of them.
        each: every thread of the scope, or the one that copies elements.
    """

    verb: ClassVar[str] = "arrive_after_copies"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.THREAD, Scope.WARPGROUP, Scope.WARP)
    barriers: Value = operand()
    index: Operand = operand()
    each: bool = attribute(default=True)

    def effects(self) -> tuple[Effect, ...]:
        """Signals the barrier."""
        return (Effect(Access.WRITE, self.barriers),)

    def emit(self, w: Any) -> None:
        """`cp.async.mbarrier.arrive.noinc`."""
        one = None if self.each else w.elected(self.scope)
        w.line(transfers.cp_async_arrive(w.barrier(self.barriers, self.index)), pred=one)


