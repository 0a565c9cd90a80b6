"""`tilecat.torch.attention_decode`: what `tilecat.attention_decode` gives, as an operator."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch_exact import close, exact, heads  # noqa: E402

import tilecat as tc  # noqa: E402
import tilecat.torch as tt  # noqa: E402
from tilecat.errors import LayoutError  # noqa: E402


def arguments():
    q, k, v = heads(2, 2, 4, 32), heads(2, 50, 2, 32, seed=1), heads(2, 50, 2, 32, seed=2)
    return q, k, v, torch.tensor([50, 17], dtype=torch.int32)


def test_it_gives_what_each_sequence_gives():
    q, k, v, lengths = arguments()
    out, lse = tt.attention_decode(q, k, v, cache_seqlens=lengths, return_lse=True)
    assert out.shape == q.shape and lse.shape == (2, 4, 2)
    for number, length in enumerate(lengths.tolist()):
        one = [x[number : number + 1].transpose(1, 2) for x in (q, k, v)]
        close(out[number : number + 1].transpose(1, 2),
              exact(one[0], one[1][:, :, :length], one[2][:, :, :length]))  # fmt: skip
    assert torch.equal(out, tc.attention_decode(q, k, v, cache_seqlens=lengths))


def test_it_is_a_good_operator_of_one_graph():
    q, k, v, lengths = arguments()
    given = (q, k, v, lengths, *(None,) * 5, True, None, None, None)
    operator = torch.ops.tilecat.attention_decode.default
    torch.library.opcheck(operator, given, test_utils=("test_schema", "test_faketensor"))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(q, k, v, lengths):
        return tt.attention_decode(q * 1, k, v, cache_seqlens=lengths, causal=True) * 2

    wanted = tt.attention_decode(q, k, v, cache_seqlens=lengths, causal=True) * 2
    assert torch.equal(step(q, k, v, lengths), wanted)


def test_caches_of_8_bits_have_scales():
    q, k, v, lengths = arguments()
    narrow = [x.to(torch.float8_e4m3fn) for x in (k, v)]
    scales = {name: torch.rand(2, 2) + 0.5 for name in ("scale_k", "scale_v")}
    out = tt.attention_decode(q, *narrow, cache_seqlens=lengths, **scales)
    wide = [(x.float() * y[:, None, :, None]).transpose(1, 2)
            for x, y in zip(narrow, scales.values(), strict=True)]  # fmt: skip
    close(out[:1].transpose(1, 2), exact(q[:1].transpose(1, 2), *[x[:1] for x in wide]))


def test_gradients_are_refused():
    q, k, v, lengths = arguments()
    with pytest.raises(LayoutError, match="has no gradients"):
        tt.attention_decode(q.requires_grad_(), k, v, cache_seqlens=lengths)
    with torch.no_grad():
        tt.attention_decode(q, k, v, cache_seqlens=lengths)
