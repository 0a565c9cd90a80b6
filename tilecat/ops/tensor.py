"""Tensor memory: its allocation, tiles in it, fences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import dtypes
from ..ir import Op, Scope, Value, attribute, operand
from ..ptx import instructions as ptx
from ..ptx import tensor as ptx_tensor
from ..ptx import transfers
from ..tiles import ScalarType, TensorScalesType, TensorTileType, TileType
from .scalar import Operand

SLOT_BYTES = 8  # of shared memory: tcgen05.alloc writes a 32-bit address there


@dataclass(eq=False)
class AllocTensor(Op):
    """`copies` tiles side by side in tensor memory.

    Args:
        tile: type of one; a pipeline settles its rows when it knows its products.
        name: for reports.
        copies: how many.
        first_col: where the first lies, settled with the whole allocation.
    """

    tile: TensorTileType | TensorScalesType = attribute()
    name: str = attribute()
    copies: int = attribute(default=1)
    first_col: int = attribute(default=0)

    def infer(self) -> tuple[TileType, ...]:
        """The first tile."""
        return (self.tile,)

    @property
    def name_hint(self) -> str:
        """The name it has in reports."""
        return self.name

    def emit(self, w: Any) -> None:
        """Nothing: columns are static from the allocation's start."""


@dataclass(eq=False)
class AllocTensorMemory(Op):
    """The CTA's only allocation, for all its tiles: one warp allocates, all threads get its start.

    Args:
        tiles: those in it.
        columns: a power of two from 32 to 512; exclusive, a multiple of 32 up to 576.
        exclusive: no other CTA of the SM has any.
    """

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.CTA,)
    tiles: tuple[Value, ...] = operand()
    columns: int = attribute(default=0)
    exclusive: bool = attribute(default=False)

    def infer(self) -> tuple[TileType, ...]:
        """Its start: lane in the upper half, column in the lower."""
        return (ScalarType(dtypes.u32),)

    @property
    def name_hint(self) -> str:
        """As the glossary has it."""
        return "tmem"

    def emit(self, w: Any) -> None:
        """`tcgen05.alloc` by the first warp, and a barrier of the CTA."""
        end, other = w.label("tmem_end"), w.new("pred", "other")
        slot = w.text(w.address(self.result))
        if self.exclusive:
            w.need_version("9.4")
        w.line(ptx.alu("setp.ge.u32", other, w.tid(), 32))
        w.line(ptx.bra(end), pred=other)
        w.line(
            ptx_tensor.alloc(slot, self.columns, ctas=w.cta_group, exclusive=self.exclusive)
        )
        w.line(ptx_tensor.relinquish(ctas=w.cta_group))
        w.mark(end)
        w.line(ptx.bar_sync(0, w.threads))
        start = w.define(self.result)
        w.line(ptx.ld_shared("b32", start, slot))
        for tile in self.tiles:
            assert isinstance(tile.op, AllocTensor), "tiles come from AllocTensor"
            w.place_columns(tile, start, tile.op.first_col)


@dataclass(eq=False)
class FreeTensorMemory(Op):
    """Gives the allocation back, once all products and loads of the CTA are done.

    Args:
        memory: what `AllocTensorMemory` gave.
        threads: of those who meet first; their first warp frees.
    """

    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    memory: Value = operand()
    threads: int = attribute()

    def emit(self, w: Any) -> None:
        """`bar.sync`, and `tcgen05.dealloc` by the first warp.

        Of a pair both CTAs meet: each must be there until the other has come to its end.
        """
        alloc = self.memory.op
        assert isinstance(alloc, AllocTensorMemory), "memory comes from AllocTensorMemory"
        end, other = w.label("free_end"), w.new("pred", "other")
        if w.cta_group == 1:
            w.line(ptx.bar_sync(0, self.threads))
        else:
            w.line(transfers.cluster_arrive())
            w.line(transfers.cluster_wait())
        w.line(ptx.alu("setp.ge.u32", other, w.tid(), 32))
        w.line(ptx.bra(end), pred=other)
        start, only = w.src(self.memory), alloc.exclusive
        w.line(ptx_tensor.dealloc(start, alloc.columns, ctas=w.cta_group, exclusive=only))
        w.mark(end)


@dataclass(eq=False)
class ViewTensor(Op):
    """The tile `index` strides further on, seen as `kind`, from its column `first_col` on."""

    pure: ClassVar[bool] = True
    tile: Value = operand()
    index: Operand = operand()
    stride_cols: int = attribute()
    kind: TensorTileType | TensorScalesType = attribute()
    first_col: int = attribute(default=0)

    def infer(self) -> tuple[TileType, ...]:
        """The view's type."""
        return (self.kind,)

    def emit(self, w: Any) -> None:
        """Address arithmetic, folded where the index is known."""
        start = w.offset(w.address(self.tile), self.index, self.stride_cols)
        w.place_columns(self.result, start.base, start.offset + self.first_col)


@dataclass(eq=False)
class TensorFence(Op):
    """Orders what follows in tensor memory behind what other threads did before a barrier."""

    def emit(self, w: Any) -> None:
        """`tcgen05.fence::after_thread_sync`."""
        w.line(ptx_tensor.fence_after())
