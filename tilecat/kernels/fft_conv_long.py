"""Sequences longer than 4096 as complex ones of 4096, in memory: for gradients of filters.

A sequence of N = 4096 Q elements, n = 4096 r + n', becomes Q complex ones of 4096, sequence q with
the frequencies Q k' + q:

    z_q[n'] = sum_r c[q, r] x[4096 r + n'],     c[q, r] = exp(-2 pi i q r / Q) w(4096 r) / sqrt(Q)

and the result y[4096 r + n'] = sum_q conj(c[q, r]) v_q[n'] of their convolutions v_q. What
depends on n', exp(-2 pi i q n' / N) and its weight w(n'), is in the matrices E and T of
`fft_filter_64` for q. `fft_conv_halves` and `fft_conv_quarters` do the same on chip, and sum v_q.

Circular: two sequences of x are one complex one, as there; causal, each is one by its weights.
"""

from __future__ import annotations

import cmath

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rv

T, TI = DTypeVar("T", bf16, f16), DTypeVar("TI", f16, bf16)
SHORT = 4096  # elements of a transform
HELD = 256  # elements of a warp, of each sequence: a lane has 8 in a row, 16 bytes
RUN = 8
AHEAD = 4  # vectors of a warp that leave registers for the next row's, one element in each


def coefficients(outer, causal):
    """`c[q][r]`, complex."""
    weight = 0.5j * cmath.pi / outer * causal
    return [[cmath.exp(-2j * cmath.pi * q * r / outer + weight * r) / outer**0.5
             for r in range(outer)] for q in range(outer)]  # fmt: skip


def plus(total, x, factor):
    """`total + factor x`; total is None at first."""
    return x * factor if total is None else tc.fma(x, factor, total)


class Rows:
    """Which elements a warp takes: of a pair of sequences and a channel, 256 of each part."""

    def __init__(self, planes):
        self.channels = planes.size(1)
        self.count = planes.size(0) // 2 * self.channels * (SHORT // HELD)

    def of(self, row):
        """Pair, channel, first element."""
        rest = row // (SHORT // HELD)
        pair = rest // self.channels
        return pair, rest - pair * self.channels, row % (SHORT // HELD) * HELD


def load(tensor, place):
    """Elements from a place on, packed."""
    return tc.load(tensor.at(*place), rv[tensor.dtype, HELD, "plain", RUN])


@tc.kernel
def fft_spread(X: gl[T, "B", "C", "L"], Z: gl[TI, "P", "C", "Q", 4096], *, outer=2,
               causal=False, warps=8):  # fmt: skip
    """Z[2 p + part, c, q] = part of z_q of X[p], or of X[2 p] + i X[2 p + 1] if not causal.

    Args:
        X: sequences of at most 4096 outer elements.
        Z: real and imaginary parts in turn; Q is outer.
        outer, causal: Q, and whether X is weighted.
        warps: of a CTA.
    """
    parts, factors, where = 1 if causal else 2, coefficients(outer, causal), Rows(Z)
    rows = tc.rows(where.count, warps=warps, ahead=int(parts * outer <= AHEAD))

    def places(row):
        pair, channel, first = where.of(row)
        return [(pair * parts + s, channel, first + r * SHORT)
                for s in range(parts) for r in range(outer)]  # fmt: skip

    @rows.load
    def _(row):
        return tuple(load(X, place) for place in places(row))

    @rows.compute
    def _(row, *loaded):
        pair, channel, first = where.of(row)
        x = [tc.cast(a, f32) for a in loaded]
        for q in range(outer):
            re = im = None
            for r, c in enumerate(factors[q]):
                re, im = plus(re, x[r], c.real), plus(im, x[r], c.imag)
                if parts == 2:
                    re, im = plus(re, x[outer + r], -c.imag), plus(im, x[outer + r], c.real)
            for part, value in enumerate((re, im)):
                tc.store(Z.at(pair * 2 + part, channel, q, first), tc.cast(value, Z.dtype))
