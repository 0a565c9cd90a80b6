"""An attention implementation for models of Hugging Face's transformers.

`tilecat.torch.transformers.register()`, then `from_config(config, attn_implementation="tilecat")`.
"""

from __future__ import annotations

from typing import Any

from ..errors import LayoutError
from .attention import attention
from .sdpa import fitting, masking, refuse_dropout

try:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import causal_mask_function, sdpa_mask
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
        "is_training", "labels", "num_items_in_batch", "past_key_values", "position_embeddings",
        "token_type_ids", "logits_to_keep",
    )
)  # fmt: skip


def register(name: str = "tilecat") -> None:
    """Makes `attn_implementation=name` choose tilecat's attention in any model.

    Args:
        name: under which transformers finds it; its masks are those of `mask_interface`.
    """
    AttentionInterface.register(name, attention_interface)
    AttentionMaskInterface.register(name, mask_interface)


def mask_interface(*args: Any, **options: Any) -> Any:
    """The mask that transformers makes for "sdpa", or None where a sliding window is all it says.

    The window is the layer's own then, which `attention_interface` is told of. Whether there is
    more, padding or a cache, is for transformers to say: it has no mask either where a model
    without a window would have none.

    Args:
        args, options: of transformers' `sdpa_mask`.
    """
    size, of_query = options.get("local_size"), options.get("q_length")
    if of_query is None and (positions := options.get("cache_position")) is not None:
        of_query = positions.shape[0]
    if not args and size is not None and of_query is not None and of_query > 1:
        plain = {**options, "local_size": None, "mask_function": causal_mask_function}
        if _slides(options.get("mask_function"), size) and sdpa_mask(**plain) is None:
            return None
    return sdpa_mask(*args, **options)


def _slides(function: Any, size: int) -> bool:
    """Whether a mask function of transformers is a causal window of so many keys, and no more."""
    causal, parts = causal_mask_function, _held(function).get("mask_functions", ())
    if _name(function) != "and_masks.<locals>.and_mask" or len(parts) != 2 or parts[1] != causal:
        return False
    return _name(parts[0]) == "sliding_window_overlay.<locals>.inner_mask" and (
        _held(parts[0]).get("sliding_window") == size
    )


def _name(function: Any) -> str:
    inside = getattr(function, "__module__", "") == causal_mask_function.__module__
    return str(function.__qualname__) if inside else ""


def _held(function: Any) -> dict[str, Any]:
    """What a function's closure holds."""
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars if cells else ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


def attention_interface(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None,
    dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None,
    softcap: float | None = None, s_aux: Any = None, position_bias: Any = None,
    sliding_window: int | None = None, **options: Any,
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
        position_bias: added to the scores; it gets a gradient.
        sliding_window: keys that a query sees, its own the last, where there is no mask and the
            layer is causal: a mask has the window in it.
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
    masks: dict[str, Any] = {}
    if causal and sliding_window:
        masks["window"] = sliding_window - 1, None
    if attention_mask is not None:
        masks = masking(fitting(attention_mask, scores))
    if position_bias is not None:
        position_bias = position_bias[..., : key.shape[2]]
        masks["bias"] = masks["bias"] + position_bias if "bias" in masks else position_bias
    out = attention(
        query, key, value, causal=causal, scale=scaling, softcap=softcap,
        sinks=None if s_aux is None else s_aux.float(), **masks,
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


__all__ = ["attention_interface", "mask_interface", "register"]
