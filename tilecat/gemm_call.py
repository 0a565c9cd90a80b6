"""A call of the GEMM: what its arguments mean, checked, and the kernel's arguments made of them."""

from __future__ import annotations

import inspect
import math
import re
import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .captured import MAX_FUNCTIONS, remembered
from .errors import DTypeError, LayoutError
from .gemm_groups import Groups
from .kernels import epilogues
from .kernels.epilogues import Step
from .runtime.arrays import ITEM_BYTES, ArrayView, empty, shape_of, view

HALVES = ("bf16", "f16")
FP8 = ("e4m3", "e5m2")
OUT = {"f32": "f32", "e4m3": "bf16", "e5m2": "bf16", "s8": "s32"}  # unless the caller says
OUTS = ("bf16", "f16", "f32", "e4m3", "e5m2")
MAX_PLANES = 3  # leading axes that a tensor map has room for
BLOCK = 128  # elements of K (and of N) that share a scale
UNIT = 4  # f32 that TMA aligns: 16 bytes

_ARGS = "args"  # of the kernel
_ARGUMENT = re.compile(rf"\b{_ARGS}(\d+)\b")


@dataclass
class GemmCall:
    """Arguments of the kernel, and what chooses its configuration.

    Args:
        out: what the caller gets.
        arrays: A, B and the output, their leading axes merged.
        args: the kernel's further arguments: of its parameters, then of the steps.
        params: `epilogue`, and what else the kernel has to know.
        extents: M, N, K of a plane.
        planes: how many.
        names: of `args`, as a caller knows them.
    """

    out: Any
    arrays: tuple[Any, Any, Any]
    args: tuple[Any, ...]
    params: dict[str, Any]
    extents: tuple[int, int, int]
    planes: int
    names: tuple[str, ...] = ()

    @contextmanager
    def naming(self, before: int = 0) -> Iterator[None]:
        """Around the kernel's call: its errors name arguments as their caller knows them.

        Args:
            before: further arguments of the kernel that stand before `args`.
        """
        names = [*[f"{_ARGS}{index}" for index in range(before)], *self.names]
        try:
            yield
        except (LayoutError, DTypeError) as error:
            message = _ARGUMENT.sub(lambda found: names[int(found[1])], error.message)
            if message == error.message:
                raise
            raise type(error)(message, loc=error.loc, hint=error.hint) from None


@dataclass
class Options:
    """Keyword arguments of `tc.matmul`."""

    out_dtype: Any
    alpha: Any
    beta: Any
    scales: tuple[Any, Any]
    second: Any
    epilogue: Any
    groups: Groups | None = None


def prepare(a: Any, b: Any, out: Any, options: Options) -> GemmCall:
    """Checks a product's arguments and makes the kernel's; see `tilecat.matmul`.

    Raises:
        LayoutError: shapes that do not fit.
        DTypeError: dtypes that are not multiplied, or stored.
    """
    left, right = view(a), view(b)
    groups = options.groups
    shape = _shape(left, right) if groups is None else groups.shape(left, right)
    dtype = _dtypes(left, right, out, options.out_dtype)
    out = _output(a, out, shape, dtype, options.beta)
    m, k = left.shape[-2:]
    n = right.shape[-1]
    first = _second(options, right)
    blocks = _block_scales(options.scales, left, right)
    params: dict[str, Any] = {"second": bool(first), "block_scales": bool(blocks)}
    params["groups"] = groups is not None
    chain = [] if blocks else _scale_steps(options.scales, left, right)
    chain += _factor("alpha", options.alpha, epilogues.scale, 1)
    chain += _factor("beta", options.beta, epilogues.add_out, 0)
    chain += _chain(options.epilogue, 1 + params["second"])
    params["epilogue"] = tuple(Step(function, len(args)) for function, *args in chain)
    args = (*first, *blocks, *(arg for _, *args in chain for arg in args))
    names = ("second",) * len(first) + ("scale_a", "scale_b")[: len(blocks)]
    names += tuple(name for function, *more in chain for name in _names(function, more))
    arrays = (_k_last(a, left, 1), _k_last(b, right, 2), out)
    if groups is None:
        # Axes of a tensor that a step takes are matched with those of the batch: it stays.
        merge = all(len(shape_of(arg)) < 2 for arg in args)
        arrays = _planes(shape[:-2], arrays, merge)
    return GemmCall(out, arrays, args, params, (m, n, k), math.prod(shape[:-2]), names)


