"""Calls of Based."""

from __future__ import annotations

from typing import Any

from .array_arguments import check_devices
from .binding import check_written
from .errors import LayoutError
from .kernels.based import DIM, FEATURES
from .kernels.based import based as kernel
from .ready import Launch, again, key_of
from .row_arguments import check_flag
from .runtime.arrays import view
from .scan_call import (
    check,
    check_number,
    check_rank,
    outputs,
    run,
    untouched,
    whole_rows,
)

AXES = "batch x heads x length x dim"
STAGES = 4  # of q, k and v: 140 us where 3 take 149 (B16 H16 N4096, H200, 2026-11)
STAGES_WITH_NORMS = 3


def based(
    q: Any, k: Any, v: Any, scale: float | None = None, use_norm: bool = True,
    *, initial_state: Any = None, output_final_state: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """`o_i = sum over j <= i of w_ij v_j`, `w = 1 + s + s^2 / 2`, `s = scale q_i.k_j`.

    Args:
        q, k: B x H x T x 16, bf16 or f16, any strides.
        v: B x H x T x V.
        scale: of s, positive; 1/4 if None.
        use_norm: divide by the sum of a row's w, plus 1e-6.
        initial_state: f32 B x H x 160 x V: sums of earlier features and values; None: 0. Features
            are those of `tc.taylor_features`, of sqrt(scale) k, in the order of `tc.taylor_order`.
            Without `use_norm` alone: sums of earlier w are not in it.
        output_final_state: also give the state after the last token.

    Returns:
        (o, state): o B x H x T x V of v's dtype, contiguous; state f32 B x H x 160 x V, or None.
        CUDA arrays run on the GPU on the current stream, without waiting; NumPy arrays and CPU
        tensors run on the PTX machine.

    Raises:
        LayoutError: shapes that do not fit, another dim than 16, a scale that is not positive, a
            state together with `use_norm`. DTypeError: dtypes other than those above.
        ResourceError: arrays on two devices, no GPU.

    Source: Arora et al., Simple linear attention language models (Based, 2024).

    Example: `o, _ = tc.based(q, k, v)`
    """
    tensors = (q, k, v, initial_state)
    norm = check_flag("based", "use_norm", use_norm)
    wants = check_flag("based", "output_final_state", output_final_state)
    key = key_of(tensors, ("based", scale, norm, wants))
    given = tuple(x for x in tensors if x is not None)
    made = again(key, given) or _run(key, given, tensors, scale, norm, wants)
    return made[0], made[1] if wants else None


def based_step(q: Any, k: Any, v: Any, state: Any, scale: float | None = None) -> Any:
    """One token of `tc.based` without its norm, for decoding; the state changes in place.

    Args:
        q, k: B x H x 16, bf16 or f16.
        v: B x H x V.
        state: f32 B x H x 160 x V, which becomes the state after the token.
        scale: as of `tc.based`.

    Returns:
        The token's output, B x H x V.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tc.based`.

    Example: `o = tc.based_step(q, k, v, state)`
    """
    for what, x in (("q", q), ("k", k), ("v", v)):
        shape = tuple(view(x).shape)
        if len(shape) != 3:
            raise LayoutError(f"based_step: {what} is batch x heads x dim, got the shape {shape}")
    if state is None:
        raise LayoutError(
            "based_step: state is f32 B x H x 160 x V, got None",
            hint="zeros, or what tc.based(..., use_norm=False, output_final_state=True) gives",
        )
    check_written("based_step", "state", view(state))
    q, k, v = (x[:, :, None] for x in (q, k, v))
    o, after = based(q, k, v, scale, False, initial_state=state, output_final_state=True)
    state[...] = after
    return o[:, :, 0]


def _run(
    key: Any, given: tuple[Any, ...], tensors: tuple[Any, ...], scale: Any, norm: bool, wants: bool
) -> tuple[Any, ...]:
    """Checks, allocates, launches."""
    v, state = tensors[2:]
    batch, heads, _, columns = shape = check_based("based", tensors, scale, norm)
    makers, made = outputs(v, shape, (batch, heads, FEATURES, columns) if wants else None)
    if 0 in shape:
        return untouched(made, state)
    factor = DIM**-0.5 if scale is None else float(scale)
    q, k, v, out = (whole_rows(x) for x in (*tensors[:3], made[0]))
    rest = (x for x in (state, made[1] if wants else None) if x is not None)
    params = {"norm": norm, "start": state is not None, "end": wants,
              "stages": STAGES_WITH_NORMS if norm else STAGES}  # fmt: skip
    launch = Launch(kernel, (q, k, v, out), (factor, factor**0.5, *rest), params)
    run(key, given, made, makers, lambda eased: (launch,))
    if out is not made[0]:
        made[0][...] = out[..., : view(made[0]).shape[3]]
    return made


def check_based(
    name: str, tensors: tuple[Any, Any, Any, Any], scale: Any, norm: bool
) -> tuple[int, int, int, int]:
    """B, H, T and V of a call with q, k, v and an initial state or None.

    Raises:
        LayoutError, DTypeError, ResourceError: it is none.
    """
    q, k, v, state = tensors
    query, value = (check_rank(name, n, x, AXES) for n, x in (("q", q), ("v", v)))
    (batch, heads, length, dim), columns = query.shape, value.shape[3]
    if dim != DIM:
        raise LayoutError(
            f"{name}: q and k have {DIM} columns, of which there are 153 features, got {dim}"
        )
    check(name, "k", k, (batch, heads, length, dim), (query.dtype,), "of q")
    check(name, "v", v, (batch, heads, length, columns), (query.dtype,), "B x H x T x V")
    if scale is not None and check_number(name, "scale", scale) <= 0:
        raise LayoutError(f"{name}: scale is positive, got {scale!r}", hint="negate q")
    if state is not None:
        if norm:
            raise LayoutError(
                f"{name}: an initial state has no sums of earlier weights, got use_norm=True",
                hint="use_norm=False, and a column of ones in v, by which to divide",
            )
        shape = (batch, heads, FEATURES, columns)
        check(name, "initial_state", state, shape, ("f32",), "B x H x 160 x V")
    check_devices(name, {"q": q, "k": k, "v": v, "initial_state": state})
    return batch, heads, length, columns
