"""What consumers compute between two products of a step: sums of a step, and operands from them.

`compute` says the products of a step. Some add to sums of the step alone
(`pipe.accumulator(..., rate="step")`), others take what the consumers make of these in `transform`
as their A (`pipe.operand`). So attention's P is made of its scores.

On Hopper a consumer does it all: `transform` is traced where a product first takes an operand,
behind a wait for those before it, and the operand is registers. On chips with tcgen05.mma sums and
operands lie in tensor memory, and the issuing warp and the consumers hand them over:

    issue      S = Q K, commit "step sums full", K's "empty" | wait "operand full", O += P V
    consumers  wait "step sums full", load, transform, store P, arrive on "operand full"

Nobody says that one of them is empty: an operand tells that the sums which it is made of have been
loaded; and sums of a step, that the products before them are done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..builder import add, current
from ..errors import LayoutError, ScopeError
from ..ir import Block, Op
from ..language.functions import copy, empty
from ..language.matrix import mma_wait
from ..language.scalars import operand_of
from ..language.sections import warps
from ..language.tensor import TensorTile
from ..language.values import RegTile
from ..ops.mma_tensor import TensorMma
from ..ops.sync import AllocBarriers, Arrive, WaitBarrier
from ..ops.tensor import AllocTensor
from ..tiles import RegTileType, ScalesType
from . import pairs
from .accesses import root
from .ring import WARPGROUP_THREADS, Party, Ring

if TYPE_CHECKING:
    from .role import Role

WARPGROUP_WARPS = WARPGROUP_THREADS // 32
STEP, TASK = "step", "task"


class StepSums(RegTile):
    """A consumer's sums of one step in registers: its first product overwrites them."""

    __slots__ = ("added",)

    def __init__(self, tile: RegTile):
        super().__init__(tile.value)
        self.added = False

    @property
    def sums(self) -> RegTile:
        """Where the next product is added."""
        tile, self.added = RegTile(self.value, self.added), True
        return tile


class Operand:
    """An A of products that consumers compute each step, 64 rows each: `tc.store(p, x)`.

    Attributes:
        op: its tiles in tensor memory, of all consumers; None: it is in registers.
        issuing: the tile of the consumer whose products are traced, or None.
        stored: whether this step's `transform` has stored it.
    """

    def __init__(self, role: Role, kind: RegTileType, name: str, op: AllocTensor | None = None):
        self.role = role
        self.kind = kind
        self.name = name
        self.op = op
        self.registers: RegTile | None = empty(kind) if op is None else None
        self.issuing: TensorTile | None = None
        self.stored = False

    def __repr__(self) -> str:
        """Its name and type."""
        return f"{self.name}: operand {self.kind}"

    @property
    def left(self) -> RegTile | TensorTile:
        """What a product takes as its A.

        Raises:
            ScopeError: elsewhere than in compute.
        """
        if self.registers is not None:
            self.role.transform_now()
            return self.registers
        if self.issuing is None:
            raise ScopeError(
                f"{self.name}: an operand is A of the products in compute, got a use elsewhere",
                hint="what transform stores in it is still in the registers it came from",
            )
        return self.issuing

    def take(self, source: Any) -> None:
        """Consumers: what this step's products will take.

        Raises:
            LayoutError: another tile than the operand's.
            ScopeError: elsewhere than in transform.
        """
        if not isinstance(source, RegTile) or source.type != self.kind:
            raise LayoutError(
                f"store: the operand {self.name} takes {self.kind}, got {source!r}",
                hint=f"tc.cast(x, tc.{self.kind.dtype.name}), for 8 bits tc.regroup(...) of it",
            )
        if not self.role.transforming or self.stored:
            raise ScopeError(
                f"store: the operand {self.name} is stored once a step, in transform, got "
                f"{'another store' if self.stored else 'a store elsewhere'}",
                hint="@pipe.transform def _(task, step): tc.store(operand, tile)",
            )
        self.stored = True
        if self.registers is not None:
            copy(self.registers, source)
            return
        assert self.role.issue is not None, "who issues its products has allocated it"
        self.role.issue.store(self, source)


def answered(ring: Ring) -> None:
    """Leaves out the barrier of a ring's empty stages: what comes back tells as much."""
    current().kernel.body.ops.remove(ring.empty)
    ring.empty = ring.full


