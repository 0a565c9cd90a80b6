"""Long convolution against float64 FFTs, and against direct sums."""

from __future__ import annotations

import numpy as np
import pytest

import tilecat as tc
from tilecat import bf16, f16
from tilecat.binding import bind
from tilecat.check import shared_accesses
from tilecat.fft_conv_call import params_of
from tilecat.fft_plans import plan_of
from tilecat.fft_spectra import spectrum_of, tables_of
from tilecat.kernels.fft_conv import fft_conv_64
from tilecat.kernels.fft_conv_halves import OUTER, fft_conv_halves
from tilecat.kernels.fft_conv_quarters import fft_conv_quarters
from tilecat.kernels.fft_conv_short import fft_conv_32
from tilecat.runtime.arrays import view

RNG = np.random.default_rng
KERNELS = {1024: fft_conv_32, 2048: fft_conv_32, 4096: fft_conv_64, 8192: fft_conv_halves}
# Relative RMS errors of 1.5 times those of NumPy's arithmetic rounded as the kernels' is: of that
# 1.7e-3 (bf16) and 2.1e-4 (f16) are the result's rounding.
LIMITS = {"bf16": 3.7e-3, "f16": 1.05e-3, "wide": 7.5e-3}


def exact(u, k, causal, in_gate=None, out_gate=None):
    """In float64, by FFTs long enough for what is asked."""
    u, k = u.astype(np.float64), k.astype(np.float64)
    u = u if in_gate is None else u * in_gate.astype(np.float64)
    length = u.shape[-1]
    size = 2 * length if causal else length
    y = np.fft.ifft(np.fft.fft(u, size) * np.fft.fft(k, size)).real[..., :length]
    return y if out_gate is None else y * out_gate.astype(np.float64)


def numbers(batch, channels, length, taps, dtype=bf16, seed=0):
    """Normal inputs, and filters whose results are as large."""
    rng = RNG(seed)
    u = rng.standard_normal((batch, channels, length)).astype(dtype.numpy)
    return u, (rng.standard_normal((channels, taps)) / np.sqrt(taps)).astype(np.float32)


def error(y, wanted):
    """Relative RMS error; NaN where a result is."""
    return np.linalg.norm(y.astype(np.float64) - wanted) / np.linalg.norm(wanted)


def case(batch, channels, length, taps, causal, dtype=bf16, *, short=False):
    """A row of the table; only `short` ones run by default."""
    marks = () if short else pytest.mark.full
    name = f"{batch}x{channels}x{length}-{taps}-{'causal' if causal else 'circular'}-{dtype.name}"
    return pytest.param(batch, channels, length, taps, causal, dtype, id=name, marks=marks)


CASES = (
    case(3, 3, 1024, 1024, True, short=True),
    case(5, 3, 1024, 17, False, f16, short=True),
    case(2, 3, 2048, 2048, True),
    case(3, 2, 2048, 2048, False, f16, short=True),
    case(3, 2, 4096, 4096, False, short=True),
    case(2, 2, 4096, 100, True, f16, short=True),
    case(1, 1, 4096, 4096, True),
    case(7, 1, 4096, 4096, False),
    case(1, 1, 1, 1, True, short=True),
    case(2, 1, 1, 1, False),
    case(3, 2, 100, 100, False, short=True),
    case(2, 2, 256, 256, True),
    case(2, 1, 1000, 33, False, f16),
    case(1, 2, 1025, 1024, True),
    case(2, 1, 2047, 2047, False),
    case(2, 1, 3000, 2999, True, short=True),
    case(1, 5, 4032, 4032, True),
    case(3, 1, 8192, 8192, False, short=True),
    case(1, 2, 5001, 4999, True, short=True),
    case(1, 1, 16384, 16384, True, short=True),
    case(3, 3, 16384, 300, False),
    case(2, 2, 9000, 9000, True, f16),
    case(1, 1, 9000, 9000, False, f16),
    case(3, 3, 32768, 32768, True, f16),
    case(1, 1, 32768, 32768, False, short=True),
    case(5, 3, 20001, 20001, True),
)


@pytest.mark.parametrize(("batch", "channels", "length", "taps", "causal", "dtype"), CASES)
def test_fft_conv_is_the_convolution(batch, channels, length, taps, causal, dtype):
    u, k = numbers(batch, channels, length, taps, dtype)
    y = tc.fft_conv(u, k, causal=causal)
    assert y.shape == u.shape and y.dtype == u.dtype
    assert error(y, exact(u, k, causal)) < LIMITS[dtype.name]


