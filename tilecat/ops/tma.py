"""Transfers between global and shared memory by TMA: whole tiles and vectors, in boxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..dtypes import b4x16_p64
from ..errors import DTypeError, LayoutError
from ..ir import Access, Effect, Op, Scope, TensorArg, Value, attribute, operand
from ..ptx import instructions as ptx
from ..ptx import transfers
from ..tiles import ScalesType, SharedTileType, SharedVecType
from .places import cache_policy, element_address
from .scalar import Operand

MAX_BOX = 256  # elements an axis of one transfer (cuda.h, cuTensorMapEncodeTiled)
# Element types of TMA's reductions (PTX ISA 9.7.9.27.1.3).
REDUCED = {
    "add": ("f32", "f16", "bf16", "s32", "u32"),
    "min": ("f16", "bf16", "s32", "u32"),
    "max": ("f16", "bf16", "s32", "u32"),
}


@dataclass(frozen=True)
class Box:
    """One transfer of a tile.

    Args:
        dims: axes of the tensor, innermost first.
        extents: elements along each.
        shift: elements from the tile's start along each.
        byte: where it lies, from the tile's start.
    """

    dims: tuple[int, ...]
    extents: tuple[int, ...]
    shift: tuple[int, ...]
    byte: int


def default_axes(arg: TensorArg, kind: SharedTileType | SharedVecType) -> tuple[int, ...]:
    """The axes a tile (the last two) or a vector (the last) covers unless told otherwise."""
    rank = arg.type.rank
    return (rank - 1,) if isinstance(kind, SharedVecType) else (rank - 2, rank - 1)


def boxes_of(
    arg: TensorArg, kind: SharedTileType | SharedVecType, axes: tuple[int, ...], parts: int = 1
) -> tuple[Box, ...]:
    """The transfers of a tile, or of one of `parts` equal parts of its lines.

    Example: a 64 x 128 bf16 tile of a row-major matrix has panels of 64 columns (128 bytes):
    dims (1, 0), extents (64, 64); one transfer a panel.
    """
    if isinstance(kind, ScalesType):
        return _scale_boxes(arg, kind, axes)
    if isinstance(kind, SharedVecType):
        return _vector_boxes(arg, kind, axes)
    rows_axis, cols_axis = axes
    layout = kind.layout
    lines = (kind.rows if kind.order == "row" else kind.cols) // parts
    inner = (cols_axis, rows_axis) if kind.order == "row" else (rows_axis, cols_axis)
    outer = tuple(d for d in range(arg.type.rank - 1, -1, -1) if d not in inner)
    step = next(n for n in range(min(lines, MAX_BOX), 0, -1) if lines % n == 0 and _whole(n, lines))
    rest = (1,) * len(outer)
    zeros = (0,) * len(outer)
    return tuple(
        Box(
            inner + outer,
            (layout.panel_elems, step, *rest),
            (panel * layout.panel_elems, line, *zeros),
            panel * layout.panel_bytes + line * layout.pitch_bytes,
        )
        for panel in range(layout.num_panels)
        for line in range(0, lines, step)
    )


def _whole(step: int, lines: int) -> bool:
    """A box that is not all lines ends on a swizzle pattern: 8 lines."""
    return step == lines or step % 8 == 0


def _vector_boxes(
    arg: TensorArg, kind: SharedVecType, axes: tuple[int, ...]
) -> tuple[Box, ...]:
    outer = tuple(d for d in range(arg.type.rank - 1, -1, -1) if d not in axes)
    ones, zeros = (1,) * len(outer), (0,) * len(outer)
    return tuple(
        Box(
            axes + outer,
            (min(MAX_BOX, kind.length - first), *ones),
            (first, *zeros),
            first * kind.dtype.nbytes,
        )
        for first in range(0, kind.length, MAX_BOX)
    )


def _scale_boxes(arg: TensorArg, kind: ScalesType, axes: tuple[int, ...]) -> tuple[Box, ...]:
    """Words of 64 bits, of which a box has enough for 16 scales of each row."""
    rows, words = kind.shape
    inner = axes[::-1]
    outer = tuple(d for d in range(arg.type.rank - 1, -1, -1) if d not in axes)
    ones, zeros = (1,) * len(outer), (0,) * len(outer)
    if words <= MAX_BOX:
        return (Box(inner + outer, (words, rows, *ones), (0, 0, *zeros), 0),)
    return tuple(
        Box(inner + outer, (min(MAX_BOX, words - first), 1, *ones), (first, row, *zeros),
            (row * words + first) * 8)
        for row in range(rows)
        for first in range(0, words, MAX_BOX)
    )  # fmt: skip


@dataclass(eq=False)
class TileTransfer(Op):
    """Base of transfers between a shared tile (or vector) and `arg` at element coordinates.

    Args:
        tile: the shared tile or vector.
        coords: first element along each axis of the tensor, outermost first.
        arg: the tensor.
        axes: axes of the tensor that the tile's rows and columns lie along; empty: the last ones.
        part: which part of the tile's lines is moved, if there are several.
        parts: equal parts that the tile's lines are cut into; `coords` are the part's.
    """

    tile: Value = operand()
    coords: tuple[Operand, ...] = operand()
    arg: TensorArg = attribute()
    axes: tuple[int, ...] = attribute(default=(), kw_only=True)
    part: Operand = operand(default=0, kw_only=True)
    parts: int = attribute(default=1, kw_only=True)

    @property
    def tile_type(self) -> SharedTileType | SharedVecType:
        """Type of the shared tile or vector."""
        assert isinstance(self.tile.type, SharedTileType | SharedVecType), "a shared place"
        return self.tile.type

    @property
    def num_bytes(self) -> int:
        """Bytes a transfer moves, parts outside the tensor included."""
        return self.tile_type.tx_bytes // self.parts

    @property
    def tile_axes(self) -> tuple[int, ...]:
        """Axes of the tensor that the tile lies along."""
        return self.axes or default_axes(self.arg, self.tile_type)

    def part_bytes(self) -> int:
        """Bytes from one part of the tile's first panel to the next."""
        kind = self.tile_type
        if isinstance(kind, SharedVecType):
            return kind.layout.num_bytes // self.parts
        lines = kind.rows if kind.order == "row" else kind.cols
        return lines // self.parts * kind.layout.pitch_bytes

    def boxes(self) -> tuple[Box, ...]:
        """Its transfers."""
        return boxes_of(self.arg, self.tile_type, self.tile_axes, self.parts)

    def placed(self, w: Any) -> list[tuple[str, tuple[str, ...], str]]:
        """For each box: tensor map, coordinates innermost first, shared address."""
        base = w.address(self.tile)
        if self.parts > 1:
            base = w.offset(base, self.part, self.part_bytes())
        swizzle, dtype = self.tile_type.layout.swizzle_bytes, self.tile_type.dtype
        packed = dtype.name if dtype == b4x16_p64 else ""
        found = []
        for box in self.boxes():
            tensor_map = w.tensor_map(self.arg, box.dims, box.extents, swizzle, packed)
            coords = [w.src(self.coords[d], "s32") for d in box.dims]
            moved = [w.add(c, shift) for c, shift in zip(coords, box.shift, strict=True)]
            found.append((tensor_map, tuple(moved), w.text(base, box.byte)))
        return found


