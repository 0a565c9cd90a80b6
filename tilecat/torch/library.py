"""The library `tilecat` of torch operators: one way to define each, for all that torch does.

An operator is a schema, a kernel on tensors, the same on shapes alone (for torch.compile), and, if
it has gradients, a `torch.autograd.Function`. The rules are kernels of the dispatcher rather than
of `torch.library.custom_op` and `register_autograd`, whose Python takes longer than our launches
(45 us a call that trains against 18, H200's host, torch 2.11). And a plain call in eager mode,
which nothing but its caller sees, does not go through the dispatcher at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import DTypeError, LayoutError
from ..runtime.arrays import TENSORS

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "tilecat.torch needs PyTorch, which is optional: pip install 'tilecat[torch]'",
        name="torch",
    ) from error
from torch.utils.flop_counter import register_flop_formula

LIBRARY = torch.library.Library("tilecat", "DEF")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
DEVICES = ("CPU", "CUDA")  # tensors on the CPU run on the PTX machine
PLAIN = frozenset((type(None), bool, int, float, str, list))
_C = torch._C
NUMBERS = (int, float, torch.SymInt, torch.SymFloat)
KINDS: dict[str, Any] = {  # of a schema's arguments
    "float": NUMBERS, "int": NUMBERS[::2], "bool": (bool, torch.SymBool), "str": str,
    "Optional[float]": (*NUMBERS, type(None)), "Optional[int]": (*NUMBERS[::2], type(None)),
}  # fmt: skip
TENSORS.update((torch.Tensor, torch.nn.Parameter))


def define(
    schema: str, kernel: Callable[..., Any], fake: Callable[..., Any], function: Any = None,
    *, flops: Callable[..., int], cast: int | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """Makes the operator `torch.ops.tilecat.NAME`.

    Args:
        schema: name, arguments and results as torch's schemas have them.
        kernel: runs it on CPU or CUDA tensors.
        fake: gives empty results of the same shapes, strides and dtypes.
        function: applies an autograd.Function to a function that runs the operator, and then its
            arguments; None for an operator of no gradients.
        flops: of shapes in place of tensors and `out_shape`, for torch's FlopCounterMode.
        cast: how many arguments take autocast's dtype; None for all that are floats.

    Returns:
        What calls it.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    operator, shown = getattr(torch.ops.tilecat, name).default, name.removesuffix("_forward")
    for device in DEVICES:
        LIBRARY.impl(name, kernel, device)
    torch.library.register_fake(f"tilecat::{name}", _checked(shown, fake), lib=LIBRARY)
    register_flop_formula(operator.overloadpacket)(flops)

    def below_autograd(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args)

    def differentiable(*args: Any) -> Any:
        trains = torch.is_grad_enabled() and any(map(requires_grad, args))
        return function(below_autograd, *args) if trains else below_autograd(*args)

    if function is not None:
        LIBRARY.impl(name, differentiable, "Autograd")
        for device in DEVICES:
            LIBRARY.impl(name, _autocast(operator, device.lower(), cast), f"Autocast{device}")

    return _caller(shown, operator, kernel, function)


def _caller(name: str, operator: Any, kernel: Any, function: Any) -> Callable[..., Any]:
    """What calls an operator: through the dispatcher where more than its caller sees the call."""
    arrays = [(at, x.name) for at, x in enumerate(operator._schema.arguments)
              if str(x.type) == "Tensor"]  # fmt: skip

    def call(*args: Any) -> Any:
        if torch.compiler.is_compiling():
            return operator(*args)
        for at, argument in arrays:
            if type(args[at]) not in TENSORS:
                check_tensor(name, argument, args[at])
        trains = _trains_plainly(args)
        if trains is None:
            _check_arguments(name, operator, args)
            return operator(*args)
        try:
            if trains and function is not None and torch.is_grad_enabled():
                return function(kernel, *args)
            return kernel(*args)
        except RuntimeError:  # of torch: a tensor that is no strided one, perhaps
            _check_arguments(name, operator, args)
            raise

    return call


def _check_arguments(name: str, operator: Any, args: tuple[Any, ...]) -> None:
    """Refuses what the schema does not take, in words of ours.

    Raises:
        DTypeError: an argument of another kind.
    """
    for argument, x in zip(operator._schema.arguments, args, strict=True):
        kind = str(argument.type)
        if kind in ("Tensor", "Optional[Tensor]"):
            if x is not None:
                check_tensor(name, argument.name, x)
        elif not isinstance(x, KINDS.get(kind, object)):
            raise DTypeError(
                f"{name}: {argument.name} is {kind.removesuffix(']').replace('Optional[', '')}, "
                f"got {type(x).__name__}"
            )


