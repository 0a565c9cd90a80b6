"""Long convolution of 16384 and 32768, on chip: four parts of 4096 in a CTA, or in each of two.

A sequence of Q = 4 or 8 parts x_r becomes Q complex sequences z_q of 4096 (`fft_conv_long`), each
is convolved as `fft_conv` says, and part r of the result is a sum of all Q results v_q. Consumer i
of CTA j (of G = Q / 4) has q = j + G i and j + G (i + 2):

    z = weight (e + o), weight (e - o),   e = X_0 + a X_2,   o = b (X_1 + a X_3)

with X_r = x_r, or x_r + c x_(r+4) of eight. Of the results it keeps the sum, weighted back, or the
difference; the other goes to the other consumer, which has the odd parts. Of eight parts, half of
that goes to the same consumer of the other CTA.

The weight of element 64 a + b of z_q is a product of one of row a, multiplied in registers, and one
of column b, in the twiddles of q: so that all z_q have the same matrix F at both ends and between.

    producer   F, twiddles | x(c, 0), x(c, 1), ...         all parts, of one or two sequences
    consumer   wait x | z to y's tiles | v_q over z_q | F^H v | exchange | y, publish
    storing    y(c, 0), y(c, 1), ...

v_q is what the last product takes, as in `fft_conv_halves`; the spectrum comes from memory into
registers. Tiles of y have, in turn, z, v, what consumers and then CTAs exchange, and y.

Barriers: as in `fft_conv`; a named one of both consumers; `free` (the other CTA's consumer reads
its tiles no more) and `landed` (what it sent is there), of one arrival.
"""

from __future__ import annotations

import itertools

import tilecat as tc
from tilecat import DTypeVar, bf16, f16, f32, gl, rt, rv, st, sv

from .fft_conv import adjoint, matrix
from .fft_conv_mixing import CONSUMERS, HELD, QUARTERS, SIDE, Factors, Mixing
from .fft_conv_parts import THREADS, load_complex, transform

T, TI = DTypeVar("T", bf16, f16), DTypeVar("TI", f16, bf16)
SPILL_BYTES = 208  # scalars and a few elements of eight parts, once a step (ptxas 13.5)
RUN = 8  # elements of a spectrum that a thread loads at once: 16 bytes
MEETING = 10  # the named barrier of both consumers


class Tiles:
    """Those of x, which both consumers share, and of y, of which each has four.

    Args:
        pipe: the pipeline. kind: of a tile.
        extents: sequences of a step, and parts of each.
        arrivals: `landed` and `free`, of each consumer; of two CTAs.
    """

    def __init__(self, pipe, kind, extents, arrivals):
        self.pipe, self.extents, self.arrivals = pipe, extents, arrivals
        self.x = pipe.input(kind, count=extents[0] * extents[1])
        self.y = pipe.output(kind, count=HELD * CONSUMERS, stages=1)

    def open(self, gate):
        """Waits for x; `gate(s, r)` are tiles that it is multiplied by, or None."""
        self.x.wait()
        sequences, outer = self.extents
        if gate(0, 0) is None:
            return
        for s in range(sequences):  # each consumer the even or the odd parts
            for first in range(0, outer, CONSUMERS):
                r = first + self.pipe.consumer
                multiply(self.x[s * outer + r].tile, gate(s, r))
        tc.fence_async()
        tc.barrier_sync(MEETING, CONSUMERS * THREADS)

    def part(self, s, r):
        """Part r of sequence s, in registers."""
        return tc.load(self.x[s * self.extents[1] + r])

    def of(self, dtype, who, first=0, count=2):
        """Tiles of y of a consumer, in another dtype."""
        return [tc.view_as(self.y[who * HELD + first + i], dtype) for i in range(count)]

    def result(self, consumer, n):
        """The first of y that has a consumer's first or second part of the result.

        What it has read last lies there: of the other consumer, or of the other CTA.
        """
        return consumer * HELD + 2 if n else (1 - consumer) * HELD

    def meet(self):
        """All threads of the consumer have come."""
        tc.barrier_sync(self.pipe.consumer + 1, THREADS)

    def write(self, places, values):
        """Writes values to tiles that products read then."""
        for place, value in zip(places, values, strict=True):
            tc.store(place, value)
        tc.fence_async()
        self.meet()

    def exchange(self, values):
        """Values for the other consumer, and what it has for this one."""
        me, dtype = self.pipe.consumer, values[0].type.dtype
        for place, value in zip(self.of(dtype, me), values, strict=True):
            tc.store(place, value)
        tc.barrier_sync(MEETING, CONSUMERS * THREADS)
        return tc.complex_tile(*(tc.load(tile) for tile in self.of(dtype, 1 - me)))

    def let_in(self, rank):
        """The other CTA may send: its tiles here are not read any more."""
        self.arrivals[1][self.pipe.consumer].arrive(rank=1 - rank)

    def send(self, values, rank, phase):
        """Values for the same consumer of the other CTA, and what it has for this one."""
        landed, free = (each[self.pipe.consumer] for each in self.arrivals)
        tiles = self.of(values[0].type.dtype, self.pipe.consumer, 2)
        landed.expect(*tiles)
        free.wait(phase)
        for tile, value in zip(tiles, values, strict=True):
            tc.store_to_peer(tc.peer(tile, 1 - rank), value, landed)
        landed.wait(phase)
        return tc.complex_tile(*(tc.load(tile) for tile in tiles))


