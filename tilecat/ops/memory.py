"""Shared memory and registers: allocation, views, tile loads and stores; vectors to global."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from .. import ir
from ..errors import DTypeError, LayoutError
from ..ir import TILE_SCOPES, Effect, Op, Scope, SharedRequest, Value, attribute, operand
from ..layouts import Access, AccessPlan, bank_conflicts, ideal_wavefronts, plan_access
from ..layouts.access import MATRIX_ROWS
from ..layouts.banks import WARP
from ..ptx import instructions as ptx
from ..tiles import BytesType, RegTileType, SharedTileType, SharedVecType, TileType
from .elements import PACK, pack, register_kind
from .scalar import Operand

WARPGROUP_THREADS = 128


@dataclass(eq=False)
class AllocShared(Op):
    """`copies` tiles in a row in shared memory.

    Args:
        tile: type of one.
        name: for reports.
        copies: how many.
        per_stage: how many of them make one stage of a ring (0: not in a ring).
        together: how many a product takes as one tile.
    """

    tile: SharedTileType | SharedVecType = attribute()
    name: str = attribute()
    copies: int = attribute(default=1)
    per_stage: int = attribute(default=0)
    together: int = attribute(default=1)

    @property
    def stride_bytes(self) -> int:
        """Bytes from one copy to the next."""
        layout = self.tile.layout
        return -(-layout.num_bytes // layout.alignment) * layout.alignment

    def infer(self) -> tuple[TileType, ...]:
        """The first tile."""
        return (self.tile,)

    @property
    def name_hint(self) -> str:
        """The name it has in reports."""
        return self.name

    def emit(self, w: Any) -> None:
        """Nothing: the address is static."""


@dataclass(eq=False)
class AllocScratch(Op):
    """Shared bytes of each warpgroup for exchanges between its warps.

    One a kernel, as large as its hungriest op; every op leaves it free. Ops that a warp executes
    by itself have another, of which each warp has a quarter (`of_warps`).
    """

    num_bytes: int = attribute(default=0)
    of_warps: bool = attribute(default=False)

    def infer(self) -> tuple[TileType, ...]:
        """Plain bytes."""
        return (BytesType(),)

    def emit(self, w: Any) -> None:
        """Nothing: the address is static."""


@dataclass(eq=False)
class ViewShared(Op):
    """The tile `index` strides further on, seen as `kind`."""

    pure: ClassVar[bool] = True
    tile: Value = operand()
    index: Operand = operand()
    stride_bytes: int = attribute()
    kind: SharedTileType | SharedVecType = attribute()

    def infer(self) -> tuple[TileType, ...]:
        """The view's type."""
        return (self.kind,)

    def emit(self, w: Any) -> None:
        """Address arithmetic, folded where the index is known."""
        w.place(self.result, w.offset(w.address(self.tile), self.index, self.stride_bytes))


def _check_fragment(name: str, register: TileType, shared: TileType) -> None:
    if not isinstance(register, RegTileType) or not isinstance(shared, SharedTileType):
        raise LayoutError(
            f"{name}: between a register tile and a shared tile, got {register} and {shared}"
        )
    if register.shape != shared.shape:
        raise LayoutError(f"{name}: shapes must agree, got {register} and {shared}")
    if register.dtype != shared.dtype:
        raise DTypeError(
            f"{name}: dtypes must agree, got {register} and {shared}",
            hint=f"convert first: tc.cast(x, tc.{shared.dtype.name})",
        )


def _plan(name: str, register: RegTileType, shared: SharedTileType) -> AccessPlan:
    """The moves of a whole tile.

    Raises:
        LayoutError: elements of a 16-bit tile that share a register lie apart in the shared tile.
    """
    plan = plan_access(register.layout, shared.layout, exchange=True)
    if plan.elements * register.dtype.bits < 32:
        raise LayoutError(
            f"{name}: no instruction moves halves of registers, got {register} and {shared}",
            hint="use 16-bit tiles whose rows (or columns, in column order) are a multiple of 16",
        )
    return plan


