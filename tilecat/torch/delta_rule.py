"""The delta rule as operators of torch.

`tilecat::gated_delta_rule` and `tilecat::gated_delta_rule_backward`: `chunk_gated_delta_rule` and
`chunk_delta_rule` of flash-linear-attention.
"""

from __future__ import annotations

import math
from typing import Any

from ..delta_rule_backward_call import gated_delta_rule_backward
from ..delta_rule_call import delta_rule, gated_delta_rule
from ..kernels.chunk_tasks import CHUNK, flops_of
from ..row_arguments import check_flag
from .library import absent, define, offsets, packed_gradients, scale_of, torch

once_differentiable = torch.autograd.function.once_differentiable


def chunk_gated_delta_rule(
    q: Any, k: Any, v: Any, g: Any, beta: Any, scale: float | None = None,
    initial_state: Any = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """`tilecat.gated_delta_rule` with gradients of q, k, v, g, beta and initial_state.

    Args:
        q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
            cu_seqlens: see there; offsets of 64 bits are converted.

    Returns:
        (o, final state or None).

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.gated_delta_rule`; a scale of 0, where a
            gradient is asked for.
    """
    factor = scale_of("chunk_gated_delta_rule", q, scale)
    norm = check_flag("chunk_gated_delta_rule", "use_qk_l2norm_in_kernel", use_qk_l2norm_in_kernel)
    wants = check_flag("chunk_gated_delta_rule", "output_final_state", output_final_state)
    o, state = _delta(q, k, v, g, beta, initial_state, offsets(cu_seqlens), factor,
                      norm, wants)  # fmt: skip
    return o, state if wants else None


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
        LayoutError, DTypeError, ResourceError: as `chunk_gated_delta_rule`.
    """
    return chunk_gated_delta_rule(
        q, k, v, None, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
        cu_seqlens,
    )  # fmt: skip


def _delta_kernel(
    q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, starts: Any, scale: float, norm: bool,
    wants_state: bool,
) -> tuple[Any, Any]:  # fmt: skip
    more = (scale, state, wants_state, norm, starts)
    if g is None:
        o, last = delta_rule(q, k, v, beta, *more)
    else:
        o, last = gated_delta_rule(q, k, v, g, beta, *more)
    return o, absent(q) if last is None else last


def _delta_fake(
    q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, starts: Any, scale: float, norm: bool,
    wants_state: bool,
) -> tuple[Any, Any]:  # fmt: skip
    sequences = q.shape[0] if starts is None else starts.shape[0] - 1
    shape = (sequences, v.shape[2], q.shape[3], v.shape[3]) if wants_state else (0,)
    return v.new_empty(v.shape), q.new_empty(shape, dtype=torch.float32)


def _backward_kernel(
    do: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, d_last: Any, starts: Any,
    scale: float, norm: bool,
) -> tuple[Any, ...]:  # fmt: skip
    made = gated_delta_rule_backward(do, q, k, v, g, beta, scale, state, d_last, norm, starts)
    return tuple(absent(q) if x is None else x.contiguous() for x in made)


def _backward_fake(
    do: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, *rest: Any
) -> tuple[Any, ...]:
    tensors = (q, k, v, g, beta, state)
    return tuple(absent(q) if x is None else x.new_empty(x.shape) for x in tensors)


class _Delta(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, run: Any, *args: Any) -> tuple[Any, Any]:
        ctx.save_for_backward(*args[:7])
        ctx.options = args[7:9]
        ctx.set_materialize_grads(False)
        return run(*args)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Any, d_last: Any) -> tuple[Any, ...]:
        *tensors, starts = ctx.saved_tensors
        given = packed_gradients(do, d_last, tensors[2])
        if given is None:
            return (None,) * 11
        do, d_last = given
        made = _delta_backward(do, *tensors, d_last, starts, *ctx.options)
        grads = (None if x is None else y for x, y in zip(tensors, made, strict=True))
        return (None, *grads, *(None,) * 4)


def _delta_backward_flops(do: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    """Of both scans of states, and of four of linear attention."""
    return 2 * _delta_flops(q, k, v) + 4 * flops_of(math.prod(v[:3]), q[3], v[3])


def _delta_flops(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    """Of chunks of 64: two scores, their products with values, the state's three products."""
    return int(math.prod(v[:3]) * (4 * CHUNK * (q[3] + v[3]) + 6 * q[3] * v[3]))


_delta = define(
    "gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor? g, Tensor beta, Tensor? state, "
    "Tensor? cu_seqlens, float scale, bool norm, bool wants_state) -> (Tensor, Tensor)",
    _delta_kernel, _delta_fake, lambda run, *args: _Delta.apply(run, *args), flops=_delta_flops,
    cast=3,
)  # fmt: skip
_delta_backward = define(
    "gated_delta_rule_backward(Tensor do, Tensor q, Tensor k, Tensor v, Tensor? g, Tensor beta, "
    "Tensor? state, Tensor? d_last, Tensor? cu_seqlens, float scale, bool norm) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward_kernel, _backward_fake, flops=_delta_backward_flops,
)  # fmt: skip
