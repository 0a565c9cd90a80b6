"""`tilecat::hedgehog`: Hedgehog as an operator of torch.

Its gradients are those of the same computed otherwise: what blocks before the window give by the
kernels of linear attention, which have gradients, the window itself by torch's products in f32.
"""

from __future__ import annotations

import math
from typing import Any

from ..hedgehog_call import check_window, states_of
from ..hedgehog_call import hedgehog as call
from ..kernels.chunk_tasks import CHUNK
from ..kernels.hedgehog import FEATURES, MAP, NORM_EPS
from .library import define, torch
from .recurrences import chunk_linear_attn


def hedgehog(
    q: Any, k: Any, v: Any, qmap: Any, kmap: Any, alpha: Any, beta: Any,
    *, window: int = CHUNK, initial_state: Any = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """`tilecat.hedgehog` with gradients of all floats.

    The forward is one kernel. Gradients compute it again: see `_by_blocks`.

    Args:
        q, k, v, qmap, kmap, alpha, beta, window, initial_state: see there.

    Returns:
        (o, kv_state, k_state).

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.hedgehog`.
    """
    check_window(window)
    found: tuple[Any, Any, Any] = _hedgehog(
        q, k, v, qmap, kmap, alpha, beta, *states_of(initial_state)
    )
    return found


def _kernel(*args: Any) -> tuple[Any, Any, Any]:
    *tensors, kv, ks = args
    return call(*tensors, initial_state=None if kv is None and ks is None else (kv, ks))


def _fake(q: Any, k: Any, v: Any, *_: Any) -> tuple[Any, Any, Any]:
    sums = (*q.shape[:2], FEATURES)
    return (
        v.new_empty(q.shape), q.new_empty((*sums, q.shape[3]), dtype=torch.float32),
        q.new_empty(sums, dtype=torch.float32),
    )  # fmt: skip


def _features(x: Any, weights: Any) -> Any:
    """`[softmax(x W), softmax(-x W)]` of x B x H x blocks x 64 x D, f32."""
    z = x @ weights.float()[:, None]
    return torch.cat([z.softmax(-1), (-z).softmax(-1)], -1)


def _by_blocks(
    q: Any, k: Any, v: Any, qmap: Any, kmap: Any, alpha: Any, beta: Any, kv: Any, ks: Any
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The same by linear attention and torch, which have gradients.

    Linear attention has keys of a block and queries of the block after the next in turn, with zeros
    for the other: of 2 T + 128 tokens, those that come before one another are those that do here.
    """
    pad, dtype, (heads, length, dim) = torch.nn.functional.pad, q.dtype, q.shape[1:]
    group, blocks = heads // k.shape[1], max(-(-length // CHUNK), 1)
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    q, k, v = (
        pad(x.float(), (0, 0, 0, blocks * CHUNK - length)).unflatten(2, (blocks, CHUNK))
        for x in (q, k, v)
    )
    alpha, beta = (x[:, None, None, None] for x in (alpha, beta))
    keys, values = (torch.cat([pad(x[:, :, :-1], (0, 0, 0, 0, 1, 0)), x], 3) for x in (k, v))
    token, key = torch.arange(CHUNK, device=q.device), torch.arange(2 * CHUNK, device=q.device)
    hidden = (key > token[:, None] + CHUNK).repeat(blocks, 1, 1)
    hidden[0, :, :CHUNK] = True
    s = (q @ keys.mT * dim**-0.5).masked_fill(hidden, -math.inf)
    w = beta * (s - s.amax(-1, keepdim=True)).exp()

    queries, others = _features(q, qmap), _features(k, kmap)
    gone, old = (pad(x[:, :, :-1], (0, 0, 0, 0, 2, 0)) for x in (others, v))
    pairs = (torch.zeros_like(gone), pad(queries, (0, 0, 0, 0, 0, 1))), *(
        (x, torch.zeros_like(x)) for x in (gone, old))  # fmt: skip
    turns = [torch.stack(x, 3).flatten(2, 4).transpose(1, 2).to(dtype) for x in pairs]
    far, kv = chunk_linear_attn(turns[0], turns[1], turns[2], 1.0, kv, True, normalize=False)
    far = far.transpose(1, 2).unflatten(2, (blocks + 1, 2, CHUNK))[:, :, :-1, 1]
    sums = gone.sum(3).cumsum(2) + (0.0 if ks is None else ks[:, :, None])
    total = (queries * sums[:, :, :-1, None]).sum(-1, keepdim=True)
    o = (w @ values + alpha * far) / (w.sum(-1, keepdim=True) + alpha * total + NORM_EPS)
    return o.flatten(2, 3)[:, :, :length].to(dtype), kv, sums[:, :, -1]


class _Hedgehog(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, run: Any, *args: Any) -> tuple[Any, Any, Any]:
        ctx.save_for_backward(*args)
        ctx.set_materialize_grads(False)
        return run(*args)  # type: ignore[no-any-return]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        wants = ctx.needs_input_grad[1:]
        leaves: list[Any] = [
            x if x is None else x.detach().requires_grad_(want)
            for x, want in zip(ctx.saved_tensors, wants, strict=True)
        ]
        with torch.enable_grad():
            made = _by_blocks(*leaves)
        pairs = [(y, dy) for y, dy in zip(made, grads, strict=True)
                 if dy is not None and y.requires_grad]  # fmt: skip
        if not pairs:
            return (None,) * (1 + len(wants))
        asked = [x for x, want in zip(leaves, wants, strict=True) if want]
        found = iter(torch.autograd.grad(
            [y for y, _ in pairs], asked, [dy for _, dy in pairs], allow_unused=True
        ))  # fmt: skip
        return (None, *(next(found) if want else None for want in wants))


def _flops(q: Any, *_: Any, **__: Any) -> int:
    """Scores of two blocks and their sums, both maps, and the state's two products."""
    return int(math.prod(q[:3]) * q[3] * (8 * CHUNK + 4 * MAP + 4 * FEATURES))


_hedgehog = define(
    "hedgehog(Tensor q, Tensor k, Tensor v, Tensor qmap, Tensor kmap, Tensor alpha, Tensor beta, "
    "Tensor? kv_state, Tensor? k_state) -> (Tensor, Tensor, Tensor)",
    _kernel, _fake, lambda run, *args: _Hedgehog.apply(run, *args), flops=_flops, cast=5,
)  # fmt: skip
