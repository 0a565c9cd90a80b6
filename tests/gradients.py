"""Gradients of attention in float64 NumPy, and how far a kernel may be from them.

The kernel rounds P and dS to the dtype before it multiplies them, and reads O rounded; sums are in
f32. Each rounding is to nearest, of either sign: `DEVIATIONS` times the root sum of squares bounds
what they add up to, all but surely (tests/reference.py). O's rounding is one number a row, and so
delta's error counts as one: where a query sees few keys it is most of dS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from reference import (
    DEVIATIONS,
    TRUNCATION,
    Reference,
    accumulation,
    as_float64,
    as_numpy,
    half_ulp,
    spacing,
)

FLUSHED = 2.0**-126  # below it `ex2.approx.ftz.f32` gives 0


@dataclass(frozen=True)
class Gradients:
    """What the forward gives, and exact gradients; db of what is added to scores, dz of sinks."""

    out: np.ndarray
    lse: np.ndarray
    dq: Reference
    dk: Reference
    dv: Reference
    db: Reference
    dz: Reference | None = None


def gradients(
    q: Any, k: Any, v: Any, dout: Any, scale: float | None = None, seen: Any = None,
    score: Any = None, sinks: Any = None,
) -> Gradients:  # fmt: skip
    """Of softmax(scale Q K^T) V.

    Args:
        q, dout: [B, H, Lq, D], [B, H, Lq, Dv].
        k, v: [B, Hkv, Lk, D], [B, Hkv, Lk, Dv].
        scale: 1 / sqrt(D) if None.
        seen: which keys a query sees, broadcast to [B, H, Lq, Lk]; None for all.
        score: f(scaled scores) -> what they become, and its derivative; None: themselves, 1.
        sinks: a further score of each head, [H], without a value; None for none.
    """
    dtype, group = as_numpy(q).dtype, q.shape[1] // k.shape[1]
    q, k, v, dout = (as_float64(x) for x in (q, k, v, dout))
    wide_k, wide_v = (np.repeat(x, group, axis=1) for x in (k, v))
    scale = q.shape[3] ** -0.5 if scale is None else scale
    s = scale * (q @ wide_k.swapaxes(2, 3))
    s, slope = (s, 1.0) if score is None else score(s)
    s = s if seen is None else np.where(seen, s, -np.inf)
    p, lse = _softmax(s, sinks)
    out = p @ wide_v
    dp = dout @ wide_v.swapaxes(2, 3)
    delta = (dout * out).sum(-1, keepdims=True)
    ds = p * (dp - delta) * slope
    ulp, longest = half_ulp(dtype), max(k.shape[2], q.shape[2] * group)
    exponent = _exponent_error(scale, q, wide_k, s, lse[..., None])
    off = ulp * np.sqrt((dout**2 * out**2).sum(-1, keepdims=True))  # of delta: O is rounded
    sums = (exponent + accumulation(v.shape[3])) * p * (
        (np.abs(dout) @ np.abs(wide_v).swapaxes(2, 3)) + np.abs(delta))  # fmt: skip
    of_score = Reference(p * (dp - delta), DEVIATIONS * off * p + sums)
    sums, sloped = sums * np.abs(slope), off * np.abs(slope)
    per_ds = sums + accumulation(longest) * np.abs(ds) + FLUSHED * np.abs(dp - delta)

    def over_group(x: np.ndarray) -> np.ndarray:
        return x.reshape(x.shape[0], k.shape[1], group, *x.shape[2:]).sum(2)

    of_delta = np.abs((p * slope) @ wide_k) * ulp * np.sqrt((dout**2 * out**2).sum(-1)[..., None])
    ds_off, p_off = (0.5 * spacing(x, dtype) * (x != 0) for x in (ds, p))
    dq_var = spread(ds_off, wide_k) + of_delta**2
    dk_var = spread(ds_off.swapaxes(2, 3), q) + spread((sloped * p).swapaxes(2, 3), q)
    dv_var = spread(p_off.swapaxes(2, 3), dout)
    p_error = (exponent + accumulation(longest)) * p + FLUSHED
    return Gradients(
        out, lse,
        Reference(scale * (ds @ wide_k),
                  scale * (DEVIATIONS * np.sqrt(dq_var) + per_ds @ np.abs(wide_k))),
        Reference(over_group(scale * (ds.swapaxes(2, 3) @ q)),
                  scale * (DEVIATIONS * np.sqrt(over_group(dk_var))
                           + over_group(per_ds.swapaxes(2, 3) @ np.abs(q)))),
        Reference(over_group(p.swapaxes(2, 3) @ dout),
                  DEVIATIONS * np.sqrt(over_group(dv_var))
                  + over_group(p_error.swapaxes(2, 3) @ np.abs(dout))),
        of_score, None if sinks is None else _of_sinks(sinks, lse, delta, off),
    )  # fmt: skip


def _softmax(s: np.ndarray, sinks: Any) -> tuple[np.ndarray, np.ndarray]:
    """P and the log-sum-exp of scores, some of them -inf, and of sinks."""
    sink = np.full(1, -np.inf) if sinks is None else as_float64(sinks)
    sink = sink[:, None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        largest = np.maximum(s.max(-1, keepdims=True, initial=-np.inf), sink)
        start = np.where(np.isfinite(largest), largest, 0.0)
        weights = np.exp(s - start)
        total = weights.sum(-1, keepdims=True) + np.exp(sink - start)
        p = np.where(total > 0, weights / total, 0.0)
        return p, np.where(total > 0, largest + np.log(total), -np.inf)[..., 0]


def _of_sinks(sinks: Any, lse: np.ndarray, delta: np.ndarray, off: np.ndarray) -> Reference:
    """The gradient of sinks, [H]: less P of the sink times delta, of all rows."""
    wide = as_float64(sinks)[:, None]
    p = np.where(np.isfinite(lse), np.exp(wide - np.where(np.isfinite(lse), lse, 0.0)), 0.0)
    sizes = p * np.abs(delta[..., 0])
    error = (2.0**-18 + accumulation(delta.size)) * sizes.sum((0, 2))
    rounded = DEVIATIONS * np.sqrt(((p * off[..., 0]) ** 2).sum((0, 2)))
    return Reference(-(p * delta[..., 0]).sum((0, 2)), rounded + error)


def _exponent_error(
    scale: float, q: np.ndarray, k: np.ndarray, s: np.ndarray, lse: np.ndarray
) -> np.ndarray:
    """Relative error of P, from that of its exponent: sums, and roundings of scores and lse."""
    dim, products = q.shape[3], scale * (np.abs(q) @ np.abs(k).swapaxes(2, 3))
    sizes = np.where(np.isfinite(s), np.abs(s), 0.0) + np.where(np.isfinite(lse), np.abs(lse), 0.0)
    return 2.0**-20 + accumulation(dim) * products + 8 * TRUNCATION * (products + sizes)


def spread(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Sum of squares of the terms of each element of weights @ x."""
    return (weights**2) @ (x**2)
