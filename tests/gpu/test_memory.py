"""Cases of memory, views and synchronisation on the GPU: what the PTX machine runs, and NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from memory.test_debug import X, shown, talks
from memory.test_memory import CASES
from memory_cases import MemoryCase, check

import tilecat as tc
from tilecat.dtypes import from_numpy

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_memory_case_on_the_gpu(case: MemoryCase):
    before = case.arrays()
    moved = {id(v): OnGpu(v) for v in before.values() if isinstance(v, np.ndarray)}
    args = [moved[id(v)].tensor if id(v) in moved else v for v in before.values()]
    case.kernel(*args, grid=case.grid, **case.params)
    torch.cuda.synchronize()
    after = {k: moved[id(v)].back() if id(v) in moved else v for k, v in before.items()}
    check(case, before, after)


def test_prints_of_a_kernel(capsys: pytest.CaptureFixture[str]):
    talks(torch.from_numpy(X).cuda(), 5, grid=1)
    text = capsys.readouterr().out
    assert f"tile: rt[f32, 64, 32]\n{shown(X)}\n" in text
    assert "count: s32 5\n" in text


def test_dependent_kernels_follow_one_another():
    @tc.kernel
    def doubles(A: tc.gl[tc.f32, "M", 64], B: tc.gl[tc.f32, "M", 64]):
        with tc.warpgroup():
            tc.grid_launch()
            tc.grid_wait()
            x = tc.load(A[tc.cta_id(), 0], tc.rt[tc.f32, 64, 64])
            tc.store(B[tc.cta_id(), 0], x * 2.0)

    tensors = [torch.ones(64 * 256, 64, device="cuda") for _ in range(9)]
    for source, target in zip(tensors, tensors[1:], strict=False):
        doubles(source, target, grid=256)
    torch.cuda.synchronize()
    assert (tensors[-1] == 256).all()
