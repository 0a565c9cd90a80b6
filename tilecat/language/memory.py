"""Shared memory, and registers from and to shared memory, tensors and peers."""

from __future__ import annotations

from typing import Any

from ..builder import add, assigned_name, current
from ..dtypes import DType, f32
from ..errors import DTypeError, LayoutError
from ..ir import Value
from ..ops.cluster import LoadPeer, StorePeer
from ..ops.global_memory import LoadGlobal, StoreGlobal
from ..ops.global_scalars import LoadScalar, StoreScalar
from ..ops.memory import AllocShared, LoadShared, StoreShared, ViewShared
from ..ops.shared_vectors import LoadElement, LoadVector, StoreVector
from ..tiles import RegTileType, RegVecType, SharedTileType, SharedVecType
from .functions import held_by_scope, tile_of
from .scalars import Scalar, operand_of
from .tensor import TensorTile, load_tensor, store_tensor
from .values import (
    PeerTile,
    Registers,
    RegTile,
    RegVec,
    SharedElement,
    SharedTile,
    SharedVec,
    wrap,
)
from .views import GlobalTile


class SharedTiles:
    """Several shared tiles or vectors of one type: `tiles[i]`, with a run-time index too."""

    def __init__(self, op: AllocShared):
        self.op = op

    def __len__(self) -> int:
        """How many."""
        return self.op.copies

    def __getitem__(self, index: Any) -> Any:
        """Tile `index`."""
        if isinstance(index, int) and not 0 <= index < self.op.copies:
            raise LayoutError(f"shared: {self.op.copies} tiles, got index={index}")
        place = operand_of(index, "shared")
        view = ViewShared(self.op.result, place, self.op.stride_bytes, self.op.tile)
        return wrap(add(view).result)


def view_as(tile: Any, dtype: DType) -> SharedTile:
    """The bytes of a shared tile as elements of another dtype of as many bits: room used twice.

    Args:
        tile: a shared tile, or a pipeline's.
        dtype: of as many bits as the tile's.

    Raises:
        LayoutError: not a shared tile. DTypeError: another number of bits.

    Scope: any. PTX: none.
    """
    inner = getattr(tile, "tile", tile)
    if not isinstance(inner, SharedTile):
        raise LayoutError(f"view_as: wanted a shared tile, got {tile!r} ({type(tile).__name__})")
    kind = inner.type
    if not isinstance(dtype, DType) or dtype.bits != kind.dtype.bits:
        raise DTypeError(
            f"view_as: a dtype of {kind.dtype.bits} bits, as {kind} has, got {dtype!r}",
            hint="tc.cast converts registers",
        )
    seen = SharedTileType(dtype, kind.rows, kind.cols, kind.order, kind.swizzle_bytes)
    return SharedTile(add(ViewShared(inner.value, 0, 0, seen)).result)


def shared(kind: SharedTileType | SharedVecType, count: int | None = None) -> Any:
    """A tile or vector in shared memory, undefined until written; with a count, that many.

    Args:
        kind: `st[dtype, rows, cols]` or `sv[dtype, length]`.
        count: how many, to index; None for one.

    Raises:
        LayoutError: not a shared type.

    Scope: any; the memory is the CTA's. PTX: none, an offset in `.shared`.
    """
    if not isinstance(kind, SharedTileType | SharedVecType):
        raise LayoutError(
            f"shared: wanted a shared tile's type, got {kind!r} ({type(kind).__name__})",
            hint="tc.shared(tc.st[tc.bf16, 64, 64])",
        )
    name = assigned_name(current().loc()) or "shared"
    if count is None:
        return wrap(add(AllocShared(kind, name)).result)
    op = AllocShared(kind, name, count)
    add(op)
    return SharedTiles(op)


# ---- registers


def load(
    source: Any, kind: Any = None, *, order: str = "row", fill: float = 0, cache: str = ""
) -> Any:
    """A new register tile, vector or scalar, from shared memory, a tensor or a peer.

    Args:
        source: a shared tile or vector, a pipeline's, one of a peer, a tile of tensor memory (64
            rows, by a warpgroup), an element of a shared vector, `vector.at(i)`, which every thread
            gets, or a place in a tensor: `A[row, col]`, `A[rows, col]` with an s32 vector of rows
            to gather, `starts[b]`.
        kind: the registers' type: `rt[f32, 64, 64]`, `rv[f32, 64]`; for a place also f32, s32 or
            u32, for one element. Without one a shared tile keeps its shape, a shared vector
            becomes a row vector. An f32 vector takes bf16 and f16 from memory, exactly. For a tile
            of tensor memory it says by which shape: `rt[f32, 128, 64, "32x32b"]`, a row a thread.
        order: for a shared tile, the fragment: "row", or "col" for the B operand of a warp's mma.
        fill: for a place, what elements outside the tensor are.
        cache: for a place, "evict_first": what is read once is the first to leave the caches.

    Scope: warpgroup, warp; one element: any. PTX: `ldmatrix`, or `ld`; `tcgen05.ld`.

    Example: `x = tc.load(X[i, j], tc.rt[tc.f32, 64, 64], fill=float("-inf"))`
    """
    _check_cache("load", source, cache, isinstance(kind, DType))
    if isinstance(source, GlobalTile):
        return _load_global(source, kind, fill, cache)
    if isinstance(source, PeerTile):
        return _load_peer(source, kind, order)
    if isinstance(source, TensorTile):
        return load_tensor(source, kind)
    source = getattr(source, "tile", source)
    if isinstance(source, SharedElement):
        return _load_element(source, kind)
    if isinstance(source, SharedVec):
        return _load_vector(source.value, source.type, kind)
    return wrap(add(LoadShared(tile_of(source, "load"), order)).result)


