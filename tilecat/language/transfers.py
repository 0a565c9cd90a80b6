"""Moving tiles and vectors between global and shared memory: TMA, bulk copies, threads."""

from __future__ import annotations

from typing import Any

from ..builder import add, current
from ..dtypes import s32, u8, u64
from ..errors import LayoutError, SyncError
from ..ir import Value
from ..ops.copies import (
    CHUNK_BYTES,
    CopyAsync,
    CopyByThreads,
    CopyElement,
    CopyGroup,
    contiguous_axis,
)
from ..ops.tma import BulkLoad, BulkStore, BulkWait, TmaLoad, TmaPrefetch, TmaStore
from ..ptx.transfers import CACHE_POLICIES
from ..tiles import ScalarType, SharedTileType, SharedVecType
from . import functions
from .barriers import one_barrier
from .packed import check_packed, tensor_dtype
from .regions import Region
from .scalars import Scalar, binary, operand_of
from .values import Registers, SharedElement, SharedTile, SharedVec
from .views import GlobalTile

SharedPlace = SharedTile | SharedVec


# ---- TMA


def check_cache(name: str, cache: str) -> str:
    """The L2 priority of an op, or empty.

    Raises:
        LayoutError: it has no such name.
    """
    if cache not in ("", *CACHE_POLICIES):
        raise LayoutError(
            f"{name}: cache is one of {', '.join(CACHE_POLICIES)}, got cache={cache!r}"
        )
    return cache


def check_meets(name: str, kind: SharedTileType | SharedVecType, region: Region) -> None:
    """A shared tile and the region it meets have one dtype; where TMA moves it, one order.

    A tf32 tile takes f32: the same bits, of which the tensor cores read 19. See `packed` for
    scales, and for 4-bit elements.

    Raises:
        DTypeError: two dtypes.
        LayoutError: the contiguous axes differ; what TMA has to move, and cannot.
    """
    arg, wanted = region.arg, tensor_dtype(kind)
    check_packed(name, kind, region)
    if isinstance(kind, SharedTileType) and region.tma and kind.order != region.order:
        raise LayoutError(
            f"{name}: {arg.name} is {region.order}-ordered in memory, got a tile {kind}",
            hint=f"st[{kind.dtype.name}, {kind.rows}, {kind.cols}, {arg.name}.order]",
        )
    if arg.type.dtype != wanted and (arg.type.dtype != kind.dtype or wanted in (u8, u64)):
        raise LayoutError(
            f"{name}: {arg.name} holds {arg.type.dtype}, got a tile {kind}",
            hint="tc.formats.scale_words(packed): words of 8 scales" if wanted == u64 else None,
        )


def _by_tma(
    name: str, kind: SharedTileType | SharedVecType, region: Region, *, store: bool = False
) -> None:
    if not (region.tma_stores if store else region.tma):
        hint = "tc.copy(tile, A[row, col]) by threads; A.tma, known while tracing, tells"
        if region.bounds and store:
            hint = "tc.copy(A[row, col], tile) by threads, which writes nothing behind the end"
        elif region.tma and not region.arg.whole:
            hint = (
                "tc.copy(A[row, col], tile) by threads, or rows padded to 16 bytes; A.tma_stores, "
                "known while tracing, tells"
            )
        elif region.bounds:
            hint = (
                "tc.copy(tile, A[row, col]) by threads, or A[first:, :], which reads what follows "
                "too, and a mask"
            )
        raise LayoutError(
            f"{name}: TMA cannot reach {region.arg.name}: {region.obstacle}", hint=hint
        )
    check_meets(name, kind, region)


def _shared_place(value: Any, name: str) -> SharedPlace:
    if not isinstance(value, SharedTile | SharedVec):
        raise LayoutError(
            f"{name}: wanted a shared tile or vector, got {value!r} ({type(value).__name__})",
            hint="tile = tc.shared(tc.st[tc.bf16, 64, 64])",
        )
    return value


def _place(value: Any, name: str, example: str, what: str = "wanted") -> GlobalTile:
    if not isinstance(value, GlobalTile):
        raise LayoutError(f"{name}: {what} a place in a tensor, got {value!r}", hint=example)
    return value


