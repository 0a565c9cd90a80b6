"""Linear recurrences as operators of torch, with the arguments of the functions they replace.

`tilecat::simple_gla` and `tilecat::simple_gla_backward`: `chunk_linear_attn`, `chunk_simple_gla`
and `chunk_lightning_attn` of flash-linear-attention. `tilecat::ssd` and `tilecat::ssd_backward`:
`mamba_chunk_scan_combined` of mamba-ssm.
"""

from __future__ import annotations

import math
from typing import Any

from ..kernels.chunk_tasks import CHUNK, flops_of
from ..linear_attention_backward_call import simple_gla_backward
from ..linear_attention_call import lightning_decays, simple_gla
from ..row_arguments import check_flag
from ..ssd_backward_call import ssd_backward
from ..ssd_call import NO_LIMIT, check_limit, ssd
from .library import absent, define, offsets, packed_gradients, scale_of, torch

once_differentiable = torch.autograd.function.once_differentiable

NORM_EPS = 1e-10  # flash-linear-attention, fla/ops/linear_attn/utils.py


def chunk_linear_attn(
    q: Any, k: Any, v: Any, scale: float | None = None, initial_state: Any = None,
    output_final_state: bool = False, normalize: bool = True,
) -> tuple[Any, Any]:  # fmt: skip
    """`tilecat.linear_attention` with gradients; normalised by default, as there.

    Args:
        q, k, v: B x T x H x K (V), bf16 or f16.
        scale, initial_state, output_final_state: see `tilecat.simple_gla`.
        normalize: divide by `scale q_t (k_1 + ... + k_t) + 1e-10`, sums in f32.

    Returns:
        (o, final state or None).

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.simple_gla`.
    """
    normalize = check_flag("chunk_linear_attn", "normalize", normalize)
    o, state = _attend(q, k, v, None, None, initial_state, None, scale, output_final_state)
    if normalize:
        factor = scale_of("simple_gla", q, scale)
        sums = (q.float() * factor * k.float().cumsum(1)).sum(-1, keepdim=True)
        o = (o / (sums + NORM_EPS)).to(o.dtype)
    return o, state


