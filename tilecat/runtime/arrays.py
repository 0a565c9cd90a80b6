"""One look at any caller's array: torch, NumPy, CuPy, `__cuda_array_interface__`, DLPack.

torch and CuPy are never imported here: an object of theirs exists only where they were.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dtypes import DTYPES, SHARED_ONLY, by_name
from ..errors import DTypeError, LayoutError, ResourceError
from . import deferred

# Types of whole bytes: packed 4- and 6-bit tensors are passed as u8. tf32 tensors are f32 tensors.
_ROWS = tuple(row for row in DTYPES if row.bits % 8 == 0 and row not in SHARED_ONLY)
_TILE_NAME = {row.numpy: row.name for row in _ROWS}
ITEM_BYTES = {row.name: row.nbytes for row in DTYPES if row.bits % 8 == 0}
_CUDA = tuple(f"cuda:{index}" for index in range(256))

_KINDS = (
    "a torch tensor, a NumPy or CuPy array, or an object with DLPack or __cuda_array_interface__"
)
# DLPack's device types (dlpack.h, DLDeviceType).
_DLPACK_CPU, _DLPACK_CUDA, _DLPACK_CUDA_HOST, _DLPACK_CUDA_MANAGED = 1, 2, 3, 13

_captured: list[Any] = []  # CuPy's arrays that graphs write to
_EFFORT = 100_000  # steps of NumPy's overlap search; slices of one array take tens

# Limits of a tensor map (cuda.h, cuTensorMapEncodeTiled).
TMA_ALIGN_BYTES = 16
TMA_MAX_RANK = 5
TMA_MAX_EXTENT = 1 << 31
TMA_MAX_STRIDE_BYTES = 1 << 40


# Not frozen: a frozen dataclass takes 2.1 us to make, this one 0.45 us (EPYC, Python 3.11), and
# every launch makes one a tensor.
@dataclass(slots=True, eq=False)
class ArrayView:
    """Where an array is and how it lies. Treat it as frozen.

    Args:
        device: `cpu` or `cuda:N`.
        ptr: address of its first element.
        shape: extents, outermost first, elements.
        strides: elements, in the order of `shape`.
        dtype: name of its element type.
        readonly: whether it may not be written.
        array: on the CPU a NumPy array over the same memory, else the caller's object, kept alive.
    """

    device: str
    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    readonly: bool
    array: Any


def view(x: Any) -> ArrayView:
    """The view of an array; nothing is copied, the memory is shared.

    Raises:
        DTypeError: not an array of a kind listed above, or an element type without a tilecat name.
        ResourceError: memory on a device that is neither CPU nor CUDA.
    """
    viewer = _viewers.get(type(x))
    if viewer is None:
        viewer = _viewers[type(x)] = _viewer_for(x)
    return viewer(x)


def shape_of(x: Any) -> tuple[int, ...]:
    """Extents of an argument; none of what is no array.

    Raises:
        DTypeError: a tensor of torch that has none, nested.
    """
    try:
        return tuple(getattr(x, "shape", ()))
    except RuntimeError:
        return tuple(view(x).shape)


def empty(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new array of the library and on the device of `like`, its contents undefined.

    Args:
        like: an array of the caller's.
        shape: extents.
        dtype: element type's name.

    Raises:
        DTypeError: a library that offers no way to allocate.
    """
    return allocator(like, shape, dtype)()


def allocator(like: Any, shape: tuple[int, ...], dtype: str) -> Callable[[], Any]:
    """Makes arrays as `empty` does, of which it has the arguments and errors."""
    row = by_name(dtype)
    library = type(like).__module__.partition(".")[0]
    if library == "torch":
        torch = sys.modules["torch"]
        kind = getattr(torch, row.torch)
        steps = _contiguous(shape)  # torch parses them in 3/4 of the time that torch.empty takes
        return functools.partial(
            torch.empty_strided, shape, steps, dtype=kind, device=like.device
        )
    if library == "numpy":
        return functools.partial(np.empty, shape, row.numpy)
    if library == "cupy":
        return functools.partial(_of_cupy, shape, row.numpy)
    raise DTypeError(
        f"out: cannot allocate an array of {type(like).__name__}",
        hint="pass out=, or torch tensors, NumPy or CuPy arrays",
    )


