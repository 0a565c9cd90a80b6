"""Long convolution of sequences up to 8192, on one chip: both halves of a sequence in one CTA.

Halves x_0 and x_1 of a sequence become complex sequences z_0 and z_1 of 4096 (`fft_conv_long`),
each is convolved as `fft_conv` says, and the halves of the result are sums of both.

    producer   E, F, T | H(c) | x(c, 0), x(c, 1), ...          both halves, of one or two sequences
    consumer   wait x | z_0, z_1 to y's tiles | v_0 over z_0 | v_1 over z_1 | E^H v | y, publish
    storing    y(c, 0), y(c, 1), ...

v_q is what the last product takes: E z, times T, F, H, F^H and T*, as in `fft_conv`. Barriers: as
there.
"""

from __future__ import annotations

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, st

from .fft_conv import adjoint, matrix
from .fft_conv_long import coefficients, plus
from .fft_conv_parts import STEP, Streams, load_complex, transform

T, TI = DTypeVar("T", bf16, f16), DTypeVar("TI", f16, bf16)
SIDE = 64  # rows and columns of a half
OUTER = 2


def combined(values, factors):
    """`sum_i factors[i] values[i]`, complex, in f32; the values may be real."""
    re = im = None
    for x, c in zip(values, factors, strict=True):
        real, imag = (x.re, x.im) if isinstance(x, tc.ComplexTile) else (x, None)
        terms = (real, c.real, c.imag), (imag, -c.imag, c.real)
        for part, of_re, of_im in terms if imag is not None else terms[:1]:
            re = plus(re, part, of_re) if abs(of_re) > 1e-12 else re  # of rounded roots of one
            im = plus(im, part, of_im) if abs(of_im) > 1e-12 else im
    return re, im


class Halves:
    """Sequences of a step as the complex ones that are convolved, and back.

    Args:
        causal: a sequence by itself, weighted; else two as one complex one.
        dtype: of the intermediates.
    """

    def __init__(self, causal, dtype):
        self.parts, self.factors = 1 if causal else 2, coefficients(OUTER, causal)
        self.values = [tc.empty(rt[dtype, SIDE, SIDE]) for _ in range(2 * OUTER)]

    def spread(self, tiles):
        """Real and imaginary parts of z_0 and z_1, from the tiles of x: halves of each sequence."""
        x = [tc.load(tile) for tile in tiles]
        for col in range(0, SIDE, STEP):
            at = slice(col, col + STEP)
            halves = [tc.cast(part[:, at], f32) for part in x]
            if self.parts == 2:
                halves = [tc.complex_tile(*halves[r::OUTER]) for r in range(OUTER)]
            for q in range(OUTER):
                made = combined(halves, self.factors[q])
                for to, part in zip(self.values[2 * q : 2 * q + 2], made, strict=True):
                    tc.cast(part, to.type.dtype, out=to[:, at])
        return self.values

    def gathered(self, sums):
        """The halves of each sequence's result, from the sums of the last products."""
        found = []
        for r in range(OUTER):
            found.append(combined(sums, [self.factors[q][r].conjugate() for q in range(OUTER)]))
        return [found[r][s] for s in range(self.parts) for r in range(OUTER)]


def pair(tiles, q):
    """Real and imaginary part of number q."""
    return [tiles[2 * q], tiles[2 * q + 1]]


class Matrices:
    """What all tasks need, loaded once a CTA: F, the twiddles and E of both halves.

    Args:
        pipe: the pipeline. kind: of a tile.
        causal: else E[0] is F.
        tensors: E, F and the twiddles.
    """

    def __init__(self, pipe, kind, causal, tensors):
        self.causal, (self.E, self.F, self.W) = causal, tensors
        once = {"ring": "constants", "rate": "cta"}
        self.plain = pipe.input(kind, count=2, **once)
        self.twiddles = pipe.input(kind, count=2 * OUTER, **once)
        self.weighted = pipe.input(kind, count=2 * OUTER if causal else 2, **once)
        pipe.setup(lambda: self.load())

    def load(self):
        """Producer."""
        for part in range(2):
            tc.load_async(self.plain[part], self.F[0, part, 0, 0])
            for q in range(OUTER):
                tc.load_async(self.twiddles[2 * q + part], self.W[q, part, 0, 0])
                if self.causal or q:
                    tc.load_async(self.rows(q)[part], self.E[q, part, 0, 0])

    def rows(self, q):
        """E of half q."""
        if self.causal:
            return pair(self.weighted, q)
        return self.weighted if q else self.plain

    def between(self, q):
        """F, and the twiddles of half q."""
        return matrix(self.plain), pair(self.twiddles, q)


