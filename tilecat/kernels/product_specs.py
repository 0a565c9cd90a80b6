"""Rows of `KERNELS`: products and attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import LayoutError
from .attention import attention
from .gemm import matmul
from .space import GEMM_SPACE
from .spec import Config, Extents, KernelSpec, Shape, normal

# ---- matmul: C[M, N] = A[M, K] @ B[K, N]


def _make_matmul(extents: Extents, dtype: str, generator: np.random.Generator) -> list[Any]:
    m, n, k = extents["M"], extents["N"], extents["K"]
    a, b = normal(generator, (m, k), dtype), normal(generator, (k, n), dtype)
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
    q = normal(generator, (batch, heads, queries, dim), dtype)
    k, v = (normal(generator, (batch, groups, keys, dim), dtype) for _ in range(2))
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


PRODUCTS: tuple[KernelSpec, ...] = (
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
