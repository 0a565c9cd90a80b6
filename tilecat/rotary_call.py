"""Calls of rotary embedding: arguments checked, tiles chosen, the kernel called."""

from __future__ import annotations

import math
from typing import Any

from .array_arguments import array_of, check_devices
from .errors import DTypeError, LayoutError
from .kernels.rotary import TOKENS, rotary
from .row_arguments import FLOATS, check_flag, first_that_fits
from .runtime.arrays import ITEM_BYTES, ArrayView, empty, view

WARPS = 4  # of a CTA
FEW_TASKS = 32 << 10  # 20 for each warp of an H200
STREAM_BYTES = 768 << 20  # arrays that are many times the L2, of 60 MB
_fitting: dict[Any, int] = {}
Options = tuple[bool, bool, Any, Any, Any, bool]  # those of a call, in its order


def apply_rotary(
    x: Any, cos: Any, sin: Any, interleaved: bool = False, inplace: bool = False,
    seqlen_offsets: Any = 0, cu_seqlens: Any = None, max_seqlen: int | None = None, *,
    conjugate: bool = False,
) -> Any:  # fmt: skip
    """Turns pairs of columns of each token by the angle of its position: `flash_attn`'s arguments.

    `(a, b) -> (a cos - b sin, b cos + a sin)`, in f32, rounded once, of the first 2 R columns; the
    others are copied. The gradient is the same call with `conjugate=True`.

    Args:
        x: B x N x H x D, bf16, f16 or f32, any strides; with cu_seqlens total x H x D.
        cos: positions x R, f32, bf16 or f16; 2 R at most D.
        sin: the same.
        interleaved: pairs are columns (2i, 2i + 1), not (i, i + R).
        inplace: write to x.
        seqlen_offsets: position of each sequence's first token: an int, or s32 [sequences]. A
            position that cos does not have gives NaN (an int that leads there is refused).
        cu_seqlens: s32 [sequences + 1]: where sequences begin in x, ascending from 0 to the total.
        max_seqlen: at least the longest of them; None: as many as x has tokens.
        conjugate: turn back: sin is negated.

    Returns:
        x turned, of its shape and dtype. CUDA arrays run on the GPU on the current stream, without
        waiting; NumPy arrays and CPU tensors run on the PTX machine.

    Raises:
        LayoutError: shapes that do not fit, positions beyond cos. DTypeError: other dtypes.
        ResourceError: arrays on two devices; a CUDA array and no GPU.

    Example: `q = tc.apply_rotary(q, cos, sin, interleaved=True)`
    """
    options = interleaved, inplace, seqlen_offsets, cu_seqlens, max_seqlen, conjugate
    return turned("apply_rotary", {"x": x}, cos, sin, options)[0]