def spectrum_of(tensor, number):
    """One of all parts of all channels, in registers, as which it lies in memory."""
    dtype = tensor.dtype
    held = rv[dtype, SIDE**2, "plain", RUN]
    parts = [tc.load(tensor[number, part, 0, 0], held) for part in range(2)]
    return tc.ComplexTile(*(tc.from_register_order(x, rt[dtype, SIDE, SIDE]) for x in parts))


def multiply(tile, gate):
    """Multiplies a shared tile by one of a gate, in place."""
    tc.store(tile, tc.load(tile) * tc.load(gate, rt[tile.type.dtype, SIDE, SIDE]))


def convolve(tiles, mixing, matrices, spectrum, packed):
    """One step of a consumer, from x to the sums of both last products.

    Args:
        tiles, mixing: see there.
        matrices: F, and the twiddles of all z of the CTA, or of all alike.
        spectrum: of part q, in registers.
        packed: see `times`.
    """
    (plain, twiddles), me, turn = matrices, tiles.pipe.consumer, tiles.pipe.turn
    between, z, sums = matrix(plain), mixing.z[0], mixing.sums
    mixing.spread(tiles.part)
    tiles.y.claim()
    places = tiles.of(z.dtype, me, count=HELD)
    tiles.write(places, mixing.values)
    tiles.x.release()
    pairs = [places[2 * m : 2 * m + 2] for m in range(2)]
    for m, own in enumerate(pairs):
        held, before = spectrum(mixing.factors.mine[m]), load_complex(plain)
        with turn():
            tc.mma_AB(sums[0], before, matrix(own), accumulate=False)
        tc.mma_wait()
        first = (me + CONSUMERS * m) * 2 if twiddles.count > 2 else 0
        factors = [twiddles[first], twiddles[first + 1]]
        transform((between, factors), held, (sums[0], sums[0], z), packed, turn)
        tiles.write(own, (z.re, z.im))
    after = adjoint(between)
    with turn():
        for own, total in zip(pairs, sums, strict=True):
            tc.mma_AB(total, after, matrix(own), accumulate=False)
    tc.mma_wait()


def give(tiles, mixing, count, gate):
    """Exchanges sums, and publishes parts of the result.

    Args:
        tiles, mixing: see there.
        count: steps so far.
        gate: None, or a function of n and s: its tile of part n of sequence s.
    """
    given, factors, me = mixing.keep(), mixing.factors, tiles.pipe.consumer
    tiles.meet()
    if factors.group > 1:
        tiles.let_in(factors.rank)
    got = tiles.exchange(given)
    if factors.group > 1:
        got = tiles.send(mixing.keep_again(got), factors.rank, count.get() & 1)
        count.set(count.get() + 1)
    results = mixing.results(got, tiles.y.kind.dtype)
    every = [(n, s) for n in range(2) for s in range(mixing.parts)]
    for n, s in every:
        tc.store(tiles.y[tiles.result(me, n) + s], results[n][s])
    if gate is not None:
        tiles.meet()
        for n, s in every:
            multiply(tiles.y[tiles.result(me, n) + s].tile, gate(n, s))
    tiles.y.publish()