def _of_cupy(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of CuPy's; while its stream is captured into a graph, one that is kept for ever.

    CuPy's graphs have no memory of their own: the pool would give what is freed to others, and the
    graph would still write to it.
    """
    cupy = sys.modules["cupy"]
    driver = deferred.driver()
    if not driver.capture_id(cupy.cuda.get_current_stream().ptr):
        return cupy.empty(shape, dtype)
    with driver.capture_relaxed():
        made = cupy.empty(shape, dtype)
    _captured.append(made)
    return made


def call_key(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What a launch depends on, of torch tensors seen before and numbers; else None.

    Two calls of one key meet the same memory in the same layout: what held for one, that nothing
    overlaps and TMA reaches it, holds for the other. Tensors on the CPU have keys too.
    """
    found: list[Any] = []
    try:
        for arg in args:
            kind = type(arg)
            if kind in TENSORS:
                found += (arg.data_ptr(), arg.get_device(), arg.dtype, arg.shape, arg.stride())
            elif kind is float or kind is int:
                found += (kind, arg or repr(arg))  # 0.0 and -0.0 differ
            else:
                return None
    except RuntimeError:  # a tensor without memory of its own, or without strides
        return None
    return tuple(found)


def check_address(name: str, what: str, array: ArrayView) -> None:
    """Instructions take elements at multiples of their size; what is further apart is legal.

    Raises:
        LayoutError: an address between elements.
    """
    item = ITEM_BYTES[array.dtype]
    if array.ptr % item and 0 not in array.shape:
        raise LayoutError(
            f"{name}: the address of {what} is a multiple of its elements' {item} bytes, got one "
            f"{array.ptr % item} bytes beyond",
            hint="a copy of the array",
        )


def overlaps(a: ArrayView, b: ArrayView) -> bool:
    """Whether two views share a byte; interleaved slices of one array do not.

    Exact up to an effort that slices of one array stay far below, then on the safe side. Arrays
    that lie apart cost two look-ups, since every launch asks.
    """
    if a.device != b.device:
        return False
    a_item, b_item = ITEM_BYTES[a.dtype], ITEM_BYTES[b.dtype]
    a_low, a_high = _reach(a.shape, a.strides)
    b_low, b_high = _reach(b.shape, b.strides)
    if a.ptr + a_high * a_item <= b.ptr + b_low * b_item:
        return False
    if b.ptr + b_high * b_item <= a.ptr + a_low * a_item:
        return False
    if 0 in a.shape or 0 in b.shape:
        return False
    try:
        # NumPy's stub knows no other efforts than none and all.
        shared = np.shares_memory(_footprint(a), _footprint(b), max_work=_EFFORT)  # type: ignore
        return bool(shared)
    except np.exceptions.TooHardError:
        return True


@functools.lru_cache(maxsize=1024)
def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """Elements from the first one down to the lowest, and up to the one past the highest."""
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    return sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps) + 1


def tma_ok(array: ArrayView, dims: tuple[int, ...]) -> str | None:
    """Why TMA cannot reach a tensor, or None if it can.

    Args:
        array: the tensor.
        dims: its axes, innermost first, as in `TensorMapParam`.
    """
    if not 1 <= len(dims) <= TMA_MAX_RANK:
        return f"a tensor map has 1 to {TMA_MAX_RANK} axes, got {len(dims)}"
    if array.ptr % TMA_ALIGN_BYTES:
        return f"the address must be a multiple of {TMA_ALIGN_BYTES} bytes, got {array.ptr:#x}"
    item = ITEM_BYTES[array.dtype]
    for position, dim in enumerate(dims):
        extent, stride = array.shape[dim], array.strides[dim]
        if not 1 <= extent <= TMA_MAX_EXTENT:
            return f"extents must be 1 to 2^31, got {extent} for axis {dim}"
        if extent == 1:
            continue
        if position == 0:
            if stride != 1:
                return f"the innermost axis must be contiguous, got stride {stride} for axis {dim}"
        elif not 0 < stride * item < TMA_MAX_STRIDE_BYTES or stride * item % TMA_ALIGN_BYTES:
            return (
                f"strides must be positive multiples of {TMA_ALIGN_BYTES} bytes below 2^40, got "
                f"{stride * item} bytes for axis {dim}"
            )
    return None