class OperandRing(Ring):
    """Tensor memory from the consumers to the issuing warp: the operands of a step."""

    def __init__(self, role: Party, consumers: int, *, pair: bool):
        super().__init__("operand", 1, writer=role, pair=pair)
        answered(self)
        full = self.full
        assert isinstance(full, AllocBarriers), "just made"
        full.arrivals = consumers * WARPGROUP_THREADS
        if pair:
            full.arrivals = pairs.CTAS * consumers * WARPGROUP_WARPS
        full.tensor = True

    def publish(self) -> None:
        """Every thread that has stored its share arrives; of a pair a warp, at the even CTA."""
        if self.pair:
            with warps():
                add(Arrive(self.full.result, operand_of(self.stage), rank=pairs.LEADER))
        else:
            add(Arrive(self.full.result, operand_of(self.stage), each=True))
        self.advance()

    def seal(self) -> None:
        """Nothing: the arrivals are known from the start."""


def transform(role: Role, task: Any, step: Any) -> None:
    """Traces the hole, which stores each operand once.

    Raises:
        ScopeError: it does not.
    """
    role.transforming = True
    for operand in role.operands:
        operand.stored = False
    role.holes.call("transform", task, step)
    role.transforming = False
    left = [operand for operand in role.operands if not operand.stored]
    if left:
        raise ScopeError(
            f"{role.owner}.transform: stores each operand once a step, got no store of "
            f"{left[0].name}",
            loc=role.holes.filled["transform"][1],
            hint=f"tc.store({left[0].name}, tile)",
        )


def transform_here(role: Role, task: Any, step: Any) -> None:
    """The same in the consumer that multiplies, behind its products so far."""
    mma_wait(0)
    transform(role, task, step)


def check(role: Role) -> None:
    """Operands and sums of a step come with the hole that is between them.

    Raises:
        ScopeError: they do not.
    """
    has = "transform" in role.holes
    parts = {"operand": role.operands, 'accumulator of rate="step"': role.step_sums}
    for what, found in parts.items():
        if has != bool(found):
            raise ScopeError(
                f"{role.owner}.transform: makes operands of sums of a step, got a pipeline "
                f"{'with the hole' if has else 'without the hole'} and {len(found)} "
                f"{what}{'s' * (len(found) != 1)}",
                loc=role.holes.filled["transform"][1] if has else role.pipe.loc,
                hint='scores = pipe.accumulator(f32, 64, 64, rate="step"), '
                "p = pipe.operand(bf16, 64, 64), @pipe.transform",
            )


def split(block: Block, start: int, sums: list[AllocTensor]) -> list[Op]:
    """Takes the products out of a step that add to other sums than the step's; gives them.

    Raises:
        ScopeError: products inside of a branch or a loop.
    """
    later: list[Op] = []
    for op in block.ops[start:]:
        if isinstance(op, TensorMma) and not _is_of(op, sums):
            later.append(op)
        elif any(isinstance(inner, TensorMma) for b in op.blocks() for inner in b.walk()):
            raise ScopeError(
                "compute: with a transform, products stand in compute itself, got one inside of a "
                "branch or a loop",
                loc=op.loc,
            )
    gone = {id(op) for op in later}
    block.ops[:] = [op for op in block.ops if id(op) not in gone]
    return later


def reads(ops: list[Op], ring: Ring) -> bool:
    """Whether products read tiles of a ring; scales are taken to be read by all."""
    if any(isinstance(value.type, ScalesType) for value in ring.tiles):
        return True
    products = [op for op in ops if isinstance(op, TensorMma)]
    return any(root(value) in ring.tiles for op in products for value in (op.a, op.b))


def _is_of(op: TensorMma, sums: list[AllocTensor]) -> bool:
    value = op.acc
    while value.op is not None and not isinstance(value.op, AllocTensor):
        value = value.op.operands()[0]
    return any(value.op is found for found in sums)


def take_waits(block: Block, rings: list[Ring]) -> list[Op]:
    """Takes the waits for these rings' stages out of a step; gives them."""
    barriers = [ring.full.result for ring in rings]
    found: list[Op] = [
        op for op in block.ops
        if isinstance(op, WaitBarrier) and any(op.barriers is value for value in barriers)
    ]  # fmt: skip
    block.ops[:] = [op for op in block.ops if not any(op is wait for wait in found)]
    return found
