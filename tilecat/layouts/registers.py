"""Register tiles and vectors: which thread and element index holds what, in mma's order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..dtypes import DType
from ..errors import DTypeError, LayoutError
from .shared import nearest_multiple

LANES = 32


MMA_LANES = ((0, 1), (0, 2), (1, 0), (2, 0), (4, 0))


@dataclass(frozen=True)
class Fragment:
    """How the rows of a warp lie over lanes and element indices: a linear map of their bits.

    Of `mma`: lane l holds, of rows l // 4 and l // 4 + 8, `run` adjacent columns of each `step`,
    from column run * (l % 4); indices count the adjacent columns, then the two rows, then the
    steps.

    Args:
        run: adjacent columns of one lane: 2 (pairs), 4 (quads) or 1 (singles).
        lanes: (rows, runs of columns) that each bit of the lane's number is further on.
        halves: rows of one lane: 2, 8 apart, or 1.
    """

    run: int
    lanes: tuple[tuple[int, int], ...] = MMA_LANES
    halves: int = 2

    @property
    def of_mma(self) -> bool:
        """Whether rows lie as in the fragments of mma: a lane has two, four lanes share them."""
        return self.lanes == MMA_LANES

    @property
    def rows(self) -> int:
        """Rows of a warp: 16, or 32."""
        return self.halves * (1 + sum(row for row, _ in self.lanes))

    @property
    def lanes_of_a_row(self) -> tuple[int, ...]:
        """Bits of the lane's number, as masks, that differ in the lanes which share a row."""
        return tuple(1 << bit for bit, (_, runs) in enumerate(self.lanes) if runs)

    @property
    def step(self) -> int:
        """Columns of the lanes of a row: of mma 4 lanes times the run."""
        return self.run << len(self.lanes_of_a_row)

    def lane_row(self, lane: Any) -> Any:
        """First row that a lane holds; int or array."""
        return sum((lane >> bit & 1) * row for bit, (row, _) in enumerate(self.lanes))

    def lane_col(self, lane: Any) -> Any:
        """First column that a lane holds."""
        return sum((lane >> bit & 1) * runs * self.run for bit, (_, runs) in enumerate(self.lanes))

    def lane_of(self, row: Any, col: Any) -> Any:
        """The lane that holds a row of a warp and a column of a step."""
        found = row * 0
        for bit, (rows, runs) in enumerate(self.lanes):
            of_bit = row // rows if rows else col // self.run // runs
            found = found + (of_bit % 2 << bit)
        return found


# PTX ISA, wgmma: Register Fragments (D of every type and A of m64nNk16: pairs; A of m64nNk32:
# quads; A of m64nNk8: singles), and mma: Matrix Fragments for m16n8k16, m16n8k32, m16n8k8, which
# have the same pattern in a warp's 16 rows.
PAIRS, QUADS, SINGLES = Fragment(2), Fragment(4), Fragment(1)

# PTX ISA 9.7.16.2.3.1, fragments of tcgen05.ld and .st, of columns of 32 bits. Those of 16x128b and
# 16x256b are mma's, singles and pairs. 16x32bx2: lanes 16 to 31 have the rows' second half.
TENSOR_FRAGMENTS = {
    "32x32b": Fragment(1, tuple((1 << bit, 0) for bit in range(5)), 1),
    "16x64b": Fragment(1, ((8, 0), (0, 1), (1, 0), (2, 0), (4, 0)), 1),
    "16x128b": SINGLES,
    "16x256b": PAIRS,
    "16x32bx2": Fragment(1, (*((1 << bit, 0) for bit in range(4)), (0, 1)), 1),
}


