"""The delta rule and Based as operators of torch, forward.

`tilecat::gated_delta_rule`: `chunk_gated_delta_rule` and `chunk_delta_rule` of
flash-linear-attention. `tilecat::based`: its `parallel_based`. They have no gradients yet: where
one is asked for, the call says so.
"""

from __future__ import annotations

import math
from typing import Any

from ..based_call import based
from ..delta_rule_call import delta_rule, gated_delta_rule
from ..kernels.based import FEATURES
from .library import define, refuses, torch

CHUNK = 64  # tokens


def chunk_gated_delta_rule(
    q: Any, k: Any, v: Any, g: Any, beta: Any, scale: float | None = None,
    initial_state: Any = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """`tilecat.gated_delta_rule` as an operator of torch, without gradients.

    Args:
        q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
            cu_seqlens: see there; offsets of 64 bits are converted.

    Returns:
        (o, final state or None).

    Raises:
        ScopeError: a tensor wants a gradient. LayoutError, DTypeError, ResourceError: as
            `tilecat.gated_delta_rule`.
    """
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    starts = cu_seqlens
    if starts is not None and starts.dtype != torch.int32:
        starts = starts.to(torch.int32)
    o, state = _delta(q, k, v, g, beta, initial_state, starts, factor,
                      bool(use_qk_l2norm_in_kernel), bool(output_final_state))  # fmt: skip
    return o, state if output_final_state else None


def chunk_delta_rule(
    q: Any, k: Any, v: Any, beta: Any, scale: float | None = None, initial_state: Any = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """`chunk_gated_delta_rule` where nothing decays.

    Args:
        q, k, v, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
            cu_seqlens: see there.

    Returns:
        (o, final state or None).

    Raises:
        ScopeError, LayoutError, DTypeError, ResourceError: as `chunk_gated_delta_rule`.
    """
    return chunk_gated_delta_rule(
        q, k, v, None, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
        cu_seqlens,
    )  # fmt: skip


def parallel_based(
    q: Any, k: Any, v: Any, scale: float | None = None, use_norm: bool = True,
    *, initial_state: Any = None, output_final_state: bool = False,
) -> Any:  # fmt: skip
    """`tilecat.based` as an operator of torch, without gradients.

    Args:
        q, k, v, scale, use_norm, initial_state, output_final_state: see there.

    Returns:
        o; or (o, final state), where that is asked for.

    Raises:
        ScopeError: a tensor wants a gradient. LayoutError, DTypeError, ResourceError: as
            `tilecat.based`.
    """
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    o, state = _based(q, k, v, initial_state, factor, bool(use_norm), bool(output_final_state))
    return (o, state) if output_final_state else o


def _none(like: Any) -> Any:
    return like.new_empty(0, dtype=torch.float32)


def _delta_kernel(
    q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, starts: Any, scale: float, norm: bool,
    wants_state: bool,
) -> tuple[Any, Any]:  # fmt: skip
    more = (scale, state, wants_state, norm, starts)
    if g is None:
        o, last = delta_rule(q, k, v, beta, *more)
    else:
        o, last = gated_delta_rule(q, k, v, g, beta, *more)
    return o, _none(q) if last is None else last


def _delta_fake(
    q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, starts: Any, scale: float, norm: bool,
    wants_state: bool,
) -> tuple[Any, Any]:  # fmt: skip
    sequences = q.shape[0] if starts is None else starts.shape[0] - 1
    shape = (sequences, v.shape[2], q.shape[3], v.shape[3]) if wants_state else (0,)
    return v.new_empty(v.shape), q.new_empty(shape, dtype=torch.float32)


def _delta_flops(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    """Of chunks of 64: two scores, their products with values, the state's three products."""
    return int(math.prod(v[:3]) * (4 * CHUNK * (q[3] + v[3]) + 6 * q[3] * v[3]))


def _based_kernel(
    q: Any, k: Any, v: Any, state: Any, scale: float, norm: bool, wants_state: bool
) -> tuple[Any, Any]:  # fmt: skip
    o, last = based(q, k, v, scale, norm, initial_state=state, output_final_state=wants_state)
    return o, _none(q) if last is None else last


def _based_fake(
    q: Any, k: Any, v: Any, state: Any, scale: float, norm: bool, wants_state: bool
) -> tuple[Any, Any]:  # fmt: skip
    shape = (*v.shape[:2], FEATURES, v.shape[3]) if wants_state else (0,)
    return v.new_empty(v.shape), q.new_empty(shape, dtype=torch.float32)


def _based_flops(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    """Of chunks of 64: scores and their sums, and the state's two products."""
    return int(math.prod(v[:3]) * (2 * CHUNK * (q[3] + v[3]) + 4 * FEATURES * v[3]))


_delta = define(
    "gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor? g, Tensor beta, Tensor? state, "
    "Tensor? cu_seqlens, float scale, bool norm, bool wants_state) -> (Tensor, Tensor)",
    _delta_kernel, _delta_fake, refuses("gated_delta_rule"), flops=_delta_flops, cast=3,
)  # fmt: skip
_based = define(
    "based(Tensor q, Tensor k, Tensor v, Tensor? state, float scale, bool norm, bool wants_state) "
    "-> (Tensor, Tensor)",
    _based_kernel, _based_fake, refuses("based"), flops=_based_flops, cast=3,
)  # fmt: skip
