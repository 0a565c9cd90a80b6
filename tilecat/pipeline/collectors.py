"""Products of a step that share an operand: read once, or given back as soon as it is read."""

from __future__ import annotations

from ..builder import add, current
from ..errors import LayoutError
from ..ir import Block, Op, Value
from ..ops.mma_tensor import Collected, TensorMma, shares
from .accesses import root


def collect(block: Block, start: int, which: str) -> None:
    """Lets products that share A or B, one after the other, take K steps in turn.

    Args:
        block: a step's.
        start: its first op of the step.
        which: collectors, "a", "b" or "ab".

    Raises:
        LayoutError: no two products share such an operand.
    """
    products = [op for op in block.ops[start:] if isinstance(op, TensorMma)]
    runs: list[list[TensorMma]] = []
    for op in products:
        if runs and _linked(runs[-1][-1], op, which):
            runs[-1].append(op)
        else:
            runs.append([op])
    shared = [run for run in runs if len(run) > 1]
    if not shared:
        raise LayoutError(
            f"lcf: collectors={which!r} is for products of a step that share a tile as "
            f"{' or '.join(which.upper())}, one after the other, got {len(products)} that share "
            "none",
            loc=products[0].loc if products else None,
            hint='several accumulators, or several pairs of consumers; else collectors=""',
        )
    for run in shared:
        _take_turns(block, run, which)


def _linked(one: TensorMma, other: TensorMma, which: str) -> bool:
    """Whether a product may follow another in turns."""
    return one.steps == other.steps and any(shares(one, other, name) for name in which)


def _take_turns(block: Block, run: list[TensorMma], which: str) -> None:
    """Puts one op in place of a run's last product, and drops the others."""
    together = Block(block)
    together.ops[:] = run
    with current().located(run[-1].loc), current().within(block, run[-1].scope):
        op: Op = add(Collected(together, which))
    block.ops.remove(op)
    block.ops[block.ops.index(run[-1])] = op
    block.ops[:] = [other for other in block.ops if not any(other is part for part in run)]


def reads_only_a(block: Block, start: int, tiles: list[Value]) -> bool:
    """Whether products since an op read tiles of these allocations, and as A alone."""
    step = Block(block)
    step.ops[:] = block.ops[start:]
    products = [op for op in step.walk() if isinstance(op, TensorMma)]

    def read_as(which: str) -> bool:
        return any(root(getattr(op, which)) in tiles for op in products)

    return read_as("a") and not read_as("b")
