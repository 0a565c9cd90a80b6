"""Matrix products as they are recorded: by a warpgroup, a warp, or one thread."""

from __future__ import annotations

from ..builder import add, current
from ..errors import ArchError
from ..ir import Scope, Value
from ..ops.mma import Mma
from ..ops.mma_tensor import TensorMma
from ..ops.mma_warp import WarpMma, require_no_signs
from ..tiles import TensorTileType


def record_mma(
    name: str,
    acc: Value,
    a: Value,
    b: Value,
    accumulate: Value | bool,
    signs: tuple[int, int],
    saturate: bool = False,
    wide_k: bool = False,
    scales: tuple[Value, Value] | None = None,
) -> None:
    """`acc = (sign a) (sign b) + acc`: where the sums are, and who executes it, says by what.

    Sums in tensor memory: `tcgen05.mma` of one thread. In registers: `wgmma`, or a warp's
    `mma.sync`.

    Raises:
        ArchError: the target does not have it.
    """
    arch = current().arch
    if isinstance(acc.type, TensorTileType):
        left, right = scales or (None, None)
        op = TensorMma(
            name, acc, a, b, accumulate, signs, saturate, wide_k, left, right,
            int(current().kernel.facts.get("cta_group", 1)),
        )  # fmt: skip
        add(op)
        form = op.form
        if all(other.key != form.key for other in arch.tensor_forms):
            kinds = dict.fromkeys(f.kind for f in arch.tensor_forms if not f.block)
            raise ArchError(
                f"{name}: {arch.target} has no {form}; it has kind::{', '.join(kinds)}",
                hint="convert the operands, e.g. to tc.bf16: exact for integers of 8 bits",
            )
        return
    if scales is not None:
        raise ArchError(
            f"{name}: scales of blocks go with sums in tensor memory (tcgen05.mma), got an "
            f"accumulator {acc.type} on {arch.target}",
            hint="tc.matmul_mxfp8 and tc.matmul_nvfp4 multiply such operands on every target",
        )
    if current().scope is Scope.WARP:
        require_no_signs(name, signs)
        add(WarpMma(name, acc, a, b, accumulate, saturate))
        return
    if "wgmma" not in arch.features:
        raise ArchError(
            f"{name}: a warpgroup's product with its sums in registers needs wgmma, which "
            f"{arch.target} does not have",
            hint="sums in tensor memory: pipe.accumulator(...) of tc.lcf and products in compute, "
            "with transform between them, in place of consume; or tc.tmem by hand",
        )
    add(Mma(name, acc, a, b, accumulate, signs, saturate))
