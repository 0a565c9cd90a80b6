"""Tracing: a Python function's signature, its specialisation for one call, and its IR."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from types import CellType, FunctionType
from typing import Any

import numpy as np

from ..arch import Arch
from ..builder import Builder
from ..dtypes import DType, DTypeVar, by_name, f32, s32
from ..errors import DTypeError, LayoutError, Loc, ScopeError, TileError
from ..ir import Block, Kernel, ScalarArg, TensorArg
from ..ops.scalar import ScalarArgument
from ..tiles import GlobalType
from .explain import explained
from .scalars import Scalar
from .views import GlobalTensor

# What calls, `compile` and `simulate` of every kernel take beside its own arguments.
RESERVED = ("dtype", "grid", "progress", "races", "seed", "stream", "target")


@dataclass(frozen=True)
class Signature:
    """What a kernel takes.

    Args:
        name: the function's name.
        args: run-time arguments in order: (name, GlobalType or scalar dtype).
        params: compile-time keyword parameters and their defaults (`inspect._empty`: required).
        loc: the line of the `def`.
        rest: name of `*args`, which takes more arguments, of what type the call says; or empty.
    """

    name: str
    args: tuple[tuple[str, GlobalType | DType], ...]
    params: tuple[tuple[str, Any], ...]
    loc: Loc
    rest: str = ""

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
        args += f", *{self.rest}" * bool(self.rest)
        params = ", ".join(
            name if value is inspect.Parameter.empty else f"{name}={value}"
            for name, value in self.params
        )
        return f"{self.name}({args}; {params})"

    def fitted(self, views: Sequence[Any]) -> Signature:
        """The signature with the axes of `...` and the arguments of `*args` that a call has."""
        if not self.rest and not any(kind.leading for _, _, kind in self.tensors):
            return self
        args = list(self.args)
        for index, name, kind in self.tensors:
            extra = len(getattr(views[index], "shape", ())) - kind.rank if views[index:] else 0
            if kind.leading:
                dims = (*(f"{name}{axis}" for axis in range(extra)), *kind.dims)
                args[index] = (name, GlobalType(kind.dtype, dims, kind.inout))
        for number, value in enumerate(views[len(args) :] if self.rest else ()):
            name = f"{self.rest}{number}"
            args.append((name, _kind_of_value(self.name, value, name)))
        return replace(self, args=tuple(args), rest="")


def _kind_of_value(kernel: str, value: Any, name: str) -> GlobalType | DType:
    """The type of an argument of `*args`: of a tensor, f32 of a float, s32 of an int.

    No annotation says whether a tensor is read or written: it may be both.
    """
    shape = getattr(value, "shape", None)
    if shape is None:
        return f32 if isinstance(value, float) else s32
    if len(shape) == 0:
        raise LayoutError(
            f"{kernel}: {name} is a number, or an array of one axis or more, got shape ()",
            hint="x.reshape(1)",
        )
    dims = tuple(f"{name}_{axis}" for axis in range(len(shape)))
    return GlobalType(by_name(value.dtype), dims, inout=True)


def signature_of(
    function: Callable[..., Any], names: Mapping[str, Any] | None = None
) -> Signature:
    """Reads a kernel's signature.

    Args:
        function: the kernel.
        names: names its annotations may use beside its globals: locals where it is defined.

    Raises:
        ScopeError: not a plain function, or arguments a kernel cannot have.
        DTypeError: an argument without a type, or of a type a kernel cannot take.
    """
    _check_plain(function)
    code = function.__code__
    loc = Loc(code.co_filename, code.co_firstlineno)
    hints = _hints(function, names or {}, loc)
    args: list[tuple[str, GlobalType | DType]] = []
    params: list[tuple[str, Any]] = []
    rest = ""
    for name, parameter in inspect.signature(function).parameters.items():
        if name in RESERVED:
            raise ScopeError(
                f"kernel {function.__name__}: {name}= belongs to the call, and names no argument "
                f"or parameter, got {parameter}",
                loc=loc,
                hint=f"another name; these are taken: {', '.join(RESERVED)}",
            )
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            params.append((name, parameter.default))
            continue
        if parameter.kind is parameter.VAR_POSITIONAL and name not in hints:
            rest = name
            continue
        starred = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if starred or parameter.default is not parameter.empty:
            raise ScopeError(
                f"kernel {function.__name__}: run-time arguments are named and have no default, "
                f"got {parameter}",
                loc=loc,
                hint="compile-time parameters, which may have one, go after `*`",
            )
        args.append((name, _kind_of(function.__name__, name, hints.get(name), loc)))
    return Signature(function.__name__, tuple(args), tuple(params), loc, rest)


def _check_plain(function: Callable[..., Any]) -> None:
    made = f"{function!r} ({type(function).__name__})"
    if not isinstance(function, FunctionType):
        raise ScopeError(f"kernel: decorates a Python function, got {made}", hint="@tc.kernel")
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise ScopeError(f"kernel: a plain function, without yield and async, got {made}")


def _hints(function: Callable[..., Any], names: Mapping[str, Any], loc: Loc) -> dict[str, Any]:
    """Annotations, evaluated where they are strings (`from __future__ import annotations`)."""
    assert isinstance(function, FunctionType), "checked before"
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closed = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    try:
        return inspect.get_annotations(
            function, globals=function.__globals__, locals={**names, **closed}, eval_str=True
        )
    except TileError:
        raise
    except Exception as error:
        raise DTypeError(
            f"kernel {function.__name__}: its annotations cannot be read: "
            f"{type(error).__name__}: {error}",
            loc=loc,
            hint='A: tc.gl[tc.bf16, "M", "K"], of names known where the kernel is defined',
        ) from error


def _is_filled(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _kind_of(kernel: str, name: str, kind: Any, loc: Loc) -> GlobalType | DType:
    if isinstance(kind, GlobalType):
        return kind
    if isinstance(kind, DType) and kind.name in ("f32", "s32", "u32"):
        return kind
    raise DTypeError(
        f"kernel {kernel}: argument {name} is a tensor (gl[...]) or a scalar (f32, s32, u32), "
        f"got {name}: {kind!r}",
        loc=loc,
        hint='A: tc.gl[tc.bf16, "M", "K"]; compile-time parameters go after `*`',
    )


@dataclass(frozen=True)
class TensorSpec:
    """How one tensor argument looks to the compiled code.

    Args:
        dtype: element type's name.
        order: "row" or "col".
        tma: whether TMA can reach it.
        static: extents fixed at compile time, by axis.
        whole: whether its contiguous axis is a whole number of 16 bytes; True where TMA cannot
            reach it.
    """

    dtype: str
    order: str = "row"
    tma: bool = True
    static: tuple[int | None, ...] = ()
    whole: bool = True


@dataclass(frozen=True)
class Specialization:
    """All that a trace depends on: one compiled kernel each.

    Args:
        tensors: one TensorSpec a tensor argument, in order.
        params: compile-time parameters, complete, in signature order.
        args: the arguments, where the call decides how many and of how many axes; else empty.
    """

    tensors: tuple[TensorSpec, ...]
    params: tuple[tuple[str, Any], ...] = field(default=())
    args: tuple[tuple[str, GlobalType | DType], ...] = ()


def complete_params(signature: Signature, given: dict[str, Any]) -> dict[str, Any]:
    """Defaults filled in; NumPy's numbers as Python's.

    Raises:
        ScopeError: unknown or missing parameters, or values that cannot be compared later.
    """
    known = dict(signature.params)
    unknown = [n for n in given if n not in known]
    if unknown:
        raise ScopeError(
            f"{signature.name}: unknown compile-time parameter, got {unknown[0]}=",
            hint=f"{signature.name} takes {', '.join(known) or 'none'}",
        )
    merged = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in {**known, **given}.items()
    }
    missing = [n for n, v in merged.items() if v is inspect.Parameter.empty]
    if missing:
        raise ScopeError(
            f"{signature.name}: missing compile-time parameter {missing[0]}",
            hint=f"{signature.describe()}",
        )
    for name, value in merged.items():
        if not isinstance(value, Hashable):
            raise ScopeError(
                f"{signature.name}: a compile-time parameter is hashable, "
                f"got {name}={value!r} ({type(value).__name__})",
                hint="a number, a string, a dtype or a tuple of them",
            )
        wanted = type(known[name])
        if is_dataclass(wanted) and not isinstance(value, wanted):
            raise ScopeError(
                f"{signature.name}: {name} is of the kind of its default, {wanted.__name__}, got "
                f"{name}={value!r} ({type(value).__name__})",
                hint=f"from Python: {signature.name}.compile({name}={known[name]!r})",
            )
    return merged


def trace(
    function: Callable[..., Any], signature: Signature, specialization: Specialization, arch: Arch
) -> Kernel:
    """Runs the Python function once and records what it does.

    Raises:
        TileError: any rule of the language the kernel breaks, at its line.
    """
    if specialization.args:
        signature = replace(signature, args=specialization.args)
    args = _arguments(signature, specialization)
    kernel = Kernel(
        signature.name, args, dict(specialization.params), Block(), loc=signature.loc
    )
    builder = Builder(kernel, arch, trace.__code__)
    with builder.tracing():
        try:
            _run(function, signature, builder)
        except TileError:
            raise
        except Exception as error:
            found = explained(error, builder.default_loc)
            if found is None:
                raise
            raise found from error
    return kernel


def _run(function: Callable[..., Any], signature: Signature, builder: Builder) -> None:
    """Calls the function on the kernel's arguments, and what a template builds behind it."""
    kernel = builder.kernel
    handles: list[Any] = []
    for arg in kernel.args:
        if isinstance(arg, TensorArg):
            handles.append(GlobalTensor(arg))
        else:
            handles.append(Scalar(builder.add(ScalarArgument(arg)).result))
    result = function(*handles, **kernel.params)
    if result is not None:
        raise ScopeError(
            f"{signature.name}: a kernel returns nothing, got {result!r}",
            loc=signature.loc,
            hint="write results to a tensor argument",
        )
    for finalize in builder.finalizers:
        finalize()
    builder.check_unbroken()
    builder.check_products()


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
                name, index, GlobalType(dtype, kind.dims, kind.inout), tensor.order, tensor.tma,
                tensor.static, tensor.whole,
            )
        )
    return args


def _resolve(wanted: DType | DTypeVar, name: str) -> DType:
    if isinstance(wanted, DType):
        return wanted
    return next(d for d in wanted.choices if d.name == name)
