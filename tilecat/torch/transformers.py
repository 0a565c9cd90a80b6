"""An attention implementation for models of Hugging Face's transformers.

`tilecat.torch.transformers.register()`, then `from_config(config, attn_implementation="tilecat")`.
"""

from __future__ import annotations

from typing import Any

from ..errors import LayoutError
from .attention import attention
from .sdpa import added, refuse_dropout

try:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
except ImportError as error:
    raise ImportError(
        "tilecat.torch.transformers needs Hugging Face's transformers, which is optional, 4.53 or "
        "newer: pip install transformers",
        name="transformers",
    ) from error

# What models pass along for other implementations, or to the layer around: it changes nothing here.
PASSED_ALONG = frozenset(
    (
        "cache_position", "position_ids", "use_cache", "output_hidden_states", "return_dict",
        "is_training", "labels", "num_items_in_batch", "sliding_window", "past_key_values",
        "position_embeddings", "token_type_ids", "logits_to_keep",
    )
)  # fmt: skip


def register(name: str = "tilecat") -> None:
    """Makes `attn_implementation=name` choose tilecat's attention in any model.

    Args:
        name: under which transformers finds it; the masks are those of its "sdpa".
    """
    AttentionInterface.register(name, attention_interface)
    AttentionMaskInterface.register(name, sdpa_mask)


def attention_interface(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None,
    dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None,
    softcap: float | None = None, s_aux: Any = None, position_bias: Any = None, **options: Any,
) -> tuple[Any, None]:  # fmt: skip
    """What transformers calls in each layer: its attention function.

    Args:
        module: the layer; `is_causal` of it counts where the argument is None.
        query: B x H x Lq x D, bf16 or f16.
        key: B x Hkv x Lk x D; Hkv divides H.
        value: B x Hkv x Lk x Dv.
        attention_mask: None, or what `F.scaled_dot_product_attention` takes.
        dropout: 0.
        scaling: of the scores; 1/sqrt(D) if None.
        is_causal: whether queries see no later key, where there is no mask.
        softcap: of the scores; None for none.
        s_aux: a sink's score for each head.
        position_bias: added to the scores; it gets no gradient.
        options: of the layer, which may not change what is computed.

    Returns:
        (B x Lq x H x Dv, None): the probabilities are never in memory.

    Raises:
        LayoutError: an option that would change the result; what `tilecat.torch.attention` refuses.
        DTypeError: dtypes other than bf16 and f16.
    """
    _refuse_unknown(options)
    refuse_dropout("attention_interface: dropout", dropout)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    if causal and key.shape[2] > query.shape[2]:  # the rest of a cache that is not filled yet
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    scores = (*query.shape[:3], key.shape[2])
    bias = None if attention_mask is None else added(attention_mask, scores, query.dtype)
    if position_bias is not None:
        position_bias = position_bias[..., : key.shape[2]]
        bias = position_bias if bias is None else bias + position_bias
    out = attention(
        query, key, value, causal=causal, scale=scaling, softcap=softcap, bias=bias,
        sinks=None if s_aux is None else s_aux.float(),
    )  # fmt: skip
    return out.transpose(1, 2), None


def _refuse_unknown(options: dict[str, Any]) -> None:
    """Options that other implementations take, and that change what is computed.

    Raises:
        LayoutError: there are some.
    """
    unknown = sorted(
        option for option, given in options.items()
        if option not in PASSED_ALONG and given is not None and given is not False
    )  # fmt: skip
    if unknown:
        raise LayoutError(
            f"attention_interface: knows nothing of {', '.join(unknown)}, got "
            + ", ".join(f"{option}={type(options[option]).__name__}" for option in unknown),
            hint='attn_implementation="eager" for this model',
        )


__all__ = ["attention_interface", "register"]