@dataclass(eq=False)
class TmaLoad(TileTransfer):
    """Asynchronous load of a tile; its bytes complete on `barriers[index]`.

    Args:
        barriers: the mbarriers.
        index: which of them.
        cache: L2 eviction priority, or empty.
        ranks: CTAs of the cluster that receive it, at the same place in their shared memory, as
            bits of a mask; None for this CTA alone.
        pair: the bytes complete on the even CTA's mbarrier, who multiplies for both of a pair.
    """

    verb: ClassVar[str] = "load_async"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.THREAD, Scope.WARPGROUP, Scope.WARP)
    barriers: Value = operand()
    index: Operand = operand()
    cache: str = attribute(default="", kw_only=True)
    ranks: Operand | None = operand(default=None, kw_only=True)
    pair: bool = attribute(default=False, kw_only=True)

    def effects(self) -> tuple[Effect, ...]:
        """Writes the tile through the async proxy."""
        return (Effect(Access.ASYNC_WRITE, self.tile, "async"),)

    @property
    def loads(self) -> TensorArg:
        """The tensor."""
        return self.arg

    def emit(self, w: Any) -> None:
        """One `cp.async.bulk.tensor` a box."""
        barrier = w.barrier(self.barriers, self.index, leader=self.pair)
        placed = self.placed(w)
        mask, policy = self._mask(w), cache_policy(w, self.cache)
        for tensor_map, coords, address in placed:
            text = transfers.tma_load(
                address, tensor_map, coords, barrier, mask=mask, policy=policy, pair=self.pair
            )
            w.line(text, pred=w.elected(self.scope))

    def _mask(self, w: Any) -> str | None:
        if self.ranks is None or not isinstance(self.ranks, Value):
            return None if self.ranks is None else str(int(self.ranks))
        mask = w.new("b16", "ranks")
        w.line(ptx.alu("cvt.u16.u32", mask, w.src(self.ranks)))
        return str(mask)


