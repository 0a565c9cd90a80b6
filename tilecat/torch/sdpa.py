"""`F.scaled_dot_product_attention`, argument for argument, by tilecat's attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import LayoutError
from .attention import attention
from .library import torch


def sdpa(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """`torch.nn.functional.scaled_dot_product_attention` by `tilecat.torch.attention`.

    Args:
        query: (..., H, Lq, D); two axes are one head, three are a batch of one head each.
        key: (..., Hkv, Lk, D).
        value: (..., Hkv, Lk, Dv).
        attn_mask, is_causal: not supported yet.
        dropout_p: 0: no other is supported.
        scale: of the scores; 1/sqrt(D) if None.
        enable_gqa: whether Hkv may be less than H and divide it.

    Returns:
        (..., H, Lq, Dv) of query's dtype.

    Raises:
        LayoutError: what is not supported: nothing else computes it in its place.
        DTypeError: other dtypes than bf16 and f16.
    """
    if dropout_p:
        raise LayoutError(
            f"sdpa: drops no probabilities, got dropout_p={dropout_p}",
            hint="dropout_p=0.0; of a model from transformers, attention_dropout=0.0",
        )
    if attn_mask is not None or is_causal:
        raise LayoutError("sdpa: sees all keys, got attn_mask or is_causal")
    _check_shapes(query, key, value, enable_gqa)
    heads = [_four(x) for x in (query, key, value)]
    out = attention(*heads, scale=scale)
    return out if query.dim() == 4 else out.reshape(*query.shape[:-1], value.shape[-1])


def _check_shapes(query: Any, key: Any, value: Any, enable_gqa: bool) -> None:
    shapes = [tuple(x.shape) for x in (query, key, value)]
    given = f"query {shapes[0]}, key {shapes[1]}, value {shapes[2]}"
    if len({len(shape) for shape in shapes}) > 1 or len(shapes[0]) < 2:
        raise LayoutError(f"sdpa: query, key and value have as many axes, 2 or more, got {given}")
    if not shapes[0][:-3] == shapes[1][:-3] == shapes[2][:-3]:
        raise LayoutError(f"sdpa: the axes before the heads are equal, got {given}")
    heads = [shape[-3:-2] for shape in shapes]
    if heads[1] != heads[2] or heads[0] != heads[1] and not enable_gqa:
        raise LayoutError(
            f"sdpa: query, key and value have as many heads, got {given}",
            hint="enable_gqa=True if the heads of key and value divide those of query",
        )


def _four(x: Any) -> Any:
    """(batch, heads, length, dim)."""
    if x.dim() == 4:
        return x
    return x.reshape(-1, *x.shape[-3:]) if x.dim() > 4 else x.reshape(-1, 1, *x.shape[-2:])


@contextmanager
def sdpa_replaced() -> Iterator[None]:
    """Within it, `torch.nn.functional.scaled_dot_product_attention` is `tilecat.torch.sdpa`.

    For all threads, and for code that looks it up when it calls it, as models do; a function that
    was imported by its name before stays what it was.
    """
    functional = torch.nn.functional
    before = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = sdpa
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = before