@tc.kernel
def fft_conv_quarters(U: gl[T, "B", "C", "R", 64], H: gl[TI, "P", 2, 1, 4096],
                      F: gl[TI, 1, 2, 64, 64], W: gl[TI, "N", 2, 64, 64], V: gl[f32, "Q", 2, 64],
                      Y: gl[T, "B", "C", "R", 64], *args, outer=4, causal=False, in_gate=False,
                      out_gate=False):  # fmt: skip
    """Y[b, c] = k[c] * U[b, c], circular or causal along 64 R elements.

    Args:
        U, Y: sequences; R at most 64 Q, and 64 Q if not causal.
        H: spectra of k's parts: H[Q c + q] of frequencies Q (k1 + 64 k2) + q, real and imaginary
            parts, as `tc.register_order` has them.
        F, W, V: see `tilecat.fft_tables`: W are the twiddles, V weights of rows.
        args: gates of U and of Y, as U; then X there, weights of columns, if there are any.
        outer: Q, 4 or 8; 8 takes clusters of two CTAs.
        causal, in_gate, out_gate: see `fft_conv_64`.
    """
    parts, inner, group = 1 if causal else 2, H.dtype, outer // QUARTERS
    gates, apart = args[: in_gate + out_gate], args[in_gate + out_gate :]
    rank, arrivals = in_cluster(group) if group > 1 else (0, ())
    tc.allow_spills(SPILL_BYTES)
    pipe = tc.lcsf(consumers=CONSUMERS, stages=1, pingpong=True, steps=tc.cdiv(U.size(0), parts),
                   cluster=group, tasks=tc.custom_order(
                       U.size(1), lambda t: {"channel": t}, cluster=group))  # fmt: skip
    plain, twiddles, columns = constants(pipe, (F, W, *apart), group, rank)
    tiles = Tiles(pipe, st[U.dtype, SIDE, SIDE], (parts, outer), arrivals)
    mixing = Mixing(Factors(outer, causal, rank, V, columns), parts, inner)
    count = tc.var(0)

    def place(task, step, s, r):
        return step * parts + s, task.channel, r, 0

    def result(consumer, n):
        return consumer + 2 * rank + n * outer // 2

    @pipe.load
    def _(task, step):
        for i in range(parts * outer):
            source = U[place(task, step, i // outer, i % outer)]
            tc.load_async(tiles.x[i], source, multicast=group > 1)

    @pipe.consume
    def _(task, steps):
        mixing.factors.begin(pipe.consumer)
        for step in tc.range(steps):
            def at(tensor, s, r, step=step):
                return tensor[place(task, step, s, r)]

            tiles.open(lambda s, r: at(gates[0], s, r) if in_gate else None)
            convolve(tiles, mixing, (plain, twiddles),
                     lambda q: spectrum_of(H, task.channel * outer + q),
                     (U.dtype, inner) == (bf16, f16))  # fmt: skip
            give(tiles, mixing, count,
                 (lambda n, s: at(gates[-1], s, result(pipe.consumer, n))) if out_gate else None)

    @pipe.store
    def _(task, step):
        for consumer, n, s in itertools.product(range(CONSUMERS), range(2), range(parts)):
            target = Y[place(task, step, s, result(consumer, n))]
            tc.store_async(target, tiles.y[tiles.result(consumer, n) + s])


def in_cluster(size):
    """Rank of the CTA, and `landed` and `free` of each consumer."""
    rank = tc.cluster(size)
    landed, free = tc.barriers(CONSUMERS), tc.barriers(CONSUMERS)
    return rank, (landed, free)


def constants(pipe, tensors, group, rank):
    """F, twiddles, and weights of columns where these are apart: loaded once a CTA."""
    (F, W, *apart), once = tensors, {"ring": "constants", "rate": "cta"}
    count = 1 if apart else QUARTERS  # twiddles of all z alike, or of each
    plain, twiddles = (pipe.input(st[F.dtype, SIDE, SIDE], count=2 * n, **once)
                       for n in (1, count))  # fmt: skip
    columns = pipe.input(sv[F.dtype, SIDE], count=2 * QUARTERS, **once) if apart else None

    @pipe.setup
    def _():
        for part in range(2):
            tc.load_async(plain[part], F[0, part, 0, 0])
            for i in range(count):
                number = 0 if apart else i * group + rank
                tc.load_async(twiddles[2 * i + part], W[number, part, 0, 0])
            for i in range(QUARTERS if apart else 0):
                tc.load_async(columns[2 * i + part], apart[0][i * group + rank, part, 0])

    return plain, twiddles, columns
