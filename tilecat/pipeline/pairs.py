"""Pairs of CTAs that multiply together: `tcgen05.mma.cta_group::2`.

CTA r of a pair, a cluster of 2, has its own 64 rows a consumer: of A, and of the sums in its tensor
memory. Of B, which both need, it has one half of the columns, and the tensor cores of both read the
two halves where they are. So a pair moves half as many bytes of B to shared memory as two CTAs by
themselves, and one instruction does the work of two.

    producer, both     wait empty[s]; even: expect bytes of both on full[s]; load A, half of B
    issue, even        wait full[s], mma for both, commit empty[s] of both ... commit sums of both
    consumers, both    wait sums, load own rows, a warp's arrival at the even CTA's `sums empty`

All loads complete on the even CTA's `full`, whoever issued them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..builder import add
from ..errors import LayoutError, Loc, ResourceError, TileError
from ..language.clusters import cluster_rank
from ..language.scalars import Scalar, binary, operand_of
from ..language.transfers import check_meets
from ..language.values import SharedTile, SharedVec
from ..language.views import GlobalTile
from ..ops.mma_tensor import TensorMma
from ..ops.tma import TmaLoad
from ..tiles import SharedTileType
from .sharing import check_same, share_of

if TYPE_CHECKING:
    from .pipeline import Pipeline
    from .ring import Ring

CTAS = 2
BOTH = (1 << CTAS) - 1  # as bits of a mask
LEADER = 0  # the even one
ROWS, COLS = 0, 1


def check_pair(template: str, cluster: int, cluster_cols: int, loc: Loc | None) -> None:
    """A pair is two CTAs that multiply different rows by one B.

    Raises:
        ResourceError: other clusters.
    """
    if (cluster, cluster_cols) != (CTAS, 1):
        raise ResourceError(
            f"{template}: a pair is a cluster of {CTAS} CTAs, one block row below the other, got "
            f"pairs=True, {cluster=} in {cluster_cols} columns",
            loc=loc,
            hint=f"cluster={CTAS}, and a schedule for it: tc.grouped(..., cluster={CTAS})",
        )


def split(
    pipe: Pipeline, products: list[TensorMma], paired: bool, obstacle: TileError | None = None
) -> None:  # fmt: skip
    """Leaves each CTA of the pair one half of the columns of what is B of its products.

    Args:
        pipe: the pipeline.
        products: those of a step, as traced for whole tiles.
        paired: whether two consumers are one product of 128 rows.
        obstacle: why they are not, where the products say so.

    Raises:
        LayoutError: products that a pair cannot make.
    """
    if not paired or not products:
        why = "whose products do not go together"
        if obstacle is not None:
            why += ": " + obstacle.message.partition(": ")[2]
        usual = (
            "consumers=2 (or 4, 6), a = pipe.input(..., count=consumers), "
            "tc.mma_AB(acc, a[pipe.consumer], b)"
        )
        raise LayoutError(
            f"{pipe.template}: of pairs=True each CTA has 128 rows, those of two consumers, whose "
            f"tiles of A lie one behind the other and which share B, got consumers="
            f"{pipe.roles[0].warpgroups} {why}",
            loc=pipe.loc,
            hint=getattr(obstacle, "hint", None) or usual,
        )
    slots = {id(some.alloc.result): some for ring in pipe.slots.values() for some in ring}
    halves: dict[Any, int] = {}
    for op in products:
        a, b = (slots.get(id(_root(value))) for value in (op.a, op.b))
        axis = ROWS if b is not None and op.b.type.order != b.kind.order else COLS  # type: ignore[union-attr]
        whole = (op.b.type.cols, op.b.type.rows)[:: 1 if axis == ROWS else -1]  # type: ignore[union-attr]
        if b is None or a is b or b.kind.shape != whole or halves.get(b, axis) != axis:
            raise LayoutError(
                f"{op.name}: of a pair B is an input of the pipeline, a whole tile, and not A too, "
                f"got a={op.a!r}, b={op.b!r}",
                loc=op.loc,
                hint="an input for B alone; narrower tiles in place of a part of one",
            )
        halves[b] = axis
    for some, axis in halves.items():
        try:
            some.halve(axis)
        except LayoutError as error:
            raise LayoutError(
                f"{pipe.template}: of pairs=True each CTA has one half of {some.kind}: "
                f"{error.message.removeprefix('shared tile: ')}",
                loc=some.alloc.loc,
                hint="a wider tile",
            ) from None


def _root(value: Any) -> Any:
    """The allocation behind views."""
    while value.op is not None and value.op.operands():
        value = value.op.operands()[0]
    return value


def leads() -> Scalar:
    """Whether this CTA is the even one, as a run-time condition."""
    first: Scalar = cluster_rank() == LEADER
    return first


def fill(
    ring: Ring, tile: SharedTile | SharedVec, source: GlobalTile, barrier: Any, *,
    half: int | None, multicast: bool | str, cache: str,
) -> None:  # fmt: skip
    """One tile's load: its own of this CTA, or its half of one that both need.

    Args:
        ring: the tile's.
        tile: in the current stage.
        source: where the whole tile comes from.
        barrier: the stage.
        half: the axis along which each CTA has one half; None for a tile of its own.
        multicast: what the load says: whether both need it.
        cache: L2 priority.

    Raises:
        LayoutError: TMA cannot reach it, or the load and the products disagree on who needs it.
    """
    kind = tile.type
    extents = [n * (1 + (axis == half)) for axis, n in enumerate(kind.shape)]
    region = source.region(*extents)
    check_meets("load_async", kind, region)
    if not region.tma:
        raise LayoutError(
            f"load_async: tiles of pairs=True are loaded by TMA, which cannot reach "
            f"{region.arg.name}: {region.obstacle}",
            hint="pairs=False, or strides of multiples of 16 bytes",
        )
    shared = share_of(multicast).parts > 1
    if shared != (half is not None):
        raise LayoutError(
            f"load_async: of pairs=True what is B of the products, of which each CTA has one half, "
            f"is loaded for both CTAs, and A for its own alone, got {multicast=} of {kind}",
            hint='multicast="col" for B, multicast="row" or none for A',
        )
    coords = list(region.coords)
    if half is not None:
        check_same(region.coords, multicast)
        dim = region.axes[half]
        shift = binary("mul", cluster_rank(), kind.shape[half])
        start = coords[dim]
        moved = binary("add", start if isinstance(start, int) else Scalar(start), shift)
        coords[dim] = operand_of(moved)
    op = TmaLoad(
        tile.value, tuple(coords), region.arg, barriers=ring.full.result, index=barrier,
        axes=region.axes, cache=cache, pair=True,
    )  # fmt: skip
    add(op)
    ring.tx_bytes += CTAS * op.num_bytes


def halved(kind: SharedTileType, axis: int) -> SharedTileType:
    """The type of one CTA's half of a tile."""
    by_rows, by_cols = (CTAS, 1) if axis == ROWS else (1, CTAS)
    found = replace(kind, rows=kind.rows // by_rows, cols=kind.cols // by_cols)
    assert found.layout, "raises what it has to say"
    return found