def tensor_fragment(shape: str, dtype: DType, cols: int) -> Fragment:
    """How a tile of `cols` columns lies that `tcgen05.ld` of a shape loads, or `.st` stores.

    A register has a column, or the 16-bit (8-bit) elements of an A in one; of packed f16 sums, two
    columns.
    """
    one = TENSOR_FRAGMENTS[shape]
    each = max(1, 32 // dtype.bits)
    run = {"32x32b": 1, "16x32bx2": cols // 2}.get(shape, one.run * each)
    return replace(one, run=run)


def memory_fragment(run: int, along: int) -> Fragment:
    """Rows as they lie in memory: runs go from lane to lane along a row, then to the next row.

    As many lanes share a row as fill it, a power of two of them.

    Args:
        run: adjacent elements of a lane.
        along: elements of a row, a multiple of 4 runs.
    """
    bits = next(n for n in (5, 4, 3, 2) if along % (run << n) == 0)
    of_row = tuple((0, 1 << bit) for bit in range(bits))
    return Fragment(run, (*of_row, *((1 << bit, 0) for bit in range(5 - bits))), 1)


def fragment_name(fragment: Fragment) -> str:
    """What a fragment other than mma's is called: the shape of `tcgen05.ld` whose lanes it has."""
    known = (name for name, one in TENSOR_FRAGMENTS.items() if one.lanes == fragment.lanes)
    return next(known, f"runs of {fragment.run}")


def tensor_shape(layout: RegisterLayout) -> str | None:
    """The shape of `tcgen05.ld` and `.st` that has a tile's fragment; None: none has."""
    if layout.order != "row":
        return None
    found = (
        shape for shape in TENSOR_FRAGMENTS
        if tensor_fragment(shape, layout.dtype, layout.cols) == layout.fragment
    )  # fmt: skip
    return next(found, None)


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

    @property
    def _per_block(self) -> int:
        """Elements of a thread of a block, a warp's rows of each warp."""
        return self._across * self.fragment.rows // LANES

    def row_col(self, thread: Any, index: Any) -> tuple[Any, Any]:
        """The element (row, col) that `thread` holds at element `index`; ints or arrays."""
        held, run = self.fragment, self.fragment.run
        lane, warp = thread % LANES, thread // LANES
        block, i = index // self._per_block, index % self._per_block
        row = held.rows * (self.warps * block + warp) + held.lane_row(lane)
        row = row + 8 * (i // run % held.halves)
        col = held.step * (i // (held.halves * run)) + held.lane_col(lane) + i % run
        return (row, col) if self.order == "row" else (col, row)

    def index_of(self, row: Any, col: Any) -> tuple[Any, Any]:
        """The (thread, index) that holds element (row, col); ints or arrays."""
        if self.order == "col":
            row, col = col, row
        held, run = self.fragment, self.fragment.run
        warp, block = row // held.rows % self.warps, row // (held.rows * self.warps)
        thread = LANES * warp + held.lane_of(row % held.rows, col % held.step)
        half = row // 8 % held.halves
        inside = held.halves * run * (col // held.step) + run * half + col % run
        return thread, block * self._per_block + inside

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
    no copies: runs of `run` adjacent elements go from thread to thread, so that element x is in
    thread x // run % threads.

    Example: `VectorLayout(f32, 64, 4, "aligned")`: thread 37 (warp 1, lane 5) holds rows 17 and
    25. `VectorLayout(f32, 256, 4, "orthogonal")`: it holds columns 2, 3, 10, 11, ...

    Args:
        dtype: element type; "orthogonal" follows the fragment of a tile of this type.
        length: a multiple of 16 * warps (aligned), of 8 (orthogonal; 32 for 8-bit types).
        warps: 1 or 4.
        kind: "aligned", "orthogonal" or "plain".
        kept: the fragment of a tile of another dtype that it goes with.
        run: adjacent elements of a thread, of "plain"; above 1 each thread has whole runs.
    """

    dtype: DType
    length: int
    warps: int
    kind: str
    kept: Fragment | None = None
    run: int = 1

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
        held = self.fragment
        if self.kind == "plain":
            return -(-self.length // self.threads)
        if self.kind == "aligned":
            return self.length // (held.rows * self.warps) * held.halves
        return self.length * held.run // held.step

    @property
    def registers_per_thread(self) -> int:
        """32-bit registers of one thread."""
        return _num_registers(self.dtype, self.elements_per_thread)

    def position(self, thread: Any, index: Any) -> Any:
        """The element that `thread` holds at `index` (plain: may be past the end)."""
        if self.kind == "plain":
            return (index // self.run * self.threads + thread) * self.run + index % self.run
        held, lane, warp = self.fragment, thread % LANES, thread // LANES
        if self.kind == "aligned":
            block, half = index // held.halves, index % held.halves
            return held.rows * (self.warps * block + warp) + held.lane_row(lane) + 8 * half
        return held.step * (index // held.run) + held.lane_col(lane) + index % held.run

    def index_of(self, position: Any) -> tuple[Any, Any]:
        """The lowest (thread, index) that holds an element."""
        if self.kind == "plain":
            number, inside = position // self.run, position % self.run
            return number % self.threads, number // self.threads * self.run + inside
        held, run = self.fragment, self.fragment.run
        if self.kind == "aligned":
            warp, block = position // held.rows % self.warps, position // (held.rows * self.warps)
            lane = held.lane_of(position % held.rows, position * 0)
            return LANES * warp + lane, held.halves * block + position // 8 % held.halves
        lane = held.lane_of(position * 0, position % held.step)
        return lane, run * (position // held.step) + position % run


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
    across = max(across, layout.fragment.step) if not layout.fragment.of_mma else across
    units = {"rows": layout.fragment.rows * warps, "cols": across}
    if order == "col":
        units = {"rows": across, "cols": units["rows"]}
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
        "aligned": layout.fragment.rows * layout.warps,
        "plain": 1 if layout.run == 1 else layout.run * layout.threads,
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