def _checked(name: str, fake: Callable[..., Any]) -> Callable[..., Any]:
    """Results of shapes alone; shapes that have none are refused.

    Raises:
        LayoutError: they have too few axes.
    """

    def made(*args: Any) -> Any:
        try:
            return fake(*args)
        except (IndexError, ValueError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and type(error) is not RuntimeError:
                raise  # the tracer's own
            shapes = [tuple(x.shape) for x in args if isinstance(x, torch.Tensor)]
            raise LayoutError(f"{name}: shapes that do not fit, got {shapes}: {error}") from None

    return made


def _trains_plainly(args: tuple[Any, ...]) -> bool | None:
    """Whether an argument wants a gradient; None if more than the caller wants to see the call.

    That is a mode, a transform, autocast, a profiler, a tracer, or a kind of tensor of its own.
    """
    trains = False
    for x in args:
        kind = type(x)
        if kind in PLAIN:
            if kind is list and x:
                inner = _trains_plainly(tuple(x))
                if inner is None:
                    return None
                trains = trains or inner
        elif kind in TENSORS:
            trains = trains or x.requires_grad
            if x.is_meta:
                return None
        else:
            return None
    watched = (
        _C._len_torch_dispatch_stack()
        or _C._len_torch_function_stack()
        or _C._functorch.peek_interpreter_stack()
        or _C._is_any_autocast_enabled()
        or torch.autograd._profiler_enabled()
        or _C._is_tracing()
    )
    return None if watched else trains


def check_tensor(name: str, argument: str, x: Any, axes: int = 0) -> None:
    """Refuses what is no tensor, arrays of other libraries too.

    Raises:
        DTypeError: it is none. LayoutError: it has fewer axes.
    """
    if not isinstance(x, torch.Tensor):
        raise DTypeError(
            f"{name}: {argument} is a tensor of torch, got {type(x).__name__}",
            hint="torch.as_tensor(x), or the function of tilecat itself",
        )
    if x.layout is not torch.strided or x.is_nested:
        kind = "a nested tensor" if x.is_nested else f"one of layout {x.layout}"
        raise DTypeError(f"{name}: {argument} is a strided tensor, got {kind}", hint="x.to_dense()")
    if x.ndim < axes:
        raise LayoutError(f"{name}: {argument} has {axes} axes or more, got shape {tuple(x.shape)}")


def scale_of(name: str, q: Any, scale: Any) -> Any:
    """The scale, or 1/sqrt of q's columns.

    Raises:
        DTypeError: q is no tensor. LayoutError: it has no columns.
    """
    if scale is not None:
        return scale
    if type(q) not in TENSORS or not q.ndim:
        check_tensor(name, "q", q, axes=1)
    try:
        columns = q.shape[-1]
    except RuntimeError:
        columns = 0
        check_tensor(name, "q", q)
    if columns == 0:
        raise LayoutError(f"{name}: q has a column at least, got shape {tuple(q.shape)}")
    return columns**-0.5


def requires_grad(x: Any) -> bool:
    """Whether an argument of an operator is a tensor that wants a gradient, or holds one."""
    if isinstance(x, torch.Tensor):
        return bool(x.requires_grad)
    return isinstance(x, list | tuple) and any(map(requires_grad, x))


def packed(grad: Any) -> Any:
    """A gradient as it lies, or a copy of one that repeats: that of a sum has strides of 0."""
    return grad if all(grad.stride()) else grad.contiguous()


def packed_gradients(do: Any, d_last: Any, like: Any) -> tuple[Any, Any] | None:
    """Those of an output and of a final state as kernels take them; None where there is neither.

    Args:
        do: of the output, or None: zeros.
        d_last: of the final state, or None; empty where there was none.
        like: of the output's shape and dtype.
    """
    d_last = None if d_last is None or not d_last.numel() else packed(d_last)
    if do is None and d_last is None:
        return None
    return torch.zeros_like(like) if do is None else packed(do), d_last


def _autocast(operator: Any, device: str, count: int | None) -> Callable[..., Any]:
    """The rule of torch's own products under autocast: floats become of its dtype."""

    def cast(x: Any, dtype: Any) -> Any:
        floats = isinstance(x, torch.Tensor) and x.dtype in FLOATS
        return x.to(dtype) if floats else x

    def rule(*args: Any) -> Any:
        dtype, first = torch.get_autocast_dtype(device), args[:count]
        with torch.autocast(device, enabled=False):
            return operator(*[cast(arg, dtype) for arg in first], *args[len(first) :])

    return rule


def offsets(x: Any) -> Any:
    """Offsets, or numbers of sequences, of 64 bits as s32; others as they are."""
    wide = isinstance(x, torch.Tensor) and x.dtype == torch.int64
    return x.to(torch.int32) if wide else x


def absent(like: Any) -> Any:
    """What an operator returns for a tensor of f32 that there is none of: it has no None."""
    return like.new_empty(0, dtype=torch.float32)
