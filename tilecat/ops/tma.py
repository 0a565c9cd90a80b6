"""Transfers between global and shared memory: TMA, and copies by threads where TMA cannot reach."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ..ir import Access, Effect, Op, Scope, SharedRequest, TensorArg, Value, attribute, operand
from ..layouts import bank_conflicts, ideal_wavefronts
from ..layouts.banks import WARP
from ..ptx import instructions as ptx
from ..tiles import SharedTileType
from .scalar import Operand


def contiguous_axis(tile: SharedTileType) -> int:
    """Which tile axis (0 rows, 1 columns) is contiguous in shared memory."""
    return 1 if tile.order == "row" else 0


def box_of(arg: TensorArg, tile: SharedTileType) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Axes innermost first, and the box of one panel of the tile over them.

    Example: a 64 x 128 bf16 tile of a row-major matrix has panels of 64 columns (128 bytes):
    dims (1, 0), box (64, 64); one transfer a panel.
    """
    rank = arg.type.rank
    rows_axis, cols_axis = rank - 2, rank - 1
    layout = tile.layout
    other = tile.rows if tile.order == "row" else tile.cols
    inner = (cols_axis, rows_axis) if tile.order == "row" else (rows_axis, cols_axis)
    outer = tuple(range(rank - 3, -1, -1))
    return inner + outer, (layout.panel_elems, other) + (1,) * len(outer)


@dataclass(eq=False)
class TileTransfer(Op):
    """Base of transfers of one shared tile from or to `arg` at element coordinates `coords`.

    Args:
        tile: the shared tile.
        coords: first element along each axis of the tensor, outermost first.
        arg: the tensor.
    """

    tile: Value = operand()
    coords: tuple[Operand, ...] = operand()
    arg: TensorArg = attribute()

    @property
    def tile_type(self) -> SharedTileType:
        """Type of the shared tile."""
        assert isinstance(self.tile.type, SharedTileType), "a shared tile"
        return self.tile.type

    @property
    def num_bytes(self) -> int:
        """Bytes a transfer moves, parts outside the tensor included."""
        return self.tile_type.layout.num_bytes

    def panels(self, w: Any) -> list[tuple[tuple[str, ...], str]]:
        """For each panel: coordinates innermost first, and its shared address."""
        tile = self.tile_type
        dims, _ = box_of(self.arg, tile)
        base = w.address(self.tile)
        found = []
        for index in range(tile.layout.num_panels):
            coords = [w.src(self.coords[d], "s32") for d in dims]
            coords[0] = w.add(coords[0], index * tile.layout.panel_elems)
            found.append((tuple(coords), w.text(base, index * tile.layout.panel_bytes)))
        return found


@dataclass(eq=False)
class TmaLoad(TileTransfer):
    """Asynchronous load of a tile; its bytes complete on `barriers[index]`."""

    verb: ClassVar[str] = "load_async"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.THREAD, Scope.WARPGROUP)
    barriers: Value = operand()
    index: Operand = operand()

    def effects(self) -> tuple[Effect, ...]:
        """Writes the tile through the async proxy."""
        return (Effect(Access.ASYNC_WRITE, self.tile, "async"),)

    def emit(self, w: Any) -> None:
        """One `cp.async.bulk.tensor` a panel."""
        dims, box = box_of(self.arg, self.tile_type)
        tensor_map = w.tensor_map(self.arg, dims, box, self.tile_type.layout.swizzle_bytes)
        barrier = w.barrier(self.barriers, self.index)
        for coords, address in self.panels(w):
            w.line(
                ptx.tma_load(address, tensor_map, coords, barrier), pred=w.elected(self.scope)
            )


@dataclass(eq=False)
class TmaStore(TileTransfer):
    """Asynchronous store of a tile, one bulk group; parts outside the tensor are not written."""

    verb: ClassVar[str] = "store_async"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.THREAD, Scope.WARPGROUP)

    @property
    def stores(self) -> TensorArg:
        """The tensor."""
        return self.arg

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile through the async proxy."""
        return (Effect(Access.ASYNC_READ, self.tile, "async"),)

    def emit(self, w: Any) -> None:
        """One `cp.async.bulk.tensor` a panel, then the group's commit."""
        dims, box = box_of(self.arg, self.tile_type)
        tensor_map = w.tensor_map(self.arg, dims, box, self.tile_type.layout.swizzle_bytes)
        pred = w.elected(self.scope)
        for coords, address in self.panels(w):
            w.line(ptx.tma_store(tensor_map, coords, address), pred=pred)
        w.line(ptx.bulk_commit_group(), pred=pred)


@dataclass(eq=False)
class BulkWait(Op):
    """Waits until at most `pending` of the thread's store groups are left.

    Args:
        pending: groups that may still be under way.
        read: True to wait only until the shared sources have been read.
    """

    pending: int = attribute()
    read: bool = attribute(default=True)

    def emit(self, w: Any) -> None:
        """`cp.async.bulk.wait_group`, by the thread that stores."""
        w.line(
            ptx.bulk_wait_group(self.pending, read=self.read), pred=w.elected(self.scope)
        )


