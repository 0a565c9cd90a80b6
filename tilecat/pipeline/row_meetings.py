"""Scalars of all warps that share a row: each sends its own, and has those of all."""

from __future__ import annotations

from typing import Any

from ..builder import add, current
from ..dtypes import f32
from ..errors import LayoutError
from ..ir import Scope
from ..language import maps
from ..language.barriers import Barriers, barriers
from ..language.clusters import peer, store_to_peer
from ..language.control import when
from ..language.functions import full
from ..language.memory import SharedTiles, load, shared, store
from ..language.scalars import Scalar
from ..language.sections import warp_id
from ..language.values import RegVec
from ..ops.views import ViewRegisters
from ..tiles import RegVecType, sv

QUAD = 4  # f32 values of one access to shared memory


class Meetings:
    """What warps of a CTA, or of a cluster's CTAs, tell one another, once a row.

    A part's scalars are 16 bytes. Each warp writes them to every CTA, then waits for those of all.
    Places of rows before may still be read, so that rows alternate between several.

    Args:
        parts: warps. cluster: CTAs.
        depth: places, a power of two: 2 where a row is received before the next is sent, else 4.
    """

    def __init__(self, parts: int, cluster: int, depth: int):
        self.parts, self.cluster, self.depth = parts, cluster, depth
        self.places = -(-parts // 32) * 32
        builder = current()
        with builder.within(builder.kernel.body, Scope.CTA):
            self.rooms: SharedTiles = shared(sv[f32, QUAD * self.places], depth)
            # Of a cluster each warp's arrival, and that which expects the bytes; else all threads'.
            arrivals = parts + 1 if cluster > 1 else 32 * parts
            self.arrived: Barriers = barriers(depth, arrivals)

    def send(self, turn: Any, part: Any, values: tuple[Any, ...]) -> None:
        """This warp's scalars of the turn-th row, to all.

        Raises:
            LayoutError: other values.
        """
        known = all(isinstance(value, Scalar) and value.dtype == f32 for value in values)
        if not 1 <= len(values) <= QUAD or not known:
            raise LayoutError(f"gather: one to four f32 scalars, got {values!r}")
        room, arrived = self.rooms[turn & self.depth - 1], self.arrived[turn & self.depth - 1]
        mine, index = full(RegVecType(f32, QUAD, "plain"), values[0]), None
        for number, value in enumerate(values[1:], 1):
            index = maps.col_index(mine) if index is None else index
            mine = maps.select(index == number, value, mine)
        if self.cluster > 1:
            with when(warp_id() == 0):
                arrived.expect(room)
        for first in range(0, self.places, self.parts):
            place = part + first
            with when(place < self.places if first + self.parts > self.places else True):
                target = room.part(place, self.places)
                for rank in range(self.cluster):
                    if self.cluster == 1:
                        store(target, mine)
                    else:
                        store_to_peer(peer(target, rank), mine, arrived)
        if self.cluster == 1:
            arrived.arrive(each=True)
            return
        for rank in range(self.cluster):
            arrived.arrive(rank=rank)  # has read what was there before

    def receive(self, turn: Any, fills: tuple[float, ...]) -> tuple[RegVec, ...]:
        """Plain vectors of the scalars of all parts of the turn-th row.

        Args:
            turn: number of the row.
            fills: what a vector has behind the last part.
        """
        room, parity = self.rooms[turn & self.depth - 1], self.depth.bit_length() - 1
        self.arrived[turn & self.depth - 1].wait(turn >> parity & 1)
        kind = RegVecType(f32, QUAD * self.places, "plain", warps=1, run=QUAD)
        held, whole, found = load(room, kind), RegVecType(f32, self.places, "plain", warps=1), []
        for number, fill in enumerate(fills):
            registers = tuple(range(number, kind.registers, QUAD))
            vector = RegVec(add(ViewRegisters(held.value, registers, whole)).result)
            if self.places > self.parts:
                vector = maps.select(maps.col_index(vector) < self.parts, vector, fill)
            found.append(vector)
        return tuple(found)
