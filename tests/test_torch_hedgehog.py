"""Gradients of `tilecat.torch.hedgehog` against float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch_exact import exact_hedgehog, heads  # noqa: E402

import tilecat.torch as tt  # noqa: E402

GRAD = 8e-3  # three scans of 16-bit operands, and a rounding
FACTORS = 5e-2  # of alpha and beta: sums over tokens that cancel
F32 = torch.float32


def given(length, count, groups, dim, dtype=torch.bfloat16):
    """q, k, v, qmap, kmap, alpha, beta, kv_state, k_state."""
    q, k, v = (heads(1, n, length, dim, seed=i, dtype=dtype) for i, n in
               enumerate((count, groups, groups)))  # fmt: skip
    maps = (heads(count, dim, 64, seed=i, dtype=dtype) * dim**-0.5 for i in (3, 4))
    factors = (0.2 + heads(count, seed=i, dtype=F32).sigmoid() for i in (5, 6))
    kv, ks = (heads(1, count, 128, *more, dtype=F32) for more in ((dim,), ()))
    return [q, k, v, *maps, *factors, kv, 1 + ks.sigmoid()]


def gradients(call, leaves, grads):
    """Of what the call makes, given its gradients; None where there is none."""
    leaves = [x.detach().requires_grad_() for x in leaves]
    made = call(*leaves[:7], leaves[7:] or None)
    grads = [dy.to(y.dtype) for y, dy in zip(made, grads, strict=True)]
    return torch.autograd.grad(made, leaves, grads)


def mine(*args):
    return tt.hedgehog(*args[:7], initial_state=args[7])


@pytest.mark.parametrize(
    ("shape", "states"),
    [((150, 2, 1, 64), True), pytest.param((200, 1, 1, 128), False, marks=pytest.mark.slow)],
)
def test_gradients_against_float64(shape, states):
    """Two heads share keys; the first states, and what comes back to the last ones."""
    inputs = given(*shape)[: 9 if states else 7]
    grads = [heads(*y.shape, seed=9, dtype=y.dtype) for y in mine(*inputs[:7], inputs[7:] or None)]
    found = gradients(mine, inputs, grads)
    wanted = gradients(exact_hedgehog, [x.double() for x in inputs], grads)
    for made, exact in zip(found, wanted, strict=True):
        error = (made.double() - exact).norm() / exact.norm()
        assert made.shape == exact.shape
        assert error <= (FACTORS if made.ndim == 1 else GRAD), float(error)


def test_gradients_that_nobody_asks_for_are_none():
    q, *rest = given(70, 1, 1, 64)[:7]
    q.requires_grad_()
    _, kv, _ = tt.hedgehog(q, *rest)
    assert kv.requires_grad
    kv.sum().backward()  # of keys and values alone
    assert q.grad is None or not q.grad.any()
