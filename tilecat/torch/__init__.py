"""Operators for PyTorch: under autograd, torch.compile, CUDA graphs, checkpoints and autocast.

`import tilecat.torch` imports torch, which is optional; `import tilecat` does not.
"""

from .attention import attention
from .fft_conv import FFTConv, fft_conv
from .products import linear, matmul
from .sdpa import sdpa, sdpa_replaced

__all__ = ["FFTConv", "attention", "fft_conv", "linear", "matmul", "sdpa", "sdpa_replaced"]
