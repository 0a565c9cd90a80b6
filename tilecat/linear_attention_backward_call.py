"""Gradients of linear attention: three scans, and the running sums of the gates' gradients."""

from __future__ import annotations

from typing import Any

from .errors import LayoutError
from .kernels.chunk_scan import CHUNK
from .kernels.gate_gradients import gate_gradients
from .linear_attention_call import Call, turned
from .ready import Launch, again
from .runtime.arrays import allocator, view
from .scan_call import check, run


def simple_gla_backward(
    do: Any, q: Any, k: Any, v: Any, g: Any = None, g_gamma: Any = None,
    scale: float | None = None, *, initial_state: Any = None, d_final_state: Any = None,
    cu_seqlens: Any = None,
) -> tuple[Any, Any, Any, Any, Any]:  # fmt: skip
    """Gradients of `tc.simple_gla` (and `tc.linear_attention`), given that of its output.

    Args:
        do: gradient of o, B x T x H x V.
        q, k, v, g, g_gamma, scale, initial_state, cu_seqlens: of the call.
        d_final_state: gradient of the final state, f32 [sequences, H, K, V]; None: 0.

    Returns:
        dq, dk, dv, dg (f32; None without g) and the gradient of the initial state (None without).
        g_gamma has none.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tc.simple_gla`; a scale of 0.

    Scope, streams and devices: as `tc.simple_gla`. Each of dq, dk and dv is a scan of the same
    kernel, dk and dv in reversed time (docs/design/chunk-scan.md).

    Example: `dq, dk, dv, dg, _ = tc.simple_gla_backward(do, q, k, v, g)`
    """
    call = Call("simple_gla_backward", q, k, v, g, g_gamma, scale, initial_state, cu_seqlens)
    more = (do, d_final_state)
    key, given = call.key(*more), call.given(*more)
    made = list(again(key, given) or _run(key, given, call, do, d_final_state))
    dq, dk, dv = made[:3]
    dg = made.pop(3) if g is not None else None
    return dq, dk, dv, dg, made[3] if initial_state is not None else None


def _run(
    key: Any, given: tuple[Any, ...], call: Call, do: Any, d_state: Any
) -> tuple[Any, ...]:
    (batch, length, heads, dim, dim_v), sequences = call.check()
    check(call.name, "do", do, (batch, length, heads, dim_v), (view(call.q).dtype,), "v's shape")
    states = (sequences, heads, dim, dim_v)
    if d_state is not None:
        check(call.name, "d_final_state", d_state, states, ("f32",), "sequences x H x K x V")
    if call.factor == 0.0:
        raise LayoutError(f"{call.name}: gradients are those of a scale other than 0, got 0.0")
    gated, wants = call.g is not None, call.state is not None
    shapes = [(tuple(view(x).shape), str(view(x).dtype)) for x in (call.q, call.k, call.v)]
    shapes += [((batch, length, heads), "f32")] * gated + [(states, "f32")] * wants
    parts = -(-dim // CHUNK)
    work = [((batch, heads, parts, length), "f32")] * 2
    work += [((sequences, heads, dim_v, dim), "f32")] * (d_state is not None)
    makers = [allocator(call.q, *x) for x in (*shapes, *(work if gated else []))]
    made = tuple(make() for make in makers)
    if 0 in (batch, length, heads, dim_v) or sequences == 0:
        for x in made:
            x[...] = 0
        if wants and d_state is not None:
            made[3 + gated][...] = d_state
        return made
    parted = made[: len(shapes)], made[len(shapes) :]
    run(key, given, made, makers, lambda eased: _launches(call, do, d_state, *parted, eased))
    return made


def _launches(
    call: Call, do: Any, d_state: Any, grads: tuple[Any, ...], work: tuple[Any, ...],
    eased: bool,
) -> tuple[Launch, ...]:  # fmt: skip
    """The scans of dq, dk and dv, and dg.

    Args:
        call, do, d_state: given.
        grads: dq, dk, dv, dg and that of the state, where wanted.
        work: q dq and k dk of blocks of columns, the final state; where wanted.
        eased: see `plan`.
    """
    (dq, dk, dv), more = grads[:3], list(grads[3:])
    dg = more.pop(0) if call.g is not None else None
    end = work[2] if len(work) > 2 else None
    dots = [(call.q, work[0]), (call.k, work[1])] if work else [(), ()]
    start = None if call.state is None else call.state.swapaxes(2, 3)
    d_end = None if d_state is None else d_state.swapaxes(2, 3)
    launches = [
        call.launch(do, call.v, call.k, dq, start, end, dots[0], eased=eased),
        call.launch(call.v, do, call.q, dk, d_end, None, dots[1], reverse=True, eased=eased),
        call.launch(call.k, call.q, do, dv, d_state, more[0] if more else None, reverse=True,
                    eased=eased),
    ]
    if dg is not None:
        packed = () if call.starts is None else (call.starts,)
        states = () if end is None else (end, d_end)
        wanted = {"packed": bool(packed), "states": bool(states)}
        launches.append(
            Launch(gate_gradients, (*work[:2], turned(dg)), (*packed, *states), wanted)
        )
    return tuple(launches)
