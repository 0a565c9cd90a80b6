"""Every access of a compiled kernel's threads to shared memory, with its exact bank conflicts."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import Loc
from ..ir import Kernel, Op, SharedRequest, Value
from ..ops.global_memory import LoadGlobal, StoreGlobal, element_dtype
from ..ops.memory import AllocShared
from ..tiles import RegTileType, RegVecType


@dataclass(frozen=True)
class TileAccess:
    """What one op does to one shared tile.

    Args:
        name: the tile's.
        op: the op's class: StoreShared, LoadShared, CopyByThreads.
        loc: the user's line.
        requests: its instructions, each with its worst warp request.
        other: the register tile, vector or tensor on the other side.
        made: the line where the shared tile was made.
    """

    name: str
    op: str
    loc: Loc | None
    requests: tuple[SharedRequest, ...]
    other: str = ""
    made: Loc | None = None

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
            alloc = _allocation_of(op)
            name = "" if alloc is None else alloc.name
            scratch = getattr(op, "scratch", None) is not None
            found.append(
                TileAccess(
                    "scratch" if scratch else name, type(op).__name__, op.loc, op.requests,
                    _other_of(op), None if scratch or alloc is None else alloc.loc,
                )
            )  # fmt: skip
    return tuple(found)


@dataclass(frozen=True)
class GlobalMove:
    """What one op does between registers and a tensor.

    Args:
        op: the op's class.
        loc: the user's line.
        tensor: the tensor.
        registers: the register tile or vector.
        count: accesses a thread, where all elements are inside.
        width_bytes: bytes of one of them.
        edge_bytes: bytes of an access at the tensor's edges, under a mask.
    """

    op: str
    loc: Loc | None
    tensor: str
    registers: str
    count: int
    width_bytes: int
    edge_bytes: int


def global_moves(kernel: Kernel) -> tuple[GlobalMove, ...]:
    """All moves between registers and tensors, in program order, with their vector width."""
    found = []
    for op in kernel.body.walk():
        if isinstance(op, LoadGlobal | StoreGlobal):
            kind, width, edge = op.registers_type, op.width_bytes, element_dtype(op.arg).nbytes
            found.append(
                GlobalMove(
                    type(op).__name__, op.loc, f"{op.arg.name}: {op.arg.type}", str(kind),
                    kind.elements * edge // width, width, edge,
                )
            )  # fmt: skip
    return tuple(found)


def _other_of(op: Op) -> str:
    """Name and type of the registers, or of the tensor, that the shared tile meets."""
    arg = op.stores or op.loads
    if arg is not None:
        return f"{arg.name}: {arg.type}"
    for value in (*op.operands(), *op.results):
        if isinstance(value.type, RegTileType | RegVecType):
            return f"{value.name or op.label}: {value.type}"
    return ""


def _allocation_of(op: Op) -> AllocShared | None:
    """The allocation behind the op's shared tile; None for `scratch` between warps."""
    if getattr(op, "scratch", None) is not None:
        return None
    value: Value | None = getattr(op, "shared", None) or getattr(op, "tile", None)
    while value is not None and value.op is not None:
        if isinstance(value.op, AllocShared):
            return value.op
        value = value.op.operands()[0]
    return None