@dataclass(eq=False)
class TmaStore(TileTransfer):
    """Asynchronous store of a tile, one bulk group; parts outside the tensor are not written.

    Args:
        reduce: "add", "min" or "max" to combine with what is there; empty to overwrite.
        cache: L2 eviction priority, or empty.
    """

    verb: ClassVar[str] = "store_async"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.THREAD, Scope.WARPGROUP, Scope.WARP)
    reduce: str = attribute(default="", kw_only=True)
    cache: str = attribute(default="", kw_only=True)

    def infer(self) -> tuple[Any, ...]:
        """Nothing; a reduction needs a dtype that TMA combines."""
        known = REDUCED.get(self.reduce, ())
        if self.reduce and self.tile_type.dtype.name not in known:
            raise DTypeError(
                f"store_{self.reduce}_async: TMA combines {', '.join(known)}, "
                f"got {self.tile_type}",
                hint="tc.atomic_add and its like combine registers with a tensor",
            )
        return ()

    @property
    def stores(self) -> TensorArg:
        """The tensor."""
        return self.arg

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile through the async proxy."""
        return (Effect(Access.ASYNC_READ, self.tile, "async"),)

    def emit(self, w: Any) -> None:
        """One `cp.async.bulk.tensor` a box, then the group's commit."""
        placed, policy = self.placed(w), cache_policy(w, self.cache)
        pred = w.elected(self.scope)
        for tensor_map, coords, address in placed:
            text = transfers.tma_store(
                tensor_map, coords, address, reduce=self.reduce, policy=policy
            )
            w.line(text, pred=pred)
        w.line(ptx.bulk_commit_group(), pred=pred)


@dataclass(eq=False)
class TmaPrefetch(Op):
    """Brings a tile of a tensor into L2.

    Args:
        coords: first element along each axis, outermost first.
        arg: the tensor.
        kind: the tile's type.
        axes: axes of the tensor that the tile lies along.
        cache: L2 eviction priority, or empty.
    """

    verb: ClassVar[str] = "prefetch"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.THREAD, Scope.WARPGROUP, Scope.WARP)
    coords: tuple[Operand, ...] = operand()
    arg: TensorArg = attribute()
    kind: SharedTileType | SharedVecType = attribute()
    axes: tuple[int, ...] = attribute()
    cache: str = attribute(default="")

    @property
    def loads(self) -> TensorArg:
        """The tensor."""
        return self.arg

    def emit(self, w: Any) -> None:
        """One `cp.async.bulk.prefetch.tensor` a box."""
        policy, pred = cache_policy(w, self.cache), w.elected(self.scope)
        for box in boxes_of(self.arg, self.kind, self.axes):
            swizzle = self.kind.layout.swizzle_bytes
            tensor_map = w.tensor_map(self.arg, box.dims, box.extents, swizzle)
            coords = [w.src(self.coords[d], "s32") for d in box.dims]
            moved = [w.add(c, shift) for c, shift in zip(coords, box.shift, strict=True)]
            w.line(transfers.tma_prefetch(tensor_map, moved, policy=policy), pred=pred)


