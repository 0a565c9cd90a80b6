"""Which ops use the tiles of rings, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ir import Access, Block, Op, Value
from ..tiles import SharedTileType, SharedVecType

if TYPE_CHECKING:
    from .ring import Ring


def accesses(block: Block, rings: list[Ring], *, proxy: str) -> bool:
    """Whether ops of a block read tiles of the rings, by threads or through the async proxy."""
    tiles = {id(value) for ring in rings for value in ring.tiles}
    kinds = (Access.READ,) if proxy == "generic" else (Access.ASYNC_READ,)
    return any(
        effect.access in kinds and id(root(effect.value)) in tiles
        for op in block.walk()
        for effect in op.effects()
    )


def root(value: Value) -> Value:
    """The allocation behind a view of a view."""
    op: Op | None = value.op
    while op is not None and op.operands() and isinstance(
        value.type, SharedTileType | SharedVecType
    ):
        value = op.operands()[0]
        op = value.op
    return value
