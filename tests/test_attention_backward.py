"""Gradients of attention against float64, on the PTX machine."""

from __future__ import annotations

import numpy as np
import pytest
from gradients import gradients
from reference import Reference, assert_close

import tilecat as tc
from tilecat import attention_backward_call, bf16, f16


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What the call allocates is NaN until it is written."""
    allocate = attention_backward_call.allocator

    def allocator(*args):
        make = allocate(*args)

        def poisoned():
            made = make()
            made.fill(np.nan if made.dtype.kind != "i" else -1)
            return made

        return poisoned

    monkeypatch.setattr(attention_backward_call, "allocator", allocator)


def check(size, dim, dtype=bf16, seed=0, scale=None, dim_v=None, seen=None, score=None, **options):
    """B, H, Hkv, Lq, Lk; `seen` and `score` as of `gradients`."""
    batch, heads, groups, queries, keys = size
    rng = np.random.default_rng(seed)
    dim_v = dim_v or dim

    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype.numpy)

    q, dout = normal(batch, heads, queries, dim), normal(batch, heads, queries, dim_v)
    k, v = normal(batch, groups, keys, dim), normal(batch, groups, keys, dim_v)
    exact = gradients(q, k, v, dout, scale, seen, score)
    found = tc.attention_backward(
        dout, q, k, v, exact.out.astype(dtype.numpy), exact.lse.astype(np.float32), scale=scale,
        **options,
    )  # fmt: skip
    for got, wanted in zip(found, (exact.dq, exact.dk, exact.dv), strict=True):
        assert_close(got, wanted, dtype.numpy)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("size", [(1, 1, 1, 64, 128), (2, 2, 1, 100, 200), (1, 3, 3, 1, 130),
                                  (1, 4, 2, 130, 1)], ids=str)  # fmt: skip
def test_gradients_of_attention(size, dtype, dim):
    check(size, dim, dtype, seed=sum(size))


@pytest.mark.parametrize("dim", [50, 100])
def test_head_dims_between_those_of_tiles(dim):
    check((1, 2, 1, 70, 130), dim)


@pytest.mark.parametrize(("dim", "dim_v"), [(96, 96), (192, 192), (256, 256), (128, 64),
                                            (192, 128)])  # fmt: skip
def test_wide_heads_and_values_of_other_head_dims(dim, dim_v):
    check((1, 2, 1, 70, 130), dim, dim_v=dim_v)


def test_wide_heads_with_edges():
    i, j = positions((1, 1, 1, 130, 100))
    check((1, 1, 1, 130, 100), 192, seen=j <= i, causal=True)


def positions(size):
    """Of queries, a column, and of keys, a row."""
    return np.arange(size[3])[:, None], np.arange(size[4])[None]


EDGES = {
    "top-left": ({"causal": True}, lambda i, j, shift: j <= i),
    "bottom-right": ({"causal": "bottom-right"}, lambda i, j, shift: j <= i + shift),
    "window": ({"window": (70, 10)}, lambda i, j, shift: (j <= i + 10) & (j >= i - 70)),
    "left": ({"window": (3, None)}, lambda i, j, shift: j >= i - 3),
    "both": ({"window": (70, None), "causal": "bottom-right"},
             lambda i, j, shift: (j <= i + shift) & (j >= i + shift - 70)),
}  # fmt: skip


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("size", [(1, 2, 1, 200, 300), (1, 2, 2, 300, 130)], ids=str)
def test_gradients_with_edges(size, edge):
    """Some queries see no key, some keys are seen by none: their gradients are 0."""
    options, seen = EDGES[edge]
    i, j = positions(size)
    check(size, 64, seed=3, seen=seen(i, j, size[4] - size[3]), **options)


def test_gradients_with_edges_of_wide_heads():
    size = (1, 1, 1, 150, 200)
    i, j = positions(size)
    check(size, 128, seen=j <= i + 50, causal="bottom-right")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("dim", [64, pytest.param(128, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["softcap", "bias", "key bias", "alibi", "function", "mask",
                                  "multiple", "by head", "by query"])  # fmt: skip
def test_gradients_through_scores(kind, dim):
    size, rng = (1, 2, 1, 100, 200), np.random.default_rng(5)
    i, j = positions(size)
    bias = rng.standard_normal((2, 100, 200)).astype(np.float32)
    of_keys = rng.standard_normal((1, 1, 1, 200)).astype(np.float32)
    slopes, of_queries = np.array([0.1, 0.3], np.float32), rng.random(100).astype(np.float32)
    options, score = {
        "softcap": ({"softcap": 2.0}, lambda s: (2 * np.tanh(s / 2), 1 - np.tanh(s / 2) ** 2)),
        "bias": ({"bias": bias}, lambda s: (s + bias, 1.0)),
        "key bias": ({"bias": of_keys}, lambda s: (s + of_keys, 1.0)),
        "alibi": ({"score_mod": (tc.score_mods.alibi, slopes)},
                  lambda s: (s - abs(i - j) * slopes[:, None, None], 1.0)),
        "function": ({"score_mod": lambda s, at: s * tc.sigmoid(s)},
                     lambda s: (s * sigmoid(s), sigmoid(s) * (1 + s * (1 - sigmoid(s))))),
        "multiple": ({"score_mod": lambda s, at: 3.0 * s}, lambda s: (3 * s, 3.0)),
        "by head": ({"score_mod": (lambda s, at, x: s * at.of_head(x), 4 * slopes)},
                    lambda s: (s * 4 * slopes[:, None, None], 4 * slopes[:, None, None])),
        "by query": ({"score_mod": (lambda s, at, x: s * at.of_queries(x), of_queries)},
                     lambda s: (s * of_queries[:, None], of_queries[:, None])),
        "mask": ({"mask_mod": (lambda at, far: abs(at.queries - at.keys) <= far, 50)}, None),
    }[kind]  # fmt: skip
    seen = abs(i - j) <= 50 if kind == "mask" else None
    check(size, dim, seen=seen, score=score, **options)


def silu(s):
    """Of s, and its derivative."""
    return s * sigmoid(s), sigmoid(s) * (1 + s * (1 - sigmoid(s)))


@pytest.mark.parametrize(("shape", "options"), [
    ((2, 100, 200), {}), ((100, 200), {"causal": True}),
    pytest.param((2, 1, 100, 200), {"softcap": 2.0}, marks=pytest.mark.full),
    ((1, 200), {"causal": True}),
    pytest.param((2, 1, 1, 200), {"softcap": 2.0}, marks=pytest.mark.full),
    ((2, 100, 200), {"softcap": 2.0, "score_mod": lambda s, at: s * tc.sigmoid(s)}),
    ((1, 2, 1, 200), {"score_mod": lambda s, at: s * tc.sigmoid(s)}),
], ids=["heads", "one", "batch softcap", "keys", "keys softcap", "softcap function",
        "keys function"])  # fmt: skip
def test_a_bias_has_a_gradient(shape, options):
    """Summed over axes that broadcast; in its own dtype; between a soft cap and a function."""
    rng, half = np.random.default_rng(5), bf16.numpy
    q, dout = (rng.standard_normal((2, 2, 100, 64)).astype(half) for _ in range(2))
    k, v = (rng.standard_normal((2, 1, 200, 64)).astype(half) for _ in range(2))
    bias = rng.standard_normal(shape).astype(np.float32)
    i, j = positions(q.shape[:2] + (1,) + (100, 200))
    after = []

    def score(s):
        s, slope = (s, 1.0) if "softcap" not in options else (
            2 * np.tanh(s / 2), 1 - np.tanh(s / 2) ** 2)  # fmt: skip
        s, more = (s + bias, 1.0) if "score_mod" not in options else silu(s + bias)
        after.append(more)
        return s, slope * more

    exact = gradients(q, k, v, dout, seen=(j <= i) | ("causal" not in options), score=score)
    given = dout, q, k, v, exact.out.astype(half), exact.lse.astype(np.float32)
    *found, db = tc.attention_backward(*given, bias=bias, bias_grad=True, **options)
    for got, wanted in zip(found, (exact.dq, exact.dk, exact.dv), strict=True):
        assert_close(got, wanted, half)
    wide = (1,) * (4 - len(shape)) + shape
    axes = tuple(axis for axis in (0, 1, 2) if wide[axis] == 1)
    of_bias = exact.db.value * after[0], exact.db.error * np.abs(after[0])
    parts = (x.sum(axes, keepdims=True).reshape(shape) for x in of_bias)
    assert_close(db, Reference(*parts), np.float32)


@pytest.mark.parametrize("options", [{}, {"deterministic": True, "causal": True}], ids=str)
def test_sinks_have_a_gradient(options):
    rng, half = np.random.default_rng(5), bf16.numpy
    q, dout = (rng.standard_normal((2, 3, 100, 64)).astype(half) for _ in range(2))
    k, v = (rng.standard_normal((2, 1, 200, 64)).astype(half) for _ in range(2))
    sinks = np.array([0.5, 4.0, -np.inf], np.float32)
    i, j = positions((2, 3, 1, 100, 200))
    seen = (j <= i - 20) if options else None  # some queries see the sink alone, or nothing
    more = {"mask_mod": lambda at: at.keys <= at.queries - 20, **options} if options else {}
    exact = gradients(q, k, v, dout, seen=seen, sinks=sinks)
    given = dout, q, k, v, exact.out.astype(half), exact.lse.astype(np.float32)
    found = tc.attention_backward(*given, sinks=sinks, sinks_grad=True, **more)
    for got, wanted in zip(found, (exact.dq, exact.dk, exact.dv), strict=False):
        assert_close(got, wanted, half)
    assert_close(found[3], exact.dz, np.float32)


@pytest.mark.parametrize("line", range(1, len(attention_backward_call.LINES)))
def test_gradients_made_by_several_launches(monkeypatch, line):
    """As where registers hold no more: each launch makes its share, and the bias's is made once."""
    lines = attention_backward_call.LINES[line:]
    monkeypatch.setattr(attention_backward_call, "LINES", lines * 2)
    monkeypatch.setattr(attention_backward_call, "_fitting", {})
    i, j = positions((1, 2, 1, 70, 130))
    check((1, 2, 1, 70, 130), 128, seen=j >= i - 20, window=(20, None))
    if line == 4:
        check((1, 1, 1, 40, 70), 192, dim_v=256)
    if line == 5:  # of two parts of dQ, which two consumers shared
        check((1, 2, 1, 70, 130), 64, seen=j >= i - 20, window=(20, None), deterministic=True)
    if line == 1:
        test_a_bias_has_a_gradient((2, 1, 100, 200), {"softcap": 2.0})
    if line == 6:  # few queries at a time
        cap = {"softcap": 2.0, "score_mod": lambda s, at: s * tc.sigmoid(s)}
        test_a_bias_has_a_gradient((2, 100, 200), cap)