@dataclass(eq=False)
class BulkWait(Op):
    """Waits until at most `pending` of the thread's store groups are left.

    Args:
        pending: groups that may still be under way.
        read: True to wait only until the shared sources have been read.
    """

    verb: ClassVar[str] = "store_wait"
    pending: int = attribute()
    read: bool = attribute(default=True)

    def emit(self, w: Any) -> None:
        """`cp.async.bulk.wait_group`, by the thread that stores."""
        w.line(
            ptx.bulk_wait_group(self.pending, read=self.read), pred=w.elected(self.scope)
        )


@dataclass(eq=False)
class BulkTransfer(Op):
    """Base of copies of a shared vector's bytes, which lie together in global memory too.

    Args:
        vector: the shared vector.
        coords: first element along each axis, outermost first; all bytes lie inside the tensor.
        arg: the tensor.
        cache: L2 eviction priority, or empty.
    """

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.THREAD, Scope.WARPGROUP, Scope.WARP)
    vector: Value = operand()
    coords: tuple[Operand, ...] = operand()
    arg: TensorArg = attribute()
    cache: str = attribute(default="", kw_only=True)

    @property
    def num_bytes(self) -> int:
        """Bytes it moves."""
        assert isinstance(self.vector.type, SharedVecType), "checked by the caller"
        return self.vector.type.layout.num_bytes

    def infer(self) -> tuple[Any, ...]:
        """Nothing; whole 16-byte units."""
        if self.num_bytes % 16:
            raise LayoutError(
                f"{self.label}: copies multiples of 16 bytes, got {self.vector.type} of "
                f"{self.num_bytes} bytes"
            )
        return ()


@dataclass(eq=False)
class BulkLoad(BulkTransfer):
    """Asynchronous copy of adjacent bytes into a shared vector; completes on `barriers[index]`."""

    verb: ClassVar[str] = "load_bulk"
    barriers: Value = operand()
    index: Operand = operand()

    @property
    def loads(self) -> TensorArg:
        """The tensor."""
        return self.arg

    def effects(self) -> tuple[Effect, ...]:
        """Writes the vector through the async proxy."""
        return (Effect(Access.ASYNC_WRITE, self.vector, "async"),)

    def emit(self, w: Any) -> None:
        """`cp.async.bulk`, global to shared."""
        source, target = element_address(w, self.arg, self.coords), w.text(w.address(self.vector))
        barrier, policy = w.barrier(self.barriers, self.index), cache_policy(w, self.cache)
        text = transfers.bulk_load(target, source, self.num_bytes, barrier, policy=policy)
        w.line(text, pred=w.elected(self.scope))


@dataclass(eq=False)
class BulkStore(BulkTransfer):
    """Asynchronous copy (or addition) of a shared vector to adjacent bytes, one bulk group."""

    verb: ClassVar[str] = "store_bulk"
    reduce: str = attribute(default="", kw_only=True)

    @property
    def stores(self) -> TensorArg:
        """The tensor."""
        return self.arg

    def effects(self) -> tuple[Effect, ...]:
        """Reads the vector through the async proxy."""
        return (Effect(Access.ASYNC_READ, self.vector, "async"),)

    def emit(self, w: Any) -> None:
        """`cp.async.bulk` or `cp.reduce.async.bulk`, shared to global, and the commit."""
        assert isinstance(self.vector.type, SharedVecType), "checked by the caller"
        target, source = element_address(w, self.arg, self.coords), w.text(w.address(self.vector))
        dtype = self.vector.type.dtype.name
        reduce = self.reduce
        if reduce:
            reduce += f".noftz.{dtype}" if dtype in ("f16", "bf16") else f".{dtype}"
        policy, pred = cache_policy(w, self.cache), w.elected(self.scope)
        text = transfers.bulk_store(target, source, self.num_bytes, reduce=reduce, policy=policy)
        w.line(text, pred=pred)
        w.line(ptx.bulk_commit_group(), pred=pred)
