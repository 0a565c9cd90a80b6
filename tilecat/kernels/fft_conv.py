"""Long convolution by FFT on tensor cores: y = k * u along sequences of 4096, on one chip.

A sequence is a matrix of 64 x 64, n = 64 a + b, and its transform two products with the matrix F of
64 roots of unity, complex, with twiddles T between them:

    X = ((E @ x) . T) @ F             E = F diag(w), w the weights of the rows
    y = E^H @ ((X . H) @ F^H . T*)    H the filter's spectrum

Circular: two sequences of one channel are real and imaginary part of one complex sequence, which a
real filter keeps apart. Causal: x and k are weighted by exp(i pi n / 2N), which turns what would
wrap around into the imaginary part of y, so nothing is padded; the weights of a row are in E, those
of a column in T. Every matrix has the factor 1/8, so that values keep their size.

Real and imaginary part of an element lie in one thread: twiddles and spectrum are multiplied in
registers, and sums become the A operand of the next product where they are. The one exchange
between threads, before the last product, goes through the tile of the output.

    producer   E, F, T | H(c) | x(c, 0), x(c, 1), ...                        H two channels deep
    consumer   wait x | E x | . T | F | . H | F^H | . T* | to y's tile | E^H | y, publish
    storing    y(c, 0), y(c, 1), ...

Barriers: `full` and `empty` of the constants, of H, of x (a stage has a sequence for each consumer)
and of y; a named barrier a consumer, around its exchange.
"""

from __future__ import annotations

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, st

T, TI = DTypeVar("T", bf16, f16), DTypeVar("TI", f16, bf16)
SIDE = 64  # rows and columns of a sequence
STEP = 16  # columns of a tile that are multiplied at a time


def load_complex(slots):
    """Both parts of a stage's complex tile, in registers."""
    return tc.complex_tile(tc.load(slots[0]), tc.load(slots[1]))


def times(z, acc, factor, *, conj=False):
    """z = acc * factor, rounded; factor is conjugated where `conj` says so."""
    for col in range(0, acc.re.type.cols, STEP):
        part = slice(col, col + STEP)
        x, f = (c.map(lambda t, at=part: t[:, at]) for c in (acc, factor))
        f = f.cast(f32)
        cross, own = x.im * f.im, x.re * f.im
        tc.cast(tc.fma(x.re, f.re, cross if conj else -cross), z.re.dtype, out=z.re[:, part])
        tc.cast(tc.fma(x.im, f.re, -own if conj else own), z.im.dtype, out=z.im[:, part])


class Constants:
    """What all tasks need, loaded once: E of x's dtype and of the intermediates', F, T."""

    def __init__(self, pipe, dtype, inner, *, weighted):
        kind = st[inner, SIDE, SIDE]
        self.inner, self.pipe = inner, pipe
        self.loads = []
        self.plain, self.twiddles = self._input(kind), self._input(kind)
        self.rows = self._input(kind) if weighted else self.plain
        self.first = self.rows
        if dtype != inner:
            self.first = self._input(st[dtype, SIDE, SIDE])

    def _input(self, kind):
        tiles = self.pipe.input(kind, count=2, ring="constants", rate="cta")
        self.loads.append(tiles)
        return tiles

    def load(self, first, rows, plain, twiddles):
        """Producer: once."""
        sources = {id(self.first): first, id(self.rows): rows, id(self.plain): plain}
        sources[id(self.twiddles)] = twiddles
        for tiles in self.loads:
            for part in range(2):
                tc.load_async(tiles[part], sources[id(tiles)][part, 0, 0])

    def matrix(self, tiles):
        """A complex operand of products."""
        return tc.complex_tile(tiles[0].tile, tiles[1].tile)


