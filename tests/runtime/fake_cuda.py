"""A driver that records: its functions as the runtime calls them, without a GPU."""

import ctypes
import hashlib
import struct

from cuda.bindings import driver as real

from tilecat.runtime import driver, launch

OK = real.CUresult.CUDA_SUCCESS
ATTRIBUTES = {"MAJOR": 9, "MINOR": 0, "COUNT": 132, "OPTIN": 232448}


def map_bytes(args):
    """A tensor map of these arguments: the address, then a digest of the rest."""
    kind, rank, pointer, *lists = args
    rest = [kind, rank, *([int(n) for n in x] if isinstance(x, list) else x for x in lists)]
    return struct.pack("Q", pointer) + hashlib.sha512(repr(rest).encode()).digest() + bytes(56)


class FakeCuda:
    """The functions the runtime calls; enums and structs are the real ones."""

    def __init__(self):
        self.launches, self.maps, self.loads, self.pushed = [], [], 0, []
        self.oversized, self.attributes = 0, {}  # shared memory of a CTA; those of functions
        self.replaced = self.capture = 0
        self.context = 1000
        self.status = OK

    def __getattr__(self, name):
        return getattr(real, name)

    def cuInit(self, flags):  # noqa: N802
        return (OK,)

    def cuDriverGetVersion(self):  # noqa: N802
        return OK, 13000

    def cuDeviceGetCount(self):  # noqa: N802
        return OK, 2

    def cuDeviceGet(self, index):  # noqa: N802
        return OK, index

    def cuDeviceGetName(self, length, device):  # noqa: N802
        return OK, b"NVIDIA H200" + bytes(100)

    def cuDeviceGetAttribute(self, attribute, device):  # noqa: N802
        if attribute.name.endswith("MAX_OVERSIZED_SHARED_MEMORY_PER_BLOCK"):
            return OK, self.oversized
        return OK, ATTRIBUTES.get(attribute.name.rsplit("_", 1)[1], 0)

    def cuDevicePrimaryCtxRetain(self, device):  # noqa: N802
        return OK, 1000 + device

    def cuCtxGetCurrent(self):  # noqa: N802
        return OK, real.CUcontext(self.context)

    def cuCtxPushCurrent(self, context):  # noqa: N802
        self.pushed.append(self.context)
        self.context = int(context)
        return (OK,)

    def cuCtxPopCurrent(self):  # noqa: N802
        self.context = self.pushed.pop()
        return OK, None

    def cuThreadExchangeStreamCaptureMode(self, mode):  # noqa: N802
        return OK, mode

    def cuStreamGetCaptureInfo(self, stream):  # noqa: N802
        return OK, real.CUstreamCaptureStatus(int(self.capture > 0)), self.capture, None, None

    def cuModuleLoadData(self, cubin):  # noqa: N802
        self.loads += 1
        return OK, "module"

    def cuModuleGetFunction(self, module, name):  # noqa: N802
        return OK, name

    def cuFuncSetAttribute(self, function, attribute, value):  # noqa: N802
        self.attributes[attribute.name] = value
        return (OK,)

    def cuOccupancyMaxActiveClusters(self, function, config):  # noqa: N802
        return OK, 60

    def cuGetErrorString(self, status):  # noqa: N802
        return OK, b"words"

    def cuTensorMapEncodeTiled(self, *args):  # noqa: N802
        self.maps.append(args)
        made = real.CUtensorMap()
        ctypes.memmove(made.getPtr(), map_bytes(args), 128)
        return OK, made

    def cuTensorMapReplaceAddress(self, tensor_map, pointer):  # noqa: N802
        self.replaced += 1
        ctypes.memmove(tensor_map.getPtr(), struct.pack("Q", pointer), 8)
        return (OK,)

    def cuLaunchKernel(self, *args):  # noqa: N802
        self.launches.append((args, self.context))
        return (self.status,)

    def cuLaunchKernelEx(self, config, function, parameters, extra):  # noqa: N802
        grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
        stream = int(config.hStream)
        cluster = config.attrs[0].value.clusterDim
        self.launches.append(((function, *grid, cluster.x, stream, parameters), self.context))
        return (self.status,)


def installed(monkeypatch):
    """A fake driver in the runtime's place, nothing remembered of another."""
    fake = FakeCuda()
    monkeypatch.setattr(driver, "cuda", fake)
    monkeypatch.setattr(launch, "cuda", fake)
    forget()
    return fake


def forget():
    """Clears what the runtime remembers of a driver."""
    for cached in (driver.start, driver.device, driver._encode):
        cached.cache_clear()
