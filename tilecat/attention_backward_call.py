"""A call of attention's gradients: its arguments checked, and three kernels called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .array_arguments import check_devices, tile_of
from .attention_call import SCALE_HINT, heads_first, rows_apart
from .attention_options import Options, check_array, check_positive
from .errors import DTypeError, LayoutError
from .kernels.attention_backward import attention_backward as kernel
from .kernels.attention_keys import parts_of
from .kernels.attention_rows import ROWS, attention_delta, attention_dq
from .kernels.attention_scores import Mods
from .kernels.score_mods import alibi
from .ready import Launch, again, key_of, remember
from .row_arguments import check_flag, first_that_fits
from .runtime.arrays import ArrayView, allocator, check_address, view

HALVES = ("bf16", "f16")
BIAS = 6  # place of its gradient among what a call makes
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
# What launches make, and of how many columns at a time: each line's hold less in registers than
# those of the line before. Where they are not enough still, which depends on what changes scores,
# the next runs. The last two's have a consumer each, which may hold most, 255 a thread; the last's
# make dS of few queries at a time, and may spill: whatever functions compute, they run.
DQ, DK, DV = (("dq",), 256), (("dk",), 256), (("dv",), 256)
PARTS = (("dv",), 64), (("dk",), 64), DQ
LINES: tuple[tuple[dict[str, Any], tuple[tuple[tuple[str, ...], int], ...]], ...] = (
    ({}, ((("dq", "dk", "dv"), 256),)),
    ({}, (DV, (("dq", "dk"), 256))),
    ({}, (DV, DK, DQ)),
    ({}, ((("dv",), 128), (("dk",), 128), DQ)),
    ({}, PARTS),
    ({"consumers": 1, "held": False}, PARTS),
    ({"consumers": 1, "held": False, "few": True}, PARTS),
)
PANEL = 64  # columns, 128 bytes, or half: parts of a shared tile are whole panels
_fitting: dict[Any, int] = {}  # how many lines further than the first to try
TILE_DIMS = tuple(CONFIGS)


def attention_backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, causal: bool | str = False,
    window: tuple[int | None, int | None] | None = None, scale: float | None = None,
    softcap: float | None = None, bias: Any = None, mask_mod: Any = None, score_mod: Any = None,
    cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, sinks: Any = None,
    deterministic: bool = False, bias_grad: bool = False, sinks_grad: bool = False,
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
            Arguments of functions have no gradients here. A score_mod is differentiated
            (`tc.derivative`).
        cu_seqlens_q, cu_seqlens_k: as in the forward, with q of total x H x D, and so on.
        deterministic: dq is added in the order of the keys, and comes out the same each time. Edges
            save no time then. (dk, dv and those of sinks always do; the bias's does not.)
        bias_grad: the bias's gradient too, summed over axes of 1 that broadcast.
        sinks_grad: the sinks' gradient too.

    Returns:
        dq, dk, dv, of the dtype and shapes of q, k, v; then dbias as bias, and dsinks as sinks, of
        those that are asked for. CUDA arrays run on the GPU on the current stream, without waiting;
        NumPy arrays and CPU tensors run on the PTX machine.

    Raises:
        LayoutError: shapes that do not fit, an option that is not supported; a gradient of what is
            not given.
        DTypeError: dtypes other than those above.
        ResourceError: arrays on two devices; a CUDA array and no GPU.

    Example: `dq, dk, dv = tc.attention_backward(dy, q, k, v, y, lse)`
    """
    for name, x, wanted in (("bias", bias, bias_grad), ("sinks", sinks, sinks_grad)):
        if wanted and x is None:
            raise LayoutError(f"attention_backward: {name}_grad is its gradient, got no {name}")
    sinks = sinks if sinks_grad else None  # else they are in lse
    starts = None if cu_seqlens_q is cu_seqlens_k is None else (cu_seqlens_q, cu_seqlens_k)
    options = causal, window, scale, softcap, bias, mask_mod, score_mod, None, starts
    given = (dout, q, k, v, out, lse)
    asked = (check_flag("attention_backward", "deterministic", deterministic),
             check_flag("attention_backward", "bias_grad", bias_grad), sinks)  # fmt: skip
    key = key_of(given, ("backward", *asked, *options))
    made = again(key, given) or _run(key, given, Options(*options), *asked)
    more: list[Any] = [_like(made[BIAS], bias)] if bias_grad else []
    if sinks is not None:
        more.append(-made[-1].sum((0, 2)))
    return (*made[:3], *more)


