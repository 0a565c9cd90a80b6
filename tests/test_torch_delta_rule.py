"""The delta rule as operators of torch: values, fake tensors, gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilecat as tc  # noqa: E402
import tilecat.torch as tct  # noqa: E402


def tensors(dtype=torch.bfloat16):
    """q, k, v, g, beta."""
    torch.manual_seed(0)
    q, k = (torch.randn(1, 70, 1, 64).to(dtype) for _ in "qk")
    v = torch.randn(1, 70, 2, 64).to(dtype)
    return q, k, v, -0.1 * torch.rand(1, 70, 2), torch.rand(1, 70, 2)


def test_operators_are_the_functions():
    q, k, v, g, beta = given = tensors()
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    o, state = tct.chunk_gated_delta_rule(*given, **options)
    wanted, last = tc.gated_delta_rule(*given, **options)
    assert torch.equal(o, wanted) and torch.equal(state, last)
    starts = torch.tensor([0, 30, 70])
    o, state = tct.chunk_delta_rule(q, k, v, beta, cu_seqlens=starts, **options)
    assert o.shape == v.shape and state.shape == (2, 2, 64, 64)


def test_operators_pass_torchs_checks():
    q, k, v, g, beta = tensors()
    ops = torch.ops.tilecat
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        ops.gated_delta_rule.default, (q, k, v, g, beta, None, None, 0.125, True, True),
        test_utils=tests,
    )  # fmt: skip


def recurrence(q, k, v, g, beta, state, scale):
    """Token by token, q and k over their norms; B x T x H x D."""
    group = v.shape[2] // q.shape[2]
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q, k = (x.repeat_interleave(group, 2) for x in (q, k))
    out, s = [], state
    for t in range(q.shape[1]):
        s = s * g[:, t, :, None, None].exp()
        new = beta[:, t, :, None] * (v[:, t] - (k[:, t, :, None] @ s)[:, :, 0])
        s = s + k[:, t, :, :, None] * new[:, :, None]
        out.append(scale * (q[:, t, :, None] @ s)[:, :, 0])
    return torch.stack(out, 1), s


def test_gradients():
    given = [*tensors(), torch.randn(1, 2, 64, 64)]
    leaves = [x.clone().requires_grad_() for x in given]
    o, last = tct.chunk_gated_delta_rule(
        *leaves[:5], 0.2, leaves[5], output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    do, ds = torch.randn_like(o), torch.randn_like(last)
    torch.autograd.backward([o, last], [do, ds])
    wide = [x.double().requires_grad_() for x in given]
    exact = recurrence(*wide, 0.2)
    torch.autograd.backward(exact, [do.double(), ds.double()])
    for name, mine, other in zip(("q", "k", "v", "g", "beta", "s"), leaves, wide, strict=True):
        error = float((mine.grad.double() - other.grad).norm() / other.grad.norm())
        assert error < (3e-2 if name == "g" else 8e-3), (name, error)


@pytest.mark.slow
def test_gradients_pass_torchs_checks():
    q, k, v, g, beta = tensors()
    torch.library.opcheck(
        torch.ops.tilecat.gated_delta_rule_backward.default,
        (v, q, k, v, g, beta, None, None, None, 0.125, True),
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip
