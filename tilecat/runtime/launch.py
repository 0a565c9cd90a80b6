"""Launches a cubin on the GPU: parameters, tensor maps, grid, stream, with little host time.

A call with arguments seen before packs nothing: it finds its parameter block by the arrays'
addresses and shapes. Nothing is allocated on the device and nothing waits, so calls can be captured
in a graph.

Imported at the first launch (`runtime.deferred`).
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from cuda.bindings import driver as cuda

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
from ..errors import DTypeError, LayoutError, ResourceError
from . import driver
from .arrays import ArrayView
from .debug_buffer import DebugBuffer

Grid = int | tuple[int, ...]

_BLOCKS_KEPT = 512
_CONFIGS_KEPT = 64
# CTAs a cluster that every GPU takes (CUDA programming guide, thread block clusters).
_PORTABLE_CLUSTER = 8
# CU_FUNC_ATTRIBUTE_SHARED_MEMORY_MODE, CU_SHARED_MEMORY_MODE_ALLOW_OVERSIZED and
# CU_DEVICE_ATTRIBUTE_MAX_OVERSIZED_SHARED_MEMORY_PER_BLOCK (cuda.h 13.5; older bindings lack them).
_SHARED_MODE, _OVERSIZED = "CU_FUNC_ATTRIBUTE_SHARED_MEMORY_MODE", 3
_OVERSIZED_LIMIT = "CU_DEVICE_ATTRIBUTE_MAX_OVERSIZED_SHARED_MEMORY_PER_BLOCK"
_SCALARS = {
    "f32": "f",
    "f16": "e",
    "s64": "q",
    "u64": "Q",
    "s32": "i",
    "u32": "I",
    "s8": "b",
    "u8": "B",
    "pred": "?",
}


@dataclass
class _Loaded:
    """A kernel on one GPU; `configs`: its launch configurations by (grid, stream)."""

    gpu: driver.Device
    function: Any
    module: Any
    grid: tuple[int, int, int]
    output: DebugBuffer | None = None
    configs: dict[tuple[tuple[int, int, int], int], Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Block:
    """Packed parameters: `address` is the `void**` that the driver copies them through.

    Args:
        grid: CTAs, unless the call says.
    """

    loaded: _Loaded
    grid: tuple[int, int, int]
    address: int
    buffer: Any
    pointers: Any


class Launcher:
    """A kernel ready to launch on any GPU its target fits.

    Args:
        module: the kernel; its parameters, threads, shared memory and cluster.
        cubin: what `assemble` made of it.
    """

    def __init__(self, module: PtxModule, cubin: bytes):
        self.module = module
        self._cubin = cubin
        self._loaded: dict[int, _Loaded] = {}
        self._blocks: dict[tuple[Any, ...], _Block] = {}
        self._lock = threading.Lock()
        arrays = (TensorMapParam, PointerParam, ExtentParam, StrideParam)
        tensors = [param.arg for param in module.params if isinstance(param, arrays)]
        self._first = min(tensors, default=None)

    def __call__(
        self, args: Sequence[Any], stream: Any = None, *, grid: Grid | None = None
    ) -> None:
        """Launch; returns at once.

        Args:
            args: one entry a kernel argument: an ArrayView in CUDA memory, or a number.
            stream: a CUDA stream's handle or an object with `__cuda_stream__`; None takes the
                current stream of the library that the first array comes from, or the default one.
            grid: CTAs, one to three extents; None takes as many as the GPU holds at once, or one a
                task where the kernel is not persistent.

        Raises:
            ResourceError: no driver, no GPU, a GPU the kernel is not for, an error of the launch.
            LayoutError: an array that TMA cannot reach.
        """
        self._run(self._block(args), args, stream, grid)

    def prepare(self, args: Sequence[Any]) -> Callable[[Any], None]:
        """A call with these very torch tensors, made ready: `call(stream)` only launches.

        Args:
            args: as for a call. No tensor is kept: who calls it knows that their memory is there.
        """
        return self._maker(args)(self._block(args))

    def movable(self, args: Sequence[Any]) -> Callable[[Sequence[int]], Callable[[Any], None]]:
        """Launches with arguments like these: `at(addresses)` makes one ready, as `prepare` does.

        Args:
            args: as for a call. Addresses are by argument, aligned to 16 bytes as here.
        """
        block, make = self._block(args), self._maker(args)
        return lambda addresses: make(self._moved(block, addresses))

    def _maker(self, args: Sequence[Any]) -> Callable[[_Block], Callable[[Any], None]]:
        """Makes launches with a block, for arrays of the same library."""
        if self._first is None:
            return lambda block: partial(self._run, block, args, grid=None)
        current = _stream_reader(args[self._first].array, self._device_of(args))
        return partial(self._made, current)

    def _made(self, current: Callable[[], int], block: _Block) -> Callable[[Any], None]:
        """A launch with a block, as fast as can be; `current` gives the stream if none is said."""
        module, gpu, output = self.module, block.loaded.gpu, block.loaded.output
        function, address, (x, y, z) = block.loaded.function, block.address, block.grid
        threads, smem_bytes = module.threads, module.smem_bytes
        plain = _is_plain(module) and 0 not in block.grid
        context_of, launch = cuda.cuCtxGetCurrent, cuda.cuLaunchKernel
        context = cuda.CUcontext(gpu.context)  # equal in 0.1 us less than as an int

        def run(stream: Any) -> None:
            handle = current() if stream is None else stream_handle(stream)
            error, now = context_of()
            if error or now != context:
                with driver.made_current(gpu):
                    status = self._launch(block, block.grid, handle)
            elif plain:
                (status,) = launch(
                    function, x, y, z, threads, 1, 1, smem_bytes, handle, address, 0
                )  # fmt: skip
            else:
                status = self._launch(block, block.grid, handle)
            if status:
                raise driver.error(f"launch {module.entry} on cuda:{gpu.index}", status)
            if output is not None:
                output.show(handle)

        return run

    def _moved(self, block: _Block, addresses: Sequence[int]) -> _Block:
        """The same parameters for arrays at other addresses."""
        moved = _copied(block)
        with driver.made_current(block.loaded.gpu):
            for param, place in zip(self.module.params, moved.pointers, strict=False):
                if isinstance(param, PointerParam):
                    ctypes.c_uint64.from_address(place).value = addresses[param.arg]
                elif isinstance(param, TensorMapParam):
                    driver.move_map(place, addresses[param.arg])
        return moved

    def _block(self, args: Sequence[Any]) -> _Block:
        # Zero is spelled out: 0.0 and -0.0 are equal, and not the same parameter.
        key = tuple(
            [
                (a.ptr, a.shape, a.strides, a.dtype, a.device)
                if type(a) is ArrayView
                else a or repr(a)
                for a in args
            ]
        )
        return self._blocks.get(key) or self._prepare(key, args)

    def _run(self, block: _Block, args: Sequence[Any], stream: Any, grid: Grid | None) -> None:
        loaded = block.loaded
        if stream is None:
            handle = 0 if self._first is None else _stream_of(args[self._first].array, loaded.gpu)
        else:
            handle = stream if type(stream) is int else stream_handle(stream)
        extents = block.grid if grid is None else self._extents(grid)
        if grid is not None:
            self.module.check_grid(extents, args)
        error, context = cuda.cuCtxGetCurrent()
        if not error and int(context) == loaded.gpu.context:
            status = self._launch(block, extents, handle)
        else:
            with driver.made_current(loaded.gpu):
                status = self._launch(block, extents, handle)
        if loaded.output is not None and not status:
            loaded.output.show(handle)
        if status:
            raise driver.error(f"launch {self.module.entry} on cuda:{loaded.gpu.index}", status)

    def _launch(self, block: _Block, grid: tuple[int, int, int], stream: int) -> Any:
        module, loaded = self.module, block.loaded
        if 0 in grid:
            return 0
        if _is_plain(module):
            return cuda.cuLaunchKernel(
                loaded.function,
                *grid,
                module.threads,
                1,
                1,
                module.smem_bytes,
                stream,
                block.address,
                0,
            )[0]
        config = loaded.configs.get((grid, stream)) or self._config(loaded, grid, stream)
        return cuda.cuLaunchKernelEx(config, loaded.function, block.address, 0)[0]

    def _config(self, loaded: _Loaded, grid: tuple[int, int, int], stream: int) -> Any:
        if len(loaded.configs) >= _CONFIGS_KEPT:
            loaded.configs.clear()
        config = loaded.configs[grid, stream] = _configuration(self.module, grid, stream)
        return config

    def _extents(self, grid: Grid) -> tuple[int, int, int]:
        extents = (grid,) if isinstance(grid, int) else tuple(grid)
        if not 1 <= len(extents) <= 3 or any(extent < 0 for extent in extents):
            raise LayoutError(
                f"launch {self.module.entry}: a grid has one to three extents, got grid={grid!r}"
            )
        if extents[0] % self.module.cluster:
            raise LayoutError(
                f"launch {self.module.entry}: the grid must be whole clusters, got grid={grid!r} "
                f"with {self.module.cluster} CTAs a cluster",
                hint=f"grid={-(-extents[0] // self.module.cluster) * self.module.cluster}",
            )
        x, y, z = (*extents, 1, 1)[:3]
        return x, y, z

    def _prepare(self, key: tuple[Any, ...], args: Sequence[Any]) -> _Block:
        gpu = driver.device(self._device_of(args))
        with driver.made_current(gpu):
            loaded = self._loaded.get(gpu.index) or self._load(gpu)
            values = [_packed(param, args, loaded.output) for param in self.module.params]
            block = _pack(loaded, self._grid(loaded, args), values)
        with self._lock:
            while len(self._blocks) >= _BLOCKS_KEPT:
                self._blocks.pop(next(iter(self._blocks)))
            self._blocks[key] = block
        return block

    def _grid(self, loaded: _Loaded, args: Sequence[Any]) -> tuple[int, int, int]:
        tasks = self.module.tasks
        return loaded.grid if tasks is None else (counted(tasks, args) * self.module.cluster, 1, 1)

    def _load(self, gpu: driver.Device) -> _Loaded:
        with self._lock, driver.capture_relaxed():
            if gpu.index not in self._loaded:
                self._loaded[gpu.index] = _load(self.module, self._cubin, gpu)
            return self._loaded[gpu.index]

    def _device_of(self, args: Sequence[Any]) -> int:
        devices = {arg.device: at for at, arg in enumerate(args) if type(arg) is ArrayView}
        if not devices:
            return _current_device()
        if len(devices) > 1 or "cpu" in devices:
            found = ", ".join(f"argument {at} on {name}" for name, at in devices.items())
            raise ResourceError(
                f"launch {self.module.entry}: all arrays must be on one GPU, got {found}",
                hint="move them: x.to(device)",
            )
        return int(next(iter(devices)).removeprefix("cuda:"))


def stream_handle(stream: Any) -> int:
    """A stream's handle: of an int, an object with `__cuda_stream__`, a torch or CuPy stream.

    Raises:
        ResourceError: none of these.
    """
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise ResourceError(
        "launch: a stream must be a handle (int) or an object with __cuda_stream__, got "
        f"stream={stream!r} ({type(stream).__name__})"
    )


def current_stream(array: ArrayView) -> int:
    """Handle of the stream that a launch takes whose first array is this one, in CUDA memory."""
    return _stream_of(array.array, driver.device(int(array.device.removeprefix("cuda:"))))


_stream_getters: dict[type, Callable[[Any, int], int]] = {}


def _stream_of(array: Any, gpu: driver.Device) -> int:
    getter = _stream_getters.get(type(array))
    if getter is None:
        getter = _stream_getters[type(array)] = _stream_getter(array)
    return getter(array, gpu.index)


def _stream_getter(array: Any) -> Callable[[Any, int], int]:
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if isinstance(array, getattr(torch, "Tensor", ())):
        # 0.1 us; torch.cuda.current_stream(), which builds an object, 4.7 us (H200 host).
        raw = torch._C._cuda_getCurrentRawStream  # type: ignore[union-attr]
        return lambda array, index: raw(index)
    if isinstance(array, getattr(cupy, "ndarray", ())):
        return lambda array, index: cupy.cuda.get_current_stream().ptr  # type: ignore[union-attr]
    if hasattr(array, "__cuda_array_interface__"):
        # The protocol names the stream on which the data is ready, if any.
        return lambda array, index: array.__cuda_array_interface__.get("stream") or 0
    return lambda array, index: 0


def _stream_reader(array: Any, index: int) -> Callable[[], int]:
    """Gives the current stream of the library that an array comes from."""
    torch = sys.modules.get("torch")
    if isinstance(array, getattr(torch, "Tensor", ())):
        return partial(torch._C._cuda_getCurrentRawStream, index)  # type: ignore[union-attr]
    return partial(_stream_getter(array), array, index)


def _is_plain(module: PtxModule) -> bool:
    """Whether a launch needs no attributes."""
    return module.cluster == 1 and not module.dependent


def _current_device() -> int:
    driver.start()
    if not driver.current_context():
        return 0
    return int(driver.call("cuda: current device", cuda.cuCtxGetDevice()))


def _load(module: PtxModule, cubin: bytes, gpu: driver.Device) -> _Loaded:
    capability = ".".join(map(str, gpu.capability))
    what = (
        f"load {module.entry} for {module.target} on cuda:{gpu.index} ({gpu.name}, compute "
        f"capability {capability})"
    )
    handle = driver.call(what, cuda.cuModuleLoadData(cubin))
    function = driver.call(what, cuda.cuModuleGetFunction(handle, module.entry.encode()))
    _set_shared_memory(module, function, gpu)
    kinds = cuda.CUfunction_attribute
    if module.cluster > _PORTABLE_CLUSTER:
        allowed = kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        driver.call(what, cuda.cuFuncSetAttribute(function, allowed, 1))
    output = DebugBuffer(module) if module.sites else None
    return _Loaded(gpu, function, handle, (_persistent_ctas(module, function, gpu), 1, 1), output)


def _set_shared_memory(module: PtxModule, function: Any, gpu: driver.Device) -> None:
    what = f"shared memory of {module.entry}"
    kinds = cuda.CUfunction_attribute
    if module.smem_bytes <= gpu.smem_bytes:
        dynamic = kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.call(what, cuda.cuFuncSetAttribute(function, dynamic, module.smem_bytes))
        return
    limit = gpu.smem_bytes
    attribute = getattr(cuda.CUdevice_attribute, _OVERSIZED_LIMIT, None)
    if attribute is not None:
        limit = max(limit, int(cuda.cuDeviceGetAttribute(attribute, gpu.index)[1] or 0))
    if module.smem_bytes > limit:
        raise ResourceError(
            f"launch {module.entry}: shared memory must fit the GPU, got {module.smem_bytes} bytes "
            f"a CTA, {gpu.name} has {limit}",
            hint="smaller tiles or fewer stages",
        )
    driver.call(what, cuda.cuFuncSetAttribute(function, getattr(kinds, _SHARED_MODE), _OVERSIZED))


def _persistent_ctas(module: PtxModule, function: Any, gpu: driver.Device) -> int:
    """CTAs that the GPU holds at once: its SMs by `min_blocks`, in whole clusters that fit."""
    clusters = gpu.num_sms * module.min_blocks // module.cluster
    if module.cluster > 1:
        config = _configuration(module, (module.cluster, 1, 1), 0)
        status, fit = cuda.cuOccupancyMaxActiveClusters(function, config)
        if not status and fit:
            clusters = min(clusters, fit)
    return max(clusters, 1) * module.cluster


def _configuration(module: PtxModule, grid: tuple[int, int, int], stream: int) -> Any:
    config = cuda.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = module.threads, 1, 1
    config.sharedMemBytes = module.smem_bytes
    config.hStream = stream
    config.attrs = _attributes(module)
    config.numAttrs = len(config.attrs)
    return config


def _attributes(module: PtxModule) -> list[Any]:
    """The shape of clusters; leave to start while the kernels before it on the stream end."""
    found, kinds = [], cuda.CUlaunchAttributeID
    if module.cluster > 1:
        shape = cuda.CUlaunchAttribute()
        shape.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        value = shape.value
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = module.cluster, 1, 1
        shape.value = value
        found.append(shape)
    if module.dependent:
        early = cuda.CUlaunchAttribute()
        early.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        value = early.value
        value.programmaticStreamSerializationAllowed = 1
        early.value = value
        found.append(early)
    return found


def _packed(param: Param, args: Sequence[Any], output: DebugBuffer | None) -> bytes:
    if isinstance(param, DebugParam):
        assert output is not None, "made where the kernel is loaded"
        return struct.pack("Q", output.address)
    arg = args[param.arg]
    match param:
        case TensorMapParam():
            return driver.tensor_map(arg, param)
        case PointerParam():
            return struct.pack("Q", arg.ptr)
        case ExtentParam():
            return _number(param.name, "u32", "I", arg.shape[param.dim])
        case StrideParam():
            return struct.pack("q", arg.strides[param.dim])
        case ScalarParam(dtype="bf16"):
            return np.asarray(arg, ml_dtypes.bfloat16).tobytes()
        case ScalarParam():
            return _number(param.name, param.dtype, _SCALARS[param.dtype], arg)


def _number(name: str, dtype: str, code: str, value: Any) -> bytes:
    try:
        return struct.pack(code, value)
    except (struct.error, OverflowError) as error:
        raise DTypeError(
            f"launch: {name.removeprefix('arg_')} must fit {dtype}, got {value!r} "
            f"({type(value).__name__})"
        ) from error


def _copied(block: _Block) -> _Block:
    """A block of its own with the same values."""
    size = len(block.buffer)
    buffer = ctypes.create_string_buffer(size)
    first, from_ = (_aligned(ctypes.addressof(x)) for x in (buffer, block.buffer))
    ctypes.memmove(first, from_, size - 64)
    places = [place and place - from_ + first for place in block.pointers]
    pointers = type(block.pointers)(*places)
    return _Block(block.loaded, block.grid, ctypes.addressof(pointers), buffer, pointers)


def _aligned(address: int) -> int:
    return -(-address // 64) * 64


def _pack(loaded: _Loaded, grid: tuple[int, int, int], values: list[bytes]) -> _Block:
    """Parameters one after the other, each at a multiple of 64 bytes, as tensor maps need."""
    slots = [-(-len(value) // 64) * 64 for value in values]
    buffer = ctypes.create_string_buffer(sum(slots) + 64)
    address = _aligned(ctypes.addressof(buffer))
    pointers = (ctypes.c_void_p * max(len(values), 1))()
    for index, (value, slot) in enumerate(zip(values, slots, strict=True)):
        ctypes.memmove(address, value, len(value))
        pointers[index] = address
        address += slot
    return _Block(loaded, grid, ctypes.addressof(pointers), buffer, pointers)
