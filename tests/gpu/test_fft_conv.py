"""Long convolution on a GPU: lengths, gates, gradients against float64; graphs, torch.compile."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

import tilecat as tc  # noqa: E402
import tilecat.torch as tt  # noqa: E402

pytestmark = pytest.mark.gpu
BF16, F16 = torch.bfloat16, torch.float16
LIMITS = {BF16: 3.7e-3, F16: 1.05e-3}  # relative RMS errors, as tests/test_fft_conv.py has them
CASES = (
    (5, 301, 1024, 1024, True, BF16, 3), (16, 150, 1024, 1024, False, BF16, 0),
    (3, 133, 2048, 2048, True, F16, 1), (3, 133, 2048, 2048, False, BF16, 2),
    (3, 133, 4096, 4096, True, BF16, 0), (3, 133, 4096, 4096, False, F16, 3),
    (64, 140, 256, 256, True, BF16, 0), (7, 140, 1000, 33, False, BF16, 3),
    (2, 1, 16, 16, True, F16, 0),
    (3, 133, 8192, 8192, True, BF16, 0), (3, 70, 8192, 8192, False, F16, 3),
    (2, 40, 16384, 16384, True, BF16, 3), (2, 20, 32768, 32768, True, F16, 0),
    (3, 20, 32768, 32768, False, BF16, 1), (2, 7, 20001, 20001, True, BF16, 3),
    (2, 7, 9000, 9000, False, F16, 0),
)  # fmt: skip


def randn(*shape, dtype=torch.float32, grad=False, seed=0):
    generator = torch.Generator("cuda").manual_seed(sum(shape) + seed)
    made = torch.randn(*shape, generator=generator, device="cuda").to(dtype)
    return made.requires_grad_(grad)


def exact(u, k, causal, in_gate=None, out_gate=None):
    """In float64, differentiable."""
    u = u if in_gate is None else u * in_gate
    length = u.shape[-1]
    size = 2 * length if causal else length
    y = torch.fft.irfft(torch.fft.rfft(u, size) * torch.fft.rfft(k, size), size)[..., :length]
    return y if out_gate is None else y * out_gate


def error(got, wanted):
    wanted = wanted.detach()
    return float((got.detach().double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(("batch", "channels", "length", "taps", "causal", "dtype", "gates"), CASES)
def test_fft_conv_and_its_gradients(batch, channels, length, taps, causal, dtype, gates):
    shape = batch, channels, length
    given = [randn(*shape, dtype=dtype, grad=True),
             (randn(channels, taps) / taps**0.5).requires_grad_(),
             randn(*shape, dtype=dtype, grad=True, seed=1) if gates & 1 else None,
             randn(*shape, dtype=dtype, grad=True, seed=2) if gates & 2 else None]  # fmt: skip
    u, k, before, after = given
    y = tt.fft_conv(u, k, causal, before, after)
    wide = [x if x is None else x.detach().double().requires_grad_() for x in given]
    wanted = exact(wide[0], wide[1], causal, wide[2], wide[3])
    grad = randn(*shape, dtype=dtype, seed=3)
    y.backward(grad)
    wanted.backward(grad.double())
    limit = LIMITS[dtype] * (1.6 if gates else 1)
    assert error(y, wanted) < limit
    for x, w in zip(given, wide, strict=True):
        # A sum of few products may cancel: twice the limit there.
        assert x is None or error(x.grad, w.grad) < (limit if length > 99 else 2 * limit)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [256, 1000, 1024, 4096, 8192])
def test_impulses_at_many_places_leave_the_rest_silent(length, causal):
    places = torch.arange(0, length, max(1, length // 1024), device="cuda")
    u = torch.nn.functional.one_hot(places, length)[:, None].to(BF16)
    k = randn(1, length) / length**0.5
    y, wanted = tc.fft_conv(u, k, causal=causal), exact(u.double(), k.double(), causal)
    assert error(y, wanted) < LIMITS[BF16]
    silent = wanted.abs() < 1e-12  # causal: before the impulse
    # An impulse at the end sees little of the filter, but is rounded beside all of it.
    assert ((y.double().abs() <= 6e-3 * k.abs().max()) | ~silent).all()
    if causal:
        assert silent.any()


@pytest.mark.parametrize("causal", [True, False])
def test_sines_at_every_bin_and_constants(causal):
    at = torch.arange(1024, device="cuda").double() / 1024
    u = torch.cos(2 * torch.pi * torch.arange(513, device="cuda")[:, None] * at)[:, None].to(BF16)
    k = randn(1, 1024) / 32
    y, wanted = tc.fft_conv(u, k, causal=causal), exact(u.double(), k.double(), causal)
    assert error(y, wanted) < LIMITS[BF16]
    u, k = torch.full((3, 2, 1024), 100.0, device="cuda").to(BF16), torch.cat([k, k.flip(-1)])
    y, wanted = tc.fft_conv(u, k, causal=causal), exact(u.double(), k.double(), causal)
    assert error(y, wanted) < 2 * LIMITS[BF16]


def test_linear_shifted_gated_by_zero_and_half_empty_pairs():
    u, v, k = randn(3, 140, 1024), randn(3, 140, 1024, seed=1), randn(140, 1024) / 32
    u, v = (x.to(torch.float16) for x in (u, v))
    one, two, both = (tc.fft_conv(x, k, causal=False).double() for x in (u, v, u + v))
    assert error(both, one + two) < 2 * LIMITS[F16]
    assert error(tc.fft_conv(u.roll(77, -1), k, causal=False), one.roll(77, -1)) < 2 * LIMITS[F16]
    zero = torch.zeros_like(u)
    assert not tc.fft_conv(u, k, in_gate=zero).any() and not tc.fft_conv(u, k, out_gate=zero).any()
    u[:2] = 0  # the third has the second half of a pair for itself
    y = tc.fft_conv(u, k, causal=False)
    assert not y[:2].any() and error(y[2], one[2]) < LIMITS[F16]


class Block(torch.nn.Module):
    """A filter a channel, gated, after a product."""

    def __init__(self, channels=64, length=1024):
        super().__init__()
        self.filter = torch.nn.Parameter(randn(channels, length) / length**0.5)
        self.mix = torch.nn.Parameter(randn(channels, channels, seed=1) / channels**0.5)

    def forward(self, u):
        return tt.fft_conv(self.mix.to(u.dtype) @ u, self.filter, True, u, None)


def test_compiled_blocks_give_the_same():
    block, u = Block(), randn(4, 64, 1024, dtype=BF16)
    found = []
    for module in (block, torch.compile(block, fullgraph=True)):
        block.zero_grad(set_to_none=True)
        y = module(u)
        y.float().square().mean().backward()
        found.append([y, block.filter.grad, block.mix.grad])
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=2**-7, atol=1e-5)


def test_graphs_replay_training_steps():
    block, u = Block(), randn(4, 64, 1024, dtype=BF16)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = (block(u).float() - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
        before = [x.detach().clone() for x in block.parameters()]
        eager = [float(step().detach()) for _ in range(3)]
        with torch.no_grad():
            for x, old in zip(block.parameters(), before, strict=True):
                x.copy_(old)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    replayed = []
    for _ in range(3):  # the spectrum is made anew in each
        graph.replay()
        replayed.append(float(loss.detach()))
    assert replayed == pytest.approx(eager, rel=1e-3) and len(set(replayed)) == 3


def test_the_current_stream_is_used_and_nothing_waits():
    u, k = randn(2, 8, 4096, dtype=BF16), randn(8, 4096) / 64
    wanted = tc.fft_conv(u, k)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = tc.fft_conv(u, k)
    stream.synchronize()
    assert torch.equal(y, wanted)
    conv = tt.FFTConv(8192)
    assert error(conv(u, k), exact(u.double(), k.double(), True)) < LIMITS[BF16]
