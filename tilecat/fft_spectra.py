"""Spectra of filters and tables of transforms, on the device and in the dtypes of a call.

A spectrum is made by the array library's own FFT, once: what torch tensors gave is kept until they
change. Products need it as the kernels' tiles lie.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import fft_tables
from .dtypes import by_name
from .errors import DTypeError
from .fft_plans import Plan
from .runtime.arrays import view

MAX_FILTERS = 1024  # whose spectra are kept


@dataclass
class _Kept:
    """What a filter of one version gave.

    Args:
        filter: the tensor, weakly.
        version: its own count of writes.
        place: where it lies.
        spectra: by plan, dtype, whether they are conjugated, and stream.
    """

    filter: Any
    version: int
    place: tuple[Any, ...]
    spectra: dict[tuple[Any, ...], Any] = field(default_factory=dict)


_kept: dict[int, _Kept] = {}


def _torch(x: Any) -> Any:
    """torch, where x is one of its tensors; None for NumPy arrays.

    Raises:
        DTypeError: an array of another library.
    """
    library = type(x).__module__.partition(".")[0]
    if library == "numpy":
        return None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return torch
    raise DTypeError(
        f"fft_conv: takes torch tensors and NumPy arrays, got {type(x).__name__}",
        hint="torch.as_tensor(x, device='cuda')",
    )


def spectrum_of(plan: Plan, k: Any, like: Any, dtype: str, *, conj: bool = False) -> Any:
    """The filter's spectrum as the plan's kernel takes it.

    Args:
        plan: of the transform.
        k: C x Lk.
        like: u, of whose library the result is.
        dtype: of the result.
        conj: conjugated, as gradients of u want it.
    """
    torch = _torch(like)
    if torch is None:
        return _numpy_spectrum(plan, np.asarray(k, np.float64), by_name(dtype).numpy, conj)
    if not isinstance(k, torch.Tensor):
        raise DTypeError(
            f"fft_conv: k is an array of u's library, got a tensor of torch and {type(k).__name__}",
            hint="torch.as_tensor(k)",
        )
    with torch.no_grad():
        kind = getattr(torch, by_name(dtype).torch)
        made = functools.partial(_torch_spectrum, torch, plan, k, kind, conj)
        kept = _kept_of(k)
        if kept is None:
            return made()
        key = plan, dtype, conj
        if k.is_cuda and torch.cuda.is_current_stream_capturing():
            # A graph's memory is its own, and a filter that is trained differs at each replay.
            found = [x for at, x in kept.spectra.items() if at[:3] == key and not k.requires_grad]
            return found[0] if found else made()
        # Another stream would have to wait for the one that made it.
        stream = torch.cuda.current_stream(k.device).cuda_stream if k.is_cuda else 0
        if (*key, stream) not in kept.spectra:
            kept.spectra[*key, stream] = made()
        return kept.spectra[*key, stream]


def _kept_of(k: Any) -> _Kept | None:
    """Where k's spectra are kept; None for a tensor that does not count its writes."""
    if k.is_inference():
        return None
    found, place = _kept.get(id(k)), (k.data_ptr(), k.shape, k.stride(), k.dtype)
    if found is None or found.filter() is not k or (found.version, found.place) != (
        k._version, place
    ):  # fmt: skip
        if len(_kept) >= MAX_FILTERS:
            _kept.clear()
        name = id(k)
        gone = weakref.ref(k, lambda _: _kept.pop(name, None))
        found = _kept[name] = _Kept(gone, k._version, place)
    return found


def _filter_parts(plan: Plan, taps: int) -> tuple[tuple[slice, slice], ...]:
    """Which elements of the filter go where in the transform's length."""
    whole = ((slice(0, taps), slice(0, taps)),)
    if not plan.period or taps == 1:
        return whole
    last = plan.length - plan.period
    return (*whole, (slice(last + 1, last + taps), slice(1, taps)))


def _numpy_spectrum(plan: Plan, k: np.ndarray, dtype: Any, conj: bool) -> np.ndarray:
    padded = np.zeros((k.shape[0], plan.length), np.complex128)
    for there, here in _filter_parts(plan, k.shape[1]):
        padded[:, there] = k[:, here]
    padded *= fft_tables.weight(np.arange(plan.length), plan.length, plan.weighted)
    found = np.fft.fft(padded)
    laid = _as_tiles(plan, found.conj() if conj else found)
    made = _in_order(plan, np.stack([laid.real, laid.imag], 1))
    with np.errstate(over="ignore"):  # to infinities, as a GPU does
        return np.ascontiguousarray(made.astype(dtype))


def _torch_spectrum(torch: Any, plan: Plan, k: Any, dtype: Any, conj: bool) -> Any:
    padded = torch.zeros((k.shape[0], plan.length), dtype=torch.float32, device=k.device)
    for there, here in _filter_parts(plan, k.shape[1]):
        padded[:, there] = k[:, here]
    if plan.weighted:
        found = torch.fft.fft(padded * _weights(plan, k.device))
    else:
        found = torch.fft.fft(padded)
    laid = _as_tiles(plan, found.conj() if conj else found)
    made = _in_order(plan, torch.stack([laid.real, laid.imag], 1))
    return made.to(dtype).contiguous()


