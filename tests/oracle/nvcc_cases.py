"""Launches of the CUDA kernels in `nvcc/`, and what they must compute.

Each function gives a `Launch`: arrays are read and written in place, and `expected` holds what
must stand in them afterwards, by position in `args`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from reference import TRUNCATION, Reference

Expected = dict[int, Reference | np.ndarray]
BF16 = ml_dtypes.bfloat16


@dataclass
class Launch:
    """Grid, arguments (arrays and numbers), expected arrays, dynamic shared bytes."""

    grid: tuple[int, ...]
    args: list
    expected: Expected = field(default_factory=dict)
    smem_bytes: int = 0


def _normal(generator: np.random.Generator, *shape: int) -> np.ndarray:
    return generator.standard_normal(shape).astype(np.float32)


def _poison(*shape: int, dtype=np.float32) -> np.ndarray:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.full(size, 0xFF, np.uint8).view(dtype).reshape(shape)


def _near(value: np.ndarray, ulps: float, floor: float = 0.0) -> Reference:
    return Reference(value, ulps * TRUNCATION * np.abs(value) + floor)


def saxpy(g: np.random.Generator) -> Launch:
    x, y = _normal(g, 1000), _normal(g, 1000)
    value = 2.5 * x.astype(np.float64) + y
    return Launch((3,), [1000, 2.5, x, y], {3: _near(value, 1)})


def block_sum(g: np.random.Generator) -> Launch:
    x, out = g.integers(-9, 9, 3000).astype(np.float32), np.array([5], np.float32)
    return Launch((4,), [3000, x, out], {2: out + x.sum()}, smem_bytes=1024)


def transpose(g: np.random.Generator) -> Launch:
    a = _normal(g, 50, 75)
    return Launch((3, 2), [50, 75, a, _poison(75, 50)], {3: np.ascontiguousarray(a.T)})


def collatz(g: np.random.Generator) -> Launch:
    x = g.integers(1, 2000, 300).astype(np.uint32)
    steps, peak = np.zeros(300, np.int32), x.copy()
    for i, v in enumerate(x.tolist()):
        while v != 1:
            v = 3 * v + 1 if v & 1 else v >> 1
            steps[i] += 1
            peak[i] = max(int(peak[i]), v)
    args = [300, x, _poison(300, dtype=np.int32), _poison(300, dtype=np.uint32)]
    return Launch((3,), args, {2: steps, 3: peak})


def _switched(v: int) -> int:
    def towards_zero(a: int, b: int) -> int:
        return abs(a) // b * (1 if a >= 0 else -1)

    rest = v - towards_zero(v, 13) * 13
    r = [v + 1, v * v, v >> 3, -v, v ^ 0x55, rest, towards_zero(v, 7), ~v][v & 7]
    if r <= 0:
        return r * 2 - 1
    for k in range(v & 3):
        if r & 1:
            r = r * 3 + k
            continue
        if r > 100000:
            break
        r += k * 7
    return r


def switches(g: np.random.Generator) -> Launch:
    x = g.integers(-500, 500, 300).astype(np.int32)
    expected = np.array([_switched(v) for v in x.tolist()], np.int32)
    return Launch((3,), [300, x, _poison(300, dtype=np.int32)], {2: expected})


def votes(g: np.random.Generator) -> Launch:
    x = g.integers(-50, 100, 128).astype(np.int32)
    rows = np.zeros((6, 4, 32), np.int64)
    lane = np.arange(32)
    for warp, v in enumerate(x.reshape(4, 32).astype(np.int64)):
        positive = int(((v > 0) << lane).sum())
        rows[0, warp] = positive
        rows[1, warp] = ((v[:, None] & 7 == v & 7) << lane).sum(1)
        rows[2, warp] = (v == 99).any() * 2 + (v < 100).all()
        rows[3, warp] = v.sum()
        rows[4, warp] = np.bitwise_or.reduce(v)
        rank = [(positive & ((1 << k) - 1)).bit_count() for k in lane.tolist()]
        up = np.where(lane >= 3, v[lane - 3], v)
        rows[5, warp] = rank + 100 * up + v[lane // 8 * 8 + (v & 7)]
    expected = (rows & 0xFFFFFFFF).astype(np.uint32).ravel()
    return Launch((1,), [x, _poison(768, dtype=np.uint32)], {1: expected})


def groups(g: np.random.Generator) -> Launch:
    x = g.integers(-20, 20, 500).astype(np.int32)
    sums = np.append(x, np.zeros(12, np.int32)).reshape(-1, 8).sum(1)
    expected = np.repeat(sums * 4 + (sums > 10) * 2 + 1, 8)[:500].astype(np.int32)
    return Launch((2,), [500, x, _poison(500, dtype=np.int32)], {2: expected})


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _reversed(value: int, bits: int) -> int:
    return int(f"{value:0{bits}b}"[::-1], 2)


def _remainder(a: int, b: int) -> int:
    return a - abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) * b


def _bit_words(a: int, b: int) -> list[int]:
    """The values that `bits` mixes, in its order."""
    w, u32, u64 = a << 32 | b, 0xFFFFFFFF, 2**64 - 1
    sa, sb, sw, odd = _signed(a, 32), _signed(b, 32), _signed(w, 64), b | 1
    both, pair = b << 32 | a, a | b << 32
    picked = [pair >> 8 * (b >> 4 * k & 7) & 255 for k in range(4)]
    bytes_a, bytes_b = ([x >> 8 * k & 255 for k in range(4)] for x in (a, b))
    return [
        a.bit_count(), 32 - a.bit_length(), _reversed(a, 32), (b & -b).bit_length(),
        w.bit_count(), 64 - w.bit_length(), _reversed(w, 64), (w & -w).bit_length(),
        sum(v << 8 * k for k, v in enumerate(picked)), (both << (a & 31)) >> 32 & u32,
        both >> (b & 31) & u32, (both << min(a & 63, 32)) >> 32 & u32,
        a * b >> 32, sa * sb >> 32 & u32, w * (w * 3 & u64) >> 64,
        abs(a - b) + 5 & u32,
        _signed(sum(_signed(p, 8) * _signed(q, 8) for p, q in zip(bytes_a, bytes_b, strict=True))
                + 7, 32),
        sum(min(255, bytes_a[k] + bytes_b[k]) << 8 * k for k in range(4)),
        a // odd, _remainder(sa, _signed(odd, 32)), w // odd, _remainder(sw, a | 1), abs(a - b),
        (a & 255) + _signed(b, 8), _signed(a, 16) * (b & 0xFFFF), min(sa, sb), max(sw, a),
        a << (b & 31) & u32, sa >> (b & 31), w >> (a & 63), sa + sb + 1 >> 1,
        _signed(_signed(a, 24) * _signed(b, 24), 32),
    ]  # fmt: skip


def bits(g: np.random.Generator) -> Launch:
    x, y = (g.integers(0, 2**32, 256).astype(np.uint32) for _ in range(2))
    expected = []
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        h = 0
        for value in _bit_words(a, b):
            h = (h * 0x9E3779B97F4A7C15 + value) % 2**64
        expected.append(h)
    args = [x, y, _poison(256, dtype=np.uint64)]
    return Launch((2,), args, {2: np.array(expected, np.uint64)})


def maths(g: np.random.Generator) -> Launch:
    """Errors in units of fp32: the CUDA programming guide's bounds, with room for sums."""
    n, x = 500, _normal(g, 500) * np.float32(3)
    v = x.astype(np.float64)
    a = np.abs(v)

    def scaled(factor: float) -> np.ndarray:
        return x * np.float32(factor)

    away = np.sign(x) * np.floor(np.abs(scaled(5)) + np.float32(0.5))
    narrow = (x.astype(np.float16) + np.float16(0.5)).astype(np.float32)
    rows = [
        np.exp(v), np.log(a + 1e-3), np.tanh(v), v / (1 + v * v), 1 / np.sqrt(a + 1), np.cbrt(v),
        np.fmod(x, np.float32(0.7)).astype(np.float64),
        (np.rint(scaled(10)) + np.trunc(scaled(3)) + away).astype(np.float64),
        v / 3 + np.exp(v) + np.clip(v, 0, 1), a**1.5,
        v * v - 1 + np.copysign(2, v) + np.minimum(v, 0) + np.hypot(v, 1),
        (narrow + x.astype(BF16).astype(np.float32) + np.trunc(scaled(100))).astype(np.float64),
    ]  # fmt: skip
    exact = np.array([0.0 if row in (6, 7, 11) else 1.0 for row in range(12)])[:, None]
    value = np.stack(rows)
    error = exact * TRUNCATION * (16 * np.abs(value) + 32)
    wide = np.exp(v) + np.sqrt(v * v + 1) / (v * v + 2)
    whole = np.floor(v * 7) + np.trunc(v * 1e6) + np.trunc(v)
    z = np.stack([wide, whole])
    expected = {2: Reference(value, error), 3: Reference(z, 2.0**-50 * np.abs(z))}
    return Launch((4,), [n, x, _poison(12, n), _poison(2, n, dtype=np.float64)], expected)


