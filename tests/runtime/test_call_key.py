"""What a launch depends on: equal for calls that may share one, different for all others."""

import numpy as np

from tilecat.runtime import arrays
from tilecat.runtime.arrays import call_key


class Tensor:
    """As much of a torch tensor as the key reads."""

    def __init__(self, ptr=64, shape=(4, 8), stride=(8, 1), dtype="bf16", device=0):
        self._ptr, self.shape, self._stride = ptr, shape, stride
        self.dtype, self._device = dtype, device

    def data_ptr(self):
        return self._ptr

    def stride(self):
        return self._stride

    def get_device(self):
        return self._device


class Subclass(Tensor):
    """Its shape may mean something else."""


def keys(monkeypatch, *calls):
    monkeypatch.setattr(arrays, "TENSORS", {Tensor})
    return [call_key(args) for args in calls]


def test_key_tells_memory_layout_dtype_and_scalars_apart(monkeypatch):
    same, *others = keys(
        monkeypatch,
        (Tensor(), 1.0), (Tensor(ptr=80), 1.0), (Tensor(shape=(4, 4)), 1.0),
        (Tensor(stride=(16, 1)), 1.0), (Tensor(dtype="f16"), 1.0), (Tensor(), 2.0), (Tensor(), 1),
        (Tensor(device=1), 1.0), (Tensor(device=-1), 1.0),
    )  # fmt: skip
    assert len({same, *others}) == 9
    assert keys(monkeypatch, (Tensor(), 1.0))[0] == same
    zero, minus = keys(monkeypatch, (Tensor(), 0.0), (Tensor(), -0.0))
    assert zero != minus


def test_only_tensors_seen_before_and_numbers_have_a_key(monkeypatch):
    found = keys(
        monkeypatch, (Subclass(),), (np.zeros(3),), (Tensor(), True), (Tensor(), None)
    )  # fmt: skip
    assert found == [None] * 4
    monkeypatch.setattr(arrays, "TENSORS", set())
    assert call_key((Tensor(),)) is None
