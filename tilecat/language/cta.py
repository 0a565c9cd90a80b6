"""CTA scope: what all warpgroups of a `tc.warpgroup(count)` block do together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..builder import add, current
from ..dtypes import f32
from ..errors import LayoutError, ScopeError
from ..ir import Op, Scope, Value
from ..ops.conditions import CompareElements, Indices, SelectElements
from ..ops.convert import Cast
from ..ops.cta import CTA_BARRIER, ReduceCta
from ..ops.elementwise import AllocRegisters, Fill, Map, MapScalar, Spread
from ..ops.memory import AllocScratch, AllocShared, LoadShared, ViewShared
from ..ops.reduce import Reduce
from ..ops.scalar import Binary, Compare, ConvertScalar, GetVar, Not, Select, WarpgroupIndex
from ..ops.sync import FenceAsync, NamedBarrier
from ..ops.views import ViewRegisters
from ..tiles import RegVecType, SharedTileType, SharedVecType, sv
from . import reductions
from .clusters import cluster_rank, cluster_sync, peer
from .control import when
from .functions import full
from .meeting import after_meeting
from .memory import load, shared, store
from .scalars import Scalar, operand_of
from .sections import WARPGROUP_THREADS, warp_id
from .values import Registers, RegVec, SharedTile, SharedVec, apply_map, registers_of

# What a function may do to its part of a tile, and mean the whole tile by it.
ELEMENTWISE: tuple[type[Op], ...] = (
    Map, MapScalar, Fill, AllocRegisters, Spread, CompareElements, SelectElements, Cast, Binary,
    Compare, ConvertScalar, GetVar, Not, Select, LoadShared, ViewShared, WarpgroupIndex,
    AllocScratch,
)  # fmt: skip
QUAD = 4  # f32 values of one access to shared memory
COMBINE = {"max": "maximum", "min": "minimum", "sum": "add", "prod": "mul", "absmax": "maximum"}


class Split(NamedTuple):
    """How the warpgroups share a tile: parts along "row" or "col", `step` bytes apart."""

    axis: str
    part: SharedTileType
    step: int


def cta_sync() -> None:
    """Waits for all threads of the CTA: what they wrote to shared tiles before is there after.

    For the threads, mma and TMA alike. In a `tc.warpgroup(count)` block, where every warpgroup
    (or, in `tc.warps`, every warp) calls it.

    Scope: warpgroup, warp; all of the CTA. PTX: `fence.proxy.async`, `bar.sync 0`.

    Raises:
        ScopeError: outside such a block.
    """
    _threads("cta_sync", Scope.WARPGROUP, Scope.WARP)
    _sync()


def _sync() -> None:
    add(FenceAsync())
    add(NamedBarrier(CTA_BARRIER, current().kernel.threads))
    after_meeting()


def _threads(name: str, *scopes: Scope) -> int:
    """Threads of the CTA, all of which execute the block."""
    builder = current()
    whole = [role.name for role in builder.kernel.roles] in (["warpgroup"], ["shared rows"])
    if builder.scope not in scopes or not whole:
        raise ScopeError(
            f"{name}: must be executed by all warpgroups of a CTA, "
            f"got scope={builder.scope.value}",
            hint="call it in a tc.warpgroup(count) block",
        )
    return builder.kernel.threads


def _split(name: str, kind: SharedTileType, count: int) -> Split:
    """Equal parts, one a warpgroup: rows if they are tiles of their own, else whole panels.

    Raises:
        LayoutError: neither.
    """
    for axis in ("row", "col"):
        rows = kind.rows // count if axis == "row" else kind.rows
        cols = kind.cols // count if axis == "col" else kind.cols
        if (kind.rows if axis == "row" else kind.cols) % count or rows % 64:
            continue
        try:
            at = [(i * rows, 0) if axis == "row" else (0, i * cols) for i in range(count)]
            parts = [kind.layout.part(row, rows, col, cols) for row, col in at]
        except LayoutError:
            continue
        step = parts[-1][1] // max(count - 1, 1)
        if [start for _, start in parts] == [step * i for i in range(count)]:
            swizzle = parts[0][0].swizzle_bytes
            return Split(axis, SharedTileType(kind.dtype, rows, cols, kind.order, swizzle), step)
    raise LayoutError(
        f"{name}: {count} warpgroups share a tile by 64 rows each, or by whole panels of 64 rows, "
        f"got {kind}",
        hint=f"{64 * count} rows in one panel, or a multiple of {count} panels",
    )


def _part(tile: SharedTile, split: Split) -> SharedTile:
    """This warpgroup's part of a tile."""
    number = add(WarpgroupIndex()).result
    return SharedTile(add(ViewShared(tile.value, number, split.step, split.part)).result)


