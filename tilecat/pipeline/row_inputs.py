"""Rows of the streaming template that lie in shared memory, where bulk copies bring them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..builder import add, current
from ..errors import LayoutError, ScopeError
from ..language.barriers import Barriers, barriers
from ..language.control import range_
from ..language.functions import full
from ..language.memory import SharedTiles, shared, store
from ..language.sections import warp_id
from ..language.transfers import load_bulk
from ..language.values import SharedVec
from ..language.views import GlobalTile
from ..ops.memory import ViewShared
from ..ops.sync import FenceAsync, WarpSync
from ..tiles import RegVecType, SharedVecType

FILLED = 256  # elements that a warp fills at a time: 8 a lane


class RowInput:
    """A warp's part of a row in shared memory, chunk by chunk, in a ring of its own.

    Args:
        kind: a chunk.
        chunks: of a part, which are waited for and given back one by one.
        stages: chunks that lie there.
        fill: what elements are that a load does not reach; None where loads write all.
        warps: of the CTA.
        free: loads the chunk that takes the current one's stage.

    Attributes:
        chunk: number in its part of the current chunk, which the load hole brings.
        stage: where it lies.
    """

    def __init__(
        self, kind: SharedVecType, chunks: int, stages: int, fill: float | None, warps: int,
        free: Callable[[RowInput], None],
    ):  # fmt: skip
        self.kind = kind
        self.fill = fill
        self.chunks = chunks
        self.stages = stages
        self.tiles: SharedTiles = shared(kind, stages * warps)
        self.full: Barriers = barriers(stages * warps)
        self.chunk: Any = 0
        self.stage: Any = 0
        self.turn: Any = 0  # rows before this one
        self.free = free
        self.waited = self.freed = False  # in compute

    @property
    def vector(self) -> SharedVec:
        """The current chunk of this warp's part of the current row, in load and compute."""
        return self.tiles[self._place]  # type: ignore[no-any-return]

    @property
    def _place(self) -> Any:
        """Number of its tile and mbarrier."""
        return warp_id() * self.stages + self.stage

    def parts(self, *, last: bool = False, unroll: bool = False) -> Iterator[Any]:
        """The numbers of a part's chunks, in a run-time loop: `vector` is the current one.

        The first loop over a row waits for each chunk.

        Args:
            last: a chunk is not read behind the body: one to come is loaded there.
            unroll: the loop is Python's, so that what a body makes may stay in registers.

        Raises:
            LayoutError: a loop that is not the last, of rows that are not in shared memory whole;
                one behind the last. ScopeError: a loop that is left by break or return.

        Scope: compute; `for chunk in x.parts():`.
        """
        if not last and self.stages < self.chunks:
            raise LayoutError(
                f"x.parts: rows of more chunks than stages are read once, got last={last}, "
                f"chunks={self.chunks}, stages={self.stages}",
                hint=f"last=True, or tc.rows(..., stages={self.chunks})",
            )
        if self.freed:
            raise LayoutError("x.parts: the loop with last=True gives a row's chunks back, got "
                              "another loop behind it", hint="last=True in the last loop")
        waited, self.freed, loc = self.waited, last, current().loc()
        for chunk in range(self.chunks) if unroll or self.chunks == 1 else range_(self.chunks):
            number = self.turn * self.chunks + chunk
            self.chunk, self.stage = chunk, number % self.stages
            if not waited:
                self.full[self._place].wait(number // self.stages & 1)
            try:
                yield chunk
            except GeneratorExit:
                current().broken = ScopeError(
                    "x.parts: a loop over a part's chunks cannot be left by break or return",
                    loc=loc, hint="tc.when around what is not for all chunks",
                )
                raise
            if last:
                self.free(self)
        self.waited, self.chunk = True, 0

    def ahead(self, row: Any, stride: Any) -> Any:
        """The row of the chunk that takes the current one's stage, which becomes the current."""
        after = self.chunk + self.stages
        self.chunk = after % self.chunks
        return row + after // self.chunks * stride

    def load(
        self, place: GlobalTile, length: int | None = None, *, cache: str = ""
    ) -> None:
        """Loads the chunk's first `length` elements, all if None; in the load hole, once a row.

        Args:
            place: in the tensor, all inside it, from an address that is a multiple of 16 bytes.
            length: elements, a multiple of 16 bytes; 0 where the row has ended.
            cache: L2 priority, as in `tc.load_async`.

        Scope: the load hole, each warp. PTX: `cp.async.bulk`.
        """
        full = self.full[self._place]
        if self.fill is not None and length is not None and length < self.kind.length:
            self._fill(self.fill)
        if length == 0:
            full.arrive()
            return
        part = SharedVecType(self.kind.dtype, self.kind.length if length is None else length)
        vector = SharedVec(add(ViewShared(self.vector.value, 0, 0, part)).result)
        full.expect(vector)
        load_bulk(vector, place, full, cache=cache)

    def _fill(self, value: float) -> None:
        """Makes all of the current chunk `value`, before a load that is shorter."""
        kind = RegVecType(self.kind.dtype, FILLED, "plain", warps=1, run=8)
        values, parts = full(kind, value), self.kind.length // FILLED
        for number in range(parts):
            store(self.vector.part(number, parts), values)
        add(FenceAsync())
        add(WarpSync())


class Staging:
    """All inputs of a kernel: what is loaded when, and what is waited for.

    Args:
        stages: chunks of each input that a warp has in shared memory; None: those of a row.
    """

    def __init__(self, stages: int | None):
        self.stages = stages
        self.inputs: list[RowInput] = []

    def add(self, kind: Any, fill: float | None, chunks: int, *more: Any) -> RowInput:
        """An input; see `RowInput`.

        Raises:
            LayoutError: no shared vector, one that cannot be filled, or chunks beside another.
        """
        if not isinstance(kind, SharedVecType) or fill is not None and kind.length % FILLED:
            raise LayoutError(
                f"rows.input: a shared vector (with a fill, of a multiple of {FILLED} elements), "
                f"got {kind!r}",
                hint="rows.input(tc.sv[tc.bf16, 4096])",
            )
        if self.inputs and max(chunks, *(given.chunks for given in self.inputs)) > 1:
            raise LayoutError(
                f"rows.input: rows in chunks are of one input, got {len(self.inputs) + 1} inputs",
                hint="chunks=1",
            )
        self.inputs.append(RowInput(kind, chunks, self.stages or chunks, fill, *more))
        return self.inputs[-1]

    def begin(self, turn: Any, *, waited: bool = False) -> None:
        """The turn-th row: of parts in one chunk, it is waited for here, if it was not before."""
        for given in self.inputs:
            given.turn, given.waited, given.freed = turn, waited and given.waited, False
            if given.chunks == 1:
                for _ in given.parts():
                    pass
