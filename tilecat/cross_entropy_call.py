"""Calls of cross-entropy: losses of rows of logits, and their gradient in the same pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .array_arguments import array_of, check_devices
from .errors import DTypeError, LayoutError
from .kernels.cross_entropy import PIECE, scale_rows
from .kernels.cross_entropy import cross_entropy as kernel
from .row_arguments import FLOATS, check_flag, check_number, first_that_fits
from .runtime.arrays import ITEM_BYTES, ArrayView, empty, view

REDUCTIONS = ("mean", "sum", "none")
PART_BYTES = 80 << 10  # of a row in a CTA's registers
SHARED_BYTES = 227 << 10  # of a CTA (CUDA programming guide, compute capability 9.0)
MEETING_BYTES = 4 << 10  # of it for mbarriers and what warps tell one another, at most
WARPS = 16
_fitting: dict[Any, int] = {}


@dataclass(frozen=True)
class Loss:
    """What a loss is, beside its arrays.

    Args:
        ignored: label of rows without one.
        smoothing: share of the label that all of the vocabulary gets.
        z_loss: factor of the squared log-sum-exp.
    """

    ignored: int = -100
    smoothing: float = 0.0
    z_loss: float = 0.0


def cross_entropy(
    x: Any, target: Any, ignore_index: int = -100, reduction: str = "mean", *,
    label_smoothing: float = 0.0, z_loss: float = 0.0, return_lse: bool = False,
) -> Any:  # fmt: skip
    """`lse(x) - x[target]` of each row, and its mean over the rows that count.

    With the options `lse - (1 - s) x[target] - s mean(x) + z_loss lse^2`; lse in f32.

    Args:
        x: ... x V logits, bf16, f16 or f32.
        target: s64 or s32 of x's shape without V. A label outside 0 to V - 1 that is not
            ignore_index gives NaN: nothing waits to look at labels.
        ignore_index: label of rows whose loss is 0, and which do not count.
        reduction: "mean", "sum" or "none".
        label_smoothing: s, at least 0 and at most 1.
        z_loss: at least 0.
        return_lse: also return the log-sum-exp of each row.

    Returns:
        f32: the loss, a scalar array (of "mean" NaN where no row counts), or of each row. CUDA
        arrays run on the GPU on the current stream, without waiting; NumPy arrays and CPU tensors
        run on the PTX machine.

    Raises:
        LayoutError: shapes that do not fit, another reduction. DTypeError: other dtypes.
        ResourceError: arrays on two devices; a CUDA array and no GPU.

    Example: `loss = tc.cross_entropy(logits, labels)`
    """
    loss = loss_of("cross_entropy", ignore_index, label_smoothing, z_loss, reduction)
    losses, lse, _ = forward("cross_entropy", x, target, loss)
    found = reduced(losses, target, loss, reduction)
    return (found, lse) if return_lse else found


def cross_entropy_grad(
    x: Any, target: Any, ignore_index: int = -100, reduction: str = "mean", *,
    label_smoothing: float = 0.0, z_loss: float = 0.0, inplace: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """The loss, and the gradient of the logits, in one pass over them.

    Args:
        x: logits, which the gradient replaces with `inplace`.
        target, ignore_index, reduction, label_smoothing, z_loss: see `tc.cross_entropy`. Of "none"
            the gradient is that of the sum.
        inplace: write the gradient to x.

    Returns:
        (loss, gradient), the gradient of x's shape and dtype.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tc.cross_entropy`.

    Example: `loss, dlogits = tc.cross_entropy_grad(logits, labels, inplace=True)`
    """
    loss = loss_of("cross_entropy_grad", ignore_index, label_smoothing, z_loss, reduction)
    inplace = check_flag("cross_entropy_grad", "inplace", inplace)
    _check("cross_entropy_grad", x, target)
    factor = factor_of(x, target, loss, reduction)
    losses, _, grad = forward("cross_entropy_grad", x, target, loss, factor=factor,
                              grad=x if inplace else None)  # fmt: skip
    return reduced(losses, target, loss, reduction), grad


def loss_of(call: str, ignored: Any, smoothing: Any, z_loss: Any, reduction: Any) -> Loss:
    """The numbers of a loss, checked.

    Raises:
        LayoutError: numbers outside their range, or another reduction.
    """
    if not isinstance(reduction, str) or reduction not in REDUCTIONS:
        raise LayoutError(f"{call}: reduction is {', '.join(REDUCTIONS)}, got {reduction!r}")
    if isinstance(ignored, bool) or not isinstance(ignored, int) or not -(2**31) <= ignored < 2**31:
        raise LayoutError(f"{call}: ignore_index is an int of 32 bits, got {ignored!r}")
    smoothing = check_number(call, "label_smoothing", smoothing, 0, 1, open_=False)
    return Loss(ignored, smoothing, check_number(call, "z_loss", z_loss, 0, math.inf, open_=True))


def factor_of(x: Any, target: Any, loss: Loss, reduction: str) -> Any:
    """What the gradient of each row is multiplied by: f32 [1] on x's device; None for 1."""
    if reduction != "mean":
        return None
    factor = empty(x, (1,), "f32")
    factor[...] = 1.0
    count = (target != loss.ignored).sum()
    with np.errstate(divide="ignore"):  # all ignored: the mean is no number, as torch's
        factor /= count
    return factor