def _in_order(plan: Plan, made: Any) -> Any:
    """Real and imaginary parts, [.., 2, rows, cols], as the plan's kernel reads them."""
    if plan.rows == fft_tables.SHORT:
        return fft_tables.grouped(made, plan.rows)
    if not plan.in_registers:
        return made
    return made.reshape(-1, 2, 1, plan.rows * plan.cols)[..., fft_tables.register_order()]


def _as_tiles(plan: Plan, spectrum: Any) -> Any:
    """[C, N] as [C, rows, cols], or as pairs of channels of the short plan.

    Of sequences in parts, channel c has as many spectra as parts: of frequencies q, Q + q, ...
    """
    channels = spectrum.shape[0] * plan.outer
    if plan.outer > 1:
        spectrum = spectrum.reshape(-1, plan.length // plan.outer, plan.outer).swapaxes(1, 2)
    laid = spectrum.reshape(channels, plan.cols, plan.rows).swapaxes(1, 2)
    if plan.rows != fft_tables.SHORT:
        return laid
    if channels % 2:
        library = sys.modules["torch"] if not isinstance(laid, np.ndarray) else np
        laid = library.concatenate([laid, library.zeros_like(laid[:1])])
    return laid.reshape(-1, 2, plan.rows, plan.cols)


def filter_from(plan: Plan, sums: Any, channels: int, taps: int) -> Any:
    """A filter's gradient, f32 C x taps, of products of unitary spectra as tiles have them.

    Args:
        plan: of the transforms.
        sums: f32, [C or pairs of channels, consumers, 2, 64, cols]: to be added.
        channels: C.
        taps: elements of the filter.
    """
    torch = _torch(sums)
    with contextlib.nullcontext() if torch is None else torch.no_grad():
        total = sums.sum(1)
        if plan.rows == fft_tables.SHORT:
            total = fft_tables.ungrouped(total, plan.rows)
            total = total.swapaxes(1, 2).reshape(-1, 2, plan.rows, plan.cols)[:channels]
        if torch is None:
            made = total[:, 0].astype(np.float64) + 1j * total[:, 1]
        else:
            made = torch.complex(total[:, 0].contiguous(), total[:, 1].contiguous())
        spectrum = made.swapaxes(-1, -2).reshape(channels, plan.outer, -1).swapaxes(1, 2)
        spectrum = spectrum.reshape(channels, plan.length)
        found = (np if torch is None else torch).fft.ifft(spectrum) * plan.length
        if plan.weighted:
            back = fft_tables.weight(np.arange(plan.length), plan.length, True)
            found = found * (back if torch is None else _weights(plan, sums.device)).conj()
        out = found.real.astype(np.float32) if torch is None else found.real
        (whole, _), *rest = _filter_parts(plan, taps)
        gradient = out[:, whole].copy() if torch is None else out[:, whole].clone()
        for there, here in rest:
            gradient[:, here] += out[:, there]
        return gradient


@functools.lru_cache(maxsize=64)
def _weights(plan: Plan, device: Any) -> Any:
    torch = sys.modules["torch"]
    weights = fft_tables.weight(np.arange(plan.length), plan.length, True)
    return torch.from_numpy(weights.astype(np.complex64)).to(device)


def tables_of(plan: Plan, like: Any, dtype: str, *, quarters: bool = False) -> tuple[Any, ...]:
    """Constants of the plan's kernel: the first in the dtype of u, the others in `dtype`.

    Args:
        plan: of the transform.
        like: u, of whose library and device they are.
        dtype: of the intermediates.
        quarters: those of `fft_conv_quarters`, whose third is f32.
    """
    array = view(like)
    device = array.device if _torch(like) is not None else None
    kinds = (dtype, dtype, "f32", dtype) if quarters else (array.dtype, *[dtype] * 3)
    return _tables(plan, kinds, device, quarters)


@functools.lru_cache(maxsize=256)
def _tables(
    plan: Plan, dtypes: tuple[str, ...], device: str | None, quarters: bool
) -> tuple[Any, ...]:
    if quarters:
        arrays = fft_tables.quarter_tables(plan.outer, plan.weighted)
    elif plan.rows == fft_tables.SHORT:
        arrays = fft_tables.grouped_tables(plan.rows, plan.cols, plan.weighted)
    else:
        arrays = fft_tables.plain_tables(plan.rows, plan.cols, plan.weighted, plan.outer)
    kinds = [by_name(name) for name, _ in zip(dtypes, arrays, strict=False)]
    if device is None:
        return tuple(np.ascontiguousarray(x.astype(kind.numpy))
                     for x, kind in zip(arrays, kinds, strict=True))  # fmt: skip
    torch = sys.modules["torch"]
    return tuple(  # rounded before they are copied, which the host waits for
        torch.from_numpy(np.ascontiguousarray(x)).to(getattr(torch, kind.torch)).to(device)
        for x, kind in zip(arrays, kinds, strict=True)
    )  # fmt: skip
