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

from .fft_conv_parts import Streams, transform

T, TI = DTypeVar("T", bf16, f16), DTypeVar("TI", f16, bf16)
SIDE = 64  # rows and columns of a sequence


class Constants:
    """What all tasks need, loaded once: E in x's dtype and in the intermediates', F, T."""

    def __init__(self, pipe, dtype, inner, *, weighted):
        self.pipe, self.loads = pipe, []
        self.plain, self.twiddles = self._input(inner), self._input(inner)
        self.rows = self._input(inner) if weighted else self.plain
        self.first = self.rows if dtype == inner else self._input(dtype)

    def _input(self, dtype):
        kind = st[dtype, SIDE, SIDE]
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


def matrix(tiles):
    """A complex operand of products."""
    return tc.complex_tile(*(getattr(tiles[i], "tile", tiles[i]) for i in range(2)))


def first(acc, left, x):
    """The first product, of a real sequence or of two as one."""
    if len(x) == 1:
        tc.mma_AB(acc.re, left.re, x[0], accumulate=False)
        tc.mma_AB(acc.im, left.im, x[0], accumulate=False)
    else:
        tc.mma_AB(acc, left, matrix(x), accumulate=False)
    tc.mma_wait()


def last(acc, left, values, parts):
    """The last product: the real part, or both."""
    if parts == 1:
        tc.mma_AtB(acc.re, left.re, values.re, accumulate=False)
        tc.mma_AtB(acc.re, left.im, values.im)
    else:
        tc.mma_AtB(acc, left.conj(), values, accumulate=False)
    tc.mma_wait()


@tc.kernel
def fft_conv_64(U: gl[T, "B", "C", "R", 64], H: gl[TI, "C", 2, 64, 64], E0: gl[T, 2, 64, 64],
                E: gl[TI, 2, 64, 64], F: gl[TI, 2, 64, 64], W: gl[TI, 2, 64, 64],
                Y: gl[T, "B", "C", "R", 64], *args, causal=False, in_gate=False, out_gate=False,
                consumers=3, stages=2):  # fmt: skip
    """Y[b, c] = k[c] * U[b, c], circular or causal along 64 R elements, at most 4096.

    Args:
        U, Y: sequences; R at most 64, and 64 if not causal.
        H: spectrum of k, real and imaginary parts: H[c, k1, k2] of frequency k1 + 64 k2.
        E0, E, F, W: see `tilecat.fft_tables`; E0 is E in U's dtype.
        args: gates of U and of Y, as U.
        causal: a sequence by itself, weighted; else two together, circular.
        in_gate, out_gate: whether there are gates.
        consumers, stages: sequences, or pairs, a step; steps loaded ahead.
    """
    parts, inner = 1 if causal else 2, H.dtype
    pipe = tc.lcsf(consumers=consumers, stages=stages, steps=tc.cdiv(U.size(0), parts * consumers),
                   tasks=tc.custom_order(U.size(1), lambda t: {"channel": t}))  # fmt: skip
    constants = Constants(pipe, U.dtype, inner, weighted=causal)
    h = pipe.input(st[inner, SIDE, SIDE], count=2, ring="spectrum", rate="task", stages=2)
    streams = Streams(pipe, st[U.dtype, SIDE, SIDE], (parts, 2, parts), (in_gate, out_gate),
                      consumers)  # fmt: skip
    acc, z = (tc.complex_tile(*(tc.empty(rt[dtype, SIDE, SIDE]) for _ in range(2)))
              for dtype in (f32, inner))

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
            place = step * (parts * consumers) + i, task.channel, 0, 0
            for tiles, tensor in streams.loads((U, *args)):
                tc.load_async(tiles[i], tensor[place])
            if out_gate:
                tc.load_async(streams.after[i], args[-1][place])

    @pipe.consume
    def _(task, steps):
        plain = matrix(constants.plain), constants.twiddles
        h.wait()
        for _ in tc.range(steps):
            first(acc, matrix(constants.first), streams.open())
            streams.close()
            transform(plain, h, (acc, acc, z))
            last(acc, matrix(constants.rows), matrix(streams.exchange((z.re, z.im))), parts)
            streams.give((acc.re, acc.im)[:parts])
        h.release()

    @pipe.store
    def _(task, step):
        for i in range(parts * consumers):
            place = Y[step * (parts * consumers) + i, task.channel, 0, 0]
            tc.store_async(place, streams.y[i * 2 // parts])
