"""The types of tiles, vectors, scalars and barriers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from ..dtypes import DType, DTypeVar, b4x16_p64, f32
from ..layouts import RegisterLayout, SharedLayout, SharedVectorLayout, VectorLayout, fragment_name
from ..layouts.registers import Fragment, fragment_of


@dataclass(frozen=True, repr=False)
class ScalarType:
    """A run-time scalar: s32, u32, s64, u64, f32 or pred."""

    dtype: DType

    def __str__(self) -> str:
        """The dtype's name."""
        return self.dtype.name

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class SharedTileType:
    """A `rows x cols` tile in shared memory; the swizzle is the widest its contiguous axis allows.

    Args:
        dtype: element type.
        rows: logical rows.
        cols: logical columns.
        order: "row" (columns contiguous) or "col" (rows contiguous).
        swizzle_bytes: None for the widest; 128, 64, 32 or 0 to force one.
    """

    dtype: DType
    rows: int
    cols: int
    order: str = "row"
    swizzle_bytes: int | None = None

    @cached_property
    def layout(self) -> SharedLayout:
        """Which byte holds which element."""
        return SharedLayout.of(self.dtype, self.rows, self.cols, self.order, self.swizzle_bytes)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols)."""
        return (self.rows, self.cols)

    @property
    def tx_bytes(self) -> int:
        """Bytes that a load by TMA counts on its mbarrier: gaps between 4-bit elements are none."""
        return self.layout.num_bytes // (2 if self.dtype == b4x16_p64 else 1)

    def __str__(self) -> str:
        """`st[bf16, 64, 64]`."""
        order = "" if self.order == "row" else ", col"
        return f"st[{self.dtype.name}, {self.rows}, {self.cols}{order}]"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class RegTileType:
    """A `rows x cols` tile in the registers of a warpgroup or a warp: the mma fragment.

    Args:
        dtype: element type; elements of 16 and 8 bits share 32-bit registers.
        rows: a multiple of 16 a warp.
        cols: a multiple of 8 (32 for 8-bit types).
        warps: 4 (a warpgroup's tile) or 1 (a warp's).
        order: "row" (accumulator, A operand) or "col" (its transpose: B of a warp's mma).
        kept: the fragment of the type it was converted from, where that differs from its own.
    """

    dtype: DType
    rows: int
    cols: int
    warps: int = 4
    order: str = "row"
    kept: Fragment | None = None

    @cached_property
    def layout(self) -> RegisterLayout:
        """Which lane and register hold which element."""
        return RegisterLayout(self.dtype, *self.shape, self.warps, self.order, self.kept)

    @classmethod
    def of(cls, layout: RegisterLayout) -> RegTileType:
        """The type of a layout."""
        shape = layout.rows, layout.cols
        return cls(layout.dtype, *shape, layout.warps, layout.order, layout.kept)

    def cast(self, dtype: DType) -> RegTileType:
        """The type after converting every element where it is."""
        return RegTileType.of(self.layout.cast(dtype))

    def held_by(self, warps: int) -> RegTileType:
        """The same tile held by 1 or 4 warps."""
        return RegTileType(self.dtype, self.rows, self.cols, warps, self.order, self.kept)

    def vector(self, axis: str) -> RegVecType:
        """The type of a 32-bit vector with one value a row (axis "row") or column ("col")."""
        layout = self.layout.vector(f"{axis}s")
        dtype = self.dtype if self.dtype.bits == 32 else f32
        kept = None if layout.fragment == fragment_of(dtype) else layout.fragment
        side = "row" if layout.kind == "aligned" else "col"
        return RegVecType(dtype, layout.length, side, False, self.warps, kept)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols)."""
        return (self.rows, self.cols)

    @property
    def elements(self) -> int:
        """Elements a thread holds."""
        return self.layout.elements_per_thread

    @property
    def packed(self) -> bool:
        """Whether several elements share a 32-bit register."""
        return self.dtype.bits < 32

    @property
    def registers(self) -> int:
        """32-bit registers a thread."""
        return self.layout.registers_per_thread

    def __str__(self) -> str:
        """`rt[f32, 64, 256]`."""
        order = "" if self.order == "row" else ", col"
        if not self.layout.fragment.of_mma:
            order = f', "{fragment_name(self.layout.fragment)}"'
        warp = "" if self.warps == 4 else " of a warp"
        return f"rt[{self.dtype.name}, {self.rows}, {self.cols}{order}]{warp}"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class RegVecType:
    """A vector in registers: it goes with the rows or the columns of a register tile, or neither.

    Args:
        dtype: element type, 32 bits; of "plain" with runs also 16, two a register.
        length: number of values.
        axis: "row" (aligned): 2 values a thread for every 16 rows a warp, equal in the four lanes
            of a quad; "col" (orthogonal): 2 values a thread for every 8 columns, equal in the
            lanes of a column; "plain": no copies, value x in thread x // run mod threads. The names
            fit row-order tiles; a column-order tile exchanges them.
        partial: each lane of the quad still holds its own share of a sum (`row_sum(partial=True)`).
        warps: 4 or 1.
        kept: the fragment of the tile it goes with, where that differs from its dtype's.
        run: of "plain", adjacent values of a thread.
    """

    dtype: DType
    length: int
    axis: str = "row"
    partial: bool = False
    warps: int = 4
    kept: Fragment | None = None
    run: int = 1

    @cached_property
    def layout(self) -> VectorLayout:
        """Which threads hold which value."""
        kind = {"row": "aligned", "col": "orthogonal", "plain": "plain"}[self.axis]
        return VectorLayout(self.dtype, self.length, self.warps, kind, self.kept, self.run)

    def cast(self, dtype: DType) -> RegVecType:
        """The type after converting every value where it is."""
        held = self.layout.fragment
        kept = None if self.axis == "plain" or held == fragment_of(dtype) else held
        return replace(self, dtype=dtype, kept=kept)

    def held_by(self, warps: int) -> RegVecType:
        """The same vector held by 1 or 4 warps."""
        return replace(self, warps=warps)

    @property
    def whole(self) -> RegVecType:
        """The type of the finished sum."""
        return replace(self, partial=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """(length,)."""
        return (self.length,)

    @property
    def elements(self) -> int:
        """Values a thread holds, of which two share a register if it is packed."""
        return self.layout.elements_per_thread

    @property
    def packed(self) -> bool:
        """Whether they do."""
        return self.dtype.bits == 16

    @property
    def registers(self) -> int:
        """32-bit registers a thread."""
        return self.layout.registers_per_thread

    def __str__(self) -> str:
        """`rv[f32, 64]`."""
        extra = "" if self.axis == "row" else f", {self.axis}"
        extra += f", {self.run}" if self.run > 1 else ""
        warp = "" if self.warps == 4 else " of a warp"
        part = ", partial" if self.partial else ""
        held = self.layout.fragment
        of = "" if held.of_mma else f" of a tile of {fragment_name(held)}"
        return f"rv[{self.dtype.name}, {self.length}{extra}{part}]{warp}{of}"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class SharedVecType:
    """A vector of `length` elements in shared memory."""

    dtype: DType
    length: int

    @property
    def layout(self) -> SharedVectorLayout:
        """Which bytes it takes."""
        return SharedVectorLayout(self.length * self.dtype.nbytes)

    @property
    def tx_bytes(self) -> int:
        """Bytes that a load counts on its mbarrier."""
        return self.layout.num_bytes

    @property
    def shape(self) -> tuple[int, ...]:
        """(length,)."""
        return (self.length,)

    @property
    def rows(self) -> int:
        """One, for reports."""
        return 1

    @property
    def cols(self) -> int:
        """Its length, for reports."""
        return self.length

    def __str__(self) -> str:
        """`sv[f32, 64]`."""
        return f"sv[{self.dtype.name}, {self.length}]"

    __repr__ = __str__


SCALE_ROWS, SCALE_WORD = 128, 4  # rows, and scales of each, that one chunk holds
SCALE_CHUNK_BYTES = SCALE_ROWS * SCALE_WORD
SCALE_CHUNK_COLUMNS = 4  # of tensor memory: 128 rows in 32 lanes


@dataclass(frozen=True, repr=False)
class ScalesType(SharedVecType):
    """Scales of rows of an operand in shared memory, as `tcgen05.cp` reads them.

    A chunk is 4 scales of 128 rows in 512 bytes: scale k of row r lies at byte
    `r % 32 * 16 + r // 32 * 4 + k` (PTX ISA 9.7.16.10.7; CUTLASS, Sm1xxBlkScaledConfig). Chunks
    of the same rows lie one behind the other.

    Args:
        dtype: e8m0 or e4m3.
        length: bytes, all chunks.
        tile_rows: rows of A, or columns of B.
        blocks: scales of a row, a multiple of 4.
    """

    tile_rows: int = SCALE_ROWS
    blocks: int = SCALE_WORD

    @property
    def chunks(self) -> tuple[int, int]:
        """Chunks along the rows, and along K."""
        return -(-self.tile_rows // SCALE_ROWS), self.blocks // SCALE_WORD

    @property
    def shape(self) -> tuple[int, ...]:
        """As TMA moves it: chunks along the rows, and 64-bit words of those along K."""
        rows, words = self.chunks
        return rows, words * SCALE_CHUNK_BYTES // 8

    def __str__(self) -> str:
        """`sc[e8m0, 128, 4]`."""
        return f"sc[{self.dtype.name}, {self.tile_rows}, {self.blocks}]"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class PeerType:
    """A shared tile or vector of another CTA of the cluster."""

    kind: SharedTileType | SharedVecType

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.kind.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        return self.kind.shape

    def __str__(self) -> str:
        """`st[bf16, 64, 64] of a peer`."""
        return f"{self.kind} of a peer"

    __repr__ = __str__


def place_type(kind: object) -> object:
    """The type of a shared tile or vector, of a peer's too."""
    return kind.kind if isinstance(kind, PeerType) else kind


# Element types of sums in tensor memory. Those of f16 have a column of 32 bits each too, and are
# told from an A of f16, of which a column has two.
SUMS = ("f32", "s32", "f16")
# Element types of an A there (PTX ISA 9.7.16.10.9.1, a-tmem; 4- and 6-bit types are not made here).
TENSOR_OPERANDS = ("bf16", "f16", "tf32", "e4m3", "e5m2", "s8", "u8")


@dataclass(frozen=True, repr=False)
class TensorTileType:
    """A `rows x cols` tile in tensor memory: sums of tcgen05.mma, or its A.

    A sum has a column of 32 bits. Of an A, a column has 32 bits of adjacent elements of its row.
    Of 128 rows, row r is lane r; of 64 rows, 16 lie in each quarter: row r is lane
    32 (r // 16) + r mod 16 (PTX ISA 9.7.16.10.5, layouts D and F).

    Args:
        dtype: f32, s32 or f16 for sums, else that of A.
        rows: 64 or 128.
        cols: a multiple of 8; of an A, of 32 bytes.
        sums: of f16: whether products are added to it; sums of f32 and s32 always are.
    """

    dtype: DType
    rows: int
    cols: int
    sums: bool = False

    @classmethod
    def of_sums(cls, dtype: DType, rows: int, cols: int) -> TensorTileType:
        """The type of sums."""
        return cls(dtype, rows, cols, sums=dtype.name == "f16")

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols)."""
        return (self.rows, self.cols)

    @property
    def is_sums(self) -> bool:
        """Whether products are added to it; else they read it."""
        return self.sums or self.dtype.name in SUMS and self.dtype.bits == 32

    @property
    def columns(self) -> int:
        """Columns of tensor memory."""
        return self.cols if self.is_sums else self.cols * self.dtype.bits // 32

    @property
    def unit(self) -> int:
        """Elements of a row in 8 columns, of which its parts have a whole number."""
        return 8 if self.is_sums else 8 * 32 // self.dtype.bits

    def lane(self, row: int) -> int:
        """The lane that holds a row."""
        return row if self.rows == 128 else 32 * (row // 16) + row % 16

    def __str__(self) -> str:
        """`tt[f32, 128, 256]`."""
        sums = ', "sums"' if self.sums else ""
        return f"tt[{self.dtype.name}, {self.rows}, {self.cols}{sums}]"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class TensorScalesType:
    """Scales in tensor memory: a chunk is 4 columns, the same in each quarter of the lanes.

    Word k // 4 of row r lies in lane r % 32, column `r // 32` of the word's columns (PTX ISA
    9.7.16.10.7); words of one row follow each other, each in as many columns as all rows take.

    Args:
        dtype: e8m0 or e4m3.
        rows: rows of A, or columns of B.
        blocks: scales of a row.
    """

    dtype: DType
    rows: int
    blocks: int

    @property
    def word_columns(self) -> int:
        """Columns of a word of all rows."""
        return -(-self.rows // SCALE_ROWS) * SCALE_CHUNK_COLUMNS

    @property
    def columns(self) -> int:
        """Columns of tensor memory."""
        return self.word_columns * (self.blocks // SCALE_WORD)

    def __str__(self) -> str:
        """`sc[e8m0, 128, 4] in tensor memory`."""
        return f"sc[{self.dtype.name}, {self.rows}, {self.blocks}] in tensor memory"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class BarrierType:
    """An array of mbarriers in shared memory."""

    count: int

    def __str__(self) -> str:
        """`mbarrier[n]`."""
        return f"mbarrier[{self.count}]"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class BytesType:
    """Shared memory without elements: scratch of a warpgroup."""

    def __str__(self) -> str:
        """`bytes`."""
        return "bytes"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class GlobalType:
    """A global tensor: element type and named extents, outermost first.

    Args:
        dtype: a DType, or a DTypeVar that the call's arrays decide.
        dims: names; equal names must have equal extents, and a name that is also a compile-time
            parameter of the kernel is a compile-time extent. An int fixes the extent.
            `...` in front stands for any number of axes, as many as the call's array has.
        inout: read and written; may be the same array as another argument.
    """

    dtype: DType | DTypeVar
    dims: tuple[str | int, ...]
    inout: bool = False
    leading: bool = False

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.dims)

    def __str__(self) -> str:
        """`gl[bf16, M, K]`."""
        kind = "inout" if self.inout else "gl"
        dims = (*["..."] * self.leading, *map(str, self.dims))
        return f"{kind}[{self.dtype.name}, {', '.join(dims)}]"

    __repr__ = __str__


TileType = (
    ScalarType
    | SharedTileType
    | SharedVecType
    | PeerType
    | RegTileType
    | RegVecType
    | TensorTileType
    | TensorScalesType
    | BarrierType
    | BytesType
    | GlobalType
)
