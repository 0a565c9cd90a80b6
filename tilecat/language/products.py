"""Matrix products as they are recorded, by a warpgroup or a warp."""

from __future__ import annotations

from ..builder import add, current
from ..ir import Scope, Value
from ..ops.mma import Mma
from ..ops.mma_warp import WarpMma, require_no_signs


def record_mma(
    name: str,
    acc: Value,
    a: Value,
    b: Value,
    accumulate: Value | bool,
    signs: tuple[int, int],
    saturate: bool = False,
) -> None:
    """`acc = (sign a) (sign b) + acc` in the current scope: `wgmma`, or a warp's `mma.sync`."""
    if current().scope is Scope.WARP:
        require_no_signs(name, signs)
        add(WarpMma(name, acc, a, b, accumulate, saturate))
    else:
        add(Mma(name, acc, a, b, accumulate, signs, saturate))
