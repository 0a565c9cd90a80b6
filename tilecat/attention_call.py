"""A call of attention: its arguments checked, and the kernel's made of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from .array_arguments import check_devices, tile_of
from .attention_choice import NARROWEST, TILE_DIMS, Problem, choose
from .attention_options import HALVES, Options, check_array, check_positive
from .errors import DTypeError, LayoutError, ResourceError
from .kernels.attention_forward import attention_forward as kernel
from .kernels.attention_scores import Mods
from .operators import num_sms
from .ready import Launch, Results, again, allocate, key_of, present, remember
from .runtime.arrays import ITEM_BYTES, ArrayView, empty, view

SCALE_HINT = "for a negative scale, negate q; for zero, every output is the mean of v"

EIGHT = "e4m3"
SHORT = 64  # queries: a consumer's tile has room for those of several heads
ROW_BYTES = 16  # that TMA aligns

_eased: dict[Any, int] = {}  # edges and mods whose widest blocks of keys need too many registers


def attention(
    q: Any, k: Any, v: Any, *, causal: bool | str = False,
    window: tuple[int | None, int | None] | None = None, scale: float | None = None,
    softcap: float | None = None, bias: Any = None, mask_mod: Any = None, score_mod: Any = None,
    cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, sinks: Any = None, scale_q: Any = None,
    scale_k: Any = None, scale_v: Any = None, out: Any = None, lse: Any = None,
    return_lse: bool = False,
) -> Any:  # fmt: skip
    """`softmax(scale q k^T) v` for each head; rows of which every key is hidden give 0.

    A score is `scale q k^T`; then, where given, `softcap tanh(score / softcap)`; then `+ bias`;
    then what score_mod makes of it; then -inf where the key is hidden.

    Args:
        q: B x H x Lq x D, bf16, f16 or e4m3, any strides; D at most 256. Widths between 32, 64,
            96, 128, 192 and 256 compute as the next of them.
        k: B x Hkv x Lk x D; Hkv divides H (grouped-query and multi-query attention).
        v: B x Hkv x Lk x Dv; e4m3 is copied unless Lk is contiguous, as the tensor cores want it.
        causal: query i sees no key behind its own: key i ("top-left", or True), or key
            i + Lk - Lq ("bottom-right").
        window: (left, right): a query sees keys from `left` before its own to `right` behind it;
            None for no limit on a side.
        scale: of the scores, positive; 1/sqrt(D) if None.
        softcap: positive and at most 16384, or None.
        bias: f32, bf16 or f16, broadcast to B x H x Lq x Lk from 2 axes or more: of each at least
            Lk is there. -inf hides a key, and so does what leaves a score below -6e29.
        mask_mod: `f(at, *args)`, a function of `tc.score_mods`' kind that says which keys are seen,
            or a tuple of one and its run-time arguments, tensors and numbers.
        score_mod: `f(s, at, *args)`, or a tuple: a tile of scores in, one out.
        cu_seqlens_q, cu_seqlens_k: s32 [sequences + 1]: where sequences of several lengths begin
            in q, out and in k, v, ascending from 0, the last their end. q is total x H x D then, k
            and v total_k x Hkv x D and Dv, out total x H x Dv, lse H x total; positions count from
            a sequence's first query and key, tensors of mods have total and total_k for Lq and Lk.
            Rows of k and v behind a sequence must be finite, though nobody sees them.
        sinks: f32 [H]: a score of each head without a value.
        scale_q, scale_k, scale_v: of e4m3: f32 that q, k and v are multiplied by, all three: B x H
            and B x Hkv, or B x H x (Lq / 128) and B x Hkv x (Lk / 128) of blocks of 128 rows.
        out: B x H x Lq x Dv of q's dtype (of e4m3 bf16, or f16) to write, or None to allocate it.
        lse: f32 B x H x Lq to write the log-sum-exp to, or None. return_lse: return it too.

    Returns:
        out, or (out, lse): natural logarithm of the sum of e to each of a row's scores (the sink's
        too), f32, B x H x Lq, -inf where all keys are hidden. CUDA arrays run on the GPU on the
        current stream, without waiting; NumPy arrays and CPU tensors run on the PTX machine.

    Raises:
        LayoutError: shapes that do not fit, heads that do not divide, a head dim above 256, a scale
            or soft cap that is not positive. DTypeError: dtypes other than those above.
        ResourceError: arrays on two devices; a CUDA array and no GPU.

    Example: `y = tc.attention(q, k, v, causal=True, window=(1023, None))`
    """
    starts = None if cu_seqlens_q is cu_seqlens_k is None else (cu_seqlens_q, cu_seqlens_k)
    factors = None if scale_q is scale_k is scale_v is None else (scale_q, scale_k, scale_v)
    options = (causal, window, scale, softcap, bias, mask_mod, score_mod, sinks, starts, factors)
    tensors = q, k, v, out, lse
    key, given = key_of(tensors, ("forward", return_lse, *options)), present(tensors)
    if (made := again(key, given)) is None:
        made = _run(key, _complete(given, tensors), out, lse, return_lse, Options(*options))
    return results_of(made, out, lse, return_lse)


def _complete(given: tuple[Any, ...], tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """What is given, of tensors whose first three have to be."""
    for name, x in zip("qkv", tensors, strict=False):
        if x is None:
            raise DTypeError(f"attention: {name} is an array, got None")
    return given


def results_of(made: Any, out: Any, lse: Any, return_lse: bool) -> Any:
    """What a call returns.

    Args:
        made: what was not given of out and lse, in this order.
        out, lse: given, or None.
        return_lse: whether it returns both.
    """
    if not return_lse:
        return made[0] if out is None else out
    return (made[0] if out is None else out), (made[-1] if lse is None else lse)


def is_short(error: ResourceError) -> bool:
    """Whether a kernel's registers were not enough: narrower blocks of keys need less."""
    return any(word in error.message for word in ("spill", "register"))