def _tiles(name: str, tiles: tuple[Any, ...]) -> int:
    """Warpgroups that share shared tiles of one shape.

    Raises:
        LayoutError: other operands, or several shapes.
    """
    count = _threads(name, Scope.WARPGROUP) // WARPGROUP_THREADS
    for tile in tiles:
        if not isinstance(tile, SharedTile) or tile.type.shape != tiles[0].type.shape:
            raise LayoutError(f"{name}: wanted shared tiles of one shape, got {tile!r}")
    return count


def cta_map(f: Callable[..., Any], out: SharedTile, *tiles: SharedTile) -> None:
    """`out = f(*tiles)` on shared tiles by all warpgroups of the CTA, each a part of the tile.

    Between a barrier of the CTA before (what others wrote is there, what they read is read) and
    one after (all see `out`, and so do mma and TMA). The parts are rows where those lie apart (64
    or more a warpgroup, in a tile of one panel), else whole panels.

    Example: `tc.cta_map(lambda a, b: tc.exp(a) * b, out, a, b)`; `out` may be one of them.

    Args:
        f: element-wise, of register tiles; where the parts are rows it may reduce along them.
        out: a shared tile of the result's dtype and shape.
        tiles: its operands, of one shape.

    Raises:
        LayoutError: f does what would mean the part where the tile is meant, or the tile cannot
            be shared out.

    Scope: all warpgroups of a `tc.warpgroup(count)` block.
    """
    if not callable(f):
        raise LayoutError(
            f"cta_map: the first argument is a function of tiles, got {f!r}",
            hint="tc.cta_map(tc.exp, out, tile)",
        )
    count = _tiles("cta_map", (out, *tiles))
    splits = {id(t): _split("cta_map", t.type, count) for t in (out, *tiles)}
    if len({split.axis for split in splits.values()}) > 1:
        raise LayoutError(
            f"cta_map: the tiles are shared out alike, by rows or by columns, got {out} and "
            f"{', '.join(map(str, tiles))}"
        )
    _sync()
    held = [load(_part(tile, splits[id(tile)])) for tile in tiles]
    start = len(current().block.ops)
    result = f(*held)
    if not isinstance(result, Registers):
        raise LayoutError(f"cta_map: the function gives a register tile, got {result!r}")
    for op in current().block.ops[start:]:
        _check_whole(op, splits[id(out)].axis)
    store(_part(out, splits[id(out)]), result)
    _sync()


def _check_whole(op: Op, axis: str) -> None:
    along = getattr(op, "axis", None)
    other = {"row": "col", "col": "row"}[axis]
    fine = isinstance(op, ELEMENTWISE)
    fine = fine or isinstance(op, Reduce) and along == axis
    fine = fine or isinstance(op, Indices) and along == other
    if not fine:
        parts = "rows" if axis == "row" else "columns"
        raise LayoutError(
            f"cta_map: a warpgroup sees its own {parts} of the tile, so the function is "
            f"element-wise or along them, got {op.label}",
            hint="tc.map_shared, by each warpgroup on a tile of its own",
            loc=op.loc,
        )


def cta_reduce(name: str, x: Any, axis: str | None = None) -> Any:
    """`op` over a shared tile, by all warpgroups of the CTA, or over one scalar of each.

    Example: `top = tc.cta_reduce("max", tile)`; `sums = tc.cta_reduce("sum", tile, "row")`;
    `total = tc.cta_reduce("sum", tc.tile_sum(mine))`.

    Args:
        name: max, min, sum, prod or absmax.
        x: a shared tile; or an f32 or s32 scalar, one a warpgroup (in `tc.warps`, one a warp).
        axis: of a tile: "row" for one value a row, "col" for one a column, None for one of all.

    Returns:
        A scalar, or a row or column vector, the same in every warpgroup.

    Scope: all warpgroups of a `tc.warpgroup(count)` block. PTX: `st.shared`, `bar.sync 0`,
    `ld.shared`.
    """
    if not isinstance(name, str) or name not in COMBINE:
        raise LayoutError(f"cta_reduce: by {', '.join(COMBINE)}, got {name!r}")
    if not isinstance(x, SharedTile):
        return _reduce_scalar(name, x, axis)
    if axis is not None and not (isinstance(axis, str) and axis in ("row", "col")):
        raise LayoutError(f'cta_reduce: axis is "row", "col" or None, got {axis!r}')
    count = _tiles("cta_reduce", (x,))
    split = _split("cta_reduce", x.type, count)
    _sync()
    part = load(_part(x, split))
    if axis is None:
        return _reduce_scalar(name, getattr(reductions, f"tile_{name}")(part), None)
    return _reduce_axis(name, getattr(reductions, f"{axis}_{name}")(part), axis, split, count)


