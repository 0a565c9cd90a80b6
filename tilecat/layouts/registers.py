"""Register tiles and vectors: which thread and element index holds what, in mma's order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..dtypes import DType
from ..errors import DTypeError, LayoutError
from .shared import nearest_multiple

LANES = 32


@dataclass(frozen=True)
class Fragment:
    """How a warp's 16 rows lie over lanes and element indices.

    Lane l holds, of rows l // 4 and l // 4 + 8, `run` adjacent columns of each `step`, from
    column run * (l % 4); indices count the adjacent columns, then the two rows, then the steps.

    Args:
        run: adjacent columns of one lane: 2 (pairs), 4 (quads) or 1 (singles).
    """

    run: int

    @property
    def step(self) -> int:
        """Columns of 2 * run elements: 4 lanes times the run."""
        return 4 * self.run


# PTX ISA, wgmma: Register Fragments (D of every type and A of m64nNk16: pairs; A of m64nNk32:
# quads; A of m64nNk8: singles), and mma: Matrix Fragments for m16n8k16, m16n8k32, m16n8k8, which
# have the same pattern in a warp's 16 rows.
PAIRS, QUADS, SINGLES = Fragment(2), Fragment(4), Fragment(1)


def fragment_of(dtype: DType) -> Fragment:
    """The fragment of a dtype: quads for 8 bits, singles for tf32, pairs for all others."""
    if not isinstance(dtype, DType):
        raise DTypeError(f"fragment: of a dtype, got {dtype!r} ({type(dtype).__name__})")
    if dtype.bits == 8:
        return QUADS
    return SINGLES if dtype.name == "tf32" else PAIRS


def _num_registers(dtype: DType, elements: int) -> int:
    return elements if dtype.kind == "pred" else -(-elements * dtype.bits // 32)


@dataclass(frozen=True)
class RegisterLayout:
    """Which element (row, col) thread t holds at element index i: wgmma's accumulator order.

    For order "row" and 16-, 32- and 64-bit types, i = 4*j + 2*h + e means
    row = 16*warp + lane//4 + 8*h and col = 8*j + 2*(lane%4) + e. Taller tiles repeat this for
    each block of 16 * warps rows, block-major: block b has indices b * cols / 2 and up. Two
    16-bit elements share a register, e = 0 in its low half. Types with another operand fragment
    have that one: 8-bit types hold four adjacent columns, i = 8*j + 4*h + e with
    col = 16*j + 4*(lane%4) + e; tf32 holds one, i = 2*j + h with col = 4*j + lane%4. So
    registers 4t .. 4t+3 are the A operand of k-step t (32 bytes of K) for every operand type.

    Order "col" is the transpose: element (row, col) lies where order "row" of the transposed
    shape has (col, row). With one warp that is the B operand of mma.sync: for the 16 x 16 block
    at registers 4t .. 4t+3, registers 0 and 2 serve its columns 0-7, registers 1 and 3 its
    columns 8-15.

    Example: `RegisterLayout(f32, 64, 256, 4)`: 128 elements a thread. Thread 37 is lane 5 of
    warp 1; index 6 = 4*1 + 2*1 + 0 is row 16 + 1 + 8 = 25, column 8 + 2*1 + 0 = 10.

    Args:
        dtype: element type.
        rows: a multiple of 16 * warps for order "row"; of the column unit for "col".
        cols: a multiple of 8 (N of wgmma), of 32 for 8-bit types.
        warps: 1 (a warp's tile) or 4 (a warpgroup's, 16 rows a warp in each 64).
        order: "row" or "col".
        kept: the fragment of another dtype, for a tile converted in place; see `cast`.
    """

    dtype: DType
    rows: int
    cols: int
    warps: int
    order: str = "row"
    kept: Fragment | None = None

    def __post_init__(self) -> None:
        """Check the shape."""
        _check_register_shape(self)

    @property
    def fragment(self) -> Fragment:
        """The fragment its dtype takes, or the one it kept."""
        return self.kept or fragment_of(self.dtype)

    def cast(self, dtype: DType) -> RegisterLayout:
        """The layout after converting every element where it is: no element changes its thread.

        It equals the dtype's own layout unless the fragments differ: f32 to e4m3 keeps pairs,
        where e4m3 as an operand has quads; `layout_change` finds the shuffles between them.
        """
        kept = None if self.fragment == fragment_of(dtype) else self.fragment
        return RegisterLayout(dtype, self.rows, self.cols, self.warps, self.order, kept)

    @property
    def threads(self) -> int:
        """Threads that hold it."""
        return LANES * self.warps

    @property
    def elements_per_thread(self) -> int:
        """Elements of one thread."""
        return self.rows * self.cols // self.threads

    @property
    def registers_per_thread(self) -> int:
        """32-bit registers of one thread (predicate registers for pred)."""
        return _num_registers(self.dtype, self.elements_per_thread)

    @property
    def elements_per_register(self) -> int:
        """Elements that share a 32-bit register."""
        return max(32 // self.dtype.bits, 1) if self.dtype.kind != "pred" else 1

    @property
    def _across(self) -> int:
        """Elements of the axis that runs along the index: columns for order "row"."""
        return self.cols if self.order == "row" else self.rows

    def row_col(self, thread: Any, index: Any) -> tuple[Any, Any]:
        """The element (row, col) that `thread` holds at element `index`; ints or arrays."""
        run, step = self.fragment.run, self.fragment.step
        lane, warp = thread % LANES, thread // LANES
        per_block = self._across // 2
        block, i = index // per_block, index % per_block
        row = 16 * (self.warps * block + warp) + lane // 4 + 8 * (i // run % 2)
        col = step * (i // (2 * run)) + run * (lane % 4) + i % run
        return (row, col) if self.order == "row" else (col, row)

    def index_of(self, row: Any, col: Any) -> tuple[Any, Any]:
        """The (thread, index) that holds element (row, col); ints or arrays."""
        if self.order == "col":
            row, col = col, row
        run, step = self.fragment.run, self.fragment.step
        warp, block = row // 16 % self.warps, row // (16 * self.warps)
        thread = LANES * warp + row % 8 * 4 + col % step // run
        inside = 2 * run * (col // step) + run * (row // 8 % 2) + col % run
        return thread, block * (self._across // 2) + inside

    def vector(self, axis: str, dtype: DType | None = None) -> VectorLayout:
        """The layout of a vector with one value a row (axis "rows") or a column ("cols").

        The one that goes with the axis of 16 rows a warp is "aligned", the other "orthogonal":
        either is in the registers of the threads that hold the tile's elements.
        """
        along = (axis == "rows") == (self.order == "row")
        length = self.rows if axis == "rows" else self.cols
        kind = "aligned" if along else "orthogonal"
        dtype = dtype or self.dtype
        kept = None if self.fragment == fragment_of(dtype) else self.fragment
        return VectorLayout(dtype, length, self.warps, kind, kept)

    def same_places(self, other: RegisterLayout) -> bool:
        """Whether every element has the same thread and index in both, dtype aside."""
        return (self.fragment, self.rows, self.cols, self.warps, self.order) == (
            other.fragment,
            other.rows,
            other.cols,
            other.warps,
            other.order,
        )


@dataclass(frozen=True)
class VectorLayout:
    """Which threads hold which elements of a register vector.

    "aligned" goes with the rows of a tile: 2 values a thread for 16 rows (row lane//4 + 8*h at
    index 2*block + h), the same in the 4 lanes of a row. "orthogonal" goes with the columns:
    2 values for 8 columns, replicated over the 8 rows of lanes and over the warps. "plain" has
    no copies: element x is in thread x % threads at index x // threads.

    Example: `VectorLayout(f32, 64, 4, "aligned")`: thread 37 (warp 1, lane 5) holds rows 17 and
    25. `VectorLayout(f32, 256, 4, "orthogonal")`: it holds columns 2, 3, 10, 11, ...

    Args:
        dtype: element type; "orthogonal" follows the fragment of a tile of this type.
        length: a multiple of 16 * warps (aligned), of 8 (orthogonal; 32 for 8-bit types).
        warps: 1 or 4.
        kind: "aligned", "orthogonal" or "plain".
        kept: the fragment of a tile of another dtype that it goes with.
    """

    dtype: DType
    length: int
    warps: int
    kind: str
    kept: Fragment | None = None

    def __post_init__(self) -> None:
        """Check the kind and the length."""
        _check_vector(self)

    @property
    def fragment(self) -> Fragment:
        """The fragment of the tile it goes with."""
        return self.kept or fragment_of(self.dtype)

    @property
    def threads(self) -> int:
        """Threads that hold it."""
        return LANES * self.warps

    @property
    def elements_per_thread(self) -> int:
        """Values of one thread, copies included."""
        if self.kind == "plain":
            return -(-self.length // self.threads)
        return self.length // (8 * self.warps) if self.kind == "aligned" else self.length // 4

    @property
    def registers_per_thread(self) -> int:
        """32-bit registers of one thread."""
        return _num_registers(self.dtype, self.elements_per_thread)

    def position(self, thread: Any, index: Any) -> Any:
        """The element that `thread` holds at `index` (plain: may be past the end)."""
        if self.kind == "plain":
            return index * self.threads + thread
        lane, warp = thread % LANES, thread // LANES
        if self.kind == "aligned":
            return 16 * (self.warps * (index // 2) + warp) + lane // 4 + 8 * (index % 2)
        run, step = self.fragment.run, self.fragment.step
        return step * (index // run) + run * (lane % 4) + index % run

    def index_of(self, position: Any) -> tuple[Any, Any]:
        """The lowest (thread, index) that holds an element."""
        if self.kind == "plain":
            return position % self.threads, position // self.threads
        if self.kind == "aligned":
            warp, block = position // 16 % self.warps, position // (16 * self.warps)
            return LANES * warp + position % 8 * 4, 2 * block + position // 8 % 2
        run, step = self.fragment.run, self.fragment.step
        return position % step // run, run * (position // step) + position % run


def _check_register_shape(layout: RegisterLayout) -> None:
    dtype, warps, order = layout.dtype, layout.warps, layout.order
    if order not in ("row", "col"):
        raise LayoutError(
            f"register tile: order must be row or col, got order={order!r} (str)",
            hint='order="row" is the accumulator and A, order="col" is B',
        )
    if warps not in (1, 4):
        raise LayoutError(
            f"register tile: warps must be 1 or 4, got warps={warps!r} ({type(warps).__name__})",
            hint="a warp's tile or a warpgroup's",
        )
    across = 32 if dtype.bits == 8 and layout.kept is None else 8
    units = {"rows": 16 * warps, "cols": across}
    if order == "col":
        units = {"rows": across, "cols": 16 * warps}
    for axis, unit in units.items():
        extent = getattr(layout, axis)
        if extent <= 0 or extent % unit:
            raise LayoutError(
                f"register tile: {axis} must be a multiple of {unit} for {dtype} in {order} order "
                f"over {warps} {'warp' if warps == 1 else 'warps'}, got {axis}={extent} "
                f"({type(extent).__name__})",
                hint=f"the nearest legal {axis} is {nearest_multiple(extent, unit)}",
            )


def _check_vector(layout: VectorLayout) -> None:
    units = {
        "aligned": 16 * layout.warps,
        "plain": 1,
        "orthogonal": 32 if layout.dtype.bits == 8 and layout.kept is None else 8,
    }
    if layout.kind not in units:
        raise LayoutError(
            f"register vector: kind must be aligned, orthogonal or plain, "
            f"got kind={layout.kind!r} (str)"
        )
    unit = units[layout.kind]
    if layout.length <= 0 or layout.length % unit:
        raise LayoutError(
            f"register vector: length must be a multiple of {unit} in {layout.kind} layout for "
            f"{layout.dtype}, got length={layout.length} ({type(layout.length).__name__})",
            hint=f"the nearest legal length is {nearest_multiple(layout.length, unit)}",
        )
