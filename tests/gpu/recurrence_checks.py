"""What GPU tests of recurrences share: random operands, exact results, how far off one is."""

from __future__ import annotations

from typing import Any

import torch

BF16 = torch.bfloat16


def normal(*shape: int, dtype: Any = BF16) -> Any:
    """Normal random numbers."""
    return torch.randn(*shape, device="cuda").to(dtype)


def close(got: Any, exact: Any, limit: float, size: Any = None, worst: int = 16) -> None:
    """The error relative to the exact tensor (or to `size`), norm by norm; NaN fails.

    A row, along the last axis, may be `worst` times as far off, relative to a row of the mean
    size, or to itself where it is larger (the first tokens' where outputs are means).
    """
    assert got.shape == exact.shape, (tuple(got.shape), tuple(exact.shape))
    if not exact.numel():
        return
    squares, exact = (got.double() - exact) ** 2, exact.double()
    scale = (exact if size is None else size).double().norm() / exact.numel() ** 0.5 or 1.0
    error = squares.mean().sqrt() / scale
    assert error <= limit, f"error {float(error):.2g}, limit {limit:.2g}"
    rows = squares.mean(-1).sqrt() / (exact**2).mean(-1).sqrt().clamp(min=float(scale))
    found = float(rows.max())
    assert found <= worst * limit, f"worst row {found:.2g}, limit {worst * limit:.2g}"


CHUNK = 512  # tokens of the exact recurrence at a time
FORGETS = -1e4  # in place of -inf, whose differences are no numbers: exp is 0 too


def exact_gla(q: Any, k: Any, v: Any, g: Any, state: Any, scale: float) -> tuple[Any, Any]:
    """Output and last state of gated linear attention, B x T x H x D, float64; differentiable.

    Of all pairs of a chunk, chunk by chunk: the recurrence itself, but for rounding of float64.
    """
    rows = []
    for at in range(0, q.shape[1], CHUNK):
        parts = (x[:, at : at + CHUNK].transpose(1, 2) for x in (q, k, v, g))
        query, key, value, gates = parts
        sums = gates.clamp(min=FORGETS).cumsum(-1)
        later = torch.ones(2 * query.shape[2:3], device=q.device, dtype=torch.bool).triu(1)
        between = (sums[..., :, None] - sums[..., None, :]).masked_fill(later, -torch.inf)
        before = sums.exp()[..., None] * (query @ state)
        rows.append((((query @ key.mT) * between.exp()) @ value + before).transpose(1, 2))
        last = (key * (sums[..., -1:] - sums).exp()[..., None]).mT @ value
        state = last + sums[..., -1].exp()[..., None, None] * state
    return (scale * torch.cat(rows, 1) if rows else scale * v), state


def exact_mamba(
    x: Any, dt: Any, a: Any, b: Any, c: Any, skip: Any = None, z: Any = None, bias: Any = None,
    state: Any = None, seq_idx: Any = None, softplus: bool = True,
) -> tuple[Any, Any]:  # fmt: skip
    """Output and last state (heads x P x N) of Mamba-2, in float64; differentiable."""
    steps = dt if bias is None else dt + bias
    steps = torch.nn.functional.softplus(steps) if softplus else steps.clamp(min=0)
    gates = steps * a
    if seq_idx is not None:
        fresh = torch.nn.functional.pad(seq_idx[:, 1:] != seq_idx[:, :-1], (1, 0))
        gates = gates.masked_fill(fresh[..., None], FORGETS)
    b, c = (y.repeat_interleave(x.shape[2] // y.shape[2], 2) for y in (b, c))
    if state is None:
        state = x.new_zeros(x.shape[0], x.shape[2], x.shape[3], b.shape[3])
    y, last = exact_gla(c, b, x * steps[..., None], gates, state.mT, 1.0)
    if skip is not None:
        y = y + (skip if skip.ndim == 2 else skip[:, None]) * x
    return (y if z is None else y * torch.nn.functional.silu(z)), last.mT


def exact_based(q: Any, k: Any, v: Any, norm: bool) -> Any:
    """Output of Based, heads before tokens, float64, a block of rows at a time; differentiable."""
    rows = []
    for at in range(0, q.shape[2], 2048):
        s = q[:, :, at : at + 2048] @ k[:, :, : at + 2048].mT / 4
        w = (1 + s + s * s / 2).tril(at)
        out = w @ v[:, :, : at + 2048]
        rows.append(out / (w.sum(-1, keepdim=True) + 1e-6) if norm else out)
    return torch.cat(rows, 2)


def exact_delta(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any = None) -> tuple[Any, Any]:
    """Output and last state of the gated delta rule, token by token; q and k over their norms."""
    q, k, v, g, beta = (x.transpose(1, 2) for x in (q, k, v, g, beta))
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q, k))
    s = v.new_zeros(*v.shape[:2], k.shape[3], v.shape[3]) if state is None else state
    rows = []
    for t in range(v.shape[2]):
        s = s * g[:, :, t, None, None].exp()
        new = v[:, :, t] - (k[:, :, t, None] @ s)[:, :, 0]
        s = s + k[:, :, t, :, None] * (beta[:, :, t, None] * new)[:, :, None]
        rows.append((q[:, :, t, None] @ s)[:, :, 0] * q.shape[3] ** -0.5)
    return torch.stack(rows, 1), s


def gradients_of(out: Any, leaves: Any, *grads: Any) -> list[Any]:
    """Of sums of outputs times what is given for them, in float64."""
    outs = out if isinstance(out, tuple) else (out,)
    pairs = [(x, g.double()) for x, g in zip(outs, grads, strict=True) if x.requires_grad]
    return list(torch.autograd.grad([x for x, _ in pairs], leaves, [g for _, g in pairs]))


def wide(*tensors: Any) -> list[Any]:
    """Leaves in float64."""
    return [x.detach().double().requires_grad_() for x in tensors]
