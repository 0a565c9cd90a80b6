"""Tracing: a Python function's signature, its specialisation for one call, and its IR."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..arch import Arch
from ..builder import Builder
from ..dtypes import DType, DTypeVar
from ..errors import DTypeError, Loc, ScopeError
from ..ir import Block, Kernel, ScalarArg, TensorArg
from ..ops.scalar import ScalarArgument
from ..tiles import GlobalType
from .scalars import Scalar
from .values import GlobalTensor


@dataclass(frozen=True)
class Signature:
    """What a kernel takes.

    Args:
        name: the function's name.
        args: run-time arguments in order: (name, GlobalType or scalar dtype).
        params: compile-time keyword parameters and their defaults (`inspect._empty`: required).
        loc: the line of the `def`.
    """

    name: str
    args: tuple[tuple[str, GlobalType | DType], ...]
    params: tuple[tuple[str, Any], ...]
    loc: Loc

    @property
    def tensors(self) -> tuple[tuple[int, str, GlobalType], ...]:
        """(index, name, type) of the tensor arguments."""
        return tuple(
            (i, name, kind)
            for i, (name, kind) in enumerate(self.args)
            if isinstance(kind, GlobalType)
        )

    def describe(self) -> str:
        """`matmul(A: gl[...], ...; tile_m=128)`."""
        args = ", ".join(f"{name}: {kind}" for name, kind in self.args)
        params = ", ".join(
            name if value is inspect.Parameter.empty else f"{name}={value}"
            for name, value in self.params
        )
        return f"{self.name}({args}; {params})"


def signature_of(function: Callable[..., Any]) -> Signature:
    """Reads a kernel's signature.

    Raises:
        DTypeError: an argument without a type, or of a type a kernel cannot take.
    """
    code = function.__code__
    loc = Loc(code.co_filename, code.co_firstlineno)
    closure = inspect.getclosurevars(function)
    spaces = {**closure.builtins, **function.__globals__, **closure.nonlocals}
    hints = inspect.get_annotations(function, globals=spaces, eval_str=True)
    args: list[tuple[str, GlobalType | DType]] = []
    params: list[tuple[str, Any]] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            params.append((name, parameter.default))
            continue
        kind = hints.get(name)
        scalar = isinstance(kind, DType) and kind.name in ("f32", "s32", "u32")
        if not isinstance(kind, GlobalType) and not scalar:
            raise DTypeError(
                f"kernel {function.__name__}: argument {name} is a tensor (gl[...]) or a scalar "
                f"(f32, s32, u32), got {name}: {kind!r}",
                loc=loc,
                hint='A: tc.gl[tc.bf16, "M", "K"]; compile-time parameters go after `*`',
            )
        assert isinstance(kind, GlobalType | DType), "checked above"
        args.append((name, kind))
    return Signature(function.__name__, tuple(args), tuple(params), loc)


@dataclass(frozen=True)
class TensorSpec:
    """How one tensor argument looks to the compiled code.

    Args:
        dtype: element type's name.
        order: "row" or "col".
        tma: whether TMA can reach it.
        static: extents fixed at compile time, by axis.
    """

    dtype: str
    order: str = "row"
    tma: bool = True
    static: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class Specialization:
    """All that a trace depends on: one compiled kernel each.

    Args:
        tensors: one TensorSpec a tensor argument, in order.
        params: compile-time parameters, complete, in signature order.
    """

    tensors: tuple[TensorSpec, ...]
    params: tuple[tuple[str, Any], ...] = field(default=())


def complete_params(signature: Signature, given: dict[str, Any]) -> dict[str, Any]:
    """Defaults filled in.

    Raises:
        ScopeError: unknown or missing parameters.
    """
    known = dict(signature.params)
    unknown = [n for n in given if n not in known]
    if unknown:
        raise ScopeError(
            f"{signature.name}: unknown compile-time parameter, got {unknown[0]}={given[unknown[0]]!r}",
            hint=f"{signature.name} takes {', '.join(known) or 'none'}",
        )
    merged = {**known, **given}
    missing = [n for n, v in merged.items() if v is inspect.Parameter.empty]
    if missing:
        raise ScopeError(
            f"{signature.name}: missing compile-time parameter {missing[0]}",
            hint=f"{signature.describe()}",
        )
    return merged


def trace(
    function: Callable[..., Any], signature: Signature, specialization: Specialization, arch: Arch
) -> Kernel:
    """Runs the Python function once and records what it does.

    Raises:
        TileError: any rule of the language the kernel breaks, at its line.
    """
    args = _arguments(signature, specialization)
    kernel = Kernel(
        signature.name, args, dict(specialization.params), Block(), loc=signature.loc
    )
    builder = Builder(kernel, arch, trace.__code__)
    with builder.tracing():
        handles: list[Any] = []
        for arg in args:
            if isinstance(arg, TensorArg):
                handles.append(GlobalTensor(arg))
            else:
                handles.append(Scalar(builder.add(ScalarArgument(arg)).result))
        function(*handles, **dict(specialization.params))
        for finalize in builder.finalizers:
            finalize()
        builder.check_unbroken()
    return kernel


def _arguments(signature: Signature, spec: Specialization) -> list[TensorArg | ScalarArg]:
    args: list[TensorArg | ScalarArg] = []
    tensors = iter(spec.tensors)
    for index, (name, kind) in enumerate(signature.args):
        if isinstance(kind, DType):
            args.append(ScalarArg(name, index, kind.name))
            continue
        tensor = next(tensors)
        dtype = _resolve(kind.dtype, tensor.dtype)
        args.append(
            TensorArg(
                name, index, GlobalType(dtype, kind.dims), tensor.order, tensor.tma, tensor.static
            )
        )
    return args


def _resolve(wanted: DType | DTypeVar, name: str) -> DType:
    if isinstance(wanted, DType):
        return wanted
    return next(d for d in wanted.choices if d.name == name)
