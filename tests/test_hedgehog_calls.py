"""`tc.hedgehog` and its operator of torch: results, states that go on, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from recurrences import assert_near
from test_hedgehog import LIMIT, STATE_LIMIT, SUM_LIMIT, reference

import tilecat as tc
from tilecat import bf16
from tilecat.errors import DTypeError, LayoutError


def arrays(length, heads=2, groups=1, dim=64, seed=0):
    """q, k, v, qmap, kmap, alpha, beta."""
    rng = np.random.default_rng(seed)
    q, k, v = (
        rng.standard_normal((1, n, length, dim)).astype(bf16.numpy) for n in (heads, groups, groups)
    )
    maps = ((rng.standard_normal((heads, dim, 64)) / 8).astype(bf16.numpy) for _ in range(2))
    return q, k, v, *maps, *(rng.uniform(0.2, 1, heads).astype(np.float32) for _ in range(2))


def test_a_sequence_goes_on_from_its_states():
    """Its last block is repeated: it is in no state, and the next block's window."""
    q, k, v, *rest = arrays(260)
    o, kv, ks = tc.hedgehog(q, k, v, *rest)
    for h in range(2):
        exact = reference(q[0, h], k[0, 0], v[0, 0], *(x[h] for x in rest))
        assert_near(o[0, h], exact[0], LIMIT)
        assert_near(kv[0, h], exact[1], STATE_LIMIT)
        assert_near(ks[0, h][None], exact[2][None], SUM_LIMIT)
    _, *states = tc.hedgehog(*(x[:, :, :192] for x in (q, k, v)), *rest)
    again, kv2, ks2 = tc.hedgehog(*(x[:, :, 128:] for x in (q, k, v)), *rest, initial_state=states)
    assert_near(again[0, :, 64:], o[0, :, 192:].astype(np.float64), 2 * LIMIT)
    assert_near(kv2, kv, STATE_LIMIT)
    assert_near(ks2, ks, SUM_LIMIT)


def test_nothing_to_do_keeps_the_states():
    given = arrays(0)
    states = np.ones((1, 2, 128, 64), np.float32), np.ones((1, 2, 128), np.float32)
    o, kv, ks = tc.hedgehog(*given, initial_state=states)
    assert o.shape == given[0].shape and (kv == 1).all() and (ks == 1).all()


def test_refusals():
    q, k, v, qmap, kmap, alpha, beta = given = arrays(70)
    rest = (qmap, kmap, alpha, beta)
    three, wide = np.zeros((1, 3, 70, 64), q.dtype), np.zeros((1, 2, 70, 96), q.dtype)
    kv, ks = np.zeros((1, 2, 128, 64), np.float32), np.zeros((1, 2, 128), np.float32)
    for kind, message, call in (
        (LayoutError, "window is 64, the block of tokens, got 128",
         lambda: tc.hedgehog(*given, window=128)),
        (LayoutError, "D, columns of q, is 64 or 128, got 96",
         lambda: tc.hedgehog(wide, wide, wide, *rest)),
        (LayoutError, "the heads of k and v divide those of q, got 3 and 2",
         lambda: tc.hedgehog(q, three, three, *rest)),
        (LayoutError, "k has the shape B x Hk x T x D",
         lambda: tc.hedgehog(q, k[:, :, :9], v, *rest)),
        (LayoutError, "qmap has the shape H x D x 64 = (2, 64, 64) here, got (2, 64, 32)",
         lambda: tc.hedgehog(q, k, v, qmap[..., :32], *rest[1:])),
        (DTypeError, "kmap is bf16", lambda: tc.hedgehog(
            q, k, v, qmap, kmap.astype(np.float32), alpha, beta)),
        (LayoutError, "alpha has the shape H = (2,)",
         lambda: tc.hedgehog(q, k, v, *rest[:2], ks, beta)),
        (DTypeError, "beta", lambda: tc.hedgehog(q, k, v, *rest[:3], None)),
        (LayoutError, "beta, of the window, is positive",
         lambda: tc.hedgehog(q, k, v, *rest[:3], 0 * beta)),
        (LayoutError, "initial_state is the pair (kv_state, k_state), got ndarray",
         lambda: tc.hedgehog(*given, initial_state=kv)),
        (LayoutError, "initial_state: k_state has the shape B x H x 128",
         lambda: tc.hedgehog(*given, initial_state=(kv, ks[..., :9]))),
    ):  # fmt: skip
        error = pytest.raises(kind, call).value
        assert message in error.message, error.message


def test_operator_of_torch():
    torch = pytest.importorskip("torch")
    import tilecat.torch as tct

    q, k, v, qmap, kmap, alpha, beta = (
        torch.tensor(x.astype(np.float32)).to(torch.bfloat16 if x.ndim > 1 else torch.float32)
        for x in arrays(70)
    )
    given = (q, k, v, qmap, kmap, alpha, beta)
    for mine, wanted in zip(tct.hedgehog(*given), tc.hedgehog(*given), strict=True):
        assert torch.equal(mine, wanted)
    torch.library.opcheck(
        torch.ops.tilecat.hedgehog.default, (*given, None, None),
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip
