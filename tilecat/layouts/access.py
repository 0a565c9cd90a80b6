"""How threads move a register tile to and from a shared tile: instructions and lane addresses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import xor
from typing import Any

import numpy as np

from ..errors import LayoutError
from .banks import WARP, bank_conflicts, ideal_wavefronts
from .registers import RegisterLayout
from .shared import CHUNK_BYTES, SharedLayout

# ldmatrix and stmatrix: 8 x 8 matrices of 16 bits, 1, 2 or 4 an instruction; lanes 8m .. 8m+7 give
# the rows' addresses of matrix m (PTX ISA, ldmatrix and stmatrix).
MATRICES = (4, 2, 1)
MATRIX_ROWS = 8
REGISTER_BYTES = 4


@dataclass(frozen=True)
class LaneTerm:
    """(thread >> shift & mask) * scale: one part of a thread's byte offset."""

    shift: int
    mask: int
    scale: int

    def __call__(self, thread: Any) -> Any:
        """The part of a thread, int or array."""
        return (thread >> self.shift & self.mask) * self.scale


@dataclass(frozen=True)
class Access:
    """One instruction of a plan: elements `index` and up; what it changes in a lane's address."""

    index: int
    flip: int
    add: int


@dataclass(frozen=True)
class Exchange:
    """Accesses n and n ^ distance trade their elements in threads whose number has the bit set.

    Example: f32 in a 128-byte swizzle, two elements an access. Rows r and r + 1 of one access lie
    in the same 32 bytes of the banks, their chunks exchanged by the swizzle: 2 ways. If odd rows
    (thread bit 2) do access n ^ 2, the neighbouring 8 columns, first, all lie apart.
    """

    distance: int
    bit: int

    def trades(self, thread: Any) -> Any:
        """Whether a thread trades; int or array."""
        return thread >> self.bit & 1


@dataclass(frozen=True)
class AccessPlan:
    """The instructions that move a register tile to or from a shared tile.

    The byte offset of thread t in access a, from the shared tile's start, is
    (chunk_offset(t) ^ a.flip) + line_offset(t) + a.add. The first part lies inside a panel's line,
    where the swizzle XORs; lines and panels add. flip takes at most as many values as a line has
    chunks, so a kernel keeps one address register for each and writes `add` as the instruction's
    immediate. For matrices, t's address is that of row t % 8 of its matrix.

    Example: a bf16 64 x 128 tile of a warpgroup into `SharedLayout.of(bf16, 64, 128)`: 8
    stmatrix.x4. line_offset is (t&15)*128 + (t>>5&3)*2048: 16 rows a warp. chunk_offset is
    (t&7)*16 for the swizzle ^ (t>>4&1)*16 for the matrices of the second 8 columns. Flips are
    0, 32, 64, 96 for the 16-column groups of a panel; adds 0 and 8192, the panels.

    Args:
        kind: "matrix" (ldmatrix, stmatrix) or "plain" (ld.shared, st.shared).
        trans: whether the matrices need .trans.
        matrices: matrices an instruction, 0 for plain.
        elements: elements of a thread an instruction moves.
        width_bytes: bytes at a lane's address: 16 for matrices, a vector's for plain.
        chunk_terms: XORed they are chunk_offset; none in a tile without swizzle.
        line_terms: their sum is line_offset.
        accesses: the instructions.
        wavefronts: of the whole tile, one warp.
        ideal_wavefronts: without bank conflicts.
        exchange: None, or which accesses trade elements, and in which threads; see `Exchange`.
    """

    kind: str
    trans: bool
    matrices: int
    elements: int
    width_bytes: int
    chunk_terms: tuple[LaneTerm, ...]
    line_terms: tuple[LaneTerm, ...]
    accesses: tuple[Access, ...]
    wavefronts: int
    ideal_wavefronts: int
    exchange: Exchange | None = None

    def chunk_offset(self, thread: Any) -> Any:
        """The part of the offset inside a line, before the flip; int or array."""
        return reduce(xor, (term(thread) for term in self.chunk_terms), thread * 0)

    def line_offset(self, thread: Any) -> Any:
        """The part of the offset that lines and panels add; int or array."""
        return sum((term(thread) for term in self.line_terms), thread * 0)

    def byte_offset(self, access: Access, thread: Any) -> Any:
        """Byte offset of a thread's address from the shared tile's start."""
        return (self.chunk_offset(thread) ^ access.flip) + self.line_offset(thread) + access.add


def matrix_mode(registers: RegisterLayout, shared: SharedLayout) -> str | None:
    """How ldmatrix and stmatrix move these tiles: "row", "trans" (.trans), or None: they cannot.

    Derived from the maps: register r of lane l must be the 4 bytes at 4 * (l % 4) of line l // 4
    of an 8 x 16-byte matrix, or, with .trans, two 16-bit elements of lines 2 * (l % 4) and the
    next, at byte 2 * (l // 4).
    """
    for trans in (False, True):
        if _matrix_starts(registers, shared, trans, 0, 0) is not None:
            return "trans" if trans else "row"
    return None


