"""Cases of memory, views and synchronisation on the GPU: what the PTX machine runs, and NumPy's."""

from __future__ import annotations

import pytest
from memory.test_debug import X, shown, talks
from memory.test_memory import CASES
from memory_cases import MemoryCase

import tilecat as tc

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from on_gpu import run_on_gpu  # noqa: E402


@pytest.mark.parametrize("case", CASES, ids=str)
def test_memory_case_on_the_gpu(case: MemoryCase):
    run_on_gpu(case)


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