def regions_of(tile: SharedPlace, place: GlobalTile, name: str) -> list[Region]:
    """The regions a tile meets; several if its rows lie in pages.

    Raises:
        LayoutError: pages along the contiguous axis of the tile, or too small for its swizzle.
    """
    found = place.regions(*tile.type.shape)
    check_index(name, tile, found[0])
    if len(found) > 1:
        kind = tile.type
        rows = kind.shape[0] // len(found)
        if not isinstance(kind, SharedTileType) or kind.order != "row" or rows % 8:
            raise LayoutError(
                f"{name}: rows of several pages go to a row-order tile, 8 or more a page, "
                f"got {kind} and {rows} rows a page"
            )
    return found


def check_index(name: str, tile: SharedPlace, region: Region) -> None:
    """An index vector of a copy is shared, of s32, and as long as the tile is there.

    Raises:
        LayoutError: it is not.
    """
    for dim, coord in enumerate(region.coords):
        if not isinstance(coord, Value) or isinstance(coord.type, ScalarType):
            continue
        wanted = tile.type.shape[region.axes.index(dim)] if dim in region.axes else 0
        if coord.type != SharedVecType(s32, wanted):
            raise LayoutError(
                f"{name}: a shared tile's rows (or columns) are gathered by a shared vector of "
                f"s32, one a row, got {coord.type} for {tile.type}",
                hint=f"index = tc.shared(tc.sv[tc.s32, {wanted or tile.type.shape[0]}])",
            )


def load_async(
    destination: Any, source: GlobalTile, barrier: Any = None, *, cache: str = "",
    multicast: Any = None, part: Any = 0, parts: int = 1,
) -> None:  # fmt: skip
    """Loads a tile of a global tensor into shared memory, asynchronously.

    Elements outside the tensor read as zero. In the load holes of a pipeline the destination is an
    input (or `input[i]`) or `scratch[i]`, and the pipeline counts. By hand it is a shared tile or
    vector, whose bytes complete on an mbarrier:

        full = tc.barrier()                      # before tc.warpgroup
        full.expect(tile)                        # one arrival, and the tile's bytes
        tc.load_async(tile, A[row, col], full)
        full.wait(0)

    Args:
        destination: see above.
        source: `A[row, col]`: tile coordinates on the tile's axes, elements on the others.
        barrier: the mbarrier, for a shared tile; of a pair of CTAs, `full.of_even`.
        cache: L2 priority: "evict_first", "evict_last", "evict_normal", or empty.
        multicast: ranks of the CTAs of the cluster that receive the tile, each at the same place
            and on its own mbarrier: a tuple of ints, or a mask (int or scalar) of bits. In a
            pipeline, True: one for the whole cluster; "row", "col": one for its row or column.
        part: loads only this one of `parts` equal parts of the tile's rows (of its columns, in
            column order); may be a run-time scalar, as the rank in the cluster.
        parts: see `part`.

    Scope: thread, warp, warpgroup. PTX: `cp.async.bulk.tensor` (ISA 9.7.9.27.1.2); in a pipeline a
    masked copy by the producer's threads where TMA cannot reach.
    """
    place = _place(source, "load_async", "tc.load_async(a, A[row, k])", "the source is")
    if hasattr(destination, "load"):
        if barrier is not None:
            raise SyncError("load_async: a pipeline's tile has a barrier of its own, got another")
        if multicast not in (None, False, True, "row", "col"):
            raise LayoutError(
                "load_async: a pipeline's tile goes to every CTA of its cluster or to one, or to "
                f"those in its row or column, got {multicast=}",
                hint='multicast=True, "row" or "col"',
            )
        destination.load(place, multicast or False, check_cache("load_async", cache))
        return
    if not isinstance(destination, SharedTile | SharedVec):
        raise LayoutError(
            f"load_async: the destination is an input or scratch tile, or a shared tile, "
            f"got {destination!r}"
        )
    target = _shared_place(destination, "load_async")
    signal = one_barrier(barrier, "load_async")
    ranks = None if multicast is None else _mask(multicast)
    for number, region in enumerate(regions_of(target, place, "load_async")):
        _by_tma("load_async", target.type, region)
        count = len(place.regions(*target.type.shape)) if parts == 1 else parts
        coords = region.coords if parts == 1 else part_coords(target, region, part, parts)
        op = TmaLoad(
            target.value, coords, region.arg, barriers=signal.op.result, index=signal.index,
            axes=region.axes, part=number if parts == 1 else operand_of(part, "part"), parts=count,
            cache=check_cache("load_async", cache), ranks=ranks, pair=signal.of_pair,
        )  # fmt: skip
        add(op)


