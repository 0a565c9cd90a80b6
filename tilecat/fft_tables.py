"""Constants of convolution by FFT, and the layout of a filter's spectrum, in float64.

Of a sequence of n = rows x cols, element cols a + b in row a and column b, weighted by
w(n) = exp(i pi n / 2N) where it is causal, as `kernels.fft_conv` has it:

    roots(rows)[k, a] = exp(-2 pi i k a / rows) / sqrt(rows)
    E[k, a] = roots(rows)[k, a] w(cols a)       T[k, b] = exp(-2 pi i k b / N) w(b)
    F = roots(cols)                             H[k1, k2] = sum_n k(n) w(n) e(-n (k1 + rows k2) / N)
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
SHORT = 32  # rows of the plan whose rows are grouped
QUARTER = 64  # rows and columns of a part of a long sequence
QUARTERS = 4  # of which one CTA has so many
GROUP = 8  # rows of real parts, then of imaginary ones, in a tile of the short plan


def roots(size: int) -> np.ndarray:
    """The unitary DFT matrix."""
    index = np.arange(size)
    return np.exp(-2j * np.pi * np.outer(index, index) / size) / np.sqrt(size)


def weight(index: np.ndarray, length: int, causal: bool) -> np.ndarray:
    """`exp(i pi n / 2N)` of elements n, or ones."""
    return np.exp(0.5j * np.pi * index / length * causal)


def parts(z: np.ndarray, axis: int = 0) -> np.ndarray:
    """Real and imaginary part along a new axis."""
    return np.ascontiguousarray(np.stack([z.real, z.imag], axis))


def matrices(rows: int, cols: int, causal: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """E, F and T, complex."""
    length, a, b = rows * cols, np.arange(rows), np.arange(cols)
    first = roots(rows) * weight(cols * a, length, causal)
    twiddles = np.exp(-2j * np.pi * np.outer(a, b) / length) * weight(b, length, causal)
    return first, roots(cols), twiddles


def plain_tables(rows: int, cols: int, causal: bool, outer: int = 1) -> tuple[np.ndarray, ...]:
    """E, E, F and T as `fft_conv_64` takes them: real and imaginary parts, by part of sequences.

    Of sequences in `outer` parts, part q is weighted by exp(-2 pi i q n / N), and by w(n) of N.
    """
    short = rows * cols
    length, a, b = outer * short, cols * np.arange(rows), np.arange(cols)
    plain, second, twiddles = matrices(rows, cols, False)
    found = []
    for q in range(outer):
        across, along = (
            np.exp(-2j * np.pi * q * n / length) * weight(n, length, causal) for n in (a, b)
        )
        found.append((parts(plain * across), parts(twiddles * along)))
    first, last = (np.stack(made) for made in zip(*found, strict=True))
    return first, first, parts(second)[None], last


def quarter_tables(outer: int, causal: bool) -> tuple[np.ndarray, ...]:
    """F, T and V as `fft_conv_quarters` takes them, of sequences in `outer` parts of 64 x 64.

    Element n = 64 a + b of z_q has the weight exp(-2 pi i q n / N) w(n) / sqrt(outer), a product of
    V[q, :, a] and of one of the column. That is in T[q]; of 8 parts without weights, where shared
    memory has no room for so many, X[q, :, b] follows V, and T is that of a part.
    """
    _, second, twiddles = matrices(QUARTER, QUARTER, False)
    length, part = outer * QUARTER**2, np.arange(outer)[:, None]

    def turned(n: np.ndarray) -> np.ndarray:
        return np.exp(-2j * np.pi * part * n / length) * weight(n, length, causal)

    index = np.arange(QUARTER)
    rows, cols = parts(turned(QUARTER * index) / np.sqrt(outer), 1), turned(index)
    if columns_apart(outer, causal):
        return parts(second)[None], parts(twiddles)[None], rows, parts(cols, 1)
    return parts(second)[None], parts(twiddles * cols[:, None], 1), rows


def columns_apart(outer: int, causal: bool) -> bool:
    """Whether weights of columns are not in the twiddles."""
    return outer > QUARTERS and not causal


def register_order() -> np.ndarray:
    """Elements of a 64 x 64 tile of 16 bits in `tc.register_order`: 8 of a thread in a run."""
    run, thread, inside = np.ogrid[0:4, 0:128, 0:8]
    element, lane = 8 * run + inside, thread % 32
    row = 16 * (thread // 32) + lane // 4 + 8 * (element // 2 % 2)
    return (QUARTER * row + 8 * (element // 4) + 2 * (lane % 4) + element % 2).ravel()


def grouped_tables(rows: int, cols: int, causal: bool) -> tuple[np.ndarray, ...]:
    """G, L, F and T as `fft_conv_32` takes them.

    G is E as a real matrix, [[re, -im], [im, re]] (causal: [[re, 0], [im, 0]]), with its rows in
    groups of 8 real and 8 imaginary parts; L its transpose; T twice, for two channels.
    """
    first, second, twiddles = matrices(rows, cols, causal)
    right = np.zeros((2, rows, rows)) if causal else parts(1j * first)
    whole = np.concatenate([parts(first), right], 2)  # part, k, (sequence, a)
    stacked = grouped(whole, rows)
    doubled = grouped(np.stack([parts(twiddles)] * 2, 1), rows)
    return stacked, np.ascontiguousarray(stacked.T), parts(second), doubled


def grouped(pair: Array, rows: int) -> Array:
    """Rows of two matrices in turn, 8 of each: [..., 2, rows, n] to [..., 2 rows, n]."""
    *outer, two, _, cols = pair.shape
    split = pair.reshape(*outer, two, rows // GROUP, GROUP, cols).swapaxes(-4, -3)
    return split.reshape(*outer, two * rows, cols)


def ungrouped(tiles: Array, rows: int) -> Array:
    """The two matrices whose rows `grouped` has in turn: [..., 2 rows, n] to [..., 2, rows, n]."""
    *outer, _, cols = tiles.shape
    split = tiles.reshape(*outer, rows // GROUP, 2, GROUP, cols).swapaxes(-4, -3)
    return split.reshape(*outer, 2, rows, cols)
