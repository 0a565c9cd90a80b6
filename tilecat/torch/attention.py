"""`tilecat::attention_forward` and `tilecat::attention_backward`, its gradients."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from ..attention_backward_call import attention_backward
from ..attention_call import attention as attention_forward
from ..attention_options import Options
from ..errors import LayoutError
from ..row_arguments import check_flag
from .library import define, packed, requires_grad, scale_of, torch
from .mods import name_of, restore
from .products import RESULT

# Of both operators, after their tensors q, k, v.
_OPTIONS = (
    "Tensor? bias, Tensor? sinks, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor[] tensors, "
    "float scale, str causal, int? left, int? right, float? softcap, str mods"
)
_SINKS, _BIAS = 4, 5  # their places among the arguments of _Attention.forward


def attention(
    q: Any, k: Any, v: Any, *, causal: bool | str = False,
    window: tuple[int | None, int | None] | None = None, scale: float | None = None,
    softcap: float | None = None, bias: Any = None, mask_mod: Any = None, score_mod: Any = None,
    cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, sinks: Any = None,
    return_lse: bool = False,
) -> Any:  # fmt: skip
    """`tilecat.attention` as an operator of torch: its arguments, but out and lse.

    Gradients are those of q, k, v, sinks and bias; of arguments of the functions they are refused,
    and return_lse gives a log-sum-exp that has none. With
    `torch.use_deterministic_algorithms(True)` their sums are made in a fixed order.

    Args:
        q: B x H x Lq x D, bf16 or f16.
        k: B x Hkv x Lk x D; Hkv divides H.
        v: B x Hkv x Lk x Dv.
        causal, window, scale, softcap, bias, mask_mod, score_mod, cu_seqlens_q, cu_seqlens_k,
            sinks, return_lse: see `tilecat.attention`.

    Returns:
        B x H x Lq x Dv of q's dtype, in memory as q is: (B, Lq, H, Dv) if q's heads lie closer
        than its rows. Or (that, log-sum-exp).

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.attention`.
    """
    if type(return_lse) is not bool:
        return_lse = check_flag("attention", "return_lse", return_lse)
    mods, tensors = name_of(score_mod, mask_mod)
    out, lse = _forward(
        q, k, v, bias, sinks, cu_seqlens_q, cu_seqlens_k, tensors,
        scale_of("attention", q, scale), *edges_of(causal, window), softcap, mods,
    )  # fmt: skip
    return (out, lse) if return_lse else out


def edges_of(causal: Any, window: Any) -> tuple[str, int | None, int | None]:
    """The corner that is causal, if any, and the window's sides.

    Raises:
        LayoutError: they are no such thing.
    """
    if type(causal) not in (bool, str) or not (
        window is None or isinstance(window, tuple | list) and len(window) == 2
    ):
        Options(causal, window, *[None] * (len(fields(Options)) - 2)).edges()
    left, right = (None, None) if window is None else window
    return causal if isinstance(causal, str) else "top-left" * causal, left, right


def _forward_kernel(
    q: Any, k: Any, v: Any, bias: Any, sinks: Any, cu_seqlens_q: Any, cu_seqlens_k: Any,
    tensors: list[Any], scale: float, causal: str, left: int | None, right: int | None,
    softcap: float | None, mods: str,
) -> Any:  # fmt: skip
    score_mod, mask_mod = restore(mods, tensors)
    return attention_forward(
        q, k, v, causal=causal or False, scale=scale, softcap=softcap, bias=bias, sinks=sinks,
        window=None if left is right is None else (left, right), mask_mod=mask_mod,
        score_mod=score_mod, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        out=_output(q, v), return_lse=True,
    )  # fmt: skip


def _forward_fake(
    q: Any, k: Any, v: Any, bias: Any, sinks: Any, cu_seqlens_q: Any, *more: Any
) -> Any:
    rows = q.shape[:-1] if cu_seqlens_q is None else (q.shape[1], q.shape[0])
    return _output(q, v), q.new_empty(rows, dtype=torch.float32)


def _output(q: Any, v: Any) -> Any:
    """[..., Dv], its axes in memory in q's order: the heads inside where q has them inside.

    No view, for autograd lets nobody write into a view that a function of ours gives.
    """
    if q.ndim < 2 or v.ndim != q.ndim:
        return None  # the call says so
    dtype = RESULT.get(q.dtype)
    if q.size(-1) == v.size(-1) and q.stride(-1) == 1:
        return torch.empty_like(q) if dtype is None else torch.empty_like(q, dtype=dtype)
    *rows, _ = q.shape
    columns, order = v.shape[-1], sorted(range(q.ndim - 1), key=q.stride, reverse=True)
    strides, step = [1] * q.ndim, columns
    for axis in reversed(order):
        strides[axis] = step
        step *= rows[axis]
    return q.new_empty_strided((*rows, columns), strides, dtype=dtype or q.dtype)


def _backward_kernel(
    grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, bias: Any, sinks: Any,
    cu_seqlens_q: Any, cu_seqlens_k: Any, tensors: list[Any], scale: float, causal: str,
    left: int | None, right: int | None, softcap: float | None, mods: str, deterministic: bool,
    bias_grad: bool, sinks_grad: bool,
) -> Any:  # fmt: skip
    score_mod, mask_mod = restore(mods, tensors)
    made = attention_backward(
        grad, q, k, v, out, lse, causal=causal or False, scale=scale, softcap=softcap, bias=bias,
        sinks=sinks, window=None if left is right is None else (left, right), mask_mod=mask_mod,
        score_mod=score_mod, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        deterministic=deterministic, bias_grad=bias_grad, sinks_grad=sinks_grad,
    )  # fmt: skip
    more = iter(made[3:])
    return (*made[:3], *(next(more) if x else q.new_empty(0) for x in (bias_grad, sinks_grad)))


def _backward_fake(
    grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, bias: Any, sinks: Any, *more: Any
) -> tuple[Any, ...]:
    made = [x.new_empty(x.shape) for x in (q, k, v)]
    asked = zip((bias, sinks), more[-2:], strict=True)
    return (*made, *(x.new_empty(x.shape) if wanted else q.new_empty(0) for x, wanted in asked))


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, run: Any, q: Any, k: Any, v: Any, sinks: Any, bias: Any, rest: tuple[Any, ...]
    ) -> tuple[Any, Any]:
        cu_seqlens_q, cu_seqlens_k, tensors, *ctx.options = rest
        _check_trains(tensors)
        out, lse = run(q, k, v, bias, sinks, *rest)
        ctx.save_for_backward(q, k, v, out, lse, bias, sinks, cu_seqlens_q, cu_seqlens_k, *tensors)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> tuple[Any, ...]:
        if not torch.is_grad_enabled():  # as always, but with create_graph=True
            return _Attention.gradients(ctx, grad)
        with torch.no_grad():
            made = _Attention.gradients(ctx, grad)
        return tuple(x if x is None else _Once.apply(x, grad, *ctx.saved_tensors) for x in made)

    @staticmethod
    def gradients(ctx: Any, grad: Any) -> tuple[Any, ...]:
        """By argument of forward; None where none is asked for, or made."""
        q, k, v, out, lse, bias, sinks, cu_seqlens_q, cu_seqlens_k, *tensors = ctx.saved_tensors
        grads: list[Any] = [None] * len(ctx.needs_input_grad)
        if grad is None:
            return tuple(grads)
        asked = [ctx.needs_input_grad[at] for at in (_BIAS, _SINKS)]
        *grads[1:4], of_bias, of_sinks = _backward(
            packed(grad), q, k, v, out, lse, bias, sinks, cu_seqlens_q, cu_seqlens_k, tensors,
            *ctx.options, torch.are_deterministic_algorithms_enabled(), *asked,
        )  # fmt: skip
        if ctx.needs_input_grad[_BIAS]:
            grads[_BIAS] = of_bias
        if ctx.needs_input_grad[_SINKS]:
            grads[_SINKS] = of_sinks
        return tuple(grads)


class _Once(torch.autograd.Function):  # type: ignore[misc]
    """A gradient as it is; what it depends on has none through it, and an error says so."""

    @staticmethod
    def forward(ctx: Any, made: Any, *origins: Any) -> Any:
        return made.view_as(made)

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        raise LayoutError(
            "attention: gradients have no gradients themselves, got backward through them",
            hint="F.scaled_dot_product_attention with torch.nn.attention.SDPBackend.MATH has",
        )


def _differentiable(
    run: Any, q: Any, k: Any, v: Any, bias: Any, sinks: Any, *rest: Any
) -> tuple[Any, Any]:
    """The few arguments that may have gradients by themselves: each costs autograd time."""
    return _Attention.apply(run, q, k, v, sinks, bias, rest)  # type: ignore[no-any-return]


def _check_trains(tensors: list[Any]) -> None:
    """Refuses gradients that are not made.

    Raises:
        LayoutError: a tensor of a function that wants one.
    """
    if any(map(requires_grad, tensors)):
        raise LayoutError(
            "attention: gradients are of q, k, v, sinks and bias, got arguments of functions with "
            "requires_grad",
            hint="detach() it",
        )


def _forward_flops(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return int(2 * math.prod(q[:3]) * k[2] * (q[3] + v[3]))


def _backward_flops(_: Any, q: Any, k: Any, v: Any, *__: Any, **___: Any) -> int:
    return int(2 * math.prod(q[:3]) * k[2] * (3 * q[3] + 2 * v[3]))


_forward = define(
    f"attention_forward(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)",
    _forward_kernel,
    _forward_fake,
    _differentiable,
    flops=_forward_flops,
    cast=3,
)
_backward = define(
    "attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"{_OPTIONS}, bool deterministic, bool bias_grad, bool sinks_grad) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward_kernel,
    _backward_fake,
    flops=_backward_flops,
)
