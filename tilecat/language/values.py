"""Tiles and vectors as users hold them inside a kernel."""

from __future__ import annotations

from typing import Any

from .. import dtypes
from ..builder import add, current
from ..dtypes import DType
from ..errors import DTypeError, LayoutError, ScopeError
from ..ir import Scope, Value
from ..ops.conditions import CompareElements
from ..ops.elementwise import Fill, Map
from ..ops.memory import ViewShared
from ..ops.views import ViewRegisters, part_registers, storage
from ..tiles import (
    PeerType,
    RegTileType,
    RegVecType,
    ScalarType,
    SharedTileType,
    SharedVecType,
)
from .products import record_mma
from .scalars import Scalar, TileOperand, map_scalars, operand_of
from .spans import spans_of

VECTOR_UNIT_BYTES = 16  # a shared vector is a multiple of: what bulk copies move


def source_of(value: Any, name: str) -> Any:
    """The IR operand behind a tile, vector, scalar or number."""
    if isinstance(value, Registers | SharedTile | SharedVec):
        return value.value
    return operand_of(value, name)


def registers_of(value: Any, name: str) -> Value:
    """The IR value of a register tile or vector.

    Raises:
        LayoutError: anything else.
    """
    if not isinstance(value, Registers):
        raise LayoutError(
            f"{name}: wanted a register tile or vector, got {value!r} ({type(value).__name__})",
            hint="tc.load(tile) brings a shared tile into registers",
        )
    return value.value


def apply_map(name: str, *sources: Any, out: Registers | None = None) -> Any:
    """Records an element-wise function of tiles, vectors and scalars, or of scalars alone."""
    if out is None and scalars_alone(sources):
        return map_scalars(name, *sources)
    target = None if out is None else registers_of(out, f"{name}: out")
    op = add(Map(name, tuple(source_of(s, name) for s in sources), target))
    return out if out is not None else wrap(op.result)


def scalars_alone(sources: tuple[Any, ...]) -> bool:
    """Whether operands are run-time scalars and numbers, nothing else."""
    known = all(isinstance(s, Scalar | bool | int | float) for s in sources)
    return known and any(isinstance(s, Scalar) for s in sources)


def compare_elements(name: str, a: Any, b: Any) -> Any:
    """A tile or vector of conditions, `a CMP b` element by element."""
    return wrap(add(CompareElements(name, source_of(a, name), source_of(b, name))).result)