def requests_of(plan: AccessPlan, matrix: str, plain: str) -> tuple[SharedRequest, ...]:
    """One request an access of a plan: the warp's with the most wavefronts."""
    lanes = plan.matrices * MATRIX_ROWS if plan.matrices else WARP
    found = []
    for access in plan.accesses:
        offsets = plan.byte_offset(access, np.arange(WARPGROUP_THREADS)).reshape(-1, WARP)
        wavefronts = max(bank_conflicts(warp[:lanes], plan.width_bytes) for warp in offsets)
        ideal = ideal_wavefronts(lanes, plan.width_bytes)
        name = matrix if plan.matrices else plain
        found.append(SharedRequest(name, plan.width_bytes, wavefronts, ideal))
    return tuple(found)


def registers_of_access(
    registers: tuple[str, ...], kind: RegTileType, access: Access, plan: AccessPlan
) -> tuple[str, ...]:
    """The registers that one access of a plan moves."""
    per_register = 32 // kind.dtype.bits
    first = access.index // per_register
    return registers[first : first + plan.elements // per_register]


def trade(
    w: Any,
    kind: RegTileType,
    plan: AccessPlan,
    parts: list[tuple[str, ...]],
    targets: list[tuple[str, ...]] | None = None,
) -> list[tuple[str, ...]]:
    """The registers of each access after a plan's exchange; into `targets`, or new ones."""
    if plan.exchange is None:
        return parts
    register, bit = register_kind(kind.dtype), 1 << plan.exchange.bit
    masked, trades = w.new("b32", "bit"), w.new("pred", "trades")
    w.line(ptx.alu("and.b32", masked, w.tid(), bit))
    w.line(ptx.alu("setp.ne.u32", trades, masked, 0))
    if targets is None:
        targets = [tuple(w.new(register, "traded") for _ in part) for part in parts]
    for number, (target, mine) in enumerate(zip(targets, parts, strict=True)):
        others = parts[number ^ plan.exchange.distance]
        for result, other, own in zip(target, others, mine, strict=True):
            w.line(ptx.alu(f"selp.{register}", result, other, own, trades))
    return targets


def plain_access(
    kind: RegTileType, address: str, registers: tuple[str, ...]
) -> tuple[str, str, str]:
    """Type suffix, address and registers of `ld.shared` and `st.shared`."""
    base = "f32" if kind.dtype.name == "f32" else "b32"
    if len(registers) == 1:
        return base, address, registers[0]
    return f"v{len(registers)}.{base}", address, ptx.vector(registers)


@dataclass(eq=False)
class StoreShared(Op):
    """`shared = register` by a warpgroup: `stmatrix` for 16-bit elements, else plain stores.

    Args:
        shared: the target, as wide as the slice that is stored.
        register: the source; f32 rounds to a 16-bit target where `rounds` allows it.
        first_col: first column of the slice.
        rounds: whether a conversion is meant.
    """

    verb: ClassVar[str] = "store"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    any_fragment: ClassVar[bool] = True
    shared: Value = operand()
    register: Value = operand()
    first_col: int = attribute(default=0)
    rounds: bool = attribute(default=False)

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; shapes and dtypes must agree."""
        source, target = self.register.type, self.shared.type
        whole = not isinstance(source, RegTileType) or source.layout.fragment.of_mma
        if self.rounds and not whole:
            raise LayoutError(
                f"output.store: stores tiles that lie as mma's do, got {source}",
                hint="tc.store(C[row, col], x): from each thread its own",
            )
        if self.rounds and isinstance(source, RegTileType) and isinstance(target, SharedTileType):
            known = source.dtype.name == "f32" and target.dtype.name in PACK
            source = source.cast(target.dtype) if known else source
            source = replace(source, cols=min(target.cols, source.cols))
        _check_fragment("store", source, target)
        self.plan()
        return ()

    def _stored(self) -> RegTileType:
        source, kind = self.register.type, self.shared.type
        assert isinstance(kind, SharedTileType), "checked in infer"
        assert isinstance(source, RegTileType), "checked in infer"
        cast = source if source.dtype == kind.dtype else source.cast(kind.dtype)
        return replace(cast, rows=kind.rows, cols=kind.cols)

    def plan(self) -> AccessPlan:
        """Its instructions and their lane addresses."""
        assert isinstance(self.shared.type, SharedTileType), "checked in infer"
        return _plan("store", self._stored(), self.shared.type)

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """Each store, with its bank conflicts."""
        return requests_of(self.plan(), "stmatrix", "st.shared")

    def effects(self) -> tuple[Effect, ...]:
        """Reads the registers, writes the tile."""
        return (Effect(ir.Access.READ, self.register), Effect(ir.Access.WRITE, self.shared))

    def emit(self, w: Any) -> None:
        """`stmatrix`, or the widest plain stores; see `plan_access`."""
        source, plan = self.register.type, self.plan()
        assert isinstance(source, RegTileType), "checked in infer"
        rounds = source.dtype != self._stored().dtype
        first = self.first_col * source.dtype.bits // 64
        registers = w.regs(self.register)[first:]
        addresses = w.access_addresses(self.shared, plan)
        parts = [registers_of_access(registers, self._stored(), a, plan) for a in plan.accesses]
        if not rounds:
            parts = trade(w, self._stored(), plan, parts)
        for access, address, part in zip(plan.accesses, addresses, parts, strict=True):
            if rounds:
                elements = registers[access.index : access.index + plan.elements]
                part = tuple(w.new("b32", "packed") for _ in range(plan.elements // 2))
                pack(w, self._stored().dtype, elements, part)
            if plan.kind == "matrix":
                w.line(ptx.stmatrix(address, part, transpose=plan.trans))
            else:
                w.line(ptx.st_shared(*plain_access(self._stored(), address, part)))


@dataclass(eq=False)
class LoadShared(Op):
    """`register = shared` by a warpgroup: `ldmatrix` for 16-bit elements, else plain loads."""

    verb: ClassVar[str] = "load"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    shared: Value = operand()
    order: str = attribute(default="row")

    def infer(self) -> tuple[TileType, ...]:
        """A register tile of the same shape and dtype."""
        kind = self.shared.type
        if not isinstance(kind, SharedTileType):
            raise LayoutError(f"load: wanted a shared tile, got {kind}")
        self.plan()
        return (self._loaded(),)

    def _loaded(self) -> RegTileType:
        kind = self.shared.type
        assert isinstance(kind, SharedTileType), "checked in infer"
        warps = 1 if self.scope is Scope.WARP else 4
        along = kind.rows if self.order == "row" else kind.cols
        if along % (16 * warps):
            raise LayoutError(
                f"load: a {self.scope.value} loads a multiple of {16 * warps} "
                f"{'rows' if self.order == 'row' else 'columns'}, got {kind}"
            )
        return RegTileType(kind.dtype, kind.rows, kind.cols, warps, self.order)

    def plan(self) -> AccessPlan:
        """Its instructions and their lane addresses."""
        kind = self.shared.type
        assert isinstance(kind, SharedTileType), "checked in infer"
        return _plan("load", self._loaded(), kind)

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """Each load, with its bank conflicts."""
        return requests_of(self.plan(), "ldmatrix", "ld.shared")

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile."""
        return (Effect(ir.Access.READ, self.shared), Effect(ir.Access.WRITE, self.result))

    def emit(self, w: Any) -> None:
        """`ldmatrix`, or the widest plain loads; see `plan_access`."""
        kind, plan = self.result.type, self.plan()
        assert isinstance(kind, RegTileType), "inferred"
        addresses = w.access_addresses(self.shared, plan)
        wanted = [registers_of_access(w.regs(self.result), kind, a, plan) for a in plan.accesses]
        parts = wanted
        if plan.exchange is not None:
            register = register_kind(kind.dtype)
            parts = [tuple(w.new(register, "loaded") for _ in part) for part in wanted]
        for address, part in zip(addresses, parts, strict=True):
            if plan.kind == "matrix":
                w.line(ptx.ldmatrix(part, address, transpose=plan.trans))
            else:
                suffix, place, target = plain_access(kind, address, part)
                w.line(ptx.ld_shared(suffix, target, place))
        trade(w, kind, plan, parts, wanted)
