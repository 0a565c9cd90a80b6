"""Every access of a compiled kernel's threads to shared memory, with its exact bank conflicts."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import Loc
from ..ir import Kernel, Op, SharedRequest, Value
from ..ops.memory import AllocShared


@dataclass(frozen=True)
class TileAccess:
    """What one op does to one shared tile.

    Args:
        name: the tile's.
        op: the op's class: StoreShared, LoadShared, CopyByThreads.
        loc: the user's line.
        requests: its instructions, each with its worst warp request.
    """

    name: str
    op: str
    loc: Loc | None
    requests: tuple[SharedRequest, ...]

    @property
    def instruction(self) -> str:
        """Name of its first instruction."""
        return self.requests[0].instruction

    @property
    def width_bytes(self) -> int:
        """Bytes at a lane's address, of the narrowest."""
        return min(request.width_bytes for request in self.requests)

    @property
    def ways(self) -> float:
        """Wavefronts over the ideal, of the worst instruction: 1 without conflicts."""
        return max(request.ways for request in self.requests)


def shared_accesses(kernel: Kernel) -> tuple[TileAccess, ...]:
    """All accesses of threads to shared tiles, in program order.

    Exact, from the layouts' maps: lane addresses do not depend on run-time values beyond the
    start of a tile, which moves all lanes by whole swizzle patterns. What TMA and the tensor
    cores read does not pass here; neither does the text of `tc.inline`.
    """
    found = []
    for op in kernel.body.walk():
        if op.requests:
            tile = _tile_of(op)
            found.append(TileAccess(tile, type(op).__name__, op.loc, op.requests))
    return tuple(found)


def _tile_of(op: Op) -> str:
    """Name of the allocation behind the op's shared tile, or `scratch` between warps."""
    if getattr(op, "scratch", None) is not None:
        return "scratch"
    value: Value | None = getattr(op, "shared", None) or getattr(op, "tile", None)
    while value is not None and value.op is not None:
        if isinstance(value.op, AllocShared):
            return value.op.name
        value = value.op.operands()[0]
    return ""