def apply_rotary_qk(
    q: Any, k: Any, cos: Any, sin: Any, interleaved: bool = False, inplace: bool = False,
    seqlen_offsets: Any = 0, cu_seqlens: Any = None, max_seqlen: int | None = None, *,
    conjugate: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """`tc.apply_rotary` of queries and keys, in one launch.

    Args:
        q: B x N x H x D, or total x H x D.
        k: the same, of Hk heads.
        cos, sin, interleaved, inplace, seqlen_offsets, cu_seqlens, max_seqlen, conjugate: see
            `tc.apply_rotary`.

    Returns:
        (q, k), turned.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tc.apply_rotary`.

    Example: `q, k = tc.apply_rotary_qk(q, k, cos, sin)`
    """
    options = interleaved, inplace, seqlen_offsets, cu_seqlens, max_seqlen, conjugate
    return turned("apply_rotary_qk", {"q": q, "k": k}, cos, sin, options)


def turned(call: str, given: dict[str, Any], cos: Any, sin: Any, options: Options) -> Any:
    """One or two arrays, turned.

    Args:
        call: the function, for errors.
        given: x, or q and k.
        cos, sin, options: see `apply_rotary`.

    Raises:
        LayoutError, DTypeError, ResourceError: see `apply_rotary`.
    """
    interleaved, inplace, offsets, starts, most, conjugate = options
    inplace = check_flag(call, "inplace", inplace)
    interleaved = check_flag(call, "interleaved", interleaved)
    arrays, pairs = _check(call, given, cos, sin, starts)
    first = next(iter(arrays.values()))
    tokens, dim = first.shape[0 if starts is not None else 1], first.shape[-1]
    longest = _longest(call, starts, most, tokens)
    positions = view(cos).shape[0]
    fixed, moved = _offsets(call, offsets, starts, first, longest, positions)
    outs = [x if inplace else empty(x, tuple(a.shape), a.dtype)
            for x, a in zip(given.values(), arrays.values(), strict=True)]  # fmt: skip
    if not inplace and 2 * pairs < dim:
        for x, out in zip(given.values(), outs, strict=True):
            out[..., 2 * pairs :] = x[..., 2 * pairs :]
    if pairs == 0 or 0 in first.shape:
        return tuple(outs)
    whole = [(x[None], out[None]) if starts is not None else (x, out)
             for x, out in zip(given.values(), outs, strict=True)]  # fmt: skip
    if len(whole) == 1:  # no keys: an array of none
        whole.append((whole[0][0][:, :, :0], whole[0][1][:, :, :0]))
    more = [*([] if starts is None else [starts]), *([] if moved is None else [moved])]
    params = {"R": pairs, "D": dim, "interleaved": interleaved, "conjugate": bool(conjugate),
              "packed": starts is not None, "offsets": moved is not None}  # fmt: skip
    sequences = view(starts).shape[0] - 1 if starts is not None else first.shape[0]
    heads = [array.shape[-2] for array in arrays.values()]
    apart = first.strides[-2] > first.strides[-3]
    num_bytes = sum(ITEM_BYTES[a.dtype] * math.prod(a.shape) for a in arrays.values())
    first_that_fits(
        rotary, _fitting, (first.dtype, view(cos).dtype, *params.values()),
        configs(pairs, sequences * -(-longest // TOKENS), heads, apart, num_bytes),
        lambda config: rotary(cos, sin, *whole[0], *whole[1], longest, fixed, *more, **params,
                              **config),
    )  # fmt: skip
    return tuple(outs)


def configs(
    pairs: int, blocks: int, heads: list[int], apart: bool, num_bytes: int
) -> list[dict[str, Any]]:  # fmt: skip
    """Tiles and warps, the fastest first: those behind need fewer registers.

    A warp takes one task, of 16 tokens of a head, so that the grid asks for memory in order; or 4
    where there are many, and heads lie together. Where heads lie apart, what is written of the
    largest arrays is the first to leave the caches (a trial on an H200, 2026-11-30, B16 H16
    D128: 3.99 TB/s instead of 3.88 of 16,384 tokens).

    Args:
        pairs: of a row.
        blocks: of 16 tokens of all sequences.
        heads: of x, or of q and of k.
        apart: whether the tokens of a head lie together, not the heads of a token.
        num_bytes: of x, or of q and k.
    """
    widest, found = min(64, -(-pairs // 8) * 8), []
    cache = "evict_first" if apart and num_bytes >= STREAM_BYTES else ""
    for cols, each in ((widest, 3), (widest, 2), (min(widest, 32), 3), (min(widest, 16), 2)):
        tasks = blocks * -(-pairs // cols) * sum(heads)
        each_warp = 1 if apart or tasks <= FEW_TASKS else 4
        found.append({"cols": cols, "heads": 1, "heads_first": apart, "warps": WARPS,
                      "blocks": each, "grid": max(1, -(-tasks // (each_warp * WARPS))),
                      "cache": cache})  # fmt: skip
    return found


def _check(
    call: str, given: dict[str, Any], cos: Any, sin: Any, starts: Any
) -> tuple[dict[str, ArrayView], int]:
    """Views of x (q and k), and R.

    Raises:
        LayoutError, DTypeError, ResourceError: what does not fit.
    """
    axes = ("total", "H", "D") if starts is not None else ("B", "N", "H", "D")
    arrays = {name: array_of(call, name, x, FLOATS) for name, x in given.items()}
    for name, array in arrays.items():
        if len(array.shape) != len(axes):
            raise LayoutError(
                f"{call}: {name} has {len(axes)} axes ({' x '.join(axes)}), got shape "
                f"{tuple(array.shape)}",
                hint="with cu_seqlens total x H x D, else B x N x H x D",
            )
    first, *others = arrays.values()
    for other in others:
        if other.dtype != first.dtype or (*other.shape[:-2], other.shape[-1]) != (
            *first.shape[:-2], first.shape[-1],
        ):  # fmt: skip
            raise LayoutError(
                f"{call}: q and k have one dtype and differ in heads alone, got {first.dtype} "
                f"{tuple(first.shape)} and {other.dtype} {tuple(other.shape)}"
            )
    cosine = array_of(call, "cos", cos, FLOATS)
    if len(cosine.shape) != 2 or 2 * cosine.shape[1] > first.shape[-1]:
        raise LayoutError(
            f"{call}: cos is positions x R, 2 R at most D = {first.shape[-1]}, got shape "
            f"{tuple(cosine.shape)}",
            hint="one value for each pair of columns: cos[:, : rotary_dim // 2]",
        )
    sine = array_of(call, "sin", sin, (cosine.dtype,), tuple(cosine.shape), "of cos")
    known = {**arrays, "cos": cosine, "sin": sine}
    if starts is not None:
        known["cu_seqlens"] = array_of(call, "cu_seqlens", starts, ("s32",))
        _check_starts(call, known["cu_seqlens"], first.shape[0])
    check_devices(call, known)
    return arrays, int(cosine.shape[1])


def _check_starts(call: str, starts: ArrayView, total: int) -> None:
    if len(starts.shape) != 1 or starts.shape[0] < 2:
        raise LayoutError(
            f"{call}: cu_seqlens is [sequences + 1], at least 2, got {tuple(starts.shape)}"
        )
    if starts.device != "cpu":
        return
    ends = starts.array
    if ends[0] != 0 or ends[-1] != total or (ends[1:] < ends[:-1]).any():
        raise LayoutError(
            f"{call}: cu_seqlens ascends from 0 to the total of {total}, got {ends.tolist()}"
        )


def _longest(call: str, starts: Any, most: Any, tokens: int) -> int:
    """Tokens of the longest sequence, or more."""
    if starts is None or most is None:
        return int(tokens)
    if isinstance(most, bool) or not isinstance(most, int) or most < 0:
        raise LayoutError(f"{call}: max_seqlen is a number of tokens, got {most!r}")
    ends = view(starts)
    if ends.device == "cpu" and (longest := int((ends.array[1:] - ends.array[:-1]).max())) > most:
        raise LayoutError(
            f"{call}: max_seqlen is at least the longest sequence, {longest}, got {most}"
        )
    return min(most, int(tokens))


def _offsets(
    call: str, offsets: Any, starts: Any, x: ArrayView, longest: int, positions: int
) -> tuple[int, Any]:
    """The offset of all sequences, and those of each, or None.

    Raises:
        LayoutError: positions that cos does not have, or another number of offsets.
        DTypeError: neither an int nor s32.
    """
    if isinstance(offsets, bool) or offsets is None:
        raise DTypeError(f"{call}: seqlen_offsets is an int or an s32 array, got {offsets!r}")
    sequences = view(starts).shape[0] - 1 if starts is not None else x.shape[0]
    if not isinstance(offsets, int):
        array = array_of(call, "seqlen_offsets", offsets, ("s32",), (sequences,), "[sequences]")
        check_devices(call, {"x": x, "seqlen_offsets": array})
        return 0, offsets
    exact = starts is None or view(starts).device == "cpu"
    if offsets < 0 or exact and offsets + _exact(starts, longest) > positions:
        raise LayoutError(
            f"{call}: positions {offsets} to {offsets + longest - 1} are not all of cos and sin, "
            f"which have {positions}",
            hint="longer tables, or another offset",
        )
    return offsets, None


def _exact(starts: Any, longest: int) -> int:
    if starts is None:
        return longest
    ends = view(starts).array
    return int((ends[1:] - ends[:-1]).max())
