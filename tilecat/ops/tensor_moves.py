"""Moves between registers and tensor memory: `tcgen05.ld` and `.st` of every shape, `.ld.red`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import DTypeError, LayoutError
from ..ir import Access, Effect, Op, Scope, Value, attribute, operand
from ..layouts import tensor_shape
from ..ptx import instructions as ptx
from ..ptx import tensor as ptx_tensor
from ..tiles import RegTileType, RegVecType, TensorTileType, TileType
from .reduce import exchange

ROWS = 64  # of a warpgroup's fragment: 16 a warp
LANE_ROWS = 128  # with a row in each lane: 32 a warp


@dataclass(frozen=True)
class Shape:
    """A shape of tcgen05.ld and .st.

    Args:
        name: as PTX has it.
        columns: of 32 bits, of one repetition.
        registers: of one repetition.
        most: repetitions of one instruction.
    """

    name: str
    columns: int
    registers: int
    most: int


# PTX ISA 9.7.16.2.3.1, fragments; 9.7.16.8.1, table of .num. How each lies over lanes and
# registers: `layouts.TENSOR_FRAGMENTS`.
SHAPES = {
    shape.name: shape
    for shape in (
        Shape("32x32b", 1, 1, 128),
        Shape("16x64b", 2, 1, 128),
        Shape("16x128b", 4, 2, 64),
        Shape("16x256b", 8, 4, 32),
        Shape("16x32bx2", 1, 1, 128),
    )
}


def moved(name: str, kind: TileType, pair: bool, wanted: TileType | None = None) -> RegTileType:
    """The registers that a warpgroup moves to or from a tile.

    Args:
        name: of the op.
        kind: the tile's type.
        pair: whether two warpgroups move it together.
        wanted: the registers' type; None: the fragment of wgmma's sums, or of its A.

    Raises:
        LayoutError: no tile of tensor memory, rows beyond the reach of its warps, or registers that
            lie as no shape does.
        DTypeError: elements of another type.
    """
    if not isinstance(kind, TensorTileType):
        raise LayoutError(f"{name}: wanted a tile of tensor memory, got {kind}")
    by_lanes = isinstance(wanted, RegTileType) and wanted.layout.fragment.rows > 16
    if by_lanes and kind.rows != LANE_ROWS:
        raise LayoutError(
            f"{name}: 32x32b has a row in each of {LANE_ROWS} lanes, of 64 rows 16 lie in a quarter"
            f" of 32 lanes, got {kind}",
            hint=f'rt[tc.{kind.dtype.name}, {ROWS}, {kind.cols}, "16x32bx2"]: two threads a row',
        )
    if not by_lanes and kind.rows != (2 * ROWS if pair else ROWS):
        raise LayoutError(
            f"{name}: a warpgroup moves {ROWS} rows, 16 a warp, since a warp reaches one quarter "
            f"of the lanes, got {kind}",
            hint=f"tt[tc.{kind.dtype.name}, {ROWS}, {kind.cols}], or two warpgroups: "
            "with tc.warpgroup(2) as number: each moves the rows of its own; or a row a thread: "
            f'rt[tc.{kind.dtype.name}, {LANE_ROWS}, {kind.cols}, "32x32b"]',
        )
    rows = LANE_ROWS if by_lanes else ROWS
    usual = RegTileType(kind.dtype, ROWS, kind.cols)
    if wanted is None:
        return usual
    if not isinstance(wanted, RegTileType) or wanted.shape != (rows, kind.cols):
        raise LayoutError(
            f"{name}: shapes must agree, got {wanted} and {kind}",
            hint=f"{rows} rows, {kind.cols} columns",
        )
    if wanted.dtype != kind.dtype:
        raise DTypeError(
            f"{name}: dtypes must agree, got {wanted} and {kind}",
            hint=f"tc.cast(x, tc.{kind.dtype.name})",
        )
    if wanted.warps != 4 or tensor_shape(wanted.layout) is None:
        raise LayoutError(
            f"{name}: the fragment of {'sums' if kind.is_sums else 'an A'} goes to {kind}, "
            f"got {wanted}",
            hint="tc.swap_layout(x), or tc.regroup(x)",
        )
    return wanted


def _packed(tile: Value) -> bool:
    """Whether two columns of a tile are one register."""
    return isinstance(tile.type, TensorTileType) and tile.type.sums


@dataclass(frozen=True)
class Part:
    """What one instruction moves.

    Args:
        shape: as PTX has it.
        repeat: `.num`, a power of two.
        registers: of a thread.
        address: text.
        split: columns between the halves of 16x32bx2; None of other shapes.
    """

    shape: str
    repeat: int
    registers: tuple[str, ...]
    address: str
    split: int | None


def parts_of(
    w: Any, tile: Value, kind: RegTileType, registers: tuple[str, ...], pair: bool
) -> list[Part]:
    """The instructions that move a tile."""
    held = tile.type
    assert isinstance(held, TensorTileType), "checked in infer"
    name = tensor_shape(kind.layout)
    assert name is not None, "checked in infer"
    shape = SHAPES[name]
    columns = shape.columns * (1 + held.sums)
    split = held.columns // 2 if name == "16x32bx2" else None
    start = w.tensor_lanes(w.address(tile), pair)
    found, done = [], 0
    while done < len(registers):
        left = (len(registers) - done) // shape.registers
        repeat = min(shape.most, 1 << left.bit_length() - 1)
        part = registers[done : done + repeat * shape.registers]
        place = w.text(start, done // shape.registers * columns)
        found.append(Part(name, repeat, part, place, split))
        done += len(part)
    return found


@dataclass(eq=False)
class LoadTensor(Op):
    """`register = tile` by a warpgroup, 64 rows or 128: complete when it returns.

    Args:
        tile: in tensor memory.
        out: registers to write, or None for new ones.
        pair: two warpgroups load a tile of 128 rows, each the 64 of its own (see
            `docs/design/tensor-memory.md`).
        kind: type of the registers, whose fragment is that of a shape; None: of wgmma's.
    """

    verb: ClassVar[str] = "load"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    any_fragment: ClassVar[bool] = True
    tile: Value = operand()
    out: Value | None = operand(default=None)
    pair: bool = attribute(default=False)
    kind: RegTileType | None = attribute(default=None)

    def infer(self) -> tuple[TileType, ...]:
        """A register tile, where there is none to write."""
        kind = moved("load", self.tile.type, self.pair, self.kind)
        if self.out is None:
            return (kind,)
        assert self.out.type == kind, "made for it"
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile, writes the registers."""
        target = self.out or self.result
        return (Effect(Access.READ, self.tile), Effect(Access.WRITE, target))

    def emit(self, w: Any) -> None:
        """`tcgen05.ld` of the registers' shape, the wait, and the fence behind it."""
        target = self.out or self.result
        assert isinstance(target.type, RegTileType), "inferred"
        for part in parts_of(w, self.tile, target.type, w.regs(target), self.pair):
            w.line(ptx_tensor.load(
                part.shape, part.repeat, part.registers, part.address, packed=_packed(self.tile),
                split=part.split,
            ))  # fmt: skip
        w.line(ptx_tensor.wait_loads())
        w.line(ptx_tensor.fence_before())