def _reduce_scalar(name: str, value: Any, axis: str | None) -> Scalar:
    threads = _threads("cta_reduce", Scope.WARPGROUP, Scope.WARP)
    if not isinstance(value, Scalar) or axis is not None:
        raise LayoutError(
            f"cta_reduce: of a shared tile, or of a run-time scalar without an axis, got {value!r}",
            hint='tc.cta_reduce("sum", tc.tile_sum(x))',
        )
    source = operand_of(value)
    assert isinstance(source, Value), "a run-time scalar"
    each = 32 if current().scope is Scope.WARP else WARPGROUP_THREADS
    places = _places(SharedVecType(value.dtype, threads // each))
    return Scalar(add(ReduceCta(name, source, places)).result)


def _places(kind: SharedVecType) -> Value:
    """A shared vector of the CTA's for one exchange."""
    return add(AllocShared(kind, "exchange")).result


def _reduce_axis(name: str, mine: Any, axis: str, split: Split, count: int) -> Any:
    """The warpgroups' vectors: one after another, or one over another."""
    kind = mine.type
    apart = axis == split.axis
    places = _places(sv[kind.dtype, kind.length * count])
    step = kind.length * kind.dtype.nbytes
    place = SharedVecType(kind.dtype, kind.length)

    def at(index: Any) -> SharedVec:
        return SharedVec(add(ViewShared(places, index, step, place)).result)

    store(at(add(WarpgroupIndex()).result), mine)
    _sync()
    if apart:
        whole = type(kind)(kind.dtype, kind.length * count, kind.axis, False, kind.warps, kind.kept)
        return load(SharedVec(places), whole)
    found = load(at(0), kind)
    for index in range(1, count):
        found = apply_map(COMBINE[name], found, load(at(index), kind))
    return found


def cluster_reduce(name: str, value: Scalar) -> Scalar:
    """`op` over one scalar of each CTA of the cluster, the same in every thread of all.

    Each CTA writes to all, then they meet. In a loop the call's places are written again, which
    wants another meeting between: that of a second call, or `tc.cluster_sync`.

    Args:
        name: max, min, sum, prod or absmax.
        value: f32, the same in all warps of the CTA (`tc.cta_reduce`).

    Scope: all warps of the CTAs of a cluster, in `tc.warps`. PTX: `st.shared::cluster`,
    `barrier.cluster`.
    """
    if not isinstance(name, str) or name not in COMBINE:
        raise LayoutError(f"cluster_reduce: by {', '.join(COMBINE)}, got {name!r}")
    _threads("cluster_reduce", Scope.WARP)
    size = current().kernel.cluster
    if not isinstance(value, Scalar) or size == 1:
        raise LayoutError(
            f"cluster_reduce: of a run-time scalar, in a kernel of clusters, got {value!r} in "
            f"clusters of {size}",
            hint="tc.cluster(2), first",
        )
    kind = RegVecType(value.dtype, 4, "plain")
    places = shared(SharedVecType(value.dtype, 4), size)
    mine = places[cluster_rank()]
    with when(warp_id() == 0):
        for rank in range(size):
            store(peer(mine, rank), full(kind, value))
    cluster_sync()
    found = load(places[0].at(0))
    for rank in range(1, size):
        found = apply_map(COMBINE[name], found, load(places[rank].at(0)))
    return found  # type: ignore[no-any-return]


def combine_warps(vector: RegVec, warps: int) -> None:
    """Adds plain f32 vectors of all warps of a CTA one after another; the last warp has the sum.

    Args:
        vector: a warp's, in place.
        warps: of the CTA.

    Scope: all warps of a CTA. PTX: `st.shared`, `bar.sync 0`, `ld.shared`.

    Raises:
        LayoutError: another vector.
    """
    kind = registers_of(vector, "combine").type
    plain = isinstance(kind, RegVecType) and kind.axis == "plain" and kind.dtype == f32
    if not plain or kind.length % (32 * QUAD):  # type: ignore[union-attr]
        raise LayoutError(
            f"combine: of a plain f32 vector of a multiple of {32 * QUAD} values, got {kind}",
            hint='rv[f32, 1024, "plain", 8]',
        )
    assert isinstance(kind, RegVecType), "checked"
    # In the order of its registers, so that runs of any length move without bank conflicts.
    view = RegVecType(f32, kind.length, "plain", warps=1, run=QUAD)
    mine = RegVec(add(ViewRegisters(vector.value, tuple(range(kind.registers)), view)).result)
    room = shared(sv[f32, kind.length])
    for number in range(warps):
        with when(warp_id() == number):
            if number:
                mine += load(room, view)
            if number < warps - 1:
                store(room, mine)
        _sync()
