"""`tilecat::matmul` and `tilecat::linear`, whose gradients are products of the same kernel."""

from __future__ import annotations

import math
from typing import Any

from .. import operators
from ..errors import DTypeError, LayoutError
from ..kernels import epilogues
from .library import check_tensor, define, packed, requires_grad, torch

RESULT = {
    torch.float8_e4m3fn: torch.bfloat16,
    torch.float8_e5m2: torch.bfloat16,
    torch.int8: torch.int32,
}


def matmul(a: Any, b: Any) -> Any:
    """`a @ b`, differentiable: `tilecat.matmul` without its options.

    Args:
        a: [..., M, K], bf16, f16, f32 (multiplied as tf32), e4m3, e5m2 or s8; any strides.
        b: [..., K, N]; leading axes broadcast.

    Returns:
        [..., M, N] of a's dtype; bf16 of 8-bit floats, s32 of s8.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.matmul`.
    """
    return _matmul(a, b)


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """`x @ weight.T + bias` in one kernel, differentiable: takes what `F.linear` takes.

    Args:
        x: [..., K], bf16, f16 or f32 (multiplied as tf32).
        weight: [N, K], the same dtype.
        bias: [N], or None.

    Returns:
        [..., N] of x's dtype.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.matmul`.
    """
    check_operands("linear", x, weight)
    return _linear(x, weight, bias)


def check_operands(name: str, x: Any, weight: Any) -> None:
    """Refuses what is no tensor, or has too few axes.

    Raises:
        DTypeError: no tensors. LayoutError: x without axes, a weight without two.
    """
    check_tensor(name, "x", x, axes=1)
    check_tensor(name, "weight", weight, axes=2)
    if weight.ndim > 2:
        raise LayoutError(f"{name}: weight is [N, K], got shape {tuple(weight.shape)}")


# ---- matmul


def _matmul_kernel(a: Any, b: Any) -> Any:
    return operators.matmul(a, b)


def _matmul_fake(a: Any, b: Any) -> Any:
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"extent K, got {a.shape} and {b.shape}")
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    dtype = RESULT.get(a.dtype, a.dtype)
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]), dtype=dtype)


class _Matmul(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, run: Any, a: Any, b: Any) -> Any:
        _check_trains("matmul", a, b)
        ctx.save_for_backward(a, b)
        return run(a, b)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        a, b = ctx.saved_tensors
        grad = packed(grad)
        _, need_a, need_b = ctx.needs_input_grad
        grad_a = _matmul(grad, b.mT).sum_to_size(a.shape) if need_a else None
        grad_b = _matmul(a.mT, grad).sum_to_size(b.shape) if need_b else None
        return None, grad_a, grad_b


# ---- linear


def _linear_kernel(x: Any, weight: Any, bias: Any) -> Any:
    step = () if bias is None else (epilogues.bias, bias)
    if x.ndim == 2:
        return operators.matmul(x, weight.mT, epilogue=step)
    # No view, for autograd lets nobody write into a view that a function of ours gives.
    out = x.new_empty((*x.shape[:-1], weight.shape[0]))
    rows = x.reshape(-1, x.shape[-1])
    operators.matmul(rows, weight.mT, out.view(-1, weight.shape[0]), epilogue=step)
    return out


def _linear_fake(x: Any, weight: Any, bias: Any) -> Any:
    torch._check(
        x.shape[-1] == weight.shape[1], lambda: f"extent K, got {x.shape} and {weight.shape}"
    )
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


class _Linear(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, run: Any, x: Any, weight: Any, bias: Any) -> Any:
        _check_trains("linear", x, weight)
        ctx.save_for_backward(x, weight)
        return run(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight = ctx.saved_tensors
        _, need_x, need_weight, need_bias = ctx.needs_input_grad
        rows = packed(grad).reshape(-1, grad.shape[-1])
        grad_x = _matmul(rows, weight).view(x.shape) if need_x else None
        inputs = x.reshape(-1, x.shape[-1])
        grad_weight = _matmul(rows.mT, inputs) if need_weight else None
        return None, grad_x, grad_weight, rows.sum(0) if need_bias else None


def _check_trains(name: str, *operands: Any) -> None:
    """Raises DTypeError: gradients of 8-bit operands."""
    for x in operands:
        if requires_grad(x) and x.dtype in RESULT:
            raise DTypeError(
                f"{name}: gradients are of bf16, f16 and f32, got an operand of {x.dtype}",
                hint="convert it, or detach() it",
            )


def _flops(a: Any, b: Any, *_: Any, out_shape: Any, **__: Any) -> int:
    return 2 * math.prod(out_shape) * int(a[-1])


_matmul = define(
    "matmul(Tensor a, Tensor b) -> Tensor",
    _matmul_kernel,
    _matmul_fake,
    _Matmul.apply,
    flops=_flops,
)
_linear = define(
    "linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    _linear_kernel,
    _linear_fake,
    _Linear.apply,
    flops=_flops,
)
