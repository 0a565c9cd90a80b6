"""Atomic updates of tensors, shared tiles and shared vectors by registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..dtypes import f32
from ..errors import DTypeError, LayoutError
from ..ir import (
    TILE_SCOPES,
    Access,
    Effect,
    Op,
    Scope,
    SharedRequest,
    TensorArg,
    Value,
    attribute,
    operand,
)
from ..layouts import AccessPlan, bank_conflicts, plan_access
from ..layouts.banks import WARP, WORD_BYTES
from ..ptx import transfers
from ..tiles import PeerType, RegTileType, RegVecType, SharedTileType, TileType, place_type
from .global_memory import GlobalAccess, check_place, split
from .memory import WARPGROUP_THREADS, registers_of_access
from .places import held, owner
from .shared_vectors import VectorMove
from .vector_runs import add_runs

# operation -> dtype -> type suffix of `red` (PTX ISA 9.7.13.6)
ATOMICS: dict[str, dict[str, str]] = {
    "add": {"f32": "f32", "s32": "s32", "u32": "u32", "f16": "noftz.f16", "bf16": "noftz.bf16"},
    "min": {"s32": "s32", "u32": "u32"},
    "max": {"s32": "s32", "u32": "u32"},
}


def check_dtype(operation: str, kind: RegTileType | RegVecType) -> None:
    """The hardware has the operation for the dtype.

    Raises:
        DTypeError: it has not.
    """
    if kind.dtype.name not in ATOMICS[operation]:
        known = ", ".join(ATOMICS[operation])
        raise DTypeError(f"atomic_{operation}: combines {known}, got {kind}")


def check_peer(name: str, place: Value, kind: RegTileType | RegVecType) -> None:
    """Halves are not added in a peer's memory.

    ptxas 13.5 makes `red.shared::cluster.add.noftz.bf16x2` an `ATOM` on generic addresses, whose
    sums in a peer's memory are wrong on an H200 (2026-11).

    Raises:
        DTypeError: they would be.
    """
    if isinstance(place.type, PeerType) and kind.dtype.bits == 16:
        raise DTypeError(
            f"{name}: in a peer's shared memory 16-bit floats come out wrong, got {kind}",
            hint="tc.cast(x, tc.f32) into an f32 tile",
        )


def shared_space(place: Value) -> str:
    """State space of a shared tile or vector, of a peer's too."""
    return "shared::cluster" if isinstance(place.type, PeerType) else "shared"


@dataclass(eq=False)
class AtomicGlobal(GlobalAccess):
    """`arg[coords...] = op(arg[coords...], tile)`, atomic for each element; none outside.

    Args:
        operation: a row of ATOMICS.
        tile: a register tile, or a whole vector.
    """

    verb: ClassVar[str] = "atomic_{operation}"
    operation: str = attribute(kw_only=True)
    tile: Value = operand(kw_only=True)

    @property
    def stores(self) -> TensorArg:
        """The tensor."""
        return self.arg

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; the tile must have the tensor's dtype."""
        name, kind = f"atomic_{self.operation}", self.tile.type
        if isinstance(kind, RegVecType) and kind.partial:
            raise LayoutError(f"{name}: wanted a whole vector, got {kind}")
        check_place(name, kind, self.arg, self.coords)
        assert isinstance(kind, RegTileType | RegVecType), "checked"
        if kind.dtype != self.arg.type.dtype:
            raise DTypeError(f"{name}: {self.arg.name} holds {self.arg.type.dtype}, got {kind}")
        check_dtype(self.operation, kind)
        if isinstance(kind, RegVecType) and kind.run > 1:
            self.run(kind)  # asks how the tensor lies: the trace depends on it
        return ()

    @property
    def needs_layout(self) -> bool:
        """Runs of a vector are added together where they lie so."""
        return isinstance(self.tile.type, RegVecType) and self.tile.type.run > 1

    def effects(self) -> tuple[Effect, ...]:
        """Reads the tile."""
        return (Effect(Access.READ, self.tile),)

    def emit(self, w: Any) -> None:
        """`red.global`, predicated, of a run of f32 or of an element; copies count once."""
        kind = self.tile.type
        assert isinstance(kind, RegTileType | RegVecType), "checked in infer"
        if isinstance(kind, RegVecType) and kind.dtype == f32 and (run := self.run(kind)) > 1:
            add_runs(self, w, run, w.regs(self.tile))
            return
        suffix, per = ATOMICS[self.operation][kind.dtype.name], 32 // kind.dtype.bits
        place, steps = self.place(w, kind)
        mine = owner(w, kind)
        for index, register in enumerate(w.regs(self.tile)):
            for part, step in zip(split(w, register, per), steps[per * index :], strict=False):
                mask = w.both(w.both(place.mask(step), mine), held(w, kind, index))
                text = transfers.reduce_memory(
                    "global", self.operation, suffix, place.address(step), part
                )
                w.line(text, pred=mask)


