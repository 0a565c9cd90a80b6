"""Tensor memory: tiles that tcgen05.mma adds products to (Blackwell and later).

    acc = tc.tmem(tt[f32, 64, 128])             # before tc.warpgroup, as barriers are
    done = tc.barrier()
    with tc.warpgroup():
        with tc.elected():                      # one thread issues
            tc.mma_AB(acc, a, b, accumulate=False)
            tc.mma_commit(done)                 # arrives when the products are done
        done.wait(0)
        x = tc.load(acc)                        # a register tile, 64 rows by a warpgroup
        tc.free_tmem()

What products read as A can lie there too, of the types that they multiply: a warpgroup stores it
as the registers of an A, `tc.store(p, tc.cast(x, tc.bf16))` with p = tc.tmem(tt[bf16, 128, 64]),
and `tc.mma_AB(acc, p, v)` multiplies it. So attention keeps its P.

A tile of 128 rows, at which the tensor core is fastest, is loaded by two warpgroups, each of which
gets the 64 rows of its own: `with tc.warpgroup(2) as number`.

A pipeline allocates, commits, waits and frees by itself: `pipe.accumulator`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..builder import add, assigned_name, current
from ..errors import LayoutError, ResourceError, ScopeError
from ..ir import Scope, Value
from ..ops.mma_tensor import Commit
from ..ops.tensor import AllocTensor, AllocTensorMemory, FreeTensorMemory, ViewTensor
from ..ops.tensor_moves import ROWS, LoadReduced, LoadTensor, StoreTensor
from ..ops.tensor_scales import CopyScales
from ..tiles import (
    SCALE_CHUNK_COLUMNS,
    RegTileType,
    ScalesType,
    TensorScalesType,
    TensorTileType,
)
from .barriers import Barrier, rank_of
from .scalars import operand_of
from .sections import WARPGROUP_THREADS
from .spans import spans_of
from .values import RegTile, RegVec, SharedVec, _NoPythonValue

COLUMN_STEP = 32  # tiles start at multiples of what is allocated at least (PTX ISA 9.7.16.7.1)


class TensorTile(_NoPythonValue):
    """A tile in tensor memory: a mutable place.

    Attributes:
        accumulate: what `mma_*` uses when the call does not say.
        wide_k: whether products read 64 bytes of K at a time.
    """

    __slots__ = ("value", "accumulate", "wide_k")

    def __init__(self, value: Value, accumulate: Any = True, wide_k: bool = False):
        self.value = value
        self.accumulate = accumulate
        self.wide_k = wide_k

    @property
    def type(self) -> TensorTileType:
        """Its dtype and shape."""
        assert isinstance(self.value.type, TensorTileType), "a tile of tensor memory"
        return self.value.type

    def __getitem__(self, index: Any) -> TensorTile:
        """Some of its columns: `tile[:, 32:64]`, cut at multiples of 8; of an A, of 32 bytes."""
        kind = self.type
        (row, rows), (col, cols) = spans_of("tile of tensor memory", index, kind.shape)
        unit = kind.unit
        if (row, rows) != (0, kind.rows) or col % unit or cols % unit:
            raise LayoutError(
                f"slice: parts of {kind} have all its rows, and columns cut at multiples of "
                f"{unit}, got rows {row} to {row + rows - 1}, columns {col} to {col + cols - 1}",
                hint=f"tile[:, {col // unit * unit}:{-(-(col + cols) // unit) * unit}]",
            )
        part, first = (replace(kind, cols=n) for n in (cols, col))
        view = add(ViewTensor(self.value, 0, 0, part, first.columns)).result
        return TensorTile(view, self.accumulate, self.wide_k)

    def __repr__(self) -> str:
        """Its type."""
        return str(self.type)


class TensorScales(_NoPythonValue):
    """Scales in tensor memory: a mutable place, which `tc.copy_scales` fills."""

    __slots__ = ("value",)

    def __init__(self, value: Value):
        self.value = value

    def __repr__(self) -> str:
        """Its type."""
        return str(self.value.type)


class TensorTiles:
    """Several tiles of tensor memory, of one type: `tiles[i]`, with a run-time index too."""

    def __init__(self, op: AllocTensor):
        self.op = op

    def __len__(self) -> int:
        """How many."""
        return self.op.copies

    def __getitem__(self, index: Any) -> TensorTile | TensorScales:
        """Tile `index`."""
        if isinstance(index, int) and not 0 <= index < self.op.copies:
            raise LayoutError(f"tmem: {self.op.copies} tiles, got index={index}")
        return _held(view_of(self.op, operand_of(index, "tmem")))


def _held(value: Value) -> TensorTile | TensorScales:
    """What users hold."""
    return TensorScales(value) if isinstance(value.type, TensorScalesType) else TensorTile(value)


def view_of(op: AllocTensor, index: Any) -> Value:
    """Tile `index` of an allocation."""
    return add(ViewTensor(op.result, index, op.tile.columns, op.tile)).result


def tmem(
    kind: TensorTileType | ScalesType, count: int | None = None, *, exclusive: bool = False
) -> Any:
    """A tile in tensor memory, undefined until a product is written to it; with a count, several.

    A CTA has 512 columns; what a kernel allocates is rounded up to a power of two. Who shares its
    SM with other CTAs waits until they have left enough.

    Args:
        kind: `tt[dtype, rows, cols]`; every element takes a column of 32 bits, of 64 rows too. Or
            `sc[dtype, rows, blocks]`, scales: 4 columns for 128 rows of 4.
        count: how many, to index; None for one.
        exclusive: no other CTA of the SM has tensor memory, and this one any multiple of 32 up to
            576 columns (sm_107a). One tile that asks for it is enough.

    Raises:
        ArchError: a target without tensor memory, or without exclusive columns.
        ResourceError: more columns than there are.
        ScopeError: inside a block.

    Scope: CTA, before the kernel's `tc.warpgroup` block. PTX: `tcgen05.alloc`.
    """
    builder = current()
    builder.arch.require("tcgen05", "tmem")
    if not isinstance(kind, TensorTileType | ScalesType):
        raise LayoutError(
            f"tmem: wanted the type of a tile of tensor memory, got {kind!r} "
            f"({type(kind).__name__})",
            hint="tc.tmem(tc.tt[tc.f32, 64, 128])",
        )
    if count is not None and (type(count) is not int or count < 1):
        raise LayoutError(f"tmem: count is a compile-time int from 1 up, got count={count!r}")
    if builder.scope is not Scope.CTA:
        raise ScopeError(
            f"tmem: allocated by the whole CTA, got scope={builder.scope.value}",
            hint="allocate before the tc.warpgroup block or the pipeline",
        )
    if exclusive:
        without = f"exclusive=False: {builder.arch.limit('tensor_columns')} columns"
        builder.arch.require("exclusive_columns", "tmem: exclusive=True", without)
    name = assigned_name(builder.loc()) or "sums"
    op = allocate(in_tensor_memory(kind), name, count or 1, exclusive=exclusive)
    return _held(op.result) if count is None else TensorTiles(op)


def in_tensor_memory(kind: TensorTileType | ScalesType) -> TensorTileType | TensorScalesType:
    """The type that a tile, or scales, have in tensor memory."""
    if isinstance(kind, ScalesType):
        return TensorScalesType(kind.dtype, kind.tile_rows, kind.blocks)
    return kind


def memory() -> AllocTensorMemory | None:
    """The kernel's allocation of tensor memory, if it has one."""
    ops = current().kernel.body.ops
    return next((op for op in ops if isinstance(op, AllocTensorMemory)), None)