@pytest.mark.parametrize("causal", [True, False])
def test_fft_conv_is_a_direct_sum(causal):
    u, k = numbers(1, 1, 1024, 9, f16)
    shifted = [np.roll(u.astype(np.float64), j) for j in range(9)]
    for j in range(9 * causal):
        shifted[j][..., :j] = 0
    wanted = sum(float(k[0, j]) * x for j, x in enumerate(shifted))
    assert error(tc.fft_conv(u, k, causal=causal), wanted) < LIMITS["f16"]


@pytest.mark.parametrize("length", [1024, pytest.param(4096, marks=pytest.mark.full)])
@pytest.mark.parametrize("causal", [True, False])
def test_impulses_give_the_filter_and_leave_the_rest_silent(causal, length):
    places = [0, 1, 31, 32, 63, 64, length // 2 - 1, length // 2, length - 33, length - 1]
    u = np.zeros((len(places), 1, length), np.float16)
    u[np.arange(len(places)), 0, places] = 1
    k = np.zeros((1, length), np.float32)
    k[0, :8] = RNG(1).uniform(0.5, 1, 8)
    y = tc.fft_conv(u, k, causal=causal).astype(np.float64)
    assert abs(y - exact(u, k, causal)).max() < 4e-3  # of a peak of 1


@pytest.mark.full
@pytest.mark.parametrize("causal", [True, False])
def test_an_impulse_at_every_place_of_1024(causal):
    u = np.eye(1024, dtype=np.float16)[:, None, :]
    k = np.zeros((1, 1024), np.float32)
    k[0, :8] = RNG(1).uniform(0.5, 1, 8)
    y = tc.fft_conv(u, k, causal=causal).astype(np.float64)
    assert abs(y - exact(u, k, causal)).max() < 4e-3


def test_sines_and_constants_are_scaled_by_the_response():
    at = np.arange(1024) / 1024
    bins = [0, 1, 2, 31, 32, 33, 255, 511, 512]
    u = np.stack([np.cos(2 * np.pi * f * at) * 100 for f in bins])[:, None].astype(np.float16)
    k = RNG(2).standard_normal((1, 1024)).astype(np.float32) / 32
    assert error(tc.fft_conv(u, k, causal=False), exact(u, k, False)) < LIMITS["f16"]


def test_a_half_empty_pair_does_not_leak():
    u, k = numbers(3, 2, 1024, 64, f16)
    whole = tc.fft_conv(u, k, causal=False)
    alone = tc.fft_conv(u[2:], k, causal=False)
    np.testing.assert_array_equal(whole[2:], alone)


def test_channels_have_their_own_filters():
    """More channels than CTAs (4 on the PTX machine), filters far apart."""
    u = np.ones((1, 11, 1024), np.float16)
    k = np.zeros((11, 11), np.float32)
    k[np.arange(11), np.arange(11)] = 1 + np.arange(11)
    y = tc.fft_conv(u, k).astype(np.float64)
    assert abs(y - exact(u, k, True)).max() < 0.02


def test_convolution_is_linear_and_commutes_with_shifts():
    u, k = numbers(2, 1, 1024, 1024, f16)
    y = tc.fft_conv(u, k, causal=False).astype(np.float64)
    both = tc.fft_conv((u[:1] + u[1:]).astype(np.float16), k, causal=False)
    assert error(both, y[:1] + y[1:]) < 2 * LIMITS["f16"]
    turned = tc.fft_conv(np.roll(u, 77, -1), k, causal=False)
    assert error(turned, np.roll(y, 77, -1)) < 2 * LIMITS["f16"]


@pytest.mark.parametrize("dtype", [bf16, pytest.param(f16, marks=pytest.mark.full)], ids=str)
def test_wide_range_holds_what_f16_does_not(dtype):
    u, k = numbers(2, 1, 1024, 1024, dtype)
    k = k * 3e5
    u = (u.astype(np.float32) / (1 if dtype is bf16 else 1e3)).astype(dtype.numpy)
    assert not np.isfinite(tc.fft_conv(u, k).astype(np.float64)).all()  # seen, not silent
    wide = tc.fft_conv(u, k, wide_range=True)
    assert error(wide, exact(u, k, True)) < LIMITS["wide"]


@pytest.mark.parametrize("length", [
    1024, 2048, 4096, *(pytest.param(n, marks=pytest.mark.full) for n in (8192, 16384, 32768))
])  # fmt: skip
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [bf16, pytest.param(f16, marks=pytest.mark.full)], ids=str)
def test_gates_multiply_inputs_and_results(causal, length, dtype):
    u, k = numbers(3, 3, length, length, dtype)
    gates = [numbers(3, 3, length, 1, dtype, seed)[0] for seed in (1, 2)]
    for before, after in (gates, (gates[0], None), (None, gates[1])):
        y = tc.fft_conv(u, k, causal=causal, in_gate=before, out_gate=after)
        # The product with the gate is rounded as u is: 1.7e-3 (bf16) more.
        assert error(y, exact(u, k, causal, before, after)) < 1.2 * LIMITS[dtype.name]


