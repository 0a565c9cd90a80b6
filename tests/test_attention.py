"""tc.attention on the PTX machine against float64: edges, masks, scores, head dims, bad input."""

import math
import random

import ml_dtypes
import numpy as np
import pytest
import reference

import tilecat as tc
from tilecat import attention_call
from tilecat.errors import DTypeError, LayoutError, ScopeError
from tilecat.kernels.attention_forward import attention_forward as kernel

BF16 = ml_dtypes.bfloat16
FACTOR = 1.0


def normal(*shape, dtype=BF16, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def operands(batch, heads, groups, queries, keys, dim, dim_v=None, dtype=BF16, seed=0):
    sizes = ((heads, queries, dim), (groups, keys, dim), (groups, keys, dim_v or dim))
    return [normal(batch, *size, dtype=dtype, seed=3 * seed + n) for n, size in enumerate(sizes)]


def seen(queries, keys, causal=False, window=(None, None)):
    """[Lq, Lk]: whether a query sees a key."""
    shift = keys - queries if causal == "bottom-right" else 0
    distance = np.arange(keys) - (np.arange(queries)[:, None] + shift)
    found = np.ones((queries, keys), bool)
    left, right = window
    if causal:
        found &= distance <= 0
    if left is not None:
        found &= distance >= -left
    if right is not None:
        found &= distance <= right
    return found


def check(q, k, v, change=None, **options):
    """Output and log-sum-exp of a call, into poisoned arrays, every element."""
    out = np.full((*q.shape[:3], v.shape[3]), np.nan, q.dtype)
    lse = np.full(q.shape[:3], np.nan, np.float32)
    got = tc.attention(q, k, v, out=out, lse=lse, return_lse=True, **options)
    assert got[0] is out and got[1] is lse
    expected, expected_lse = reference.attention(q, k, v, options.get("scale"), change)
    reference.assert_close(out, expected, out.dtype)
    reference.assert_close(lse, expected_lse, np.float32)
    return out, lse


def check_edges(q, k, v, causal=False, window=None, **options):
    visible = seen(q.shape[2], k.shape[2], causal, window or (None, None))
    return check(
        q, k, v, lambda s: np.where(visible, s, -np.inf), causal=causal, window=window, **options
    )


EDGES = [
    ((200, 200), True, None),
    ((100, 300), "top-left", None),
    ((300, 100), "bottom-right", None),  # the first queries see nothing
    ((100, 300), "bottom-right", None),
    ((300, 300), True, (70, None)),
    ((300, 300), False, (0, 0)),
    ((200, 260), False, (None, 40)),
    ((260, 200), "bottom-right", (30, 5)),
    ((1, 300), "bottom-right", (128, None)),
    ((400, 70), True, (5, None)),  # the last queries see nothing
]


@pytest.mark.parametrize("lengths, causal, window", EDGES, ids=str)
def test_edges_hide_what_they_should(lengths, causal, window):
    check_edges(*operands(1, 2, 1, *lengths, 64), causal, window)


@pytest.mark.parametrize(
    "dims", [(64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256), (72, 40), (5, 130)]
)
def test_head_dims_of_every_width(dims):
    check_edges(*operands(1, 1, 1, 130, 190, *dims), causal=True)


def test_masked_blocks_are_not_loaded():
    """A NaN in a block of keys that nobody sees does not reach the output."""
    q, k, v = operands(1, 1, 1, 200, 600, 64)
    k[:, :, 384:] = v[:, :, 384:] = np.nan
    out, _ = tc.attention(q, k, v, causal=True, return_lse=True)
    wanted, _ = tc.attention(q, k[:, :, :256], v[:, :, :256], causal=True, return_lse=True)
    np.testing.assert_array_equal(out, wanted)


def test_rows_that_see_nothing_are_zero():
    q, k, v = operands(1, 2, 2, 70, 90, 64)
    out, lse = tc.attention(q, k, v, mask_mod=lambda at: at.queries >= 30, return_lse=True)
    assert not out[:, :, :30].astype(float).any() and (lse[:, :, :30] == -np.inf).all()
    assert np.isfinite(lse[:, :, 30:]).all()


# ---- scores


def near(at, distance):
    return abs(at.queries - at.keys) <= distance


def test_softcap_bias_and_functions_in_order():
    q, k, v = operands(1, 4, 2, 100, 150, 64)
    bias = normal(4, 100, 150, dtype=np.float32, seed=9)
    slopes = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
    distance = np.abs(np.arange(100)[:, None] - np.arange(150))

    def change(s):
        s = 20 * np.tanh(s / 20) + bias - distance * slopes[:, None, None]
        return np.where(distance <= 77, s, -np.inf)

    check(
        q, k, v, change, softcap=20.0, bias=bias, score_mod=(tc.score_mods.alibi, slopes),
        mask_mod=(near, 77),
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(70, 90), (1, 90), (2, 1, 90), (3, 1, 1, 90), (3, 2, 70, 90)])
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
def test_bias_broadcasts(shape, dtype):
    q, k, v = operands(3, 2, 1, 70, 90, 32)
    bias = normal(*shape, dtype=dtype, seed=5)
    check(q, k, v, lambda s: s + bias.astype(float), bias=bias)


