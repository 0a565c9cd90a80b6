"""`tilecat::fft_conv` and `tilecat::fft_conv_backward`, its gradients; a module like a peer's."""

from __future__ import annotations

import math
from typing import Any

from ..errors import DTypeError, LayoutError
from ..fft_conv_backward_call import ALL, fft_conv_backward
from ..fft_conv_call import fft_conv as fft_conv_forward
from ..fft_plans import LONGEST
from ..row_arguments import check_flag
from .library import check_tensor, define, packed, torch

_TENSORS = "Tensor u, Tensor? in_gate, Tensor? out_gate, Tensor k, bool causal, bool wide_range"


def fft_conv(
    u: Any, k: Any, causal: bool = True, in_gate: Any = None, out_gate: Any = None, *,
    wide_range: bool = False,
) -> Any:  # fmt: skip
    """`tilecat.fft_conv` as an operator of torch, with gradients of all four tensors.

    Args:
        u: B x C x L, bf16 or f16.
        k: C x Lk, f32, bf16 or f16; its gradient is summed over the batch in f32.
        causal, in_gate, out_gate, wide_range: see `tilecat.fft_conv`.

    Returns:
        B x C x L of u's dtype, contiguous.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.fft_conv`.
    """
    causal = check_flag("fft_conv", "causal", causal)
    wide = check_flag("fft_conv", "wide_range", wide_range)
    return _forward(u, in_gate, out_gate, k, causal, wide)


class FFTConv(torch.nn.Module):  # type: ignore[misc]
    """Convolution by FFTs of `seqlen`, called as FlashFFTConv is: `conv(u, k, pregate, postgate)`.

    u and k are filled with zeros to seqlen and convolved in a circle; y is as long as u. Where that
    wraps nothing around, as with u of at most half of seqlen, it is the causal convolution, which
    needs no zeros here.

    Args:
        seqlen: of the transform, at most 32768 (causal: 65536).
        dtype: of u.
    """

    def __init__(self, seqlen: int, dtype: Any = torch.bfloat16):
        super().__init__()
        if not isinstance(seqlen, int) or not 1 <= seqlen <= 2 * LONGEST:
            raise LayoutError(f"FFTConv: seqlen is 1 to {2 * LONGEST}, got {seqlen!r}")
        if dtype not in (torch.bfloat16, torch.float16):
            raise DTypeError(f"FFTConv: dtype is torch.bfloat16 or torch.float16, got {dtype}")
        self.seqlen = seqlen
        self.dtype = dtype

    def forward(self, u: Any, k: Any, pregate: Any = None, postgate: Any = None) -> Any:
        """`(k * (u pregate)) postgate`.

        Args:
            u, pregate, postgate: B x C x L of the module's dtype, L at most seqlen.
            k: C x Lk, f32; Lk at most seqlen.
        """
        given = {"u": u, "k": k, "pregate": pregate, "postgate": postgate}
        for name, x in given.items():
            if name in ("u", "k") or x is not None:
                check_tensor("FFTConv", name, x, axes=1)
        length, taps = u.shape[-1], k.shape[-1]
        if u.dtype != self.dtype:
            raise DTypeError(f"FFTConv: u is {self.dtype}, as the module, got {u.dtype}")
        if max(length, taps) > self.seqlen:
            raise LayoutError(f"FFTConv: u and k have at most seqlen={self.seqlen} elements, got "
                              f"{length} and {taps}")  # fmt: skip
        if taps <= self.seqlen - length + 1:
            return fft_conv(u, k[:, :length], True, pregate, postgate)
        gates = [None if gate is None else self._padded(gate) for gate in (pregate, postgate)]
        return fft_conv(self._padded(u), k, False, *gates)[..., :length]

    def _padded(self, x: Any) -> Any:
        return torch.nn.functional.pad(x, (0, self.seqlen - x.shape[-1]))


def _forward_kernel(
    u: Any, in_gate: Any, out_gate: Any, k: Any, causal: bool, wide_range: bool
) -> Any:
    return fft_conv_forward(
        u, k, causal=causal, in_gate=in_gate, out_gate=out_gate, wide_range=wide_range
    )


def _forward_fake(u: Any, *_: Any) -> Any:
    return u.new_empty(u.shape)


def _backward_kernel(
    dout: Any, u: Any, in_gate: Any, out_gate: Any, k: Any, causal: bool, wide_range: bool,
    wanted: str,
) -> Any:  # fmt: skip
    made = fft_conv_backward(
        dout, u, k, causal=causal, in_gate=in_gate, out_gate=out_gate, wide_range=wide_range,
        wanted=tuple(wanted.split()),
    )  # fmt: skip
    return tuple(u.new_empty(0) if x is None else x.contiguous() for x in made)


def _backward_fake(
    dout: Any, u: Any, in_gate: Any, out_gate: Any, k: Any, causal: bool, wide_range: bool,
    wanted: str,
) -> tuple[Any, ...]:  # fmt: skip
    names = wanted.split()
    made = [u.new_empty(u.shape if name in names else 0) for name in ALL]
    if "k" in names:
        made[1] = k.new_empty(k.shape, dtype=torch.float32)
    return tuple(made)


class _FFTConv(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, run: Any, u: Any, in_gate: Any, out_gate: Any, k: Any, causal: bool,
        wide_range: bool,
    ) -> Any:  # fmt: skip
        ctx.save_for_backward(u, in_gate, out_gate, k)
        ctx.options = causal, wide_range
        return run(u, in_gate, out_gate, k, causal, wide_range)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        u, in_gate, out_gate, k = ctx.saved_tensors
        asked = dict(zip(("u", "in_gate", "out_gate", "k"), ctx.needs_input_grad[1:5], strict=True))
        wanted = " ".join(name for name in ALL if asked[name])
        du, dk, d_in, d_out = _backward(
            packed(grad), u, in_gate, out_gate, k, *ctx.options, wanted
        )
        dk = dk.to(k.dtype) if asked["k"] else None
        shown = [x if asked[name] else None
                 for name, x in (("u", du), ("in_gate", d_in), ("out_gate", d_out))]  # fmt: skip
        return (None, *shown, dk, None, None)


def _flops(u: Any, *_: Any, **__: Any) -> int:
    """Of transforms as FFTs: 5 n log2 n each way."""
    return int(10 * math.prod(u) * math.log2(max(u[-1], 2)))


def _backward_flops(_: Any, u: Any, *__: Any, **___: Any) -> int:
    return 2 * _flops(u)


_forward = define(
    f"fft_conv({_TENSORS}) -> Tensor",
    _forward_kernel,
    _forward_fake,
    _FFTConv.apply,
    flops=_flops,
    cast=3,
)
_backward = define(
    f"fft_conv_backward(Tensor dout, {_TENSORS}, str wanted) -> (Tensor, Tensor, Tensor, Tensor)",
    _backward_kernel,
    _backward_fake,
    flops=_backward_flops,
)
