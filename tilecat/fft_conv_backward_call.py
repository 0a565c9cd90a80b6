"""Gradients of long convolution by FFT: further convolutions, and sums of products of spectra."""

from __future__ import annotations

from typing import Any

from .errors import LayoutError
from .fft_conv_call import check, convolve, rows_of, spread
from .fft_plans import LARGEST, Plan, plan_of
from .fft_spectra import filter_from, spectrum_of, tables_of
from .kernels.fft_conv_filter import fft_filter_32, fft_filter_64
from .runtime.arrays import empty, view

CONSUMERS = 2  # whose sums are added
ALL = ("u", "k", "in_gate", "out_gate")


def fft_conv_backward(
    dout: Any, u: Any, k: Any, *, causal: bool = True, in_gate: Any = None, out_gate: Any = None,
    wide_range: bool = False, wanted: tuple[str, ...] = ALL,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """Gradients of `tc.fft_conv(u, k, ...)`, given dout of its result.

    The adjoint of a convolution is one with the conjugate spectrum, causal or circular alike:

        dv = k^H * (dout out_gate)            du = dv in_gate       d_in_gate = dv u
        dk[c, j] = sum_bn dout out_gate[b, c, n] (u in_gate)[b, c, n - j]
        d_out_gate = dout (k * (u in_gate))

    Args:
        dout: B x C x L, of u's dtype.
        u, k, causal, in_gate, out_gate, wide_range: as in the forward.
        wanted: which gradients are made: "u", "k", "in_gate", "out_gate"; others are None.

    Returns:
        du and those of gates, of u's dtype, and dk, f32 C x Lk: (du, dk, d_in_gate, d_out_gate);
        None for a gate that is not there. dk is summed in f32, in a fixed order. Arrays and
        devices as of `fft_conv`.

    Raises:
        LayoutError, DTypeError, ResourceError: as `fft_conv`.

    Example: `du, dk, _, _ = tc.fft_conv_backward(dout, u, k)`
    """
    array = check(u, k, {"in_gate": in_gate, "out_gate": out_gate, "dout": dout})
    unknown = set(wanted) - set(ALL)
    if unknown:
        raise LayoutError(f"fft_conv_backward: wanted is of {', '.join(ALL)}, got {wanted}")
    plan = plan_of("fft_conv", array.shape[2], causal)
    inner = "bf16" if wide_range else "f16"
    du, dk, d_in, d_out = None, None, None, None
    if "u" in wanted or (in_gate is not None and "in_gate" in wanted):
        conj = spectrum_of(plan, k, u, inner, conj=True)
        du = convolve(plan, dout, conj, in_gate=out_gate)
        if in_gate is not None:
            d_in, du = du * u, du * in_gate
    if "k" in wanted:
        x = u if in_gate is None else u * in_gate
        grad = dout if out_gate is None else dout * out_gate
        dk = _filter_gradient(plan, x, grad, view(k).shape[1], inner)
    if out_gate is not None and "out_gate" in wanted:
        d_out = dout * convolve(plan, u, spectrum_of(plan, k, u, inner), in_gate=in_gate)
    return du, dk, d_in, d_out


def _as_bf16(x: Any) -> Any:
    """Elements of the wide range, rounded to it."""
    if view(x).dtype == "bf16":
        return x
    made = empty(x, view(x).shape, "bf16")
    made[...] = x
    return made


def _filter_gradient(plan: Plan, u: Any, dout: Any, taps: int, inner: str) -> Any:
    """dk, f32 C x taps."""
    if inner == "bf16":  # of f16 they would need registers for both
        u, dout = (_as_bf16(x) for x in (u, dout))
    batch, channels, length = view(u).shape
    weighted = plan.weighted
    if plan.outer > 1 and batch and channels:
        u, dout = (spread(plan, x, inner) for x in (u, dout))
        weighted, length, batch = False, LARGEST, view(u).shape[0]
        u, dout = (x.reshape(batch, channels * plan.outer, length) for x in (u, dout))
    every = channels * plan.outer
    shape = (batch, every, plan.whole(length) // plan.cols, plan.cols)
    first, *rest = tables_of(plan, u, inner)
    wide = plan.rows == 64
    groups = every if wide else -(-channels // 2)
    sums = empty(u, (groups, CONSUMERS, 2, 64, plan.cols), "f32")
    if batch and channels:
        kernel = fft_filter_64 if wide else fft_filter_32
        params = {"outer": plan.outer} if wide else {"cols": plan.cols}
        kernel(rows_of(u, shape), rows_of(dout, shape), first, *rest[1:], sums, causal=weighted,
               **params)  # fmt: skip
    else:
        sums[...] = 0
    return filter_from(plan, sums, channels, taps)