def test_documents_are_kept_apart():
    q, k, v = operands(1, 2, 2, 150, 150, 64)
    documents = np.sort(np.random.default_rng(0).integers(0, 4, 150)).astype(np.int32)
    same = documents[:, None] == documents
    check(
        q, k, v, lambda s: np.where(same, s, -np.inf),
        mask_mod=(tc.score_mods.same_document, documents, documents),
    )  # fmt: skip


@pytest.mark.parametrize("causal", [False, "bottom-right"])
def test_sinks_take_part_without_a_value(causal):
    q, k, v = operands(2, 2, 1, 100, 70, 64)
    sinks = np.array([1.5, -3.0], np.float32)
    out, lse = tc.attention(q, k, v, sinks=sinks, causal=causal, return_lse=True)
    visible = seen(100, 70, causal)
    plain, plain_lse = reference.attention(q, k, v, None, lambda s: np.where(visible, s, -np.inf))
    wanted = np.logaddexp(plain_lse.value, sinks[:, None])
    np.testing.assert_allclose(lse, wanted, rtol=1e-5, atol=1e-5)
    shrunk = plain.value * np.exp(plain_lse.value - wanted)[..., None]
    np.testing.assert_allclose(out.astype(float), shrunk, rtol=2**-7, atol=2**-7)
    assert causal is False or not out[:, :, 0].astype(float).any()


@pytest.mark.parametrize("queries, causal", [(1, "bottom-right"), (1, False), (7, False)])
def test_few_queries_of_heads_that_share_keys_are_rows_of_one(queries, causal, monkeypatch):
    shapes = []
    choose = attention_call.choose
    monkeypatch.setattr(
        attention_call, "choose", lambda p, *more: (shapes.append((p.heads, p.queries)),
                                                    choose(p, *more))[1])  # fmt: skip
    q, k, v = operands(2, 6, 2, queries, 150, 64)
    check_edges(q, k, v, causal)
    assert shapes == [(4, 3 * queries)]
    spread = np.zeros((2, queries, 6, 64), BF16)  # heads behind queries: rows lie apart
    spread[...] = q.swapaxes(1, 2)
    check_edges(spread.swapaxes(1, 2), k, v, causal)
    assert shapes[1] == ((4, 3) if queries == 1 else (12, 7))


