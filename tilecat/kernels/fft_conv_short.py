"""Long convolution by FFT on tensor cores, of sequences of 1024 and 2048: as `fft_conv`.

A sequence is a matrix of 32 rows, n = cols a + b. Its transform has 32 rows, of real and imaginary
parts 64: as many as a product has. They stand so in the matrix G of the first product (and in that
of the last, which is its transpose) that real part, imaginary part and the same row of a second
channel are in one thread: 8 rows of real parts, 8 of imaginary ones, and the channels side by side.
`tc.complex_rows` names these registers as a complex tile of 32 rows of both channels.
"""

from __future__ import annotations

import itertools

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, st

from .fft_conv_parts import Streams, transform

T, TI = DTypeVar("T", bf16, f16), DTypeVar("TI", f16, bf16)
SIDE = 32  # rows of a sequence
ROWS = 2 * SIDE  # of products: real and imaginary parts, or two sequences
PAIR = 2  # channels of a task


class Constants:
    """What all tasks need, loaded once: G, L, F, T."""

    def __init__(self, pipe, dtype, inner, cols):
        self.packed = (dtype, inner) == (bf16, f16)

        def constant(kind, count=1):
            return pipe.input(kind, count=count, ring="constants", rate="cta")

        self.before = constant(st[dtype, ROWS, ROWS])
        self.after = constant(st[inner, ROWS, ROWS])
        self.plain = constant(st[inner, cols, cols], 2)
        self.twiddles = constant(st[inner, ROWS, cols], 2)

    def load(self, before, after, plain, twiddles):
        """Producer: once."""
        tc.load_async(self.before, before[0, 0])
        tc.load_async(self.after, after[0, 0])
        for part in range(2):
            tc.load_async(self.plain[part], plain[part, 0, 0])
            tc.load_async(self.twiddles[part], twiddles[part, 0, 0])


def rows(number):
    """Rows of the first or the second sequence of a tile."""
    return slice(number * SIDE, (number + 1) * SIDE)


def sequences(task, step, consumers, parts):
    """Of a step's sequences: consumer, part, number of the channel, and place."""
    for i, p, s in itertools.product(range(consumers), range(parts), range(PAIR)):
        yield i, p, s, ((step * consumers + i) * parts + p, task.pair * PAIR + s, 0, 0)


def halves_of(sums):
    """Columns of the two channels."""
    cols = sums.type.cols // PAIR
    return [slice(s * cols, (s + 1) * cols) for s in range(PAIR)]


def first_of_pairs(sums, left, tiles):
    """The first product: of each channel, one real sequence or two."""
    for s, half in enumerate(halves_of(sums)):
        for p, tile in enumerate(tiles):
            own = tile.tile[rows(s), :]
            tc.mma_AB(sums[:, half], left[:, rows(p)], own, accumulate=p > 0)
    tc.mma_wait()


def convolve(streams, constants, spectrum, matrices, registers):
    """One step of a consumer: of each channel, one real sequence or two."""
    (before, after), (sums, held, between) = matrices, registers
    first_of_pairs(sums, before, streams.open())
    streams.close()
    halves = halves_of(sums)
    plain = tc.complex_tile(constants.plain[0].tile, constants.plain[1].tile)
    transform((plain, constants.twiddles), spectrum, between, constants.packed)
    values = streams.exchange([held[:, half] for half in halves])
    for half, value in zip(halves, values, strict=True):
        tc.mma_AB(sums[:, half], after, value, accumulate=False)
    tc.mma_wait()
    streams.give([sums[:, half] for half in halves])


@tc.kernel
def fft_conv_32(U: gl[T, "B", "C", "R", "S"], H: gl[TI, "P", 2, 64, "S"], G: gl[T, 64, 64],
                L: gl[TI, 64, 64], F: gl[TI, 2, "S", "S"], W: gl[TI, 2, 64, "S"],
                Y: gl[T, "B", "C", "R", "S"], *args, cols=32, causal=False, in_gate=False,
                out_gate=False, consumers=3, stages=2):  # fmt: skip
    """Y[b, c] = k[c] * U[b, c], circular or causal along R S elements, at most 32 S.

    Args:
        U, Y: sequences; R at most 32, and 32 if not causal. S is cols.
        H: spectra of k of two channels: row 16 w + 8 s + r is row 8 w + r of channel 2 p + s.
        G, L, F, W: see `tilecat.fft_tables`.
        args: gates of U and of Y, as U.
        cols: 32, or 64 for sequences of 2048.
        causal: a sequence by itself, weighted; else two together, circular.
        in_gate, out_gate: whether there are gates.
        consumers, stages: pairs of channels of a sequence, or of two, a step; steps loaded ahead.
    """
    parts, inner = 1 if causal else 2, H.dtype
    pipe = tc.lcsf(consumers=consumers, stages=stages, steps=tc.cdiv(U.size(0), parts * consumers),
                   tasks=tc.custom_order(tc.cdiv(U.size(1), PAIR), lambda t: {"pair": t})
                   )  # fmt: skip
    constants = Constants(pipe, U.dtype, inner, cols)
    h = pipe.input(st[inner, ROWS, cols], count=2, ring="spectrum", rate="task", stages=2)
    streams = Streams(pipe, st[U.dtype, ROWS, cols], (parts, PAIR, PAIR), (in_gate, out_gate),
                      consumers)  # fmt: skip
    sums, held = tc.empty(rt[f32, ROWS, PAIR * cols]), tc.empty(rt[inner, ROWS, PAIR * cols])
    acc = tc.complex_tile(*(tc.empty(rt[f32, ROWS, cols]) for _ in range(2)))
    registers = tc.complex_rows(sums), acc, tc.complex_rows(held)
    counts = consumers, parts

    @pipe.setup
    def _():
        constants.load(G, L, F, W)

    @pipe.begin
    def _(task):
        for part in range(2):
            tc.load_async(h[part], H[task.pair, part, 0, 0])

    @pipe.load
    def _(task, step):
        for i, p, s, place in sequences(task, step, *counts):
            for tiles, tensor in streams.loads((U, *args)):
                tc.load_async(tiles[i * parts + p][rows(s), :], tensor[place])
            for half in range(p, PAIR, parts) if out_gate else ():
                tc.load_async(streams.after[i * PAIR + s][rows(half), :], args[-1][place])

    @pipe.consume
    def _(task, steps):
        h.wait()
        matrices = tc.load(constants.before), tc.load(constants.after)
        for _ in tc.range(steps):
            convolve(streams, constants, h, matrices, (sums, held, registers))
        h.release()

    @pipe.store
    def _(task, step):
        for i, p, s, place in sequences(task, step, *counts):
            tc.store_async(Y[place], streams.y[i * PAIR + s][rows(p), :])
