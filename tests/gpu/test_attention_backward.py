"""tc.attention_backward on a GPU against float64: 200 problems, packed batches, fixed orders."""

import math
import random

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import tilecat as tc  # noqa: E402
from tilecat import attention_backward_call  # noqa: E402

LIMIT = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}  # of norms: two roundings


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What the call allocates is NaN until it is written."""
    allocate = attention_backward_call.allocator

    def allocator(*args):
        make = allocate(*args)
        return lambda: make().fill_(float("nan") if args[2] != "s32" else -1)

    monkeypatch.setattr(attention_backward_call, "allocator", allocator)


def exact(q, k, v, dout, seen=None, score=lambda s: s):
    """Output, log-sum-exp and gradients in float64."""
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = (x.repeat_interleave(group, 1) for x in (k, v))
    s = score(q.shape[-1] ** -0.5 * q @ wide_k.mT)
    s = s if seen is None else s.masked_fill(~seen, -math.inf)
    lse = torch.logsumexp(s, -1)
    dead = torch.isinf(lse)[..., None]
    p = torch.where(dead, 0.0, torch.exp(s - torch.where(dead, 0.0, lse[..., None])))
    out = p @ wide_v
    out.backward(dout.double())
    return out.detach(), lse.detach(), *(torch.nan_to_num(x.grad) for x in (q, k, v))


def check(found, wanted):
    for got, want in zip(found, wanted, strict=True):
        assert not torch.isnan(got).any()
        size = want.norm() + 2e-2 * want.numel() ** 0.5  # of few numbers, roundings of O count more
        assert float((got.double() - want).norm() / size) < LIMIT[got.dtype]


def problems(count, seed=2026):
    """Lengths spread evenly over their logarithms, 1 to 1000; an edge and a change of scores."""
    rng = random.Random(seed)
    for _ in range(count):
        groups, group = rng.randint(1, 3), rng.choice((1, 1, 2, 3))
        lengths = tuple(round(1000 ** rng.random()) for _ in range(2))
        dtype = torch.float16 if rng.random() < 0.25 else torch.bfloat16
        dim = rng.choice((48, 64, 64, 96, 128, 128, 192, 256))
        yield (rng.randint(1, 2), groups * group, groups, *lengths, dim, dtype,
               rng.choice(("", "top-left", "bottom-right", "window", "both")), rng.randint(0, 200),
               rng.choice(("", "softcap", "bias", "alibi", "deterministic")))  # fmt: skip


def edge_of(name, far, i, j, shift):
    """Options, and which keys are seen."""
    return {
        "": ({}, None),
        "top-left": ({"causal": True}, j <= i),
        "bottom-right": ({"causal": "bottom-right"}, j <= i + shift),
        "window": ({"window": (far, 10)}, (j <= i + 10) & (j >= i - far)),
        "both": ({"window": (far, None), "causal": "bottom-right"},
                 (j <= i + shift) & (j >= i + shift - far)),
    }[name]  # fmt: skip


@pytest.mark.parametrize("problem", problems(200), ids=str)
def test_gradients_of_random_problems(problem):
    batch, heads, groups, queries, keys, dim, dtype, edge, far, change = problem
    torch.manual_seed(queries + keys)

    def normal(*shape):
        return torch.randn(*shape, device="cuda", dtype=dtype)

    q, dout = (normal(batch, heads, queries, dim) for _ in range(2))
    k, v = (normal(batch, groups, keys, dim) for _ in range(2))
    i, j = torch.arange(queries, device="cuda")[:, None], torch.arange(keys, device="cuda")[None]
    options, seen = edge_of(edge, far, i, j, keys - queries)
    bias, slopes = torch.randn(heads, queries, keys, device="cuda"), torch.rand(heads).cuda()
    more, score = {
        "softcap": ({"softcap": 3.0}, lambda s: 3 * torch.tanh(s / 3)),
        "bias": ({"bias": bias}, lambda s: s + bias),
        "alibi": ({"score_mod": (tc.score_mods.alibi, slopes)},
                  lambda s: s - (i - j).abs() * slopes[:, None, None].double()),
        "deterministic": ({"deterministic": True}, lambda s: s),
    }.get(change, ({}, lambda s: s))  # fmt: skip
    out, lse, *wanted = exact(q, k, v, dout, seen, score)
    given = dout, q, k, v, out.to(dtype), lse.float()
    found = tc.attention_backward(*given, **options, **more)
    check(found, wanted)
    if change == "deterministic":
        again = tc.attention_backward(*given, **options, **more)
        assert all(torch.equal(x, y) for x, y in zip(found, again, strict=True))


@pytest.mark.parametrize("causal", [False, "bottom-right"])
@pytest.mark.parametrize("dim", [64, 128])
def test_gradients_of_packed_batches(dim, causal):
    lengths, key_lengths = (100, 1, 300, 77, 0, 640), (130, 64, 300, 1, 5, 500)
    starts = [torch.tensor((0, *x)).cumsum(0).int().cuda() for x in (lengths, key_lengths)]

    def normal(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    q, dout = (normal(sum(lengths), 4, dim) for _ in range(2))
    k, v = (normal(sum(key_lengths), 2, dim) for _ in range(2))
    options = {"cu_seqlens_q": starts[0], "cu_seqlens_k": starts[1], "causal": causal}
    out, lse = tc.attention(q, k, v, return_lse=True, **options)
    dq, dk, dv = tc.attention_backward(dout, q, k, v, out, lse, **options)
    for n, (length, keys) in enumerate(zip(lengths, key_lengths, strict=True)):
        if not length:
            continue
        rows, cols = (slice(int(x[n]), int(x[n + 1])) for x in starts)
        i, j = torch.arange(length).cuda()[:, None], torch.arange(keys).cuda()[None]
        seen = j <= i + keys - length if causal else None
        one = (x.transpose(0, 1)[None] for x in (q[rows], k[cols], v[cols], dout[rows]))
        found = (x.transpose(0, 1)[None] for x in (dq[rows], dk[cols], dv[cols]))
        check(found, exact(*one, seen)[2:])
