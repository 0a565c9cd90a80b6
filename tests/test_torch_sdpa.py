"""`tilecat.torch.sdpa`: the arguments of torch's function, and errors for what it does not do."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilecat.torch as tt  # noqa: E402
from tilecat.errors import LayoutError  # noqa: E402

functional = torch.nn.functional


def heads(*shape: int, dtype=torch.bfloat16, seed: int = 0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got, expected, rounding: float = 2.0**-7) -> None:
    error = np.abs(got.detach().double().numpy() - expected.detach().double().numpy()).max()
    assert error <= rounding * max(1.0, float(expected.abs().max())), f"{error:.3g}"


def exact(q, k, v, **options):
    return functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), **options)


@pytest.mark.parametrize(
    "lead", [(), (2,), (1, 2), (2, 1, 2)], ids=["one head", "heads apart", "batch", "two batches"]
)
def test_sdpa_takes_any_axes_before_the_heads(lead):
    q, k, v = heads(*lead, 40, 32), heads(*lead, 72, 32, seed=1), heads(*lead, 72, 32, seed=2)
    out = tt.sdpa(q, k, v)
    assert out.shape == q.shape and out.dtype == q.dtype
    close(out, exact(q, k, v))


def test_sdpa_takes_scale_and_grouped_heads():
    q, k, v = heads(1, 4, 16, 32), heads(1, 2, 64, 32, seed=1), heads(1, 2, 64, 32, seed=2)
    out = tt.sdpa(q, k, v, None, 0.0, False, scale=0.3, enable_gqa=True)
    close(out, exact(q, k, v, scale=0.3, enable_gqa=True))


def test_sdpa_has_the_arguments_of_torch():
    documented = functional.scaled_dot_product_attention.__doc__
    ours = inspect.signature(tt.sdpa)
    for name in ours.parameters:
        assert name in documented


def test_sdpa_stands_in_for_torchs_function():
    before = functional.scaled_dot_product_attention
    q = heads(1, 1, 16, 32)
    with tt.sdpa_replaced():
        assert functional.scaled_dot_product_attention is tt.sdpa
        out = functional.scaled_dot_product_attention(q, q, q)
        with pytest.raises(LayoutError):
            functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert functional.scaled_dot_product_attention is before
    assert torch.equal(out, tt.sdpa(q, q, q))


def test_sdpa_compiles_as_one_graph():
    def function(q):
        return tt.sdpa(q, q, q) + 1

    q = heads(1, 1, 16, 32)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q), function(q))
    with tt.sdpa_replaced():
        compiled = torch.compile(
            lambda q: functional.scaled_dot_product_attention(q, q, q) + 1,
            fullgraph=True,
            backend="aot_eager",
        )
        assert torch.equal(compiled(q), function(q))


def test_sdpa_does_not_fall_back():
    q = heads(1, 4, 16, 32)
    for options, rule in (
        ({"dropout_p": 0.1}, "drops no probabilities, got dropout_p=0.1"),
        ({"key": heads(1, 2, 16, 32)}, "as many heads"),
        ({"key": heads(2, 16, 32)}, "as many axes"),
        ({"key": heads(2, 4, 16, 32)}, "axes before the heads are equal"),
        ({"key": heads(1, 4, 16, 64)}, "D"),
    ):
        with pytest.raises(LayoutError, match=rule):
            tt.sdpa(**{"query": q, "key": q, "value": q, **options})


def test_operators_pass_the_checks_of_torch():
    q = heads(1, 2, 16, 32)
    torch.library.opcheck(
        torch.ops.tilecat.attention_forward.default,
        (q, q, q, 0.2),
        test_utils=("test_schema", "test_faketensor"),
    )
