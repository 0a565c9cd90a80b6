"""Calls of layernorm and RMSNorm with dropout and residual, and of their gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .array_arguments import array_of, check_devices
from .errors import LayoutError
from .kernels.norm import BACKWARD, FORWARD, column_sums, norm_backward, norm_forward
from .operators import num_sms
from .row_arguments import FLOATS, check_flag, check_number, first_that_fits
from .runtime.arrays import ArrayView, empty, view

PER_WARP = 1024  # columns of a warp's part of a row: 32 values a lane of each tensor
WARPS = 16  # of a CTA that shares a row, at most
WIDEST = 4 * WARPS * PER_WARP  # columns of a row: of a cluster that every GPU has
_fitting: dict[Any, int] = {}


@dataclass(frozen=True)
class Norm:
    """What a norm does, beside its arrays.

    Args:
        eps: added to the variance.
        p: of dropout.
        rms: RMSNorm.
    """

    eps: float
    p: float
    rms: bool

    @property
    def dropout(self) -> tuple[int, float]:
        """Random bits below which an element is dropped, and the factor of the others."""
        return min(int(self.p * 2**32), 2**32 - 1), 1 / (1 - self.p)


def layer_norm_fn(
    x: Any, weight: Any = None, bias: Any = None, residual: Any = None, eps: float = 1e-6,
    dropout_p: float = 0.0, rowscale: Any = None, prenorm: bool = False,
    residual_in_fp32: bool = False, is_rms_norm: bool = False, *, seed: Any = None,
) -> Any:  # fmt: skip
    """`norm(dropout(x rowscale) + residual) weight + bias` over the last axis, in one pass.

    Statistics are two-pass, in f32. Of dropout no mask is kept: it is made of the seed, the row and
    the column.

    Args:
        x: ... x D, bf16, f16 or f32; D at most 65536. Rows of any stride.
        weight: [D], or None.
        bias: [D], or None.
        residual: of x's shape, added before the norm; or None.
        eps: added to the variance (to the mean square, of RMSNorm).
        dropout_p: probability that an element of x becomes 0; the others are divided by 1 - p.
        rowscale: f32 of x's shape without D: what rows of x are multiplied by; or None.
        prenorm: also return what was normalised.
        residual_in_fp32: that is f32, where there is no residual; else of its dtype.
        is_rms_norm: divide by the root of the mean square; no mean is subtracted.
        seed: of dropout: an int, or s32 [2], which a CUDA graph may change between replays.

    Returns:
        The result, of x's dtype; with prenorm (result, sum). CUDA arrays run on the GPU on the
        current stream, without waiting; NumPy arrays and CPU tensors run on the PTX machine.

    Raises:
        LayoutError: shapes that do not fit, p outside [0, 1), dropout without a seed. DTypeError:
        other dtypes. ResourceError: arrays on two devices; a CUDA array and no GPU.

    Example: `y, h = tc.layer_norm_fn(x, w, b, residual=h, prenorm=True)`
    """
    norm = norm_of("layer_norm_fn", eps, dropout_p, is_rms_norm, seed)
    named = {"weight": weight, "bias": bias, "residual": residual, "rowscale": rowscale}
    kept = None
    prenorm = check_flag("layer_norm_fn", "prenorm", prenorm)
    residual_in_fp32 = check_flag("layer_norm_fn", "residual_in_fp32", residual_in_fp32)
    if prenorm:
        kept = "f32" if residual is None and residual_in_fp32 else view(
            x if residual is None else residual).dtype  # fmt: skip
    y, sums, _, _ = forward("layer_norm_fn", x, named, norm, seed, kept, stats=False)
    return (y, x if sums is None else sums) if prenorm else y


def norm_of(call: str, eps: Any, p: Any, rms: Any, seed: Any) -> Norm:
    """The numbers of a norm, checked.

    Raises:
        LayoutError: numbers outside their range, or dropout without a seed.
    """
    eps = check_number(call, "eps", eps, 0, math.inf, open_=True)
    p = check_number(call, "dropout_p", p, 0, 1, open_=True)
    if p and seed is None:
        raise LayoutError(f"{call}: dropout wants a seed, got None with dropout_p={p}",
                          hint="seed=step")  # fmt: skip
    return Norm(eps, p, check_flag(call, "is_rms_norm", rms))


def forward(
    call: str, x: Any, named: dict[str, Any], norm: Norm, seed: Any, kept: str | None, *,
    stats: bool,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """The result, what was normalised, 1 / deviation and mean.

    Args:
        call: the function, for errors.
        x: ... x D.
        named: weight, bias, residual, rowscale; None where there is none.
        norm, seed: of the call.
        kept: dtype of what was normalised, None not to keep it. It is x itself (None here) where
            nothing is added and nothing drops.
        stats: whether deviations and means are kept.
    """
    array = _check(call, x, named)
    *outer, dim = array.shape
    count = math.prod(outer)
    y = empty(x, tuple(array.shape), array.dtype)
    plain = named["residual"] is None and named["rowscale"] is None and not norm.p
    if plain and kept == array.dtype:
        kept = None
    made = {"sums": empty(x, tuple(array.shape), kept) if kept else None}
    for name in ("deviations", "means") if stats else ():
        made[name] = empty(x, (count,), "f32")
    given = {**named, **made, "seed": seed_of(call, seed, x, array) if norm.p else None}
    if norm.rms:
        given["means"] = None
    if count and dim:
        at = _rows_of(given, FORWARD, dim)
        rows, out = x.reshape(count, dim), y.reshape(count, dim)
        first_that_fits(
            norm_forward, _fitting, (dim, norm.rms, *_kinds(at, array)), configs(dim, count),
            lambda config: norm_forward(
                rows, out, norm.eps, *norm.dropout, *at.values(), D=dim, given=tuple(at),
                rms=norm.rms, **config,
            ),
        )  # fmt: skip
    return y, made["sums"], made.get("deviations"), made.get("means") if not norm.rms else None


def backward(
    dy: Any, s: Any, named: dict[str, Any], stats: tuple[Any, Any], norm: Norm, seed: Any,
    dtype: str, *, residual: str | None, bias: str | None,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """Gradients of x, residual, weight and bias; None where there is none.

    Args:
        dy: gradient of the result.
        s: what was normalised.
        named: weight, rowscale, of_sums (gradient of what was normalised); None where there is
            none.
        stats: 1 / deviation and mean (None of RMSNorm), f32 [rows].
        norm, seed: of the forward call.
        dtype: of x.
        residual: dtype of the residual's gradient, where it is not x's.
        bias: dtype of the bias.
    """
    shape = tuple(view(s).shape)
    count, dim = math.prod(shape[:-1]), shape[-1]
    dx = empty(s, shape, dtype)
    dr = empty(s, shape, residual) if residual else None
    weight = named["weight"]
    dw = None if weight is None else empty(s, (dim,), view(weight).dtype)
    db = empty(s, (dim,), bias) if bias else None
    targets = [x for x in (dw, db) if x is not None]
    if count == 0 or dim == 0:
        for target in targets:
            target[...] = 0
        return dx, dr, dw, db
    array = view(s)
    given = {**named, "means": stats[1], "of_residual": dr, "seed": seed}
    held = {name: value for name, value in given.items() if value is not None}
    key = dim, norm.rms, bool(bias), *_kinds(held, array)

    def run(config: dict[str, Any]) -> None:
        ctas = num_sms(array.device) * config["blocks"]
        ctas -= ctas % config["cluster"]
        partial = empty(s, (max(len(targets), 1), ctas // config["cluster"], dim), "f32")
        named_sums = {"of_weight": partial[0] if dw is not None else None,
                      "of_bias": partial[len(targets) - 1] if db is not None else None}  # fmt: skip
        at = _rows_of({**given, **named_sums}, BACKWARD, dim)
        norm_backward(
            dy.reshape(count, dim), s.reshape(count, dim), dx.reshape(count, dim), stats[0],
            *norm.dropout, *at.values(), D=dim, given=tuple(at), rms=norm.rms, grid=ctas, **config,
        )  # fmt: skip
        if targets:
            column_sums(partial, *targets)

    first_that_fits(norm_backward, _fitting, key, backward_configs(dim), run)
    return dx, dr, dw, db


def configs(dim: int, rows: int) -> list[dict[str, Any]]:
    """Configurations of the forward kernel, the fastest first; others need more registers.

    A warp (or CTA, or cluster) takes one row, so that the grid asks for memory in order: 4.12 TB/s
    of 262,144 rows of 1024, where a persistent grid that loads ahead has 3.97 (H200, 2026-11-30).
    """
    split = _split(dim, PER_WARP)
    each = split["warps"] if split["shared_by"] == "warp" else 1
    grid = -(-rows // each) * split["cluster"]
    return [{**split, "blocks": blocks, "ahead": 0, "hold": False, "grid": grid}
            for blocks in (4, 3, 2, 1) if blocks * split["warps"] <= 32]  # fmt: skip


def backward_configs(dim: int) -> list[dict[str, Any]]:
    """Those of the backward kernel, whose sums over rows take registers too."""
    split = _split(dim, PER_WARP // 2)
    tried = ((1, 1, True), (1, 0, True), (1, 0, False))
    first = [{**split, "warps": 4, "blocks": 3, "ahead": 0, "hold": True}]
    return (first if split["shared_by"] == "warp" else []) + [
        {**split, "blocks": blocks, "ahead": ahead, "hold": hold} for blocks, ahead, hold in tried
    ]


def _split(dim: int, per_warp: int) -> dict[str, Any]:
    """Who shares a row: nobody, warps of a CTA, CTAs of a cluster."""
    if dim <= PER_WARP:
        return {"warps": 8, "shared_by": "warp", "cluster": 1}
    parts = -(-dim // per_warp)
    cluster = 1
    while parts > WARPS * cluster:
        cluster *= 2
    warps = -(-parts // (4 * cluster)) * 4
    return {"warps": warps, "shared_by": "cta", "cluster": cluster}


def _kinds(at: dict[str, Any], x: ArrayView) -> tuple[Any, ...]:
    return (x.dtype, *((name, view(value).dtype) for name, value in at.items()))


def _rows_of(given: dict[str, Any], order: tuple[str, ...], dim: int) -> dict[str, Any]:
    """What there is, in the kernel's order, arrays of x's shape as rows."""
    wide = ("residual", "sums", "of_sums", "of_residual")
    flat = {
        name: given[name].reshape(-1, dim) if name in wide else
        given[name].reshape(-1) if name == "rowscale" else given[name]
        for name in order if given.get(name) is not None
    }  # fmt: skip
    return flat


def seed_of(call: str, seed: Any, like: Any, x: ArrayView) -> Any:
    """Two s32 on x's device: the seed, and another stream of it.

    Raises:
        LayoutError: neither an int nor s32 [2].
    """
    if not isinstance(seed, int) or isinstance(seed, bool):
        array = array_of(call, "seed", seed, ("s32",), (2,), "[2]")
        check_devices(call, {"x": x, "seed": array})
        return seed
    made = empty(like, (2,), "s32")
    for index, word in enumerate((seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)):
        made[index] = word - (word >> 31 << 32)
    return made


def _check(call: str, x: Any, named: dict[str, Any]) -> ArrayView:
    """The view of x, once everything fits.

    Raises:
        LayoutError, DTypeError, ResourceError: what does not.
    """
    array = array_of(call, "x", x, FLOATS)
    shape = tuple(array.shape)
    if not shape or shape[-1] > WIDEST:
        raise LayoutError(
            f"{call}: x is ... x D, D at most {WIDEST}, got shape {shape}",
            hint="what one cluster holds in its registers",
        )
    known = {"x": array}
    for name, wanted, words in (
        ("weight", shape[-1:], "[D]"), ("bias", shape[-1:], "[D]"), ("residual", shape, "of x"),
        ("rowscale", shape[:-1], "of x without D"),
    ):  # fmt: skip
        if named[name] is not None:
            dtypes = ("f32",) if name == "rowscale" else FLOATS
            known[name] = array_of(call, name, named[name], dtypes, wanted, words)
    check_devices(call, known)
    return array

