"""`tilecat.torch`'s products: values, gradients, and what torch's compiler sees of them."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilecat.torch as tt  # noqa: E402
from tilecat.errors import DTypeError, LayoutError, TileError  # noqa: E402

ROUNDING = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 2.0**-9}


def randn(*shape: int, dtype=torch.bfloat16, grad: bool = False):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_(grad)


def close(got, expected, dtype=None) -> None:
    """Within the rounding of its dtype, of the largest element; a NaN is never close."""
    expected = expected.detach()
    error = np.abs(got.detach().double().numpy() - expected.double().numpy()).max()
    limit = ROUNDING[dtype or got.dtype] * max(1.0, float(expected.abs().max()))
    assert error <= limit, f"{error:.3g} > {limit:.3g}"


def double(*tensors):
    """The same tensors in float64, as leaves."""
    return [x.detach().double().requires_grad_(x.requires_grad) for x in tensors]


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_matmul_and_its_gradients_are_those_of_float64(dtype):
    a, b = randn(40, 24, dtype=dtype, grad=True), randn(24, 33, dtype=dtype, grad=True)
    grad = randn(40, 33, dtype=dtype)
    out = tt.matmul(a, b)
    out.backward(grad)
    wide = double(a, b)
    expected = wide[0] @ wide[1]
    expected.backward(grad.double())
    assert (out.dtype, a.grad.dtype) == (dtype, dtype)
    close(out, expected)
    close(a.grad, wide[0].grad)
    close(b.grad, wide[1].grad)


def test_matmul_sums_gradients_of_axes_that_broadcast():
    a, b = randn(3, 17, 16, grad=True), randn(16, 24, grad=True)
    out = tt.matmul(a, b)
    out.sum().backward()
    wide = double(a, b)
    (wide[0] @ wide[1]).sum().backward()
    close(a.grad, wide[0].grad)
    close(b.grad, wide[1].grad)


def test_matmul_makes_only_the_gradients_that_are_asked_for():
    a, b = randn(16, 16), randn(16, 16, grad=True)
    out = tt.matmul(a, b)
    out.backward(torch.ones_like(out))
    assert a.grad is None
    close(b.grad, a.double().T @ torch.ones(16, 16).double())


def test_linear_and_its_gradients_are_those_of_float64():
    x, weight = randn(2, 9, 32, grad=True), randn(48, 32, grad=True)
    bias = randn(48, grad=True)
    out = tt.linear(x, weight, bias)
    grad = randn(2, 9, 48)
    out.backward(grad)
    wide = double(x, weight, bias)
    expected = torch.nn.functional.linear(*wide)
    expected.backward(grad.double())
    close(out, expected)
    for mine, other in zip((x, weight, bias), wide, strict=True):
        assert mine.grad.shape == other.grad.shape
        close(mine.grad, other.grad)


def test_results_may_be_written_in_place():
    x, weight = randn(2, 9, 32, grad=True), randn(48, 32, grad=True)
    out = tt.linear(x, weight)
    torch.relu_(out).sum().backward()
    torch.relu_(tt.matmul(x, weight.mT)).sum().backward()


def test_linear_without_bias():
    x, weight = randn(9, 32), randn(48, 32)
    close(tt.linear(x, weight), x.double() @ weight.double().T)


@pytest.mark.filterwarnings("ignore:Input #")
def test_gradcheck_in_f32():
    # Integers of few bits: tf32 and its sums are exact, and so are the numerical gradients.
    a, b = (torch.randint(-4, 5, shape).float().requires_grad_() for shape in ((3, 4), (4, 5)))
    assert torch.autograd.gradcheck(
        tt.matmul, (a, b), eps=0.5, atol=1e-3, rtol=1e-3, nondet_tol=0.0, fast_mode=False
    )
    x, weight, bias = (
        torch.randint(-4, 5, shape).float().requires_grad_() for shape in ((3, 4), (5, 4), (5,))
    )
    assert torch.autograd.gradcheck(
        tt.linear, (x, weight, bias), eps=0.5, atol=1e-3, rtol=1e-3, nondet_tol=0.0
    )


def test_operators_pass_the_checks_of_torch():
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    for grad in (False, True):
        arguments = randn(16, 16, grad=grad), randn(16, 24, grad=grad)
        torch.library.opcheck(torch.ops.tilecat.matmul.default, arguments, test_utils=checks)
        arguments = randn(2, 8, 16, grad=grad), randn(24, 16, grad=grad), None
        torch.library.opcheck(torch.ops.tilecat.linear.default, arguments, test_utils=checks)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_as_one_graph_forward_and_backward(dynamic):
    def loss(x, weight, bias):
        hidden = torch.relu(tt.linear(x, weight, bias))
        return tt.matmul(hidden, weight).float().square().mean()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (16, 24):
        given = randn(rows, 32, grad=True), randn(48, 32, grad=True), randn(48, grad=True)
        plain = [x.detach().clone().requires_grad_() for x in given]
        compiled(*given).backward()
        loss(*plain).backward()
        for mine, other in zip(given, plain, strict=True):
            close(mine.grad, other.grad)


def test_autocast_multiplies_in_its_dtype_and_gives_gradients_in_theirs():
    x, weight = randn(16, 32, dtype=torch.float32, grad=True), randn(24, 32, grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = tt.linear(x, weight.float())
        product = tt.matmul(x, weight.float().T)
    assert out.dtype == product.dtype == torch.bfloat16
    out.float().sum().backward()
    assert x.grad.dtype == torch.float32
    close(x.grad, weight.double().sum(0).expand(16, 32), torch.bfloat16)


def test_a_checkpoint_recomputes_the_same_gradients():
    x, weight = randn(16, 32, grad=True), randn(32, 32, grad=True)

    def block(x):
        return torch.relu(tt.linear(x, weight))

    torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sum().backward()
    found = x.grad, weight.grad
    x.grad = weight.grad = None
    block(x).sum().backward()
    assert torch.equal(found[0], x.grad) and torch.equal(found[1], weight.grad)


def test_bad_input_names_the_rule():
    with pytest.raises(LayoutError, match="extent K must agree"):
        tt.matmul(randn(16, 16), randn(24, 16))
    with pytest.raises(DTypeError, match="one dtype"):
        tt.matmul(randn(16, 16), randn(16, 16, dtype=torch.float16))
    with pytest.raises(TileError, match="extent K must agree"):
        tt.linear(randn(16, 16), randn(16, 24))