@lru_cache(maxsize=256)
def copy_request(tile: SharedTileType, instruction: str) -> SharedRequest:
    """The worst request of a copy in which lanes take adjacent elements of a line."""
    layout, size = tile.layout, tile.dtype.bits // 8
    item = np.arange(tile.rows * tile.cols)
    slow, fast = np.divmod(item, layout.contiguous)
    row, col = (slow, fast) if tile.order == "row" else (fast, slow)
    offsets = layout.byte_offset(row, col)
    worst = max(
        bank_conflicts(offsets[first : first + WARP], size) for first in range(0, item.size, WARP)
    )
    return SharedRequest(instruction, size, worst, ideal_wavefronts(WARP, size))


@dataclass(eq=False)
class CopyByThreads(TileTransfer):
    """Copies a tile element by element, for tensors TMA cannot reach (any strides, any address).

    Elements outside the tensor load as zero and are not stored. Each of the 128 threads of the
    warpgroup takes every 128th element along the axis that is contiguous in shared memory.
    """

    verb: ClassVar[str] = "load_async, store_async"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    store: bool = attribute(default=False)

    @property
    def stores(self) -> TensorArg | None:
        """The tensor, if it is the target."""
        return self.arg if self.store else None

    def effects(self) -> tuple[Effect, ...]:
        """Accesses the tile through the generic proxy."""
        return (Effect(Access.READ if self.store else Access.WRITE, self.tile),)

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """Its one `ld.shared` or `st.shared`, at the iteration with the most conflicts."""
        return (copy_request(self.tile_type, "ld.shared" if self.store else "st.shared"),)

    def emit(self, w: Any) -> None:
        """A loop of one `ld` and one `st` a thread."""
        tile = self.tile_type
        count = tile.rows * tile.cols
        inner_axis = contiguous_axis(tile)
        inner = tile.shape[inner_axis]
        item, done = w.new("b32", "item"), w.new("pred", "done")
        loop = w.label("copy")
        w.line(ptx.alu("and.b32", item, w.tid(), 127))
        w.mark(loop)
        fast, slow = w.new("b32", "fast"), w.new("b32", "slow")
        w.line(ptx.alu("div.u32", slow, item, inner))
        w.line(ptx.alu("rem.u32", fast, item, inner))
        local = (slow, fast) if inner_axis == 1 else (fast, slow)
        shared = self._shared_address(w, slow, fast)
        inside, address = self._global_address(w, local)
        self._move(w, shared, address, inside)
        w.line(ptx.alu("add.u32", item, item, 128))
        w.line(ptx.alu("setp.lt.u32", done, item, count))
        w.line(ptx.bra(loop), pred=done)

    def _shared_address(self, w: Any, slow: str, fast: str) -> str:
        tile = self.tile_type
        layout, nbytes = tile.layout, tile.dtype.bits // 8
        panel, byte, base = w.new("b32", "panel"), w.new("b32", "byte"), w.new("b32", "element")
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
        w.line(ptx.alu("add.u32", base, byte, w.materialize(w.address(self.tile))))
        return base

    def _global_address(self, w: Any, local: tuple[str, str]) -> tuple[str, str]:
        rank = self.arg.type.rank
        inside, test = w.new("pred", "inside"), w.new("pred", "test")
        offset, part = w.new("b64", "offset"), w.new("b64", "part")
        w.line(ptx.alu("mov.b64", offset, 0))
        w.line(ptx.alu("setp.eq.u32", inside, 0, 0))
        for dim in range(rank):
            coord = w.src(self.coords[dim], "s32")
            if dim >= rank - 2:
                full = w.new("b32", "coord")
                w.line(ptx.alu("add.s32", full, coord, local[dim - rank + 2]))
                coord = full
            w.line(ptx.alu("setp.lt.u32", test, coord, w.extent(self.arg, dim)))
            w.line(ptx.alu("and.pred", inside, inside, test))
            w.line(ptx.alu("cvt.s64.s32", part, coord))
            w.line(ptx.alu("mad.lo.s64", offset, part, w.stride(self.arg, dim), offset))
        address = w.new("b64", "address")
        nbytes = self.tile_type.dtype.bits // 8
        w.line(ptx.alu("mad.lo.s64", address, offset, nbytes, w.pointer(self.arg)))
        return inside, address

    def _move(self, w: Any, shared: str, address: str, inside: str) -> None:
        kind = f"b{self.tile_type.dtype.bits}"
        data = w.new(kind, "element")
        if self.store:
            w.line(ptx.ld_shared(kind, data, shared))
            w.line(ptx.st_global(kind, address, data), pred=inside)
            return
        w.line(ptx.alu(f"mov.{kind}", data, 0))
        w.line(ptx.ld_global(kind, data, address), pred=inside)
        w.line(ptx.st_shared(kind, shared, data))
