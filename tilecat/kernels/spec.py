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
from .based import based
from .delta_rule import delta_rule
from .gemm import matmul
from .hedgehog import hedgehog
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


# ---- linear recurrences: the gated delta rule and Based, heads first


def _make_delta(extents: Extents, dtype: str, generator: np.random.Generator) -> list[Any]:
    batch, groups, heads, length = (extents[name] for name in ("B", "Hk", "H", "T"))
    if groups < 1 or heads % groups:
        raise LayoutError(f"delta_rule: Hk divides H, got H={heads}, Hk={groups}")
    q, k = (_normal(generator, (batch, groups, length, extents["K"]), dtype) for _ in range(2))
    v = _normal(generator, (batch, heads, length, extents["V"]), dtype)
    beta, gates = generator.random((2, batch, heads, length)).astype(np.float32)
    return [q, k, v, beta, np.zeros_like(v), extents["K"] ** -0.5, -0.1 * gates]


def delta_reference(
    q: Any, k: Any, v: Any, beta: Any, out: Any, scale: float, g: Any
) -> tuple[np.ndarray, ...]:
    """The recurrence of q and k over their norms, token by token, in float64."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    q, k = (np.repeat(x, v.shape[1] // x.shape[1], axis=1) for x in (q, k))
    state, made = np.zeros((*v.shape[:2], k.shape[3], v.shape[3])), np.zeros(v.shape)
    for t in range(v.shape[2]):
        state = state * np.exp(np.asarray(g, np.float64)[:, :, t, None, None])
        new = v[:, :, t] - (k[:, :, t, None] @ state)[:, :, 0]
        state = state + k[:, :, t, :, None] * (beta[:, :, t, None] * new)[:, :, None]
        made[:, :, t] = scale * (q[:, :, t, None] @ state)[:, :, 0]
    return (made,)


def _delta_bytes(e: Extents, item: int) -> int:
    rows = 2 * e["Hk"] * e["K"] + 2 * e["H"] * e["V"]
    return e["B"] * e["T"] * (item * rows + 8 * e["H"])


def _make_based(extents: Extents, dtype: str, generator: np.random.Generator) -> list[Any]:
    shape = (extents["B"], extents["H"], extents["T"])
    q, k, v = (_normal(generator, (*shape, d), dtype) for d in (16, 16, extents["V"]))
    return [q, k, v, np.zeros_like(v), 0.25, 0.5]


def based_reference(
    q: Any, k: Any, v: Any, out: Any = None, scale: float = 0.25, root: float = 0.5
) -> tuple[np.ndarray, ...]:
    """Sums of `(1 + s + s^2 / 2) v` over tokens that are seen, in float64."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    s = scale * (q @ k.swapaxes(2, 3))
    return (np.tril(1 + s + s * s / 2) @ v,)


def _make_hedgehog(extents: Extents, dtype: str, generator: np.random.Generator) -> list[Any]:
    batch, heads, length, dim = (extents[name] for name in "BHTD")
    q, k, v = (_normal(generator, (batch, heads, length, dim), dtype) for _ in range(3))
    qmap, kmap = (_normal(generator, (heads, dim, 64), dtype) for _ in range(2))
    ones = np.ones(heads, np.float32)
    sums = [np.zeros((batch, heads, 128, *d), np.float32) for d in ((dim,), ())]
    return [q, k, v, qmap, kmap, ones, ones, np.zeros_like(v), *sums, dim**-0.5]


def hedgehog_reference(
    q: Any, k: Any, v: Any, qmap: Any, kmap: Any, alpha: Any, beta: Any, *rest: Any
) -> tuple[np.ndarray, ...]:
    """Softmax in a window of two blocks, features before it, in float64."""
    q, k, v, qmap, kmap = (np.asarray(x).astype(np.float64) for x in (q, k, v, qmap, kmap))

    def features(x: Any, weights: Any) -> Any:
        e = [np.exp(sign * x @ weights) for sign in (1, -1)]
        return np.concatenate([x / x.sum(-1, keepdims=True) for x in e], -1)

    block, tokens = np.arange(q.shape[2]) // 64, np.arange(q.shape[2])
    behind = block[:, None] - block
    near = (behind < 2) & (tokens[:, None] >= tokens)
    s = np.where(near, q @ k.swapaxes(2, 3) * q.shape[3] ** -0.5, -np.inf)
    w = np.asarray(beta)[:, None, None] * np.exp(s - s.max(-1, keepdims=True))
    linear = features(q, qmap) @ features(k, kmap).swapaxes(2, 3)
    w = np.where(behind > 1, np.asarray(alpha)[:, None, None] * linear, w)
    return (w @ v / (w.sum(-1, keepdims=True) + 1e-6),)


def _delta_shape(batch: int, length: int, groups: int, heads: int) -> Shape:
    items = (("B", batch), ("Hk", groups), ("H", heads), ("T", length), ("K", 128), ("V", 128))
    return Shape(f"{batch}x{length} {groups}/{heads}", items)


def _hedgehog_shape(length: int) -> Shape:
    return Shape(f"B16 H16 N{length}", (("B", 16), ("H", 16), ("T", length), ("D", 128)))


def _based_shape(length: int) -> Shape:
    return Shape(f"B16 H16 N{length}", (("B", 16), ("H", 16), ("T", length), ("V", 64)))


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
    KernelSpec(
        name="delta_rule",
        kernel=delta_rule,
        outputs=(4,),
        make=_make_delta,
        reference=delta_reference,
        flops=lambda e: e["B"] * e["H"] * e["T"] * (256 * (e["K"] + e["V"]) + 6 * e["K"] * e["V"]),
        num_bytes=_delta_bytes,
        shapes=(
            _delta_shape(1, 8192, 16, 64), _delta_shape(1, 8192, 16, 32),
            _delta_shape(4, 8192, 16, 64), _delta_shape(1, 2048, 16, 64),
        ),
        small=(("B", 1), ("Hk", 1), ("H", 2), ("T", 130), ("K", 64), ("V", 64)),
        configs=(Config("gated, norms", (("g", True), ("norm", True))),),
    ),
    KernelSpec(
        name="based",
        kernel=based,
        outputs=(3,),
        make=_make_based,
        reference=based_reference,
        flops=lambda e: e["B"] * e["H"] * e["T"] * (128 * (16 + e["V"]) + 640 * e["V"]),
        num_bytes=lambda e, item: item * e["B"] * e["H"] * e["T"] * (32 + 2 * e["V"]),
        shapes=tuple(_based_shape(length) for length in (1024, 4096, 16384)),
        small=(("B", 1), ("H", 2), ("T", 130), ("V", 64)),
        configs=(Config("4 stages", (("stages", 4),)),),
    ),
    KernelSpec(
        name="hedgehog",
        kernel=hedgehog,
        outputs=(7,),
        make=_make_hedgehog,
        reference=hedgehog_reference,
        flops=lambda e: e["B"] * e["H"] * e["T"] * 1280 * e["D"],
        num_bytes=lambda e, item: item * e["B"] * e["H"] * e["T"] * 4 * e["D"],
        shapes=tuple(_hedgehog_shape(length) for length in (1024, 4096, 16384)),
        small=(("B", 1), ("H", 2), ("T", 200), ("D", 128)),
        configs=(Config("2 stages", (("stages", 2),)),),
    ),
)
