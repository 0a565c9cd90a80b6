"""Rows of the streaming template that lie in shared memory, where bulk copies bring them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..builder import add
from ..errors import LayoutError
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
    """A warp's part of a row in shared memory, in as many stages as the template loads ahead.

    Args:
        kind: a chunk of the part.
        stages: parts that lie there.
        fill: what elements are that no load writes; None where loads write all.
        warps: of the CTA.
        chunks: of a part, which are waited for and given back one by one.
        free: gives back the current chunk.

    Attributes:
        chunk: number of the current chunk, for the load hole.
    """

    def __init__(
        self, kind: SharedVecType, stages: int, fill: float | None, warps: int, chunks: int,
        free: Callable[[], None],
    ):  # fmt: skip
        self.kind = kind
        self.fill = fill
        self.stages = stages
        self.chunks = chunks
        self.tiles: SharedTiles = shared(kind, stages * warps * chunks)
        self.full: Barriers = barriers(stages * warps * chunks)
        self.stage: Any = 0
        self.chunk: Any = 0
        self.turn: Any = 0
        self.free = free
        self.waited = self.freed = False  # in compute

    @property
    def vector(self) -> SharedVec:
        """The current chunk of this warp's part of the current row, in load and compute."""
        return self.tiles[self.place]  # type: ignore[no-any-return]

    @property
    def place(self) -> Any:
        """Number of its tile and mbarrier."""
        part = warp_id() * self.stages + self.stage
        return part if self.chunks == 1 else part * self.chunks + self.chunk

    def wait(self) -> None:
        """Waits until the current chunk is there."""
        self.full[self.place].wait(self.turn // self.stages & 1)

    def parts(self, *, last: bool = False) -> Iterator[Any]:
        """The numbers of a part's chunks, in a run-time loop: `vector` is the current one.

        The first loop over a row waits for each chunk.

        Args:
            last: a chunk is not read behind the body: that of a row to come is loaded there.

        Scope: compute; `for chunk in x.parts():`.
        """
        self.freed |= last
        for chunk in self.numbers():
            if self.chunks > 1 and not self.waited:
                self.wait()
            yield chunk
            if last:
                self.free()
        self.waited = True

    def numbers(self) -> Iterator[Any]:
        """Each chunk in turn, as the current one."""
        for chunk in (0,) if self.chunks == 1 else range_(self.chunks):
            self.chunk = chunk
            yield chunk
        self.chunk = 0

    def load(self, place: GlobalTile, length: int | None = None) -> None:
        """Loads the chunk's first `length` elements, all if None; in the load hole, once a row.

        Args:
            place: in the tensor, all inside it, from an address that is a multiple of 16 bytes.
            length: elements, a multiple of 16 bytes; 0 where the row has ended.

        Scope: the load hole, each warp. PTX: `cp.async.bulk`.
        """
        full = self.full[self.place]
        if length == 0:
            full.arrive()
            return
        part = SharedVecType(self.kind.dtype, self.kind.length if length is None else length)
        vector = SharedVec(add(ViewShared(self.vector.value, 0, 0, part)).result)
        full.expect(vector)
        load_bulk(vector, place, full, cache="evict_first")


class Staging:
    """The stages of all inputs of a kernel: what is loaded when, and what is waited for.

    Args:
        stages: rows in shared memory.
    """

    def __init__(self, stages: int):
        self.stages = stages
        self.inputs: list[RowInput] = []

    def add(self, kind: Any, fill: float | None, *more: Any) -> RowInput:
        """An input; see `RowInput`.

        Raises:
            LayoutError: no shared vector, or one that cannot be filled.
        """
        if not isinstance(kind, SharedVecType) or fill is not None and kind.length % FILLED:
            raise LayoutError(
                f"rows.input: a shared vector (with a fill, of a multiple of {FILLED} elements), "
                f"got {kind!r}",
                hint="rows.input(tc.sv[tc.bf16, 4096])",
            )
        self.inputs.append(RowInput(kind, self.stages, fill, *more))
        return self.inputs[-1]

    def chunked(self, chunks: int) -> bool:
        """Whether one more input of as many chunks would not be the only one that has several."""
        return bool(self.inputs) and max(chunks, *(given.chunks for given in self.inputs)) > 1

    def fill(self) -> None:
        """Fills what has a fill: each warp its parts, once, before loads write there."""
        for given in self.inputs:
            if given.fill is None:
                continue
            kind = RegVecType(given.kind.dtype, FILLED, "plain", warps=1, run=8)
            value, parts = full(kind, given.fill), given.kind.length // FILLED
            for stage in range(self.stages):
                given.stage = stage
                for _ in given.numbers():
                    for number in range(parts):
                        store(given.vector.part(number, parts), value)
        if any(given.fill is not None for given in self.inputs):
            add(FenceAsync())
            add(WarpSync())

    def at(self, turn: Any) -> None:
        """Makes the stage of the turn-th row of this CTA the current one."""
        for given in self.inputs:
            given.turn, given.waited, given.freed = turn, False, False
            given.stage = turn % self.stages if self.stages > 1 else 0

    def wait(self) -> None:
        """Waits until this warp's part of the current row is there, where it has one chunk."""
        for given in self.inputs:
            if given.chunks == 1:
                given.wait()
