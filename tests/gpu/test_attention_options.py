"""tc.attention's options on a GPU against float64: 300 random calls, packed batches, layouts."""

import math
import random

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from arrays import normal  # noqa: E402
from exact import assert_close, attention  # noqa: E402

import tilecat as tc  # noqa: E402
from tilecat import ready  # noqa: E402

DIMS = ((64, 64), (64, 64), (128, 128), (128, 128), (96, 96), (192, 128), (256, 256), (40, 72),
        (32, 32), (192, 192), (128, 64))  # fmt: skip
LAYOUTS = ("row", "row", "row", "heads", "packed", "sliced", "odd")
RANDOM = 300


def changed(options, bias, shape):
    """What the options do to scores of some rows in float64."""
    causal, cap = options["causal"], options["softcap"]
    left, right = options["window"] or (None, None)
    shift = shape[1] - shape[0] if causal == "bottom-right" else 0

    def change(scores, entry, head, first):
        rows = torch.arange(first, first + scores.shape[0], device="cuda")[:, None]
        keys = torch.arange(shape[1], device="cuda")
        distance = keys - rows - shift
        hidden = torch.zeros_like(scores, dtype=torch.bool)
        if causal:
            hidden |= distance > 0
        if left is not None:
            hidden |= distance < -left
        if right is not None:
            hidden |= distance > right
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        scores = scores if bias is None else scores + bias[head, rows, keys].double()
        return scores.masked_fill(hidden, -math.inf)

    return change


def random_call(number):
    """Arrays and options; lengths even in their logarithms, 1 to 1500."""
    rng = random.Random(7000 + number)
    groups, share = rng.choice((1, 2, 4)), rng.choice((1, 1, 2, 3, 8))
    queries, keys = (round(1500 ** rng.random()) for _ in range(2))
    keys = queries if rng.random() < 0.4 else keys
    (dim, dim_v), batch = rng.choice(DIMS), rng.randint(1, 3)
    dtype = "f16" if rng.random() < 0.25 else "bf16"
    sizes = ((groups * share, queries, dim), (groups, keys, dim), (groups, keys, dim_v))
    arrays = [
        normal((batch, *size), rng.choice(LAYOUTS), dtype, 3 * number + n)
        for n, size in enumerate(sizes)
    ]
    options = {
        "causal": rng.choice((False, True, True, "bottom-right")),
        "window": rng.choice((None, None, (rng.choice((None, 0, 9, 300)), rng.choice((None, 30))))),
        "softcap": rng.choice((None, None, None, 5.0)),
        "scale": rng.choice((None, None, 0.03, 0.3)),
    }
    bias = None
    if rng.random() < 0.3:
        shape = (rng.choice((1, groups * share)), rng.choice((1, queries)), keys)
        layout = rng.choice(("row", "sliced", "odd"))
        bias = normal(shape, layout, rng.choice(("bf16", "f16")), 3 * number)
    return arrays, options, bias


@pytest.mark.parametrize("number", range(RANDOM))
def test_random_calls(number):
    (q, k, v), options, bias = random_call(number)
    out = torch.full((*q.shape[:3], v.shape[3]), math.nan, device="cuda", dtype=q.dtype)
    lse = torch.full(q.shape[:3], math.nan, device="cuda")
    tc.attention(q, k, v, bias=bias, out=out, lse=lse, **options)
    whole = None if bias is None else bias.expand(q.shape[1], q.shape[2], -1)
    change = changed(options, whole, (q.shape[2], k.shape[2]))
    expected, expected_lse = attention(q, k, v, options["scale"], change)
    assert_close(out, expected, f"output of {options}")
    assert_close(lse, expected_lse, f"lse of {options}")


