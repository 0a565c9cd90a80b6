"""Every call with each argument wrong in many ways: our errors before a launch, no others.

The sweep over all calls is slow; what it has found stands in front, one test each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilecat as tc
from tilecat.errors import DTypeError, LayoutError, TileError
from tilecat.runtime import machine

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
T = 70


class Launched(BaseException):
    """A launch was reached."""


@pytest.fixture
def no_launch(monkeypatch):
    def stop(*args: Any, **options: Any) -> None:
        raise Launched

    monkeypatch.setattr(machine.sim, "run", stop)


def normal(*shape: int, dtype: Any = BF16) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


def single(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).random(shape, np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def moved(x: np.ndarray, num_bytes: int) -> np.ndarray:
    """A copy that many bytes behind an aligned address."""
    room = np.zeros(x.nbytes + 64, np.uint8)
    first = -room.ctypes.data % 16 + num_bytes
    y = room[first : first + x.nbytes].view(x.dtype).reshape(x.shape)
    y[...] = x
    return y


def spread(x: np.ndarray) -> np.ndarray:
    """A copy with gaps between elements."""
    y = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2]
    y[...] = x
    return y


def turned(x: np.ndarray) -> np.ndarray:
    """A copy with the last two axes in the other order in memory."""
    return x.swapaxes(-1, -2).copy().swapaxes(-1, -2)


# ---- what was found


def with_bias(values: Any) -> Any:
    return tc.matmul(normal(64, 64), normal(64, 64), epilogue=((tc.epilogues.bias, values),))


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: with_bias(3), LayoutError, "epilogue: a tensor has the axes N behind at most"),
        (lambda: with_bias(np.array(3, BF16)), LayoutError,
         "matmul: values of bias is a number, or an array of one axis or more, got shape ()"),
        (lambda: tc.attention(None, normal(1, 2, 8, 64), normal(1, 2, 8, 64)), DTypeError,
         "attention: q is an array, got None"),
        (lambda: tc.cross_entropy_grad(normal(5, 9), None), DTypeError, "target: "),
        (lambda: tc.based_step(normal(1, 2, 16), normal(1, 2, 16), normal(1, 2, 64),
                               np.broadcast_to(single(160, 64), (1, 2, 160, 64))), LayoutError,
         "based_step: state is written, got a read-only array"),
        (lambda: tc.based_step(normal(1, 2, 16), normal(1, 2, 16), normal(1, 2, 64),
                               np.lib.stride_tricks.as_strided(
                                   single(160, 64), (1, 2, 160, 64), (0, 0, 256, 4))), LayoutError,
         "based_step: state is written, and its elements must lie apart"),
        (lambda: tc.based(normal(1, 2, 64, 16), normal(1, 2, 64, 16), normal(1, 2, 64, 64),
                          use_norm=np.ones(3)), DTypeError, "based: use_norm is True or False"),
        (lambda: tc.cross_entropy_grad(normal(5, 9), np.arange(5), inplace=np.ones(3)), DTypeError,
         "cross_entropy_grad: inplace is True or False, got ndarray"),
        (lambda: tc.ssd_step(normal(1, 2, 64), single(1, 2), single(2), normal(1, 1, 64),
                             normal(1, 1, 64), single(1, 2, 64, 64)), LayoutError,
         "ssd_step: A is negative, got "),
    ],
)  # fmt: skip
def test_errors_before_a_launch(no_launch, call, kind, message):
    with pytest.raises(kind) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "what"),
    [("attention_backward", "q"), ("packed_backward", "cu_seqlens_k"), ("grouped_ends", "b"),
     ("simple_gla_backward", "d_final_state"), ("ssd_backward", "d_final_states")],
)  # fmt: skip
def test_addresses_between_elements_are_refused_before_the_first_of_several_launches(
    no_launch, name, what
):
    call, given = calls()[name]
    with pytest.raises(LayoutError, match=f"the address of {what} is a multiple"):
        call(**{**given, what: moved(given[what], 1)})


@pytest.mark.parametrize("change", [spread, lambda x: moved(x, 4), lambda x: x[..., ::-1]])
def test_scales_that_lie_anywhere_are_right(change):
    a, b = normal(64, 128, dtype=E4M3), normal(128, 64, dtype=E4M3)
    scales = single(64, 1), single(1, 64)
    y = tc.matmul(a, b, scale_a=change(scales[0]), scale_b=change(scales[1]), out_dtype="f32")
    exact = a.astype(float) @ b.astype(float) * (change(scales[0]) * change(scales[1]))
    np.testing.assert_allclose(y, exact, rtol=1e-3, atol=1e-3)


def test_labels_that_lie_anywhere_are_right():
    x = normal(6, 100, dtype=np.float32)
    for target in (np.arange(12)[::-2], np.broadcast_to(np.int64(3), 6)):
        kept = np.ascontiguousarray(target)
        assert tc.cross_entropy(x, target) == tc.cross_entropy(x, kept)


def test_attention_takes_columns_that_lie_one_after_another():
    q, k, v = (normal(1, 1, 40, 32 + n)[..., :32] for n in range(3))
    made = tc.attention(turned(q), turned(k), turned(v))
    np.testing.assert_array_equal(made, tc.attention(q, k, v))


@pytest.mark.slow
def test_gradients_of_attention_take_columns_that_lie_one_after_another():
    q, k, v, dout = (normal(1, 1, 40, 32 + n)[..., :32] for n in range(4))
    out, lse = tc.attention(q, k, v, return_lse=True)
    grads = tc.attention_backward(dout, q, k, v, out, lse)
    turned_ones = (turned(x) for x in (dout, q, k, v, out))
    for got, wanted in zip(tc.attention_backward(*turned_ones, lse), grads, strict=True):
        np.testing.assert_array_equal(got, wanted)


# ---- the sweep


Calls = dict[str, tuple[Callable[..., Any], dict[str, Any]]]


def products_and_attention() -> Calls:
    """Products and attention: calls that are right."""
    q = normal(1, 2, 64, 64)
    packed = normal(T, 2, 64)
    eight = normal(1, 2, 64, 64, dtype=E4M3)
    square = normal(64, 64)
    starts = ints(0, 30, T)
    lengths = {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
    decode = {"q": normal(2, 1, 4, 64), "cache_seqlens": ints(100, 128)}
    scales = {f"scale_{name}": single(1, 2) for name in "qkv"}
    products = {"a": square, "b": square}
    gradient = {"dout": q, "q": q, "k": q, "v": q, "out": q, "lse": single(1, 2, 64)}
    return {
        "matmul": (tc.matmul, {**products, "out": square, "alpha": 1.0, "beta": 0.0}),
        "scaled": (tc.matmul, {"a": eight[0, 0], "b": eight[0, 1], "out_dtype": "bf16",
                               "scale_a": single(64, 1), "scale_b": single(1, 64)}),
        "gated": (tc.matmul, {**products, "second": square, "out_dtype": "bf16",
                              "epilogue": (tc.epilogues.swiglu,)}),
        "batched": (tc.matmul, {"a": normal(2, 64, 64), "b": normal(2, 64, 64)}),
        "bias": (with_bias, {"values": normal(64)}),
        "grouped_ends": (tc.grouped_matmul, {"a": normal(128, 64), "b": normal(2, 64, 64),
                                             "ends": ints(64, 128)}),
        "grouped_counts": (tc.grouped_matmul, {"a": normal(2, 64, 64), "b": normal(2, 64, 64),
                                               "counts": ints(64, 10)}),
        "attention": (tc.attention, {"q": q, "k": q, "v": q, "out": q, "lse": single(1, 2, 64),
                                     "scale": 0.1, "window": (8, 0), "softcap": 5.0}),
        "biased": (tc.attention, {"q": q, "k": q, "v": q, "bias": q, "sinks": single(2)}),
        "packed": (tc.attention, {"q": packed, "k": packed, "v": packed, **lengths}),
        "attention_fp8": (tc.attention, {"q": eight, "k": eight, "v": eight, **scales}),
        "decode": (tc.attention_decode, {**decode, "k_cache": normal(2, 128, 2, 64),
                                         "v_cache": normal(2, 128, 2, 64), "scale": 0.1}),
        "paged": (tc.attention_decode, {**decode, "k_cache": normal(8, 64, 2, 64),
                                        "v_cache": normal(8, 64, 2, 64),
                                        "block_table": ints(0, 1, 2, 3).reshape(2, 2)}),
        "attention_backward": (tc.attention_backward, gradient),
        "packed_backward": (tc.attention_backward, {
            **dict.fromkeys(("dout", "q", "k", "v", "out"), packed), "lse": single(2, T),
            **lengths}),
    }  # fmt: skip


def convolutions_and_rows() -> Calls:
    """Convolutions and rows: calls that are right."""
    starts = ints(0, 30, T)
    sequence = normal(2, 3, 1000)
    filters = single(3, 1000)
    angles = single(128, 16)
    conv = {"u": sequence, "k": filters, "in_gate": sequence, "out_gate": sequence}
    return {
        "fft_conv": (tc.fft_conv, conv),
        "fft_conv_backward": (tc.fft_conv_backward, {"dout": sequence, **conv}),
        "rotary": (tc.apply_rotary, {"x": normal(2, T, 3, 64), "cos": angles, "sin": angles,
                                     "seqlen_offsets": ints(0, 5)}),
        "rotary_packed": (tc.apply_rotary, {"x": normal(T, 3, 64), "cos": angles, "sin": angles,
                                            "cu_seqlens": starts, "max_seqlen": 40}),
        "rotary_qk": (tc.apply_rotary_qk, {"q": normal(2, T, 3, 64), "k": normal(2, T, 1, 64),
                                           "cos": angles, "sin": angles, "inplace": True}),
        "norm": (tc.layer_norm_fn, {"x": normal(5, 100), "weight": normal(100), "eps": 1e-6,
                                    "bias": normal(100), "residual": normal(5, 100), "seed": 5,
                                    "rowscale": single(5), "dropout_p": 0.1}),
        "norm_backward": (tc.layer_norm_fn_backward, {
            "dy": normal(5, 100), "x": normal(5, 100), "weight": normal(100), "bias": normal(100),
            "residual": normal(5, 100), "rowscale": single(5), "dropout_p": 0.1, "seed": 5,
            "d_sums": normal(5, 100)}),
        "cross_entropy": (tc.cross_entropy, {"x": normal(5, 100), "target": np.arange(5),
                                             "ignore_index": -100, "label_smoothing": 0.1,
                                             "z_loss": 0.1}),
        "cross_entropy_grad": (tc.cross_entropy_grad, {"x": normal(5, 100), "inplace": True,
                                                       "target": np.arange(5)}),
    }  # fmt: skip


def recurrences() -> Calls:
    """Recurrences: calls that are right."""
    wide = normal(1, T, 2, 64)
    starts = ints(0, 30, T)
    each = normal(1, T, 1, 64)
    step = normal(2, 2, 64)
    state = single(2, 2, 64, 64)
    gates = -single(1, T, 2)
    heads = -single(4)
    four = normal(1, T, 4, 64)
    group = normal(1, T, 2, 64)
    recurrence = {"q": wide, "k": wide, "v": wide}
    return {
        "linear_attention": (tc.linear_attention, {**recurrence, "scale": 0.1,
                                                   "initial_state": state, "cu_seqlens": starts}),
        "simple_gla": (tc.simple_gla, {**recurrence, "g": gates, "g_gamma": -single(2),
                                       "initial_state": state[:1]}),
        "lightning": (tc.lightning_attn, {**recurrence, "layer_idx": 0, "num_layers": 4}),
        "simple_gla_backward": (tc.simple_gla_backward, {
            "do": wide, **recurrence, "g": gates, "initial_state": state[:1],
            "d_final_state": state[:1]}),
        "ssd": (tc.ssd, {"x": four, "dt": single(1, T, 4), "A": heads, "B": group, "C": group,
                         "D": heads, "z": four, "dt_bias": heads, "dt_limit": (0.0, 1.0),
                         "initial_states": single(1, 4, 64, 64),
                         "seq_idx": np.zeros((1, T), np.int32)}),
        "ssd_backward": (tc.ssd_backward, {
            "dy": four, "x": four, "dt": single(1, T, 4), "A": heads, "B": group, "C": group,
            "D": heads, "z": four, "dt_bias": heads, "dt_limit": (0.0, 1.0),
            "initial_states": single(1, 4, 64, 64), "seq_idx": np.zeros((1, T), np.int32),
            "d_final_states": single(1, 4, 64, 64)}),
        "simple_gla_step": (tc.simple_gla_step, {"q": step, "k": step, "v": step, "state": state,
                                                 "g": -single(2, 2), "g_gamma": -single(2)}),
        "ssd_step": (tc.ssd_step, {"x": normal(2, 4, 64), "dt": single(2, 4), "A": heads,
                                   "B": step, "C": step, "state": single(2, 4, 64, 64),
                                   "D": heads, "z": normal(2, 4, 64), "dt_bias": heads}),
        "gated_delta_rule": (tc.gated_delta_rule, {"q": each, "k": each, "v": wide, "g": gates,
                                                   "beta": -gates, "initial_state": state,
                                                   "cu_seqlens": starts}),
        "gated_delta_rule_step": (tc.gated_delta_rule_step, {
            "q": step[:, :1], "k": step[:, :1], "v": step, "g": -single(2, 2),
            "beta": single(2, 2), "state": state}),
        "based": (tc.based, {"q": normal(1, 2, T, 16), "k": normal(1, 2, T, 16), "use_norm": False,
                             "v": normal(1, 2, T, 64), "initial_state": single(1, 2, 160, 64)}),
        "based_step": (tc.based_step, {"q": normal(2, 2, 16), "k": normal(2, 2, 16), "v": step,
                                       "state": single(2, 2, 160, 64)}),
        "hedgehog": (tc.hedgehog, {"q": normal(1, 2, T, 64), "k": normal(1, 1, T, 64),
                                   "v": normal(1, 1, T, 64), "qmap": normal(2, 64, 64),
                                   "kmap": normal(2, 64, 64), "alpha": single(2),
                                   "beta": single(2) + 1}),
    }  # fmt: skip


def calls() -> Calls:
    """Of each public function a call that is right, by name."""
    return {**products_and_attention(), **convolutions_and_rows(), **recurrences()}


DTYPES = (np.float64, np.float32, np.float16, BF16, E4M3, np.int8, np.int32, np.int64, np.uint8,
          bool, np.complex64)  # fmt: skip
OTHERS = (None, "x", object(), 3, -1, 0, 10**30, 0.5, float("nan"), float("inf"), 1e300, 1j, True,
          (), [1.0, 2.0], np.ones(3, np.float32), np.array(1.0))  # fmt: skip


def wrong(x: Any) -> Iterator[Any]:
    """What may stand in the place of an argument, most of it wrong."""
    yield from OTHERS
    if not isinstance(x, np.ndarray):
        return
    for axis, extent in enumerate(x.shape):
        for other in (0, extent - 1, extent + 1, 2 * extent):
            yield np.resize(x, (*x.shape[:axis], other, *x.shape[axis + 1 :]))
    yield from (x[None], x[0], moved(x, 1), moved(x, x.itemsize), x[::-1], x.tolist())
    yield from (np.broadcast_to(x[:1], x.shape), spread(x), x.astype(x.dtype.newbyteorder()))
    with np.errstate(invalid="ignore"):
        yield from (x.astype(dtype) for dtype in DTYPES if x.dtype != dtype)
    if x.dtype.kind == "i":
        yield from (-x - 1, x[::-1].copy(), x + 10**6, x + 1)
    if x.dtype == np.float32:
        yield from (abs(x) + 1, x * np.nan, x + np.inf)


@pytest.mark.slow
@pytest.mark.parametrize("name", calls())
def test_each_argument_of_each_call_may_be_wrong(no_launch, name):
    call, given = calls()[name]

    def copies() -> dict[str, Any]:
        return {what: x.copy() if isinstance(x, np.ndarray) else x for what, x in given.items()}

    with pytest.raises(Launched):
        call(**copies())
    refused = 0
    for what, value in given.items():
        for other in wrong(value):
            try:
                call(**{**copies(), what: other})
            except Launched:
                continue
            except TileError as error:
                assert error.message
                refused += 1
    assert refused > 20