def _directed(value: np.ndarray, mode: str) -> np.ndarray:
    """Float64 results of float32 operands, exact or nearly, to float32 in a rounding mode."""
    near = value.astype(np.float32)
    up, down = (np.nextafter(near, np.float32(side)) for side in (np.inf, -np.inf))
    high = np.where(near.astype(np.float64) < value, up, near)
    low = np.where(near.astype(np.float64) > value, down, near)
    return {"z": np.where(value > 0, low, high), "d": low, "u": high}[mode]


def rounding(g: np.random.Generator) -> Launch:
    """Operands of similar size, so that float64 holds sums and products exactly."""
    x, y = _normal(g, 300), _normal(g, 300)
    a, b = x.astype(np.float64), y.astype(np.float64)
    rows = [_directed(value, mode) for value in (a + b, a * b, a / b) for mode in "zdu"]
    rows += [_directed(np.sqrt(np.abs(a)), mode) for mode in "du"]
    return Launch((3,), [300, x, y, _poison(11, 300)], {3: np.stack(rows)})


def halves(g: np.random.Generator) -> Launch:
    x, y = (_normal(g, 300, 2).astype(np.float16) for _ in range(2))
    b = _normal(g, 300, 2).astype(BF16)

    def f16(value: np.ndarray) -> np.ndarray:
        return value.astype(np.float16).astype(np.float64)

    def bf16(value: np.ndarray) -> np.ndarray:
        return value.astype(np.float32).astype(BF16).astype(np.float64)

    p, q, r = (array.astype(np.float64) for array in (x, y, b))
    z = f16(np.maximum(f16(p * q + 0.25), f16(p - q)) * -p)
    w = bf16(r * r + r)
    c = np.minimum(w, bf16(r + w))
    args = [300, x, y, _poison(300, 2, dtype=np.float16), b, _poison(300, 2, dtype=BF16)]
    return Launch((3,), args, {3: z.astype(np.float16), 5: c.astype(BF16)})


