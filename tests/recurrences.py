"""Linear recurrences token by token, in float64; and what tests of their calls share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def poison_calls(monkeypatch: Any, *modules: Any) -> None:
    """What calls of these modules allocate is NaN until it is written."""
    for module in modules:

        def poisoned(*args: Any, allocate: Any = module.allocator) -> Any:
            def make() -> Any:
                made = allocate(*args)()
                made[...] = np.nan
                return made

            return make

        monkeypatch.setattr(module, "allocator", poisoned)


def assert_refused(call: Any, kind: type[Exception], message: str | None) -> None:
    """The call raises an error of that kind, with that text (None: any) and a place."""
    with pytest.raises(kind) as caught:
        call()
    assert message is None or caught.value.message == message
    assert caught.value.loc is not None


def gated(
    q: Any, k: Any, v: Any, g: Any = 0.0, state: Any = None, scale: float = 1.0,
    reverse: bool = False,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """`o_t = scale q_t S_t`, `S_t = exp(g_t) S_(t-1) + k_t v_t`, and the last S.

    Args:
        q, k: H x T x K.
        v: H x T x V.
        g: what broadcasts to H x T.
        state: S before the first token, H x K x V; None: 0.
        scale: of the output.
        reverse: tokens see those from their own on: S_t = k_t v_t + exp(g_(t+1)) S_(t+1); the last
            S is exp(g_0) S_0.
    """
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    heads, length, _ = q.shape
    decay = np.exp(np.broadcast_to(np.asarray(g, np.float64), (heads, length)))[..., None, None]
    s = np.zeros((heads, k.shape[2], v.shape[2])) if state is None else state.astype(np.float64)
    out = np.zeros(v.shape)
    for t in range(length)[:: -1 if reverse else 1]:
        s = (s if reverse else decay[:, t] * s) + k[:, t, :, None] * v[:, t, None, :]
        out[:, t] = scale * (q[:, t, None] @ s)[:, 0]
        s = decay[:, t] * s if reverse else s
    return out, s


def assert_near(got: Any, wanted: Any, limit: float) -> None:
    """Root mean square of the error, of all and of the worst row, relative to all; NaN fails."""
    got, wanted = np.asarray(got).astype(np.float64), np.asarray(wanted)
    assert got.shape == wanted.shape
    if not wanted.size:
        return
    size = float(np.sqrt((wanted**2).mean())) or 1.0
    error = np.sqrt(((got - wanted) ** 2).mean()) / size
    worst = np.sqrt(((got - wanted) ** 2).mean(-1).max()) / size
    assert error <= limit, f"error {error:.2g}, limit {limit:.2g}"
    assert worst <= 16 * limit, f"worst row {worst:.2g}, limit {16 * limit:.2g}"


def delta(
    q: Any, k: Any, v: Any, beta: Any, g: Any = 0.0, state: Any = None, scale: float = 1.0,
    norm: bool = False,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """`S_t = exp(g_t) (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T`, `o_t = scale q_t S_t`.

    Args:
        q, k: groups x T x K; heads of a group share them.
        v: H x T x V.
        beta, g: H x T.
        state: S before the first token, H x K x V; None: 0.
        scale: of the output.
        norm: whether q and k are divided by the root of their squares' sum + 1e-6.
    """
    q, k, v, beta = (np.asarray(x).astype(np.float64) for x in (q, k, v, beta))
    if norm:
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    heads, length, columns = v.shape
    q, k = (np.repeat(x, heads // x.shape[0], axis=0) for x in (q, k))
    decay = np.exp(np.broadcast_to(np.asarray(g, np.float64), (heads, length)))[..., None, None]
    s = np.zeros((heads, k.shape[2], columns)) if state is None else state.astype(np.float64)
    out = np.zeros(v.shape)
    for t in range(length):
        s = decay[:, t] * s
        new = beta[:, t, None, None] * (v[:, t, None] - k[:, t, None] @ s)
        s = s + k[:, t, :, None] * new
        out[:, t] = scale * (q[:, t, None] @ s)[:, 0]
    return out, s


def gradients(
    do: Any, q: Any, k: Any, v: Any, g: Any, state: Any, d_last: Any, scale: float
) -> tuple[np.ndarray, ...]:
    """Of q, k, v, g and the first S, given those of the output and of the last S; heads first."""
    do, q, k, v, g = (np.asarray(x).astype(np.float64) for x in (do, q, k, v, g))
    states, decay = [state.astype(np.float64)], np.exp(g)[..., None, None]
    for t in range(q.shape[1]):
        states.append(decay[:, t] * states[-1] + k[:, t, :, None] * v[:, t, None, :])
    dq, dk, dv, dg = (np.zeros(x.shape) for x in (q, k, v, g))
    ds = d_last.astype(np.float64)
    for t in range(q.shape[1])[::-1]:
        dq[:, t] = scale * (states[t + 1] @ do[:, t, :, None])[..., 0]
        ds = ds + scale * q[:, t, :, None] * do[:, t, None, :]
        dk[:, t], dv[:, t] = (ds @ v[:, t, :, None])[..., 0], (k[:, t, None] @ ds)[:, 0]
        dg[:, t] = (ds * states[t] * decay[:, t]).sum((1, 2))
        ds = decay[:, t] * ds
    return dq, dk, dv, dg, ds


def delta_gradients(
    do: Any, q: Any, k: Any, v: Any, beta: Any, g: Any, state: Any, d_last: Any, scale: float,
    norm: bool = False,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Of q, k, v, g, beta and the first S of `delta`, given those of the output and the last S."""
    do, q, k, v, beta, g = (np.asarray(x).astype(np.float64) for x in (do, q, k, v, beta, g))
    groups, repeats = len(q), len(v) // len(q)
    lengths = [np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) if norm else 1.0 for x in (q, k)]
    units = [x / length for x, length in zip((q, k), lengths, strict=True)]
    q, k = (np.repeat(x, repeats, axis=0) for x in units)
    decay, states, news = np.exp(g)[..., None, None], [state.astype(np.float64)], []
    for t in range(v.shape[1]):
        s = decay[:, t] * states[-1]
        news.append(v[:, t] - (k[:, t, None] @ s)[:, 0])
        states.append(s + k[:, t, :, None] * (beta[:, t, None] * news[-1])[:, None])
    dq, dk, dv, dg, db = (np.zeros(x.shape) for x in (q, k, v, g, beta))
    ds = d_last.astype(np.float64)
    for t in range(v.shape[1])[::-1]:
        dq[:, t] = scale * (states[t + 1] @ do[:, t, :, None])[..., 0]
        ds = ds + scale * q[:, t, :, None] * do[:, t, None, :]
        written = (k[:, t, None] @ ds)[:, 0]
        db[:, t], dv[:, t] = (written * news[t]).sum(-1), beta[:, t, None] * written
        dk[:, t] = beta[:, t, None] * (ds @ news[t][..., None])[..., 0]
        before = decay[:, t] * states[t]
        dk[:, t] -= (before @ dv[:, t, :, None])[..., 0]
        ds = ds - k[:, t, :, None] * dv[:, t, None, :]
        dg[:, t] = (ds * before).sum((1, 2))
        ds = decay[:, t] * ds
    wide = []
    for x, unit, length in zip((dq, dk), units, lengths, strict=True):
        x = x.reshape(groups, repeats, *x.shape[1:]).sum(1)
        wide.append((x - unit * (unit * x).sum(-1, keepdims=True)) / length if norm else x)
    return *wide, dv, dg, db, ds


