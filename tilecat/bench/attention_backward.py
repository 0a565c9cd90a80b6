"""Attention, backward: dq, dk and dv against those of torch's SDPA by backend, causal and not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ..attention_backward_call import attention_backward
from ..attention_call import attention
from ..errors import TileError
from ..kernels import Shape
from ..kernels.spec import rounding
from .attention import BACKENDS, SPEC, operands
from .session import Session, Task

TO_FORWARD = 2.5  # operations of the backward: five products of the forward's two


def backward_tasks(shapes: tuple[Shape, ...]) -> list[Task]:
    """Each shape, then causal: the whole backward, with what runs before and after its products."""
    return [
        Task("backward", shape.name + " causal" * causal, partial(_backward, shape, causal),
             0.2 + TO_FORWARD * SPEC.flops(shape.extents) / 2e12 / (1 + causal))
        for causal in (False, True)
        for shape in shapes
    ]  # fmt: skip


def exact(torch: Any, q: Any, k: Any, v: Any, dout: Any, causal: bool) -> tuple[Any, Any, Any]:
    """Gradients of one head in float64."""
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    scores = q @ k.t() * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    (torch.softmax(scores, dim=-1) @ v).backward(dout.double())
    return q.grad, k.grad, v.grad


def check(torch: Any, given: tuple[Any, ...], found: tuple[Any, ...], causal: bool) -> float:
    """Worst relative error of the first head's gradients; a NaN anywhere is an error.

    Raises:
        TileError: over the rounding of bf16.
    """
    q, k, v, dout = (x[0, 0] for x in given)
    worst = 0.0
    for x, y in zip(found, exact(torch, q, k, v, dout, causal), strict=True):
        worst = max(worst, float((x[0, 0].double() - y).norm() / y.norm()))
    if not worst <= rounding("bf16") or any(bool(torch.isnan(x).any()) for x in found):
        raise TileError(f"bench: wrong gradients, got a relative error of {worst:.3g}")
    return worst


def _backward(shape: Shape, causal: bool, session: Session) -> dict[str, Any]:
    torch = session.torch
    q, k, v = operands(torch, shape)
    dout = torch.randn_like(q)
    out, lse = attention(q, k, v, causal=causal, return_lse=True)
    functions: dict[str, Callable[[], Any]] = {
        "tilecat": partial(attention_backward, dout, q, k, v, out, lse, causal=causal)
    }
    missing: dict[str, str] = {}
    leaves = tuple(x.clone().requires_grad_() for x in (q, k, v))
    for name, member in BACKENDS.items():
        backend = getattr(torch.nn.attention.SDPBackend, member)
        try:
            with torch.nn.attention.sdpa_kernel(backend):
                y = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
            functions[name] = partial(torch.autograd.grad, y, leaves, dout, retain_graph=True)
            functions[name]()
        except RuntimeError as error:
            functions.pop(name, None)
            missing[f"no {name}"] = str(error).splitlines()[0]
    errors = {name: check(torch, (q, k, v, dout), f(), causal) for name, f in functions.items()}
    factor = TO_FORWARD / 2 if causal else TO_FORWARD
    spec = replace(SPEC, flops=lambda extents: int(factor * SPEC.flops(extents)))
    found = {
        "shape": shape.name, "extents": shape.extents, "causal": causal,
        "error": errors.pop("tilecat"), "peer_errors": errors, **missing,
    }  # fmt: skip
    return found | session.compare(functions, spec, shape)
