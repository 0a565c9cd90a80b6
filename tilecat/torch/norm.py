"""`tilecat::layer_norm`: dropout, residual and norm under autograd and torch.compile."""

from __future__ import annotations

import math
from typing import Any

from .. import norm_call
from ..norm_call import Norm
from ..row_arguments import check_flag, check_number
from .library import absent, check_tensor, define, torch

NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
DTYPES = {name: dtype for dtype, name in NAMES.items()}


def layer_norm_fn(
    x: Any, weight: Any = None, bias: Any = None, residual: Any = None, eps: float = 1e-6,
    dropout_p: float = 0.0, rowscale: Any = None, prenorm: bool = False,
    residual_in_fp32: bool = False, is_rms_norm: bool = False, *, seed: Any = None,
) -> Any:  # fmt: skip
    """`tilecat.layer_norm_fn`, differentiable: flash_attn's of that name.

    Args:
        x, weight, bias, residual, eps, dropout_p, rowscale, prenorm, residual_in_fp32, is_rms_norm:
            see `tilecat.layer_norm_fn`; there are gradients of x, weight, bias and residual.
        seed: of dropout: s32 [2] on x's device; None draws one from torch's generator, in CUDA
            graphs another for each replay.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.layer_norm_fn`.
    """
    for name, given in (("x", x), ("residual", residual)):
        if given is not None or name == "x":
            check_tensor("layer_norm_fn", name, given)
    prenorm, rms, wide = (
        check_flag("layer_norm_fn", name, flag) for name, flag in (
            ("prenorm", prenorm), ("is_rms_norm", is_rms_norm),
            ("residual_in_fp32", residual_in_fp32))
    )  # fmt: skip
    dropout_p = check_number("layer_norm_fn", "dropout_p", dropout_p, 0, 1, open_=True)
    eps = check_number("layer_norm_fn", "eps", eps, 0, math.inf, open_=True)
    if dropout_p and seed is None:
        seed = torch.randint(-(2**31), 2**31, (2,), dtype=torch.int32, device=x.device)
    plain = residual is None and rowscale is None and not dropout_p
    kept = NAMES.get(x.dtype if residual is None else residual.dtype, "")
    kept = "f32" if residual is None and wide else kept
    keep = prenorm and not (plain and kept == NAMES.get(x.dtype))
    seed = seed if dropout_p else None
    y, sums, _, _ = _norm(x, weight, bias, residual, rowscale, seed, eps, dropout_p,
                          kept, keep, rms, False)  # fmt: skip
    return (y, sums if keep else x) if prenorm else y


def _kernel(
    x: Any, weight: Any, bias: Any, residual: Any, rowscale: Any, seed: Any, eps: float, p: float,
    kept: str, keep: bool, rms: bool, stats: bool,
) -> Any:  # fmt: skip
    norm = norm_call.norm_of("layer_norm_fn", eps, p, rms, seed)
    named = {"weight": weight, "bias": bias, "residual": residual, "rowscale": rowscale}
    made = norm_call.forward("layer_norm_fn", x, named, norm, seed, kept if keep else None,
                             stats=stats)  # fmt: skip
    none = [x.new_empty(0, dtype=DTYPES.get(kept, x.dtype)), *(absent(x) for _ in range(2))]
    return made[0], *(one if one is not None else other
                      for one, other in zip(made[1:], none, strict=True))  # fmt: skip


def _fake(
    x: Any, weight: Any, bias: Any, residual: Any, rowscale: Any, seed: Any, eps: float, p: float,
    kept: str, keep: bool, rms: bool, stats: bool,
) -> Any:  # fmt: skip
    plain = residual is None and rowscale is None and seed is None
    held = keep and not (plain and DTYPES.get(kept) == x.dtype)
    rows = math.prod(x.shape[:-1])
    sums = x.new_empty(x.shape if held else (0,), dtype=DTYPES.get(kept, x.dtype))
    rstd = x.new_empty(rows if stats else 0, dtype=torch.float32)
    mean = x.new_empty(rows if stats and not rms else 0, dtype=torch.float32)
    return x.new_empty(x.shape), sums, rstd, mean


