"""The same module on the CPU: parameters from arrays, then the PTX machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .. import sim
from ..codegen.count import counted
from ..codegen.module import (
    DebugParam,
    ExtentParam,
    Param,
    PointerParam,
    PtxModule,
    ScalarParam,
    StrideParam,
    TensorMapParam,
)
from ..errors import DTypeError, ResourceError
from . import debug_output
from .arrays import ArrayView

# CTAs of a simulated persistent kernel: enough that schedules wrap and CTAs meet in global memory,
# few enough that a small problem takes a fraction of a second.
DEFAULT_CTAS = 4
_F32_MAX = float(np.finfo(np.float32).max)


def launch(
    module: PtxModule,
    args: Sequence[Any],
    *,
    grid: int | tuple[int, ...] | None = None,
    seed: int = 0,
    races: bool = True,
    progress: Callable[..., None] | None = None,
) -> sim.Result:
    """Run a module on the PTX machine; arrays are read and written in place.

    Args:
        module: the kernel.
        args: one entry a kernel argument: an ArrayView in CPU memory, or a number.
        grid: CTAs; None takes DEFAULT_CTAS, rounded up to whole clusters, or one a task where the
            kernel is not persistent.
        seed: chooses one order of the asynchronous agents.
        races: whether to look for races.
        progress: passed on to the machine.

    Raises:
        ResourceError: an array that is not in CPU memory.
    """
    if grid is None:
        grid = _grid(module, args)
    else:
        module.check_grid(grid, args)
    _check_on_cpu(module, args)
    buffer = np.zeros(debug_output.BUFFER_WORDS if module.sites else 0, np.uint32)
    if module.sites:
        debug_output.prepare(buffer)
    result = sim.run(
        module.text,
        grid=grid,
        args=[argument(param, args, buffer) for param in module.params],
        smem_bytes=module.smem_bytes,
        table=module.table,
        seed=seed,
        races=races,
        progress=progress,
    )
    return _with_output(module, buffer, result) if module.sites else result


def _grid(module: PtxModule, args: Sequence[Any]) -> int:
    if module.tasks is not None:
        return max(counted(module.tasks, args), 1) * module.cluster
    return -(-DEFAULT_CTAS // module.cluster) * module.cluster


def _with_output(module: PtxModule, buffer: np.ndarray, result: sim.Result) -> sim.Result:
    """Shows what the kernel printed; a trap's report says what its assertion or wait says."""
    text, errors = debug_output.text_of(module, buffer)
    if text:
        print(text)
    if not errors:
        return result
    said = "\n".join(errors)
    reports = tuple(
        replace(r, message=f"{r.message}: {said}") if r.kind == "trap" else r
        for r in result.reports
    )
    return replace(result, reports=reports)


def argument(param: Param, args: Sequence[Any], buffer: np.ndarray) -> Any:
    """What the machine takes for one parameter of the entry."""
    if isinstance(param, DebugParam):
        return sim.Pointer(buffer)
    arg = args[param.arg]
    match param:
        case TensorMapParam():
            array = innermost_last(arg.array, param.dims)
            return sim.TensorMap(array, param.box, param.swizzle_bytes, param.dtype or arg.dtype)
        case PointerParam():
            return sim.Pointer(arg.array)
        case ExtentParam():
            return int(arg.shape[param.dim])
        case StrideParam():
            return int(arg.strides[param.dim])
        case ScalarParam():
            return _float(param, arg) if _is_float(param.dtype) else int(arg)


def _float(param: ScalarParam, value: Any) -> float:
    if abs(value) > _F32_MAX and abs(value) != math.inf:
        raise DTypeError(
            f"launch: {param.name.removeprefix('arg_')} must fit {param.dtype}, got {value!r} "
            f"({type(value).__name__})"
        )
    return float(value)


def innermost_last(array: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    """A view of an array with the axes that a tensor map lists innermost first, as NumPy has them.

    Axes that the map leaves out are fixed at 0, as its base address has them.
    """
    kept = array[tuple(slice(None) if axis in dims else 0 for axis in range(array.ndim))]
    position = {axis: at for at, axis in enumerate(sorted(dims))}
    return kept.transpose([position[axis] for axis in reversed(dims)])


def _is_float(dtype: str) -> bool:
    return dtype in {"f32", "f16", "bf16"}


def _check_on_cpu(module: PtxModule, args: Sequence[Any]) -> None:
    for at, arg in enumerate(args):
        if type(arg) is ArrayView and arg.device != "cpu":
            raise ResourceError(
                f"simulate {module.entry}: arrays must be in CPU memory, got argument {at} on "
                f"{arg.device}",
                hint="x.cpu()",
            )
