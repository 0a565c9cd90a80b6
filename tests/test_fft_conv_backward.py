"""Gradients of long convolution against the adjoint in float64."""

from __future__ import annotations

import numpy as np
import pytest
from test_fft_conv import LIMITS, error, exact, numbers

import tilecat as tc
from tilecat import bf16, f16


def gradients(dout, u, k, causal, in_gate=None, out_gate=None):
    """du, dk, d_in_gate, d_out_gate in float64."""
    ones = np.ones(u.shape)
    before, after = (ones if g is None else g.astype(np.float64) for g in (in_gate, out_gate))
    u64, grad = u.astype(np.float64), dout.astype(np.float64) * after
    length, taps = u.shape[-1], k.shape[-1]
    size = 2 * length if causal else length
    spectra = [np.fft.fft(x, size) for x in (grad, u64 * before, k.astype(np.float64))]
    dv = np.fft.ifft(spectra[0] * spectra[2].conj()).real[..., :length]
    dk = np.fft.ifft(spectra[0] * spectra[1].conj()).real.sum(0)[:, :taps]
    y = exact(u, k, causal, in_gate)
    return dv * before, dk, dv * u64, dout.astype(np.float64) * y


CASES = (
    (3, 3, 1024, 1024, True, bf16, False), (3, 2, 1024, 40, False, f16, True),
    (2, 2, 2048, 2048, True, f16, False), (3, 1, 2048, 2048, False, bf16, False),
    (2, 2, 4096, 4096, True, bf16, True), (3, 2, 4096, 4096, False, f16, False),
    (3, 3, 100, 100, False, f16, True), (5, 1, 700, 650, True, f16, False),
    (2, 1, 16, 16, False, f16, False), (1, 2, 8192, 30, True, f16, True),
    (3, 1, 5000, 5000, False, f16, False),
)  # fmt: skip


@pytest.mark.parametrize(("batch", "channels", "length", "taps", "causal", "dtype", "gated"), CASES)
def test_gradients_are_those_of_the_convolution(
    batch, channels, length, taps, causal, dtype, gated
):  # fmt: skip
    u, k = numbers(batch, channels, length, taps, dtype)
    dout, *gates = (numbers(batch, channels, length, 1, dtype, n)[0] for n in range(1, 4))
    before, after = gates if gated else (None, None)
    made = tc.fft_conv_backward(dout, u, k, causal=causal, in_gate=before, out_gate=after)
    wanted = gradients(dout, u, k, causal, before, after)
    for name, got, right in zip(("du", "dk", "d_in", "d_out"), made, wanted, strict=True):
        if name.startswith("d_") and not gated:
            assert got is None
            continue
        # Gates round their products, inputs and results: twice 2^-9 more at most.
        limit = LIMITS[dtype.name] * (1.6 if gated else 1)
        assert got.shape == right.shape and error(got, right) < limit, name


def test_only_wanted_gradients_are_made():
    u, k = numbers(1, 1, 64, 64, f16)
    du, dk, _, _ = tc.fft_conv_backward(u, u, k, wanted=("k",))
    assert du is None and dk.dtype == np.float32
    du, dk, _, _ = tc.fft_conv_backward(u, u, k, wanted=("u",))
    assert dk is None and du.dtype == np.float16
    assert not tc.fft_conv_backward(u[:0], u[:0], k)[1].any()
    with pytest.raises(tc.LayoutError, match="wanted is of u, k, in_gate, out_gate"):
        tc.fft_conv_backward(u, u, k, wanted=("w",))
    with pytest.raises(tc.LayoutError, match="fft_conv: dout is as u"):
        tc.fft_conv_backward(u[..., :63], u, k)
