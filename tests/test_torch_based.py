"""Based as an operator of torch: values, fake tensors, gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilecat as tc  # noqa: E402
import tilecat.torch as tct  # noqa: E402


def tensors():
    """q, k, v, a first state."""
    torch.manual_seed(0)
    q, k = (torch.randn(1, 1, 70, 16).bfloat16() for _ in "qk")
    return q, k, torch.randn(1, 1, 70, 64).bfloat16(), torch.randn(1, 1, 160, 64)


def test_the_operator_is_the_function_and_passes_torchs_checks():
    q, k, v, _ = tensors()
    assert torch.equal(tct.parallel_based(q, k, v), tc.based(q, k, v)[0])
    ops, tests = torch.ops.tilecat, ("test_schema", "test_faketensor")
    torch.library.opcheck(ops.based.default, (q, k, v, None, 0.25, False, True), test_utils=tests)
    torch.library.opcheck(
        ops.based_backward.default, (v, q, k, v, None, None, 0.25, False), test_utils=tests
    )


def exact(q, k, v, state, norm):
    """In float64, of no state or from one; differentiable."""
    s = q @ k.mT / 4
    w = torch.tril(1 + s + s * s / 2)
    out = w @ v
    if state is None:
        return out / (w.sum(-1, keepdim=True) + 1e-6) if norm else out
    columns = []
    for what in tc.taylor_order():
        x = [q[..., i] / 2 for i in what if i >= 0]
        one = torch.full_like(q[..., 0], 0.5**0.5 if len(what) == 2 and what[0] == what[1] else 1.0)
        columns.append(0 * one if -1 in what else torch.stack([one, *x]).prod(0))
    return out + torch.stack(columns, -1) @ state


@pytest.mark.parametrize("norm", [False, True])
def test_gradients_are_those_of_the_definition(norm):
    *given, state = tensors()
    given = given if norm else [*given, state]
    given = [x.requires_grad_() for x in given]
    wide = [x.detach().double().requires_grad_() for x in given]
    do = torch.randn(1, 1, 70, 64).bfloat16()
    start = None if norm else given[3]
    tct.parallel_based(*given[:3], use_norm=norm, initial_state=start).backward(do)
    exact(*wide[:3], None if norm else wide[3], norm).backward(do.double())
    for mine, other in zip(given, wide, strict=True):
        error = (mine.grad.double() - other.grad).norm() / other.grad.norm()
        assert error < (8e-3 if norm else 4e-3), float(error)
