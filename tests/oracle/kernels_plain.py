"""Kernels without a matrix product, written in Triton, compiled to the texts in `sm_90a/`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def vector_add(x, y, z, n, B: tl.constexpr):
    """z = x + y, the last program in part masked."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    keep = at < n
    tl.store(z + at, tl.load(x + at, keep) + tl.load(y + at, keep), keep)


@triton.jit
def activations(x, y, n, B: tl.constexpr):
    """Rows of y: sigmoid, exp, log, square root, reciprocal root, erf, floor, ceil of x."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    keep = at < n
    v = tl.load(x + at, keep, other=1.0).to(tl.float32)
    tl.store(y + at, tl.sigmoid(v), keep)
    tl.store(y + n + at, tl.exp(v), keep)
    tl.store(y + 2 * n + at, tl.log(tl.abs(v) + 1e-3), keep)
    tl.store(y + 3 * n + at, tl.sqrt_rn(tl.abs(v)), keep)
    tl.store(y + 4 * n + at, tl.rsqrt(tl.abs(v) + 0.25), keep)
    tl.store(y + 5 * n + at, tl.erf(v), keep)
    tl.store(y + 6 * n + at, tl.floor(v) + 0.5 * tl.ceil(v), keep)
    tl.store(y + 7 * n + at, tl.div_rn(v, tl.fma(v, v, 2.0)), keep)


@triton.jit
def softmax(x, y, cols, B: tl.constexpr):
    """Each row of y = softmax of the row of x."""
    row = tl.program_id(0)
    at = tl.arange(0, B)
    v = tl.load(x + row * cols + at, at < cols, other=float("-inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * cols + at, e / tl.sum(e, 0), at < cols)


@triton.jit
def layernorm(x, weight, bias, y, mean, scale, cols, eps, B: tl.constexpr):
    """y = (x - mean) / sqrt(variance + eps) * weight + bias, rows longer than a block."""
    row = tl.program_id(0)
    total = tl.zeros((B,), tl.float32)
    for start in range(0, cols, B):
        at = start + tl.arange(0, B)
        total += tl.load(x + row * cols + at, at < cols, other=0.0).to(tl.float32)
    center = tl.sum(total, 0) / cols
    square = tl.zeros((B,), tl.float32)
    for start in range(0, cols, B):
        at = start + tl.arange(0, B)
        v = tl.load(x + row * cols + at, at < cols, other=0.0).to(tl.float32)
        v = tl.where(at < cols, v - center, 0.0)
        square += v * v
    factor = 1.0 / tl.sqrt(tl.sum(square, 0) / cols + eps)
    tl.store(mean + row, center)
    tl.store(scale + row, factor)
    for start in range(0, cols, B):
        at = start + tl.arange(0, B)
        keep = at < cols
        v = tl.load(x + row * cols + at, keep, other=0.0).to(tl.float32)
        w = tl.load(weight + at, keep).to(tl.float32)
        b = tl.load(bias + at, keep).to(tl.float32)
        tl.store(y + row * cols + at, ((v - center) * factor * w + b).to(y.dtype.element_ty), keep)


@triton.jit
def reductions(x, i, row_sum, col_max, where, parity, low, R: tl.constexpr, C: tl.constexpr):
    """Sums of rows, maxima of columns, arg-maxima of rows, xor and minimum of integers."""
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    v = tl.load(x + at)
    tl.store(row_sum + tl.arange(0, R), tl.sum(v, 1))
    tl.store(col_max + tl.arange(0, C), tl.max(v, 0))
    tl.store(where + tl.arange(0, R), tl.argmax(v, 1))
    n = tl.load(i + at)
    tl.store(parity + tl.arange(0, C), tl.xor_sum(n, 0))
    tl.store(low + tl.arange(0, R), tl.min(n, 1))


@triton.jit
def histogram(x, bins, total, top, n, BINS: tl.constexpr, B: tl.constexpr):
    """Counts of values in bins, the sum of all and the largest, all by atomics."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + at, at < n, other=0)
    h = tl.histogram(v, BINS, mask=at < n)
    tl.atomic_add(bins + tl.arange(0, BINS), h, sem="relaxed")
    tl.atomic_add(total, tl.sum(v.to(tl.float32), 0))
    tl.atomic_max(top, tl.max(v, 0))


@triton.jit
def scatter_add(x, index, y, count, n, B: tl.constexpr):
    """y[index] += x in half precision; count[index] counts in float32."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    keep = at < n
    to = tl.load(index + at, keep, other=0)
    tl.atomic_add(y + to, tl.load(x + at, keep, other=0.0), keep, sem="relaxed")
    tl.atomic_add(count + to, 1.0, keep, sem="relaxed")


@triton.jit
def _combine(decay_a, value_a, decay_b, value_b):
    return decay_a * decay_b, value_a * decay_b + value_b


@triton.jit
def scans(x, decay, i, state, sums, R: tl.constexpr, C: tl.constexpr):
    """A first-order recurrence along rows and integer prefix sums, one of them backwards."""
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    _, s = tl.associative_scan((tl.load(decay + at), tl.load(x + at)), 1, _combine)
    tl.store(state + at, s)
    n = tl.load(i + at)
    tl.store(sums + at, tl.cumsum(n, 1))
    tl.store(sums + R * C + at, tl.cumsum(n, 0, reverse=True))


@triton.jit
def transpose_sort(x, y, z, R: tl.constexpr, C: tl.constexpr):
    """y = x transposed through shared memory, z = rows of x sorted."""
    r = tl.arange(0, R)
    c = tl.arange(0, C)
    v = tl.load(x + r[:, None] * C + c[None, :])
    tl.store(y + c[:, None] * R + r[None, :], tl.trans(v))
    tl.store(z + r[:, None] * C + c[None, :], tl.sort(v))


@triton.jit
def random_bits(y, u, seed, n, B: tl.constexpr):
    """Philox counters to 32-bit words and to uniform floats."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    a, b, c, d = tl.randint4x(seed, at)
    tl.store(y + at, a, at < n)
    tl.store(y + n + at, b ^ c ^ d, at < n)
    tl.store(u + at, tl.rand(seed, at), at < n)