def test_gates_of_zero_and_of_short_lengths():
    u, k = numbers(2, 2, 100, 100, f16)
    assert not tc.fft_conv(u, k, in_gate=np.zeros_like(u)).any()
    assert not tc.fft_conv(u, k, causal=False, out_gate=np.zeros_like(u)).any()
    y = tc.fft_conv(u, k, causal=False, in_gate=u, out_gate=u)
    assert error(y, exact(u, k, False, u, u)) < 1.2 * LIMITS["f16"]


def test_strided_inputs_and_nothing_at_all():
    u, k = numbers(2, 4, 1024, 5, f16)
    repeated = np.broadcast_to(u[:, :1], u[:, :2].shape)
    turned, moved = u[:, :2, ::-1], u[:, :2, 1:993]
    for given in (u[:, ::2], np.asfortranarray(u[:, :2]), turned, moved, repeated):
        y = tc.fft_conv(given, k[:2], out_gate=given)
        assert error(y, exact(given, k[:2], True, None, given)) < LIMITS["f16"]
        assert error(tc.fft_conv(given, k[:2]), exact(given, k[:2], True)) < LIMITS["f16"]
    assert tc.fft_conv(u[:0], k).shape == (0, 4, 1024)
    assert tc.fft_conv(u[:, :0], k[:0]).shape == (2, 0, 1024)


@pytest.mark.parametrize("length", [
    1024, 2048, 4096, 8192, *(pytest.param(n, marks=pytest.mark.full) for n in (16384, 32768))
])  # fmt: skip
@pytest.mark.parametrize("causal", [True, False])
def test_no_access_of_threads_has_a_bank_conflict(causal, length):
    u, k = numbers(1, 2, length, length)
    plan = plan_of("fft_conv", length, causal)
    rows, quarters = u.reshape(1, 2, -1, plan.cols), plan.outer > OUTER
    tables = tables_of(plan, u, "f16", quarters=quarters)[int(plan.outer == OUTER) :]
    tables, apart = (tables[:3], tables[3:]) if quarters else (tables, ())
    args = [rows, spectrum_of(plan, k, u, "f16"), *tables, rows.copy(), rows, rows, *apart]
    params = {"causal": causal, "in_gate": True, "out_gate": True}
    params |= params_of(plan, in_gate=True, out_gate=True)
    kernel = fft_conv_quarters if quarters else KERNELS[length]
    bound = bind(kernel.signature, [view(x) for x in args], params)
    accesses = shared_accesses(kernel.specialize(bound.specialization, "sm_90a").kernel)
    assert len(accesses) > 9 and {access.ways for access in accesses} == {1.0}


U, K = np.zeros((2, 3, 1024), np.float16), np.zeros((3, 64), np.float32)
BAD = (
    ((U[0], K), {}, "fft_conv: u is B x C x L, got shape (3, 1024)"),
    ((U, K[0]), {}, "fft_conv: k is C x Lk, got shape (64,)"),
    ((U.astype("f4"), K), {}, "fft_conv: u is bf16 or f16, got f32"),
    ((U, K.astype("i4")), {}, "fft_conv: k is f32, bf16, f16, got s32"),
    ((U, K[:2]), {}, "fft_conv: k has a filter for each channel of u, got 2 and 3 (u (2, 3, 1024), "
                     "k (2, 64))"),
    ((U[..., :63], K), {}, "fft_conv: k has 1 to L=63 elements a channel, got 64"),
    ((U, K[:, :0]), {}, "fft_conv: k has 1 to L=1024 elements a channel, got 0"),
    ((U[..., :0], K), {}, "fft_conv: L is 1 to 32768, got u with L=0"),
    ((U, K), {"in_gate": U[:1]}, "fft_conv: in_gate is as u, f16 (2, 3, 1024), got f16 "
                                 "(1, 3, 1024)"),
    ((U, K), {"out_gate": U.astype("f4")}, "fft_conv: out_gate is as u, f16 (2, 3, 1024), got f32 "
                                           "(2, 3, 1024)"),
    ((np.zeros((1, 3, 17000), "f2"), K), {"causal": False},
     "fft_conv: circular lengths are at most 16384, or a plan's: 1024, 2048, 4096, 8192, 16384, "
     "32768, got L=17000"),
)  # fmt: skip


@pytest.mark.parametrize(("args", "options", "message"), BAD, ids=[row[2][10:40] for row in BAD])
def test_fft_conv_refuses(args, options, message):
    with pytest.raises(tc.TileError) as raised:
        tc.fft_conv(*args, **options)
    assert raised.value.message == message
