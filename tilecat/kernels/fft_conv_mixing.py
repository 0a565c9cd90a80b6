"""From parts of a sequence to the complex ones of `fft_conv_quarters`, and back, in registers."""

from __future__ import annotations

import cmath

import tilecat as tc
from tilecat import f32, rt, rv

from .fft_conv_parts import STEP

SIDE = 64  # rows and columns of a sequence of 4096
QUARTERS = 4  # complex sequences of a CTA
CONSUMERS = 2
HELD = 4  # tiles of a consumer: real and imaginary parts of two sequences
PHASES = (1, 1j, 1, -1j)  # of parts r of the result, in sums of both consumers


def is_zero(part):
    """Whether a part of a factor is, for all consumers."""
    return isinstance(part, float) and part == 0


def plus(x, y, factor):
    """`x + factor y`: pairs of parts, imaginary ones None where they are zero."""
    (re, im), (real, imag) = x, y
    re = re if is_zero(factor.re) else tc.fma(real, factor.re, re)
    if imag is not None:
        re = re if is_zero(factor.im) else tc.fma(-imag, factor.im, re)
        im = im if is_zero(factor.re) else tc.fma(imag, factor.re, im)
    if is_zero(factor.im):
        return re, im
    return re, real * factor.im if im is None else tc.fma(real, factor.im, im)


def both(x, y, factor):
    """`x + factor y` and `x - factor y`, complex."""
    return [tc.ComplexTile(*plus((x.re, x.im), (y.re, y.im), one))
            for one in (factor, tc.ComplexTile(-factor.re, -factor.im))]  # fmt: skip


def product(x, w, *, conj=False):
    """`x w` in f32, of vectors or numbers w, conjugated where `conj` says so."""
    if is_zero(w.im):
        return x.map(lambda part: part * w.re)
    cross, own = x.im * w.im, x.re * w.im
    cross, own = (cross, -own) if conj else (-cross, own)
    return tc.ComplexTile(tc.fma(x.re, w.re, cross), tc.fma(x.im, w.re, own))


def sliced(z, at):
    """Columns of a complex tile."""
    return z.map(lambda tile: tile[:, at])


def slices():
    """All columns, some at a time."""
    return [slice(col, col + STEP) for col in range(0, SIDE, STEP)]


def put(to, z, at):
    """Writes columns of a complex tile."""
    for tile, part in zip((to.re, to.im), (z.re, z.im), strict=True):
        tc.cast(part, tile.type.dtype, out=tile[:, at])