class _NoPythonValue:
    """Base of tiles: Python can neither test nor compare what is known at run time only."""

    __slots__ = ()

    def __bool__(self) -> bool:
        """An error: a tile decides no Python branch."""
        raise ScopeError(
            f"if: a tile cannot decide a Python branch, got {self!r}",
            hint="element by element: tc.select(condition, a, b), tc.maximum, tc.minimum",
        )

    def _compared(self, other: Any) -> Any:
        raise ScopeError(
            f"comparison: only register tiles and vectors are compared, got {self!r} and {other!r}",
            hint="tc.load(tile) brings a shared tile into registers",
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _compared
    __hash__ = object.__hash__


class Registers(_NoPythonValue, TileOperand):
    """Base of register tiles and vectors: operators make new ones, in-place forms write."""

    __slots__ = ("value",)

    def __init__(self, value: Value):
        self.value = value

    def __repr__(self) -> str:
        """Its type."""
        return str(self.value.type)

    def __add__(self, other: Any) -> Any:
        return apply_map("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return apply_map("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return apply_map("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return apply_map("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return apply_map("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return apply_map("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return apply_map("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return apply_map("div", other, self)

    def __and__(self, other: Any) -> Any:
        return apply_map("and", self, other)

    def __rand__(self, other: Any) -> Any:
        return apply_map("and", other, self)

    def __or__(self, other: Any) -> Any:
        return apply_map("or", self, other)

    def __ror__(self, other: Any) -> Any:
        return apply_map("or", other, self)

    def __xor__(self, other: Any) -> Any:
        return apply_map("xor", self, other)

    def __rxor__(self, other: Any) -> Any:
        return apply_map("xor", other, self)

    def __lshift__(self, other: Any) -> Any:
        return apply_map("shl", self, other)

    def __rshift__(self, other: Any) -> Any:
        return apply_map("shr", self, other)

    def __invert__(self) -> Any:
        if getattr(self.value.type, "dtype", None) == dtypes.u8:
            return apply_map("xor", self, 255)
        return apply_map("not", self)

    def __eq__(self, other: Any) -> Any:
        return compare_elements("eq", self, other)

    def __ne__(self, other: Any) -> Any:
        return compare_elements("ne", self, other)

    def __lt__(self, other: Any) -> Any:
        return compare_elements("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return compare_elements("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return compare_elements("gt", self, other)

    def __ge__(self, other: Any) -> Any:
        return compare_elements("ge", self, other)

    __hash__ = object.__hash__

    def __neg__(self) -> Any:
        return apply_map("neg", self)

    def __abs__(self) -> Any:
        return apply_map("abs", self)

    def __iadd__(self, other: Any) -> Any:
        return apply_map("add", self, other, out=self)

    def __isub__(self, other: Any) -> Any:
        return apply_map("sub", self, other, out=self)

    def __imul__(self, other: Any) -> Any:
        return apply_map("mul", self, other, out=self)

    def __itruediv__(self, other: Any) -> Any:
        return apply_map("div", self, other, out=self)


class RegTile(Registers):
    """A register tile of a warpgroup: a mutable place.

    Attributes:
        accumulate: what `mma_*` uses when the call does not say: True, or a run-time predicate
            that is false for the first product of a task (`pipe.accumulator`).
    """

    __slots__ = ("accumulate",)

    def __init__(self, value: Value, accumulate: Any = True):
        super().__init__(value)
        self.accumulate = accumulate

    @property
    def type(self) -> RegTileType:
        """Its dtype and shape."""
        assert isinstance(self.value.type, RegTileType), "a register tile"
        return self.value.type

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.type.dtype

    @property
    def T(self) -> RegTile:
        """Its transpose in the other order: the same registers."""
        kind = self.type
        order = "col" if kind.order == "row" else "row"
        flipped = RegTileType(kind.dtype, kind.cols, kind.rows, kind.warps, order, kind.kept)
        return RegTile(add(ViewRegisters(self.value, tuple(range(kind.registers)), flipped)).result)

    def __getitem__(self, index: Any) -> RegTile:
        """Part of the tile, sharing its registers: `tile[:, 32:64]`.

        Columns are cut at multiples of 8 (16 for 8-bit types, 4 for tf32), rows at multiples of 16
        a warp; in column order the other way round.
        """
        kind = self.type
        (row, rows), (col, cols) = spans_of("register tile", index, kind.shape)
        part = RegTileType(kind.dtype, rows, cols, kind.warps, kind.order, kind.kept)
        registers = part_registers(kind.layout, part.layout, row, col)
        if registers is None:
            step, tall = kind.layout.fragment.step, kind.layout.fragment.rows * kind.warps
            units = (tall, step) if kind.order == "row" else (step, tall)
            raise LayoutError(
                f"slice: parts of {kind} start at rows that are a multiple of {units[0]} and "
                f"columns of {units[1]}, got row {row} and column {col}",
                hint="store it to shared memory, and load the part",
            )
        return RegTile(add(ViewRegisters(self.value, registers, part)).result)

    def __setitem__(self, index: Any, new: Any) -> None:
        """`tile[:, 32:64] = other`, a tile or a scalar; `tile[:, 32:64] *= 2.0` ends here too."""
        part = self[index]
        if not isinstance(new, Registers):
            add(Fill(part.type, operand_of(new, "slice"), part.value))
        elif storage(new.value) != storage(part.value):
            apply_map("copy", new, out=part)

    def __matmul__(self, other: Any) -> Product:
        """`acc += a @ b`: a product, to be added to an accumulator."""
        return Product(self, other)

    def __iadd__(self, other: Any) -> Any:
        return other.add_to(self, 1) if isinstance(other, Product) else super().__iadd__(other)

    def __isub__(self, other: Any) -> Any:
        return other.add_to(self, -1) if isinstance(other, Product) else super().__isub__(other)


class RegVec(Registers):
    """A register vector: one value a row or column of a register tile."""

    __slots__ = ()
    is_index_vector = True  # of s32, it may stand for an index of a global tensor

    @property
    def type(self) -> RegVecType:
        """Its dtype, length and axis."""
        assert isinstance(self.value.type, RegVecType), "a register vector"
        return self.value.type


class SharedTile(_NoPythonValue):
    """A tile in shared memory."""

    __slots__ = ("value",)

    def __init__(self, value: Value):
        self.value = value

    @property
    def type(self) -> SharedTileType:
        """Its dtype, shape, order and swizzle."""
        assert isinstance(self.value.type, SharedTileType), "a shared tile"
        return self.value.type

    @property
    def T(self) -> SharedTile:
        """Its transpose: the same bytes, rows and columns exchanged."""
        kind = self.type
        order = "col" if kind.order == "row" else "row"
        flipped = SharedTileType(kind.dtype, kind.cols, kind.rows, order, kind.swizzle_bytes)
        return SharedTile(add(ViewShared(self.value, 0, 0, flipped)).result)

    def __matmul__(self, other: Any) -> Product:
        """`acc += a @ b`: a product, to be added to an accumulator."""
        return Product(self, other)

    def __getitem__(self, index: Any) -> SharedTile:
        """Part of the tile, sharing its bytes: `tile[:, 64:128]`, for whatever takes a tile.

        Raises:
            LayoutError: the part is no tile of its own: it cuts a swizzle pattern, or lies in
                several panels with others between.
        """
        kind = self.type
        (row, rows), (col, cols) = spans_of("shared tile", index, kind.shape)
        layout, start = kind.layout.part(row, rows, col, cols)
        part = SharedTileType(kind.dtype, rows, cols, kind.order, layout.swizzle_bytes)
        return SharedTile(add(ViewShared(self.value, 1, start, part)).result)

    def part(self, index: Any, parts: int) -> SharedTile:
        """Part `index`, an int or a run-time scalar, of `parts` equal ones, sharing its bytes.

        Whole panels along the contiguous axis: part i of two of `st[bf16, 64, 128]` is its columns
        64 i to 64 i + 63.

        Raises:
            LayoutError: parts that are no whole panels.
        """
        kind, one = self.type, self.type.layout.share(parts)
        part = SharedTileType(kind.dtype, one.rows, one.cols, kind.order, one.swizzle_bytes)
        view = ViewShared(self.value, operand_of(index, "part"), one.num_bytes, part)
        return SharedTile(add(view).result)

    def __repr__(self) -> str:
        """Its type."""
        return str(self.type)


class Product:
    """`a @ b`: `acc += a @ b` is `tc.mma_AB(acc, a, b)`; on its own it is no tile."""

    __slots__ = ("a", "b")

    def __init__(self, a: Any, b: Any):
        self.a = a
        self.b = b
        builder = current()
        builder.products.append((self, builder.loc()))

    def __repr__(self) -> str:
        """Its operands."""
        return f"{self.a!r} @ {self.b!r}, to be added to an accumulator: acc += a @ b"

    def add_to(self, acc: RegTile, sign: int) -> RegTile:
        """`acc += sign * (a @ b)`."""
        waiting = current().products
        waiting[:] = [entry for entry in waiting if entry[0] is not self]
        a, minus = self.a, sign < 0
        if minus and current().scope is Scope.WARP:
            a, minus = -a, False
        left, right = factor_of("mma_AB", a), factor_of("mma_AB", self.b)
        accumulate = predicate_of("mma_AB", acc.accumulate)
        record_mma("mma_AB", acc.value, left, right, accumulate, (-1 if minus else 1, 1))
        return acc


def factor_of(name: str, value: Any, transposed: bool = False) -> Value:
    """The tile behind an operand (a tile, or a pipeline's input), or the view of its transpose.

    Raises:
        LayoutError: it is no tile.
    """
    inner = getattr(value, "tile", value)
    if callable(inner):
        inner = inner()
    if not isinstance(inner, SharedTile | RegTile):
        raise LayoutError(f"{name}: wanted a tile, got {value!r} ({type(value).__name__})")
    return inner.T.value if transposed else inner.value


def predicate_of(name: str, decide: Any) -> Value | bool:
    """Whether a product is added: a Python bool, or a run-time comparison.

    Raises:
        DTypeError: it is neither.
    """
    flag = decide if isinstance(decide, bool) else operand_of(decide, name)
    if not isinstance(flag, bool) and getattr(flag, "type", None) != ScalarType(dtypes.pred):
        raise DTypeError(
            f"{name}: accumulate is a bool or a comparison of run-time scalars, got {decide!r}",
            hint="accumulate=step > 0",
        )
    assert isinstance(flag, bool | Value), "checked above"
    return flag


class SharedVec(_NoPythonValue):
    """A vector in shared memory."""

    __slots__ = ("value",)
    is_index_vector = True  # of s32, it gives rows to gather to a copy into a shared tile

    def __init__(self, value: Value):
        self.value = value

    @property
    def type(self) -> SharedVecType:
        """Its dtype and length."""
        assert isinstance(self.value.type, SharedVecType), "a shared vector"
        return self.value.type

    def at(self, index: Any) -> SharedElement:
        """Its element `index`, an int or a run-time scalar: `tc.load(vector.at(i), f32)`.

        Raises:
            LayoutError: an int outside the vector.
        """
        return SharedElement(self, index)

    def part(self, index: Any, parts: int) -> SharedVec:
        """Part `index`, an int or a run-time scalar, of `parts` equal ones, sharing its bytes.

        Raises:
            LayoutError: parts that are no whole 16-byte units.
        """
        kind = self.type
        length = kind.length // max(parts, 1)
        if length * parts != kind.length or length * kind.dtype.nbytes % VECTOR_UNIT_BYTES:
            raise LayoutError(
                f"part: parts of a vector are equal, and multiples of {VECTOR_UNIT_BYTES} bytes, "
                f"got {parts} of {kind}"
            )
        view = SharedVecType(kind.dtype, length)
        stride = length * kind.dtype.nbytes
        place = operand_of(index, "part")
        return SharedVec(add(ViewShared(self.value, place, stride, view)).result)

    def __repr__(self) -> str:
        """Its type."""
        return str(self.type)


class SharedElement(_NoPythonValue):
    """A place in a shared vector."""

    __slots__ = ("vector", "index")

    def __init__(self, vector: SharedVec, index: Any):
        length = vector.type.length
        if isinstance(index, int) and not 0 <= index < length:
            raise LayoutError(f"at: an element of {vector}, 0 to {length - 1}, got {index}")
        self.vector = vector
        self.index = operand_of(index, "at")

    def __repr__(self) -> str:
        """Its vector."""
        return f"an element of {self.vector}"


class PeerTile(_NoPythonValue):
    """A shared tile or vector of another CTA of the cluster.

    Attributes:
        rank: which CTA.
    """

    __slots__ = ("value", "rank")

    def __init__(self, value: Value, rank: Any):
        self.value = value
        self.rank = rank

    @property
    def type(self) -> PeerType:
        """What it is there."""
        assert isinstance(self.value.type, PeerType), "a peer's"
        return self.value.type

    def __repr__(self) -> str:
        """Its type."""
        return str(self.type)


def wrap(value: Value) -> Any:
    """The user's object for an IR value."""
    if isinstance(value.type, RegTileType):
        return RegTile(value)
    if isinstance(value.type, RegVecType):
        return RegVec(value)
    if isinstance(value.type, SharedTileType):
        return SharedTile(value)
    if isinstance(value.type, SharedVecType):
        return SharedVec(value)
    return Scalar(value)
