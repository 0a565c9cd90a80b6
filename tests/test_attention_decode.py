"""tc.attention_decode on the PTX machine against float64: parts, pages, lengths, bad input."""

import math

import ml_dtypes
import numpy as np
import pytest
from decode_cases import Decode, random_decode

import tilecat as tc
from tilecat import attention_decode_call
from tilecat.attention_decode_call import splits_of
from tilecat.errors import DTypeError, LayoutError

BF16 = ml_dtypes.bfloat16
SINKS = np.array([1.5, -3.0, 0.25, -math.inf], np.float32)


def run(q, k, v, out, lse, **options):
    got = tc.attention_decode(q, k, v, out=out, lse=lse, return_lse=True, **options)
    assert got[0] is out and got[1] is lse


CASES = {
    "one query of grouped heads": Decode(1, 8, 2, 300, 64, (300, 170)),
    "shared among parts": Decode(1, 4, 1, 700, 128, (700,)),
    "all keys of the cache": Decode(1, 2, 2, 140, 64, (140, 140), ragged=False),
    "packed causal queries": Decode(5, 6, 2, 300, 64, (300, 3, 0), options={"causal": True}),
    "more rows than a tile": Decode(16, 9, 1, 300, 64, (257,), options={"causal": True}),
    "window": Decode(3, 4, 2, 400, 64, (400, 90), options={"causal": True, "window": (100, None)}),
    "window to both sides": Decode(7, 2, 1, 300, 64, (300,), options={"window": (40, 2)}),
    "pages smaller than a block": Decode(1, 4, 2, 288, 64, (288, 33), page=16),
    "pages larger than a block": Decode(2, 4, 2, 512, 128, (511, 1), page=256),
    "pages of 192": Decode(1, 2, 1, 384, 64, (300,), page=192, dtype="f16"),
    "sinks": Decode(1, 4, 2, 300, 64, (300, 0), options={"sinks": SINKS}),
    "sinks of whole sequences": Decode(1, 4, 4, 100, 64, (100, 0), options={"sinks": SINKS}),
    "soft cap": Decode(1, 2, 1, 100, 96, (77,), options={"softcap": 5.0, "scale": 0.5}),
    "wide values": Decode(1, 2, 1, 130, 64, (130,), dim_v=128),
    "widest heads": Decode(1, 2, 1, 130, 256, (101,)),
    "caches of 8 bits": Decode(1, 8, 2, 300, 64, (300, 170), cache="e4m3"),
    "pages of 8 bits, of more rows than a tile": Decode(
        5, 20, 1, 288, 64, (288, 0, 65), 128, 16, "f16", options={"causal": True, "softcap": 5.0},
        cache="e4m3"),
}


@pytest.mark.parametrize("name", CASES)
def test_decode(name):
    CASES[name].check(run)


@pytest.mark.parametrize("number", [*range(4), *(pytest.param(n, marks=pytest.mark.full)
                                                 for n in range(4, 60))])  # fmt: skip
def test_random_decodes(number):
    random_decode(100 + number, 500, wide=False).check(run)


def test_parts_are_put_together_whoever_comes_last(monkeypatch):
    monkeypatch.setattr(attention_decode_call, "splits_of", lambda *_: 11)  # more than TOGETHER
    Decode(2, 8, 2, 1500, 64, (1500, 130), options={"causal": True}).check(run)


def test_new_arrays_are_returned():
    (q, k, v), options = CASES["one query of grouped heads"].call()
    out, lse = tc.attention_decode(q, k, v, return_lse=True, **options)
    assert out.shape == q.shape and out.dtype == q.dtype and lse.shape == (2, 8, 1)
    np.testing.assert_array_equal(out, tc.attention_decode(q, k, v, **options))


def test_nothing_to_see_gives_zero():
    q, k = np.ones((2, 1, 2, 64), BF16), np.zeros((2, 0, 2, 64), BF16)
    out, lse = tc.attention_decode(q, k, k, return_lse=True)
    assert not out.astype(float).any() and (lse == -math.inf).all()
    sinks = np.array([2.0, -1.0], np.float32)
    _, lse = tc.attention_decode(q, k, k, sinks=sinks, return_lse=True)
    np.testing.assert_array_equal(lse, np.broadcast_to(sinks[None, :, None], (2, 2, 1)))
    empty = tc.attention_decode(q[:0], k[:0], k[:0])
    assert empty.shape == (0, 1, 2, 64)


@pytest.mark.parametrize("units, keys, splits", [
    (128, 8192, 1),  # a task a SM, nearly
    (16, 8192, 8), (512, 8192, 1), (1, 1 << 17, 128), (8, 192, 3), (1, 0, 1),
])  # fmt: skip
def test_splits_fill_the_device(units, keys, splits):
    assert splits_of(units, keys, 64, 132, None) == splits