def byte_histogram(g: np.random.Generator) -> Launch:
    x, bins = g.integers(0, 256, 2000).astype(np.uint8), np.arange(256, dtype=np.int32)
    counts = np.bincount(x, minlength=256).astype(np.int32)
    return Launch((2,), [2000, x, bins], {2: bins + counts})


def atomics(g: np.random.Generator) -> Launch:
    x = g.integers(-1000, 1000, 128).astype(np.int32)
    o = np.array([9, -9, 5, 6, 7, 3, 7, 8], np.int32)
    up, down = 3, 7
    for _ in range(128):
        up = 0 if up >= 99 else up + 1
        down = 50 if down == 0 or down > 50 else down - 1
    folded = [x.max(), x.min(), *(f.reduce(x) for f in (np.bitwise_xor, np.bitwise_or))]
    expected = np.array([
        max(folded[0], 9), min(folded[1], -9), folded[2] ^ 5, folded[3] | 6,
        np.bitwise_and.reduce(x) & 7, up, down, 8 + x.sum(),
    ], np.int32)  # fmt: skip
    squares = np.array([7 + (x.astype(np.int64) ** 2).sum()], np.uint64)
    f = np.concatenate([[x.sum()], x]).astype(np.float32)
    args = [x, o, np.array([7], np.uint64), np.zeros(129, np.float32)]
    return Launch((1,), args, {1: expected, 2: squares, 3: f})