REDUCED = ("f32", "s32")


@dataclass(eq=False)
class LoadReduced(Op):
    """`register = tile`, and with it the largest (or least) element of each row.

    Args:
        tile: sums in tensor memory.
        kind: type of the registers: 32x32b, or 16x32bx2.
        name: "max" or "min".
        absolute: of |x|.
        nan: a NaN element is the result; else they are ignored.
    """

    verb: ClassVar[str] = "load_row_{name}"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    any_fragment: ClassVar[bool] = True
    tile: Value = operand()
    kind: RegTileType = attribute()
    name: str = attribute()
    absolute: bool = attribute(default=False)
    nan: bool = attribute(default=False)

    def infer(self) -> tuple[TileType, ...]:
        """The tile in registers, and a vector of its rows."""
        kind = moved(self.label, self.tile.type, False, self.kind)
        if tensor_shape(kind.layout) not in ("32x32b", "16x32bx2"):
            raise LayoutError(
                f"{self.label}: reduces what it loads by 32x32b or 16x32bx2, got {kind}",
                hint="x = tc.load(tile, kind), then tc.row_max(x)",
            )
        floats = kind.dtype.is_float
        if kind.dtype.name not in REDUCED or (self.absolute or self.nan) and not floats:
            raise DTypeError(
                f"{self.label}: reduces f32, or s32 without absolute and nan, got {kind}",
                hint="x = tc.load(tile, kind), then tc.row_max(x)",
            )
        return (kind, kind.vector("row"))

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile, writes both."""
        return (
            Effect(Access.READ, self.tile), *(Effect(Access.WRITE, r) for r in self.results)
        )  # fmt: skip

    def emit(self, w: Any) -> None:
        """`tcgen05.ld.red`, the wait, the fence; then lanes that share a row exchange."""
        kind, vector = (value.type for value in self.results)
        assert isinstance(kind, RegTileType) and isinstance(vector, RegVecType), "inferred"
        dtype = kind.dtype.name
        how = self.name + ".abs" * self.absolute + ".NaN" * self.nan + f".{dtype}"
        opcode = f"{self.name}{'.NaN' * self.nan}.{dtype}"
        (result,) = w.regs(self.results[1])
        w.need_version("8.8")  # of .ld.red, which sm_103a has first
        parts = parts_of(w, self.tile, kind, w.regs(self.results[0]), False)
        found = [result] + [w.new("f32" if dtype == "f32" else "b32", "part") for _ in parts[1:]]
        for part, register in zip(parts, found, strict=True):
            w.line(ptx_tensor.load_reduced(
                part.shape, part.repeat, part.registers, register, part.address, how,
                split=part.split,
            ))  # fmt: skip
        w.line(ptx_tensor.wait_loads())
        w.line(ptx_tensor.fence_before())
        for register in found[1:]:
            w.line(ptx.alu(opcode, result, result, register))
        exchange(w, opcode, result, kind.layout.fragment.lanes_of_a_row)


@dataclass(eq=False)
class StoreTensor(Op):
    """`tile = register` by a warpgroup, 64 rows or 128: complete when it returns.

    Args:
        tile: in tensor memory.
        register: the source, whose fragment is that of a shape.
        pair: as for `LoadTensor`.
    """

    verb: ClassVar[str] = "store"
    scopes: ClassVar[tuple[Scope, ...]] = (Scope.WARPGROUP,)
    any_fragment: ClassVar[bool] = True
    tile: Value = operand()
    register: Value = operand()
    pair: bool = attribute(default=False)

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; shape and dtype must agree."""
        moved("store", self.tile.type, self.pair, self.register.type)
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads the registers, writes the tile."""
        return (Effect(Access.READ, self.register), Effect(Access.WRITE, self.tile))

    def emit(self, w: Any) -> None:
        """`tcgen05.st` of the registers' shape, the wait, and the fence behind it."""
        kind = self.register.type
        assert isinstance(kind, RegTileType), "checked in infer"
        for part in parts_of(w, self.tile, kind, w.regs(self.register), self.pair):
            w.line(ptx_tensor.store(
                part.shape, part.repeat, part.address, part.registers, packed=_packed(self.tile),
                split=part.split,
            ))  # fmt: skip
        w.line(ptx_tensor.wait_stores())
        w.line(ptx_tensor.fence_before())
