"""What tests of `tilecat.torch` share: random tensors, and float64 to compare with."""

from __future__ import annotations

import torch

BF16 = 2.0**-7


def heads(*shape: int, seed: int = 0, dtype=torch.bfloat16, grad: bool = False, device="cpu"):
    """Normal random numbers."""
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return made.to(device, dtype).requires_grad_(grad)


def close(got, expected, rounding: float = BF16) -> None:
    """Within a rounding of the norm and of the largest element; a NaN is never close."""
    got, expected = got.detach().double(), expected.detach().double()
    assert got.shape == expected.shape
    difference = got - expected
    assert difference.norm() <= rounding * expected.norm() + 1e-30
    assert difference.abs().max() <= 4 * rounding * expected.abs().max() + 1e-30


def double(*tensors):
    """The same tensors in float64, as leaves that want the same gradients."""
    return [x.detach().double().requires_grad_(x.requires_grad) for x in tensors]


def exact(q, k, v, scale=None, seen=None, added=None, sinks=None):
    """Attention in float64, differentiable.

    Args:
        q, k, v: heads of k and v divide those of q.
        scale: 1/sqrt(D) if None.
        seen: bool, which keys are; added: to the scores.
        sinks: one score a head.
    """
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if added is None else scores + added.double()
    scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
    columns = scores.shape[-1]
    if sinks is not None:
        sink = sinks.double()[None, :, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sink), -1)
    highest = scores.detach().amax(-1, keepdim=True).clamp(min=-1e30)
    weights = torch.exp(scores - highest)
    return weights[..., :columns] @ v / weights.sum(-1, keepdim=True).clamp(min=1e-300)


def causal(queries: int, keys: int, from_end: bool = False):
    """Which keys a query sees that sees none behind its own."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries if from_end else 0)


BLOCK = 64  # of Hedgehog


def features(x, weights):
    z = x @ weights
    return torch.cat([z.softmax(-1), (-z).softmax(-1)], -1)


def exact_hedgehog(q, k, v, qmap, kmap, alpha, beta, state=None):
    """Outputs, and states as they are before the last block, in float64."""
    alpha, beta = (x.double()[:, None, None] for x in (alpha, beta))
    q, k, v, qmap, kmap = (x.double() for x in (q, k, v, qmap, kmap))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    token = torch.arange(q.shape[2], device=q.device)
    block = token // BLOCK
    far = block[None, :] < block[:, None] - 1
    near = (token[None, :] <= token[:, None]) & ~far
    s = (q @ k.mT * q.shape[3] ** -0.5).masked_fill(~near, -torch.inf)
    fq, fk = features(q, qmap), features(k, kmap)
    w = beta * (s - s.amax(-1, keepdim=True)).exp() + alpha * (fq @ fk.mT).masked_fill(~far, 0.0)
    total, out = w.sum(-1, keepdim=True) + 1e-6, w @ v
    gone = slice(0, (q.shape[2] - 1) // BLOCK * BLOCK)
    kv, ks = fk[:, :, gone].mT @ v[:, :, gone], fk[:, :, gone].sum(2)
    if state is not None:
        first, sums = (x.double() for x in state)
        out = out + alpha * (fq @ first)
        total = total + alpha * (fq * sums[:, :, None]).sum(-1, keepdim=True)
        kv, ks = kv + first, ks + sums
    return out / total, kv, ks
