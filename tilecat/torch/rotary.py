"""`tilecat::apply_rotary` and its kin: rotary embedding under autograd and torch.compile."""

from __future__ import annotations

import math
from typing import Any

from ..errors import LayoutError
from ..rotary_call import turned
from ..row_arguments import check_flag
from .library import define, requires_grad, torch

_OPTIONS = (
    "Tensor cos, Tensor sin, Tensor? offsets, Tensor? cu_seqlens, int offset, int longest, "
    "bool interleaved, bool conjugate"
)


def apply_rotary(
    x: Any, cos: Any, sin: Any, interleaved: bool = False, inplace: bool = False,
    seqlen_offsets: Any = 0, cu_seqlens: Any = None, max_seqlen: int | None = None,
) -> Any:  # fmt: skip
    """`tilecat.apply_rotary`, differentiable: `flash_attn.layers.rotary.apply_rotary_emb`.

    Args:
        x, cos, sin, interleaved, seqlen_offsets, cu_seqlens, max_seqlen: see
            `tilecat.apply_rotary`; there are gradients of x alone.
        inplace: write to x, and give it.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.apply_rotary`.
    """
    options = _options(cos, sin, interleaved, seqlen_offsets, cu_seqlens, max_seqlen)
    if not check_flag("apply_rotary", "inplace", inplace):
        return _rotary(x, *options)
    _in_place((x,), (_rotary,), _rotary_into, options)
    return x


def apply_rotary_qk(
    q: Any, k: Any, cos: Any, sin: Any, interleaved: bool = False, inplace: bool = False,
    seqlen_offsets: Any = 0, cu_seqlens: Any = None, max_seqlen: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """`tilecat.apply_rotary_qk`, differentiable: queries and keys in one launch.

    Args:
        q, k, cos, sin, interleaved, seqlen_offsets, cu_seqlens, max_seqlen: see
            `tilecat.apply_rotary_qk`; there are gradients of q and k alone.
        inplace: write to q and k, and give them.

    Raises:
        LayoutError, DTypeError, ResourceError: as `tilecat.apply_rotary_qk`.
    """
    options = _options(cos, sin, interleaved, seqlen_offsets, cu_seqlens, max_seqlen)
    if not check_flag("apply_rotary", "inplace", inplace):
        return _rotary_qk(q, k, *options)  # type: ignore[no-any-return]
    _in_place((q, k), (_rotary, _rotary), _rotary_qk_into, options)
    return q, k


def _in_place(
    tensors: tuple[Any, ...], single: tuple[Any, ...], into: Any, options: tuple[Any, ...]
) -> None:  # fmt: skip
    """Writes to tensors; under autograd as a copy of the result, which it knows of."""
    if torch.is_grad_enabled() and any(map(requires_grad, tensors)):
        for x, operator in zip(tensors, single, strict=True):
            x.copy_(operator(x, *options))
        return
    into(*tensors, *options)


def _options(
    cos: Any, sin: Any, interleaved: Any, offsets: Any, starts: Any, longest: Any
) -> tuple[Any, ...]:  # fmt: skip
    """Those of the operators, which take ints and tensors apart."""
    fixed, moved = (offsets, None) if isinstance(offsets, int) else (0, offsets)
    most = -1 if longest is None else longest
    if isinstance(most, bool) or not isinstance(most, int | torch.SymInt):
        raise LayoutError(f"apply_rotary: max_seqlen is an int, got {longest!r}")
    interleaved = check_flag("apply_rotary", "interleaved", interleaved)
    return cos, sin, moved, starts, fixed, most, interleaved, False


def _run(names: tuple[str, ...], inplace: bool, *args: Any) -> Any:
    """The kernel on the tensors of an operator's arguments."""
    count = len(names)
    cos, sin, moved, starts, fixed, most, interleaved, conjugate = args[count:]
    call = "apply_rotary" if count == 1 else "apply_rotary_qk"
    offsets, longest = fixed if moved is None else moved, None if most < 0 else most
    options = interleaved, inplace, offsets, starts, longest, conjugate
    return turned(call, dict(zip(names, args[:count], strict=True)), cos, sin, options)


def _kernel(x: Any, *options: Any) -> Any:
    return _run(("x",), False, x, *options)[0]


def _kernel_into(x: Any, *options: Any) -> None:
    _run(("x",), True, x, *options)


def _kernel_qk(q: Any, k: Any, *options: Any) -> Any:
    return _run(("q", "k"), False, q, k, *options)


def _kernel_qk_into(q: Any, k: Any, *options: Any) -> None:
    _run(("q", "k"), True, q, k, *options)


def _fake(x: Any, *_: Any) -> Any:
    return x.new_empty(x.shape)


def _fake_qk(q: Any, k: Any, *_: Any) -> Any:
    return q.new_empty(q.shape), k.new_empty(k.shape)


def _fake_into(*_: Any) -> None:
    """Nothing is made."""


def _flops(x: Any, *_: Any, **__: Any) -> int:
    return 3 * math.prod(x)


class _Rotary(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, run: Any, x: Any, *options: Any) -> Any:
        ctx.save_for_backward(*options[:4])
        ctx.options = options[4:]
        return run(x, *options)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        *rest, conjugate = ctx.options
        return None, _rotary(grad, *ctx.saved_tensors, *rest, not conjugate), *[None] * 8


class _RotaryPair(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, run: Any, q: Any, k: Any, *options: Any) -> Any:
        ctx.save_for_backward(*options[:4])
        ctx.options = options[4:]
        return run(q, k, *options)

    @staticmethod
    def backward(ctx: Any, grad_q: Any, grad_k: Any) -> Any:
        *rest, conjugate = ctx.options
        made = _rotary_qk(grad_q, grad_k, *ctx.saved_tensors, *rest, not conjugate)
        return None, *made, *[None] * 8


_rotary = define(
    f"apply_rotary(Tensor x, {_OPTIONS}) -> Tensor", _kernel, _fake, _Rotary.apply,
    flops=_flops, cast=0,
)  # fmt: skip
_rotary_qk = define(
    f"apply_rotary_qk(Tensor q, Tensor k, {_OPTIONS}) -> (Tensor, Tensor)", _kernel_qk, _fake_qk,
    _RotaryPair.apply, flops=_flops, cast=0,
)  # fmt: skip
_rotary_into = define(
    f"apply_rotary_(Tensor(a!) x, {_OPTIONS}) -> ()", _kernel_into, _fake_into, flops=_flops,
)  # fmt: skip
_rotary_qk_into = define(
    f"apply_rotary_qk_(Tensor(a!) q, Tensor(b!) k, {_OPTIONS}) -> ()", _kernel_qk_into, _fake_into,
    flops=_flops,
)  # fmt: skip
