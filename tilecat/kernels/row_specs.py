"""What there is to know about convolutions, norms, rotary and cross-entropy: rows of KERNELS."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..fft_tables import parts, plain_tables
from .cross_entropy import cross_entropy
from .fft_conv import SIDE, fft_conv_64
from .norm import norm_forward
from .rotary import rotary
from .spec import Config, Extents, KernelSpec, Shape, normal

LENGTH = SIDE * SIDE  # of a sequence of `fft_conv_64`
LABELS = (("W", 1),)  # of s32


def _make_fft_conv(extents: Extents, dtype: str, generator: np.random.Generator) -> list[Any]:
    batch, channels = extents["B"], extents["C"]
    u = normal(generator, (batch, channels, SIDE, SIDE), dtype)
    k = generator.standard_normal((channels, LENGTH)) / SIDE
    spectrum = np.fft.fft(k).reshape(channels, SIDE, SIDE).swapaxes(1, 2)
    first, *others = plain_tables(SIDE, SIDE, False)
    tables = [first.astype(u.dtype), *(table.astype(np.float16) for table in others)]
    return [u, parts(spectrum, 1).astype(np.float16), *tables, np.zeros_like(u)]


def fft_conv_reference(u: Any, h: Any, *rest: Any) -> tuple[np.ndarray, ...]:
    """The circular convolution with the filter of a spectrum, in float64."""
    spectrum = np.asarray(h).astype(np.float64)
    laid = (spectrum[:, 0] + 1j * spectrum[:, 1]).swapaxes(1, 2).reshape(-1, LENGTH)
    x = np.asarray(u).astype(np.float64).reshape(*u.shape[:2], LENGTH)
    return (np.fft.ifft(np.fft.fft(x) * laid).real.reshape(u.shape),)


def _make_norm(extents: Extents, dtype: str, generator: np.random.Generator) -> list[Any]:
    x = normal(generator, (extents["M"], extents["D"]), dtype)
    return [x, np.zeros_like(x), 1e-5, 0, 1.0]


def norm_reference(x: Any, y: Any, eps: float, *rest: Any) -> tuple[np.ndarray, ...]:
    """Rows less their means over their deviations, in float64."""
    x = np.asarray(x).astype(np.float64)
    x = x - x.mean(1, keepdims=True)
    return (x / np.sqrt((x * x).mean(1, keepdims=True) + eps),)


def _make_rotary(extents: Extents, dtype: str, generator: np.random.Generator) -> list[Any]:
    batch, length, heads, dim = (extents[name] for name in "BNHD")
    q, k = (normal(generator, (batch, length, n, dim), dtype) for n in (heads, extents["Hk"]))
    angle = np.outer(np.arange(length), 1e4 ** (-np.arange(0, dim, 2) / dim))
    tables = [np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)]
    return [*tables, q, np.zeros_like(q), k, np.zeros_like(k), length, 0]


def rotary_reference(c: Any, s: Any, q: Any, qo: Any, k: Any, *rest: Any) -> tuple[Any, ...]:
    """Halves of rows as complex numbers, turned, in float64."""
    turn = (np.asarray(c, np.float64) + 1j * np.asarray(s, np.float64))[:, None]

    def turned(x: Any) -> np.ndarray:
        a, b = np.split(np.asarray(x).astype(np.float64), 2, -1)
        z = (a + 1j * b) * turn
        return np.concatenate([z.real, z.imag], -1)

    return turned(q), turned(k)


def _rotary_bytes(e: Extents, item: int) -> int:
    return e["N"] * (2 * item * e["B"] * (e["H"] + e["Hk"]) * e["D"] + 4 * e["D"])


def _make_cross_entropy(extents: Extents, dtype: str, generator: np.random.Generator) -> list[Any]:
    rows, width = extents["M"], extents["V"]
    x = normal(generator, (rows, width), dtype)
    labels = generator.integers(0, width, (rows, 1)).astype(np.int32)
    losses, ones = np.zeros((2, rows), np.float32), np.ones(1, np.float32)
    return [x, np.zeros_like(x), labels, *losses, ones, -100, 0.0, 0.0]


def cross_entropy_reference(x: Any, g: Any, target: Any, *rest: Any) -> tuple[np.ndarray, ...]:
    """Gradients of the sum of the losses, losses and log-sum-exps, in float64."""
    x, rows = np.asarray(x).astype(np.float64), np.arange(len(target))
    top = x.max(1)
    lse = top + np.log(np.exp(x - top[:, None]).sum(1))
    gradient, label = np.exp(x - lse[:, None]), np.asarray(target)[:, 0]
    gradient[rows, label] -= 1
    return gradient, lse - x[rows, label], lse


def _fft_conv_shape(batch: int, channels: int) -> Shape:
    return Shape(f"B{batch} C{channels} N4096", (("B", batch), ("C", channels)))


def _rotary_shape(length: int) -> Shape:
    items = (("B", 16), ("N", length), ("H", 16), ("Hk", 16), ("D", 128))
    return Shape(f"B16 H16 N{length}", items)


def _rows_shape(rows: int, **width: int) -> Shape:
    ((name, size),) = width.items()
    return Shape(f"{rows}x{size}", (("M", rows), (name, size)))


ROWS: tuple[KernelSpec, ...] = (
    KernelSpec(
        name="fft_conv",
        kernel=fft_conv_64,
        outputs=(6,),
        make=_make_fft_conv,
        reference=fft_conv_reference,
        flops=lambda e: -(-e["B"] // 2) * e["C"] * 32 * SIDE**3,  # 16 real products a pair
        num_bytes=lambda e, item: e["C"] * LENGTH * (2 * item * e["B"] + 4),
        shapes=(_fft_conv_shape(64, 768), _fft_conv_shape(16, 1024)),
        small=(("B", 3), ("C", 3)),
        configs=(Config("circular, 2 consumers", (("causal", False), ("consumers", 2))),),
    ),
    KernelSpec(
        name="layer_norm",
        kernel=norm_forward,
        outputs=(1,),
        make=_make_norm,
        reference=norm_reference,
        flops=lambda e: 7 * e["M"] * e["D"],
        num_bytes=lambda e, item: 2 * item * e["M"] * e["D"],
        shapes=(_rows_shape(16384, D=1024), _rows_shape(262144, D=1024)),
        small=(("M", 21), ("D", 1024)),
        configs=(Config("D1024", (("D", 1024), ("ahead", 0), ("hold", False), ("blocks", 4))),),
    ),
    KernelSpec(
        name="rotary",
        kernel=rotary,
        outputs=(3, 5),
        make=_make_rotary,
        reference=rotary_reference,
        flops=lambda e: 3 * e["B"] * e["N"] * (e["H"] + e["Hk"]) * e["D"],
        num_bytes=_rotary_bytes,
        shapes=(_rotary_shape(1024), _rotary_shape(16384)),
        small=(("B", 1), ("N", 50), ("H", 3), ("Hk", 1), ("D", 128)),
        configs=(Config("D128", (("R", 64), ("D", 128), ("heads", 2))),),
    ),
    KernelSpec(
        name="cross_entropy",
        kernel=cross_entropy,
        outputs=(1, 3, 4),
        make=_make_cross_entropy,
        reference=cross_entropy_reference,
        flops=lambda e: 10 * e["M"] * e["V"],
        num_bytes=lambda e, item: 2 * item * e["M"] * e["V"] + 12 * e["M"],
        shapes=(_rows_shape(8192, V=32000), _rows_shape(8192, V=128256)),
        small=(("M", 5), ("V", 4096)),
        configs=(
            Config("V4096", (("V", 4096), *LABELS, ("warps", 4), ("cluster", 1), ("blocks", 6),
                             ("stages", 2), ("keep", True))),
            Config("V32000", (("V", 32000), *LABELS, ("warps", 16), ("cluster", 1), ("blocks", 1),
                              ("chunks", 2), ("stages", 4), ("keep", True))),
            Config("V128256", (("V", 128256), *LABELS, ("warps", 16), ("cluster", 2), ("blocks", 1),
                               ("piece", 512), ("chunks", 4), ("stages", 6))),
        ),
    ),
)
