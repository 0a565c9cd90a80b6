"""The CUDA driver as the runtime needs it: devices, contexts, tensor maps, errors with a name.

Imported at the first touch of CUDA memory (`runtime.deferred`).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as cuda

from ..codegen.module import TensorMapParam
from ..errors import LayoutError, ResourceError
from .arrays import ITEM_BYTES, TMA_ALIGN_BYTES, ArrayView, tma_ok

TENSOR_MAP_BYTES = 128
_MAPS_KEPT = 1024
_DEFAULT_STREAM = 1  # the legacy default stream, as DLPack's __dlpack__(stream=) names it

_TYPES = cuda.CUtensorMapDataType
# Element codes of a tensor map (cuda.h, CUtensorMapDataType). 8-bit floats travel as bytes.
_MAP_TYPES = {
    "f32": _TYPES.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    "tf32": _TYPES.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    "f16": _TYPES.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    "bf16": _TYPES.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    "e4m3": _TYPES.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    "e5m2": _TYPES.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    "e8m0": _TYPES.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    "s8": _TYPES.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    "u8": _TYPES.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    "s32": _TYPES.CU_TENSOR_MAP_DATA_TYPE_INT32,
    "u32": _TYPES.CU_TENSOR_MAP_DATA_TYPE_UINT32,
    "s64": _TYPES.CU_TENSOR_MAP_DATA_TYPE_INT64,
    "u64": _TYPES.CU_TENSOR_MAP_DATA_TYPE_UINT64,
    "b4x16_p64": _TYPES.CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B,
}
_SWIZZLES = {
    0: cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
    32: cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_32B,
    64: cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_64B,
    128: cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
}
_INTERLEAVE = cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE
# What a miss fetches into L2: 256 bytes, of rows that begin with such a piece. Of others a piece
# has bytes of two boxes, and 128 are 3 % faster (1000x1016x520 of bf16, H200, 2026-11).
_WIDE_BYTES = 256
_WIDE = cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B
_NARROW = cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B
# NONE: elements outside the tensor read as zero (the other choice is NaN).
_FILL = cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE

_HINTS = {
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "compile the kernel for this GPU: target=",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "an earlier kernel read or wrote outside its arrays; run it on "
    "CPU tensors: the PTX machine names the line",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "an earlier kernel used a misaligned address; run it on CPU "
    "tensors: the PTX machine names the line",
    "CUDA_ERROR_LAUNCH_FAILED": "an earlier kernel failed; run it on CPU tensors: the PTX machine "
    "names the line",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "an earlier kernel misused a tensor-core or TMA "
    "instruction; run it on CPU tensors: the PTX machine names the line",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "fewer threads or registers a CTA",
    "CUDA_ERROR_OUT_OF_MEMORY": "free memory on the device",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "upgrade the NVIDIA driver",
}


@dataclass(frozen=True)
class Device:
    """One GPU and its primary context.

    Args:
        index: its number among the visible GPUs.
        name: as the driver has it.
        capability: compute capability, e.g. (9, 0).
        num_sms: streaming multiprocessors.
        smem_bytes: shared memory that a CTA may opt in to.
        context: handle of its primary context, as an int.
    """

    index: int
    name: str
    capability: tuple[int, int]
    num_sms: int
    smem_bytes: int
    context: int


def call(what: str, result: tuple[Any, ...]) -> Any:
    """The value of a driver call, without its status.

    Args:
        what: what was tried, for the error: `load kernel gemm`.
        result: what cuda.bindings returned.

    Raises:
        ResourceError: the status is not success.
    """
    if result[0]:
        raise error(what, result[0])
    return result[1] if len(result) == 2 else result[1:]


def error(what: str, status: Any, *, hint: str | None = None) -> ResourceError:
    """The error for a status of the driver."""
    name = getattr(status, "name", str(status))
    known, text = cuda.cuGetErrorString(status)
    words = text.decode() if not known and text else "unknown error"
    return ResourceError(
        f"{what}: the CUDA driver must accept the call, got {name} ({int(status)}: {words})",
        hint=hint or _HINTS.get(name),
    )


@functools.cache
def start() -> int:
    """Initialise the driver; its version, e.g. 13000.

    Raises:
        ResourceError: no NVIDIA driver, or one that finds no GPU.
    """
    try:
        status = cuda.cuInit(0)[0]
    except (RuntimeError, OSError) as missing:  # pathfinder: libcuda was not found
        raise ResourceError(
            f"cuda: a GPU launch needs the NVIDIA driver, got none: {missing}",
            hint="kernels on NumPy arrays and CPU tensors run on the PTX machine without it",
        ) from missing
    if status:
        raise error("cuda: initialise", status, hint="check that nvidia-smi lists a GPU")
    return int(call("cuda: driver version", cuda.cuDriverGetVersion()))


def num_devices() -> int:
    """Number of visible GPUs; `start` for the errors."""
    start()
    return int(call("cuda: count GPUs", cuda.cuDeviceGetCount()))


@functools.cache
def device(index: int) -> Device:
    """A GPU, its primary context retained for the life of the process.

    Raises:
        ResourceError: there is no such GPU, or no driver.
    """
    count = num_devices()
    if not 0 <= index < count:
        raise ResourceError(f"cuda: a device must be one of the {count} visible, got cuda:{index}")
    what = f"cuda:{index}"
    handle = call(what, cuda.cuDeviceGet(index))
    name = call(what, cuda.cuDeviceGetName(128, handle)).split(b"\0")[0].decode()
    kind = cuda.CUdevice_attribute
    major, minor, sms, smem = (
        int(call(what, cuda.cuDeviceGetAttribute(attribute, handle)))
        for attribute in (
            kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            kind.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            kind.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )
    )
    context = int(call(what, cuda.cuDevicePrimaryCtxRetain(handle)))
    return Device(index, name, (major, minor), sms, smem, context)


def current_context() -> int:
    """Handle of this thread's current context, 0 if none."""
    return int(call("cuda: current context", cuda.cuCtxGetCurrent()))