def _output(a: Any, out: Any, shape: tuple[int, ...], dtype: str, beta: Any) -> Any:
    if out is None:
        if not (_is_number(beta) and beta == 0):
            raise LayoutError(f"matmul: beta scales what out holds, got {beta=} and no out")
        return empty(a, shape, dtype)
    if tuple(view(out).shape) != shape:
        raise LayoutError(
            f"matmul: out has the shape {shape} for these operands, got {tuple(view(out).shape)}"
        )
    return out


def _second(options: Options, right: ArrayView) -> tuple[Any, ...]:
    """The second B, as an argument of the kernel.

    Raises:
        LayoutError: of another shape or dtype, or factors that might be meant for either product.
    """
    if options.second is None:
        return ()
    other = view(options.second)
    if (tuple(other.shape), other.dtype) != (tuple(right.shape), right.dtype):
        raise LayoutError(
            f"matmul: second has the shape and dtype of b, got {tuple(other.shape)} of "
            f"{other.dtype} and {tuple(right.shape)} of {right.dtype}"
        )
    factors = _factor("alpha", options.alpha, epilogues.scale, 1)
    factors += _factor("beta", options.beta, epilogues.add_out, 0)
    if factors or any(x is not None for x in options.scales):
        raise LayoutError(
            "matmul: with second, factors belong to the epilogue, got alpha, beta or scales",
            hint="epilogue=(lambda x, y, at, s: tc.silu(x * s) * y, scale)",
        )
    return (_k_last(options.second, other, 2),)


