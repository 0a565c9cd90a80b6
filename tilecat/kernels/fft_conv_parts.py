"""What convolutions by FFT share: sequences as they come and go, complex products in registers."""

from __future__ import annotations

from contextlib import nullcontext

import tilecat as tc
from tilecat import f32

STEP = 16  # columns of a tile that are multiplied at a time
THREADS = 128  # of a consumer


def load_complex(slots):
    """Both parts of a stage's complex tile, in registers."""
    return tc.complex_tile(tc.load(slots[0]), tc.load(slots[1]))


def times(z, acc, factor, *, conj=False, packed=False):
    """`z = acc * factor`, rounded; factor is conjugated where `conj` says so.

    packed: acc is rounded first, then two products at a time are (three roundings, of f16 below
    one of bf16, for half of the instructions).
    """
    for col in range(0, acc.re.type.cols, STEP):
        part = slice(col, col + STEP)
        x, f, to = (c.map(lambda t, at=part: t[:, at]) for c in (acc, factor, z))
        x, f = (x.cast(z.re.dtype), f) if packed else (x, f.cast(f32))
        cross, own = x.im * f.im, x.re * f.im
        cross, own = (cross, -own) if conj else (-cross, own)
        if packed:
            tc.fma(x.re, f.re, cross, out=to.re)
            tc.fma(x.im, f.re, own, out=to.im)
        else:
            tc.cast(tc.fma(x.re, f.re, cross), z.re.dtype, out=to.re)
            tc.cast(tc.fma(x.im, f.re, own), z.im.dtype, out=to.im)


def transform(constants, spectrum, registers, packed, turn=nullcontext):
    """From the sums of the first product to the values of the last one: all that is between.

    Args:
        constants: F, and the twiddles' tiles.
        spectrum: tiles of the filter's.
        registers: sums before, sums of the products, and values.
        packed: see `times`.
        turn: around products: consumers' stand behind one another's.
    """
    (plain, twiddles), (before, acc, z) = constants, registers
    times(z, before, load_complex(twiddles), packed=packed)
    with turn():
        tc.mma_AB(acc, z, plain, accumulate=False)
    tc.mma_wait()
    held = spectrum if isinstance(spectrum, tc.ComplexTile) else load_complex(spectrum)
    times(z, acc, held, packed=packed)
    with turn():
        tc.mma_AB(acc, z, plain.conj(), accumulate=False)
    tc.mma_wait()
    times(z, acc, load_complex(twiddles), conj=True, packed=packed)


class Streams:
    """Tiles of sequences and gates that come, and of results that go, for each consumer.

    Args:
        pipe: the pipeline.
        kind: of a tile.
        count: tiles of a consumer: inputs, outputs, and outputs that are results.
        gates: whether inputs and outputs are multiplied by gates.
        consumers: of the pipeline.
    """

    def __init__(self, pipe, kind, count, gates, consumers):
        self.pipe, (self.inputs, self.outputs, self.results) = pipe, count
        self.x = pipe.input(kind, count=self.inputs * consumers)
        self.before = self.after = None
        if gates[0]:
            self.before = pipe.input(kind, count=self.inputs * consumers)
        if gates[1]:
            self.after = pipe.input(kind, count=self.results * consumers, ring="after", stages=1)
        self.y = pipe.output(kind, count=self.outputs * consumers, stages=1)

    def loads(self, tensors):
        """The inputs that are loaded, each with its tensor: x, and the gate of inputs."""
        found = [(self.x, tensors[0])]
        return found if self.before is None else [*found, (self.before, tensors[1])]

    def meet(self):
        """All threads of the consumer have come."""
        tc.barrier_sync(self.pipe.consumer + 1, THREADS)

    def open(self):
        """Waits for the step's inputs, and multiplies them by their gates; the input tiles."""
        self.x.wait()
        tiles = [self.x[self.pipe.consumer * self.inputs + i] for i in range(self.inputs)]
        if self.before is not None:
            for i, tile in enumerate(tiles):
                gate = self.before[self.pipe.consumer * self.inputs + i]
                tc.store(tile, tc.load(tile) * tc.load(gate))
            tc.fence_async()
            self.meet()
        return tiles

    def close(self):
        """Gives the inputs back."""
        self.x.release()

    def exchange(self, values):
        """Writes values where results will be: the tiles, for products."""
        self.y.claim()
        tiles = [self.y[self.pipe.consumer * self.outputs + i] for i in range(self.outputs)]
        places = [tc.view_as(tile, value.dtype) for tile, value in zip(tiles, values, strict=True)]
        self.write(places, values)
        return places

    def write(self, places, values):
        """Writes values to tiles that products read then; products before have been waited for."""
        for place, value in zip(places, values, strict=True):
            tc.store(place, value)
        tc.fence_async()
        self.meet()

    def give(self, results):
        """Results, multiplied by their gates, take the place of the values that were exchanged."""
        if self.after is not None:
            self.after.wait()
        self.meet()
        for i, sums in enumerate(results):
            if self.after is not None:
                gate = tc.load(self.after[self.pipe.consumer * self.results + i])
                sums = sums * tc.cast(gate, f32)
            place = self.y[self.pipe.consumer * self.outputs + i]
            tc.store(place, tc.cast(sums, self.y.kind.dtype))
        self.y.publish()
        if self.after is not None:
            self.meet()
            self.after.release()