def gelu_tanh(s):
    """GELU by tanh, of tiles."""
    return 0.5 * s * (1.0 + tc.tanh(0.7978845608 * (s + 0.044715 * s * s * s)))


def test_functions_that_fill_the_registers_have_gradients(monkeypatch):
    """A soft cap, a GELU, a mask of bytes and a window: by the line that holds least."""
    monkeypatch.setattr(attention_backward_call, "LINES", attention_backward_call.LINES[-1:] * 2)
    monkeypatch.setattr(attention_backward_call, "_fitting", {})
    size = (1, 1, 1, 70, 130)
    mask = np.random.default_rng(1).random((70, 130)) < 0.7
    i, j = positions(size)

    def score(s):
        cap = 2 * np.tanh(s / 2)
        inner = 0.7978845608 * (cap + 0.044715 * cap**3)
        slope = 0.5 * (1 + np.tanh(inner)) + 0.5 * cap / np.cosh(inner) ** 2 * (
            0.7978845608 * (1 + 3 * 0.044715 * cap**2)
        )
        return 0.5 * cap * (1 + np.tanh(inner)), slope * (1 - np.tanh(s / 2) ** 2)

    check(size, 96, seen=(j >= i - 60) & mask, score=score, softcap=2.0, window=(60, None),
          score_mod=lambda s, at: gelu_tanh(s),
          mask_mod=(lambda at, x: at.tile(x) > 0.5, mask.astype(np.uint8)))  # fmt: skip


