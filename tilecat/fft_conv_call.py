"""A call of long convolution by FFT: its arguments checked, a plan chosen, the kernel called."""

from __future__ import annotations

from typing import Any

from .array_arguments import check_devices
from .errors import DTypeError, LayoutError
from .fft_plans import LARGEST, LONGEST, Plan, plan_of
from .fft_spectra import spectrum_of, tables_of
from .kernels.fft_conv import SIDE, fft_conv_64
from .kernels.fft_conv_halves import OUTER, fft_conv_halves
from .kernels.fft_conv_long import fft_spread
from .kernels.fft_conv_quarters import fft_conv_quarters
from .kernels.fft_conv_short import fft_conv_32
from .runtime.arrays import ArrayView, empty, tma_ok, view

HALVES = ("bf16", "f16")
FILTERS = ("f32", "bf16", "f16")
AXES = "B x C x L"


def fft_conv(
    u: Any, k: Any, *, causal: bool = True, in_gate: Any = None, out_gate: Any = None,
    wide_range: bool = False,
) -> Any:  # fmt: skip
    """`y[b, c] = (k[c] * (u[b, c] in_gate[b, c])) out_gate[b, c]`, a filter a channel, by FFT.

    Causal: `y[n] = sum_m k[m] u[n - m]` over 0 <= m <= n. Circular: over all m, of indices modulo
    L. The transforms are products on the tensor cores, of plans of 1024, 2048 and 4096 (up to 32768
    in parts); other lengths take the next plan, zeros behind them.

    Args:
        u: B x C x L, bf16 or f16; L at most 32768. Circular lengths that are no plan's (1024, 2048,
            4096, 8192, 16384, 32768) are at most 16384. Lengths that are no multiple of 64 (32
            up to 1024) are copied, and arrays that TMA cannot reach (of no whole 16 bytes).
        k: C x Lk, f32, bf16 or f16; Lk from 1 to L.
        causal: linear, the first L elements; else circular of length L.
        in_gate, out_gate: B x C x L of u's dtype, or None: what u and the result are multiplied by.
        wide_range: values between the products are bf16, not f16: for spectra of u or k with
            elements beyond 65504 (of u divided by sqrt(L)), which become infinite, and y NaN, else.
            Its relative error is 3e-3 to 5e-3, else 2.5e-3 with bf16 and 7e-4 with f16.

    Returns:
        B x C x L of u's dtype. The spectrum of a torch tensor k is kept until k changes (as its
        `_version` says: writes through `k.data` do not count), and made again by each call that a
        CUDA graph captures while k wants gradients. CUDA arrays run on the GPU on the current
        stream, without waiting; NumPy arrays and CPU tensors run on the PTX machine.

    Raises:
        LayoutError: shapes that do not fit, a length without a plan. DTypeError: other dtypes.
        ResourceError: arrays on two devices; a CUDA array and no GPU.

    Example: `y = tc.fft_conv(u, k, in_gate=q, out_gate=v)`
    """
    array = check(u, k, {"in_gate": in_gate, "out_gate": out_gate})
    plan = plan_of("fft_conv", array.shape[2], causal)
    inner = "bf16" if wide_range else "f16"
    return convolve(plan, u, spectrum_of(plan, k, u, inner), in_gate, out_gate)


def check(u: Any, k: Any, gates: dict[str, Any]) -> ArrayView:
    """The view of u, once everything fits.

    Raises:
        LayoutError, DTypeError, ResourceError: it does not.
    """
    array, taps = view(u), view(k)
    for name, x, axes in (("u", array, AXES), ("k", taps, "C x Lk")):
        if len(x.shape) != axes.count("x") + 1:
            raise LayoutError(f"fft_conv: {name} is {axes}, got shape {tuple(x.shape)}")
    if array.dtype not in HALVES:
        raise DTypeError(f"fft_conv: u is {' or '.join(HALVES)}, got {array.dtype}",
                         hint="u.to(torch.bfloat16)")  # fmt: skip
    if taps.dtype not in FILTERS:
        raise DTypeError(f"fft_conv: k is {', '.join(FILTERS)}, got {taps.dtype}")
    length = array.shape[2]
    if taps.shape[0] != array.shape[1]:
        raise LayoutError(
            f"fft_conv: k has a filter for each channel of u, got {taps.shape[0]} and "
            f"{array.shape[1]} (u {tuple(array.shape)}, k {tuple(taps.shape)})",
            hint="one for all channels: k.expand(C, -1)",
        )
    if not 1 <= length <= LONGEST:
        raise LayoutError(f"fft_conv: L is 1 to {LONGEST}, got u with L={length}")
    if not 1 <= taps.shape[1] <= length:
        raise LayoutError(
            f"fft_conv: k has 1 to L={length} elements a channel, got {taps.shape[1]}",
            hint=f"k[:, :{length}]",
        )
    for name, gate in gates.items():
        if gate is not None:
            _check_gate(name, view(gate), array)
    check_devices("fft_conv", {"u": u, "k": k, **gates})
    return array