@pytest.mark.parametrize("units, keys, splits", [(128, 8192, 1), (512, 16384, 2), (128, 32768, 4)])
def test_sequences_of_several_lengths_have_more_parts_where_they_are_long(units, keys, splits):
    assert splits_of(units, keys, 64, 132, 8192) == splits


def test_splits_leave_no_sm_much_longer_than_the_others():
    for units in range(1, 400):
        splits = splits_of(units, 1 << 15, 64, 132, None)
        share = -(-units * splits // 132) * -(-512 // splits)
        assert share <= 1.15 * units * 512 / 132 + 8, (units, splits)


Q, K = np.ones((2, 3, 4, 64), BF16), np.ones((2, 64, 2, 64), BF16)
E4M3, ONES = K.astype(ml_dtypes.float8_e4m3fn), np.ones((2, 2), np.float32)
LENGTHS, TABLE = np.array([64, 64], np.int32), np.zeros((2, 1), np.int32)
BAD = {
    "axes": (dict(q=Q[0]), LayoutError, "q is B x Lq x H x D, got q"),
    "dtype": (dict(k_cache=K.astype(np.float16)), DTypeError, "one dtype, bf16 or f16, or the "),
    "8 bits without scales": (dict(k_cache=E4M3, v_cache=E4M3), LayoutError,
                              "caches of e4m3 have scale_k and scale_v, others none, got none of"),
    "scales of 16 bits": (dict(scale_k=ONES, scale_v=ONES), LayoutError, "got scale_k and scale_v"),
    "scales": (dict(k_cache=E4M3, v_cache=E4M3, scale_k=ONES, scale_v=ONES[:1]), LayoutError,
               "scale_v has the shape B x Hkv"),
    "8 bits of keys alone": (dict(k_cache=E4M3, scale_k=ONES, scale_v=ONES), DTypeError,
                             "k_cache and v_cache have one dtype, got e4m3 and bf16"),
    "8 bits of queries": (dict(q=Q.astype(ml_dtypes.float8_e4m3fn)), DTypeError, "one dtype, bf16"),
    "extents": (dict(k_cache=K[:1]), LayoutError, "extents agree in q B x Lq x H x D, k_cache B x"),
    "head dims": (dict(k_cache=K[..., :32]), LayoutError, "extents agree"),
    "heads": (dict(q=Q[:, :, :3]), LayoutError, "the heads of the caches divide those of q, got 2"),
    "head dim": (dict(v_cache=np.ones((2, 64, 2, 300), BF16)), LayoutError, "head dim is 1 to 256"),
    "queries": (dict(q=np.ones((2, 17, 4, 64), BF16)), LayoutError, "1 to 16 queries a sequence"),
    "lengths": (dict(cache_seqlens=LENGTHS[:1]), LayoutError, "cache_seqlens has the shape B = "),
    "lengths' dtype": (dict(cache_seqlens=LENGTHS.astype(np.int64)), DTypeError, "s32, got s64"),
    "long": (dict(cache_seqlens=LENGTHS + 1), LayoutError, "are 0 to 64, the keys there is room"),
    "negative": (dict(cache_seqlens=LENGTHS - 70), LayoutError, "cache_seqlens are 0 to 64"),
    "table": (dict(block_table=TABLE[0]), LayoutError, "block_table has the shape B x pages"),
    "page": (dict(block_table=TABLE, k_cache=K[:, :48], v_cache=K[:, :48]), LayoutError,
             "a page has 16, 32, 64, 128, 192, 256 rows, got k_cache with 48"),
    "entry": (dict(block_table=TABLE + 2), LayoutError, r"got block_table\[0, 0\] = 2"),
    "reach": (dict(block_table=TABLE, k_cache=K[..., ::2], q=Q[..., :32]), LayoutError,
              "pages are loaded by TMA, which k_cache does not allow"),
    "out": (dict(out=np.ones((2, 3, 4, 32), BF16)), LayoutError, "out has the shape B x Lq x H x"),
    "strides": (dict(out=np.ones((2, 4, 3, 64), BF16).swapaxes(1, 2)), LayoutError,
                "out is contiguous"),
    "window": (dict(window=(-1, 0)), LayoutError, "window is"),
    "scale": (dict(scale=0.0), LayoutError, "the scale of the scores is positive"),
    "sinks": (dict(sinks=np.ones(2, np.float32)), LayoutError, r"sinks has the shape H = \(4,\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    given, kind, text = BAD[name]
    args = {"q": Q, "k_cache": K, "v_cache": K, **given}
    with pytest.raises(kind, match=text):
        tc.attention_decode(args.pop("q"), args.pop("k_cache"), args.pop("v_cache"), **args)
