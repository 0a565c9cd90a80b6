"""What this machine has of what tilecat can use: data for `tilecat doctor`, which prints it."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from importlib import metadata

from ..errors import ResourceError
from . import cache as disk
from . import deferred
from .compile import PTXAS_PACKAGE, ptxas
from .disassemble import NVDISASM_PACKAGE


@dataclass(frozen=True)
class Check:
    """One thing looked for.

    Args:
        name: what.
        found: whether it is there and usable.
        detail: version and place, or why it is not there.
        gives: what works with it.
        required: whether tilecat does nothing useful without it.
    """

    name: str
    found: bool
    detail: str
    gives: str
    required: bool = False


def checks() -> tuple[Check, ...]:
    """Every check, in the order to print them; none raises."""
    return (
        Check("python", True, f"{platform.python_version()} ({sys.executable})", "", True),
        _package("numpy", "arrays, and the PTX machine's arithmetic", required=True),
        _package("ml_dtypes", "bf16 and fp8 arrays on the CPU", required=True),
        _ptxas(),
        _nvdisasm(),
        _package("cuda-bindings", "launches on the GPU"),
        _driver(),
        *_gpus(),
        _package("torch", "kernels on torch tensors, autograd, torch.compile, CUDA graphs"),
        _package("cupy-cuda13x", "kernels on CuPy arrays"),
        _cache(),
    )


def _package(name: str, gives: str, *, required: bool = False) -> Check:
    try:
        return Check(name, True, metadata.version(name), gives, required)
    except metadata.PackageNotFoundError:
        return Check(name, False, f"pip install {name}", gives, required)


def _ptxas() -> Check:
    gives = "compiling for every GPU target, without a GPU"
    try:
        tool = ptxas(disk.current())
    except ResourceError as error:
        detail = error.hint or error.message
        return Check(f"ptxas ({PTXAS_PACKAGE})", False, detail, gives)
    return Check(f"ptxas ({PTXAS_PACKAGE})", True, f"{tool.version} ({tool.path})", gives)


def _nvdisasm() -> Check:
    name, gives = f"nvdisasm ({NVDISASM_PACKAGE})", "SASS, and the lines that spill"
    try:
        path = deferred.assembler().find("nvdisasm")
    except ResourceError as error:
        return Check(name, False, error.message, gives)
    if path is None:
        return Check(name, False, f"pip install {NVDISASM_PACKAGE}", gives)
    return Check(name, True, path, gives)


def _driver() -> Check:
    gives = "launches on the GPU; without it kernels run on the PTX machine"
    try:
        version = deferred.driver().start()
    except ResourceError as error:
        return Check("NVIDIA driver", False, error.message.partition("\n")[0], gives)
    # cuda.h: 1000 * major + 10 * minor, of the newest CUDA that the driver supports.
    return Check("NVIDIA driver", True, f"CUDA {version // 1000}.{version % 1000 // 10}", gives)


def _gpus() -> tuple[Check, ...]:
    gives = "kernels on CUDA tensors"
    try:
        driver = deferred.driver()
        devices = [driver.device(index) for index in range(driver.num_devices())]
    except ResourceError:
        return (Check("GPU", False, "none seen", gives),)
    return tuple(
        Check(
            f"GPU {gpu.index}",
            True,
            f"{gpu.name}, compute capability {gpu.capability[0]}.{gpu.capability[1]}, "
            f"{gpu.num_sms} SMs, {gpu.smem_bytes} bytes of shared memory a CTA",
            gives,
        )
        for gpu in devices
    )


def _cache() -> Check:
    gives = "kernels compiled once, not in every process"
    try:
        store = disk.current()
    except ResourceError as error:
        return Check("cache folder", False, error.message, gives)
    if not store.max_bytes:
        return Check("cache folder", False, f"turned off by {disk.BYTES_VARIABLE}=0", gives)
    reason = store.writable()
    if reason is not None:
        detail = f"{store.root} cannot be written: {reason}; set {disk.FOLDER_VARIABLE}"
        return Check("cache folder", False, detail, gives)
    number, size = store.size()
    detail = f"{store.root}, {number} entries, {size} of at most {store.max_bytes} bytes"
    return Check("cache folder", True, detail, gives)
