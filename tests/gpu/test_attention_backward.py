"""tc.attention_backward on a GPU against float64: 200 problems, packed batches, biases, sinks."""

import random

import numpy as np
import pytest
from gradients import gradients
from reference import Reference, assert_close

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import tilecat as tc  # noqa: E402
from tilecat import attention_backward_call  # noqa: E402
from tilecat.dtypes import by_name  # noqa: E402

DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}
DIMS = (48, 64, 64, 96, 128, 128, 192, (192, 128), 256)  # of q and k, and of v


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What the call allocates is NaN until it is written."""
    allocate = attention_backward_call.allocator

    def allocator(*args):
        make = allocate(*args)
        return lambda: make().fill_(float("nan") if args[2] != "s32" else -1)

    monkeypatch.setattr(attention_backward_call, "allocator", allocator)


def check(found, exact, dtype):
    """Every element of dq, dk and dv."""
    for got, wanted in zip(found, (exact.dq, exact.dk, exact.dv), strict=True):
        assert_close(got, wanted, by_name(DTYPES[dtype]).numpy)


def forward_of(exact, dtype):
    """What the forward gives, as tensors."""
    return (torch.tensor(exact.out).cuda().to(dtype), torch.tensor(exact.lse).cuda().float())


def problems(count, seed=2026):
    """Lengths spread evenly over their logarithms, 1 to 1000; an edge and a change of scores."""
    rng = random.Random(seed)
    for _ in range(count):
        groups, group = rng.randint(1, 3), rng.choice((1, 1, 2, 3))
        lengths = tuple(round(1000 ** rng.random()) for _ in range(2))
        dtype = torch.float16 if rng.random() < 0.25 else torch.bfloat16
        dim = rng.choice(DIMS)
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
    dim, dim_v = dim if isinstance(dim, tuple) else (dim, dim)
    torch.manual_seed(queries + keys)

    def normal(*shape):
        return torch.randn(*shape, device="cuda", dtype=dtype)

    q, dout = normal(batch, heads, queries, dim), normal(batch, heads, queries, dim_v)
    k, v = normal(batch, groups, keys, dim), normal(batch, groups, keys, dim_v)
    i, j = np.arange(queries)[:, None], np.arange(keys)[None]
    options, seen = edge_of(edge, far, i, j, keys - queries)
    bias, slopes = torch.randn(heads, queries, keys, device="cuda"), torch.rand(heads).cuda()
    added, falls = bias.double().cpu().numpy(), slopes.double().cpu().numpy()[:, None, None]
    more, score = {
        "softcap": ({"softcap": 3.0},
                    lambda s: (3 * np.tanh(s / 3), 1 - np.tanh(s / 3) ** 2)),
        "bias": ({"bias": bias}, lambda s: (s + added, 1.0)),
        "alibi": ({"score_mod": (tc.score_mods.alibi, slopes)},
                  lambda s: (s - abs(i - j) * falls, 1.0)),
        "deterministic": ({"deterministic": True}, None),
    }.get(change, ({}, None))  # fmt: skip
    exact = gradients(q, k, v, dout, seen=seen, score=score)
    given = dout, q, k, v, *forward_of(exact, dtype)
    found = tc.attention_backward(*given, **options, **more)
    check(found, exact, dtype)
    if change == "deterministic":
        again = tc.attention_backward(*given, **options, **more)
        assert all(torch.equal(x, y) for x, y in zip(found, again, strict=True))


def well_before(at):
    return at.keys <= at.queries - 20


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("shape", [(4, 300, 200), (1, 200), (2, 1, 1, 200)], ids=str)
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_biases_and_sinks_have_gradients(dim, shape, deterministic):
    """A bias of each score, or of a key, summed over what it broadcasts over."""
    torch.manual_seed(dim)
    sizes = ((4, 300), (2, 200), (2, 200), (4, 300))
    q, k, v, dout = (torch.randn(2, *x, dim, device="cuda").bfloat16() for x in sizes)
    bias, sinks = torch.randn(*shape, device="cuda"), torch.randn(4, device="cuda")
    seen, wide = np.arange(200) <= np.arange(300)[:, None] - 20, bias.double().cpu().numpy()
    exact = gradients(q, k, v, dout, seen=seen, score=lambda s: (s + wide, 1.0), sinks=sinks)
    full = (1,) * (4 - len(shape)) + shape
    axes = tuple(axis for axis in (0, 1, 2) if full[axis] == 1)
    parts = (x.sum(axes).reshape(shape) for x in (exact.db.value, exact.db.error))
    wanted = Reference(*parts)
    for _ in range(2):  # the second call is made ready
        *found, db, dz = tc.attention_backward(
            dout, q, k, v, *forward_of(exact, torch.bfloat16), bias=bias, sinks=sinks,
            mask_mod=well_before, deterministic=deterministic, bias_grad=True, sinks_grad=True,
        )  # fmt: skip
        check(found, exact, torch.bfloat16)
        assert_close(dz, exact.dz, np.float32)
        assert_close(db, wanted, np.float32)


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
        i, j = np.arange(length)[:, None], np.arange(keys)[None]
        seen = j <= i + keys - length if causal else None
        one = (x.transpose(0, 1)[None] for x in (q[rows], k[cols], v[cols], dout[rows]))
        found = (x.transpose(0, 1)[None] for x in (dq[rows], dk[cols], dv[cols]))
        check(found, gradients(*one, seen=seen), torch.bfloat16)
