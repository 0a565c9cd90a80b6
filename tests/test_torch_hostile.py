"""Calls with tensors of torch that are none of ours: errors of ours before a launch, no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilecat as tc  # noqa: E402
import tilecat.torch as tt  # noqa: E402
from tilecat.errors import DTypeError, LayoutError, TileError  # noqa: E402
from tilecat.runtime import machine  # noqa: E402


class Launched(BaseException):
    """A launch was reached."""


@pytest.fixture(autouse=True)
def no_launch(monkeypatch):
    def stop(*args: Any, **options: Any) -> None:
        raise Launched

    monkeypatch.setattr(machine.sim, "run", stop)


def bf16(*shape: int) -> Any:
    return torch.ones(shape, dtype=torch.bfloat16)


def ints(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.int32)


Q, WIDE, T = bf16(1, 2, 64, 64), bf16(1, 70, 2, 64), 70
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "tc.matmul": (tc.matmul, {"a": bf16(64, 64), "b": bf16(64, 64), "out": bf16(64, 64)}),
    "tc.attention": (tc.attention, {"q": Q, "k": Q, "v": Q, "sinks": torch.ones(2)}),
    "tc.simple_gla_step": (tc.simple_gla_step, {
        "q": bf16(2, 2, 64), "k": bf16(2, 2, 64), "v": bf16(2, 2, 64),
        "state": torch.ones(2, 2, 64, 64)}),
    "matmul": (tt.matmul, {"a": bf16(64, 64), "b": bf16(64, 64)}),
    "linear": (tt.linear, {"x": bf16(5, 64), "weight": bf16(32, 64), "bias": bf16(32)}),
    "linear_gate": (tt.linear_gate, {"x": bf16(5, 64), "weight": bf16(32, 64), "bias": None,
                                     "gate": bf16(5, 32), "y": bf16(5, 32)}),
    "attention": (tt.attention, {"q": Q, "k": Q, "v": Q, "bias": bf16(64, 64)}),
    "sdpa": (tt.sdpa, {"query": Q, "key": Q, "value": Q, "attn_mask": bf16(64, 64)}),
    "attention_decode": (tt.attention_decode, {
        "q": bf16(2, 1, 4, 64), "k_cache": bf16(2, 128, 2, 64), "v_cache": bf16(2, 128, 2, 64),
        "cache_seqlens": ints(100, 128)}),
    "chunk_simple_gla": (tt.chunk_simple_gla, {"q": WIDE, "k": WIDE, "v": WIDE,
                                               "g": -torch.ones(1, T, 2)}),
    "cross_entropy": (tt.cross_entropy, {"x": bf16(5, 100), "target": torch.arange(5)}),
    "apply_rotary": (tt.apply_rotary, {"x": bf16(2, T, 3, 64), "cos": torch.ones(128, 16),
                                       "sin": torch.ones(128, 16)}),
    "layer_norm_fn": (tt.layer_norm_fn, {"x": bf16(5, 100), "weight": bf16(100)}),
    "fft_conv": (tt.fft_conv, {"u": bf16(2, 3, 1000), "k": torch.ones(3, 1000)}),
}  # fmt: skip


def wrong(x: Any) -> Iterator[Any]:
    """What may stand in the place of a tensor, and is none of ours."""
    yield from (None, "x", object(), 3, 1j, [1.0, 2.0], {}, torch.float32)
    yield from (x.to(torch.complex64), x.to_sparse(), torch._neg_view(x))
    yield from (torch.nested.nested_tensor([x.float(), x.float()]), x.reshape(-1)[0], x[None])
    yield torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8)
    if x.ndim > 1:
        yield x.flatten(1).to_sparse_csr() if x.ndim > 2 else x.to_sparse_csr()
    if x.dtype == torch.float32 or x.ndim > 4:
        yield x.to_mkldnn()


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_tensor_of_ours_is_refused_in_our_words(name):
    call, given = CALLS[name]
    with pytest.raises(Launched):
        call(**{what: x if x is None else x.clone() for what, x in given.items()})
    refused = 0
    for what, value in given.items():
        for other in wrong(value) if value is not None else ():
            try:
                call(**{**given, what: other})
            except Launched:
                continue
            except TileError as error:
                assert error.loc is not None and error.message
                refused += 1
    assert refused > 10


MANY = torch.ones(3)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: tt.chunk_simple_gla(WIDE, WIDE, WIDE, output_final_state=MANY), DTypeError,
         "simple_gla: output_final_state is True or False, got Tensor"),
        (lambda: tt.sdpa(Q, Q, Q, is_causal=MANY), DTypeError, "sdpa: is_causal is True or False"),
        (lambda: tt.sdpa(Q, Q, Q, dropout_p=MANY), LayoutError, "sdpa: dropout_p is 0"),
        (lambda: tt.apply_rotary(bf16(2, T, 3, 64), MANY, MANY, max_seqlen=MANY), LayoutError,
         "apply_rotary: max_seqlen is an int"),
        (lambda: tt.attention_decode(bf16(2, 1, 4, 64), Q, Q, window=3), LayoutError, "window"),
        (lambda: tt.attention(Q, Q, Q, sinks=object()), DTypeError,
         "attention: sinks is a tensor of torch, got object"),
        (lambda: tt.attention(Q, Q, Q, softcap="x"), LayoutError,
         "attention: the softcap of the scores is positive and finite, got softcap='x'"),
        (lambda: tt.attention(Q, Q, Q, softcap=1j), DTypeError,
         "attention: softcap is float, got complex"),
        (lambda: tt.attention(Q, Q, Q, score_mod=()), LayoutError, "score_mod is a function"),
        (lambda: tt.chunk_simple_gla(MANY.to("meta"), WIDE, WIDE, output_final_state=True),
         LayoutError,
         "simple_gla: shapes that do not fit, got [(3,), "),
        (lambda: tt.mamba_chunk_scan_combined(*[MANY] * 5, 64, dt_limit=3), LayoutError,
         "mamba_chunk_scan_combined: dt_limit is two ascending numbers, got 3"),
        (lambda: tc.matmul(torch._neg_view(bf16(64, 64)), bf16(64, 64)), DTypeError,
         "its elements are the negatives of those in memory"),
        (lambda: tc.fft_conv(bf16(2, 3, 9), np.ones((3, 9), np.float32)), DTypeError,
         "fft_conv: k is an array of u's library"),
    ],
)  # fmt: skip
def test_each_is_told_what_is_wanted(call, kind, message):
    with pytest.raises(kind) as caught:
        call()
    assert message in caught.value.message
