"""Linear recurrences as operators of torch: gradients against float64, torch.compile, shapes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilecat.torch as tt  # noqa: E402

LIMIT, GRAD = 4e-3, 8e-3


def normal(*shape, seed=0, dtype=torch.bfloat16, grad=True):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_(grad)


def doubled(*tensors):
    return [None if x is None else x.detach().double().requires_grad_() for x in tensors]


def close(got, wanted, limit):
    error = (got.double() - wanted).norm() / wanted.norm()
    assert error <= limit, float(error)


def recurrence(q, k, v, g, state, scale):
    """Token by token; B x T x H x D."""
    out, s = [], state
    for t in range(q.shape[1]):
        s = s * g[:, t, :, None, None].exp() + k[:, t, :, :, None] * v[:, t, :, None, :]
        out.append(scale * (q[:, t, :, None] @ s)[..., 0, :])
    return torch.stack(out, 1), s


def given(length=70, heads=2):
    q, k, v = (normal(1, length, heads, 64, seed=i) for i in range(3))
    g = (-0.3 * torch.rand(1, length, heads)).requires_grad_()
    return q, k, v, g, normal(1, heads, 64, 64, seed=4, dtype=torch.float32)


def test_gradients_of_simple_gla():
    q, k, v, g, state = given()
    o, last = tt.chunk_simple_gla(q, k, v, g, scale=0.3, initial_state=state,
                                  output_final_state=True)  # fmt: skip
    do, ds = normal(*v.shape, seed=7, grad=False), normal(*state.shape, seed=8, grad=False)
    torch.autograd.backward([o, last], [do, ds.float()])
    wide = doubled(q, k, v, g, state)
    exact, exact_last = recurrence(*wide, 0.3)
    torch.autograd.backward([exact, exact_last], [do.double(), ds.double()])
    close(o, exact, LIMIT)
    close(last, exact_last, LIMIT)
    for mine, other in zip((q, k, v, g, state), wide, strict=True):
        close(mine.grad, other.grad, 2 * GRAD if mine is g else GRAD)


def test_linear_attention_is_normalised_by_default():
    q, k = (normal(1, 70, 2, 64, seed=i).detach().abs().requires_grad_() for i in range(2))
    v = normal(1, 70, 2, 64, seed=2)
    o, last = tt.chunk_linear_attn(q, k, v)
    o.sum().backward()
    wide = doubled(q, k, v)
    state, none = torch.zeros(1, 2, 64, 64).double(), torch.zeros(1, 70, 2).double()
    exact, _ = recurrence(*wide, none, state, 0.125)
    exact = exact / (0.125 * (wide[0] * wide[1].cumsum(1)).sum(-1, keepdim=True))
    exact.sum().backward()
    assert last is None
    close(o, exact, LIMIT)
    close(v.grad, wide[2].grad, GRAD)


def mamba_inputs():
    x, z = (normal(1, 70, 2, 64, seed=i) for i in range(2))
    b, c = (normal(1, 70, 1, 64, seed=i) for i in (2, 3))
    dt = normal(1, 70, 2, seed=4, dtype=torch.float32)
    a = -torch.exp(normal(2, seed=5, dtype=torch.float32, grad=False))
    skip, bias = (normal(2, seed=i, dtype=torch.float32) for i in (6, 7))
    return x, dt, a.requires_grad_(), b, c, skip, z, bias


def test_gradients_of_mamba():
    inputs = mamba_inputs()
    x, dt, a, b, c, skip, z, bias = inputs
    y = tt.mamba_chunk_scan_combined(x, dt, a, b, c, 64, D=skip, z=z, dt_bias=bias,
                                     dt_softplus=True)  # fmt: skip
    dy = normal(*x.shape, seed=9, grad=False)
    y.backward(dy)
    wide = doubled(*inputs)
    x64, dt64, a64, b64, c64, d64, z64, bias64 = wide
    steps = torch.nn.functional.softplus(dt64 + bias64)
    state = torch.zeros(1, 2, 64, 64).double()
    wide_b, wide_c = (t.expand(1, 70, 2, 64) for t in (b64, c64))
    exact, _ = recurrence(wide_c, wide_b, x64 * steps[..., None], steps * a64, state, 1.0)
    exact = (exact + d64[:, None] * x64) * torch.nn.functional.silu(z64)
    exact.backward(dy.double())
    close(y, exact, LIMIT)
    sums = a, bias  # of a head over all tokens, whose gradients cancel
    for mine, other in zip(inputs, wide, strict=True):
        close(mine.grad, other.grad, 5e-2 if any(mine is x for x in sums) else GRAD)


def test_shapes_without_data():
    q, k, v, g, _ = (x.detach().to("meta") for x in given())
    o, last = tt.chunk_simple_gla(q, k, v, g, output_final_state=True)
    assert o.shape == v.shape and last.shape == (1, 2, 64, 64) and last.dtype == torch.float32
    starts = torch.zeros(4, dtype=torch.int32, device="meta")
    _, last = tt.chunk_simple_gla(q, k, v, cu_seqlens=starts, output_final_state=True)
    assert last.shape == (3, 2, 64, 64)


def test_gradient_of_decays_of_heads():
    q, k, v, _, _ = given()
    gamma = torch.tensor([-0.5, -0.1], requires_grad=True)
    do = normal(*v.shape, seed=7, grad=False)
    tt.chunk_simple_gla(q, k, v, g_gamma=gamma, scale=0.3)[0].backward(do)
    wide = doubled(q, k, v, gamma)
    decays = wide[3].expand(1, 70, 2)
    recurrence(*wide[:3], decays, torch.zeros(1, 2, 64, 64).double(), 0.3)[0].backward(do.double())
    close(gamma.grad, wide[3].grad, 3e-2)  # a sum that cancels


@pytest.mark.slow
def test_operators_pass_torchs_own_tests():
    q, k, v, g, state = given(10)
    torch.library.opcheck(
        torch.ops.tilecat.simple_gla.default, (q, k, v, g, state, None, None, 0.3, True)
    )
