"""The buffer that a kernel's prints and assertions write to on the GPU: host memory it can reach.

Host memory, since after a trap the device's is lost. Imported at the first launch.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver as cuda

from ..codegen.module import PtxModule
from ..errors import SyncError
from . import debug_output, driver


class DebugBuffer:
    """One launch's output at a time.

    Args:
        module: the kernel; what its records mean.

    Attributes:
        address: what the kernel takes.
    """

    def __init__(self, module: PtxModule):
        self.module = module
        num_bytes = 4 * debug_output.BUFFER_WORDS
        what = f"output buffer of {module.entry}"
        host = driver.call(what, cuda.cuMemHostAlloc(num_bytes, cuda.CU_MEMHOSTALLOC_DEVICEMAP))
        self.address = int(driver.call(what, cuda.cuMemHostGetDevicePointer(host, 0)))
        words = (ctypes.c_uint32 * debug_output.BUFFER_WORDS).from_address(int(host))
        self.words = np.ctypeslib.as_array(words)
        debug_output.prepare(self.words)

    def show(self, stream: Any) -> None:
        """Waits for the launch and shows what it wrote.

        Raises:
            SyncError: an assertion failed, or a wait ran out.
            ResourceError: any other fault of the kernel.
        """
        status = cuda.cuStreamSynchronize(stream)[0]
        text, errors = debug_output.text_of(self.module, self.words)
        debug_output.prepare(self.words)
        if text:
            print(text)
        if errors:
            raise SyncError(f"{self.module.entry}: " + "\n".join(errors))
        if status:
            raise driver.error(f"run {self.module.entry}", status)
