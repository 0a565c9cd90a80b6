"""`F.scaled_dot_product_attention`, argument for argument, by tilecat's attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn.attention.bias import CausalBias, CausalVariant

from ..errors import LayoutError
from ..kernels import score_mods
from ..row_arguments import check_flag
from .attention import attention
from .library import TENSORS, check_tensor, torch

_CORNERS = {CausalVariant.UPPER_LEFT: "top-left", CausalVariant.LOWER_RIGHT: "bottom-right"}


def sdpa(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """`torch.nn.functional.scaled_dot_product_attention` by `tilecat.torch.attention`.

    Args:
        query: (..., H, Lq, D), bf16 or f16; two axes are one head, three a batch of one head each.
        key: (..., Hkv, Lk, D).
        value: (..., Hkv, Lk, Dv).
        attn_mask: broadcast to (..., H, Lq, Lk): bool, True where a key is seen, or a float that
            is added; or a bias of `torch.nn.attention.bias`, which needs no memory.
        dropout_p: 0: no other is supported.
        is_causal: query i sees keys up to i.
        scale: of the scores; 1/sqrt(D) if None.
        enable_gqa: whether Hkv may be less than H and divide it.

    Returns:
        (..., H, Lq, Dv) of query's dtype. A query that sees no key gives 0.

    Raises:
        LayoutError: what is not supported: nothing else computes it in its place.
        DTypeError: other dtypes than bf16 and f16.
    """
    if type(dropout_p) is not float or dropout_p:
        refuse_dropout("sdpa: dropout_p", dropout_p)
    if type(is_causal) is not bool or type(enable_gqa) is not bool:
        is_causal = check_flag("sdpa", "is_causal", is_causal)
        enable_gqa = check_flag("sdpa", "enable_gqa", enable_gqa)
    try:
        shape, keys, values = query.shape, key.shape, value.shape
        known = type(query) in TENSORS and type(key) in TENSORS and type(value) in TENSORS
    except (AttributeError, RuntimeError):  # no tensors, or nested ones
        known = False
    if not known:
        for name, x in (("query", query), ("key", key), ("value", value)):
            check_tensor("sdpa", name, x)
    batches = len(shape) == len(keys) == len(values) == 4
    if not (batches and shape[0] == keys[0] == values[0] and shape[1] == keys[1] == values[1]):
        _check_shapes(query, key, value, enable_gqa)
    if attn_mask is None:
        options: dict[str, Any] = {"causal": is_causal}
    else:
        options = _mask(query, key, attn_mask, is_causal)
    if batches:
        return attention(query, key, value, scale=scale, **options)
    out = attention(*[_four(x) for x in (query, key, value)], scale=scale, **options)
    return out.reshape(*query.shape[:-1], value.shape[-1])


def refuse_dropout(name: str, probability: float) -> None:
    """Probabilities are kept.

    Raises:
        LayoutError: they are not to be.
    """
    if not isinstance(probability, int | float) or probability:
        raise LayoutError(
            f"{name} is 0: no probabilities are dropped, got {probability!r}",
            hint="of a model from transformers, attention_dropout=0.0 in its config",
        )


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


def _mask(query: Any, key: Any, mask: Any, is_causal: bool) -> dict[str, Any]:
    """A mask as options of attention: its causal corner, what is added, or what is seen.

    Raises:
        LayoutError: is_causal beside it, or a shape that does not broadcast.
    """
    if is_causal:
        raise LayoutError(
            "sdpa: attn_mask or is_causal, got both",
            hint="attn_mask & torch.ones(Lq, Lk, dtype=torch.bool, device=...).tril()",
        )
    if isinstance(mask, CausalBias):
        return {"causal": _CORNERS[mask.variant]}
    lead, lengths = tuple(query.shape[:-2]), (query.shape[-2], key.shape[-2])
    mask = fitting(mask, (*lead, *lengths))
    if len(lead) != 2 and mask.ndim > 2:
        heads = lead[1:][-1:] or (1,)  # without batches, heads are batches of one head
        mask = mask.expand(*lead, *mask.shape[-2:]).reshape(-1, *heads, *mask.shape[-2:])
    return masking(mask)


def fitting(mask: Any, scores: tuple[int, ...]) -> Any:
    """A mask with 2 axes or more, the last of full length.

    Args:
        mask: bool, or float.
        scores: shape that it broadcasts to.

    Raises:
        LayoutError: it does not.
    """
    check_tensor("sdpa", "attn_mask", mask)
    got = tuple(mask.shape)
    short = scores[max(0, len(scores) - len(got)) :]
    fits = 0 < len(got) <= len(scores) and all(
        x in (1, y) for x, y in zip(got, short, strict=True)
    )
    if not fits:
        raise LayoutError(f"sdpa: attn_mask broadcasts to the scores' shape {scores}, got {got}")
    if mask.ndim < 2 or got[-1] != scores[-1]:
        mask = mask.expand(*got[:-2], *(got[-2:-1] or (1,)), scores[-1])
    return mask


def masking(mask: Any) -> dict[str, Any]:
    """What a mask does, as options of attention: bool, True where a key is seen, or added.

    Where all queries have one row of it, that row is read; else bools are, as bytes, where they
    lie.
    """
    if mask.stride(-2) == 0:
        mask = mask[..., :1, :]
    of_keys = mask.shape[-2] == 1
    if mask.dtype != torch.bool:
        return {"bias": mask.float() if of_keys else mask}
    if of_keys:
        return {"mask_mod": (score_mods.seen_keys, mask[..., 0, :].to(torch.int32))}
    return {"mask_mod": (score_mods.seen, mask.view(torch.uint8))}


def _four(x: Any) -> Any:
    """(batch, heads, length, dim)."""
    if x.ndim == 4:
        return x
    return x.reshape(-1, *x.shape[-3:]) if x.ndim > 4 else x.reshape(-1, 1, *x.shape[-2:])


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
