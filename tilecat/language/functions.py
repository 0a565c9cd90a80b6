"""Tile operations as functions: what a kernel's author calls."""

from __future__ import annotations

from typing import Any

from ..builder import add, current
from ..dtypes import DType
from ..errors import DTypeError, LayoutError, ResourceError
from ..ir import SameExtent, Scope, Value
from ..ops.convert import Cast
from ..ops.elementwise import AllocRegisters, Fill
from ..ops.inline import Inline
from ..tiles import RegTileType, RegVecType
from .scalars import Var, operand_of
from .values import (
    Registers,
    RegTile,
    SharedTile,
    apply_map,
    registers_of,
    source_of,
    wrap,
)
from .views import GlobalTensor


def held_by_scope(kind: Any, name: str) -> Any:
    """The type as the current scope holds it: over one warp or four.

    Raises:
        LayoutError: too few rows for four warps.
    """
    if not isinstance(kind, RegTileType | RegVecType):
        raise LayoutError(
            f"{name}: wanted the type of a register tile or vector, got {kind!r} "
            f"({type(kind).__name__})",
            hint=f"tc.{name}(tc.rt[tc.f32, 64, 64])",
        )
    warps = 1 if current().scope is Scope.WARP else 4
    along = kind.layout.rows if isinstance(kind, RegTileType) else kind.length
    if isinstance(kind, RegTileType) and kind.order == "col":
        along = kind.cols
    spread = isinstance(kind, RegTileType) or kind.axis == "row"
    if spread and along % (kind.layout.fragment.rows * warps):
        what = "rows" if getattr(kind, "order", "row") == "row" else "columns"
        raise LayoutError(
            f"{name}: a warpgroup's register tile has a multiple of 64 {what} (16 a warp), "
            f"got {kind}",
            hint="use 64-row tiles, or hold it in one warp: with tc.warps():",
        )
    return kind.held_by(warps)


def full(kind: RegTileType | RegVecType, value: Any) -> Any:
    """A new register tile or vector with every element `value`.

    Scope: warpgroup. PTX: `mov`, one a register.
    """
    return wrap(add(Fill(held_by_scope(kind, "full"), operand_of(value, "full"))).result)


def zeros(kind: RegTileType | RegVecType) -> Any:
    """A new register tile or vector of zeros. Scope: warpgroup."""
    return full(kind, 0.0 if held_by_scope(kind, "zeros").dtype.is_float else 0)


def empty(kind: RegTileType | RegVecType) -> Any:
    """A new register tile or vector, undefined until written."""
    return wrap(add(AllocRegisters(held_by_scope(kind, "empty"))).result)


def fill(tile: Registers, value: Any) -> None:
    """`tile[...] = value`. Scope: warpgroup."""
    target = registers_of(tile, "fill")
    assert isinstance(target.type, RegTileType | RegVecType), "registers"
    add(Fill(target.type, operand_of(value, "fill"), target))


def copy(out: Registers, source: Registers) -> None:
    """`out = source`, both f32 of one type. Scope: warpgroup."""
    apply_map("copy", source, out=out)


def cast(tile: RegTile, dtype: DType, out: RegTile | None = None) -> RegTile:
    """`dtype(tile)`, rounded to nearest even; the fragment stays in place.

    A tile already of that dtype is returned as it is.
    """
    source = registers_of(tile, "cast")
    if not isinstance(dtype, DType):
        raise DTypeError(
            f"cast: to a dtype, got {dtype!r} ({type(dtype).__name__})", hint="tc.cast(x, tc.bf16)"
        )
    if getattr(source.type, "dtype", None) == dtype and out is None:
        return tile
    target = None if out is None else registers_of(out, "cast: out")
    op = add(Cast(source, dtype, target))
    return out if out is not None else wrap(op.result)


def tile_of(value: Any, name: str) -> Value:
    """The IR value of a register or shared tile, or of a pipeline's current one.

    Raises:
        LayoutError: anything else.
    """
    inner = getattr(value, "tile", value)
    if callable(inner):
        inner = inner()
    if not isinstance(inner, SharedTile | RegTile):
        raise LayoutError(f"{name}: wanted a tile, got {value!r} ({type(value).__name__})")
    return inner.value


def inline(text: str, *operands: Any, writes: tuple[int, ...] = ()) -> None:
    """Raw PTX: `$0`, `$1`, ... stand for the operands.

    A scalar stands for its register, a shared tile for its address; text with register tiles
    is repeated once a register.

    Args:
        text: instructions, each ending with `;`.
        operands: tiles, vectors, scalars, numbers.
        writes: indices of the operands the text writes: tiles, vectors, `tc.var` scalars.

    Scope: any; register tiles in that of the tile.
    """
    if not isinstance(text, str):
        raise LayoutError(f"inline: the first argument is PTX text, got {text!r}")
    places = tuple(o.value if isinstance(o, Var) else source_of(o, "inline") for o in operands)
    add(Inline(text, places, tuple(writes)))


def require_extent(
    tensor: GlobalTensor, axis: int, like: GlobalTensor, like_axis: int, *, or_one: bool = False
) -> None:
    """A rule of the kernel's own on a call's arrays: two axes are equally long.

    For arguments that have no dims of that name, as those of `*args`. Views with a start or an end
    are not checked.

    Args:
        tensor: the tensor that must fit.
        axis: its axis; negative counts from the last.
        like: a tensor.
        like_axis: the axis of it.
        or_one: an extent of 1 will do too.

    Scope: any. PTX: none; each call is checked on the host, which raises a LayoutError.
    """
    first, second = tensor.axes[axis], like.axes[like_axis]
    known = [first.start, second.start] == [0, 0] and first.stop is None and second.stop is None
    if known and first.dim is not None and second.dim is not None and first.pages is None:
        rule = SameExtent(tensor.arg, first.dim, like.arg, second.dim, or_one)
        current().kernel.facts.setdefault("extents", []).append(rule)


def require_feature(feature: str, what: str, hint: str | None = None) -> None:
    """Refuses the kernel on a target without a feature.

    Args:
        feature: as `tilecat.arch` names it: "wgmma", "tcgen05", "cluster_launch_control", ...
        what: needs it, for the error.
        hint: what to do instead.

    Raises:
        ArchError: the target does not have it.

    Example: `tc.require_feature("tma", "this kernel")`
    """
    current().arch.require(feature, what, hint)


def allow_spills(num_bytes: int) -> None:
    """Accepts a kernel that ptxas makes keep up to so many bytes a thread in local memory.

    Nothing else does: a spill in a main loop costs more than most. For what is done once a task.

    Args:
        num_bytes: of a thread, all of the kernel's spills together.

    Raises:
        ResourceError: not a number of bytes.

    Scope: any. PTX: none.
    """
    if isinstance(num_bytes, bool) or not isinstance(num_bytes, int) or num_bytes < 0:
        raise ResourceError(
            f"allow_spills: num_bytes is a compile-time int from 0 up, got {num_bytes!r}"
        )
    current().kernel.facts["spill_bytes"] = num_bytes


def require(condition: bool, message: str, hint: str | None = None) -> None:
    """A rule of the kernel's own on its compile-time parameters.

    Raises:
        LayoutError: the condition is false.
    """
    if not condition:
        raise LayoutError(message, hint=hint)
