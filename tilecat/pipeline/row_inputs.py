"""Rows of the streaming template that lie in shared memory, where bulk copies bring them."""

from __future__ import annotations

from typing import Any

from ..builder import add
from ..errors import LayoutError
from ..language.barriers import Barriers, barriers
from ..language.control import when
from ..language.cta import cta_sync
from ..language.functions import full
from ..language.memory import SharedTiles, shared, store
from ..language.sections import warp_id
from ..language.transfers import load_bulk
from ..language.values import SharedVec
from ..language.views import GlobalTile
from ..ops.memory import ViewShared
from ..tiles import RegVecType, SharedVecType

FILLED = 256  # elements that a warp fills at a time: 8 a lane


class RowInput:
    """A CTA's part of a row in shared memory, in as many stages as the template loads ahead.

    Args:
        kind: the part.
        stages: how many lie there.
        fill: what elements are that no load writes; None where loads write all.
    """

    def __init__(self, kind: SharedVecType, stages: int, fill: float | None):
        self.kind = kind
        self.fill = fill
        self.tiles: SharedTiles = shared(kind, stages)
        self.full: Barriers = barriers(stages)
        self.stage: Any = 0

    @property
    def vector(self) -> SharedVec:
        """The part of the current row, in load and compute."""
        return self.tiles[self.stage]  # type: ignore[no-any-return]

    def load(self, place: GlobalTile, length: int | None = None) -> None:
        """Loads the row's first `length` elements, all if None; in the load hole, once a row.

        Args:
            place: in the tensor, all inside it, from an address that is a multiple of 16 bytes.
            length: elements, a multiple of 16 bytes.

        Scope: the load hole. PTX: `cp.async.bulk`.
        """
        part = SharedVecType(self.kind.dtype, self.kind.length if length is None else length)
        vector = SharedVec(add(ViewShared(self.vector.value, 0, 0, part)).result)
        self.full[self.stage].expect(vector)
        load_bulk(vector, place, self.full[self.stage], cache="evict_first")


class Staging:
    """The stages of all inputs of a kernel: what is loaded when, and what is waited for.

    Args:
        stages: rows in shared memory.
    """

    def __init__(self, stages: int):
        self.stages = stages
        self.inputs: list[RowInput] = []

    def add(self, kind: Any, fill: float | None) -> RowInput:
        """An input.

        Raises:
            LayoutError: no shared vector, or one that cannot be filled.
        """
        if not isinstance(kind, SharedVecType) or fill is not None and kind.length % FILLED:
            raise LayoutError(
                f"rows.input: a shared vector (with a fill, of a multiple of {FILLED} elements), "
                f"got {kind!r}",
                hint="rows.input(tc.sv[tc.bf16, 4096])",
            )
        self.inputs.append(RowInput(kind, self.stages, fill))
        return self.inputs[-1]

    def fill(self, warps: int) -> None:
        """Fills what has a fill: all warps of the CTA, once."""
        for given in self.inputs:
            if given.fill is None:
                continue
            kind = RegVecType(given.kind.dtype, FILLED, "plain", warps=1, run=8)
            value, parts = full(kind, given.fill), given.kind.length // FILLED
            for stage in range(self.stages):
                for first in range(0, parts, warps):
                    number = warp_id() + first
                    with when(number < parts if first + warps > parts else True):
                        store(given.tiles[stage].part(number, parts), value)
        if any(given.fill is not None for given in self.inputs):
            cta_sync()

    def at(self, turn: Any) -> None:
        """Makes the stage of the turn-th row of this CTA the current one."""
        for given in self.inputs:
            given.stage = turn % self.stages if self.stages > 1 else 0

    def wait(self, turn: Any) -> None:
        """Waits until the turn-th row is there."""
        for given in self.inputs:
            given.full[given.stage].wait(turn // self.stages & 1)
