"""`tilecat::attention_decode`: attention over caches, without gradients."""

from __future__ import annotations

import math
from typing import Any

from ..attention_decode_call import attention_decode as decode
from ..errors import LayoutError
from ..row_arguments import check_flag
from .attention import edges_of
from .library import define, requires_grad, torch


def attention_decode(
    q: Any, k_cache: Any, v_cache: Any, *, cache_seqlens: Any = None, block_table: Any = None,
    causal: bool = False, window: tuple[int | None, int | None] | None = None,
    scale: float | None = None, softcap: float | None = None, sinks: Any = None,
    scale_k: Any = None, scale_v: Any = None, return_lse: bool = False,
) -> Any:  # fmt: skip
    """`tilecat.attention_decode` as an operator of torch: its arguments, but out and lse.

    It has no gradients. Graphs of torch.compile and CUDA graphs read lengths and pages when they
    run.

    Args:
        q: B x Lq x H x D, bf16 or f16.
        k_cache, v_cache, cache_seqlens, block_table, causal, window, scale, softcap, sinks,
            scale_k, scale_v, return_lse: see `tilecat.attention_decode`.

    Returns:
        B x Lq x H x Dv of q's dtype, or (that, log-sum-exp B x H x Lq).

    Raises:
        LayoutError: a tensor that wants a gradient. LayoutError, DTypeError, ResourceError: as
            `tilecat.attention_decode`.
    """
    if torch.is_grad_enabled() and any(map(requires_grad, (q, k_cache, v_cache, sinks))):
        raise LayoutError(
            "attention_decode: has no gradients, got a tensor with requires_grad",
            hint="with torch.no_grad(), or tilecat.torch.attention",
        )
    _, left, right = edges_of(False, window)
    causal = check_flag("attention_decode", "causal", causal)
    return_lse = check_flag("attention_decode", "return_lse", return_lse)
    out, lse = _decode(q, k_cache, v_cache, cache_seqlens, block_table, sinks, scale_k, scale_v,
                       scale, causal, left, right, softcap)  # fmt: skip
    return (out, lse) if return_lse else out


def _kernel(
    q: Any, k_cache: Any, v_cache: Any, cache_seqlens: Any, block_table: Any, sinks: Any,
    scale_k: Any, scale_v: Any, scale: float | None, causal: bool, left: int | None,
    right: int | None, softcap: float | None,
) -> Any:  # fmt: skip
    return decode(
        q, k_cache, v_cache, cache_seqlens=cache_seqlens, block_table=block_table, causal=causal,
        window=None if left is right is None else (left, right), scale=scale, softcap=softcap,
        sinks=sinks, scale_k=scale_k, scale_v=scale_v, return_lse=True,
    )  # fmt: skip


def _fake(q: Any, k_cache: Any, v_cache: Any, *_: Any) -> Any:
    batch, queries, heads, _ = q.shape
    return (q.new_empty(batch, queries, heads, v_cache.shape[3]),
            q.new_empty(batch, heads, queries, dtype=torch.float32))  # fmt: skip


def _flops(q: Any, k_cache: Any, v_cache: Any, *_: Any, **__: Any) -> int:
    """Of caches without pages, as long as they have room."""
    return int(2 * math.prod(q[:3]) * k_cache[1] * (q[3] + v_cache[3]))


_decode = define(
    "attention_decode(Tensor q, Tensor k_cache, Tensor v_cache, Tensor? cache_seqlens, "
    "Tensor? block_table, Tensor? sinks, Tensor? scale_k, Tensor? scale_v, float? scale, "
    "bool causal, int? left, int? right, float? softcap) -> (Tensor, Tensor)",
    _kernel,
    _fake,
    flops=_flops,
)
