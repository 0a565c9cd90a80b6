"""How users write types: `st[bf16, 64, 64]`, `rt[f32, 64, 256]`."""

from __future__ import annotations

from ..dtypes import DType, DTypeVar
from ..errors import DTypeError, LayoutError
from ..layouts import TENSOR_FRAGMENTS, fragment_of, tensor_fragment
from ..layouts.registers import memory_fragment
from ..layouts.shared import SWIZZLES
from .types import (
    SCALE_CHUNK_BYTES,
    SCALE_ROWS,
    SCALE_WORD,
    SUMS,
    TENSOR_OPERANDS,
    GlobalType,
    RegTileType,
    RegVecType,
    ScalesType,
    SharedTileType,
    SharedVecType,
    TensorTileType,
)

RUNS = (1, 2, 4, 8)  # adjacent elements of a thread: at most 16 bytes of 16-bit ones


def _require_dtype(kind: str, dtype: object) -> None:
    if not isinstance(dtype, DType):
        raise DTypeError(
            f"{kind}: the first item is a dtype, got {dtype!r} ({type(dtype).__name__})",
            hint=f"{kind}[tc.bf16, 64, 64]",
        )


def _require_extents(kind: str, extents: tuple[object, ...]) -> None:
    for extent in extents:
        if isinstance(extent, bool) or not isinstance(extent, int) or extent <= 0:
            raise LayoutError(
                f"{kind}: tile extents are compile-time positive ints, "
                f"got {extent!r} ({type(extent).__name__})",
                hint="take extents from the kernel's keyword parameters, which are compile-time",
            )


def _is_extent(value: object) -> bool:
    return isinstance(value, int) and value > 0


class _Global:
    """`gl[dtype, "M", "K"]`: the type of a global tensor argument, rank 1 to 5.

    `inout[dtype, "M", "K"]` is one that the kernel reads and writes in place;
    `gl[dtype, ..., "M", "K"]` may have more axes in front.
    """

    def __init__(self, *, inout: bool = False):
        self.inout = inout

    def __getitem__(self, items: tuple[object, ...]) -> GlobalType:
        if not isinstance(items, tuple):
            items = (items,)
        dtype, *dims = items
        if not isinstance(dtype, DType | DTypeVar):
            _require_dtype("gl", dtype)
        leading = dims[:1] == [...]
        dims = dims[leading:]
        if not 1 <= len(dims) <= 5:
            raise LayoutError(f"gl: 1 to 5 dims, got {len(dims)}", hint='gl[tc.bf16, "M", "K"]')
        for dim in dims:
            if isinstance(dim, bool) or not (dim if isinstance(dim, str) else _is_extent(dim)):
                raise LayoutError(
                    f"gl: a dim is a name or a positive int, got {dim!r}",
                    hint='gl[tc.bf16, "M", 64]',
                )
        return GlobalType(dtype, tuple(dims), self.inout, leading)  # type: ignore[arg-type]


class _Shared:
    """`st[dtype, rows, cols]` or `st[dtype, rows, cols, order]`: the type of a shared tile.

    `st[dtype, rows, cols, order, swizzle]` has another swizzle than the widest, in bytes: its
    panels are as wide, so that a narrower one can be cut in more parts.
    """

    def __getitem__(self, items: tuple[object, ...]) -> SharedTileType:
        if not isinstance(items, tuple) or len(items) not in (3, 4, 5):
            raise LayoutError("st: wants st[dtype, rows, cols] or st[dtype, rows, cols, order]")
        dtype, rows, cols, *rest = items
        _require_dtype("st", dtype)
        _require_extents("st", (rows, cols))
        order = rest[0] if rest else "row"
        if order not in ("row", "col"):
            raise LayoutError(f'st: order is "row" or "col", got {order!r}')
        swizzle = rest[1] if rest[1:] else None
        if swizzle is not None and (isinstance(swizzle, bool) or swizzle not in (*SWIZZLES, 0)):
            raise LayoutError(f"st: a swizzle is 128, 64, 32 or 0 bytes wide, got {swizzle!r}")
        tile = SharedTileType(dtype, rows, cols, str(order), swizzle)  # type: ignore[arg-type]
        _ = tile.layout  # raises where no layout exists, at the user's line
        return tile


