"""What there is to know about a kernel besides its text: reference, work, shapes, configurations.

The command line, the benchmarks and the tests read it; a new kernel is a file and one row here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ..driver import KernelFunction
from ..dtypes import by_name
from ..errors import LayoutError
from .attention import attention
from .gemm import matmul
from .space import GEMM_SPACE, Space

Extents = Mapping[str, int]


@dataclass(frozen=True)
class Shape:
    """One problem size.

    Args:
        name: as tables show it, e.g. `4096^3`.
        items: extents by the kernel's names for them.
        group: the list it belongs to.
    """

    name: str
    items: tuple[tuple[str, int], ...]
    group: str = "peers"

    @property
    def extents(self) -> dict[str, int]:
        """Extents by name."""
        return dict(self.items)


@dataclass(frozen=True)
class Config:
    """One choice of compile-time parameters, with a name.

    Args:
        name: e.g. `128x256`.
        items: parameters; those that are extents too (`D`) say which problems it is for.
    """

    name: str
    items: tuple[tuple[str, Any], ...]

    @property
    def params(self) -> dict[str, Any]:
        """Parameters by name."""
        return dict(self.items)

    def fits(self, extents: Extents) -> bool:
        """Whether parameters that are extents agree with a problem's."""
        return all(extents.get(name, value) == value for name, value in self.items)


@dataclass(frozen=True)
class KernelSpec:
    """A kernel and the facts around it.

    Args:
        name: its name on the command line.
        kernel: the kernel.
        outputs: positions of the arguments it writes.
        make: (extents, dtype name, random generator) -> arguments, outputs still zero.
        reference: arguments -> expected outputs in float64 NumPy, in the order of `outputs`.
        flops: floating-point operations of a problem; a multiply-add counts two.
        num_bytes: (extents, bytes an element) -> fewest bytes through device memory: each input
            read once, each output written once.
        shapes: standard problems, of the comparison tables.
        small: extents of a run on the PTX machine that takes a fraction of a second.
        configs: named parameters; the first that fits a problem is its default.
        spaces: what a tuner may choose, by architecture.
    """

    name: str
    kernel: KernelFunction
    outputs: tuple[int, ...]
    make: Callable[[Extents, str, np.random.Generator], list[Any]]
    reference: Callable[..., tuple[np.ndarray, ...]]
    flops: Callable[[Extents], int]
    num_bytes: Callable[[Extents, int], int]
    shapes: tuple[Shape, ...]
    small: tuple[tuple[str, int], ...]
    configs: tuple[Config, ...]
    spaces: tuple[tuple[str, Space], ...] = ()

    def config(self, extents: Extents | None = None, name: str | None = None) -> Config:
        """The named configuration, or the first that fits the extents.

        Args:
            extents: of the problem; None for `small`.
            name: of the configuration, or None.

        Raises:
            LayoutError: none of that name, or none that fits.
        """
        wanted = dict(self.small) if extents is None else extents
        for config in self.configs:
            if config.name == name or name is None and config.fits(wanted):
                return config
        listing = "; ".join(config.name for config in self.configs)
        shown = ", ".join(f"{dim}={extent}" for dim, extent in wanted.items())
        raise LayoutError(
            f"{self.name}: no configuration "
            + (f"fits the extents {shown}" if name is None else f"is called {name!r}"),
            hint=f"there are {listing}",
        )

    def shape(self, name: str) -> Shape:
        """The standard problem of that name.

        Raises:
            LayoutError: there is none.
        """
        for shape in self.shapes:
            if shape.name == name:
                return shape
        listing = ", ".join(shape.name for shape in self.shapes)
        raise LayoutError(f"{self.name}: no shape {name!r}", hint=f"there are {listing}")

    def example(
        self, extents: Extents | None = None, *, dtype: str = "bf16", seed: int = 0
    ) -> list:
        """Arguments of a run on the PTX machine: normal random inputs, outputs all NaN.

        Args:
            extents: of the problem, all that the kernel names; what is missing is as in `small`.
            dtype: `bf16` or `f16`.
            seed: of the random numbers.

        Raises:
            LayoutError: an extent that the kernel does not have.
        """
        chosen = {**dict(self.small), **(extents or {})}
        unknown = set(chosen) - {name for name, _ in self.small}
        if unknown:
            known = ", ".join(name for name, _ in self.small)
            raise LayoutError(f"{self.name}: no extent {', '.join(sorted(unknown))}; has {known}")
        args = self.make(chosen, dtype, np.random.default_rng(seed))
        for index in self.outputs:
            args[index].fill(np.nan)
        return args

    def error(self, args: list[Any]) -> float:
        """Largest ||out - ref|| / ||ref|| of the outputs after a run; NaN never passes a limit.

        Compare with `rounding(dtype)`: one rounding of the result keeps each element within it.
        """
        worst = 0.0
        for index, expected in zip(self.outputs, self.reference(*args), strict=True):
            got = args[index].astype(np.float64)
            norm = float(np.linalg.norm(expected)) or 1.0
            worst = max(worst, float(np.linalg.norm(got - expected)) / norm, key=_nan_last)
        return worst


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


