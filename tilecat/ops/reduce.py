"""Reductions of register tiles: along rows, along columns, and of vectors to one scalar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ..errors import LayoutError
from ..ir import TILE_SCOPES, Access, Effect, Op, Scope, SharedRequest, Value, attribute, operand
from ..layouts import bank_conflicts
from ..ptx import instructions as ptx
from ..tiles import RegTileType, RegVecType, ScalarType, TileType
from .elements import computed_in, register_kind, require_numbers, require_unpacked, unpack
from .elementwise import element_sources

CHAINS = 2  # independent chains a value: an f32 add or max has a latency of 4 cycles on Hopper
QUAD_LANES = (1, 2)  # lane bits of the four lanes that share a row of a fragment
COLUMN_LANES = (4, 8, 16)  # lane bits of the eight lanes that share a column


@dataclass(frozen=True)
class Reduction:
    """An associative operation: its f32 and s32 opcodes, and whether it takes |x|."""

    f32: str
    s32: str
    absolute: bool = False

    def opcode(self, floats: bool) -> str:
        """The opcode for floats or integers."""
        return self.f32 if floats else self.s32


REDUCTIONS = {
    "max": Reduction("max.f32", "max.s32"),
    "min": Reduction("min.f32", "min.s32"),
    "sum": Reduction("add.rn.f32", "add.s32"),
    "prod": Reduction("mul.rn.f32", "mul.lo.s32"),
    "max_nan": Reduction("max.NaN.f32", "max.s32"),
    "absmax": Reduction("max.f32", "max.s32", absolute=True),
}


def scratch_bytes(kind: RegTileType | RegVecType, axis: str) -> int:
    """Shared bytes a warpgroup needs to combine its warps' results: 0 where it need not."""
    if kind.warps == 1:
        return 0
    if isinstance(kind, RegVecType):
        return 4 * kind.warps if kind.axis != "col" else 0
    vector = kind.vector(axis)
    return 4 * kind.warps * vector.length if vector.axis == "col" else 0


@dataclass(eq=False)
class Reduce(Op):
    """`out[r] = op over c of tile[r, c]` (axis "row"), or over r (axis "col"); and `initial`.

    Args:
        name: a row of REDUCTIONS.
        axis: which index of the tile the result keeps.
        tile: a register tile; computed in f32 or s32.
        initial: a vector that takes part, or None.
        scratch: shared memory where the result crosses warps.
        partial: leave each lane's own share, for `Total` to finish later (saves the exchanges
            inside a loop).
    """

    verb: ClassVar[str] = "{axis}_{name}"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    any_fragment: ClassVar[bool] = True
    name: str = attribute()
    axis: str = attribute()
    tile: Value = operand()
    initial: Value | None = operand(default=None)
    scratch: Value | None = operand(default=None)
    partial: bool = attribute(default=False)

    def infer(self) -> tuple[TileType, ...]:
        """A vector of the tile."""
        kind = self.tile.type
        if not isinstance(kind, RegTileType):
            raise LayoutError(
                f"{self.axis}_{self.name}: wanted a register tile, got {kind}",
                hint=f'of a vector: tc.reduce_vector("{self.name}", x)',
            )
        require_numbers(f"{self.axis}_{self.name}", kind.dtype)
        if self.axis == "col" and not kind.layout.fragment.of_mma:
            raise LayoutError(
                f"col_{self.name}: columns are reduced of tiles that lie as mma's do, got {kind}",
                hint="tc.regroup(x) of 16 rows a warp; or through shared memory",
            )
        vector = replace(kind.vector(self.axis), dtype=computed_in(kind.dtype))
        if self.partial:
            if vector.axis != "row":
                raise LayoutError(
                    f"{self.axis}_{self.name}: only a sum along a quad can stay partial, got {kind}"
                )
            vector = replace(vector, partial=True)
        if self.initial is not None and self.initial.type != vector:
            raise LayoutError(
                f"{self.axis}_{self.name}: initial is {vector}, got {self.initial.type}",
                hint="a partial sum goes on with partial=True",
            )
        return (vector,)

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile and the initial values."""
        reads = [Effect(Access.READ, self.tile)]
        if self.initial is not None:
            reads.append(Effect(Access.READ, self.initial))
        return (*reads, Effect(Access.WRITE, self.result))

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """Each store and load of the exchange between warps."""
        vector = self.result.type
        assert isinstance(vector, RegVecType), "inferred"
        if self.scratch is None:
            return ()
        run = vector.layout.fragment.run
        store, load = exchange_requests(np.arange(4) * 4 * run, np.arange(32) % 4 * 4 * run)
        return (store,) * vector.registers + (load,) * (vector.registers * vector.warps)

    def emit(self, w: Any) -> None:
        """Chains over the thread's own elements, then exchanges between lanes, then warps."""
        kind, vector = self.tile.type, self.result.type
        assert isinstance(kind, RegTileType) and isinstance(vector, RegVecType), "inferred"
        row = REDUCTIONS[self.name]
        opcode = row.opcode(kind.dtype.is_float)
        elements, dst = unpack(w, kind, w.regs(self.tile)), w.regs(self.result)
        groups: list[list[str]] = [[] for _ in dst]
        for element, index in zip(elements, element_sources(kind, vector.whole), strict=True):
            groups[index].append(element)
        for register, group in zip(dst, groups, strict=True):
            combine(w, row, kind.dtype.is_float, group, register)
            if not self.partial:
                shared = kind.layout.fragment.lanes_of_a_row
                lanes = shared if vector.axis == "row" else COLUMN_LANES
                exchange(w, opcode, register, lanes)
        if self.scratch is not None:
            across_warps(w, opcode, self.scratch, vector, dst)
        if self.initial is not None:
            for register, start in zip(dst, w.regs(self.initial), strict=True):
                w.line(ptx.alu(opcode, register, register, start))