class _LayerNorm(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, run: Any, x: Any, weight: Any, bias: Any, residual: Any, rowscale: Any,
        seed: Any, eps: float, p: float, kept: str, keep: bool, rms: bool, stats: bool,
    ) -> Any:  # fmt: skip
        plain = residual is None and rowscale is None and not p
        made = run(x, weight, bias, residual, rowscale, seed, eps, p, kept, keep or not plain, rms,
                   True)  # fmt: skip
        y, sums, rstd, mean = made
        held = x if plain and not keep else sums
        ctx.save_for_backward(held, weight, rowscale, seed, rstd, mean)
        names = [None if v is None else NAMES[v.dtype] for v in (x, residual, bias)]
        ctx.options = eps, p, rms, *names
        ctx.mark_non_differentiable(rstd, mean)
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    def backward(ctx: Any, dy: Any, dsums: Any, *_: Any) -> Any:
        held, weight, rowscale, seed, rstd, mean = ctx.saved_tensors
        eps, p, rms, dtype, residual, bias = ctx.options
        if dy is None:
            dy = torch.zeros_like(held, dtype=DTYPES[dtype])
        apart = residual is not None and (p or rowscale is not None or residual != dtype)
        dx, dr, dw, db = _backward(
            dy, held, weight, rowscale, dsums, seed, rstd, None if rms else mean, eps, p, rms,
            dtype, residual if apart else "", bias or "",
        )  # fmt: skip
        dr = None if residual is None else dr if apart else dx
        dw, db = dw if weight is not None else None, db if bias else None
        return None, dx, dw, db, dr, *[None] * 8


def _backward_kernel(
    dy: Any, held: Any, weight: Any, rowscale: Any, dsums: Any, seed: Any, rstd: Any, mean: Any,
    eps: float, p: float, rms: bool, dtype: str, residual: str, bias: str,
) -> Any:  # fmt: skip
    named = {"weight": weight, "rowscale": rowscale, "of_sums": dsums}
    made = norm_call.backward(
        dy, held, named, (rstd, mean), Norm(eps, p, rms), seed, dtype, residual=residual or None,
        bias=bias or None,
    )  # fmt: skip
    return tuple(absent(held) if x is None else x for x in made)


def _backward_fake(
    dy: Any, held: Any, weight: Any, rowscale: Any, dsums: Any, seed: Any, rstd: Any, mean: Any,
    eps: float, p: float, rms: bool, dtype: str, residual: str, bias: str,
) -> Any:  # fmt: skip
    dim = held.shape[-1:]
    return (
        held.new_empty(held.shape, dtype=DTYPES[dtype]),
        held.new_empty(held.shape, dtype=DTYPES[residual]) if residual else absent(held),
        absent(held) if weight is None else weight.new_empty(dim),
        held.new_empty(dim, dtype=DTYPES[bias]) if bias else absent(held),
    )


def _flops(x: Any, *_: Any, **__: Any) -> int:
    return 8 * math.prod(x)


_norm = define(
    "layer_norm(Tensor x, Tensor? weight, Tensor? bias, Tensor? residual, Tensor? rowscale, "
    "Tensor? seed, float eps, float p, str kept, bool keep, bool rms, bool stats) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _kernel, _fake, _LayerNorm.apply, flops=_flops, cast=0,
)  # fmt: skip
_backward = define(
    "layer_norm_backward(Tensor dy, Tensor held, Tensor? weight, Tensor? rowscale, Tensor? dsums, "
    "Tensor? seed, Tensor rstd, Tensor? mean, float eps, float p, bool rms, str dtype, "
    "str residual, str bias) -> (Tensor, Tensor, Tensor, Tensor)",
    _backward_kernel, _backward_fake, flops=_flops,
)  # fmt: skip
