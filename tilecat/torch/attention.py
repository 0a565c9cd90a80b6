"""`tilecat::attention_forward`."""

from __future__ import annotations

from typing import Any

from .. import attention_call
from .library import define, torch


def attention(q: Any, k: Any, v: Any, *, scale: float | None = None) -> Any:
    """`softmax(scale q k^T) v` for each head: `tilecat.attention` as an operator of torch.

    Args:
        q: B x H x Lq x D, bf16 or f16.
        k: B x Hkv x Lk x D; Hkv divides H.
        v: B x Hkv x Lk x D.
        scale: of the scores; 1/sqrt(D) if None.

    Returns:
        B x H x Lq x D of q's dtype.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.attention`.
    """
    return _forward(q, k, v, q.shape[-1] ** -0.5 if scale is None else float(scale))[0]


def _forward_kernel(q: Any, k: Any, v: Any, scale: float) -> Any:
    return attention_call.attention(q, k, v, scale=scale, return_lse=True)


def _forward_fake(q: Any, k: Any, v: Any, scale: float) -> Any:
    return (
        q.new_empty((*q.shape[:-1], v.shape[-1])),
        q.new_empty(q.shape[:-1], dtype=torch.float32),
    )


_forward = define(
    "attention_forward(Tensor q, Tensor k, Tensor v, float scale) -> (Tensor, Tensor)",
    _forward_kernel,
    _forward_fake,
)