def ticket_sum(g: np.random.Generator) -> Launch:
    x = g.integers(-9, 9, 5000).astype(np.float32)
    args = [5000, x, _poison(8), np.zeros(1, np.uint32), _poison(1)]
    return Launch((8,), args, {3: np.full(1, 8, np.uint32), 4: np.array([x.sum()], np.float32)})


def copy_ring(g: np.random.Generator) -> Launch:
    x = _normal(g, 7, 128, 4)
    expected = x[:, ::-1].copy()
    expected[:, :, 0] += np.arange(7, dtype=np.float32)[:, None]
    return Launch((1,), [7, x, _poison(7, 128, 4)], {2: expected})


def copy_arrive(g: np.random.Generator) -> Launch:
    x = _normal(g, 5, 128, 4)
    expected = x[:, np.arange(128) ^ 1]
    expected[1::2] = 0
    return Launch((1,), [5, x, _poison(5, 128, 4)], {2: expected})


def bulk(g: np.random.Generator) -> Launch:
    x, total = g.integers(-9, 9, (6, 256)).astype(np.float32), np.ones(256, np.float32)
    y = x[:, ::-1] + np.float32(1)
    return Launch((1,), [6, x, _poison(6, 256), total], {2: y, 3: total + y.sum(0)})


def exchange(g: np.random.Generator) -> Launch:
    x = g.integers(-99, 99, 512).astype(np.int32)
    other = x.reshape(2, 2, 128)[:, ::-1]
    expected = (other[..., ::-1] * 1000 + other).astype(np.int32).ravel()
    return Launch((4,), [x, _poison(512, dtype=np.int32)], {1: expected})


def neighbours(g: np.random.Generator) -> Launch:
    x = g.integers(-99, 99, 512).astype(np.int32)
    mine = x.reshape(2, 2, 128)
    expected = ((mine + 1000) * 3 + mine[:, ::-1]).astype(np.int32).ravel()
    return Launch((4,), [x, _poison(512, dtype=np.int32)], {1: expected})


def local_array(g: np.random.Generator) -> Launch:
    x = g.integers(-99, 99, 200).astype(np.int32)
    expected = []
    for v in x.tolist():
        a, s, j = [v * k + k * k for k in range(16)], 0, v & 15
        for _ in range(8):
            s = _signed(s + a[j], 32)
            a[j] ^= s
            j = (j * 5 + 3) & 15
        expected.append(_signed(s + a[v & 7], 32))
    args = [200, x, _poison(200, dtype=np.int32)]
    return Launch((2,), args, {2: np.array(expected, np.int32)})


def variables(g: np.random.Generator) -> Launch:
    x, c = _normal(g, 128), np.array([1, -0.5, 0.25, 2])
    v = x.astype(np.float64)
    y = ((c[3] * v + c[2]) * v + c[1]) * v + c[np.arange(128) & 3]
    size = ((c[3] * np.abs(v) + c[2]) * np.abs(v) + 1) * np.abs(v) + 2
    value, error = np.append(y, [3, 7]), np.append(4 * TRUNCATION * size, [0, 0])
    return Launch((1,), [x, _poison(130)], {1: Reference(value, error)})


NVCC_CASES: tuple[Callable[[np.random.Generator], Launch], ...] = (
    saxpy, block_sum, transpose, collatz, switches, votes, groups, bits, maths, rounding, halves,
    byte_histogram, atomics, ticket_sum, copy_ring, copy_arrive, bulk, exchange, local_array,
    neighbours, variables,
)  # fmt: skip
