"""A call of attention's gradients: its arguments checked, and three kernels called."""

from __future__ import annotations

from typing import Any

from .attention_backward_ready import Launch, again, remember
from .attention_options import Options, check_positive
from .errors import DTypeError, LayoutError, ResourceError
from .kernels.attention_backward import attention_backward as kernel
from .kernels.attention_rows import ROWS, attention_delta, attention_dq
from .runtime.arrays import ArrayView, allocator, view

HALVES = ("bf16", "f16")
# By columns of tiles: parameters of the kernel.
CONFIGS = {
    64: {"tile_q": 64, "consumers": 2, "stages": 2},
    128: {"tile_q": 64, "consumers": 2, "stages": 2},
}
TILE_DIMS = tuple(CONFIGS)


def attention_backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, causal: bool | str = False,
    window: tuple[int | None, int | None] | None = None, scale: float | None = None,
    softcap: float | None = None, bias: Any = None, mask_mod: Any = None, score_mod: Any = None,
    cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, sinks: Any = None,
    deterministic: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """Gradients dq, dk, dv of `tc.attention(q, k, v, ...)`, given dout of its output.

    Args:
        dout: B x H x Lq x Dv, the dtype of q.
        q: B x H x Lq x D, bf16 or f16, any strides.
        k: B x Hkv x Lk x D; Hkv divides H, and dk sums over the heads that share a key.
        v: B x Hkv x Lk x Dv.
        out: what the forward gave, B x H x Lq x Dv.
        lse: its log-sum-exp, f32, B x H x Lq; rows of -inf see no key, and have gradients of 0.
        causal, window, scale, softcap, bias, mask_mod, score_mod, sinks: as in the forward. Bias
            and arguments of functions have no gradients here, sinks neither: they are in lse.
            A score_mod is differentiated (`tc.derivative`).
        cu_seqlens_q, cu_seqlens_k: not supported yet.
        deterministic: sums in a fixed order. Not supported yet.

    Returns:
        dq, dk, dv, of the dtype and shapes of q, k, v. CUDA arrays run on the GPU on the current
        stream, without waiting; NumPy arrays and CPU tensors run on the PTX machine.

    Raises:
        LayoutError: shapes that do not fit, an option that is not supported.
        DTypeError: dtypes other than those above.
        ResourceError: arrays on two devices; a CUDA array and no GPU.

    Example: `dq, dk, dv = tc.attention_backward(dy, q, k, v, y, lse)`
    """
    for name, value in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if value is not None:
            raise LayoutError(f"attention_backward: {name} is not supported yet")
    if deterministic:
        raise LayoutError("attention_backward: deterministic sums are not supported yet")
    options = Options(causal, window, scale, softcap, bias, mask_mod, score_mod, None, None)
    given = (dout, q, k, v, out, lse)
    key = options.key(*given)
    return again(key, given) or _run(key, given, options)


