"""Calls of one token of a linear recurrence; the state changes in place."""

from __future__ import annotations

from typing import Any

from .array_arguments import check_devices
from .errors import LayoutError
from .kernels.recurrence_step import gla_step
from .kernels.recurrence_step import ssd_step as ssd_kernel
from .linear_attention_call import lightning_decays
from .ready import Launch, again, key_of, present, remember
from .row_arguments import check_flag
from .runtime.arrays import allocator, shape_of, view
from .scan_call import HALVES, check, check_features, check_number, check_rates


def simple_gla_step(
    q: Any, k: Any, v: Any, state: Any, g: Any = None, g_gamma: Any = None,
    scale: float | None = None,
) -> Any:  # fmt: skip
    """One token of `tc.simple_gla` (without gates `tc.linear_attention`), for decoding.

    Args:
        q, k: B x H x K, bf16 or f16.
        v: B x H x V.
        state: f32 B x H x K x V, which becomes `exp(g + g_gamma) state + k v`.
        g: f32 B x H, or None.
        g_gamma: f32 [H], or None.
        scale: of the output; 1/sqrt(K) if None.

    Returns:
        `scale q state` after the token, B x H x V.

    Raises:
        LayoutError: shapes that do not fit. DTypeError: other dtypes. ResourceError: two devices.

    Example: `o = tc.simple_gla_step(q, k, v, state, g)`
    """
    return _gla("simple_gla_step", q, k, v, state, g, g_gamma, scale)


def lightning_attn_step(
    q: Any, k: Any, v: Any, state: Any, layer_idx: int, num_layers: int,
    scale: float | None = None,
) -> Any:  # fmt: skip
    """One token of `tc.lightning_attn`.

    Args:
        q, k, v, state, scale: see `tc.simple_gla_step`.
        layer_idx, num_layers: see `tc.lightning_attn`.

    Returns:
        B x H x V, as `tc.simple_gla_step`.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tc.simple_gla_step`.

    Example: `o = tc.lightning_attn_step(q, k, v, state, layer_idx=3, num_layers=24)`
    """
    _three("lightning_attn_step", "q", q)
    gamma = lightning_decays(q[:, None], layer_idx, num_layers)
    return _gla("lightning_attn_step", q, k, v, state, None, gamma, scale)


def _gla(
    name: str, q: Any, k: Any, v: Any, state: Any, g: Any, gamma: Any, scale: Any
) -> Any:
    arrays = (q, k, v, state, g, gamma)
    key, given = key_of(arrays, (name, scale)), present(arrays)
    made = again(key, given)
    if made is not None:
        return made[0]
    batch, heads, dim = _three(name, "q", q)
    dim_v, dtype = _three(name, "v", v)[2], view(q).dtype
    check(name, "k", k, (batch, heads, dim), (dtype,), "B x H x K")
    check(name, "v", v, (batch, heads, dim_v), (dtype,), "B x H x V")
    check(name, "state", state, (batch, heads, dim, dim_v), ("f32",), "B x H x K x V")
    for what, x, shape in (("g", g, (batch, heads)), ("g_gamma", gamma, (heads,))):
        if x is not None:
            check(name, what, x, shape, ("f32",), "B x H" if what == "g" else "[H]")
    check_devices(name, {"q": q, "k": k, "v": v, "state": state, "g": g, "g_gamma": gamma})
    factor = dim**-0.5 if scale is None else check_number(name, "scale", scale)
    make = allocator(v, (batch, heads, dim_v), dtype)
    out = make()
    if 0 in (batch, heads, dim_v):
        return out
    params = {"dim": 64 if dim_v <= 64 else 128}
    launch = Launch(gla_step, (q, k, v, state, out), (factor, *present((g, gamma))), params)
    launch.run()
    remember(key, given, (make,), (out,), (launch,))
    return out


def ssd_step(
    x: Any, dt: Any, A: Any, B: Any, C: Any, state: Any, D: Any = None, z: Any = None,
    dt_bias: Any = None, dt_softplus: bool = False,
) -> Any:  # fmt: skip
    """One token of `tc.ssd`, for decoding.

    Args:
        x: batch x heads x P, bf16 or f16.
        dt: f32 batch x heads.
        A: f32 [heads], negative (in CPU memory that is checked).
        B, C: batch x groups x N; groups divide heads.
        state: f32 batch x heads x P x N, which becomes `exp(dt A) state + dt x B`.
        D: f32 [heads], or None.
        z: as x, or None.
        dt_bias: f32 [heads], or None.
        dt_softplus: whether dt is softplus(dt + dt_bias).

    Returns:
        `(state C + D x) silu(z)` after the token, as x.

    Raises:
        LayoutError: shapes that do not fit. DTypeError: other dtypes. ResourceError: two devices.

    Example: `y = tc.ssd_step(x, dt, A, B, C, state, D=D, dt_bias=bias, dt_softplus=True)`
    """
    name, arrays = "ssd_step", (x, dt, A, B, C, state, D, z, dt_bias)
    softplus, given = check_flag(name, "dt_softplus", dt_softplus), present(arrays)
    if (made := again(key := key_of(arrays, (name, softplus)), given)) is not None:
        return made[0]
    batch, heads, dim = shape = _three(name, "x", x)
    _, groups, size = _three(name, "B", B)
    if groups < 1 or heads % groups:
        raise LayoutError(
            f"{name}: the groups of B and C divide the heads of x, got {groups} and {heads}"
        )
    halves, single = (view(x).dtype,), ("f32",)
    for what, value, extents, dtypes, axes in (
        ("B", B, (batch, groups, size), halves, "batch x groups x N"),
        ("C", C, (batch, groups, size), halves, "batch x groups x N"),
        ("dt", dt, (batch, heads), single, "batch x heads"),
        ("state", state, (*shape, size), single, "batch x heads x P x N"),
        ("D", D, (heads,), single, "[heads]"), ("z", z, shape, halves, "of x"),
        ("dt_bias", dt_bias, (heads,), single, "[heads]"),
    ):  # fmt: skip
        if value is not None:
            check(name, what, value, extents, dtypes, axes)
    check_rates(name, A, heads)
    check_devices(name, {"x": x, "dt": dt, "A": A, "B": B, "C": C, "state": state, "D": D, "z": z,
                         "dt_bias": dt_bias})  # fmt: skip
    wide = check_features(name, "N, the state size,", size)
    more = {n: y for n, y in (("D", D), ("z", z), ("bias", dt_bias)) if y is not None}
    make = allocator(x, shape, halves[0])
    out = make()
    if 0 in shape:
        return out
    params = {"dim": wide, "softplus": softplus, "names": tuple(more)}
    launch = Launch(ssd_kernel, (x, dt, A, B, C, state, out), tuple(more.values()), params)
    launch.run()
    remember(key, given, (make,), (out,), (launch,))
    return out


def _three(name: str, what: str, value: Any) -> tuple[int, int, int]:
    """The extents of an array of 16-bit floats with three axes.

    Raises:
        LayoutError: other axes. DTypeError: other dtypes.
    """
    shape = shape_of(value)
    if len(shape) != 3:
        raise LayoutError(f"{name}: {what} has 3 axes, batch x heads x dim, got the shape {shape}")
    check(name, what, value, shape, HALVES, "batch x heads x dim")
    return shape