def convolve(streams, halves, matrices, registers, packed):
    """One step of a consumer."""
    (spectrum, sums), z = registers, tc.complex_tile(*halves.values[:2])
    tiles = streams.exchange(halves.spread(streams.open()))
    streams.close()
    for q in range(OUTER):
        before = load_complex(matrices.rows(q))
        tc.mma_AB(sums[0], before, matrix(pair(tiles, q)), accumulate=False)
        tc.mma_wait()
        transform(matrices.between(q), pair(spectrum, q), (sums[0], sums[0], z), packed)
        streams.write(pair(tiles, q), (z.re, z.im))
    for q in range(OUTER):
        after = adjoint(matrix(matrices.rows(q)))
        tc.mma_AB(sums[q], after, matrix(pair(tiles, q)), accumulate=False)
    tc.mma_wait()
    streams.give(halves.gathered(sums))


@tc.kernel
def fft_conv_halves(U: gl[T, "B", "C", "R", 64], H: gl[TI, "P", 2, 64, 64],
                    E: gl[TI, 2, 2, 64, 64], F: gl[TI, 1, 2, 64, 64], W: gl[TI, 2, 2, 64, 64],
                    Y: gl[T, "B", "C", "R", 64], *args, causal=False, in_gate=False,
                    out_gate=False, consumers=2):  # fmt: skip
    """Y[b, c] = k[c] * U[b, c], circular or causal along 64 R elements, more than 4096.

    Args:
        U, Y: sequences; R at most 128, and 128 if not causal.
        H: spectra of k's halves: H[2 c + q] of frequencies 2 (k1 + 64 k2) + q.
        E, F, W: see `tilecat.fft_tables`, of 2 parts; without weights E[0] is F.
        args, causal, in_gate, out_gate, consumers: see `fft_conv_64`.
    """
    parts, inner = 1 if causal else 2, H.dtype
    packed, each = (U.dtype, inner) == (bf16, f16), parts * OUTER
    pipe = tc.lcsf(consumers=consumers, stages=1, steps=tc.cdiv(U.size(0), parts * consumers),
                   tasks=tc.custom_order(U.size(1), lambda t: {"channel": t}))  # fmt: skip
    matrices = Matrices(pipe, st[inner, SIDE, SIDE], causal, (E, F, W))
    h = pipe.input(st[inner, SIDE, SIDE], count=2 * OUTER, ring="spectrum", rate="task", stages=1)
    streams = Streams(pipe, st[U.dtype, SIDE, SIDE], (each, 2 * OUTER, each), (in_gate, out_gate),
                      consumers)  # fmt: skip
    halves = Halves(causal, inner)
    sums = [tc.complex_tile(*(tc.empty(rt[f32, SIDE, SIDE]) for _ in range(2)))
            for _ in range(OUTER)]  # fmt: skip

    def place(task, step, i):
        return step * (parts * consumers) + i // OUTER, task.channel, i % OUTER, 0

    @pipe.begin
    def _(task):
        for i in range(2 * OUTER):
            tc.load_async(h[i], H[task.channel * OUTER + i // 2, i % 2, 0, 0])

    @pipe.load
    def _(task, step):
        for i in range(each * consumers):
            for tiles, tensor in streams.loads((U, *args)):
                tc.load_async(tiles[i], tensor[place(task, step, i)])
            if out_gate:
                tc.load_async(streams.after[i], args[-1][place(task, step, i)])

    @pipe.consume
    def _(task, steps):
        h.wait()
        for _ in tc.range(steps):
            convolve(streams, halves, matrices, (h, sums), packed)
        h.release()

    @pipe.store
    def _(task, step):
        for i in range(each * consumers):
            tc.store_async(Y[place(task, step, i)], streams.y[i // each * 2 * OUTER + i % each])
