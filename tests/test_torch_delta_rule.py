"""The delta rule and Based as operators of torch: values, fake tensors, refused gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilecat as tc  # noqa: E402
import tilecat.torch as tct  # noqa: E402
from tilecat.errors import ScopeError  # noqa: E402


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
    a, b = (x[..., :16].transpose(1, 2) for x in (q, k))
    u = v[:, :, :1].transpose(1, 2)
    assert torch.equal(tct.parallel_based(a, b, u), tc.based(a, b, u)[0])


def test_operators_pass_torchs_checks():
    q, k, v, g, beta = tensors()
    ops = torch.ops.tilecat
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        ops.gated_delta_rule.default, (q, k, v, g, beta, None, None, 0.125, True, True),
        test_utils=tests,
    )  # fmt: skip
    a, u = q[..., :16].transpose(1, 2), v[:, :, :1].transpose(1, 2)
    torch.library.opcheck(
        ops.based.default, (a, a, u, None, 0.25, False, True), test_utils=tests
    )


def test_gradients_are_refused_by_name():
    q, k, v, g, beta = tensors()
    with pytest.raises(ScopeError, match="gated_delta_rule: has no gradients yet"):
        tct.chunk_gated_delta_rule(q.requires_grad_(), k, v, g, beta)
    with torch.no_grad():
        tct.chunk_gated_delta_rule(q, k, v, g, beta)
    a = q.detach()[..., :16].transpose(1, 2).requires_grad_()
    with pytest.raises(ScopeError, match="based: has no gradients yet"):
        tct.parallel_based(a, a, v[:, :, :1].transpose(1, 2))