@pytest.mark.parametrize("name", ["bias", "sinks"])
def test_a_gradient_of_what_is_not_given(name):
    with pytest.raises(tc.LayoutError, match=f"{name}_grad is its gradient, got no {name}"):
        tc.attention_backward(*arrays().values(), **{f"{name}_grad": True})


def test_a_score_mod_that_has_no_derivative_is_an_error():
    with pytest.raises(tc.LayoutError, match="derivative: .* is not differentiated"):
        check((1, 1, 1, 64, 64), 64, score_mod=lambda s, at: tc.mask_cols(s, 3, 0.0))


def test_gradients_with_a_scale():
    check((1, 1, 1, 70, 140), 128, scale=0.3)


@pytest.mark.parametrize("size", [(1, 2, 2, 0, 8), (1, 2, 1, 8, 0), (0, 2, 2, 8, 8)], ids=str)
def test_gradients_of_nothing_are_zero(size):
    batch, heads, groups, queries, keys = size
    q, k = np.ones((batch, heads, queries, 128), bf16.numpy), np.ones((batch, groups, keys, 128))
    k = k.astype(bf16.numpy)
    lse = np.full(q.shape[:3], -np.inf, np.float32)
    for got, like in zip(tc.attention_backward(q, q, k, k, q, lse), (q, k, k), strict=True):
        assert got.shape == like.shape and (got == 0).all()


def test_large_scores_of_a_ragged_block_stay_finite():
    """Keys beyond the last have scores of 0: exp(0 - lse) is not to be multiplied by."""
    q = np.full((1, 1, 3, 128), -10, bf16.numpy)
    k = np.full((1, 1, 5, 128), 10, bf16.numpy)
    exact = gradients(q, k, k, q)
    lse, out = exact.lse.astype(np.float32), exact.out.astype(bf16.numpy)
    assert lse.max() < -1000
    found = tc.attention_backward(q, q, k, k, out, lse)
    for got, wanted in zip(found, (exact.dq, exact.dk, exact.dv), strict=True):
        assert_close(got, wanted, bf16.numpy)