def reduced(losses: Any, target: Any, loss: Loss, reduction: str) -> Any:
    """The losses of rows as one, or as they are, of target's shape."""
    if reduction == "none":
        return losses.reshape(tuple(target.shape))
    total = losses.sum()
    if reduction == "sum":
        return total
    count = (target != loss.ignored).sum()
    if not isinstance(total, np.generic):  # torch.compile follows this, and knows no errstate
        return total / count
    with np.errstate(invalid="ignore"):
        return total / count


def forward(
    call: str, x: Any, target: Any, loss: Loss, *, factor: Any = None, grad: Any = None,
    gradient: bool | None = None, lse: Any = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Losses and log-sum-exps of rows, and the gradient, or None.

    Args:
        call: the function, for errors.
        x: ... x V.
        target: labels.
        loss: what it is.
        factor: f32 [1] or [rows]: of the gradient.
        grad: x, for a gradient in place; None for a new one.
        gradient: whether there is one; None where there is a factor, or grad.
        lse: known log-sum-exps: the gradient alone is made.
    """
    array, labels = _check(call, x, target)
    *outer, width = array.shape
    count = math.prod(outer)
    wanted = (factor is not None or grad is not None) if gradient is None else gradient
    wanted = wanted or call == "cross_entropy_grad"
    losses = empty(x, (count,), "f32")
    known = lse is not None
    lse = empty(x, (count,), "f32") if lse is None else lse
    if not wanted:
        grad = x
    elif grad is None:
        grad = empty(x, tuple(array.shape), array.dtype)
    if count:
        rows, out = _rows(x, count, width), None
        out = rows if grad is x else grad.reshape(count, width)
        words = labels_of(target, count, labels.dtype)
        fixed = {"V": width, "W": words.shape[1], "forward": not known, "gradient": wanted,
                 "smooth": loss.smoothing > 0, "z": loss.z_loss > 0,
                 "scaled": factor is not None}  # fmt: skip
        factor = empty(x, (0,), "f32") if factor is None else factor
        tried = configs(view(rows), forward=not known, gradient=wanted)
        first_that_fits(
            kernel, _fitting, (array.dtype, *fixed.values(), "staged" in tried[0]), tried,
            lambda config: kernel(rows, out, words, losses, lse, factor, loss.ignored,
                                  loss.smoothing, loss.z_loss, **fixed, **config),
        )  # fmt: skip
    return losses, lse, grad if wanted else None


def scale_gradient(grad: Any, factor: Any) -> Any:
    """`grad *= factor`, f32 [1] or [rows], in place; nothing moves where the factor is 1."""
    *outer, width = view(grad).shape
    count = math.prod(outer)
    if count:
        scale_rows(_rows(grad, count, width), factor, D=width)
    return grad


def configs(x: ArrayView, *, forward: bool, gradient: bool) -> list[dict[str, Any]]:
    """Configurations, the fastest first; others need more registers.

    Rows that bulk copies reach are read once. Where several CTAs share an SM each takes one row, so
    that the grid asks for memory in order: 3.96 TB/s of rows of 32,000 logits, where a persistent
    grid has 3.57 (H200, 2026-11-30). What bulk copies do not reach lies in registers.

    Args:
        x: the logits, as rows.
        forward, gradient: what is made.
    """
    item, (count, width) = ITEM_BYTES[x.dtype], x.shape
    reached = x.strides[1] == 1 and not any(n % 16 for n in (x.ptr, x.strides[0] * item,
                                                             width * item))  # fmt: skip
    if not reached:
        cluster = next((c for c in (1, 2, 4) if width * item <= PART_BYTES * c), 8)
        return [{"warps": WARPS, "cluster": c, "blocks": 1, "staged": False}
                for c in sorted({cluster, 8})]  # fmt: skip
    shared: Any = {"width": width, "item": item, "count": count}
    if not (forward and gradient):
        if width <= 8192:
            each = None if gradient and width <= 2048 else 1
            return _grid_configs(**shared, warps=4, blocks=8, each=each)
        blocks = 3 if forward or width <= 32768 else 2
        return _grid_configs(**shared, warps=8, blocks=blocks, stages=12 // blocks)
    if width <= 4096:
        each = 4 if width <= 2048 else 1
        return _grid_configs(**shared, warps=4, blocks=8, each=each, keep=True)
    for blocks, warps, pieces in ((5 if width <= 8192 else 3, 8, 4), (2, 12, 2)):
        found = _grid_configs(**shared, warps=warps, blocks=blocks, pieces=pieces)
        if found[0]["blocks"] >= min(blocks, 3):
            return found
    return [_whole_config(width, item)]


def _grid_configs(
    *, width: int, item: int, count: int, warps: int, blocks: int, each: int | None = 1,
    pieces: int = 4, keep: bool = False, stages: int | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """CTAs of `each` rows (of a persistent grid None); a warp has chunks of up to `pieces`.

    `stages` of them at most lie in shared memory, all if None, which fewer CTAs have the room for.
    """
    chunks = -(-width // (warps * pieces * PIECE))
    piece = PIECE * (1 + (chunks > 1 and warps > 4))
    chunk = -(-width // (warps * chunks * piece)) * warps * piece * item  # bytes
    if stages is None:
        stages = chunks
    else:
        stages = max(1, min(stages, chunks, (SHARED_BYTES // blocks - MEETING_BYTES) // chunk))
    most = max(1, min(blocks, SHARED_BYTES // (stages * chunk + MEETING_BYTES)))
    grid = {} if each is None else {"grid": -(-count // each)}
    return [{"warps": warps, "cluster": 1, "blocks": n, "piece": piece, "chunks": chunks,
             "stages": stages, "keep": keep, **grid}
            for n in sorted({most, -(-most // 2), 1}, reverse=True)]  # fmt: skip


def _whole_config(width: int, item: int) -> dict[str, Any]:
    """Losses and gradients: rows that are whole in shared memory, and some of the next."""
    for cluster, pieces in ((1, 4), (2, 4), (4, 4), (8, 4), (8, 1)):
        chunks = -(-width // (WARPS * cluster * pieces * PIECE))
        stages = (SHARED_BYTES - MEETING_BYTES) // (WARPS * pieces * PIECE * item)
        if chunks <= stages:
            break
    return {"warps": WARPS, "cluster": cluster, "blocks": 1, "piece": min(pieces, 2) * PIECE,
            "chunks": chunks, "stages": min(stages, 2 * chunks)}  # fmt: skip


def labels_of(target: Any, count: int, dtype: str) -> Any:
    """Labels as s32 [rows, 1], or the halves of s64 [rows, 2]."""
    flat = target.reshape(count)
    if view(flat).strides != (1,):
        kept, flat = flat, empty(target, (count,), dtype)
        flat[...] = kept
    if dtype == "s32":
        return flat.reshape(count, 1)
    words = flat.view(np.int32) if isinstance(flat, np.ndarray) else flat.view(_s32_of(flat))
    return words.reshape(count, 2)


def _s32_of(x: Any) -> Any:
    """The library's own s32."""
    return empty(x, (0,), "s32").dtype


def _rows(x: Any, count: int, width: int) -> Any:
    """Rows of x: a view.

    Raises:
        LayoutError: rows that lie in no order of one stride.
    """
    rows = x.reshape(count, width)
    if view(rows).ptr != view(x).ptr:
        raise LayoutError(
            "cross_entropy: in place, rows of x are one stride apart, got strides "
            f"{tuple(view(x).strides)} (elements) of shape {tuple(view(x).shape)}",
            hint="x.reshape(-1, V), or inplace=False",
        )
    return rows


def _check(call: str, x: Any, target: Any) -> tuple[ArrayView, ArrayView]:
    array = array_of(call, "x", x, FLOATS)
    if not array.shape or array.shape[-1] == 0:
        raise LayoutError(f"{call}: x is ... x V, V at least 1, got shape {tuple(array.shape)}")
    try:
        labels = view(target)
    except DTypeError as error:
        raise DTypeError(f"{call}: target: {error.message}", hint=error.hint) from None
    if labels.dtype not in ("s64", "s32"):
        raise DTypeError(f"{call}: target is s64 or s32, got {labels.dtype}")
    if tuple(labels.shape) != tuple(array.shape[:-1]):
        raise LayoutError(
            f"{call}: target has the shape of x without V, {tuple(array.shape[:-1])}, got "
            f"{tuple(labels.shape)}"
        )
    check_devices(call, {"x": array, "target": labels})
    return array, labels
