"""What a launch depends on: equal for calls that may share one, different for all others."""

import sys
from types import SimpleNamespace

import numpy as np

from tilecat.runtime.arrays import call_key, layout_key


class Tensor:
    """As much of a torch tensor as the key reads."""

    def __init__(self, ptr=64, shape=(4, 8), stride=(8, 1), dtype="bf16", is_cuda=True):
        self._ptr, self.shape, self._stride = ptr, shape, stride
        self.dtype, self.is_cuda = dtype, is_cuda

    def data_ptr(self):
        return self._ptr

    def stride(self):
        return self._stride

    def get_device(self):
        return 0


def keys(monkeypatch, *calls):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor))
    return [call_key(args) for args in calls]


def test_key_tells_memory_layout_dtype_and_scalars_apart(monkeypatch):
    same, *others = keys(
        monkeypatch,
        (Tensor(), 1.0), (Tensor(ptr=80), 1.0), (Tensor(shape=(4, 4)), 1.0),
        (Tensor(stride=(16, 1)), 1.0), (Tensor(dtype="f16"), 1.0), (Tensor(), 2.0), (Tensor(), 1),
    )  # fmt: skip
    assert len({same, *others}) == 7
    assert keys(monkeypatch, (Tensor(), 1.0))[0] == same
    zero, minus = keys(monkeypatch, (Tensor(), 0.0), (Tensor(), -0.0))
    assert zero != minus


def test_only_tensors_on_a_gpu_have_a_key(monkeypatch):
    found = keys(
        monkeypatch,
        (Tensor(is_cuda=False),), (np.zeros(3),), (Tensor(), True), (Tensor(), None),
    )  # fmt: skip
    assert found == [None] * 4
    monkeypatch.delitem(sys.modules, "torch")
    assert call_key((Tensor(),)) is None


def test_a_layout_is_that_of_any_memory_aligned_alike(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor))
    same = layout_key((Tensor(), None))
    assert same is not None and layout_key((Tensor(ptr=4096), None)) == same
    others = [
        (Tensor(ptr=72), None), (Tensor(shape=(4, 4)), None), (Tensor(stride=(16, 1)), None),
        (Tensor(dtype="f16"), None), (Tensor(), Tensor()),
    ]  # fmt: skip
    assert len({same, *map(layout_key, others)}) == 6
    assert layout_key((Tensor(is_cuda=False), None)) is None
    assert layout_key((Tensor(), 1.0)) is None