def exchange_requests(
    stored: np.ndarray, loaded: np.ndarray
) -> tuple[SharedRequest, SharedRequest]:
    """A store and a load of 4 bytes at each of these lane addresses."""
    writes = SharedRequest("st.shared", 4, bank_conflicts(stored, 4), 1)
    return writes, SharedRequest("ld.shared", 4, bank_conflicts(loaded, 4), 1)


def combine(w: Any, row: Reduction, floats: bool, group: Sequence[str], register: str) -> None:
    """A thread's own elements of one value, in independent chains."""
    kind = "f32" if floats else "b32"
    opcode = row.opcode(floats)
    if row.absolute:
        sizes = [w.new(kind, "size") for _ in group]
        for size, element in zip(sizes, group, strict=True):
            w.line(ptx.alu("abs.f32" if floats else "abs.s32", size, element))
        group = sizes
    if len(group) < 2 * CHAINS:
        w.line(ptx.alu(f"mov.{kind}", register, group[0]))
        for element in group[1:]:
            w.line(ptx.alu(opcode, register, register, element))
        return
    chains = [w.new(kind, "chain") for _ in range(CHAINS)]
    for index, chain in enumerate(chains):
        w.line(ptx.alu(opcode, chain, group[index], group[index + CHAINS]))
    for index, element in enumerate(group[2 * CHAINS :]):
        chain = chains[index % CHAINS]
        w.line(ptx.alu(opcode, chain, chain, element))
    w.line(ptx.alu(opcode, register, *chains))


def exchange(w: Any, opcode: str, register: str, lanes: Sequence[int]) -> None:
    """Combines a value over lanes whose numbers differ in the given bits."""
    kind = "f32" if opcode.endswith("f32") else "b32"
    for mask in lanes:
        other = w.new(kind, "other")
        w.line(ptx.shfl_bfly(other, register, mask))
        w.line(ptx.alu(opcode, register, register, other))


def across_warps(
    w: Any, opcode: str, scratch: Value, vector: RegVecType, registers: Sequence[str]
) -> None:
    """Combines each value of a column vector over the four warps, through shared memory.

    Warp i leaves its values in row i of the scratch; the first row of lanes writes, all read.
    """
    kind = register_kind(vector.dtype)
    base, first = w.scratch(scratch), w.new("pred", "first_row")
    run = vector.layout.fragment.run
    column, mine = w.new("b32", "column"), w.new("b32", "mine")
    w.line(ptx.alu("setp.lt.u32", first, w.lane(), 4))
    w.line(ptx.alu("mad.lo.u32", column, w.lane_col(run), 4, base))
    w.line(ptx.alu("mad.lo.u32", mine, w.warp(), 4 * vector.length, column))
    offsets = [4 * int(vector.layout.position(0, i)) for i in range(len(registers))]
    for register, offset in zip(registers, offsets, strict=True):
        w.line(ptx.st_shared(kind, f"{mine}+{offset}", register), pred=first)
    w.sync_warpgroup()
    other = w.new(kind, "other")
    for register, offset in zip(registers, offsets, strict=True):
        w.line(ptx.ld_shared(kind, register, f"{column}+{offset}"))
        for warp in range(1, vector.warps):
            w.line(ptx.ld_shared(kind, other, f"{column}+{offset + 4 * warp * vector.length}"))
            w.line(ptx.alu(opcode, register, register, other))
    w.sync_warpgroup()


