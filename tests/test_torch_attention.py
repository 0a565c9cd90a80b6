"""`tilecat.torch.attention`: gradients, functions of scores, and what torch's compiler sees."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import (  # noqa: E402
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from torch_exact import causal, close, double, exact, heads  # noqa: E402

import tilecat as tc  # noqa: E402
import tilecat.torch as tt  # noqa: E402
from tilecat.errors import LayoutError, TileError  # noqa: E402

GRAD = 2.0**-6


def qkv(queries=40, keys=72, dim=32, groups=1, grad=True, **more):
    shapes = (1, 2, queries, dim), (1, groups, keys, dim), (1, groups, keys, dim)
    return [heads(*shape, seed=i, grad=grad, **more) for i, shape in enumerate(shapes)]


def near(at, distance):
    return abs(at.queries - at.keys) <= distance


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({}, None),
        ({"causal": True, "scale": 0.3}, causal(40, 72)),
        ({"causal": "bottom-right"}, causal(40, 72, from_end=True)),
    ],
    ids=["all", "top-left", "bottom-right"],
)
def test_gradients_are_those_of_float64(options, seen):
    given, grad = qkv(), heads(1, 2, 40, 32, seed=9)
    out = tt.attention(*given, **options)
    out.backward(grad)
    wide = double(*given)
    expected = exact(*wide, scale=options.get("scale"), seen=seen)
    expected.backward(grad.double())
    close(out, expected)
    for mine, other in zip(given, wide, strict=True):
        close(mine.grad, other.grad, GRAD)


def test_out_lies_as_q_does():
    q = heads(1, 40, 2, 32).transpose(1, 2)
    out, lse = tt.attention(q, q, q, return_lse=True)
    assert out.transpose(1, 2).is_contiguous() and lse.shape == (1, 2, 40)
    assert out._base is None  # autograd forbids to write into views that come from functions
    close(out, exact(q, q, q))


def test_values_have_a_width_of_their_own():
    q, k = heads(1, 40, 2, 32).transpose(1, 2), heads(1, 2, 72, 32, seed=1)
    v = heads(1, 2, 72, 64, seed=2)
    out = tt.attention(q, k, v)
    assert out.transpose(1, 2).is_contiguous()
    close(out, exact(q, k, v))


def test_packed_batches_pass_through_the_operator():
    q, k, v = (heads(100, 2, 32, seed=i) for i in range(3))
    starts = torch.tensor([0, 37, 100], dtype=torch.int32)

    def packed(q, k, v, starts):
        return tt.attention(
            q, k, v, causal=True, cu_seqlens_q=starts, cu_seqlens_k=starts, return_lse=True
        )

    compiled = torch.compile(packed, fullgraph=True, backend="aot_eager")
    for out, lse in (packed(q, k, v, starts), compiled(q, k, v, starts)):
        assert lse.shape == (2, 100)
        for first, last in ((0, 37), (37, 100)):
            rows = [x[first:last].transpose(0, 1)[None] for x in (q, k, v)]
            seen = causal(last - first, last - first)
            close(out[first:last].transpose(0, 1)[None], exact(*rows, seen=seen))


@pytest.mark.parametrize("shape", [(40, 72), (1, 2, 40, 72), (1, 72)], ids=str)
def test_a_bias_has_a_gradient(shape):
    given, bias = qkv(), heads(*shape, seed=5, grad=True)
    out, grad = tt.attention(*given, bias=bias), heads(1, 2, 40, 32, seed=3)
    out.backward(grad)
    *wide, added = double(*given, bias)
    exact(*wide, added=added).backward(grad.double())
    for mine, other in zip((*given, bias), (*wide, added), strict=True):
        assert mine.grad.dtype == mine.dtype
        close(mine.grad, other.grad, GRAD)


def test_sinks_have_a_gradient():
    given, sinks = qkv(), heads(2, dtype=torch.float32, grad=True)
    out, grad = tt.attention(*given, sinks=sinks), heads(1, 2, 40, 32, seed=3)
    out.backward(grad)
    *wide, wide_sinks = double(*given, sinks)
    exact(*wide, sinks=wide_sinks).backward(grad.double())
    close(sinks.grad, wide_sinks.grad, GRAD)
    close(given[1].grad, wide[1].grad, GRAD)


def test_functions_of_scores_pass_through_the_operator():
    q, k, v = qkv(grad=False)
    slopes = torch.tensor([0.5, 0.25])
    distance = (torch.arange(40)[:, None] - torch.arange(72)).abs()
    options = {"score_mod": (tc.score_mods.alibi, slopes), "mask_mod": (near, 20)}
    expected = exact(q, k, v, added=-distance * slopes[:, None, None], seen=distance <= 20)
    close(tt.attention(q, k, v, **options), expected)
    compiled = torch.compile(
        lambda q, k, v, slopes: tt.attention(
            q, k, v, score_mod=(tc.score_mods.alibi, slopes), mask_mod=(near, 20)
        ),
        fullgraph=True,
        backend="aot_eager",
    )
    close(compiled(q, k, v, slopes), expected)
    with pytest.raises(LayoutError, match="got arguments of functions with requires_grad"):
        q.requires_grad_()
        tt.attention(q, k, v, score_mod=(tc.score_mods.alibi, slopes.requires_grad_()))
    with pytest.raises(LayoutError, match="tensors and numbers, got str"):
        tt.attention(q, k, v, mask_mod=(near, "far"))


def test_functions_of_one_name_are_told_apart():
    def limit(distance):
        def near(at):
            return abs(at.queries - at.keys) <= distance

        return near

    q, k, v = qkv(grad=False)
    distance = (torch.arange(40)[:, None] - torch.arange(72)).abs()
    for far in (3, 30):
        close(tt.attention(q, k, v, mask_mod=limit(far)), exact(q, k, v, seen=distance <= far))


def test_operators_pass_the_checks_of_torch():
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    options = (None, None, None, None, [], 0.2, "", None, None, None, "")
    for grad in (False, True):
        given = qkv(16, 24, grad=grad)
        forward = torch.ops.tilecat.attention_forward.default
        torch.library.opcheck(forward, (*given, *options), test_utils=checks)
    with torch.no_grad():
        out, lse = forward(*given, *options)
        torch.library.opcheck(
            torch.ops.tilecat.attention_backward.default,
            (out, *(x.detach() for x in given), out, lse, *options, False, False, False),
            test_utils=("test_schema", "test_faketensor"),
        )


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_as_one_graph_forward_and_backward(dynamic):
    def loss(q, k, v):
        return tt.attention(q * 2, k, v).float().square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for queries in (16, 24):
        given, plain = qkv(queries, 24), qkv(queries, 24)
        compiled(*given).backward()
        loss(*plain).backward()
        for mine, other in zip(given, plain, strict=True):
            assert torch.equal(mine.grad, other.grad)


def test_autocast_computes_in_its_dtype():
    given = qkv(16, 24, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = tt.attention(*given)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    wide = double(*given)
    exact(*wide).sum().backward()
    assert given[0].grad.dtype == torch.float32
    close(given[2].grad, wide[2].grad, GRAD)


def test_a_checkpoint_recomputes_the_same_gradients():
    given, plain = qkv(16, 24), qkv(16, 24)
    checkpoint(tt.attention, *given, use_reentrant=False).sum().backward()
    tt.attention(*plain).sum().backward()
    for mine, other in zip(given, plain, strict=True):
        assert torch.equal(mine.grad, other.grad)


def test_a_checkpoint_may_keep_what_the_operator_gave():
    operator, given, plain = torch.ops.tilecat.attention_forward.default, qkv(16, 24), qkv(16, 24)
    seen = []

    def policy(context, op, *args, **kwargs):
        seen.append(op)
        keep = op == operator
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    out = checkpoint(
        lambda *x: tt.attention(*x) * 2, *given, use_reentrant=False, context_fn=contexts
    )
    out.sum().backward()
    (tt.attention(*plain) * 2).sum().backward()
    assert operator in seen
    for mine, other in zip(given, plain, strict=True):
        assert torch.equal(mine.grad, other.grad)


def test_a_profiler_sees_the_operator():
    q = heads(1, 1, 16, 32)
    with torch.profiler.profile() as profile:
        tt.attention(q, q, q)
    assert "tilecat::attention_forward" in {event.key for event in profile.key_averages()}


def test_deterministic_algorithms_reach_the_backward(monkeypatch):
    module = tt.attention.__globals__
    backward, asked = module["attention_backward"], []

    def noted(*args, deterministic, **options):
        asked.append(deterministic)
        return backward(*args, **options)

    monkeypatch.setitem(module, "attention_backward", noted)
    for wanted in (False, True):
        torch.use_deterministic_algorithms(wanted)
        try:
            tt.attention(*qkv(16, 24)).sum().backward()
        finally:
            torch.use_deterministic_algorithms(False)
    assert asked == [False, True]


def test_meta_tensors_and_counted_operations():
    q, k, v = qkv(grad=False)
    meta = [x.to("meta") for x in (q, k, v)]
    assert tt.attention(*meta).shape == q.shape and tt.attention(*meta).is_meta
    with FlopCounterMode(display=False) as counter:
        tt.attention(q, k, v)
        tt.matmul(q, k.mT)
    assert counter.get_total_flops() == 2 * 40 * 72 * 32 * (4 + 2)


def test_bad_input_names_the_rule():
    q, k, v = qkv(16, 24)
    with pytest.raises(LayoutError, match="causal is False, True"):
        tt.attention(q, k, v, causal="left")
    with pytest.raises(LayoutError, match="causal is False, True"):
        tt.attention(q, k, v, causal=[1])
    with pytest.raises(LayoutError, match=r"window is \(left, right\)"):
        tt.attention(q, k, v, window=7)
    with pytest.raises(TileError, match="k is a tensor of torch, got ndarray"):
        tt.attention(q, k.detach().float().numpy(), v)
    with pytest.raises(TileError, match="q is B x H x Lq x D"):
        tt.attention(q, k, v[:, :, :3])
    with pytest.raises(TileError, match="one dtype, bf16, f16"):
        tt.attention(q.float(), k.float(), v.float())
    out = tt.attention(q, k, v)
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(LayoutError, match="gradients have no gradients"):
        (grad.sum() + out.sum()).backward()