def allocate(
    kind: TensorTileType | TensorScalesType, name: str, copies: int, *, exclusive: bool = False
) -> AllocTensor:
    """Tiles of the kernel's allocation, which is made with the first of them."""
    op = AllocTensor(kind, name, copies)
    add(op)
    whole = memory()
    if whole is None:
        whole = AllocTensorMemory(())
        add(whole)
    whole.tiles = (*whole.tiles, op.result)
    whole.exclusive = whole.exclusive or exclusive
    settle(whole)
    return op


def columns_of(op: AllocTensor) -> int:
    """Columns of the tiles of an allocation, to the next multiple of 32; of scales, all."""
    step = _step(op)
    return -(-op.copies * op.tile.columns // step) * step


def _step(op: AllocTensor) -> int:
    return SCALE_CHUNK_COLUMNS if isinstance(op.tile, TensorScalesType) else COLUMN_STEP


def parts_of(whole: AllocTensorMemory) -> list[AllocTensor]:
    """What the CTA's allocation is made of."""
    return [tile.op for tile in whole.tiles if isinstance(tile.op, AllocTensor)]


def most_columns(whole: AllocTensorMemory) -> int:
    """Columns that it may have."""
    arch = current().arch
    return arch.limit("tensor_columns_exclusive" if whole.exclusive else "tensor_columns")


def settle(whole: AllocTensorMemory) -> None:
    """Lays out the tiles, and rounds the allocation up to what the instruction takes.

    Raises:
        ResourceError: they do not fit.
    """
    arch, col = current().arch, 0
    for op in parts_of(whole):
        op.first_col = -(-col // _step(op)) * _step(op)
        col = op.first_col + columns_of(op)
        if col > most_columns(whole):
            _refuse(whole, op)
    least = arch.limit("tensor_columns_step")
    if whole.exclusive:
        whole.columns = -(-col // least) * least
        return
    whole.columns = max(least, 1 << (col - 1).bit_length())


def _refuse(whole: AllocTensorMemory, op: AllocTensor) -> None:
    arch, parts = current().arch, parts_of(whole)
    listing = ", ".join(f"{part.name}={columns_of(part)}" for part in parts)
    total = sum(map(columns_of, parts))
    wider = arch.knows("tensor_columns_exclusive") and not whole.exclusive
    exclusive = f"; exclusive=True gives {arch.limit('tensor_columns_exclusive')}" if wider else ""
    raise ResourceError(
        f"tmem: tensor memory of a CTA on {arch.target} has {most_columns(whole)} columns"
        f"{' where it is exclusive' * whole.exclusive}, got {total} ({listing})",
        loc=op.loc,
        hint="narrower tiles or fewer of them" + exclusive,
    )


def free_tmem(threads: int = 128) -> None:
    """Gives tensor memory back, after the last load; every kernel that has some does, once.

    Args:
        threads: of the CTA who call it, its first warp among them; they meet.

    Scope: warpgroup. PTX: `bar.sync`, `tcgen05.dealloc`.
    """
    whole = memory()
    if whole is None:
        raise ScopeError("free_tmem: the kernel has no tensor memory", hint="tc.tmem(...)")
    add(FreeTensorMemory(whole.result, threads))


def check_one_cta(name: str) -> None:
    """Products by hand are one CTA's, beside a pipeline.

    Raises:
        ScopeError: the pipeline's are of pairs of CTAs.
    """
    facts = current().kernel.facts
    if "template" in facts and facts.get("cta_group", 1) != 1:
        raise ScopeError(
            f"{name}: the products of a kernel are all of one CTA (.cta_group::1) or all of pairs "
            "(.cta_group::2); by hand they are of one, got a pipeline with pairs=True",
            hint="acc = pipe.accumulator(...) for these too, or pairs=False",
        )


def mma_commit(barrier: Barrier, *, multicast: tuple[int, ...] | None = None) -> None:
    """One arrival on an mbarrier, when all products that this thread has issued are done.

    Who waits for it may load the sums, and write the operands anew.

    Args:
        barrier: the mbarrier.
        multicast: ranks of the CTAs of the cluster whose own mbarrier of that name arrives.

    Scope: thread. PTX: `tcgen05.commit.mbarrier::arrive::one`.
    """
    if not isinstance(barrier, Barrier):
        raise LayoutError(
            f"mma_commit: arrives on an mbarrier, got {barrier!r}", hint="done = tc.barrier()"
        )
    current().arch.require("tcgen05", "mma_commit")
    ranks = None
    if multicast is not None:
        ranks = sum(1 << rank_of(rank, "mma_commit") for rank in set(multicast))
    add(Commit(barrier.op.result, barrier.index, ranks))


def copy_scales(target: TensorScales, source: Any) -> None:
    """Copies scales from shared to tensor memory, where products take them; asynchronous.

    Products that the same thread issues behind it find them, without a wait; a commit after it
    tells when the shared ones have been read. A pipeline copies the scales of its inputs itself.

    Args:
        target: `tc.tmem(tc.sc[dtype, rows, blocks])`.
        source: `tc.shared(...)` of the same type, loaded from `tc.formats.pack_scales(...)`.

    Scope: thread, or a warp of which one lane issues. PTX: `tcgen05.cp.cta_group::1.32x128b.warpx4`
    (ISA 9.7.16.9.2), one for each 128 rows of 4 scales.
    """
    current().arch.require("tcgen05", "copy_scales")
    if not isinstance(target, TensorScales) or not isinstance(source, SharedVec):
        raise LayoutError(
            f"copy_scales: from scales in shared memory to scales in tensor memory, got "
            f"{source!r} to {target!r}",
            hint="t, s = tc.tmem(kind), tc.shared(kind), of kind = tc.sc[e8m0, 128, 4]",
        )
    add(CopyScales(target.value, source.value))


def load_tensor(tile: TensorTile, kind: Any = None) -> RegTile:
    """A new register tile, of 64 rows; of a tile of 128 rows each of two warpgroups has its own.

    Of a kind that says 32x32b one warpgroup has all 128 rows, one a thread.
    """
    held = _registers("load", kind)
    op = LoadTensor(tile.value, None, _pair("load", tile.type, held), held)
    return RegTile(add(op).result)


def _registers(name: str, kind: Any) -> RegTileType | None:
    if kind is not None and not isinstance(kind, RegTileType):
        raise LayoutError(
            f"{name}: a tile of tensor memory becomes a register tile, got {kind!r}",
            hint='tc.load(tile, tc.rt[tc.f32, 128, 64, "32x32b"])',
        )
    return kind


def load_row_max(
    tile: TensorTile, kind: RegTileType, *, absolute: bool = False, nan: bool = False
) -> tuple[RegTile, RegVec]:
    """Loads a tile of tensor memory, and with it the largest element of each row.

    Args:
        tile: sums of f32 or s32.
        kind: `rt[f32, 128, cols, "32x32b"]`, or `rt[f32, 64, cols, "16x32bx2"]`.
        absolute: the largest |x|, of f32.
        nan: a NaN element is the result, of f32; else they are ignored.

    Returns:
        The register tile, and the vector of its rows.

    Raises:
        ArchError: a target without `tcgen05.ld.red`: all but sm_103a and sm_107a.
        LayoutError: another shape, or tile.

    Scope: warpgroup. PTX: `tcgen05.ld.red` (ISA 9.7.16.8.3).
    """
    return _load_reduced("max", tile, kind, absolute, nan)


def load_row_min(
    tile: TensorTile, kind: RegTileType, *, absolute: bool = False, nan: bool = False
) -> tuple[RegTile, RegVec]:
    """Loads a tile of tensor memory, and with it the least element of each row.

    As `tc.load_row_max`.
    """
    return _load_reduced("min", tile, kind, absolute, nan)


def _load_reduced(
    name: str, tile: TensorTile, kind: Any, absolute: bool, nan: bool
) -> tuple[RegTile, RegVec]:
    verb = f"load_row_{name}"
    current().arch.require("load_reduced", verb, f"x = tc.load(tile, kind), then tc.row_{name}(x)")
    held = _registers(verb, kind)
    if not isinstance(tile, TensorTile) or held is None:
        raise LayoutError(
            f"{verb}: loads a tile of tensor memory, got {tile!r} and {kind!r}",
            hint=f'tc.{verb}(tile, tc.rt[tc.f32, 128, 64, "32x32b"])',
        )
    _pair(verb, tile.type, held)
    op = add(LoadReduced(tile.value, held, name, absolute, nan))
    return RegTile(op.results[0]), RegVec(op.results[1])


def store_tensor(tile: TensorTile, source: Any) -> None:
    """Registers to a tile.

    Raises:
        LayoutError: no register tile.
    """
    if not isinstance(source, RegTile):
        raise LayoutError(f"store: stores a register tile, got {source!r}")
    add(StoreTensor(tile.value, source.value, _pair("store", tile.type, source.type)))


def _pair(name: str, kind: TensorTileType, held: RegTileType | None) -> bool:
    """Whether two warpgroups move a tile together, 64 rows each.

    Warps are numbered for the one or the other (see `docs/design/tensor-memory.md`), so a kernel's
    warpgroups move tiles of 64 rows, or of 128 together; by 32x32b one alone moves 128, beside
    such of 64.

    Raises:
        LayoutError: they move others too.
    """
    kernel = current().kernel
    alone = held is not None and held.layout.fragment.rows > 16
    rows = kernel.facts.setdefault("tensor_rows", ROWS if alone else kind.rows)
    if alone:
        if rows == ROWS:
            return False
        raise LayoutError(
            f"{name}: a kernel's warpgroups move tiles of 128 rows two together, or by 32x32b each "
            f"alone, got {held} beside tiles of {rows} rows that two move",
            hint="32x32b for all tiles of 128 rows",
        )
    if rows != kind.rows:
        raise LayoutError(
            f"{name}: the warpgroups of a kernel move tiles of tensor memory of one height, got "
            f"{kind} beside one of {rows} rows",
            hint=f"tt[tc.{kind.dtype.name}, {rows}, {kind.cols}]",
        )
    if kind.rows == ROWS or kernel.threads % (2 * WARPGROUP_THREADS):
        return False
    kernel.facts["paired_threads"] = kernel.threads
    return True