def _block_scales(
    scales: tuple[Any, Any], left: ArrayView, right: ArrayView
) -> tuple[Any, ...]:
    """Scales of 1 x 128 of a and 128 x 128 of b as the kernel takes them; () for other scales.

    Raises:
        LayoutError: one of them alone has that shape.
    """
    if any(scale is None or _is_number(scale) for scale in scales):
        return ()
    blocks, wide = (-(-x // BLOCK) for x in (left.shape[-1], right.shape[-1]))
    wanted = (*left.shape[:-1], blocks), (*right.shape[:-2], blocks, wide)
    found = [_viewed(name, x) for name, x in zip(("scale_a", "scale_b"), scales, strict=True)]
    fits = [tuple(x.shape) == shape for x, shape in zip(found, wanted, strict=True)]
    if blocks == 1 and tuple(found[1].shape) in ((1, right.shape[-1]), (right.shape[-1],), (1,)):
        return ()
    if not all(fits):
        if any(fits) and blocks > 1:
            raise LayoutError(
                f"matmul: scales of blocks of {BLOCK} are {wanted[0]} of a and {wanted[1]} of b, "
                f"got shapes {tuple(found[0].shape)} and {tuple(found[1].shape)}"
            )
        return ()
    if any(x.dtype != "f32" for x in found) or left.dtype not in FP8:
        raise DTypeError(
            f"matmul: scales of blocks are f32, of FP8 operands, got {found[0].dtype} and "
            f"{found[1].dtype} of {left.dtype}"
        )
    return (_m_last(scales[0], found[0]), scales[1])


def _m_last(x: Any, array: ArrayView) -> Any:
    """Scales of a's rows with M last and within reach of TMA: a copy unless they lie so."""
    *lead, m, blocks = array.shape
    *outer, inner, step = array.strides
    apart = [n for n, extent in zip((*outer, step), (*lead, blocks), strict=True) if extent > 1]
    turned = x.swapaxes(-1, -2)
    if (inner == 1 or m == 1) and not any(n % UNIT for n in apart) and array.ptr % 16 == 0:
        return turned
    packed = empty(x, (*lead, blocks, -(-m // UNIT) * UNIT), "f32")[..., :m]
    packed[...] = turned
    return packed


def _shape(left: ArrayView, right: ArrayView) -> tuple[int, ...]:
    for name, array in (("a", left), ("b", right)):
        if len(array.shape) < 2:
            raise LayoutError(f"matmul: {name} has at least 2 axes, got shape {array.shape}")
    if left.shape[-1] != right.shape[-2]:
        raise LayoutError(
            f"matmul: extent K must agree, got a with K={left.shape[-1]} and b with "
            f"K={right.shape[-2]} (shapes {tuple(left.shape)} and {tuple(right.shape)})",
            hint="a is [..., M, K] and b is [..., K, N]",
        )
    if len(left.shape) == len(right.shape) == 2:
        return (left.shape[0], right.shape[1])
    try:
        batch = np.broadcast_shapes(tuple(left.shape[:-2]), tuple(right.shape[:-2]))
    except ValueError:
        raise LayoutError(
            f"matmul: leading axes broadcast: equal or 1, got {tuple(left.shape)} and "
            f"{tuple(right.shape)}"
        ) from None
    return (*batch, left.shape[-2], right.shape[-1])


def _dtypes(left: ArrayView, right: ArrayView, out: Any, out_dtype: Any) -> str:
    """The output's dtype."""
    mine, other = left.dtype, right.dtype
    if mine not in (*HALVES, *OUT):
        known = ", ".join((*HALVES, *OUT))
        raise DTypeError(f"matmul: multiplies {known}, got a={mine}", hint="convert a and b")
    if mine != other and not (mine in FP8 and other in FP8):
        raise DTypeError(
            f"matmul: a and b have one dtype (e4m3 and e5m2 mix), got a={mine} and b={other}"
        )
    wanted = getattr(out_dtype, "name", out_dtype)
    if not isinstance(wanted, str | None):
        raise DTypeError(f"matmul: out_dtype is a dtype of tilecat or its name, got {out_dtype!r}")
    given = None if out is None else view(out).dtype
    dtype = given or wanted or OUT.get(mine, mine)
    legal = (*OUTS, "s32") if mine == "s8" else OUTS
    if dtype not in legal or wanted not in (None, dtype):
        raise DTypeError(
            f"matmul: the output of {mine} is {', '.join(legal)}, and out_dtype that of out, "
            f"got out_dtype={wanted} and out of {given}"
        )
    return str(dtype)


def _k_last(x: Any, array: ArrayView, axis: int) -> Any:
    """An operand whose K is contiguous, where the tensor cores insist: a copy if need be."""
    one = array.shape[-axis] == 1 and array.strides[axis - 3] == 1
    if ITEM_BYTES[array.dtype] == 2 or 0 in array.shape or array.strides[-axis] == 1 and not one:
        return x
    turned = x if axis == 1 else x.swapaxes(-1, -2)
    if array.shape[-axis] == 1:  # rows of one element lie as a column: apart, they cannot
        shape = tuple(view(turned).shape)
        wide = empty(x, (*shape[:-1], 16), array.dtype)
        wide[..., :1] = turned
        return wide[..., :1] if axis == 1 else wide[..., :1].swapaxes(-1, -2)
    packed = turned.contiguous() if hasattr(turned, "contiguous") else turned.copy(order="C")
    return packed if axis == 1 else packed.swapaxes(-1, -2)


# ---- leading axes


def _planes(
    batch: tuple[int, ...], given: tuple[Any, Any, Any], merge: bool
) -> tuple[Any, Any, Any]:
    """The arrays with as few leading axes as their strides allow; extent 1 where one broadcasts."""
    if not batch:
        return given
    for x in given:
        if not hasattr(x, "reshape"):
            raise LayoutError(
                f"matmul: batches are tensors that have views, got {type(x).__name__}",
                hint="torch.from_dlpack(x), or numpy.asarray(x)",
            )
    arrays = [_aligned(x, len(batch)) for x in given]
    axes = list(range(len(batch)))
    if merge:
        axes = [axis for axis in axes if batch[axis] != 1] or axes[:1]
    groups: list[list[int]] = []
    for axis in axes:
        if merge and groups and all(_merges(view(x), groups[-1][-1], axis) for x in arrays):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if len(groups) > MAX_PLANES:
        raise LayoutError(
            f"matmul: at most {MAX_PLANES} leading axes that strides do not merge, got "
            f"{len(groups)} of the batch {batch}",
            hint="make a, b or out contiguous",
        )
    merged = []
    for x in arrays:
        shape = view(x).shape
        sizes = [math.prod(shape[axis] for axis in group) for group in groups]
        merged.append(x.reshape(*sizes, *shape[-2:]))
    return merged[0], merged[1], merged[2]


def _aligned(x: Any, count: int) -> Any:
    """With leading axes of extent 1 in front, and of extent 1 where the stride is 0."""
    array = view(x)
    parts = tuple(
        slice(0, 1) if stride == 0 and extent > 1 else slice(None)
        for stride, extent in zip(array.strides[:-2], array.shape[:-2], strict=True)
    )
    if any(part.stop for part in parts):
        x = x[parts]
    missing = count + 2 - len(array.shape)
    return x[(None,) * missing] if missing else x


def _merges(array: ArrayView, outer: int, inner: int) -> bool:
    """Whether two leading axes step as one; those between have extent 1."""
    extents = array.shape[outer], array.shape[inner]
    if extents == (1, 1):
        return True
    whole = array.strides[outer] == array.strides[inner] * extents[1]
    return 1 not in extents and whole


# ---- steps


def _chain(epilogue: Any, sums: int) -> list[tuple[Any, ...]]:
    """(function, argument, ...) of each step; the first takes the tiles of all sums.

    Raises:
        LayoutError: neither a function nor a tuple that begins with one.
    """
    items = epilogue if isinstance(epilogue, tuple | list) else (epilogue,)
    if isinstance(epilogue, tuple) and epilogue and callable(epilogue[0]):
        later = [x for x in epilogue[1:] if isinstance(x, tuple) or callable(x)]
        items = epilogue if later or len(epilogue) == 1 else (epilogue,)
    found: list[tuple[Any, ...]] = []
    for item in items:
        function, *args = item if isinstance(item, tuple) else (item,)
        if not callable(function):
            raise LayoutError(
                f"matmul: a step of the epilogue is a function f(x, at, *args), or a tuple of one "
                f"and its arguments, got {item!r}",
                hint="epilogue=((tc.epilogues.bias, bias), tc.epilogues.gelu)",
            )
        function = remembered(function)
        _check_takes(function, len(args), 1 if found else sums)
        found.append((function, *args))
    if sums > 1 and not found:
        raise LayoutError(
            "matmul: two products take an epilogue that makes one tile of two, got none",
            hint="epilogue=tc.epilogues.swiglu",
        )
    return found


def _names(function: Callable[..., Any], given: list[Any]) -> list[str]:
    """What a step calls its run-time arguments: `values of bias`."""
    parameters = list(inspect.signature(function).parameters)
    step = getattr(function, "__name__", type(function).__name__)
    return [f"{name} of {step}" for name in parameters[len(parameters) - len(given) :]]


@lru_cache(maxsize=MAX_FUNCTIONS)
def _check_takes(function: Callable[..., Any], count: int, sums: int) -> None:
    try:
        inspect.signature(function).bind(*[None] * (sums + 1 + count))
    except (TypeError, ValueError) as error:
        name = getattr(function, "__name__", type(function).__name__)
        takes = "(x, y, at)" if sums > 1 else "(x, at)"
        raise LayoutError(
            f"matmul: a step of the epilogue takes {takes} and the arguments given with it, got "
            f"{count} for {name}: {error}",
            hint="epilogue=((f, argument), g)",
        ) from None


def _viewed(name: str, value: Any) -> ArrayView:
    """An array that stands beside the operands.

    Raises:
        DTypeError: none; the error names the option.
    """
    try:
        return view(value)
    except DTypeError as error:
        array = hasattr(value, "dtype")
        shown = f"{reprlib.repr(value)} ({type(value).__name__})"
        got = f"one of {value.dtype}" if array else shown
        raise DTypeError(
            f"matmul: {name} is a number or an f32 array, got {got}",
            hint=None if array else error.hint,
        ) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _factor(name: str, value: Any, function: Any, neutral: float) -> list[tuple[Any, ...]]:
    if not _is_number(value):
        array = _viewed(name, value)
        if math.prod(array.shape) != 1 or array.dtype != "f32":
            raise LayoutError(
                f"matmul: {name} is a number or an f32 array of one element, got shape "
                f"{tuple(array.shape)} of {array.dtype}"
            )
        return [(function, value.reshape(1))]
    return [] if value == neutral else [(function, float(value))]


def _scale_steps(
    scales: tuple[Any, Any], left: ArrayView, right: ArrayView
) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for name, value, array, axis, function in (
        ("scale_a", scales[0], left, -2, epilogues.row_scale),
        ("scale_b", scales[1], right, -1, epilogues.col_scale),
    ):
        if value is None:
            continue
        if _is_number(value):
            found.append((epilogues.scale, float(value)))
            continue
        scale = _viewed(name, value)
        if scale.dtype != "f32":
            raise DTypeError(f"matmul: {name} is f32, got {scale.dtype}")
        lead, extent = tuple(array.shape[:-2]), array.shape[axis]
        if math.prod(scale.shape) == 1:
            found.append((epilogues.scale, value.reshape(1)))
        elif tuple(scale.shape) == (*lead, extent):
            found.append((function, value))
        elif tuple(scale.shape) == (*lead, *((extent, 1) if axis == -2 else (1, extent))):
            found.append((function, value.reshape(*lead, extent)))
        else:
            one = "row of a" if axis == -2 else "column of b"
            raise LayoutError(
                f"matmul: {name} has one element, or one a {one}, {(*lead, extent)}, or both are "
                f"of blocks, got shape {tuple(scale.shape)}"
            )
    return found
