"""Atomic updates: several threads, warps or CTAs combine what they have in one place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..builder import add
from ..errors import LayoutError
from ..ops.atomics import AtomicGlobal, AtomicShared, AtomicVector
from ..ops.sync import FenceAsync
from ..ops.turns import LastOf, Turn
from ..tiles import RegTileType, SharedTileType, SharedVecType, place_type
from .scalars import Scalar, binary, compare, operand_of, select
from .values import Registers
from .views import GlobalTile


def atomic_add(destination: Any, source: Any) -> None:
    """`destination += source`, atomic for each element; in no fixed order.

    Args:
        destination: a place in a tensor `A[row, col]` (or `A[rows, col]` with an s32 vector of
            rows, which may repeat), a shared tile or vector, or one of a peer (`tc.peer`).
        source: a register tile or whole vector of its dtype: f32, s32, u32, f16, bf16.

    Elements outside a tensor are dropped. Scope: warpgroup, warp. PTX: `red`.
    """
    _atomic("add", destination, source)


def atomic_min(destination: Any, source: Any) -> None:
    """`destination = min(destination, source)`, of s32 and u32; as `atomic_add`.

    Scope: warpgroup, warp. PTX: `red.min`.
    """
    _atomic("min", destination, source)


def atomic_max(destination: Any, source: Any) -> None:
    """`destination = max(destination, source)`, of s32 and u32; as `atomic_add`.

    Scope: warpgroup, warp. PTX: `red.max`.
    """
    _atomic("max", destination, source)


@contextmanager
def turn(
    counter: GlobalTile, number: Any, *, turns: Any = None, count: Any = 1, step: Any = 1
) -> Iterator[None]:
    """`with tc.turn(counters.at(i), n):` what CTAs do here happens in the order of their numbers.

    For sums that come out the same each time: `tc.store_add_async` and `tc.atomic_add` add in no
    fixed order, in turns they do. The counter is zero before the launch; the holder of number 0
    goes first, and leaves 1. What is asynchronous inside ends inside: `tc.store_wait(read=False)`.
    A number's holder must not need one that starts later: take them in the order of `tc.cta_id()`.

    Args:
        counter: an element of an `inout` tensor of s32.
        number: whose turn it is, each once.
        turns: how many there are: the last leaves 0, so that the counter serves the next launch
            as it is. None: the counter goes on.
        count: of counters that the holder has at one time, an s32 scalar: this one and those
            behind it along the last axis; threads wait for one each.
        step: from one of them to the next, counters.

    Scope: thread, warp, warpgroup. PTX: `ld.acquire.gpu`, `st.release.gpu`.
    """
    coords = _counter("turn", counter)
    whose = operand_of(number, "turn")
    passed = whose
    if turns is not None:  # one more than -1 is 0
        last = compare("eq", number, binary("sub", turns, 1))
        passed = operand_of(select(last, -1, number), "turn")
    held = operand_of(count, "turn: count"), operand_of(step, "turn: step")
    add(Turn(coords, counter.arg, whose, True, *held))
    add(FenceAsync("global"))
    yield
    add(FenceAsync("global"))
    add(Turn(coords, counter.arg, passed, False, *held))


def pass_turn(counter: GlobalTile, number: Any) -> None:
    """Passes the turn of `number` on without waiting for it: the counter holds the next.

    For a counter whose first holder is known: what its threads have written before is there for
    who takes the next turn (`tc.turn`). What TMA has stored or is to load needs a fence besides.

    Args:
        counter: an element of an `inout` tensor of s32.
        number: whose turn ends.

    Scope: thread, warp, warpgroup. PTX: `st.release.gpu`.
    """
    coords = _counter("pass_turn", counter)
    add(Turn(coords, counter.arg, operand_of(number, "pass_turn"), False))


def last_of(counter: GlobalTile, count: Any) -> Scalar:
    """Arrives at a counter: whether this was the last of `count` arrivals.

    For CTAs that leave parts of a result, of which the last to come puts them together, whoever
    that is: nobody waits. What the others' threads wrote before they arrived is there for it.

    Args:
        counter: an element of an `inout` tensor of s32, zero before the launch; the last arrival
            leaves 0, so that it serves the next launch as it is.
        count: arrivals at it, an int or an s32 scalar, from 1 up, the same for all of them.

    Returns:
        a condition, the same in every thread of the scope.

    Scope: thread, warp, warpgroup. PTX: `atom.release.gpu.inc`, and `fence.acq_rel.gpu` by the
    last; what TMA has stored or is to load needs a fence besides.
    """
    coords = _counter("last_of", counter)
    return Scalar(add(LastOf(coords, counter.arg, operand_of(count, "last_of"))).result)


def _counter(name: str, counter: Any) -> tuple[Any, ...]:
    if not isinstance(counter, GlobalTile):
        raise LayoutError(f"{name}: the counter is an element of a tensor, got {counter!r}",
                          hint=f"tc.{name}(counters.at(i), number)")
    coords, _ = counter.element()
    return coords


def _atomic(operation: str, destination: Any, source: Any) -> None:
    name = f"atomic_{operation}"
    if not isinstance(source, Registers):
        raise LayoutError(f"{name}: adds registers, got {source!r}", hint="tc.load(tile)")
    value = source.value
    kind = place_type(getattr(destination, "type", None))
    if isinstance(kind, SharedTileType):
        add(AtomicShared(operation, destination.value, value))
    elif isinstance(kind, SharedVecType):
        add(AtomicVector(destination.value, operation, value))
    elif isinstance(destination, GlobalTile):
        kind = value.type
        extents = kind.shape if isinstance(kind, RegTileType) else (kind.length,)  # type: ignore[union-attr]
        region = destination.region(*extents)
        add(AtomicGlobal(
            region.coords, region.arg, axes=region.axes, bounds=region.bounds,
            reverse=region.reverse, together=region.together, operation=operation, tile=value,
        ))  # fmt: skip
    else:
        raise LayoutError(
            f"{name}: into a place in a tensor, a shared tile or a shared vector, "
            f"got {destination!r}"
        )
