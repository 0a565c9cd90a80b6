"""Memory cases on a GPU: arrays there with their strides, and back."""

from __future__ import annotations

import numpy as np
import torch
from memory_cases import MemoryCase, check

from tilecat.dtypes import from_numpy


class OnGpu:
    """An array's memory on the GPU, and a tensor over it with the array's strides."""

    def __init__(self, array: np.ndarray):
        self.array = array
        base = array if array.base is None or 0 in array.strides else array.base
        start = base.__array_interface__["data"][0]
        self.offset = array.__array_interface__["data"][0] - start
        self.bytes = torch.from_numpy(base.ravel(order="K").view(np.uint8).copy()).cuda()
        dtype = getattr(torch, from_numpy(array.dtype).torch)
        strides = tuple(stride // array.itemsize for stride in array.strides)
        flat = self.bytes.view(dtype)
        self.tensor = flat.as_strided(array.shape, strides, self.offset // array.itemsize)

    def back(self) -> np.ndarray:
        """What it holds now."""
        held, like = self.bytes.cpu().numpy(), self.array
        return np.ndarray(like.shape, like.dtype, held, self.offset, like.strides).copy()


def run_on_gpu(case: MemoryCase) -> None:
    """Runs a case and checks what its arrays hold after it."""
    before = case.arrays()
    moved = {id(v): OnGpu(v) for v in before.values() if isinstance(v, np.ndarray)}
    args = [moved[id(v)].tensor if id(v) in moved else v for v in before.values()]
    case.kernel(*args, grid=case.grid, **case.params)
    torch.cuda.synchronize()
    after = {k: moved[id(v)].back() if id(v) in moved else v for k, v in before.items()}
    check(case, before, after)