def _planes(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arrays of a packed batch as those of a batch of 1."""
    *tensors, sums = given
    view(sums)
    return (*(heads_first(n, x) for n, x in zip(NAMES, tensors, strict=False)), sums[None])


def _run(
    key: Any, given: tuple[Any, ...], options: Options, ordered: bool, biased: bool, sinks: Any
) -> tuple[Any, ...]:
    """Checks, chooses, allocates and launches; gradients and workspace."""
    whole = given
    if options.starts is not None:
        whole = _planes(given)
    dout, q, k, v, out, lse = whole = (*(rows_apart(x) for x in whole[:5]), whole[5])
    shape = _check(whole)
    starts = options.sequences(*shape[2:])
    dtype, dims = view(q).dtype, (view(q).shape[3], view(v).shape[3])
    scale = dims[0] ** -0.5 if options.scale is None else options.scale
    check_positive("scale", scale, SCALE_HINT)
    edges, args = options.edges()
    mods, more = options.mods(shape)
    _ = sinks is None or check_array("sinks", sinks, shape[1:2], ("f32",), "H")
    dim, dim_v = (tile_of("attention_backward", "the head dim", x, TILE_DIMS) for x in dims)
    wide = {"dim": dim, "dim_v": dim_v}
    bent = _has_slope(options) or edges.left and mods.score is not None
    config = {"tile_q": ROWS, **CONFIGS[max(wide.values())]}
    if ordered or edges.left or mods != Mods():  # that takes registers too
        config |= {"tile_q": ROWS, "held": False}
    rows, apart = config["tile_q"], max(wide.values()) >= (APART_BENT if bent else APART)
    cut = parts_of(wide["dim"], rows, config["consumers"])
    part = ROWS * wide["dim"] // cut
    makers = tuple(allocator(x, tuple(view(x).shape), dtype) for x in given[1:4])
    makers += _workspace(q, shape, starts, rows, (cut, part), options.bias if biased else None,
                         ordered, sinks is not None)  # fmt: skip
    made = tuple(make() for make in makers)
    if 0 in shape:
        for array in made:
            array[...] = 0
        return made
    gradients = tuple(heads_first("q", x) if starts else x for x in made[:3])
    (lse2, delta, sums), of_bias = made[3:BIAS], made[BIAS : BIAS + biased]
    turns = made[BIAS + biased :][:ordered]
    shares = made[-1:] if sinks is not None else ()
    of_keys = biased and _of_keys(options.bias, shape)
    main = {"order": "longest" if edges.left or edges.right else "sequence", "edges": edges,
            "mods": mods, "packed": bool(starts), "ordered": ordered,
            "biased": "keys" if of_keys else "scores" if biased else None}  # fmt: skip
    rest = [x.reshape(*x.shape[:-2], x.shape[-1]) if of_keys else x for x in of_bias]
    main_args = (float(scale), *starts, *turns, *rest, *args, *more)
    params = {**main, **wide, **config, "part": part}
    before = Launch(attention_delta, (out, dout, lse, lse2, delta, sums),
                    (*starts[:1], *((sinks, *shares) if shares else ())),
                    {**wide, "part": part, "tile_q": rows, "sunk": bool(shares)})  # fmt: skip
    after = Launch(attention_dq, (sums, gradients[0]), (float(scale), *starts[:1]),
                   {"dim": wide["dim"], "part": part, "tile_q": rows})  # fmt: skip
    operands = (q, k, v, dout, lse2, delta, sums, *gradients[1:])

    def run(line: tuple[dict[str, Any], ...]) -> list[Launch]:
        made = [Launch(kernel, operands, main_args, params | more) for more in line]
        return _ran([before, *made, after])

    ends = None if rows == ROWS else -2  # the last are not for blocks of more queries
    lines = [_pieces(*line, wide["dim"], wide["dim_v"]) for line in LINES[apart:ends]]
    launches = first_that_fits(kernel, _fitting, (dtype, *params.values()), lines, run)
    remember(key, given, makers, (*gradients, *made[3:]), launches)
    return made


def _workspace(
    q: Any, shape: tuple[int, int, int, int], starts: tuple[Any, ...], rows: int,
    parts: tuple[int, int], bias: Any, ordered: bool, sunk: bool,
) -> tuple[Callable[[], Any], ...]:  # fmt: skip
    """Makers of LSE2, Delta and Sums; then, where wanted, of dbias, counters, shares of sinks.

    Args:
        q: an array of the call.
        shape: of the scores.
        starts: where sequences begin; or empty.
        rows: queries of a block.
        parts: of 64 rows of dq, and their elements.
        bias: that has a gradient, or None.
        ordered: whether blocks of keys have turns.
        sunk: whether sinks have a gradient.
    """
    batch, heads, queries, _ = shape
    sequences = view(starts[0]).shape[0] - 1 if starts else 1
    behind = (queries // rows + sequences) * rows  # as `blocks_of` counts blocks
    plane, (cut, part) = (batch, heads), parts
    sizes = ((behind,), (behind,), (behind // ROWS * cut, part))
    makers = tuple(allocator(q, (*plane, *size), "f32") for size in sizes)
    if bias is not None:
        makers += (_zeroed(allocator(q, tuple(bias.shape), "f32")),)
    if ordered:
        makers += (_zeroed(allocator(q, (*plane, behind // ROWS * cut), "s32")),)
    if sunk:  # of a packed batch not all blocks are written
        makers += (_zeroed(allocator(q, (*plane, behind // ROWS), "f32")),)
    return makers


def _pieces(
    params: dict[str, Any], line: tuple[tuple[tuple[str, ...], int], ...], dim: int, dim_v: int
) -> tuple[dict[str, Any], ...]:
    """Parameters of the launches of a line: parts of columns are whole panels."""
    found: list[dict[str, Any]] = []
    for grads, most in line:
        cols = dim_v if grads == ("dv",) else dim
        panel = PANEL if cols % PANEL == 0 else PANEL // 2
        counts = (n for n in range(-(-cols // most), cols // panel + 1) if cols % (n * panel) == 0)
        count = next(counts, 1)
        found += ({**params, "grads": grads, "piece": (n, count)} for n in range(count))
    return tuple(found)


def _ran(launches: list[Launch]) -> list[Launch]:
    """Launches, after they have run."""
    for launch in launches:
        launch.run()
    return launches


def _has_slope(options: Options) -> bool:
    """Whether scores grow by more, or less, than products: of a function it is not known before."""
    function = options.score_mod[0] if isinstance(options.score_mod, tuple) else options.score_mod
    return options.softcap is not None or function not in (None, alibi)


def _of_keys(bias: Any, shape: tuple[int, ...]) -> bool:
    """Whether all queries have one bias, which has one gradient."""
    return tuple(bias.shape[-2:]) == (1, shape[3]) and shape[2] != 1


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
        check_address("attention_backward", name, array)
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
    check_devices("attention_backward", arrays)