# ---- packed batches, fixed orders


def packed(lengths, key_lengths, dim, causal, seed=0, **options):
    """Gradients of a packed batch, and those of its sequences one by one."""
    rng, heads, groups = np.random.default_rng(seed), 2, 1
    starts = [np.concatenate([[0], np.cumsum(x)]).astype(np.int32) for x in (lengths, key_lengths)]

    def normal(*shape):
        return rng.standard_normal(shape).astype(bf16.numpy)

    q, dout = (normal(starts[0][-1], heads, dim) for _ in range(2))
    k, v = (normal(starts[1][-1], groups, dim) for _ in range(2))
    out, lse = np.zeros_like(q), np.zeros((heads, len(q)), np.float32)
    exact = []
    for i, (length, keys) in enumerate(zip(lengths, key_lengths, strict=True)):
        rows, cols = (slice(x[i], x[i + 1]) for x in starts)
        seen = np.arange(keys) <= np.arange(length)[:, None] + keys - length if causal else None
        one = gradients(*(x.swapaxes(0, 1)[None] for x in (q[rows], k[cols], v[cols], dout[rows])),
                        seen=seen)  # fmt: skip
        exact.append((rows, cols, one))
        out[rows], lse[:, rows] = one.out[0].swapaxes(0, 1), one.lse[0]
    found = tc.attention_backward(
        dout, q, k, v, out, lse, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1],
        causal="bottom-right" if causal else False, **options,
    )  # fmt: skip
    return found, exact


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_gradients_of_packed_batches(dim, causal):
    (dq, dk, dv), exact = packed([100, 3, 0, 64, 200], [130, 70, 9, 64, 129], dim, causal)
    for rows, cols, one in exact:
        for got, wanted in ((dq[rows], one.dq), (dk[cols], one.dk), (dv[cols], one.dv)):
            assert_close(got.swapaxes(0, 1)[None], wanted, bf16.numpy)


@pytest.mark.parametrize("options", [{}, {"causal": True}], ids=str)
def test_deterministic_gradients_are_right(options):
    size = (1, 2, 1, 200, 300)
    i, j = positions(size)
    check(size, 64, seen=(j <= i) if options else None, deterministic=True, **options)


def test_deterministic_gradients_of_packed_batches():
    first, _ = packed([100, 70], [130, 200], 64, True, deterministic=True)
    second, _ = packed([100, 70], [130, 200], 64, True, deterministic=True)
    assert all((one == two).all() for one, two in zip(first, second, strict=True))


# ---- bad input


def arrays(dtype=bf16, **shapes):
    sizes = {"dout": (1, 2, 8, 64), "q": (1, 2, 8, 64), "k": (1, 1, 9, 64), "v": (1, 1, 9, 64),
             "out": (1, 2, 8, 64), "lse": (1, 2, 8), **shapes}  # fmt: skip
    return {
        name: np.zeros(size, np.float32 if name == "lse" else dtype.numpy)
        for name, size in sizes.items()
    }


@pytest.mark.parametrize(("shapes", "message"), [
    ({"q": (2, 8, 64)}, "attention_backward: q has 4 axes, got the shape (2, 8, 64)"),
    ({"lse": (1, 2, 9)}, "attention_backward: lse has the shape (1, 2, 8) beside q (1, 2, 8, 64) "
                         "and v (1, 1, 9, 64), got (1, 2, 9)"),
    ({"k": (1, 1, 9, 32)}, "attention_backward: k has the shape (1, 1, 9, 64) beside q "
                           "(1, 2, 8, 64) and v (1, 1, 9, 64), got (1, 1, 9, 32)"),
    ({"q": (1, 3, 8, 64), "k": (1, 2, 9, 64), "v": (1, 2, 9, 64), "out": (1, 3, 8, 64),
      "dout": (1, 3, 8, 64), "lse": (1, 3, 8)},
     "attention_backward: the heads of k and v divide those of q, got 3 and 2"),
], ids=["axes", "lse", "k", "heads"])  # fmt: skip
def test_shapes_that_do_not_fit(shapes, message):
    error = pytest.raises(tc.LayoutError, tc.attention_backward, **arrays(**shapes)).value
    assert error.message == message


def test_dtypes_that_are_not_multiplied():
    given = arrays()
    given["v"] = given["v"].astype(np.float16)
    error = pytest.raises(tc.DTypeError, tc.attention_backward, **given).value
    assert error.message.startswith("attention_backward: arrays have one dtype, bf16 or f16, and")


def test_a_scale_is_positive():
    error = pytest.raises(tc.LayoutError, tc.attention_backward, **arrays(), scale=0.0).value
    assert "scale of the scores is positive" in error.message