def _viewer_for(x: Any) -> Callable[[Any], ArrayView]:
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if isinstance(x, np.ndarray):
        return _view_numpy
    if isinstance(x, getattr(torch, "Tensor", ())):
        kind = type(x)
        if kind is torch.Tensor or kind is sys.modules["torch.nn"].Parameter:  # type: ignore
            TENSORS.add(kind)
        return _view_torch
    if isinstance(x, getattr(cupy, "ndarray", ())):
        return _view_cupy
    if hasattr(x, "__cuda_array_interface__"):
        return _view_cuda_interface
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _view_dlpack
    raise DTypeError(
        f"view: an argument must be {_KINDS}, got {type(x).__module__}.{type(x).__qualname__}",
        hint="numpy.asarray(x) or torch.as_tensor(x) makes one",
    )


_viewers: dict[type, Callable[[Any], ArrayView]] = {}
# torch's tensor and parameter, once one was seen: what a key may be made of. Other subclasses may
# mean something else by `shape`.
TENSORS: set[type] = set()


def _view_numpy(x: np.ndarray) -> ArrayView:
    name = _TILE_NAME.get(x.dtype)
    if name is None:
        raise _dtype_error(x.dtype)
    strides = _in_elements(x.strides, x.itemsize)
    pointer, readonly = x.__array_interface__["data"]
    return ArrayView("cpu", pointer, x.shape, strides, name, readonly, x)


def _view_torch(x: Any) -> ArrayView:
    try:
        if x.is_neg():
            raise RuntimeError("its elements are the negatives of those in memory")
        if not x.is_cuda:
            return _view_torch_cpu(x)
        name = _torch_names().get(x.dtype)
        if name is None:
            raise _dtype_error(x.dtype)
        return ArrayView(_CUDA[x.get_device()], x.data_ptr(), x.shape, x.stride(), name, False, x)
    except RuntimeError as error:  # sparse, nested, of oneDNN, fake, lazily negated
        reason = str(error).partition("\n")[0]
        raise DTypeError(
            f"view: a tensor of torch lies in strided memory, got a {type(x).__name__} of layout "
            f"{x.layout}: {reason}",
            hint="x.to_dense(), x.resolve_neg(), or a tensor that has its elements",
        ) from None


def _view_torch_cpu(x: Any) -> ArrayView:
    if x.device.type != "cpu":
        raise _device_error(str(x.device))
    name = _torch_names().get(x.dtype)
    if name is None:
        raise _dtype_error(x.dtype)
    torch = sys.modules["torch"]
    if x.layout is not torch.strided:
        raise DTypeError(f"view: a tensor of torch is strided, got one of layout {x.layout}",
                         hint="x.to_dense()")  # fmt: skip
    # NumPy knows neither bf16 nor fp8: torch hands over integers as wide, ml_dtypes reads them.
    container = {1: torch.uint8, 2: torch.int16}.get(x.element_size())
    numpy_dtype = by_name(name).numpy
    plain = x.detach()
    if numpy_dtype.type.__module__ != "numpy" and container is not None:
        plain = plain.view(container)
    return _view_numpy(plain.numpy().view(numpy_dtype))


_torch_table: dict[Any, str] = {}


def _torch_names() -> dict[Any, str]:
    if not _torch_table:
        torch = sys.modules["torch"]
        known = (row for row in _ROWS if hasattr(torch, row.torch))
        _torch_table.update({getattr(torch, row.torch): row.name for row in known})
    return _torch_table


