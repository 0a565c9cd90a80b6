"""Tensor memory: its allocation, tiles in it, moves to and from registers, fences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import dtypes
from ..errors import DTypeError, LayoutError
from ..ir import Access, Effect, Op, Scope, Value, attribute, operand
from ..ptx import instructions as ptx
from ..ptx import tensor as ptx_tensor
from ..ptx import transfers
from ..tiles import RegTileType, ScalarType, TensorScalesType, TensorTileType, TileType
from .scalar import Operand

SLOT_BYTES = 8  # of shared memory: tcgen05.alloc writes a 32-bit address there
ROWS = 64  # of a warpgroup's fragment: 16 a warp


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


def _moved(name: str, kind: TileType, pair: bool) -> RegTileType:
    """The registers that a warpgroup moves to or from a tile.

    Raises:
        LayoutError: no tile of tensor memory, or rows beyond the reach of its warps.
    """
    if not isinstance(kind, TensorTileType):
        raise LayoutError(f"{name}: wanted a tile of tensor memory, got {kind}")
    if kind.rows != (2 * ROWS if pair else ROWS):
        raise LayoutError(
            f"{name}: a warpgroup moves {ROWS} rows, 16 a warp, since a warp reaches one quarter "
            f"of the lanes, got {kind}",
            hint=f"tt[tc.{kind.dtype.name}, {ROWS}, {kind.cols}], or two warpgroups: "
            "with tc.warpgroup(2) as number: each moves the rows of its own",
        )
    return RegTileType(kind.dtype, ROWS, kind.cols)


@dataclass(frozen=True)
class Shape:
    """A shape of tcgen05.ld and .st that moves 16 lanes in a fragment of registers.

    Args:
        name: as PTX has it.
        columns: of one repetition.
        registers: of one repetition.
        most: repetitions of one instruction.
    """

    name: str
    columns: int
    registers: int
    most: int


# PTX ISA 9.7.16.2.3.1, fragments; 9.7.16.8.1, table of .num. A lane has row l/4 and l/4 + 8; of
# sums, two columns of 8 next to each other; of an A, one of 4, which has what a lane of its
# fragment holds: 2 elements of 16 bits, 4 of 8, or one tf32.
_OF_SUMS = Shape("16x256b", 8, 4, 32)
_OF_HALF_SUMS = Shape("16x128b", 8, 2, 64)  # packed: a register has the f16 of two columns
_OF_A = Shape("16x128b", 4, 2, 64)


def _packed(tile: Value) -> bool:
    """Whether two columns of a tile are one register."""
    return isinstance(tile.type, TensorTileType) and tile.type.sums


def _chunks(w: Any, tile: Value, registers: tuple[str, ...], pair: bool) -> list[Any]:
    """(shape, repeat, registers, address) of each instruction; repeats are powers of two."""
    kind = tile.type
    assert isinstance(kind, TensorTileType), "checked in infer"
    shape = (_OF_HALF_SUMS if kind.sums else _OF_SUMS) if kind.is_sums else _OF_A
    start = w.tensor_lanes(w.address(tile), pair)
    found, done = [], 0
    while done < len(registers):
        left = (len(registers) - done) // shape.registers
        repeat = min(shape.most, 1 << left.bit_length() - 1)
        part = registers[done : done + repeat * shape.registers]
        extra = done // shape.registers * shape.columns
        found.append((shape.name, repeat, part, w.text(start, extra)))
        done += len(part)
    return found


@dataclass(eq=False)
class LoadTensor(Op):
    """`register = tile`, 64 rows by a warpgroup: complete when it returns.

    Args:
        tile: in tensor memory.
        out: registers to write, or None for new ones.
        pair: two warpgroups load a tile of 128 rows, each the 64 of its own (see
            `docs/design/tensor-memory.md`).
    """

    verb: ClassVar[str] = "load"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    tile: Value = operand()
    out: Value | None = operand(default=None)
    pair: bool = attribute(default=False)

    def infer(self) -> tuple[TileType, ...]:
        """A register tile, where there is none to write."""
        kind = _moved("load", self.tile.type, self.pair)
        if self.out is None:
            return (kind,)
        assert self.out.type == kind, "made for it"
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile, writes the registers."""
        target = self.out or self.result
        return (Effect(Access.READ, self.tile), Effect(Access.WRITE, target))

    def emit(self, w: Any) -> None:
        """`tcgen05.ld` in the fragment of an accumulator, the wait, and the fence behind it."""
        registers = w.regs(self.out or self.result)
        for shape, repeat, part, address in _chunks(w, self.tile, registers, self.pair):
            w.line(ptx_tensor.load(shape, repeat, part, address, packed=_packed(self.tile)))
        w.line(ptx_tensor.wait_loads())
        w.line(ptx_tensor.fence_before())


@dataclass(eq=False)
class StoreTensor(Op):
    """`tile = register`, 64 rows by a warpgroup: complete when it returns.

    Args:
        tile: in tensor memory.
        register: the source.
        pair: as for `LoadTensor`.
    """

    verb: ClassVar[str] = "store"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    tile: Value = operand()
    register: Value = operand()
    pair: bool = attribute(default=False)

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; shape and dtype must agree."""
        kind, source = _moved("store", self.tile.type, self.pair), self.register.type
        if not isinstance(source, RegTileType) or source.shape != kind.shape:
            raise LayoutError(f"store: shapes must agree, got {source} and {self.tile.type}")
        if source.dtype != kind.dtype:
            raise DTypeError(
                f"store: dtypes must agree, got {source} and {self.tile.type}",
                hint=f"tc.cast(x, tc.{kind.dtype.name})",
            )
        if source != kind:
            raise LayoutError(
                f"store: the fragment of {'sums' if self.tile.type.is_sums else 'an A'} goes to "  # type: ignore[union-attr]
                f"{self.tile.type}, got {source}",
                hint="tc.swap_layout(x), or tc.regroup(x)",
            )
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads the registers, writes the tile."""
        return (Effect(Access.READ, self.register), Effect(Access.WRITE, self.tile))

    def emit(self, w: Any) -> None:
        """`tcgen05.st`, the wait, and the fence behind it."""
        registers = w.regs(self.register)
        for shape, repeat, part, address in _chunks(w, self.tile, registers, self.pair):
            w.line(ptx_tensor.store(shape, repeat, address, part, packed=_packed(self.tile)))
        w.line(ptx_tensor.wait_stores())
        w.line(ptx_tensor.fence_before())


@dataclass(eq=False)
class TensorFence(Op):
    """Orders what follows in tensor memory behind what other threads did before a barrier."""

    def emit(self, w: Any) -> None:
        """`tcgen05.fence::after_thread_sync`."""
        w.line(ptx_tensor.fence_after())
