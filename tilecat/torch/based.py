"""`tilecat::based` and `tilecat::based_backward`: `parallel_based` of flash-linear-attention."""

from __future__ import annotations

import math
from typing import Any

from ..based_backward_call import based_backward
from ..based_call import based
from ..kernels.based import FEATURES
from ..kernels.chunk_tasks import flops_of
from ..row_arguments import check_flag
from .library import absent, define, packed_gradients, scale_of, torch

once_differentiable = torch.autograd.function.once_differentiable


def parallel_based(
    q: Any, k: Any, v: Any, scale: float | None = None, use_norm: bool = True,
    *, initial_state: Any = None, output_final_state: bool = False,
) -> Any:  # fmt: skip
    """`tilecat.based` with gradients of q, k, v and initial_state.

    Args:
        q, k, v, scale, use_norm, initial_state, output_final_state: see there.

    Returns:
        o; or (o, final state), where that is asked for.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.based`.
    """
    factor = scale_of("parallel_based", q, scale)
    norm = check_flag("parallel_based", "use_norm", use_norm)
    wants = check_flag("parallel_based", "output_final_state", output_final_state)
    o, state = _based(q, k, v, initial_state, factor, norm, wants)
    return (o, state) if wants else o


def _kernel(
    q: Any, k: Any, v: Any, state: Any, scale: float, norm: bool, wants_state: bool
) -> tuple[Any, Any]:  # fmt: skip
    o, last = based(q, k, v, scale, norm, initial_state=state, output_final_state=wants_state)
    return o, absent(q) if last is None else last


def _fake(
    q: Any, k: Any, v: Any, state: Any, scale: float, norm: bool, wants_state: bool
) -> tuple[Any, Any]:  # fmt: skip
    shape = (*v.shape[:2], FEATURES, v.shape[3]) if wants_state else (0,)
    return v.new_empty(v.shape), q.new_empty(shape, dtype=torch.float32)


def _backward_kernel(
    do: Any, q: Any, k: Any, v: Any, state: Any, d_last: Any, scale: float, norm: bool
) -> tuple[Any, ...]:
    made = based_backward(
        do, q, k, v, scale, norm, initial_state=state, d_final_state=d_last
    )
    return tuple(absent(q) if x is None else x for x in made)


def _backward_fake(
    do: Any, q: Any, k: Any, v: Any, state: Any, *rest: Any
) -> tuple[Any, ...]:
    first = absent(q) if state is None else state.new_empty(state.shape)
    return (*(x.new_empty(x.shape) for x in (q, k, v)), first)


class _Based(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, run: Any, q: Any, k: Any, v: Any, state: Any, rest: tuple[Any, ...]
    ) -> tuple[Any, Any]:
        ctx.save_for_backward(q, k, v, state)
        ctx.options = rest[:2]
        ctx.set_materialize_grads(False)
        return run(q, k, v, state, *rest)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Any, d_last: Any) -> tuple[Any, ...]:
        q, k, v, state = ctx.saved_tensors
        given = packed_gradients(do, d_last, v)
        if given is None:
            return (None,) * 6
        dq, dk, dv, first = _based_backward(given[0], q, k, v, state, given[1], *ctx.options)
        return None, dq, dk, dv, None if state is None else first, None


def _differentiable(run: Any, q: Any, k: Any, v: Any, state: Any, *rest: Any) -> Any:
    return _Based.apply(run, q, k, v, state, rest)


def _flops(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return flops_of(math.prod(v[:3]), q[3], v[3], FEATURES)


def _backward_flops(_: Any, q: Any, k: Any, v: Any, *__: Any, **___: Any) -> int:
    return 3 * _flops(q, k, v)


_based = define(
    "based(Tensor q, Tensor k, Tensor v, Tensor? state, float scale, bool norm, bool wants_state) "
    "-> (Tensor, Tensor)",
    _kernel, _fake, _differentiable, flops=_flops, cast=3,
)  # fmt: skip
_based_backward = define(
    "based_backward(Tensor do, Tensor q, Tensor k, Tensor v, Tensor? state, Tensor? d_last, "
    "float scale, bool norm) -> (Tensor, Tensor, Tensor, Tensor)",
    _backward_kernel, _backward_fake, flops=_backward_flops,
)  # fmt: skip
