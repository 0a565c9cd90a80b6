"""Calls of Hedgehog."""

from __future__ import annotations

from typing import Any

from .array_arguments import check_devices
from .errors import LayoutError
from .kernels.chunk_tasks import CHUNK
from .kernels.hedgehog import FEATURES, MAP
from .kernels.hedgehog import hedgehog as kernel
from .ready import Launch, again, key_of
from .runtime.arrays import allocator, view
from .scan_call import check, check_rank, run, whole_rows

AXES = "batch x heads x length x dim"
DIMS = (64, 128)  # of heads: a warpgroup has 64 columns, and registers are there for two
STATES = "kv_state, k_state"


def hedgehog(
    q: Any, k: Any, v: Any, qmap: Any, kmap: Any, alpha: Any, beta: Any,
    *, window: int = CHUNK, initial_state: Any = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """`o_i = sum of w_ij v_j / (sum of w_ij + 1e-6)`: softmax nearby, learned features before.

    Of tokens in blocks of 64, a query of block c sees those of c up to its own and all of c - 1
    with `w_ij = beta e^(s_ij - m_i)`, s = q_i.k_j / sqrt(D), m_i the largest of them; and those of
    all blocks before with `w_ij = alpha phi(q_i).phi(k_j)`, phi(x) = [softmax(x W), softmax(-x W)].

    Args:
        q: B x H x T x D, bf16 or f16, any strides; D is 64 or 128.
        k, v: B x Hk x T x D; Hk divides H: H / Hk heads share keys and values.
        qmap, kmap: W of queries and of keys, H x D x 64, of q's dtype.
        alpha: f32 [H].
        beta: f32 [H], positive (in CPU memory that is checked).
        window: 64, the block.
        initial_state: (kv_state, k_state) of tokens before the first, all of them outside its
            window; None: 0.

    Returns:
        (o, kv_state, k_state): o B x H x T x D of v's dtype, contiguous; kv_state f32
        B x H x 128 x D, the sum of phi(k_j) v_j over the tokens of all blocks but the last, which
        no later block has in its window; k_state f32 B x H x 128, that of phi(k_j). A sequence is
        continued with them by repeating its last block, whose outputs then lack its own window.
        CUDA arrays run on the GPU on the current stream, without waiting; NumPy arrays and CPU
        tensors run on the PTX machine.

    Raises:
        LayoutError: shapes that do not fit, heads that do not divide, another D or window, a beta
            that is not positive. DTypeError: dtypes other than those above.
        ResourceError: arrays on two devices, no GPU.

    Source: Zhang et al., LoLCATs (2024) and The Hedgehog & the Porcupine (2024).

    Example: `o, kv, ks = tc.hedgehog(q, k, v, qmap, kmap, alpha, beta)`
    """
    kv, ks = states_of(initial_state)
    tensors = (q, k, v, qmap, kmap, alpha, beta, kv, ks)
    given = tuple(x for x in tensors if x is not None)
    key = key_of(tensors, ("hedgehog", window))
    return again(key, given) or _run(key, given, tensors, window)


def states_of(initial: Any) -> tuple[Any, Any]:
    """Both sums, or neither.

    Raises:
        LayoutError: no pair.
    """
    if initial is None:
        return None, None
    pair = isinstance(initial, tuple | list) and len(initial) == 2
    if not pair or any(x is None for x in initial):
        raise LayoutError(
            f"hedgehog: initial_state is the pair ({STATES}), got {type(initial).__name__}",
            hint="what a call before gave behind o: o, *states = tc.hedgehog(...)",
        )
    return initial[0], initial[1]


def check_window(window: Any) -> None:
    """Refuses another window.

    Raises:
        LayoutError: it is no block.
    """
    if type(window) is not int or window != CHUNK:
        raise LayoutError(f"hedgehog: window is {CHUNK}, the block of tokens, got {window!r}")


def _run(
    key: Any, given: tuple[Any, ...], tensors: tuple[Any, ...], window: Any
) -> tuple[Any, Any, Any]:
    """Checks, allocates, launches."""
    batch, heads, length, dim = shape = _check(tensors, window)
    q, k, v, qmap, kmap, alpha, beta, *states = tensors
    sums = (batch, heads, FEATURES)
    makers = [allocator(v, shape, view(v).dtype), allocator(v, (*sums, dim), "f32"),
              allocator(v, sums, "f32")]  # fmt: skip
    made = tuple(make() for make in makers)
    if 0 in shape:
        for after, before in zip(made[1:], states, strict=True):
            after[...] = 0 if before is None else before
        return made
    params = {"dim": dim, "start": states[0] is not None}
    arrays = (*(whole_rows(x) for x in (q, k, v)), qmap, kmap, alpha, beta, *made)
    rest = (dim**-0.5, *(x for x in states if x is not None))
    launch = Launch(kernel, arrays, rest, params)
    run(key, given, made, makers, lambda eased: (launch,))
    return made


def _check(tensors: tuple[Any, ...], window: Any) -> tuple[int, int, int, int]:
    """B, H, T and D."""
    q, k, v, qmap, kmap, alpha, beta, kv, ks = tensors
    check_window(window)
    query, keys = (check_rank("hedgehog", n, x, AXES) for n, x in (("q", q), ("k", k)))
    batch, heads, length, dim = query.shape
    groups = keys.shape[1]
    if dim not in DIMS:
        raise LayoutError(f"hedgehog: D, columns of q, is {DIMS[0]} or {DIMS[1]}, got {dim}")
    if groups < 1 or heads % groups:
        raise LayoutError(
            f"hedgehog: the heads of k and v divide those of q, got {groups} and {heads}"
        )
    for what, x in (("k", k), ("v", v)):
        check("hedgehog", what, x, (batch, groups, length, dim), (query.dtype,), "B x Hk x T x D")
    for what, x in (("qmap", qmap), ("kmap", kmap)):
        check("hedgehog", what, x, (heads, dim, MAP), (query.dtype,), f"H x D x {MAP}")
    for what, x in (("alpha", alpha), ("beta", beta)):
        check("hedgehog", what, x, (heads,), ("f32",), "H")
    if view(beta).device == "cpu" and not (view(beta).array > 0).all():
        raise LayoutError(f"hedgehog: beta, of the window, is positive, got {beta!r}")
    for what, x, more in (("kv_state", kv, (dim,)), ("k_state", ks, ())):
        if x is not None:
            sums = (batch, heads, FEATURES, *more)
            axes = f"B x H x {FEATURES}" + " x D" * len(more)
            check("hedgehog", f"initial_state: {what}", x, sums, ("f32",), axes)
    names = ("q", "k", "v", "qmap", "kmap", "alpha", "beta", *STATES.split(", "))
    check_devices("hedgehog", dict(zip(names, tensors, strict=True)))
    return batch, heads, length, dim