def chunk_simple_gla(
    q: Any, k: Any, v: Any, g: Any = None, g_gamma: Any = None, scale: float | None = None,
    initial_state: Any = None, output_final_state: bool = False, cu_seqlens: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """`tilecat.simple_gla` with gradients of q, k, v, g, g_gamma and initial_state.

    Args:
        q, k, v, g, g_gamma, scale, initial_state, output_final_state, cu_seqlens: see there;
            offsets of 64 bits are converted.

    Returns:
        (o, final state or None).

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.simple_gla`.
    """
    return _attend(
        q, k, v, g, g_gamma, initial_state, cu_seqlens, scale, output_final_state
    )


def chunk_lightning_attn(
    q: Any, k: Any, v: Any, layer_idx: int, num_layers: int, scale: float | None = None,
    initial_state: Any = None, output_final_state: bool = False, cu_seqlens: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """`tilecat.lightning_attn` with gradients.

    Args:
        q, k, v, layer_idx, num_layers, scale, initial_state, output_final_state, cu_seqlens: see
            there.

    Returns:
        (o, final state or None).

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.lightning_attn`.
    """
    gamma = lightning_decays(q, layer_idx, num_layers)
    return _attend(q, k, v, None, gamma, initial_state, cu_seqlens, scale, output_final_state)


def mamba_chunk_scan_combined(
    x: Any, dt: Any, A: Any, B: Any, C: Any, chunk_size: int, D: Any = None, z: Any = None,
    dt_bias: Any = None, initial_states: Any = None, seq_idx: Any = None, cu_seqlens: Any = None,
    dt_softplus: bool = False, dt_limit: tuple[float, float] = NO_LIMIT,
    return_final_states: bool = False,
) -> Any:  # fmt: skip
    """`tilecat.ssd` with gradients of all floats.

    The forward is one kernel; gradients are those of `tilecat.ssd_backward`.

    Args:
        x, dt, A, B, C, chunk_size, D, z, dt_bias, initial_states, seq_idx, cu_seqlens, dt_softplus,
            dt_limit, return_final_states: see there.

    Returns:
        y, or (y, final states).

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.ssd`.
    """
    del chunk_size
    call = "mamba_chunk_scan_combined"
    low, high = check_limit(call, dt_limit)
    softplus = check_flag(call, "dt_softplus", dt_softplus)
    wants = check_flag(call, "return_final_states", return_final_states)
    y, states = _mamba(
        x, dt, A, B, C, D, z, dt_bias, initial_states, offsets(seq_idx), offsets(cu_seqlens),
        softplus, low, high, wants,
    )  # fmt: skip
    return (y, states) if wants else y


def _attend(
    q: Any, k: Any, v: Any, g: Any, gamma: Any, state: Any, starts: Any, scale: float | None,
    wants_state: bool,
) -> tuple[Any, Any]:  # fmt: skip
    factor = scale_of("simple_gla", q, scale)
    wants = check_flag("simple_gla", "output_final_state", wants_state)
    o, last = _gla(q, k, v, g, state, gamma, offsets(starts), factor, wants)
    return o, last if wants else None


# ---- simple GLA


def _kernel(
    q: Any, k: Any, v: Any, g: Any, state: Any, gamma: Any, starts: Any, scale: float,
    wants_state: bool,
) -> tuple[Any, Any]:  # fmt: skip
    o, last = simple_gla(
        q, k, v, g, gamma, scale, initial_state=state, output_final_state=wants_state,
        cu_seqlens=starts,
    )  # fmt: skip
    return o, absent(q) if last is None else last


def _fake(
    q: Any, k: Any, v: Any, g: Any, state: Any, gamma: Any, starts: Any, scale: float,
    wants_state: bool,
) -> tuple[Any, Any]:  # fmt: skip
    sequences = q.shape[0] if starts is None else starts.shape[0] - 1
    shape = (sequences, q.shape[2], q.shape[3], v.shape[3]) if wants_state else (0,)
    return v.new_empty(v.shape), q.new_empty(shape, dtype=torch.float32)


def _backward_kernel(
    do: Any, q: Any, k: Any, v: Any, g: Any, state: Any, d_last: Any, gamma: Any, starts: Any,
    scale: float, wants_d_gamma: bool,
) -> tuple[Any, ...]:  # fmt: skip
    made = simple_gla_backward(
        do, q, k, v, g, gamma, scale, initial_state=state, d_final_state=d_last,
        cu_seqlens=starts, wants_d_gamma=wants_d_gamma,
    )  # fmt: skip
    return tuple(absent(q) if x is None else x for x in made)


def _backward_fake(
    do: Any, q: Any, k: Any, v: Any, g: Any, state: Any, d_last: Any, gamma: Any, starts: Any,
    scale: float, wants_d_gamma: bool,
) -> tuple[Any, ...]:  # fmt: skip
    none, gates = absent(q), gamma if wants_d_gamma else None
    more = (none.clone() if x is None else x.new_empty(x.shape) for x in (g, gates, state))
    return (*(x.new_empty(x.shape) for x in (q, k, v)), *more)


class _Gla(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, run: Any, q: Any, k: Any, v: Any, g: Any, state: Any, gamma: Any,
        rest: tuple[Any, ...],
    ) -> tuple[Any, Any]:  # fmt: skip
        starts, ctx.scale, wants_state = rest
        ctx.save_for_backward(q, k, v, g, state, gamma, starts)
        ctx.set_materialize_grads(False)
        return run(q, k, v, g, state, gamma, *rest)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Any, d_last: Any) -> tuple[Any, ...]:
        q, k, v, g, state, gamma, starts = ctx.saved_tensors
        given = packed_gradients(do, d_last, v)
        if given is None:
            return (None,) * 8
        do, d_last = given
        wants = ctx.needs_input_grad[6]
        dq, dk, dv, dg, d_gamma, ds = _gla_backward(
            do, q, k, v, g, state, d_last, gamma, starts, ctx.scale, wants
        )
        return (
            None, dq, dk, dv, None if g is None else dg, None if state is None else ds,
            d_gamma if wants else None, None,
        )  # fmt: skip


def _differentiable(
    run: Any, q: Any, k: Any, v: Any, g: Any, state: Any, gamma: Any, *rest: Any
) -> Any:
    return _Gla.apply(run, q, k, v, g, state, gamma, rest)


def _flops(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return flops_of(math.prod(q[:3]), q[3], v[3])


def _backward_flops(_: Any, q: Any, k: Any, v: Any, *__: Any, **___: Any) -> int:
    return 3 * _flops(q, k, v)


_gla = define(
    "simple_gla(Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? state, Tensor? gamma, "
    "Tensor? cu_seqlens, float scale, bool wants_state) -> (Tensor, Tensor)",
    _kernel, _fake, _differentiable, flops=_flops, cast=3,
)  # fmt: skip
_gla_backward = define(
    "simple_gla_backward(Tensor do, Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? state, "
    "Tensor? d_last, Tensor? gamma, Tensor? cu_seqlens, float scale, bool wants_d_gamma) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward_kernel, _backward_fake, flops=_backward_flops,
)  # fmt: skip


# ---- Mamba-2


def _mamba_kernel(
    x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, z: Any, bias: Any, states: Any, seq_idx: Any,
    starts: Any, softplus: bool, low: float, high: float, wants_states: bool,
) -> tuple[Any, Any]:  # fmt: skip
    made = ssd(x, dt, A, B, C, 64, D, z, bias, states, seq_idx, starts, softplus, (low, high),
               wants_states)  # fmt: skip
    return made if wants_states else (made, absent(x))


def _mamba_fake(
    x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, z: Any, bias: Any, states: Any, seq_idx: Any,
    starts: Any, softplus: bool, low: float, high: float, wants_states: bool,
) -> tuple[Any, Any]:  # fmt: skip
    sequences = x.shape[0] if starts is None else starts.shape[0] - 1
    shape = (sequences, x.shape[2], x.shape[3], B.shape[3]) if wants_states else (0,)
    return x.new_empty(x.shape), x.new_empty(shape, dtype=torch.float32)


def _mamba_backward_kernel(
    dy: Any, d_states: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, z: Any, bias: Any,
    states: Any, seq_idx: Any, starts: Any, softplus: bool, low: float, high: float,
) -> tuple[Any, ...]:  # fmt: skip
    made = ssd_backward(dy, x, dt, A, B, C, 64, D, z, bias, states, seq_idx, starts, softplus,
                        (low, high), d_final_states=d_states)  # fmt: skip
    return tuple(absent(x) if y is None else y for y in made)


def _mamba_backward_fake(dy: Any, d_states: Any, *args: Any) -> tuple[Any, ...]:
    return tuple(absent(dy) if y is None else y.new_empty(y.shape) for y in args[:9])


class _Mamba(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, run: Any, *args: Any) -> tuple[Any, Any]:
        ctx.save_for_backward(*args[:11])
        ctx.options = args[11:14]
        ctx.set_materialize_grads(False)
        return run(*args)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Any, d_states: Any) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        given = packed_gradients(dy, d_states, tensors[0])
        if given is None:
            return (None,) * 16
        made = _mamba_backward(*given, *tensors, *ctx.options)
        grads = (None if x is None else y for x, y in zip(tensors, made, strict=False))
        return (None, *grads, *(None,) * 6)


def _mamba_backward_flops(
    dy: Any, _: Any, x: Any, dt: Any, A: Any, B: Any, *__: Any, **___: Any
) -> int:
    """Of three scans, each of whose heads has scores of its own."""
    return 3 * flops_of(math.prod(dy[:3]), B[3], dy[3])


def _mamba_flops(x: Any, dt: Any, A: Any, B: Any, *_: Any, **__: Any) -> int:
    """Scores of groups are made once."""
    whole = flops_of(math.prod(x[:3]), B[3], x[3])
    return whole - 2 * CHUNK * math.prod(x[:2]) * (x[2] - B[2]) * B[3]


_mamba = define(
    "ssd(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? dt_bias, "
    "Tensor? states, Tensor? seq_idx, Tensor? cu_seqlens, bool softplus, float low, float high, "
    "bool wants_states) -> (Tensor, Tensor)",
    _mamba_kernel, _mamba_fake, lambda run, *args: _Mamba.apply(run, *args), flops=_mamba_flops,
    cast=1,
)  # fmt: skip
_mamba_backward = define(
    "ssd_backward(Tensor dy, Tensor? d_states, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, "
    "Tensor? D, Tensor? z, Tensor? dt_bias, Tensor? states, Tensor? seq_idx, Tensor? cu_seqlens, "
    "bool softplus, float low, float high) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, "
    "Tensor, Tensor, Tensor)",
    _mamba_backward_kernel, _mamba_backward_fake, flops=_mamba_backward_flops,
)  # fmt: skip