@tc.kernel
def fft_conv_64(U: gl[T, "B", "C", "R", 64], H: gl[TI, "C", 2, 64, 64], E0: gl[T, 2, 64, 64],
                E: gl[TI, 2, 64, 64], F: gl[TI, 2, 64, 64], W: gl[TI, 2, 64, 64],
                Y: gl[T, "B", "C", "R", 64], *, causal=False, consumers=3, stages=2):
    """Y[b, c] = k[c] * U[b, c], circular or causal along 64 R elements, at most 4096.

    Args:
        U, Y: sequences; R at most 64, and 64 if not causal.
        H: spectrum of k, real and imaginary parts: H[c, k1, k2] of frequency k1 + 64 k2.
        E0, E, F, W: see `tilecat.fft_tables`; E0 is E in U's dtype.
        causal: a sequence by itself, weighted; else two together, circular.
        consumers, stages: sequences, or pairs, a step; steps loaded ahead.
    """
    parts, inner, barrier = 1 if causal else 2, H.dtype, 1
    tasks = tc.custom_order(U.size(1), lambda t: {"channel": t})
    pipe = tc.lcsf(consumers=consumers, stages=stages, tasks=tasks,
                   steps=tc.cdiv(U.size(0), parts * consumers))
    constants = Constants(pipe, U.dtype, inner, weighted=causal)
    h = pipe.input(st[inner, SIDE, SIDE], count=2, ring="spectrum", rate="task", stages=2)
    x = pipe.input(st[U.dtype, SIDE, SIDE], count=parts * consumers)
    y = pipe.output(st[U.dtype, SIDE, SIDE], count=2 * consumers, stages=1)
    acc = tc.complex_tile(*(tc.empty(rt[f32, SIDE, SIDE]) for _ in range(2)))
    z = tc.complex_tile(*(tc.empty(rt[inner, SIDE, SIDE]) for _ in range(2)))

    @pipe.setup
    def _():
        constants.load(E0, E, F, W)

    @pipe.begin
    def _(task):
        for part in range(2):
            tc.load_async(h[part], H[task.channel, part, 0, 0])

    @pipe.load
    def _(task, step):
        for i in range(parts * consumers):
            tc.load_async(x[i], U[step * (parts * consumers) + i, task.channel, 0, 0])

    def first(mine):
        left = constants.matrix(constants.first)
        if causal:
            tc.mma_AB(acc.re, left.re, x[mine], accumulate=False)
            tc.mma_AB(acc.im, left.im, x[mine], accumulate=False)
        else:
            right = tc.complex_tile(x[mine].tile, x[mine + 1].tile)
            tc.mma_AB(acc, left, right, accumulate=False)
        tc.mma_wait()

    def last(place):
        left = constants.matrix(constants.rows)
        if causal:
            tc.mma_AtB(acc.re, left.re, place.re, accumulate=False)
            tc.mma_AtB(acc.re, left.im, place.im)
        else:
            tc.mma_AtB(acc, left.conj(), place, accumulate=False)
        tc.mma_wait()

    @pipe.consume
    def _(task, steps):
        plain = constants.matrix(constants.plain)
        out = pipe.consumer * 2
        h.wait()
        for _ in tc.range(steps):
            x.wait()
            first(pipe.consumer * parts)
            x.release()
            times(z, acc, load_complex(constants.twiddles))
            tc.mma_AB(acc, z, plain, accumulate=False)
            tc.mma_wait()
            times(z, acc, load_complex(h))
            tc.mma_AB(acc, z, plain.conj(), accumulate=False)
            tc.mma_wait()
            times(z, acc, load_complex(constants.twiddles), conj=True)
            y.claim()
            place = tc.complex_tile(*(tc.view_as(y[out + i], inner) for i in range(2)))
            tc.store(place.re, z.re)
            tc.store(place.im, z.im)
            tc.fence_async()
            tc.barrier_sync(pipe.consumer + barrier, 128)
            last(place)
            tc.barrier_sync(pipe.consumer + barrier, 128)
            for part in range(parts):
                tc.store(y[out + part], tc.cast((acc.re, acc.im)[part], Y.dtype))
            y.publish()
        h.release()

    @pipe.store
    def _(task, step):
        for i in range(parts * consumers):
            place = Y[step * (parts * consumers) + i, task.channel, 0, 0]
            tc.store_async(place, y[2 * i if causal else i])
