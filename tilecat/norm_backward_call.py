"""Gradients of layernorm and RMSNorm, given what the forward was given."""

from __future__ import annotations

from typing import Any

from .array_arguments import array_of, check_devices
from .norm_call import backward, forward, norm_of, seed_of
from .row_arguments import FLOATS
from .runtime.arrays import view


def layer_norm_fn_backward(
    dy: Any, x: Any, weight: Any = None, bias: Any = None, residual: Any = None,
    eps: float = 1e-6, dropout_p: float = 0.0, rowscale: Any = None, is_rms_norm: bool = False,
    *, seed: Any = None, d_sums: Any = None,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """Gradients of `tc.layer_norm_fn`, given that of its result.

    Args:
        dy: gradient of the result, of x's shape and dtype.
        x, weight, bias, residual, eps, dropout_p, rowscale, is_rms_norm, seed: of the call. Of
            dropout the mask is made again, of the same seed.
        d_sums: gradient of what was normalised, as prenorm gives it: of x's shape, bf16, f16 or
            f32; None: 0.

    Returns:
        dx, dweight, dbias and dresidual (None without one), each of the shape and dtype of what it
        belongs to; dresidual is dx itself where they are equal.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tc.layer_norm_fn`.

    Scope, streams and devices: as `tc.layer_norm_fn`. The forward is run again for its statistics
    and for what it normalises, which is rounded to the residual's dtype, or x's.

    Example: `dx, dw, db, _ = tc.layer_norm_fn_backward(dy, x, w, b)`
    """
    call = "layer_norm_fn_backward"
    norm = norm_of(call, eps, dropout_p, is_rms_norm, seed)
    array = array_of(call, "x", x, FLOATS)
    shape = tuple(array.shape)
    known = {"x": array, "dy": array_of(call, "dy", dy, (array.dtype,), shape, "of x")}
    if d_sums is not None:
        known["d_sums"] = array_of(call, "d_sums", d_sums, FLOATS, shape, "of x")
    named = {"weight": weight, "bias": bias, "residual": residual, "rowscale": rowscale}
    check_devices(call, known)
    changed = residual is not None or rowscale is not None or norm.p
    kept = str(view(x if residual is None else residual).dtype) if changed else None
    seed = seed_of(call, seed, x, array) if norm.p else None
    _, sums, *stats = forward(call, x, named, norm, seed, kept, stats=True)
    apart = residual is not None and (norm.p or rowscale is not None or kept != array.dtype)
    dx, dr, dw, db = backward(
        dy, x if sums is None else sums,
        {"weight": weight, "rowscale": rowscale, "of_sums": d_sums}, (stats[0], stats[1]), norm,
        seed, str(array.dtype), residual=kept if apart else None,
        bias=None if bias is None else str(view(bias).dtype),
    )  # fmt: skip
    return dx, dw, db, (dr if apart else dx) if residual is not None else None
