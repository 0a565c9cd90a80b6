"""Attention, forward: against the two fast backends of torch's SDPA, causal and not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ..attention_call import attention
from ..errors import TileError
from ..kernels import KERNELS, KernelSpec, Shape
from ..kernels.attention import attention as kernel
from ..kernels.spec import rounding
from ..pipeline.scheduler import Schedule, custom_order, sequence_first
from ..testing import poison
from .session import Session, Task

SPEC: KernelSpec = next(spec for spec in KERNELS if spec.name == "attention")
BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION"}


def attention_tasks(shapes: tuple[Shape, ...]) -> list[Task]:
    """Attention against SDPA with cuDNN and with FlashAttention-2: each shape, then causal."""
    return [
        Task("attention", shape.name + " causal" * causal, partial(_attention, shape, causal),
             _weight(shape) / (1 + causal))
        for causal in (False, True)
        for shape in shapes
    ]  # fmt: skip


def order_tasks() -> list[Task]:
    """All query tiles of a head one after another, or a tile of every head."""
    shape = SPEC.shape("D128 B16 N3072")
    return [Task("order", f"attention {shape.name}", partial(_orders, shape), _weight(shape))]


def batch_first(tiles: Any, heads: Any, batch: Any) -> Schedule:
    """The first query tile of every head, then the second: all keys and values are in use."""

    def place(t: Any) -> dict[str, Any]:
        tile = t // (heads * batch)
        plane = t - tile * heads * batch
        return {"tile": tile, "head": plane // batch, "batch": plane % batch}

    return custom_order(tiles * heads * batch, place)


def _weight(shape: Shape) -> float:
    return 0.2 + SPEC.flops(shape.extents) / 2e12


def operands(torch: Any, shape: Shape) -> tuple[Any, Any, Any]:
    """Normal random bf16 Q, K, V on the GPU."""
    batch, heads, groups, queries, keys, dim = (
        shape.extents[name] for name in ("B", "H", "Hkv", "Lq", "Lk", "D")
    )
    options = {"device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(batch, heads, queries, dim, **options)
    k, v = (torch.randn(batch, groups, keys, dim, **options) for _ in range(2))
    return q, k, v


def exact(torch: Any, q: Any, k: Any, v: Any, causal: bool = False, rows: int = 2048) -> Any:
    """softmax(Q K^T / sqrt(D)) V of one head in float64, `rows` queries at a time."""
    wide_k, wide_v = k.double(), v.double()
    keys, parts = torch.arange(k.shape[0], device=k.device), []
    for number, part in enumerate(q.split(rows)):
        scores = part.double() @ wide_k.t() * q.shape[-1] ** -0.5
        if causal:
            own = torch.arange(part.shape[0], device=k.device) + number * rows
            scores.masked_fill_(keys > own[:, None], float("-inf"))
        parts.append(torch.softmax(scores, dim=-1) @ wide_v)
    return torch.cat(parts)


def check(torch: Any, q: Any, k: Any, v: Any, out: Any, causal: bool = False) -> float:
    """Worst relative error of the first and the last head; a NaN anywhere is an error.

    Raises:
        TileError: over the rounding of bf16.
    """
    group = q.shape[1] // k.shape[1]
    worst = 0.0
    for entry, head in {(0, 0), (q.shape[0] - 1, q.shape[1] - 1)}:
        keys, values = (x[entry, head // group] for x in (k, v))
        expected = exact(torch, q[entry, head], keys, values, causal)
        difference = (out[entry, head].double() - expected).norm() / expected.norm()
        worst = max(worst, float(difference))
    if not worst <= rounding("bf16") or bool(torch.isnan(out).any()):
        raise TileError(f"bench: wrong result, got ||O - exact|| / ||exact|| = {worst:.3g}")
    return worst


def _attention(shape: Shape, causal: bool, session: Session) -> dict[str, Any]:
    torch = session.torch
    q, k, v = operands(torch, shape)
    error = check(torch, q, k, v, attention(q, k, v, causal=causal), causal)
    peers, missing = _peers(torch, q, k, v, causal)
    errors = {name: check(torch, q, k, v, peer(), causal) for name, peer in peers.items()}
    functions = {"tilecat": lambda: attention(q, k, v, causal=causal), **peers}
    found = {
        "shape": shape.name, "extents": shape.extents, "causal": causal, "error": error,
        "peer_errors": errors, **missing,
    }  # fmt: skip
    spec = replace(SPEC, flops=lambda extents: SPEC.flops(extents) // 2) if causal else SPEC
    return found | session.compare(functions, spec, shape)


def _orders(shape: Shape, session: Session) -> dict[str, Any]:
    torch = session.torch
    q, k, v = operands(torch, shape)
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], device=q.device, dtype=torch.float32)
    functions: dict[str, Callable[[], Any]] = {}
    worst = 0.0
    for name, order in (("batch first", batch_first), ("sequence first", sequence_first)):
        poison(out, lse)
        functions[name] = partial(
            kernel, q, k, v, out, lse, q.shape[-1] ** -0.5, consumers=2, order=order
        )
        functions[name]()
        worst = max(worst, check(torch, q, k, v, out))
    peers, missing = _peers(torch, q, k, v)
    found = {"shape": shape.name, "extents": shape.extents, "error": worst, **missing}
    return found | session.compare({**functions, **peers}, SPEC, shape, ours="sequence first")


def _peers(
    torch: Any, q: Any, k: Any, v: Any, causal: bool = False
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """SDPA by backend, and those that this build of torch does not run, with the reason."""
    sdpa, grouped = torch.nn.functional.scaled_dot_product_attention, q.shape[1] != k.shape[1]
    found: dict[str, Callable[[], Any]] = {}
    missing: dict[str, str] = {}

    def call(backend: Any) -> Any:
        with torch.nn.attention.sdpa_kernel(backend):
            return sdpa(q, k, v, enable_gqa=grouped, is_causal=causal)

    for name, member in BACKENDS.items():
        peer = partial(call, getattr(torch.nn.attention.SDPBackend, member))
        try:
            peer()
            found[name] = peer
        except RuntimeError as error:
            missing[f"no {name}"] = str(error).splitlines()[0]
    return found, missing