def stmatrix_applies(registers: RegisterLayout, shared: SharedLayout) -> bool:
    """Whether stmatrix (and ldmatrix), plain or .trans, moves these tiles."""
    return matrix_mode(registers, shared) is not None


def vector_width(registers: RegisterLayout, shared: SharedLayout) -> int:
    """Bytes of the widest plain access: adjacent elements of a thread that lie together."""
    return _vector_elems(_offsets(registers, shared, 0, 0), registers) * registers.dtype.nbytes


@lru_cache(maxsize=1024)
def plan_access(
    registers: RegisterLayout,
    shared: SharedLayout,
    *,
    row: int = 0,
    col: int = 0,
    matrices: bool = True,
    exchange: bool = False,
) -> AccessPlan:
    """The fewest instructions that move a register tile to or from a shared tile.

    Args:
        registers: the register tile.
        shared: the shared tile, at least as large.
        row: first row of the register tile in the shared tile.
        col: first column.
        matrices: whether ldmatrix or stmatrix may be used.
        exchange: whether accesses may trade elements between themselves, for the banks' sake.

    Raises:
        LayoutError: dtypes differ in size, the register tile does not fit at (row, col), or
            it crosses a panel there in the middle of an access.
    """
    _check_fit(registers, shared, row, col)
    for trans in (False, True) if matrices else ():
        starts = _matrix_starts(registers, shared, trans, row, col)
        if starts is not None:
            return _matrix_plan(registers, shared, starts, trans)
    offsets = _offsets(registers, shared, row, col)
    elems = _vector_elems(offsets, registers)
    width = elems * registers.dtype.nbytes
    plan = _plan("plain", shared, offsets[::elems], elems, width)
    if exchange and plan.wavefronts > plan.ideal_wavefronts:
        return _exchanged(plan, shared, offsets[::elems])
    return plan


def _exchanged(plan: AccessPlan, shared: SharedLayout, offsets: np.ndarray) -> AccessPlan:
    """The plan with the first exchange that leaves no conflict; the plan itself if none does."""
    count, threads = len(offsets), np.arange(offsets.shape[1])
    for distance in (1 << k for k in range((count - 1).bit_length())):
        if count % (2 * distance):
            continue
        for bit in range((WARP - 1).bit_length()):
            trade = Exchange(distance, bit)
            other = offsets[np.arange(count) ^ distance]
            moved = np.where(trade.trades(threads), other, offsets)
            try:
                found = _plan("plain", shared, moved, plan.elements, plan.width_bytes)
            except LayoutError:  # the traded offsets are not linear in the thread's bits
                continue
            if found.wavefronts == found.ideal_wavefronts:
                return replace(found, exchange=trade)
    return plan


def _check_fit(registers: RegisterLayout, shared: SharedLayout, row: int, col: int) -> None:
    if registers.dtype.bits != shared.dtype.bits:
        raise LayoutError(
            f"access: registers and shared tile must hold elements of one size, "
            f"got {registers.dtype} and {shared.dtype} (DType)",
            hint="convert the register tile first",
        )
    for axis, first, extent, limit in (
        ("row", row, registers.rows, shared.rows),
        ("col", col, registers.cols, shared.cols),
    ):
        if first < 0 or first + extent > limit:
            raise LayoutError(
                f"access: the register tile must lie inside the shared tile, got {axis}={first} "
                f"(int), {extent} of {limit} {axis}s",
                hint=f"the last legal {axis} is {limit - extent}" if extent <= limit else None,
            )


def _offsets(registers: RegisterLayout, shared: SharedLayout, row: int, col: int) -> np.ndarray:
    """[elements, threads]: byte of each thread's elements in the shared tile."""
    index, thread = np.indices((registers.elements_per_thread, registers.threads))
    at_row, at_col = registers.row_col(thread, index)
    return shared.byte_offset(at_row + row, at_col + col)


def _vector_elems(offsets: np.ndarray, registers: RegisterLayout) -> int:
    size = registers.dtype.nbytes
    elems = CHUNK_BYTES // size
    while elems > 1:
        if len(offsets) % elems == 0:
            groups = offsets.reshape(-1, elems, offsets.shape[1])
            steps = groups - groups[:, :1] - (np.arange(elems) * size)[None, :, None]
            if not steps.any() and not (groups[:, 0] % (elems * size)).any():
                return elems
        elems //= 2
    return 1


