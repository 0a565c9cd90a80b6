"""Cases of memory, views and synchronisation on the GPU: what the PTX machine runs, and NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from memory.test_debug import X, shown, talks
from memory.test_memory import CASES
from memory_cases import MemoryCase, check

import tilecat as tc
from tilecat.dtypes import from_numpy

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


def on_gpu(array: np.ndarray) -> Any:
    """A tensor with the array's strides, at the array's place from a multiple of 512 bytes."""
    if array.base is None or 0 in array.strides:
        return _bytes(np.ascontiguousarray(array)).view(_dtype(array)).reshape(array.shape)
    base = array.base
    offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    flat = _bytes(base.ravel(order="K")).view(_dtype(array))
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return flat.as_strided(array.shape, strides, offset // array.itemsize)


def _bytes(array: np.ndarray) -> Any:
    return torch.from_numpy(array.reshape(-1).view(np.uint8).copy()).cuda()


def _dtype(array: np.ndarray) -> Any:
    return getattr(torch, from_numpy(array.dtype).torch)


def back(tensor: Any, like: np.ndarray) -> np.ndarray:
    """A tensor's elements as an array of the dtype of `like`."""
    data = tensor.contiguous().view(torch.uint8).cpu().numpy()
    return data.reshape(-1).view(like.dtype).reshape(like.shape)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_memory_case_on_the_gpu(case: MemoryCase):
    before = case.arrays()
    moved = {id(v): on_gpu(v) for v in before.values() if isinstance(v, np.ndarray)}
    args = [moved.get(id(v), v) for v in before.values()]
    case.kernel(*args, grid=case.grid, **case.params)
    torch.cuda.synchronize()
    after = {
        name: back(moved[id(v)], v) if isinstance(v, np.ndarray) else v
        for name, v in before.items()
    }
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
