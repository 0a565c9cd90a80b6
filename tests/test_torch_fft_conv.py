"""`tilecat.torch.fft_conv` and `FFTConv`: gradients, spectra that are kept, and torch's checks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilecat as tc  # noqa: E402
import tilecat.torch as tt  # noqa: E402
from tilecat import fft_spectra  # noqa: E402


def randn(*shape, seed=0, dtype=torch.float16, grad=True):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return made.to(dtype).requires_grad_(grad)


def exact(u, k, causal=True, in_gate=None, out_gate=None, size=None):
    """In float64, differentiable."""
    length = u.shape[-1]
    u = u.double() if in_gate is None else u.double() * in_gate.double()
    size = size or (2 * length if causal else length)
    y = torch.fft.irfft(torch.fft.rfft(u, size) * torch.fft.rfft(k.double(), size), size)
    y = y[..., :length]
    return y if out_gate is None else y * out_gate.double()


def close(got, wanted, limit=1.6e-3):
    assert (got.double() - wanted).norm() < limit * wanted.norm()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [100, 1024])
def test_gradients_are_those_of_float64(causal, length):
    given = [randn(2, 3, length, seed=1), randn(3, 50, seed=2, dtype=torch.float32), causal,
             randn(2, 3, length, seed=3), randn(2, 3, length, seed=4)]  # fmt: skip
    grad = randn(2, 3, length, seed=5, grad=False)
    out = tt.fft_conv(*given)
    out.backward(grad)
    wide = [x.detach().double().requires_grad_() if torch.is_tensor(x) else x for x in given]
    wanted = exact(*wide)
    wanted.backward(grad.double())
    close(out, wanted)
    for x, y in zip(given, wide, strict=True):
        if torch.is_tensor(x):
            assert x.grad.dtype == x.dtype and x.grad.shape == x.shape
            close(x.grad, y.grad)


def test_gradients_of_some_alone():
    u, k, gate = randn(1, 1, 64), randn(1, 9, grad=False), randn(1, 1, 64, seed=2, grad=False)
    tt.fft_conv(u, k, out_gate=gate).sum().backward()
    assert u.grad is not None and k.grad is None and gate.grad is None
    u, k = u.detach(), k.float().requires_grad_()
    tt.fft_conv(u, k).float().sum().backward()
    assert k.grad.dtype == torch.float32


def test_a_spectrum_is_kept_until_its_filter_changes(monkeypatch):
    made = []
    original = fft_spectra._torch_spectrum
    monkeypatch.setattr(fft_spectra, "_torch_spectrum",
                        lambda *args: made.append(1) or original(*args))  # fmt: skip
    u, k = randn(1, 1, 64, grad=False), randn(1, 9, dtype=torch.float32, grad=False)
    first = tc.fft_conv(u, k)
    torch.testing.assert_close(tc.fft_conv(u, k), first, rtol=0, atol=0)
    assert len(made) == 1
    k.mul_(2)
    close(tc.fft_conv(u, k), 2 * first.double())
    assert len(made) == 2
    with torch.inference_mode():
        close(tc.fft_conv(u, k * 1), 2 * first.double())


def test_fft_conv_passes_the_checks_of_torch():
    u, k = randn(1, 2, 64), randn(2, 9, dtype=torch.float32)
    torch.library.opcheck(
        torch.ops.tilecat.fft_conv, (u, None, None, k, True, False),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )  # fmt: skip


@pytest.mark.parametrize(("length", "taps"), [(512, 512), (1024, 1024), (700, 1024), (900, 100)])
def test_the_module_convolves_in_a_circle_of_its_length(length, taps):
    u, k = randn(2, 2, length, grad=False), randn(2, taps, dtype=torch.float32, grad=False) / 16
    gates = randn(2, 2, length, seed=3, grad=False), randn(2, 2, length, seed=4, grad=False)
    conv = tt.FFTConv(1024, dtype=torch.float16)
    close(conv(u, k), exact(u, k, size=1024))
    close(conv(u, k, *gates), exact(u, k, True, *gates, size=1024))


def test_the_module_refuses():
    with pytest.raises(tc.LayoutError, match="FFTConv: seqlen is 1 to"):
        tt.FFTConv(1 << 20)
    with pytest.raises(tc.DTypeError, match="FFTConv: dtype is torch.bfloat16 or torch.float16"):
        tt.FFTConv(1024, torch.float32)
    conv = tt.FFTConv(1024, torch.float16)
    with pytest.raises(tc.DTypeError, match="FFTConv: u is torch.float16, as the module, got"):
        conv(randn(1, 1, 64, dtype=torch.bfloat16), randn(1, 9))
    with pytest.raises(tc.LayoutError, match="at most seqlen=1024 elements, got 2000 and 9"):
        conv(randn(1, 1, 2000), randn(1, 9))