@pytest.mark.parametrize("sink", [-np.inf, np.finfo(np.float32).min])
def test_sinks_of_nothing_beside_rows_that_see_nothing(sink):
    q, k, v = operands(1, 2, 1, 40, 20, 32)
    sinks = np.array([sink, 1.0], np.float32)
    out, lse = tc.attention(q, k, v, causal="bottom-right", sinks=sinks, return_lse=True)
    plain, plain_lse = tc.attention(q, k, v, causal="bottom-right", return_lse=True)
    np.testing.assert_array_equal(out[:, 0], plain[:, 0])
    np.testing.assert_array_equal(lse[:, 0], plain_lse[:, 0])
    assert not out[:, 1, :20].astype(float).any() and np.allclose(lse[:, 1, :20], 1.0)


@pytest.mark.parametrize("sizes", [(0, 2, 1, 5, 9), (2, 0, 1, 5, 9), (1, 4, 2, 0, 9)], ids=str)
@pytest.mark.parametrize("causal", [False, "bottom-right"])
def test_nothing_to_compute(sizes, causal):
    q, k, v = operands(*sizes, 32)
    out, lse = tc.attention(q, k, v, causal=causal, return_lse=True)
    assert out.shape == q.shape and lse.shape == q.shape[:3]


def test_equal_lambdas_compile_once():
    q, k, v = operands(1, 1, 1, 40, 40, 32)
    before = []
    for _ in range(3):
        tc.attention(q, k, v, score_mod=lambda s, at: s * 0.5)
        before.append(kernel.compiles)
    assert len(set(before)) == 1