@dataclass(eq=False)
class AtomicShared(Op):
    """`shared = op(shared, register)`, atomic for each element.

    Args:
        operation: a row of ATOMICS.
        shared: a shared tile.
        register: a register tile of its shape and dtype.
    """

    verb: ClassVar[str] = "atomic_{operation}"
    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    operation: str = attribute()
    shared: Value = operand()
    register: Value = operand()

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; shapes and dtypes must agree."""
        source, name = self.register.type, f"atomic_{self.operation}"
        target = place_type(self.shared.type)
        if not isinstance(source, RegTileType) or not isinstance(target, SharedTileType):
            raise LayoutError(
                f"{name}: a register tile into a shared tile, got {source} and {target}"
            )
        if source.shape != target.shape or source.dtype != target.dtype:
            raise LayoutError(
                f"{name}: shapes and dtypes must agree, got {source} and {target}",
                hint="convert first: tc.cast(x, dtype)",
            )
        check_dtype(self.operation, source)
        check_peer(name, self.shared, source)
        if self.plan().elements * source.dtype.bits < 32:
            raise LayoutError(f"{name}: no instruction moves halves of registers, got {target}")
        return ()

    def plan(self) -> AccessPlan:
        """Its lane addresses."""
        source, target = self.register.type, place_type(self.shared.type)
        assert isinstance(source, RegTileType) and isinstance(target, SharedTileType), "checked"
        return plan_access(source.layout, target.layout, matrices=False)

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """One request a register, of 4 bytes a lane; none of a peer's banks."""
        if isinstance(self.shared.type, PeerType):
            return ()
        plan, found = self.plan(), []
        for access in plan.accesses:
            first = plan.byte_offset(access, np.arange(WARPGROUP_THREADS)).reshape(-1, WARP)
            for start in range(0, plan.width_bytes, WORD_BYTES):
                worst = max(bank_conflicts(warp + start, WORD_BYTES) for warp in first)
                found.append(SharedRequest("red.shared", WORD_BYTES, worst, 1))
        return tuple(found)

    def effects(self) -> tuple[Effect, ...]:
        """Reads the registers, reads and writes the tile."""
        reads = (Effect(Access.READ, self.register), Effect(Access.READ, self.shared))
        return (*reads, Effect(Access.WRITE, self.shared))

    def emit(self, w: Any) -> None:
        """One `red.shared` (of a peer `red.shared::cluster`) a register."""
        kind, plan = self.register.type, self.plan()
        assert isinstance(kind, RegTileType), "checked in infer"
        suffix = ATOMICS[self.operation][kind.dtype.name] + ("x2" if kind.dtype.bits == 16 else "")
        addresses, space = w.access_addresses(self.shared, plan), shared_space(self.shared)
        for access, address in zip(plan.accesses, addresses, strict=True):
            parts = registers_of_access(w.regs(self.register), kind, access, plan)
            base, _, offset = address.partition("+")
            for index, part in enumerate(parts):
                place = f"{base}+{int(offset or 0) + 4 * index}"
                w.line(transfers.reduce_memory(space, self.operation, suffix, place, part))


@dataclass(eq=False)
class AtomicVector(VectorMove):
    """`shared = op(shared, vector)` of a shared vector, atomic for each element."""

    verb: ClassVar[str] = "atomic_{operation}"
    operation: str = attribute()
    vector: Value = operand()

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """Its updates, with their bank conflicts; none of a peer's banks."""
        assert isinstance(self.vector.type, RegVecType), "checked in infer"
        return () if self.away else self.requests_of("red.shared", self.vector.type)

    def together(self, kind: RegVecType) -> int:
        """One value an instruction."""
        return 1

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; lengths and dtypes must agree."""
        self.check(self.vector.type, exact=True)
        assert isinstance(self.vector.type, RegVecType), "checked"
        check_dtype(self.operation, self.vector.type)
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads the registers, reads and writes the shared vector."""
        reads = (Effect(Access.READ, self.vector), Effect(Access.READ, self.shared))
        return (*reads, Effect(Access.WRITE, self.shared))

    def emit(self, w: Any) -> None:
        """One `red.shared` a value; copies count once."""
        kind = self.vector.type
        assert isinstance(kind, RegVecType), "checked in infer"
        suffix, mine = ATOMICS[self.operation][kind.dtype.name], owner(w, kind)
        places, space = self.addresses(w, kind), shared_space(self.shared)
        for index, (register, place) in enumerate(zip(w.regs(self.vector), places, strict=True)):
            text = transfers.reduce_memory(space, self.operation, suffix, place, register)
            w.line(text, pred=w.both(mine, held(w, kind, index)))
