"""`tilecat::hedgehog`: Hedgehog as an operator of torch, forward.

It has no gradients yet: where one is asked for, the call says so.
"""

from __future__ import annotations

import math
from typing import Any

from ..hedgehog_call import check_window, states_of
from ..hedgehog_call import hedgehog as call
from ..kernels.chunk_tasks import CHUNK
from ..kernels.hedgehog import FEATURES, MAP
from .library import define, refuses, torch


def hedgehog(
    q: Any, k: Any, v: Any, qmap: Any, kmap: Any, alpha: Any, beta: Any,
    *, window: int = CHUNK, initial_state: Any = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """`tilecat.hedgehog` as an operator of torch, without gradients.

    Args:
        q, k, v, qmap, kmap, alpha, beta, window, initial_state: see there.

    Returns:
        (o, kv_state, k_state).

    Raises:
        ScopeError: a tensor wants a gradient. LayoutError, DTypeError, ResourceError: as
            `tilecat.hedgehog`.
    """
    check_window(window)
    found: tuple[Any, Any, Any] = _hedgehog(
        q, k, v, qmap, kmap, alpha, beta, *states_of(initial_state)
    )
    return found


def _kernel(*args: Any) -> tuple[Any, Any, Any]:
    *tensors, kv, ks = args
    return call(*tensors, initial_state=None if kv is None and ks is None else (kv, ks))


def _fake(q: Any, k: Any, v: Any, *_: Any) -> tuple[Any, Any, Any]:
    sums = (*q.shape[:2], FEATURES)
    return (
        v.new_empty(q.shape), q.new_empty((*sums, q.shape[3]), dtype=torch.float32),
        q.new_empty(sums, dtype=torch.float32),
    )  # fmt: skip


def _flops(q: Any, *_: Any, **__: Any) -> int:
    """Scores of two blocks and their sums, both maps, and the state's two products."""
    return int(math.prod(q[:3]) * q[3] * (8 * CHUNK + 4 * MAP + 4 * FEATURES))


_hedgehog = define(
    "hedgehog(Tensor q, Tensor k, Tensor v, Tensor qmap, Tensor kmap, Tensor alpha, Tensor beta, "
    "Tensor? kv_state, Tensor? k_state) -> (Tensor, Tensor, Tensor)",
    _kernel, _fake, refuses("hedgehog"), flops=_flops, cast=5,
)  # fmt: skip
