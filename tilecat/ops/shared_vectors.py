"""Shared vectors and registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..dtypes import DType, u8
from ..errors import DTypeError, LayoutError
from ..ir import (
    TILE_SCOPES,
    Access,
    Effect,
    Op,
    Scope,
    SharedRequest,
    Value,
    attribute,
    operand,
)
from ..layouts import bank_conflicts, ideal_wavefronts
from ..layouts.banks import WARP
from ..ptx import instructions as ptx
from ..ptx import transfers
from ..tiles import PeerType, RegVecType, ScalarType, SharedVecType, TileType, place_type
from .conditions import vector_start
from .elements import require_unpacked
from .global_memory import memory_kind
from .global_scalars import SCALARS
from .places import fits_vector, half_register, held, narrow, owner, widen
from .scalar import Operand, require_s32

RUN_BYTES = 16  # of ld.shared.v4.b32
PAIRED_BYTES = 4  # of a value moved together with its neighbour


@dataclass(eq=False)
class VectorMove(Op):
    """Base of moves between a shared vector and a register vector of one length and dtype."""

    scopes: ClassVar[tuple[Scope, ...]] = TILE_SCOPES
    any_fragment: ClassVar[bool] = True
    shared: Value = operand()

    def check(self, kind: TileType, *, exact: bool = False) -> None:
        """One length and one dtype; f32 registers take halves too, unless `exact`.

        Raises:
            LayoutError: not two vectors, or lengths that differ.
            DTypeError: dtypes that differ.
        """
        mine = place_type(self.shared.type)
        if exact or self.away:
            require_unpacked(self.label, kind)
        whole = isinstance(kind, RegVecType) and not kind.partial
        if not isinstance(mine, SharedVecType) or not whole or kind.length != mine.length:  # type: ignore[union-attr]
            raise LayoutError(
                f"{self.label}: a shared vector and a whole register vector of its length, "
                f"got {self.shared.type} and {kind}"
            )
        same = mine.dtype == kind.dtype  # type: ignore[union-attr]
        if not same and (exact or not fits_vector(kind, mine.dtype)):
            raise DTypeError(
                f"{self.label}: dtypes must agree, got {mine} and {kind}",
                hint="f32 registers take f32, bf16 and f16; s32 take s32",
            )

    def addresses(self, w: Any, kind: RegVecType) -> list[str]:
        """Where each of this thread's values lies."""
        base, start = w.address(self.shared), vector_start(w, kind)
        first, nbytes = w.new("b32", "first"), self.dtype.nbytes
        w.line(ptx.alu("mad.lo.u32", first, start, nbytes, w.materialize(base)))
        places = kind.layout.position(0, np.arange(kind.elements))
        return [f"{first}+{nbytes * int(p)}" for p in places]

    @property
    def dtype(self) -> DType:
        """Element type in shared memory."""
        kind = place_type(self.shared.type)
        assert isinstance(kind, SharedVecType), "checked in infer"
        return kind.dtype

    @property
    def away(self) -> bool:
        """Whether the vector is a peer's."""
        return isinstance(self.shared.type, PeerType)

    def requests_of(self, instruction: str, kind: RegVecType) -> tuple[SharedRequest, ...]:
        """One request a move: the warp's with the most wavefronts."""
        together = self.together(kind)
        nbytes, threads = self.dtype.nbytes * together, np.arange(32 * kind.warps)
        name = f"{instruction}.v{together}" if together > 1 else instruction
        found = []
        for index in range(0, kind.elements, together):
            offsets = self.dtype.nbytes * kind.layout.position(threads, index).reshape(-1, WARP)
            worst = max(bank_conflicts(warp, nbytes) for warp in offsets)
            found.append(SharedRequest(name, nbytes, worst, ideal_wavefronts(WARP, nbytes)))
        return tuple(found)

    def runs(
        self, kind: RegVecType, registers: tuple[str, ...], together: int
    ) -> Iterator[tuple[int, str, str]]:  # fmt: skip
        """Of each move: its first value, the instruction's type and its registers."""
        words = together * kind.dtype.bits // 32
        suffix = "f32" if kind.dtype.name == "f32" else "b32"
        for index in range(0, kind.elements, together):
            first = index * kind.dtype.bits // 32
            run = registers[first : first + words]
            yield (index, f"v{words}.{suffix}", ptx.vector(run)) if words > 1 else (
                index, suffix, run[0])  # fmt: skip

    def together(self, kind: RegVecType) -> int:
        """Values that one instruction moves: 2 or 4 where each thread holds so many neighbours.

        A vector begins at a multiple of 16 bytes, pairs at one of 8.
        """
        if kind.run > 1:
            same = self.dtype == kind.dtype and not self.away
            return min(kind.run, RUN_BYTES // self.dtype.nbytes) if same else 1
        pairs = kind.axis == "col" and kind.registers % 2 == 0 and not self.away
        if not pairs or self.dtype != kind.dtype or self.dtype.nbytes != PAIRED_BYTES:
            return 1
        first, second = (kind.layout.position(np.arange(WARP), i) for i in (0, 1))
        return 2 if (second == first + 1).all() and (first % 2 == 0).all() else 1


@dataclass(eq=False)
class LoadVector(VectorMove):
    """A new register vector with the contents of a shared one; halves become f32, exactly."""

    verb: ClassVar[str] = "load"
    kind: RegVecType = attribute()

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """Its loads, with their bank conflicts; none of a peer's banks."""
        return () if self.away else self.requests_of("ld.shared", self.kind)

    def infer(self) -> tuple[TileType, ...]:
        """The type given."""
        self.check(self.kind)
        return (self.kind,)

    def effects(self) -> tuple[Effect, ...]:
        """Reads the shared vector."""
        return (Effect(Access.READ, self.shared), Effect(Access.WRITE, self.result))

    def emit(self, w: Any) -> None:
        """`ld.shared` (of a peer `ld.shared::cluster`), one a value; `.v2` of neighbours."""
        places, suffix = self.addresses(w, self.kind), memory_kind(self.dtype)
        if (together := self.together(self.kind)) > 1:
            for index, form, run in self.runs(self.kind, w.regs(self.result), together):
                w.line(ptx.ld_shared(form, run, places[index]))
            return
        load = transfers.ld_cluster if self.away else ptx.ld_shared
        for index, (register, place) in enumerate(zip(w.regs(self.result), places, strict=True)):
            there = held(w, self.kind, index)
            if self.dtype == self.kind.dtype:
                w.line(load(suffix, register, place), pred=there)
                continue
            half = half_register(w, self.dtype)
            w.line(ptx.alu("mov.b32" if self.dtype == u8 else "mov.b16", half, 0))
            w.line(load(suffix, half, place), pred=there)
            widen(w, register, half, self.dtype)


@dataclass(eq=False)
class LoadElement(Op):
    """One 32-bit element of a shared vector as a run-time scalar: a broadcast to all threads."""

    verb: ClassVar[str] = "load"
    shared: Value = operand()
    index: Operand = operand()

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """One address: no conflicts."""
        return (SharedRequest("ld.shared", 4, 1, 1),)

    def infer(self) -> tuple[TileType, ...]:
        """A scalar of the vector's dtype."""
        require_s32("load", self.index)
        kind = self.shared.type
        if not isinstance(kind, SharedVecType) or kind.dtype.name not in SCALARS:
            raise DTypeError(f"load: a scalar is {', '.join(SCALARS)}, got an element of {kind}")
        return (ScalarType(kind.dtype),)

    def effects(self) -> tuple[Effect, ...]:
        """Reads the shared vector."""
        return (Effect(Access.READ, self.shared),)

    def emit(self, w: Any) -> None:
        """`ld.shared`."""
        kind = self.result.type
        assert isinstance(kind, ScalarType), "inferred"
        place = w.text(w.offset(w.address(self.shared), self.index, 4))
        suffix = "f32" if kind.dtype.name == "f32" else "b32"
        w.line(ptx.ld_shared(suffix, w.define(self.result), place))


@dataclass(eq=False)
class StoreVector(VectorMove):
    """`shared = vector`, f32 rounded to halves; copies of a value are stored once."""

    verb: ClassVar[str] = "store"
    vector: Value = operand()

    @property
    def requests(self) -> tuple[SharedRequest, ...]:
        """Its stores, with their bank conflicts; none of a peer's banks."""
        assert isinstance(self.vector.type, RegVecType), "checked in infer"
        return () if self.away else self.requests_of("st.shared", self.vector.type)

    def together(self, kind: RegVecType) -> int:
        """Runs, else one value an instruction: copies of a value are masked one by one."""
        return super().together(kind) if kind.run > 1 else 1

    def infer(self) -> tuple[TileType, ...]:
        """Nothing; lengths and dtypes must agree."""
        self.check(self.vector.type)
        return ()

    def effects(self) -> tuple[Effect, ...]:
        """Reads the registers, writes the shared vector."""
        return (Effect(Access.READ, self.vector), Effect(Access.WRITE, self.shared))

    def emit(self, w: Any) -> None:
        """`st.shared` (to a peer `st.shared::cluster`), one a value."""
        kind = self.vector.type
        assert isinstance(kind, RegVecType), "checked in infer"
        suffix, mine = memory_kind(self.dtype), owner(w, kind)
        store = transfers.st_cluster if self.away else ptx.st_shared
        places, registers = self.addresses(w, kind), w.regs(self.vector)
        if (together := self.together(kind)) > 1:
            for index, form, run in self.runs(kind, registers, together):
                w.line(store(form, places[index], run))
            return
        for index, (register, place) in enumerate(zip(registers, places, strict=True)):
            there = w.both(mine, held(w, kind, index))
            if self.dtype != kind.dtype:
                register = narrow(w, register, self.dtype)
            w.line(store(suffix, place, register), pred=there)