class _SharedVector:
    """`sv[dtype, length]`: the type of a shared vector, of whole 16-byte units."""

    def __getitem__(self, items: tuple[object, ...]) -> SharedVecType:
        if not isinstance(items, tuple) or len(items) != 2:
            raise LayoutError("sv: wants sv[dtype, length]")
        dtype, length = items
        _require_dtype("sv", dtype)
        _require_extents("sv", (length,))
        assert isinstance(dtype, DType) and isinstance(length, int), "checked above"
        if dtype.bits < 8:
            raise DTypeError(f"sv: elements are whole bytes, got {dtype.name}", hint="use u8")
        unit = 16 // dtype.nbytes
        if length % unit:
            low = length // unit * unit
            raise LayoutError(
                f"sv: a {dtype.name} vector has a multiple of {unit} elements (16 bytes), "
                f"got length={length}",
                hint=f"nearest legal: {low or unit} and {low + unit}",
            )
        return SharedVecType(dtype, length)


class _Register:
    """`rt[dtype, rows, cols]` or `rt[dtype, rows, cols, order]`: the type of a register tile.

    A warpgroup holds tiles of a multiple of 64 rows, a warp of 16 (of columns, for order "col").
    `rt[dtype, rows, cols, order, run]` is held for memory, not for mma: each thread has runs of 1,
    2, 4 or 8 adjacent columns and moves one in one access, as many threads as fill a row along it.

    In place of an order, a shape of `tcgen05.ld`: a tile that lies as tensor memory loads it.
    `rt[f32, 128, 64, "32x32b"]` has a row in each thread of a warpgroup, so that reductions along
    rows exchange nothing between threads. `"16x64b"`, `"16x32bx2"`: two threads share a row;
    `"16x128b"`, `"16x256b"`: four, as of mma.
    """

    def __getitem__(self, items: tuple[object, ...]) -> RegTileType:
        if not isinstance(items, tuple) or len(items) not in (3, 4, 5):
            raise LayoutError("rt: wants rt[dtype, rows, cols] or rt[dtype, rows, cols, order]")
        dtype, rows, cols, *rest = items
        _require_dtype("rt", dtype)
        _require_extents("rt", (rows, cols))
        order = str(rest[0]) if rest else "row"
        assert isinstance(dtype, DType), "checked above"
        assert isinstance(rows, int) and isinstance(cols, int), "checked above"
        if order in TENSOR_FRAGMENTS:
            return _of_shape(dtype, rows, cols, order)
        if order not in ("row", "col"):
            raise LayoutError(
                f'rt: order is "row" or "col", or a shape of tensor memory: '
                f"{', '.join(TENSOR_FRAGMENTS)}, got {rest[0]!r}"
            )
        along, across = (rows, cols) if order == "row" else (cols, rows)
        names = ("rows", "columns") if order == "row" else ("columns", "rows")
        if along % 16:
            raise LayoutError(
                f"rt: a register tile has a multiple of 16 {names[0]} (16 a warp; 64 for a "
                f"warpgroup), got {names[0]}={along}",
                hint=f"nearest legal: {along // 16 * 16 or 16} and {along // 16 * 16 + 16}",
            )
        run = rest[1] if rest[1:] else None
        if run is not None and (isinstance(run, bool) or run not in RUNS):
            raise LayoutError(f"rt: a thread has 1, 2, 4 or 8 adjacent columns, got {run!r}")
        kept = None
        if run is not None and across % (4 * run) == 0:  # else the error below
            kept = memory_fragment(run, across)
        step = 4 * run if run else 32 if dtype.bits == 8 else 8
        if across % step:
            low = across // step * step
            raise LayoutError(
                f"rt: {names[1]} of a {dtype.name} tile are a multiple of {step}, "
                f"got {names[1]}={across}",
                hint=f"nearest legal: {low or step} and {low + step}",
            )
        return RegTileType(dtype, rows, cols, 4 if along % 64 == 0 else 1, order, kept)


