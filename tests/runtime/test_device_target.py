"""A call compiles for the GPU that its arrays are on, as the driver says it; no GPU needed."""

from __future__ import annotations

import re

import pytest

import tilecat as tc
from runtime import fake_cuda
from runtime.fake_cuda import forget, installed
from tilecat import f32, gl, rt
from tilecat.arch import ARCHS, arch_of_device
from tilecat.errors import ArchError
from tilecat.runtime import arrays


@tc.kernel
def doubled(X: gl[f32, "M", "N"], Y: gl[f32, "M", "N"]):
    with tc.warpgroup():
        tc.store(Y[0, 0], tc.load(X[0, 0], rt[f32, 64, 64]) * 2)


@pytest.fixture
def cuda(monkeypatch):
    forget()
    yield installed(monkeypatch)
    forget()
    doubled._prepared.clear()


def on_gpu(ptr: int) -> arrays.ArrayView:
    return arrays.ArrayView("cuda:1", ptr, (64, 64), (64, 1), "f32", False, None)


def become(monkeypatch, capability: tuple[int, int]) -> None:
    major, minor = capability
    monkeypatch.setitem(fake_cuda.ATTRIBUTES, "MAJOR", major)
    monkeypatch.setitem(fake_cuda.ATTRIBUTES, "MINOR", minor)


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.target)
def test_a_call_compiles_for_the_gpu_of_its_arrays(cuda, monkeypatch, arch):
    become(monkeypatch, arch.capability)
    loaded = []
    real = cuda.cuModuleLoadData

    def load(image):
        loaded.append(image)
        return real(image)

    monkeypatch.setattr(cuda, "cuModuleLoadData", load, raising=False)
    doubled(on_gpu(4096), on_gpu(65536))
    assert len(cuda.launches) == 1
    (image,) = loaded
    assert bytes(image) == doubled.compile(target=arch.target).cubin


def test_a_gpu_that_is_not_known_is_refused(cuda, monkeypatch):
    become(monkeypatch, (8, 0))
    text = (
        "cuda: tilecat compiles for GPUs of compute capability 9.0 (sm_90a), 10.0 (sm_100a), "
        "10.3 (sm_103a), 10.7 (sm_107a), got 8.0 (NVIDIA H200)"
    )
    with pytest.raises(ArchError, match=re.escape(text)):
        doubled(on_gpu(4096), on_gpu(65536))
    assert not cuda.launches


def test_capabilities_are_those_of_the_targets():
    assert [arch.capability for arch in ARCHS] == [(9, 0), (10, 0), (10, 3), (10, 7)]
    assert arch_of_device((10, 3), "B300").target == "sm_103a"