def rounding(dtype: str) -> float:
    """Half a unit in the last place, relative: 2^-8 for bf16, 2^-11 for f16."""
    return float(ml_dtypes.finfo(by_name(dtype).numpy).eps) / 2


def _normal(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return generator.standard_normal(shape).astype(by_name(dtype).numpy)


# ---- matmul: C[M, N] = A[M, K] @ B[K, N]


def _make_matmul(extents: Extents, dtype: str, generator: np.random.Generator) -> list[Any]:
    m, n, k = extents["M"], extents["N"], extents["K"]
    a, b = _normal(generator, (m, k), dtype), _normal(generator, (k, n), dtype)
    return [a, b, np.zeros((m, n), a.dtype)]


def matmul_reference(a: Any, b: Any, *_: Any) -> tuple[np.ndarray, ...]:
    """A @ B in float64."""
    return (np.asarray(a).astype(np.float64) @ np.asarray(b).astype(np.float64),)


def _gemm_shape(m: int, n: int, k: int, group: str = "peers") -> Shape:
    name = f"{m}^3" if m == n == k else f"{m}x{n}x{k}"
    return Shape(name, (("M", m), ("N", n), ("K", k)), group)


_CUBES = (1024, 2048, 3072, 4096, 4352, 6144, 8192, 12288, 16384)
_THIN = ((4096, 4096, 64), (4096, 4096, 128), (4096, 4096, 256), (8192, 8192, 512))
GEMM_SHAPES = (
    *(_gemm_shape(size, size, size) for size in _CUBES),
    *(_gemm_shape(*size) for size in _THIN),
    _gemm_shape(8192, 1024, 8192),
    _gemm_shape(8448, 8448, 4096, "more"),
    _gemm_shape(1000, 1016, 520, "more"),
    *(_gemm_shape(rows, 8192, 8192, "more") for rows in (1, 16, 64, 128)),
)


def _gemm_config(tile_m: int, tile_n: int, stages: int, name: str = "") -> Config:
    items = (("tile_m", tile_m), ("tile_n", tile_n), ("stages", stages))
    return Config(name or f"{tile_m}x{tile_n}", items)


GEMM_CONFIGS = (
    _gemm_config(128, 256, 4),
    _gemm_config(128, 192, 4),
    _gemm_config(128, 128, 5),
    _gemm_config(64, 256, 5),
    _gemm_config(64, 128, 8),
    _gemm_config(64, 64, 8),
    *(_gemm_config(128, 256, depth, f"128x256, depth {depth}") for depth in (1, 2, 3)),
    Config(
        "128x256, cluster of 2",
        (("tile_m", 128), ("tile_n", 256), ("stages", 4), ("group", 8), ("cluster", 2)),
    ),
)


# ---- attention: O[B, H, Lq, D] = softmax(scale Q K^T) V, LSE[B, H, Lq]


def _make_attention(extents: Extents, dtype: str, generator: np.random.Generator) -> list[Any]:
    batch, heads, groups, queries, keys, dim = (
        extents[name] for name in ("B", "H", "Hkv", "Lq", "Lk", "D")
    )
    if groups < 1 or heads % groups or keys < 1:
        raise LayoutError(
            f"attention: the kernel needs Hkv that divides H, and keys, got H={heads}, "
            f"Hkv={groups}, Lk={keys}",
        )
    q = _normal(generator, (batch, heads, queries, dim), dtype)
    k, v = (_normal(generator, (batch, groups, keys, dim), dtype) for _ in range(2))
    return [q, k, v, np.zeros_like(q), np.zeros((batch, heads, queries), np.float32), dim**-0.5]


def attention_reference(
    q: Any, k: Any, v: Any, out: Any = None, lse: Any = None, scale: float | None = None
) -> tuple[np.ndarray, ...]:
    """softmax(scale Q K^T) V and the log-sum-exp of its rows, in float64."""
    q64, k64, v64 = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    group = q64.shape[1] // k64.shape[1]
    k64, v64 = np.repeat(k64, group, axis=1), np.repeat(v64, group, axis=1)
    scores = (q64.shape[3] ** -0.5 if scale is None else scale) * (q64 @ k64.swapaxes(2, 3))
    largest = scores.max(axis=3, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=3, keepdims=True)
    return (weights / total) @ v64, (largest + np.log(total))[..., 0]


def _attention_bytes(extents: Extents, item_bytes: int) -> int:
    rows_q = extents["B"] * extents["H"] * extents["Lq"]
    rows_kv = extents["B"] * extents["Hkv"] * extents["Lk"]
    return 2 * (rows_q + rows_kv) * extents["D"] * item_bytes + 4 * rows_q


def _attention_shape(dim: int, length: int, batch: int) -> Shape:
    items = (("B", batch), ("H", 16), ("Hkv", 16), ("Lq", length), ("Lk", length), ("D", dim))
    return Shape(f"D{dim} B{batch} N{length}", items)


_LENGTHS = ((768, 16), (1536, 16), (3072, 16), (6144, 4), (12288, 4))
ATTENTION_SHAPES = tuple(
    _attention_shape(dim, length, batch) for dim in (64, 128) for length, batch in _LENGTHS
)


def _attention_config(dim: int, consumers: int, more: str = "", stages: int = 2) -> Config:
    items = (("D", dim), ("consumers", consumers), ("stages", stages))
    return Config(f"D{dim}{more}", (*items, ("pingpong", consumers == 3)))


ATTENTION_CONFIGS = (
    _attention_config(128, 2),
    _attention_config(64, 3),
    _attention_config(32, 3),
    *(_attention_config(dim, 1, ", 1 consumer") for dim in (32, 64, 128)),
    *(_attention_config(dim, 2, ", 2 consumers") for dim in (32, 64)),
    _attention_config(128, 2, ", depth 1", stages=1),
)


KERNELS: tuple[KernelSpec, ...] = (
    KernelSpec(
        name="matmul",
        kernel=matmul,
        outputs=(2,),
        make=_make_matmul,
        reference=matmul_reference,
        flops=lambda e: 2 * e["M"] * e["N"] * e["K"],
        num_bytes=lambda e, item: item * (e["M"] * e["K"] + e["K"] * e["N"] + e["M"] * e["N"]),
        shapes=GEMM_SHAPES,
        small=(("M", 512), ("N", 512), ("K", 512)),
        configs=GEMM_CONFIGS,
        spaces=(("sm_90a", GEMM_SPACE),),
    ),
    KernelSpec(
        name="attention",
        kernel=attention,
        outputs=(3, 4),
        make=_make_attention,
        reference=attention_reference,
        flops=lambda e: 4 * e["B"] * e["H"] * e["Lq"] * e["Lk"] * e["D"],
        num_bytes=_attention_bytes,
        shapes=ATTENTION_SHAPES,
        small=(("B", 1), ("H", 4), ("Hkv", 4), ("Lq", 512), ("Lk", 512), ("D", 64)),
        configs=ATTENTION_CONFIGS,
    ),
)
