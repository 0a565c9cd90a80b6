"""The library `tilecat` of torch operators: one way to define each, for all that torch does.

An operator is a schema, a kernel on tensors, the same on shapes alone (for torch.compile), and, if
it has gradients, a `torch.autograd.Function` whose forward calls `below_autograd`. The rules are
plain kernels of the dispatcher rather than of `torch.library.custom_op`, whose wrappers take
longer than our launches (docs/torch.md has the figures).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "tilecat.torch needs PyTorch, which is optional: pip install 'tilecat[torch]'",
        name="torch",
    ) from error

LIBRARY = torch.library.Library("tilecat", "DEF")
DEVICES = ("CPU", "CUDA")  # tensors on the CPU run on the PTX machine
below_autograd = torch._C._AutoDispatchBelowAutograd


def define(
    schema: str, kernel: Callable[..., Any], fake: Callable[..., Any], function: Any = None
) -> Any:
    """An operator of torch, callable as `torch.ops.tilecat.NAME.default`, which is returned.

    Args:
        schema: name, arguments and results as torch's schemas have them.
        kernel: runs it on CPU or CUDA tensors.
        fake: gives empty results of the same shapes, strides and dtypes.
        function: autograd.Function of the same arguments; None for an operator of no gradients.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    operator = getattr(torch.ops.tilecat, name).default
    for device in DEVICES:
        LIBRARY.impl(name, kernel, device)
    torch.library.register_fake(f"tilecat::{name}", fake, lib=LIBRARY)
    if function is None:
        return operator

    def differentiable(*args: Any) -> Any:
        if torch.is_grad_enabled() and any(requires_grad(arg) for arg in args):
            return function.apply(*args)
        with below_autograd():
            return operator(*args)

    LIBRARY.impl(name, differentiable, "Autograd")
    for device in DEVICES:
        LIBRARY.impl(name, _autocast(operator, device.lower()), f"Autocast{device}")
    return operator


def requires_grad(x: Any) -> bool:
    """Whether an argument of an operator is a tensor that wants a gradient."""
    return isinstance(x, torch.Tensor) and bool(x.requires_grad)


def packed(grad: Any) -> Any:
    """A gradient as it lies, or a copy of one that repeats: that of a sum has strides of 0."""
    return grad if all(grad.stride()) else grad.contiguous()


def _autocast(operator: Any, device: str) -> Callable[..., Any]:
    """The rule of torch's own products under autocast: floats become of its dtype."""

    def cast(x: Any, dtype: Any) -> Any:
        floats = isinstance(x, torch.Tensor) and x.dtype in FLOATS
        return x.to(dtype) if floats else x

    def rule(*args: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            return operator(*[cast(arg, dtype) for arg in args])

    return rule


FLOATS = (torch.float32, torch.bfloat16, torch.float16)
