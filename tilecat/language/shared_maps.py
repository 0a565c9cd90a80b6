"""Functions of shared tiles, by the threads of a warpgroup or a warp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import LayoutError
from .memory import load, store
from .sections import sync
from .values import Registers, SharedTile


def map_shared(f: Callable[..., Any], out: SharedTile, *tiles: Any) -> None:
    """`out = f(*tiles)` on shared tiles: loaded to registers, computed, stored, with barriers.

    Between a barrier before (what others wrote is there, what they read is read) and one after
    (all see `out`, and so do mma and TMA). `f` may be any function of register tiles of the same
    shape: maps, masks, reductions with broadcasts.

    Example: `tc.map_shared(lambda a, b: tc.exp(a) * b, out, a, b)`; `out` may be one of them.

    Args:
        f: of register tiles, vectors or numbers: shared operands come loaded, others as they are.
        out: a shared tile of the result's dtype and shape.
        tiles: its operands.
    """
    if not callable(f):
        raise LayoutError(
            f"map_shared: the first argument is a function of tiles, got {f!r}",
            hint="tc.map_shared(tc.exp, out, tile)",
        )
    if not isinstance(out, SharedTile):
        raise LayoutError(f"map_shared: out is a shared tile, got {out!r}")
    sync()
    result = f(*(load(t) if isinstance(t, SharedTile) else t for t in tiles))
    if not isinstance(result, Registers):
        raise LayoutError(f"map_shared: the function gives a register tile, got {result!r}")
    store(out, result)
    sync()