def test_lambdas_of_another_number_of_the_module_compile_again(monkeypatch):
    q, k, v = operands(1, 1, 1, 40, 40, 32)
    for factor in (0.5, 3.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        check(q, k, v, lambda s, f=factor: s * f, score_mod=lambda s, at: s * FACTOR)


def random_calls(count, seed):
    """Problems of every option, lengths even in their logarithms, 1 to 300."""
    rng = random.Random(seed)
    for number in range(count):
        groups, share = rng.choice((1, 2)), rng.choice((1, 1, 2, 3))
        lengths = [round(300 ** rng.random()) for _ in range(2)]
        dims = rng.choice(((32, 32), (64, 64), (64, 64), (96, 96), (40, 64), (128, 128)))
        edge = rng.choice((False, True, "top-left", "bottom-right"))
        window = rng.choice((None, None, *[(rng.choice((None, 0, 9, 100)), rng.choice((None, 3)))]))
        half = np.float16 if rng.random() < 0.25 else BF16
        cap = rng.choice((None, None, 5.0))
        arrays = operands(
            rng.choice((1, 2)), groups * share, groups, *lengths, *dims, half, number
        )
        yield arrays, {"causal": edge, "window": window, "softcap": cap,
                       "bias": rng.random() < 0.25, "scale": rng.choice((None, 0.05, 0.3))}


@pytest.mark.parametrize("part", range(3))
def test_random_calls(part):
    for arrays, options in random_calls(12, 100 + part):
        (q, k, v), shape = arrays, (arrays[0].shape[2], arrays[1].shape[2])
        bias = normal(*shape, dtype=np.float32, seed=7) if options.pop("bias") else None
        visible = seen(*shape, options["causal"], options["window"] or (None, None))
        cap = options["softcap"]

        def change(s, cap=cap, bias=bias, visible=visible):
            s = s if cap is None else cap * np.tanh(s / cap)
            return np.where(visible, s if bias is None else s + bias, -np.inf)

        check(q, k, v, change, bias=bias, **options)


# ---- bad input

Q = normal(1, 4, 30, 64)
K = normal(1, 2, 50, 64, seed=1)
WRONG = {
    "causal": (dict(causal="left"), LayoutError, "causal is False, True .top-left., 'top-left'"),
    "causal number": (dict(causal=2), LayoutError, "causal is False"),
    "window": (dict(window=5), LayoutError, r"window is \(left, right\)"),
    "window sides": (dict(window=(3, -1)), LayoutError, r"0 or more, .* got window=\(3, -1\)"),
    "softcap": (dict(softcap=-1.0), LayoutError, "softcap of the scores is positive and finite"),
    "softcap too large": (dict(softcap=1e6), LayoutError, "a softcap is at most 16384"),
    "bias": (dict(bias=np.zeros((30, 49), np.float32)), LayoutError,
             r"bias broadcasts to B x H x Lq x Lk = \(1, 4, 30, 50\) .* got the shape \(30, 49\)"),
    "bias heads": (dict(bias=np.zeros((2, 30, 50), np.float32)), LayoutError, "bias broadcasts"),
    "bias axes": (dict(bias=np.zeros(50, np.float32)), LayoutError, "from 2 axes or more"),
    "bias dtype": (dict(bias=np.zeros((30, 50), np.int32)), DTypeError, "bias is f32, bf16, f16"),
    "sinks": (dict(sinks=np.zeros(2, np.float32)), LayoutError, r"sinks has the shape H = \(4,\)"),
    "sinks dtype": (dict(sinks=np.zeros(4, BF16)), DTypeError, "sinks is f32, got bf16"),
    "out": (dict(out=np.zeros((1, 4, 30, 32), BF16)), LayoutError, r"out has the shape B x H x Lq"),
    "out dtype": (dict(out=np.zeros(Q.shape, np.float16)), DTypeError, "out is bf16, got f16"),
    "lse": (dict(lse=np.zeros((1, 4, 31), np.float32)), LayoutError, "lse has the shape B x H x"),
    "mod": (dict(score_mod=3), LayoutError, "score_mod is a function f.s, at, .args., or a tuple"),
    "no mod": (dict(mask_mod=()), LayoutError, "mask_mod is a function f.at, .args., or a tuple"),
    "mod args": (dict(mask_mod=lambda at, x: at.keys < x), LayoutError, "mask_mod is called as f"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_bad_options_are_refused(name):
    options, kind, message = WRONG[name]
    with pytest.raises(kind, match=message) as caught:
        tc.attention(Q, K, K, **options)
    assert caught.value.loc.file == __file__


@pytest.mark.parametrize("found", [3, np.zeros((30, 50), np.float32)], ids=["number", "array"])
def test_mods_take_tensors_as_arguments(found):
    with pytest.raises(LayoutError, match="a tensor of scores has 2 to 4 axes here") as caught:
        tc.attention(Q, K, K, score_mod=lambda s, at: s + at.tile(found))
    assert "score_mod=(f, tensor)" in str(caught.value)


def test_scale_of_a_wider_head_is_its_own():
    """Zero columns do not change the scale: 1 / sqrt(40), not of 64."""
    q, k, v = operands(1, 1, 1, 20, 30, 40)
    out = tc.attention(q, k, v)
    np.testing.assert_array_equal(out, tc.attention(q, k, v, scale=1 / math.sqrt(40)))


# ---- packed batches

LENGTHS = ([130, 0, 1, 70, 64], [40, 30, 0, 200, 64])


def sequences(dim=64, heads=4, groups=2, seed=0):
    """q, k, v of sequences one after another, and where they begin."""
    starts = [np.cumsum([0, *lengths]).astype(np.int32) for lengths in LENGTHS]
    q = normal(starts[0][-1], heads, dim, seed=seed)
    k, v = (normal(starts[1][-1], groups, dim, seed=seed + n) for n in (1, 2))
    return (q, k, v), starts


@pytest.mark.parametrize("causal, window", [(False, None), (True, None), ("bottom-right", (50, 3))])
@pytest.mark.parametrize("seed", [0, 1])
def test_sequences_of_several_lengths(causal, window, seed):
    (q, k, v), starts = sequences(seed=3 * seed)
    out, lse = np.full(q.shape, np.nan, BF16), np.full((4, len(q)), np.nan, np.float32)
    tc.attention(
        q, k, v, causal=causal, window=window, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1],
        out=out, lse=lse,
    )  # fmt: skip
    for number in range(len(LENGTHS[0])):
        rows, keys = (slice(*s[number : number + 2]) for s in starts)
        visible = seen(LENGTHS[0][number], LENGTHS[1][number], causal, window or (None, None))
        alone = (x.swapaxes(0, 1)[None] for x in (q[rows], k[keys], v[keys]))
        wanted, wanted_lse = reference.attention(
            *alone, None, lambda s, visible=visible: np.where(visible, s, -np.inf)
        )
        reference.assert_close(out[rows].swapaxes(0, 1)[None], wanted, BF16)
        reference.assert_close(lse[None, :, rows], wanted_lse, np.float32)


@pytest.mark.parametrize("together", [1, 3])
def test_packed_heads_are_taken_together(together, monkeypatch):
    monkeypatch.setattr("tilecat.attention_choice.TOGETHER", together)
    test_sequences_of_several_lengths(True, None, 2)


def test_mods_of_packed_sequences_see_positions_in_them_and_rows_of_all():
    (q, k, v), starts = sequences()
    weights = normal(len(k), dtype=np.float32, seed=8)

    def mod(s, at, weights, factor):
        return s + at.of_keys(weights) - tc.cast(abs(at.queries - at.keys), tc.f32) * factor

    out = tc.attention(
        q, k, v, score_mod=(mod, weights, 0.1), cu_seqlens_q=starts[0], cu_seqlens_k=starts[1]
    )
    for number in (0, 3, 4):
        rows, keys = (slice(*s[number : number + 2]) for s in starts)
        distance = np.abs(np.arange(LENGTHS[0][number])[:, None] - np.arange(LENGTHS[1][number]))
        alone = (x.swapaxes(0, 1)[None] for x in (q[rows], k[keys], v[keys]))
        wanted, _ = reference.attention(
            *alone, None, lambda s, d=distance, w=weights[keys]: s + w - d * 0.1
        )
        reference.assert_close(out[rows].swapaxes(0, 1)[None], wanted, BF16)


S32 = np.int32
WRONG_STARTS = {
    "one": (dict(cu_seqlens_q=np.array([0, 9], S32)), LayoutError, "both .* got no cu_seqlens_k"),
    "axes": (dict(cu_seqlens_q=np.zeros((2, 2), S32), cu_seqlens_k=np.zeros((2, 2), S32)),
             LayoutError, "cu_seqlens_q has one axis"),
    "count": (dict(cu_seqlens_q=np.array([0, 9], S32), cu_seqlens_k=np.array([0, 3, 9], S32)),
              LayoutError, r"cu_seqlens_k has the shape sequences \+ 1 = \(2,\) here, got \(3,\)"),
    "dtype": (dict(cu_seqlens_q=np.array([0, 9]), cu_seqlens_k=np.array([0, 9])), DTypeError,
              "cu_seqlens_q"),
    "beyond": (dict(cu_seqlens_q=np.array([0, 99], S32), cu_seqlens_k=np.array([0, 9], S32)),
               LayoutError, "cu_seqlens_q ascends from 0 to at most the 30 rows there are"),
    "falling": (dict(cu_seqlens_q=np.array([0, 9, 3], S32), cu_seqlens_k=np.array([0, 3, 9], S32)),
                LayoutError, r"ascends .* got \[0, 9, 3\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_STARTS)
def test_bad_starts_are_refused(name):
    options, kind, message = WRONG_STARTS[name]
    with pytest.raises(kind, match=message):
        tc.attention(Q[0].swapaxes(0, 1), K[0].swapaxes(0, 1), K[0].swapaxes(0, 1), **options)


def test_packed_batches_have_three_axes():
    starts = np.array([0, 9], S32)
    with pytest.raises(LayoutError, match="with cu_seqlens q has 3 axes .* got shape"):
        tc.attention(Q, K, K, cu_seqlens_q=starts, cu_seqlens_k=starts)


READ, READS = 1.0, [1.0]


def scaled(s):
    return s * READ


def closure():
    held = 1.0

    def mod(s, at):
        return s * held

    def put(value):
        nonlocal held
        held = value

    return mod, put


@pytest.mark.parametrize("where", ["module", "function", "list", "closure"])
def test_a_function_that_reads_another_number_is_another(where, monkeypatch):
    mod, put = closure()
    mods = {"module": lambda s, at: s * READ, "function": lambda s, at: scaled(s),
            "list": lambda s, at: s * READS[0], "closure": mod}  # fmt: skip
    q = normal(1, 1, 16, 32)
    for factor in (1.0, 3.0, 1.0, 2.0):
        monkeypatch.setitem(globals(), "READ", factor)
        READS[0] = factor
        put(factor)
        check(q, q, q, lambda s, factor=factor: s * factor, score_mod=mods[where])


@pytest.mark.parametrize("params, kind, text", [
    ({"edges": True}, ScopeError, "edges is of the kind of its default, Edges, got edges=True"),
    ({"mods": 3}, ScopeError, "mods is of the kind of its default, Mods, got mods=3"),
    ({"order": "shortest"}, LayoutError, "order is one of sequence, longest, got 'shortest'"),
    ({"order": "longest"}, LayoutError, "come with 2 arguments behind the scale, got 0"),
    ({"packed": True}, LayoutError, "packed sequences come with 2 arguments"),
])  # fmt: skip
def test_parameters_of_the_kernel_that_do_not_fit(params, kind, text):
    with pytest.raises(kind, match=text):
        kernel.compile(**params)


def random_bias(seed):
    """A bias of any shape that broadcasts, of any dtype and layout, and what it is for."""
    rng, values = random.Random(seed), np.random.default_rng(seed)
    groups = rng.choice((1, 2))
    heads, queries = groups * rng.choice((1, 2, 3)), rng.choice((1, 2, 17, 64, 65, 130, 200))
    shape = (rng.choice((1, 2, 3)), heads, queries, rng.choice((1, 7, 63, 64, 65, 129, 200, 301)))
    axes = [rng.choice((1, n)) for n in shape[:2]] + [rng.choice((1, 1, queries)), shape[3]]
    axes = axes[rng.choice((0, 0, 1, 2)) :]
    bias = np.full((*axes[:-1], axes[-1] + 5), np.nan, rng.choice((BF16, BF16, np.float16, "f4")))
    bias = bias[..., rng.choice((0, 1, 5)) :][..., : axes[-1]]
    bias[...] = values.standard_normal(axes)
    if rng.random() < 0.2:
        bias[..., ::2] = -np.inf
    dim, dtype = rng.choice((32, 64, 72, 128)), rng.choice((BF16, np.float16))
    arrays = operands(shape[0], heads, groups, *shape[2:], dim, dtype=dtype, seed=seed)
    return arrays, bias, rng.choice((False, True, "bottom-right"))


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(n, marks=pytest.mark.full)
                                               for n in range(2, 40))])  # fmt: skip
def test_random_biases(seed):
    (q, k, v), bias, causal = random_bias(seed)
    visible = seen(q.shape[2], k.shape[2], causal)
    check(q, k, v, lambda s: np.where(visible, s + bias.astype(float), -np.inf), bias=bias,
          causal=causal)  # fmt: skip


def test_masks_of_bytes_and_of_keys():
    q, k, v = operands(2, 4, 2, 70, 130, 64)
    mask = np.random.default_rng(0).random((2, 1, 70, 130)) < 0.5
    mask[:, :, 3] = False
    seen_here = tc.score_mods.seen, mask.view(np.uint8)
    check(q, k, v, lambda s: np.where(mask, s, -np.inf), mask_mod=seen_here)
    keys = mask[:, :, 0]
    check(q, k, v, lambda s: np.where(keys[:, :, None], s, -np.inf),
          mask_mod=(tc.score_mods.seen_keys, keys.astype(np.int32)))  # fmt: skip