def _load_element(source: SharedElement, kind: Any) -> Scalar:
    dtype = source.vector.type.dtype
    if kind not in (None, dtype):
        raise DTypeError(f"load: {source} holds {dtype}, got {kind}")
    return Scalar(add(LoadElement(source.vector.value, source.index)).result)


def _load_vector(source: Value, held: SharedVecType, kind: Any) -> Any:
    if kind is None:
        kind = RegVecType(f32 if held.dtype.bits < 32 else held.dtype, held.length)
    return wrap(add(LoadVector(source, held_by_scope(kind, "load"))).result)


def _check_cache(name: str, place: Any, cache: str, alone: bool) -> None:
    """Raises: LayoutError: another word, or one for anything but tiles and vectors of tensors."""
    if cache and (cache != "evict_first" or alone or not isinstance(place, GlobalTile)):
        raise LayoutError(
            f'{name}: cache is "evict_first", of tiles and vectors of tensors, got {cache=}',
            hint=f"tc.{name} without cache" if cache == "evict_first" else 'cache="evict_first"',
        )


def _load_global(source: GlobalTile, kind: Any, fill: float, cache: str) -> Any:
    if isinstance(kind, DType):
        if kind != source.arg.type.dtype:
            raise DTypeError(f"load: {source.arg.name} holds {source.arg.type.dtype}, got {kind}")
        coords, bounds = source.element()
        return Scalar(add(LoadScalar(coords, source.arg, bounds, fill)).result)
    if not isinstance(kind, RegTileType | RegVecType):
        raise LayoutError(
            f"load: a place in a tensor needs the registers' type, got {kind!r}",
            hint="tc.load(A[i, j], tc.rt[A.dtype, 64, 64])",
        )
    extents = kind.shape if isinstance(kind, RegTileType) else (kind.length,)
    region = source.region(*extents)
    op = LoadGlobal(
        region.coords, region.arg, axes=region.axes, bounds=region.bounds, reverse=region.reverse,
        together=region.together, kind=held_by_scope(kind, "load"), fill=fill,
        first=bool(cache),
    )  # fmt: skip
    return wrap(add(op).result)


def _load_peer(source: PeerTile, kind: Any, order: str) -> Any:
    tile = source.type.kind
    if isinstance(tile, SharedVecType):
        return _load_vector(source.value, tile, kind)
    if kind is None and isinstance(tile, SharedTileType):
        kind = RegTileType(tile.dtype, tile.rows, tile.cols, 4, order)
    if not isinstance(kind, RegTileType):
        raise LayoutError(f"load: a peer's tile becomes a register tile, got {kind!r}")
    return RegTile(add(LoadPeer(source.value, held_by_scope(kind, "load"))).result)


def store(destination: Any, source: Any, *, cache: str = "") -> None:
    """Stores registers, or a scalar, to shared memory, a tensor or a peer.

    Elements outside the tensor are not written. Where a tile's elements lie together in the
    tensor they move 4 or 8 bytes at a time; a pipeline's output, or `tc.store_async`, is faster.

    Args:
        destination: a shared tile or vector, one of a peer, a tile of tensor memory, a pipeline's
            operand, or a place in a tensor: `C[row, col]`,
            `C[rows, col]` with an s32 vector of rows to scatter to, `counts[i]`.
        source: a register tile or a whole vector; for a place also a scalar or a number, which one
            thread of the scope stores.
        cache: for a place, "evict_first": what nobody reads soon is the first to leave the caches.

    Scope: warpgroup, warp; a scalar: any. PTX: `stmatrix`, or `st`.
    """
    _check_cache("store", destination, cache, not isinstance(source, Registers))
    take = getattr(destination, "take", None)  # of a pipeline's operand
    if take is not None:
        take(source)
    elif isinstance(destination, GlobalTile):
        _store_global(destination, source, cache)
    elif isinstance(destination, TensorTile):
        store_tensor(destination, source)
    elif isinstance(destination, PeerTile) and isinstance(destination.type.kind, SharedTileType):
        add(StorePeer(destination.value, _register_tile(source, "store")))
    elif isinstance(destination, SharedVec | PeerTile):
        if not isinstance(source, RegVec):
            raise LayoutError(f"store: a shared vector takes a register vector, got {source!r}")
        add(StoreVector(destination.value, source.value))
    elif isinstance(destination, Registers) and isinstance(source, GlobalTile):
        raise LayoutError(
            f"store: the place comes first, got {destination!r} and then {source.arg.name}[...]",
            hint=f"tc.store({source.arg.name}[...], x)",
        )
    else:
        add(StoreShared(tile_of(destination, "store"), tile_of(source, "store")))


def _store_global(place: GlobalTile, source: Any, cache: str) -> None:
    if not isinstance(source, Registers):
        if isinstance(source, Scalar | int | float) and not isinstance(source, bool):
            coords, bounds = place.element()
            add(StoreScalar(operand_of(source, "store"), coords, place.arg, bounds))
            return
        _register_tile(source, "store")
    value = source.value
    extents = value.type.shape if isinstance(value.type, RegTileType) else (value.type.length,)
    region = place.region(*extents)
    op = StoreGlobal(
        region.coords, region.arg, axes=region.axes, bounds=region.bounds, reverse=region.reverse,
        together=region.together, tile=value, first=bool(cache),
    )  # fmt: skip
    add(op)


def _register_tile(value: Any, name: str) -> Value:
    if not isinstance(value, RegTile):
        raise LayoutError(f"{name}: wanted a register tile, got {value!r}", hint="tc.load(tile)")
    return value.value