def _run(key: Any, given: tuple[Any, ...], options: Options) -> tuple[Any, ...]:
    """Checks, chooses, allocates and launches; see `attention_backward`."""
    dout, q, k, v, out, lse = given
    batch, heads, queries, keys = _check(dout, q, k, v, out, lse)
    query, value = view(q), view(v)
    makers = tuple(allocator(x, tuple(view(x).shape), query.dtype) for x in (q, k, v))
    made = tuple(make() for make in makers)
    if 0 in (batch, heads, queries, keys):
        for array in made:
            array[...] = 0
        return made
    dims = {"dim": tile_dim(query.shape[3]), "dim_v": tile_dim(value.shape[3])}
    edges, args = options.edges()
    mods, more = options.mods((batch, heads, queries, keys))
    config = CONFIGS[dims["dim"]]
    order = "longest" if edges.left or edges.right else "sequence"
    rows = -(-queries // config["tile_q"]) * config["tile_q"]
    shapes = (batch, heads, rows), (batch, heads, rows), (batch, heads, rows * dims["dim"])
    makers += tuple(allocator(q, shape, "f32") for shape in shapes)
    *stats, sums = extra = tuple(make() for make in makers[3:])
    scale = query.shape[3] ** -0.5 if options.scale is None else options.scale
    check_positive("scale", scale, "for a negative scale, negate q; for zero, the mean of v")
    cut = 1 if config["tile_q"] == ROWS * config["consumers"] else config["consumers"]
    main = {**dims, **config, "order": order, "edges": edges, "mods": mods}
    inputs, rest = (q, k, v, dout, *stats, sums, *made[1:]), (float(scale), *args, *more)
    launches = (
        Launch(attention_delta, (out, dout, lse, *stats, sums), (), dims),
        Launch(kernel, inputs, rest, main),
        Launch(attention_dq, (sums, made[0]), rest[:1], {"dim": dims["dim"], "cut": cut}),
    )
    for launch in launches:
        launch.run()
    if key is not None:
        remember(key, given, makers, made + extra, launches)
    return made


def tile_dim(dim: int) -> int:
    """Columns of the narrowest tile that holds a head dim.

    Raises:
        LayoutError: there is none.
    """
    found = next((d for d in TILE_DIMS if d >= dim >= 1), None)
    if found is None:
        raise LayoutError(
            f"attention_backward: the head dim is 1 to {TILE_DIMS[-1]}, computed in tiles of "
            f"{', '.join(map(str, TILE_DIMS))} columns, got {dim}"
        )
    return found


def _check(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any) -> tuple[int, int, int, int]:
    """B, H, Lq and Lk.

    Raises:
        LayoutError: axes that do not fit.
        DTypeError: dtypes that are not multiplied.
        ResourceError: arrays on several devices.
    """
    arrays = {name: view(x) for name, x in
              (("dout", dout), ("q", q), ("k", k), ("v", v), ("out", out), ("lse", lse))}
    query, key, value = arrays["q"], arrays["k"], arrays["v"]
    for name, array in arrays.items():
        axes = 3 if name == "lse" else 4
        if len(array.shape) != axes:
            raise LayoutError(
                f"attention_backward: {name} has {axes} axes, got the shape {tuple(array.shape)}"
            )
    _check_dtypes(arrays)
    (batch, heads, queries, dim), (_, groups, keys, _) = query.shape, key.shape
    wanted = {
        "k": (batch, groups, keys, dim), "v": (batch, groups, keys, value.shape[3]),
        "out": (batch, heads, queries, value.shape[3]),
        "dout": (batch, heads, queries, value.shape[3]), "lse": (batch, heads, queries),
    }  # fmt: skip
    for name, shape in wanted.items():
        if tuple(arrays[name].shape) != shape:
            raise LayoutError(
                f"attention_backward: {name} has the shape {shape} beside q {tuple(query.shape)} "
                f"and v {tuple(value.shape)}, got {tuple(arrays[name].shape)}"
            )
    if heads and (groups == 0 or heads % groups):
        raise LayoutError(
            f"attention_backward: the heads of k and v divide those of q, got {heads} and {groups}"
        )
    return batch, heads, queries, keys


def _check_dtypes(arrays: dict[str, ArrayView]) -> None:
    halves = {name: array.dtype for name, array in arrays.items() if name != "lse"}
    if len(set(halves.values())) > 1 or halves["q"] not in HALVES or arrays["lse"].dtype != "f32":
        raise DTypeError(
            f"attention_backward: arrays have one dtype, {' or '.join(HALVES)}, and lse f32, got "
            + ", ".join(f"{name} of {array.dtype}" for name, array in arrays.items())
        )
    if len({array.device for array in arrays.values()}) > 1:
        raise ResourceError(
            "attention_backward: arrays are on one device, got "
            + ", ".join(f"{name} on {array.device}" for name, array in arrays.items()),
            hint="move them with .to(device)",
        )