@contextmanager
def made_current(gpu: Device) -> Iterator[None]:
    """Make a GPU's primary context this thread's, if it is not, and put the former one back."""
    if current_context() == gpu.context:
        yield
        return
    call("cuda: set context", cuda.cuCtxPushCurrent(cuda.CUcontext(gpu.context)))
    try:
        yield
    finally:
        cuda.cuCtxPopCurrent()


def capture_id(stream: int) -> int:
    """Number of the capture into a graph that a stream is in, unique in the process; 0: none."""
    status, state, number, *_ = cuda.cuStreamGetCaptureInfo(stream)
    active = cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    return int(number) if not status and state == active else 0


@contextmanager
def capture_relaxed() -> Iterator[None]:
    """Let this thread load code while a stream of its is being captured into a graph."""
    relaxed = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    former = call("cuda: capture mode", cuda.cuThreadExchangeStreamCaptureMode(relaxed))
    try:
        yield
    finally:
        cuda.cuThreadExchangeStreamCaptureMode(former)


def device_of_pointer(pointer: int) -> int:
    """Index of the GPU that an address belongs to.

    Raises:
        ResourceError: the address is no CUDA memory, or there is no driver.
    """
    start()
    ordinal = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    found = cuda.cuPointerGetAttribute(ordinal, pointer)
    return int(call(f"cuda: device of address {pointer:#x}", found))


def view_dlpack(x: Any) -> Any:
    """A DLPack producer's CUDA memory: an object with ptr, shape, strides, dtype, readonly.

    The producer orders its work before the default stream's, on which such arrays are launched.
    """
    from cuda.core.utils import StridedMemoryView  # 0.1 s, and only for this kind of array

    return StridedMemoryView.from_dlpack(x, stream_ptr=_DEFAULT_STREAM)


def tensor_map(array: ArrayView, param: TensorMapParam) -> bytes:
    """The 128 bytes by which TMA knows a tensor, as a parameter describes it; cached.

    Raises:
        LayoutError: TMA cannot reach the tensor.
        ResourceError: the driver refuses it.
    """
    dims, dtype = param.dims, param.dtype or array.dtype
    reason = tma_ok(array, dims)
    if reason is not None:
        raise LayoutError(f"tensor map: {reason}")
    shape = tuple(array.shape[dim] for dim in dims)
    strides = tuple(array.strides[dim] for dim in dims)
    wide = param.fetch_bytes >= _WIDE_BYTES
    return _encode(array.ptr, shape, strides, dtype, param.box, param.swizzle_bytes, wide)


def move_map(place: int, pointer: int) -> None:
    """Has the tensor map at a host address describe a tensor of the same layout elsewhere.

    Args:
        place: of the map's 128 bytes, a multiple of 64.
        pointer: the tensor's device address, a multiple of 16.
    """
    status = cuda.cuTensorMapReplaceAddress(cuda.CUtensorMap(_ptr=place), pointer)[0]
    if status:
        raise error(f"tensor map: replace the address by {pointer:#x}", status)


@functools.lru_cache(maxsize=_MAPS_KEPT)
def _encode(
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: str,
    box: tuple[int, ...],
    swizzle_bytes: int,
    wide: bool,
) -> bytes:
    extents, steps = _geometry(shape, strides, ITEM_BYTES[dtype])
    if dtype == "b4x16_p64":  # extents in elements, of which a byte has two
        extents = [cuda.cuuint64_t(2 * shape[0]), *extents[1:]]
    lengths, ones = _box(box)
    wide = wide and all(int(step) % _WIDE_BYTES == 0 for step in steps)
    result = cuda.cuTensorMapEncodeTiled(
        _MAP_TYPES[dtype],
        len(shape),
        pointer,
        extents,
        steps,
        lengths,
        ones,
        _INTERLEAVE,
        _SWIZZLES[swizzle_bytes],
        _WIDE if wide else _NARROW,
        _FILL,
    )
    if result[0]:
        what = f"tensor map: {dtype} {shape} strides {strides} box {box} swizzle {swizzle_bytes}"
        raise error(what, result[0])
    return ctypes.string_at(result[1].getPtr(), TENSOR_MAP_BYTES)


# A call with new addresses mostly has shapes seen before: the driver's number objects, which take
# longer to make than a map takes to encode, are kept.
@functools.lru_cache(maxsize=_MAPS_KEPT)
def _geometry(
    shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int
) -> tuple[list[Any], list[Any]]:
    steps = outer_strides(shape, strides, item_bytes)
    return [cuda.cuuint64_t(x) for x in shape], [cuda.cuuint64_t(x) for x in steps]


@functools.lru_cache(maxsize=_MAPS_KEPT)
def _box(box: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    return [cuda.cuuint32_t(x) for x in box], [cuda.cuuint32_t(1)] * len(box)


def outer_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int
) -> tuple[int, ...]:
    """Byte strides of all axes but the innermost, axes innermost first.

    An axis of extent 1 may come with any stride; it gets the smallest legal one past its inner axis
    (16 bytes are the unit: cuda.h, cuTensorMapEncodeTiled).
    """
    found: list[int] = []
    extent_bytes = shape[0] * item_bytes
    for extent, stride in zip(shape[1:], strides[1:], strict=True):
        legal = -(-extent_bytes // TMA_ALIGN_BYTES) * TMA_ALIGN_BYTES
        found.append(legal if extent == 1 else stride * item_bytes)
        extent_bytes = found[-1] * extent
    return tuple(found)
