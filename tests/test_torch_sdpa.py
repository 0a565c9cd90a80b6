"""`tilecat.torch.sdpa`: the arguments of torch's function, and errors for what it does not do."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

from torch_exact import causal, close, exact, heads  # noqa: E402

import tilecat.torch as tt  # noqa: E402
from tilecat.errors import LayoutError, TileError  # noqa: E402

functional = torch.nn.functional
causal_bias = torch.nn.attention.bias


@pytest.mark.parametrize(
    "lead", [(), (2,), (1, 2), (2, 1, 2)], ids=["one head", "heads apart", "batch", "two batches"]
)
def test_sdpa_takes_any_axes_before_the_heads(lead):
    q, k, v = heads(*lead, 40, 32), heads(*lead, 72, 32, seed=1), heads(*lead, 72, 32, seed=2)
    mask = heads(*lead, 40, 72)
    for given in (None, mask):
        out = tt.sdpa(q, k, v, given)
        assert out.shape == q.shape and out.dtype == q.dtype
        wide = [x.double() for x in (q, k, v)]
        given = given if given is None else given.double()
        close(out, functional.scaled_dot_product_attention(*wide, given))


def test_sdpa_takes_scale_and_grouped_heads():
    q, k, v = heads(1, 4, 16, 32), heads(1, 2, 64, 32, seed=1), heads(1, 2, 64, 32, seed=2)
    out = tt.sdpa(q, k, v, None, 0.0, False, scale=0.3, enable_gqa=True)
    close(out, exact(q, k, v, scale=0.3))


def test_sdpa_is_causal_from_the_first_key():
    q, k, v = heads(1, 2, 40, 32), heads(1, 2, 72, 32, seed=1), heads(1, 2, 72, 32, seed=2)
    close(tt.sdpa(q, k, v, is_causal=True), exact(q, k, v, seen=causal(40, 72)))
    for variant, from_end in (("upper_left", False), ("lower_right", True)):
        bias = getattr(causal_bias, f"causal_{variant}")(40, 72)
        close(tt.sdpa(q, k, v, bias), exact(q, k, v, seen=causal(40, 72, from_end)))


@pytest.mark.parametrize("shape", [(40, 72), (1, 72), (2, 1, 40, 72), (2, 1, 1, 72), (72,)])
def test_sdpa_takes_masks_that_broadcast(shape):
    q, k, v = heads(2, 2, 40, 32), heads(2, 2, 72, 32, seed=1), heads(2, 2, 72, 32, seed=2)
    added = heads(*shape, seed=3)
    close(tt.sdpa(q, k, v, added), exact(q, k, v, added=added))
    seen = heads(*shape, seed=4) > 0
    close(tt.sdpa(q, k, v, seen), exact(q, k, v, seen=seen))


def test_a_query_without_a_key_gives_zero():
    q, seen = heads(1, 1, 16, 32), causal(16, 16)
    seen[3] = False
    out = tt.sdpa(q, q, q, seen)
    assert torch.equal(out[0, 0, 3], torch.zeros(32))
    close(out, exact(q, q, q, seen=seen))


def test_sdpa_has_the_arguments_of_torch():
    documented = functional.scaled_dot_product_attention.__doc__
    for name in inspect.signature(tt.sdpa).parameters:
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
    def function(q, mask):
        return functional.scaled_dot_product_attention(q, q, q, attn_mask=mask) + 1

    q, mask = heads(1, 1, 16, 32), causal(16, 16)
    with tt.sdpa_replaced():
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        for given in (None, mask):
            assert torch.equal(compiled(q, given), function(q, given))


def test_sdpa_does_not_fall_back():
    q = heads(1, 4, 16, 32)
    for options, rule in (
        ({"dropout_p": 0.1}, "dropout_p is 0: no probabilities are dropped"),
        ({"key": heads(1, 2, 16, 32)}, "as many heads"),
        ({"key": heads(2, 16, 32)}, "as many axes"),
        ({"key": heads(2, 4, 16, 32)}, "axes before the heads are equal"),
        ({"key": heads(1, 4, 16, 64)}, "q is B x H x Lq x D"),
        ({"attn_mask": causal(16, 17)}, r"broadcasts to the scores' shape \(1, 4, 16, 16\)"),
        ({"attn_mask": causal(16, 16), "is_causal": True}, "attn_mask or is_causal, got both"),
        ({"attn_mask": heads(16, 16, dtype=torch.float64)}, "bias"),
    ):
        with pytest.raises(TileError, match=rule):
            tt.sdpa(**{"query": q, "key": q, "value": q, **options})
