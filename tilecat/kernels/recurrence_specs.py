"""Rows of `KERNELS`: linear recurrences, heads before tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import LayoutError
from .based import DIM, FEATURES, based
from .chunk_tasks import flops_of
from .delta_rule import delta_rule
from .hedgehog import hedgehog
from .linear_attention import linear_attention
from .spec import Config, Extents, KernelSpec, Shape, normal
from .ssd import ssd


def _divides(name: str, e: Extents, groups: str) -> None:
    if e[groups] < 1 or e["H"] % e[groups]:
        raise LayoutError(f"{name}: {groups} divides H, got H={e['H']}, {groups}={e[groups]}")


def _shape(name: str, **extents: int) -> Shape:
    return Shape(name, tuple(extents.items()))


# ---- gated linear attention and Mamba-2: one recurrence


def _make_linear(e: Extents, dtype: str, generator: np.random.Generator) -> list[Any]:
    shape = (e["B"], e["H"], e["T"])
    q, k, v = (normal(generator, (*shape, e["dim"]), dtype) for _ in range(3))
    gates = -0.1 * generator.random(shape).astype(np.float32)
    return [q, k, v, np.zeros_like(v), e["dim"] ** -0.5, gates]


def linear_reference(
    q: Any, k: Any, v: Any, out: Any, scale: float, g: Any, into: Any = None
) -> tuple[np.ndarray, ...]:
    """Of all pairs of tokens `scale exp(sum of g between) (q_i k_j) into_j v_j`, in float64."""
    q, k, v, g = (np.asarray(x).astype(np.float64) for x in (q, k, v, g))
    sums = np.cumsum(g, -1)
    decays = np.exp(np.minimum(sums[..., :, None] - sums[..., None, :], 0))
    scores = np.tril(scale * (q @ k.swapaxes(2, 3)) * decays)
    return ((scores if into is None else scores * into[..., None, :]) @ v,)


def _make_ssd(e: Extents, dtype: str, generator: np.random.Generator) -> list[Any]:
    _divides("ssd", e, "G")
    x = normal(generator, (e["B"], e["H"], e["T"], e["P"]), dtype)
    b, c = (normal(generator, (e["B"], e["G"], e["T"], e["dim"]), dtype) for _ in range(2))
    dt = normal(generator, x.shape[:3], "f32") - 2
    rates, skip, bias = normal(generator, (3, e["H"]), "f32")
    return [x, dt, -np.exp(rates), b, c, np.zeros_like(x), 0.0, float("inf"), skip, bias]


def ssd_reference(
    x: Any, dt: Any, A: Any, b: Any, c: Any, out: Any, low: float, high: float, skip: Any, bias: Any
) -> tuple[np.ndarray, ...]:
    """The same with steps softplus(dt + bias), and D x, in float64."""
    steps = np.logaddexp(0, np.asarray(dt, np.float64) + np.asarray(bias)[:, None])
    b, c = (np.repeat(y, x.shape[1] // y.shape[1], axis=1) for y in (b, c))
    (y,) = linear_reference(c, b, x, None, 1.0, steps * np.asarray(A)[:, None], steps)
    return (y + np.asarray(skip, np.float64)[:, None, None] * np.asarray(x).astype(np.float64),)


def _ssd_bytes(e: Extents, item: int) -> int:
    rows = 2 * e["H"] * e["P"] + 2 * e["G"] * e["dim"]
    return e["B"] * e["T"] * (item * rows + 4 * e["H"])


# ---- the gated delta rule, Based, Hedgehog


def _make_delta(extents: Extents, dtype: str, generator: np.random.Generator) -> list[Any]:
    _divides("delta_rule", extents, "Hk")
    batch, groups, heads, length = (extents[name] for name in ("B", "Hk", "H", "T"))
    q, k = (normal(generator, (batch, groups, length, extents["K"]), dtype) for _ in range(2))
    v = normal(generator, (batch, heads, length, extents["V"]), dtype)
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
    q, k, v = (normal(generator, (*shape, d), dtype) for d in (16, 16, extents["V"]))
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
    q, k, v = (normal(generator, (batch, heads, length, dim), dtype) for _ in range(3))
    qmap, kmap = (normal(generator, (heads, dim, 64), dtype) for _ in range(2))
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


_BUDGETS = {64: (("heads", 2), ("registers", (96, 192))),
            128: (("slices", 2), ("registers", (96, 192)))}  # fmt: skip

RECURRENCES: tuple[KernelSpec, ...] = (
    KernelSpec(
        name="linear_attention",
        kernel=linear_attention,
        outputs=(3,),
        make=_make_linear,
        reference=linear_reference,
        flops=lambda e: flops_of(e["B"] * e["H"] * e["T"], e["dim"], e["dim"]),
        num_bytes=lambda e, item: e["B"] * e["H"] * e["T"] * (4 * item * e["dim"] + 4),
        shapes=tuple(
            _shape(f"D{d} B16 H16 N{t}", B=16, H=16, T=t, dim=d)
            for d in (64, 128) for t in (1024, 4096, 8192)
        ),
        small=(("B", 1), ("H", 2), ("T", 130), ("dim", 64)),
        configs=tuple(
            Config(f"gated, D{d}", (("g", True), ("dim", d), *budget))
            for d, budget in _BUDGETS.items()
        ),
    ),
    KernelSpec(
        name="ssd",
        kernel=ssd,
        outputs=(5,),
        make=_make_ssd,
        reference=ssd_reference,
        flops=lambda e: e["B"] * e["T"] * (
            e["H"] * e["P"] * (128 + 4 * e["dim"]) + 128 * e["G"] * e["dim"]
        ),
        num_bytes=_ssd_bytes,
        shapes=(
            *(_shape(f"B16 H16 N{t}", B=16, H=16, G=1, T=t, P=64, dim=64)
              for t in (1024, 4096, 16384)),
            *(_shape(f"B{b} H{h} N{t} state 128", B=b, H=h, G=g, T=t, P=64, dim=128)
              for b, h, g, t in ((8, 80, 1, 2048), (1, 128, 1, 8192), (1, 128, 8, 32768))),
        ),
        small=(("B", 1), ("H", 2), ("G", 1), ("T", 130), ("P", 64), ("dim", 64)),
        configs=tuple(
            Config(f"softplus, state {n}", (
                ("softplus", True), ("names", ("D", "bias")), ("dim", n), ("turns", 2), *more,
            ))
            for n, more in ((64, (("heads", 2), ("stages", 4), ("registers", (88, 136)))),
                            (128, (("stages", 4), ("registers", (112, 200)))))
        ),
    ),
    KernelSpec(
        name="delta_rule",
        kernel=delta_rule,
        outputs=(4,),
        make=_make_delta,
        reference=delta_reference,
        flops=lambda e: e["B"] * e["H"] * e["T"] * (256 * (e["K"] + e["V"]) + 6 * e["K"] * e["V"]),
        num_bytes=_delta_bytes,
        shapes=tuple(
            _shape(f"{b}x{t} 16/{h}", B=b, Hk=16, H=h, T=t, K=128, V=128)
            for b, t, h in ((1, 8192, 64), (1, 8192, 32), (4, 8192, 64), (1, 2048, 64))
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
        flops=lambda e: flops_of(e["B"] * e["H"] * e["T"], DIM, e["V"], FEATURES),
        num_bytes=lambda e, item: item * e["B"] * e["H"] * e["T"] * (32 + 2 * e["V"]),
        shapes=tuple(
            _shape(f"B16 H16 N{t}", B=16, H=16, T=t, V=64) for t in (1024, 4096, 16384)
        ),
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
        shapes=tuple(
            _shape(f"B16 H16 N{t}", B=16, H=16, T=t, D=128) for t in (1024, 4096, 16384)
        ),
        small=(("B", 1), ("H", 2), ("T", 200), ("D", 128)),
        configs=(Config("2 stages", (("stages", 2),)),),
    ),
)