def mamba(
    x: Any, dt: Any, a: Any, b: Any, c: Any, state: Any, seq_idx: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """`y_t = C_t h_t`, `h_t = exp(dt_t A) h_(t-1) + dt_t x_t B_t`, and the last h.

    Args:
        x: H x T x P. dt: H x T. a: [H]. b, c: G x T x N. state: h before, H x P x N.
        seq_idx: [T]: where it changes h starts at 0.
    """
    x, dt, a, b, c = (np.asarray(y).astype(np.float64) for y in (x, dt, a, b, c))
    b, c = (np.repeat(y, len(x) // len(y), axis=0) for y in (b, c))
    out, h = np.zeros(x.shape), state.astype(np.float64)
    for t in range(x.shape[1]):
        if seq_idx is not None and t and seq_idx[t] != seq_idx[t - 1]:
            h = np.zeros(h.shape)
        h = np.exp(dt[:, t] * a)[:, None, None] * h
        h = h + (dt[:, t, None] * x[:, t])[..., None] * b[:, t, None]
        out[:, t] = (h @ c[:, t, :, None])[..., 0]
    return out, h


def mamba_gradients(
    dy: Any, x: Any, dt: Any, a: Any, b: Any, c: Any, state: Any, d_last: Any, *, skip: Any,
    z: Any, bias: Any, softplus: bool, limits: tuple[float, float], seq_idx: Any = None,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Of x, dt, a, b, c, skip, z and the first h of `(C h + D x) silu(z)`, dt as in `ssd`.

    That of a is what each token adds to it, H x T; that of the bias is the sum of dt's.

    Args:
        dy, x, z: H x T x P. dt: H x T. a, bias: [H]. b, c: G x T x N. skip: H x P.
        state, d_last: h before, and the gradient of h after, H x P x N.
        z, bias, seq_idx ([T]): or None.
    """
    dy, x, dt, a, b, c, skip = (
        np.asarray(y).astype(np.float64) for y in (dy, x, dt, a, b, c, skip)
    )
    each, offset = len(x) // len(b), dt if bias is None else dt + bias[:, None].astype(np.float64)
    plain = np.logaddexp(0, offset) if softplus else offset
    steps = np.clip(plain, *limits)
    gates = steps * a[:, None]
    if seq_idx is not None:
        gates[:, 1:][:, np.diff(seq_idx) != 0] = -np.inf
    queries, keys = (np.repeat(y, each, axis=0) for y in (c, b))
    values, skip = x * steps[..., None], skip[:, None]
    y = gated(queries, keys, values, gates, state.swapaxes(1, 2))[0] + skip * x
    dn, dz = dy, None
    if z is not None:
        z = np.asarray(z).astype(np.float64)
        s = 1 / (1 + np.exp(-z))
        dn, dz = dy * z * s, dy * y * s * (1 + z * (1 - s))
    dq, dk, dv, dg, first = gradients(
        dn, queries, keys, values, gates, state.swapaxes(1, 2), d_last.swapaxes(1, 2), 1.0
    )
    slope = (plain >= limits[0]) & (plain <= limits[1])
    slope = slope / (1 + np.exp(-offset)) if softplus else slope
    d_dt = ((dv * x).sum(-1) + dg * a[:, None]) * slope
    db, dc = (y.reshape(len(b), each, *y.shape[1:]).sum(1) for y in (dk, dq))
    return (
        dv * steps[..., None] + skip * dn, d_dt, dg * steps, db, dc, (dn * x).sum(1), dz,
        first.swapaxes(1, 2),
    )  # fmt: skip