@dataclass(eq=False)
class ReduceVector(Op):
    """`op over r of vector[r]`, one scalar, the same in every thread of the scope.

    Args:
        name: a row of REDUCTIONS.
        vector: a whole row or column vector, or a plain one.
        scratch: shared memory where the result crosses warps.
    """

    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    name: str = attribute()
    vector: Value = operand()
    scratch: Value | None = operand(default=None)

    def infer(self) -> tuple[TileType, ...]:
        """A scalar of the vector's dtype."""
        kind = self.vector.type
        if not isinstance(kind, RegVecType) or kind.partial:
            raise LayoutError(f"{self.name}: wanted a whole vector, got {kind}")
        require_unpacked(self.name, kind)
        if kind.axis == "plain" and kind.length % kind.layout.threads:
            threads = kind.layout.threads
            raise LayoutError(
                f"{self.name}: a plain vector is a multiple of {threads} long, got {kind}",
                hint=f"rv[{kind.dtype.name}, {-(-kind.length // threads) * threads}, \"plain\"], "
                "loaded with what leaves the result alone beyond its end",
            )
        return (ScalarType(kind.dtype),)

    def effects(self) -> tuple[Effect, ...]:
        """Reads the vector."""
        return (Effect(Access.READ, self.vector),)

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """Each store and load of the exchange between warps."""
        if self.scratch is None:
            return ()
        store, load = exchange_requests(np.zeros(1, int), np.zeros(32, int))
        return (store, load, load, load, load)

    def emit(self, w: Any) -> None:
        """Chains, exchanges between lanes, then warps."""
        kind = self.vector.type
        assert isinstance(kind, RegVecType), "checked in infer"
        row, result = REDUCTIONS[self.name], w.define(self.result)
        opcode = row.opcode(kind.dtype.is_float)
        combine(w, row, kind.dtype.is_float, w.regs(self.vector), result)
        lanes = {"row": COLUMN_LANES, "col": QUAD_LANES, "plain": (*QUAD_LANES, *COLUMN_LANES)}
        exchange(w, opcode, result, lanes[kind.axis])
        if self.scratch is not None:
            self._across(w, opcode, register_kind(kind.dtype), result)

    def _across(self, w: Any, opcode: str, kind: str, result: str) -> None:
        assert self.scratch is not None, "the caller looked"
        base, mine = w.scratch(self.scratch), w.new("b32", "mine")
        other, first = w.new(kind, "other"), w.new("pred", "first_lane")
        w.line(ptx.alu("setp.eq.u32", first, w.lane(), 0))
        w.line(ptx.alu("mad.lo.u32", mine, w.warp(), 4, base))
        w.line(ptx.st_shared(kind, mine, result), pred=first)
        w.sync_warpgroup()
        w.line(ptx.ld_shared(kind, result, base))
        for warp in range(1, 4):
            w.line(ptx.ld_shared(kind, other, f"{base}+{4 * warp}"))
            w.line(ptx.alu(opcode, result, result, other))
        w.sync_warpgroup()


@dataclass(eq=False)
class Total(Op):
    """Finishes a partial row sum: adds the shares of the four lanes of a row."""

    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    any_fragment: ClassVar[bool] = True
    vector: Value = operand()

    def infer(self) -> tuple[TileType, ...]:
        """The whole row vector."""
        kind = self.vector.type
        if not isinstance(kind, RegVecType) or not kind.partial:
            raise LayoutError(f"total: wanted a partial row sum, got {kind}")
        return (kind.whole,)

    def effects(self) -> tuple[Effect, ...]:
        """Reads the shares."""
        return (Effect(Access.READ, self.vector), Effect(Access.WRITE, self.result))

    def emit(self, w: Any) -> None:
        """Two exchanges a value."""
        kind = self.vector.type
        assert isinstance(kind, RegVecType), "checked in infer"
        opcode = REDUCTIONS["sum"].opcode(kind.dtype.is_float)
        for dst, src in zip(w.regs(self.result), w.regs(self.vector), strict=True):
            w.line(ptx.alu(f"mov.{register_kind(kind.dtype)}", dst, src))
            exchange(w, opcode, dst, kind.layout.fragment.lanes_of_a_row)