def _view_cupy(x: Any) -> ArrayView:
    name = _TILE_NAME.get(x.dtype)
    if name is None:
        raise _dtype_error(x.dtype)
    strides = _in_elements(x.strides, x.itemsize)
    return ArrayView(_CUDA[x.device.id], x.data.ptr, x.shape, strides, name, False, x)


def _view_cuda_interface(x: Any) -> ArrayView:
    facts = x.__cuda_array_interface__
    # A type string cannot name bf16 or fp8 (`<V2`); the object's own dtype can.
    dtype = np.dtype(facts["typestr"])
    if dtype.kind == "V":
        dtype = _as_numpy_dtype(getattr(x, "dtype", dtype), dtype)
    name = _TILE_NAME.get(dtype)
    if name is None:
        raise _dtype_error(dtype)
    shape = tuple(facts["shape"])
    raw = facts.get("strides")
    strides = _contiguous(shape) if raw is None else _in_elements(raw, dtype.itemsize)
    pointer, readonly = facts["data"]
    index = deferred.driver().device_of_pointer(pointer) if pointer else 0
    return ArrayView(_CUDA[index], pointer, shape, strides, name, readonly, x)


def _view_dlpack(x: Any) -> ArrayView:
    kind, index = x.__dlpack_device__()
    if kind in (_DLPACK_CPU, _DLPACK_CUDA_HOST):
        try:
            return _view_numpy(np.from_dlpack(x))
        except (BufferError, RuntimeError, TypeError) as error:
            raise DTypeError(
                f"view: NumPy cannot read a {type(x).__qualname__} through DLPack: {error}",
                hint="pass a NumPy array with an ml_dtypes type",
            ) from error
    if kind not in (_DLPACK_CUDA, _DLPACK_CUDA_MANAGED):
        raise _device_error(f"DLPack device type {int(kind)}")
    found = deferred.driver().view_dlpack(x)
    name = _TILE_NAME.get(_as_numpy_dtype(found.dtype, None))
    if name is None:
        raise _dtype_error(found.dtype)
    shape = tuple(found.shape)
    strides = tuple(found.strides) if found.strides is not None else _contiguous(shape)
    return ArrayView(_CUDA[index], found.ptr, shape, strides, name, found.readonly, x)


def _as_numpy_dtype(dtype: Any, fallback: Any) -> Any:
    try:
        return np.dtype(dtype)
    except TypeError:
        name = str(dtype).rpartition(".")[2]
        return next((row.numpy for row in _ROWS if row.torch == name), fallback)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _in_elements(strides: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    if any(stride % item_bytes for stride in strides):
        raise DTypeError(
            "view: strides must be whole elements, got "
            f"strides={tuple(strides)} bytes of {item_bytes}-byte elements",
            hint="copy the field of the structured array out first",
        )
    return tuple(stride // item_bytes for stride in strides)


class _Span:
    """Strided bytes at an address, for NumPy's overlap test; never read."""

    def __init__(self, array: ArrayView):
        item = ITEM_BYTES[array.dtype]
        self.__array_interface__ = {
            "version": 3,
            "data": (array.ptr, True),
            "shape": tuple(array.shape),
            "strides": tuple(stride * item for stride in array.strides),
            "typestr": f"|V{item}",
        }


def _footprint(array: ArrayView) -> np.ndarray:
    return np.asarray(_Span(array))


def _dtype_error(dtype: Any) -> DTypeError:
    return DTypeError(
        f"view: no tilecat dtype for the array's element type, got dtype={dtype}",
        hint=f"one of {', '.join(row.torch for row in _ROWS)}; 4- and 6-bit data goes as uint8",
    )


def _device_error(device: str) -> ResourceError:
    return ResourceError(
        f"view: an array must be in CPU or CUDA memory, got device={device}",
        hint="x.cpu() runs the kernel on the PTX machine, x.cuda() on the GPU",
    )