def _of_shape(dtype: DType, rows: int, cols: int, shape: str) -> RegTileType:
    """The type of a tile that lies as a shape of `tcgen05.ld` loads it.

    Raises:
        DTypeError: elements of 64 bits.
        LayoutError: rows or columns that it has not.
    """
    if dtype.bits > 32:
        raise DTypeError(f"rt: columns of tensor memory have 32 bits, got {dtype.name}")
    held = tensor_fragment(shape, dtype, cols)
    unit = 8 * max(1, 32 // dtype.bits)
    for name, extent, step in (("rows", rows, held.rows), ("columns", cols, unit)):
        if extent % step:
            low = extent // step * step
            raise LayoutError(
                f"rt: {name} of a {dtype.name} tile of {shape} are a multiple of {step}, got "
                f"{name}={extent}",
                hint=f"nearest legal: {low or step} and {low + step}",
            )
    warps = 4 if rows % (4 * held.rows) == 0 else 1
    kept = None if held == fragment_of(dtype) else held
    return RegTileType(dtype, rows, cols, warps, "row", kept)


class _RegisterVector:
    """`rv[dtype, length]` or `rv[dtype, length, axis]`: the type of a register vector.

    `rv[dtype, length, "plain", run]` has runs of 2, 4 or 8 adjacent values in a thread, whole ones
    in each, which move 16 bytes an access; bf16 and f16 may stay packed there.
    """

    def __getitem__(self, items: tuple[object, ...]) -> RegVecType:
        if not isinstance(items, tuple) or not 2 <= len(items) <= 4:
            raise LayoutError('rv: wants rv[dtype, length] or rv[dtype, length, "col"]')
        dtype, length, *rest = items
        _require_dtype("rv", dtype)
        _require_extents("rv", (length,))
        axis = rest[0] if rest else "row"
        partial = rest[1:] == ["partial"]
        if axis not in ("row", "col", "plain"):
            near = next((a for a in ("col", "plain") if str(axis).startswith(a)), "row")
            raise LayoutError(
                f'rv: axis is "row", "col" or "plain", got {axis!r}',
                hint=f'rv[{dtype}, {length}, "{near}"]',
            )
        assert isinstance(dtype, DType) and isinstance(length, int), "checked above"
        run = rest[1] if rest[1:] and axis == "plain" else 1
        if isinstance(run, bool) or run not in RUNS:
            raise LayoutError(
                f"rv: a run is of 1, 2, 4 or 8 adjacent values, got {run!r}",
                hint=f'rv[{dtype}, {length}, "plain", 8]',
            )
        if dtype.bits != 32 and not (run > 1 and dtype.is_float and dtype.bits == 16):
            raise DTypeError(
                f"rv: a register vector has 32-bit elements, got {dtype.name}",
                hint="use f32, and convert the tile it meets; halves are packed in runs: "
                f'rv[{dtype.name}, {length}, "plain", 8]',
            )
        unit = {"row": 16, "col": 8, "plain": 1 if run == 1 else 32 * run}[str(axis)]
        if length % unit:
            raise LayoutError(
                f"rv: the length of a {axis} vector is a multiple of {unit}, got {length}",
                hint=f"nearest legal: {length // unit * unit or unit} and "
                f"{length // unit * unit + unit}",
            )
        warps = 1 if axis == "row" and length % 64 else 4
        return RegVecType(dtype, length, str(axis), partial, warps, run=run)


class _Tensor:
    """`tt[dtype, rows, cols]`: the type of a tile in tensor memory, 64 or 128 rows.

    Of f32 and s32 it holds sums, of other types an A. Sums of f16 are
    `tt[f16, rows, cols, "sums"]`.
    """

    def __getitem__(self, items: tuple[object, ...]) -> TensorTileType:
        named = isinstance(items, tuple) and len(items) == 4 and items[3] == "sums"
        if not isinstance(items, tuple) or len(items) != 3 + named:
            raise LayoutError(
                'tt: wants tt[dtype, rows, cols], or tt[f16, rows, cols, "sums"]',
                hint="tt[tc.f32, 128, 256]",
            )
        dtype, rows, cols = items[:3]
        _require_dtype("tt", dtype)
        _require_extents("tt", (rows, cols))
        assert isinstance(dtype, DType), "checked above"
        assert isinstance(rows, int) and isinstance(cols, int), "checked above"
        if dtype.name not in (*SUMS, *TENSOR_OPERANDS):
            raise DTypeError(
                f"tt: tensor memory holds sums of {', '.join(SUMS[:-1])} or {SUMS[-1]}, or an A of "
                f"{', '.join(TENSOR_OPERANDS)}, got {dtype.name}",
                hint=f"tt[tc.f32, {rows}, {cols}]",
            )
        if rows not in (64, 128):
            raise LayoutError(
                f"tt: a tile of tensor memory has 64 or 128 rows, got rows={rows}",
                hint=f"nearest legal: {64 if rows < 96 else 128}",
            )
        kind = TensorTileType(dtype, rows, cols)
        if named:
            kind = TensorTileType.of_sums(dtype, rows, cols)
        if named and not kind.is_sums:
            raise DTypeError(
                f"tt: tensor memory holds sums of {', '.join(SUMS[:-1])} or {SUMS[-1]}, "
                f"got {dtype.name}",
                hint=f"tt[tc.f32, {rows}, {cols}]",
            )
        if cols % kind.unit:
            low = cols // kind.unit * kind.unit
            raise LayoutError(
                f"tt: columns of {dtype.name} are a multiple of {kind.unit}, got cols={cols}",
                hint=f"nearest legal: {low or kind.unit} and {low + kind.unit}",
            )
        return kind


class _Scales:
    """`sc[dtype, rows, blocks]`: scales of `rows` rows of an operand, one for each block of K.

    In shared memory (`tc.shared`, `pipe.input`) or in tensor memory (`tc.tmem`).
    """

    def __getitem__(self, items: tuple[object, ...]) -> ScalesType:
        if not isinstance(items, tuple) or len(items) != 3:
            example = "sc[tc.dtypes.e8m0, 128, 4]"
            raise LayoutError("sc: wants sc[dtype, rows, blocks]", hint=example)
        dtype, rows, blocks = items
        _require_dtype("sc", dtype)
        _require_extents("sc", (rows, blocks))
        assert isinstance(dtype, DType), "checked above"
        assert isinstance(rows, int) and isinstance(blocks, int), "checked above"
        if dtype.name not in ("e8m0", "e4m3"):
            raise DTypeError(
                f"sc: scales are e8m0, or e4m3 (NVFP4), got {dtype.name}",
                hint=f"sc[tc.dtypes.e8m0, {rows}, {blocks}]",
            )
        if blocks % SCALE_WORD:
            low = blocks // SCALE_WORD * SCALE_WORD
            raise LayoutError(
                f"sc: {SCALE_WORD} scales of a row lie together, so that blocks are a multiple of "
                f"{SCALE_WORD}, got {blocks=}",
                hint=f"nearest legal: {low or SCALE_WORD} and {low + SCALE_WORD}",
            )
        chunks = -(-rows // SCALE_ROWS) * (blocks // SCALE_WORD)
        return ScalesType(dtype, chunks * SCALE_CHUNK_BYTES, rows, blocks)


gl = _Global()
inout = _Global(inout=True)
st = _Shared()
sv = _SharedVector()
rt = _Register()
rv = _RegisterVector()
tt = _Tensor()
sc = _Scales()
