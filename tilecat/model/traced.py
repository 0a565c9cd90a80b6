"""What the replay needs of a GEMM, from its traced kernel: rings, bytes, roles, instructions.

    found = traced(matmul.compile(target="sm_100a", stages=6))
    predict_traced(found, 4096, 4096, 4096).tflops

Tiles, depths, widths and buffers are those of the operations that tracing recorded. The order of
the tasks alone is a parameter: to a trace it is arithmetic on a task's number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..arch import WGMMA
from ..driver import Compiled
from ..errors import ScopeError
from ..ir import Kernel
from ..ops.memory import AllocShared
from ..ops.mma import Mma, find_form
from ..ops.mma_tensor import Collected, Commit, TensorMma
from .l2 import Problem
from .loads import ORDERS
from .rates import rates_of
from .replay import ROWS, Config, Prediction, predict
from .tensor import Shape, predict_tensor


@dataclass(frozen=True)
class Ring:
    """Tiles of one declaration, in the stages of a ring.

    Args:
        name: of the tiles.
        stages: of the ring.
        stage_bytes: of these tiles, a stage.
    """

    name: str
    stages: int
    stage_bytes: int


@dataclass(frozen=True)
class Traced:
    """A GEMM as it was traced.

    Args:
        target: it was compiled for.
        kernel: its name.
        rings: what is loaded each step.
        instruction: of its products.
        tile_m, tile_n, tile_k: of a task of one CTA, and of a step, elements.
        item_bits: of an element of A's tiles in shared memory (u8 of two 4-bit ones).
        consumers: warpgroups that have sums.
        config: of a kernel with sums in registers, else None.
        shape: of a kernel with sums in tensor memory, else None.
    """

    target: str
    kernel: str
    rings: tuple[Ring, ...]
    instruction: str
    tile_m: int
    tile_n: int
    tile_k: int
    item_bits: int
    consumers: int
    config: Config | None
    shape: Shape | None

    @property
    def stage_bytes(self) -> int:
        """Of a stage, all its tiles."""
        return sum(ring.stage_bytes for ring in self.rings)


def traced(compiled: Compiled) -> Traced:
    """What the replay needs of a compiled GEMM.

    Raises:
        ScopeError: a kernel that is no GEMM on a ring: products in one loop, of tiles that are
            loaded each step.
    """
    kernel, target = compiled.kernel, compiled.checked.arch.target
    rings = _rings(kernel)
    products = [op for op in kernel.body.walk() if isinstance(op, Mma | TensorMma)]
    what = kernel.facts.get("template")
    if what != "lcf" or not products or not rings:
        raise ScopeError(
            f"model: a product on tc.lcf is replayed, whose tiles are loaded each step, got "
            f"{kernel.name} ({what or 'no template'}, {len(products)} products)",
            loc=kernel.loc,
        )
    if len({_types(op) for op in products}) > 1:
        raise ScopeError(f"model: products of one shape are replayed, got {kernel.name}'s "
                         f"{len(products)}", loc=kernel.loc)  # fmt: skip
    first = products[0]
    a, b, acc = _types(first)
    consumers = int(kernel.facts["consumers"])
    turns = bool(kernel.params.get("pingpong"))
    each = len(products) if turns or isinstance(first, TensorMma) else consumers
    group, order = int(kernel.params.get("group", 1)), _order(kernel)
    config = shape = None
    if isinstance(first, TensorMma):
        shape = _shape(kernel, first, len(products), rings[0].stages, order)
        instruction = f"{first.form}, m{acc.rows * first.ctas}n{acc.cols}k" + str(
            first.form.wide_k if first.wide_k else first.form.k
        )
    else:
        stages, persistent = rings[0].stages, bool(kernel.params.get("persistent", True))
        config = Config(stages, group, order, persistent=persistent, pingpong=turns)
        form = find_form(first.name, WGMMA, a, b, acc)
        instruction = f"{form}, m{ROWS}n{acc.cols}k{form.k}"
    tile_k = a.cols if shape is None else shape.tile_k
    found = Traced(
        target, kernel.name, rings, instruction, acc.rows * each, acc.cols, tile_k, a.dtype.bits,
        consumers, config, shape,
    )  # fmt: skip
    _check_bytes(kernel, found)
    return found


def predict_traced(found: Traced, m: int, n: int, k: int) -> Prediction:
    """Time of C[M, N] = A[M, K] @ B[K, N] on the GPU that stands for the kernel's target.

    Raises:
        ArchError: nobody knows its rates.
    """
    _, rates = rates_of(found.target)
    if found.shape is not None:
        return predict_tensor(m, n, k, found.shape, rates)
    assert found.config is not None, "one of both"
    problem = Problem(m, n, k, found.tile_m, found.tile_n, found.tile_k, found.item_bits)
    return predict(problem, found.config, rates)


def _rings(kernel: Kernel) -> tuple[Ring, ...]:
    staged = (op for op in kernel.body.walk() if isinstance(op, AllocShared) and op.per_stage)
    return tuple(
        Ring(op.name, op.copies // op.per_stage, op.per_stage * op.stride_bytes) for op in staged
    )


def _shape(kernel: Kernel, op: TensorMma, tiles: int, stages: int, order: str) -> Shape:
    """Of a kernel with sums in tensor memory, whose products are like `op`."""
    found = list(kernel.body.walk())
    early = any(isinstance(x, Commit) and x.early_a for x in found)
    kept = any(isinstance(x, Collected) and "b" in x.collectors for x in found)
    a, _, acc = _types(op)
    return Shape(
        kind=op.form.kind, rows=acc.rows, cols=acc.cols, k_bytes=a.cols * a.dtype.bits // 8,
        pair=op.ctas == 2, tiles=tiles, wide=op.wide_k, stages=stages, a_stages=stages * early,
        collector_b=kept and tiles > 1, early_a=early,
        buffers=int(kernel.facts["accumulator_buffers"]), group=int(kernel.params.get("group", 1)),
        order=order, out_bytes=_out_bytes(kernel),
    )  # fmt: skip


def _types(op: Mma | TensorMma) -> tuple[Any, Any, Any]:
    """Tile types of A, B and the sums: `infer` has seen to it that they are."""
    return op.a.type, op.b.type, op.acc.type


def _check_bytes(kernel: Kernel, found: Traced) -> None:
    """Raises ScopeError where a step loads more than one product's operands, or less."""
    wanted = (found.tile_m + found.tile_n) * found.tile_k * found.item_bits // 8
    if (shape := found.shape) is not None:
        wanted = shape.tiles * shape.a_bytes + shape.b_bytes
    if found.stage_bytes != wanted:
        raise ScopeError(
            f"model: a step loads the tiles of A and B of one product, {wanted:,} bytes, got "
            f"{found.stage_bytes:,} in {', '.join(ring.name for ring in found.rings)}",
            loc=kernel.loc,
        )


def _order(kernel: Kernel) -> str:
    order = kernel.params.get("order", "row")
    if order not in ORDERS:
        raise ScopeError(f"model: the order of tasks is one of {', '.join(ORDERS)}, got {order!r}",
                         loc=kernel.loc)  # fmt: skip
    return str(order)


def _out_bytes(kernel: Kernel) -> int:
    out = next((op for op in kernel.body.walk() if isinstance(op, AllocShared)
                and not op.per_stage), None)  # fmt: skip
    return 2 if out is None else int(out.tile.dtype.nbytes)  # type: ignore[union-attr]
