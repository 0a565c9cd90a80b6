"""Linear layers with what follows them, GELU or a gate, in the epilogue of one product."""

from __future__ import annotations

import math
from typing import Any

from .. import operators
from ..errors import LayoutError
from ..kernels import epilogues
from .library import check_tensor, define, requires_grad, torch
from .products import check_operands, linear

GELUS = {"none": epilogues.gelu, "tanh": epilogues.gelu_tanh}


def linear_gelu(x: Any, weight: Any, bias: Any = None, approximate: str = "none") -> Any:
    """`gelu(x @ weight.T + bias)` in one kernel; where gradients are wanted, in two.

    The backward pass needs what GELU was applied to, which is kept then.

    Args:
        x: [..., K], bf16, f16 or f32 (multiplied as tf32).
        weight: [N, K], the same dtype.
        bias: [N], or None.
        approximate: "none" or "tanh", as `F.gelu`.

    Returns:
        [..., N] of x's dtype.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.matmul`; another approximation.
    """
    if approximate not in GELUS:
        raise LayoutError(
            f"linear_gelu: approximate is {' or '.join(map(repr, GELUS))}, got {approximate!r}"
        )
    check_operands("linear_gelu", x, weight)
    if _trains(x, weight, bias):
        return torch.nn.functional.gelu(linear(x, weight, bias), approximate=approximate)
    return _linear_gelu(x, weight, bias, approximate)


def linear_gate(x: Any, weight: Any, bias: Any, gate: Any, y: Any) -> Any:
    """`(x @ weight.T + bias) * gate + y` in one kernel; in two where gradients are wanted.

    Args:
        x: [..., K], bf16, f16 or f32 (multiplied as tf32).
        weight: [N, K], the same dtype.
        bias: [N], or None.
        gate: [..., N], the same dtype.
        y: [..., N], the same dtype.

    Returns:
        [..., N] of x's dtype.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.matmul`.
    """
    check_operands("linear_gate", x, weight)
    for name, value in (("gate", gate), ("y", y)):
        check_tensor("linear_gate", name, value)
    if _trains(x, weight, bias, gate, y):
        return torch.addcmul(y, linear(x, weight, bias), gate)
    return _linear_gate(x, weight, bias, gate, y)


def _trains(*tensors: Any) -> bool:
    return bool(torch.is_grad_enabled()) and any(map(requires_grad, tensors))


def _product(x: Any, weight: Any, steps: tuple[Any, ...]) -> Any:
    """`x @ weight.T` with an epilogue, of x with any number of axes."""
    out = x.new_empty((*x.shape[:-1], weight.shape[0]))
    count = math.prod(x.shape[:-1])  # -1 is no extent of nothing
    rows = x.reshape(count, x.shape[-1])
    operators.matmul(rows, weight.mT, out.view(count, weight.shape[0]), epilogue=steps)
    return out


def _bias(bias: Any) -> tuple[Any, ...]:
    return () if bias is None else ((epilogues.bias, bias),)


def _gelu_kernel(x: Any, weight: Any, bias: Any, approximate: str) -> Any:
    return _product(x, weight, (*_bias(bias), GELUS[approximate]))


def _gate_kernel(x: Any, weight: Any, bias: Any, gate: Any, y: Any) -> Any:
    width = weight.shape[0]
    for name, value in (("gate", gate), ("y", y)):
        if tuple(value.shape) != (*x.shape[:-1], width):
            raise LayoutError(
                f"linear_gate: {name} has the shape of the result, {(*x.shape[:-1], width)}, got "
                f"{tuple(value.shape)}"
            )
    rows = [value.reshape(-1, width) for value in (gate, y)]
    return _product(x, weight, (*_bias(bias), (epilogues.gate, rows[0]),
                                (epilogues.residual, rows[1])))  # fmt: skip


def _fake(x: Any, weight: Any, *_: Any) -> Any:
    torch._check(
        x.shape[-1] == weight.shape[1], lambda: f"extent K, got {x.shape} and {weight.shape}"
    )
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _flops(x: Any, *_: Any, out_shape: Any, **__: Any) -> int:
    return 2 * math.prod(out_shape) * int(x[-1])


_linear_gelu = define(
    "linear_gelu(Tensor x, Tensor weight, Tensor? bias, str approximate) -> Tensor",
    _gelu_kernel, _fake, flops=_flops,
)  # fmt: skip
_linear_gate = define(
    "linear_gate(Tensor x, Tensor weight, Tensor? bias, Tensor gate, Tensor y) -> Tensor",
    _gate_kernel, _fake, flops=_flops,
)  # fmt: skip