@triton.jit
def last_program(x, partial, ticket, y, n, PROGRAMS: tl.constexpr, B: tl.constexpr):
    """y = sum of x: every program leaves a partial sum, the last to finish adds them."""
    me = tl.program_id(0)
    at = me * B + tl.arange(0, B)
    tl.store(partial + me, tl.sum(tl.load(x + at, at < n, other=0.0), 0))
    tl.debug_barrier()
    if tl.atomic_add(ticket, 1) == PROGRAMS - 1:
        tl.debug_barrier()
        parts = tl.load(partial + tl.arange(0, PROGRAMS), volatile=True)
        tl.store(y, tl.sum(parts, 0))


@triton.jit
def convert(x, h, b, e, f, n, B: tl.constexpr):
    """float32 to float16, bfloat16, the two 8-bit floats, and back to float32 rounded to each."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    keep = at < n
    v = tl.load(x + at, keep, other=0.0)
    tl.store(h + at, v.to(tl.float16), keep)
    tl.store(b + at, v.to(tl.bfloat16), keep)
    tl.store(e + at, v.to(tl.float8e4nv), keep)
    tl.store(f + at, v.to(tl.float8e5), keep)


@triton.jit
def widen(h, b, e, f, i, y, n, B: tl.constexpr):
    """Narrow floats and 8-bit integers to float32, one row of y each."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    keep = at < n
    tl.store(y + at, tl.load(h + at, keep, other=0.0).to(tl.float32), keep)
    tl.store(y + n + at, tl.load(b + at, keep, other=0.0).to(tl.float32), keep)
    tl.store(y + 2 * n + at, tl.load(e + at, keep, other=0.0).to(tl.float32), keep)
    tl.store(y + 3 * n + at, tl.load(f + at, keep, other=0.0).to(tl.float32), keep)
    tl.store(y + 4 * n + at, tl.load(i + at, keep, other=0).to(tl.float32), keep)


@triton.jit
def integers(x, y, z, n, B: tl.constexpr):
    """Rows of z: quotient, remainder, shifts, 64-bit product, clamp, comparisons of integers."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    keep = at < n
    a = tl.load(x + at, keep, other=0)
    b = tl.load(y + at, keep, other=1)
    tl.store(z + at, (a // b).to(tl.int64), keep)
    tl.store(z + n + at, (a % b).to(tl.int64), keep)
    tl.store(z + 2 * n + at, ((a << (b & 31)) ^ (a >> (b & 31))).to(tl.int64), keep)
    tl.store(z + 3 * n + at, a.to(tl.int64) * b.to(tl.int64), keep)
    tl.store(z + 4 * n + at, tl.minimum(tl.maximum(a, -100), b).to(tl.int64), keep)
    tl.store(z + 5 * n + at, a.to(tl.int64) % (b.to(tl.int64) + 7), keep)
    tl.store(z + 6 * n + at, tl.umulhi(a.to(tl.uint32), b.to(tl.uint32)).to(tl.int64), keep)


@triton.jit
def trigonometry(x, y, n, B: tl.constexpr):
    """Sine and cosine, of arguments too large for a short reduction too."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    keep = at < n
    v = tl.load(x + at, keep, other=0.0)
    tl.store(y + at, tl.sin(v), keep)
    tl.store(y + n + at, tl.cos(v * 1000.0), keep)


@triton.jit
def doubles(x, y, n, B: tl.constexpr):
    """Exponential, root, logarithm and a sum in float64."""
    at = tl.arange(0, B)
    keep = at < n
    v = tl.load(x + at, keep, other=1.0)
    total = tl.sum(tl.where(keep, v, 0.0), 0)
    tl.store(y + at, tl.exp(v) * tl.sqrt(v * v + 1.0) / total + tl.log(tl.abs(v) + 1.0), keep)


@triton.jit
def pick(x, i, y, z, R: tl.constexpr, C: tl.constexpr, K: tl.constexpr):
    """y = elements of rows by index, z = the K largest of each row."""
    row = tl.arange(0, R)[:, None]
    at = row * C + tl.arange(0, C)[None, :]
    v = tl.load(x + at)
    tl.store(y + at, tl.gather(v, tl.load(i + at), 1))
    tl.store(z + row * K + tl.arange(0, K)[None, :], tl.topk(v, K))


@triton.jit
def spin_lock(x, y, flag, n, B: tl.constexpr):
    """y += x by every program in turn, under a lock."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + at, at < n, other=0.0)
    while tl.atomic_cas(flag, 0, 1) == 1:
        pass
    tl.debug_barrier()
    place = y + tl.arange(0, B)
    tl.store(place, tl.load(place) + v)
    tl.debug_barrier()
    tl.atomic_xchg(flag, 0)


@triton.jit
def atomics(x, y, old, n, B: tl.constexpr):
    """Rows of y: add, maximum, minimum, exchange of floats; old = the sums before."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    keep = at < n
    v = tl.load(x + at, keep, other=0.0)
    tl.store(old + at, tl.atomic_add(y + at, v, keep), keep)
    tl.atomic_max(y + n + at, v, keep)
    tl.atomic_min(y + 2 * n + at, v, keep)
    tl.atomic_xchg(y + 3 * n + at, v, keep)
