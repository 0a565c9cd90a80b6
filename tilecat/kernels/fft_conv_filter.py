"""The gradient of a filter of `fft_conv`: products of spectra, summed over the batch.

    dK[c] = sum_b conj(X[b, c]) . dY[b, c]

X and dY are the transforms of inputs and of the output's gradients, unitary. Each consumer keeps
its sum in f32, in registers, over all sequences of a channel, and writes it once; who calls adds
the consumers' and transforms back. Of two sequences as one complex one the real part of that is the
sum of both; the imaginary part would be the products of one with the other.
"""

from __future__ import annotations

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, st

from .fft_conv import SIDE as WIDE
from .fft_conv import Constants, first, matrix
from .fft_conv_parts import THREADS, load_complex, times
from .fft_conv_short import PAIR, ROWS, first_of_pairs, rows, sequences

T, TI = DTypeVar("T", bf16, f16), DTypeVar("TI", f16, bf16)


def add_product(sums, x, y):
    """`sums += conj(x) * y` of complex tiles, x of 16 bits."""
    x = x.cast(f32)
    tc.fma(x.re, y.re, tc.fma(x.im, y.im, sums.re), out=sums.re)
    tc.fma(x.re, y.im, tc.fma(-x.im, y.re, sums.im), out=sums.im)


def accumulate(tiles, forward, transform, registers, room=(), meet=None):
    """One step of a consumer: the transforms of x and dy, and their product.

    Args:
        tiles: of x and of dy, for all consumers.
        forward: the first product, of which input tiles.
        transform: twiddles and F.
        registers: sums of the first product, of the second, values, spectrum of x, the sum.
        room: tiles for the spectrum of x where registers are few; meet: the consumer's barrier.
    """
    (twiddles, plain), (before, acc, z, x, total) = transform, registers
    for number, tile in enumerate(tiles):
        forward(tile)
        times(z, before, load_complex(twiddles))
        tc.mma_AB(acc, z, plain, accumulate=False)
        tc.mma_wait()
        if number == 0:
            kept = z if room else x
            tc.cast(acc.re, kept.re.dtype, out=kept.re)
            tc.cast(acc.im, kept.im.dtype, out=kept.im)
            for place, part in zip(room, (z.re, z.im), strict=False):
                tc.store(place, part)
    if room:
        meet()
        x = load_complex(room)
    add_product(total, x, acc)


def complex_empty(dtype, cols):
    """Registers of a complex tile of 64 rows."""
    return tc.complex_tile(*(tc.empty(rt[dtype, ROWS, cols]) for _ in range(2)))


@tc.kernel
def fft_filter_64(U: gl[T, "B", "C", "R", 64], DY: gl[T, "B", "C", "R", 64],
                  E: gl[T, "Q", 2, 64, 64], F: gl[TI, 1, 2, 64, 64], W: gl[TI, "Q", 2, 64, 64],
                  DK: gl[f32, "C", 2, 2, 64, 64], *, causal=False, outer=1, stages=1):  # fmt: skip
    """DK[c, 0] + DK[c, 1] = sum over b of conj(X) . dY for sequences of at most 4096.

    Args:
        U, DY, E, F, W: as of `fft_conv_64`; E is E0 there.
        DK: of each of two consumers, real and imaginary parts, laid as H there.
        causal, outer, stages: as there.
    """
    parts, consumers = 1 if causal else 2, 2
    pipe = tc.lcf(consumers=consumers, stages=stages, steps=tc.cdiv(U.size(0), parts * consumers),
                  tasks=tc.custom_order(U.size(1), lambda t: {"channel": t}))  # fmt: skip
    constants = Constants(pipe, U.dtype, F.dtype, weighted=causal or outer > 1, outer=outer,
                          last=False)  # fmt: skip
    constants.tensors = {"E0": E, "F": F, "T": W}
    x, dy = (pipe.input(st[U.dtype, WIDE, WIDE], count=parts * consumers) for _ in range(2))
    acc, z, total = (complex_empty(t, WIDE) for t in (f32, F.dtype, f32))
    places = tc.shared(st[F.dtype, WIDE, WIDE], 2 * consumers)

    @pipe.begin
    def _(task):
        constants.load("task", task.channel % outer)

    @pipe.load
    def _(task, step):
        for i in range(parts * consumers):
            for tiles, tensor in ((x, U), (dy, DY)):
                place = step * (parts * consumers) + i, task.channel, 0, 0
                tc.load_async(tiles[i], tensor[place])

    @pipe.consume
    def _(task, steps):
        for sums in (total.re, total.im):
            tc.fill(sums, 0.0)
        constants.wait()
        left, between = matrix(constants.first), (constants.twiddles, matrix(constants.plain))
        for _ in tc.range(steps):
            x.wait()
            both = [[s[pipe.consumer * parts + p] for p in range(parts)] for s in (x, dy)]
            accumulate(both, lambda t: first(acc, left, t), between, (acc, acc, z, None, total),
                       [places[pipe.consumer * 2 + part] for part in range(2)],
                       lambda: tc.barrier_sync(pipe.consumer + 1, THREADS))  # fmt: skip
            x.release()
        constants.release()

    @pipe.finish
    def _(task):
        for part, sums in enumerate((total.re, total.im)):
            tc.store(DK[task.channel, pipe.consumer, part, 0, 0], sums)


