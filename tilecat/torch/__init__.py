"""Operators for PyTorch: under autograd, torch.compile, CUDA graphs, checkpoints and autocast.

`import tilecat.torch` imports torch, which is optional; `import tilecat` does not.
"""

from .attention import attention
from .based import parallel_based
from .cross_entropy import cross_entropy
from .decode import attention_decode
from .delta_rule import chunk_delta_rule, chunk_gated_delta_rule
from .fft_conv import FFTConv, fft_conv
from .hedgehog import hedgehog
from .linear_maps import linear_gate, linear_gelu
from .norm import layer_norm_fn
from .products import linear, matmul
from .recurrences import (
    chunk_lightning_attn,
    chunk_linear_attn,
    chunk_simple_gla,
    mamba_chunk_scan_combined,
)
from .rotary import apply_rotary, apply_rotary_qk
from .sdpa import sdpa, sdpa_replaced

__all__ = [
    "FFTConv", "apply_rotary", "apply_rotary_qk", "attention", "attention_decode",
    "chunk_delta_rule", "chunk_gated_delta_rule", "chunk_lightning_attn", "chunk_linear_attn",
    "chunk_simple_gla",
    "cross_entropy", "fft_conv", "hedgehog", "layer_norm_fn", "linear", "linear_gate",
    "linear_gelu", "mamba_chunk_scan_combined", "matmul", "parallel_based", "sdpa",
    "sdpa_replaced",
]  # fmt: skip
