"""`tilecat::cross_entropy`: losses of logits under autograd and torch.compile."""

from __future__ import annotations

import math
from typing import Any

from .. import cross_entropy_call as call
from ..cross_entropy_call import Loss
from ..row_arguments import check_flag
from .library import check_tensor, define, torch

_OPTIONS = "int ignored, float smoothing, float z_loss"


def cross_entropy(
    x: Any, target: Any, ignore_index: int = -100, reduction: str = "mean",
    inplace_backward: bool = False, *, label_smoothing: float = 0.0, z_loss: float = 0.0,
    inplace_forward: bool = False,
) -> Any:  # fmt: skip
    """`tilecat.cross_entropy`, differentiable: QuACK's, with options of F.cross_entropy.

    Args:
        x, target, ignore_index, reduction, label_smoothing, z_loss: see `tilecat.cross_entropy`.
        inplace_backward: the backward pass writes the gradient over x.
        inplace_forward: the forward pass does, so that logits are read once and written once for
            both: nothing may read x after the call (autograd refuses what it knows of). The
            backward pass multiplies by the gradient of the loss only where that is not 1.
            Under torch.compile neither writes to x.

    Returns:
        f32: a scalar, or of "none" the losses of target's shape.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.cross_entropy`.
    """
    loss = call.loss_of("cross_entropy", ignore_index, label_smoothing, z_loss, reduction)
    options = loss.ignored, loss.smoothing, loss.z_loss
    compiling = torch.compiler.is_compiling()
    forward = check_flag("cross_entropy", "inplace_forward", inplace_forward)
    backward = check_flag("cross_entropy", "inplace_backward", inplace_backward)
    for name, given in (("x", x), ("target", target)):
        check_tensor("cross_entropy", name, given)
    trains = torch.is_grad_enabled() and x.requires_grad
    if forward and trains and not compiling:
        losses = _OnePass.apply(x, target, loss, reduction)
        if reduction != "mean":
            return losses.view(target.shape) if reduction == "none" else losses.sum()
        return losses.sum() / (target != loss.ignored).sum()
    losses, _ = _losses(x, target, *options, backward and not compiling)
    return call.reduced(losses, target, loss, reduction)


class _OnePass(torch.autograd.Function):  # type: ignore[misc]
    """Losses of rows; the gradient of each replaces its logits."""

    @staticmethod
    def forward(ctx: Any, x: Any, target: Any, loss: Loss, reduction: str) -> Any:
        rows = x.detach()
        ctx.count = (target != loss.ignored).sum() if reduction == "mean" else None
        factor = call.factor_of(rows, target, loss, reduction)
        losses, _, _ = call.forward("cross_entropy", rows, target, loss, factor=factor, grad=rows)
        torch.autograd.graph.increment_version(x)
        ctx.save_for_backward(rows)
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (rows,) = ctx.saved_tensors
        factor = grad.float() if ctx.count is None else grad.float() * ctx.count
        call.scale_gradient(rows, factor.contiguous())
        return rows, None, None, None


def _kernel(x: Any, target: Any, ignored: int, smoothing: float, z_loss: float, _: bool) -> Any:
    losses, lse, _none = call.forward("cross_entropy", x, target, Loss(ignored, smoothing, z_loss))
    return losses, lse


def _fake(x: Any, target: Any, *_: Any) -> Any:
    torch._check(x.shape[:-1] == target.shape, lambda: f"got {x.shape} and {target.shape}")
    rows = math.prod(x.shape[:-1])
    return tuple(x.new_empty(rows, dtype=torch.float32) for _ in range(2))


class _CrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, run: Any, x: Any, target: Any, *options: Any) -> Any:
        losses, lse = run(x, target, *options)
        ctx.save_for_backward(x, target, lse)
        ctx.options = options
        ctx.mark_non_differentiable(lse)
        return losses, lse

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> Any:
        x, target, lse = ctx.saved_tensors
        *options, inplace = ctx.options
        factor = grad.float().contiguous()
        if not inplace:
            return None, _backward(x, target, lse, factor, *options), *[None] * 5
        rows = x.detach()
        _backward_into(rows, target, lse, factor, *options)
        return None, rows, *[None] * 5


def _backward_kernel(x: Any, target: Any, lse: Any, factor: Any, *options: Any) -> Any:
    return call.forward("cross_entropy", x, target, Loss(*options), factor=factor, lse=lse)[2]


def _backward_fake(x: Any, *_: Any) -> Any:
    return x.new_empty(x.shape)


def _into_kernel(x: Any, target: Any, lse: Any, factor: Any, *options: Any) -> None:
    call.forward("cross_entropy", x, target, Loss(*options), factor=factor, lse=lse, grad=x)


def _into_fake(*_: Any) -> None:
    """Nothing is made."""


def _flops(x: Any, *_: Any, **__: Any) -> int:
    return 4 * math.prod(x)


_losses = define(
    f"cross_entropy(Tensor x, Tensor target, {_OPTIONS}, bool inplace_backward) "
    "-> (Tensor, Tensor)",
    _kernel, _fake, _CrossEntropy.apply, flops=_flops, cast=0,
)  # fmt: skip
_backward = define(
    f"cross_entropy_backward(Tensor x, Tensor target, Tensor lse, Tensor factor, {_OPTIONS}) "
    "-> Tensor",
    _backward_kernel, _backward_fake, flops=_flops,
)  # fmt: skip
_backward_into = define(
    f"cross_entropy_backward_(Tensor(a!) x, Tensor target, Tensor lse, Tensor factor, {_OPTIONS}) "
    "-> ()",
    _into_kernel, _into_fake, flops=_flops,
)  # fmt: skip