class Factors:
    """What consumer i of CTA j multiplies by. It has z_q of q = j + G i and j + G (i + 2).

    Args:
        outer: Q, the parts of a sequence: 4, or 8 of two CTAs (G = Q / 4).
        causal: whether sequences are weighted.
        rank: j.
        rows: weights of rows, `gl[f32, "Q", 2, 64]`.
        columns: those of columns, vectors of shared memory: real and imaginary part of each z;
            None where the twiddles have them.
    """

    def __init__(self, outer, causal, rank, rows, columns):
        self.outer, self.group, self.causal = outer, outer // QUARTERS, causal
        self.rank, self.rows, self.columns = rank, rows, columns

    def begin(self, consumer):
        """Once a task."""
        self.consumer, group = consumer, self.group
        self.index = consumer if group == 1 else consumer + CONSUMERS * self.rank
        first = consumer * group + self.rank if group > 1 else consumer
        self.mine = [first, first + CONSUMERS * group]  # the numbers q

    def weights(self):
        """Those of rows, of both z; in registers."""
        return [tc.ComplexTile(*(tc.load(self.rows[q, part, 0], rv[f32, SIDE])
                                 for part in range(2))) for q in self.mine]  # fmt: skip

    def weighted(self, z, number, at, rows, *, conj=False):
        """Columns of the first or the second z, weighted."""
        if self.columns is None:
            return product(z, rows[number], conj=conj)
        first = (self.consumer + CONSUMERS * number) * 2
        cols = tc.ComplexTile(*(
            tc.load(self.columns[first + part].tile.part(at.start // STEP, SIDE // STEP),
                    rv[f32, STEP, "col"]) for part in range(2)
        ))  # fmt: skip
        return product(product(z, cols, conj=conj), rows[number], conj=conj)

    def chosen(self, of):
        """The number `of(i, j)`; its parts are Python's where all consumers have the same."""
        found = [complex(of(i, j)) for j in range(self.group) for i in range(CONSUMERS)]
        parts = []
        for each in ([z.real for z in found], [z.imag for z in found]):
            *others, value = [round(x, 15) + 0.0 for x in each]  # roots of one, without dust
            for n in reversed(range(len(others))):
                same = isinstance(value, float) and value == others[n]
                value = value if same else tc.select(self.index == n, others[n], value)
            parts.append(value)
        return tc.ComplexTile(*parts)

    def _weight(self, r):
        return cmath.exp(0.5j * cmath.pi * r / self.outer * self.causal)

    def _turn(self, q, r):
        return cmath.exp(2j * cmath.pi * q * r / self.outer)

    def of_part(self, r):
        """c[q, r] / c[q, 0] of `fft_conv_long` for the first of the consumer's q."""
        return self.chosen(
            lambda i, j: self._turn(-(j + self.group * i), r) * self._weight(r)
        )

    def sign(self):
        """Of the second result, in what is kept."""
        return self.chosen(lambda i, j: (-1) ** i)

    def other(self):
        """Of the other consumer's."""
        return self.chosen(lambda i, j: (1, -1j)[i] * (-1) ** j)

    def phase(self, n):
        """Of what a CTA keeps of both consumers' sums (n = 0), and what it gives (1)."""
        def of(i, j):
            r = i + 2 * (j ^ n)
            return PHASES[r] * self._turn(j, r)

        return self.chosen(of)

    def back(self, n):
        """Of the first and the second part of the result."""
        def of(i, j):
            if self.group == 1:
                return PHASES[i + 2 * n] * self._weight(i + 2 * n).conjugate()
            return (-1) ** (j * n) * self._weight(i + 2 * j + 4 * n).conjugate()

        return self.chosen(of)


class Mixing:
    """Sequences of a step as the complex ones that are convolved, and back.

    Args:
        factors: see `Factors`.
        parts: sequences of x that are one complex one.
        dtype: of the intermediates.
    """

    def __init__(self, factors, parts, dtype):
        self.factors, self.parts = factors, parts
        self.values = [tc.empty(rt[dtype, SIDE, SIDE]) for _ in range(HELD)]
        self.z = [tc.complex_tile(*self.values[2 * m : 2 * m + 2]) for m in range(2)]
        self.sums = [tc.complex_tile(*(tc.empty(rt[f32, SIDE, SIDE]) for _ in range(2)))
                     for _ in range(2)]  # fmt: skip

    def spread(self, load):
        """Values of both z; `load(s, r)` gives registers of part r of sequence s."""
        for half, to in enumerate(self.sums):
            for s in range(self.parts):
                self._start(to, self._folded(load, s, half), s)
            for s in range(self.parts):
                self._add(to, self._folded(load, s, half + 2), s)
        rows = self.factors.weights()
        for at in slices():
            mixed = both(*(sliced(z, at) for z in self.sums), self.factors.of_part(1))
            for number, z in enumerate(mixed):
                put(self.z[number], self.factors.weighted(z, number, at, rows), at)
        return self.values

    def _folded(self, load, s, r):
        """X_r of a sequence: a function of columns, to pairs of parts."""
        one = load(s, r)
        more = load(s, r + QUARTERS) if self.factors.group > 1 else None

        def of(at):
            x = tc.cast(one[:, at], f32), None
            if more is None:
                return x
            return plus(x, (tc.cast(more[:, at], f32), None), self.factors.of_part(QUARTERS))

        return of

    def _start(self, to, part, s):
        """`to = X`, or its real or its imaginary part, of sequence s of two."""
        for at in slices():
            re, im = part(at)
            if self.parts == 1 and im is not None:
                put(to, tc.ComplexTile(re, im), at)
            else:
                tc.cast(re, f32, out=(to.im if s else to.re)[:, at])

    def _add(self, to, part, s):
        """`to += a X`, of i X of the second of two sequences."""
        for at in slices():
            so_far, a = sliced(to, at), self.factors.of_part(2)
            a = tc.ComplexTile(-a.im, a.re) if s else a
            known = self.parts == 2 or self.factors.group > 1
            new = plus((so_far.re, so_far.im if known else None), part(at), a)
            put(to, tc.ComplexTile(*new), at)

    def keep(self):
        """Keeps one sum of both results over the first; the other, for the other consumer."""
        rows = self.factors.weights()
        for at in slices():
            back = [self.factors.weighted(sliced(v, at), m, at, rows, conj=True)
                    for m, v in enumerate(self.sums)]  # fmt: skip
            kept, given = both(*back, self.factors.sign())
            put(self.sums[0], kept, at)
            put(self.z[0], given, at)
        return self.values[:2]

    def keep_again(self, got):
        """The same with what the other consumer gave; the other, for the other CTA."""
        for at in slices():
            found = both(sliced(self.sums[0], at), sliced(got, at).cast(f32), self.factors.other())
            for n, to in enumerate((self.sums[0], self.z[0])):
                put(to, product(found[n], self.factors.phase(n)), at)
        return self.values[:2]

    def results(self, got, dtype):
        """Two parts of the result, each of all sequences."""
        made = [[tc.empty(rt[dtype, SIDE, SIDE]) for _ in range(self.parts)] for _ in range(2)]
        for at in slices():
            alone = self.factors.group == 1
            factor = self.factors.other() if alone else tc.ComplexTile(1.0, 0.0)
            found = both(sliced(self.sums[0], at), sliced(got, at).cast(f32), factor)
            for n, out in enumerate(made):
                z = product(found[n], self.factors.back(n))
                for to, part in zip(out, (z.re, z.im), strict=False):
                    tc.cast(part, dtype, out=to[:, at])
        return made