def _check_gate(name: str, gate: ArrayView, array: ArrayView) -> None:
    if gate.shape != array.shape or gate.dtype != array.dtype:
        raise LayoutError(
            f"fft_conv: {name} is as u, {array.dtype} {tuple(array.shape)}, got {gate.dtype} "
            f"{tuple(gate.shape)}",
            hint=f"{name}.expand({', '.join(map(str, array.shape))}).contiguous()",
        )


def convolve(plan: Plan, u: Any, spectrum: Any, in_gate: Any = None, out_gate: Any = None) -> Any:
    """The convolution with the filter of a spectrum that `spectrum_of` gave."""
    array = view(u)
    if not array.shape[0] or not array.shape[1]:
        return empty(u, array.shape, array.dtype)
    batch, channels, length = array.shape
    shape = (batch, channels, plan.whole(length) // plan.cols, plan.cols)
    out = empty(u, (batch, channels, plan.whole(length)), array.dtype)
    x, *gates = [rows_of(given, shape) for given in (u, in_gate, out_gate) if given is not None]
    inner, quarters = view(spectrum).dtype, plan.outer > OUTER
    tables = tables_of(plan, u, inner, quarters=quarters)
    gated = {"in_gate": in_gate is not None, "out_gate": out_gate is not None}
    kernel = fft_conv_64 if plan.rows == SIDE else fft_conv_32
    if plan.outer == OUTER:
        kernel, tables = fft_conv_halves, tables[1:]
    elif quarters:
        kernel, (tables, apart) = fft_conv_quarters, (tables[:3], tables[3:])
        gates.extend(apart)
    kernel(x, spectrum, *tables, out.reshape(shape), *gates, causal=plan.weighted, **gated,
           **params_of(plan, **gated))  # fmt: skip
    if plan.whole(length) == length:
        return out
    short = empty(u, array.shape, array.dtype)
    short[...] = out[..., :length]
    return short


def spread(plan: Plan, u: Any, dtype: str) -> Any:
    """Sequences as `fft_spread` makes them: real and imaginary parts x C x parts x 4096."""
    batch, channels, _ = view(u).shape
    pairs = batch if plan.weighted else -(-batch // 2)
    planes = empty(u, (2 * pairs, channels, plan.outer, LARGEST), dtype)
    fft_spread(u, planes, outer=plan.outer, causal=plan.weighted)
    return planes


def params_of(plan: Plan, *, in_gate: bool, out_gate: bool) -> dict[str, Any]:
    """What fits the shared memory and the registers of an SM."""
    gated = in_gate or out_gate
    if plan.outer == OUTER:
        return {"consumers": 1 if gated else 2}
    if plan.outer > OUTER:
        return {"outer": plan.outer}
    if plan.rows == SIDE:
        consumers = 3 if plan.weighted and not gated else 2
        return {"consumers": consumers, "stages": 1 if gated and not plan.weighted else 2}
    if plan.cols == 32:
        return {"cols": 32, "consumers": 2 if gated else 4}
    return {"cols": 64, "consumers": 2, "stages": 1 if gated else 2}


def rows_of(x: Any, shape: tuple[int, ...]) -> Any:
    """Sequences as matrices of rows: a view, or a copy with zeros behind them that TMA reaches."""
    array = view(x)
    batch, channels, rows, cols = shape
    if array.shape[2] == rows * cols and tma_ok(array, (2, 1, 0)) is None:
        return x.reshape(shape)
    whole = empty(x, (batch, channels, rows * cols), array.dtype)
    whole[..., : array.shape[2]] = x
    whole[..., array.shape[2] :] = 0
    return whole.reshape(shape)