def _mask(multicast: Any) -> Any:
    """Bits of the CTAs that receive a tile."""
    size = current().kernel.cluster
    if isinstance(multicast, tuple):
        if not multicast or not all(isinstance(r, int) and 0 <= r < size for r in multicast):
            raise LayoutError(
                f"load_async: multicast names ranks of the cluster, 0 to {size - 1}, "
                f"got multicast={multicast!r}",
                hint="tc.cluster(2), before anything else in the kernel",
            )
        return sum(1 << rank for rank in set(multicast))
    return operand_of(multicast, "multicast")


def part_coords(
    tile: SharedPlace, region: Region, part: Any, parts: int
) -> tuple[Any, ...]:
    """Coordinates of a part of a tile's lines."""
    kind = tile.type
    if not isinstance(kind, SharedTileType):
        raise LayoutError(f"load_async: a vector has no parts, got {kind}")
    across = 1 - contiguous_axis(kind)
    lines = kind.shape[across]
    if lines % parts or lines // parts % 8:
        raise LayoutError(
            f"load_async: a part is a multiple of 8 lines, got {lines} lines in {parts} parts"
        )
    coords = list(region.coords)
    dim, shift = region.axes[across], binary("mul", part, lines // parts)
    start = coords[dim]
    moved = binary("add", Scalar(start) if isinstance(start, Value) else start, shift)
    coords[dim] = operand_of(moved)
    return tuple(coords)


def store_async(destination: GlobalTile, source: Any, *, cache: str = "") -> None:
    """Stores a shared tile or vector to a tensor, asynchronously; one group a call.

    What threads wrote to the tile must be fenced first (`tc.sync` does), and the tile may be
    written again after `tc.store_wait`. Elements outside the tensor are not written; its contiguous
    axis is a whole number of 16 bytes, since TMA stores no less.

    Args:
        destination: `C[row, col]`.
        source: a shared tile or vector.
        cache: L2 priority: "evict_first", "evict_last", "evict_normal", or empty.

    Scope: thread, warp, warpgroup; the same for `tc.store_wait`. PTX: `cp.async.bulk.tensor`.
    """
    _store_async("store_async", destination, source, "", cache)


def store_add_async(destination: GlobalTile, source: Any, *, cache: str = "") -> None:
    """`destination += source`, atomic for each element; else as `store_async`.

    PTX: `cp.reduce.async.bulk.tensor` (ISA 9.7.9.27.1.3): f32, f16, bf16, s32, u32.

    Scope: thread, warp, warpgroup.
    """
    _store_async("store_add_async", destination, source, "add", cache)


def store_min_async(destination: GlobalTile, source: Any, *, cache: str = "") -> None:
    """`destination = min(destination, source)`; f16, bf16, s32, u32. As `store_add_async`.

    Scope: thread, warp, warpgroup. PTX: `cp.reduce.async.bulk.tensor`.
    """
    _store_async("store_min_async", destination, source, "min", cache)


def store_max_async(destination: GlobalTile, source: Any, *, cache: str = "") -> None:
    """`destination = max(destination, source)`; f16, bf16, s32, u32. As `store_add_async`.

    Scope: thread, warp, warpgroup. PTX: `cp.reduce.async.bulk.tensor`.
    """
    _store_async("store_max_async", destination, source, "max", cache)


def _store_async(name: str, destination: Any, source: Any, reduce: str, cache: str) -> None:
    place = _place(destination, name, f"tc.{name}(C[row, col], tile)")
    if hasattr(source, "store_to"):
        source.store_to(place, reduce, check_cache(name, cache))
        return
    tile = _shared_place(source, name)
    regions = regions_of(tile, place, name)
    for number, region in enumerate(regions):
        _by_tma(name, tile.type, region, store=True)
        op = TmaStore(
            tile.value, region.coords, region.arg, axes=region.axes, part=number,
            parts=len(regions), reduce=reduce, cache=check_cache(name, cache),
        )  # fmt: skip
        add(op)


def store_wait(pending: int = 0, *, read: bool = True) -> None:
    """Waits until at most `pending` store groups of this scope's storing thread are left.

    Args:
        pending: groups that may still be under way, the newest.
        read: True: their tiles have been read and may be written again; False: the results are in
            global memory.

    Scope: that of the stores: the thread that issued them waits. PTX: `cp.async.bulk.wait_group`,
    with `.read` where only the reads count.
    """
    if isinstance(pending, bool) or not isinstance(pending, int) or pending < 0:
        raise SyncError(f"store_wait: pending is a compile-time int >= 0, got {pending!r}")
    add(BulkWait(pending, read))


def prefetch(source: GlobalTile, kind: Any, *, cache: str = "") -> None:
    """Brings a tile of a tensor into L2.

    Args:
        source: `A[row, col]`.
        kind: the shared type it will be loaded as: `st[...]` or `sv[...]`.
        cache: L2 priority, as in `load_async`.

    Scope: thread, warp, warpgroup. PTX: `cp.async.bulk.prefetch.tensor`.
    """
    place = _place(source, "prefetch", "tc.prefetch(A[row, col], tc.st[tc.bf16, 64, 64])")
    if not isinstance(kind, SharedTileType | SharedVecType):
        raise LayoutError(f"prefetch: wanted a shared tile's type, got {kind!r}")
    region = place.region(*kind.shape)
    _by_tma("prefetch", kind, region)
    add(TmaPrefetch(region.coords, region.arg, kind, region.axes, check_cache("prefetch", cache)))


# ---- adjacent bytes


def _adjacent(name: str, vector: Any, place: Any) -> tuple[SharedVec, Region]:
    """A shared vector and a region whose elements lie together, on 16-byte units.

    Raises:
        LayoutError: anything else.
    """
    where = _place(place, name, f"tc.{name}(vector, x.at(first), barrier)")
    if not isinstance(vector, SharedVec):
        raise LayoutError(f"{name}: moves a shared vector, got {vector!r}")
    region = where.region(vector.type.length)
    whole = region.order == "row" and region.arg.tma and not region.bounds and not region.reverse
    if not whole:
        raise LayoutError(
            f"{name}: the elements lie together in {region.arg.name}, got a place along another "
            "axis or backwards, a view with an end, or strides that are not multiples of 16 bytes"
        )
    check_meets(name, vector.type, region)
    return vector, region


def load_bulk(vector: SharedVec, source: GlobalTile, barrier: Any, *, cache: str = "") -> None:
    """Copies adjacent elements of a tensor to a shared vector, asynchronously, without TMA.

    All of them lie inside the tensor, from an address that is a multiple of 16 bytes: nothing is
    masked. Completes on an mbarrier, as `load_async`.

    Scope: thread, warp, warpgroup. PTX: `cp.async.bulk` (ISA 9.7.9.25.4.1).
    """
    signal = one_barrier(barrier, "load_bulk")
    target, region = _adjacent("load_bulk", vector, source)
    add(BulkLoad(
        target.value, region.coords, region.arg, barriers=signal.op.result, index=signal.index,
        cache=check_cache("load_bulk", cache),
    ))  # fmt: skip


def store_bulk(
    destination: GlobalTile, vector: SharedVec, *, add_: bool = False, cache: str = ""
) -> None:
    """Copies (`add_`: adds) a shared vector to adjacent elements; as `load_bulk`, `store_async`.

    PTX: `cp.async.bulk` or `cp.reduce.async.bulk`, shared to global.

    Scope: thread, warp, warpgroup.
    """
    source, region = _adjacent("store_bulk", vector, destination)
    add(BulkStore(
        source.value, region.coords, region.arg, reduce="add" if add_ else "",
        cache=check_cache("store_bulk", cache),
    ))  # fmt: skip


# ---- by threads


def moves_chunks(tile: SharedPlace, region: Region) -> bool:
    """Whether a copy may move 16-byte units."""
    kind, arg = tile.type, region.arg
    unit = CHUNK_BYTES // kind.dtype.nbytes
    order = "row" if isinstance(kind, SharedVecType) else kind.order
    along = region.coords[arg.contiguous]
    plain = not isinstance(along, Value) or isinstance(along.type, ScalarType)
    bound = region.bounds[2 * arg.contiguous] if region.bounds else None
    starts = bound is None or isinstance(bound, int) and bound % unit == 0
    return arg.tma and plain and starts and region.order == order and region.together % unit == 0


def copy(out: Any, source: Any, *, fill: float = 0) -> None:
    """Copies a shared tile or vector from or to a tensor, by the threads of the scope, at once.

    For any strides, views and edges, and rows gathered by a shared vector of s32,
    `tc.copy(tile, A[index, col])`; 16 bytes at a time where the elements lie together. Other
    threads see what was copied after `tc.sync`. Between register tiles: `out = source`.

    Args:
        out: a shared tile or vector and `source` a place `A[row, col]`, or the other way round; or
            two register tiles.
        source: see `out`.
        fill: what elements outside the tensor are in the tile; they are not stored.

    Scope: warpgroup, warp. PTX: `ld` and `st`.
    """
    if isinstance(out, Registers):
        functions.copy(out, source)
        return
    store_ = isinstance(out, GlobalTile)
    place, tile = (out, source) if store_ else (source, out)
    where = _place(place, "copy", "tc.copy(tile, A[row, col])")
    target = _shared_place(tile, "copy")
    regions = regions_of(target, where, "copy")
    for number, region in enumerate(regions):
        if target.type.dtype != region.arg.type.dtype:
            check_meets("copy", target.type, region)
        op = CopyByThreads(
            target.value, region.coords, region.arg, axes=region.axes, bounds=region.bounds,
            reverse=region.reverse, part=number, parts=len(regions), store=store_, fill=fill,
            chunks=moves_chunks(target, region),
        )  # fmt: skip
        add(op)


def copy_async(tile: Any, source: GlobalTile) -> None:
    """Copies a tile of a tensor to shared memory by the scope's threads, asynchronously.

    Elements outside are zero, of views with an end too. `tc.copy_commit` closes a group of
    copies, `tc.copy_wait` waits for groups; or `barrier.arrive_after_copies()`. One element of 32
    bits, `tc.copy_async(vector.at(i), A.at(row, col))`, goes from anywhere to anywhere.

    Scope: warpgroup, warp; an element: any. PTX: `cp.async` (ISA 9.7.9.25.3), 16 bytes a thread,
    4 of an element.
    """
    where = _place(source, "copy_async", "tc.copy_async(tile, A[row, col])")
    if isinstance(tile, SharedElement):
        copy_element(tile, where)
        return
    target = _shared_place(tile, "copy_async")
    regions = regions_of(target, where, "copy_async")
    for number, region in enumerate(regions):
        check_meets("copy_async", target.type, region)
        op = CopyAsync(
            target.value, region.coords, region.arg, axes=region.axes, bounds=region.bounds,
            reverse=region.reverse, part=number, parts=len(regions),
            chunks=moves_chunks(target, region),
        )  # fmt: skip
        add(op)


def copy_element(element: SharedElement, place: GlobalTile) -> None:
    """Copies an element of a tensor to one of a shared vector, asynchronously."""
    coords, bounds = place.element()
    add(CopyElement(element.vector.value, element.index, coords, place.arg, bounds))


def copy_commit() -> None:
    """Closes this scope's group of `tc.copy_async`. PTX: `cp.async.commit_group`.

    Scope: warpgroup, warp.
    """
    add(CopyGroup())


def copy_wait(pending: int = 0) -> None:
    """Waits until at most `pending` groups of `tc.copy_async` are left, the newest.

    Each thread waits for its own copies: `tc.sync` after it, for those of the others.

    Scope: warpgroup, warp. PTX: `cp.async.wait_group`.
    """
    if isinstance(pending, bool) or not isinstance(pending, int):
        raise SyncError(f"copy_wait: pending is a compile-time int >= 0, got {pending!r}")
    add(CopyGroup(pending))