def _run(
    key: Any, given: tuple[Any, ...], out: Any, lse: Any, read: bool, options: Options
) -> tuple[Any, ...]:
    """Checks, chooses, launches; what was not given of output and (if it is read) log-sum-exp."""
    q, k, v, *_ = given
    if options.starts is not None:
        q, k, v = (heads_first(name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    q, k = rows_apart(q), rows_apart(k)
    v = v if view(v).dtype == EIGHT else rows_apart(v)  # see keys_last
    query, keys, value = view(q), view(k), view(v)
    batch, heads, queries, length = shape = _check_shapes(query, keys, value)
    starts, factors = options.sequences(queries, length), options.scales(shape, keys.shape[1])
    eight = query.dtype == EIGHT
    dtype = query.dtype if not eight else "bf16" if out is None else str(view(out).dtype)
    scale = query.shape[3] ** -0.5 if options.scale is None else options.scale
    check_positive("scale", scale, SCALE_HINT)
    edges, args = options.edges()
    mods, more = options.mods(shape)
    columns = value.shape[3]
    found = _results(
        given[0], (batch, heads, queries, columns), dtype, out, lse, read, bool(starts)
    )
    out, lse = found.arrays
    whole = (heads_first("out", out), lse[None]) if starts else (out, lse)
    if length == 0 or columns == 0:
        whole[0][...] = 0
        whole[1][...] = -math.inf if options.sinks is None else options.sinks[None, :, None]
        return found.made
    if queries == 1 and edges.right and edges.from_end:  # its own key is the last
        edges, args = replace(edges, right=False), args[: edges.left]
    if not (starts or factors or edges.left or edges.right) and mods == Mods():
        q, *results = _heads_as_rows(q, *whole, keys.shape[1])
        whole = (results[0], results[1])
    _, heads, queries, _ = view(q).shape
    sequences = max(view(starts[0]).shape[0] - 1, 1) if starts else 1
    limits = iter(args)
    problem = Problem(
        query.shape[3], columns, -(-queries // sequences), -(-length // sequences),
        batch * heads * sequences, heads // max(keys.shape[1], 1),
        next(limits) if edges.left else None, next(limits) if edges.right else None,
        length - queries if edges.from_end else 0, num_sms(query.device), bool(starts),
        8 if eight else 16, 32 if any(map(_is_bytes, more)) else 16,
    )  # fmt: skip
    v = keys_last(v, value) if eight else v
    fixed = {"edges": edges, "mods": mods, "packed": bool(starts), "scaled": bool(factors)}
    while True:
        params, order = choose(problem, _eased.get((edges, mods), 0))
        rest = (float(scale), *starts, *order, *args, *factors, *more)
        launch = Launch(kernel, (q, k, v, *whole), rest, {**fixed, **params})
        try:
            launch.run()
            break
        except ResourceError as error:
            if not is_short(error) or params["tile_k"] <= NARROWEST:
                raise
            _eased[edges, mods] = _eased.get((edges, mods), 0) + 1
    remember(key, given, found.makers, found.made, [launch], shared=found.shared)
    return found.made


def _is_bytes(x: Any) -> bool:
    return hasattr(x, "shape") and ITEM_BYTES[view(x).dtype] == 1


def _heads_as_rows(q: Any, out: Any, lse: Any, groups: int) -> tuple[Any, Any, Any]:
    """Short queries of heads that share keys as rows of one head, where they lie so: views.

    Keys are then read once for all of them, as in decoding.
    """
    batch, heads, queries, _ = view(q).shape
    strides = [view(x).strides for x in (q, out, lse)]
    if heads == groups or queries >= SHORT or not (
        queries == 1 or all(found[1] == queries * found[2] for found in strides)
    ):
        return q, out, lse
    shape = (batch, groups, heads // groups * queries)
    wide = [x.reshape(*shape, view(x).shape[3]) for x in (q, out)]  # -1 is no extent of nothing
    return wide[0], wide[1], lse.reshape(shape)


def rows_apart(x: Any) -> Any:
    """An array whose rows lie one element after another: itself, or (of columns that do) a copy."""
    array = view(x)
    if len(array.shape) < 2 or array.strides[-1] == 1 or array.strides[-2] != 1:
        return x
    made = empty(x, tuple(array.shape), array.dtype)
    made[...] = x
    return made


def keys_last(v: Any, array: ArrayView) -> Any:
    """The values with Lk contiguous and within reach of TMA: themselves, or a copy."""
    *outer, rows, columns = array.strides
    if rows == 1 and not any(x % ROW_BYTES for x in (*outer, columns)):
        return v
    batch, groups, length, dim = array.shape
    made = empty(v, (batch, groups, dim, -(-length // ROW_BYTES) * ROW_BYTES), array.dtype)
    turned = made[..., :length].swapaxes(-1, -2)
    turned[...] = v
    return turned


def heads_first(name: str, x: Any) -> Any:
    """A packed batch, rows x heads x dim, as 1 x heads x rows x dim: a view.

    Raises:
        LayoutError: other than 3 axes.
    """
    shape = tuple(view(x).shape)
    if len(shape) != 3:
        raise LayoutError(
            f"attention: with cu_seqlens {name} has 3 axes (rows of all sequences, heads, dim), "
            f"got shape {shape}"
        )
    return x.swapaxes(0, 1)[None]


def _results(
    like: Any, shape: tuple[int, int, int, int], dtype: str, out: Any, lse: Any, read: bool,
    packed: bool,
) -> Results:  # fmt: skip
    """Results that fit, or new ones.

    Args:
        like: q, as given.
        shape: B, H, Lq, Dv.
        dtype: of the output.
        out, lse: given, or None.
        read: whether anybody reads the log-sum-exp.
        packed: whether they have no axis of batches, and out has its heads behind its rows.

    Raises:
        LayoutError: what is given has another shape.
        DTypeError: or another dtype.
    """
    batch, heads, queries, columns = shape
    rows = (heads, queries) if packed else (batch, heads, queries)
    whole = (queries, heads, columns) if packed else shape
    names = ("total x H x Dv", "H x total") if packed else ("B x H x Lq x Dv", "B x H x Lq")
    if out is not None:
        known = HALVES if view(like).dtype == EIGHT else (dtype,)
        check_array("out", out, whole, known, names[0])
    if lse is not None:
        check_array("lse", lse, rows, ("f32",), names[1])
    return allocate(like, out, lse, read, (whole, rows), dtype)


def _check_shapes(query: ArrayView, keys: ArrayView, value: ArrayView) -> tuple[int, int, int, int]:
    """B, H, Lq and Lk.

    Raises:
        LayoutError: axes that do not fit, or head dims without a tile.
        DTypeError: dtypes that are not multiplied.
        ResourceError: arrays on several devices.
    """
    arrays = {"q": query, "k": keys, "v": value}
    for name, array in arrays.items():
        if len(array.shape) != 4:
            raise LayoutError(
                f"attention: {name} has 4 axes (batch, heads, length, dim), got shape {array.shape}"
            )
        if array.dtype not in (*HALVES, EIGHT) or array.dtype != query.dtype:
            raise DTypeError(
                f"attention: q, k and v have one dtype, {', '.join(HALVES)} or {EIGHT}, got "
                + ", ".join(f"{n} of {x.dtype}" for n, x in arrays.items())
            )
        dim = array.shape[3]
        tile_of("attention", "the head dim", dim, TILE_DIMS, f"{name} with {dim}")
    shown = ", ".join(f"{name} {tuple(array.shape)}" for name, array in arrays.items())
    check_devices("attention", arrays)
    (batch, heads, queries, _), (_, groups, length, _) = query.shape, keys.shape
    for name, axis, pair in (
        ("B", 0, ("q", "k")), ("D", 3, ("q", "k")), ("B", 0, ("k", "v")), ("Hkv", 1, ("k", "v")),
        ("Lk", 2, ("k", "v")),
    ):  # fmt: skip
        first, second = (arrays[which].shape[axis] for which in pair)
        if first != second:
            raise LayoutError(
                f"attention: extent {name} must agree, got {pair[0]} with {name}={first} and "
                f"{pair[1]} with {name}={second} (shapes {shown})",
                hint="q is B x H x Lq x D, k is B x Hkv x Lk x D, v is B x Hkv x Lk x Dv",
            )
    if heads and (groups == 0 or heads % groups):
        raise LayoutError(
            f"attention: the heads of k and v divide those of q, got {heads} and {groups}"
        )
    return batch, heads, queries, length
