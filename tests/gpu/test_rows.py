"""Rotary, norms and cross-entropy on a GPU: odd widths against float64, graphs, torch.compile."""

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402

import tilecat as tc  # noqa: E402
import tilecat.torch as tt  # noqa: E402
from tilecat.testing import poison  # noqa: E402

BF16 = 2.0**-7
WIDTHS = (1, 7, 100, 1000, 1023, 1024, 4096, 8192, 16384, 40000)


def randn(*shape, dtype=torch.bfloat16, grad=False):
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, device="cuda").to(dtype).requires_grad_(grad)


def close(got, expected, rounding=BF16):
    got, expected = got.detach().double(), expected.detach().double()
    assert (got - expected).norm() <= rounding * expected.norm() + 1e-5  # false of NaN


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rms", [False, True])
def test_norm_and_its_gradients(width: int, rms: bool):
    x, r, dy, dh = (randn(300, width + 8)[:, :width] for _ in range(4))
    x, r = (v.detach().requires_grad_() for v in (x, r))
    w, b = randn(width, dtype=torch.float32, grad=True), randn(width, grad=True)
    poison(torch.empty_like(dy), torch.empty_like(dy))  # freed, and taken for results
    y, h = tt.layer_norm_fn(x, w, b, r, 1e-3, prenorm=True, is_rms_norm=rms)
    ((y.float() * dy).sum() + (h.float() * dh).sum()).backward()
    exact = [v.detach().double().requires_grad_() for v in (x, w, b, r)]
    added = exact[0] + exact[3]
    if rms:
        normed = added * torch.rsqrt(added.square().mean(-1, keepdim=True) + 1e-3)
        out = normed * exact[1] + exact[2]
    else:
        out = F.layer_norm(added, (width,), exact[1], exact[2], 1e-3)
    ((out * dy.double()).sum() + (added * dh.double()).sum()).backward()
    close(y, out)
    close(h, added)
    if width > 1 or rms:  # of one column the gradient is that of the rounding of its mean
        for given, expected in zip((x, w, b, r), exact, strict=True):
            close(given.grad, expected.grad, 2 * BF16)


def test_dropout_keeps_its_rate_and_is_another_in_each_replay():
    x = torch.ones(4096, 1024, device="cuda", dtype=torch.bfloat16)
    _, h = tt.layer_norm_fn(x, dropout_p=0.25, prenorm=True)
    assert abs((h != 0).float().mean() - 0.75) < 2e-3
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, h = tt.layer_norm_fn(x, dropout_p=0.25, prenorm=True)
    graph.replay()
    one = h.clone()
    graph.replay()
    assert not torch.equal(one, h) and abs((h != 0).float().mean() - 0.75) < 2e-3


@pytest.mark.parametrize("width", [*WIDTHS, 32000, 128256, 151936])
@pytest.mark.parametrize("how", ["new", "backward", "forward"])
def test_cross_entropy_and_its_gradient(width: int, how: str):
    start = randn(70, width, dtype=torch.bfloat16, grad=True)
    target = torch.arange(70, device="cuda") * 7919 % width
    target[3] = -100
    x = start * 1
    poison(torch.empty_like(x))
    loss = tt.cross_entropy(x, target, inplace_backward=how == "backward",
                            inplace_forward=how == "forward")  # fmt: skip
    (2 * loss).backward()
    exact = start.detach().double().requires_grad_()
    expected = F.cross_entropy(exact, target)
    (2 * expected).backward()
    assert abs(loss.double() - expected) <= 1e-5 * max(1.0, float(expected.detach()))
    if width > 1:
        close(start.grad, exact.grad)


def turned(x, cos, sin, interleaved, first=0):
    half = cos.shape[1]
    c, s = (v[first : first + x.shape[-3], None].double() for v in (cos, sin))
    x = x.double()
    a, b = (x[..., i : 2 * half : 2] if interleaved else x[..., i * half : (i + 1) * half]
            for i in (0, 1))  # fmt: skip
    pairs = a * c - b * s, b * c + a * s
    made = torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, -1)
    return torch.cat((made, x[..., 2 * half :]), -1)


@pytest.mark.parametrize(("dim", "pairs", "interleaved"), [
    (128, 64, False), (128, 64, True), (64, 32, False), (96, 16, True), (80, 20, False),
    (256, 128, False), (33, 7, True),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rotary(dim: int, pairs: int, interleaved: bool, dtype):
    q, k = randn(2, 1000, 5, dim, dtype=dtype, grad=True), randn(2, 1000, 2, dim, dtype=dtype)
    angle = randn(1010, pairs, dtype=torch.float32) * 3
    cos, sin = angle.cos(), angle.sin()
    poison(torch.empty_like(q), torch.empty_like(k))
    a, b = tt.apply_rotary_qk(q, k, cos, sin, interleaved, seqlen_offsets=10)
    close(a, turned(q, cos, sin, interleaved, 10))
    close(b, turned(k, cos, sin, interleaved, 10))
    a.backward(q.detach())
    close(q.grad, turned(q.detach(), cos, -sin, interleaved, 10))
    x, starts = randn(333, 3, dim, dtype=dtype), torch.tensor([0, 0, 100, 101, 333])
    y = tc.apply_rotary(x, cos, sin, interleaved, cu_seqlens=starts.int().cuda(), max_seqlen=232)
    close(y, torch.cat([turned(p, cos, sin, interleaved) for p in x.split((100, 1, 232))]))


def test_layers_compile_and_replay():
    w, b = randn(256, grad=True), randn(256, grad=True)
    up = randn(512, 256, grad=True)
    angle = randn(64, 32, dtype=torch.float32)

    def step(x, target):
        y, h = tt.layer_norm_fn(x, w, b, prenorm=True)
        q = tt.apply_rotary(y.view(2, 64, 4, 64), angle.cos(), angle.sin()).reshape(x.shape)
        return tt.cross_entropy(tt.linear(q + h, up), target)

    x, target = randn(2, 64, 256), torch.randint(0, 512, (2, 64), device="cuda")
    expected = step(x, target)
    expected.backward()
    grads = [v.grad.clone() for v in (w, b, up)]
    for v in (w, b, up):
        v.grad = None
    loss = torch.compile(step, fullgraph=True)(x, target)
    loss.backward()
    close(loss, expected, 1e-3)
    for v, grad in zip((w, b, up), grads, strict=True):
        close(v.grad, grad)
    with torch.no_grad():
        step(x, target)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step(x, target)
        graph.replay()
    close(loss, expected, 1e-3)