@pytest.mark.parametrize("causal", [False, True, "bottom-right"])
@pytest.mark.parametrize("dim", [64, 128])
def test_packed_batches(causal, dim):
    rng = random.Random(dim)
    lengths = [[round(1000 ** rng.random()) * (rng.random() < 0.9) for _ in range(9)] for _ in "qk"]
    starts = [torch.tensor([0, *x]).cumsum(0).to("cuda", torch.int32) for x in lengths]
    q = normal((sum(lengths[0]), 4, dim), seed=1)
    k, v = (normal((sum(lengths[1]), 2, dim), seed=n) for n in (2, 3))
    out, lse = torch.full_like(q, math.nan), torch.full((4, len(q)), math.nan, device="cuda")
    tc.attention(
        q, k, v, causal=causal, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1], out=out, lse=lse
    )
    options = {"causal": causal, "window": None, "softcap": None}
    parts = (x.split(n) for x, n in zip((q, k, v, out), lengths[:1] + 2 * lengths[1:] + lengths[:1],
                                        strict=True))  # fmt: skip
    first = 0
    for number, alone in enumerate(zip(*parts, strict=True)):
        *inputs, result = (x.transpose(0, 1)[None] for x in alone)
        rows, keys = lengths[0][number], lengths[1][number]
        if rows and keys:
            wanted, wanted_lse = attention(*inputs, None, changed(options, None, (rows, keys)))
            assert_close(result, wanted, f"sequence {number}")
            assert_close(lse[None, :, first : first + rows], wanted_lse, f"lse of {number}")
        else:
            assert not bool(result.any())
        first += rows


def test_ready_calls_follow_their_tensors():
    """The third and later calls are made ready: other tensors, other memory, the same results."""
    q, k, v = (normal((2, 4, 200, 64), seed=n) for n in range(3))
    ready._calls.clear()
    first, _ = (tc.attention(q, k, v, causal=True) for _ in range(2))
    assert len(ready._calls) == 1
    for _ in range(3):
        copies = [x.clone() for x in (q, k, v)]
        assert torch.equal(tc.attention(*copies, causal=True), first)
        out = torch.full_like(q, math.nan)
        assert tc.attention(*copies, causal=True, out=out) is out and torch.equal(out, first)
    assert len(ready._calls) == 2  # with out, and without
    assert all(known.launches for known in ready._calls.values())
    assert not torch.equal(tc.attention(q, k, v), first)
    assert not torch.equal(tc.attention(q, k, v, causal=True, scale=0.5), first)


def test_sinks_alibi_and_documents():
    q, k, v = (normal((1, 4, 300, 64), seed=n) for n in range(3))
    sinks, slopes = torch.randn(4, device="cuda"), torch.rand(4, device="cuda")
    documents = torch.arange(300, device="cuda", dtype=torch.int32) // 70
    out = tc.attention(
        q, k, v, sinks=sinks, score_mod=(tc.score_mods.alibi, slopes), causal=True,
        mask_mod=(tc.score_mods.same_document, documents, documents),
    )  # fmt: skip
    places = torch.arange(300, device="cuda")
    distance = (places - places[:, None]).abs()
    scores = q.double() @ k.double().mT / 8 - slopes[:, None, None].double() * distance
    hidden = (documents[:, None] != documents) | (places > places[:, None])
    scores = scores.masked_fill(hidden, -math.inf)
    whole = torch.cat([scores, sinks.double()[None, :, None, None].expand(1, 4, 300, 1)], -1)
    wanted = torch.softmax(whole, -1)[..., :-1] @ v.double()
    assert float((out.double() - wanted).norm() / wanted.norm()) < 2**-8


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["", "head", "block"])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_fp8(dim, kind, causal):
    torch.manual_seed(dim)
    lengths, heads = (700, 700, 700), (4, 2, 2)
    q, k, v = (torch.randn(2, h, n, dim, device="cuda").to(torch.float8_e4m3fn)
               for h, n in zip(heads, lengths, strict=True))  # fmt: skip
    options, wide = {}, [x.double() for x in (q, k, v)]
    for number, name in enumerate("qkv" if kind else ""):
        blocks = (6,) * (kind == "block")
        scale = 0.25 + torch.rand(2, heads[number], *blocks, device="cuda")
        options[f"scale_{name}"] = scale
        rows = scale[..., None] if kind == "head" else scale.repeat_interleave(128, 2)[..., :700]
        wide[number] = wide[number] * rows[..., None].double()
    keys, values = (x.repeat_interleave(2, 1) for x in wide[1:])
    scores = wide[0] @ keys.mT * dim**-0.5
    if causal:
        scores = scores.masked_fill(torch.ones(700, 700, device="cuda").triu(1).bool(), -math.inf)
    wanted = torch.softmax(scores, -1) @ values
    out, lse = tc.attention(q, k, v, causal=causal, return_lse=True, **options)
    assert float((out.double() - wanted).norm() / wanted.norm()) < 2**-5
    # Products of e4m3 keep about 14 bits of their sums.
    assert float((lse.double() - torch.logsumexp(scores, -1)).abs().max()) < 0.02