@tc.kernel
def fft_filter_32(U: gl[T, "B", "C", "R", "S"], DY: gl[T, "B", "C", "R", "S"], G: gl[T, 64, 64],
                  F: gl[TI, 2, "S", "S"], W: gl[TI, 2, 64, "S"],
                  DK: gl[f32, "P", 2, 2, 64, "S"], *, cols=32, causal=False, stages=1):  # fmt: skip
    """As `fft_filter_64` for sequences of at most 32 S; operands as of `fft_conv_32`."""
    parts, consumers = 1 if causal else 2, 2
    pipe = tc.lcf(consumers=consumers, stages=stages, steps=tc.cdiv(U.size(0), parts * consumers),
                  tasks=tc.custom_order(tc.cdiv(U.size(1), PAIR), lambda t: {"pair": t})
                  )  # fmt: skip
    g = pipe.input(st[U.dtype, ROWS, ROWS], ring="constants", rate="cta")
    f, w = (pipe.input(st[F.dtype, side, cols], count=2, ring="constants", rate="cta")
            for side in (cols, ROWS))  # fmt: skip
    x, dy = (pipe.input(st[U.dtype, ROWS, cols], count=parts * consumers) for _ in range(2))
    sums = tc.empty(rt[f32, ROWS, PAIR * cols])
    acc, z, held, total = (complex_empty(t, cols) for t in (f32, F.dtype, F.dtype, f32))

    @pipe.setup
    def _():
        tc.load_async(g, G[0, 0])
        for tiles, tensor in ((f, F), (w, W)):
            for part in range(2):
                tc.load_async(tiles[part], tensor[part, 0, 0])

    @pipe.load
    def _(task, step):
        for i, p, s, place in sequences(task, step, consumers, parts):
            for tiles, tensor in ((x, U), (dy, DY)):
                tc.load_async(tiles[i * parts + p][rows(s), :], tensor[place])

    @pipe.consume
    def _(task, steps):
        for part in (total.re, total.im):
            tc.fill(part, 0.0)
        plain = tc.complex_tile(f[0].tile, f[1].tile)
        for _ in tc.range(steps):
            x.wait()
            both = [[s[pipe.consumer * parts + p] for p in range(parts)] for s in (x, dy)]
            accumulate(both, lambda t: first_of_pairs(sums, tc.load(g), t), (w, plain),
                       (tc.complex_rows(sums), acc, z, held, total))  # fmt: skip
            x.release()

    @pipe.finish
    def _(task):
        for part, made in enumerate((total.re, total.im)):
            tc.store(DK[task.pair, pipe.consumer, part, 0, 0], made)
