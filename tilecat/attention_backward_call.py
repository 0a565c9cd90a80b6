"""A call of attention's gradients: its arguments checked, and three kernels called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .attention_call import SCALE_HINT, heads_first
from .attention_options import Options, check_positive
from .errors import DTypeError, LayoutError, ResourceError
from .kernels.attention_backward import attention_backward as kernel
from .kernels.attention_keys import parts_of
from .kernels.attention_rows import ROWS, attention_delta, attention_dq
from .kernels.attention_scores import Mods
from .kernels.score_mods import alibi
from .ready import Launch, again, key_of, remember
from .row_arguments import first_that_fits
from .runtime.arrays import ArrayView, allocator, view

HALVES = ("bf16", "f16")
NAMES = ("dout", "q", "k", "v", "out", "lse")
# By columns of tiles: parameters of the kernel, where scores are products and edges alone.
CONFIGS: dict[int, dict[str, Any]] = {
    64: {"consumers": 2, "stages": 2, "tile_q": 128, "held": True},
    96: {"consumers": 2, "stages": 2},
    128: {"consumers": 2, "stages": 2},
    192: {"consumers": 1, "stages": 2},
    256: {"consumers": 1, "stages": 2},
}
APART = 192  # columns from which registers hold dK or dV of 64 keys, not both: two launches
APART_BENT = 128  # of scores that have a slope, and of windows with scores that change
# What one launch, two, three or four make: each line's hold less in registers than those of the
# line before. Where they are not enough still, which depends on what changes scores, the next runs.
DV, DQ, DK = ({"grads": (name,)} for name in ("dv", "dq", "dk"))
LINES: tuple[dict[str, Any], ...] = (
    {"launches": ({"grads": ("dq", "dk", "dv")},)},
    {"launches": (DV, {"grads": ("dq", "dk")})},
    {"launches": (DV, DK, DQ)},
    {"launches": (DV, DK | {"half": 0}, DK | {"half": 1}, DQ)},
)
PANEL = 64  # columns, 128 bytes: parts of a shared tile are whole panels
_fitting: dict[Any, int] = {}  # how many lines further than the first to try
TILE_DIMS = tuple(CONFIGS)


def attention_backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, causal: bool | str = False,
    window: tuple[int | None, int | None] | None = None, scale: float | None = None,
    softcap: float | None = None, bias: Any = None, mask_mod: Any = None, score_mod: Any = None,
    cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, sinks: Any = None,
    deterministic: bool = False, bias_grad: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """Gradients dq, dk, dv of `tc.attention(q, k, v, ...)`, given dout of its output.

    Args:
        dout: B x H x Lq x Dv, the dtype of q.
        q: B x H x Lq x D, bf16 or f16, any strides; D at most 256, computed as the next of 64, 96,
            128, 192 and 256.
        k: B x Hkv x Lk x D; Hkv divides H, and dk sums over the heads that share a key.
        v: B x Hkv x Lk x Dv.
        out: what the forward gave, B x H x Lq x Dv.
        lse: its log-sum-exp, f32, B x H x Lq; rows of -inf see no key, and have gradients of 0.
        causal, window, scale, softcap, bias, mask_mod, score_mod, sinks: as in the forward.
            Arguments of functions have no gradients here, sinks neither: they are in lse. A
            score_mod is differentiated (`tc.derivative`).
        cu_seqlens_q, cu_seqlens_k: as in the forward, with q of total x H x D, and so on.
        deterministic: dq is added in the order of the keys, and comes out the same each time. Edges
            save no time then. (dk and dv always do.)
        bias_grad: the bias's gradient too: summed, in no fixed order, over axes of 1 that
            broadcast.

    Returns:
        dq, dk, dv, of the dtype and shapes of q, k, v; with bias_grad dbias too, as bias. CUDA
        arrays run on the GPU on the current stream, without waiting; NumPy arrays and CPU tensors
        run on the PTX machine.

    Raises:
        LayoutError: shapes that do not fit, an option that is not supported; bias_grad without a
            bias, beside a score_mod, or of a bias that broadcasts over queries or keys.
        DTypeError: dtypes other than those above.
        ResourceError: arrays on two devices; a CUDA array and no GPU.

    Example: `dq, dk, dv = tc.attention_backward(dy, q, k, v, y, lse)`
    """
    starts = None if cu_seqlens_q is cu_seqlens_k is None else (cu_seqlens_q, cu_seqlens_k)
    options = Options(causal, window, scale, softcap, bias, mask_mod, score_mod, None, starts)
    given = (dout, q, k, v, out, lse)
    if bias_grad:
        return _run(None, given, options, bool(deterministic), True)
    key = key_of(given, ("backward", bool(deterministic), causal, window, scale, softcap, bias,
                         mask_mod, score_mod, starts))  # fmt: skip
    made = again(key, given) or _run(key, given, options, bool(deterministic))
    return made[0], made[1], made[2]


def _run(
    key: Any, given: tuple[Any, ...], options: Options, ordered: bool, biased: bool = False
) -> tuple[Any, ...]:
    """Checks, chooses, allocates and launches; gradients and workspace."""
    whole = given
    if options.starts is not None:
        *tensors, sums = given
        whole = (*(heads_first(n, x) for n, x in zip(NAMES, tensors, strict=False)), sums[None])
    dout, q, k, v, out, lse = whole
    shape = batch, heads, queries, keys = _check(whole)
    starts = options.sequences(queries, keys)
    dtype, dims = view(q).dtype, (view(q).shape[3], view(v).shape[3])
    scale = dims[0] ** -0.5 if options.scale is None else options.scale
    check_positive("scale", scale, SCALE_HINT)
    edges, args = options.edges()
    mods, more = options.mods(shape)
    makers = tuple(allocator(x, tuple(view(x).shape), dtype) for x in given[1:4])
    of_bias = (_zeroed(allocator(q, _biased(options, shape), "f32"))(),) if biased else ()
    if 0 in shape:
        made = tuple(make() for make in makers)
        for array in made:
            array[...] = 0
        return made + of_bias
    wide = {"dim": tile_dim(dims[0]), "dim_v": tile_dim(dims[1])}
    bent = _has_slope(options) or edges.left and mods.score is not None
    config = {"tile_q": ROWS, **CONFIGS[max(wide.values())]}
    if ordered or edges.left or mods != Mods(sinks=mods.sinks):  # that takes registers too
        config |= {"tile_q": ROWS, "held": False}
    rows, sequences = config["tile_q"], view(starts[0]).shape[0] - 1 if starts else 1
    apart = max(wide.values()) >= (APART_BENT if bent else APART)
    cut = parts_of(wide["dim"], rows, config["consumers"])
    behind = (queries // rows + sequences) * rows  # as `blocks_of` counts blocks
    part = ROWS * wide["dim"] // cut
    sizes = ((behind,), (behind,), (behind // ROWS * cut, part))
    makers += tuple(allocator(q, (batch, heads, *size), "f32") for size in sizes)
    if ordered:
        makers += (_zeroed(allocator(q, (batch, heads, behind // ROWS * cut), "s32")),)
    made = tuple(make() for make in makers)
    gradients = tuple(heads_first("q", x) if starts else x for x in made[:3])
    lse2, delta, sums, *turns = made[3:]
    main = {"order": "longest" if edges.left or edges.right else "sequence", "edges": edges,
            "mods": mods, "packed": bool(starts), "ordered": ordered, "biased": biased}  # fmt: skip
    main_args = (float(scale), *starts, *turns, *of_bias, *args, *more)
    params = {**main, **wide, **config, "part": part}
    before = Launch(attention_delta, (out, dout, lse, lse2, delta, sums), starts[:1],
                    {**wide, "part": part, "tile_q": rows})  # fmt: skip
    after = Launch(attention_dq, (sums, gradients[0]), (float(scale), *starts[:1]),
                   {"dim": wide["dim"], "part": part, "tile_q": rows})  # fmt: skip
    operands = (q, k, v, dout, lse2, delta, sums, *gradients[1:])

    def run(line: dict[str, Any]) -> list[Launch]:
        made = [Launch(kernel, operands, main_args, params | more) for more in line["launches"]]
        return _ran([before, *made, after])

    lines = LINES[apart : None if wide["dim"] % (2 * PANEL) == 0 else -1]
    launches = first_that_fits(kernel, _fitting, (dtype, *params.values()), lines, run)
    remember(key, given, makers, (*gradients, *made[3:]), launches)
    return made[:3] + tuple(_like(x, options.bias) for x in of_bias)


def _ran(launches: list[Launch]) -> list[Launch]:
    """Launches, after they have run."""
    for launch in launches:
        launch.run()
    return launches


def _has_slope(options: Options) -> bool:
    """Whether scores grow by more, or less, than products: of a function it is not known before."""
    function = options.score_mod[0] if isinstance(options.score_mod, tuple) else options.score_mod
    return options.softcap is not None or function not in (None, alibi)


def _biased(options: Options, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a bias that has a gradient.

    Raises:
        LayoutError: there is none, or a gradient that is not made.
    """
    bias = options.bias
    if bias is None or options.score_mod is not None or tuple(bias.shape[-2:]) != shape[2:]:
        given = "a score_mod" if options.score_mod is not None else f"{bias!r}"
        given = given if bias is None or options.score_mod else f"the shape {tuple(bias.shape)}"
        raise LayoutError(
            "attention_backward: bias_grad is the gradient of a bias of Lq x Lk, broadcast over "
            f"batch and heads at most, and without a score_mod, got {given}"
        )
    return tuple(bias.shape)


def _like(made: Any, like: Any) -> Any:
    """An f32 array in the dtype of another."""
    if made.dtype == like.dtype:
        return made
    return made.to(like.dtype) if hasattr(made, "to") else made.astype(like.dtype)


def _zeroed(make: Callable[[], Any]) -> Callable[[], Any]:
    def zeros() -> Any:
        made = make()
        made[...] = 0
        return made

    return zeros


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


def _check(given: tuple[Any, ...]) -> tuple[int, int, int, int]:
    """B, H, Lq and Lk.

    Raises:
        LayoutError: axes that do not fit.
        DTypeError: dtypes that are not multiplied.
        ResourceError: arrays on several devices.
    """
    arrays = {name: view(x) for name, x in zip(NAMES, given, strict=True)}
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


