"""Sums in tensor memory as a pipeline's consumers have them: their tiles, their ring of stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..builder import add
from ..ir import Block, Value
from ..language.scalars import operand_of
from ..language.sections import warps
from ..language.tensor import TensorTile
from ..language.values import RegTile
from ..ops.mma_tensor import Commit
from ..ops.sync import AllocBarriers, Arrive
from ..ops.tensor import AllocTensor
from ..ops.views import storage
from ..tiles import RegTileType
from . import between, pairs
from .ring import WARPGROUP_THREADS, Party, Ring

WARPGROUP_WARPS = WARPGROUP_THREADS // 32


class Accumulator(RegTile):
    """A consumer's sums: in tensor memory while products are added, then in its registers.

    Attributes:
        op: the tiles of all consumers.
        issuing: the tile of the consumer whose products are traced, or None.
        waiting: what loads it, where it is still in tensor memory; its first use does.
        of_step: whether the first product of each step overwrites it.
    """

    __slots__ = ("op", "issuing", "waiting", "of_step", "_value")

    def __init__(self, tile: RegTile, op: AllocTensor, of_step: bool = False):
        self.waiting: Callable[[Accumulator], None] | None = None
        super().__init__(tile.value)
        self.op = op
        self.of_step = of_step
        self.issuing: TensorTile | None = None

    @property
    def value(self) -> Value:  # type: ignore[override]
        """Its registers, loaded."""
        load, self.waiting = self.waiting, None
        if load is not None:
            load(self)
        return self._value

    @value.setter
    def value(self, value: Value) -> None:
        self._value = value

    @property
    def sums(self) -> RegTile | TensorTile:
        """Where products are added."""
        tile = self.issuing
        if tile is not None and self.of_step:
            self.issuing = TensorTile(tile.value, True, tile.wide_k)
        return self if tile is None else tile


class SumsRing(Ring):
    """Tensor memory between the issuing warp and the consumers: one stage a task, or a step.

    Args:
        depth: stages.
        writer: who issues.
        consumers: how many.
        pair: whether a pair of CTAs has them.
        name: for reports.
        answered: whether what consumers send back tells that they have loaded a stage.
    """

    def __init__(
        self, depth: int, writer: Party, consumers: int, *, pair: bool, name: str = "sums",
        answered: bool = False,
    ):  # fmt: skip
        super().__init__(name, depth, writer=writer, pair=pair)
        self.answered = answered
        if answered:
            between.answered(self)
            return
        full, vacant = self.full, self.empty
        assert isinstance(full, AllocBarriers) and isinstance(vacant, AllocBarriers), "just made"
        full.arrivals, vacant.arrivals = 1, consumers * WARPGROUP_THREADS
        if pair:
            vacant.arrivals = pairs.CTAS * consumers * WARPGROUP_WARPS
        vacant.tensor = True

    def claim(self) -> None:
        """Waits until the stage is empty, where nothing else tells it."""
        self.look() if self.answered else super().claim()

    def publish(self) -> None:
        """The products are under way; when they are done, the sums are there."""
        ranks = pairs.BOTH if self.pair else None
        add(Commit(self.full.result, operand_of(self.stage), ranks))
        self.advance()

    def give_back(self, stage: Any, when: Any = None) -> None:
        """Every thread that has loaded its share arrives; of a pair a warp, at the even CTA."""
        if self.answered:
            return
        if not self.pair:
            add(Arrive(self.empty.result, operand_of(stage), each=True))
            return
        with warps():
            add(Arrive(self.empty.result, operand_of(stage), rank=pairs.LEADER))

    def seal(self) -> None:
        """Nothing: the arrivals are known from the start."""


def most_held(block: Block, tiles: list[Value] | None) -> int:
    """Registers of tiles, as many as are in use at a time: from first to last use in a block.

    Args:
        block: whose ops are looked at.
        tiles: which; None for all.
    """
    spans: dict[Value, tuple[int, int]] = {}
    for at, op in enumerate(block.walk()):
        for value in op.operands():
            tile = storage(value)[0]
            if tiles is None or tile in tiles:
                spans[tile] = (spans.get(tile, (at, at))[0], at)
    counts = [
        sum(_registers(tile) for tile, (a, b) in spans.items() if a <= at <= b)
        for at, _ in spans.values()
    ]
    return max(counts, default=0)


def _registers(tile: Value) -> int:
    return tile.type.registers if isinstance(tile.type, RegTileType) else 0
