"""Sequences cut into segments: the same states as whole ones, and when calls do it."""

from __future__ import annotations

import numpy as np
import pytest
from recurrences import assert_near, gated
from test_scan_calls import LIMIT, STATE_LIMIT, heads_first, inputs, mamba_inputs, normal, poisoned

import tilecat as tc
from tilecat import scan_segments
from tilecat.ready import Launch

__all__ = ["poisoned"]  # a fixture

SAME = 1e-6  # of states: chunks have the same borders


@pytest.fixture
def cutting(monkeypatch):
    """Sequences of 256 tokens and more are cut, as on a GPU with 40 SMs."""
    launches = []
    run = Launch.run
    monkeypatch.setattr(Launch, "run", lambda launch: (launches.append(launch), run(launch)))

    def cut():
        for name, value in (("LONG", 256), ("SHORT", 64), ("num_sms", lambda _: 40)):
            monkeypatch.setattr(scan_segments, name, value)
        launches.clear()
        return launches

    return cut


def difference(got, wanted):
    got, wanted = (np.asarray(x).astype(np.float64) for x in (got, wanted))
    return np.linalg.norm(got - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize("gates", [True, False])
def test_states_and_outputs_are_those_of_whole_sequences(cutting, gates):
    q, k, v, g, state = inputs(1, 330, 2, 64, 32)
    given = q, k, v, g if gates else None
    whole = tc.simple_gla(*given, initial_state=state, output_final_state=True)
    launches = cutting()
    parts = tc.simple_gla(*given, initial_state=state, output_final_state=True)
    assert [x.params.get("local") for x in launches] == [True, None, False]
    assert difference(parts[1], whole[1]) <= SAME
    decays = heads_first(g)[0] if gates else 0.0
    exact = gated(*(heads_first(x)[0] for x in (q, k, v)), decays, state[0], 64**-0.5)
    assert_near(heads_first(parts[0])[0], exact[0], LIMIT)
    assert_near(parts[1][0], exact[1], STATE_LIMIT)


@pytest.mark.slow
def test_gradients_are_those_of_whole_sequences(cutting):
    q, k, v, g, state = inputs(1, 330, 1, 32, 64)
    do = normal(np.random.default_rng(2), *v.shape)
    options = {"initial_state": state, "d_final_state": state}
    whole = tc.simple_gla_backward(do, q, k, v, g, **options)
    launches = cutting()
    parts = tc.simple_gla_backward(do, q, k, v, g, **options)
    assert len(launches) == 10
    for one, other in zip(parts[:3], whole[:3], strict=True):
        assert difference(one, other) <= LIMIT / 4
    for one, other in ((parts[3], whole[3]), (parts[5], whole[5])):
        assert difference(one, other) <= SAME


@pytest.mark.parametrize("more", [False, True])
def test_mamba_is_that_of_whole_sequences(cutting, more):
    x, dt, a, b, c, z = mamba_inputs(length=330)
    rng = np.random.default_rng(1)
    options = {"dt_softplus": True, "return_final_states": True}
    if more:
        seq_idx = np.sort(rng.integers(0, 3, (1, 330)), 1).astype(np.int32)
        state = normal(rng, 1, 4, 64, 64, dtype=np.float32)
        options |= {"z": z, "initial_states": state, "seq_idx": seq_idx, "D": state[0, :, 0, 0]}
    whole = tc.ssd(x, dt, a, b, c, **options)
    launches = cutting()
    parts = tc.ssd(x, dt, a, b, c, **options)
    assert len(launches) == 3
    assert difference(parts[0], whole[0]) <= LIMIT / 4
    assert difference(parts[1], whole[1]) <= SAME


@pytest.mark.parametrize(
    ("units", "features", "columns", "length", "found"),
    [(8, 128, 128, 32768, (2048, 16)), (16, 128, 128, 65536, (8192, 8)),
     (1, 64, 64, 4096, (512, 8)), (32, 128, 128, 16384, (0, 1)), (8, 128, 128, 4095, (0, 1)),
     (256, 64, 64, 65536, (0, 1)), (32, 64, 64, 8192, (2048, 4)),
     (1, 64, 64, 65536, (512, 128)), (4, 256, 256, 8200, (1088, 8)), (8, 64, 64, 0, (0, 1))],
)  # fmt: skip
def test_what_is_cut_on_a_gpu_with_132_sms(monkeypatch, units, features, columns, length, found):
    monkeypatch.setattr(scan_segments, "num_sms", lambda _: 132)
    made = scan_segments.cut(np.zeros(1, np.float32), units, features, columns, length)
    assert (made.tokens, made.count) == found
    assert not made.tokens or (made.count - 1) * made.tokens < length <= made.count * made.tokens