def _matrix_starts(
    registers: RegisterLayout, shared: SharedLayout, trans: bool, row: int, col: int
) -> np.ndarray | None:
    """[registers, warps, 8]: byte of each matrix row, or None if the maps are not a matrix's."""
    per_register, size = registers.elements_per_register, registers.dtype.nbytes
    if per_register * size != REGISTER_BYTES or (trans and size != 2):
        return None
    offsets = _offsets(registers, shared, row, col)
    # [register, element in it, warp, lane // 4, lane % 4]
    held = offsets.reshape(-1, per_register, registers.warps, MATRIX_ROWS, 4)
    if trans:
        # Line 2 * (lane % 4) + e, at byte 2 * (lane // 4).
        lines = held.transpose(0, 2, 4, 1, 3).reshape(len(held), registers.warps, MATRIX_ROWS, 8)
        within = 2 * np.arange(8)
    else:
        lines = held.transpose(0, 2, 3, 4, 1).reshape(len(held), registers.warps, MATRIX_ROWS, -1)
        within = size * np.arange(CHUNK_BYTES // size)
    starts = lines[..., 0]
    if (lines != starts[..., None] + within).any() or (starts % CHUNK_BYTES).any():
        return None
    return starts


def _matrix_plan(
    registers: RegisterLayout, shared: SharedLayout, starts: np.ndarray, trans: bool
) -> AccessPlan:
    count = next(n for n in MATRICES if len(starts) % n == 0)
    groups = starts.reshape(-1, count, registers.warps, MATRIX_ROWS)
    # Lanes beyond the matrices of an instruction give addresses that are not read: repeat them.
    matrix = np.arange(WARP) // MATRIX_ROWS % count
    lanes = groups[:, matrix, :, np.arange(WARP) % MATRIX_ROWS]  # [lane, group, warp]
    offsets = lanes.transpose(1, 2, 0).reshape(len(groups), registers.threads)
    elements = count * registers.elements_per_register
    return _plan("matrix", shared, offsets, elements, CHUNK_BYTES, trans, count)


def _plan(
    kind: str,
    shared: SharedLayout,
    offsets: np.ndarray,
    elements: int,
    width: int,
    trans: bool = False,
    matrices: int = 0,
) -> AccessPlan:
    """The plan with chunk and line offsets factored out of [accesses, threads] byte offsets."""
    flip_bits = shared.chunk_mask * CHUNK_BYTES
    accesses = tuple(
        Access(number * elements, int(first) & flip_bits, int(first) & ~flip_bits)
        for number, first in enumerate(offsets[:, 0])
    )
    moved = offsets[0] - accesses[0].add  # thread 0 is at its flip alone
    inside = shared.swizzle_bytes or 1
    threads = np.arange(len(moved))
    bits = 1 << np.arange((len(moved) - 1).bit_length())
    chunk_terms = xor_terms([int(x) for x in (moved % inside ^ accesses[0].flip)[bits]])
    line_terms = _sum_terms([int(x) for x in (moved - moved % inside)[bits]])
    lanes = WARP if matrices == 0 else matrices * MATRIX_ROWS
    warps = offsets.reshape(len(offsets), -1, WARP)[..., :lanes]
    wavefronts = sum(max(bank_conflicts(warp, width) for warp in access) for access in warps)
    ideal = len(accesses) * ideal_wavefronts(lanes, width)
    plan = AccessPlan(
        kind, trans, matrices, elements, width, chunk_terms, line_terms, accesses, wavefronts, ideal
    )
    for access, wanted in zip(accesses, offsets, strict=True):
        if not np.array_equal(plan.byte_offset(access, threads), wanted):
            raise LayoutError(
                f"access: no lane offset serves all {len(accesses)} accesses to this place of the "
                f"shared tile of swizzle_bytes={shared.swizzle_bytes} (int)",
                hint="start at a multiple of 8 lines and of the "
                f"{shared.panel_elems} elements of a panel",
            )
    return plan


def xor_terms(columns: list[int]) -> tuple[LaneTerm, ...]:
    """Terms to XOR: thread bits that move by the same distance go together."""
    terms = []
    distances = sorted(
        {
            out - bit
            for bit, column in enumerate(columns)
            for out in range(column.bit_length())
            if column >> out & 1
        }
    )
    for distance in distances:
        moved = [
            bit
            for bit, column in enumerate(columns)
            if bit + distance >= 0 and column >> (bit + distance) & 1
        ]
        while moved:
            run = [bit for place, bit in enumerate(moved) if bit == moved[0] + place]
            terms.append(LaneTerm(run[0], (1 << len(run)) - 1, 1 << (run[0] + distance)))
            moved = moved[len(run) :]
    return tuple(sorted(terms, key=lambda term: (-term.scale, term.shift)))


def _sum_terms(columns: list[int]) -> tuple[LaneTerm, ...]:
    """Terms to add: runs of thread bits whose offsets double."""
    terms, bit = [], 0
    while bit < len(columns):
        end = bit + 1
        while end < len(columns) and columns[end] == 2 * columns[end - 1]:
            end += 1
        if columns[bit]:
            terms.append(LaneTerm(bit, (1 << (end - bit)) - 1, columns[bit]))
        bit = end
    return tuple(terms)
