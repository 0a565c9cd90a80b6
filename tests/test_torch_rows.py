"""Operators on rows for torch: values and gradients against float64, compiled and not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tilecat.torch as tt  # noqa: E402
from tilecat.errors import LayoutError  # noqa: E402

ROUNDING = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 2.0**-18}


def randn(*shape: int, dtype=torch.bfloat16, grad: bool = True):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_(grad)


def close(got, expected) -> None:
    """Within two roundings of its dtype, of the largest element; a NaN is never close."""
    error = (got.double() - expected.double()).abs().max()
    limit = ROUNDING[got.dtype] * max(1.0, float(expected.abs().max()))
    assert error <= limit, f"{error:.3g} > {limit:.3g}"


def double(*tensors):
    return [None if x is None else x.detach().double().requires_grad_() for x in tensors]


def compiled(function, backend="aot_eager"):
    return torch.compile(function, fullgraph=True, backend=backend)


def turned(x, cos, sin, interleaved):
    half = cos.shape[1]
    c, s = (v[: x.shape[1], None].double() for v in (cos, sin))
    if interleaved:
        a, b = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
        pairs = torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)
    else:
        a, b = x[..., :half], x[..., half : 2 * half]
        pairs = torch.cat((a * c - b * s, b * c + a * s), -1)
    return torch.cat((pairs, x[..., 2 * half :]), -1)


@pytest.mark.parametrize("how", ["eager", "compiled", "inplace"])
def test_rotary_and_its_gradients(how: str):
    q, k = randn(2, 9, 3, 32), randn(2, 9, 1, 32)
    angle = randn(12, 8, dtype=torch.float32, grad=False) * 3
    cos, sin, interleaved = angle.cos(), angle.sin(), how == "compiled"
    weight = randn(2, 9, 3, 32, grad=False)

    def loss(q, k):
        if how == "inplace":
            q, k = q * 1, k * 1
        a, b = tt.apply_rotary_qk(q, k, cos, sin, interleaved, how == "inplace")
        c = tt.apply_rotary(a, cos, sin, interleaved, seqlen_offsets=2)
        return a, b, (c.float() * weight.float()).sum() + b.float().square().sum()

    a, b, total = (compiled(loss) if how == "compiled" else loss)(q, k)
    total.backward()
    q64, k64 = double(q, k)
    x, y = (turned(v, cos, sin, interleaved) for v in (q64, k64))
    z = turned(x, cos[2:], sin[2:], interleaved)
    ((z * weight.double()).sum() + y.square().sum()).backward()
    for got, expected in ((a, x), (b, y), (q.grad, q64.grad), (k.grad, k64.grad)):
        close(got.detach(), expected.detach())


def normed(x, w, b, r, rms):
    h = x if r is None else x + r
    if rms:
        y = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-5) * w
        return y if b is None else y + b, h
    return F.layer_norm(h, h.shape[-1:], w, b, 1e-5), h


@pytest.mark.parametrize(("dtype", "rms", "width", "residual", "compile_"), [
    (torch.bfloat16, False, 100, torch.bfloat16, False), (torch.float32, True, 7, None, False),
    (torch.bfloat16, True, 1030, torch.float32, False), (torch.float16, False, 64, None, True),
    (torch.bfloat16, False, 64, torch.bfloat16, True),
])  # fmt: skip
def test_norm_and_its_gradients(dtype, rms: bool, width: int, residual, compile_: bool):
    x, w = randn(3, 5, width, dtype=dtype), randn(width, dtype=torch.float32)
    b = None if rms else randn(width, dtype=torch.float32)
    r = None if residual is None else randn(3, 5, width, dtype=residual)
    dy, dh = randn(3, 5, width, grad=False).double(), randn(3, 5, width, grad=False).double() / 2

    def run(x, w, b, r):
        return tt.layer_norm_fn(x, w, b, r, eps=1e-5, prenorm=True, is_rms_norm=rms)

    y, h = (compiled(run) if compile_ else run)(x, w, b, r)
    ((y.double() * dy).sum() + (h.double() * dh).sum()).backward()
    exact = double(x, w, b, r)
    y64, h64 = normed(*exact, rms)
    ((y64 * dy).sum() + (h64 * dh).sum()).backward()
    assert h.dtype == (dtype if residual is None else residual)
    close(y.detach(), y64.detach())
    for given, expected in zip((x, w, b, r), exact, strict=True):
        if given is not None:
            # sums of 15 rows of what was rounded once or twice
            error = (given.grad.double() - expected.grad).norm() / expected.grad.norm()
            assert error <= 4 * max(ROUNDING[dtype], ROUNDING[given.dtype])


def test_dropout_is_the_same_back_and_forth():
    x = randn(64, 256, dtype=torch.float32)
    torch.manual_seed(0)
    y, h = tt.layer_norm_fn(x, dropout_p=0.25, prenorm=True, is_rms_norm=True)
    torch.manual_seed(0)
    again, _ = tt.layer_norm_fn(x, dropout_p=0.25, prenorm=True, is_rms_norm=True)
    other, _ = tt.layer_norm_fn(x, dropout_p=0.25, prenorm=True, is_rms_norm=True)
    kept = h != 0
    assert (y == again).all() and not (y == other).all()
    assert abs(kept.float().mean() - 0.75) < 0.02
    close(h.detach(), (x * kept / 0.75).detach())
    h.sum().backward()
    close(x.grad, kept / 0.75)


@pytest.mark.parametrize("how", ["eager", "compiled", "backward", "forward"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_and_its_gradient(how: str, reduction: str):
    start = randn(2, 4, 300, dtype=torch.float32)
    target = torch.arange(8).view(2, 4) * 37
    target[0, 1] = -100
    x = start * 1
    smooth = 0.1 if how == "eager" else 0.0

    def run(x):
        return tt.cross_entropy(x, target, reduction=reduction, label_smoothing=smooth,
                                inplace_backward=how == "backward",
                                inplace_forward=how == "forward")  # fmt: skip

    loss = (compiled(run) if how == "compiled" else run)(x)
    (3 * loss.sum()).backward()
    (exact,) = double(start)
    expected = F.cross_entropy(exact.view(8, 300), target.view(8), reduction=reduction,
                               label_smoothing=smooth)  # fmt: skip
    (3 * expected.sum()).backward()
    close(loss.detach(), expected.detach().view(loss.shape))
    close(start.grad, exact.grad)


def test_logits_that_a_gradient_replaced_are_not_read_again():
    start = randn(4, 64, dtype=torch.float32)
    x = start * 1
    other = x.square().sum()
    loss = tt.cross_entropy(x, torch.arange(4), inplace_forward=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (loss + other).backward()


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_linear_with_gelu(approximate: str):
    x, w, b = randn(2, 5, 64), randn(48, 64), randn(48)
    tt.linear_gelu(x, w, b, approximate).float().square().sum().backward()
    exact = double(x, w, b)
    y = F.gelu(F.linear(*exact), approximate=approximate)
    y.square().sum().backward()
    with torch.no_grad():
        close(tt.linear_gelu(x, w, b, approximate), y.detach())
    for given, expected in zip((x, w, b), exact, strict=True):
        error = (given.grad.double() - expected.grad).norm() / expected.grad.norm()
        assert error <= 2.0**-6


def test_linear_with_a_gate():
    x, w, b = randn(2, 5, 64), randn(48, 64), randn(48)
    gate, y = randn(2, 5, 48), randn(2, 5, 48)
    made = tt.linear_gate(x, w, b, gate, y)
    made.float().square().sum().backward()
    exact = double(x, w, b, gate, y)
    expected = F.linear(*exact[:3]) * exact[3] + exact[4]
    expected.square().sum().backward()
    close(made.detach(), expected.detach())
    for given, want in zip((x, w, b, gate, y), exact, strict=True):
        error = (given.grad.double() - want.grad).norm() / want.grad.norm()
        assert error <= 2.0**-6


def test_operators_on_rows_name_what_does_not_fit():
    with pytest.raises(LayoutError, match="weight has the shape"):
        tt.layer_norm_fn(randn(3, 8), randn(9))
    with pytest.raises(LayoutError, match="target has the shape of x without V"):
        tt.cross_entropy(randn(3, 8), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(LayoutError, match="cos is positions x R"):
        tt.apply_rotary(randn(1, 4, 2, 8), randn(4, 5), randn(4, 5))
