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

from .fft_conv_parts import Streams, load_complex, transform

T, TI = DTypeVar("T", bf16, f16), DTypeVar("TI", f16, bf16)
SIDE = 64  # rows and columns of a sequence


class Constants:
    """What tasks need: E in x's dtype and in the intermediates', F, T.

    Args:
        pipe: the pipeline.
        dtype: of x. inner: of the intermediates.
        weighted: whether E is not F. last: whether there is a last product.
        outer: of sequences in parts, how many parts, whose E and T are a task's; else 1.
    """

    def __init__(self, pipe, dtype, inner, *, weighted, outer=1, last=True):
        self.pipe, self.outer, self.loads = pipe, outer, []
        self.plain = self._input(inner, "F", 1)
        self.twiddles = self._input(inner, "T", outer)
        self.rows = self._input(inner, "E", outer) if weighted and last else self.plain
        shared = dtype == inner and (last or not weighted)
        self.first = self.rows if shared else self._input(dtype, "E0", outer)
        self.tensors = {}  # by name
        pipe.setup(lambda: self.load("cta"))

    def _input(self, dtype, name, outer):
        ring, rate = ("constants", "cta") if outer == 1 else ("of_part", "task")
        tiles = self.pipe.input(st[dtype, SIDE, SIDE], count=2, ring=ring, rate=rate)
        self.loads.append((tiles, name, rate))
        return tiles

    def load(self, rate, index=0):
        """Producer: those of a rate, of part `index`."""
        for tiles, name, mine in self.loads:
            for part in range(2) if mine == rate else ():
                tc.load_async(tiles[part], self.tensors[name][index, part, 0, 0])

    def wait(self):
        """Consumer: those of the task are there."""
        if self.outer > 1:
            self.twiddles.wait()

    def release(self):
        """Consumer: the task is done."""
        if self.outer > 1:
            self.twiddles.release()


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


def last(acc, left, values):
    """The last product: both parts, of the adjoint in registers; or the real part, of E shared."""
    if left.conjugate:
        tc.mma_AB(acc, left, values, accumulate=False)
    else:
        tc.mma_AtB(acc.re, left.re, values.re, accumulate=False)
        tc.mma_AtB(acc.re, left.im, values.im)
    tc.mma_wait()


def adjoint(tiles):
    """E^H in registers."""
    return tc.ComplexTile(*(tc.load(tile.T) for tile in (tiles.re, tiles.im)), conjugate=True)


def convolve(streams, matrices, spectrum, registers, packed):
    """One step of a consumer."""
    (before, between, after), (acc, _, z) = matrices, registers
    first(acc, before, streams.open())
    streams.close()
    transform(between, spectrum, registers, packed)
    last(acc, after, matrix(streams.exchange((z.re, z.im))))
    streams.give((acc.re, acc.im)[: streams.results])


@tc.kernel
def fft_conv_64(U: gl[T, "B", "C", "R", 64], H: gl[TI, "C", 2, 64, 64], E0: gl[T, 1, 2, 64, 64],
                E: gl[TI, 1, 2, 64, 64], F: gl[TI, 1, 2, 64, 64], W: gl[TI, 1, 2, 64, 64],
                Y: gl[T, "B", "C", "R", 64], *args, causal=False, in_gate=False, out_gate=False,
                consumers=2, stages=2):  # fmt: skip
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
    packed = (U.dtype, inner) == (bf16, f16)
    pipe = tc.lcsf(consumers=consumers, stages=stages, steps=tc.cdiv(U.size(0), parts * consumers),
                   tasks=tc.custom_order(U.size(1), lambda t: {"channel": t}))  # fmt: skip
    constants = Constants(pipe, U.dtype, inner, weighted=causal)
    constants.tensors = {"E0": E0, "E": E, "F": F, "T": W}
    h = pipe.input(st[inner, SIDE, SIDE], count=2, ring="spectrum", rate="task", stages=2)
    streams = Streams(pipe, st[U.dtype, SIDE, SIDE], (parts, 2, parts), (in_gate, out_gate),
                      consumers)  # fmt: skip
    acc, z = (tc.complex_tile(*(tc.empty(rt[dtype, SIDE, SIDE]) for _ in range(2)))
              for dtype in (f32, inner))

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
        between = matrix(constants.plain), constants.twiddles
        h.wait()
        before, after = load_complex(constants.first), matrix(constants.rows)
        after = adjoint(after) if parts == 2 else after  # registers of both are too many for three
        for _ in tc.range(steps):
            convolve(streams, (before, between, after), h, (acc, acc, z), packed)
        h.release()

    @pipe.store
    def _(task, step):
        for i in range(parts * consumers):
            place = Y[step * (parts * consumers) + i, task.channel, 0, 0]
            tc.store_async(place, streams.y[i * 2 // parts])
